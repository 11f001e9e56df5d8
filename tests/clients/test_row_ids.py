"""Ids of any kind are numbered as `numpy.unique` and `pandas.factorize` do."""

import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skfedcal import _compiled
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
    "tuple of texts": lambda ids: tuple(ids.astype(str)),
    "array of texts that end in zeros": lambda ids: np.array(
        [f"{i % 5}" + "\0" * (i % 3) + "x" * (i % 2) for i in ids]
    ),
    "bytes with zeros": lambda ids: np.array(
        [b"%d" % (i % 5) + b"\0" * (i % 3) + b"\xff" * (i % 2) for i in ids]
    ),
    "empty texts": lambda ids: np.array(["", "a"])[ids % 2],
    "only empty texts": lambda ids: np.full(7, ""),
    "letters above 255": lambda ids: np.array([chr(300 + i) + "é" for i in ids]),
    "letters above 65535": lambda ids: np.array([f"{i}\U0001f600" for i in ids]),
    "letters of all widths": lambda ids: np.array(
        ["az\xff\u0100\uffff\U00010000"[i % 6] * 2 + f"{i}" for i in ids]
    ),
    "other byte order": lambda ids: ids.astype(str).astype(">U9"),
    "every other": lambda ids: np.repeat(ids.astype(str), 2)[::2],
    "backwards": lambda ids: ids.astype(str)[::-1],
    "objects backwards": lambda ids: ids.astype(str).astype(object)[::-1],
    "one client each": lambda ids: np.arange(700)[::-1].astype(str),
    "one client": lambda ids: np.full(700, "a"),
    "packed texts": lambda ids: np.sort(ids.astype(str)),
    "long common start": lambda ids: np.array([("x" * 3000) + f"{i}" for i in ids]),
    "far apart, other byte order": lambda ids: (ids * 10**15).astype(">i8"),
    "far apart, unsigned": lambda ids: ids.astype(np.uint64) * np.uint64(10**15 + 7),
    "objects of other letters": lambda ids: np.array(
        [f"é{i}" for i in ids], dtype=object
    ),
    "floats as objects": lambda ids: (ids / 4).astype(object),
    "tuples": lambda ids: row_ids._objects([(i % 3, i) for i in ids.tolist()]),
    "numpy's own texts": lambda ids: row_ids._objects(list(ids.astype(str))),
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
    "slice": lambda ids: pd.Series(ids.astype(str), dtype="string")[40:90],
    "backwards": lambda ids: pd.Series(ids.astype(str))[::-1],
    "pieces": lambda ids: pd.concat(
        [pd.Series(ids[:70].astype(str)), pd.Series(ids[70:].astype(str))]
    ),
    "other letters": lambda ids: pd.Series([f"é{i}\U0001f600" for i in ids]),
    "zeros at the end": lambda ids: pd.Series(
        [f"{i % 5}" + "\0" * (i % 3) for i in ids], dtype="string"
    ),
    "empty texts": lambda ids: pd.Series(["", "a"] * 9, dtype="string"),
    "only empty texts": lambda ids: pd.Series([""] * 9, dtype="string"),
    "packed texts": lambda ids: pd.Series(np.sort(ids.astype(str))),
    "ordered categories": lambda ids: pd.Categorical(
        ids.astype(str), categories=np.unique(ids.astype(str))[::-1], ordered=True
    ),
    "many categories": lambda ids: pd.Categorical(np.arange(40_000)[::-1]),
    "categories of numbers": lambda ids: pd.Series(ids).astype("category"),
    "categories of intervals": lambda ids: pd.cut(ids, 5),
    "category index": lambda ids: pd.CategoricalIndex(ids.astype(str)),
}


@pytest.fixture(params=["numpy", "core"], autouse=True)
def form(request, monkeypatch):
    """Run every test with the core switched off and, where there is one, on."""
    if request.param == "numpy":
        monkeypatch.setattr(_compiled, "core", None)
    elif _compiled.core is None:
        pytest.skip("no compiled core")
    return request.param


