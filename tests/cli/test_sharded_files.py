"""Commands on shards: the results of one file, and one line for what is refused."""

import numpy as np
import pytest

from skfedcal import compare, load
from skfedcal.clients import load_federation, make_federation, save_federation
from skfedcal.federation import ShardedClients

pytestmark = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning"
)


def write_files(tmp_path, n_classes):
    """The same clients in one file and in five shards."""
    fed = make_federation(
        n_clients=40, n_samples=1200, n_classes=n_classes, random_state=0
    )
    whole, folder = tmp_path / "model.npz", tmp_path / "shards"
    folder.mkdir()
    save_federation(whole, fed.logits, fed.labels, client_ids=fed.client_ids)
    for i in range(5):
        rows = fed.client_ids // 8 == i
        save_federation(
            folder / f"part-{i}.npz",
            fed.logits[rows],
            fed.labels[rows],
            client_ids=fed.client_ids[rows],
        )
    return whole, folder


@pytest.fixture
def files(tmp_path):
    return write_files(tmp_path, 4)


@pytest.fixture
def two_classes(tmp_path):
    return write_files(tmp_path, 2)


@pytest.mark.parametrize("words", [[], ["--eps", "1", "--seed", "0"]])
def test_fit_writes_the_calibrator_of_one_file(run_json, files, words, tmp_path):
    whole, folder = files
    found = []
    for path in (whole, folder, folder / "part-*.npz"):
        out = tmp_path / "cal.json"
        data = run_json("fit", path, "--method", "temp", *words, "-o", out, "--force")
        found.append((data, load(out).temperature_))
    for data, saved in found[1:]:
        assert data == found[0][0]
        assert saved == found[0][1]


def test_evaluate_before_and_after(run_json, run, two_classes, tmp_path):
    whole, folder = two_classes
    cal = tmp_path / "cal.json"
    run("fit", folder, "--method", "temp", "-o", cal)
    exact = run_json("evaluate", whole, "--calibrator", cal)
    found = run_json("evaluate", folder, "--calibrator", cal)
    assert found["rows"] == exact["rows"]
    for one, other in zip(found["scores"], exact["scores"], strict=True):
        assert one["name"] == other["name"]
        assert one["accuracy"]["value"] == pytest.approx(other["accuracy"])
        assert one["log loss"]["value"] == pytest.approx(other["NLL"], abs=0.01)
    words = ["--eps", "5", "--seed", "0", "--calibrator", cal]
    assert run_json("evaluate", folder, *words) == run_json("evaluate", whole, *words)


def test_evaluate_has_one_error_for_all_classes(run, files):
    code, text, _ = run("evaluate", files[1])
    assert code == 0 and "From sums over buckets" in text
    assert "cwECE %" in text


def test_monitor_counts_shards(run_json, run, files, tmp_path):
    whole, folder = files
    found = []
    for name, path in (("a", whole), ("b", folder)):
        state = tmp_path / f"{name}.json"
        run("monitor", "init", state, "--periods", "3")
        data = run_json("monitor", "update", state, path, "--name", "week")
        found.append({key: value for key, value in data.items() if key != "state"})
    assert found[0] == found[1]


def test_compare_holds_out_whole_shards(run_json, files):
    _, folder = files
    words = ["--methods", "temp", "--eps", "none", "1", "--seeds", "1", "--fresh"]
    data = run_json("compare", folder, *words)
    here = compare(folder, methods=["temp"], eps=[None, 1], seeds=1, progress=False)
    for one, other in zip(data["runs"], here.runs, strict=True):
        assert one["NLL"] == other["NLL"]
        assert one["n_clients"] == 24  # of 3 shards
    assert not any("clients differ" in run for run in data["runs"])


def test_compare_on_shards_is_compare_on_rows(files, tmp_path):
    whole, folder = files
    fed = load_federation(whole)
    test = fed.logits[::7], fed.labels[::7]
    given = {"methods": ["temp", "bin"], "eps": [None, 1], "seeds": 1}
    sharded = compare(ShardedClients(folder), test, **given, progress=False)
    here = compare(
        (fed.logits, fed.labels),
        test,
        client_ids=fed.client_ids,
        **given,
        progress=False,
    )
    for one, other in zip(sharded.runs, here.runs, strict=True):
        for name in ("method", "eps", "n_clients", "n_rows"):
            assert one[name] == other[name]
        # One client, or all: the sums of the oracle are rounded in other places.
        assert one["NLL"] == pytest.approx(other["NLL"], rel=1e-6)
        if one["method"] != "central":
            assert one["NLL"] == other["NLL"]
    assert "sharded" not in sharded.to_text()
    store = tmp_path / "store"
    first = compare(ShardedClients(folder), test, **given, progress=False, store=store)
    again = compare(ShardedClients(folder), test, **given, progress=False, store=store)
    assert first.runs == again.runs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_clients": 5}, "clients in shards are not sampled"),
        ({"client_ids": np.zeros(3)}, "client_ids cannot be passed with"),
        ({"classes": [0, 1]}, "classes cannot be passed with"),
        ({"input_type": "proba"}, "methods are compared on logits in shards"),
        ({"n_jobs": 2}, "cells over shards run one after the other"),
        ({"vary": {"beta": [1.0]}}, "these have clients already"),
    ],
)
def test_compare_refuses_what_needs_rows_here(files, options, message):
    with pytest.raises(ValueError, match=message):
        compare(
            files[1], methods=["temp"], eps=[None], seeds=1, progress=False, **options
        )


def test_one_shard_needs_test_rows(files):
    shards = ShardedClients(files[1]).subset([0])
    with pytest.raises(ValueError, match="One shard cannot be kept for the test"):
        compare(shards, methods=["temp"], eps=[None], seeds=1, progress=False)


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("model.npz", ["--workers", "2"], "is not a folder or a pattern"),
        ("shards", ["--workers", "spark"], "pass a number of processes, 'ray'"),
        ("shards", ["--workers", "0"], "workers=0"),
        ("none-*.npz", [], "no shards there"),
        ("shards", ["--input", "proba"], "--columns proba=NAME"),
        ("shards", ["--columns", "labels=y"], "has no array 'y'"),
    ],
)
def test_what_fit_refuses(fails, files, tmp_path, name, words, message):
    path = files[0].parent / name
    text = fails("fit", path, "-o", tmp_path / "cal.json", *words)
    assert message in text


@pytest.mark.parametrize("command", ["info", "predict"])
def test_commands_that_need_all_rows_name_the_shard(
    fails, run, files, tmp_path, command
):
    whole, folder = files
    cal = tmp_path / "cal.json"
    run("fit", whole, "-o", cal)
    words = (
        [cal, folder, "-o", tmp_path / "p.npz"] if command == "predict" else [folder]
    )
    assert "has 'client', but in a folder each file is one client" in fails(
        command, *words
    )
