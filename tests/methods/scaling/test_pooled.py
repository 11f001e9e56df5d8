"""The pooled fit is the central optimum, whatever the partition into clients."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax

from skfedcal import FederatedRunner, make_federation
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.methods.scaling.families import (
    MatrixMap,
    OrderPreservingMap,
    VectorMap,
    canonical,
)
from skfedcal.methods.scaling.rounds import (
    FEW_CLASSES,
    FEW_FOR_MATRIX,
    MANY_CLASSES,
    PooledFit,
    ridge_strengths,
    two_loops,
)
from skfedcal.privacy.entropy import SeededEntropy
from skfedcal.privacy.mechanisms import ExactSum

FITS = [
    PooledFit(VectorMap(), (0.1, 0.1)),
    PooledFit(MatrixMap(), (None, None, None)),
    PooledFit(OrderPreservingMap(), (1.0, 1.0)),
]
over_fits = pytest.mark.parametrize(
    "fit", FITS, ids=[type(f.family).__name__ for f in FITS]
)


def federation(c=5, n=900, n_clients=12, seed=0):
    made = make_federation(
        n_clients, n, c, class_bias=0.8, n_test=500, dtype=np.float64, random_state=seed
    )
    sizes = np.bincount(made.client_ids, minlength=n_clients)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    names = range(n_clients)
    return FederatedDataset(made.logits, made.labels, offsets, names, c), made


def run(fit, data):
    return FederatedRunner().run(fit, data, ExactSum(), SeededEntropy(0))


def central(fit, data, state):
    """Optimum of the pooled objective by scipy, slopes by finite differences."""
    rows = canonical(data.rows, state.beta, ranked=fit.family.ranked)
    start = fit.family.start(data.n_classes)
    ridge = state.ridge[fit.family.groups(data.n_classes)] / data.n_rows
    index = np.arange(data.n_rows)

    def objective(params):
        logits = fit.family.logits(params, rows).T
        loss = -log_softmax(logits, axis=1)[index, data.labels].mean()
        return loss + ridge @ (params - start) ** 2 / 2

    options = {"maxiter": 5000, "maxfun": 10**6, "ftol": 1e-14, "gtol": 1e-8}
    found = minimize(objective, start, method="L-BFGS-B", options=options)
    return found, objective


@over_fits
def test_it_is_the_central_optimum(fit):
    data, _ = federation(c=4, n=500)
    state, history = run(fit, data)
    found, objective = central(fit, data, state)
    assert state.converged
    assert objective(state.params) == pytest.approx(state.objective, abs=2e-7)
    # Newton steps end below what finite differences find.
    assert objective(state.params) <= found.fun + 2e-7
    assert len(history) <= 8


@over_fits
def test_any_partition_gives_the_same_parameters(fit):
    data, _ = federation()
    whole = FederatedDataset(data.rows, data.labels, np.array([0, 900]), ["all"], 5)
    rng = np.random.default_rng(0)
    mixed = rng.permutation(900)
    shuffled = FederatedDataset(
        data.rows[mixed], data.labels[mixed], np.arange(0, 901, 3), range(300), 5
    )
    first, _ = run(fit, data)
    for other in (whole, shuffled):
        state, _ = run(fit, other)
        np.testing.assert_allclose(state.params, first.params, atol=1e-7)
        np.testing.assert_allclose(state.ridge, first.ridge, rtol=1e-7)


@over_fits
@pytest.mark.parametrize("scale", [0.05, 1.0, 20.0])
def test_a_start_by_steps_ends_at_the_optimum_of_the_grid(fit, scale):
    data, _ = federation(c=4, n=3000)
    data = replace(data, rows=data.rows * scale)
    first, _ = run(fit, data)
    state, history = run(replace(fit, start_rounds=20), data)
    assert first.converged
    assert state.converged
    assert state.beta == pytest.approx(first.beta, rel=1e-5)
    assert state.objective == pytest.approx(first.objective, abs=1e-6)
    assert len(history) <= 12


@pytest.mark.parametrize("labels", ["right", "wrong", "none"])
def test_a_start_by_steps_outside_the_bounds_has_not_converged(labels):
    data, _ = federation(c=3, n=600)
    top = data.rows.argmax(axis=1)
    own = {"right": top, "wrong": (top + 1) % 3, "none": data.labels}[labels]
    rows = np.zeros_like(data.rows) if labels == "none" else data.rows
    data = replace(data, labels=own, rows=rows)
    state, _ = run(replace(FITS[0], start_rounds=20), data)
    assert not state.converged
    assert np.isfinite(state.params).all()
    assert 0.0099 < state.beta < 100.1


@over_fits
def test_it_never_ends_worse_than_temperature_scaling(fit):
    for seed in range(4):
        data, _ = federation(c=3, n=60, seed=seed)
        state, _ = run(fit, data)
        rows = canonical(data.rows, state.beta, ranked=fit.family.ranked)
        start = fit.family.logits(fit.family.start(3), rows).T
        loss = -log_softmax(start, axis=1)[np.arange(60), data.labels].mean()
        assert state.objective <= loss + 1e-7


@pytest.mark.parametrize(
    "n_classes", [FEW_FOR_MATRIX + 1, FEW_CLASSES + 2], ids=lambda c: f"{c} classes"
)
@pytest.mark.parametrize("fit", FITS[:2], ids=["vector", "matrix"])
def test_many_classes_reach_the_same_optimum_by_quasi_newton_steps(fit, n_classes):
    data, _ = federation(c=n_classes, n=600, n_clients=4)
    state, history = run(fit, data)
    assert state.converged
    assert len(history) <= 30
    rows = canonical(data.rows, state.beta)
    logits = fit.family.logits(state.params, rows).T
    residual = np.exp(log_softmax(logits, axis=1))
    residual[np.arange(600), data.labels] -= 1
    start = fit.family.start(n_classes)
    ridge = state.ridge[fit.family.groups(n_classes)]
    slope = ridge * (state.params - start)
    slope[-n_classes:] += residual.sum(axis=0)
    # At the optimum the slope in the bias vanishes: 1e-7 of loss per row is left.
    assert np.abs(slope[-n_classes:]).max() / 600 < 1e-3


@pytest.mark.parametrize(
    ("fit", "n_classes", "share"),
    [
        (FITS[2], 3 * FEW_CLASSES, 0.65),
        (FITS[2], MANY_CLASSES + 2, 0.8),
        (FITS[0], 2 * MANY_CLASSES, 0.8),
    ],
    ids=["order", "order, many", "vector, many"],
)
def test_fewer_rounds_where_the_curvature_is_sent_anew(
    monkeypatch, fit, n_classes, share
):
    from skfedcal.methods.scaling import rounds

    data, _ = federation(c=n_classes, n=2000, n_clients=4)
    state, history = run(fit, data)
    assert state.converged
    monkeypatch.setattr(rounds, "_RENEWED", 10**6)
    monkeypatch.setattr(rounds, "_CLASS_RENEWED", 10**6)
    once, more = run(fit, data)
    assert len(history) <= share * len(more)
    assert state.objective <= once.objective + 1e-7


def test_requests_say_when_the_curvature_is_wanted():
    for fit, n_classes, n_moves, wanted in (
        (FITS[2], FEW_CLASSES + 2, 2, False),
        (FITS[2], FEW_CLASSES + 2, 3, True),
        (FITS[0], FEW_CLASSES + 2, 19, False),
        (FITS[0], MANY_CLASSES + 2, 5, False),
        (FITS[0], MANY_CLASSES + 2, 6, True),
        (FITS[1], FEW_FOR_MATRIX + 2, 19, False),
    ):
        moves = np.ones((n_moves, fit.family.size(n_classes)))
        asked = fit.broadcast(replace(fit.init(n_classes), rounds=4, moves=moves))
        assert ("curvature" in fit.spec(asked)) is wanted


def test_one_curvature_per_class_is_enough(monkeypatch):
    from skfedcal.methods.scaling import rounds

    data, _ = federation(c=6)
    best, _ = run(FITS[0], data)
    assert MANY_CLASSES > 6
    monkeypatch.setattr(rounds, "MANY_CLASSES", 3)
    state, _ = run(FITS[0], data)
    assert state.converged
    assert state.objective == pytest.approx(best.objective, abs=1e-6)


def test_a_quasi_newton_matrix_turns_changes_into_moves():
    rng = np.random.default_rng(0)
    square = rng.normal(size=(6, 6))
    bend = square @ square.T + np.eye(6)
    moves = rng.normal(size=(3, 6))
    changes = moves @ bend
    found = two_loops(changes[-1], moves, changes, lambda slope: slope)
    np.testing.assert_allclose(found, moves[-1], rtol=1e-9)


def test_evidence_tells_signal_from_sampling_error():
    # Slopes with variance s come from no signal at all; the ridge then grows. With an
    # effect of variance 1 / r their variance is s + s^2 / r.
    rng = np.random.default_rng(0)
    bends = np.full(4000, 50.0)
    noise = rng.normal(size=4000) * np.sqrt(bends)
    effect = rng.normal(size=4000) * bends / np.sqrt(20.0)
    weakest = np.full(1, 0.1)
    (none,) = ridge_strengths([(bends, noise * 0.97)], [None], weakest)
    (some,) = ridge_strengths([(bends, noise + effect)], [None], weakest)
    assert none == 1e7
    # log r has a standard error of about sqrt(2 / 4000) * (s + r) / s: 0.03.
    assert some == pytest.approx(20.0, rel=0.2)
    assert ridge_strengths([(bends, noise)], [3.0], weakest).tolist() == [3.0]
    assert ridge_strengths([(bends, 100 * bends)], [None], np.array([7.0])) == [7.0]


def test_a_hundred_classes_do_not_overfit():
    data, made = federation(c=100, n=2500, n_clients=20)
    state, _ = run(FITS[1], data)
    index = np.arange(len(made.test_labels))
    rows = canonical(made.test_logits, state.beta)
    fitted, plain = (
        -log_softmax(FITS[1].family.logits(p, rows).T, axis=1)[
            index, made.test_labels
        ].mean()
        for p in (state.params, FITS[1].family.start(100))
    )
    assert fitted < plain + 1e-3


@over_fits
def test_a_client_answers_alone_as_in_company(fit):
    data, _ = federation(c=7, n=300, n_clients=9)
    start = fit.init(7)
    state = fit.update(start, run_once(fit, start, data), len(data))
    for now in (start, state):
        broadcast = fit.broadcast(now)
        together = fit.query(broadcast, data)
        for i in range(len(data)):
            for alone in (data.slice(i, i + 1), data.slice(i, i + 1).compact()):
                for key, answer in fit.query(broadcast, alone).items():
                    assert answer.tobytes() == together[key][i : i + 1].tobytes()


def run_once(fit, state, data):
    broadcast = fit.broadcast(state)
    answer = fit.query(broadcast, data)
    mechanism = ExactSum()
    codec = mechanism.codec(fit.spec(broadcast))
    total = {key: value.sum(axis=0) for key, value in codec.encode(answer).items()}
    return mechanism.release(total, codec, 0)


@over_fits
def test_weights_count_rows(fit):
    data, _ = federation(n=300)
    weights = np.random.default_rng(0).integers(0, 3, 300).astype(float)
    heavy = FederatedDataset(
        data.rows, data.labels, data.offsets, data.names, 5, weights=weights
    )
    twice = np.repeat(np.arange(300), weights.astype(int))
    pooled = FederatedDataset(
        data.rows[twice], data.labels[twice], np.array([0, len(twice)]), ["a"], 5
    )
    one, two = (run(fit, d)[0] for d in (heavy, pooled))
    np.testing.assert_allclose(one.params, two.params, atol=1e-7)


def test_an_objective_that_rises_is_not_accepted():
    fit = FITS[0]
    data, _ = federation(c=3, n=60)
    state = fit.init(3)
    for _ in range(2):
        state = fit.update(state, run_once(fit, state, data), len(data))
    wrong = run_once(fit, state, data)
    wrong["loss"][1] += 1000.0
    back = fit.update(state, wrong, len(data))
    np.testing.assert_array_equal(back.params, state.params)
    assert 0 < back.step <= 0.5
    np.testing.assert_allclose(back.trial, back.params + back.step * back.direction)
