"""The one path: plan, pay, collect, release, report."""

import ast
import inspect
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import skfedcal
from skfedcal import (
    FedBinCalibrator,
    FederatedDataset,
    FederatedRunner,
    FedGaussianHead,
    FedTempCalibrator,
    PrivacyLedger,
    ScoreHistogram,
    make_federation,
)
from skfedcal.contract import BlockSpec
from skfedcal.exceptions import BudgetExceededError
from skfedcal.federation import InProcess, collect
from skfedcal.federation import runner as _cohorts
from skfedcal.methods.base import setting_of
from skfedcal.methods.bins.rounds import ClassHistograms
from skfedcal.methods.temperature.posterior import TemperaturePosterior
from skfedcal.privacy import CentralDP, DistributedDP, SecureAggregation
from skfedcal.privacy.entropy import SeededEntropy, Stream

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning"),
]

N_CLIENTS, N_CLASSES = 20, 4
FED = make_federation(N_CLIENTS, 800, N_CLASSES, random_state=0)
CLIENTS = FederatedDataset(
    FED.logits,
    FED.labels,
    np.searchsorted(FED.client_ids, np.arange(N_CLIENTS + 1)),
    range(N_CLIENTS),
    N_CLASSES,
)
PACKAGE = Path(skfedcal.__file__).parent


class Watched(InProcess):
    """Engine that notes what the ledger held when clients were asked."""

    def __init__(self, clients, ledger):
        super().__init__(clients)
        object.__setattr__(self, "ledger", ledger)
        object.__setattr__(self, "debits", [])

    def total(self, request, cohort):
        self.debits.append(len(self.ledger))
        return super().total(request, cohort)


def test_all_rounds_are_paid_before_the_first_client_is_asked():
    ledger = PrivacyLedger()
    engine = Watched(CLIENTS, ledger)
    found = collect(
        TemperaturePosterior(),
        CLIENTS,
        privacy=CentralDP(1.0),
        runner=FederatedRunner(n_rounds=3, backend=engine),
        ledger=ledger,
        label="mine",
    )
    assert engine.debits == [1, 1, 1] and len(found.history) == 3
    (record,) = ledger.records()
    assert record["label"] == "mine"
    assert found.report.ledger_ids == (record["id"],)


def test_what_cannot_be_paid_or_encoded_asks_nobody():
    ledger = PrivacyLedger(budget=(0.5, 1e-5))
    engine = Watched(CLIENTS, ledger)
    runner = FederatedRunner(backend=engine)
    with pytest.raises(BudgetExceededError):
        collect(TemperaturePosterior(), CLIENTS, privacy=CentralDP(1.0), runner=runner,
                ledger=ledger)  # fmt: skip
    unbounded = ClassHistograms(n_bins=3)
    with pytest.raises(ValueError, match="no L2 bound"):
        collect(unbounded, CLIENTS, privacy=CentralDP(0.1), runner=runner,
                ledger=ledger)  # fmt: skip
    assert engine.debits == [] and len(ledger) == 0


@pytest.mark.parametrize("privacy", [None, CentralDP(1.0), DistributedDP(1.0)], ids=str)
def test_an_estimator_releases_what_its_algorithm_does(privacy):
    cal = FedBinCalibrator(privacy=privacy, n_bins=5, random_state=3)
    cal.set_params(classes=range(N_CLASSES)).fit(FED.clients)
    setting = setting_of(cal._privacy_model(), CLIENTS, FederatedRunner())
    found = collect(
        cal._make_algorithm(setting),
        CLIENTS,
        privacy=privacy,
        entropy=SeededEntropy(3),
        split=cal._noise_split(),
    )
    for name, values in cal.history_[0].total.items():
        np.testing.assert_array_equal(values, found.history[0].total[name])
    ours, its = cal.privacy_, found.report
    assert replace(ours, ledger_ids=()) == replace(its, ledger_ids=())


