"""Requests of earlier versions are read, or refused by a message that names a way out.

A site and a server may have different versions. `files/skfedcal-wire-<n>.json` holds
requests of format n, as they were written when it was current.
"""

import gzip
import json
from pathlib import Path

import frozen_adapt as adapt
import frozen_wire
import pytest

FILES = Path(__file__).parent / "files"
FORMATS = {
    path.name: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted(FILES.glob("skfedcal-wire-*.json"))
}
# The large one of an old format, which never changes, is kept packed.
FORMATS |= {
    path.stem: json.loads(gzip.decompress(path.read_bytes()))
    for path in sorted(FILES.glob("skfedcal-wire-*.json.gz"))
}
REQUESTS = [(file, name) for file in FORMATS for name in FORMATS[file]["requests"]]


def _refusal(text, arrays):
    """Why a request is refused; None if it is not."""
    try:
        adapt.read_wire(text, arrays)
    except adapt.wire_error() as error:
        return str(error)
    return None


def test_format_1_is_recorded_for_every_algorithm():
    entries = FORMATS["skfedcal-wire-1.json"]["requests"].values()
    found = {name for entry in entries for name in entry["algorithms"]}
    # Names of format 1; they stay, whatever classes are called later.
    assert len(found) == 24
    assert {"TemperatureNewton", "TemperaturePosterior", "VectorMap"} <= found


@pytest.mark.parametrize(("file", "name"), REQUESTS)
def test_a_request_is_read_or_refused_by_its_format(file, name):
    record = FORMATS[file]
    entry = record["requests"][name]
    arrays = frozen_wire.arrays_of(entry)
    if record["format"] != adapt.wire_format():
        refused = _refusal(entry["text"], arrays)
        if refused is not None:
            assert record["format"] in refused
            assert adapt.wire_format() in refused
            assert "nstall" in refused and "version of skfedcal" in refused
            return
    request = adapt.read_wire(entry["text"], arrays)  # its own is never refused
    blocks = json.loads(entry["text"])["codec"]
    assert sorted(request.codec.blocks) == sorted(blocks)
    if entry.get("answer") is not None:
        assert frozen_wire.answer(request, entry["n_classes"]) == entry["answer"]


def test_a_format_of_the_future_is_refused_by_its_name():
    entry = next(iter(FORMATS["skfedcal-wire-1.json"]["requests"].values()))
    text = entry["text"].replace("skfedcal wire 1", "skfedcal wire 999")
    assert text != entry["text"]
    with pytest.raises(adapt.wire_error(), match=r"skfedcal wire 999.*version of skf"):
        adapt.read_wire(text, frozen_wire.arrays_of(entry))


def test_the_current_format_is_recorded_for_every_algorithm():
    record = FORMATS[frozen_wire.file_name()]
    assert record["format"] == adapt.wire_format()
    found = {n for entry in record["requests"].values() for n in entry["algorithms"]}
    every = {*adapt.algorithm_names(), *adapt.family_names()}
    assert found == every - {"SelfTest"}
    text = json.dumps(record)
    for name in every:  # classes may be renamed
        assert f'\\"class\\":\\"{name}\\"' not in text.replace("\\\\", "\\")
