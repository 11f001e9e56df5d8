"""Classwise residuals and one-vs-rest areas of several classes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import softmax
from sklearn.metrics import roc_auc_score

from skfedcal import CentralDP, ClasswiseResiduals, federated_roc_auc_score
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.evaluation.rounds import (
    ClassResiduals,
    ClassTables,
    OneVsRestCounts,
    OneVsRestMoments,
    ResidualMoments,
)
from skfedcal.methods.score_curves.rounds import ScoreCounts
from skfedcal.metrics import classwise_calibration_error
from skfedcal.privacy import DistributedDP, LocalDP, SourceDP

pytestmark = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning"
)


def pooled(clients):
    rows, labels = (np.concatenate(part) for part in zip(*clients, strict=True))
    weights = np.exp(rows - rows.max(axis=1, keepdims=True))
    return rows, weights / weights.sum(axis=1, keepdims=True), labels


def one_row_each(rows, labels, n_classes):
    offsets = np.arange(len(rows) + 1)
    return FederatedDataset(rows, labels, offsets, range(len(rows)), n_classes)


@given(
    rows=arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(2, 9)),
                elements=st.floats(-50, 50)),
    seed=st.integers(0, 9),
)  # fmt: skip
def test_a_row_has_an_l1_norm_of_two_at_most(rows, seed):
    n, c = rows.shape
    labels = np.random.default_rng(seed).integers(0, c, n)
    data = one_row_each(rows, labels, c)
    algorithm = ClassResiduals(n_bins=5, private=True, count_rows=False)
    broadcast = algorithm.broadcast(algorithm.init(c))
    sent = algorithm.query(broadcast, data)["residuals"]
    assert (np.abs(sent).sum(axis=(1, 2)) <= 2 + 1e-12).all()
    assert algorithm.spec(broadcast)["residuals"].sensitivity == 2


def test_the_norm_of_two_is_attained():
    data = one_row_each(np.array([[0.0, 800.0, 0.0]]), np.array([2]), 3)
    algorithm = ClassResiduals(private=True)
    sent = algorithm.query(algorithm.broadcast(algorithm.init(3)), data)
    assert np.abs(sent["residuals"]).sum() == 2


def test_exact_sums_give_the_central_error(clients):
    _, proba, labels = pooled(clients)
    residuals = ClasswiseResiduals.fit(clients, n_bins=10)
    expected = classwise_calibration_error(labels, proba, n_bins=10)
    assert residuals.cwece(debias=False) == pytest.approx(expected, abs=1e-10)
    single = classwise_calibration_error(labels, proba, n_bins=10, average=None)
    np.testing.assert_allclose(residuals.per_class(debias=False), single, atol=1e-10)
    assert residuals.n_examples_ == len(labels)
    assert residuals.cwece() < residuals.cwece(debias=False)


@pytest.mark.parametrize(
    "privacy",
    [CentralDP(50.0), DistributedDP(50.0), SourceDP(50.0),
     CentralDP(50.0, unit="example")],
    ids=repr,
)  # fmt: skip
def test_little_noise_gives_nearly_the_same(clients, privacy):
    limit = None if privacy.unit == "example" else 1000
    found = ClasswiseResiduals.fit(
        clients, privacy=privacy, max_examples_per_client=limit, random_state=0
    )
    exact = ClasswiseResiduals.fit(clients)
    spread = np.sqrt(found.noise_variance_)
    assert spread > 0
    assert np.abs(found.residuals_ - exact.residuals_).max() < 14 * spread
    assert found.n_examples_ == pytest.approx(exact.n_examples_, rel=0.5)
    estimate = found.cwece()
    assert estimate.se_privacy > 0 and estimate.se_sampling > 0


def test_debiasing_takes_off_the_noise(clients):
    exact = float(ClasswiseResiduals.fit(clients).cwece(debias=False))
    plain, debiased = [], []
    for seed in range(10):
        found = ClasswiseResiduals.fit(
            clients, privacy=SourceDP(1.0), random_state=seed
        )
        plain.append(found.cwece(debias=False))
        debiased.append(found.cwece())
    assert abs(np.mean(debiased) - exact) < 0.6 * abs(np.mean(plain) - exact)


def test_local_models_are_refused(clients):
    with pytest.raises(ValueError, match="ScoreHistogram"):
        ClasswiseResiduals.fit(clients, privacy=LocalDP(1.0))
    with pytest.raises(ValueError, match="DistributedDP"):
        federated_roc_auc_score(
            clients, privacy=LocalDP(1.0), multi_class="ovr", n_others=1
        )


def test_one_vs_rest_area_is_that_of_sklearn(clients):
    _, proba, labels = pooled(clients)
    area = federated_roc_auc_score(clients, multi_class="ovr")
    expected = roc_auc_score(labels, proba, multi_class="ovr")
    assert abs(area - expected) <= area.discretisation
    assert area.discretisation < 0.02
    single = federated_roc_auc_score(clients, multi_class="ovr", average=None)
    assert np.mean(single) == pytest.approx(area)
    for k, one in enumerate(single):
        assert abs(one - roc_auc_score(labels == k, proba[:, k])) <= one.discretisation


@pytest.mark.parametrize("n_others", [1, 2])
def test_one_vs_rest_rows_have_few_entries(n_others):
    rng = np.random.default_rng(0)
    rows, labels = rng.random((20, 6)), rng.integers(0, 6, 20)
    algorithm = OneVsRestCounts((2, 4), n_classes=6, n_others=n_others)
    sent = algorithm.query(
        algorithm.broadcast(algorithm.init(6)), one_row_each(rows, labels, 6)
    )
    for bits in (2, 4):
        dense = sent[f"level_{bits}"].dense()
        assert (dense.sum(axis=(1, 2)) == n_others + 1).all()
        # Tables are negatives, then positives, of each class.
        assert (dense[:, 6:].sum(axis=(1, 2)) == 1).all()
        assert (dense[np.arange(20), 6 + labels].sum(axis=1) == 1).all()
        assert (dense[np.arange(20), labels].sum(axis=1) == 0).all()


def test_sparse_reports_under_noise(clients):
    exact = federated_roc_auc_score(clients, multi_class="ovr", n_others=1)
    noisy = federated_roc_auc_score(
        clients, multi_class="ovr", privacy=SourceDP(20.0), n_others=1, random_state=0
    )
    assert noisy.se_privacy > 0
    assert abs(noisy - exact) < 6 * noisy.se_privacy


@pytest.mark.parametrize(
    "algorithm",
    [
        ScoreCounts((2, 5), max_examples=3, salt=7),
        ScoreCounts((3,), weighting="client"),
        OneVsRestCounts((2, 5), max_examples=3, salt=7, n_classes=4),
        ClassResiduals(max_examples=3, salt=7),
        ResidualMoments(max_examples=3, salt=7, n_bins=2, weights=(0.3, -1.0) * 4),
        OneVsRestMoments((2, 5), max_examples=3, salt=7, n_classes=4, n_others=2),
        ClassTables(
            ("margins", "scores", "pairs", "top"),
            (0, 3, 2, 4),
            n_classes=4,
            max_examples=3,
            salt=7,
        ),
        ClassTables(("scores",), (3,), n_classes=4, one_cell=True, by_values=True),
    ],
    ids=lambda a: type(a).__name__,
)
def test_an_answer_depends_on_own_rows_only(algorithm):
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 9, 30)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    n = int(offsets[-1])
    width = 1 if type(algorithm) is ScoreCounts else 4
    labels = rng.integers(0, 2 if width == 1 else 4, n)
    data = FederatedDataset(rng.random((n, width)), labels, offsets, range(30), 4)
    broadcast = algorithm.broadcast(algorithm.init(4))

    def ask(part):
        sent = algorithm.query(broadcast, part)
        return {
            name: rows.dense() if hasattr(rows, "dense") else rows
            for name, rows in sent.items()
        }

    together = ask(data)
    shuffled = ask(data.select(np.arange(30)[::-1]))
    for i in range(30):
        alone = ask(data.slice(i, i + 1))
        for name, rows in together.items():
            assert (alone[name][0] == rows[i]).all()
            assert (shuffled[name][29 - i] == rows[i]).all()


def differing_clients(n_clients, each, n_classes, seed):
    """Clients of equal size whose scores are off by a shift of their own."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n_clients):
        logits = rng.normal(0, 1.5, (each, n_classes))
        true = softmax(logits * 0.5 + rng.normal(0, 0.8, n_classes), axis=1)
        labels = (true.cumsum(axis=1) < rng.random((each, 1))).sum(axis=1)
        out.append((logits, labels.clip(0, n_classes - 1)))
    return out


