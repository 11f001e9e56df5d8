"""Fetch files: through torchvision where it has a data set, else with urllib."""

from __future__ import annotations

import hashlib
import urllib.request
import zipfile
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from skfedcal._files import write_whole

__all__ = ["fetch", "fetch_with_torchvision", "import_torchvision", "unzip"]

TIMEOUT = 60.0  # seconds without an answer
CHUNK = 1 << 20


def import_torchvision() -> ModuleType:
    """Return ``torchvision.datasets``.

    Raises
    ------
    ImportError
        If torchvision is not installed, or does not fit the torch that is. The latter
        comes as RuntimeError or OSError, according to the versions.
    """
    try:
        return import_module("torchvision.datasets")
    except (ImportError, RuntimeError, OSError) as error:
        found = {name: _version(name) for name in ("torch", "torchvision")}
        if None in found.values():
            missing = " and ".join(name for name, v in found.items() if v is None)
            reason = f"needs {missing}, not installed here. Run: "
            reason += 'pip install "skfedcal[vision]"'
        else:
            reason = (
                f"needs torchvision, but torchvision {found['torchvision']} does not "
                f"load with torch {found['torch']} ({error}). Install compatible "
                f"versions from one index: pip install --upgrade "
                "--force-reinstall torch torchvision"
            )
        raise ImportError(
            f"download=True {reason}. Files that are on disk already need neither."
        ) from error


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def fetch_with_torchvision(name: str, home: Path, **params: Any) -> None:
    """Let the data set `name` of torchvision download to `home` and check its sums."""
    dataset = getattr(import_torchvision(), name)
    home.mkdir(parents=True, exist_ok=True)
    try:
        dataset(str(home), download=True, **params)
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())  # torchvision's has several lines
        raise OSError(
            f"torchvision could not download {name} to {home}: {reason}. Check the "
            "network, or fetch the files elsewhere and put them there."
        ) from error


def fetch(url: str, path: Path, *, algorithm: str, checksum: str) -> None:
    """Download `url` to `path`; the file appears whole and with this checksum only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.new(algorithm, usedforsecurity=False)

    def copy(target: BinaryIO) -> None:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as source:
            while chunk := source.read(CHUNK):
                digest.update(chunk)
                target.write(chunk)
        if digest.hexdigest() != checksum:
            raise ValueError(
                f"{url}: expected a file with {algorithm} {checksum}, found "
                f"{digest.hexdigest()}. The download was cut short or the file "
                "changed; nothing was saved."
            )

    try:
        write_whole(path, copy)
    except OSError as error:
        raise OSError(
            f"Could not download {url} to {path}: {error}. Check the network, or fetch "
            "the file elsewhere and put it there."
        ) from error


def unzip(path: Path, folder: Path) -> None:
    """Unpack an archive; zipfile keeps members inside `folder`."""
    try:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
    except zipfile.BadZipFile as error:
        raise ValueError(
            f"{path}: expected a zip archive, found a damaged one: {error}. Delete it "
            "and fetch it again."
        ) from error
