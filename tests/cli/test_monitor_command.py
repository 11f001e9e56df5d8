"""``skfedcal monitor`` keeps a monitor in a file."""

import numpy as np
import pytest

from skfedcal import CalibrationMonitor, make_federation, save_federation


@pytest.fixture
def weeks(tmp_path):
    paths = []
    for number in range(3):
        fed = make_federation(60, 600, 3, random_state=number)
        ids = np.repeat(np.arange(60), [len(labels) for _, labels in fed.clients])
        rows, labels = (np.concatenate(part) for part in zip(*fed.clients, strict=True))
        paths.append(tmp_path / f"week{number}.npz")
        save_federation(paths[-1], rows, labels, client_ids=ids)
    return paths


def test_a_monitor_from_its_first_period_to_its_last(run, run_json, weeks, tmp_path):
    state, ledger = tmp_path / "state.json", tmp_path / "spent.jsonl"
    found = run_json("monitor", "init", state, "--eps", "3", "--periods", "3")
    assert found["periods"] == 3 and found["names"] == []
    for week in weeks:
        found = run_json("monitor", "update", state, week, "--ledger", ledger)
    assert found["names"] == ["week0.npz", "week1.npz", "week2.npz"]
    assert found["ledger"]["debits"] == 1
    assert found["ledger"]["eps_spent"] == pytest.approx(3.0, rel=1e-3)
    assert found["metrics"]["gap"]["period"] == [0, 1, 2]
    monitor = CalibrationMonitor.load(state)
    assert found["metrics"]["ece"]["value"] == pytest.approx(
        monitor.series("ece").value.tolist()
    )
    code, out, _ = run("monitor", "show", state)
    assert code == 0 and out.strip() == monitor.summary()
    code, _, lines = run("monitor", "update", state, weeks[0])
    assert code == 4 and "All 3 periods are over" in lines[-1]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("init", "STATE"), "exists. Continue it by `skfedcal monitor update`"),
        (("init", "NEW", "--name", "x"), "--name belongs to `monitor update`"),
        (("init", "NEW", "--delta", "1e-5"), "--delta needs --eps"),
        (("update", "STATE"), "needs FILE"),
        (("update", "STATE", "FILE", "--eps", "1"), "--eps belongs to `monitor init`"),
        (("update", "STATE", "FILE", "--budget", "1", "1e-5"), "needs --ledger"),
        (("update", "STATE", "FILE", "--ledger", "NEW"), "nothing is paid"),
        (("init", "NEW", "--unit", "example"), "--unit needs --eps"),
        (("update", "STATE", "FILE", "--n-rows", "9"), "--n-rows: a file has no sites"),
        (("update", "STATE", "flower://a:1", "--secret", "NEW"), "No such file"),
        (("show", "NEW"), "no such file"),
        (("show", "FILE"), "not valid JSON"),
        (("init", "NEW", "--input", "proba"), "--input belongs to `monitor update`"),
    ],
)
def test_wrong_words(run, weeks, tmp_path, words, text):
    places = {"STATE": tmp_path / "s.json", "NEW": tmp_path / "n", "FILE": weeks[0]}
    CalibrationMonitor(path=places["STATE"])
    code, out, lines = run("monitor", *(places.get(word, word) for word in words))
    assert code in (2, 4) and out == "" and text in lines[-1]


def test_another_number_of_classes_is_refused_and_no_period_is_used(
    run, weeks, tmp_path
):
    state = tmp_path / "s.json"
    with np.load(weeks[0]) as file:
        n_classes = file["logits"].shape[1]
    run("monitor", "init", state, "--classes", str(n_classes + 1), "--eps", "1")
    code, _, lines = run("monitor", "update", state, weeks[0])
    assert code == 4 and f"has scores of {n_classes} classes" in lines[-1]
    assert CalibrationMonitor.load(state).n_periods_ == 0
