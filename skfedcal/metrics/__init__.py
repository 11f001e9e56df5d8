"""Central metrics of calibrated probabilities, and scorers made of them.

Examples
--------
A scorer is called with an estimator, or passed as `scoring` to scikit-learn; larger is
better. This model says 0.5 and 0.5 to rows of which three in four are of one class:

>>> import numpy as np
>>> from sklearn.dummy import DummyClassifier
>>> from skfedcal import metrics
>>> X, y = np.zeros((8, 1)), np.array([0, 0, 0, 1, 0, 1, 0, 0])
>>> model = DummyClassifier(strategy="uniform").fit(X, y)
>>> metrics.neg_expected_calibration_error_scorer(model, X, y)
-0.25
>>> metrics.neg_classwise_calibration_error_scorer(model, X, y)
-0.25
>>> metrics.neg_l1_calibration_error_scorer(model, X, y)
-0.25
>>> metrics.neg_l2_calibration_error_scorer(model, X, y)
-0.25
>>> metrics.neg_l2_squared_calibration_error_scorer(model, X, y)
-0.0625
>>> metrics.neg_max_calibration_error_scorer(model, X, y)
-0.25
>>> metrics.neg_brier_score_scorer(model, X, y)
-0.25
>>> round(metrics.log_likelihood_scorer(model, X, y), 3)
-0.693
"""

from skfedcal.metrics._calibration_error import (
    calibration_error,
    classwise_calibration_error,
    expected_calibration_error,
)
from skfedcal.metrics._floor import CalibrationFloor, calibration_floor
from skfedcal.metrics._scores import (
    brier_score,
    get_scorer,
    get_scorer_names,
    log_likelihood_scorer,
    neg_brier_score_scorer,
    neg_classwise_calibration_error_scorer,
    neg_expected_calibration_error_scorer,
    neg_l1_calibration_error_scorer,
    neg_l2_calibration_error_scorer,
    neg_l2_squared_calibration_error_scorer,
    neg_max_calibration_error_scorer,
    negative_log_likelihood,
)
from skfedcal.metrics._uncertainty import predictive_entropy, variation_ratio

__all__ = [
    "CalibrationFloor",
    "brier_score",
    "calibration_error",
    "calibration_floor",
    "classwise_calibration_error",
    "expected_calibration_error",
    "get_scorer",
    "get_scorer_names",
    "log_likelihood_scorer",
    "neg_brier_score_scorer",
    "neg_classwise_calibration_error_scorer",
    "neg_expected_calibration_error_scorer",
    "neg_l1_calibration_error_scorer",
    "neg_l2_calibration_error_scorer",
    "neg_l2_squared_calibration_error_scorer",
    "neg_max_calibration_error_scorer",
    "negative_log_likelihood",
    "predictive_entropy",
    "variation_ratio",
]
