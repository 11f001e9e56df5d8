"""Summary in sentences of what a comparison found, good or bad."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skfedcal.experiments.comparison._notes import (
    FEW_CLIENTS,
    said,
    unchanged_input_notes,
)
from skfedcal.experiments.report._picks import Pick, best_by_budget, picks_of

if TYPE_CHECKING:
    from skfedcal.experiments.comparison._result import Comparison

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
    meaning = "which agree within chance"
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
        row, base = pick.row, pick.base
        if not pick.clear:
            why = " without a loss of accuracy" if pick.starred else ""
            yield f"{where}, no method clearly lowers the log loss{why}."
            continue
        kept = ""
        if eps != "none" and exact is not None and exact.clear:
            kept = f", {100 * pick.gain / exact.gain:.0f} % of the gain without noise"
        yield (
            f"{where}, {pick.short_name} is best: log loss {base['NLL']:.3f} to "
            f"{row['NLL']:.3f}{kept}; classwise error {100 * base['cwECE']:.2f} % to "
            f"{100 * row['cwECE']:.2f} % (floor {100 * row['floor']:.2f} %); accuracy "
            f"{100 * row['acc change']:+.2f} points."
        )


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
    yield from said(comparison)
    for text in comparison.refused:
        yield f"Left out: {text}"
    if comparison.settings["clients dealt"]:
        yield (
            "The rows have no clients of their own: they were assigned to clients at "
            "random, with label skew. Real clients may differ in other ways."
        )
    if len(comparison.settings["seeds"]) < 3:
        yield "Fewer than three seeds: the spread over runs is not known well."
