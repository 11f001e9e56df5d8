"""``skfedcal demo``: the numbers are right, and the report and the text have them."""

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import accuracy_score, log_loss

import skfedcal
from skfedcal.cli.commands import _demo
from skfedcal.cli.commands._demo import (
    DemoResult,
    DemoSize,
    digit_views,
    make_digits_federation,
    run_experiment,
    train_clients,
)
from skfedcal.exceptions import SimulatedPrivacyWarning
from skfedcal.experiments.report import verdict_of

SMALL = DemoSize(
    n_train=100,
    n_calibration=200,
    n_clients=60,
    n_trainers=20,
    n_hidden=16,
    n_rounds=20,
)


def naive_classwise_error(labels, proba, n_bins=15):
    total = 0.0
    for k in range(proba.shape[1]):
        for b in range(n_bins):
            last = b == n_bins - 1
            rows = [
                i
                for i, p in enumerate(proba[:, k])
                if min(int(p * n_bins), n_bins - 1) == b or (last and p == 1)
            ]
            gap = sum(proba[i, k] - (labels[i] == k) for i in rows)
            total += abs(gap) / len(labels)
    return total / proba.shape[1]


def naive_top_error(labels, proba, n_bins=15):
    top, hit = proba.max(axis=1), proba.argmax(axis=1) == labels
    bins = np.minimum((top * n_bins).astype(int), n_bins - 1)
    gaps = [(top - hit)[bins == b].sum() for b in range(n_bins)]
    return np.abs(gaps).sum() / len(labels)


def silent(text):
    pass


@pytest.fixture(scope="module")
def small():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SimulatedPrivacyWarning)
        return run_experiment(silent, silent, seed=4, size=SMALL)


@pytest.fixture
def small_demo(monkeypatch):
    monkeypatch.setattr(_demo, "DemoSize", lambda: SMALL)


@pytest.mark.filterwarnings("ignore:random_state")
def test_the_numbers_are_those_of_independent_code(small):
    data = make_digits_federation(SMALL, seed=4)
    labels = data.test_labels
    runs = {(run["method"], run["eps"]): run for run in small.comparison.runs}
    tables = {("base", "-"): softmax(data.test_logits, axis=1)}
    for name, eps in [key for key in runs if key[1] != "-"]:
        make = getattr(skfedcal, f"{name}Calibrator")
        options = {"class_prior": "uniform"} if name == "FedBiasTemp" else {}
        calibrator = make(
            eps=None if eps == "none" else float(eps),
            classes=np.arange(10),
            random_state=4,
            **options,
        )
        calibrator.fit(data.logits, data.labels, client_ids=data.client_ids)
        tables[name, eps] = calibrator.predict_proba(data.test_logits)
    assert set(tables) == set(runs) - {("central", "-")} and len(tables) == 7
    for key, proba in tables.items():
        run = runs[key]
        expected = naive_classwise_error(labels, proba)
        assert run["cwECE"] == pytest.approx(expected, abs=1e-12)
        expected = naive_top_error(labels, proba)
        assert run["ECE"] == pytest.approx(expected, abs=1e-12)
        expected = log_loss(labels, proba, labels=np.arange(10))
        assert run["NLL"] == pytest.approx(expected, rel=1e-12)
        expected = accuracy_score(labels, proba.argmax(axis=1))
        assert run["accuracy"] == pytest.approx(expected, rel=1e-12)


def test_text_and_json_have_the_comparison_and_its_verdict(small_demo, run, small):
    code, out, lines = run("demo", "--seed", "4")
    assert code == 0
    # All but the last line, which has a path.
    assert max(map(len, out.splitlines()[:-1])) <= 80
    for row in small.comparison.rows:
        cells = [row["method"], row["eps"], f"{100 * row['cwECE']:.2f}"]
        assert re.search(r"\n" + " +".join(map(re.escape, cells)) + " ", out), cells
    said = [*verdict_of(small.comparison).sentences, small.privacy]
    for sentence in said:
        assert sentence in " ".join(out.split())
    assert lines[0].startswith("skfedcal: warning: --seed")
    assert all(line.startswith(("[", "skfedcal: warning: ")) for line in lines)
    code, out, _ = run("demo", "--seed", "4", "--json")
    data = json.loads(out)
    found = [run["NLL"] for run in small.comparison.runs]
    assert [run["NLL"] for run in data["runs"]] == found
    assert data["meaning"] == said and data["simulated"]


def test_every_column_is_explained(small_demo, run):
    out = run("demo", "--seed", "4")[1]
    table, _, explained = out.partition("\ncolumns:\n")
    lines = table.splitlines()
    header = [re.split("  +", x) for x in lines if x.startswith("method")]
    names = {name.removesuffix(" %") for line in header for name in line[2:]}
    names = {part.strip() for name in names for part in name.split("  ")}
    said = re.findall(r"^  (\S+(?: \S+)*)(?:  |$)", explained, flags=re.MULTILINE)
    assert len(header) == 2 and names == set(said)


def test_outputs_without_a_name_are_ignored_by_git():
    root = Path(__file__).parents[2]
    if not (root / ".gitignore").exists():
        pytest.skip("an sdist has no .gitignore")
    ignored = (root / ".gitignore").read_text().split()
    assert _demo.DEFAULT_OUTPUT in ignored and ".skfedcal/" in ignored


