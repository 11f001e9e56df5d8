"""Answers from exact sums, against scikit-learn on binned and on raw scores."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics
from sklearn.exceptions import UndefinedMetricWarning

from skfedcal import FederatedRunner, ScoreHistogram
from skfedcal.evaluation import grid
from skfedcal.metrics import calibration_error
from skfedcal.privacy import DistributedDP

THRESHOLDS = np.arange(1, 11) / 11


def fit(scores, labels, ids=None, **options):
    options = {"input_type": "proba", "classes": [0, 1], "space": "prob", **options}
    return ScoreHistogram.fit(scores, labels, client_ids=ids, **options)


def binned(scores, height=10):
    size = 2**height
    return (np.minimum(np.floor(scores * size), size - 1) + 0.5) / size


@pytest.mark.parametrize("height", [1, 4, 10])
def test_answers_are_those_of_sklearn_on_binned_scores(scored, height):
    scores, labels, ids = scored
    hist, known = fit(scores, labels, ids, height=height), binned(scores, height)
    for ours, theirs in (
        (hist.roc_auc(), metrics.roc_auc_score(labels, known)),
        (hist.average_precision(), metrics.average_precision_score(labels, known)),
        (hist.brier(), metrics.brier_score_loss(labels, known)),
        (hist.log_loss(), metrics.log_loss(labels, known)),
        (hist.ece(debias=False), calibration_error(labels, known, n_bins=15)),
        (
            hist.l2_ece(debias=False, squared=False),
            calibration_error(labels, known, n_bins=15, norm="l2"),
        ),
    ):
        assert ours == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("threshold", [0.0, 0.25, 0.5, 0.75])
def test_a_threshold_on_an_edge_is_exact(scored, threshold):
    scores, labels, ids = scored
    hist, predicted = fit(scores, labels, ids, height=2), scores >= threshold
    for name in ("accuracy", "precision", "recall", "f1"):
        found = getattr(hist, name)(threshold)
        theirs = getattr(metrics, f"{name}_score")(labels, predicted)
        assert found == pytest.approx(theirs, abs=1e-12)
        assert found.discretisation == 0
    confusion = metrics.confusion_matrix(labels, predicted)
    np.testing.assert_array_equal(hist.confusion(threshold).matrix, confusion)


@pytest.mark.parametrize("space", ["both", "prob", "logit"])
def test_raw_scores_are_within_the_bounds(scored, space):
    scores, labels, ids = scored
    hist = fit(scores, labels, ids, height=5, space=space)
    pairs = [
        (hist.roc_auc(), metrics.roc_auc_score(labels, scores)),
        (hist.average_precision(), metrics.average_precision_score(labels, scores)),
        (hist.brier(), metrics.brier_score_loss(labels, scores)),
        (
            hist.log_loss(),
            metrics.log_loss(
                labels, np.clip(scores, hist.grid.centres[0], hist.grid.centres[-1])
            ),
        ),
        (hist.ece(debias=False), calibration_error(labels, scores, n_bins=15)),
    ]
    for threshold in THRESHOLDS:
        predicted = scores >= threshold
        pairs += [
            (
                getattr(hist, name)(threshold),
                getattr(metrics, f"{name}_score")(labels, predicted),
            )
            for name in ("accuracy", "precision", "recall", "f1")
        ]
        pairs += zip(
            hist.confusion(threshold),
            metrics.confusion_matrix(labels, predicted).ravel(),
            strict=True,
        )
    for ours, theirs in pairs:
        assert abs(ours - theirs) <= ours.discretisation + 1e-12


@pytest.mark.parametrize("space", ["both", "logit"])
@pytest.mark.parametrize("height", [3, 10])
def test_every_grid_bins_by_its_edges(scored, space, height):
    scores, labels, ids = scored
    hist = fit(scores, labels, ids, space=space, height=height)
    edges, centres = hist.grid.edges, hist.grid.centres
    assert (np.diff(edges) > 0).all()
    assert ((centres > edges[:-1]) & (centres < edges[1:])).all()
    for row in (0, 1):
        counts = np.histogram(scores[labels == row], edges)[0]
        assert np.abs(hist.counts_[row] - counts).sum() <= 4  # rounding at an edge
    known = centres[np.searchsorted(edges, scores, side="right") - 1]
    brier = metrics.brier_score_loss(labels, known)
    assert hist.brier() == pytest.approx(brier, abs=1e-4)
    # One half is an edge of every grid.
    assert hist.accuracy() == metrics.accuracy_score(labels, scores >= 0.5)


@pytest.mark.parametrize("power", [0.6, 1.0, 2.5])
def test_the_default_grid_fits_sure_and_unsure_models(power):
    # Scores of a sure model pile up near 0 and 1, where equal widths are too coarse.
    rng = np.random.default_rng(0)
    odds = rng.normal(size=30_000) * 2
    labels = (rng.random(len(odds)) < 1 / (1 + np.exp(-odds))).astype(int)
    hist = ScoreHistogram.fit(odds * power, labels)
    assert abs(hist.roc_auc() - metrics.roc_auc_score(labels, odds)) < 1e-4
    proba = 1 / (1 + np.exp(-odds * power))
    for threshold in THRESHOLDS:
        predicted = proba >= threshold
        for name in ("accuracy", "precision", "recall"):
            theirs = getattr(metrics, f"{name}_score")(
                labels,
                predicted,
                **({} if name == "accuracy" else {"zero_division": 0}),
            )
            assert abs(getattr(hist, name)(threshold) - theirs) < 1e-3


def test_curves_are_those_of_sklearn_on_binned_scores(scored):
    scores, labels, ids = scored
    hist, known = (
        fit(scores, labels, ids, height=4, population="rows"),
        binned(scores, 4),
    )
    roc = hist.roc_curve()
    fpr, tpr, _ = metrics.roc_curve(labels, known, drop_intermediate=False)
    np.testing.assert_allclose(roc.fpr, fpr)
    np.testing.assert_allclose(roc.tpr, tpr)
    assert roc.thresholds[0] == np.inf and roc.thresholds[-1] == 0
    curve = hist.pr_curve()
    precision, recall, thresholds = metrics.precision_recall_curve(labels, known)
    np.testing.assert_allclose(curve.precision, precision)
    np.testing.assert_allclose(curve.recall, recall)
    assert len(curve.thresholds) == len(thresholds)
    assert roc.se_tpr.shape == roc.tpr.shape
    assert curve.se_precision.shape == precision.shape
    half = np.searchsorted(tpr, 0.5)
    assert roc.se_tpr[half] == pytest.approx(
        np.sqrt(tpr[half] * (1 - tpr[half]) / labels.sum())
    )


def test_a_hand_worked_histogram():
    # Buckets [0, .5) and [.5, 1]: two negatives and a positive, then two positives.
    scores, labels = [0.1, 0.4, 0.3, 0.6, 1.0], [0, 0, 1, 1, 1]
    hist = fit(scores, labels, height=1)
    assert hist.counts_.tolist() == [[2, 0], [1, 2]]
    auc = hist.roc_auc()
    assert auc == pytest.approx((1 * 1 + 2 * 2) / 6)
    assert auc.discretisation == pytest.approx(2 / 12)
    assert hist.accuracy() == pytest.approx(0.8)
    # At .25 half of the lower bucket counts as predicted positive.
    assert hist.recall(0.25) == pytest.approx(2.5 / 3)
    assert hist.precision(0.25) == pytest.approx(2.5 / 3.5)
    assert hist.f1(0.25) == pytest.approx(5 / 6.5)
    assert hist.confusion(0.25) == (1.0, 1.0, 0.5, 2.5)
    assert hist.brier() == pytest.approx((3 * 0.0625 + 0.5625 + 0.0625) / 5)
    assert hist.ece(1, debias=False) == pytest.approx(abs(3 - 2.25) / 5, abs=1e-12)
    assert hist.accuracy().se_sampling == pytest.approx(np.sqrt(0.8 * 0.2 / 5))


@given(
    scores=st.lists(st.floats(0, 1), min_size=2, max_size=60),
    height=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_area_is_within_its_certificate(scores, height, seed):
    labels = np.random.default_rng(seed).integers(0, 2, len(scores))
    labels[:2] = 0, 1
    scores = np.array(scores)
    auc = fit(scores, labels, height=height).roc_auc()
    true = metrics.roc_auc_score(labels, scores)
    assert abs(auc - true) <= auc.discretisation + 1e-12


@pytest.mark.parametrize("share", [1, 3, 30])
def test_the_certificate_is_attained(share):
    # In every bucket all positives are above all negatives.
    size = 8
    low = (np.arange(size) + 0.25) / size
    scores = np.concatenate([np.repeat(low, share), low + 0.5 / size])
    labels = np.repeat([0, 1], [size * share, size])
    auc = fit(scores, labels, height=3).roc_auc()
    true = metrics.roc_auc_score(labels, scores)
    assert true - auc == pytest.approx(auc.discretisation, abs=1e-12)
    assert auc.discretisation == pytest.approx(1 / (2 * size))


@pytest.mark.parametrize("height", [3, 4, 5, 6])
def test_smooth_scores_are_far_inside_the_certificate(height):
    rng = np.random.default_rng(0)
    scores = rng.random(400_000)
    labels = (rng.random(len(scores)) < scores).astype(int)
    auc = fit(scores, labels, height=height).roc_auc()
    error = abs(auc - metrics.roc_auc_score(labels, scores))
    assert error < 1.5 / (3 * 4**height)
    assert error < auc.discretisation / 4


def test_clients_and_their_order_change_nothing(scored):
    scores, labels, ids = scored
    one = fit(scores, labels)
    dealt = FederatedRunner(cohort="permuted", cohort_size=9)
    order = np.random.default_rng(0).permutation(len(scores))
    named = {
        f"site {k}": (scores[ids == k], labels[ids == k]) for k in np.unique(ids)[::-1]
    }
    for other in (
        fit(scores, labels, ids),
        fit(scores[order], labels[order], ids[order]),
        fit(scores, labels, np.arange(len(scores))),
        fit(named, None),
        fit([pair[0] for pair in named.values()], [p[1] for p in named.values()]),
        fit([*named.values(), ([], [])], None),
        fit(scores, labels, ids, runner=FederatedRunner(cohort_size=7)),
        fit(scores, labels, ids, runner=FederatedRunner(n_jobs=2)),
        fit(scores, labels, ids, runner=dealt),
    ):
        np.testing.assert_array_equal(other.counts_, one.counts_)


def test_all_forms_of_scores_agree(scored):
    scores, labels, ids = scored
    one = fit(scores, labels, ids)
    both = np.column_stack([1 - scores, scores])
    odds = np.log(scores) - np.log1p(-scores)
    for X, kind in (
        (both, "proba"),
        (odds, "logits"),
        (np.column_stack([5.0 - odds, np.full(len(odds), 5.0)]), "logits"),
        (np.log(both), "log_proba"),
    ):
        other = fit(X, labels, ids, input_type=kind)
        # A score within rounding of an edge may go either way.
        assert np.abs(other.counts_ - one.counts_).sum() <= 4


def test_positive_label(scored):
    scores, labels, ids = scored
    names = np.array(["well", "ill"])[labels]
    one = fit(scores, labels, ids)
    same = fit(scores, names, ids, classes=["well", "ill"])
    assert same.classes == ["well", "ill"]
    np.testing.assert_array_equal(same.counts_, one.counts_)
    both = np.column_stack([1 - scores, scores])
    for X in (1 - scores, both):  # one column is of the positive class
        other = fit(X, names, ids, classes=["well", "ill"], pos_label="well")
        assert other.classes == ["ill", "well"]
        assert other.roc_auc() == pytest.approx(one.roc_auc(), abs=1e-3)
        np.testing.assert_allclose(
            other.counts_.sum(axis=1), one.counts_.sum(axis=1)[::-1]
        )


@pytest.mark.parametrize("pos_label", ["ill", "well"])
@pytest.mark.parametrize("classes", [None, ["ill", "well"], ["well", "ill"]])
def test_one_column_is_of_the_positive_label_as_in_sklearn(scored, pos_label, classes):
    scores, labels, ids = scored
    names = np.array(["well", "ill"])[labels]
    odds = np.log(scores) - np.log1p(-scores)
    for X, kind in ((scores, "proba"), (odds, "logits")):
        hist = fit(X, names, ids, classes=classes, pos_label=pos_label, input_type=kind)
        loss = metrics.brier_score_loss(names, scores, pos_label=pos_label)
        assert hist.brier() == pytest.approx(loss, abs=1e-3)
        area = metrics.roc_auc_score(names == pos_label, scores)
        assert hist.roc_auc() == pytest.approx(area, abs=1e-3)
        assert hist.classes[1] == pos_label


def test_scores_of_zero_and_one_are_in_the_outermost_buckets():
    for space in ("both", "prob", "logit"):
        hist = fit([0.0, 1.0, 0.0, 1.0], [0, 0, 1, 1], space=space)
        assert hist.counts_[:, [0, -1]].tolist() == [[1, 1], [1, 1]]
        assert np.isfinite(hist.log_loss())
    sure = np.array([[0.0, -np.inf], [-np.inf, 0.0]])
    assert fit(sure, [0, 1], input_type="logits").roc_auc() == 1


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_only(label):
    hist = fit([0.2, 0.7, 0.9], [label] * 3)
    with pytest.warns(UndefinedMetricWarning, match="only one class"):
        assert np.isnan(hist.roc_auc())
    assert hist.brier() > 0
    assert hist.accuracy() == pytest.approx([1 / 3, 2 / 3][label])


def test_nothing_to_divide_by_is_zero_with_a_warning():
    hist = fit([0.2, 0.3], [0, 0])
    for name in ("precision", "recall", "f1", "average_precision"):
        with pytest.warns(UndefinedMetricWarning, match="ill-defined"):
            assert getattr(hist, name)() == 0


def test_tied_scores():
    hist = fit(np.full(10, 0.3), [0, 1] * 5)
    assert hist.roc_auc() == 0.5
    assert len(hist.equi_depth(4)) <= 5


def test_reliability_is_the_calibration_curve(scored):
    from sklearn.calibration import calibration_curve

    scores, labels, ids = scored
    hist, known = (
        fit(scores, labels, ids, height=6, population="rows"),
        binned(scores, 6),
    )
    points = hist.reliability(8)
    true, pred = calibration_curve(labels, known, n_bins=8)
    np.testing.assert_allclose(points.prob_true, true)
    np.testing.assert_allclose(points.prob_pred, pred)
    n = points.counts
    np.testing.assert_allclose(points.se, np.sqrt(true * (1 - true) / n))
    assert n.sum() == len(scores)


def test_equi_depth_buckets_hold_equal_parts(scored):
    scores, labels, ids = scored
    edges = fit(scores, labels, ids).equi_depth(5)
    counts = np.histogram(scores, edges)[0]
    assert edges[0] == 0 and edges[-1] == 1
    assert np.abs(counts - len(scores) / 5).max() < 15


def test_debiasing_takes_off_the_error_of_a_calibrated_model():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(20):
        scores = rng.random(2000)
        labels = (rng.random(2000) < scores).astype(int)
        hist = fit(scores, labels)
        found.append((hist.ece(debias=False), hist.ece(), hist.l2_ece()))
    plain, debiased, squared = np.array(found, dtype=float).T
    assert debiased.mean() < 0.7 * plain.mean()
    # The unbiased square has mean 0: within five of its own standard errors.
    assert abs(squared.mean()) < 5 * squared.std() / np.sqrt(20)


def test_top_label_histogram(federation, clients):
    from skfedcal.metrics import expected_calibration_error

    hist = ScoreHistogram.fit(clients, kind="top")
    rows = np.concatenate([c[0] for c in clients])
    labels = np.concatenate([c[1] for c in clients])
    proba = np.exp(rows - rows.max(axis=1, keepdims=True))
    proba /= proba.sum(axis=1, keepdims=True)
    assert hist.accuracy() == pytest.approx((rows.argmax(axis=1) == labels).mean())
    assert hist.accuracy() == hist.accuracy(0.0) != hist.accuracy(0.5)
    error = hist.ece(debias=False)
    assert abs(error - expected_calibration_error(labels, proba)) < error.discretisation
    fine = ScoreHistogram.fit(clients, kind="top", space="logit")
    assert fine.accuracy(0.0) == hist.accuracy(0.0)


def test_merge_is_associative_and_equals_one_fit(scored):
    scores, labels, ids = scored
    parts = [fit(scores[ids % 3 == k], labels[ids % 3 == k], ids[ids % 3 == k])
             for k in range(3)]  # fmt: skip
    left = parts[0].merge(parts[1]).merge(parts[2])
    right = parts[0].merge(parts[1].merge(parts[2]))
    assert left.to_json() == right.to_json()
    whole = fit(scores, labels, ids)
    np.testing.assert_array_equal(left.counts_, whole.counts_)
    assert left.n_clients_ == whole.n_clients_
    assert left.roc_auc() == whole.roc_auc()


@pytest.mark.parametrize(
    "options",
    [{"height": 4}, {"space": "both"}, {"weighting": "client"}, {"levels": (2, 10)}],
)
def test_unlike_histograms_are_not_merged(scored, options):
    scores, labels, ids = scored
    with pytest.raises(ValueError, match="cannot be merged"):
        fit(scores, labels, ids).merge(fit(scores, labels, ids, **options))


def test_json_is_exact(scored):
    scores, labels, ids = scored
    for hist in (
        fit(scores, labels, ids),
        fit(scores, labels, ids, weighting="client", space="logit", height=3),
    ):
        other = ScoreHistogram.from_json(hist.to_json())
        assert other.to_json() == hist.to_json()
        assert repr(other.roc_auc()) == repr(hist.roc_auc())
        assert other.privacy_ == hist.privacy_


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": "skfedcal-histogram"}'])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match="Not a histogram"):
        ScoreHistogram.from_json(text)


def test_weights_of_clients(scored):
    scores, labels, ids = scored
    hist = fit(scores, labels, ids, weighting="client")
    weight = 1 / np.bincount(ids)[ids]
    assert hist.n_examples_ == len(np.unique(ids))
    theirs = metrics.accuracy_score(labels, scores >= 0.5, sample_weight=weight)
    assert hist.accuracy() == pytest.approx(theirs, abs=2**-16 * 100)


def test_rows_of_a_client_are_bounded_by_its_own_rows(scored):
    scores, labels, ids = scored
    sizes = np.bincount(ids)
    hist = fit(scores, labels, ids, max_examples_per_client=5, random_state=0)
    assert hist.n_examples_ == np.minimum(sizes, 5).sum()
    # Other clients do not matter, nor does the seed of another run repeat the choice.
    first = ids <= 3
    alone = fit(scores[first], labels[first], ids[first], max_examples_per_client=5,
                random_state=0)  # fmt: skip
    assert (alone.counts_ <= hist.counts_).all()
    again = fit(scores, labels, ids, max_examples_per_client=5, random_state=1)
    assert (again.counts_ != hist.counts_).any()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"height": 0}, "height=0"),
        ({"height": 3.0}, "height=3.0"),
        ({"levels": (4, 2)}, "must increase"),
        ({"levels": (2, 4), "height": 5}, "must increase"),
        ({"levels": "wide"}, "levels='wide'"),
        ({"levels": 10}, "levels=10"),
        ({"space": "odds"}, "space='odds'"),
        ({"kind": "multi"}, "kind='multi'"),
        ({"weighting": "row"}, "weighting='row'"),
        ({"max_examples_per_client": 0}, "max_examples_per_client=0"),
        ({"max_examples_per_client": True}, "max_examples_per_client=True"),
        ({"input_type": "score"}, "input_type='score'"),
        ({"pos_label": 2}, "pos_label=2"),
        ({"runner": FederatedRunner(n_rounds=2)}, "n_rounds=2"),
    ],
)
def test_wrong_settings_are_named(scored, options, match):
    scores, labels, ids = scored
    with pytest.raises(ValueError, match=match):
        fit(scores, labels, ids, **options)


def test_wrong_input_is_named(scored, clients):
    scores, labels, ids = scored
    with pytest.raises(ValueError, match="between 0 and 1"):
        fit(scores * 3, labels, ids)
    with pytest.raises(ValueError, match="kind='top'"):
        ScoreHistogram.fit(clients)
    with pytest.raises(TypeError, match="privacy model"):
        fit(scores, labels, ids, privacy=1.0)
    with pytest.raises(ValueError, match="threshold"):
        fit(scores, labels, ids).accuracy(1.5)
    with pytest.raises(ValueError, match="n_bins=0"):
        fit(scores, labels, ids).ece(0)
    with pytest.raises(ValueError, match="strategy='even'"):
        fit(scores, labels, ids).reliability(3, strategy="even")


def test_probabilities_that_are_not_declared_are_noticed(scored):
    from skfedcal.exceptions import LogitsWarning

    scores, labels, ids = scored
    with pytest.warns(LogitsWarning, match="look like probabilities"):
        fit(scores, labels, ids, input_type="logits")


def test_names_of_clients_may_be_any_numbers(scored):
    scores, labels, ids = scored
    large = ids.astype(np.uint64) + np.uint64(2**63)
    named = {2**127 + int(i): (scores[ids == i], labels[ids == i]) for i in set(ids)}
    assert fit(scores, labels, large, max_examples_per_client=1).n_examples_ == len(
        named
    )
    one = ScoreHistogram.fit(named, input_type="proba", max_examples_per_client=1)
    assert one.n_examples_ == len(named)


@pytest.mark.parametrize(
    "threshold", [None, "a", [0.1, 0.2], np.array([0.1]), 2, np.nan]
)
def test_what_is_no_threshold_is_named(scored, threshold):
    hist = fit(*scored)
    with pytest.raises(ValueError, match="threshold must be one probability"):
        hist.recall(threshold)


def changed(hist, where, value):
    """Text of a histogram with one other value."""
    content = json.loads(hist.to_json())
    place = content
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    return json.dumps(content)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("levels", 0, "bits"), 10**12),
        (("levels", 0, "bits"), 4.0),
        (("levels", 0, "kind"), "foo"),
        (("levels", 0, "kind"), "exact"),
        (("levels", 0, "kind"), "grr"),
        (("levels", 0, "variance"), -1.0),
        (("levels", 0, "variance"), 0.0),
        (("levels", 0, "variance"), float("nan")),
        (("levels", 0, "variance"), "x"),
        (("levels", 0, "n_reports"), -1),
        (("space",), "foo"),
        (("kind",), "foo"),
        (("weighting",), "foo"),
        (("classes",), [1]),
        (("n_clients",), "x"),
        (("n_clients",), -1),
        (("privacy", "eps"), -1.0),
        (("privacy", "eps"), "x"),
        (("privacy", "secure"), "yes"),
        (("privacy", "clip"), 3),
        (("privacy", "assumptions"), "abc"),
        (("privacy",), {}),
    ],
)
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
def test_changed_text_is_refused(scored, where, value):
    hist = fit(*scored, height=4, privacy=DistributedDP(1.0), random_state=0)
    with pytest.raises(ValueError, match="Not a histogram"):
        ScoreHistogram.from_json(changed(hist, where, value))


def test_deep_text_is_refused():
    with pytest.raises(ValueError, match="Not a histogram"):
        ScoreHistogram.from_json("[" * 200_000)


@pytest.mark.parametrize("n_bins", [2, 4, 10])
def test_last_bits_of_an_edge_move_no_bucket_to_another_bin(monkeypatch, n_bins):
    """Edges come from exp, whose last bits differ between processors."""
    rng = np.random.default_rng(0)
    scores = rng.random(400)
    labels = (rng.random(400) < scores).astype(int)
    rows = np.column_stack([1 - scores, scores])
    found = ScoreHistogram.fit(rows, labels, height=5, input_type="proba")
    edges, centres = np.round(found.grid.edges, 12), found.grid.centres
    bounds = []
    for side in (0.0, 1.0):
        moved = np.nextafter(edges, side)
        moved[[0, -1]] = 0.0, 1.0
        monkeypatch.setattr(grid, "_points", lambda _, moved=moved: (moved, centres))
        bounds.append(found.ece(n_bins).discretisation)
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-9)


@pytest.mark.parametrize("n_buckets", [1, 2, 7, 50, 1024])
@pytest.mark.parametrize("strategy", ["quantile", "uniform"])
def test_area_over_merged_buckets_is_that_of_scores_with_ties(n_buckets, strategy):
    rng = np.random.default_rng(0)
    scores = rng.beta(2, 5, 3000)
    labels = (rng.random(3000) < scores).astype(int)
    hist = ScoreHistogram.fit(
        scores, labels, input_type="proba", space="prob", height=10
    )
    found = hist.roc_auc(n_buckets=n_buckets, strategy=strategy)
    leaf = np.minimum((scores * 1024).astype(int), 1023)
    if strategy == "uniform":
        bucket = np.searchsorted(
            np.arange(n_buckets) * 1024 // n_buckets, leaf, "right"
        )
    else:
        # The nearest leaf to each quantile of the rows.
        below = np.searchsorted(np.sort(leaf), np.arange(1025))
        targets = np.arange(1, n_buckets) * 3000 / n_buckets
        nearest = np.abs(below[:, None] - targets).argmin(axis=0)
        bucket = np.searchsorted(np.unique(nearest), leaf, "right")
    exact = metrics.roc_auc_score(labels, bucket)
    # Where two leaves are as near, either may be taken.
    assert found == pytest.approx(exact, abs=1e-12 if strategy == "uniform" else 2e-4)
    assert abs(found - metrics.roc_auc_score(labels, scores)) <= found.discretisation
    if strategy == "quantile" and n_buckets <= 50:
        # Lemma 3 is for equal numbers of both classes; P N is smaller otherwise.
        share = labels.mean()
        assert found.discretisation < 1.3 / (8 * n_buckets * share * (1 - share))


def test_buckets_that_a_histogram_does_not_have():
    hist = ScoreHistogram.fit([0.1, 0.9], [0, 1], input_type="proba", height=3)
    with pytest.raises(
        ValueError, match="n_buckets=9 must be a whole number from 1 to 8"
    ):
        hist.roc_auc(n_buckets=9)
    with pytest.raises(
        ValueError, match="strategy must be one of 'quantile', 'uniform'"
    ):
        hist.roc_auc(n_buckets=4, strategy="kmeans")
