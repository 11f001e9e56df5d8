"""FedShapeCalibrator: the exact optimum of its formula, and an order that is kept."""

import json

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax

from skfedcal import (
    FederatedDataset,
    FedMatrixCalibrator,
    FedShapeCalibrator,
    FedTempCalibrator,
    load,
    make_federation,
)
from skfedcal.exceptions import CalibrationWarning
from skfedcal.methods.own_rows import held_back_rows
from skfedcal.methods.shape.rounds import MapNewton
from skfedcal.methods.shape.shape_features import (
    SHAPE_SD,
    WHITEN,
    order_keeping,
    shaped,
    whitened_features,
)


def phi(logs):
    """The features as the guide writes them."""
    low = np.maximum(logs, -12)
    p = np.exp(low)
    return np.stack([low, np.log(p + 0.01), -np.log(1 - p + 0.01)])


def scores_of(cal, logits):
    logs = log_softmax(logits / cal.temperature_, axis=1)
    return logs + np.tensordot(cal.shape_, phi(logs), 1) + cal.bias_


def mean_loss(scores, labels):
    return -log_softmax(scores, axis=1)[np.arange(len(labels)), labels].mean()


def curved(n=3000, c=4, seed=0, n_clients=7):
    """Rows of a model that is too sure; one label in twelve is drawn at random."""
    rng = np.random.default_rng(seed)
    true = 2 * rng.normal(size=(n, c)) + np.linspace(-0.4, 0.4, c)
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    labels = np.where(rng.random(n) < 1 / 12, rng.integers(0, c, n), labels)
    return 2.2 * true, labels, rng.integers(0, n_clients, n)


@pytest.mark.parametrize("biases", [False, True])
def test_the_fit_is_the_optimum_that_scipy_finds(biases):
    logits, labels, ids = curved()
    cal = FedShapeCalibrator(biases=biases).fit(logits, labels, client_ids=ids)
    assert cal.converged_
    logs = log_softmax(logits / cal.temperature_, axis=1)
    planes = np.tensordot(WHITEN.T, phi(logs), 1)
    n, c = logits.shape

    def objective(w):
        scores = logs + np.tensordot(w[:3], planes, 1) + (w[3:] if biases else 0)
        ridge = (w[:3] ** 2 / SHAPE_SD**2).sum() + (w[3:] ** 2).sum() / 0.25
        return mean_loss(scores, labels) + ridge / (2 * n)

    start = np.zeros(3 + c * biases)
    found = minimize(objective, start, method="BFGS", options={"gtol": 1e-7})
    np.testing.assert_allclose(cal.shape_, WHITEN @ found.x[:3], atol=2e-3)
    if biases:
        np.testing.assert_allclose(cal.bias_, found.x[3:], atol=1e-4)
    own = np.linalg.solve(WHITEN, cal.shape_)
    assert objective(np.r_[own, cal.bias_][: len(start)]) <= found.fun + 1e-9


def test_predictions_are_the_formula_of_the_guide():
    logits, labels, ids = curved()
    cal = FedShapeCalibrator(classes=[3, 1, 0, 2]).fit(
        logits, np.array([3, 1, 0, 2])[labels], client_ids=ids
    )
    logits = np.vstack([logits, [[0, 0, -np.inf, -40.0]]])
    bias = cal.bias_[[3, 1, 0, 2]]
    logs = log_softmax(logits / cal.temperature_, axis=1)
    scores = logs + np.tensordot(cal.shape_, phi(logs), 1) + bias
    np.testing.assert_allclose(
        cal.predict_log_proba(logits),
        log_softmax(scores, axis=1)[:, np.argsort([3, 1, 0, 2])],
        rtol=1e-9,
        atol=1e-9,
    )


def test_a_shape_corrects_what_a_temperature_cannot():
    train, test = curved(seed=0), curved(seed=1)
    losses = {}
    for name, method in {
        "temperature": FedTempCalibrator(),
        "shape": FedShapeCalibrator(keep_order=True),
        "biases": FedShapeCalibrator(),
        "matrix": FedShapeCalibrator(matrix=True),
    }.items():
        method.fit(*train[:2], client_ids=train[2])
        losses[name] = mean_loss(method.predict_log_proba(test[0]), test[1])
    assert losses["shape"] < losses["temperature"] - 1e-3
    assert losses["biases"] < losses["shape"] + 1e-3


