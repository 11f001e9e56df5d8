"""A sum that fewer clients than the noise needs would be in is never opened."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from skfedcal import FederatedRunner
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.exceptions import NotEnoughClientsError
from skfedcal.federation import InProcess, Joblib, Request, respond
from skfedcal.methods.bins.rounds import ClassHistograms
from skfedcal.privacy import (
    CentralDP,
    DistributedDP,
    LocalDP,
    SecureAggregation,
    SourceDP,
)
from skfedcal.privacy.entropy import SeededEntropy

pytestmark = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning"
)

RNG = np.random.default_rng(0)
DATA = FederatedDataset(
    RNG.normal(size=(60, 3)), RNG.integers(0, 3, 60), np.arange(21) * 3, range(20), 3
)
ALGORITHM = ClassHistograms(n_bins=4, clip_positive=3.0, clip_negative=6.0)


class Watching:
    """An engine that notes what it is asked and opens whatever is there."""

    def __init__(self, n_answers=20):
        self.n_answers, self.seen = n_answers, []

    def ids(self):
        return DATA.names

    def total(self, request, cohort):
        self.seen.append(request)
        cohort = cohort[cohort < self.n_answers]
        return respond(request, DATA.select(cohort), cohort)


def build(model):
    plan = FederatedRunner().release_plan(ALGORITHM, DATA, model.unit)
    return model.mechanism(plan, entropy=SeededEntropy(0), ledger=None)


def run(model, engine, runner=None):
    return (runner or FederatedRunner()).run(
        ALGORITHM, engine, build(model), SeededEntropy(0), n_classes=3
    )


@pytest.mark.parametrize("mode", ["fast", "faithful"])
@pytest.mark.parametrize(("n_min", "told"), [(None, 20), (7, 7)])
def test_clients_are_told_how_many_shares_make_up_the_noise(mode, n_min, told):
    engine = Watching()
    run(DistributedDP(1.0, n_min=n_min, mode=mode), engine)
    assert [request.n_min for request in engine.seen] == [told]
    assert pickle.loads(pickle.dumps(engine.seen[0])).n_min == told


def test_other_models_open_any_sum():
    for model in (SecureAggregation(), CentralDP(1.0), LocalDP(1.0), SourceDP(1.0)):
        assert build(model).n_min == 0
    engine = Watching(n_answers=1)
    run(CentralDP(1.0), engine)
    assert engine.seen[0].n_min == 0
    engine.seen[0].check_clients(0)


class Unasked(ClassHistograms):
    """Clients that must not be asked."""

    def query(self, broadcast, clients):
        raise AssertionError("a client was asked")


@pytest.mark.parametrize(
    "engine", [InProcess(DATA), Joblib(DATA, n_jobs=2)], ids=["in process", "joblib"]
)
def test_engines_do_not_ask_a_cohort_that_is_too_small(engine):
    broadcast = ALGORITHM.broadcast(ALGORITHM.init(3))
    codec = build(SecureAggregation()).codec(ALGORITHM.spec(broadcast))
    request = Request(ALGORITHM, broadcast, codec, n_min=8)
    assert engine.total(request, np.arange(8)).n_clients == 8
    unasked = replace(request, algorithm=Unasked(n_bins=4))
    for n in (0, 1, 7):
        with pytest.raises(NotEnoughClientsError, match=rf"over {n} .* shares of 8"):
            engine.total(unasked, np.arange(n))


@pytest.mark.parametrize("mode", ["fast", "faithful"])
def test_the_runner_refuses_a_small_sum_that_an_engine_opened(mode):
    model = DistributedDP(1.0, n_min=8, mode=mode)
    run(model, Watching(n_answers=8))
    with pytest.raises(NotEnoughClientsError, match=r"over 7 .* shares of 8"):
        run(model, Watching(n_answers=7))
    # Each cohort of a round is a sum by itself: 12 clients answer, 2 in the second.
    runner = FederatedRunner(cohort_size=10)
    with pytest.raises(NotEnoughClientsError, match="over 2 clients"):
        run(model, Watching(n_answers=12), runner)
