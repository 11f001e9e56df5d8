"""Non-interference of a site, in short form; see `noninterference.py` for the long."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

from skfedcal.federation._wire import ALGORITHMS


def _script():
    file = Path(__file__).with_name("noninterference.py")
    spec = importlib.util.spec_from_file_location("noninterference", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


script = _script()


def test_replies_do_not_depend_on_rows():
    counts, _ = script.run(440, 0, keep_going=False)
    fates, answered = Counter(), set()
    for (name, path, fate, _), n in counts.items():
        fates[path, fate] += n
        if fate == "answered":
            answered.add(name)
    # The test is of no use if requests do not get as far as the rows.
    for path in ("plain", "masked"):
        assert fates[path, "answered"] >= 20, fates
        assert fates[path, "refused"] >= 20, fates
    assert answered == set(ALGORITHMS)


@pytest.mark.slow
def test_replies_do_not_depend_on_rows_in_long_form():
    script.run(20_000, 1, keep_going=False)


def test_every_algorithm_is_asked_with_every_law_of_noise_that_fits():
    entries = [entry for found in script.ENTRIES.values() for entry in found]
    assert {entry.algorithm for entry in entries} == set(ALGORITHMS)
    models = {(entry.model, entry.unit) for entry in entries}
    assert models == {
        ("exact", "client"),
        ("central", "client"),
        ("central", "example"),
        ("shared", "client"),
        ("shared", "example"),
        ("own", "example"),
        ("reports", "client"),
        ("one-hot", "client"),
    }
