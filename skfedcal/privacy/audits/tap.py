"""Record what every client sends and what is released in a real fit.

A privacy model is wrapped, so that its mechanism and codec are; nothing else of the fit
is touched. One unit, the canary, can be taken out after it is encoded, which is the
neighbouring data set of the guarantee to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skfedcal.contract import CellRows, Rows, Sums
from skfedcal.privacy.codec import BlockCode, Codec, Encoded, Integers, add_up
from skfedcal.privacy.ledger import PrivacyLedger
from skfedcal.privacy.models import PrivacyModel, ReleasePlan
from skfedcal.privacy.randomizers import LocalReports

Neighbour = Literal["none", "zero", "negative", "other"]


@dataclass(slots=True)
class RoundTape:
    """What the auditor knows about one round.

    codec: Bounds and steps.
    others: Sum of all other units, as encoded.
    sent, swapped: What the canary sends, and what stands for it in the neighbouring
        data set.
    longest: Largest norm of a part of what any unit sends, in the units of
        ``code.limit``.
    released: What the server sees.
    reports: What the canary itself reports, where clients randomise what they send.
    """

    codec: Codec
    others: dict[str, Integers] = field(default_factory=dict)
    sent: dict[str, Integers] = field(default_factory=dict)
    swapped: dict[str, Integers] = field(default_factory=dict)
    longest: dict[str, int] = field(default_factory=dict)
    released: Sums = field(default_factory=lambda: Sums({}))
    reports: dict[str, Integers] = field(default_factory=dict)
    n_seen: int = 0

    def step(self, name: str) -> float:
        return self.codec.blocks[name].step or 1.0

    def largest(self, name: str) -> float:
        """Bound of a unit on a block, in lattice steps and in the norm of the block."""
        code = self.codec.blocks[name]
        bound = float(code.limit * code.spec.groups)
        return bound if code.spec.norm == "l1" else sqrt(bound)

    def whole(self, name: str, swapped: bool) -> Integers:
        """Exact sum with the canary, or with what stands for it."""
        return self.others[name] + (self.swapped if swapped else self.sent)[name]


@dataclass
class Tape:
    """What the auditor knows about a fit.

    canary: Place of the canary among the units.
    neighbour ('none', 'zero', 'negative', 'other'): What stands for the canary: nothing
        is changed, zeros, the same with the other sign, or its numbers in the next
        cells.
    blind: Whether releases are replaced by numbers that know nothing of the data.
    ledger: Account that the fit pays from; no other one is debited.
    """

    canary: int
    neighbour: Neighbour = "none"
    assumed: Neighbour = "zero"
    blind: bool = False
    rounds: list[RoundTape] = field(default_factory=list)
    ledger: PrivacyLedger = field(default_factory=PrivacyLedger)

    def start(self, codec: Codec) -> None:
        # The codec of the first round is also asked for to see that it is possible.
        if self.rounds and not self.rounds[-1].released:
            self.rounds.pop()
        self.rounds.append(RoundTape(codec))

    def listen(self, name: str, rows: Encoded, code: BlockCode, first: int) -> Encoded:
        """Note one block of what some units send; swap the canary if asked to."""
        tape = self.rounds[-1]
        dense = rows.dense() if isinstance(rows, CellRows) else rows
        dense = np.array(dense, dtype=np.int64).reshape(len(dense), -1)
        tape.longest[name] = max(tape.longest.get(name, 0), _longest(dense, code))
        mine = self.canary - first
        own = 0 <= mine < len(dense)
        rest = dense.sum(axis=0)
        if own:
            tape.sent[name] = dense[mine].copy()
            # Sparse rows are counts, which have no other sign.
            other = self.assumed == "negative" and isinstance(rows, CellRows)
            kind: Neighbour = "other" if other else self.assumed
            tape.swapped[name] = _neighbour(dense[mine], kind)
            rest = rest - dense[mine]
        tape.others[name] = tape.others.get(name, 0) + rest
        if not own or self.neighbour == "none":
            return rows
        dense[mine] = tape.swapped[name]
        if isinstance(rows, CellRows):
            return _sparse(rows, mine, dense[mine])
        return dense.reshape(rows.shape)


def _longest(rows: Integers, code: BlockCode) -> int:
    """Largest norm of a group, in exact integers."""
    groups = rows.reshape(len(rows) * code.spec.groups, -1)
    sizes = np.abs(groups.astype(float)).sum(axis=1)
    if code.spec.norm == "l1":
        return int(sizes.max(initial=0))
    # The few longest rows are squared in python integers, which do not wrap around.
    squares = (groups.astype(float) ** 2).sum(axis=1)
    if not len(squares):
        return 0
    return sum(int(v) ** 2 for v in groups[int(squares.argmax())])


def _neighbour(row: Integers, kind: Neighbour) -> Integers:
    if kind == "negative":
        return -row
    if kind == "other":
        return np.roll(row, 1)
    return np.zeros_like(row)


def _sparse(rows: CellRows, mine: int, row: Integers) -> CellRows:
    """Sparse rows with another one in the place of the canary."""
    before, after = rows.rows < mine, rows.rows > mine
    cells = np.repeat(np.arange(len(row)), np.maximum(row, 0))
    return replace(
        rows,
        rows=np.concatenate(
            [rows.rows[before], np.full(len(cells), mine), rows.rows[after]]
        ),
        cells=np.concatenate([rows.cells[before], cells, rows.cells[after]]),
    )


class TappedCodec(Codec):
    """A codec that records its messages."""

    def __init__(self, inner: Codec, tape: Tape) -> None:
        super().__init__(inner.blocks)
        object.__setattr__(self, "inner", inner)
        object.__setattr__(self, "tape", tape)

    inner: Codec
    tape: Tape

    def encode(self, values: Rows) -> dict[str, Encoded]:
        encoded = self.inner.encode(values)
        current = self.tape.rounds[-1]
        first = current.n_seen
        current.n_seen += max(len(rows) for rows in encoded.values())
        return {
            name: self.tape.listen(name, rows, self.blocks[name], first)
            for name, rows in encoded.items()
        }

    def encode_sum(self, values: Rows) -> dict[str, Integers]:
        # Messages are what is recorded, so that the sum is made of them.
        return {name: add_up(rows) for name, rows in self.encode(values).items()}


class TappedReports:
    """Reports of clients, of which that of the canary is noted."""

    def __init__(self, inner: LocalReports, tape: Tape) -> None:
        self._inner, self._tape = inner, tape

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def reports(self, encoded: Mapping[str, Encoded], streams: Any) -> Any:
        current = self._tape.rounds[-1]
        if current.n_seen != self._tape.canary + 1:
            return self._inner.reports(encoded, streams)
        n = len(streams)
        parts = [
            self._inner.reports(
                {name: _cut(rows, start, stop) for name, rows in encoded.items()},
                streams.part(start, stop),
            )
            for start, stop in ((0, n - 1), (n - 1, n))
        ]
        current.reports = {name: np.ravel(value) for name, value in parts[1].items()}
        return {name: parts[0][name] + parts[1][name] for name in parts[0]}


def _cut(rows: Encoded, start: int, stop: int) -> Encoded:
    """Some of the rows."""
    if not isinstance(rows, CellRows):
        return rows[start:stop]
    keep = (rows.rows >= start) & (rows.rows < stop)
    return CellRows(rows.rows[keep] - start, rows.cells[keep], stop - start, rows.block)


class TappedMechanism:
    """A mechanism that records its releases and is otherwise unchanged."""

    def __init__(self, inner: Any, tape: Tape) -> None:
        self._inner, self._tape = inner, tape

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def codec(self, spec: Any, round_index: int = 0) -> Codec:
        codec = self._inner.codec(spec, round_index)
        self._tape.start(codec)
        return TappedCodec(codec, self._tape)

    def randomizer(self, codec: Codec, round_index: int) -> Any:
        found = self._inner.randomizer(_inner(codec), round_index)
        reports = isinstance(found, LocalReports)
        return TappedReports(found, self._tape) if reports else found

    def release(
        self,
        total: Mapping[str, Integers],
        codec: Codec,
        round_index: int,
        n_clients: int | None = None,
    ) -> Sums:
        out = self._inner.release(total, _inner(codec), round_index, n_clients)
        if self._tape.blind:
            out = _blind(out, round_index)
        self._tape.rounds[-1].released = out
        return out


def _inner(codec: Codec) -> Codec:
    return codec.inner if isinstance(codec, TappedCodec) else codec


def _blind(released: Sums, round_index: int) -> Sums:
    """Numbers of the size of the noise that are the same in every fit."""
    values = {}
    for i, name in enumerate(sorted(released)):
        rng = np.random.default_rng([round_index, i])
        noise = released.noise.get(name, 1.0)
        values[name] = noise * rng.normal(size=released[name].shape)
    return Sums(values, released.noise, released.laws)


def tapped(model: PrivacyModel, tape: Tape) -> PrivacyModel:
    """Copy of a privacy model whose mechanism records its releases.

    It stays an object of its class, as methods ask what kind of model they have.
    """
    twin: PrivacyModel = object.__new__(_tapped_class(type(model)))
    vars(twin).update(vars(model), _tape=tape)
    return twin


@cache
def _tapped_class(kind: Any) -> Any:
    def mechanism(self: Any, plan: ReleasePlan, **options: Any) -> TappedMechanism:
        options["ledger"] = self._tape.ledger
        return TappedMechanism(kind.mechanism(self, plan, **options), self._tape)

    return type(kind.__name__, (kind,), {"mechanism": mechanism})


def residuals(tape: RoundTape, name: str, swapped: bool) -> NDArray[np.float64]:
    """Noise of one block in lattice steps: the release less the exact sum."""
    released = np.ravel(tape.released[name]) / tape.step(name)
    return released - tape.whole(name, swapped)
