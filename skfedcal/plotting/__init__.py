"""Plots of calibration; matplotlib is imported when one is drawn."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.plotting._client_displays import (
        ClientTemperaturesDisplay,
        LabelSkewDisplay,
    )
    from skfedcal.plotting._fed_curves import (
        CalibrationMonitorDisplay,
        FedPrecisionRecallDisplay,
        FedReliabilityDisplay,
        FedRocDisplay,
    )
    from skfedcal.plotting._panels import (
        before_and_after,
        plot_confusion_matrices,
        plot_reliability,
        plot_reliability_grid,
        plot_tsne,
    )
    from skfedcal.plotting._privacy_displays import AuditDisplay, LedgerDisplay
    from skfedcal.plotting._reliability_display import ReliabilityDisplay
    from skfedcal.plotting._study_displays import CostDisplay, SweepDisplay

__all__ = [
    "AuditDisplay",
    "CalibrationMonitorDisplay",
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
        "_client_displays": ["ClientTemperaturesDisplay", "LabelSkewDisplay"],
        "_fed_curves": [
            "CalibrationMonitorDisplay",
            "FedPrecisionRecallDisplay",
            "FedReliabilityDisplay",
            "FedRocDisplay",
        ],
        "_panels": [
            "before_and_after",
            "plot_confusion_matrices",
            "plot_reliability",
            "plot_reliability_grid",
            "plot_tsne",
        ],
        "_privacy_displays": ["AuditDisplay", "LedgerDisplay"],
        "_reliability_display": ["ReliabilityDisplay"],
        "_study_displays": ["CostDisplay", "SweepDisplay"],
    },
)
