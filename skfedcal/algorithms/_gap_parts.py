"""Accuracy temperature from the gap at a few temperatures, asked at once.

The gap of a row at rising temperatures ``T_1 < ... < T_m`` is ``1 - p_i`` if its
prediction is right and ``-p_i`` if it is wrong, where the confidence ``p_i`` falls with
T. Sent as they are, m such numbers have an L1 norm of up to m. A row instead sends the
steps from one to the next: what all temperatures share, the falls of confidence of
right and those of wrong rows. These have an L1 norm of at most 1 for any m, and each
gap is a sum of m of them: its noise has m times the variance of one number, not m**2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
from skfedcal.algorithms._gap_curve import GapCurves
from skfedcal.algorithms._top_label import confidence, leads
from skfedcal.data._dataset import FederatedDataset


@dataclass(frozen=True, slots=True)
class GapState:
    """Sums so far and the posterior of ``log T`` that they have.

    `parts` are what clients sent, `variance` that of the noise in each number, `units`
    the number of answers that they are a sum of, `asked` that of clients, some of them
    more than once. `log_t`, `sd`, `low` and `high` describe the posterior; `learnt`
    tells whether it is narrower than the prior.
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

    Parameters
    ----------
    low, high : float
        Range of ``log T``; the temperatures asked divide it evenly.
    center : float, default=0.0
        Most likely ``log T`` before anything is known.
    n_points : int, default=2
        Temperatures, at least 2.
    full_rows : float, default=1
        A client sends means of its rows; with fewer rows than this, in proportion less.
        0 sends sums over rows, without a bound, and their number.
    public_curve : tuple of float, default=()
        See `GapCurves`.
    n_clients : int, default=0
        All clients: rounds that ask some of them again bring new noise and no new
        rows. 0 takes rounds to ask different ones.
    n_rounds : int, default=1
        Rounds; sums add up.
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
        """Values of ``log T`` that are asked."""
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
        """Rows behind the sums, each counted once."""
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
    """Turn sums over a client's rows into what it sends."""
    if full_rows:
        return {name: sums / np.maximum(clients.sizes, full_rows)[:, None]}
    rows = clients.sizes.astype(np.float64)
    if clients.weights is not None:
        start, stop = clients.offsets[0], clients.offsets[-1]
        rows = clients.sum_by_client(clients.weights[start:stop])
    return {name: sums, "rows": rows[:, None]}


def answer_units(total: Sums, n_clients: int) -> float:
    """What a sum is to be divided by: rows where they were sent, else clients."""
    # Clients without rows may make up a whole cohort.
    return float(total["rows"][0]) or 1.0 if "rows" in total else float(n_clients)


def gap_steps(n_points: int) -> Array:
    """Matrix that makes gaps of parts.

    At the j-th temperature: what is shared, plus the falls of right rows before it,
    less the falls of wrong rows from it on.
    """
    before = np.tri(n_points, n_points - 1, -1)
    return np.hstack([np.ones((n_points, 1)), before, before - 1])
