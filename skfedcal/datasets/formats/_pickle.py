"""Pickled dictionaries of arrays, read without running code that a pickle may hold.

torchvision reads the same files with ``pickle.load``, which runs any code in them, and
needs torch. This reader builds arrays, lists and strings only.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["read_pickle"]

# Whole and real numbers of up to 8 bytes; no objects, strings or records.
_PLAIN = re.compile(r"[biuf][1248]")


def read_pickle(path: Path) -> dict[str, Any]:
    """Read a dictionary of arrays, lists and strings.

    A pickle is a program. This reader lets it build containers, numbers, strings and
    arrays of numbers, and refuses every other name that it asks for. Arrays are made
    by stand-ins below, so that no code of numpy sees what the file says.
    """
    content = path.read_bytes()
    try:
        _check_places(content)
        found = _Reader(io.BytesIO(content), encoding="bytes").load()
    # A damaged pickle raises a dozen kinds, MemoryError among them.
    except Exception as error:
        raise ValueError(
            f"{path}: expected a pickled dictionary of arrays, found something that "
            f"cannot be read: {error}"
        ) from error
    if not isinstance(found, dict):
        raise ValueError(
            f"{path}: expected a pickled dictionary, found {type(found).__name__}."
        )
    return {_text(key): _value(value, path) for key, value in found.items()}


def _check_places(content: bytes) -> None:
    """Refuse more memo entries than the file has bytes.

    A pickle names the place of each thing; memory is taken for all places below.
    """
    puts = ("PUT", "BINPUT", "LONG_BINPUT")
    for opcode, place, _ in pickletools.genops(content):
        if opcode.name in puts and int(place or 0) > len(content):
            raise pickle.UnpicklingError(
                f"it claims {place} memo entries, more than its bytes can hold"
            )


def _text(key: Any) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)


def _value(value: Any, path: Path) -> Any:
    if not isinstance(value, _Array):
        return value
    if value.array is None:
        raise ValueError(f"{path}: expected an array, found one without content.")
    return value.array


class _DType:
    """Stands for a type of numpy: a code such as "u1" and a byte order."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code, self.order = _text(code), "="

    def __setstate__(self, state: Any) -> None:
        self.order = _text(state[1])

    def resolve(self) -> np.dtype:
        if not _PLAIN.fullmatch(self.code) or self.order not in "<>=|":
            raise pickle.UnpicklingError(
                f"an array of type {self.order + self.code!r} is not numeric"
            )
        return np.dtype(self.order.replace("|", "=") + self.code)


class _Array:
    """Stands for an array until its content comes."""

    array: NDArray[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, by_column, content = state
        if isinstance(content, str):  # Python 2 wrote bytes as text
            content = content.encode("latin-1")
        self.array = _build(content, dtype, shape, "F" if by_column else "C")


def _build(content: Any, dtype: Any, shape: Any, order: Any) -> NDArray[Any]:
    if not isinstance(dtype, _DType) or not isinstance(content, (bytes, bytearray)):
        raise pickle.UnpicklingError("the content of an array is not bytes")
    kind = dtype.resolve()
    shape = tuple(int(side) for side in shape)
    if min(shape, default=0) < 0 or math.prod(shape) * kind.itemsize != len(content):
        raise pickle.UnpicklingError(
            f"an array claims shape {shape} of {kind} but has {len(content)} bytes"
        )
    array = np.frombuffer(content, dtype=kind).reshape(shape, order=order)
    return array.astype(kind.newbyteorder("="))


def _empty(*_: Any) -> _Array:
    return _Array()


def _encode(text: str, *_: Any) -> bytes:
    """Give bytes back that Python 3 wrote as Latin-1 text, for old protocols."""
    return text.encode("latin-1")


def _no_bytes() -> bytes:
    """Stand for ``bytes()``, which old protocols write for none."""
    return b""


# What pickles of arrays ask for, by numpy before and after 2.0.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DType,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _no_bytes,
    **{
        (f"numpy.{core}.multiarray", "_reconstruct"): _empty
        for core in ("core", "_core")
    },
    **{(f"numpy.{core}.numeric", "_frombuffer"): _build for core in ("core", "_core")},
}


class _Reader(pickle.Unpickler):
    """Allows the names above and no others."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which is refused because it could run "
                "code; data files need arrays only"
            ) from None
