"""The app that Flower runs, and the keys of its sites."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from skfedcal._json import dump, member, read_file, write_file
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
# What ``init --operations`` writes: proxy, services and containers.
OPERATIONS = ("nginx.conf", "flower-superlink.service", "skfedcal-site.service",
              "Dockerfile", "operator.compose.yaml", "site.compose.yaml")  # fmt: skip


def write_app(folder: str, *, operations: bool = False) -> list[Path]:
    """Write the files of an app, or those of operations, into a folder.

    Raises FileExistsError: If one of them is there already; nothing is written then.
    Raises ValueError: If Flower would not accept the name of the folder.
    """
    root = Path(folder)
    name = root.resolve().name
    if not operations and not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a valid app name: use a letter and then letters, digits "
            f"and hyphens, at most 32 characters."
        )
    names = {n: f"operations/{n}" for n in OPERATIONS} if operations else FILES
    paths = [root / name for name in names]
    for path in paths:
        if path.exists():
            raise FileExistsError(f"{path} exists. Pass another folder.")
    root.mkdir(parents=True, exist_ok=True)
    template = files("skfedcal.cli.flower") / "template"
    for path in paths:
        text = (template / names[path.name]).read_text(encoding="utf-8")
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
    if old and Roster.load(old[0]).version:
        raise ValueError(
            f"{old[0]} has a version: sites use it. Change it with --add or --remove."
        )
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


def change_roster(
    folder: str,
    *,
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
    rotate: Sequence[str] = (),
) -> tuple[Roster, list[str]]:
    """Make the next version of the roster in a folder, which the operator hands out.

    add: Files: rosters of sites that enter, and statements of `rotate_key`.
    remove: Names of sites that leave.
    rotate: ``["operator"]`` for a fresh key of the operator, in ``operator.new.key``.
    Result roster, changes: The new roster, and what differs, in words.
    Raises ValueError: If the roster does not allow a change; nothing is written then.
    """
    path = Path(folder, ROSTER)
    old = Roster.load(path)
    sites = dict(old.sites)
    for name in remove:
        if sites.pop(name, None) is None:
            raise ValueError(f"{path} has no site {name!r}.")
    for file in map(Path, add):
        content = read_file(file)
        if isinstance(content, dict) and content.get("format") == ROTATION:
            name, new = read_rotation(content, str(file), sites)
            sites[name] = new
            continue
        for name, public in Roster.load(file).sites.items():
            if sites.setdefault(name, public) != public:
                raise ValueError(
                    f"{file} has another key for site {name!r} than {path}. A site "
                    "that changes its key hands out the statement of --rotate."
                )
    operator, key = old.operator, None
    if rotate:
        if list(rotate) != ["operator"] or operator is None:
            raise ValueError("--rotate with --add or --remove is for the operator.")
        key = SiteKey.load(Path(folder, OPERATOR)).renew()
        operator = key.public
    roster = Roster(sites, operator, old.version + 1)
    changes = roster_changes(old, roster)
    if not changes:
        raise ValueError(f"{path} stays the same: there is nothing to change.")
    if key is not None:
        key.save(Path(folder, "operator.new.key"))
    roster.save(path)
    return roster, changes


def roster_changes(
    old: Roster, new: Roster, statements: Sequence[str] = ()
) -> list[str]:
    """Differences of two rosters as text, and who signed a changed key.

    statements: Files of `rotate_key`.
    """
    signed = dict(
        read_rotation(read_file(file), str(file), old.sites) for file in statements
    )
    lines = []
    for name in sorted({*old.sites, *new.sites}):
        before, after = old.sites.get(name), new.sites.get(name)
        if before is None:
            lines.append(f"{name} enters: compare the fingerprint")
        elif after is None:
            lines.append(f"{name} leaves")
        elif before != after and signed.get(name) == after:
            lines.append(f"{name} has another key, which its old key signed")
        elif before != after:
            lines.append(f"{name} has another key: compare the fingerprint")
    if old.operator != new.operator and new.operator is None:
        lines.append("NO operator any more: sites would answer whoever reaches them")
    elif old.operator != new.operator:
        lines.append("the operator has another key: compare the fingerprint")
    return lines


def install_roster(
    folder: str, file: str, statements: Sequence[str]
) -> tuple[Roster, list[str]]:
    """Replace the roster of a site by a newer one; see `change_roster`.

    Raises ValueError: If it is not newer.
    """
    path = Path(folder, ROSTER)
    old, new = Roster.load(path), Roster.load(file)
    try:
        new.check_successor(old.to_seen())
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    changes = roster_changes(old, new, statements)
    new.save(path)
    return new, changes


ROTATION = "skfedcal rotation 1"


def rotate_key(name: str, folder: str) -> list[Path]:
    """Make the next key of a site, and a statement about it that the old one signs.

    Result: The key, ``NAME.new.key``, which takes the place of ``NAME.key`` together
    with the roster that has it; and ``NAME.rotation.json`` for the operator and the
    other sites.
    """
    root = Path(folder)
    old = SiteKey.load(root / f"{name}.key")
    if old.name != name:
        raise ValueError(f"{root / f'{name}.key'} is the key of {old.name!r}.")
    new = old.renew()
    paths = [root / f"{name}.new.key", root / f"{name}.rotation.json"]
    new.save(paths[0])
    content = {"site": name, "old": old.public.hex(), "new": new.public.hex()}
    signature = old.sign(_rotation_text(content)).hex()
    write_file(paths[1], {"format": ROTATION, **content, "signature": signature})
    return paths


def read_rotation(
    content: Any, where: str, sites: Mapping[str, bytes]
) -> tuple[str, bytes]:
    """Name and new key of a site, if its key in `sites` signed the change."""
    parts = {n: member(content, n, str, where) for n in ("site", "old", "new")}
    name = parts["site"]
    try:
        old, new = bytes.fromhex(parts["old"]), bytes.fromhex(parts["new"])
        signature = bytes.fromhex(member(content, "signature", str, where))
    except ValueError as error:
        raise ValueError(f"{where} is not a rotation of a key: {error}.") from error
    known = Roster(sites)
    if sites.get(name) != old or not known.signed(
        name, _rotation_text(parts), signature
    ):
        raise ValueError(
            f"{where}: the key that the roster has for site {name!r} did not sign this."
        )
    return name, new


def _rotation_text(content: Mapping[str, str]) -> bytes:
    return ROTATION.encode() + dump(sorted(content.items())).encode()


def fingerprint(roster: Roster) -> str:
    """Short text that people can compare over the telephone.

    160 bits: who may add a site of his own could find two rosters with the same short
    text.
    """
    digest = roster.digest.hex()[:40]
    return " ".join(digest[i : i + 4] for i in range(0, 40, 4))
