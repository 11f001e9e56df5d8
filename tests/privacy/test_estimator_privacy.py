"""Privacy as a user of an estimator sees it, and an audit of the claim from below."""

import copy
import math
import pickle
import re
import warnings
from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skfedcal import (
    ClasswiseResiduals,
    FedBinCalibrator,
    FederatedCalibratedClassifier,
    FederatedRunner,
    FedTempCalibrator,
    ScoreHistogram,
    _compiled,
)
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.evaluation import federated_calibration_error
from skfedcal.exceptions import PrivacyWarning, SimulatedPrivacyWarning
from skfedcal.federation import respond
from skfedcal.methods.bins.rounds import ClassHistograms
from skfedcal.methods.temperature.posterior import TemperaturePosterior
from skfedcal.privacy import (
    CentralDP,
    DistributedDP,
    LocalDP,
    PrivacyLedger,
    SecureAggregation,
    SourceDP,
    gdp_mu,
)
from skfedcal.privacy import codec as _codec
from skfedcal.privacy.entropy import SeededEntropy
from skfedcal.privacy.models import ReleasePlan
from skfedcal.privacy.samplers import GAUSSIAN_SIGMA

ESTIMATORS = [FedTempCalibrator, FedBinCalibrator]

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning"),
]


def make_clients(n_clients=30, n_rows=20, n_classes=4, seed=0):
    rng = np.random.default_rng(seed)
    clients = []
    for _ in range(n_clients):
        logits = rng.normal(size=(n_rows, n_classes)) * 2
        labels = (logits / 1.5 + rng.gumbel(size=logits.shape)).argmax(axis=1)
        clients.append((logits, labels))
    return clients


CLIENTS = make_clients()


def pooled():
    X = np.concatenate([logits for logits, _ in CLIENTS])
    y = np.concatenate([labels for _, labels in CLIENTS])
    return X, y, np.repeat(np.arange(len(CLIENTS)), 20)


def result(estimator):
    if isinstance(estimator, FedTempCalibrator):
        return np.array([estimator.temperature_])
    return estimator.positive_


# ---------------------------------------------------------------------- parameters


@pytest.mark.parametrize("cls", ESTIMATORS)
@pytest.mark.parametrize(
    "params",
    [
        {"eps": 1.0, "privacy": CentralDP(1.0)},
        {"eps": 1.0, "privacy": SecureAggregation()},
        {"delta": 1e-6, "privacy": CentralDP(1.0)},
    ],
)
def test_eps_and_privacy_together_are_an_error(cls, params):
    with pytest.raises(ValueError, match="put the budget into the privacy object"):
        cls(**params).fit(CLIENTS)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_eps_is_short_for_central_dp(cls):
    short = cls(eps=1.0, random_state=0).fit(CLIENTS)
    long = cls(privacy=CentralDP(1.0), random_state=0).fit(CLIENTS)
    assert np.array_equal(result(short), result(long))
    assert short.privacy_.eps == long.privacy_.eps == 1.0


@pytest.mark.parametrize("cls", ESTIMATORS)
@pytest.mark.parametrize("params", [{}, {"privacy": SecureAggregation()}])
def test_no_eps_means_exact_sums_and_no_debit(cls, params):
    ledger = PrivacyLedger()
    estimator = cls(ledger=ledger, **params).fit(CLIENTS)
    assert estimator.privacy_.eps == math.inf
    assert not estimator.privacy_.private
    assert len(ledger) == 0
    assert np.array_equal(result(estimator), result(cls().fit(CLIENTS)))


@pytest.mark.parametrize("cls", ESTIMATORS)
@pytest.mark.parametrize("eps", [0.0, -1.0, "1", math.nan])
def test_bad_eps_is_refused(cls, eps):
    with pytest.raises(ValueError, match="eps"):
        cls(eps=eps).fit(CLIENTS)


