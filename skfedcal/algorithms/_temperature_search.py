"""Search for a temperature by single noisy queries: golden section or bisection.

Golden section is Algorithm 1 of "Privacy Preserving Recalibration under Domain Shift",
with a new point inside the new bracket, and without the query whose answer nobody uses:
K steps take K + 1 queries.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from skfedcal.algorithms._base import (
    MAX_POINTS,
    Array,
    Arrays,
    BlockSpec,
    Field,
    Form,
    Sums,
    check_range,
)
from skfedcal.algorithms._class_bins import bin_index
from skfedcal.algorithms._gap_curve import GapCurves
from skfedcal.algorithms._gap_parts import answer_spec, answer_units, client_answer
from skfedcal.algorithms._top_label import (
    clipped_loss,
    clipped_slope,
    confidence,
    leads,
)
from skfedcal.data._dataset import Block, FederatedDataset

_GOLDEN = (np.sqrt(5.0) - 1) / 2
# Chi-square over its degrees of freedom above which answers are more than noise: with 5
# degrees noise alone passes in one of twenty fits.
_STANDS_OUT = 2.2

Objective = Literal["accuracy", "nll", "ece"]


@dataclass(frozen=True, slots=True)
class SearchState:
    """Bracket of ``log T``, and what was asked so far.

    `left` and `right` are the scores at the two inner points of golden section, NaN
    where they are not known; `points`, `values` and `noise` the queries, their answers
    per unit and the standard deviations of the noise in these; `units` the number of
    answers in a sum. `log_low`, `log_high` and `learnt` are as in `GapState`.
    """

    n_classes: int
    low: float
    high: float
    left: float = np.nan
    right: float = np.nan
    rounds: int = 0
    points: Array = field(default_factory=lambda: np.empty(0))
    values: Array = field(default_factory=lambda: np.empty(0))
    noise: Array = field(default_factory=lambda: np.empty(0))
    units: float = 0.0
    log_low: float = np.nan
    log_high: float = np.nan
    learnt: bool = False

    @property
    def log_t(self) -> float:
        return (self.low + self.high) / 2

    @property
    def temperature(self) -> float:
        return float(np.exp(self.log_t))

    @property
    def interval(self) -> Array:
        """95 % interval of T; NaN where the objective has none."""
        return np.exp([self.log_low, self.log_high])


@dataclass(frozen=True, slots=True)
class TemperatureSearch:
    """Narrow a bracket of ``log T`` by one query a round.

    Parameters
    ----------
    low, high : float
        Range of ``log T``.
    objective : {'accuracy', 'nll', 'ece'}, default='accuracy'
        Gap between accuracy and confidence; log loss; gaps in bins of confidence.
    search : {'golden', 'bisect'}, default='golden'
        'golden' compares sizes of the objective; 'bisect' follows the sign of the gap,
        or of the slope of the log loss.
    n_rounds : int, default=6
        Queries.
    center : float, default=0.0
        See `GapCurves`.
    full_rows : float, default=1
        See `GapParts`.
    loss_clip : float, default=10.0
        Bound on a row's log loss, or on the slope of it.
    n_bins : int, default=15
        Equal-width bins of confidence for 'ece'.
    public_curve : tuple of float, default=()
        See `GapCurves`.
    """

    low: float
    high: float
    objective: Objective = "accuracy"
    search: Literal["golden", "bisect"] = "golden"
    n_rounds: int = 6
    center: float = 0.0
    full_rows: float = 1
    loss_clip: float = 10.0
    n_bins: int = 15
    public_curve: tuple[float, ...] = ()

    def init(self, n_classes: int) -> SearchState:
        return SearchState(n_classes, self.low, self.high)

    def broadcast(self, state: SearchState) -> Arrays:
        return {"temperature": np.exp(self._next_point(state))}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        size = self.n_bins if self.objective == "ece" else 1
        clip = self.loss_clip if self.objective == "nll" else 1.0
        return answer_spec("value", size, clip, self.full_rows)

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        check_range("n_bins", self.n_bins, 1, MAX_POINTS)
        return ({"temperature": Field()},)

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        temperature = float(broadcast["temperature"])
        size = self.n_bins if self.objective == "ece" else 1
        out = np.zeros((len(clients), size))
        for block in clients.blocks():
            out[block.clients] += self._sums(block, temperature)
        return client_answer("value", out, clients, self.full_rows)

    def update(self, state: SearchState, total: Sums, n_clients: int) -> SearchState:
        units = answer_units(total, n_clients)
        answer = total["value"] / units
        noise = total.noise.get("value", 0.0) / units
        if self.objective == "ece":
            value = float(np.abs(answer).sum())
            # Spread of the sizes of as many numbers if all of them are noise.
            noise *= np.sqrt((1 - 2 / np.pi) * self.n_bins)
        else:
            value = float(answer[0])
        asked = self._next_point(state)
        state = replace(
            state,
            rounds=state.rounds + 1,
            points=np.append(state.points, asked),
            values=np.append(state.values, value),
            noise=np.append(state.noise, noise),
            units=units,
        )
        if self.search == "bisect":
            # Too sure at this temperature: the one sought is higher.
            low, high = (asked, state.high) if value < 0 else (state.low, asked)
            state = replace(state, low=low, high=high)
        else:
            score = abs(value) if self.objective == "accuracy" else value
            state = _golden_step(state, score)
        return self._judged(state) if self.done(state) else state

    def done(self, state: SearchState) -> bool:
        return state.rounds >= self.n_rounds

    def _next_point(self, state: SearchState) -> float:
        if self.search == "bisect":
            return state.log_t
        return _inner_points(state)[0 if np.isnan(state.left) else 1]

    def _sums(self, block: Block, temperature: float) -> Array:
        """Sums over the rows of each client of a block."""
        gaps, right = leads(block)
        if self.objective == "nll":
            value = clipped_slope if self.search == "bisect" else clipped_loss
            values = value(gaps, block.labels, temperature, self.loss_clip)
            return block.sum_by_client(values[None])
        level = confidence(gaps, temperature)
        if self.objective == "ece":
            return bin_gaps(block, right, level, self.n_bins)
        return block.sum_by_client((right - level)[None])

    def _judged(self, state: SearchState) -> SearchState:
        """Say whether the answers are more than noise, and give an interval for T."""
        if self.objective != "accuracy":
            return replace(state, learnt=self._stands_out(state))
        curves = GapCurves(
            state.n_classes, self.low, self.high, self.center, self.public_curve
        )
        posterior = curves.posterior(
            state.points,
            state.values,
            np.diag(state.noise**2),
            state.units * max(self.full_rows, 1),
        )
        return replace(
            state,
            log_low=posterior.low,
            log_high=posterior.high,
            learnt=posterior.learnt,
        )

    def _stands_out(self, state: SearchState) -> bool:
        """Whether slopes differ from 0, or losses among themselves, more than noise."""
        if not state.noise.any():
            return True
        bisect = self.search == "bisect"
        away = state.values - (0.0 if bisect else state.values.mean())
        n_free = state.rounds - (0 if bisect else 1)
        return bool(((away / state.noise) ** 2).sum() > _STANDS_OUT * max(n_free, 1))


def bin_gaps(block: Block, right: Array, level: Array, n_bins: int) -> Array:
    """Gaps of each client's rows, added up by the bin of their confidence."""
    n_clients = len(block.offsets) - 1
    owner = np.repeat(np.arange(n_clients), np.diff(block.offsets))
    values = right - level
    if block.weights is not None:
        values = values * block.weights
    cells = owner * n_bins + bin_index(level, n_bins)
    sums = np.bincount(cells, values, minlength=n_clients * n_bins)
    return sums.reshape(n_clients, n_bins)


def _inner_points(state: SearchState) -> tuple[float, float]:
    width = _GOLDEN * (state.high - state.low)
    return state.high - width, state.low + width


def _golden_step(state: SearchState, score: float) -> SearchState:
    """Enter a score, and narrow the bracket once both inner points have one."""
    if np.isnan(state.left) and np.isnan(state.right):
        return replace(state, left=score)
    left, right = (score, state.right) if np.isnan(state.left) else (state.left, score)
    first, second = _inner_points(state)
    if left >= right:
        return replace(state, low=first, left=right, right=np.nan)
    return replace(state, high=second, left=np.nan, right=left)
