"""The app that ``skfedcal flower init`` writes, on a grid in this process."""

import importlib.util
import json

import numpy as np
import pytest
from flwr.app import Context, RecordDict

import skfedcal
from skfedcal import (
    CentralDP,
    DistributedDP,
    FederatedRunner,
    FedTempCalibrator,
    PrivacyLedger,
    ScoreHistogram,
    federated_calibration_curve,
    federated_gain,
    federated_roc_auc_score,
    make_federation,
)
from skfedcal.cli.flower.project import run_config, write_app
from skfedcal.exceptions import BudgetExceededError, CheckpointError
from skfedcal.methods.own_rows import held_back_mark

NAMES = ("berlin", "lyon", "oslo")
TEMPERATURE = "FedTempCalibrator"

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CheckpointWarning"),
]


@pytest.fixture(scope="module")
def clients():
    fed = make_federation(3, 600, 2, alpha=None, dtype=np.float64, random_state=0)
    labels = np.array(["well", "sick"])
    return {n: (z, labels[y]) for n, (z, y) in zip(NAMES, fed.clients, strict=True)}


@pytest.fixture
def app(tmp_path):
    """Modules of a new app, and its run config."""
    write_app(str(tmp_path / "app"))
    modules = []
    for name in ("client", "server"):
        path = tmp_path / "app" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"written_{name}", path)
        modules.append(importlib.util.module_from_spec(spec))
        spec.loader.exec_module(modules[-1])
    return (*modules, run_config(str(tmp_path / "app")))


@pytest.fixture
def run(app, clients, local_grid, tmp_path):
    """Run the app with changes of its run config; give the path of the result."""
    client, server, config = app
    nodes = {}
    for i, (name, (logits, labels)) in enumerate(clients.items()):
        path = tmp_path / f"{name}.npz"
        np.savez(path, logits=logits, labels=labels)
        nodes[100 - i] = {"client-id": name, "data-path": str(path)}
    grid = local_grid(client.app, nodes)
    out = tmp_path / "result.json"

    def call(**changes):
        changes = {key.replace("_", "-"): value for key, value in changes.items()}
        fixed = {
            "out": str(out),
            "classes": '["well", "sick"]',
            "wait": 0,
            "timeout": 0,
            "n-rows": 600,
        }
        assert not set(fixed | changes) - set(config)
        whole = config | fixed | changes
        server.app(grid, Context(1, 0, {}, RecordDict(), whole))
        return out

    return call


def in_process(cls, **options):
    return cls(classes=["well", "sick"], **options)


def test_a_calibrator_is_what_load_reads(run, clients):
    settings = {"method": TEMPERATURE, "options": '{"random_state": 0}'}
    found = skfedcal.load(run(**settings, gain_share=0.0))
    model = CentralDP(1.0, unit="example")
    here = in_process(FedTempCalibrator, privacy=model, random_state=0).fit(clients)
    assert len(here.history_) > 0
    assert found.temperature_ == here.temperature_
    assert list(found.classes_) == list(here.classes_)
    text = run(gain_share=0.0).with_suffix(".txt").read_text()
    assert "eps=1" in text and text.endswith("no comparison: share is 0\n")


def test_a_calibrator_is_compared_with_its_input_at_the_sites(run, clients):
    path = run(method=TEMPERATURE, privacy="none")
    # Sites have no roster: nobody signs.
    result = json.loads(path.with_suffix(".result.json").read_text())
    assert result["signature"] is None
    rows = {
        name: tuple(part[~held_back_mark(len(part), name)] for part in pair)
        for name, pair in clients.items()
    }
    here = in_process(FedTempCalibrator).fit(rows)
    assert skfedcal.load(path).temperature_ == here.temperature_
    gain = federated_gain(here, clients, held_back=True)
    assert result["content"]["gain"]["before"] == gain.before
    assert result["content"]["gain"]["difference"]["low"] == gain.difference.low
    text = path.with_suffix(".txt").read_text().splitlines()[-1]
    assert text.startswith(f"log loss {gain.before:.2f} -> {gain.after:.2f} at the")


