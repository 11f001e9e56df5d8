"""One answer on every engine, masked or not: the same bits for every method."""

import hashlib

import numpy as np
import pytest

from skfedcal import (
    ClasswiseResiduals,
    FederatedRunner,
    FedHistogramCalibrator,
    FedTempCalibrator,
    ScoreHistogram,
    federated_roc_auc_score,
    make_federation,
    testing,
)
from skfedcal.exceptions import NotEnoughClientsError
from skfedcal.federation import (
    InProcess,
    InProcessTransport,
    Joblib,
    MessageBackend,
    RemoteClients,
    Site,
    SitePolicy,
    SiteRows,
)
from skfedcal.federation.backends import engine_of
from skfedcal.methods import registry
from skfedcal.privacy import CentralDP, DistributedDP, LocalDP, SourceDP

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.PrivacyWarning"),
]

NAMES = [f"site-{i}" for i in range(6)]


def named(n_classes, seed=0):
    fed = make_federation(6, 180, n_classes, alpha=1.0, random_state=seed)
    return dict(zip(NAMES, fed.clients, strict=True))


THREE, TWO = named(3), named(2)


def remote(clients, seeded=False, **options):
    """The same clients behind messages, each with its own file."""
    policy = SitePolicy(allow_plain=True, allow_seeded_noise=seeded)
    sites = {n: Site(n, SiteRows(*rows), policy=policy) for n, rows in clients.items()}
    transport = InProcessTransport(sites)
    return RemoteClients(transport, **options)


def digest(history):
    """SHA-256 of everything that was released."""
    sha = hashlib.sha256()
    for record in history:
        for name, value in sorted(record.total.items()):
            sha.update(name.encode() + np.ascontiguousarray(value).tobytes())
    return sha.hexdigest()


def fit_all(fit, clients, runner=None):
    """Digests of one fit on all engines; `fit(clients, runner)` gives a history."""
    runner = FederatedRunner() if runner is None else runner
    masked = runner.set_params(secure=True)
    return {
        "in process": digest(fit(clients, runner)),
        "threads": digest(fit(clients, runner.set_params(n_jobs=2))),
        "masked": digest(fit(clients, masked)),
        "masked threads": digest(fit(clients, masked.set_params(n_jobs=2))),
        "messages": digest(fit(remote(clients), runner)),
        "masked messages": digest(fit(remote(clients), masked)),
    }


def test_every_calibrator_releases_the_same_bits(calibrator_class):
    method = registry.method_of(calibrator_class)
    for case in method.cases:
        testing.check_engines(method, testing.asking(calibrator_class(**case.params)))


