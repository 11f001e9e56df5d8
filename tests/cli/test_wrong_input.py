"""Each wrong input to ``fit`` and ``predict`` is one line that names it."""

import numpy as np
import pytest

GOOD = {"logits": np.eye(3)[[0, 1, 2, 0]] * 2.0, "labels": np.array([0, 1, 2, 1])}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--eps", "-1"], "'-1' is not a finite number above 0"),
        (["--eps", "0"], "'0' is not a finite number above 0"),
        (["--eps", "nan"], "'nan' is not a finite number above 0"),
        (["--eps", "one"], "'one' is not a finite number above 0"),
        (["--eps", "1", "--delta", "1"], "'1' is not below 1"),
        (["--delta", "1e-5"], "--delta needs --eps"),
        (["--ledger", "x.jsonl"], "--ledger needs --eps"),
        (["--budget", "1", "1e-5"], "--budget needs --eps"),
        (["--eps", "1", "--budget", "1", "1e-5"], "--budget needs --ledger"),
        (["--eps", "1", "--budget", "1"], "expected 2 arguments"),
        (
            ["--eps", "1", "--ledger", "x", "--seed", "1"],
            "--ledger cannot be combined with --seed",
        ),
        (["--method", "bin", "--solver", "grid"], "option of --method temp, not of"),
        (["--n-bins", "5"], "option of --method bin or topbin, not of auto"),
        (["--method", "bin", "--n-bins", "0"], "'0' is not a whole number above 0"),
        (["--method", "bin", "--n-bins", "2.5"], "'2.5' is not a whole number"),
        (["--method", "isotonic"], "invalid choice: 'isotonic'"),
        (["--solver", "adam"], "invalid choice: 'adam'"),
        (["--split", "train"], "invalid choice: 'train'"),
        (["--split", "val"], "has no array 'val_logits'"),
    ],
)
def test_options_of_fit(fails, tmp_path, words, message):
    path = tmp_path / "model.npz"
    np.savez(path, **GOOD)
    assert message in fails("fit", path, "-o", tmp_path / "cal.json", *words)
    assert list(tmp_path.iterdir()) == [path]


WRONG_ARRAYS = {
    "no labels": ({"logits": GOOD["logits"]}, "it has ['logits']"),
    "no logits": ({"labels": GOOD["labels"]}, "it has ['labels']"),
    "other names": ({"X": np.ones(3), "y": np.ones(3)}, "it has ['X', 'y']"),
    "lengths": ({**GOOD, "labels": np.array([0, 1])}, "labels has shape (2,)"),
    "label range": ({**GOOD, "labels": np.array([0, 1, 2, 3])}, "allow 0 to 2"),
    "text labels": ({**GOOD, "labels": np.array(list("abca"))}, "whole numbers"),
    "NaN": ({**GOOD, "logits": np.full((4, 3), np.nan)}, "has NaN"),
    "objects": ({**GOOD, "logits": np.array([{}] * 4)}, "pickled Python objects"),
    "no rows": ({"logits": np.ones((0, 3)), "labels": np.ones(0)}, "of shape (0, 3)"),
    "bad proba": ({"proba": np.ones((4, 3)), "labels": np.ones(4)}, "probability"),
    "clients": ({**GOOD, "client": np.arange(3)}, "client has shape (3,)"),
}


@pytest.mark.parametrize("case", WRONG_ARRAYS)
def test_arrays_of_fit(fails, tmp_path, case):
    arrays, message = WRONG_ARRAYS[case]
    path = tmp_path / "model.npz"
    np.savez(path, **arrays)
    assert message in fails("fit", path, "-o", tmp_path / "cal.json")


@pytest.fixture
def calibrator(run, tmp_path):
    path = tmp_path / "good.npz"
    np.savez(path, **GOOD)
    assert run("fit", path, "-o", tmp_path / "cal.json")[0] == 0
    return tmp_path / "cal.json"


WRONG_UNLABELLED = {
    "other names": ({"X": np.ones(3)}, "it has ['X']"),
    "NaN": ({"logits": np.full((4, 3), np.nan)}, "NaN"),
    "objects": ({"logits": np.array([{}] * 4)}, "pickled Python objects"),
    "text": ({"logits": np.array([["a", "b", "c"]])}, "must be numbers"),
    "three axes": ({"logits": np.ones((2, 3, 4))}, "of shape (2, 3, 4)"),
    "columns": ({"logits": np.ones((2, 4))}, "logits of 4 classes"),
    "one column": ({"logits": np.ones(2)}, "logits of 2 classes"),
    "bad proba": ({"proba": np.ones((4, 3))}, "sum to 1"),
    "val only": ({"val_logits": np.ones((2, 3))}, "needs the array 'logits'"),
}


@pytest.mark.parametrize("case", WRONG_UNLABELLED)
def test_arrays_of_predict(fails, calibrator, tmp_path, case):
    arrays, message = WRONG_UNLABELLED[case]
    path, output = tmp_path / "model.npz", tmp_path / "proba.npz"
    np.savez(path, **arrays)
    assert message in fails("predict", calibrator, path, "-o", output)
    assert not output.exists()


@pytest.mark.parametrize("n_bytes", [0, 3, 100, 400])
def test_damaged_files(fails, calibrator, tmp_path, n_bytes):
    good = (tmp_path / "good.npz").read_bytes()
    damaged = tmp_path / "damaged.npz"
    output = tmp_path / "out.npz"
    damaged.write_bytes(good[:n_bytes])
    assert "not an .npz file" in fails("fit", damaged, "-o", output)
    assert "not an .npz file" in fails("predict", calibrator, damaged, "-o", output)


def test_flipped_bytes(run, calibrator, tmp_path):
    for name, arrays in (("a", GOOD), ("b", {"logits": GOOD["logits"]})):
        path = tmp_path / f"{name}.npz"
        np.savez_compressed(path, **arrays)
        good = bytearray(path.read_bytes())
        for place in range(0, len(good), 7):
            damaged = good.copy()
            damaged[place] ^= 0x55
            path.write_bytes(damaged)
            words = [calibrator, path, "-o", tmp_path / "out.npz", "--force"]
            code, _, lines = run("predict", *words)
            assert code in (0, 4)
            assert code == 0 or lines[-1].startswith("skfedcal: error: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not valid JSON"),
        ("{}", "is not a saved calibrator"),
        ("[1]", "is not a saved calibrator"),
        ('{"format": "skfedcal-calibrator", "format_version": 99}', "version 99"),
        ('{"format": "skfedcal-calibrator", "format_version": 1}', "is damaged"),
    ],
)
def test_wrong_calibrators(fails, calibrator, tmp_path, content, message):
    calibrator.write_text(content)
    words = [calibrator, tmp_path / "good.npz", "-o", tmp_path / "proba.npz"]
    error = fails("predict", *words)
    assert message in error
    assert "Expected a calibrator written by `skfedcal fit`" in error


def test_swapped_arguments_of_predict(fails, calibrator, tmp_path):
    words = [tmp_path / "good.npz", calibrator, "-o", tmp_path / "proba.npz"]
    assert "is not valid JSON" in fails("predict", *words)


def test_files_that_are_not_there(fails, calibrator, tmp_path):
    output = tmp_path / "out.npz"
    none, good = tmp_path / "none", tmp_path / "good.npz"
    assert "no such file" in fails("fit", none, "-o", output)
    assert "is a folder" in fails("fit", tmp_path, "-o", output)
    assert "no such file" in fails("predict", none, good, "-o", output)
    assert "no such file" in fails("predict", calibrator, none, "-o", output)
    assert "is a folder" in fails("predict", tmp_path, good, "-o", output)
