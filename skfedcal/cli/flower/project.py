"""The app that Flower runs, and the keys of its sites."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from skfedcal._version import __version__
from skfedcal.federation import Roster, SiteKey

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

    Raises FileExistsError: If one of them is there already; nothing is written then.
    Raises ValueError: If Flower would not accept the name of the folder.
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

    Raises FileNotFoundError, ValueError: If there is no app.
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

    Raises ValueError: If Flower could not read an entry, or the app has none of its
        name.
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


def load_server(folder: str) -> ModuleType:
    """Module of the server app, which is the operator's own code.

    Raises
    ------
    FileNotFoundError
        If the app has none.
    """
    path = Path(folder) / "server.py"
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file.")
    spec = spec_from_file_location("skfedcal_server_app", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "ask"):
        raise ValueError(
            f"{path} has no function ask(sites, config), which a check tries. Take it "
            "from an app of `skfedcal flower init`."
        )
    return module


ROSTER, OPERATOR = "roster.json", "operator.key"
NO_OPERATOR = (
    "no operator key: whoever reaches the sites through the SuperLink may ask them, "
    "within their policies (skfedcal flower keys --operator)"
)


def make_keys(
    sites: Sequence[str],
    rosters: Sequence[str],
    folder: str,
    *,
    operator: bool = False,
) -> tuple[list[Path], Roster]:
    """Make a key for each site, and add the sites and other rosters to the roster.

    sites: Names of sites that get a key, in ``SITE.key``.
    rosters: Files of rosters whose sites are taken in.
    folder: Where keys and ``roster.json`` are.
    operator: Whether to make the key of the operator too, in ``operator.key``.
    Result paths: Files with keys.
    Result roster: What the roster is now.
    Raises FileExistsError: If a key exists.
    Raises ValueError: If two rosters have different keys for one site, or different
        operators.
    """
    root = Path(folder)
    known: dict[str, bytes] = {}
    old = [root / ROSTER] if (root / ROSTER).exists() else []
    asks: bytes | None = None
    for path in [*old, *map(Path, rosters)]:
        found = Roster.load(path)
        asks = asks or found.operator
        if found.operator not in (None, asks):
            raise ValueError(
                f"{path} has another operator than the roster. Ask the operator which "
                "key is the right one."
            )
        for name, public in found.sites.items():
            if known.setdefault(name, public) != public:
                raise ValueError(
                    f"{path} has another key for site {name!r} than the roster. Ask "
                    "the site which one is its own."
                )
    if "operator" in sites:
        raise ValueError("A site cannot be called 'operator': its key file is taken.")
    paths = [root / f"{name}.key" for name in sites]
    for path, name in zip(paths, sites, strict=True):
        if path.exists() or name in known:
            raise FileExistsError(f"Site {name!r} has a key already ({path}).")
    if len(set(sites)) != len(sites):
        raise ValueError("A site is named twice.")
    keys = [SiteKey.generate(name) for name in sites]
    named = {**known, **{key.name: key.public for key in keys}}
    if operator:
        paths.append(root / OPERATOR)
        if paths[-1].exists() or asks is not None:
            raise FileExistsError(f"The operator has a key already ({paths[-1]}).")
        keys.append(SiteKey.generate("operator"))
        asks = keys[-1].public
    roster = Roster(named, asks)
    root.mkdir(parents=True, exist_ok=True)
    for path, key in zip(paths, keys, strict=True):
        key.save(path)
    roster.save(root / ROSTER)
    return paths, roster


def fingerprint(roster: Roster) -> str:
    """Short text that people can compare over the telephone.

    160 bits: who may add a site of his own could find two rosters with the same short
    text.
    """
    digest = roster.digest.hex()[:40]
    return " ".join(digest[i : i + 4] for i in range(0, 40, 4))
