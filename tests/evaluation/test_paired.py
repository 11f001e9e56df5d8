"""Paired comparison of two scores, against scikit-learn, DeLong and new clients."""

from math import sqrt

import numpy as np
import pytest
from scipy import stats
from scipy.stats import rankdata, sem
from sklearn import metrics
from sklearn.exceptions import UndefinedMetricWarning

from skfedcal import (
    CentralDP,
    DistributedDP,
    FederatedDataset,
    FederatedRunner,
    LocalDP,
    PrivacyLedger,
    SourceDP,
    federated_compare_scores,
    federated_log_loss,
    federated_roc_auc_score,
    make_federation,
)
from skfedcal.evaluation.paired_rounds import PairedDifferences, PairedScoreCounts
from skfedcal.exceptions import PrivacyWarning
from skfedcal.federation import (
    InProcessTransport,
    RemoteClients,
    Site,
    SitePolicy,
    SiteRows,
)
from skfedcal.methods.own_rows import held_back_rows

QUIET = pytest.mark.filterwarnings("ignore::skfedcal.exceptions.PrivacyWarning")


def two_scores(n_clients, seed, spread=0.6, least=4):
    """Log-odds of two models, labels and clients; the second model is better."""
    rng = np.random.default_rng(seed)
    sizes = least + rng.geometric(0.05, n_clients)
    ids = np.repeat(np.arange(n_clients), sizes)
    true = rng.normal(0, 1.5, len(ids)) + spread * rng.normal(size=n_clients)[ids]
    labels = (rng.random(len(ids)) < 1 / (1 + np.exp(-true))).astype(int)
    a = 1.6 * true + rng.normal(0, 0.8, len(ids))
    b = true + rng.normal(0, 0.5, len(ids)) + 0.3 * rng.normal(size=n_clients)[ids]
    return a, b, labels, ids


@pytest.fixture(scope="module")
def rows():
    return two_scores(60, 0)


def compare(rows, **options):
    a, b, labels, ids = rows
    options = {"client_ids": ids, "classes": [0, 1], **options}
    return federated_compare_scores(a, b, labels, **options)


def proba(odds):
    return 1 / (1 + np.exp(-odds))


def theirs(metric, odds, labels):
    if metric == "accuracy":
        return metrics.accuracy_score(labels, odds > 0)
    if metric == "brier":
        return metrics.brier_score_loss(labels, proba(odds))
    if metric == "log_loss":
        return metrics.log_loss(labels, proba(odds))
    return metrics.roc_auc_score(labels, odds)


@pytest.mark.parametrize("metric", ["accuracy", "brier", "log_loss", "roc_auc"])
def test_difference_is_that_of_sklearn(rows, metric):
    a, b, labels, _ = rows
    found = compare(rows, metric=metric)
    expected = theirs(metric, b, labels) - theirs(metric, a, labels)
    assert found == pytest.approx(expected, abs=1e-9 + found.discretisation)
    assert found.discretisation < (0.005 if metric == "roc_auc" else 1e-12)
    assert found.low < expected < found.high
    assert (found.population, found.estimand) == ("clients", "every row counts once")
    assert found.privacy is None


def test_several_classes_and_forms_of_scores():
    fed = make_federation(n_clients=20, n_samples=1500, random_state=0)
    a = fed.logits.astype(np.float64)
    b = a / 2
    one = federated_compare_scores(a, b, fed.labels, client_ids=fed.client_ids)

    def brier(logits):
        e = np.exp(logits - logits.max(axis=1, keepdims=True))
        p = e / e.sum(axis=1, keepdims=True)
        p[np.arange(len(p)), fed.labels] -= 1
        return (p**2).sum(axis=1).mean()

    assert one == pytest.approx(brier(b) - brier(a), abs=1e-9)
    pairs = [(z / 2, y) for z, y in fed.clients]
    assert federated_compare_scores(fed.clients, pairs) == pytest.approx(
        float(one), abs=1e-6
    )
    e = np.exp(a - a.max(axis=1, keepdims=True))
    p = e / e.sum(axis=1, keepdims=True)
    q = p**0.5 / (p**0.5).sum(axis=1, keepdims=True)
    given = federated_compare_scores(
        p, q, fed.labels, client_ids=fed.client_ids, input_type="proba"
    )
    assert given == pytest.approx(float(one), abs=1e-9)
    with pytest.raises(ValueError, match="two classes, not for 10"):
        federated_compare_scores(fed.clients, pairs, metric="roc_auc")


def delong(rows):
    """Influence of every row in the difference of two areas (DeLong et al., 1988)."""
    a, b, labels, _ = rows
    out = np.zeros(len(labels))
    for sign, odds in ((-1, a), (1, b)):
        for own in (0, 1):
            mine, other = odds[labels == own], odds[labels != own]
            both = rankdata(np.concatenate([mine, other]))[: len(mine)]
            below = (both - rankdata(mine)) / len(other)
            place = below if own else 1 - below
            out[labels == own] += sign * (place - place.mean()) / len(mine)
    return out


