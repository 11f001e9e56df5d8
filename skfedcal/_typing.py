"""Types of public signatures, named as the documentation names them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from skfedcal.federation.remote import RemoteClients

__all__ = [
    "Array",
    "ArrayLike",
    "CVSplits",
    "ClientRows",
    "Estimator",
    "FloatArray",
    "InputType",
    "IntArray",
    "PathLike",
    "PerRow",
    "RandomState",
    "Rows",
    "Seed",
    "Splitter",
]

Array: TypeAlias = NDArray[np.generic]
FloatArray: TypeAlias = NDArray[np.floating]
IntArray: TypeAlias = NDArray[np.int64]
PathLike: TypeAlias = "str | os.PathLike[str]"
RandomState: TypeAlias = "int | np.random.RandomState | np.random.Generator | None"
#: What `sklearn.utils.check_random_state` takes: no `Generator`.
Seed: TypeAlias = "int | np.random.RandomState | None"
#: What the columns of scores hold.
InputType: TypeAlias = Literal["logits", "log_proba", "proba"]


class _HasShape(Protocol):
    """A sparse matrix or a data frame."""

    @property
    def shape(self) -> tuple[int, ...]: ...


#: Array-like, data frame or sparse matrix with one row per sample.
Rows: TypeAlias = "ArrayLike | _HasShape"

#: One entry per row of all clients together, or one array for each client.
PerRow: TypeAlias = "ArrayLike | Sequence[ArrayLike]"

#: Rows in any form that `fit` reads: those of one client or of all, one array for each
#: client, pairs of rows and labels, the same by name, or sites that keep their rows.
ClientRows: TypeAlias = (
    "Rows | Sequence[Rows] | Sequence[tuple[Rows, ArrayLike]] "
    "| Mapping[str, tuple[Rows, ArrayLike]] | Mapping[int, tuple[Rows, ArrayLike]] "
    "| RemoteClients"
)


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
