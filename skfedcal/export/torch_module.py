"""A graph as a torch module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from skfedcal.methods.graph import Graph, Node

_PLAIN: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "subtract": torch.subtract,
    "multiply": torch.multiply,
    "divide": torch.divide,
    "negative": torch.negative,
    "absolute": torch.absolute,
    "exp": torch.exp,
    "log": torch.log,
    "floor": torch.floor,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "less": torch.less,
    "equal": torch.eq,
    "where": torch.where,
    "matmul": torch.matmul,
    "sum": lambda x: x.sum(1, keepdim=True),
    "max": lambda x: x.amax(1, keepdim=True),
    "min": lambda x: x.amin(1, keepdim=True),
    # Torch promises no order of equals for argmax.
    "argmax": lambda x: _ranks(x)[:, :1],
    "argsort": lambda x: _ranks(x),
    "cumsum": lambda x: x.cumsum(1),
    "gather": lambda x, at: x.gather(1, at),
    "scatter": lambda x, at, values: x.scatter(1, at, values),
    # A number that is nan must not stop the rows beside it.
    "take": lambda at, table: table[0][at.long().clamp(0, table.shape[1] - 1)],
    "concat": lambda *parts: torch.cat(parts, 1),
    "positive": lambda x: x.clamp(min=torch.finfo(x.dtype).tiny),
}


def _ranks(x: Tensor) -> Tensor:
    return torch.sort(x, dim=1, descending=True, stable=True).indices


class Calibration(nn.Module):
    """Calibrated probabilities of rows of scores; made by `to_torch` of a calibrator.

    Parameters
    ----------
    graph : Graph
        Operations.
    output : int
        Number of the operation that is the result.
    """

    one: Tensor

    def __init__(self, graph: Graph, output: int) -> None:
        super().__init__()
        self.n_columns = graph.n_columns
        needed = graph.needed(output)
        self._steps = [(i, _without_numbers(graph.nodes[i])) for i in needed]
        self._output = output
        # None of these is trained: they are part of the state, and move with it.
        self.register_buffer("one", torch.ones((), dtype=torch.float64))
        for i in needed:
            _keep(self, i, graph.nodes[i])

    def forward(self, scores: Tensor) -> Tensor:
        """Calibrate rows of scores, of the form given to `fit`."""
        if scores.ndim != 2 or scores.shape[1] != self.n_columns:
            raise ValueError(
                f"scores has shape {tuple(scores.shape)}; expected rows of "
                f"{self.n_columns} columns."
            )
        found: dict[int, Tensor] = {}
        for i, node in self._steps:
            found[i] = self._step(i, node, [found[j] for j in node.reads], scores)
        out = found[self._output]
        return out.to(scores.dtype) if out.is_floating_point() else out

    def _step(self, i: int, node: Node, own: list[Tensor], scores: Tensor) -> Tensor:
        if node.op == "input":
            return scores
        if node.op == "constant":
            value: Tensor = getattr(self, f"c{i}")
            return value.to(scores.dtype) if node.given else value
        if node.op == "double":
            return own[0].to(self.one.dtype)  # that of `.float()`, if it was called
        if node.op == "rounded":
            return own[0].to(scores.dtype)
        if node.op == "columns":
            return own[0][:, list(node.option)]
        return _PLAIN[node.op](*own)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert the numbers, but never below float32."""

        # ``net.half()`` is about weights; half precision cannot number the bins.
        def careful(own: Tensor) -> Tensor:
            out = fn(own)
            few = out.is_floating_point() and out.dtype.itemsize < 4
            return own.to(out.device, torch.float32) if few else out

        super()._apply(careful, recurse)
        return self

    def extra_repr(self) -> str:
        return f"n_columns={self.n_columns}"


def _keep(module: Any, number: int, node: Node) -> None:
    if node.op == "constant":
        module.register_buffer(f"c{number}", torch.as_tensor(node.constant))


def _without_numbers(node: Node) -> Node:
    """Drop what buffers hold."""
    return replace(node, constant=None)
