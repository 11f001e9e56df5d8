"""FEMNIST and Shakespeare of the LEAF benchmark, which have natural clients."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_scalar

from skfedcal._json import member, read_file
from skfedcal._params import check_choice
from skfedcal.datasets._layout import (
    Home,
    Layout,
    check_labels,
    deliver_clients,
    loader_documented,
    parts_of,
)

__all__ = [
    "UserRows",
    "load_femnist",
    "load_shakespeare",
    "read_leaf",
]

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
    found = read_file(path)
    wanted = {"users": list, "num_samples": list, "user_data": dict}
    for name, kind in wanted.items():
        member(found, name, kind, str(path))
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


CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase

# LEAF's alphabet, in its order: a character is the number of its place.
ALPHABET = "".join(
    ["\n !\"&'(),-.0123456789:;>?", string.ascii_uppercase, "[]"]
    + [string.ascii_lowercase, "}"]
)
SEQUENCE = 80


@loader_documented
def load_femnist(
    data_home: Home,
    *,
    split: str = "train",
    min_samples: int = 0,
    return_X_y: bool = False,
    as_clients: bool = False,
) -> Any:
    """Read FEMNIST, digits and letters by writer, from LEAF's JSON files.

    Parameters
    ----------
    data_home : str or path-like
        Folder with ``train/*.json`` and ``test/*.json``; or ``femnist`` in a clone of
        LEAF, which has them in ``data``; or the clone.
    split : {"train", "test", "all"}, default="train"
        Rows to return. "all" is those of "train" and "test", by writer.
    min_samples : int, default=0
        Leave out writers with fewer rows than this in "train" and "test" together.
    return_X_y, as_clients

    Returns
    -------
    femnist : :class:`~sklearn.utils.Bunch`
        With these entries:

        data : ndarray of shape (n, 28, 28)
            Grey images, float32, from 0, ink, to 1, paper; sorted by writer.
        target : ndarray of shape (n,)
            Labels from 0 to 61, int64.
        target_names : list of str
            Character of each label: digits, capital and small letters.
        clients : list of (ndarray, ndarray)
            Images and labels of each writer, views of the above.
        client_ids : ndarray of shape (n,)
            Position in `client_names`.
        client_names : ndarray of str
            Names of writers, sorted.

    See Also
    --------
    load_emnist : The same images without writers.
    load_shakespeare : Text in the same format.
    split_clients : Halves of the test rows, one for calibration.

    Examples
    --------
    >>> import json, os, tempfile
    >>> from skfedcal.datasets import load_femnist
    >>> rows = {"users": ["f01"], "num_samples": [1],
    ...         "user_data": {"f01": {"x": [[1.0] * 784], "y": [10]}}}
    >>> with tempfile.TemporaryDirectory() as home:
    ...     os.mkdir(os.path.join(home, "train"))
    ...     with open(os.path.join(home, "train", "a.json"), "w") as file:
    ...         json.dump(rows, file)
    ...     femnist = load_femnist(home)
    >>> femnist.data.shape, femnist.target_names[femnist.target[0]]
    ((1, 28, 28), 'A')
    """
    rows = read_leaf(data_home, "femnist", split, min_samples, _images)
    return deliver_clients(
        rows.X,
        rows.y,
        rows.client_ids,
        rows.names,
        return_X_y=return_X_y,
        as_clients=as_clients,
        target_names=list(CHARACTERS),
    )


@loader_documented
def load_shakespeare(
    data_home: Home,
    *,
    split: str = "train",
    min_samples: int = 0,
    unknown: str | None = None,
    return_X_y: bool = False,
    as_clients: bool = False,
) -> Any:
    """Read Shakespeare, the next character by speaking role, from LEAF's JSON files.

    Parameters
    ----------
    data_home : str or path-like
        Folder with ``train/*.json`` and ``test/*.json``; or ``shakespeare`` in a clone
        of LEAF, which has them in ``data``; or the clone.
    split : {"train", "test", "all"}, default="train"
        Rows to return. "all" is those of "train" and "test", by role.
    min_samples : int, default=0
        Leave out roles with fewer rows than this in "train" and "test" together.
    unknown : str, default=None
        Character that is read in place of one outside of LEAF's alphabet. None makes
        such a character an error.
    return_X_y, as_clients

    Returns
    -------
    shakespeare : :class:`~sklearn.utils.Bunch`
        With these entries:

        data : ndarray of shape (n, 80)
            Eighty characters, as places in the alphabet, uint8; sorted by role. This is
            what ``FedAvgClassifier("char_lstm")`` takes.
        target : ndarray of shape (n,)
            The next character, int64.
        target_names : list of str
            The alphabet of 80 characters.
        clients : list of (ndarray, ndarray)
            Rows and labels of each role, views of the above.
        client_ids : ndarray of shape (n,)
            Position in `client_names`.
        client_names : ndarray of str
            Names of play and role, sorted.

    See Also
    --------
    load_femnist : Images in the same format.
    split_clients : Halves of the test rows, one for calibration.

    Examples
    --------
    >>> import json, os, tempfile
    >>> from skfedcal.datasets import load_shakespeare
    >>> rows = {"users": ["LEAR_FOOL"], "num_samples": [1],
    ...         "user_data": {"LEAR_FOOL": {"x": ["Nuncle, " * 10], "y": ["g"]}}}
    >>> with tempfile.TemporaryDirectory() as home:
    ...     os.mkdir(os.path.join(home, "train"))
    ...     with open(os.path.join(home, "train", "a.json"), "w") as file:
    ...         json.dump(rows, file)
    ...     text = load_shakespeare(home)
    >>> text.data.shape, text.target_names[text.target[0]]
    ((1, 80), 'g')
    """
    if unknown is not None and (len(unknown) != 1 or unknown not in ALPHABET):
        raise ValueError(
            f"unknown must be one character of LEAF's alphabet, got {unknown!r}."
        )
    convert = partial(_sequences, unknown=unknown)
    rows = read_leaf(data_home, "shakespeare", split, min_samples, convert)
    return deliver_clients(
        rows.X,
        rows.y,
        rows.client_ids,
        rows.names,
        return_X_y=return_X_y,
        as_clients=as_clients,
        target_names=list(ALPHABET),
    )


def _images(
    x: list[Any], y: list[Any], where: str
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Images of one writer."""
    try:
        with np.errstate(over="ignore"):
            pixels = np.array(x, dtype=np.float32).reshape(len(x), -1)
    except (TypeError, ValueError, OverflowError):  # not numbers, or of several lengths
        pixels = np.empty((len(x), 0), dtype=np.float32)
    if len(x) and pixels.shape[1] != 784:
        raise ValueError(f"{where}: expected 784 numbers for each row of x.")
    if pixels.size and not (pixels.min() >= 0 and pixels.max() <= 1):
        raise ValueError(
            f"{where}: expected pixels from 0 to 1, found {pixels.min()} to "
            f"{pixels.max()}."
        )
    return pixels.reshape(-1, 28, 28), check_labels(y, len(CHARACTERS), where)


def _sequences(
    x: list[Any], y: list[Any], where: str, unknown: str | None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Places in the alphabet of the characters of one role."""
    for length, texts in ((SEQUENCE, x), (1, y)):
        if not all(isinstance(text, str) and len(text) == length for text in texts):
            raise ValueError(
                f"{where}: expected strings of {SEQUENCE} characters in x and of one "
                "in y."
            )
    rows = _places("".join(x), where, unknown).reshape(len(x), SEQUENCE)
    return rows, _places("".join(y), where, unknown).astype(np.int64)


def _places(text: str, where: str, unknown: str | None) -> NDArray[Any]:
    table = {ord(character): place for place, character in enumerate(ALPHABET)}
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    known, inverse = np.unique(points, return_inverse=True)
    for point in known.tolist():
        if unknown is None and point not in table:
            raise ValueError(
                f"{where}: {chr(point)!r} is not in LEAF's alphabet. Pass `unknown`, a "
                "character to read in its place."
            )
    other = table[ord(unknown)] if unknown else 0
    places = np.array([table.get(p, other) for p in known.tolist()], dtype=np.uint8)
    return places[inverse]
