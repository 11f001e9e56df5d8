"""Public signatures are annotated, and say more than `Any`."""

import ast
import importlib
import importlib.resources
import inspect
import sys
import textwrap
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
