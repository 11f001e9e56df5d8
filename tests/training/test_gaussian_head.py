"""The Gaussian head: oracles of scikit-learn, partitions, privacy."""

import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits, make_classification
from sklearn.discriminant_analysis import (
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split

from skfedcal import (
    CentralDP,
    DistributedDP,
    FederatedCalibratedClassifier,
    FederatedRunner,
    FedGaussianHead,
    FedTempCalibrator,
    LocalDP,
    PrivacyLedger,
)
from skfedcal.exceptions import BudgetExceededError, PrivacyWarning
from skfedcal.metrics import classwise_calibration_error
from skfedcal.training import ClassStatistics

METHODS = ["lda", "qda", "sample"]


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return train_test_split(X, y, test_size=0.3, random_state=0)


@pytest.fixture(scope="module")
def blobs():
    """Three classes of unequal frequency, 4 features, at 2000 small clients."""
    rng = np.random.default_rng(0)
    means = np.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 1.0, 0]])
    y = rng.choice(3, 12_000, p=[0.6, 0.3, 0.1])
    X = means[y] + 0.5 * rng.normal(size=(12_000, 4))
    return X, y, rng.integers(0, 2000, 12_000)


def brute_force_logits(X, y, rows, shrinkage, prior):
    """Log density of each class Gaussian with the common covariance, by loops."""
    n_classes, size = y.max() + 1, X.shape[1]
    means = [X[y == c].mean(axis=0) for c in range(n_classes)]
    cov = np.zeros((size, size))
    for row, label in zip(X, y, strict=True):
        cov += np.outer(row - means[label], row - means[label]) / len(y)
    cov = (1 - shrinkage) * cov + shrinkage * np.trace(cov) / size * np.eye(size)
    inverse = np.linalg.inv(cov)
    out = np.empty((len(rows), n_classes))
    for c in range(n_classes):
        for i, row in enumerate(rows):
            gap = row - means[c]
            out[i, c] = np.log(prior[c]) - 0.5 * gap @ inverse @ gap
    return out


@pytest.mark.parametrize("shrinkage", [0.01, 0.3, 1.0])
def test_lda_is_that_of_scikit_learn(digits, shrinkage):
    X, test, y, _ = digits
    head = FedGaussianHead(shrinkage=shrinkage).fit(X, y, client_ids=np.arange(len(y)))
    oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(X, y)
    np.testing.assert_allclose(
        head.predict_proba(test), oracle.predict_proba(test), rtol=1e-7, atol=1e-12
    )
    np.testing.assert_array_equal(head.predict(test), oracle.predict(test))


def test_lda_without_shrinkage_leaves_out_constant_features(digits):
    X, test, y, _ = digits
    assert (np.ptp(X, axis=0) == 0).any()
    head = FedGaussianHead(shrinkage=0.0).fit(X, y)
    oracle = LinearDiscriminantAnalysis(solver="lsqr").fit(X, y)
    np.testing.assert_allclose(
        head.predict_proba(test), oracle.predict_proba(test), rtol=1e-5, atol=1e-8
    )


@pytest.mark.parametrize("prior", ["empirical", "uniform", [0.2, 0.3, 0.5]])
def test_lda_with_any_prior_against_loops(features, prior):
    X, y, ids = features
    share = {"empirical": np.bincount(y) / len(y), "uniform": np.full(3, 1 / 3)}
    used = share[prior] if isinstance(prior, str) else np.array(prior)
    head = FedGaussianHead(prior=prior, shrinkage=0.1).fit(X, y, client_ids=ids)
    np.testing.assert_allclose(head.prior_, used, rtol=1e-12)
    expected = brute_force_logits(X, y, X[:40], 0.1, used)
    found = head.predict_logits(X[:40])
    gaps = found - found[:, :1] - (expected - expected[:, :1])
    np.testing.assert_allclose(gaps, 0, atol=1e-9)


