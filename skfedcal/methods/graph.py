"""A calibration map as a graph of operations on rows, and formulas made of them.

Every value is a matrix with one row per example, or one that broadcasts against such.
Numbers that count something are floats as well; only `take` makes integers of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]

# What a runtime has to know: arity of each operation, the constant's aside.
OPERATIONS = {
    "input": 0,
    "constant": 0,
    "double": 1,  # from the type of the input to that of the computation
    "rounded": 1,  # and back
    "positive": 1,  # at least the smallest normal number of its type
    "add": 2,
    "subtract": 2,
    "multiply": 2,
    "divide": 2,
    "negative": 1,
    "absolute": 1,
    "exp": 1,
    "log": 1,
    "floor": 1,
    "maximum": 2,
    "minimum": 2,
    "less": 2,
    "equal": 2,
    "where": 3,
    "sum": 1,  # over the columns, which leaves one
    "max": 1,
    "min": 1,
    "argmax": 1,  # the first of equals
    "cumsum": 1,
    "argsort": 1,  # from the largest down, equals in column order
    "matmul": 2,
    "columns": 1,  # some of them, by `option`
    "concat": None,
    "gather": 2,  # entries of a row by positions in it
    "scatter": 3,  # a copy of the first with the third at the positions of the second
    "take": 2,  # entries of a table of one row, by number; beyond its ends any of them
}


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operation: its name, the nodes it reads, a constant or a choice of columns.

    `given` marks a constant in the type of the input; others have that of the
    computation.
    """

    op: str
    reads: tuple[int, ...] = ()
    constant: Array | None = None
    option: tuple[int, ...] = ()
    given: bool = False


@dataclass(slots=True, eq=False)
class Graph:
    """Operations in the order in which they are done; the first one is the input.

    n_columns: Columns of the input.
    """

    n_columns: int
    nodes: list[Node] = field(default_factory=lambda: [Node("input")])

    def input(self) -> Value:
        return Value(self, 0)

    def constant(self, values: ArrayLike, *, given: bool = False) -> Value:
        """Numbers that are part of the map, as a matrix."""
        found = np.array(values, dtype=np.float64, ndmin=2)
        return self.add(Node("constant", constant=found, given=given))

    def add(self, node: Node) -> Value:
        needed = OPERATIONS[node.op]
        if needed is not None and len(node.reads) != needed:
            raise ValueError(f"{node.op} reads {needed} values, not {len(node.reads)}.")
        self.nodes.append(node)
        return Value(self, len(self.nodes) - 1)

    def needed(self, *outputs: int) -> list[int]:
        """Operations that some results depend on, themselves among them, in order."""
        found = {0, *outputs}
        for number in range(max(found), 0, -1):
            if number in found:
                found.update(self.nodes[number].reads)
        return sorted(found)