def test_the_demo_writes_its_report(small_demo, run, run_json, tmp_path):
    code, out, _ = run("demo", "--seed", "4")
    assert code == 0
    where = Path.cwd() / "skfedcal_demo.html"
    assert out.splitlines()[-1] == f"Report, to open in a browser: {where}"
    page = Path("skfedcal_demo.html").read_text(encoding="utf-8")
    assert "skfedcal demo --seed 4" in page
    # A report of an earlier demo is replaced, another file is not.
    assert run_json("demo", "--seed", "5")["report"] == "skfedcal_demo.html"
    assert "--seed 5" in Path("skfedcal_demo.html").read_text(encoding="utf-8")
    Path("skfedcal_demo.html").write_text("mine")
    code, out, lines = run("demo", "--seed", "4")
    assert code == 0 and "Report" not in out
    assert any("No report is written: skfedcal_demo.html exists" in x for x in lines)
    assert Path("skfedcal_demo.html").read_text() == "mine"
    path = tmp_path / "own.html"
    assert run_json("demo", "--seed", "4", "-o", path)["report"] == str(path)


def test_wrong_outputs_of_the_demo(fails, tmp_path):
    assert "is a folder" in fails("demo", "-o", tmp_path)
    assert "does not exist" in fails("demo", "-o", tmp_path / "no" / "a.html")
    (tmp_path / "a.html").write_text("mine")
    assert "Pass --force" in fails("demo", "-o", tmp_path / "a.html")


def test_a_seed_repeats_and_none_does_not(small_demo, run_json):
    def measured(*words):
        found = run_json("demo", *words)
        for each in found["runs"]:
            each.pop("client seconds", None)  # the only thing that takes its time
        return found

    assert measured("--seed", "7") == measured("--seed", "7")
    one, two = measured(), measured()
    assert not one["simulated"]
    # Exact fits are the same in both; private ones have noise of their own.
    assert one["runs"][:5] == two["runs"][:5]
    assert one["runs"][5]["NLL"] != two["runs"][5]["NLL"]
    assert not any(each["simulated"] for each in one["runs"][5:])
    assert "simulation" not in " ".join(one["meaning"])


def test_the_guarantee_of_each_private_fit_is_a_detail(small_demo, run):
    code, _, lines = run("demo", "-v")
    reports = [
        line for line in lines if "eps = 1, delta = 1e-05 for one client" in line
    ]
    assert code == 0 and len(reports) == 3


def test_views_are_shifts_with_noise_of_the_stated_size():
    rng = np.random.default_rng(0)
    image = np.zeros((1, 8, 8))
    image[0, 3, 4] = 1000.0
    views = digit_views(image, rng)
    places = [divmod(int(view.argmax()), 8) for view in views[0]]
    assert sorted(places) == [(i, j) for i in (2, 3, 4) for j in (3, 4, 5)]
    noise = digit_views(np.zeros((500, 8, 8)), rng)
    # 288,000 draws: the relative error of their deviation is 0.0013.
    assert noise.std() == pytest.approx(0.2, rel=0.01)


def test_all_views_of_a_digit_stay_with_one_client():
    data = make_digits_federation(SMALL, seed=0)
    assert data.client_ids.shape == (9 * 200,)
    by_digit = data.client_ids.reshape(-1, 9)
    assert (by_digit == by_digit[:, :1]).all()
    assert len(np.unique(data.client_ids)) == 60
    assert len(data.test_labels) == 1797 - 100 - 200


def test_privacy_is_added_up(small):
    assert 1.0 < small.total_eps < 3.0 and small.simulated
    assert "simulation" in small.privacy
    text = DemoResult(None, small.total_eps, 1e-5, simulated=False).privacy
    assert f"eps = {small.total_eps:.3g} at delta = 1e-05" in text


def test_clients_that_train_together_learn_what_each_learns_alone():
    rng = np.random.default_rng(0)
    features, labels = rng.standard_normal((90, 6)), rng.integers(3, size=90)
    shapes = ((6, 5), (5,), (5, 3), (3,))
    start = [rng.standard_normal(shape) for shape in shapes]
    sizes = [[20, 7], [20, 20, 20, 1], [4], [20, 20]]
    batches = [[rng.integers(90, size=n) for n in each] for each in sizes]
    padded = [
        np.stack([np.append(rows, np.full(20 - len(rows), -1)) for rows in each])
        for each in batches
    ]
    found = train_clients(start, features, labels, padded)
    for i, each in enumerate(batches):
        hidden, offset, last, bias = start
        for rows in each:
            own, n_rows = features[rows], len(rows)
            active = np.maximum(own @ hidden + offset, 0)
            error = softmax(active @ last + bias, axis=1) - np.eye(3)[labels[rows]]
            back = error @ last.T * (active > 0)
            parts = own.T @ back, back.sum(axis=0), active.T @ error, error.sum(axis=0)
            hidden, offset, last, bias = (
                layer - 0.1 / n_rows * part
                for layer, part in zip((hidden, offset, last, bias), parts, strict=True)
            )
        for layer, own in zip(found, (hidden, offset, last, bias), strict=True):
            np.testing.assert_allclose(layer[i], own, rtol=1e-10, atol=1e-12)
