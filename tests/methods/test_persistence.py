"""Fitted calibrators as JSON: bit-exact, and hostile files are refused as such."""

import copy
import json
import os

import numpy as np
import pandas as pd
import pytest

from skfedcal import CentralDP, FedBinCalibrator, FedTempCalibrator, load
from skfedcal.methods import registry

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning"),
]

CASES = {
    "temperature": (FedTempCalibrator(), None),
    "grid": (FedTempCalibrator(solver="grid"), None),
    "private": (FedTempCalibrator(eps=3.0, random_state=0), None),
    "privacy object": (FedTempCalibrator(privacy=CentralDP(2, unit="example")), None),
    "bins": (FedBinCalibrator(n_bins=7, normalize="logit"), None),
    "private bins": (FedBinCalibrator(2.0, clip=(3.0, 4), random_state=0), None),
    "names": (FedBinCalibrator(classes=["c", "a", "b"]), ["c", "a", "b"]),
    "series": (FedTempCalibrator(classes=pd.Series(["c", "a", "b"])), ["c", "a", "b"]),
    "odd labels": (FedTempCalibrator(classes=[7, -3, 10**12]), [7, -3, 10**12]),
    "random state": (
        FedBinCalibrator(eps=1.0, random_state=np.random.RandomState(0)),
        None,
    ),
}


def fitted(draw, name, dtype=np.float64):
    cal, names = CASES[name]
    clients = []
    for i in range(8):
        rows, labels = draw(30, 3, 2.0, seed=i, dtype=dtype)
        clients.append((rows, labels if names is None else np.array(names)[labels]))
    return copy.deepcopy(cal).fit(clients), np.concatenate([c[0] for c in clients])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_round_trip_keeps_every_bit(draw, tmp_path, name, dtype):
    cal, rows = fitted(draw, name, dtype)
    path = tmp_path / "cal.json"
    cal.save(path)
    again = load(path)
    assert type(again) is type(cal)
    for method in ("predict_proba", "predict_log_proba", "decision_function"):
        a, b = getattr(cal, method)(rows), getattr(again, method)(rows)
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()
    np.testing.assert_array_equal(again.predict(rows), cal.predict(rows))
    assert again.classes_.dtype.kind == cal.classes_.dtype.kind
    assert repr(again.privacy_) == repr(cal.privacy_) and again.privacy_ == cal.privacy_
    assert again.n_clients_ == 8 and again.n_rounds_ == cal.n_rounds_
    for key, value in cal.get_params().items():
        if key not in ("classes", "random_state"):
            other = again.get_params()[key]
            assert other == value or tuple(other) == tuple(value)
    second = tmp_path / "again.json"
    again.save(second)
    assert second.read_text() == path.read_text()
    again.fit(rows, cal.classes_[np.arange(len(rows)) % 3])


def test_feature_names_are_kept(draw, tmp_path):
    rows, labels = draw(50, 3)
    cal = FedTempCalibrator().fit(pd.DataFrame(rows, columns=list("xyz")), labels)
    cal.save(tmp_path / "cal.json")
    assert load(tmp_path / "cal.json").feature_names_in_.tolist() == ["x", "y", "z"]


def test_the_client_column_is_kept(draw, tmp_path):
    rows, labels = draw(60, 3)
    frame = pd.DataFrame(rows, columns=list("xyz"))
    named = frame.assign(hospital=np.arange(60) % 4)
    cal = FedTempCalibrator().fit(named, labels, client_ids="hospital")
    path = tmp_path / "cal.json"
    cal.save(path)
    again = load(path)
    for given in (named, frame):
        expected = cal.predict_proba(given)
        assert again.predict_proba(given).tobytes() == expected.tobytes()
    content = json.loads(path.read_text())
    again.save(path)
    assert json.loads(path.read_text()) == content
    # Files of earlier versions have no such field, and demand the features alone.
    path.write_text(json.dumps({**content, "client_column": None}))
    with pytest.raises(ValueError, match="hospital"):
        load(path).predict_proba(named)
    for wrong in (3, ["hospital"], {}, "x"):
        path.write_text(json.dumps({**content, "client_column": wrong}))
        with pytest.raises(ValueError, match=r"client_column=.* is not"):
            load(path)


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@pytest.mark.parametrize("method", registry.methods("calibrator"), ids=lambda m: m.word)
def test_every_calibrator_leaves_out_the_client_column(draw, method, tmp_path):
    rows, labels = draw(60, 3)
    frame = pd.DataFrame(rows, columns=list("xyz"))
    named = frame.assign(hospital=np.arange(60) % 4)
    cal = method.load()().fit(named, labels, client_ids="hospital")
    cal.save(tmp_path / "cal.json")
    for fitted in (cal, load(tmp_path / "cal.json")):
        found = fitted.predict_proba(named)
        assert found.tobytes() == fitted.predict_proba(frame).tobytes()


