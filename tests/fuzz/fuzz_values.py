"""Hostile values: what a pipeline may hand over when something upstream broke."""

import decimal
import fractions

import numpy as np
import pandas as pd
import scipy.sparse as sp

HUGE = 10**400


def _spoilt(value):
    def spoil(rows, rng):
        rows = np.array(rows, dtype=float)
        if rows.size:
            rows[np.unravel_index(rng.integers(rows.size), rows.shape)] = value
        return rows

    return spoil


def _all(value):
    return lambda rows, rng: np.full(np.shape(rows), value)


def _cast(dtype):
    return lambda rows, rng: np.asarray(rows).astype(dtype)


def _frozen(rows, rng):
    rows = np.array(rows)
    rows.setflags(write=False)
    return rows


def _strided(rows, rng):
    return np.repeat(rows, 2, axis=0)[::2]


def _tensor(rows, rng):
    import torch

    return torch.tensor(np.asarray(rows))


def _needs_grad(rows, rng):
    import torch

    return torch.tensor(np.asarray(rows, dtype=np.float32), requires_grad=True)


def _masked(rows, rng):
    return np.ma.masked_greater(np.asarray(rows, dtype=float), 0.5)


def _ragged(rows, rng):
    rows = np.asarray(rows).tolist()
    return [*rows[:-1], [1.0]] if rows else [[1.0], [1.0, 2.0]]


# The same values in another form: the answer must be the same.
HARMLESS_ROWS = {
    "fortran": lambda rows, rng: np.asfortranarray(rows),
    "big-endian": lambda rows, rng: np.asarray(rows).astype(">f8"),
    "read-only": _frozen,
    "strided": _strided,
    "reversed": lambda rows, rng: np.ascontiguousarray(rows[::-1])[::-1],
    "frame": lambda rows, rng: pd.DataFrame(np.asarray(rows)),
    "list": lambda rows, rng: np.asarray(rows).tolist(),
    "tensor": _tensor,
    "object floats": lambda rows, rng: np.asarray(rows).astype(object),
    "nothing masked": lambda rows, rng: np.ma.masked_array(rows),
    "long double": lambda rows, rng: np.asarray(rows).astype(np.longdouble),
}

HOSTILE_ROWS = {
    "nan": _spoilt(np.nan),
    "inf": _spoilt(np.inf),
    "-inf": _spoilt(-np.inf),
    "1e308": _spoilt(1e308),
    "-1e308": _spoilt(-1e308),
    "denormal": _spoilt(5e-324),
    "1e139": _spoilt(1e139),
    "all 1e101": lambda rows, rng: np.asarray(rows) * 1e101,
    "all 1e308": _all(1e308),
    "all -1e308": _all(-1e308),
    "all denormal": _all(5e-324),
    "all 0": _all(0.0),
    "all nan": _all(np.nan),
    "all -inf": _all(-np.inf),
    "all -0": _all(-0.0),
    "scaled": lambda rows, rng: np.asarray(rows) * 10.0 ** rng.integers(-320, 300),
    "float16": _cast(np.float16),
    "float16 inf": lambda rows, rng: np.full(np.shape(rows), np.float16(np.inf)),
    "complex": _cast(complex),
    "strings": lambda rows, rng: np.asarray(rows).astype(str),
    "words": lambda rows, rng: np.full(np.shape(rows), "x"),
    "bytes": lambda rows, rng: np.full(np.shape(rows), b"x"),
    "objects": lambda rows, rng: np.full(np.shape(rows), object()),
    "nones": lambda rows, rng: np.full(np.shape(rows), None),
    "dicts": lambda rows, rng: np.full(np.shape(rows), {}),
    "huge ints": lambda rows, rng: np.full(np.shape(rows), HUGE, dtype=object),
    "decimals": lambda rows, rng: np.full(np.shape(rows), decimal.Decimal("NaN")),
    "int64": lambda rows, rng: np.full(np.shape(rows), np.iinfo(np.int64).min),
    "uint64": lambda rows, rng: np.full(np.shape(rows), np.iinfo(np.uint64).max),
    "int8": lambda rows, rng: np.clip(np.asarray(rows), -100, 100).astype(np.int8),
    "bools": lambda rows, rng: np.asarray(rows) > 0,
    "dates": lambda rows, rng: np.full(np.shape(rows), np.datetime64("2020-01-01")),
    "spans": lambda rows, rng: np.full(np.shape(rows), np.timedelta64(1, "s")),
    "records": lambda rows, rng: np.zeros(len(rows), dtype=[("a", "f8"), ("b", "i4")]),
    "ragged": _ragged,
    "csr": lambda rows, rng: sp.csr_matrix(rows),
    "coo array": lambda rows, rng: sp.coo_array(rows),
    "masked": _masked,
    "matrix": lambda rows, rng: np.matrix(rows),
    "no rows": lambda rows, rng: np.asarray(rows)[:0],
    "no columns": lambda rows, rng: np.asarray(rows)[:, :0],
    "one row": lambda rows, rng: np.asarray(rows)[:1],
    "one column": lambda rows, rng: np.asarray(rows)[:, :1],
    "more columns": lambda rows, rng: np.hstack([rows, rows]),
    "flat": lambda rows, rng: np.ravel(rows),
    "first column": lambda rows, rng: np.asarray(rows)[:, 0],
    "0-d": lambda rows, rng: np.array(1.0),
    "3-d": lambda rows, rng: np.asarray(rows)[:, :, None],
    "none": lambda rows, rng: None,
    "number": lambda rows, rng: 3.0,
    "text": lambda rows, rng: "logits",
    "raw bytes": lambda rows, rng: b"logits",
    "generator": lambda rows, rng: (row for row in rows),
    "set": lambda rows, rng: {1.0, 2.0},
    "mapping": lambda rows, rng: {"a": 1},
    "object": lambda rows, rng: object(),
    "empty list": lambda rows, rng: [],
    "lists of none": lambda rows, rng: [[None, 1.0]] * len(rows),
    "list of text": lambda rows, rng: ["a"] * len(rows),
    "list of huge": lambda rows, rng: [[HUGE, 1]] * len(rows),
    "deep list": lambda rows, rng: [[[[[[1.0]]]]]] * len(rows),
    "frame of text": lambda rows, rng: pd.DataFrame({"a": ["x"] * len(rows)}),
    "frame twice": lambda rows, rng: pd.DataFrame(
        np.asarray(rows), columns=["a"] * np.shape(rows)[1]
    ),
    "mixed names": lambda rows, rng: pd.DataFrame(
        np.asarray(rows), columns=[0, *"abcdefgh"][: np.shape(rows)[1]]
    ),
    "words of pandas": lambda rows, rng: pd.Series(["u", "v"]).astype("category"),
    "nullable": lambda rows, rng: pd.DataFrame(np.asarray(rows)).astype("Float64"),
    "missing": lambda rows, rng: pd.DataFrame({"a": [pd.NA, 1.0], "b": [1.0, 2.0]}),
    "needs grad": _needs_grad,
}

