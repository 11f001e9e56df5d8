"""Graph of a fitted calibrator, for export to other runtimes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skfedcal._numerics import ZERO_LOG
from skfedcal.export.graph import Graph, Value, log_softmax, softmax
from skfedcal.methods.auto.estimator import FedAutoCalibrator
from skfedcal.methods.registry import load_object, method_of

if TYPE_CHECKING:
    from skfedcal.methods.base import BaseCalibrator


@dataclass(frozen=True, slots=True, eq=False)
class Description:
    """Graph of a calibrator, and its outputs.

    Parameters
    ----------
    graph : Graph
        All operations, including those of the outputs.
    outputs : dict of str to Value
        'proba', 'log_proba' and 'label', the number of the most probable class.
    """

    graph: Graph
    outputs: dict[str, Value]


def describe(calibrator: Any) -> Description:
    """Build the graph that computes `predict_proba` of a fitted calibrator."""
    graph = Graph(calibrator.n_features_in_)
    n_classes = len(calibrator.classes_)
    given = _as_logits(graph, n_classes, calibrator.input_type)
    # In the type of the input, as `predict_proba` does it: bins have sharp edges.
    logits = (given - given.max()).double()
    out = logits if n_classes == 1 else _mapped(calibrator, logits)
    if not calibrator._class_map.in_order:
        out = out.columns(calibrator._class_map.order)
    if getattr(calibrator, "normalize", None) == "none":
        outputs = {"proba": out.exp(), "log_proba": out}
    else:
        outputs = {"proba": softmax(out), "log_proba": log_softmax(out)}
    return Description(graph, {**outputs, "label": out.argmax()})


def _mapped(calibrator: BaseCalibrator, logits: Value) -> Value:
    """Calibrated logits, or those of the input where the map is not used."""
    used = calibrator.improves_ or not calibrator.if_improves
    inner = calibrator
    while type(inner) is FedAutoCalibrator:
        inner = inner.calibrator_
    # By exact class: a subclass may have changed its map.
    method = method_of(type(inner))
    if method is None or not method.map:
        raise TypeError(
            f"{type(inner).__name__} cannot be exported: its map is not registered. "
            "Name it in the entry of skfedcal.methods.register_method, or use "
            "predict_proba instead."
        )
    if used:
        value: Value = load_object(method.map)(inner, logits)
        return value
    if method.word == "accuracy_temperature":
        return logits / float(inner.prior_temperature)
    plain = getattr(inner, "normalize", None) == "none"
    return log_softmax(logits) if plain else logits


def _as_logits(graph: Graph, n_classes: int, input_type: str) -> Value:
    """Logits with one column per class, in the type of the input."""
    scores = graph.input()
    if input_type == "proba":
        if graph.n_columns == n_classes - 1:
            scores = (graph.constant(1.0, given=True) - scores.sum()).beside(scores)
        # Logarithms of single precision are off by several digits in some runtimes.
        logs = scores.positive().double().log().rounded()
        return _fill_zeros(logs, scores.equals(graph.constant(0.0, given=True)))
    if input_type == "log_proba":
        return _fill_zeros(scores, scores.equals(graph.constant(-np.inf, given=True)))
    if graph.n_columns == n_classes:
        return scores
    if n_classes == 2:
        half = scores / graph.constant(2.0, given=True)
        return (-half).beside(half)
    # The largest score is finite, others need not be.
    zero = scores.max() * graph.constant(0.0, given=True)
    return zero.beside(scores)


def _fill_zeros(logs: Value, zero: Value) -> Value:
    """Replace the logarithm of probabilities of 0, as `_numerics.fill_zeros`."""
    least = logs.graph.constant(ZERO_LOG, given=True)
    return zero.choose(zero.choose(least, logs).min().at_most(least), logs)