MODELS = [SecureAggregation, CentralDP, DistributedDP, LocalDP, SourceDP]
COLLECTORS = [
    lambda privacy: ClasswiseResiduals.fit(CLIENTS, privacy=privacy),
    lambda privacy: ScoreHistogram.fit(CLIENTS, kind="top", privacy=privacy),
    lambda privacy: federated_calibration_error(CLIENTS, privacy=privacy),
    lambda privacy: FederatedCalibratedClassifier(
        GaussianNB(), FedTempCalibrator(privacy=privacy)
    ).fit(*pooled()[:2], client_ids=pooled()[2]),
]


@pytest.mark.parametrize("model", MODELS)
def test_a_class_of_models_is_no_model(model, calibrator_class):
    name = model.__name__
    message = rf"privacy={name} is a class; pass .* {name}\(\.\.\.\)"
    with pytest.raises(TypeError, match=message):
        calibrator_class(privacy=model).fit(CLIENTS)
    for collect in COLLECTORS:
        with pytest.raises(TypeError, match=message):
            collect(model)


@pytest.mark.parametrize("wrong", [1.0, "dp", int, object(), [CentralDP(1.0)], {}])
def test_what_is_no_privacy_model_is_named(wrong, calibrator_class):
    message = rf"privacy={re.escape(repr(wrong))} is no.* privacy model; pass None, "
    with pytest.raises(TypeError, match=message):
        calibrator_class(privacy=wrong).fit(CLIENTS)
    for collect in COLLECTORS:
        with pytest.raises(TypeError, match=message):
            collect(wrong)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_privacy_is_cloned_searched_and_kept(cls):
    estimator = cls(privacy=CentralDP(1.0), ledger=PrivacyLedger())
    twin = clone(estimator)
    assert twin.privacy is estimator.privacy
    assert twin.ledger is estimator.ledger
    assert copy.deepcopy(estimator).ledger is estimator.ledger
    twin.set_params(privacy__eps=3.0, privacy__unit="example")
    assert twin.privacy == CentralDP(3.0, unit="example")
    assert estimator.privacy == CentralDP(1.0)
    assert estimator.get_params()["privacy__eps"] == 1.0
    with pytest.raises(ValueError, match="epsilon"):
        twin.set_params(privacy__epsilon=1.0)
    before = estimator.get_params(deep=False)
    estimator.fit(CLIENTS)
    after = estimator.get_params(deep=False)
    assert all(after[name] is before[name] for name in before)


