"""JSON that is read and written: strict text, whole files, formats with a version.

Text may come from anyone: duplicate names, NaN, numbers beyond float64, half letters
and deep nesting are errors that say where the text is from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, NoReturn

from skfedcal._files import as_path, write_whole
from skfedcal._version import __version__

if TYPE_CHECKING:
    from skfedcal._typing import PathLike

_MAY_OVERFLOW = re.compile(r"[eE]\+?\d{3}|\d{309}")


def dump(value: object, *, indent: int | None = None) -> str:
    """Text of a JSON value, on one line without blanks unless `indent` is given."""
    separators = (",", ":") if indent is None else None
    return json.dumps(value, indent=indent, separators=separators, allow_nan=False)


def parse(
    text: Any,
    where: str,
    *,
    max_chars: int | None = None,
    error: type[ValueError] = ValueError,
) -> Any:
    """Read a JSON text.

    text: The text; anything else is an error too.
    where: What the text is or the file that has it, for messages.
    max_chars: Longest text that is read.
    error: Type of the error that is raised.
    """
    if not isinstance(text, (str, bytes)):
        raise error(f"{where} is of type {type(text).__name__}; pass the text of JSON.")
    if max_chars is not None and len(text) > max_chars:
        raise error(f"{where} is longer than {max_chars} characters.")
    try:
        text = text if isinstance(text, str) else text.decode("utf-8")
        found = json.loads(
            text,
            object_pairs_hook=_without_duplicates,
            parse_constant=_no_constant,
            # A function in Python makes long lists of numbers slow to read.
            parse_float=_finite if _MAY_OVERFLOW.search(text) else None,
        )
        if "\\u" in text:  # half of a letter can be written in JSON, and nowhere else
            json.dumps(found, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise error(f"{where} is not valid JSON: it is nested too deeply.") from None
    except ValueError as reason:
        raise error(f"{where} is not valid JSON: {reason}.") from reason
    return found


def read_file(path: PathLike) -> Any:
    """Read a JSON file; ValueError with its path if it is damaged."""
    path = as_path(path)
    return parse(path.read_bytes(), str(path))


def write_file(path: PathLike, value: object, *, indent: int | None = 1) -> None:
    """Write a JSON file as a whole or not at all."""
    content = f"{dump(value, indent=indent)}\n".encode()
    write_whole(path, lambda stream: stream.write(content))


def check_format(
    content: Any, where: str, what: str, name: str, version: int
) -> dict[str, Any]:
    """Return the object of a file if its format and version are the known ones."""
    if not isinstance(content, dict) or content.get("format") != name:
        raise ValueError(f"{where} is not {what}.")
    found = content.get("format_version")
    if isinstance(found, bool) or found != version:
        raise ValueError(
            f"{where} has format version {found!r}; skfedcal {__version__} reads "
            f"version {version}."
        )
    return content


def member(content: Any, name: str, kind: type, where: str) -> Any:
    """Return one value of an object if it has this type."""
    if not isinstance(content, Mapping):
        raise ValueError(f"{where} is {content!r:.80}; expected an object.")
    if not isinstance(content.get(name), kind):
        found = f"{content[name]!r:.80}" if name in content else "missing"
        raise ValueError(f"{where}: {name!r} is {found}; expected {kind.__name__}.")
    return content[name]


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice!r:.80} is given twice")
    return out


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"the number {text[:20]} overflows float64")
    return value


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a finite number")
