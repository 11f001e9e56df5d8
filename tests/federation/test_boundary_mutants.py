"""Every fix of the site boundary is noticed when it is taken out."""

import importlib.util
import logging
import sys
from pathlib import Path

import pytest


def _script():
    file = Path(__file__).with_name("boundary_mutants.py")
    spec = importlib.util.spec_from_file_location("boundary_mutants", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


script = _script()
# Seconds of processor time at most; the others are the long form.
QUICK = ("unit test", "audit: rows in clear", "audit: labels", "audit: row count",
         "audit: bounds", "audit: price", "audit: honest request")  # fmt: skip


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(
            mutant,
            id=f"{mutant.name}, {mutant.by}",
            marks=() if mutant.by.startswith(QUICK) else pytest.mark.slow,
        )
        for mutant in script.MUTANTS
    ],
)
def test_mutant_is_found_and_the_site_as_it_is_passes(mutant, monkeypatch):
    monkeypatch.setattr(logging.getLogger("skfedcal.site"), "disabled", True)
    assert mutant.detect() == ""
    with mutant.patch():
        assert mutant.detect()