@pytest.mark.skipif(
    "shrinkage" not in QuadraticDiscriminantAnalysis().get_params(),
    reason="QDA with shrinkage came with scikit-learn 1.8",
)
def test_qda_is_that_of_scikit_learn(features):
    X, y, ids = features
    head = FedGaussianHead(method="qda", shrinkage=0.1).fit(X, y, client_ids=ids)
    oracle = QuadraticDiscriminantAnalysis(solver="eigen", shrinkage=0.1).fit(X, y)
    np.testing.assert_allclose(
        head.predict_proba(X), oracle.predict_proba(X), rtol=1e-8, atol=1e-12
    )


@pytest.mark.parametrize("n_classes", [2, 3])
def test_sampled_head_nears_lda_on_gaussians(blobs, n_classes):
    X, y, ids = (part[blobs[1] < n_classes] for part in blobs)
    lda = FedGaussianHead().fit(X, y, client_ids=ids)
    sampled = FedGaussianHead(method="sample", n_virtual=20_000, random_state=0)
    sampled.fit(X, y, client_ids=ids)
    # 60,000 virtual rows: an error of about 1 / sqrt(60,000 * 0.1) in probabilities.
    gap = sampled.predict_proba(X) - lda.predict_proba(X)
    assert np.abs(gap).mean() < 0.01
    assert (sampled.predict(X) == lda.predict(X)).mean() > 0.98


def test_sampled_head_with_uniform_prior_draws_all_classes_alike(blobs):
    X, y, _ = blobs
    heads = [
        FedGaussianHead(method="sample", prior=prior, random_state=0).fit(X, y)
        for prior in ("empirical", "uniform")
    ]
    share = [np.mean(head.predict_proba(X), axis=0) for head in heads]
    np.testing.assert_allclose(share[0], np.bincount(y) / len(y), atol=0.02)
    assert share[1][2] > 1.5 * share[0][2]


@pytest.mark.parametrize("method", METHODS)
def test_all_forms_of_clients_give_the_same_bits(features, method):
    X, y, ids = features
    pairs = [(X[ids == k], y[ids == k]) for k in range(12)]
    make = FedGaussianHead(method=method, random_state=0)
    expected = clone(make).fit(X, y, client_ids=ids).predict_proba(X)
    fits = [
        clone(make).fit(pairs),
        clone(make).fit([p[0] for p in pairs], [p[1] for p in pairs]),
        clone(make).fit({f"c{k}": pair for k, pair in enumerate(pairs)}),
        clone(make).fit(pairs[::-1]),
        clone(make).fit([*pairs, (X[:0], y[:0])]),
        clone(make).fit(X, y),
        clone(make).fit(X, y, client_ids=np.arange(len(y))),
        clone(make).set_params(runner=FederatedRunner(n_jobs=2)).fit(pairs),
        clone(make).set_params(runner=FederatedRunner(cohort_size=5)).fit(pairs),
    ]
    for head in fits:
        np.testing.assert_array_equal(head.predict_proba(X), expected)