EVALUATIONS = {
    "binary": lambda c, r: ScoreHistogram.fit(c, classes=[0, 1], runner=r),
    "positive": lambda c, r: ScoreHistogram.fit(
        c, classes=[0, 1], pos_label=0, space="logit", runner=r
    ),
    "clients": lambda c, r: ScoreHistogram.fit(
        c, classes=[0, 1], weighting="client", height=5, runner=r
    ),
    "noisy": lambda c, r: ScoreHistogram.fit(
        c, classes=[0, 1], privacy=CentralDP(1.0), runner=r, random_state=0
    ),
    "rows": lambda c, r: ScoreHistogram.fit(
        c if isinstance(c, dict) else remote(TWO, n_rows=180),
        classes=[0, 1],
        privacy=CentralDP(1.0, unit="example"),
        runner=r,
        random_state=0,
    ),
    "side": lambda c, r: ScoreHistogram._fit_at(0.3, c, classes=[0, 1], runner=r),
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_histograms_release_the_same_bits(name):
    found = fit_all(lambda c, r: EVALUATIONS[name](c, r).history_, TWO)
    assert len(set(found.values())) == 1, found


@pytest.mark.parametrize(
    "fit",
    [
        lambda c, r: ScoreHistogram.fit(c, kind="top", classes=[0, 1, 2], runner=r),
        lambda c, r: ScoreHistogram.fit(
            c, kind="top", space="logit", classes=[0, 1, 2], runner=r
        ),
        lambda c, r: ClasswiseResiduals.fit(c, classes=[0, 1, 2], runner=r),
    ],
    ids=["top", "top in logits", "residuals"],
)
def test_statistics_of_several_classes_release_the_same_bits(fit):
    found = fit_all(lambda c, r: fit(c, r).history_, THREE)
    assert len(set(found.values())) == 1, found


@pytest.mark.parametrize("secure", [False, True])
def test_functions_of_clients_take_remote_ones(secure):
    runner = FederatedRunner(secure=secure)
    options = {"classes": [0, 1, 2], "multi_class": "ovr"}
    here = federated_roc_auc_score(THREE, **options)
    assert federated_roc_auc_score(remote(THREE), runner=runner, **options) == here


# Noise that clients draw: seeded only where everything is simulated.

MODELS = {
    "polya": DistributedDP(1.0, n_min=4, mode="faithful"),
    "colluders": DistributedDP(1.0, n_min=5, max_colluders=1, mode="faithful"),
    "fast": DistributedDP(1.0, n_min=4),
    "reports": LocalDP(2.0, mode="faithful"),
    "source": SourceDP(1.0, mode="faithful"),
}


@pytest.mark.parametrize("name", MODELS)
def test_seeded_noise_of_clients_is_the_same_masked_or_not(name):
    def fit(runner):
        return ScoreHistogram.fit(
            TWO,
            classes=[0, 1],
            privacy=MODELS[name],
            height=2,
            runner=runner,
            random_state=3,
        ).history_

    expected = digest(fit(FederatedRunner()))
    # Levels of LocalDP are dealt over cohorts of 3 clients, which can be masked.
    assert digest(fit(FederatedRunner(secure=True))) == expected
    assert digest(fit(FederatedRunner(n_jobs=2))) == expected
    assert digest(fit(FederatedRunner(secure=True, n_jobs=2))) == expected


def test_seeded_gaussian_shares_are_the_same_masked_or_not():
    model = DistributedDP(1.0, n_min=4, mode="faithful", max_colluders=1)

    def fit(runner):
        return FedTempCalibrator(privacy=model, runner=runner, random_state=3).fit(
            THREE
        )

    here = fit(FederatedRunner(n_rounds=2))
    there = fit(FederatedRunner(n_rounds=2, secure=True))
    assert digest(here.history_) == digest(there.history_)


@pytest.mark.parametrize("secure", [False, True])
def test_the_seed_of_the_server_does_not_reach_real_sites(secure):
    # SourceDP protects by itself, so that it may be sent plain.
    model = SourceDP(1.0, mode="faithful")

    def fit(clients):
        runner = FederatedRunner(secure=secure)
        return ScoreHistogram.fit(
            clients, classes=[0, 1], privacy=model, runner=runner, random_state=3,
            height=3,
        ).history_  # fmt: skip

    sites = [remote(TWO, n_rows=180) for _ in range(2)]
    assert digest(fit(sites[0])) != digest(fit(sites[1]))


# Cohorts.


@pytest.mark.parametrize(
    "options",
    [
        {"cohort": "full", "cohort_size": 3},
        {"cohort": "permuted", "cohort_size": 3, "n_rounds": 4},
        {"cohort": "independent", "cohort_size": 4, "n_rounds": 3},
        {"cohort": "poisson", "cohort_size": 5, "n_rounds": 2},
    ],
    ids=lambda options: options["cohort"],
)
def test_the_same_cohorts_are_asked_on_every_engine(options):
    def fit(clients, runner):
        calibrator = FedTempCalibrator(
            solver="grid", classes=[0, 1, 2], runner=runner, random_state=0
        )
        return calibrator.fit(clients).history_

    found = fit_all(fit, THREE, FederatedRunner(**options))
    assert len(set(found.values())) == 1, found


def test_two_clients_cannot_hide():
    runner = FederatedRunner(secure=True, cohort_size=2)
    with pytest.raises(Exception, match="masked sum needs 3 to"):
        FedTempCalibrator(runner=runner).fit(THREE)


# Which engine is used.


def test_secure_engines_follow_the_parameters():
    from skfedcal.clients.dataset import FederatedDataset

    data = FederatedDataset(
        np.zeros((4, 2)), np.zeros(4, dtype=int), np.arange(5), range(4), 2
    )
    for options in ({}, {"n_jobs": 2}, {"backend": "threads"}):
        engine = engine_of(FederatedRunner(secure=True, **options), data)
        assert isinstance(engine, MessageBackend)
        assert engine.secure and engine.simulate
    transport = InProcessTransport(data)
    for secure in (False, True):
        engine = engine_of(FederatedRunner(secure=secure, backend=transport), data)
        assert isinstance(engine, MessageBackend)
        assert engine.secure is secure and not engine.simulate
    ready = MessageBackend(transport, secure=True)
    assert engine_of(FederatedRunner(secure=True, backend=ready), data) is ready
    for backend in (InProcess(data), Joblib(data), MessageBackend(transport)):
        with pytest.raises(ValueError, match="does not mask"):
            engine_of(FederatedRunner(secure=True, backend=backend), data)


def test_processes_do_not_mask():
    runner = FederatedRunner(secure=True, backend="loky")
    with pytest.raises(ValueError, match="masked rounds run in one process"):
        FedTempCalibrator(runner=runner).fit(THREE)


def test_a_masked_run_takes_up_a_checkpoint(tmp_path):
    path = tmp_path / "run.npz"

    def fit(**options):
        runner = FederatedRunner(n_rounds=4, secure=True, **options)
        return FedTempCalibrator(runner=runner, classes=[0, 1, 2])

    whole = fit().fit(THREE)
    calls = []

    def broken(kind, name, reply):
        calls.append(kind)
        return None if len(calls) > (2 + 2 * 1) * len(THREE) else reply

    sites = {n: Site(n, SiteRows(*rows)) for n, rows in THREE.items()}
    lost = RemoteClients(InProcessTransport(sites, on_reply=broken))
    with pytest.raises(NotEnoughClientsError, match="'site-5' did not answer"):
        fit(checkpoint=path).fit(lost)
    again = RemoteClients(InProcessTransport(sites))
    resumed = fit(checkpoint=path, resume=True).fit(again)
    assert resumed.temperature_ == whole.temperature_
    assert digest(resumed.history_) == digest(whole.history_)


def test_sites_whose_rows_are_many_are_sampled_if_their_number_is_stated():
    fed = make_federation(4, 3000, 3, random_state=0)
    many = {f"site {i}": rows for i, rows in enumerate(fed.clients)}

    def sizes(calibrator):
        return [int(record.total["sizes"][1]) for record in calibrator.history_]

    here = FedTempCalibrator(classes=[0, 1, 2]).fit(many)
    stated = FedTempCalibrator(classes=[0, 1, 2]).fit(remote(many, n_rows=3000))
    unknown = FedTempCalibrator(classes=[0, 1, 2]).fit(remote(many))
    assert digest(stated.history_) == digest(here.history_)
    assert 200 <= sizes(here)[0] < 600 and sizes(here)[-1] == 3000
    assert set(sizes(unknown)) == {3000}
    assert unknown.temperature_ == pytest.approx(here.temperature_, rel=1e-6)


def test_a_message_of_counts_is_as_large_as_it_says():
    sizes = []

    def weigh(kind, name, reply):
        if kind == "masked":
            sizes.append(sum(array.nbytes for array in reply[1].values()))
        return reply

    sites = {n: Site(n, SiteRows(*rows)) for n, rows in TWO.items()}
    for privacy, n_rows in (
        (None, None),
        (CentralDP(1.0), None),
        (CentralDP(1.0, unit="example"), 180),
        (DistributedDP(1.0, mode="faithful"), None),
    ):
        sizes.clear()
        transport = InProcessTransport(sites, on_reply=weigh)
        calibrator = FedHistogramCalibrator(
            classes=[0, 1], privacy=privacy, runner=FederatedRunner(secure=True)
        )
        calibrator.fit(RemoteClients(transport, n_rows=n_rows))
        assert set(sizes) == {calibrator.history_[0].bytes_up}
