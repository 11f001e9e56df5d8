"""A graph as an ONNX model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skfedcal.methods.graph import Graph, Node

if TYPE_CHECKING:
    from onnx import ModelProto

# Low enough for runtimes of several years ago; reductions take axes as inputs since 18.
OPSET, IR_VERSION = 18, 9

# TensorProto.DataType, which the standard fixes.
_FLOAT, _INT64, _STRING, _DOUBLE = 1, 7, 8, 11
_TYPES = {"float32": _FLOAT, "float64": _DOUBLE}

_PLAIN = {
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "negative": "Neg",
    "absolute": "Abs",
    "exp": "Exp",
    "log": "Log",
    "floor": "Floor",
    "maximum": "Max",
    "minimum": "Min",
    "less": "Less",
    "equal": "Equal",
    "where": "Where",
    "matmul": "MatMul",
    "sum": "ReduceSum",
    "max": "ReduceMax",
    "min": "ReduceMin",
    "argmax": "ArgMax",
    "cumsum": "CumSum",
    "gather": "GatherElements",
    "scatter": "ScatterElements",
    "concat": "Concat",
}
_ATTRIBUTES: dict[str, dict[str, Any]] = {
    "sum": {"keepdims": 1},
    "max": {"keepdims": 1},
    "min": {"keepdims": 1},
    "argmax": {"axis": 1, "keepdims": 1, "select_last_index": 0},
    "gather": {"axis": 1},
    "scatter": {"axis": 1},
    "concat": {"axis": 1},
}


class _Writer:
    """Nodes and numbers of an ONNX graph, from those of ours."""

    def __init__(self, graph: Graph, dtype: str) -> None:
        self.graph = graph
        self.dtype = dtype
        self.nodes: list[Any] = []
        self.numbers: list[Any] = []

    def run(self, outputs: Iterable[int]) -> None:
        for i in self.graph.needed(*outputs):
            self._write(f"v{i}", self.graph.nodes[i])

    def emit(
        self,
        op: str,
        reads: list[str],
        name: str,
        before: Sequence[str] = (),
        **attributes: Any,
    ) -> str:
        """Add an operation, and return the name of its last output."""
        from onnx import helper

        outputs = [*before, name]
        made = helper.make_node(op, reads, outputs, name=name + op, **attributes)
        self.nodes.append(made)
        return name

    def keep(self, name: str, values: NDArray[Any]) -> str:
        from onnx import numpy_helper

        self.numbers.append(numpy_helper.from_array(values, name))
        return name

    def _write(self, name: str, node: Node) -> None:
        reads = ["scores" if j == 0 else f"v{j}" for j in node.reads]
        if node.op == "input":
            return
        if node.op == "constant":
            assert node.constant is not None
            dtype = self.dtype if node.given else "float64"
            self.keep(name, node.constant.astype(dtype))
        elif node.op == "double":
            self.emit("Cast", reads, name, to=_DOUBLE)
        elif node.op == "rounded":
            self.emit("Cast", reads, name, to=_TYPES[self.dtype])
        elif node.op == "positive":
            least = np.array(np.finfo(self.dtype).tiny, dtype=self.dtype)
            self.emit("Max", [*reads, self.keep(f"{name}_least", least)], name)
        elif node.op == "columns":
            which = self.keep(f"{name}_which", np.array(node.option, dtype=np.int64))
            self.emit("Gather", [*reads, which], name, axis=1)
        elif node.op == "take":
            table = self.graph.nodes[node.reads[1]].constant
            assert table is not None
            self._take(name, reads, table.size)
        elif node.op == "argsort":
            # All columns, the largest first, of equals the one with the lower number.
            size = self.emit("Shape", reads, f"{name}_size", start=1)
            self.emit("TopK", [*reads, size], name, before=[f"{name}_sorted"])
        else:
            self._plain(name, node.op, reads)

    def _plain(self, name: str, op: str, reads: list[str]) -> None:
        if op in ("sum", "max", "min"):
            reads = [*reads, self.keep(f"{name}_axes", np.array([1], dtype=np.int64))]
        elif op == "cumsum":
            reads = [*reads, self.keep(f"{name}_axis", np.array(1, dtype=np.int64))]
        self.emit(_PLAIN[op], reads, name, **_ATTRIBUTES.get(op, {}))

    def _take(self, name: str, reads: list[str], size: int) -> None:
        index, table = reads
        whole = self.emit("Cast", [index], f"{name}_whole", to=_INT64)
        # A number that is nan must not stop the rows beside it.
        ends = [
            self.keep(f"{name}_first", np.array(0, dtype=np.int64)),
            self.keep(f"{name}_last", np.array(size - 1, dtype=np.int64)),
        ]
        whole = self.emit("Clip", [whole, *ends], f"{name}_at")
        flat = self.keep(f"{name}_flat", np.array([-1], dtype=np.int64))
        row = self.emit("Reshape", [table, flat], f"{name}_row")
        self.emit("Gather", [row, whole], name, axis=0)


def to_model(
    graph: Graph,
    outputs: Mapping[str, int],
    classes: NDArray[Any],
    dtype: str,
    notes: Mapping[str, str],
) -> ModelProto:
    """Build an ONNX model with the input 'scores'.

    outputs: Numbers of the operations that give 'label' and 'probabilities'.
    classes of shape (n_classes,): Labels.
    dtype ('float32', 'float64'): Type of the input and of the probabilities.
    notes: Metadata of the model.
    """
    from onnx import checker, helper

    writer = _Writer(graph, dtype)
    writer.run(outputs.values())
    proba = f"v{outputs['probabilities']}"
    writer.emit("Cast", [proba], "probabilities", to=_TYPES[dtype])
    labels, kind = _labels(classes)
    writer.keep("classes", labels)
    flat = writer.keep("flat", np.array([-1], dtype=np.int64))
    number = writer.emit("Reshape", [f"v{outputs['label']}", flat], "number")
    writer.emit("Gather", ["classes", number], "label", axis=0)
    rows = ["n_rows"]
    made = helper.make_graph(
        writer.nodes,
        "calibration",
        [_tensor("scores", _TYPES[dtype], [*rows, graph.n_columns])],
        [
            _tensor("label", kind, rows),
            _tensor("probabilities", _TYPES[dtype], [*rows, len(classes)]),
        ],
        initializer=writer.numbers,
    )
    model = helper.make_model(
        made,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="skfedcal",
    )
    helper.set_model_props(model, dict(notes))
    checker.check_model(model, full_check=True)
    return model


def _tensor(name: str, kind: int, shape: list[Any]) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, kind, shape)


def _labels(classes: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """Labels in a type that ONNX has; others as text."""
    if classes.dtype.kind in "biu":
        return classes.astype(np.int64), _INT64
    if classes.dtype.kind == "f":
        return classes.astype(np.float64), _DOUBLE
    return classes.astype(str).astype(object), _STRING
