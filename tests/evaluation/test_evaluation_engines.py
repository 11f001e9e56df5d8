"""Scores are mapped at the site: any engine gives the bits of this process."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from skfedcal import ClasswiseResiduals, FederatedRunner, ScoreHistogram, evaluation
from skfedcal.evaluation.inputs import Clients
from skfedcal.federation.endpoint import PartialSum, respond
from skfedcal.privacy import CentralDP, DistributedDP, LocalDP, SourceDP

pytestmark = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning"
)

MODELS = [
    None,
    CentralDP(50.0),
    CentralDP(20.0, unit="example"),
    DistributedDP(50.0),
    LocalDP(3.0),
]


class Messages:
    """Sites that can be reached by bytes only; each holds its own rows."""

    def __init__(self, clients):
        self.sites = [clients.slice(i, i + 1).compact() for i in range(len(clients))]
        self.names = list(clients.names)
        self.asked = []

    def ids(self):
        return self.names

    def total(self, request, cohort):
        letter = pickle.dumps(request)
        answer = PartialSum(request.codec.zeros(), 0, 0)
        for i in cohort:
            self.asked.append(self.names[i])
            reply = pickle.dumps(respond(pickle.loads(letter), self.sites[i]))
            answer = answer + pickle.loads(reply)
        return answer


def binary_forms():
    rng = np.random.default_rng(0)
    odds = np.append(rng.normal(0, 4, 196), [0.0, 40.0, -40.0, 1e-9])
    proba = 1 / (1 + np.exp(-odds))
    proba[:4] = 0.0, 1.0, 0.5, 0.25
    both = np.column_stack([1 - proba, proba])
    return {
        "odds": (odds, {}),
        "float32": (odds.astype(np.float32), {}),
        "two logits": (rng.normal(0, 3, (200, 2)), {}),
        "proba": (proba, {"input_type": "proba"}),
        "two proba": (both, {"input_type": "proba"}),
        "log proba": (np.log(np.maximum(both, 1e-300)), {"input_type": "log_proba"}),
        "first class": (proba, {"input_type": "proba", "pos_label": 0}),
    }


def several_forms():
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 3, (200, 4))
    proba = np.exp(logits)
    proba /= proba.sum(axis=1, keepdims=True)
    return {
        "logits": (logits, {}),
        "float32": (logits.astype(np.float32), {}),
        "proba": (proba, {"input_type": "proba"}),
        "log proba": (np.log(proba), {"input_type": "log_proba"}),
    }


IDS = np.sort(np.random.default_rng(2).integers(0, 30, 200))


def engine_of(X, y, ids=IDS, **options):
    """Engine with the rows that `fit` is given, read as it reads them."""
    given = Clients(X, y, ids, [0, 1] if y.max() == 1 else None, **options)
    return Messages(given._read()[0])


def both_ways(function, X, y, ids=IDS, **options):
    form = {k: v for k, v in options.items() if k == "input_type"}
    engine = engine_of(X, y, ids, **form)
    common = {"client_ids": ids, "random_state": 0, **options}
    here = function(X, y, **common)
    there = function(X, y, **common, runner=FederatedRunner(backend=engine))
    assert engine.asked
    return here, there


def assert_same(there, here):
    for one, other in zip(there.totals, here.totals, strict=True):
        np.testing.assert_array_equal(one, other)
    assert there.noise_ == here.noise_ and there.n_clients_ == here.n_clients_


@pytest.mark.parametrize("privacy", MODELS, ids=repr)
@pytest.mark.parametrize("form", binary_forms())
@pytest.mark.parametrize("space", ["both", "prob", "logit"])
def test_a_histogram_is_the_same_on_an_engine(form, privacy, space):
    X, options = binary_forms()[form]
    y = np.random.default_rng(3).integers(0, 2, 200)
    here, there = both_ways(
        ScoreHistogram.fit, X, y, privacy=privacy, space=space, **options
    )
    assert_same(there, here)


@pytest.mark.parametrize("privacy", MODELS, ids=repr)
@pytest.mark.parametrize("form", several_forms())
def test_several_classes_are_the_same_on_an_engine(form, privacy):
    X, options = several_forms()[form]
    y = np.random.default_rng(3).integers(0, 4, 200)
    here, there = both_ways(
        ScoreHistogram.fit, X, y, kind="top", privacy=privacy, **options
    )
    assert_same(there, here)
    if isinstance(privacy, LocalDP):
        return
    here, there = both_ways(ClasswiseResiduals.fit, X, y, privacy=privacy, **options)
    np.testing.assert_array_equal(there.residuals_, here.residuals_)
    assert there.n_examples_ == here.n_examples_
    here, there = both_ways(
        evaluation.federated_roc_auc_score, X, y, multi_class="ovr", privacy=privacy,
        **options,
    )  # fmt: skip
    assert repr(there) == repr(here)


@pytest.mark.parametrize(
    "name", ["accuracy_score", "precision_score", "recall_score", "f1_score",
             "roc_auc_score", "brier_score_loss", "log_loss"],
)  # fmt: skip
def test_functions_are_the_same_on_an_engine(name):
    X, options = binary_forms()["proba"]
    y = np.random.default_rng(3).integers(0, 2, 200)
    function = getattr(evaluation, f"federated_{name}")
    here, there = both_ways(
        function, X, y, privacy=DistributedDP(5.0, unit="example"), **options
    )
    assert repr(there) == repr(here)


def test_local_reports_leave_out_empty_sites():
    X, _ = binary_forms()["odds"]
    y = np.random.default_rng(3).integers(0, 2, 200)
    pairs = {f"site {k}": (X[k == IDS], y[k == IDS]) for k in range(40)}
    here = ScoreHistogram.fit(
        pairs, privacy=LocalDP(3.0), classes=[0, 1], random_state=0
    )
    data, _, _ = Clients(pairs, classes=[0, 1]).binary()
    engine = Messages(data)
    there = ScoreHistogram.fit(
        pairs,
        privacy=LocalDP(3.0),
        classes=[0, 1],
        random_state=0,
        runner=FederatedRunner(backend=engine),
    )
    assert_same(there, here)
    full = [name for name, pair in pairs.items() if len(pair[1])]
    assert sorted(engine.asked) == sorted(full) and len(full) < 40


def test_clients_draw_their_own_noise_on_an_engine():
    # Sites take words of their operating system, so the bits differ; the law does not.
    X, _ = binary_forms()["odds"]
    y = np.random.default_rng(3).integers(0, 2, 200)
    runner = FederatedRunner(backend=engine_of(X, y))
    hist = ScoreHistogram.fit(
        X, y, client_ids=IDS, classes=[0, 1], height=4, runner=runner,
        privacy=SourceDP(5.0, mode="faithful"),
    )  # fmt: skip
    exact = ScoreHistogram.fit(X, y, client_ids=IDS, classes=[0, 1], height=4)
    gap, spread = hist.roc_auc() - exact.roc_auc(), hist.roc_auc().se_privacy
    assert abs(gap) < 6 * spread and hist.n_clients_ == len(np.unique(IDS))


def test_another_engine_is_refused():
    X, _ = binary_forms()["odds"]
    y = np.random.default_rng(3).integers(0, 2, 200)
    runner = FederatedRunner(backend=engine_of(X, y))
    with pytest.raises(ValueError, match="not the 200 clients"):
        ScoreHistogram.fit(X, y, client_ids=np.arange(200), runner=runner)


def test_a_site_needs_numpy_only():
    code = (
        "import sys\n"
        "import skfedcal.methods.score_curves.rounds, skfedcal.evaluation.rounds\n"
        "import skfedcal.evaluation.rounds, skfedcal.federation.endpoint\n"
        "assert not {'scipy', 'sklearn'} & set(sys.modules), 'more than numpy'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
