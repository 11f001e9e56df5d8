"""Accuracy temperature: client sums and server updates.

The predicted class of a row: its margin, confidence and correctness. Every operation
acts on each row alone, so that a row gives the same bits in any block, for one client
or many.

- Exact accuracy temperature: the root of the summed gap, by Halley's method.

Accuracy temperature from the gap at a few temperatures, queried in one round. The gap
of a row at rising temperatures ``T_1 < ... < T_m`` is ``1 - p_i`` if its prediction is
right and ``-p_i`` if it is wrong, where the confidence ``p_i`` falls with T. Sent as
they are, m such numbers have an L1 norm of up to m. A row instead sends differences:
the part that all temperatures share, and the decreases of confidence, separately for
correct and wrong predictions. These have an L1 norm of at most 1 for any m, and each
gap is a sum of m of them: its noise has m times the variance of one number, not m**2.

Search for a temperature by single noisy queries: golden section or bisection. Golden
section is Algorithm 1 of "Privacy Preserving Recalibration under Domain Shift", with a
new point inside the new bracket, and without the last query, whose answer is not used:
K steps take K + 1 queries.

- Temperature with the least binned calibration error, by nested grids.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from skfedcal import _numerics
from skfedcal.clients.dataset import Block, FederatedDataset
from skfedcal.contract import (
    MAX_POINTS,
    Array,
    Arrays,
    BlockSpec,
    Field,
    Form,
    Sums,
    check_range,
)
from skfedcal.methods.accuracy_temperature.gap_curve import GapCurves
from skfedcal.methods.buckets import bin_index


def leads(block: Block) -> tuple[Array, Array]:
    """Logits minus the largest of their row, and correctness of the predicted class.

    Each of ``k`` classes that share the largest logit is predicted with probability
    ``1 / k``: the order of the columns does not matter.
    """
    gaps = _numerics.center(block.rows.astype(np.float64, order="C", copy=False))
    np.maximum(gaps, -_numerics.MAX_SPAN, out=gaps)
    top = gaps == 0
    right = top[np.arange(len(gaps)), block.labels] / top.sum(axis=1)
    return gaps, right


def confidence(gaps: Array, temperature: float) -> Array:
    """Probability of the predicted class at a temperature."""
    return 1 / _weights(gaps, temperature)[1]


def mean_confidence(logits: Array, temperatures: Array) -> Array:
    """Mean over rows of the probability of the predicted class."""
    gaps = np.maximum(_numerics.center(logits), -_numerics.MAX_SPAN)
    return np.array([confidence(gaps, float(t)).mean() for t in temperatures])


def confidence_moments(gaps: Array, temperature: float) -> tuple[Array, Array, Array]:
    """Confidence with its first two derivatives in ``log T``."""
    weights, total = _weights(gaps, temperature)
    first = np.einsum("ij,ij->i", weights, gaps) / total / temperature
    second = np.einsum("ij,ij,ij->i", weights, gaps, gaps) / total / temperature**2
    value = 1 / total
    return value, value * first, -value * (first + second - 2 * first**2)


def clipped_loss(gaps: Array, labels: Array, temperature: float, clip: float) -> Array:
    """Log loss of each row, clipped at `clip`."""
    own = gaps[np.arange(len(gaps)), labels] / temperature
    return np.minimum(np.log(_weights(gaps, temperature)[1]) - own, clip)


def clipped_slope(gaps: Array, labels: Array, temperature: float, clip: float) -> Array:
    """Slope of each row's log loss in ``-1 / T``, clipped to ``+-clip``.

    It increases with T, and so does the clipped slope: the sum of clipped slopes
    crosses zero only once.
    """
    weights, total = _weights(gaps, temperature)
    mean = np.einsum("ij,ij->i", weights, gaps) / total
    own = gaps[np.arange(len(gaps)), labels]
    return np.clip(own - mean, -clip, clip)


def _weights(gaps: Array, temperature: float) -> tuple[Array, Array]:
    weights = gaps / temperature
    np.exp(weights, out=weights)
    return weights, np.einsum("ij->i", weights)


# A step in log T this short is the last one: its error is about its cube.
_NEAR = 1e-5
# A gap per row below this is none, well above the resolution of what is sent.
_FLAT = 1e-10
# Half the width of a 95 % interval in standard deviations.
_WIDTH = 1.959964
# Wider intervals of log T add no information and would overflow.
_MAX_REACH = 100.0


@dataclass(frozen=True, slots=True)
class RootState:
    """Bracket of ``log T``, and the next point inside.

    `seen_low` and `seen_high` are true if the ends of the bracket were queried,
    `bounded` if the gap has no root in the range; `sd` is the sampling deviation of the
    root, infinite if there is none.
    """

    log_t: float
    low: float
    high: float
    seen_low: bool = False
    seen_high: bool = False
    converged: bool = False
    bounded: bool = False
    sd: float = np.inf

    @property
    def temperature(self) -> float:
        return float(np.exp(self.log_t))

    @property
    def learnt(self) -> bool:
        return True

    @property
    def interval(self) -> Array:
        """95 % interval of T."""
        reach = min(_WIDTH * self.sd, _MAX_REACH)
        return np.exp([self.log_t - reach, self.log_t + reach])


@dataclass(frozen=True, slots=True)
class AccuracyRoot:
    """Find the temperature at which mean confidence equals accuracy.

    Clients send the gap of their rows with two derivatives in ``log T``, the squares of
    the gaps of rows, and the number of rows. The gap rises with T, so that its sign
    brackets the root; a step that leaves the bracket goes to its end, or halves it.

    low, high: Range of ``log T``.
    start: First ``log T``.
    n_rounds: Most rounds; three to five are usual.
    """

    low: float
    high: float
    start: float = 0.0
    n_rounds: int = 40

    def init(self, n_classes: int) -> RootState:
        return RootState(self.start, self.low, self.high)

    def broadcast(self, state: RootState) -> Arrays:
        return {"temperature": np.asarray(state.temperature)}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        return {"gap": BlockSpec((5,))}

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        return ({"temperature": Field()},)

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        temperature = float(broadcast["temperature"])
        out = np.zeros((len(clients), 5))
        for block in clients.blocks():
            gaps, right = leads(block)
            level, slope, bend = confidence_moments(gaps, temperature)
            gap = right - level
            values = np.vstack([gap, -slope, -bend, gap**2, np.ones_like(gap)])
            out[block.clients] += block.sum_by_client(values)
        return {"gap": out}

    def update(self, state: RootState, total: Sums, n_clients: int) -> RootState:
        gap, slope, bend, square, n_rows = (float(v) for v in total["gap"])
        here = state.log_t
        state = replace(
            state, sd=float(np.sqrt(square) / slope) if slope > 0 else np.inf
        )
        if abs(gap) <= _FLAT * n_rows:
            return replace(state, converged=True)
        if gap < 0:
            state = replace(state, low=here, seen_low=True)
        else:
            state = replace(state, high=here, seen_high=True)
        if state.low == state.high:
            # At the end of the range the gap still points outward.
            return replace(state, converged=True, bounded=True, sd=np.inf)
        step = _halley(gap, slope, bend)
        target = _inside(state, here + step)
        near = abs(step) < _NEAR and target == here + step
        return replace(state, log_t=target, converged=near)

    def done(self, state: RootState) -> bool:
        return state.converged


def _halley(gap: float, slope: float, bend: float) -> float:
    """Step to the root of the hyperbola with these derivatives."""
    if not slope > 0:
        return -np.inf if gap > 0 else np.inf
    newton = -gap / slope
    # Half of Newton's step to twice of it: further off the hyperbola is not trusted.
    return newton / min(max(1 + newton * bend / slope / 2, 0.5), 2.0)


def _inside(state: RootState, target: float) -> float:
    """Target, or a point inside the bracket if the target is outside."""
    if target <= state.low:
        return (state.low + state.high) / 2 if state.seen_low else state.low
    if target >= state.high:
        return (state.low + state.high) / 2 if state.seen_high else state.high
    return target


@dataclass(frozen=True, slots=True)
class GapState:
    """Accumulated sums and their posterior of ``log T``.

    `parts` are the sums of what clients sent, `variance` is that of the noise in each
    number, `units` the number of contributions, `asked` the number of queried clients,
    counted once per round. `log_t`, `sd`, `low` and `high` describe the posterior;
    `learnt` is true if it is narrower than the prior.
    """

    n_classes: int
    parts: Array
    variance: float = 0.0
    units: float = 0.0
    asked: int = 0
    rounds: int = 0
    log_t: float = 0.0
    sd: float = np.inf
    low: float = -np.inf
    high: float = np.inf
    learnt: bool = False

    @property
    def temperature(self) -> float:
        return float(np.exp(self.log_t))

    @property
    def interval(self) -> Array:
        """95 % interval of T."""
        return np.exp([self.low, self.high])


@dataclass(frozen=True, slots=True)
class GapParts:
    """Posterior mean of the temperature at which confidence equals accuracy.

    low, high: Range of ``log T``; the queried temperatures divide it evenly.
    center: Most likely ``log T`` before anything is known.
    n_points: Temperatures, at least 2.
    full_rows: A client sends means of its rows; with fewer rows than this, in
        proportion less. 0 sends sums over rows, without a bound, and their number.
    public_curve: See `GapCurves`.
    n_clients: Number of all clients: rounds that query some of them again add noise and
        no new rows. 0 assumes that rounds query different clients.
    n_rounds: Rounds; sums add up.
    """

    low: float
    high: float
    center: float = 0.0
    n_points: int = 2
    full_rows: float = 1
    public_curve: tuple[float, ...] = ()
    n_clients: int = 0
    n_rounds: int = 1

    @property
    def points(self) -> Array:
        """Values of ``log T`` that are queried."""
        return np.linspace(self.low, self.high, self.n_points + 2)[1:-1]

    def init(self, n_classes: int) -> GapState:
        return GapState(n_classes, np.zeros(2 * self.n_points - 1), log_t=self.center)

    def broadcast(self, state: GapState) -> Arrays:
        return {"temperatures": np.exp(self.points)}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        size = 2 * len(broadcast["temperatures"]) - 1
        return answer_spec("parts", size, 1.0, self.full_rows)

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        check_range("n_points", self.n_points, 1, MAX_POINTS)
        return ({"temperatures": Field((self.n_points,))},)

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        temperatures = [float(t) for t in broadcast["temperatures"]]
        out = np.zeros((len(clients), 2 * len(temperatures) - 1))
        for block in clients.blocks():
            gaps, right = leads(block)
            levels = np.array([confidence(gaps, t) for t in temperatures])
            falls = levels[:-1] - levels[1:]
            shared = right * (1 - levels[0]) - (1 - right) * levels[-1]
            values = np.vstack([shared, right * falls, (1 - right) * falls])
            out[block.clients] += block.sum_by_client(values)
        return client_answer("parts", out, clients, self.full_rows)

    def update(self, state: GapState, total: Sums, n_clients: int) -> GapState:
        state = replace(
            state,
            parts=state.parts + total["parts"],
            variance=state.variance + total.noise.get("parts", 0.0) ** 2,
            units=state.units + answer_units(total, n_clients),
            asked=state.asked + n_clients,
            rounds=state.rounds + 1,
        )
        steps = gap_steps(self.n_points)
        curves = GapCurves(
            state.n_classes, self.low, self.high, self.center, self.public_curve
        )
        posterior = curves.posterior(
            self.points,
            steps @ state.parts / state.units,
            state.variance / state.units**2 * steps @ steps.T,
            self._n_rows(state),
        )
        return replace(
            state,
            log_t=posterior.mean,
            sd=posterior.sd,
            low=posterior.low,
            high=posterior.high,
            learnt=posterior.learnt,
        )

    def done(self, state: GapState) -> bool:
        return state.rounds >= self.n_rounds

    def _n_rows(self, state: GapState) -> float:
        """Number of rows in the sums, each counted once."""
        times = state.asked / self.n_clients if self.n_clients else 1.0
        return state.units * max(self.full_rows, 1) / max(times, 1.0)


def answer_spec(
    name: str, size: int, clip: float, full_rows: float
) -> dict[str, BlockSpec]:
    """Spec of means of rows with an L1 bound, or of sums with the number of rows."""
    if full_rows:
        return {name: BlockSpec((size,), clip=clip, norm="l1")}
    return {name: BlockSpec((size,)), "rows": BlockSpec((1,))}


def client_answer(
    name: str, sums: Array, clients: FederatedDataset, full_rows: float
) -> Arrays:
    """Convert sums over a client's rows to its contribution."""
    if full_rows:
        return {name: sums / np.maximum(clients.sizes, full_rows)[:, None]}
    rows = clients.sizes.astype(np.float64)
    if clients.weights is not None:
        start, stop = clients.offsets[0], clients.offsets[-1]
        rows = clients.sum_by_client(clients.weights[start:stop])
    return {name: sums, "rows": rows[:, None]}