def test_a_run_ends_where_the_listener_says_and_is_paid_in_full():
    started, seen = [], []

    def stop(state, record):
        seen.append(record.round)
        return len(seen) == 2

    found = collect(
        TemperaturePosterior(),
        CLIENTS,
        privacy=CentralDP(1.0),
        runner=FederatedRunner(n_rounds=4),
        on_start=started.append,
        on_round=stop,
    )
    assert (started, seen) == ([4], [0, 1])
    assert len(found.history) == 2 and found.report.n_rounds == 4


def test_nothing_given_is_an_exact_sum_over_all_clients():
    found = collect(ClassHistograms(n_bins=3), CLIENTS, assumptions=("clocks agree",))
    same = collect(
        ClassHistograms(n_bins=3), CLIENTS, privacy=SecureAggregation(),
        runner=FederatedRunner(cohort_size=7),
    )  # fmt: skip
    assert found.n_clients == N_CLIENTS and not found.report.private
    assert found.report.assumptions == ("clocks agree",)
    for name, values in found.history[0].total.items():
        np.testing.assert_array_equal(values, same.history[0].total[name])


def test_the_schedule_of_a_fit_is_made_once(monkeypatch):
    made = []
    really = _cohorts.Schedule.__init__

    def counted(self, *args):
        made.append(args)
        really(self, *args)

    monkeypatch.setattr(_cohorts.Schedule, "__init__", counted)
    two = make_federation(N_CLIENTS, 400, 2, random_state=0).clients
    for fit in (
        lambda: FedTempCalibrator(eps=1.0).fit(FED.clients),
        lambda: FedGaussianHead(eps=1.0, max_norm=5.0).fit(FED.clients),
        lambda: ScoreHistogram.fit(two, privacy=CentralDP(1.0)),
    ):
        made.clear()
        fit()
        assert len(made) == 1


def test_streams_keep_the_numbers_that_seeds_mean():
    assert {name: int(s) for name, s in Stream.__members__.items()} == {
        "NOISE": 0,
        "COHORTS": 1,
        "COHORT_KEY": 2,
        "ROWS": 3,
        "FIRST_PARAMETERS": 3,
        "ROW_ORDER": 4,
        "HEAD": 5,
    }


def calls_of(path):
    """Names that are called as methods in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {func.attr for func in calls if isinstance(func, ast.Attribute)}


def test_no_other_file_builds_mechanisms_or_runs_rounds():
    files = {str(p.relative_to(PACKAGE)): calls_of(p) for p in PACKAGE.rglob("*.py")}
    path = str(Path(inspect.getfile(collect)).relative_to(PACKAGE))
    # An audit replays a mechanism without clients; a wrapped model builds its own.
    # The audit of a site writes requests as an honest server would, without clients.
    for name, calls in files.items():
        if "request_catalogue" in name:
            continue
        if not name.startswith("privacy"):
            assert ("mechanism" in calls) == (name == path), name
        assert "release_plan" not in calls, name


def test_no_file_walks_the_stack():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for name in ("_getframe", "currentframe", "inspect.stack", "f_back"):
            assert name not in text, (path, name)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shape": (6 / 2,)}, r"shape must be a tuple of int, got \(3.0,\)"),
        ({"shape": 3}, "shape must be a tuple of int, got 3"),
        ({"shape": (3,), "clip": "one"}, "clip must be a number, got 'one'"),
        ({"shape": (3,), "clip": "1.0"}, "clip must be a number, got '1.0'"),
        ({"shape": (3,), "clip": np.ones(3)}, "clip must be a number, got array"),
        ({"shape": (3,), "groups": 1.5}, "groups must be a whole number, got 1.5"),
        ({"shape": (3,), "weight": None}, "weight must be a number, got None"),
    ],
)
def test_a_wrong_block_is_refused_by_the_name_of_its_field(fields, message):
    with pytest.raises(TypeError, match=message):
        BlockSpec(**fields)


def test_equal_blocks_have_equal_types():
    """Equal blocks share a code: that of a shape of 3.0 would fail for 3."""
    given = BlockSpec([np.int64(3)], clip=np.array(2.0), groups=np.int8(1), weight=True)
    assert given == BlockSpec((3,), clip=2.0)
    types = [type(n) for n in (*given.shape, given.clip, given.groups, given.weight)]
    assert types == [int, float, int, float]
