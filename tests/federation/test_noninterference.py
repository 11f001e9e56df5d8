"""Non-interference of a site, in short form; see `noninterference.py` for the long."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from skfedcal.federation import SiteRows
from skfedcal.methods.registry import algorithms


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
    assert answered == set(algorithms())


@pytest.mark.slow
def test_replies_do_not_depend_on_rows_in_long_form():
    script.run(20_000, 1, keep_going=False)


def by_row():
    """Requests whose unit is a row, without noise of the site: one per algorithm."""
    found = {}
    for i, entries in script.ENTRIES.items():
        for entry in entries:
            if (entry.model, entry.unit) == ("central", "example"):
                found.setdefault(entry.algorithm, (i, entry))
    return found


@pytest.mark.parametrize("name", sorted(by_row()))
def test_a_row_that_cannot_be_computed_costs_no_other_row(name):
    """Where rows are hidden one by one, one row moves the sum by its own part only."""
    i, entry = by_row()[name]
    schema = script.SCHEMAS[i]
    rows = script.clean_rows(schema, 12)
    without = SiteRows(
        np.delete(rows.scores, 5, 0), np.delete(rows.labels, 5), rows.kind
    )
    expected = script.contributions(entry, schema, without)
    assert any(np.any(value) for value in expected.values())
    own = SiteRows(rows.scores[5:6], rows.labels[5:6], rows.kind)
    seen = entry.request.reading.dataset(own, "site").rows[0]
    with script.failing_on(entry.request.algorithm, seen):
        assert script.contributions(entry, schema, rows) == expected


def test_every_algorithm_is_asked_with_every_law_of_noise_that_fits():
    entries = [entry for found in script.ENTRIES.values() for entry in found]
    assert {entry.algorithm for entry in entries} == set(algorithms())
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