@pytest.mark.parametrize("n_clients", [5, 60])
def test_residuals_have_the_variance_between_clients(n_clients):
    # Of clients of equal size: the variance of their means, with K - 1 for K.
    clients = differing_clients(n_clients, 200, 3, seed=1)
    found = ClasswiseResiduals.fit(clients, n_bins=1, classes=range(3))
    n = n_clients * 200
    own = np.array(
        [(np.eye(3)[y] - softmax(z, axis=1)).sum(axis=0) for z, y in clients]
    )
    spread = n_clients * own.var(axis=0, ddof=1)
    (moments,) = found.moments_
    np.testing.assert_allclose(moments.variance[4:], spread, rtol=1e-6)
    np.testing.assert_allclose(moments.freedom[4:], n_clients - 1, rtol=1e-6)
    signs = np.sign(own.sum(axis=0)) * (
        np.abs(own.sum(axis=0)) > 3 * np.sqrt(found.squares_[:, 0])
    )
    joint = n_clients * (own @ signs).var(ddof=1)
    assert moments.variance[0] == pytest.approx(joint, rel=1e-6, abs=1e-9)
    for k, one in enumerate(found.per_class()):
        assert one.population == "clients"
        assert one.se_sampling >= 0.99 * np.sqrt(spread[k]) / n
        assert one.design_effect > 2
    by_rows = ClasswiseResiduals.fit(
        clients, n_bins=1, classes=range(3), population="rows"
    )
    assert by_rows.cwece().population == "rows" and not by_rows.moments_
    assert found.cwece().high - found.cwece().low > 1.5 * (
        by_rows.cwece().high - by_rows.cwece().low
    )
    np.testing.assert_array_equal(found.residuals_, by_rows.residuals_)