def test_a_matrix_on_top_mends_classes_that_are_taken_for_one_another():
    rng = np.random.default_rng(0)
    logits, labels, ids = curved(6000, 3)
    labels = np.where(rng.random(len(labels)) < 0.3 * (labels == 1), 2, labels)
    cal = FedShapeCalibrator(matrix=True).fit(
        logits[::2], labels[::2], client_ids=ids[::2]
    )
    shape = FedShapeCalibrator().fit(logits[::2], labels[::2], client_ids=ids[::2])
    plain = FedMatrixCalibrator().fit(logits[::2], labels[::2], client_ids=ids[::2])
    own, other, third = (
        mean_loss(c.predict_log_proba(logits[1::2]), labels[1::2])
        for c in (cal, shape, plain)
    )
    assert cal.matrix_.shape == (3, 3)
    assert own < other - 0.005
    assert own < third + 0.002


def hard_rows(n, c, rng, dtype):
    """Random logits with zeros, ones, ties and almost-ties of probabilities."""
    rows = (rng.normal(size=(n, c)) * 10 ** rng.uniform(-2, 2, (n, 1))).astype(dtype)
    kind = rng.integers(0, 6, n)
    rows[kind == 0, 0] = -np.inf
    rows[kind == 1, 1:] = -np.inf
    rows[kind == 2, :2] = rows[kind == 2].max(axis=1, keepdims=True)
    rows[kind == 3] = rows[kind == 3].round(1)
    two = kind == 4  # one step of the last digit apart
    rows[two, 1] = np.nextafter(rows[two, 0], dtype(np.inf))
    return rows


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_argmax_never_changes_with_keep_order(dtype):
    rng = np.random.default_rng(0)
    logits, labels, ids = curved()
    cal = FedShapeCalibrator(keep_order=True).fit(logits, labels, client_ids=ids)
    scaled = 0
    for i in range(25):
        c = [2, 3, 5, 10][i % 4]
        theta = WHITEN @ (rng.normal(size=3) * SHAPE_SD * 10 ** rng.uniform(-1, 1.5))
        cal.shape_ = order_keeping(theta)
        scaled += cal.shape_ is not theta
        cal.temperature_ = float(np.exp(rng.normal()))
        cal.bias_, cal.n_features_in_ = np.zeros(c), c
        cal._restore_classes(np.arange(c), np.arange(c))
        rows = hard_rows(20_000, c, rng, dtype)
        proba = cal.predict_proba(rows)
        assert np.isfinite(proba).all()
        before, after = rows.argmax(axis=1), cal.predict(rows)
        # Ties may be broken in another way; the largest stays the largest.
        index = np.arange(len(rows))
        assert (rows[index, after] == rows[index, before]).all()
        ranks = np.argsort(rows, axis=1, kind="stable")
        assert (np.diff(np.take_along_axis(proba, ranks, axis=1), axis=1) >= 0).all()
    assert 5 < scaled < 25


def test_the_bound_on_the_order_is_not_too_strict():
    # Shapes of exact fits, whitened, pass unscaled; one that turns two classes is cut.
    small = WHITEN @ (SHAPE_SD * [1, -1, 1])
    assert order_keeping(small) is small
    large = np.array([-1.5, 0.0, 0.0])
    np.testing.assert_allclose(order_keeping(large), [-0.95, 0, 0])
    scores = shaped(np.log([[0.6], [0.4]]), large)
    assert scores[0, 0] < scores[1, 0]


def test_whitened_features_are_those_of_the_formula():
    logs = np.log(np.random.default_rng(0).dirichlet(np.ones(5), 50)).T
    np.testing.assert_allclose(
        whitened_features(logs), np.tensordot(WHITEN.T, phi(logs), 1), rtol=1e-10
    )


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"keep_order": True, "biases": True}, "biases=True can change"),
        ({"keep_order": True, "matrix": True}, "matrix=True can change"),
        ({"matrix": True, "biases": True}, "biases of its own"),
        ({"matrix": True, "eps": 1.0}, "needs exact sums"),
        ({"class_prior": [1, 2]}, "must hold 4 positive"),
        ({"biases": "some"}, "biases"),
    ],
)
def test_parts_that_exclude_each_other_are_refused(params, message):
    logits, labels, ids = curved(200)
    with pytest.raises(ValueError, match=message):
        FedShapeCalibrator(**params).fit(logits, labels, client_ids=ids)


