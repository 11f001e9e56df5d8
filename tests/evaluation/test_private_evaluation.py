"""Histograms under noise: bounds, laws, intervals, and what is paid."""

import warnings

import numpy as np
import pytest
from sklearn import metrics

from skfedcal import (
    CentralDP,
    ClasswiseResiduals,
    FederatedRunner,
    PrivacyLedger,
    ScoreHistogram,
)
from skfedcal.exceptions import BudgetExceededError, LogitsWarning, PrivacyWarning
from skfedcal.federation import InProcess
from skfedcal.privacy import DistributedDP, LocalDP, SourceDP

pytestmark = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning"
)

MODELS = [
    CentralDP(1.0),
    CentralDP(1.0, unit="example"),
    DistributedDP(1.0),
    DistributedDP(1.0, n_min=900, mode="faithful"),
    SourceDP(1.0),
    SourceDP(1.0, mode="faithful"),
    LocalDP(5.0),
    LocalDP(1.0, mode="faithful"),
    LocalDP(2.0, oracle="oue"),
    LocalDP(2.0, oracle="subset", mode="faithful"),
    LocalDP(2.0, oracle="olh"),
]


def fit(scores, labels, ids=None, **options):
    ids = np.arange(len(scores)) if ids is None else ids
    options = {"input_type": "proba", "random_state": 0, **options}
    return ScoreHistogram.fit(scores, labels, client_ids=ids, **options)


@pytest.mark.parametrize("privacy", MODELS, ids=repr)
def test_every_answer_has_an_error_and_is_near_the_truth(draw_scores, privacy):
    scores, labels = draw_scores(1000)
    hist, exact = fit(scores, labels, privacy=privacy), fit(scores, labels)
    assert hist.privacy_.eps == pytest.approx(privacy.eps)
    for ask in (
        lambda h: h.roc_auc(),
        lambda h: h.accuracy(0.4),
        lambda h: h.recall(0.4),
        lambda h: h.brier(),
        lambda h: h.log_loss(),
        lambda h: h.confusion().tp,
    ):
        found, true = ask(hist), ask(exact)
        assert found.se_privacy > 0 and np.isfinite(found.se)
        # Six standard errors of the noise; LDP has coarser buckets, too.
        gap = found.discretisation + true.discretisation
        assert abs(found - true) < 6 * found.se_privacy + gap


@pytest.mark.parametrize("privacy", MODELS, ids=repr)
def test_curves_and_bins_are_in_order(draw_scores, privacy):
    scores, labels = draw_scores(1000)
    hist = fit(scores, labels, privacy=privacy)
    roc, curve = hist.roc_curve(), hist.pr_curve()
    for rate in (roc.fpr, roc.tpr):
        assert (np.diff(rate) >= 0).all() and rate[0] == 0 and rate[-1] == 1
    assert ((curve.precision >= 0) & (curve.precision <= 1)).all()
    assert np.isfinite(curve.se_precision).all()
    points = hist.reliability(5, strategy="quantile")
    assert ((points.prob_true >= 0) & (points.prob_true <= 1)).all()
    edges = hist.equi_depth(7)
    assert (np.diff(edges) > 0).all()
    for estimate in (hist.ece(), hist.l2_ece(), hist.average_precision(), hist.f1()):
        assert np.isfinite(estimate.se)


def test_levels_of_each_model(draw_scores):
    scores, labels = draw_scores(200)
    for privacy, bits in (
        (None, (10,)),
        (DistributedDP(1.0), (3,)),
        (DistributedDP(1.0), (2, 6, 10)),
        (SourceDP(1.0), (2, 6, 10)),
        (LocalDP(2.0), (1, 2, 3, 4, 5)),
        (LocalDP(5.0), (1, 2, 3, 4, 5, 6)),
    ):
        height = 10 if bits[-1] == 10 else "auto"
        assert fit(scores, labels, privacy=privacy, height=height).noise_.bits == bits
    for eps, height in ((2.0, 4), (3.0, 5), (4.0, 6)):
        hist = fit(scores, labels, privacy=LocalDP(eps), space="prob")
        assert hist.grid.height == height
    assert fit(scores, labels, privacy=LocalDP(5.0), levels=(4,)).noise_.bits == (4,)