def test_one_column_fits_are_kept(tmp_path):
    d = np.linspace(-2, 2, 20)
    cal = FedTempCalibrator().fit(d, np.arange(20) % 3 > 0)
    cal.save(tmp_path / "cal.json")
    again = load(tmp_path / "cal.json")
    assert again.predict_proba(d).tobytes() == cal.predict_proba(d).tobytes()
    assert again.classes_.tolist() == [False, True]


def test_a_failing_save_leaves_the_old_file(draw, tmp_path):
    cal, _ = fitted(draw, "temperature")
    path = tmp_path / "cal.json"
    cal.save(path)
    before = path.read_bytes()
    cal.temperature_ = object()
    with pytest.raises(TypeError, match="cannot be written as JSON"):
        cal.save(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["cal.json"]


JUNK = [
    None,
    True,
    -1,
    0,
    10**400,
    float("inf"),
    float("nan"),
    "x",
    [],
    {},
    [[1]],
    {"array": [1, 2, 3], "dtype": "<f8", "shape": [3]},
    {"array": [2, 1, 0], "dtype": "<i8", "shape": [3]},
    {"array": ["a", "b", "c"], "dtype": "str", "shape": [3]},
    {"array": [1], "dtype": "zz", "shape": [1]},
    {"array": [1], "dtype": "<f8", "shape": [-2]},
    {"float": "zz"},
    {"object": "CentralDP", "params": {}},
    {"object": "system", "params": {}},
]


def places(value, path=()):
    """Every place in a JSON tree; of a list, the first two entries."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for key, inner in enumerate(value[:2]):
            yield from places(inner, (*path, key))


def mutants(content):
    for path in places(content):
        # Deep inside, a few kinds of junk are enough.
        for junk in [*(JUNK if len(path) < 3 else JUNK[::5]), "remove"]:
            new = copy.deepcopy(content)
            if not path:
                yield path, junk, junk
                continue
            inner = new
            for key in path[:-1]:
                inner = inner[key]
            if junk == "remove":
                del inner[path[-1]]
            else:
                inner[path[-1]] = junk
            yield path, junk, new


@pytest.mark.parametrize("name", ["temperature", "private bins"])
def test_a_changed_file_is_refused_or_harmless(draw, tmp_path, name):
    cal, rows = fitted(draw, name)
    path = tmp_path / "cal.json"
    cal.save(path)
    n_refused = 0
    for place, junk, content in mutants(json.loads(path.read_text())):
        path.write_text(json.dumps(content))
        try:
            other = load(path)
        except ValueError:
            n_refused += 1
            continue
        proba = other.predict_proba(rows)
        assert proba.shape == (len(rows), 3) and np.isfinite(proba).all(), (place, junk)
        np.testing.assert_allclose(proba.sum(axis=1), 1)
        other.predict(rows)
        assert repr(other.privacy_)
        other.save(tmp_path / "again.json")
    assert n_refused > 100


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "3", '{"format": "other"}', "[" * 100_000, "\x00", "NaN"],
)
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "cal.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"not (a|valid) "):
        load(path)


def test_binary_deep_and_foreign_content(draw, tmp_path):
    cal, _ = fitted(draw, "temperature")
    path = tmp_path / "cal.json"
    path.write_bytes(b"\x80\x04\x95\xff")
    with pytest.raises(ValueError, match="not valid JSON"):
        load(path)
    cal.save(path)
    text = path.read_text()
    for depth in (300, 600, 900, 5000):
        nested = "[" * depth + "]" * depth
        path.write_text(text.replace('"n_clients_": 8', f'"n_clients_": {nested}'))
        with pytest.raises(ValueError, match=r"damaged|not valid JSON"):
            load(path)
    for old, new, message in (
        (
            '"format_version": 1',
            '"format_version": 99',
            "format version 99.*reads version 1",
        ),
        ('"FedTempCalibrator"', '"load"', "unknown estimator 'load'"),
        ('"FedTempCalibrator"', '"__import__"', "unknown estimator"),
        ('"temperature_"', '"__class__"', "unknown attribute '__class__'"),
        ('"solver": "auto"', '"solver": "sgd"', "'solver' parameter"),
    ):
        assert old in text
        path.write_text(text.replace(old, new))
        with pytest.raises(ValueError, match=message):
            load(path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nowhere.json")
