"""Formulas of a graph against numpy and scipy."""

import numpy as np
import pytest
from scipy import special

from skfedcal.methods import graph as formulas
from skfedcal.methods.graph import Graph, Node

torch = pytest.importorskip("torch")


def run(rows, build):
    """Result of a formula on rows, carried out by torch."""
    from skfedcal.export.torch_module import Calibration

    rows = np.asarray(rows, dtype=np.float64)
    graph = Graph(rows.shape[1])
    number = build(graph.input().double()).number
    with torch.no_grad():
        return Calibration(graph, number)(torch.tensor(rows)).numpy()


WIDE = np.concatenate([-np.logspace(-300, 2.8, 60), [0.0], np.logspace(-300, 2.8, 60)])


@pytest.mark.parametrize(
    ("formula", "oracle", "places"),
    [
        (formulas.log1p, np.log1p, WIDE[WIDE > -1]),
        (formulas.softplus, lambda x: np.logaddexp(0, x), WIDE),
        (formulas.expit, special.expit, WIDE),
        (formulas.to_odds, special.logit, special.expit(np.linspace(-30, 30, 61))),
    ],
    ids=["log1p", "softplus", "expit", "to_odds"],
)
def test_functions_keep_their_digits(formula, oracle, places):
    found = run(places[:, None], formula)[:, 0]
    np.testing.assert_allclose(found, oracle(places), rtol=1e-13, atol=0)


def test_softmax_and_its_logarithm():
    rows = np.random.default_rng(0).normal(size=(50, 4)) * 100
    proba = special.softmax(rows, axis=1)
    np.testing.assert_allclose(run(rows, formulas.softmax), proba, rtol=1e-12)
    logs = special.log_softmax(rows, axis=1)
    np.testing.assert_allclose(run(rows, formulas.log_softmax), logs, rtol=1e-12)
    sums = special.logsumexp(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(run(rows, formulas.log_sum_exp), sums, rtol=1e-12)


@pytest.mark.parametrize("n_points", [1, 2, 3, 7, 8, 100])
def test_counts_are_those_of_a_search(n_points):
    rng = np.random.default_rng(n_points)
    points = np.sort(rng.integers(-20, 20, (2, n_points)).astype(float), axis=1)
    places = rng.integers(-21, 21, (300, 2)).astype(float)  # many on a point
    found = run(places, lambda x: formulas.count_at_most(x, points))
    for i in range(2):
        expected = np.searchsorted(points[i], places[:, i], side="right")
        np.testing.assert_array_equal(found[:, i], expected)


def test_lines_are_those_of_interp():
    rng = np.random.default_rng(0)
    points = [np.sort(rng.random(size)) for size in (1, 2, 9)]
    values = [rng.random(len(own)) for own in points]
    places = np.concatenate([rng.uniform(-0.2, 1.2, (300, 3)), np.zeros((1, 3))])
    for i, own in enumerate(points):
        places[: len(own), i] = own  # corners themselves
    found = run(places, lambda x: formulas.interpolate(x, points, values))
    for i in range(3):
        expected = np.interp(places[:, i], points[i], values[i])
        np.testing.assert_allclose(found[:, i], expected, rtol=1e-12)


def test_ties_go_to_the_first_column():
    rows = [[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]
    assert run(rows, lambda x: x.argmax()).tolist() == [[1], [0]]
    assert run(rows, lambda x: x.argsort()).tolist() == [[1, 2, 0], [0, 1, 2]]


def test_only_what_a_result_needs_is_kept():
    graph = Graph(2)
    x = graph.input()
    kept = x + 1.0
    _ = x.exp().sum()
    numbers = graph.needed(kept.number)
    assert [graph.nodes[i].op for i in numbers] == ["input", "constant", "add"]


def test_wrong_operations_are_refused():
    with pytest.raises(ValueError, match="add reads 2 values, not 1"):
        Graph(2).add(Node("add", (0,)))
