"""Functions in scikit-learn's manner."""

import inspect

import numpy as np
import pytest
from sklearn import metrics

import skfedcal
from skfedcal import ScoreHistogram, evaluation
from skfedcal.privacy import CentralDP, DistributedDP, LocalDP

# A comparison takes two scores: test_paired.py.
NAMES = sorted(
    {n for n in skfedcal.__all__ if n.startswith("federated_")}
    - {"federated_compare_scores", "federated_gain"}
)


def ask(name, scored, **options):
    scores, labels, ids = scored
    function = getattr(skfedcal, name)
    return function(scores, labels, client_ids=ids, input_type="proba", **options)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("accuracy_score", metrics.accuracy_score),
        ("precision_score", metrics.precision_score),
        ("recall_score", metrics.recall_score),
        ("f1_score", metrics.f1_score),
    ],
)
def test_metrics_at_a_threshold(scored, name, theirs):
    scores, labels, _ = scored
    for threshold in (0.25, 0.5):
        found = ask(f"federated_{name}", scored, threshold=threshold, space="prob")
        assert found == pytest.approx(theirs(labels, scores >= threshold), abs=1e-12)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("roc_auc_score", metrics.roc_auc_score),
        ("brier_score_loss", metrics.brier_score_loss),
        ("log_loss", metrics.log_loss),
    ],
)
def test_metrics_of_scores(scored, name, theirs):
    scores, labels, _ = scored
    found = ask(f"federated_{name}", scored)
    assert abs(found - theirs(labels, scores)) <= found.discretisation


def test_calibration(scored):
    hist = ScoreHistogram.fit(
        scored[0], scored[1], client_ids=scored[2], input_type="proba"
    )
    assert ask("federated_calibration_error", scored, kind="binary") == hist.ece()
    top, squared, classwise = (
        ask("federated_calibration_error", scored, kind=kind)
        for kind in ("top", "l2", "classwise")
    )
    assert squared < top**2 * 3 and 0 < classwise < 0.2
    true, pred, error = ask("federated_calibration_curve", scored, n_bins=4)
    points = hist.reliability(4)
    np.testing.assert_array_equal(true, points.prob_true)
    np.testing.assert_array_equal(pred, points.prob_pred)
    np.testing.assert_array_equal(error, points.se)


def test_accuracy_of_several_classes(clients):
    rows, labels = (np.concatenate(part) for part in zip(*clients, strict=True))
    found = skfedcal.federated_accuracy_score(clients, kind="top")
    assert found == pytest.approx((rows.argmax(axis=1) == labels).mean(), abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
def test_every_function_takes_a_privacy_model(scored, name):
    scores, labels, _ = scored
    one_each = (scores, labels, np.arange(len(scores)))
    for privacy in (DistributedDP(2.0), LocalDP(5.0)):
        first, again = (
            ask(name, one_each, privacy=privacy, random_state=0) for _ in range(2)
        )
        np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("name", NAMES)
def test_signatures_name_all_parameters(name):
    function = getattr(evaluation, name)
    signature = inspect.signature(function)
    assert list(signature.parameters)[:4] == ["clients", "y", "client_ids", "privacy"]
    assert list(signature.parameters)[-1] == "random_state"
    assert "{shared}" not in function.__doc__
    shared = inspect.signature(ScoreHistogram.fit).parameters
    assert set(shared) - {"kind"} <= set(signature.parameters)


def test_unknown_keywords_are_refused(scored):
    with pytest.raises(TypeError, match="unexpected keyword argument 'treshold'"):
        ask("federated_f1_score", scored, treshold=0.3)
    with pytest.raises(ValueError, match="kind='l1'"):
        ask("federated_calibration_error", scored, kind="l1")
    with pytest.raises(ValueError, match="height is not used with kind"):
        ask("federated_calibration_error", scored, kind="classwise", height=3)
    with pytest.raises(ValueError, match="multi_class='one'"):
        ask("federated_roc_auc_score", scored, multi_class="one")


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
@pytest.mark.parametrize("n_others", [1, 2, 4])
def test_the_bound_of_sparse_areas_holds_what_was_not_reported(n_others):
    fed = skfedcal.make_federation(50, 5000, 5, random_state=0)
    exact = evaluation.federated_roc_auc_score(fed.clients, multi_class="ovr")
    private = evaluation.federated_roc_auc_score(
        fed.clients,
        multi_class="ovr",
        privacy=DistributedDP(5.0, unit="example"),
        n_others=n_others,
        random_state=0,
    )
    # Too large by at most the bound, up to six deviations of the noise.
    assert private - private.discretisation - 6 * private.se_privacy < exact
    assert exact < private + exact.discretisation + 6 * private.se_privacy
    if n_others == 1:
        assert private - exact > 0.01
        assert private.discretisation > private - exact


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("kind", ["accuracy", "precision", "recall", "f1"])
def test_one_threshold_is_exact_also_where_scores_are_equal(kind, threshold):
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 11, 3000) / 10
    labels = (rng.random(3000) < scores).astype(int)
    found = getattr(evaluation, f"federated_{kind}_score")(
        scores, labels, threshold=threshold, input_type="proba"
    )
    expected = getattr(metrics, f"{kind}_score")(labels, scores >= threshold)
    assert found == pytest.approx(expected, abs=1e-12)
    assert found.low <= found <= found.high