class Value:
    """Result of one operation; arithmetic on it adds operations to its graph."""

    __slots__ = ("graph", "number")

    # `array * value` is left to the value.
    __array_ufunc__ = None

    def __init__(self, graph: Graph, number: int) -> None:
        self.graph = graph
        self.number = number

    def apply(self, op: str, *others: Any, option: Sequence[int] | Array = ()) -> Value:
        """Result of an operation on this value and others, which may be numbers."""
        reads = [self, *(self._value(other) for other in others)]
        numbers = tuple(value.number for value in reads)
        return self.graph.add(Node(op, numbers, option=tuple(map(int, option))))

    def _value(self, other: Any) -> Value:
        return other if isinstance(other, Value) else self.graph.constant(other)

    def __add__(self, other: Any) -> Value:
        return self.apply("add", other)

    def __sub__(self, other: Any) -> Value:
        return self.apply("subtract", other)

    def __mul__(self, other: Any) -> Value:
        return self.apply("multiply", other)

    def __truediv__(self, other: Any) -> Value:
        return self.apply("divide", other)

    def __radd__(self, other: Any) -> Value:
        return self._value(other) + self

    def __rsub__(self, other: Any) -> Value:
        return self._value(other) - self

    def __rmul__(self, other: Any) -> Value:
        return self._value(other) * self

    def __rtruediv__(self, other: Any) -> Value:
        return self._value(other) / self

    def __neg__(self) -> Value:
        return self.apply("negative")

    def __abs__(self) -> Value:
        return self.apply("absolute")

    def __matmul__(self, other: Any) -> Value:
        return self.apply("matmul", other)

    def __lt__(self, other: Any) -> Value:
        return self.apply("less", other)

    def __gt__(self, other: Any) -> Value:
        return self._value(other).apply("less", self)

    def double(self) -> Value:
        return self.apply("double")

    def rounded(self) -> Value:
        return self.apply("rounded")

    def positive(self) -> Value:
        return self.apply("positive")

    def exp(self) -> Value:
        return self.apply("exp")

    def log(self) -> Value:
        return self.apply("log")

    def floor(self) -> Value:
        return self.apply("floor")

    def at_least(self, other: Any) -> Value:
        return self.apply("maximum", other)

    def at_most(self, other: Any) -> Value:
        return self.apply("minimum", other)

    def equals(self, other: Any) -> Value:
        return self.apply("equal", other)

    def choose(self, yes: Any, no: Any) -> Value:
        """`yes` where this is true, else `no`."""
        return self.apply("where", yes, no)

    def sum(self) -> Value:
        return self.apply("sum")

    def max(self) -> Value:
        return self.apply("max")

    def min(self) -> Value:
        return self.apply("min")

    def argmax(self) -> Value:
        return self.apply("argmax")

    def argsort(self) -> Value:
        return self.apply("argsort")

    def cumsum(self) -> Value:
        return self.apply("cumsum")

    def columns(self, which: Sequence[int] | Array) -> Value:
        return self.apply("columns", option=which)

    def beside(self, other: Any) -> Value:
        return self.apply("concat", other)

    def gather(self, positions: Value) -> Value:
        return self.apply("gather", positions)

    def scatter(self, positions: Value, values: Value) -> Value:
        return self.apply("scatter", positions, values)

    def take_from(self, table: ArrayLike) -> Value:
        """Entries of a table, by the numbers that this value holds; nan gives nan."""
        return self.apply("take", np.ravel(np.asarray(table))) + self * 0.0


_NUMPY: dict[str, Callable[..., Array]] = {
    name: getattr(np, name)
    for name in (
        "add", "subtract", "multiply", "divide", "negative", "absolute", "exp", "log",
        "floor", "maximum", "minimum", "less", "equal", "where",
    )
} | {
    "matmul": lambda x, table: _product(x, table),
    "sum": lambda x: np.einsum("ij->i", x)[:, None],
    "max": lambda x: x.max(axis=1, keepdims=True),
    "min": lambda x: x.min(axis=1, keepdims=True),
    "argmax": lambda x: x.argmax(axis=1)[:, None],
    "argsort": lambda x: np.argsort(-x, axis=1, kind="stable"),
    "cumsum": lambda x: x.cumsum(axis=1),
    "gather": lambda x, at: np.take_along_axis(x, at, axis=1),
    "scatter": lambda x, at, values: _scattered(x, at, values),
    "take": lambda at, table: table[0].take(
        np.nan_to_num(at).astype(np.intp), mode="clip"
    ),
    "concat": lambda *parts: np.concatenate(parts, axis=1),
}  # fmt: skip


def _product(x: Array, table: Array) -> Array:
    """Matrix product whose rows have the same bits in any batch; those of BLAS vary."""
    out = np.zeros((len(x), table.shape[1]))
    for column, weights in zip(x.T, table, strict=True):
        out += column[:, None] * weights
    return out


def _scattered(x: Array, at: Array, values: Array) -> Array:
    out = x.copy()
    np.put_along_axis(out, at, values, axis=1)
    return out


class ArrayValue(Value):
    """Rows of numpy: operations are carried out at once instead of written down."""

    __slots__ = ("array",)

    def __init__(self, array: ArrayLike) -> None:
        self.array = np.array(array, ndmin=2, copy=None)

    def apply(self, op: str, *others: Any, option: Sequence[int] | Array = ()) -> Value:
        if op == "columns":
            return ArrayValue(self.array[:, list(option)])
        own = (self._value(other).array for other in others)
        return ArrayValue(_NUMPY[op](self.array, *own))

    def _value(self, other: Any) -> ArrayValue:
        return other if isinstance(other, ArrayValue) else ArrayValue(other)


