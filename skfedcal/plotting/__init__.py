"""Plots of calibration; matplotlib is imported when one is drawn."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.plotting._audit import AuditDisplay
    from skfedcal.plotting._before_after import plot_confusion_matrices, plot_tsne
    from skfedcal.plotting._ledger import LedgerDisplay
    from skfedcal.plotting._precision_recall import FedPrecisionRecallDisplay
    from skfedcal.plotting._reliability import FedReliabilityDisplay
    from skfedcal.plotting._roc import FedRocDisplay
    from skfedcal.plotting.reliability._display import ReliabilityDisplay
    from skfedcal.plotting.reliability._panels import (
        before_and_after,
        plot_reliability,
        plot_reliability_grid,
    )
    from skfedcal.plotting.studies._cost import CostDisplay
    from skfedcal.plotting.studies._skew import LabelSkewDisplay
    from skfedcal.plotting.studies._sweep import SweepDisplay
    from skfedcal.plotting.studies._temperatures import ClientTemperaturesDisplay

__all__ = [
    "AuditDisplay",
    "ClientTemperaturesDisplay",
    "CostDisplay",
    "FedPrecisionRecallDisplay",
    "FedReliabilityDisplay",
    "FedRocDisplay",
    "LabelSkewDisplay",
    "LedgerDisplay",
    "ReliabilityDisplay",
    "SweepDisplay",
    "before_and_after",
    "plot_confusion_matrices",
    "plot_reliability",
    "plot_reliability_grid",
    "plot_tsne",
]

__getattr__, __dir__, _names = attach(
    __name__,
    {
        "_audit": ["AuditDisplay"],
        "_before_after": ["plot_confusion_matrices", "plot_tsne"],
        "_ledger": ["LedgerDisplay"],
        "_precision_recall": ["FedPrecisionRecallDisplay"],
        "_reliability": ["FedReliabilityDisplay"],
        "_roc": ["FedRocDisplay"],
        "reliability._display": ["ReliabilityDisplay"],
        "reliability._panels": [
            "before_and_after",
            "plot_reliability",
            "plot_reliability_grid",
        ],
        "studies._cost": ["CostDisplay"],
        "studies._skew": ["LabelSkewDisplay"],
        "studies._sweep": ["SweepDisplay"],
        "studies._temperatures": ["ClientTemperaturesDisplay"],
    },
)
