"""Names of classes and clients survive from a table through fit, predict and back."""

import csv
import json

import numpy as np
import pytest

from skfedcal import load, make_federation
from skfedcal.clients import load_federation

CLASSES = ["wolf", "cat", "dog"]  # in the order of the model, not sorted
HOSPITALS = ["Lyon", "Oslo", "São Paulo"]


def write(path, header, rows, separator=","):
    with open(path, "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, delimiter=separator).writerows([header, *rows])


@pytest.fixture
def table(tmp_path):
    """Logits of three classes with names, of three hospitals."""
    fed = make_federation(3, 900, n_classes=3, temperature=2.0, random_state=0)
    rows = [
        [*z.tolist(), CLASSES[y], HOSPITALS[c]]
        for z, y, c in zip(fed.logits, fed.labels, fed.client_ids, strict=True)
    ]
    write(
        tmp_path / "model.csv",
        [f"logit_{c}" for c in CLASSES] + ["label", "client"],
        rows,
    )
    return tmp_path / "model.csv", fed


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet", ".npz"])
def test_names_survive(run, run_json, table, tmp_path, ending):
    path, fed = table
    cal, out = tmp_path / "cal.json", tmp_path / f"proba{ending}"
    assert run("fit", path, "--method", "biastemp", "-o", cal)[0] == 0
    calibrator = load(cal)
    assert calibrator.classes_.tolist() == sorted(CLASSES)
    assert run("predict", cal, path, "-o", out)[0] == 0
    back = load_federation(out)
    assert back.class_names.tolist() == sorted(CLASSES)
    assert back.client_names.tolist() == HOSPITALS
    assert [CLASSES[y] for y in fed.labels] == back.class_names[back.labels].tolist()
    # The same numbers as in Python, in the columns of their classes.
    expected = calibrator.predict_proba(fed.logits.astype(float))
    assert np.exp(back.logits) == pytest.approx(expected, rel=1e-9)
    found = run_json("evaluate", out)["scores"][0]
    again = run_json("evaluate", path, "--calibrator", cal)["scores"]
    assert found["NLL"] == pytest.approx(again[1]["NLL"], rel=1e-9)
    assert again[1]["NLL"] < again[0]["NLL"]
    if ending == ".csv":
        with open(out, newline="", encoding="utf-8") as stream:
            first = next(csv.DictReader(stream))
        best = max(CLASSES, key=lambda name: float(first[f"proba_{name}"]))
        assert first["predicted"] == best and first["client"] == "Lyon"


def test_columns_are_matched_by_their_names(run, fails, table, tmp_path):
    path, fed = table
    cal = tmp_path / "cal.json"
    assert run("fit", path, "--method", "biastemp", "-o", cal)[0] == 0
    other, pairs = [2, 0, 1], list(zip(fed.logits, fed.labels, strict=True))
    rows = [[*z[other].tolist(), CLASSES[y]] for z, y in pairs]
    names = [CLASSES[i] for i in other]
    write(tmp_path / "b.csv", [f"logit_{name}" for name in names] + ["label"], rows)
    for source in (path, tmp_path / "b.csv"):
        assert run("predict", cal, source, "-o", tmp_path / "p.csv", "--force")[0] == 0
        back = load_federation(tmp_path / "p.csv")
        proba = load(cal).predict_proba(fed.logits.astype(float))
        assert np.exp(back.logits) == pytest.approx(proba, rel=1e-9)
        assert back.class_names[back.labels].tolist() == [
            CLASSES[y] for y in fed.labels
        ]
    write(tmp_path / "c.csv", ["logit_cat", "logit_dog", "logit_fox"], [[1, 2, 3]])
    error = fails("predict", cal, tmp_path / "c.csv", "-o", tmp_path / "c.npz")
    assert "has the classes ['fox']" in error and "Use the same model" in error


def test_probabilities_under_another_name(run, run_json, table, tmp_path):
    _, fed = table
    proba = np.exp(fed.logits - fed.logits.max(axis=1, keepdims=True))
    proba /= proba.sum(axis=1, keepdims=True)
    rows = {"labels": fed.labels, "client": fed.client_ids}
    np.savez(tmp_path / "wrong.npz", logits=proba, **rows)
    np.savez(tmp_path / "right.npz", proba=proba, **rows)
    found = [
        run_json("fit", tmp_path / name, *words, "-o", tmp_path / "c.json", "--force")
        for name, words in (("wrong.npz", ["--input", "proba"]), ("right.npz", []))
    ]
    assert found[0] == found[1]
    # A user who says that they are logits is believed.
    words = ["fit", tmp_path / "wrong.npz", "--input", "logits", "--method", "temp"]
    assert run(*words, "-o", tmp_path / "c.json", "--force")[0] == 0


def test_a_folder_of_tables_keeps_the_names(run, table, tmp_path):
    _, fed = table
    (tmp_path / "sites").mkdir()
    for name, (logits, labels) in zip(HOSPITALS, fed.clients, strict=True):
        rows = [[*z.tolist(), CLASSES[y]] for z, y in zip(logits, labels, strict=True)]
        header = [f"logit_{c}" for c in CLASSES] + ["label"]
        write(tmp_path / "sites" / f"{name}.csv", header, rows)
    assert run("fit", tmp_path / "sites", "-o", tmp_path / "cal.json")[0] == 0
    saved = json.loads((tmp_path / "cal.json").read_text())
    assert load(tmp_path / "cal.json").classes_.tolist() == sorted(CLASSES)
    assert "wolf" in json.dumps(saved)
