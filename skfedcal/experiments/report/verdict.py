"""Say in sentences what a comparison found, and which rows are the best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

from skfedcal.experiments.comparison.result import (
    FEW_CLIENTS,
    fit_warnings,
    unchanged_input_notes,
)

if TYPE_CHECKING:
    from skfedcal.experiments.comparison.result import Comparison

# A gain counts when it is larger than this many standard errors.
N_ERRORS = 2.0

UNPAID = (
    "No eps pays for the choice of a method by this table, which has seen all rows. "
    "Choose on public rows, or let FedAutoCalibrator choose within its eps."
)


@dataclass(frozen=True, slots=True)
class Pick:
    """A row of the table with its gain in log loss over the base on the same rows.

    row: Means over seeds.
    runs: Its runs, by seed.
    base: Means of the base on the same rows.
    gain, error: Mean gain in log loss over seeds, and the standard error of one run: of
        its test rows or their clients (`federated_compare_scores`), which seeds share,
        and of its noise, of which a release has one draw.
    starred: Whether accuracy drops by more than 1 %.
    point: What was varied, as "name = value".
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
        """Method and what was varied, where the budget was fit_warnings."""
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


# Shares of the gain without privacy that a private fit keeps, and words for them.
KEPT = (
    (0.8, "costs little of the gain"),
    (0.4, "costs a part of the gain"),
    (-9.0, "costs most of the gain"),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to tell a reader.

    Attributes
    ----------
    headline : str
        One line.
    tone : {'good', 'mixed', 'none'}
        Whether it helps, helps in part, or not.
    sentences : list of str
        The headline, the state of the model, and the best of each budget.
    warnings : list of str
        What could mislead.
    best : dict of str to Pick
        Best row by eps.
    """

    headline: str
    tone: str
    sentences: list[str]
    warnings: list[str]
    best: Mapping[str, Pick]


def verdict_of(comparison: Comparison) -> Verdict:
    """Judge a comparison."""
    picks = picks_of(comparison)
    best = best_by_budget(picks)
    headline, tone = _headline(picks[0], best)
    sentences = [headline, _state(picks[0]), *_gains(best)]
    if any(pick.private for pick in picks):
        sentences.append(UNPAID)
    return Verdict(headline, tone, sentences, list(_warnings(comparison, picks)), best)


def _headline(base: Pick, best: Mapping[str, Pick]) -> tuple[str, str]:
    exact = best.get("none")
    private = {eps: pick for eps, pick in best.items() if eps != "none"}
    clear = {eps: pick for eps, pick in private.items() if pick.clear}
    if clear:
        eps, pick = list(clear.items())[-1]
        if exact is None or not exact.clear:
            return f"Calibration helps, with privacy down to eps = {eps}.", "good"
        share = pick.gain / exact.gain
        words = next(text for limit, text in KEPT if share >= limit)
        text = f"Calibration helps, and privacy (eps = {eps}) {words}."
        return text, "good" if len(clear) == len(private) else "mixed"
    if exact is not None and exact.clear:
        if private:
            return "Calibration helps, but not under the privacy asked for.", "mixed"
        return "Calibration helps.", "good"
    if base.at_floor:
        return "Calibration does not help: the model is calibrated already.", "none"
    return "Calibration does not clearly help here.", "none"


def _state(base: Pick) -> str:
    run = base.runs[0]
    sure, right = 100 * run["confidence"], 100 * run["accuracy"]
    gap = sure - right
    # Two standard errors of the share of rows that are right.
    error = 200 * (run["accuracy"] * (1 - run["accuracy"]) / run["n_test"]) ** 0.5
    meaning = "a difference within sampling error"
    if abs(gap) > error:
        meaning = f"{'over' if gap > 0 else 'under'}-confident by {abs(gap):.1f} points"
    return (
        f"As it is, the model is {sure:.1f} % sure on average and right on "
        f"{right:.1f} % of the {run['n_test']} test rows, {meaning}."
    )


def _gains(best: Mapping[str, Pick]) -> Iterator[str]:
    exact = best.get("none")
    for eps, pick in best.items():
        where = "Without noise" if eps == "none" else f"At eps = {eps}"
        if not pick.clear:
            why = " without a loss of accuracy" if pick.starred else ""
            yield f"{where}, no method clearly lowers the log loss{why}."
            continue
        kept = ""
        if eps != "none" and exact is not None and exact.clear:
            kept = f", {100 * pick.gain / exact.gain:.0f} % of the gain without noise"
        yield f"{where}, {pick.short_name} is best: {_changes(pick, kept)}."


def _changes(pick: Pick, kept: str = "") -> str:
    """What changes against the base; `kept` follows the log loss."""
    row, base = pick.row, pick.base
    return (
        f"log loss {base['NLL']:.3f} to {row['NLL']:.3f}{kept}; classwise error "
        f"{100 * base['cwECE']:.2f} % to {100 * row['cwECE']:.2f} % (floor "
        f"{100 * row['floor']:.2f} %); accuracy {100 * row['acc change']:+.2f} points"
    )


def outcome_text(pick: Pick) -> str:
    """Say in sentences what one row of the table gives."""
    words = "The gain in log loss is clear."
    if pick.starred:
        words = "Accuracy drops by more than 1 %."
    elif not pick.clear:
        words = "There is no clear gain in log loss."
    unused = sum(not run["used"] for run in pick.runs)
    if unused:
        words += f" In {unused} of {len(pick.runs)} runs the input was left unchanged."
    return f"{pick.name}: {_changes(pick)}. {words}"


def _warnings(comparison: Comparison, picks: Sequence[Pick]) -> Iterator[str]:
    n_clients = min(run["n_clients"] for run in comparison.runs)
    if n_clients < FEW_CLIENTS:
        yield (
            f"Few clients ({n_clients}): each is a large part of every sum, so that "
            "privacy costs much. From a few hundred on it costs little."
        )
    floor = [pick.name for pick in picks if pick.at_floor]
    if floor:
        yield (
            "Floor reached: the classwise error is no more than a perfect model would "
            f"show on as many rows for {', '.join(floor)}. Such rows cannot be ranked "
            "by it; more test rows could."
        )
    lost = [pick.name for pick in picks if pick.starred]
    if lost:
        yield (
            f"Accuracy drops by more than 1 % (marked *) for {', '.join(lost)}. A low "
            "classwise error means little there."
        )
    yield from unchanged_input_notes(comparison)
    yield from fit_warnings(comparison)
    for text in comparison.refused:
        yield f"Left out: {text}"
    if comparison.settings["clients dealt"]:
        yield (
            "The rows have no clients of their own: they were assigned to clients at "
            "random, with label skew. Real clients may differ in other ways."
        )
    if len(comparison.settings["seeds"]) < 3:
        yield "Fewer than three seeds: the spread over runs is not known well."
