"""Files that a command reads and writes."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Protocol


class FileOptions(Protocol):
    """Options of a command that writes a file."""

    output: str
    force: bool


def check_input(path: str, expected: str, *, folder: bool = False) -> None:
    """Raise if there is no file to read; `expected` says what it should be."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path}: no such file. Expected {expected}.")
    if os.path.isdir(path) and not folder:
        raise IsADirectoryError(f"{path} is a folder. Expected {expected}.")


def check_output(args: FileOptions, *inputs: str) -> None:
    """Raise if the result could not be written; called before any work is done."""
    path = Path(args.output)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder. Pass the name of a file.")
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"{path}: the folder {path.parent} does not exist. Create it first."
        )
    # A ledger may not exist yet, so that names are compared and not files.
    if os.path.realpath(path) in map(os.path.realpath, inputs):
        raise ValueError(f"{path} is an input or the ledger. Pass another name.")
    if path.exists() and not args.force:
        raise FileExistsError(f"{path} exists. Pass --force to replace it.")
    _try_folder(path)


def _try_folder(path: Path) -> None:
    """Raise unless a file can be made beside `path`; permissions alone do not tell."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        draft.touch(exist_ok=False)
        draft.unlink()
    except OSError as error:
        raise type(error)(
            f"{path}: the folder {path.parent} is not writable ({error.strerror})."
        ) from error
