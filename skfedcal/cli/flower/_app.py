"""Write the app that Flower runs, and read it back."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from skfedcal._version import __version__

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")
# Entries of ``flwr run --run-config``, as Flower takes them apart.
_ENTRY = re.compile(r"""(\S+?)=('[^']*'|"[^"]*"|\S+)""")
# What is written, and from which file of the template.
FILES = {
    "pyproject.toml": "app.toml",
    "client.py": "client.py",
    "server.py": "server.py",
}


def write_app(folder: str) -> list[Path]:
    """Write the files of an app into a folder.

    Raises
    ------
    FileExistsError
        If one of them is there already; nothing is written then.
    ValueError
        If Flower would not accept the name of the folder.
    """
    root = Path(folder)
    name = root.resolve().name
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a valid app name: use a letter and then letters, digits "
            f"and hyphens, at most 32 characters."
        )
    paths = [root / name for name in FILES]
    for path in paths:
        if path.exists():
            raise FileExistsError(f"{path} exists. Pass a folder without an app.")
    root.mkdir(parents=True, exist_ok=True)
    template = files("skfedcal.cli.flower") / "template"
    for path in paths:
        text = (template / FILES[path.name]).read_text(encoding="utf-8")
        text = text.replace("{{name}}", name.lower())
        path.write_text(text.replace("{{version}}", __version__), encoding="utf-8")
    return paths


def read_app(folder: str) -> dict[str, Any]:
    """Content of the app's pyproject.toml.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no app.
    """
    path = Path(folder) / "pyproject.toml"
    if not path.exists():
        raise FileNotFoundError(
            f"{path}: no such file. `skfedcal flower init {folder}` writes an app."
        )
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        dict(content["tool"]["flwr"]["app"]["config"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not the pyproject.toml of an app: {error}."
        ) from error
    return content


def run_config(folder: str) -> dict[str, Any]:
    """Run config of the app."""
    config: dict[str, Any] = read_app(folder)["tool"]["flwr"]["app"]["config"]
    return config


def changed_config(folder: str, settings: Sequence[str]) -> dict[str, Any]:
    """Run config of the app with the entries that a run changes.

    Raises
    ------
    ValueError
        If Flower could not read an entry, or the app has none of its name.
    """
    config = run_config(folder)
    for text in settings:
        lines = "\n".join(f"{name} = {value}" for name, value in _ENTRY.findall(text))
        try:
            entries = tomllib.loads(lines)
        except ValueError:
            entries = {}
        if not entries:
            raise ValueError(
                f"--run-config {text} cannot be read. Pass name=value, and quotes "
                "around text: --run-config 'method=\"FedBinCalibrator\"'."
            )
        unknown = [name for name in entries if name not in config]
        if unknown:
            raise ValueError(
                f"--run-config {text}: the app has no {unknown[0]!r}. It has "
                f"{', '.join(config)}."
            )
        config |= entries
    return config
