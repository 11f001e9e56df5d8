"""Ids of any kind are numbered as `numpy.unique` and `pandas.factorize` do."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skfedcal.clients import row_ids
from skfedcal.clients.row_ids import RowIds, stable_order

DRAWN = np.random.default_rng(0).integers(-40, 60, size=700)

KINDS = {
    "int8": lambda ids: ids.astype(np.int8),
    "int64": lambda ids: ids,
    "far apart": lambda ids: ids * 10**15,
    "uint64 near the top": lambda ids: ids.astype(np.uint64) + np.uint64(0),
    "packed": np.sort,
    "float": lambda ids: ids + 0.5,
    "bool": lambda ids: ids > 0,
    "text": lambda ids: ids.astype(str),
    "bytes": lambda ids: ids.astype("S"),
    "objects": lambda ids: ids.astype(str).astype(object),
    "integers as objects": lambda ids: ids.astype(object),
    "dates": lambda ids: ids.astype("M8[D]"),
    "column": lambda ids: ids[:, None],
    "long texts": lambda ids: np.char.add("x" * 70, ids.astype(str)),
    "objects, some long": lambda ids: np.array(
        [f"{i}" * (1 + 30 * (i == 7)) for i in ids], dtype=object
    ),
    "objects that end in zeros": lambda ids: np.array(
        [f"{i % 5}" + "\0" * (i % 3) for i in ids], dtype=object
    ),
    "list of texts": lambda ids: ids.astype(str).tolist(),
}

PANDAS = {
    "series": lambda ids: pd.Series(ids.astype(str)),
    "string": lambda ids: pd.Series(ids.astype(str), dtype="string"),
    "categories": lambda ids: pd.Series(ids.astype(str)).astype("category"),
    "unused categories": lambda ids: pd.Categorical(
        ids.astype(str), categories=[*np.unique(ids.astype(str))[::-1], "nobody"]
    ),
    "nullable": lambda ids: pd.Series(ids, dtype="Int64"),
    "index": lambda ids: pd.Index(ids.astype(str)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_numbered_as_numpy_unique_does(kind):
    ids = KINDS[kind](DRAWN)
    names, codes = np.unique(np.ravel(ids), return_inverse=True)
    read = RowIds.read(ids)
    assert read.names == names.tolist()
    np.testing.assert_array_equal(read.codes, codes)


@pytest.mark.parametrize("kind", PANDAS)
def test_pandas_ids_are_numbered_as_their_values(kind):
    read = RowIds.read(PANDAS[kind](DRAWN))
    plain = RowIds.read(np.asarray(PANDAS[kind](DRAWN)))
    assert read.names == plain.names
    np.testing.assert_array_equal(read.codes, plain.codes)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=60))
def test_stable_order_is_that_of_numpy(values):
    codes = np.array(values)
    expected = np.argsort(codes, kind="stable")
    np.testing.assert_array_equal(stable_order(codes), expected)


def test_grouped_rows_keep_their_order_within_a_client():
    names, sizes, order = RowIds.read(DRAWN.astype(str)).grouped()
    assert sizes.sum() == len(DRAWN)
    at = 0
    for name, size in zip(names, sizes, strict=True):
        rows = order[at : at + size]
        np.testing.assert_array_equal(rows, np.flatnonzero(DRAWN.astype(str) == name))
        at += size


def test_texts_whose_hashes_meet_stay_apart(monkeypatch):
    monkeypatch.setattr(row_ids, "_hashes", lambda texts: np.zeros(len(texts)))
    ids = DRAWN.astype(str)
    names, codes = np.unique(ids, return_inverse=True)
    read = RowIds.read(ids)
    assert read.names == names.tolist()
    np.testing.assert_array_equal(read.codes, codes)


def test_packed_rows_need_no_order():
    assert RowIds.read(np.sort(DRAWN)).grouped()[2] is None
    assert RowIds.read(["a", "a", "b"]).grouped()[2] is None


@pytest.mark.parametrize(
    "ids",
    [
        [0.0, np.nan],
        np.array(["a", None], dtype=object),
        np.array(["a", float("nan")], dtype=object),
        pd.Series(["a", None], dtype="string"),
        pd.Series(["a", None], dtype="category"),
        pd.Series([1, None], dtype="Int64"),
        np.array(["a", pd.NA], dtype=object),
    ],
)
def test_a_missing_id_is_refused(ids):
    with pytest.raises(ValueError, match="contains None or NaN; every row needs"):
        RowIds.read(ids)


def test_ids_that_cannot_be_sorted_or_compared_are_refused():
    with pytest.raises(TypeError, match=r"mixes \['int', 'str'\], which cannot be"):
        RowIds.read(np.array([1, "a"], dtype=object))
    lists = np.empty(2, dtype=object)
    lists[:] = [[1], [2]]
    with pytest.raises(TypeError, match="holds a value that cannot be an id"):
        RowIds.read(lists)
    with pytest.raises(ValueError, match="shape"):
        RowIds.read(np.zeros((3, 2)))