def test_a_client_reports_on_one_level_with_the_whole_budget(draw_scores):
    scores, labels = draw_scores(1000)
    hist = fit(scores, labels, privacy=LocalDP(2.0, oracle="oue"))
    laws = hist.noise_.levels
    assert [law.n_reports for law in laws] == [200] * 5
    for law in laws:
        assert law.q == pytest.approx(1 / (np.exp(2.0) + 1))
    assert hist.privacy_.eps == 2.0


def test_many_examples_of_a_client_are_bounded_not_overspent(draw_scores):
    scores, labels = draw_scores(3000)
    ids = np.arange(3000) % 100
    hist = fit(scores, labels, ids, privacy=LocalDP(5.0))
    assert hist.noise_.n_reports == 100
    assert hist.privacy_.eps == 5.0
    assert fit(scores, labels, ids, privacy=DistributedDP(20.0)).n_examples_ < 130
    with pytest.raises(ValueError, match="spend eps again"):
        fit(scores, labels, ids, privacy=LocalDP(5.0), max_examples_per_client=2)


@pytest.mark.parametrize("limit", [1, 4])
def test_noise_grows_with_the_bound(draw_scores, limit):
    scores, labels = draw_scores(500)
    ids = np.arange(500) % 50
    privacy = DistributedDP(3.0)
    hist = fit(
        scores, labels, ids, privacy=privacy, max_examples_per_client=limit, height=10
    )
    # Discrete Laplace noise with eps over three levels and `limit` rows.
    q = np.exp(-1.0 / limit)
    for law in hist.noise_.levels:
        assert law.variance == pytest.approx(2 * q / (1 - q) ** 2, rel=0.01)
    assert set(hist.privacy_.clip.values()) == {float(limit)}


def test_weighted_clients_have_a_bound_of_one(draw_scores):
    scores, labels = draw_scores(500)
    ids = np.arange(500) % 50
    hist = fit(scores, labels, ids, privacy=DistributedDP(3.0), weighting="client")
    assert set(hist.privacy_.clip.values()) == {1.0}
    assert hist.n_examples_ == pytest.approx(50, abs=40)


@pytest.mark.parametrize(
    "options", [{"weighting": "client"}, {"max_examples_per_client": 2}], ids=str
)
def test_where_examples_are_protected_clients_have_no_bound(draw_scores, options):
    scores, labels = draw_scores(100)
    with pytest.raises(ValueError, match="protects single examples"):
        fit(scores, labels, np.arange(100) % 9, privacy=SourceDP(1.0), **options)


def test_empty_clients_do_not_report_locally(draw_scores):
    scores, labels = draw_scores(100)
    pairs = [([s], [y]) for s, y in zip(scores, labels, strict=True)]
    pairs += [([], [])] * 50
    hist = fit(pairs, None, ids=range(150), privacy=LocalDP(5.0), classes=[0, 1])
    assert hist.noise_.n_reports == 100


def test_too_few_clients_for_the_levels(draw_scores):
    scores, labels = draw_scores(3)
    with pytest.raises(ValueError, match="smaller height"):
        fit(scores, labels, privacy=LocalDP(5.0), classes=[0, 1])


def test_the_ledger_pays_first(draw_scores):
    scores, labels = draw_scores(300)
    ledger = PrivacyLedger(budget=(1.5, 1e-4))
    fit(scores, labels, privacy=DistributedDP(1.0), ledger=ledger)
    with pytest.raises(BudgetExceededError):
        fit(scores, labels, privacy=DistributedDP(1.0), ledger=ledger)
    (record,) = ledger.records()
    assert "ScoreHistogram" in str(record)


