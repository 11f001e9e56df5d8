"""Methods, privacy and seeds side by side on the same clients."""

from skfedcal.experiments.comparison.engine import compare
from skfedcal.experiments.comparison.result import Comparison

__all__ = ["Comparison", "compare"]