def test_sparse_areas_have_the_variance_of_influence_values():
    clients = differing_clients(40, 50, 3, seed=2)
    common = {"multi_class": "ovr", "n_others": 2, "classes": range(3)}
    found = federated_roc_auc_score(clients, average=None, **common)
    scores, labels = (np.concatenate(part) for part in zip(*clients, strict=True))
    proba = softmax(scores, axis=1)
    slices = np.repeat(np.arange(40), 50)
    means = []
    for k, one in enumerate(found):
        # Hoeffding's projection of the area, row by row.
        own, rest = proba[labels == k, k], proba[labels != k, k]
        value = np.empty(len(labels))
        above = [(own > p).mean() for p in rest]
        below = [(rest < p).mean() for p in own]
        value[labels != k] = (np.array(above) - np.mean(above)) / len(rest)
        value[labels == k] = (np.array(below) - np.mean(below)) / len(own)
        total = np.bincount(slices, value)
        means.append(total)
        expected = np.sqrt(40 * total.var(ddof=1))
        # Buckets instead of scores.
        assert one.se_sampling == pytest.approx(expected, rel=0.02)
        assert one.population == "clients"
    macro = federated_roc_auc_score(clients, **common)
    expected = np.sqrt(40 * np.mean(means, axis=0).var(ddof=1))
    assert macro.se_sampling == pytest.approx(expected, rel=0.02)
    by_rows = federated_roc_auc_score(
        clients, population="rows", average=None, **common
    )
    assert all(
        a.se_sampling > b.se_sampling for a, b in zip(found, by_rows, strict=True)
    )


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
def test_rows_of_a_client_are_all_alike_under_privacy():
    clients = differing_clients(60, 20, 3, seed=3)
    private = {"privacy": CentralDP(50.0), "random_state": 0, "classes": range(3)}
    for bound in (1, 4):
        rows = {"max_examples_per_client": bound}
        residuals = ClasswiseResiduals.fit(clients, **private, **rows).cwece()
        area = federated_roc_auc_score(
            clients, multi_class="ovr", n_others=1, **private, **rows
        )
        for one in (residuals, area):
            assert one.population == "clients"
            assert one.design_effect == pytest.approx(bound)


@pytest.mark.parametrize(
    ("algorithm", "text"),
    [
        (ResidualMoments(n_bins=2, private=True), "exact sums"),
        (ResidualMoments(n_bins=2, weights=(1.0,)), "1 weights; expected 8 or none"),
        (ResidualMoments(n_bins=2, weights=(1.5,) * 8), "weights"),
        (ResidualMoments(n_bins=10_000), None),
        (OneVsRestMoments((15,), n_classes=4), "number of weights"),
        (OneVsRestMoments((2,), n_classes=4, clip=1.0), "exact sums"),
    ],
)
def test_second_moments_that_a_site_refuses(algorithm, text):
    if text is None:
        algorithm.forms(4)
        return
    with pytest.raises(ValueError, match=text):
        algorithm.forms(4)
