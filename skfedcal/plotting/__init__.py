"""Pictures of federated evaluation; matplotlib is imported when one is drawn."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.plotting._audit import AuditDisplay
    from skfedcal.plotting._before_after import plot_confusion_matrices, plot_tsne
    from skfedcal.plotting._precision_recall import FedPrecisionRecallDisplay
    from skfedcal.plotting._reliability import FedReliabilityDisplay
    from skfedcal.plotting._roc import FedRocDisplay

__all__ = [
    "AuditDisplay",
    "FedPrecisionRecallDisplay",
    "FedReliabilityDisplay",
    "FedRocDisplay",
    "plot_confusion_matrices",
    "plot_tsne",
]

__getattr__, __dir__, _names = attach(
    __name__,
    {
        "_audit": ["AuditDisplay"],
        "_before_after": ["plot_confusion_matrices", "plot_tsne"],
        "_precision_recall": ["FedPrecisionRecallDisplay"],
        "_reliability": ["FedReliabilityDisplay"],
        "_roc": ["FedRocDisplay"],
    },
)
