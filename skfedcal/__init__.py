"""Private, federated probability calibration with the scikit-learn API."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach
from skfedcal._version import __version__ as __version__

if TYPE_CHECKING:  # ruff: isort: off
    from skfedcal.clients import (
        DirichletPartitioner as DirichletPartitioner,
        FederatedDataset as FederatedDataset,
        GroupPartitioner as GroupPartitioner,
        IIDPartitioner as IIDPartitioner,
        load_federation as load_federation,
        make_federation as make_federation,
        save_federation as save_federation,
    )
    from skfedcal.compose import (
        FederatedCalibratedClassifier as FederatedCalibratedClassifier,
        LogitTransformer as LogitTransformer,
        fit_sites as fit_sites,
        verify_result as verify_result,
    )
    from skfedcal.evaluation import (
        CalibrationMonitor as CalibrationMonitor,
        ClasswiseResiduals as ClasswiseResiduals,
        Estimate as Estimate,
        ScoreHistogram as ScoreHistogram,
        federated_accuracy_score as federated_accuracy_score,
        federated_average_precision_score as federated_average_precision_score,
        federated_balanced_accuracy_score as federated_balanced_accuracy_score,
        federated_brier_score_loss as federated_brier_score_loss,
        federated_calibration_curve as federated_calibration_curve,
        federated_calibration_error as federated_calibration_error,
        federated_confusion_matrix as federated_confusion_matrix,
        federated_compare_scores as federated_compare_scores,
        federated_f1_score as federated_f1_score,
        federated_gain as federated_gain,
        federated_log_loss as federated_log_loss,
        federated_precision_score as federated_precision_score,
        federated_recall_score as federated_recall_score,
        federated_report as federated_report,
        federated_roc_auc_score as federated_roc_auc_score,
    )
    from skfedcal.experiments import (
        Comparison as Comparison,
        compare as compare,
        forecast as forecast,
    )
    from skfedcal.federation import FederatedRunner as FederatedRunner

    # The names of the registry, for type checkers only.
    from skfedcal.methods import *  # noqa: F403
    from skfedcal.plotting import (
        FedPrecisionRecallDisplay as FedPrecisionRecallDisplay,
        FedReliabilityDisplay as FedReliabilityDisplay,
        FedRocDisplay as FedRocDisplay,
        ReliabilityDisplay as ReliabilityDisplay,
    )
    from skfedcal.privacy import (
        CentralDP as CentralDP,
        DistributedDP as DistributedDP,
        LocalDP as LocalDP,
        PrivacyLedger as PrivacyLedger,
        SecureAggregation as SecureAggregation,
        SourceDP as SourceDP,
    )
    from skfedcal.training import FedGaussianHead as FedGaussianHead
else:
    from skfedcal import methods

    __getattr__, __dir__, _names = attach(
        __name__,
        {
            "calibrators": [],
            "clients": [
                "DirichletPartitioner",
                "FederatedDataset",
                "GroupPartitioner",
                "IIDPartitioner",
                "load_federation",
                "make_federation",
                "save_federation",
            ],
            "compose": [
                "FederatedCalibratedClassifier",
                "LogitTransformer",
                "fit_sites",
                "verify_result",
            ],
            "data": [],
            "evaluation": [
                "CalibrationMonitor",
                "ClasswiseResiduals",
                "Estimate",
                "ScoreHistogram",
                "federated_accuracy_score",
                "federated_average_precision_score",
                "federated_balanced_accuracy_score",
                "federated_brier_score_loss",
                "federated_calibration_curve",
                "federated_calibration_error",
                "federated_confusion_matrix",
                "federated_compare_scores",
                "federated_f1_score",
                "federated_gain",
                "federated_log_loss",
                "federated_precision_score",
                "federated_recall_score",
                "federated_report",
                "federated_roc_auc_score",
            ],
            "experiments": ["Comparison", "compare", "forecast"],
            "federation": ["FederatedRunner"],
            "methods": methods.__all__,
            "plotting": [
                "FedPrecisionRecallDisplay",
                "FedReliabilityDisplay",
                "FedRocDisplay",
                "ReliabilityDisplay",
            ],
            "privacy": [
                "CentralDP",
                "DistributedDP",
                "LocalDP",
                "PrivacyLedger",
                "SecureAggregation",
                "SourceDP",
            ],
            "training": ["FedGaussianHead"],
        },
    )
    __all__ = sorted([*_names, "__version__"])
