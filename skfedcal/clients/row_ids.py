"""The client of each row: ids of any kind, as sorted names and codes.

Texts are numbered by a hash that numpy computes for all rows at once, other objects by
a dictionary; sorting a million texts takes several times as long.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal.clients.arrays import distinct, read_array

__all__ = ["RowIds", "is_missing", "stable_order"]

# Longer texts are left to the dictionary: an array of texts is as wide as the longest.
_LONGEST = 64


@dataclass(frozen=True)
class RowIds:
    """Names of clients, sorted, and the number of the client of each row."""

    names: list[Any]
    codes: NDArray[Any]

    def __len__(self) -> int:
        return len(self.codes)

    @classmethod
    def read(cls, client_ids: Any) -> "RowIds":
        """Number ids of any kind; raises an error for missing ones."""
        if _has_pandas_type(client_ids):
            values = getattr(client_ids, "array", client_ids)  # of a Series
            codes, found = values.factorize()
            if (codes < 0).any():
                raise _missing()
            return cls._sorted(found.astype(object).tolist(), codes)
        ids = read_array(client_ids, "client_ids")
        if ids.ndim != 1 and ids.shape[1:] != (1,):
            raise ValueError(f"client_ids has shape {ids.shape}; pass one id per row.")
        ids = ids.reshape(-1)
        if ids.dtype.kind in "OUST":
            return cls._of_texts(ids) or cls._of_objects(ids.tolist())
        if ids.dtype.kind == "f" and np.isnan(ids).any():
            raise _missing()
        if ids.dtype.kind in "iu":
            return cls._of_integers(ids)
        names, codes = distinct(ids, "client_ids", return_inverse=True)
        return cls(names.tolist(), codes)

    @classmethod
    def _of_integers(cls, ids: NDArray[Any]) -> "RowIds":
        """Integers need no sort where rows lie in order or the ids are dense."""
        if not len(ids):
            return cls([], ids)
        if (ids[1:] >= ids[:-1]).all():
            new = np.r_[True, ids[1:] != ids[:-1]]
            return cls(ids[new].tolist(), np.cumsum(new) - 1)
        low, high = int(ids.min()), int(ids.max())
        if high - low > 8 * len(ids) + 2**16:
            names, codes = np.unique(ids, return_inverse=True)
            return cls(names.tolist(), codes)
        # Small signed types would overflow, large unsigned ones do not fit.
        shifted = ids.astype(np.intp) - low if low < 0 else ids - ids.dtype.type(low)
        used = np.zeros(high - low + 1, dtype=bool)
        used[shifted] = True
        names = np.flatnonzero(used)
        rank = np.cumsum(used) - 1
        return cls([low + int(name) for name in names], rank[shifted])

    @classmethod
    def _of_texts(cls, ids: NDArray[Any]) -> "RowIds | None":
        """Number short texts by a hash; None if there are others or two hashes meet."""
        texts = ids
        all_texts = ids.dtype.kind == "O" and set(map(type, ids)) == {str}
        if all_texts and max(map(len, ids)) <= _LONGEST:
            texts = ids.astype(str)
        if texts.dtype.kind != "U" or not 0 < texts.dtype.itemsize <= 4 * _LONGEST:
            return None
        _, first, codes = np.unique(
            _hashes(texts), return_index=True, return_inverse=True
        )
        names = ids[first]
        return (
            cls._sorted(names.tolist(), codes) if (names[codes] == ids).all() else None
        )

    @classmethod
    def _of_objects(cls, ids: list[Any]) -> "RowIds":
        try:
            found: dict[Any, int] = dict.fromkeys(ids, 0)
        except TypeError as error:
            raise TypeError(
                f"client_ids holds a value that cannot be an id: {error}."
            ) from error
        for number, name in enumerate(found):
            if is_missing(name):
                raise _missing()
            found[name] = number
        codes = np.fromiter(map(found.__getitem__, ids), np.intp, len(ids))
        return cls._sorted(list(found), codes)

    @classmethod
    def _sorted(cls, names: Sequence[Any], codes: NDArray[Any]) -> "RowIds":
        """Number clients in the order of their names, not of their first rows."""
        try:
            order = sorted(range(len(names)), key=names.__getitem__)
        except TypeError as error:
            kinds = sorted({type(name).__name__ for name in names})
            raise TypeError(
                f"client_ids mixes {kinds}, which cannot be sorted; pass all as "
                "strings."
            ) from error
        rank = np.empty(len(names), dtype=np.intp)
        rank[order] = np.arange(len(names))
        return cls([names[i] for i in order], rank[codes])

    def grouped(self) -> tuple[list[Any], NDArray[Any], NDArray[Any] | None]:
        """Names, sizes and packed order of clients; order None if rows are packed."""
        sizes = np.bincount(self.codes, minlength=len(self.names))
        if (self.codes[1:] >= self.codes[:-1]).all():
            return self.names, sizes, None
        return self.names, sizes, stable_order(self.codes)


def _hashes(texts: NDArray[Any]) -> NDArray[Any]:
    """64 bits of each text; equal texts have equal bits."""
    letters = np.ascontiguousarray(texts).view(np.uint32).reshape(len(texts), -1)
    bits = np.zeros(len(texts), dtype=np.uint64)
    for letter in letters.T:
        bits = (bits ^ letter) * np.uint64(0x9E3779B97F4A7C15)
        bits ^= bits >> np.uint64(29)
    return bits


def stable_order(codes: NDArray[Any]) -> NDArray[Any]:
    """`numpy.argsort` of codes from 0 on that keeps the order of equal ones.

    numpy sorts 16 bits by counting, several times as fast as more bits: longer codes
    are sorted by their lower, then by their higher 16 bits.
    """
    order = np.argsort(codes.astype(np.uint16), kind="stable")
    higher = codes >> 16
    while higher.any():
        order = order[np.argsort(higher[order].astype(np.uint16), kind="stable")]
        higher = higher >> 16
    return order


def is_missing(value: Any) -> bool:
    """Whether an id is None, NaN or missing in the sense of pandas."""
    # pandas.NA is neither equal nor unequal to anything.
    other = value != value
    return value is None or not isinstance(other, (bool, np.bool_)) or bool(other)


def _has_pandas_type(ids: Any) -> bool:
    """Whether it holds categories, Arrow texts or nullable numbers, as pandas has."""
    dtype = getattr(ids, "dtype", None)
    return hasattr(ids, "factorize") and not isinstance(dtype, np.dtype)


def _missing() -> ValueError:
    return ValueError("client_ids contains None or NaN; every row needs a client.")
