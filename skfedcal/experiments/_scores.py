"""What is measured on test rows, each error next to what sampling alone makes."""

from __future__ import annotations

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


def score(labels: Array, proba: Array, classes: Array, seed: int) -> dict[str, float]:
    """Scores of probabilities whose columns are `classes`.

    `balanced` is the mean over classes of the share of their rows that are right;
    `floor` the cwECE that a calibrated model would show on as many rows.
    """
    right = classes[proba.argmax(axis=1)] == labels
    by_class = [right[labels == name].mean() for name in np.unique(labels)]
    floor = calibration_floor(
        proba, metric="classwise_calibration_error", random_state=seed
    )
    return {
        "accuracy": float(right.mean()),
        "balanced": float(np.mean(by_class)),
        "cwECE": float(classwise_calibration_error(labels, proba, labels=classes)),
        "floor": float(floor.mean),
        "ECE": float(expected_calibration_error(labels, proba, labels=classes)),
        "NLL": float(negative_log_likelihood(labels, proba, labels=classes)),
    }