def test_a_seed_repeats_and_no_seed_does_not(draw_scores):
    scores, labels = draw_scores(300)
    for privacy in (DistributedDP(1.0), LocalDP(1.0)):
        one, same, other = (
            fit(scores, labels, privacy=privacy, random_state=seed).counts_
            for seed in (1, 1, None)
        )
        assert (one == same).all() and (one != other).any()


def test_labels_of_private_rows_should_be_declared(draw_scores):
    scores, labels = draw_scores(300)
    names = np.array(["no", "yes"])[labels]
    with pytest.warns(PrivacyWarning, match="Pass `classes`"):
        fit(scores, names, privacy=CentralDP(1.0))


@pytest.mark.parametrize(
    "privacy", [DistributedDP(1.0), LocalDP(2.0), SourceDP(1.0)], ids=repr
)
def test_merge_adds_counts_and_variances(draw_scores, privacy):
    scores, labels = draw_scores(600)
    parts = [
        fit(scores[k::3], labels[k::3], privacy=privacy, random_state=k)
        for k in range(3)
    ]
    left = parts[0].merge(parts[1]).merge(parts[2])
    right = parts[0].merge(parts[1].merge(parts[2]))
    np.testing.assert_allclose(left.counts_, right.counts_, rtol=1e-12, atol=1e-9)
    assert left.n_clients_ == 600 and left.privacy_.eps == privacy.eps
    for law, first in zip(left.noise_.levels, parts[0].noise_.levels, strict=True):
        assert law.variance == pytest.approx(3 * first.variance, rel=0.02)
    assert ScoreHistogram.from_json(left.to_json()).to_json() == left.to_json()
    with pytest.raises(ValueError, match="cannot be merged"):
        left.merge(fit(scores, labels))


def test_a_merged_report_claims_no_more_than_both_have(draw_scores):
    scores, labels = draw_scores(600)
    plain = fit(scores, labels, height=4, privacy=DistributedDP(1.0))
    twice = fit(
        scores, labels, height=4, privacy=DistributedDP(1.0, adjacency="replace")
    )
    for one, other in ((plain, twice), (twice, plain)):
        with pytest.raises(ValueError, match="differ in adjacency"):
            one.merge(other)
    real = fit(scores, labels, height=4, privacy=DistributedDP(1.0), random_state=None)
    for merged in (real.merge(plain), plain.merge(real)):
        assert merged.privacy_.seeded and not merged.privacy_.secure
        assert "SIMULATED, seeded" in repr(merged.privacy_)
    wide = fit(scores, labels, height=4, privacy=CentralDP(2.0), random_state=None)
    narrow = fit(scores, labels, height=4, privacy=CentralDP(1.0))
    for merged in (wide.merge(narrow), narrow.merge(wide)):
        assert merged.privacy_.eps == 2.0 and not merged.privacy_.secure
    with pytest.raises(TypeError, match="pass another ScoreHistogram"):
        plain.merge(None)


def test_values_of_private_rows_make_no_warning(draw_scores):
    scores, labels = draw_scores(600)
    both = np.column_stack([1 - scores, scores])
    with warnings.catch_warnings():
        warnings.simplefilter("error", LogitsWarning)
        for X in (scores, both):
            fit(X, labels, input_type="logits", privacy=CentralDP(1.0))


def test_a_run_that_broke_is_resumed_with_the_same_rows(
    draw_scores, tmp_path, monkeypatch
):
    scores, labels = draw_scores(600)
    ids, path = np.arange(600) // 6, tmp_path / "run.json"
    ledger = PrivacyLedger(budget=(1.0, 1e-5))
    common = {"privacy": CentralDP(1.0), "ledger": ledger, "random_state": None}
    setting = {"cohort": "permuted", "cohort_size": 25, "checkpoint": path}

    def down(*_):
        raise RuntimeError("down")

    with monkeypatch.context() as patch:
        patch.setattr(InProcess, "total", down)
        with pytest.raises(RuntimeError, match="down"):
            fit(scores, labels, ids, runner=FederatedRunner(**setting), **common)
    assert path.exists() and ledger.spent() == 1.0
    runner = FederatedRunner(**setting, resume=True)
    hist = fit(scores, labels, ids, runner=runner, **common)
    assert len(hist.history_) == 4 and ledger.spent() == 1.0


