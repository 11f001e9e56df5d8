"""Public names: listed once, documented, and light to import."""

import inspect
import re
import subprocess
import sys
from importlib import import_module

import pytest

import skfedcal
from skfedcal.methods.base import BaseCalibrator

LAZY = [
    "skfedcal",
    "skfedcal.clients",
    "skfedcal.evaluation",
    "skfedcal.experiments",
    "skfedcal.export",
    "skfedcal.federation",
    "skfedcal.papers",
    "skfedcal.plotting",
    "skfedcal.privacy",
    "skfedcal.training",
]
EAGER = ["skfedcal.methods", "skfedcal.compose"]


FLAT = sorted(set(skfedcal.__all__) - {"__version__"})


def public_objects():
    return [
        pytest.param(getattr(import_module(package), name), id=f"{package}.{name}")
        for package in [*LAZY[1:], *EAGER]
        for name in import_module(package).__all__
    ]


def run_python(code):
    """Standard output of `code` in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_conftest_lists_every_public_estimator(public_estimators):
    found = {
        getattr(skfedcal, name)
        for name in skfedcal.__all__
        if hasattr(getattr(skfedcal, name), "get_params")
        and hasattr(getattr(skfedcal, name), "fit")
    }
    ours = {c for c in public_estimators if c.__module__.startswith("skfedcal.")}
    assert found == ours


@pytest.mark.parametrize("package", LAZY)
def test_lazy_table_equals_all(package):
    module = import_module(package)
    assert module._names == sorted(set(module.__all__) - {"__version__"})
    assert module.__all__ == sorted(module.__all__)
    assert dir(module) == module._names
    for name in module._names:
        assert getattr(module, name).__name__ == name


@pytest.mark.parametrize("package", LAZY)
def test_unknown_name_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        import_module(package).nothing


@pytest.mark.parametrize("thing", public_objects())
def test_public_name_is_documented(thing):
    doc = inspect.getdoc(thing)
    assert doc
    assert doc.splitlines()[0].endswith(".")


def all_public_names():
    packages = [*LAZY, *EAGER, "skfedcal.datasets", "skfedcal.exceptions"]
    return [
        pytest.param(package, name, id=f"{package}.{name}")
        for package in [*packages, "skfedcal.metrics"]
        for name in import_module(package).__all__
        if name != "__version__"
    ]


@pytest.mark.parametrize(("package", "name"), all_public_names())
def test_public_name_has_an_example(package, name):
    thing = getattr(import_module(package), name)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        assert re.search(r"^Examples\n-{8}\n(.*\n)*>>> ", inspect.getdoc(thing), re.M)
    else:
        # Scorers and tables have no docstring; the one of their package shows them.
        assert re.search(rf"^>>> .*\b{name}\b", import_module(package).__doc__, re.M)


@pytest.mark.parametrize("name", FLAT)
def test_parameters_are_documented(name):
    thing = getattr(skfedcal, name)
    doc = inspect.getdoc(thing)
    documented = {
        part.strip()
        for line in doc.splitlines()
        if " : " in line and not line.startswith(" ")
        for part in line.split(" : ")[0].split(",")
    }
    assert set(inspect.signature(thing).parameters) <= documented


@pytest.mark.parametrize("thing", public_objects())
def test_no_shared_entry_of_a_docstring_is_left_out(thing):
    methods = [f for f in vars(thing).values() if inspect.isfunction(f)]
    for each in [thing, *methods] if inspect.isclass(thing) else [thing]:
        doc = inspect.getdoc(each) or ""
        _, _, rest = doc.partition("Parameters\n----------\n")
        for entry in re.split(r"\n(?=\S)", rest.split("\n\n")[0]):
            assert not entry or "\n " in entry, (each, entry)


def test_estimators_share_names_of_parameters(public_estimators):
    shared = {"eps", "delta", "clip", "privacy", "ledger", "random_state"}
    shared |= {"classes", "input_type", "runner"}
    for cls in public_estimators:
        if issubclass(cls, BaseCalibrator):
            assert shared <= set(inspect.signature(cls).parameters)


def test_base_import_is_light():
    heavy = ["sklearn", "scipy", "torch", "joblib", "pandas", "flwr"]
    code = f"import sys, skfedcal; print([m for m in {heavy} if m in sys.modules])"
    assert run_python(code) == "[]"


def test_a_site_imports_numpy_only():
    code = (
        "import sys\n"
        "import skfedcal.federation.endpoint, skfedcal.privacy.codec\n"
        "import skfedcal.contract, skfedcal.clients.dataset\n"
        "from skfedcal.methods.registry import algorithms\n"
        "[algorithm.load() for algorithm in algorithms().values()]\n"
        "heavy = 'sklearn', 'scipy', 'joblib', 'torch'\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    assert run_python(code) == "[]"


def test_estimators_need_no_extra():
    code = (
        "import sys\n"
        "from skfedcal import *\n"
        "extras = 'torch', 'matplotlib', 'dp_accounting', 'flwr', 'opendp'\n"
        "print([m for m in extras if m in sys.modules])"
    )
    assert run_python(code) == "[]"


def test_imports_add_little_to_those_of_sklearn():
    # What a first script imports; other names are paid for when they are used.
    names = "FedTempCalibrator, FederatedRunner, PrivacyLedger, make_federation"
    code = (
        "import sys, sklearn.linear_model, sklearn.frozen, sklearn.model_selection\n"
        "before = set(sys.modules)\n"
        f"from skfedcal import {names}\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    added = set(run_python(code).split())
    packages = {name.partition(".")[0] for name in added}
    assert packages - sys.stdlib_module_names == {"skfedcal"}
    rooms = {name.split(".")[1] for name in added if name.count(".")}
    assert not rooms & {"cli", "compose", "datasets", "evaluation", "experiments"}
    assert not rooms & {"export", "metrics", "plotting", "training"}
    # Of the methods the one that is asked for.
    methods = import_module("skfedcal.methods")
    classes = [getattr(methods, n) for n in methods.__all__ if n.endswith("Calibrator")]
    modules = {cls.__module__ for cls in classes} - {BaseCalibrator.__module__}
    assert modules & added == {methods.FedTempCalibrator.__module__}
