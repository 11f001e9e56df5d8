"""FEMNIST and Shakespeare of the LEAF benchmark, which have natural clients."""

from __future__ import annotations

import string
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal.datasets.formats._layout import Home, check_labels, deliver_clients
from skfedcal.datasets.formats._leaf import read_leaf

__all__ = ["load_femnist", "load_shakespeare"]

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase

# LEAF's alphabet, in its order: a character is the number of its place.
ALPHABET = "".join(
    ["\n !\"&'(),-.0123456789:;>?", string.ascii_uppercase, "[]"]
    + [string.ascii_lowercase, "}"]
)
SEQUENCE = 80


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
    return_X_y : bool, default=False
        Return ``(data, target)`` in place of a Bunch.
    as_clients : bool, default=False
        Return ``{name: (data, target)}``, which `fit` takes, in place of a Bunch.

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
    return_X_y : bool, default=False
        Return ``(data, target)`` in place of a Bunch.
    as_clients : bool, default=False
        Return ``{name: (data, target)}``, which `fit` takes, in place of a Bunch.

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
