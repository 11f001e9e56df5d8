"""Methods side by side, and the tables of the papers, at a size for one machine."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.experiments.comparison import Comparison, compare
    from skfedcal.experiments.forecasting import ExpectedGain, Forecast, forecast
    from skfedcal.experiments.paper_tables import (
        participation_grid,
        skew_table,
        train_time_table,
    )
    from skfedcal.experiments.presets import Preset, printed
    from skfedcal.experiments.results import ResultTable

__all__ = [
    "Comparison",
    "ExpectedGain",
    "Forecast",
    "Preset",
    "ResultTable",
    "compare",
    "forecast",
    "participation_grid",
    "printed",
    "skew_table",
    "train_time_table",
]

__getattr__, __dir__, _names = attach(
    __name__,
    {
        "comparison": ["Comparison", "compare"],
        "forecasting": ["ExpectedGain", "Forecast", "forecast"],
        "paper_tables": ["participation_grid", "skew_table", "train_time_table"],
        "presets": ["Preset", "printed"],
        "results": ["ResultTable"],
    },
)
