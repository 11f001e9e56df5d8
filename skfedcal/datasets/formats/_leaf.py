"""The JSON files of the LEAF benchmark: rows by user."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_scalar

from skfedcal.datasets.formats._layout import Home, Layout, check_choice, parts_of

__all__ = ["UserRows", "read_leaf"]

SPLITS = ("train", "test", "all")

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class UserRows:
    """Rows of all users, user after user, users sorted by name."""

    X: Array
    y: Array
    client_ids: Array
    names: list[str]


def read_leaf(
    home: Home,
    name: str,
    split: str,
    min_samples: int,
    convert: Callable[[list[Any], list[Any], str], tuple[Array, Array]],
) -> UserRows:
    """Read the rows of a split.

    `convert` makes arrays of the lists ``x`` and ``y`` of one user; its last argument
    says where they are from. A user is left out if its rows in ``train`` and ``test``
    are fewer than `min_samples`, so that both parts have the same users.
    """
    check_choice("split", split, SPLITS)
    check_scalar(min_samples, "min_samples", Integral, min_val=0)
    parts = parts_of(split)
    folders = _folders(home, name, parts if not min_samples else parts_of("all"))
    counts: dict[str, int] = {}
    blocks: dict[str, list[tuple[Array, Array]]] = {}
    for part, folder in folders.items():
        for user, rows, where in _users(folder):
            counts[user] = counts.get(user, 0) + len(rows["y"])
            if part in parts:
                pair = convert(rows["x"], rows["y"], where)
                blocks.setdefault(user, []).append(pair)
    names = sorted(user for user in blocks if counts[user] >= min_samples)
    if not names:
        raise ValueError(
            f"{name}: none of {len(blocks)} users has min_samples={min_samples} rows."
        )
    return _packed(names, blocks)


def _packed(names: list[str], blocks: dict[str, list[tuple[Array, Array]]]) -> UserRows:
    X = np.concatenate([rows for user in names for rows, _ in blocks[user]])
    y = np.concatenate([labels for user in names for _, labels in blocks[user]])
    sizes = [sum(len(labels) for _, labels in blocks[user]) for user in names]
    return UserRows(X, y, np.repeat(np.arange(len(names)), sizes), names)


def _folders(home: Home, name: str, parts: tuple[str, ...]) -> dict[str, Path]:
    """Folder of each part, wherever `home` lies in a clone of LEAF."""
    inside = (f"data/{name}/data", f"{name}/data", name, "data", "")
    layout = Layout(
        f"LEAF {name}",
        inside,
        "LEAF publishes scripts that make the files, not the files: clone "
        f"https://github.com/TalwalkarLab/leaf, run `cd data/{name} && ./preprocess.sh "
        "-s niid --sf 1.0 -k 0 -t sample` there, and pass that folder; its data/train "
        "and data/test then hold .json files.",
        of_folders=True,
    )
    paths = layout.require(home, [[part] for part in parts])
    return dict(zip(parts, paths, strict=True))


def _users(folder: Path) -> Iterator[tuple[str, dict[str, list[Any]], str]]:
    """Yield the name, rows and origin of each user of a folder."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise FileNotFoundError(f"{folder}: expected .json files, found none.")
    origin: dict[str, Path] = {}
    for path in paths:
        content = _load(path)
        users = map(str, content["users"])
        for user, size in zip(users, content["num_samples"], strict=True):
            if user in origin:
                raise ValueError(
                    f"User {user!r} is in {origin[user]} and again in {path}. The "
                    f"folder mixes files of two runs of LEAF; remove those of one run."
                )
            origin[user] = path
            rows = content["user_data"].get(user)
            yield user, _checked(rows, size, user, path), f"{path}, user {user!r}"


def _load(path: Path) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as stream:
            content = json.load(stream)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: expected JSON, found a damaged or shortened file: {error}."
        ) from error
    wanted = {"users": list, "num_samples": list, "user_data": dict}
    found = content if isinstance(content, dict) else {}
    for key, kind in wanted.items():
        if not isinstance(found.get(key), kind):
            raise ValueError(
                f"{path}: expected an object with {sorted(wanted)}, found "
                f"{sorted(found) or type(content).__name__}."
            )
    if len(found["users"]) != len(found["num_samples"]):
        raise ValueError(
            f"{path}: expected as many users as num_samples, found "
            f"{len(found['users'])} and {len(found['num_samples'])}."
        )
    return found


def _checked(rows: Any, size: Any, user: str, path: Path) -> dict[str, list[Any]]:
    """Rows of one user, if they are as many as announced."""
    lists = [rows.get(key) for key in "xy"] if isinstance(rows, dict) else [None]
    if not all(isinstance(values, list) for values in lists):
        raise ValueError(
            f"{path}: expected lists x and y of user {user!r} in user_data, found "
            f"{sorted(rows) if isinstance(rows, dict) else type(rows).__name__}."
        )
    lengths = [len(values) for values in lists]  # type: ignore[arg-type]
    if lengths != [size, size]:
        raise ValueError(
            f"{path}: expected {size} rows of user {user!r}, found {lengths[0]} in x "
            f"and {lengths[1]} in y."
        )
    return dict(rows)
