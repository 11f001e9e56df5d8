"""Which rows of a comparison gain, and which of them are the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skfedcal.experiments.comparison._result import Comparison

# A gain counts when it is larger than this many standard errors.
N_ERRORS = 2.0


@dataclass(frozen=True, slots=True)
class Pick:
    """A row of the table with its gain in log loss over the base on the same rows.

    Attributes
    ----------
    row : dict
        Means over seeds.
    runs : list of dict
        Its runs, by seed.
    base : dict
        Means of the base on the same rows.
    gain, error : float
        Mean gain in log loss over seeds, and the standard error of one run: of its
        test rows, which seeds share, and of its noise, of which a release has one draw.
    starred : bool
        Whether accuracy drops by more than 1 %.
    point : tuple of str
        What was varied, as "name = value".
    """

    row: dict[str, Any]
    runs: Sequence[Any]
    base: dict[str, Any]
    gain: float
    error: float
    starred: bool
    point: tuple[str, ...] = ()

    @property
    def clear(self) -> bool:
        """Whether the gain is more than chance, at no loss of accuracy."""
        return self.gain > N_ERRORS * self.error and not self.starred

    @property
    def at_floor(self) -> bool:
        """Whether its cwECE could be that of a perfect model."""
        deviation = self.runs[0]["floor_sd"]
        return bool(self.row["cwECE"] <= self.row["floor"] + N_ERRORS * deviation)

    @property
    def private(self) -> bool:
        return self.row["eps"] not in ("-", "none")

    @property
    def name(self) -> str:
        """Method, budget and what was varied."""
        return self._named([f"eps = {self.row['eps']}"] if self.private else [])

    @property
    def short_name(self) -> str:
        """Method and what was varied, where the budget was said."""
        return self._named([])

    def _named(self, parts: list[str]) -> str:
        parts = [*parts, *self.point]
        name = str(self.row["method"])
        return f"{name} ({', '.join(parts)})" if parts else name


def picks_of(comparison: Comparison) -> list[Pick]:
    """All rows of the table, base and central oracle first."""
    table = comparison.table
    stars = table.stars["cwECE"]
    rows = table.rows
    bases = {_split(comparison, row): row for row in rows if row["method"] == "base"}
    groups: dict[tuple, list[Any]] = {}
    for run in comparison.runs:
        key = tuple(run[name] for name in table.keys)
        groups.setdefault(key, []).append(run)
    found = []
    for row in rows:
        key = tuple(row[name] for name in table.keys)
        runs = groups[key]
        gain, error = _gain(runs)
        base = bases.get(_split(comparison, row), next(iter(bases.values())))
        point = [f"{n} = {row[n]}" for n in comparison.varied if row[n] != "-"]
        found.append(Pick(row, runs, base, gain, error, key in stars, tuple(point)))
    return found


def best_by_budget(picks: Sequence[Pick]) -> dict[str, Pick]:
    """Row with the largest gain for each eps, "none" first, then from large to small.

    Of rows that lose accuracy only if there is no other.
    """
    budgets = dict.fromkeys(pick.row["eps"] for pick in picks if pick.row["eps"] != "-")
    order = sorted(budgets, key=lambda eps: (eps != "none", _size(eps)))
    found = {}
    for eps in order:
        rows = [pick for pick in picks if pick.row["eps"] == eps]
        found[eps] = max(rows, key=lambda pick: (not pick.starred, pick.gain))
    return found


def _gain(runs: Sequence[Any]) -> tuple[float, float]:
    """Mean gain, and the standard error of a single run."""
    n_runs = len(runs)
    gain = sum(run["NLL gain"] for run in runs) / n_runs
    rows = sum(run["NLL gain error"] ** 2 for run in runs) / n_runs
    between = sum((run["NLL gain"] - gain) ** 2 for run in runs) / max(n_runs - 1, 1)
    return gain, sqrt(rows + between)


def _size(eps: str) -> float:
    return 0.0 if eps == "none" else -float(eps)


def _split(comparison: Comparison, row: Any) -> tuple:
    return tuple(row[n] for n in comparison.varied if n in ("beta", "clients"))
