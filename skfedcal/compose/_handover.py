"""From the classifier to the calibrator: its settings and its data."""

import warnings

import numpy as np

from skfedcal._sklearn_compat import copy_to_fit
from skfedcal.calibrators import FedTempCalibrator
from skfedcal.data._partition import rows_by_client
from skfedcal.exceptions import PrivacyWarning

__all__ = ["calibration_data", "clone_calibrator", "name_columns"]


def clone_calibrator(calibrator, *, frozen):
    """Clone to be fitted; refuse or warn before any work is done."""
    if calibrator is None:
        return FedTempCalibrator()
    calibrator._validate_params()
    if calibrator.input_type != "logits":
        raise ValueError(
            f"The calibrator has input_type={calibrator.input_type!r}, but it is given "
            "logits of the classifier; use input_type='logits'."
        )
    if calibrator._privacy_model().private and not frozen:
        warnings.warn(
            "The budget of the calibrator does not cover the classifier, which is "
            "trained on the same clients without privacy. Pass a classifier trained "
            "elsewhere as FrozenEstimator(classifier).",
            PrivacyWarning,
            stacklevel=4,
        )
    return copy_to_fit(calibrator)


def name_columns(calibrator, classes):
    """Tell the calibrator which column is which class."""
    if len(classes) < 2:
        raise ValueError(
            f"y holds only one class ({classes.tolist()}); nothing can be calibrated."
        )
    given = calibrator.classes
    if given is not None and not np.array_equal(np.sort(np.asarray(given)), classes):
        raise ValueError(
            f"The calibrator has classes={list(given)}, the classifier has "
            f"{classes.tolist()}; leave `classes` out."
        )
    calibrator.set_params(classes=classes)


def calibration_data(logits, y, weights, clients, names):
    """Arguments of the calibrator's `fit`.

    Named clients become lists with one entry each, so that a client without a row to
    calibrate on still counts.
    """
    if names is None:
        return {"X": logits, "y": y, "sample_weight": weights}
    arrays = (logits, y) if weights is None else (logits, y, np.asarray(weights))
    parts = rows_by_client(clients, len(names), *arrays)
    X, y, *rest = (list(part) for part in zip(*parts, strict=True))
    weights = rest[0] if rest else None
    return {"X": X, "y": y, "sample_weight": weights, "client_ids": names}
