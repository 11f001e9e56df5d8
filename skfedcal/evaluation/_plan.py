"""Answers of planning: an error to expect, and examples that are needed."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, inf


@dataclass(frozen=True, slots=True)
class ExpectedError:
    """Error to expect of a metric; behaves as a float, its total.

    Attributes
    ----------
    metric : str
        Which metric.
    discretisation : float
        Of leaves instead of scores.
    privacy : float
        Standard deviation that noise adds.
    sampling : float
        Standard deviation because other examples could have been drawn.
    total : float
        Root of the sum of squares of the three.
    height, n_bins : int
        Depth of the leaves; bins of a calibration map, else 0.
    levels : tuple of int
        Bit depths that are counted.

    Examples
    --------
    >>> from skfedcal import DistributedDP
    >>> from skfedcal.evaluation import expected_error
    >>> error = expected_error("roc_auc", 10_000, privacy=DistributedDP(eps=1.0))
    >>> f"{error.total:.4f}: sampling {error.sampling:.4f}, privacy {error.privacy:.4f}"
    '0.0046: sampling 0.0043, privacy 0.0015'
    """

    metric: str
    discretisation: float
    privacy: float
    sampling: float
    height: int
    levels: tuple[int, ...]
    n_bins: int = 0

    @property
    def total(self) -> float:
        return hypot(self.discretisation, self.privacy, self.sampling)

    def __float__(self) -> float:
        return self.total


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """Answer of `plan`.

    Attributes
    ----------
    target : float
        Error that was asked for.
    n_needed : float
        Examples that reach it; infinite if no number does.
    n_examples : float or None
        Examples there are.
    error : ExpectedError
        With these examples, or those needed, at the best height.

    Examples
    --------
    >>> from skfedcal import DistributedDP
    >>> from skfedcal.evaluation import plan
    >>> answer = plan("roc_auc", 0.01, privacy=DistributedDP(eps=1.0))
    >>> 100 * round(answer.n_needed / 100)
    2300
    """

    target: float
    n_needed: float
    n_examples: float | None
    error: ExpectedError

    @property
    def enough(self) -> bool:
        """Whether the examples there are reach the target."""
        return self.n_examples is None or self.n_examples >= self.n_needed

    def __repr__(self) -> str:
        error = self.error
        bins = f", {error.n_bins} bins" if error.n_bins else ""
        need = f"needs {self.n_needed:,.0f} examples"
        if self.n_needed == inf:
            need = "is out of reach: no number of examples is enough"
        lines = [f"Plan: {error.metric} within {self.target:g} {need}"]
        if self.n_examples is not None:
            verdict = "enough" if self.enough else "not enough"
            lines.append(f"  examples   {self.n_examples:,.0f}: {verdict}")
        levels = f", levels {error.levels}" if len(error.levels) > 1 else ""
        lines += [
            f"  histogram  height {error.height}{levels}{bins}",
            f"  error      {error.total:.2g} = root of squares of privacy "
            f"{error.privacy:.2g}, sampling {error.sampling:.2g}, discretisation "
            f"{error.discretisation:.2g}",
        ]
        return "\n".join(lines)