def test_statistics_are_those_of_the_rows(features):
    X, y, ids = features
    head = FedGaussianHead(method="qda").fit(X, y, client_ids=ids)
    expected = ClassStatistics.from_data(X, y, 3)
    np.testing.assert_array_equal(head.statistics_.n, expected.n)
    np.testing.assert_allclose(head.statistics_.cov(), expected.cov(), rtol=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_a_class_without_rows_is_never_predicted(features, method):
    X, y, _ = features
    head = FedGaussianHead(method=method, classes=[0, 1, 2, 7], random_state=0)
    proba = head.fit(X, y).predict_proba(X)
    assert proba.shape == (480, 4)
    assert not proba[:, 3].any()
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert np.isfinite(head.predict_logits(X)[:, :3]).all()


@pytest.mark.parametrize("method", METHODS)
def test_classes_of_one_row_and_few_rows(method):
    rng = np.random.default_rng(0)
    X = np.vstack([rng.normal(size=(20, 6)), rng.normal(size=(3, 6)) + 3, [[9.0] * 6]])
    y = np.r_[np.zeros(20, int), np.ones(3, int), 2]
    head = FedGaussianHead(method=method, random_state=0).fit(X, y)
    proba = head.predict_proba(X)
    assert np.isfinite(proba).all()
    assert head.score(X, y) > 0.8
    assert head.predict([[8.0] * 6]) == 2


def test_labels_may_be_strings_and_frames_name_features(features):
    X, y, ids = features
    labels = np.array(["b", "a", "c"])[y]
    frame = pd.DataFrame(X, columns=[f"f{i}" for i in range(8)])
    head = FedGaussianHead().fit(frame, labels, client_ids=ids)
    assert head.classes_.tolist() == ["a", "b", "c"]
    assert list(head.feature_names_in_) == list(frame.columns)
    plain = FedGaussianHead().fit(X, y).predict_proba(X)
    np.testing.assert_allclose(head.predict_proba(frame), plain[:, [1, 0, 2]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_in_is_dtype_out(features, dtype):
    X, y, _ = features
    head = FedGaussianHead().fit(X.astype(dtype), y)
    assert head.predict_proba(X.astype(dtype)).dtype == dtype
    assert head.statistics_.s2.dtype == np.float64


def test_two_classes_have_one_column_of_log_odds(features):
    X, y, _ = features
    for method in METHODS:
        head = FedGaussianHead(method=method, random_state=0).fit(X, y > 0)
        odds = head.decision_function(X)
        assert odds.shape == (480,)
        proba = head.predict_proba(X)
        np.testing.assert_allclose(odds, np.log(proba[:, 1] / proba[:, 0]), rtol=1e-6)


def test_wrong_values_say_what_to_do(features):
    X, y, ids = features
    with pytest.raises(ValueError, match="3 frequencies, one per class"):
        FedGaussianHead(prior=[0.5, 0.5]).fit(X, y)
    with pytest.raises(ValueError, match="add up to 1"):
        FedGaussianHead(prior=[0.5, 0.5, 0.5]).fit(X, y)
    with pytest.raises(ValueError, match="eps needs max_norm, a public bound"):
        FedGaussianHead(1.0, classes=range(3)).fit(X, y, client_ids=ids)
    with pytest.raises(ValueError, match="clip needs max_norm"):
        FedGaussianHead(clip=1.0).fit(X, y, client_ids=ids)
    with pytest.raises(ValueError, match="y contains labels not in `classes`: \\[2\\]"):
        FedGaussianHead(classes=[0, 1]).fit(X, y)
    with pytest.raises(ValueError, match="only one class"):
        FedGaussianHead().fit(X, np.zeros(480))
    runner = FederatedRunner(cohort="poisson", cohort_size=4)
    with pytest.raises(ValueError, match="Pass max_norm to use cohort='poisson'"):
        FedGaussianHead(runner=runner).fit(X, y, client_ids=ids)
    with pytest.raises(ValueError, match="Client 'b' has 2 rows of features but 3"):
        FedGaussianHead().fit({"a": (X, y), "b": (X[:2], y[:3])})
    with pytest.raises(ValueError, match="Client 1 has rows of shape \\(7,\\)"):
        FedGaussianHead().fit([(X, y), (X[:, :7], y)])
    with pytest.raises(ValueError, match="every client is empty"):
        FedGaussianHead().fit([(X[:0], y[:0])])
    with pytest.raises(ValueError, match="put the budget into the privacy object"):
        FedGaussianHead(1.0, max_norm=1.0, privacy=CentralDP(1.0)).fit(X, y)


def test_another_method_leaves_nothing_of_the_first(features):
    X, y, _ = features
    head = FedGaussianHead().fit(X, y).set_params(method="qda").fit(X, y)
    assert not hasattr(head, "coef_")
    expected = FedGaussianHead(method="qda").fit(X, y).predict_proba(X)
    np.testing.assert_array_equal(head.predict_proba(X), expected)


def test_a_refused_fit_leaves_nothing_behind(features):
    X, y, ids = features
    head = FedGaussianHead(classes=range(3)).fit(X, y)
    before = head.predict_proba(X)
    with pytest.raises(ValueError, match="max_norm"):
        head.set_params(eps=1.0).fit(X[:100], y[:100], client_ids=ids[:100])
    np.testing.assert_array_equal(head.set_params(eps=None).predict_proba(X), before)


@pytest.mark.parametrize("method", ["qda", "sample"])
def test_covariances_of_classes_are_refused_under_privacy(features, method):
    X, y, ids = features
    head = FedGaussianHead(1.0, method=method, max_norm=4.0, classes=range(3))
    with pytest.raises(ValueError, match="Use method='lda'"):
        head.fit(X, y, client_ids=ids)


def test_long_rows_are_shortened_in_fit_and_prediction(features):
    X, y, ids = features
    bound = float(np.median(np.linalg.norm(X, axis=1)))
    short = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True) / bound, 1)
    head = FedGaussianHead(max_norm=bound).fit(X, y, client_ids=ids)
    expected = FedGaussianHead().fit(short, y).predict_proba(short)
    np.testing.assert_allclose(head.predict_proba(X), expected, rtol=1e-9, atol=1e-12)
    assert (len(head.history_), head.n_rounds_) == (1, 1)


def clipped_vectors(X, y, ids, bound, clip):
    """What each client may send, by the definition."""
    unit = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), bound)
    out = []
    for k in np.unique(ids):
        own = ids == k
        vector = ClassStatistics.from_data(unit[own], y[own], y.max() + 1).vector()
        out.append(vector * min(1.0, clip / np.linalg.norm(vector)))
    return np.array(out)


