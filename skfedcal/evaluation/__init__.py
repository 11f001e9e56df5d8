"""Metrics of classifiers whose labels stay with the clients."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.evaluation._bounds import (
        auc_bound,
        auc_certificate,
        auc_discretisation,
        calibration_bound,
        rates_bound,
        threshold_uncertainty,
    )
    from skfedcal.evaluation._estimate import Estimate
    from skfedcal.evaluation._functions import (
        federated_accuracy_score,
        federated_brier_score_loss,
        federated_calibration_curve,
        federated_calibration_error,
        federated_f1_score,
        federated_log_loss,
        federated_precision_score,
        federated_recall_score,
        federated_roc_auc_score,
    )
    from skfedcal.evaluation._histogram import ScoreHistogram
    from skfedcal.evaluation._plan import ExpectedError, Plan
    from skfedcal.evaluation._planning import expected_error, plan
    from skfedcal.evaluation._residuals import ClasswiseResiduals

__all__ = [
    "ClasswiseResiduals",
    "Estimate",
    "ExpectedError",
    "Plan",
    "ScoreHistogram",
    "auc_bound",
    "auc_certificate",
    "auc_discretisation",
    "calibration_bound",
    "expected_error",
    "federated_accuracy_score",
    "federated_brier_score_loss",
    "federated_calibration_curve",
    "federated_calibration_error",
    "federated_f1_score",
    "federated_log_loss",
    "federated_precision_score",
    "federated_recall_score",
    "federated_roc_auc_score",
    "plan",
    "rates_bound",
    "threshold_uncertainty",
]

__getattr__, __dir__, _names = attach(
    __name__,
    {
        "_bounds": [
            "auc_bound",
            "auc_certificate",
            "auc_discretisation",
            "calibration_bound",
            "rates_bound",
            "threshold_uncertainty",
        ],
        "_estimate": ["Estimate"],
        "_functions": [
            "federated_accuracy_score",
            "federated_brier_score_loss",
            "federated_calibration_curve",
            "federated_calibration_error",
            "federated_f1_score",
            "federated_log_loss",
            "federated_precision_score",
            "federated_recall_score",
            "federated_roc_auc_score",
        ],
        "_histogram": ["ScoreHistogram"],
        "_plan": ["ExpectedError", "Plan"],
        "_planning": ["expected_error", "plan"],
        "_residuals": ["ClasswiseResiduals"],
    },
)