def names_and_codes(ids):
    """Names as `sorted` has them and their numbers, by a dictionary."""
    names = sorted(dict.fromkeys(ids))
    number = {name: i for i, name in enumerate(names)}
    return names, [number[name] for name in ids]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_numbered_as_numpy_unique_does(kind):
    ids = KINDS[kind](DRAWN)
    array = np.ravel(ids)
    if array.dtype == object:
        names, codes = names_and_codes(array.tolist())
    else:
        found, codes = np.unique(array, return_inverse=True)
        names = found.tolist()
    read = RowIds.read(ids)
    assert read.names == names
    assert list(map(type, read.names)) == list(map(type, names))
    np.testing.assert_array_equal(read.codes, codes)


@pytest.mark.parametrize("kind", PANDAS)
def test_pandas_ids_are_numbered_as_their_values(kind):
    read = RowIds.read(PANDAS[kind](DRAWN))
    plain = RowIds.read(np.asarray(PANDAS[kind](DRAWN)))
    assert read.names == plain.names
    np.testing.assert_array_equal(read.codes, plain.codes)


PLAIN = st.one_of(
    st.text(alphabet="ab\0\xe9\u0100\U0001f600\ud800", max_size=20),
    st.text(max_size=20),
)


@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(PLAIN, min_size=1, max_size=80))
def test_any_texts_are_numbered_as_a_dictionary_does(ids):
    names, codes = names_and_codes(ids)
    read = RowIds.read(row_ids._objects(ids))
    assert read.names == names
    assert read.codes.tolist() == codes
    read = RowIds.read(ids)
    assert read.names == names
    assert read.codes.tolist() == codes
    array = np.array(ids)  # without zeros at the end
    names, codes = names_and_codes(array.tolist())
    read = RowIds.read(array)
    assert read.names == names
    assert read.codes.tolist() == codes


def test_objects_are_the_same_id_where_a_dictionary_says_so():
    ids = row_ids._objects([True, 1, 1.0, 0.0, -0.0, False, 2**70, float(2**70), 2])
    names, codes = names_and_codes(ids.tolist())
    read = RowIds.read(ids)
    assert read.names == names == [0.0, True, 2, 2**70]
    assert list(map(type, read.names)) == [float, bool, int, int]
    assert read.codes.tolist() == codes


def test_ids_of_a_class_of_the_user_are_compared_by_its_own_code():
    class Caseless(str):
        def __eq__(self, other):
            return self.lower() == other.lower()

        def __hash__(self):
            return hash(self.lower())

    read = RowIds.read(row_ids._objects([Caseless(name) for name in "aAbBa"]))
    assert [str(name) for name in read.names] == ["a", "b"]
    assert read.codes.tolist() == [0, 0, 1, 1, 0]


def test_texts_and_bytes_are_not_compared():
    # Their hashes are equal, and comparing them may be made an error (python -bb).
    with pytest.raises(TypeError, match=r"mixes \['bytes', 'str'\], which cannot be"):
        RowIds.read(row_ids._objects(["a", b"a"]))


def colliding(n):
    """Texts of 16 bytes that have the same hash, from its definition."""
    mask = 2**64 - 1
    texts = []
    for i in range(n):
        word = 0x0101010101010101 + i
        bits = ((16 << 23) ^ word) * 0x9E3779B97F4A7C15 & mask
        turned = (bits << 23 | bits >> 41) & mask
        texts.append(word.to_bytes(8, "little") + turned.to_bytes(8, "little"))
    return np.array(texts, dtype="S16")


def test_texts_chosen_for_their_hash_end_the_search(form):
    texts = colliding(20_000)
    if form == "core" and sys.byteorder == "little":
        assert _compiled.number_texts(texts.view(np.uint8), 16) is None
    names, codes = np.unique(texts, return_inverse=True)
    read = RowIds.read(texts)
    assert read.names == names.tolist()
    np.testing.assert_array_equal(read.codes, codes)


def test_numbers_chosen_for_their_hash_are_numbered():
    ids = row_ids._objects([i * (2**61 - 1) for i in range(1, 3000)])
    read = RowIds.read(ids)
    assert read.names == ids.tolist()
    assert read.codes.tolist() == list(range(2999))


