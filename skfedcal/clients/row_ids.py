"""The client of each row: ids of any kind, as sorted names and codes.

Texts and plain objects are numbered by a hash table of the compiled core; without it,
texts by a hash that numpy computes for all rows at once, and objects by a dictionary.
Sorting a million texts takes several times as long.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from operator import lt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal import _compiled
from skfedcal.clients.arrays import distinct, read_array

__all__ = ["RowIds", "is_missing", "stable_order"]

# In numpy, longer texts are left to the dictionary: an array of texts is as wide as the
# longest.
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
            return cls._of_pandas(getattr(client_ids, "array", client_ids))
        if type(client_ids) in (list, tuple):
            ids = _listed(client_ids)
        else:
            ids = read_array(client_ids, "client_ids")
        if ids.ndim != 1 and ids.shape[1:] != (1,):
            raise ValueError(f"client_ids has shape {ids.shape}; pass one id per row.")
        ids = ids.reshape(-1)
        if ids.dtype.kind == "T":
            ids = ids.astype(object)
        if ids.dtype.kind in "OUS" and not len(ids):
            return cls([], np.zeros(0, dtype=np.intp))
        if ids.dtype.kind in "OUS":
            return cls._of_buffer(ids) or cls._of_texts(ids) or cls._of_objects(ids)
        # NaN and NaT differ from themselves.
        if ids.dtype.kind in "fcmM" and (ids != ids).any():
            raise _missing()
        if ids.dtype.kind in "iu":
            return cls._of_integers(ids)
        names, codes = distinct(ids, "client_ids", return_inverse=True)
        return cls(names.tolist(), codes)

    @classmethod
    def _of_pandas(cls, values: Any) -> "RowIds":
        """Number ids of a type that only pandas has."""
        if hasattr(values, "categories"):
            return cls._of_categories(values)
        texts = _arrow_texts(values)
        numbered = None if texts is None else _compiled.number_texts(*texts)
        if texts is not None and numbered is not None:
            codes, first = numbered
            order = _compiled.text_order(*texts, 1, first)
            if order is not None:
                return cls(values.take(first[order]).tolist(), _ranks(order)[codes])
        codes, found = values.factorize()
        names = found.astype(object)
        # A column of nullable floats may hold NaN beside missing values.
        kind = getattr(values.dtype, "kind", "O")
        if (codes < 0).any() or (kind in "fcO" and any(map(is_missing, names))):
            raise _missing()
        return cls._sorted(names, codes)

    @classmethod
    def _of_categories(cls, values: Any) -> "RowIds":
        """Number rows by the codes of their categories; unused ones are left out."""
        codes = values.codes
        if codes.min(initial=0) < 0:
            raise _missing()
        used = np.zeros(len(values.categories), dtype=bool)
        used[codes] = True
        names = values.categories
        if not used.all():
            names, codes = names[used], (np.cumsum(used) - 1)[codes]
        return cls._sorted(names.to_numpy(dtype=object), codes)

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
            return cls._of_buffer(ids) or cls(*_unique(ids))
        # Small signed types would overflow, large unsigned ones do not fit.
        shifted = ids.astype(np.intp) - low if low < 0 else ids - ids.dtype.type(low)
        used = np.zeros(high - low + 1, dtype=bool)
        used[shifted] = True
        names = np.flatnonzero(used)
        rank = np.cumsum(used) - 1
        if high <= np.iinfo(np.intp).max:
            return cls((names + low).tolist(), rank[shifted])
        return cls([low + int(name) for name in names], rank[shifted])

    @classmethod
    def _of_buffer(cls, ids: NDArray[Any]) -> "RowIds | None":
        """Number ids in the compiled core; None if it cannot."""
        if ids.dtype.kind == "O":
            numbered = _compiled.number_objects(ids)
            if numbered is None:
                return None
            names = ids[numbered[1]]
            if float in set(map(type, names)) and any(map(is_missing, names)):
                raise _missing()
            return cls._sorted(names, numbered[0])
        if not ids.dtype.itemsize:
            return None
        ids = np.ascontiguousarray(ids.astype(ids.dtype.newbyteorder("="), copy=False))
        texts = ids.view(np.uint8), ids.dtype.itemsize
        numbered = _compiled.number_texts(*texts)
        if numbered is None:
            return cls(*_unique(ids)) if _compiled.core is not None else None
        codes, first = numbered
        order = None
        if ids.dtype.kind in "US":
            unit = 4 if ids.dtype.kind == "U" else 1
            order = _compiled.text_order(*texts, unit, first)
        if order is None:
            order = np.argsort(ids[first], kind="stable")
        return cls(ids[first[order]].tolist(), _ranks(order)[codes])

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
        return cls._sorted(names, codes) if (names[codes] == ids).all() else None

    @classmethod
    def _of_objects(cls, values: NDArray[Any]) -> "RowIds":
        ids = values.tolist()
        try:
            found: dict[Any, int] = dict.fromkeys(ids, 0)
        except TypeError as error:
            if any(name is np.ma.masked for name in ids):
                raise _missing() from None
            raise TypeError(
                f"client_ids holds a value that cannot be an id: {error}."
            ) from error
        for number, name in enumerate(found):
            if is_missing(name):
                raise _missing()
            found[name] = number
        codes = np.fromiter(map(found.__getitem__, ids), np.intp, len(ids))
        return cls._sorted(_objects(list(found)), codes)

    @classmethod
    def _sorted(cls, names: NDArray[Any], codes: NDArray[Any]) -> "RowIds":
        """Number clients in the order of their names, not of their first rows."""
        listed = names.tolist()
        try:
            if all(map(lt, listed, listed[1:])):
                return cls(listed, codes)
            order: Any = _order_of_texts(listed)
            if order is None:
                order = sorted(range(len(names)), key=listed.__getitem__)
        except TypeError as error:
            mixed = sorted({type(name).__name__ for name in listed})
            raise TypeError(
                f"client_ids mixes {mixed}, which cannot be sorted; pass all as "
                "strings."
            ) from error
        return cls(names[order].tolist(), _ranks(order)[codes])

    def grouped(self) -> tuple[list[Any], NDArray[Any], NDArray[Any] | None]:
        """Names, sizes and packed order of clients; order None if rows are packed."""
        sizes = np.bincount(self.codes, minlength=len(self.names))
        if (self.codes[1:] >= self.codes[:-1]).all():
            return self.names, sizes, None
        order = _compiled.group_rows(self.codes, sizes)
        if order is None:
            order = stable_order(self.codes)
        return self.names, sizes, order


def _unique(ids: NDArray[Any]) -> tuple[list[Any], NDArray[Any]]:
    names, codes = np.unique(ids, return_inverse=True)
    return names.tolist(), codes


def _ranks(order: Any) -> NDArray[Any]:
    """Place of each entry in `order`, its inverse."""
    rank = np.empty(len(order), dtype=np.intp)
    rank[order] = np.arange(len(order))
    return rank


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    """Objects as they are: numpy would make an array of tuples, or copy texts."""
    return np.fromiter(values, dtype=object, count=len(values))


def _listed(values: Sequence[Any]) -> NDArray[Any]:
    """Ids of a list: numbers of one kind as numpy has them, others as objects.

    numpy would make texts of what stands beside a text, also of NaN, drop zeros at the
    end of a text, and round large integers beside a float or a larger one.
    """
    if values and type(values[0]) is str:
        return _objects(values)
    kinds = set(map(type, values))
    if np.ma.core.MaskedConstant in kinds:
        raise _missing()
    changed = len(kinds) > 1 or not kinds.isdisjoint(_AS_OBJECTS)
    # Lists and arrays of one id each are rows of a column.
    if changed and not any(map(_is_array, kinds)):
        return _objects(values)
    ids = read_array(values, "client_ids")
    if kinds == {int} and ids.dtype.kind not in "iu":
        return _objects(values)
    return ids


# Types of ids that numpy would change; texts are seen before.
_AS_OBJECTS = (bytes, tuple, type(None))


def _is_array(kind: type) -> bool:
    return issubclass(kind, list) or (
        hasattr(kind, "__array__") and not issubclass(kind, np.generic)
    )


def _order_of_texts(names: list[Any]) -> NDArray[Any] | None:
    """Order of distinct texts; None where they must be compared one by one."""
    if _compiled.core is None or set(map(type, names)) != {str}:
        return None
    joined = "".join(names)
    if not joined.isascii():
        return None
    layout = np.zeros(len(names) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, names), np.int64, len(names)), out=layout[1:])
    return _compiled.text_order(joined.encode(), layout, 1, np.arange(len(names)))


def _arrow_texts(values: Any) -> tuple[Any, NDArray[Any]] | None:
    """Bytes and offsets of texts that pandas holds in Arrow; None of others."""
    # Only the core reads them, and pandas has Arrow strings only if pyarrow is loaded.
    if _compiled.core is None or "pyarrow" not in sys.modules or not len(values):
        return None
    if getattr(values.dtype, "storage", None) != "pyarrow":
        return None
    array = values.__arrow_array__()
    if hasattr(array, "combine_chunks"):
        array = array.combine_chunks()
    kind = {"string": np.int32, "large_string": np.int64}.get(str(array.type))
    if kind is None or array.null_count:
        return None
    _, offsets, texts = array.buffers()
    at = np.frombuffer(offsets, dtype=kind)[array.offset :][: len(array) + 1]
    return np.frombuffer(b"" if texts is None else texts, np.uint8), at


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
