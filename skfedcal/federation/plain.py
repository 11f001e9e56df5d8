"""Frozen dataclasses as JSON values and back, by the types of their fields.

Nothing is executed and nothing is guessed: a value that its type does not allow is an
error that names the field. Needs numpy only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from math import isfinite
from operator import index
from types import UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from skfedcal import _json

# Longest text that is read.
MAX_TEXT = 1 << 20

# Beyond this a number is taken for none.
_LARGEST = sys.float_info.max

# Name of a class, where a field may hold one of several; and the class of that name.
Namer = Callable[[type], str | None]
Finder = Callable[[Any, Any], type]


class WireError(ValueError):
    """What was received cannot be read."""


def to_plain(value: Any, name_of: Namer | None = None) -> Any:
    """JSON value of a dataclass of plain values; numpy numbers become Python's.

    ``name_of(cls)`` gives the name that is written with an object, where the type of
    its field does not tell the class.
    """
    if is_dataclass(value) and not isinstance(value, type):
        name = None if name_of is None else name_of(type(value))
        out = {} if name is None else {"class": name}
        return out | {
            name: to_plain(getattr(value, name), name_of)
            for name in _hints(type(value))
        }
    if isinstance(value, Mapping):
        return {str(name): to_plain(part, name_of) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(part, name_of) for part in value]
    if value is None or isinstance(value, (str, bool)):
        return value
    if type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    if hasattr(value, "__index__"):
        return index(value)
    number = float(value)
    if not isfinite(number):
        raise WireError(f"{value!r} cannot be sent: numbers must be finite.")
    return number


def from_plain(cls: type, value: Any, where: str, find: Finder | None = None) -> Any:
    """Object of class `cls` from what `to_plain` wrote.

    cls: Dataclass that is expected.
    where: Name for messages.
    find: ``find(hint, name)`` gives the class for a field whose type is not a
        dataclass.
    Raises WireError: For an unknown or missing field, or a value of a wrong type.
    """
    found = _fields_of(value, where)
    hints = _hints(cls)
    for text, names in (
        ("unknown field", found.keys() - hints.keys()),
        ("missing field", hints.keys() - found.keys()),
    ):
        if names:
            raise WireError(f"{where} ({cls.__name__}) has the {text} {min(names)!r}.")
    values = {
        name: read(hint, found[name], f"{where}.{name}", find)
        for name, hint in hints.items()
    }
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise WireError(f"{where} ({cls.__name__}) is refused: {error}") from error


def read_object(
    find_class: Callable[[Any], type],
    value: Any,
    where: str,
    find: Finder | None = None,
) -> Any:
    """Object of the class that is named with it."""
    found = _fields_of(value, where)
    return from_plain(find_class(found.pop("class", None)), found, where, find)


def read(hint: Any, value: Any, where: str, find: Finder | None = None) -> Any:
    """Value of one field, as its type says."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        if not any(value == a and type(value) is type(a) for a in args):
            _refuse(where, value, f"one of {args}")
        return value
    if origin in (Union, UnionType):
        return _read_union(args, value, where, find)
    if origin is tuple:
        if not isinstance(value, list):
            _refuse(where, value, "a list")
        each = enumerate(value)
        return tuple(read(args[0], part, f"{where}[{i}]", find) for i, part in each)
    if origin is not None and issubclass(origin, Mapping):
        found = _fields_of(value, where)
        return {
            name: read(args[1], part, f"{where}[{name!r}]", find)
            for name, part in found.items()
        }
    if hint in (bool, int, str):
        if type(value) is not hint:
            _refuse(where, value, hint.__name__)
        return value
    if hint is float:
        # Not by isfinite, which fails for an integer of 400 digits.
        if type(value) not in (int, float) or not -_LARGEST <= value <= _LARGEST:
            _refuse(where, value, "a finite number")
        return float(value)
    if find is not None and not is_dataclass(hint):
        return read_object(lambda name: find(hint, name), value, where, find)
    return from_plain(hint, value, where, find)


def _read_union(
    args: tuple[Any, ...], value: Any, where: str, find: Finder | None
) -> Any:
    if value is None and type(None) in args:
        return None
    simple = [a for a in args if a in (bool, int, float, str)]
    if len(simple) > 1:  # a label: each type is itself
        if type(value) not in simple or value != value:
            _refuse(where, value, f"one of {[a.__name__ for a in simple]}")
        return value
    (kind,) = (a for a in args if a is not type(None))
    return read(kind, value, where, find)


def parse(text: Any, where: str) -> dict[str, Any]:
    """Object from untrusted JSON text."""
    found = _json.parse(text, where, max_chars=MAX_TEXT, error=WireError)
    return _fields_of(found, where)


@lru_cache(maxsize=64)
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    # What only the server uses is not sent.
    sent = [f.name for f in fields(cls) if not f.metadata.get("server")]
    return {name: hints[name] for name in sent}


def _fields_of(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(where, value, "an object")
    return dict(value)


def _refuse(where: str, value: Any, expected: str) -> NoReturn:
    raise WireError(f"{where} is {value!r:.80}; expected {expected}.")
