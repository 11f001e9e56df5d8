"""Saved files follow their schema; pickle and skops keep every bit."""

import json
import pickle

import numpy as np
import pytest

from skfedcal import CentralDP, FedBinCalibrator, ScoreHistogram, load
from skfedcal.export import json_schema

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning"),
]


def validator(kind):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_saved_calibrators_follow_the_schema(fitted, name, tmp_path):
    cal, rows = fitted(name)
    cal.save(tmp_path / "cal.json")
    validator("calibrator").validate(json.loads((tmp_path / "cal.json").read_text()))
    again = load(tmp_path / "cal.json")
    assert again.predict_proba(rows).tobytes() == cal.predict_proba(rows).tobytes()


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"format_version": 2},
        {"estimator": "os.system"},
        {"classes": [0, 1, 2]},
        {"privacy": {"eps": "much"}},
        {"fitted": {}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_schema_refuses_what_load_refuses(fitted, tmp_path, change):
    path = tmp_path / "cal.json"
    fitted("auto")[0].save(path)
    content = {**json.loads(path.read_text()), **change}
    assert not validator("calibrator").is_valid(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"cal\.json"):
        load(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[(key, None) for key in ("eps", "delta", "unit", "adjacency", "trust")],
        ("secure", None),
        ("delta", {"float": "nan"}),
        ("delta", -1.0),
        ("unit", "city"),
        ("n_clients", -1),
        ("assumptions", "none"),
        ("clip", {"slopes": {"float": "nan"}}),
    ],
)
def test_a_guarantee_is_read_whole_or_not_at_all(fitted, tmp_path, key, value):
    path = tmp_path / "cal.json"
    fitted("temperature", eps=1.0, random_state=0)[0].save(path)
    content = json.loads(path.read_text())
    if value is None:
        del content["privacy"][key]
    else:
        content["privacy"][key] = value
    assert not validator("calibrator").is_valid(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"privacy .*{key}"):
        load(path)


def test_a_version_is_a_number(fitted, tmp_path):
    path = tmp_path / "cal.json"
    fitted("temperature")[0].save(path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "format_version": True}))
    with pytest.raises(ValueError, match="has format version True"):
        load(path)


@pytest.mark.parametrize("privacy", [None, CentralDP(1.0)])
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
def test_histograms_follow_the_schema(privacy):
    rng = np.random.default_rng(0)
    scores = rng.random(200)
    hist = ScoreHistogram.fit(
        scores,
        rng.integers(0, 2, 200),
        client_ids=np.arange(200) % 20,
        input_type="proba",
        privacy=privacy,
        random_state=0,
    )
    content = json.loads(hist.to_json())
    check = validator("histogram")
    check.validate(content)
    assert not check.is_valid({**content, "levels": [{"bits": 3}]})
    assert not check.is_valid({**content, "more": 1})


def test_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match="kind='model' must be one of calibrator, hi"):
        json_schema("model")


def test_a_schema_is_the_callers_own():
    json_schema()["$defs"].clear()
    assert "privacy" in json_schema()["$defs"]


def test_pickle_keeps_every_bit(fitted, name):
    cal, rows = fitted(name)
    again = pickle.loads(pickle.dumps(cal))
    assert again.predict_proba(rows).tobytes() == cal.predict_proba(rows).tobytes()
    assert repr(again.privacy_) == repr(cal.privacy_)


def test_skops_keeps_every_bit(fitted, name):
    io = pytest.importorskip("skops.io")
    cal, rows = fitted(name)
    data = io.dumps(cal)
    # Nothing but names of this package, or of the method's, has to be trusted.
    unknown = io.get_untrusted_types(data=data)
    own = type(cal).__module__.partition(".")[0] + "."
    assert all(kind.startswith(("skfedcal.", own)) for kind in unknown)
    again = io.loads(data, trusted=unknown)
    assert again.predict_proba(rows).tobytes() == cal.predict_proba(rows).tobytes()


def test_a_private_fit_survives_pickle(clients):
    cal = FedBinCalibrator(eps=2.0, random_state=0).fit(clients)
    again = pickle.loads(pickle.dumps(cal))
    assert again.privacy_ == cal.privacy_
    np.testing.assert_array_equal(again.bin_values_, cal.bin_values_)
