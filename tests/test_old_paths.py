"""Names at the paths they had before the packages were renamed, until 0.2."""

import subprocess
import sys
from importlib import import_module

import pytest

OLD = ["skfedcal.algorithms", "skfedcal.calibrators", "skfedcal.data"]
CASES = [
    pytest.param(old, name, id=f"{old}.{name}")
    for old in OLD
    for name in import_module(old).MOVED
]


@pytest.mark.parametrize(("old", "name"), CASES)
def test_an_old_name_warns_and_is_the_new_one(old, name):
    package = import_module(old)
    home = package.MOVED[name]
    with pytest.warns(DeprecationWarning, match=rf"use {home}\.{name}\.$") as found:
        thing = getattr(package, name)
    assert found[0].filename == __file__
    assert thing is getattr(import_module(home), name)
    assert name in package.__all__
    assert name in dir(package)


@pytest.mark.parametrize("old", OLD)
def test_an_unknown_name_is_an_attribute_error(old):
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        import_module(old).nothing


def test_old_packages_are_attributes_without_an_import():
    code = (
        "import skfedcal\n"
        "print(skfedcal.calibrators.FedTempCalibrator is skfedcal.FedTempCalibrator)\n"
        "print(skfedcal.data.FederatedDataset is skfedcal.FederatedDataset)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "True"]


def test_the_new_paths_do_not_warn():
    code = (
        "import skfedcal.clients, skfedcal.methods\n"
        "from skfedcal import *\n"
        "from skfedcal.methods import *\n"
        "from skfedcal.clients import *\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
