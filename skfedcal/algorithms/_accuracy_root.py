"""Exact accuracy temperature: the root of the summed gap, by Halley's method."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from skfedcal.algorithms._base import (
    Array,
    Arrays,
    BlockSpec,
    Field,
    Form,
    Sums,
)
from skfedcal.algorithms._top_label import confidence_moments, leads
from skfedcal.data._dataset import FederatedDataset

# A step in log T this short is the last one: its error is about its cube.
_NEAR = 1e-5
# A gap per row below this is none, well above the resolution of what is sent.
_FLAT = 1e-10
# Half the width of a 95 % interval in standard deviations.
_WIDTH = 1.959964
# Wider intervals of log T say no more, and would overflow.
_MAX_REACH = 100.0


@dataclass(frozen=True, slots=True)
class RootState:
    """Bracket of ``log T``, and the next point inside.

    `seen_low` and `seen_high` tell whether the ends of the bracket were asked,
    `bounded` that the gap has no root in the range; `sd` is what chance in the rows
    makes of the root, infinite where there is none.
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

    Parameters
    ----------
    low, high : float
        Range of ``log T``.
    start : float, default=0.0
        First ``log T``.
    n_rounds : int, default=40
        Most rounds; three to five are usual.
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
    """Target, or where to go instead if it is not inside the bracket."""
    if target <= state.low:
        return (state.low + state.high) / 2 if state.seen_low else state.low
    if target >= state.high:
        return (state.low + state.high) / 2 if state.seen_high else state.high
    return target
