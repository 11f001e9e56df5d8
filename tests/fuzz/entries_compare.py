"""Entry points of comparisons: `compare`, its files, its store and its commands."""

import functools
import os
from pathlib import Path

import numpy as np
from entries_estimators import call_form, clean_rows
from entries_files import WORDS, check_command, check_once, mutated, saved, write_npz
from entries_tables import write_table
from fuzz_engine import Broken
from fuzz_values import HOSTILE_IDS, HOSTILE_LABELS, HOSTILE_ROWS, HOSTILE_SETTINGS

from skfedcal import FedTempCalibrator
from skfedcal.experiments import Comparison, compare

# What keeps a comparison short.
SHORT = {"methods": ["temp"], "eps": [None], "seeds": 1, "progress": False}
VARY = ("rounds", "beta", "eps", "bins", "clip", "clients")
PARAMS = ("test", "methods", "eps", "seeds", "vary", "client_ids", "classes",
          "input_type", "n_clients", "beta", "test_size", "delta", "class_prior",
          "runner", "oracle", "n_bins", "store")  # fmt: skip

# More than this of anything is slow and not wrong.
MANY = 100


def _short(value):
    return not (isinstance(value, (int, np.integer)) and value > MANY)


def look(found):
    """Show a comparison in all its forms."""
    repr(found), str(found), found.to_text(60), found.to_markdown(), found.to_csv()
    found.to_latex(), str(found.client_table), str(found.table)
    again = Comparison.from_json(found.to_json())
    if again.to_csv() != found.to_csv():
        raise Broken("other rows after to_json and from_json")


def comparison(case):
    """`compare` on hostile clients and settings."""
    logits, labels, ids = clean_rows(2)
    given = {**SHORT, "n_clients": 3}
    args = [(logits, labels)]
    kind = case.pick("kind", ("clients", "param", "param", "vary", "test"))
    if kind == "clients":
        given = dict(SHORT)
        form, kwargs, _ = call_form(case, logits, labels, ids)
        args = [tuple(form) if len(form) == 2 else form[0]]
        given |= kwargs
    elif kind == "vary":
        value = case.pick("value", HOSTILE_SETTINGS)
        listed = [value] if case.chance(0.6) and _short(value) else value
        given["methods"] = [case.pick("method", ("temp", "bbq", "bin"))]
        given["vary"] = {case.pick("vary", (*VARY, "nothing")): listed}
    elif kind == "test":
        rows = case.pick("rows", HOSTILE_ROWS)(logits, case.rng)
        truth = case.pick("labels", HOSTILE_LABELS)(labels, case.rng)
        args.append((logits, truth) if case.chance(0.5) else (rows, labels))
    else:
        value = case.pick("value", HOSTILE_SETTINGS)
        name = case.pick("param", PARAMS)
        if name == "client_ids":
            value = case.pick("ids", HOSTILE_IDS)(ids, case.rng)
        # A word is a folder where the process runs.
        if _short(value) and not (name == "store" and isinstance(value, str)):
            given[name] = value
        if name in ("delta", "class_prior"):
            given["eps"] = [1.0]
    case.watch(logits, labels)
    look(compare(*args, **given))


@functools.cache
def compared():
    """A comparison of two methods at two budgets, on 24 rows."""
    logits, labels, ids = clean_rows(2)
    given = {**SHORT, "methods": ["temp", "bin"], "eps": [None, 1.0], "seeds": 2}
    return compare((logits, labels), client_ids=ids, vary={"clients": [2, 3]}, **given)


def comparison_file(case):
    """`Comparison.from_json`: refuse, or give one that shows itself."""
    text = mutated(case, compared().to_json()).decode("utf-8", "replace")
    if case.chance(0.05):
        text = case.pick("text", HOSTILE_SETTINGS)
    found = Comparison.from_json(text)
    check_once(case)
    look(found)
    found.to_html(case.path("page.html"))


