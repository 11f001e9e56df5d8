"""Finished cells on disk, one file each, so that an interrupted run can continue."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from math import isnan
from pathlib import Path
from typing import Any

import joblib

from skfedcal._files import as_path, remove_drafts
from skfedcal._json import read_file, write_file
from skfedcal._version import __version__

# Part of every key: raised when cells hold something else than before.
FORMAT = 2


def key_of(settings: Mapping[str, Any]) -> str:
    """Name of a cell: a hash of all that its result depends on."""
    text = json.dumps({**settings, "format": FORMAT}, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:40]


@cache
def code_version() -> str:
    """Version; for a development version also a fingerprint of its files."""
    if "dev" not in __version__:
        return __version__
    found = hashlib.sha256()
    folder = Path(__file__).parents[1]
    for path in sorted(folder.rglob("*.py")):
        found.update(f"{path.relative_to(folder).as_posix()}\n".encode())
        found.update(path.read_bytes())
    return f"{__version__} {found.hexdigest()[:16]}"


def project_store() -> Path:
    """Folder of this project for results that can be computed again.

    It stands in the folder from which a command is run, so that projects do not share
    results.
    """
    return Path.cwd() / ".skfedcal" / "cells"


class CellStore:
    """Cells in a folder; None stores nothing."""

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self.folder = None if folder is None else as_path(folder, "store")
        if self.folder is None:
            return
        if self.folder.exists() and not self.folder.is_dir():
            raise NotADirectoryError(f"{self.folder} is a file; pass a folder.")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise type(error)(
                f"{self.folder}: a folder for finished cells cannot be created here "
                f"({error.strerror}). Pass another one as store (--store), or none "
                "(--fresh)."
            ) from error
        if self.folder == project_store():  # nothing for version control
            self.folder.with_name(".gitignore").write_text("*\n", encoding="utf-8")

    def load(self, key: str) -> dict[str, Any] | None:
        """Return a finished cell; None if it is missing or its file is damaged."""
        if self.folder is None:
            return None
        try:
            record = read_file(self._path(key))
        except (FileNotFoundError, ValueError):
            return None
        if not isinstance(record, dict) or record.get("key") != key:
            return None
        found = record.get("result")
        if not isinstance(found, dict) or record.get("check") != _check(found):
            return None
        return found

    def save(self, key: str, result: Mapping[str, Any]) -> None:
        """Write a cell as a whole."""
        if self.folder is None:
            return
        found = dict(result)
        record = {"key": key, "check": _check(found), "result": found}
        write_file(self._path(key), record, indent=None)

    def cached(self, settings: Mapping[str, Any], work: Callable[[], Any]) -> Any:
        """Return what `work` gives; from the store if it was done before.

        settings: All that the result depends on; anything that can be pickled.
        work: Returns numbers in lists and dicts.
        """
        if self.folder is None:
            return work()
        try:
            key = key_of({"version": code_version(), "settings": joblib.hash(settings)})
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"store needs methods that can be pickled, such as functions of a "
                f"module: {error}"
            ) from error
        found = self.load(key)
        if found is None or "value" not in found:
            found = {"value": _without_nan(work())}
            self.save(key, found)
        return found["value"]

    def remove_drafts(self, keys: Iterable[str]) -> None:
        """Remove the unfinished files of these cells, whose writers were killed."""
        if self.folder is not None:
            remove_drafts(self.folder, {self._path(key).name for key in keys})

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{key}.json"


def _check(result: Mapping[str, Any]) -> str:
    """Fingerprint of a result; a digit that changed on disk is noticed."""
    text = json.dumps(result, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_nan(value: Any) -> Any:
    """Values that JSON can represent: NaN becomes None."""
    if isinstance(value, Mapping):
        return {name: _without_nan(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and isnan(value) else value
