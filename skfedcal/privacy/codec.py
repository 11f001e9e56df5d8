"""Clip the contribution of each client and encode it as integers.

Integers add up to the same total in any order, on any engine, with or without masks.
Three codes:

- counts that nothing clips, or that are clipped in L1, are sent as they are;
- reals without noise are sent in 96-bit fixed point, as three limbs, so that sums of
  float64 values lose nothing that matters (resolution 2**-40, range 2**55);
- under noise, values are rounded to a lattice whose step is far below the noise, and
  the bound on the norm is checked in integers, so that it holds to the last bit.

Needs numpy only: this is code that runs at a site.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import floor, isqrt, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal import _compiled
from skfedcal.contract import BlockSpec, CellRows, Rows

Array = NDArray[Any]
Integers = NDArray[np.int64]
Encoded = Integers | CellRows

# What the compiled core encodes.
_CORE_TYPES = (np.dtype(np.int32), np.dtype(np.float64))
_CORE_REALS = (np.dtype(np.float32), np.dtype(np.float64))

_LIMB_SCALES = (2.0**24, 2.0**-8, 2.0**-40)
_RESOLUTION = 1 << 40
_FEW_VALUES = 64
# Entries that are encoded at a time: with their limbs, less than a cache holds.
_PIECE = 1 << 14
_WIDE_LIMIT = 2.0**55 * (1 - 2.0**-20)
_LIMB_BITS = 32
# Limbs are at most this size: 2**55 / 2**24, 2**24 * 2**8 and, rounded, 2**-8 * 2**40.
EXACT_LIMIT = 1 << 32

# Clip over lattice step. Squares of norms stay below 2**61, and sums over 2**32 clients
# below 2**63, so that no check and no sum can wrap around.
_MAX_RADIUS = 2.0**30

# Rounding up in many dimensions can push a vector over the bound; it is shrunk at most
# this often before rounding toward zero, which never lengthens it.
_SHRINKS = 12


@dataclass(frozen=True)
class BlockCode:
    """Encoding of one block as integers.

    spec: Shape and bound.
    step: Lattice step under noise; None writes the (clipped) value exactly.
    """

    spec: BlockSpec
    step: float | None = None

    @cached_property
    def n_limbs(self) -> int:
        """Integers that stand for one number."""
        exact_count = self.spec.kind == "count" and self.spec.clip is None
        return 1 if self.step is not None or exact_count else len(_LIMB_SCALES)

    @cached_property
    def limit(self) -> int:
        """Largest squared L2 norm (or L1 norm) of a group, in lattice steps."""
        if self.spec.clip is None or self.step is None:
            raise ValueError("Only a clipped block with a lattice step has a bound.")
        radius = self.spec.clip / self.step
        if not radius <= _MAX_RADIUS:
            raise ValueError(
                f"A step of {self.step:g} is too fine for the bound "
                f"{self.spec.clip:g}: integers would overflow. Pass a smaller eps."
            )
        if self.spec.norm == "l1":  # exact: a count of 1 must fit a bound of 1
            return floor(Fraction(self.spec.clip) / Fraction(self.step))
        return floor(radius**2 * (1 - 1e-12))

    @property
    def largest(self) -> int:
        """Largest size of an integer that stands for one unit.

        Nothing bounds exact counts; a site sends this in place of a larger one.
        """
        if self.step is None:
            return EXACT_LIMIT
        return self.limit if self.spec.norm == "l1" else isqrt(self.limit)

    def encode(self, values: Array | CellRows) -> Integers | CellRows:
        """Integers of shape (n_clients, n_limbs, size) from one row per client.

        Sparse rows stay sparse where whole numbers are sent as they are.
        """
        if isinstance(values, CellRows):
            _check_cells(values)
            if not self.sparse or values.values is not None:
                return self._encode(values.dense())
            return values if self.spec.clip is None else first_cells(values, self.limit)
        return self._encode(values)

    @property
    def sparse(self) -> bool:
        """Whether an entry of 1 is written as 1 and bounded by counting."""
        spec = self.spec
        if spec.kind != "count":
            return False
        if spec.clip is None:
            return self.step is None
        return self.step == 1.0 and spec.norm == "l1" and spec.groups == 1

    def adds_sparse(self, values: Array | CellRows) -> bool:
        """Whether `encode_sum` needs no dense array of these rows."""
        if not isinstance(values, CellRows):
            return False
        exact = self.spec.clip is None and self.step is None
        return self.sparse if values.values is None else exact

    def _encode(self, values: Array) -> Integers:
        n_clients = len(values)
        if self.step is None and self.n_limbs == 1 and values.dtype.kind in "biu":
            return values.reshape(n_clients, 1, self.spec.size).astype(np.int64)
        flat = values.reshape(n_clients, self.spec.size).astype(np.float64)
        flat[~np.isfinite(flat)] = 0.0
        if self.spec.clip is not None:
            flat = clip_rows(flat, self.spec.clip, self.spec.norm, self.spec.groups)
        if self.n_limbs > 1:
            return _to_limbs(flat)  # which overwrites it
        if self.step is None:
            whole = np.rint(np.clip(flat, -(2.0**53), 2.0**53))
            return whole.astype(np.int64)[:, None]
        width = self.spec.size // self.spec.groups
        grouped = (flat / self.step).reshape(n_clients * self.spec.groups, width)
        rounded = round_within(grouped, self.limit, self.spec.norm)
        return rounded.reshape(n_clients, 1, self.spec.size)

    def encode_sum(self, values: Array | CellRows) -> Integers:
        """Sum of the encoded rows, of shape (n_limbs, size)."""
        spec, core = self.spec, _compiled.core
        if isinstance(values, CellRows) and values.values is not None:
            return self._sum_of_cells(values)
        if isinstance(values, CellRows):
            return add_up(self.encode(values))
        if self.n_limbs > 1:
            if core is not None and spec.clip is None and values.dtype in _CORE_REALS:
                total = np.zeros((self.n_limbs, spec.size), dtype=np.int64)
                flat = _packed(values).reshape(len(values), spec.size)
                core.limb_sum(flat, _WIDE_LIMIT, total)
                return total
            # A few rows at a time: three limbs of all of them would not fit in a cache.
            n_rows = max(1, _PIECE // max(1, spec.size))
            total = np.zeros((self.n_limbs, spec.size), dtype=np.int64)
            for first in range(0, len(values), n_rows):
                total += self._encode(values[first : first + n_rows]).sum(axis=0)
            return total
        if self.step is None and values.dtype == np.int64:
            return np.add.reduce(values.reshape(len(values), 1, spec.size), axis=0)
        if core is None or self.step is None or values.dtype not in _CORE_TYPES:
            return self._encode(values).sum(axis=0)
        # One arithmetic for all layouts: a client alone must send the same.
        total = np.zeros((1, spec.size), dtype=np.int64)
        flat = _packed(values).reshape(len(values), spec.size)
        # As clip_rows and round_within, without an array of all rows.
        by_size, limit = spec.norm == "l1", self.limit
        core.encode_sum(
            flat, spec.groups, spec.clip, by_size, self.step, limit, total[0]
        )
        return total

    def _sum_of_cells(self, rows: CellRows) -> Integers:
        """As the sum of `encode`, without a dense array of all clients."""
        values = rows.values
        if values is None or not self.adds_sparse(rows):
            return add_up(self.encode(rows))
        _check_cells(rows)
        if self.n_limbs == 1 and values.dtype.kind in "biu":
            return rows.total()[None].astype(np.int64)
        # A client rounds its sum of a cell, not what it adds to it.
        merged = rows.merged()
        assert merged.values is not None
        spec = replace(self.spec, shape=merged.values.shape[1:])
        limbs = replace(self, spec=spec)._encode(merged.values)
        sums = (
            replace(merged, values=limbs[:, i]).total() for i in range(self.n_limbs)
        )
        return np.stack(list(sums))

    def decode(self, total: Integers) -> Array:
        """Value of a sum of encoded rows."""
        if self.step is not None:
            out = total[0] * self.step
        elif self.n_limbs == 1:
            out = total[0].astype(np.float64)
        else:
            out = _from_limbs(total)
        return out if out.shape == self.spec.shape else out.reshape(self.spec.shape)


def _packed(values: Array) -> Array:
    """Values as C has them: row after row, numbers at multiples of their size."""
    flags = values.flags
    if flags.c_contiguous and flags.aligned:
        return values
    return np.require(values, requirements=["C", "A"])


@dataclass(frozen=True, slots=True)
class Codec:
    """Codes of all blocks of one message."""

    blocks: Mapping[str, BlockCode]

    def encode(self, values: Rows) -> dict[str, Encoded]:
        """Clip and encode the arrays of each client; refuse arrays not in the spec.

        Raises ValueError: If the arrays do not have the names and shapes that were
            announced.
        """
        self._check_shapes(values)
        return {name: code.encode(values[name]) for name, code in self.blocks.items()}

    def encode_sum(self, values: Rows) -> dict[str, Integers]:
        """Sum of what `encode` would return, without an array of all rows.

        Raises ValueError: As `encode`.
        """
        self._check_shapes(values)
        return {n: code.encode_sum(values[n]) for n, code in self.blocks.items()}

    def _check_shapes(self, values: Rows) -> None:
        if len(values) == len(self.blocks):
            for name, code in self.blocks.items():
                if name not in values or values[name].shape[1:] != code.spec.shape:
                    break
            else:
                return
        shapes = {name: value.shape[1:] for name, value in values.items()}
        expected = {name: code.spec.shape for name, code in self.blocks.items()}
        raise ValueError(
            f"A query returned blocks of shapes {shapes}, its spec announces "
            f"{expected}."
        )

    def zeros(self) -> dict[str, Integers]:
        """Sum over no clients."""
        return {
            name: np.zeros((code.n_limbs, code.spec.size), dtype=np.int64)
            for name, code in self.blocks.items()
        }


def add_up(rows: Encoded) -> Integers:
    """Sum of encoded rows, of shape (n_limbs, size)."""
    if isinstance(rows, CellRows):
        return rows.total()[None]
    return rows.sum(axis=0)


def first_cells(values: CellRows, limit: int) -> CellRows:
    """Keep the first `limit` entries of each row."""
    if limit > 0 and (values.rows[1:] > values.rows[:-1]).all():
        return values
    starts = np.searchsorted(values.rows, values.rows, side="left")
    keep = np.arange(len(values.rows)) - starts < limit
    if keep.all():
        return values
    return replace(values, rows=values.rows[keep], cells=values.cells[keep])


def _check_cells(values: CellRows) -> None:
    """Refuse entries that the bound would not see or that lie in another row."""
    rows, cells, numbers = values.rows, values.cells, values.values
    each = 1
    if numbers is not None:
        fits = numbers.ndim == 2 and len(numbers) == len(rows) and numbers.shape[1]
        each = numbers.shape[1] if fits and not prod(values.block) % fits else 0
    inside = (
        bool(each)
        and rows.shape == cells.shape
        and (
            not len(rows)
            or (
                rows[0] >= 0
                and rows[-1] < values.n_rows
                and cells.min() >= 0
                and cells.max() < prod(values.block) // each
            )
        )
    )
    if not inside or (rows[1:] < rows[:-1]).any():
        raise ValueError(
            f"CellRows needs one cell inside {values.block} per entry, and rows in "
            f"order below {values.n_rows}."
        )


def clip_rows(values: Array, clip: float, norm: str = "l2", groups: int = 1) -> Array:
    """Scale each group of each row down to norm `clip` where it is longer."""
    grouped = values.reshape(len(values) * groups, values.shape[1] // groups)
    # The largest entry is taken out first, so that 1e300 does not overflow a square.
    top = np.abs(grouped).max(axis=1, initial=0.0, keepdims=True)
    unit = grouped / np.where(top > 0, top, 1.0)
    if norm == "l1":
        length = np.abs(unit).sum(axis=1, keepdims=True)
    else:
        length = np.sqrt(np.einsum("ij,ij->i", unit, unit))[:, None]
    with np.errstate(over="ignore"):  # infinitely long is long
        long = top * length > clip
    scaled = unit * (clip / np.where(length > 0, length, 1.0))
    return np.where(long, scaled, grouped).reshape(values.shape)


def round_within(values: Array, limit: int, norm: str) -> Integers:
    """Nearest integers whose squared L2 norm (or L1 norm) is at most `limit`."""
    out = np.rint(values).astype(np.int64)
    rows = np.flatnonzero(_integer_norm(out, norm) > limit)
    part = values[rows]
    for attempt in range(_SHRINKS + 1):
        if not rows.size:
            return out
        size = _integer_norm(out[rows], norm).astype(np.float64)
        shrink = limit / size if norm == "l1" else np.sqrt(limit / size)
        part = part * np.minimum(shrink, 1 - 1e-9)[:, None]
        last = attempt == _SHRINKS
        out[rows] = np.trunc(part) if last else np.rint(part)
        still = _integer_norm(out[rows], norm) > limit
        rows, part = rows[still], part[still]
    out[rows] = 0  # not reached: rounding toward zero keeps the norm
    return out


def _integer_norm(values: Integers, norm: str) -> Integers:
    if norm == "l1":
        return np.abs(values).sum(axis=1)
    return np.einsum("ij,ij->i", values, values)


def _to_limbs(values: Array) -> Integers:
    """Write reals as three 32-bit limbs of one sign, highest first.

    Cutting toward zero is exact; only the last limb is rounded, to 2**-40. Overwrites
    `values`.
    """
    rest = np.minimum(values, _WIDE_LIMIT, out=values)
    np.maximum(rest, -_WIDE_LIMIT, out=rest)
    out = np.zeros((len(values), len(_LIMB_SCALES), values.shape[1]), dtype=np.int64)
    largest = max(rest.max(initial=0.0), -rest.min(initial=0.0))
    # In place: fresh arrays of the size of a model would take most of the time.
    part = np.empty_like(rest)
    for i, scale in enumerate(_LIMB_SCALES):
        last = i == len(_LIMB_SCALES) - 1
        if largest < scale and not last:
            continue
        np.multiply(rest, 1 / scale, out=part)  # exact: a power of two
        out[:, i] = np.rint(part, out=part) if last else np.trunc(part, out=part)
        part *= scale
        rest -= part
    return out


def _from_limbs(total: Integers) -> Array:
    """Value of a sum of limbs, to the last bits of a float."""
    if total.shape[1] <= _FEW_VALUES:  # python integers are exact and faster
        limbs = zip(*total.tolist(), strict=True)
        return np.array(
            [((h << 64) + (m << 32) + lo) / _RESOLUTION for h, m, lo in limbs]
        )
    carried = _carry(total)
    # Limbs of one sign add up without cancellation: a small sum of large values of
    # both signs is as exact as any other.
    sign = np.where(carried[0] < 0, -1, 1)
    high, middle, low = _carry(carried * sign)
    scales = _LIMB_SCALES
    size = high * scales[0] + (middle * scales[1] + low * scales[2])
    return sign * size


def _carry(total: Integers) -> Integers:
    """Bring all limbs but the highest into ``[0, 2**32)``."""
    out = total.copy()
    for i in range(len(out) - 1, 0, -1):
        out[i - 1] += out[i] >> _LIMB_BITS
        out[i] &= (1 << _LIMB_BITS) - 1
    return out