def test_noise_of_the_release_has_the_reported_size(features):
    X, y, ids = features
    head = FedGaussianHead(2.0, max_norm=3.0, classes=range(3), clip=1.5)
    head.fit(X, y, client_ids=ids)
    released = head.history_[0].total["moments"]
    noise = released - clipped_vectors(X, y, ids, 3.0, 1.5).sum(axis=0)
    sigma = head.privacy_.noise_multiplier * 1.5
    assert head.privacy_.clip == {"moments": 1.5}
    # 63 numbers: chi-square with 63 degrees leaves [19, 141] with chance below 1e-6.
    assert len(noise) == 3 + 24 + 36
    assert 19 < np.square(noise / sigma).sum() < 141
    # Far more than rounding to the lattice, which is the only other difference.
    exact = FedGaussianHead(1e4, max_norm=3.0, classes=range(3), clip=1.5)
    nearly = exact.fit(X, y, client_ids=ids).history_[0].total["moments"]
    assert np.abs(nearly - (released - noise)).max() < 0.1


def test_auto_bound_makes_all_clients_count_alike(blobs):
    X, y, ids = blobs
    head = FedGaussianHead(1e4, max_norm=2.0, classes=range(3)).fit(
        X, y, client_ids=ids
    )
    assert head.privacy_.clip == {"moments": 1.0}
    vectors = clipped_vectors(X, y, ids, 2.0, 1.0)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1)
    example = FedGaussianHead(
        privacy=CentralDP(3.0, unit="example"), max_norm=2.0, classes=range(3)
    ).fit(X, y, client_ids=ids)
    assert example.privacy_.clip["moments"] == pytest.approx(3**0.5)
    assert example.score(X, y) > FedGaussianHead().fit(X, y).score(X, y) - 0.02


def test_one_release_is_debited_before_the_clients_are_asked(blobs):
    X, y, ids = blobs
    ledger = PrivacyLedger(budget=(1.2, 1e-5))
    head = FedGaussianHead(1.0, max_norm=2.0, classes=range(3), ledger=ledger)
    head.fit(X, y, client_ids=ids)
    assert len(ledger) == 1
    assert head.privacy_.n_rounds == head.n_rounds_ == 1
    assert head.privacy_.eps == 1.0
    assert head.privacy_.assumptions == ()
    with pytest.raises(BudgetExceededError):
        clone(head).fit(X, y, client_ids=ids)


