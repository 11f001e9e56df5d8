"""CIFAR-10 and CIFAR-100 from their pickled batches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal.datasets.formats._download import fetch_with_torchvision
from skfedcal.datasets.formats._layout import (
    Home,
    Layout,
    check_choice,
    check_labels,
    check_lengths,
    deliver,
    parts_of,
    scaled,
)
from skfedcal.datasets.formats._pickle import read_pickle

__all__ = ["load_cifar10", "load_cifar100"]

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
    split : {"train", "test", "all"}, default="train"
        Rows to return; "all" is "train" and then "test".
    dtype : {"uint8", "float32"}, default="uint8"
        Pixels from 0 to 255 as in the file, or divided by 255.
    download : bool, default=False
        Fetch files that are missing, through torchvision; needs the extra ``vision``.
    return_X_y : bool, default=False
        Return ``(data, target)`` in place of a Bunch.

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
    split : {"train", "test", "all"}, default="train"
        Rows to return; "all" is "train" and then "test".
    labels : {"fine", "coarse"}, default="fine"
        Whether `target` holds one of 100 classes, or one of their 20 groups.
    dtype : {"uint8", "float32"}, default="uint8"
        Pixels from 0 to 255 as in the file, or divided by 255.
    download : bool, default=False
        Fetch files that are missing, through torchvision; needs the extra ``vision``.
    return_X_y : bool, default=False
        Return ``(data, target)`` in place of a Bunch.

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
