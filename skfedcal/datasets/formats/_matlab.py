"""Numeric arrays of MATLAB files, version 5 (saved with ``-v6`` or ``-v7``).

``scipy.io.loadmat`` is not used, because damaged bytes can crash the process inside its
compiled code (a segmentation fault, which no ``except`` catches). This reader checks
every size before it uses it.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Types of stored numbers, and classes of arrays, by their codes.
_STORED = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
}
_CLASSES = {
    6: "f8",
    7: "f4",
    8: "i1",
    9: "u1",
    10: "i2",
    11: "u2",
    12: "i4",
    13: "u4",
    14: "i8",
    15: "u8",
}
_INT8, _INT32, _UINT32, _MATRIX, _COMPRESSED = 1, 5, 6, 14, 15
_COMPLEX = 0x0800
_HEADER = 128


class _Part(NamedTuple):
    kind: int
    body: memoryview
    end: int


def read_matlab(path: Path, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """Read arrays by name; others are skipped.

    Parameters
    ----------
    path : Path
        The file.
    names : collection of str
        Arrays to read, all real numbers.

    Returns
    -------
    found : dict of str to ndarray
        Those of `names` that the file has.
    """
    found = {}
    with open(path, "rb") as stream:
        order = _byte_order(stream.read(_HEADER))
        while tag := stream.read(8):
            kind, size = _numbers(tag, order, 2)
            body = stream.read(size)
            if len(body) < size:
                raise ValueError("it ends in the middle of an array")
            if kind == _COMPRESSED:
                kind, body = _unpacked(body, order)
            if kind != _MATRIX:
                raise ValueError(f"an element of type {kind} instead of an array")
            name, rest = _name_of(memoryview(body), order)
            if name in names:
                found[name] = _array(*rest, order)
    return found


def _byte_order(header: bytes) -> str:
    order = {b"IM": "<", b"MI": ">"}.get(header[126:])
    if order is None or _numbers(header[124:126] * 2, order, 1, "u2")[0] != 0x0100:
        raise ValueError("it has no header of version 5")
    return order


def _numbers(raw: bytes, order: str, n: int, kind: str = "u4") -> list[int]:
    if len(raw) < n * int(kind[1]):
        raise ValueError("it ends in the middle of a number")
    values: list[int] = np.frombuffer(raw, order + kind, n).tolist()
    return values


def _unpacked(packed: bytes, order: str) -> tuple[int, bytes]:
    """Type and body of a compressed part, as long as it says that it is."""
    unzip = zlib.decompressobj()
    try:
        kind, size = _numbers(unzip.decompress(packed, 8), order, 2)
        body = unzip.decompress(unzip.unconsumed_tail, size) if size else b""
    except zlib.error as error:
        raise ValueError(f"an element cannot be decompressed ({error})") from None
    if len(body) < size:
        raise ValueError("a compressed element is shorter than its header states")
    return kind, body


def _part(data: memoryview, start: int, order: str) -> _Part:
    """The element at `start`; short ones have their body in the tag."""
    first, size = _numbers(bytes(data[start : start + 8]), order, 2)
    if first >> 16:
        size, begin, end = first >> 16, start + 4, start + 8
        if size > 4:
            raise ValueError(f"a small element of {size} bytes")
    else:
        begin = start + 8
        end = begin + size + -size % 8
    if begin + size > len(data):
        raise ValueError("an element exceeds its array")
    return _Part(first & 0xFFFF, data[begin : begin + size], end)


def _name_of(data: memoryview, order: str) -> tuple[str, tuple[int, _Part, _Part]]:
    """Name of an array; its class with flags, its sides, and its numbers."""
    flags = _part(data, 0, order)
    sides = _part(data, flags.end, order)
    name = _part(data, sides.end, order)
    if (flags.kind, sides.kind, name.kind) != (_UINT32, _INT32, _INT8):
        raise ValueError("an array without flags, dimensions and name")
    numbers = _Part(0, data[:0], 0)
    if name.end < len(data):
        numbers = _part(data, name.end, order)
    word = bytes(name.body).decode("ascii", "replace")
    return word, (_numbers(bytes(flags.body), order, 1)[0], sides, numbers)


def _array(flags: int, sides: _Part, numbers: _Part, order: str) -> NDArray[Any]:
    kind, stored = _CLASSES.get(flags & 0xFF), _STORED.get(numbers.kind)
    if kind is None or stored is None or flags & _COMPLEX:
        raise ValueError("an array of complex or non-numeric values")
    if not np.can_cast(stored, kind, "safe"):
        raise ValueError(f"an array of {kind} whose numbers are stored as {stored}")
    if len(sides.body) % 4 or len(sides.body) < 8:
        raise ValueError("an array with fewer than two dimensions")
    shape = _numbers(bytes(sides.body), order, len(sides.body) // 4, "i4")
    size = int(stored[1])
    if min(shape) < 0 or prod(shape) * size != len(numbers.body) or len(shape) > 32:
        raise ValueError(
            f"an array of shape {tuple(shape)} with a different number of values"
        )
    values = np.frombuffer(numbers.body, order + stored)
    return values.astype(kind).reshape(shape, order="F")