# ------------------------------------------------------------- warnings and deltas


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_delta_counts_clients_or_rows(cls):
    big = [(CLIENTS[i % 30][0][:2], CLIENTS[i % 30][1][:2]) for i in range(20_000)]
    assert cls(eps=1.0, random_state=0).fit(CLIENTS).privacy_.delta == 1e-5
    report = cls(eps=1.0, random_state=0).fit(big).privacy_
    assert report.delta == pytest.approx(1 / 200_000)
    model = CentralDP(1.0, unit="example")
    report = cls(privacy=model, random_state=0).fit(big).privacy_
    assert report.delta == pytest.approx(1 / 400_000)
    assert (report.unit, report.n_clients) == ("example", 40_000)
    with pytest.raises(ValueError, match="publishes one of the 30 clients"):
        cls(eps=1.0, delta=1 / 30).fit(CLIENTS)
    with pytest.warns(PrivacyWarning, match="large for 30 clients"):
        cls(eps=1.0, delta=1 / 200).fit(CLIENTS)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_one_client_is_warned_about(cls):
    X, y, _ = pooled()
    with pytest.warns(PrivacyWarning, match="only one client"):
        cls(eps=1.0).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        cls().fit(X, y)
        cls(privacy=CentralDP(1.0, unit="example")).fit(X, y)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_a_seed_is_called_a_simulation(cls):
    with pytest.warns(SimulatedPrivacyWarning, match="random_state=7") as caught:
        seeded = cls(eps=1.0, random_state=7).fit(CLIENTS)
    assert sum(w.category is SimulatedPrivacyWarning for w in caught) == 1
    assert "SIMULATED" in repr(seeded.privacy_)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SimulatedPrivacyWarning)
        real = cls(eps=1.0).fit(CLIENTS)
        cls(random_state=7).fit(CLIENTS)
    assert real.privacy_.secure
    assert "SIMULATED" not in repr(real.privacy_)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_a_ledger_on_disk_refuses_simulations(cls, tmp_path):
    ledger = PrivacyLedger(tmp_path / "ledger.jsonl")
    with pytest.raises(ValueError, match="simulation"):
        cls(eps=1.0, random_state=0, ledger=ledger).fit(CLIENTS)
    assert len(ledger) == 0
    cls(eps=1.0, ledger=ledger).fit(CLIENTS)
    assert len(ledger) == 1


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_a_seed_repeats_a_fit_and_the_operating_system_does_not(cls):
    def fit(seed):
        return result(cls(eps=1.0, random_state=seed).fit(CLIENTS))

    assert np.array_equal(fit(3), fit(3))
    assert not np.array_equal(fit(3), fit(4))
    assert not np.array_equal(fit(None), fit(None))
    first, second = (fit(np.random.RandomState(0)) for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.filterwarnings("ignore:eps is set but there is only one client")
def test_a_search_without_a_ledger_is_warned_about():
    X, y, ids = pooled()
    search = GridSearchCV(
        FedTempCalibrator(eps=9.0, random_state=0),
        {"eps": [9.0, 10.0]},
        cv=KFold(2),
        scoring="neg_log_loss",
        refit=False,
    )
    with pytest.warns(PrivacyWarning, match="Each candidate and fold"):
        search.fit(X, y)
    ledger = PrivacyLedger()
    search.set_params(estimator__ledger=ledger)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Each candidate")
        search.fit(X, y)
    assert len(ledger) == 4
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Each candidate")
        FedTempCalibrator(eps=1.0).fit(X, y, client_ids=ids)
        cross_val_score(FedTempCalibrator(), X, y, cv=2)


def fit_counting(message, fit):
    """Warnings with this message that a call makes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit()
    return sum(message in str(w.message) for w in caught)


@pytest.mark.filterwarnings("ignore:eps is set but there is only one client")
def test_repeated_fits_of_clones_are_warned_about_whoever_makes_them():
    X, y, ids = pooled()
    again = "spends eps again"

    def fits(n, **params):
        cal = FedTempCalibrator(eps=1.0, **params)
        for _ in range(n):
            clone(cal).fit(CLIENTS)

    # One clone is one payment; the second one is paid again.
    assert fit_counting(again, lambda: fits(1)) == 0
    assert fit_counting(again, lambda: fits(3)) == 2
    assert fit_counting(again, lambda: fits(3, ledger=PrivacyLedger())) == 0
    # One client at a small eps would not be asked.
    folds = CalibratedClassifierCV(FedTempCalibrator(eps=9.0), cv=3, ensemble=True)
    assert fit_counting(again, lambda: folds.fit(X, y)) == 2
    cal = FedTempCalibrator(eps=1.0)
    assert fit_counting(again, lambda: [cal.fit(CLIENTS) for _ in range(2)]) == 0
    # What a classifier holds is cloned with it, and cloned once more by its fit.
    frozen = FrozenEstimator(LogisticRegression().fit(X, y))
    whole = FederatedCalibratedClassifier(frozen, FedTempCalibrator(eps=1.0))
    params = {"client_ids": ids}
    for _ in range(2):  # its own clone is not a second one
        assert fit_counting(again, lambda: whole.fit(X, y, **params)) == 0
    folds = fit_counting(
        again, lambda: cross_val_score(whole, X, y, params=params, cv=4)
    )
    assert folds == 3


def test_clones_are_refused_the_checkpoint_of_their_original(tmp_path):
    X, y, ids = pooled()
    path = tmp_path / "run.npz"
    runner = FederatedRunner(checkpoint=path, resume=True)
    ledger = PrivacyLedger(tmp_path / "ledger.jsonl")
    cal = FedTempCalibrator(eps=1.0, runner=runner, ledger=ledger)
    frozen = FrozenEstimator(LogisticRegression().fit(X, y))
    whole = FederatedCalibratedClassifier(frozen, cal)
    grid = GridSearchCV(
        FedTempCalibrator(eps=1.0), {"runner": [runner]}, cv=2, error_score="raise"
    )
    pipe = make_pipeline(FunctionTransformer(), cal)
    folds = {"cv": 2, "error_score": "raise", "params": {}}
    for search in (
        lambda: clone(cal).fit(CLIENTS),
        lambda: pickle.loads(pickle.dumps(clone(cal))).fit(CLIENTS),
        lambda: cross_val_score(cal, X, y, **folds),
        lambda: cross_val_score(cal, X, y, **folds, n_jobs=2),
        lambda: cross_val_score(pipe, X, y, **folds),
        lambda: cross_val_score(whole, X, y, **folds),
        lambda: grid.fit(X, y),
    ):
        with pytest.raises(ValueError, match="every fold would resume"):
            search()
    assert not path.exists() and len(ledger) == 0
    whole.fit(X, y, client_ids=ids)  # fits a clone, in place of its calibrator
    assert path.exists() and len(ledger) == 1


@pytest.mark.filterwarnings("ignore:eps is set but there is only one client")
def test_folds_share_one_account():
    X, y, _ = pooled()
    ledger = PrivacyLedger()
    estimator = FedBinCalibrator(eps=1.0, delta=1e-5, ledger=ledger, random_state=0)
    cross_val_score(estimator, X, y, cv=5)
    assert len(ledger) == 5
    # Five fits of mu = 0.268 are one of sqrt(5) times that.
    mu = math.sqrt(sum(r["event"]["mu"] ** 2 for r in ledger.records()))
    assert mu == pytest.approx(math.sqrt(5) * gdp_mu(1.0, 1e-5), rel=1e-4)
    assert 2.2 < ledger.spent(1e-5) < 2.8


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_weights_are_refused_under_noise(cls):
    X, y, ids = pooled()
    ledger = PrivacyLedger()
    with pytest.raises(ValueError, match="sample_weight cannot be used with privacy"):
        cls(eps=1.0, ledger=ledger).fit(X, y, client_ids=ids, sample_weight=y + 1.0)
    assert len(ledger) == 0


# ------------------------------------------------------------------------- reports


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_the_report_belongs_to_the_ledger(cls):
    ledger = PrivacyLedger()
    estimator = cls(eps=1.0, ledger=ledger).fit(CLIENTS)
    (record,) = ledger.records()
    report = estimator.privacy_
    assert report.ledger_ids == (record["id"],)
    assert record["label"] == cls.__name__
    assert record["event"]["mu"] == report.mu
    assert report.mu == pytest.approx(
        math.sqrt(report.n_rounds) / report.noise_multiplier, rel=1e-12
    )
    assert ledger.spent(report.delta) <= 1.0 + 1e-9
    assert f"protects one client of {len(CLIENTS)}" in repr(report)
    assert pickle.loads(pickle.dumps(report)) == report


def test_the_report_names_the_bounds():
    report = FedBinCalibrator(eps=1.0, clip=(10, 50)).fit(CLIENTS).privacy_
    assert report.clip == {"positive": 10.0, "negative": 50.0}
    assert "bounds: positive 10, negative 50" in repr(report)
    report = FedBinCalibrator(eps=1.0, clip=(10, 50), clip_per_class=True)
    assert report.fit(CLIENTS).privacy_.clip["positive"] == pytest.approx(20.0)


def test_zcdp_accounting_adds_more_noise():
    def noise(accountant):
        model = CentralDP(1.0, delta=1e-5, accountant=accountant)
        return FedBinCalibrator(privacy=model).fit(CLIENTS).privacy_.noise_multiplier

    assert noise("zcdp") / noise("gdp") == pytest.approx(4.0451 / 3.7306, rel=1e-4)


# ------------------------------------------------------------- the unit of privacy


def dataset(clients, n_classes=4):
    sizes = [len(labels) for _, labels in clients]
    return FederatedDataset(
        np.concatenate([rows for rows, _ in clients]),
        np.concatenate([labels for _, labels in clients]),
        np.concatenate([[0], np.cumsum(sizes)]),
        range(len(clients)),
        n_classes,
    )


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_rows_as_units_make_the_partition_irrelevant(cls):
    # Every row is bounded by itself, and the sum over rows knows no clients.
    X, y, ids = pooled()
    model = CentralDP(1.0, unit="example")
    outputs = [
        result(cls(privacy=model, random_state=0).fit(X, y, client_ids=client))
        for client in (ids, ids // 7, None)
    ]
    assert np.array_equal(outputs[0], outputs[1])
    assert np.array_equal(outputs[0], outputs[2])


def test_a_row_is_bounded_by_itself():
    # Histogram counts of one row: 1 positive, c - 1 negative. Without clipping losses
    # a client of 20 rows sends 20 of them.
    model = CentralDP(1e4, unit="example")
    fitted = FedBinCalibrator(privacy=model, random_state=0, n_bins=3).fit(CLIENTS)
    exact = FedBinCalibrator(n_bins=3).fit(CLIENTS)
    assert np.abs(fitted.positive_ - exact.positive_).max() < 1.0
    assert np.abs(fitted.negative_ - exact.negative_).max() < 1.0
    assert fitted.privacy_.clip == {"positive": 1.0, "negative": pytest.approx(3**0.5)}


def test_updates_under_rows_as_units_divide_by_rows():
    # The curvature of a mean loss is about 0.4 whatever the number of clients; a
    # division by clients makes it 20 times that, and the step 20 times too short.
    model = CentralDP(1e4, unit="example")
    by_row = FedTempCalibrator(privacy=model, random_state=0, solver="newton")
    own_clients = [
        (logits[i : i + 1], labels[i : i + 1])
        for logits, labels in CLIENTS
        for i in range(len(labels))
    ]
    whole = clone(by_row).set_params(privacy=CentralDP(1e4), clip=0.5)
    one_row_each = clone(by_row).set_params(clip=0.5).fit(own_clients)
    assert by_row.set_params(clip=0.5).fit(CLIENTS).temperature_ == pytest.approx(
        one_row_each.temperature_, rel=1e-3
    )
    assert whole.fit(CLIENTS).n_clients_ == 30


# -------------------------------------------------------------- audit from below
#
# Two worlds: a worst-case client is present, or zeroed out (it holds no rows). The
# auditor knows all other clients and what the canary would send, and takes the
# likelihood ratio over all rounds: under mu-GDP its errors cannot beat those of
# N(0, 1) against N(mu, 1). Errors are counted, bounded by Clopper-Pearson at alpha/2
# each, and turned into a lower bound on mu; thresholds are fixed beforehand, for an
# honest door (0) and for a broken one (several deviations up), and share alpha.

N_RUNS = 400
AUDIT_ALPHA = 1e-6

# Kept from before any test replaces them.
HONEST_CLIP, HONEST_ROUND = _codec.clip_rows, _codec.round_within


def canary_rows(n_rows=1500, n_classes=4):
    """Every row certain of class 0, and wrong: the longest answer there is."""
    logits = np.tile(np.array([1e4] + [-1e4] * (n_classes - 1)), (n_rows, 1))
    return logits, np.full(n_rows, 1)


@dataclass
class AuditedBackend:
    """Answers a request, and notes what the auditor knows about it."""

    clients: FederatedDataset
    others: FederatedDataset
    canary: FederatedDataset
    seen: list = field(default_factory=list)

    def ids(self):
        return self.clients.names

    def total(self, request, cohort):
        rest = respond(request, self.others).total
        values = request.algorithm.query(request.broadcast, self.canary)
        self.seen.append((request.codec, rest, values))
        return respond(request, self.clients)


def honest_code(code, values):
    flat = HONEST_CLIP(
        values.reshape(1, -1), code.spec.clip, code.spec.norm, code.spec.groups
    )
    grouped = (flat / code.step).reshape(code.spec.groups, -1)
    return HONEST_ROUND(grouped, code.limit, code.spec.norm).ravel()


def log_ratio(backend, history):
    """Log-likelihood ratio of present against zeroed, for a client in its bound."""
    ratio = 0.0
    for (codec, rest, values), record in zip(backend.seen, history, strict=True):
        for name, code in codec.blocks.items():
            sent = honest_code(code, values[name]).astype(float)
            noise = record.total[name].ravel() / code.step - rest[name][0]
            ratio += (noise @ sent - sent @ sent / 2) / GAUSSIAN_SIGMA**2
    return ratio


def audit(algorithm, n_runs=N_RUNS):
    others = dataset(make_clients(8, 6))
    canary = dataset([canary_rows()])
    empty = (np.empty((0, 4)), np.empty(0, dtype=np.int64))
    worlds = [dataset([*make_clients(8, 6), last]) for last in (empty, canary_rows())]
    start = algorithm.broadcast(algorithm.init(4))
    n_values = sum(block.size for block in algorithm.spec(start).values())
    plan = ReleasePlan(9, algorithm.n_rounds, algorithm.n_rounds, 1.0, n_values)
    ratios = np.empty((2, n_runs))
    for side, world in enumerate(worlds):
        for run in range(n_runs):
            seed = SeededEntropy(2024, side, run)
            mechanism = CentralDP(1.0, delta=1e-5).mechanism(
                plan, entropy=seed.child(0), ledger=PrivacyLedger()
            )
            backend = AuditedBackend(world, others, canary)
            _, history = FederatedRunner().run(
                algorithm, backend, mechanism, seed, n_classes=4
            )
            ratios[side, run] = log_ratio(backend, history)
    return mu_lower_bound(ratios), ratios


def mu_lower_bound(ratios, alpha=AUDIT_ALPHA):
    n = ratios.shape[1]
    thresholds = (0.0, 4 * gdp_mu(1.0, 1e-5), 10 * gdp_mu(1.0, 1e-5))
    bounds = []
    for threshold in thresholds:
        errors = (ratios[0] > threshold).sum(), (ratios[1] <= threshold).sum()
        upper = [
            stats.beta.isf(alpha / 2 / len(thresholds), k + 1, n - k) if k < n else 1.0
            for k in errors
        ]
        bounds.append(stats.norm.isf(upper[0]) - stats.norm.ppf(upper[1]))
    return float(max(bounds))


AUDITED = [
    TemperaturePosterior(),
    ClassHistograms(n_bins=15, clip_positive=10.0, clip_negative=10 * 3**0.5),
    ClassHistograms(5, clip_positive=10.0, clip_negative=50.0, per_class=True),
]


@pytest.mark.parametrize("algorithm", AUDITED, ids=["temp", "bin", "bin-per-class"])
def test_audit_finds_no_more_than_was_claimed(algorithm):
    lower, ratios = audit(algorithm)
    claimed = gdp_mu(1.0, 1e-5)
    assert lower <= claimed
    # The ratio is N(-m^2/2, m^2) and N(m^2/2, m^2) for a canary of strength m: the
    # difference of means over m^2, m the claim, estimates (true/claimed)^2 for this
    # canary with standard deviation sqrt(2/n)/m = 0.26. Bound at 5.2 deviations. The
    # canary need not fill its bound in all blocks, so nothing is asked from below.
    strength = np.diff(ratios.mean(axis=1))[0] / claimed**2
    assert strength < 1 + 5.2 * math.sqrt(2 / N_RUNS) / claimed


class RawCounts(ClassHistograms):
    """Counts as they are: the door alone keeps them in bounds."""

    def query(self, broadcast, clients):
        return ClassHistograms(self.n_bins).query(broadcast, clients)


LONG = [
    TemperaturePosterior(),
    RawCounts(n_bins=15, clip_positive=10.0, clip_negative=10 * 3**0.5),
    RawCounts(5, clip_positive=10.0, clip_negative=50.0, per_class=True),
]


@pytest.mark.parametrize("algorithm", LONG, ids=["temp", "bin", "bin-per-class"])
def test_audit_catches_a_door_that_does_not_clip(algorithm, monkeypatch):
    def no_clip(values, *_, **__):
        return values

    def no_bound(values, *_):
        return np.rint(values).astype(np.int64)

    monkeypatch.setattr(_compiled, "core", None)  # which clips by itself
    monkeypatch.setattr(_codec, "clip_rows", no_clip)
    monkeypatch.setattr(_codec, "round_within", no_bound)
    # Every run is told apart: the bound is that of no error in so many runs.
    lower, _ = audit(algorithm, n_runs=60)
    assert lower > 2 * gdp_mu(1.0, 1e-5)
