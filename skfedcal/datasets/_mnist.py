"""MNIST and the data sets that share its file format, idx.

The idx format of MNIST and its kin, also compressed with gzip. torchvision has a reader
too. It is not used because it needs torch, reads no gzip and trusts the sizes in the
header; files that are on disk are read by numpy alone.
"""

from __future__ import annotations

import gzip
import math
import string
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

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

__all__ = [
    "load_emnist",
    "load_mnist",
    "read_idx",
    "read_labelled",
]

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
            return _read_stream(stream, path)  # type: ignore[arg-type]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path}: expected a gzip file, found a damaged or shortened one: {error}. "
            "Delete it and fetch it again."
        ) from error


def _read_stream(stream: BinaryIO, path: Path) -> NDArray[Any]:
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


SPLITS = ("train", "test", "all")
PREFIXES = {"train": "train", "test": "t10k"}

# Folder of each variant in torchvision's layout, which is the name of its class.
FOLDERS = {"mnist": "MNIST", "fashion": "FashionMNIST", "kuzushiji": "KMNIST"}
DIGITS = tuple(string.digits)
NAMES = {
    "mnist": DIGITS,
    "fashion": (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    "kuzushiji": ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
}

# Capital and small letters of these look alike and are one class when merged.
_MERGED = frozenset("cijklmopsuvwxyz")
_BYCLASS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_BYMERGE = tuple(c for c in _BYCLASS if c not in _MERGED)
EMNIST = {
    "balanced": _BYMERGE,
    "byclass": tuple(_BYCLASS),
    "bymerge": _BYMERGE,
    "digits": DIGITS,
    "letters": ("N/A", *string.ascii_lowercase),
    "mnist": DIGITS,
}


@loader_documented
def load_mnist(
    data_home: Home,
    *,
    split: str = "train",
    variant: str = "mnist",
    dtype: str = "uint8",
    download: bool = False,
    return_X_y: bool = False,
) -> Any:
    """Read MNIST, Fashion-MNIST or Kuzushiji-MNIST from its idx files.

    Parameters
    ----------
    data_home : str or path-like
        Folder with ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``,
        ``t10k-images-idx3-ubyte`` and ``t10k-labels-idx1-ubyte``, as they are or with
        ``.gz``; or the folder that torchvision was given as root, which has them in
        ``MNIST/raw`` (``FashionMNIST/raw``, ``KMNIST/raw``).
    split
    variant : {"mnist", "fashion", "kuzushiji"}, default="mnist"
        Which of the data sets.
    dtype, download, return_X_y

    Returns
    -------
    mnist : :class:`~sklearn.utils.Bunch`
        With these entries:

        data : ndarray of shape (n, 28, 28)
            Grey images, rows of pixels from top to bottom.
        target : ndarray of shape (n,)
            Labels from 0 to 9, int64.
        target_names : list of str
            Name of each label.

    See Also
    --------
    load_emnist : Letters in the same format.
    skfedcal.DirichletPartitioner : Clients from rows that have none.

    Examples
    --------
    >>> import os, struct, tempfile
    >>> from skfedcal.datasets import load_mnist
    >>> with tempfile.TemporaryDirectory() as home:
    ...     for name, sides in ("images-idx3", (2, 28, 28)), ("labels-idx1", (2,)):
    ...         with open(os.path.join(home, f"train-{name}-ubyte"), "wb") as file:
    ...             head = struct.pack(f">{len(sides) + 1}I", 2048 + len(sides), *sides)
    ...             _ = file.write(head + bytes(2 * 784 if sides[1:] else [7, 3]))
    ...     X, y = load_mnist(home, return_X_y=True)
    >>> X.shape, y
    ((2, 28, 28), array([7, 3]))
    """
    check_choice("split", split, SPLITS)
    folder = FOLDERS[check_choice("variant", variant, tuple(FOLDERS))]
    layout = Layout(
        folder,
        (f"{folder}/raw", folder, "raw", ""),
        "Pass the folder that holds the idx files, or download=True.",
    )
    fetch = partial(fetch_with_torchvision, folder) if download else None
    prefixes = [PREFIXES[part] for part in parts_of(split)]
    X, y = _read(layout, data_home, prefixes, fetch, n_classes=10)
    names = list(NAMES[variant])
    return deliver(scaled(X, dtype), y, return_X_y, target_names=names)


@loader_documented
def load_emnist(
    data_home: Home,
    *,
    split: str = "train",
    variant: str = "balanced",
    upright: bool = True,
    dtype: str = "uint8",
    download: bool = False,
    return_X_y: bool = False,
) -> Any:
    """Read EMNIST, handwritten digits and letters, from its idx files.

    Parameters
    ----------
    data_home : str or path-like
        Folder with ``emnist-<variant>-train-images-idx3-ubyte`` and the like, as they
        are or with ``.gz``; or the folder that torchvision was given as root, which has
        them in ``EMNIST/raw``.
    split
    variant : {"balanced", "byclass", "bymerge", "digits", "letters", "mnist"}, \
default="balanced"
        Which selection of classes; torchvision calls this the split.
    upright : bool, default=True
        The files hold each image mirrored at its diagonal. True turns it, so that it
        looks as those of MNIST do; False returns what is in the file, as torchvision
        does.
    dtype, download, return_X_y

    Returns
    -------
    emnist : :class:`~sklearn.utils.Bunch`
        With these entries:

        data : ndarray of shape (n, 28, 28)
            Grey images.
        target : ndarray of shape (n,)
            Labels, int64: from 0 on, but from 1 to 26 for "letters".
        target_names : list of str
            Name of each label; that of label 0 of "letters" is "N/A".

    See Also
    --------
    load_femnist : The same images by writer.
    load_mnist : Digits.

    Examples
    --------
    >>> import os, struct, tempfile
    >>> from skfedcal.datasets import load_emnist
    >>> with tempfile.TemporaryDirectory() as home:
    ...     for name, sides in ("images-idx3", (2, 28, 28)), ("labels-idx1", (2,)):
    ...         path = os.path.join(home, f"emnist-letters-test-{name}-ubyte")
    ...         with open(path, "wb") as file:
    ...             head = struct.pack(f">{len(sides) + 1}I", 2048 + len(sides), *sides)
    ...             _ = file.write(head + bytes(2 * 784 if sides[1:] else [1, 26]))
    ...     emnist = load_emnist(home, split="test", variant="letters")
    >>> [emnist.target_names[label] for label in emnist.target]
    ['a', 'z']
    """
    check_choice("split", split, SPLITS)
    names = EMNIST[check_choice("variant", variant, tuple(EMNIST))]
    layout = Layout(
        "EMNIST",
        ("EMNIST/raw", "EMNIST", "raw", "gzip", ""),
        "Pass the folder that holds the idx files, or download=True.",
    )
    fetch = None
    if download:
        fetch = partial(fetch_with_torchvision, "EMNIST", split=variant)
    prefixes = [f"emnist-{variant}-{part}" for part in parts_of(split)]
    first = int(variant == "letters")
    X, y = _read(layout, data_home, prefixes, fetch, len(names), first)
    if upright:
        X = np.ascontiguousarray(X.transpose(0, 2, 1))
    return deliver(scaled(X, dtype), y, return_X_y, target_names=list(names))


def _read(
    layout: Layout,
    home: Home,
    prefixes: Sequence[str],
    fetch: Callable[[Path], None] | None,
    n_classes: int,
    first: int = 0,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Images and labels of all parts, one after the other."""
    kinds = (("images", 3), ("labels", 1))
    wanted = [_names(prefix, *kind) for prefix in prefixes for kind in kinds]
    paths = iter(layout.require(home, wanted, fetch))
    parts = [
        read_labelled(images, labels, n_classes, first)
        for images, labels in zip(paths, paths, strict=True)
    ]
    shapes = {images.shape[1:] for images, _ in parts}
    if len(shapes) > 1:
        raise ValueError(
            f"{layout.title} in {home}: expected images of one shape, found "
            f"{sorted(shapes)}."
        )
    X = np.concatenate([images for images, _ in parts])
    return X, np.concatenate([labels for _, labels in parts])


def _names(prefix: str, kind: str, axes: int) -> tuple[str, ...]:
    """File names in use; some copies have a dot before "idx"."""
    stems = [f"{prefix}-{kind}{mark}idx{axes}-ubyte" for mark in "-."]
    return tuple(f"{stem}{end}" for stem in stems for end in ("", ".gz"))