# Cells of a block, which stays in the cache of the processor.
_CELLS = 1 << 14


def map_rows(
    formula: Callable[[Value], Value],
    rows: Array,
    rounded: Callable[[Array, Array], Array],
) -> Array:
    """Carry out a formula on rows of numpy, in double precision, block by block.

    `rounded` takes the values of a block and its rows, in whose type they are returned.
    """
    out = np.empty_like(rows)
    step = max(1, _CELLS // max(1, rows.shape[1]))
    with np.errstate(all="ignore"):  # a far lower logit is -inf: probability 0
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            found = formula(ArrayValue(rows[part].astype(np.float64, order="C")))
            assert isinstance(found, ArrayValue)
            out[part] = rounded(found.array, rows[part])
    return out


# Open interval (0, 1) in float64.
_TINY = float(np.finfo(np.float64).tiny)
_ALMOST_ONE = float(1 - np.finfo(np.float64).epsneg)


def log1p(x: Value) -> Value:
    """``log(1 + x)``, with all digits where x is small."""
    # The rounding of 1 + x is undone by the quotient; runtimes need no log1p.
    total = 1.0 + x
    rounded = total - 1.0
    lost = rounded.equals(0.0)
    return lost.choose(x, total.log() * (x / lost.choose(1.0, rounded)))


def softplus(x: Value) -> Value:
    """``log(1 + exp(x))``."""
    return x.at_least(0.0) + log1p((-abs(x)).exp())


def expit(x: Value) -> Value:
    """Probability of log-odds."""
    # Nothing overflows: an infinite term would make a gradient of nan.
    small = (-abs(x)).exp()
    return (x < 0.0).choose(small, 1.0) / (1.0 + small)


def inside(proba: Value) -> Value:
    """Probabilities strictly between 0 and 1."""
    return proba.at_least(_TINY).at_most(_ALMOST_ONE)


def to_odds(proba: Value) -> Value:
    """Log-odds of probabilities."""
    clipped = inside(proba)
    return clipped.log() - log1p(-clipped)


def softmax(logits: Value) -> Value:
    """Row-wise softmax."""
    weights = (logits - logits.max()).exp()
    return weights / weights.sum()


def log_softmax(logits: Value) -> Value:
    """Row-wise logarithm of the softmax."""
    shifted = logits - logits.max()
    return shifted - shifted.exp().sum().log()


def log_sum_exp(logits: Value) -> Value:
    """Logarithm of the sum of exponentials of each row; one entry must be finite."""
    top = logits.max()
    return top + (logits - top).exp().sum().log()


def count_at_most(values: Value, points: Array) -> Value:
    """How many of the sorted points of its column are at most each value.

    values of shape (n_rows, n_columns): Places.
    points of shape (n_columns, n_points): Points of each column; what is missing is inf
        at the end.
    """
    n_columns, n_points = points.shape
    size = 1 << n_points.bit_length()  # a power of 2 above n_points
    table = np.full((n_columns, size), np.inf)
    table[:, :n_points] = points
    first = np.arange(n_columns)[None] * size
    # A binary search: `found` points are at most the value.
    found = values * 0.0
    step = size // 2
    while step:
        # Point number found + step, counted from 1.
        candidate = (found + (first + step - 1)).take_from(table)
        found = (values < candidate).choose(found, found + step)
        step //= 2
    return found


def interpolate(
    places: Value, points: Sequence[Array], values: Sequence[Array]
) -> Value:
    """Straight lines between the corners of each column, constant beyond their ends.

    places of shape (n_rows, n_columns): Where to look.
    points, values: Corners of each column, with increasing points.
    """
    size = max(len(own) for own in points)
    place, value, slope = (np.zeros((len(points), size)) for _ in range(3))
    place[:] = np.inf
    for i, (own, high) in enumerate(zip(points, values, strict=True)):
        n = len(own)
        place[i, :n], value[i, :n] = own, high
        slope[i, : n - 1] = np.diff(high) / np.diff(own)
    start = np.arange(len(points))[None] * size
    index = (count_at_most(places, place) - 1.0).at_least(0.0) + start
    # Left of the first corner nothing is added; right of the last the slope is 0.
    along = (places - index.take_from(place)).at_least(0.0)
    return index.take_from(value) + index.take_from(slope) * along
