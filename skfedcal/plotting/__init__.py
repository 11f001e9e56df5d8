"""Plots of calibration; matplotlib is imported when one is drawn."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.plotting._audit_display import AuditDisplay
    from skfedcal.plotting._before_after import plot_confusion_matrices, plot_tsne
    from skfedcal.plotting._client_displays import (
        ClientTemperaturesDisplay,
        LabelSkewDisplay,
    )
    from skfedcal.plotting._fed_curves import FedPrecisionRecallDisplay, FedRocDisplay
    from skfedcal.plotting._fed_reliability import FedReliabilityDisplay
    from skfedcal.plotting._ledger_display import LedgerDisplay
    from skfedcal.plotting._reliability_display import ReliabilityDisplay
    from skfedcal.plotting._reliability_panels import (
        before_and_after,
        plot_reliability,
        plot_reliability_grid,
    )
    from skfedcal.plotting._study_displays import CostDisplay, SweepDisplay

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
        "_audit_display": ["AuditDisplay"],
        "_before_after": ["plot_confusion_matrices", "plot_tsne"],
        "_client_displays": ["ClientTemperaturesDisplay", "LabelSkewDisplay"],
        "_fed_curves": ["FedPrecisionRecallDisplay", "FedRocDisplay"],
        "_fed_reliability": ["FedReliabilityDisplay"],
        "_ledger_display": ["LedgerDisplay"],
        "_reliability_display": ["ReliabilityDisplay"],
        "_reliability_panels": [
            "before_and_after",
            "plot_reliability",
            "plot_reliability_grid",
        ],
        "_study_displays": ["CostDisplay", "SweepDisplay"],
    },
)
