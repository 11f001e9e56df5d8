"""Training over sites: the same result as in one process, and what a site refuses."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("torch")

from skfedcal import CentralDP, FederatedRunner
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import check_broadcast
from skfedcal.exceptions import NotEnoughClientsError
from skfedcal.federation import (
    InProcessTransport,
    RemoteClients,
    Site,
    SitePolicy,
    SiteRows,
)
from skfedcal.training import FedAvgClassifier, FedGaussianHead, Proximal, Scaffold
from skfedcal.training.modules import build_network
from skfedcal.training.site_training import SiteTraining

CLASSES = [0, 1, 2]
# Clients that are simulated together may be rounded in another way than one alone.
TOLERANCE = 1e-6
pytestmark = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning",
    "ignore::skfedcal.exceptions.FaultyClientWarning",
)


@pytest.fixture(scope="module")
def clients():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 240)
    rows = rng.normal(size=(240, 5)) + 2 * np.eye(3, 5)[labels]
    cuts = [0, 30, 110, 170, 240]
    return {
        f"s{i}": (rows[a:b], labels[a:b]) for i, (a, b) in enumerate(pairwise(cuts))
    }


def over(clients, **policy):
    policy = SitePolicy(**{"allow_training": True, **policy})
    sites = {n: Site(n, SiteRows(*rows), policy=policy) for n, rows in clients.items()}
    return RemoteClients(InProcessTransport(sites), n_columns=5)


def classifier(module="mlp", **options):
    params = {"hidden": (6,)} if module == "mlp" else None
    defaults = {"module_params": params, "n_rounds": 3, "lr": 0.3, "batch_size": 16}
    return FedAvgClassifier(
        module, classes=CLASSES, random_state=0, **{**defaults, **options}
    )


def flat(fitted):
    return np.concatenate([p.detach().ravel() for p in fitted.module_.parameters()])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"module": "linear", "optimizer": "adam", "lr": 0.05},
        {"penalties": Proximal(0.5), "momentum": 0.5, "weight_decay": 0.01},
        {"penalties": [Proximal(0.5)], "local_epochs": 3, "batch_size": None},
        {"clip": 0.5, "server_lr": 0.7, "server_momentum": 0.3, "loss": "focal"},
        {"eps": 8.0},
        {"privacy": CentralDP(8.0), "clip": 0.3, "loss": "fedlc"},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_sites_train_what_one_process_trains(clients, options):
    here = classifier(**options).fit(clients)
    runner = FederatedRunner(secure=True)
    there = classifier(**options, runner=runner).fit(over(clients))
    np.testing.assert_allclose(flat(there), flat(here), atol=TOLERANCE)
    assert (there.n_clients_, there.n_rounds_) == (4, 3)
    assert there.privacy_.eps == here.privacy_.eps
    start = classifier(**options, n_rounds=1).fit(clients)
    assert not np.allclose(flat(start), flat(here), atol=1e-3)  # it did train
    rows = np.concatenate([x for x, _ in clients.values()])
    np.testing.assert_allclose(
        there.predict_proba(rows), here.predict_proba(rows), atol=10 * TOLERANCE
    )


def test_a_site_trains_only_if_its_policy_says_so(clients, caplog):
    masked = {"runner": FederatedRunner(secure=True)}
    for policy in (
        {"allow_training": False},
        {"methods": ("temperature", "gaussian_head")},
        {"noise": "central"},
    ):
        caplog.clear()
        with pytest.raises(NotEnoughClientsError):
            classifier(**masked).fit(over(clients, **policy))
        assert f"its policy ({next(iter(policy))})" in caplog.text
    named = over(clients, methods=("training.fedavg/1",))
    assert classifier(**masked).fit(named).n_rounds_ == 3
    assert SitePolicy.from_config({"allow-training": True}).allow_training


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"module": lambda: None, "module_params": None}, "run no code"),
        ({"module": "resnet18", "module_params": None}, "run no code"),
        ({"module_params": {"hidden": (3,), "x": 1}}, "only `hidden` of 'mlp'"),
        ({"correction": Scaffold()}, "correction=Scaffold"),
        ({"head": FedGaussianHead()}, "head=FedGaussianHead"),
        ({"eval_set": (np.zeros((2, 5)), [0, 1])}, "eval_set="),
        ({"input_shape": (5,)}, "input_shape="),
        ({"loss": "logit_adjusted"}, "pass 'cross_entropy'"),
        ({"penalties": [Proximal(), Proximal()]}, "one Proximal"),
        ({"privacy": CentralDP(1.0, unit="example")}, "unit='client'"),
    ],
)
def test_what_cannot_be_sent_is_named_before_a_site_is_asked(clients, options, text):
    class Silent(InProcessTransport):
        def call(self, kind, letters):
            raise AssertionError(kind)

    sites = {n: Site(n, SiteRows(*rows)) for n, rows in clients.items()}
    remote = RemoteClients(Silent(sites), n_columns=5)
    with pytest.raises((ValueError, TypeError), match=text):
        classifier(**options).fit(remote)


@pytest.mark.parametrize("hidden", [(), (6,), (4, 3)])
def test_the_site_knows_the_size_of_the_module(hidden):
    plain = SiteTraining(5, 3, hidden=hidden)
    made = build_network("mlp", {"hidden": hidden}, (5,), 3, seed=0, device="cpu")
    assert plain.n_params == made.n_params == len(plain.init(3).params)


def test_a_client_depends_on_its_own_rows_only(clients):
    rows = np.concatenate([x for x, _ in clients.values()])
    labels = np.concatenate([y for _, y in clients.values()])
    sizes = [len(y) for _, y in clients.values()]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    data = FederatedDataset(rows, labels, offsets, list(clients), 3)
    for plain in (
        SiteTraining(5, 3, hidden=(6,)),
        SiteTraining(5, 3, clip=0.5, weighting="uniform", optimizer="adam"),
    ):
        broadcast = plain.broadcast(plain.init(3))
        check_broadcast(plain, broadcast, 3)
        together = plain.query(broadcast, data)
        for i in range(len(data)):
            alone = plain.query(broadcast, data.slice(i, i + 1))
            assert set(alone) == set(plain.spec(broadcast))
            for name, value in alone.items():
                np.testing.assert_array_equal(value[0], together[name][i])


@pytest.mark.parametrize(
    "change",
    [
        {"hidden": (10**7,)},
        {"hidden": (2,) * 17},
        {"hidden": (0,)},
        {"n_features": 0},
        {"epochs": 10**6},
        {"epochs": 0},
        {"batch_size": 2**40},
        {"lr": 0.0},
        {"proximal": -1.0},
        {"momentum": 1.0},
        {"n_classes": 4},
    ],
)
def test_a_site_refuses_work_without_bounds(change):
    plain = SiteTraining(5, 3, hidden=(6,))
    broadcast = plain.broadcast(plain.init(3))
    with pytest.raises(ValueError, match=r"out of range|is not trained for"):
        check_broadcast(replace(plain, **change), broadcast, 3)
    for wrong in ({"params": broadcast["params"][1:]}, {"round": np.array(-1)}):
        with pytest.raises(ValueError, match="array"):
            check_broadcast(plain, {**broadcast, **wrong}, 3)


def test_rows_that_cannot_be_trained_on_add_zeros_and_nobody_sees_it(clients):
    bad = {**clients, "s1": (clients["s1"][0] * np.nan, clients["s1"][1])}
    masked = {"runner": FederatedRunner(secure=True), "clip": 0.5}
    found = classifier(**masked).fit(over(bad))
    assert not any(record.faults for record in found.history_)
    none = {**clients, "s1": (clients["s1"][0][:0], clients["s1"][1][:0])}
    expected = classifier(**masked).fit(over(none))
    np.testing.assert_array_equal(flat(found), flat(expected))