def test_labels_that_nobody_gave_are_reported_as_public(blobs):
    X, y, ids = blobs
    head = FedGaussianHead(1.0, max_norm=2.0)
    with pytest.warns(PrivacyWarning, match="read from y, which is private"):
        head.fit(X, y, client_ids=ids)
    assert any("class labels" in text for text in head.privacy_.assumptions)


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
def test_privacy_costs_little_with_many_clients(blobs):
    X, y, ids = blobs
    best = FedGaussianHead().fit(X, y).score(X, y)
    for privacy in (CentralDP(1.0), DistributedDP(1.0)):
        head = FedGaussianHead(
            privacy=privacy, max_norm=2.0, classes=range(3), random_state=0
        )
        assert head.fit(X, y, client_ids=ids).score(X, y) > best - 0.05


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
@pytest.mark.parametrize("eps", [0.01, 0.1, 1.0])
def test_what_is_released_under_strong_noise_can_be_used(features, eps):
    X, y, ids = features
    for seed in range(5):
        head = FedGaussianHead(eps, max_norm=3.0, classes=range(3), random_state=seed)
        head.fit(X, y, client_ids=ids)
        noise = head.privacy_.noise_multiplier * head.privacy_.clip["moments"]
        assert (head.statistics_.n > 0.999 * noise).all()
        means = np.linalg.norm(head.statistics_.mean(), axis=1)
        assert means.max() <= 3.0 * (1 + 1e-9)
        assert np.linalg.eigvalsh(head.statistics_.scatter()).min() > 0
        assert np.isfinite(head.predict_log_proba(X)).all()


def test_local_reports_are_refused(features):
    X, y, ids = features
    head = FedGaussianHead(privacy=LocalDP(1.0), max_norm=3.0, classes=range(3))
    with pytest.raises(ValueError, match="moments"):
        head.fit(X, y, client_ids=ids)


def test_uniform_prior_raises_the_calibration_error_of_unequal_classes():
    X, y = make_classification(
        6000, 6, n_informative=4, weights=[0.8], flip_y=0.05, random_state=0
    )
    train, test = slice(0, 4000), slice(4000, None)
    errors = {}
    for method in ("lda", "sample"):
        for prior in ("empirical", "uniform"):
            head = FedGaussianHead(method=method, prior=prior, random_state=0)
            proba = head.fit(X[train], y[train]).predict_proba(X[test])
            errors[method, prior] = classwise_calibration_error(y[test], proba)
        assert errors[method, "empirical"] < 0.5 * errors[method, "uniform"]


def test_pipelines_searches_and_calibrators(features):
    X, y, ids = features
    whole = FederatedCalibratedClassifier(FedGaussianHead(), FedTempCalibrator(), cv=3)
    assert whole.fit(X, y, client_ids=ids).score(X, y) > 0.6
    search = GridSearchCV(FedGaussianHead(), {"shrinkage": [0.01, 0.5]}, cv=2)
    assert search.fit(X, y, client_ids=ids).best_estimator_.n_clients_ == 12
    params = {"client_ids": ids}
    assert cross_val_score(FedGaussianHead(), X, y, cv=3, params=params).min() > 0.5
    head = FedGaussianHead(method="qda").fit(X, y)
    again = pickle.loads(pickle.dumps(head))
    np.testing.assert_array_equal(again.predict_proba(X), head.predict_proba(X))


def test_a_checkpoint_takes_the_run_up(features, tmp_path):
    X, y, ids = features
    runner = FederatedRunner(checkpoint=tmp_path / "run.npz", resume=True)
    first = FedGaussianHead(runner=runner).fit(X, y, client_ids=ids)
    # Both rounds are done: the rows at hand now are not asked.
    second = FedGaussianHead(runner=runner).fit(X[::-1] + 1, y, client_ids=ids)
    np.testing.assert_array_equal(first.coef_, second.coef_)


def test_torch_is_not_needed():
    code = (
        "import sys, numpy as np\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch': raise ImportError(name)\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "from skfedcal import FedGaussianHead\n"
        "from skfedcal.training import ClassStatistics\n"
        "X = np.random.default_rng(0).normal(size=(60, 3)); y = np.arange(60) % 2\n"
        "print(FedGaussianHead(method='sample').fit(X, y).predict(X).shape)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "(60,)", done.stderr