# Rows that hold no scores: an answer would be made up.
NO_ROWS = {
    "nan", "inf", "complex", "words", "bytes", "objects", "nones", "dicts", "decimals",
    "dates", "spans", "records", "ragged", "csr", "masked", "3-d", "none", "number",
    "text", "generator", "set", "mapping", "object", "all nan", "all -inf",
    "float16 inf", "huge ints", "coo array", "no columns", "0-d", "raw bytes",
    "empty list", "lists of none", "list of text", "list of huge", "deep list",
    "frame of text", "missing", "words of pandas",
}  # fmt: skip

# The same labels in another form.
HARMLESS_LABELS = {
    "list": lambda y, rng: y.tolist(),
    "int8": lambda y, rng: y.astype(np.int8),
    "big-endian": lambda y, rng: y.astype(">i4"),
    "unsigned": lambda y, rng: y.astype(np.uint64),
    "read-only": _frozen,
    "strided": _strided,
    "series": lambda y, rng: pd.Series(y),
    "whole floats": lambda y, rng: y.astype(float),
    "nullable": lambda y, rng: pd.Series(y).astype("Int64"),
    "tensor": _tensor,
}

HOSTILE_LABELS = {
    "nan": _spoilt(np.nan),
    "inf": _spoilt(np.inf),
    "half": _spoilt(0.5),
    "1e308": _spoilt(1e308),
    "negative": lambda y, rng: y - 1,
    "beyond": lambda y, rng: y + 5,
    "int64": lambda y, rng: np.full(len(y), np.iinfo(np.int64).max),
    "uint64": lambda y, rng: np.array([2**64 - 1, 0] * len(y), dtype=np.uint64)[
        : len(y)
    ],
    "huge ints": lambda y, rng: [HUGE] * len(y),
    "one class": lambda y, rng: np.zeros(len(y), dtype=int),
    "strings": lambda y, rng: y.astype(str),
    "objects": lambda y, rng: y.astype(object),
    "bytes": lambda y, rng: np.array([b"a", b"b"] * len(y))[: len(y)],
    "mixed": lambda y, rng: np.array([1, "a", None] * len(y), dtype=object)[: len(y)],
    "nones": lambda y, rng: np.full(len(y), None),
    "tuples": lambda y, rng: [(1, 2)] * len(y),
    "dicts": lambda y, rng: [{}] * len(y),
    "sets": lambda y, rng: [{1}] * len(y),
    "bools": lambda y, rng: y > 0,
    "complex": _cast(complex),
    "dates": lambda y, rng: np.full(len(y), np.datetime64("2020-01-01")),
    "missing": lambda y, rng: pd.Series([0, 1, pd.NA] * len(y))[: len(y)],
    "two columns": lambda y, rng: np.stack([y, y], axis=1),
    "column": lambda y, rng: y[:, None],
    "short": lambda y, rng: y[:-1],
    "long": lambda y, rng: np.append(y, y),
    "empty": lambda y, rng: y[:0],
    "empty list": lambda y, rng: [],
    "ragged": lambda y, rng: [[0], [0, 1]],
    "number": lambda y, rng: 1,
    "0-d": lambda y, rng: np.array(1),
    "text": lambda y, rng: "labels",
    "generator": lambda y, rng: (v for v in y),
    "mapping": lambda y, rng: {"a": 1},
    "object": lambda y, rng: object(),
    "sparse": lambda y, rng: sp.csr_matrix(y),
    "masked": lambda y, rng: np.ma.masked_equal(y, 0),
    "category": lambda y, rng: pd.Series(y).astype("category"),
    "float16": _cast(np.float16),
    "long double": _cast(np.longdouble),
}

