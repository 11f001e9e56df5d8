"""Public signatures are annotated, and say more than `Any`."""

import ast
import importlib
import importlib.resources
import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import skfedcal

# Users of `py.typed` see no `Any` here.
STRICT = ("calibrators", "compose", "data", "evaluation")
# Signatures are complete, but keyword arguments of matplotlib, or what a flag decides,
# may be `Any`.
ANNOTATED = ("datasets", "export", "metrics", "plotting")


def public_functions(package):
    """Name, module and definition of functions and methods that users call."""
    module = importlib.import_module(f"skfedcal.{package}")
    seen = set()
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isfunction(value):
            yield name, value.__module__, definition(value)
        if not inspect.isclass(value):
            continue
        for base in value.__mro__:
            if base in seen or not base.__module__.startswith("skfedcal."):
                continue
            seen.add(base)
            for node in definition(base).body:
                if isinstance(node, ast.FunctionDef) and is_public(node.name):
                    yield f"{base.__name__}.{node.name}", base.__module__, node


def definition(value):
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def is_public(name):
    return not name.startswith("_") or name in ("__init__", "__call__")


def annotations(node):
    """Name and annotation, or None, of each parameter and of the result."""
    given = node.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    named += [arg for arg in (given.vararg, given.kwarg) if arg is not None]
    for arg in named:
        if arg.arg not in ("self", "cls"):
            yield arg.arg, arg.annotation
    yield "return", node.returns


def is_any(name, module):
    """Whether a name stands for `Any` in a module, by itself or as an alias."""
    return name == "Any" or getattr(sys.modules[module], name, None) is Any


def says_any(annotation, module):
    """Whether `Any` occurs. ``NDArray[Any]``, an array of any type, is no such case."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    if isinstance(annotation, ast.Subscript):
        outer = getattr(annotation.value, "id", None)
        if outer in ("NDArray", "Literal"):
            return False
    if isinstance(annotation, ast.Name):
        return is_any(annotation.id, module)
    children = ast.iter_child_nodes(annotation)
    return any(says_any(child, module) for child in children)


def faults(package, *, strict):
    return [
        f"{module}.{name}: {param}"
        for name, module, node in public_functions(package)
        for param, annotation in annotations(node)
        if annotation is None or (strict and says_any(annotation, module))
    ]


@pytest.mark.parametrize("package", STRICT)
def test_signatures_have_no_any(package):
    assert faults(package, strict=True) == []


@pytest.mark.parametrize("package", ANNOTATED)
def test_signatures_are_annotated(package):
    assert faults(package, strict=False) == []


def test_the_package_says_that_it_is_typed():
    assert (importlib.resources.files(skfedcal) / "py.typed").is_file()


def test_a_missing_annotation_and_any_are_found():
    node = ast.parse("def f(self, a, b: list[Any], c: 'Any', d: NDArray[Any]): ...")
    found = list(annotations(node.body[0]))
    assert [name for name, note in found if note is None] == ["a", "return"]
    some = [name for name, note in found if note and says_any(note, __name__)]
    assert some == ["b", "c"]


# Expression of a user, and the type that mypy must find.
SEEN = {
    "cal.fit(X, y)": "FedTempCalibrator",
    "cal.fit([(X, y), (X, y)]).temperature_": "float",
    "cal.fit({'site': (X, y)}).privacy_": "PrivacyReport",
    "cal.fit([X, X], [y, y]).history_": "RoundHistory",
    "cal.predict_proba(X)": "ndarray",
    "cal.set_params(eps=2.0)": "FedTempCalibrator",
    "cal.clip": "float | Literal['auto']",
    "skfedcal.load('cal.json')": "BaseCalibrator",
    "skfedcal.FedHistogramCalibrator().reason_": "str",
    "skfedcal.federated_accuracy_score([(X, y)], ci=0.9)": "Estimate",
    "skfedcal.ScoreHistogram.fit(X, y).roc_auc()": "Estimate",
    "plan('accuracy', 0.01, auc=0.7)": "Plan",
}
# What a user must be told.
REFUSED = (
    "skfedcal.FedTempCalibrator(solver='none')",
    "skfedcal.FedTempCalibrator(random_state='seed')",
    "cal.fit(X, y, clients=3)",
    "plan('accuracy', 0.01, area=0.7)",
)
START = """\
import numpy as np
import skfedcal
from skfedcal.evaluation import plan
X, y = np.zeros((3, 2)), np.zeros(3, dtype=int)
cal = skfedcal.FedTempCalibrator(eps=1.0, classes=["a", "b"], random_state=0)
"""


@pytest.mark.slow
def test_users_see_types_through_decorators_and_bases(tmp_path):
    # The syntax tree does not tell what a decorator leaves of a signature.
    pytest.importorskip("mypy")
    reveals = [f"reveal_type({expression})" for expression in SEEN]
    first = len(START.splitlines()) + 1
    code = tmp_path / "user.py"
    code.write_text(START + "\n".join([*reveals, *REFUSED]) + "\n")
    root = Path(skfedcal.__file__).parents[1]
    path = {} if root.name == "site-packages" else {"MYPYPATH": str(root)}
    options = ["--follow-imports=silent", "--ignore-missing-imports"]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *options, code.name],
        cwd=tmp_path,
        env={**os.environ, **path},
        capture_output=True,
        text=True,
        check=False,
    )
    said = {}
    for line in run.stdout.splitlines():
        found = re.match(r"user\.py:(\d+): (note|error): (.*)", line)
        if found and "defined in" not in found[3]:
            said[int(found[1]) - first] = found[2], found[3]
    types = {
        expression: re.sub(r"[\w.]+\.(\w+)", r"\1", said[i][1].split('"')[1])
        for i, expression in enumerate(SEEN)
    }
    outer = {expression: text.split("[tuple")[0] for expression, text in types.items()}
    assert outer == SEEN, run.stdout + run.stderr
    assert [i for i, (kind, _) in said.items() if kind == "error"] == list(
        range(len(SEEN), len(SEEN) + len(REFUSED))
    )
