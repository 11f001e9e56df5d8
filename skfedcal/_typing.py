"""Types of public signatures, named as the documentation names them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Array",
    "ArrayLike",
    "CVSplits",
    "Estimator",
    "FloatArray",
    "IntArray",
    "PathLike",
    "RandomState",
    "Rows",
    "Splitter",
]

Array: TypeAlias = NDArray[np.generic]
FloatArray: TypeAlias = NDArray[np.floating]
IntArray: TypeAlias = NDArray[np.int64]
PathLike: TypeAlias = "str | os.PathLike[str]"
RandomState: TypeAlias = "int | np.random.RandomState | np.random.Generator | None"


class _HasShape(Protocol):
    """A sparse matrix or a data frame."""

    @property
    def shape(self) -> tuple[int, ...]: ...


#: Array-like, data frame or sparse matrix with one row per sample.
Rows: TypeAlias = "ArrayLike | _HasShape"


class Estimator(Protocol):
    """What `fit` needs of an estimator; scikit-learn has no type for it."""

    @property
    def fit(self) -> Callable[..., object]: ...

    @property
    def get_params(self) -> Callable[..., dict[str, object]]: ...


class Splitter(Protocol):
    """A cross-validation splitter of scikit-learn."""

    @property
    def split(self) -> Callable[..., Iterable[tuple[Array, Array]]]: ...

    @property
    def get_n_splits(self) -> Callable[..., int]: ...


CVSplits: TypeAlias = "int | Splitter | Sequence[tuple[ArrayLike, ArrayLike]]"