def test_a_threshold_is_a_probability():
    with pytest.raises(ValueError, match=r"threshold must be .*got 1\.5"):
        evaluation.federated_recall_score([0.1, 0.9], [0, 1], threshold=1.5)


@pytest.mark.parametrize("columns", [1, 2])
def test_a_threshold_is_reached_also_by_log_odds(columns):
    odds = np.array([0.0, 0.0, 0.0, -1.0, 2.0])
    X = odds if columns == 1 else np.column_stack([0 * odds, odds])
    labels = np.array([1, 1, 0, 0, 1])
    found = evaluation.federated_recall_score(X, labels, threshold=0.5)
    assert found == 1.0


def test_levels_of_a_threshold_come_in_any_sequence(scored):
    scores, labels, _ = scored
    found = [
        evaluation.federated_recall_score(
            scores, labels, input_type="proba", levels=levels
        )
        for levels in ((2, 6), np.array([2, 6]))
    ]
    assert found[0] == found[1]


def test_several_classes_are_sent_to_what_takes_them(clients):
    with pytest.raises(ValueError, match="multi_class='ovr'"):
        evaluation.federated_roc_auc_score(clients)
    for n_others in (1.5, True, "all"):
        with pytest.raises(ValueError, match="n_others="):
            evaluation.federated_roc_auc_score(
                clients, multi_class="ovr", n_others=n_others
            )


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
@pytest.mark.parametrize("n_others", [1, 2])
def test_areas_of_hidden_negatives_lie_in_the_interval(n_others):
    # They are too large by .01 to .03, many times what the noise explains.
    fed = skfedcal.make_federation(2000, 8000, 5, alpha=None, random_state=0)
    exact = skfedcal.federated_roc_auc_score(
        fed.clients, multi_class="ovr", average=None
    )
    found = skfedcal.federated_roc_auc_score(
        fed.clients, multi_class="ovr", average=None, n_others=n_others,
        privacy=DistributedDP(5.0, unit="example"), random_state=0,
    )  # fmt: skip
    for here, true in zip(found, exact, strict=True):
        assert here - true > 3 * here.se_privacy
        assert here.low <= true <= here.high


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
def test_a_calibration_curve_says_what_it_is():
    import pickle

    fed = skfedcal.make_federation(300, 3000, 2, random_state=0)
    curve = skfedcal.federated_calibration_curve(
        fed.clients, classes=[0, 1], privacy=CentralDP(1.0), random_state=0,
        max_examples_per_client=1,
    )  # fmt: skip
    assert (curve.privacy.eps, curve.privacy.unit) == (1.0, "client")
    assert curve.population == "clients"
    assert curve.estimand == "every client counts once"
    true, pred, error = curve
    assert (true is curve.prob_true) and (pred is curve[1]) and (error is curve.error)
    assert ((curve.low <= true) & (true <= curve.high)).all()
    text = repr(curve)
    assert "every client counts once" in text and "eps=1, unit='client'" in text
    again = pickle.loads(pickle.dumps(curve))
    assert repr(again) == text and again.privacy == curve.privacy
    exact = skfedcal.federated_calibration_curve(fed.clients, population="rows")
    assert exact.privacy is None and exact.population == "rows"


def test_a_wrong_plan_and_a_strange_strategy_are_named():
    scores, labels = np.linspace(-2, 2, 40), np.arange(40) % 2
    with pytest.raises(ValueError, match="plan"):
        evaluation.federated_recall_score(scores, labels, plan=3)
    hist = ScoreHistogram.fit(scores, labels)
    with pytest.raises(ValueError, match="strategy"):
        hist.roc_auc(n_buckets=4, strategy=np.zeros(3))