# Labels that name no class of three columns, or not one for each row.
NO_LABELS = {
    "nan", "inf", "half", "1e308", "nones", "dicts", "sets", "complex", "missing",
    "two columns", "short", "long", "empty", "empty list", "ragged", "number", "0-d",
    "text", "generator", "mapping", "object", "sparse", "masked", "mixed",
}  # fmt: skip

HOSTILE_IDS = {
    **{
        name: HOSTILE_LABELS[name]
        for name in (
            "nan", "huge ints", "strings", "mixed", "nones", "tuples", "dicts", "sets",
            "bytes", "dates", "missing", "two columns", "column", "short", "long",
            "empty", "ragged", "number", "text", "generator", "object", "complex",
            "category", "masked", "bools", "sparse",
        )
    },
    "same name": lambda y, rng: ["a"] * len(y),
    "text and number": lambda y, rng: ([1, "1"] * len(y))[: len(y)],
}  # fmt: skip

HOSTILE_WEIGHTS = {
    "negative": lambda y, rng: np.full(len(y), -1.0),
    "zero": lambda y, rng: np.zeros(len(y)),
    "nan": lambda y, rng: np.full(len(y), np.nan),
    "inf": lambda y, rng: np.full(len(y), np.inf),
    "1e308": lambda y, rng: np.full(len(y), 1e308),
    "denormal": lambda y, rng: np.full(len(y), 5e-324),
    "short": lambda y, rng: np.ones(len(y) - 1),
    "number": lambda y, rng: 2.0,
    "2-d": lambda y, rng: np.ones((len(y), 2)),
    "strings": lambda y, rng: ["a"] * len(y),
    "nones": lambda y, rng: [None] * len(y),
    "complex": lambda y, rng: np.ones(len(y), dtype=complex),
    "object": lambda y, rng: object(),
    "huge ints": lambda y, rng: [HUGE] * len(y),
    "bools": lambda y, rng: y > 0,
    "empty": lambda y, rng: [],
    "text": lambda y, rng: "weights",
    "generator": lambda y, rng: (1.0 for _ in y),
}

# What a setting may be given: a value of no use for most of them.
HOSTILE_SETTINGS = {
    "none": None,
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "0": 0,
    "0.0": 0.0,
    "-1": -1,
    "1": 1,
    "2": 2,
    "0.5": 0.5,
    "1e-300": 1e-300,
    "denormal": 5e-324,
    "1e-90": 1e-90,
    "1e308": 1e308,
    "2**31": 2**31,
    "2**64": 2**64,
    "huge": HUGE,
    "-huge": -HUGE,
    "True": True,
    "False": False,
    "auto": "auto",
    "text": "no such thing",
    "empty text": "",
    "bytes": b"auto",
    "complex": 1j,
    "decimal": decimal.Decimal("1.5"),
    "fraction": fractions.Fraction(1, 3),
    "float16": np.float16(1.0),
    "numpy int": np.int64(2),
    "numpy bool": np.bool_(True),
    "0-d": np.array(1.0),
    "array": np.array([1.0, 2.0]),
    "nan array": np.array([np.nan, 1.0]),
    "empty list": [],
    "list": [1, 2, 3],
    "text list": ["a", "b"],
    "mixed list": [1, "a", None],
    "nested list": [[1], [2, 3]],
    "descending": (5, 3, 1),
    "tuple": (0.5, 0.5),
    "mapping": {"a": 1},
    "set": {1, 2},
    "object": object(),
    "type": int,
    "function": len,
    "date": np.datetime64("2020-01-01"),
}