def test_cohorts_of_a_runner_add_up(draw_scores):
    scores, labels = draw_scores(400)
    runner = FederatedRunner(cohort="permuted", cohort_size=100)
    once = fit(scores, labels, privacy=CentralDP(1.0))
    four = fit(scores, labels, privacy=CentralDP(1.0), runner=runner)
    assert four.privacy_.eps == 1.0  # nobody is asked twice
    for law, first in zip(four.noise_.levels, once.noise_.levels, strict=True):
        assert law.variance == pytest.approx(4 * first.variance, rel=0.01)


def test_noise_is_what_the_model_says(draw_scores):
    # 40 releases of 8 + 128 + 2048 numbers: the variance of all is known to 2 %
    # (kurtosis 6 of Laplace noise: sqrt(5 / 87360) = 0.8 %); 5 % are six of these.
    scores, labels = draw_scores(300)
    exact = fit(scores, labels, levels=(2, 6, 10))
    found = []
    for seed in range(40):
        hist = fit(
            scores, labels, privacy=DistributedDP(1.0), height=10, random_state=seed
        )
        found += [a - b for a, b in zip(hist.totals, exact.totals, strict=True)]
    noise = np.concatenate([part.ravel() for part in found])
    assert noise.var() == pytest.approx(hist.noise_.levels[0].variance, rel=0.05)


def test_errors_of_the_area_are_as_small_as_measured(draw_scores):
    # Mean of 8 runs of M = 100,000 clients; bounds of the spec.
    scores, labels = draw_scores(100_000)
    exact = metrics.roc_auc_score(labels, scores)
    for privacy, bound in ((LocalDP(5.0), 0.004), (DistributedDP(1.0), 4e-4)):
        runs = [
            fit(scores, labels, privacy=privacy, random_state=seed).roc_auc()
            for seed in range(8)
        ]
        assert np.mean(np.abs(np.array(runs) - exact)) < bound


def answers(hist):
    return [
        hist.roc_auc(),
        hist.accuracy(),
        hist.precision(0.6),
        hist.recall(0.6),
        hist.brier(),
        hist.log_loss(),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("privacy", "n"),
    [
        (None, 5_000),
        (DistributedDP(1.0), 5_000),
        (DistributedDP(0.2), 5_000),
        (LocalDP(5.0), 20_000),
        (LocalDP(2.0, oracle="oue"), 20_000),
        (LocalDP(1.0, oracle="subset"), 20_000),
    ],
    ids=repr,
)
def test_intervals_cover_the_population(draw_scores, privacy, n):
    # 300 repeats: a coverage of .95 is measured to +- .0126 (one sigma).
    truth = np.array(answers(fit(*draw_scores(4_000_000, seed=10**6), height=14)))
    inside = np.zeros(len(truth))
    for seed in range(300):
        hist = fit(*draw_scores(n, seed=seed), privacy=privacy, random_state=seed)
        found = answers(hist)
        inside += [e.low <= t <= e.high for e, t in zip(found, truth, strict=True)]
    assert ((inside / 300 >= 0.92) & (inside / 300 <= 0.98)).all(), inside / 300