def damaged_cells(case):
    """A store with damaged cells: they are run again, or refused by name."""
    folder = Path(case.path("cells"))
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    rows, given = clean_rows(2)[:2], {**SHORT, "n_clients": 3, "store": folder}
    first = compare(rows, **given)
    for path in sorted(folder.glob("*.json")):
        if case.chance(0.6):
            path.write_bytes(mutated(case, path.read_text()))
    second = compare(rows, **given)
    look(second)
    if len(second.rows) != len(first.rows):
        raise Broken(f"{len(second.rows)} rows from damaged cells")


OPTIONS = {
    "compare": ("--methods", "--eps", "--delta", "--seeds", "--vary", "--clients",
                "--beta", "--test-size", "--rounds", "--cohort", "--class-prior",
                "--columns", "--format", "--first-seed", "--nothing"),
    "report": ("--eps", "--columns", "--vary", "--nothing"),
    "evaluate": ("--split", "--eps", "--delta", "--seed", "--columns", "--calibrator"),
    "info": ("--columns", "--nothing"),
}  # fmt: skip


def bench(case):
    """The commands `compare`, `report`, `evaluate` and `info`."""
    name = case.pick("command", list(OPTIONS))
    out = case.path(case.pick("out", ("out.html", "out.html", "out.json", "out.x")))
    Path(out).unlink(missing_ok=True)
    data = case.path("bench.npz")
    if name == "report" and case.chance(0.5):
        data = case.path("bench.json")
        Path(data).write_bytes(mutated(case, compared().to_json()))
    elif case.chance(0.4):
        data = write_table(case, case.path("bench"))
    elif case.chance(0.4):
        write_npz(case, data)
    else:
        rows, labels, ids = clean_rows()
        np.savez(data, logits=rows, labels=labels, client=ids)
    argv = [name, data, "--quiet"]
    if name in ("compare", "report"):
        argv += ["--methods", "temp", "--eps", "none", "--seeds", "1", "--jobs", "1",
                 "--fresh", "--clients", "3", "-o", out]  # fmt: skip
    if name == "evaluate" and case.chance(0.5):
        cal = case.path("bench-cal.json")
        Path(cal).write_bytes(mutated(case, saved("FedTempCalibrator")))
        argv += ["--calibrator", cal]
    if case.chance(0.6):
        option, word = case.pick("option", OPTIONS[name]), case.pick("word", WORDS)
        values = [case.pick("vary", VARY)] if option == "--vary" else []
        if option == "--columns":
            values = [case.pick("role", ("labels=x", "client=logits", "a=b", "=", "x"))]
        argv += [option, *values, word]
    check_command(argv, out, case, case.folder)


def exported(case):
    """`to_torch` and `to_onnx`: as `predict_proba`, or a refusal and no file."""
    import torch
    from entries_estimators import CALIBRATORS, fitted

    estimator = fitted(case.pick("name", CALIBRATORS))
    if case.chance(0.1):
        estimator = FedTempCalibrator()
    path = case.path("model.onnx")
    Path(path).unlink(missing_ok=True)
    if case.chance(0.5):
        output = "proba"
        if case.chance(0.4):
            output = case.pick("output", HOSTILE_SETTINGS)
        module = estimator.to_torch(output)
        rows = clean_rows()[0][:, : estimator.n_features_in_]
        found = module(torch.tensor(rows)).numpy()
        if not np.allclose(found, estimator.predict_proba(rows), atol=1e-9):
            raise Broken("torch gives other probabilities")
        return
    given = {"path": path, "dtype": "float64"}
    if case.chance(0.7):
        given[case.pick("param", list(given))] = case.pick("value", HOSTILE_SETTINGS)
    if isinstance(given["path"], str):  # a word is a name where the process runs
        given["path"] = path
    try:
        estimator.to_onnx(given["path"], dtype=given["dtype"])
    except Exception:
        if os.path.exists(path):
            raise Broken("a file in spite of an error") from None
        raise


ENTRIES = [
    ("compare", 1, comparison),
    ("Comparison.from_json", 2, comparison_file),
    ("compare with damaged cells", 0.5, damaged_cells),
    ("command line of comparisons", 1, bench),
    ("export", 1, exported),
]
