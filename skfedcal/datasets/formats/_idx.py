"""The idx format of MNIST and its kin, also compressed with gzip.

torchvision has a reader too. It is not used because it needs torch, reads no gzip and
trusts the sizes in the header; files that are on disk are read by numpy alone.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from skfedcal.datasets.formats._layout import check_labels, check_lengths

__all__ = ["read_idx", "read_labelled"]

# Third byte of the file: the type of the entries, most significant byte first.
TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}

CHUNK = 1 << 22


def read_idx(path: Path) -> NDArray[Any]:
    """Read an array; ``.gz`` at the end of the name means gzip.

    Memory is taken for what the file holds, not for what its header claims.
    """
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rb") as stream:
            return _read(stream, path)  # type: ignore[arg-type]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path}: expected a gzip file, found a damaged or shortened one: {error}. "
            "Delete it and fetch it again."
        ) from error


def _read(stream: BinaryIO, path: Path) -> NDArray[Any]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES:
        raise ValueError(
            f"{path}: expected an idx file (two zero bytes, a type code of "
            f"{sorted(TYPES)}, a number of axes), found {magic!r} at its start."
        )
    dtype, n_axes = np.dtype(TYPES[magic[2]]), magic[3]
    sides = stream.read(4 * n_axes)
    if not n_axes or len(sides) < 4 * n_axes:
        raise ValueError(
            f"{path}: expected the length of {n_axes} axes after the first 4 bytes, "
            f"found {len(sides)} bytes."
        )
    shape = struct.unpack(f">{n_axes}I", sides)
    size = math.prod(shape) * dtype.itemsize
    content = _read_up_to(stream, size + 1)
    if len(content) != size:
        found = "more" if len(content) > size else str(len(content))
        raise ValueError(
            f"{path}: expected {size} bytes for an array of shape {shape}, found "
            f"{found}. The file is cut short or damaged; fetch it again."
        )
    # A copy in the byte order of the machine, which can be written to.
    array = np.frombuffer(content, dtype=dtype).astype(dtype.newbyteorder("="))
    return array.reshape(shape)


def _read_up_to(stream: BinaryIO, size: int) -> bytearray:
    """Read at most `size` bytes; ``stream.read(size)`` would take them at once."""
    content = bytearray()
    while chunk := stream.read(min(CHUNK, size - len(content))):
        content += chunk
    return content


def read_labelled(
    images: Path, labels: Path, n_classes: int, first: int = 0
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Images of shape (n, height, width) and their labels."""
    X, y = read_idx(images), read_idx(labels)
    for path, array, axes in ((images, X, 3), (labels, y, 1)):
        if array.dtype != np.uint8 or array.ndim != axes:
            raise ValueError(
                f"{path}: expected bytes on {axes} axes, found {array.dtype} of shape "
                f"{array.shape}."
            )
    check_lengths(len(X), len(y), images, labels)
    return X, check_labels(y, n_classes, labels, first)
