"""CIFAR-10 and CIFAR-100 from their pickled batches, read safely.

Pickled dictionaries of arrays, read without running code that a pickle may hold.
torchvision reads the same files with ``pickle.load``, which runs any code in them, and
needs torch. This reader builds arrays, lists and strings only.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

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
    "load_cifar10",
    "load_cifar100",
    "read_pickle",
]

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


SPLITS = ("train", "test", "all")
BATCHES = {
    "train": [f"data_batch_{number}" for number in range(1, 6)],
    "test": ["test_batch"],
}
ADVICE = (
    "Pass the folder that holds the unpacked archive of the Python version, or "
    "download=True."
)
CIFAR10 = Layout("CIFAR-10", ("cifar-10-batches-py", ""), ADVICE)
CIFAR100 = Layout("CIFAR-100", ("cifar-100-python", ""), ADVICE)
N_CLASSES = {"fine": 100, "coarse": 20}


@loader_documented
def load_cifar10(
    data_home: Home,
    *,
    split: str = "train",
    dtype: str = "uint8",
    download: bool = False,
    return_X_y: bool = False,
) -> Any:
    """Read CIFAR-10 from its pickled batches.

    Parameters
    ----------
    data_home : str or path-like
        Folder ``cifar-10-batches-py``, or one that contains it: ``data_batch_1`` to
        ``data_batch_5``, ``test_batch`` and, for names of classes, ``batches.meta``.
    split, dtype, download, return_X_y

    Returns
    -------
    cifar : :class:`~sklearn.utils.Bunch`
        With these entries:

        data : ndarray of shape (n, 32, 32, 3)
            Colour images, channels last.
        target : ndarray of shape (n,)
            Labels from 0 to 9, int64.
        target_names : list of str or None
            Name of each label, if ``batches.meta`` is there.

    See Also
    --------
    load_cifar100 : One hundred classes in the same format.
    corrupt : Noise, blur, weather and compression for such images.

    Notes
    -----
    The files are pickles, which are programs. They are read by an interpreter that
    knows arrays, lists and strings only and refuses everything else.

    Examples
    --------
    >>> import os, pickle, tempfile
    >>> import numpy as np
    >>> from skfedcal.datasets import load_cifar10
    >>> batch = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [6, 9]}
    >>> with tempfile.TemporaryDirectory() as home:
    ...     with open(os.path.join(home, "test_batch"), "wb") as file:
    ...         pickle.dump(batch, file)
    ...     X, y = load_cifar10(home, split="test", return_X_y=True)
    >>> X.shape, y
    ((2, 32, 32, 3), array([6, 9]))
    """
    check_choice("split", split, SPLITS)
    fetch = partial(fetch_with_torchvision, "CIFAR10") if download else None
    names = [name for part in parts_of(split) for name in BATCHES[part]]
    paths = CIFAR10.require(data_home, [[name] for name in names], fetch)
    X, y = _read_batches(paths, "labels", 10)
    return deliver(
        scaled(X, dtype),
        y,
        return_X_y,
        target_names=_class_names(CIFAR10, data_home, "batches.meta", "label_names"),
    )


@loader_documented
def load_cifar100(
    data_home: Home,
    *,
    split: str = "train",
    labels: str = "fine",
    dtype: str = "uint8",
    download: bool = False,
    return_X_y: bool = False,
) -> Any:
    """Read CIFAR-100 from its pickled files.

    Parameters
    ----------
    data_home : str or path-like
        Folder ``cifar-100-python``, or one that contains it: ``train``, ``test`` and,
        for names of classes, ``meta``.
    split
    labels : {"fine", "coarse"}, default="fine"
        Whether `target` holds one of 100 classes, or one of their 20 groups.
    dtype, download, return_X_y

    Returns
    -------
    cifar : :class:`~sklearn.utils.Bunch`
        With these entries:

        data : ndarray of shape (n, 32, 32, 3)
            Colour images, channels last.
        target : ndarray of shape (n,)
            Labels from 0 on, int64.
        target_names : list of str or None
            Name of each label, if ``meta`` is there.

    See Also
    --------
    load_cifar10 : Ten classes in the same format.

    Notes
    -----
    The files are pickles, which are programs. They are read by an interpreter that
    knows arrays, lists and strings only and refuses everything else.

    Examples
    --------
    >>> import os, pickle, tempfile
    >>> import numpy as np
    >>> from skfedcal.datasets import load_cifar100
    >>> rows = {b"data": np.zeros((2, 3072), np.uint8)}
    >>> rows |= {b"fine_labels": [4, 99], b"coarse_labels": [0, 13]}
    >>> with tempfile.TemporaryDirectory() as home:
    ...     with open(os.path.join(home, "train"), "wb") as file:
    ...         pickle.dump(rows, file)
    ...     X, y = load_cifar100(home, labels="coarse", return_X_y=True)
    >>> X.shape, y
    ((2, 32, 32, 3), array([ 0, 13]))
    """
    check_choice("split", split, SPLITS)
    check_choice("labels", labels, tuple(N_CLASSES))
    fetch = partial(fetch_with_torchvision, "CIFAR100") if download else None
    paths = CIFAR100.require(data_home, [[part] for part in parts_of(split)], fetch)
    X, y = _read_batches(paths, f"{labels}_labels", N_CLASSES[labels])
    names = _class_names(CIFAR100, data_home, "meta", f"{labels}_label_names")
    return deliver(scaled(X, dtype), y, return_X_y, target_names=names)


def _read_batches(
    paths: Sequence[Path], key: str, n_classes: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Images and labels of some files."""
    pairs = [_read_batch(path, key, n_classes) for path in paths]
    pixels = np.concatenate([images for images, _ in pairs])
    # A row has all of red, then green, then blue.
    images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    labels = np.concatenate([labels for _, labels in pairs])
    return np.ascontiguousarray(images), labels


def _read_batch(
    path: Path, key: str, n_classes: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    batch = read_pickle(path)
    for name in ("data", key):
        if name not in batch:
            raise ValueError(
                f"{path}: expected an entry {name!r}, found {sorted(batch)}."
            )
    pixels, labels = batch["data"], batch[key]
    shape = getattr(pixels, "shape", None)
    if shape is None or pixels.dtype != np.uint8 or shape[1:] != (3072,):
        found = f"{getattr(pixels, 'dtype', type(pixels).__name__)} of shape {shape}"
        raise ValueError(f"{path}: expected bytes of shape (n, 3072), found {found}.")
    labels = check_labels(labels, n_classes, path)
    check_lengths(len(pixels), len(labels), path, path)
    return pixels, labels


def _class_names(layout: Layout, home: Home, file: str, key: str) -> list[str] | None:
    path = layout.find(home, [file])
    names = None if path is None else read_pickle(path).get(key)
    if not isinstance(names, list):
        return None
    return [n.decode("utf-8") if isinstance(n, bytes) else str(n) for n in names]