def raw_tree_area(cells, eps, height, rng):
    """Area of the paper's construction: OUE on a binary tree, prefixes by its nodes.

    Clients are split over the levels at random; nothing is made consistent.
    """
    p, q = 0.5, 1 / (np.exp(eps) + 1)
    rest, n = cells.copy(), cells.sum()
    edges = np.arange(2**height + 1)
    sums, reached = np.zeros((2, 2**height + 1)), np.zeros_like(edges)
    for bits in range(1, height + 1):
        part = rng.binomial(rest, 1 / (height - bits + 1))
        rest = rest - part
        nodes, reports = part.reshape(2, 2**bits, -1).sum(axis=-1), part.sum()
        ones = rng.binomial(nodes, p) + rng.binomial(reports - nodes, q)
        counts = (ones - reports * q) / (p - q) * (n / reports)
        running = np.concatenate([np.zeros((2, 1)), counts.cumsum(axis=1)], axis=1)
        width = 2 ** (height - bits)
        sums += running[:, edges // width] - running[:, reached // width]
        reached = edges // width * width
    negative, positive = np.diff(sums, axis=1)
    below = np.cumsum(negative) - negative / 2
    return (positive * below).sum() / (negative.sum() * positive.sum())


@pytest.mark.slow
def test_local_areas_are_three_times_as_exact_as_the_raw_tree(draw_scores):
    # Mean absolute errors of 80 runs are known to 8 % (one sigma). The raw tree has
    # .0057 at its best height; the histogram has .0012 at its best (5 times less) and
    # .0016 with the buckets and the height that are the default (3.5 times less).
    scores, labels = draw_scores(100_000)
    true = metrics.roc_auc_score(labels, scores)
    rng = np.random.default_rng(0)
    raw = []
    for height in (3, 4, 5, 6, 8):
        bucket = (scores * 2**height).astype(int) + labels * 2**height
        cells = np.bincount(bucket, minlength=2 * 2**height).reshape(2, -1)
        runs = [raw_tree_area(cells, 5.0, height, rng) for _ in range(80)]
        raw.append(np.abs(np.array(runs) - true).mean())

    def error(**options):
        runs = [
            fit(scores, labels, privacy=LocalDP(5.0), random_state=seed, **options)
            for seed in range(80)
        ]
        return np.mean([abs(hist.roc_auc() - true) for hist in runs])

    assert error(height=4, space="prob") < min(raw) / 3, raw
    # A third less the five sigma of the quotient: a chance below 1e-6 to fail.
    assert error() < min(raw) / 2, raw


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
def test_clients_that_sort_their_rows_alike_are_sampled_fairly():
    # 4000 clients of five rows, labels sorted: one row each, half of them positive.
    rng = np.random.default_rng(0)
    clients = [(rng.random(5), np.sort(rng.integers(0, 2, 5))) for _ in range(4000)]
    hist = ScoreHistogram.fit(
        clients, privacy=DistributedDP(50.0), input_type="proba", random_state=0
    )
    share = hist.counts_[1].sum() / hist.counts_.sum()
    # Standard deviation 0.008; the same row of every client gives 0.03 or 0.97.
    assert abs(share - 0.5) < 0.05


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
def test_what_local_reports_give_away_is_said():
    clients = [([0.2, 0.8], [0, 1])] * 200
    hist = ScoreHistogram.fit(
        clients, privacy=LocalDP(4.0), input_type="proba", random_state=0
    )
    assert "which clients have no rows is public" in hist.privacy_.assumptions


@pytest.mark.parametrize(
    "collect",
    [
        ScoreHistogram.fit,
        lambda *args, **options: ScoreHistogram._fit_at(0.5, *args, **options),
        ClasswiseResiduals.fit,
    ],
)
def test_labels_that_were_read_from_rows_are_an_assumption_of_the_report(collect):
    rng = np.random.default_rng(0)
    logits, names = rng.normal(size=(60, 2)), np.array(["no", "yes"])
    labels = names[np.arange(60) % 2]
    known = {"client_ids": np.arange(60), "privacy": CentralDP(1.0)}
    said = "the set of class labels, read from y, is public"
    with pytest.warns(PrivacyWarning, match="read from y, which is private"):
        found = collect(logits, labels, **known)
    assert said in found.privacy_.assumptions
    found = collect(logits, labels, classes=names, **known)
    assert said not in found.privacy_.assumptions
