"""Methods side by side, and the tables of the papers, at a size for one machine."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.experiments._participation import participation_grid
    from skfedcal.experiments._results import ResultTable
    from skfedcal.experiments._skew import skew_table
    from skfedcal.experiments._train_time import train_time_table
    from skfedcal.experiments.comparison import Comparison, compare

__all__ = [
    "Comparison",
    "ResultTable",
    "compare",
    "participation_grid",
    "skew_table",
    "train_time_table",
]

__getattr__, __dir__, _names = attach(
    __name__,
    {
        "_participation": ["participation_grid"],
        "_results": ["ResultTable"],
        "_skew": ["skew_table"],
        "_train_time": ["train_time_table"],
        "comparison": ["Comparison", "compare"],
    },
)
