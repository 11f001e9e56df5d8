"""Public names of the room."""

import inspect
import subprocess
import sys

import pytest

from skfedcal import datasets

FUNCTIONS = sorted(set(datasets.__all__) - {"CORRUPTIONS"})


def test_lazy_table_equals_all():
    assert datasets.__all__ == sorted(datasets.__all__) == datasets._names
    assert dir(datasets) == datasets._names
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        datasets.nothing


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_documented(name):
    function = getattr(datasets, name)
    doc = inspect.getdoc(function)
    assert function.__name__ == name
    assert doc.splitlines()[0].endswith(".") and "Examples\n--------\n>>> " in doc
    documented = {
        part.strip()
        for line in doc.splitlines()
        if " : " in line and not line.startswith(" ")
        for part in line.split(" : ")[0].split(",")
    }
    assert set(inspect.signature(function).parameters) <= documented


def test_room_is_light_to_import():
    code = (
        "import sys, skfedcal.datasets\n"
        "print([m for m in ('sklearn', 'scipy') if m in sys.modules])\n"
        "from skfedcal.datasets import *\n"
        "print([m for m in ('PIL', 'torch', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["[]", "[]"]