def answer_units(total: Sums, n_clients: int) -> float:
    """Divisor of a sum: the number of rows if it was sent, else of clients."""
    # Clients without rows may make up a whole cohort.
    return float(total["rows"][0]) or 1.0 if "rows" in total else float(n_clients)


def gap_steps(n_points: int) -> Array:
    """Matrix that maps parts to gaps.

    At the j-th temperature: the shared part, plus the decreases of correct rows before
    it, minus the decreases of wrong rows from it on.
    """
    before = np.tri(n_points, n_points - 1, -1)
    return np.hstack([np.ones((n_points, 1)), before, before - 1])


_GOLDEN = (np.sqrt(5.0) - 1) / 2
# Chi-square over its degrees of freedom above which answers are more than noise: with 5
# degrees noise alone passes in one of twenty fits.
_STANDS_OUT = 2.2

Objective = Literal["accuracy", "nll", "ece"]


@dataclass(frozen=True, slots=True)
class SearchState:
    """Bracket of ``log T``, and the queries so far.

    `left` and `right` are the scores at the two inner points of golden section, NaN if
    not known; `points`, `values` and `noise` the queries, their answers per unit and
    the standard deviations of the noise in these; `units` the number of answers in a
    sum. `log_low`, `log_high` and `learnt` are as in `GapState`.
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
        """95 % interval of T; NaN if the objective has none."""
        return np.exp([self.log_low, self.log_high])


@dataclass(frozen=True, slots=True)
class TemperatureSearch:
    """Narrow a bracket of ``log T`` by one query a round.

    low, high: Range of ``log T``.
    objective ('accuracy', 'nll', 'ece'): Gap between accuracy and confidence; log loss;
        gaps in bins of confidence.
    search: 'golden' compares sizes of the objective at points that divide the bracket
        of log T in the golden ratio, 'golden_linear' that of T; 'bisect' follows the
        sign of the gap, or of the slope of the log loss.
    n_rounds: Queries.
    center: See `GapCurves`.
    full_rows: See `GapParts`.
    loss_clip: Bound on a row's log loss, or on the slope of it.
    n_bins: Equal-width bins of confidence for 'ece'.
    public_curve: See `GapCurves`.
    """

    low: float
    high: float
    objective: Objective = "accuracy"
    search: Literal["golden", "golden_linear", "bisect"] = "golden"
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
            state = self._golden_step(state, score)
        return self._judged(state) if self.done(state) else state

    def done(self, state: SearchState) -> bool:
        return state.rounds >= self.n_rounds

    def _next_point(self, state: SearchState) -> float:
        if self.search == "bisect":
            return state.log_t
        return self._inner_points(state)[0 if np.isnan(state.left) else 1]

    def _inner_points(self, state: SearchState) -> tuple[float, float]:
        """The two points that divide the bracket in the golden ratio, as log T."""
        low, high = state.low, state.high
        if self.search == "golden_linear":
            low, high = np.exp(low), np.exp(high)
        width = _GOLDEN * (high - low)
        if self.search == "golden_linear":
            return float(np.log(high - width)), float(np.log(low + width))
        return high - width, low + width

    def _golden_step(self, state: SearchState, score: float) -> SearchState:
        """Record a score, and narrow the bracket once both inner points have one."""
        if np.isnan(state.left) and np.isnan(state.right):
            return replace(state, left=score)
        left = score if np.isnan(state.left) else state.left
        right = state.right if np.isnan(state.left) else score
        first, second = self._inner_points(state)
        if left >= right:
            state = replace(state, low=first, left=right, right=np.nan)
        else:
            state = replace(state, high=second, left=np.nan, right=left)
        if self.search == "golden_linear" and self.done(state):
            # The middle of the last bracket, in T.
            middle = np.logaddexp(state.low, state.high) - np.log(2.0)
            state = replace(state, low=float(middle), high=float(middle))
        return state

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
        """Decide whether the answers differ from noise, and set the interval for T."""
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
        """Whether slopes differ from 0, or losses from each other, beyond noise."""
        if not state.noise.any():
            return True
        bisect = self.search == "bisect"
        away = state.values - (0.0 if bisect else state.values.mean())
        n_free = state.rounds - (0 if bisect else 1)
        return bool(((away / state.noise) ** 2).sum() > _STANDS_OUT * max(n_free, 1))


def bin_gaps(block: Block, right: Array, level: Array, n_bins: int) -> Array:
    """Gaps of each client's rows, summed by bin of confidence."""
    n_clients = len(block.offsets) - 1
    owner = np.repeat(np.arange(n_clients), np.diff(block.offsets))
    values = right - level
    if block.weights is not None:
        values = values * block.weights
    cells = owner * n_bins + bin_index(level, n_bins)
    sums = np.bincount(cells, values, minlength=n_clients * n_bins)
    return sums.reshape(n_clients, n_bins)


