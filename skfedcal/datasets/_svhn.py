"""Street View House Numbers from MATLAB files.

Numeric arrays of MATLAB files, version 5 (saved with ``-v6`` or ``-v7``).
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

from skfedcal._params import check_choice
from skfedcal.datasets._layout import (
    Home,
    Layout,
    check_labels,
    check_lengths,
    deliver,
    fetch_with_torchvision,
    loader_documented,
    parts_of,
    scaled,
)

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

    names: Arrays to read, all real numbers.
    Result: Those of `names` that the file has.
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


SPLITS = ("train", "test", "extra", "all")
SVHN = Layout(
    "SVHN",
    ("SVHN", "svhn", ""),
    "Pass the folder that holds the cropped digits (format 2), or download=True.",
)


@loader_documented
def load_svhn(
    data_home: Home,
    *,
    split: str = "train",
    dtype: str = "uint8",
    download: bool = False,
    return_X_y: bool = False,
) -> Any:
    """Read the cropped digits of SVHN from their MATLAB files.

    Parameters
    ----------
    data_home : str or path-like
        Folder with ``train_32x32.mat``, ``test_32x32.mat`` and ``extra_32x32.mat``, or
        one that has them in ``SVHN``.
    split : {"train", "test", "extra", "all"}, default="train"
        Rows to return; "all" is "train" and then "test", without "extra".
    dtype, download, return_X_y

    Returns
    -------
    svhn : :class:`~sklearn.utils.Bunch`
        With these entries:

        data : ndarray of shape (n, 32, 32, 3)
            Colour images, channels last.
        target : ndarray of shape (n,)
            The digit, int64; the files have 10 for the digit 0.
        target_names : list of str
            Name of each label.

    See Also
    --------
    load_mnist : Handwritten digits.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from scipy.io import savemat
    >>> from skfedcal.datasets import load_svhn
    >>> X, y = np.zeros((32, 32, 3, 2), np.uint8), np.array([[1], [10]], np.uint8)
    >>> with tempfile.TemporaryDirectory() as home:
    ...     savemat(os.path.join(home, "train_32x32.mat"), {"X": X, "y": y})
    ...     svhn = load_svhn(home)
    >>> svhn.data.shape, svhn.target
    ((2, 32, 32, 3), array([1, 0]))
    """
    check_choice("split", split, SPLITS)
    images, labels = [], []
    for part in parts_of(split):
        fetch = _fetcher(part) if download else None
        (path,) = SVHN.require(data_home, [[f"{part}_32x32.mat"]], fetch)
        rows, classes = _read(path)
        images.append(rows)
        labels.append(classes)
    return deliver(
        scaled(images[0] if len(images) == 1 else np.concatenate(images), dtype),
        np.concatenate(labels),
        return_X_y,
        target_names=[str(digit) for digit in range(10)],
    )


def _fetcher(part: str) -> Any:
    return lambda home: fetch_with_torchvision("SVHN", home, split=part)


def _read(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        found = read_matlab(path, ("X", "y"))
    except ValueError as error:
        raise ValueError(
            f"{path}: expected a MATLAB file of version 5, found something that "
            f"cannot be read: {error}."
        ) from error
    missing = sorted({"X", "y"} - set(found))
    if missing:
        raise ValueError(f"{path}: expected the arrays X and y, found no {missing[0]}.")
    pixels, labels = found["X"], found["y"].ravel()
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[2] != 3:
        raise ValueError(
            f"{path}: expected X as bytes of shape (32, 32, 3, n), found "
            f"{pixels.dtype} of shape {pixels.shape}."
        )
    check_lengths(pixels.shape[3], len(labels), path, path)
    labels = check_labels(labels, 11, path, first=1)
    return np.ascontiguousarray(pixels.transpose(3, 0, 1, 2)), labels % 10
