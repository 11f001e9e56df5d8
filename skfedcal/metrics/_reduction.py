"""From sums per bin to one number."""

from dataclasses import dataclass

import numpy as np

from skfedcal._params import check_flag
from skfedcal.metrics._binning import BinSums
from skfedcal.metrics._validation import check_choice, check_n_bins

NORMS = ("l1", "l2", "max")
STRATEGIES = ("uniform", "quantile")
AVERAGES = ("macro", "weighted", None)


@dataclass(frozen=True, slots=True)
class BinnedError:
    """How the gaps of all bins become one error; checked when made."""

    n_bins: int = 15
    norm: str = "l1"
    squared: bool = False
    strategy: str = "uniform"
    debias: bool = False

    def __post_init__(self) -> None:
        check_n_bins(self.n_bins)
        check_choice("norm", self.norm, NORMS)
        check_choice("strategy", self.strategy, STRATEGIES)
        for name in ("squared", "debias"):
            if check_flag(name, getattr(self, name)) and self.norm != "l2":
                raise ValueError(
                    f"{name}=True needs norm='l2', got norm={self.norm!r}."
                )

    @property
    def needs_gaps_only(self) -> bool:
        """Whether probabilities minus labels per equal-width bin are enough."""
        return self.norm == "l1" and self.strategy == "uniform"

    def __call__(self, sums: BinSums) -> np.ndarray:
        """Return the error over the last axis; empty bins contribute 0."""
        if self.norm == "l1":
            return _share(np.abs(sums.proba - sums.labels), sums.weight)
        gaps = _ratio(sums.proba - sums.labels, sums.weight)
        if self.norm == "max":
            return np.abs(gaps).max(axis=-1)
        squares = gaps**2
        if self.debias:
            squares = np.where(sums.weight > 1, squares - _rate_variance(sums), 0.0)
        value = _share(squares * sums.weight, sums.weight)
        return value if self.squared else np.sqrt(np.maximum(value, 0.0))


def average_classes(
    errors: np.ndarray, average: str | None, class_weight: np.ndarray | None
) -> np.ndarray:
    """Return the mean over classes (last axis), or the errors when None."""
    if average is None:
        return errors
    if average == "macro" or class_weight is None:
        return errors.mean(axis=-1)
    return (errors * class_weight).sum(axis=-1) / class_weight.sum(axis=-1)


def as_result(value: np.ndarray) -> float | np.ndarray:
    """Return a Python float for a scalar, the array otherwise."""
    return float(value) if np.ndim(value) == 0 else value


def _rate_variance(sums: BinSums) -> np.ndarray:
    """Return the unbiased variance of the share of labels in each bin."""
    rate = _ratio(sums.labels, sums.weight)
    return rate * (1 - rate) / np.where(sums.weight > 1, sums.weight - 1, 1.0)


def _ratio(value: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return value / weight, 0 where the weight is 0."""
    return np.where(weight > 0, value, 0.0) / np.where(weight > 0, weight, 1.0)


def _share(value: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the sum of `value` over bins divided by the weight of all bins."""
    return _ratio(value.sum(axis=-1), weight.sum(axis=-1))