def test_error_of_areas_is_that_of_delong(rows):
    influence, ids = delong(rows), rows[3]
    alone = compare(rows, metric="roc_auc", population="rows")
    assert alone.se_sampling == pytest.approx(np.sqrt((influence**2).sum()), rel=0.01)
    found = compare(rows, metric="roc_auc")
    direct = np.sqrt((np.bincount(ids, influence) ** 2).sum())
    # Corrections for 60 clients of unequal size add about one per cent.
    assert direct < found.se_sampling < 1.04 * direct


def test_error_of_means_is_that_of_client_sums(rows):
    a, b, labels, ids = rows
    gap = (proba(b) - labels) ** 2 - (proba(a) - labels) ** 2
    each = np.bincount(ids, gap - gap.mean()) / len(gap)
    found = compare(rows)
    direct = np.sqrt((each**2).sum())
    assert direct < found.se_sampling < 1.04 * direct
    alone = compare(rows, population="rows")
    assert alone.se_sampling == pytest.approx(sem(gap), rel=1e-3)
    assert found.design_effect == pytest.approx(
        (found.se_sampling / alone.se_sampling) ** 2, rel=1e-3
    )
    means = np.bincount(ids, gap) / np.bincount(ids)
    weighted = compare(rows, weighting="client")
    assert weighted == pytest.approx(means.mean())
    assert weighted.se_sampling == pytest.approx(sem(means), rel=1e-6)
    assert weighted.estimand == "every client counts once"


def test_error_is_that_of_a_bootstrap_of_clients(rows):
    a, b, labels, ids = rows
    rng = np.random.default_rng(0)
    where = [np.flatnonzero(ids == k) for k in range(60)]
    drawn = []
    for _ in range(120):
        at = np.concatenate([where[k] for k in rng.integers(0, 60, 60)])
        positive = labels[at] == 1
        ranks = rankdata(np.c_[a, b][at], axis=0)[positive].mean(axis=0)
        drawn.append((ranks[1] - ranks[0]) / (~positive).sum())
    found = compare(rows, metric="roc_auc")
    # The deviation of 120 normal numbers has a standard error of 6.5 %: five of them,
    # and a few per cent for terms of second order.
    assert found.se_sampling == pytest.approx(np.std(drawn), rel=0.36)


def test_a_paired_interval_is_shorter_than_two(rows):
    a, b, labels, ids = rows
    for metric, function in (
        ("log_loss", federated_log_loss), ("roc_auc", federated_roc_auc_score)
    ):  # fmt: skip
        found = compare(rows, metric=metric)
        two = [function(s, labels, client_ids=ids, classes=[0, 1]) for s in (a, b)]
        width = np.hypot(*(one.high - one.low for one in two))
        assert width > 1.5 * (found.high - found.low)


def test_intervals_hold_when_clients_are_drawn_anew():
    # As in test_population: 122 of 150 hits. One row per client under privacy.
    large = two_scores(20_000, 99)
    right = [float(compare(large, metric=m)) for m in ("brier", "roc_auc")]
    once = float(compare(large, weighting="client"))
    hits = np.zeros(3)
    for seed in range(150):
        sample = two_scores(40, seed)
        found = [compare(sample, metric=m) for m in ("brier", "roc_auc")]
        hits[:2] += [f.low <= r <= f.high for f, r in zip(found, right, strict=True)]
        with pytest.warns(PrivacyWarning):
            private = compare(
                sample, privacy=CentralDP(2.0), weighting="client", random_state=seed
            )
        hits[2] += private.low <= once <= private.high
    assert (hits >= 122).all(), hits


@QUIET
@pytest.mark.parametrize("metric", ["accuracy", "log_loss", "roc_auc"])
@pytest.mark.parametrize(
    "privacy",
    [CentralDP(1.0), CentralDP(1.0, unit="example"), DistributedDP(1.0), SourceDP(1.0)],
    ids=repr,
)
def test_eps_is_paid_and_stated(rows, metric, privacy):
    ledger = PrivacyLedger(budget=(1.0, 1e-6))
    found = compare(rows, metric=metric, privacy=privacy, ledger=ledger, random_state=0)
    assert found.eps == 1.0 and found.unit == privacy.unit and found.simulated
    assert ledger.spent() == pytest.approx(1.0, rel=1e-6)
    assert len(found.privacy.ledger_ids) == (3 if metric == "roc_auc" else 1)
    expected = "rows" if privacy.unit == "example" else "clients"
    assert found.population == expected and found.se_privacy > 0


@QUIET
def test_noise_is_that_which_is_stated(rows):
    exact = float(compare(rows, weighting="client"))
    found = [
        compare(rows, weighting="client", privacy=CentralDP(4.0), random_state=seed)
        for seed in range(150)
    ]
    errors = np.array([float(one) - exact for one in found])
    stated = np.mean([one.se_privacy for one in found])
    # 150 Laplace numbers: the deviation has a standard error of 9 %.
    assert errors.std() == pytest.approx(stated, rel=0.5)
    assert abs(errors.mean()) < 5.5 * stated / np.sqrt(150)


