"""Metrics of classifiers whose labels stay with the clients."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.evaluation.bounds import (
        auc_bound,
        auc_certificate,
        auc_discretisation,
        calibration_bound,
        rates_bound,
        threshold_uncertainty,
    )
    from skfedcal.evaluation.calibration import CalibrationCurve
    from skfedcal.evaluation.classwise import ClasswiseResiduals
    from skfedcal.evaluation.functions import (
        federated_accuracy_score,
        federated_average_precision_score,
        federated_balanced_accuracy_score,
        federated_brier_score_loss,
        federated_calibration_curve,
        federated_calibration_error,
        federated_confusion_matrix,
        federated_f1_score,
        federated_log_loss,
        federated_precision_score,
        federated_recall_score,
        federated_roc_auc_score,
    )
    from skfedcal.evaluation.gain import Gain, federated_gain
    from skfedcal.evaluation.histogram import ScoreHistogram
    from skfedcal.evaluation.intervals import Estimate
    from skfedcal.evaluation.monitor import CalibrationMonitor
    from skfedcal.evaluation.paired import federated_compare_scores
    from skfedcal.evaluation.planning import ExpectedError, Plan, expected_error, plan
    from skfedcal.evaluation.report import ClassificationReport, federated_report

__all__ = [
    "CalibrationCurve",
    "CalibrationMonitor",
    "ClassificationReport",
    "ClasswiseResiduals",
    "Estimate",
    "ExpectedError",
    "Gain",
    "Plan",
    "ScoreHistogram",
    "auc_bound",
    "auc_certificate",
    "auc_discretisation",
    "calibration_bound",
    "expected_error",
    "federated_accuracy_score",
    "federated_average_precision_score",
    "federated_balanced_accuracy_score",
    "federated_brier_score_loss",
    "federated_calibration_curve",
    "federated_calibration_error",
    "federated_compare_scores",
    "federated_confusion_matrix",
    "federated_f1_score",
    "federated_gain",
    "federated_log_loss",
    "federated_precision_score",
    "federated_recall_score",
    "federated_report",
    "federated_roc_auc_score",
    "plan",
    "rates_bound",
    "threshold_uncertainty",
]

__getattr__, __dir__, _names = attach(
    __name__,
    {
        "bounds": [
            "auc_bound",
            "auc_certificate",
            "auc_discretisation",
            "calibration_bound",
            "rates_bound",
            "threshold_uncertainty",
        ],
        "calibration": ["CalibrationCurve"],
        "classwise": ["ClasswiseResiduals"],
        "functions": [
            "federated_accuracy_score",
            "federated_average_precision_score",
            "federated_balanced_accuracy_score",
            "federated_brier_score_loss",
            "federated_calibration_curve",
            "federated_calibration_error",
            "federated_confusion_matrix",
            "federated_f1_score",
            "federated_log_loss",
            "federated_precision_score",
            "federated_recall_score",
            "federated_roc_auc_score",
        ],
        "histogram": ["ScoreHistogram"],
        "intervals": ["Estimate"],
        "monitor": ["CalibrationMonitor"],
        "report": ["ClassificationReport", "federated_report"],
        "gain": ["Gain", "federated_gain"],
        "paired": ["federated_compare_scores"],
        "planning": ["ExpectedError", "Plan", "expected_error", "plan"],
    },
)
