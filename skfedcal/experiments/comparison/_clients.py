"""How far clients differ from each other (Table 9 of the paper)."""

from __future__ import annotations

from typing import Any

import numpy as np

from skfedcal import _logits
from skfedcal.calibrators import FedTempCalibrator, client_temperatures
from skfedcal.experiments.comparison._rows import Split
from skfedcal.metrics import classwise_calibration_error

# Columns and how they are shown.
DIFFERENCES = {
    "classes": ".1f",
    "var cwECE": ".3g",
    "var T": ".3g",
    "mean |T - T_k|": ".3g",
}


def client_differences(split: Split, n_classes: int, n_bins: int) -> dict[str, Any]:
    """Spread over clients of what each would fit to its own rows alone.

    `classes` is the mean number of classes of a client, `var T` the variance of the
    temperatures T_k that clients would fit, `var cwECE` that of the errors with them on
    their own rows, and T the temperature of all rows together.
    """
    columns = np.arange(n_classes)
    own = client_temperatures(
        split.logits, split.labels, client_ids=split.clients, classes=columns
    )
    whole = FedTempCalibrator(classes=columns).fit(split.logits, split.labels)
    errors, kinds = [], []
    for client, temperature in zip(np.unique(split.clients), own, strict=True):
        rows = split.clients == client
        labels = split.labels[rows]
        proba = _logits.softmax(split.logits[rows].astype(np.float64) / temperature)
        error = classwise_calibration_error(
            labels, proba, labels=columns, n_bins=n_bins
        )
        errors.append(float(error))
        kinds.append(len(np.unique(labels)))
    values = (
        np.mean(kinds),
        np.var(errors),
        np.var(own),
        np.mean(np.abs(own - whole.temperature_)),
    )
    return {name: float(v) for name, v in zip(DIFFERENCES, values, strict=True)}