def test_texts_that_differ_late_are_sorted():
    # Each differs from the next 8 letters later than the one before it.
    stairs = ["a" * 8 * i + "b" + "a" * (8 * (300 - i)) for i in range(300)]
    read = RowIds.read(np.array(stairs))
    assert read.names == sorted(stairs)
    assert read.codes.tolist() == [sorted(stairs).index(text) for text in stairs]


def test_no_ids_are_no_clients():
    for ids in ([], np.array([], dtype="U3"), np.array([], dtype=object)):
        assert len(RowIds.read(ids)) == 0
    assert len(RowIds.read(pd.Series([], dtype="string"))) == 0
    assert RowIds.read(pd.Categorical([], categories=["a"])).names == []


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
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
    monkeypatch.setattr(_compiled, "core", None)
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
        np.array([1.0, float("nan")], dtype=object),
        np.array([pd.NaT, pd.Timestamp(0)], dtype=object),
        ["a", None],
        ["a", "b", float("nan")],
        ("a", np.nan),
        ["a", pd.NA],
        [1, 2, None],
        ["a", np.ma.masked],
        [1, np.ma.masked],
        np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"),
        np.array([1, "NaT"], dtype="timedelta64[D]"),
        np.array([1, complex("nan")]),
        [1, complex("nan")],
        pd.Series(["2020-01-01", None], dtype="datetime64[ns]"),
        pd.array([1.0, 0.0], dtype="Float64") / pd.array([1.0, 0.0], dtype="Float64"),
        pd.Categorical(["a", None]),
        pd.Series(["a", None]),
    ],
)
def test_a_missing_id_is_refused(ids):
    with pytest.raises(ValueError, match="contains None or NaN; every row needs"):
        RowIds.read(ids)


@pytest.mark.parametrize(
    "ids",
    [
        [5, 2**63, 2**63 + 1, 2**63 + 2],
        [2**64 - 1, 2**64 - 2, -1],
        [1.5, 2**53 + 1, 2**53],
        ["a", "a\0", "a"],
        [b"a", b"a\0"],
        [("a", 1), ("a", 2), ("a", 1)],
        [2**70, 1, 2**70 + 1],
    ],
)
def test_ids_of_a_list_are_not_rounded_or_cut(ids):
    names, codes = names_and_codes(ids)
    read = RowIds.read(ids)
    assert read.names == names
    assert read.codes.tolist() == codes


@pytest.mark.parametrize("ids", [[[1], [0], [1]], [np.array(1), np.array(0), 1]])
def test_arrays_of_one_id_each_are_read(ids):
    read = RowIds.read(ids)
    assert read.names == [0, 1]
    assert read.codes.tolist() == [1, 0, 1]


def test_ids_that_cannot_be_sorted_or_compared_are_refused():
    for mixed in (np.array([1, "a"], dtype=object), [1, "a"], ["1", 1]):
        with pytest.raises(TypeError, match=r"mixes \['int', 'str'\], which cannot be"):
            RowIds.read(mixed)
    lists = np.empty(2, dtype=object)
    lists[:] = [[1], [2]]
    with pytest.raises(TypeError, match="holds a value that cannot be an id"):
        RowIds.read(lists)
    with pytest.raises(ValueError, match="shape"):
        RowIds.read(np.zeros((3, 2)))


@pytest.mark.parametrize("dtype", ["str", "Int64", "boolean", "category"])
def test_types_of_pandas_need_no_pyarrow(monkeypatch, dtype):
    values = pd.Series([1, 0, 1]).astype("Int64").astype(dtype)
    expected = RowIds.read(values)
    if hasattr(values.array, "__arrow_array__"):

        def absent(self, type=None):
            raise ImportError("pyarrow")

        monkeypatch.setattr(type(values.array), "__arrow_array__", absent)
    monkeypatch.delitem(sys.modules, "pyarrow", raising=False)
    found = RowIds.read(values)
    assert found.names == expected.names
    np.testing.assert_array_equal(found.codes, expected.codes)
