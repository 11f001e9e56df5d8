"""Write the app that Flower runs, and read it back."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

from skfedcal._version import __version__

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")
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
            f"{name!r} is no name for an app: Flower wants a letter and then letters, "
            "digits and hyphens, 32 at most."
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
        raise ValueError(f"{path} is not that of an app: {error}.") from error
    return content


def run_config(folder: str) -> dict[str, Any]:
    """Run config of the app."""
    config: dict[str, Any] = read_app(folder)["tool"]["flwr"]["app"]["config"]
    return config
