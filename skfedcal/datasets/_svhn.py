"""Street View House Numbers from MATLAB files."""

from __future__ import annotations

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
from skfedcal.datasets.formats._matlab import read_matlab

__all__ = ["load_svhn"]

SPLITS = ("train", "test", "extra", "all")
SVHN = Layout(
    "SVHN",
    ("SVHN", "svhn", ""),
    "Pass the folder that holds the cropped digits (format 2), or download=True.",
)


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
    dtype : {"uint8", "float32"}, default="uint8"
        Pixels from 0 to 255 as in the file, or divided by 255.
    download : bool, default=False
        Fetch files that are missing, through torchvision; needs the extra ``vision``.
    return_X_y : bool, default=False
        Return ``(data, target)`` in place of a Bunch.

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
