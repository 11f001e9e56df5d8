"""A calibration map as a list of operations on rows, for other runtimes to carry out.

Every value is a matrix with one row per example, or one that broadcasts against such.
Numbers that count something are floats as well; only `take` makes integers of them.
"""

from __future__ import annotations

from collections.abc import Sequence
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

    Parameters
    ----------
    n_columns : int
        Columns of the input.
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

    def apply(self, op: str, *others: Any, option: Sequence[int] = ()) -> Value:
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

    def columns(self, which: Sequence[int]) -> Value:
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