def test_a_histogram_is_written_with_its_answers(run, clients):
    path = run(method="ScoreHistogram", privacy="none")
    found = ScoreHistogram.from_json(path.read_text())
    here = ScoreHistogram.fit(clients, classes=["well", "sick"])
    np.testing.assert_array_equal(found.counts_, here.counts_)
    text = path.with_suffix(".txt").read_text()
    assert f"roc_auc: {here.roc_auc()!r}" in text
    top = run(method="ScoreHistogram", privacy="none", options='{"kind": "top"}')
    assert "roc_auc" not in top.with_suffix(".txt").read_text()


def test_a_function_is_written_with_its_interval(run, clients):
    path = run(method="federated_roc_auc_score", privacy="none")
    here = federated_roc_auc_score(clients, classes=["well", "sick"])
    found = json.loads(path.read_text())
    assert (found["value"], found["low"], found["high"]) == (here, here.low, here.high)
    curve = run(method="federated_calibration_curve", privacy="none")
    here = federated_calibration_curve(clients, classes=["well", "sick"])
    assert json.loads(curve.read_text()) == [part.tolist() for part in here]


def test_sites_that_draw_the_noise(run):
    path = run(privacy="distributed", eps=20.0)
    assert "3 or more of the clients" in path.with_suffix(".txt").read_text()
    run(privacy="distributed", eps=20.0, max_colluders=1)
    assert "2 or more of the clients" in path.with_suffix(".txt").read_text()
    with pytest.raises(ValueError, match="A checkpoint cannot be used"):
        run(privacy="distributed", checkpoint=str(path.with_name("c.npz")))
    assert DistributedDP(1.0).mode == "fast"  # the app asks for the other one


def test_a_budget_is_kept_over_runs(run, tmp_path):
    path = str(tmp_path / "ledger.jsonl")
    budget = {
        "method": TEMPERATURE,
        "ledger": path,
        "ledger_eps": 1.2,
        "n_rows": 6000,  # as if there were enough for a comparison
        "ledger_delta": 1e-5,
    }
    run(**budget)
    with pytest.raises(BudgetExceededError):
        run(**budget)
    ledger = PrivacyLedger(path, budget=(1.2, 1e-5))
    # Fit and comparison together cost what the run was given.
    assert len(ledger) == 2 and 0.95 < ledger.spent() <= 1.0


def test_a_finished_run_is_resumed_without_paying(run, tmp_path):
    settings = {
        "method": TEMPERATURE,
        "checkpoint": str(tmp_path / "c.npz"),
        "ledger": str(tmp_path / "ledger.jsonl"),
        "ledger_eps": 1.0,  # all of it, for fit and comparison together
        "n_rows": 6000,  # as if there were enough for a comparison
        "ledger_delta": 1e-5,
    }
    first = skfedcal.load(run(**settings)).temperature_
    assert len(PrivacyLedger(settings["ledger"])) == 2
    with pytest.raises(CheckpointError, match="exists"):
        run(**settings)
    assert skfedcal.load(run(**settings, resume=True)).temperature_ == first


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"privacy": "some"}, ValueError, "privacy='some': pass one of"),
        ({"method": "FedTemp"}, AttributeError, "FedTemp"),
        ({"n_rows": 0}, ValueError, "unit='example' needs n-rows"),
        ({"sites": "berlin, rome", "min_nodes": 2}, RuntimeError, "Missing: ..rome"),
    ],
)
def test_a_wrong_run_config_says_so(run, wrong, error, text):
    with pytest.raises(error, match=text):
        run(**wrong)


def test_the_defaults_are_those_that_the_page_names(app):
    config = app[2]
    assert config["secure"] is True
    assert (config["method"], config["eps"]) == ("FedAutoCalibrator", 1.0)
    assert (config["unit"], config["n-rows"]) == ("example", 0)
    assert FederatedRunner(n_rounds=config["rounds"] or None).n_rounds is None
