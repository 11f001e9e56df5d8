"""``skfedcal compare`` and ``skfedcal report``."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from skfedcal import compare
from skfedcal.cli.commands import _comparison
from skfedcal.cli.commands import _comparison as command
from skfedcal.experiments import Comparison

WORDS = [
    "--methods",
    "temp",
    "bin",
    "--eps",
    "none",
    "2",
    "--seeds",
    "2",
    "--jobs",
    "1",
]
SKFEDCAL = [sys.executable, "-m", "skfedcal"]


def test_the_command_is_the_function(run_json, federation_file):
    data = run_json("compare", federation_file, *WORDS)
    found = compare(
        str(federation_file), methods=["temp", "bin"], eps=[None, 2], seeds=2,
        progress=False,
    )  # fmt: skip
    again = Comparison.from_json(json.dumps(data))
    timed = ("client seconds", "sd_client seconds", "n_runs")
    for mine, theirs in zip(again.rows, found.rows, strict=True):
        for name in set(mine) - set(timed):
            assert str(mine[name]) == str(theirs[name])
    assert data["settings"]["file"] == "model.npz"
    assert data["settings"]["command"].startswith(
        "skfedcal compare model.npz --methods"
    )


def test_the_printed_command_gives_the_same_table(run, federation_file, monkeypatch):
    words = [*WORDS, "--vary", "rounds", "1", "2", "--cohort", "20", "--delta", "1e-6"]
    monkeypatch.chdir(federation_file.parent)
    code, out, _ = run("compare", federation_file, *words, "--json", "-q")
    assert code == 0
    said = json.loads(out)["settings"]["command"].split()
    assert said[:2] == ["skfedcal", "compare"]
    code, again, lines = run(*said[1:], "--json")
    assert code == 0
    # All cells were there: the settings are the same to the last bit.
    assert "[20 of 20 cells were finished before]" in lines
    assert json.loads(again)["runs"] == json.loads(out)["runs"]


def test_text_and_progress(run, federation_file):
    code, out, lines = run("compare", federation_file, *WORDS)
    rows = out.splitlines()
    assert code == 0
    assert rows[0] == "Calibration by method and privacy"
    assert rows[1].split()[:3] == ["method", "eps", "cwECE"]
    assert [row.split()[0] for row in rows[3:9]] == [
        "base", "central", "FedTemp", "FedBin", "FedTemp", "FedBin",
    ]  # fmt: skip
    verdict = rows[rows.index("", 10) + 1 :] if "" in rows[10:] else []
    assert verdict[0].startswith("Calibration helps")
    assert verdict[1].startswith("As it is, the model is ")
    assert all(line.startswith("[") for line in lines)
    assert "12/12 cells" in lines[-1]
    assert run("compare", federation_file, *WORDS, "-q")[2] == []


def test_rows_without_clients_are_dealt_out_and_it_is_said(run, tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=600)
    logits = 3 * np.eye(3)[labels] + rng.normal(size=(600, 3))
    np.savez(tmp_path / "model.npz", logits=logits, labels=labels)
    words = ["--methods", "temp", "--eps", "none", "--seeds", "1", "--clients", "20"]
    code, out, lines = run("compare", tmp_path / "model.npz", *words)
    assert code == 0
    assert any("has no clients: its rows are assigned to 20" in line for line in lines)
    assert "rows of 20 clients" in out and "Dirichlet, beta = 0.1" in out


@pytest.mark.parametrize("form", command.FORMATS)
def test_forms_on_stdout_and_in_files(run, federation_file, tmp_path, form):
    (ending,) = (e for e, name in command.ENDINGS.items() if name == form)
    path = tmp_path / f"table{ending}"
    code, out, _ = run("compare", federation_file, *WORDS, "--format", form, "-o", path)
    assert code == 0
    written = path.read_text(encoding="utf-8")
    if form != "json":
        assert written == out
    starts = {
        "text": "Calibration by",
        "markdown": "| method | eps |",
        "csv": "method,eps,n_runs",
        "latex": r"\begin{tabular}",
        "json": "{",
    }
    assert out.startswith(starts[form])
    if form == "csv":
        assert len(list(csv.DictReader(io.StringIO(out)))) == 6
    if form == "json":
        assert Comparison.from_json(written).runs == Comparison.from_json(out).runs


def test_cells_are_kept_where_the_user_says(run, federation_file, tmp_path):
    store = tmp_path / "cells"
    assert run("compare", federation_file, *WORDS, "--store", store)[0] == 0
    assert len(list(store.iterdir())) == 12
    _, _, lines = run("compare", federation_file, *WORDS, "--store", store)
    assert "[12 of 12 cells were finished before]" in lines
    _, _, lines = run("compare", federation_file, *WORDS, "--store", store, "--fresh")
    assert not any("before" in line for line in lines)
    # By default in a folder of the project, which version control leaves out.
    _, _, lines = run("compare", federation_file, *WORDS)
    cells = os.path.join(os.getcwd(), ".skfedcal", "cells")
    assert len(os.listdir(cells)) == 12
    assert any(line.endswith(f"finished cells are kept in {cells}") for line in lines)
    assert Path(".skfedcal", ".gitignore").read_text() == "*\n"


def wait_for_group(group, seconds=30):
    """Wait until no process of the group is left."""
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_an_interrupt_keeps_what_is_done_and_the_same_command_goes_on(
    federation_file, tmp_path, jobs
):
    store = tmp_path / "cells"
    words = f"--methods temp --eps none 1 --seeds 40 --jobs {jobs}".split()
    line = [*SKFEDCAL, "compare", federation_file, *words, "--store", store]
    first = subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    started = time.monotonic()
    while len(list(store.glob("*.json"))) < 5 and time.monotonic() - started < 60:
        time.sleep(0.02)
    # A terminal sends it to all processes of the run.
    os.killpg(first.pid, signal.SIGINT)
    out, err = first.communicate(timeout=60)
    assert (first.returncode, out) == (130, "")
    *_, kept, last = err.splitlines()
    assert last == "skfedcal: interrupted"
    assert kept.startswith(
        f"[finished cells are stored in {store}; run the same command"
    )
    assert "Traceback" not in err
    wait_for_group(first.pid)  # a worker may be in the middle of its last cell
    n_kept = len(list(store.iterdir()))
    assert 5 <= n_kept < 160 and len(list(store.glob("*.json"))) == n_kept
    again = subprocess.run(line, capture_output=True, text=True, check=False)
    assert again.returncode == 0
    assert f"[{n_kept} of 160 cells were finished before]" in again.stderr


def test_a_report_is_written(run, run_json, federation_file, tmp_path):
    path = tmp_path / "report.html"
    code, out, _ = run("report", federation_file, *WORDS, "-o", path)
    page = path.read_text(encoding="utf-8")
    assert code == 0
    assert out.splitlines()[-1] == f"written: {path}"
    assert out.splitlines()[0] in page and "model.npz" in page
    data = tmp_path / "found.json"
    assert run("compare", federation_file, *WORDS, "-o", data)[0] == 0
    found = run_json("report", data, "-o", tmp_path / "again.html")
    assert found["verdict"] == out.splitlines()[: len(found["verdict"])]
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page


def test_a_table_with_columns_of_other_names(run, tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=400)
    lines = ["hospital,outcome,z0,z1"]
    for i, label in enumerate(labels):
        scores = rng.normal(size=2) + 2 * np.eye(2)[label]
        lines.append(f"h{i % 10},{label},{scores[0]},{scores[1]}")
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines))
    names = ["--columns", "labels=outcome", "client=hospital", "logits=z"]
    words = ["--methods", "temp", "--eps", "none", "--seeds", "1"]
    code, out, _ = run("compare", path, *names, *words)
    assert code == 0 and "rows of 10 clients" in out


def test_presets_print_rows_that_differ_from_the_base(run_json, federation_file):
    words = ["--methods", "temp", "bbq", "bbq-all", "--eps", "1", "--seeds", "1"]
    rows = {}
    for preset in ("printed", "amplified"):
        found = run_json(
            "compare", federation_file, "--fresh", "--preset", preset, *words
        )
        for run in found["runs"]:
            rows[run["method"]] = run
    base = rows.pop("base")
    rows.pop("central")
    assert len(rows) == 6
    assert all(run["used"] and run["NLL"] != base["NLL"] for run in rows.values())
    assert len({run["NLL"] for run in rows.values()}) == 6
    for name in ("FedTemp", "FedBBQ", "FedBBQ-all"):
        assert rows[f"{name}, as printed"]["accountant"] == "zcdp"
        assert (
            rows[f"{name}, amplified"]["noise"] < rows[f"{name}, as printed"]["noise"]
        )


def test_rows_of_a_file_with_clients_are_assigned_anew(run_json, federation_file):
    words = ["--methods", "temp", "--eps", "none", "--seeds", "1", "--fresh"]
    found = run_json(
        "compare", federation_file, *words, "--clients", "7", "--reassign",
        "--vary", "beta", "0.5", "5",
    )  # fmt: skip
    assert {run["n_clients"] for run in found["runs"]} == {7}
    assert {run["beta"] for run in found["runs"]} == {0.5, 5.0}


WRONG = [
    (["--eps", "0"], "'0' is not a finite number above 0"),
    (["--eps"], "expected at least one argument"),
    (["--eps", "1", "1"], "each once"),
    (["--seeds", "0"], "'0' is not a whole number above 0"),
    (["--methods", "isotonic"], "invalid choice: 'isotonic'"),
    (["--vary", "colour", "1"], "--vary colour: expected one of rounds, beta"),
    (["--vary", "rounds"], "--vary rounds: expected values"),
    (["--vary", "rounds", "1.5"], "--vary rounds: '1.5' is not a whole number"),
    (["--vary", "beta", "1"], "have clients already"),
    (["--beta", "-1"], "'-1' is not a finite number above 0"),
    (["--test-size", "1"], "'1' is not below 1"),
    (["--clients", "999"], "--clients 999, but there are 40 clients"),
    (["--cohort", "41", "--methods", "temp"], "No method could be fitted"),
    (["--columns", "labels"], "expected ROLE=NAME"),
    (["--columns", "labels=y"], "has no array 'y'; it has labels, logits, val_client"),
    (["--columns", "target=y"], "columns has the unknown role 'target'"),
    (["--class-prior", "a"], "'a' is not 'uniform'"),
    (["--jobs", "0"], "'0' is not a whole number above 0"),
    (["--preset", "printed", "--methods", "auto"], "--methods auto has no preset"),
    (["--preset", "printed", "--sampling", "poisson"], "has its own cohorts"),
    (["--methods", "cal"], "--methods cal needs --preset"),
    (["--sampling", "poisson"], "--sampling needs --cohort"),
    (["--vary", "privacy", "x"], "one of ['central', 'zcdp'"),
    (["--vary", "clip", "1/x"], "--vary clip: 'x' is not a finite number"),
]


@pytest.mark.parametrize(("words", "message"), WRONG)
@pytest.mark.parametrize("name", ["compare", "report"])
def test_wrong_options(fails, federation_file, tmp_path, name, words, message):
    rest = ["-o", tmp_path / "report.html"] if name == "report" else []
    assert message in fails(name, federation_file, *rest, *words)
    assert not (tmp_path / "report.html").exists()


def test_wrong_results(fails, federation_file, tmp_path):
    words = ["compare", federation_file, *WORDS]
    assert "ends in .txt, .md" in fails(*words, "-o", tmp_path / "table.docx")
    assert "does not exist" in fails(*words, "-o", tmp_path / "no" / "table.md")
    (tmp_path / "table.md").write_text("mine")
    assert "Pass --force" in fails(*words, "-o", tmp_path / "table.md")
    assert "do not go together" in fails(*words, "--json", "--format", "csv")
    (tmp_path / "store").write_text("")
    assert "is a file" in fails(*words, "--store", tmp_path / "store")
    words = ["report", federation_file, *WORDS]
    assert "ends in .html" in fails(*words, "-o", tmp_path / "report.pdf")
    assert "required: -o" in fails(*words)


def test_wrong_files(fails, tmp_path):
    output = tmp_path / "report.html"
    for name, rest in (("compare", []), ("report", ["-o", output])):
        assert "no such file" in fails(name, tmp_path / "none.npz", *rest)
        (tmp_path / "a.npz").write_bytes(b"nothing")
        assert "not an .npz file" in fails(name, tmp_path / "a.npz", *rest)
        (tmp_path / "a.csv").write_text("a,b\n1,2\n")
        assert "needs columns of scores" in fails(name, tmp_path / "a.csv", *rest)
        empty = tmp_path / "empty"
        empty.mkdir(exist_ok=True)
        assert "is a folder with no file" in fails(name, empty, *rest)
    (tmp_path / "a.json").write_text("{}")
    error = fails("report", tmp_path / "a.json", "-o", output)
    assert "not a comparison" in error and "`skfedcal compare -o`" in error
    (tmp_path / "a.json").write_text("[" * 100_000)
    assert "not valid JSON" in fails("report", tmp_path / "a.json", "-o", output)
    assert not output.exists()


def test_a_cache_that_cannot_be_made(fails, federation_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".skfedcal").write_text("")
    error = fails("compare", federation_file, *WORDS)
    assert "--store" in error and "--fresh" in error


def test_a_damaged_comparison(run, fails, federation_file, tmp_path):
    path, output = tmp_path / "found.json", tmp_path / "report.html"
    words = ["--methods", "temp", "--eps", "1", "--seeds", "1", "-o", path]
    assert run("compare", federation_file, *words)[0] == 0
    whole = json.loads(path.read_text())

    def refused(settings, runs):
        path.write_text(json.dumps(whole | {"settings": settings, "runs": runs}))
        return "damaged" in fails("report", path, "-o", output)

    assert refused(whole["settings"], [])
    assert refused({k: v for k, v in whole["settings"].items() if k != "version"}, [])
    for name in (
        "ECE",
        "NLL",
        "acc change",
        "NLL gain",
        "confidence",
        "reliability",
        "used",
    ):
        runs = [{k: v for k, v in r.items() if k != name} for r in whole["runs"]]
        assert refused(whole["settings"], runs), name
    for bins in ({}, {"n": [], "confidence": [], "hits": []}, {"n": ["<b>"]}):
        runs = [r | {"reliability": bins} for r in whole["runs"]]
        assert refused(whole["settings"], runs), bins
    assert not output.exists()


def test_every_option_that_changes_the_result_is_in_the_printed_command():
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--columns", nargs="+")
    parser.add_argument("--input")
    _comparison.add_comparison_options(parser)
    values = {
        "methods": "temp", "eps": "1.00000012", "delta": "1e-6", "seeds": "4",
        "first-seed": "2", "class-prior": "uniform", "clients": "12345678",
        "beta": "0.3", "test-size": "0.25", "rounds": "3", "cohort": "5",
        "columns": "labels=y", "preset": "printed", "sampling": "poisson",
        "input": "proba",
    }  # fmt: skip
    words = ["m.npz", "--vary", "bins", "4", "8", "--reassign"]
    for name, value in values.items():
        words += [f"--{name}", value]
    text = _comparison.command_text(parser.parse_args(words))
    again = parser.parse_args(text.split()[2:])
    assert vars(again) == vars(parser.parse_args(words))
    work = {"jobs", "store", "fresh", "vary", "help", "reassign"}
    options = {a.dest.replace("_", "-") for a in parser._actions} - work - {"file"}
    assert options == set(values)
