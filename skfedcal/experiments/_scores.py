"""Scores on test rows, each error next to its finite-sample floor."""

from __future__ import annotations

from typing import Any

import numpy as np

from skfedcal.experiments._splits import Array
from skfedcal.metrics import (
    calibration_floor,
    classwise_calibration_error,
    expected_calibration_error,
    negative_log_likelihood,
)

# Columns and how they are shown.
SCORES = {
    "accuracy": ".1%",
    "balanced": ".1%",
    "cwECE": ".2%",
    "floor": ".2%",
    "ECE": ".2%",
    "NLL": ".3f",
}


def score(
    labels: Array, proba: Array, classes: Array, seed: int, n_bins: int = 15
) -> dict[str, float]:
    """Scores of probabilities whose columns are `classes`.

    `balanced` is the mean over classes of the share of their rows that are right;
    `floor` the cwECE that a calibrated model would show on as many rows, `floor_sd` its
    deviation.
    """
    right = classes[proba.argmax(axis=1)] == labels
    by_class = [right[labels == name].mean() for name in np.unique(labels)]
    floor = calibration_floor(
        proba,
        metric="classwise_calibration_error",
        n_bins=n_bins,
        random_state=seed,
    )
    named: dict[str, Any] = {"labels": classes, "n_bins": n_bins}
    return {
        "accuracy": float(right.mean()),
        "balanced": float(np.mean(by_class)),
        "cwECE": float(classwise_calibration_error(labels, proba, **named)),
        "floor": float(floor.mean),
        "floor_sd": float(floor.std),
        "ECE": float(expected_calibration_error(labels, proba, **named)),
        "NLL": float(negative_log_likelihood(labels, proba, labels=classes)),
    }