def test_many_classes_have_no_biases_by_themselves():
    fed = make_federation(10, 2000, 60, random_state=0)
    cal = FedShapeCalibrator().fit(fed.clients)
    assert not cal.bias_.any()
    with pytest.raises(ValueError, match="limited to 128 classes"):
        FedShapeCalibrator(biases=True).fit(9 * np.eye(200), range(200))


def test_weights_are_repetitions():
    logits, labels, ids = curved(300)
    weights = np.random.default_rng(0).integers(0, 3, 300)
    repeat = np.repeat(np.arange(300), weights)
    one = FedShapeCalibrator(classes=range(4)).fit(
        logits, labels, client_ids=ids, sample_weight=weights
    )
    other = FedShapeCalibrator(classes=range(4)).fit(
        logits[repeat], labels[repeat], client_ids=ids[repeat]
    )
    np.testing.assert_allclose(one.shape_, other.shape_, atol=1e-6)
    np.testing.assert_allclose(one.bias_, other.bias_, atol=1e-6)


def test_rows_without_a_minimum_are_said():
    with pytest.warns(CalibrationWarning, match="no minimum inside"):
        FedShapeCalibrator().fit(20 * np.eye(3)[[0, 1, 2] * 5], [0, 1, 2] * 5)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperature_", -1.0, "not positive"),
        ("converged_", 1, "not true or false"),
        ("expected_gain_", -1.0, "not a gain"),
        ("shape_", {"array": [0.0], "dtype": "<f8", "shape": [1]}, "wrong shape"),
        ("bias_", {"array": [1e9] * 4, "dtype": "<f8", "shape": [4]}, "beyond"),
        ("matrix_", {"array": [0.0] * 4, "dtype": "<f8", "shape": [4]}, "wrong shape"),
    ],
)
def test_a_saved_map_is_checked(tmp_path, name, value, message):
    logits, labels, ids = curved(300)
    path = tmp_path / "cal.json"
    FedShapeCalibrator(matrix=True).fit(logits, labels, client_ids=ids).save(path)
    assert load(path).matrix_.shape == (4, 4)
    content = json.loads(path.read_text())
    content["fitted"][name] = value
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        load(path)


def dataset(n_clients=6, n=400, c=3):
    logits, labels, _ = curved(n, c)
    offsets = np.linspace(0, n, n_clients + 1).astype(int)
    return FederatedDataset(logits, labels, offsets, range(n_clients), c)


def test_held_back_rows_are_a_fifth_and_the_same_at_a_lone_client():
    data = dataset(8, 4000)
    held, kept = (held_back_rows(data, held=h) for h in (True, False))
    assert (held.sizes + kept.sizes == data.sizes).all()
    # Binomial(4000, 1/5) has a standard deviation of 25; 5.5 of them fail with 4e-8.
    assert abs(held.n_rows - 800) < 140
    for i in range(8):
        alone = held_back_rows(data.slice(i, i + 1), held=True).compact()
        whole = held.slice(i, i + 1).compact()
        assert alone.rows.tobytes() == whole.rows.tobytes()
    mixed = data.select(np.array([5, 2]))
    again = held_back_rows(mixed, held=True).slice(0, 1).compact()
    assert again.rows.tobytes() == held.slice(5, 6).compact().rows.tobytes()


def test_rounds_of_a_choice_are_few():
    data = dataset(5, 3000, 4)
    algorithm = MapNewton(kinds=("T", "S", "B", "BS", "SM"), choose=True, n_rounds=11)
    state, n_rounds = algorithm.init(4), 0
    while not algorithm.done(state):
        answer = algorithm.query(algorithm.broadcast(state), data)
        total = {name: rows.sum(axis=0) for name, rows in answer.items()}
        state = algorithm.update(state, total, 5)
        n_rounds += 1
    assert n_rounds <= 11
    assert state.kind in ("S", "BS", "SM")
    assert state.losses[("none", "T", "S", "B", "BS", "SM").index(state.kind)] == (
        state.losses.min()
    )