def test_held_back_rows_are_those_of_the_rule(rows):
    a, b, labels, ids = rows
    offsets = np.searchsorted(ids, np.arange(61))
    data = FederatedDataset(np.c_[a, b], labels, offsets, range(60), 2)
    held = held_back_rows(data, held=True)
    kept = data.rows[held.order], held.labels
    for metric in ("brier", "roc_auc"):
        found = compare(rows, metric=metric, held_back=True)
        first, second = (theirs(metric, kept[0][:, k], kept[1]) for k in (0, 1))
        assert found == pytest.approx(second - first, abs=1e-9 + found.discretisation)


@pytest.mark.parametrize(
    "algorithm",
    [
        PairedDifferences("accuracy", 2, max_examples=5),
        PairedDifferences("log_loss", 2, held=True, weighting="client"),
        PairedDifferences("brier", 2, bound=1.0, max_examples=3),
        PairedDifferences("weights", 2, weights=tuple(np.linspace(-1, 1, 32).tolist())),
        PairedScoreCounts((3,), second=True, held=True),
    ],
    ids=repr,
)
def test_a_contribution_depends_on_own_rows_only(rows, algorithm):
    a, b, labels, ids = rows
    offsets = np.searchsorted(ids, np.arange(61))
    data = FederatedDataset(np.c_[a, b], labels, offsets, range(60), 2)
    start = {"round": np.asarray(0)}

    def sent(clients):
        found = algorithm.query(start, clients)
        return {
            k: v if isinstance(v, np.ndarray) else v.dense() for k, v in found.items()
        }

    together = sent(data)
    for k in (0, 31, 59):
        for name, values in sent(data.slice(k, k + 1)).items():
            np.testing.assert_array_equal(values[0], together[name][k])


@pytest.mark.parametrize("metric", ["accuracy", "roc_auc"])
def test_sites_have_both_scores_in_their_files(rows, metric):
    a, b, labels, ids = rows
    sites = {
        f"site-{k}": Site(
            f"site-{k}",
            SiteRows(np.c_[a, b][ids == k], labels[ids == k], "features"),
            policy=SitePolicy(allow_plain=True),
        )
        for k in range(6)
    }
    remote = RemoteClients(InProcessTransport(sites), n_columns=2)
    names = [f"site-{k}" for k in range(6)]
    there = federated_compare_scores(remote, classes=[0, 1], metric=metric)
    pairs = [[(s[ids == k], labels[ids == k]) for k in range(6)] for s in (a, b)]
    here = federated_compare_scores(
        *pairs, client_ids=names, classes=[0, 1], metric=metric
    )
    assert repr(there) == repr(here)


def test_engines_agree(rows):
    masked = FederatedRunner(secure=True)
    for metric in ("brier", "roc_auc"):
        one, other = (
            compare(rows, metric=metric),
            compare(rows, metric=metric, runner=masked),
        )
        assert repr(one) == repr(other)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"metric": "ece"}, "metric='ece': pass one of"),
        ({"metric": None}, "metric=None: pass one of"),
        ({"weighting": "rows"}, "weighting='rows'"),
        ({"ci": 2}, "confidence level"),
        ({"privacy": LocalDP(1.0)}, "LocalDP cannot"),
        (
            {"privacy": CentralDP(1.0, unit="example"), "held_back": True},
            "held_back=True: ",
        ),
        (
            {"privacy": CentralDP(1.0, unit="example"), "weighting": "client"},
            "weighting='client': ",
        ),
        ({"population": "x"}, "population='x'"),
    ],
)
def test_settings_that_cannot_be(rows, options, match):
    with pytest.raises(ValueError, match=match):
        compare(rows, **options)


def test_scores_of_other_rows_are_refused(rows):
    a, _, labels, ids = rows
    with pytest.raises(ValueError, match="clients_b is missing"):
        federated_compare_scores(a, None, labels, client_ids=ids)
    first = [([0.1, 2.0], [0, 1]), ([1.0], [0])]
    for other in (
        [([0.1, 2.0], [0, 1]), ([1.0], [1])],
        [([0.1], [0]), ([1.0, 2.0], [1, 0])],
    ):
        with pytest.raises(ValueError, match="two scores of the same rows"):
            federated_compare_scores(first, other)
    one_class = [([0.1], [0]), ([0.3], [0])]
    with pytest.warns(UndefinedMetricWarning, match="only one class"):
        found = federated_compare_scores(
            one_class, one_class, metric="roc_auc", classes=[0, 1]
        )
    assert np.isnan(found)


@pytest.mark.parametrize("population", ["clients", "rows"])
def test_interval_of_no_changed_prediction_is_not_a_point(population):
    """The law of Bonett and Price at 0 changes: a half width of q sqrt(2) / n."""
    rng = np.random.default_rng(0)
    first = [
        (rng.standard_normal((50, 3)), rng.integers(3, size=50)) for _ in range(16)
    ]
    second = [(2 * rows, labels) for rows, labels in first]
    found = federated_compare_scores(
        first, second, metric="accuracy", population=population
    )
    assert found.value == 0
    free, width = (15, 800) if population == "clients" else (np.inf, sqrt(800 * 799))
    half = (found.high - found.low) / 2
    assert half == pytest.approx(stats.t.ppf(0.975, free) * sqrt(2) / width)
