"""Public names, call forms and commands do not change without a record of it."""

import json
import sys
from pathlib import Path

import frozen_api
import pytest

HERE = Path(__file__).parent
HINT = "\nIf this is meant: python tests/frozen/record.py api (see README.md)."


def recorded(name):
    return json.loads((HERE / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("api.json", frozen_api.call_forms),
        ("api_annotations.json", frozen_api.annotations),
        ("api_cli.json", frozen_api.command_line),
    ],
    ids=["call forms", "annotations", "command line"],
)
def test_the_public_surface_is_the_recorded_one(name, found):
    if name == "api_annotations.json" and sys.version_info[:2] != (3, 11):
        pytest.skip("Other versions of Python write annotations in other words.")
    lines = frozen_api.differences(json.loads(json.dumps(found())), recorded(name))
    assert not lines, "\n".join(lines) + HINT


def test_differences_are_named():
    was = {"a": "(x)", "b": "(y)", "c": "(z)"}
    now = {"a": "(x)", "b": "(y=1)", "d": "()"}
    assert frozen_api.differences(now, was) == [
        "added: d ()",
        "changed: b\n    was (y)\n    is  (y=1)",
        "removed: c (z)",
    ]


def test_call_forms_tell_kinds_of_parameters_apart():
    def function(a, /, b, c=1, *rest, d, e=None, **more): ...

    def keywords(a, *, b): ...

    assert frozen_api.call_form(function) == "(a, /, b, c=1, *rest, d, e=None, **more)"
    assert frozen_api.call_form(keywords) == "(a, *, b)"