# Points of the first grid and of the later ones, which reach from the neighbour of the
# best point on one side to that on the other: each is 16 times as fine.
_FIRST, _NEXT = 98, 33
# Errors per row that differ by less, the resolution of what is sent, are equal; the one
# nearest to the start is taken.
_EQUAL = 3e-11


@dataclass(frozen=True, slots=True)
class EceState:
    """Grid of ``log T`` to query, and the best point so far."""

    grid: Array
    log_t: float = 0.0
    rounds: int = 0
    bounded: bool = False

    @property
    def temperature(self) -> float:
        return float(np.exp(self.log_t))

    @property
    def interval(self) -> Array:
        """NaN: no interval, because the error has jumps and many local minima."""
        return np.full(2, np.nan)

    @property
    def converged(self) -> bool:
        return self.rounds > 0

    @property
    def learnt(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class EceGrid:
    """Minimise the calibration error of the predicted class in bins.

    The error is not unimodal in T: rows move from bin to bin. It is computed on a grid
    over the whole range, which is refined around its minimum.

    low, high: Range of ``log T``.
    start: Of several equal minima, the one nearest to this ``log T`` is taken.
    n_bins: Equal-width bins of confidence.
    n_rounds: Grids; seven reach a step of about 1e-9.
    """

    low: float
    high: float
    start: float = 0.0
    n_bins: int = 15
    n_rounds: int = 7

    def init(self, n_classes: int) -> EceState:
        return EceState(np.linspace(self.low, self.high, _FIRST))

    def broadcast(self, state: EceState) -> Arrays:
        return {"temperatures": np.exp(state.grid)}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        n_points = len(broadcast["temperatures"])
        return {"gaps": BlockSpec((n_points, self.n_bins)), "rows": BlockSpec((1,))}

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        check_range("n_bins", self.n_bins, 1, MAX_POINTS)
        return tuple({"temperatures": Field((size,))} for size in (_FIRST, _NEXT))

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        temperatures = broadcast["temperatures"]
        out = np.zeros((len(clients), len(temperatures), self.n_bins))
        rows = np.zeros((len(clients), 1))
        for block in clients.blocks():
            gaps, right = leads(block)
            rows[block.clients, 0] += block.sum_by_client(np.ones_like(right))
            for i, temperature in enumerate(temperatures):
                level = confidence(gaps, float(temperature))
                out[block.clients, i] += bin_gaps(block, right, level, self.n_bins)
        return {"gaps": out, "rows": rows}

    def update(self, state: EceState, total: Sums, n_clients: int) -> EceState:
        error = np.abs(total["gaps"]).sum(axis=1)
        grid = state.grid
        equal = np.flatnonzero(error <= error.min() + _EQUAL * total["rows"][0])
        best = int(equal[np.abs(grid[equal] - self.start).argmin()])
        ends = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        return EceState(
            np.linspace(*ends, _NEXT),
            float(grid[best]),
            state.rounds + 1,
            bool(grid[best] in (self.low, self.high)),
        )

    def done(self, state: EceState) -> bool:
        return state.rounds >= self.n_rounds
