"""Compare a fit with its input on rows that the fit has not seen.

Each client holds back a fifth of its rows by a public hash (`own_rows.held_back_rows`).
`HeldBackFit` is any algorithm on the other rows; `MapLosses` sums the losses of rows
before and after a map. `BaseCalibrator` asks for both through the aggregation path if
`hold_back` is set. A request has the numbers of the map; the site finds its formula by
the registry, in the rounds of the method, which need numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np

from skfedcal import _compiled, _numerics
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import (
    Array,
    Arrays,
    BlockSpec,
    CellRows,
    FederatedAlgorithm,
    Field,
    Form,
    Rows,
    Sums,
    broadcast_forms,
    values_per_round,
)
from skfedcal.methods.own_rows import held_back_rows
from skfedcal.methods.registry import Method, load_object, method_of, methods

# A row that is more wrong than this counts as this.
LARGEST_LOSS = 100.0
# Log loss and Brier score of a row that is entirely wrong.
_WORST = np.array([[LARGEST_LOSS], [2.0]])
_WORST_BOTH = np.tile(_WORST, (2, 1))
# Numbers of a map that fit into the text of a request.
MAX_NUMBERS = 30_000
# Summed log loss that a map must leave on held-back rows: where it is less, one error
# at most decides how sure a model may be.
_LEAST_SUM = 2.0
# Entries of a block of rows.
_CELLS = 1 << 14

Setting = str | int | float | bool


@dataclass(frozen=True, slots=True)
class HeldBackFit:
    """An algorithm without the rows that clients hold back.

    Parameters
    ----------
    inner : FederatedAlgorithm
        The algorithm.
    n_rounds : int, default=0
        Rounds; 0 is those of `inner`.
    """

    inner: FederatedAlgorithm[Any]
    n_rounds: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.inner, HeldBackFit):
            raise ValueError("rows can be held back once")
        if not self.n_rounds:
            object.__setattr__(self, "n_rounds", self.inner.n_rounds)
        elif self.n_rounds != self.inner.n_rounds:
            inner: Any = self.inner
            object.__setattr__(self, "inner", replace(inner, n_rounds=self.n_rounds))

    @property
    def by_place(self) -> bool:
        """The number of a row decides whether it is held back."""
        return True

    def init(self, n_classes: int) -> Any:
        return self.inner.init(n_classes)

    def broadcast(self, state: Any) -> Arrays:
        return self.inner.broadcast(state)

    def spec(self, broadcast: Arrays) -> Mapping[str, BlockSpec]:
        return self.inner.spec(broadcast)

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        return broadcast_forms(self.inner, n_classes)

    def n_values(self, n_classes: int) -> int:
        """Largest number of values of a round."""
        return values_per_round(self.inner, n_classes)

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Rows:
        return self.inner.query(broadcast, held_back_rows(clients, held=False))

    def update(self, state: Any, total: Sums, n_clients: int) -> Any:
        return self.inner.update(state, total, n_clients)

    def done(self, state: Any) -> bool:
        return self.inner.done(state)


@dataclass(frozen=True, slots=True)
class LossState:
    """Sums of rows, log loss and Brier score, each before and after the map."""

    sums: Array


@dataclass(frozen=True, slots=True)
class MapLosses:
    """Sum log loss and Brier score of rows, before and after a map.

    Parameters
    ----------
    method : str, default='temperature'
        Word of the method whose map it is.
    settings : dict of str to str, int, float or bool
        Plain values that the formula of the map reads.
    numbers : dict of str to tuple of float
        Arrays that it reads, flattened.
    shapes : dict of str to tuple of int
        Shapes of these arrays.
    held : bool, default=True
        Take the rows that are held back; otherwise all.
    n_rounds : int, default=1
        Rounds; sums add up.
    """

    method: str = "temperature"
    settings: Mapping[str, Setting | None] | None = None
    numbers: Mapping[str, tuple[float, ...]] | None = None
    shapes: Mapping[str, tuple[int, ...]] | None = None
    held: bool = True
    n_rounds: int = 1

    @property
    def by_place(self) -> bool:
        """Whether the number of a row decides if it is counted."""
        return self.held

    def init(self, n_classes: int) -> LossState:
        return LossState(np.zeros(5))

    def broadcast(self, state: LossState) -> Arrays:
        return {"held": np.asarray(self.held)}

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        _entry(self.method)
        numbers, shapes = self.numbers or {}, self.shapes or {}
        if numbers.keys() != shapes.keys():
            raise ValueError(f"shapes are of {sorted(shapes)}, not {sorted(numbers)}")
        for name, shape in shapes.items():
            if min(shape, default=1) < 0 or prod(shape) != len(numbers[name]):
                raise ValueError(
                    f"{name} has {len(numbers[name])} numbers for the shape {shape}"
                )
        n_numbers = sum(map(len, numbers.values()))
        if n_numbers > MAX_NUMBERS:
            raise ValueError(f"{n_numbers} numbers of a map are over {MAX_NUMBERS}")
        return ({"held": Field((), "flag")},)

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        return {"losses": BlockSpec((5,))}

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        own = held_back_rows(clients, held=True) if self.held else clients
        out = np.zeros((len(clients), 5))
        for block in own.blocks(_CELLS):
            before = centred(block.rows)
            after = self.mapped(before, clients.n_classes)
            scores = [_scores(v, block.labels) for v in (before, after)]
            sums = np.array([np.ones(len(block.labels)), *np.concatenate(scores)])
            out[block.clients] += block.sum_by_client(sums)
        return {"losses": out}

    def mapped(self, logits: Array, n_classes: int) -> Array:
        """Logits after the map, from centred ones."""
        if n_classes == 1:
            return logits
        return _mapped(_entry(self.method).map, self._values(n_classes), logits)

    def update(self, state: LossState, total: Sums, n_clients: int) -> LossState:
        return LossState(state.sums + total["losses"])

    def done(self, state: LossState) -> bool:
        return False

    def _values(self, n_classes: int) -> SimpleNamespace:
        """What the formula reads, under the names that it has in the estimator."""
        found: dict[str, Any] = {"classes_": np.arange(n_classes)}
        found |= self.settings or {}
        shapes = self.shapes or {}
        for name, flat in (self.numbers or {}).items():
            array = np.array(flat, dtype=np.float64).reshape(shapes[name])
            first, _, place = name.partition(".")
            if place:  # one of a list
                found.setdefault(first, []).append(array)
            else:
                found[name] = array
        return SimpleNamespace(**found)


def has_map(calibrator: Any) -> bool:
    """Whether the map of this class is in the registry, so that sites can apply it."""
    method = method_of(type(calibrator))
    return method is not None and bool(method.map)


def map_losses(calibrator: Any, *, held: bool) -> MapLosses:
    """Algorithm that compares the map of a fitted calibrator with its input.

    Parameters
    ----------
    calibrator : BaseCalibrator
        Fitted, of a registered class with a map.
    held : bool
        Compare on held-back rows; otherwise on all.
    """
    method = method_of(type(calibrator))
    assert method is not None
    reads = _Reads(calibrator)
    _mapped(method.map, reads, np.zeros((1, len(calibrator.classes_))))
    settings: dict[str, Setting | None] = {}
    arrays: dict[str, Array] = {}
    for name, value in reads.found.items():
        if isinstance(value, list):
            arrays |= {f"{name}.{i:06d}": part for i, part in enumerate(value)}
        elif isinstance(value, np.ndarray):
            arrays[name] = value
        else:
            settings[name] = value.item() if isinstance(value, np.generic) else value
    return MapLosses(
        method.word,
        settings,
        {name: tuple(a.ravel().astype(float).tolist()) for name, a in arrays.items()},
        {name: a.shape for name, a in arrays.items()},
        held,
    )


def fit_here(
    algorithm: FederatedAlgorithm[Any], clients: FederatedDataset, near: Any
) -> Any:
    """State of an exact fit to rows that are in this process; nothing is released.

    near: State of a fit to other rows of the same clients, to start from where the
        algorithm can (``algorithm._init_near``). Such an algorithm also says when the
        state is good enough to compare losses (``algorithm._is_near``).
    """
    start = getattr(algorithm, "_init_near", None)
    state = algorithm.init(clients.n_classes) if start is None else start(near)
    done = getattr(algorithm, "_is_near", algorithm.done)
    for _ in range(algorithm.n_rounds):
        answer = algorithm.query(algorithm.broadcast(state), clients)
        total = {
            name: rows.total().reshape(rows.block)
            if isinstance(rows, CellRows)
            else np.add.reduce(rows, axis=0)
            for name, rows in answer.items()
        }
        state = algorithm.update(state, Sums(total), clients.n_clients)
        if done(state):
            break
    return state


def compare_rows(
    calibrator: Any, clients: FederatedDataset, *, held: bool
) -> dict[str, float]:
    """Compare a map with its input on rows that are in this process, see `comparison`.

    Beside the losses there is the standard `error` of the difference of log losses.
    """
    if _compiled.core is None:
        algorithm = map_losses(calibrator, held=False)
        rows = algorithm.query({}, clients.by_row())["losses"].T
    else:  # the estimator's own way is faster than the formula that a site knows
        rows = _row_losses(calibrator, clients)
    found = comparison(LossState(np.add.reduce(rows, axis=1)), held)
    spread = rows[3] - rows[1]
    spread -= rows[0] * (found["log_loss"] - found["log_loss_input"])
    error = sqrt(np.vdot(spread, spread)) / max(found["n_rows"], 1e-12)
    return {**found, "error": error}


def _row_losses(calibrator: Any, clients: FederatedDataset) -> Array:
    """What `MapLosses` sums, for each row by itself, by a map that is at hand.

    Result of shape (5, n_rows).
    """
    found = calibrator._map_scores(clients)
    if found is not None:
        rows = np.empty((5, clients.n_rows))
        rows[0] = 1.0
        np.fmin(found, _WORST_BOTH, out=rows[1:])
        if clients.weights is not None:
            rows *= clients.weights[clients.offsets[0] : clients.offsets[-1]]
        return rows
    parts = []
    for block in clients.blocks():
        logits = _numerics.center(block.rows)
        before = _scores(logits, block.labels)
        if clients.n_classes > 1:
            logits = calibrator._calibrate(logits)
        after = _scores(logits, block.labels)
        part = np.array([np.ones(len(block.labels)), *before, *after])
        parts.append(part if block.weights is None else part * block.weights)
    return np.concatenate(parts, axis=1) if parts else np.zeros((5, 0))


def comparison(state: LossState, held: bool) -> dict[str, float]:
    """Mean losses of input and map from their sums; rows may be none."""
    sums = state.sums.tolist()
    n_rows = sums[0]
    loss_before, brier_before, loss_after, brier_after = (
        value / n_rows if n_rows > 0 else np.nan for value in sums[1:]
    )
    return {
        "n_rows": n_rows,
        "held_back": held,
        "log_loss_input": loss_before,
        "log_loss": loss_after,
        "brier_input": brier_before,
        "brier": brier_after,
    }


def does_no_harm(found: Mapping[str, float]) -> bool:
    """Whether the map is as good as the input in both scores; False without rows.

    False as well where held-back rows show next to no error: a map that made the model
    surer would pass after a lucky draw, and be very wrong elsewhere.
    """
    better = found["log_loss"] <= found["log_loss_input"]
    better &= found["brier"] <= found["brier_input"]
    return bool(better and shows_errors(found))


def shows_errors(found: Mapping[str, float]) -> bool:
    """Whether held-back rows have errors enough to judge a map."""
    return bool(found["n_rows"] * found["log_loss"] >= _LEAST_SUM)


def loss_text(found: Mapping[str, float]) -> str:
    """Losses of a comparison in words."""
    return (
        f"the log loss is {found['log_loss']:.4g} after {found['log_loss_input']:.4g} "
        f"of the input, the Brier score {found['brier']:.4g} after "
        f"{found['brier_input']:.4g}"
    )


class _Reads:
    """Stands for a calibrator and notes what the formula of its map reads."""

    def __init__(self, calibrator: Any) -> None:
        self._calibrator = calibrator
        self.found: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._calibrator, name)
        if name != "classes_":  # labels do not matter to a map, their number does
            self.found[name] = value
        return value


def _entry(word: str) -> Method:
    for method in methods("calibrator"):
        if method.word == word and method.map:
            return method
    raise ValueError(f"there is no map of a method {word!r}")


def centred(rows: Array) -> Array:
    """Logits as maps read them, in float64, with a maximum of 0."""
    out = np.array(rows, dtype=np.float64, order="C")
    with np.errstate(over="ignore", invalid="ignore"):
        out -= out.max(axis=1, keepdims=True)
    return out


def _mapped(path: str, values: Any, logits: Array) -> Array:
    """Carry out the formula of a map, found by its path: estimators are above."""
    formula, map_rows = (
        load_object(path),
        load_object("skfedcal.methods.graph:map_rows"),
    )
    out: Array = map_rows(lambda rows: formula(values, rows), logits, lambda x, _: x)
    return out


def _scores(logits: Array, labels: Array) -> Array:
    """Log loss and Brier score of each row."""
    found = np.empty((2, len(labels)))
    if not _compiled.scores(logits, labels, found):
        found[0], found[1] = _numpy_scores(logits, labels)
    # A row that no formula can map is entirely wrong: NaN gives way to the bound.
    return np.fmin(found, _WORST, out=found)


def _numpy_scores(logits: Array, labels: Array) -> tuple[Array, Array]:
    own = np.arange(len(labels)), labels
    with np.errstate(all="ignore"):
        gaps = logits - logits.max(axis=1, keepdims=True)
        proba = np.exp(gaps)
        total = np.einsum("ij->i", proba)
        loss = np.log(total) - gaps[own]
        proba /= total[:, None]
        proba[own] -= 1.0
        brier = np.einsum("ij,ij->i", proba, proba)
    return loss, brier
