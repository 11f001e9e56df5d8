"""Federations on disk: save clients, load them, check what the files hold."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from sklearn.utils import Bunch

from skfedcal import _numerics
from skfedcal._files import as_path, write_whole
from skfedcal._params import as_number, check_flag
from skfedcal.clients.arrays import read_array
from skfedcal.clients.file_formats import (
    CLASS_NAMES,
    CLIENT_NAMES,
    SCORE_NAMES,
    check_roles,
    read_arrays,
)
from skfedcal.clients.partitions import rows_by_client

if TYPE_CHECKING:
    from skfedcal._typing import ArrayLike, PathLike

# Published softmax outputs are rounded: float16 rows sum to 1 within about this.
SUM_TOLERANCE = 1e-2


def check_length(array, name, logits, path):
    """Raise unless there is one entry for each row of logits."""
    if array.shape != (len(logits),):
        raise ValueError(
            f"{path}: {name} has shape {array.shape}, but there are "
            f"{len(logits)} rows of logits."
        )


def _check_scores(scores, name, path):
    """Return float32 or float64 of one or two dimensions."""
    if scores.dtype.kind not in "fiu" or scores.ndim not in (1, 2) or not scores.size:
        raise ValueError(
            f"{path}: {name} must be numbers of shape (n, n_classes) or (n,), got "
            f"{scores.dtype} of shape {scores.shape}."
        )
    keep = scores.dtype.kind == "f" and scores.dtype.itemsize <= 4
    return scores.astype(np.float32 if keep else np.float64, copy=False)


def check_logits(scores, name, path):
    """Logits as floats; a row has a finite maximum."""
    logits = _check_scores(scores, name, path)
    rows = logits.reshape(len(logits), -1)
    # The maximum of a row is NaN if any entry is.
    bad = ~np.isfinite(rows.max(axis=1))
    if bad.any():
        raise ValueError(
            f"{path}: row {np.argmax(bad)} of {name} has NaN, +inf or nothing but "
            f"-inf ({bad.sum()} such rows). An -inf beside finite logits means "
            "probability zero and is allowed."
        )
    return logits


def log_proba(scores, name, path):
    """Logarithms of probabilities; one column means those of class 1."""
    proba = _check_scores(scores, name, path)
    if proba.ndim == 1:
        proba = np.column_stack([1 - proba, proba])
    sums = proba.sum(axis=1, dtype=np.float64)
    bad = ~((proba >= 0).all(axis=1) & (np.abs(sums - 1) <= SUM_TOLERANCE))
    if bad.any():
        raise ValueError(
            f"{path}: row {np.argmax(bad)} of {name} is not a probability vector: "
            f"entries must be at least 0 and sum to 1 ({bad.sum()} such rows)."
        )
    return _numerics.from_proba(proba)


def check_labels(labels, name, logits, path):
    """Columns of the true classes as whole numbers."""
    check_length(labels, name, logits, path)
    n_classes = max(2, logits.shape[1]) if logits.ndim == 2 else 2
    whole = labels.dtype.kind in "iub" or (
        labels.dtype.kind == "f" and np.array_equal(labels, np.trunc(labels))
    )
    if not whole:
        raise ValueError(
            f"{path}: {name} must be whole numbers, the column of the true class; got "
            f"{labels.dtype}."
        )
    low, high = labels.min(), labels.max()
    if low < 0 or high >= n_classes:
        raise ValueError(
            f"{path}: {name} range from {low} to {high}, but logits of shape "
            f"{logits.shape} allow 0 to {n_classes - 1}."
        )
    return labels.astype(np.int64)


def check_clients(client_ids, name, names, path):
    """Return whole numbers: positions in `names`, if there are names."""
    kind = client_ids.dtype.kind
    if kind not in "iuUS":
        raise ValueError(
            f"{path}: {name} must be whole numbers or strings, got {client_ids.dtype}."
        )
    if names is not None and kind in "US":
        order = np.argsort(names)
        client_ids = client_ids.astype(str)
        place = np.searchsorted(names, client_ids, sorter=order)
        codes = order[np.minimum(place, len(names) - 1)]
        unknown = names[codes] != client_ids
        if unknown.any():
            missing = str(client_ids[np.argmax(unknown)])
            raise ValueError(f"{path}: {name} {missing!r} is not in client_names.")
        return codes
    client_ids = client_ids.astype(np.int64)
    if names is not None and len(client_ids):
        low, high = client_ids.min(), client_ids.max()
        if low < 0 or high >= len(names):
            raise ValueError(
                f"{path}: {name} ranges from {low} to {high}, but there are "
                f"{len(names)} client_names."
            )
    return client_ids


def load_federation(
    path: PathLike,
    *,
    split: Literal["auto", "val", "test"] | None = None,
    columns: Mapping[str, str] | None = None,
    max_bytes: float = 8 * 2**30,
) -> Bunch:
    """Read the logits, labels and clients of a model from a file or a folder.

    Parameters
    ----------
    path : str or path-like
        An .npz file with the arrays

        - ``logits`` of shape (n, n_classes), or (n,) for binary log-odds; or
          ``proba`` (also ``prob``), probabilities of shape (n, n_classes), or (n,)
          for those of class 1. Probabilities are turned into their logarithms;
        - ``labels`` of shape (n,), the column of the true class;
        - ``client`` (also ``client_ids``; optional) of shape (n,), a whole number or
          a string for each row;
        - ``client_names`` (optional): names of clients 0, 1, ...;
        - ``class_names`` (optional): names of the columns of ``logits``;
        - ``val_logits``, ``val_labels``, ``val_client`` (optional): further rows to
          calibrate on. The rows above are then for testing.

        Other arrays are not read. Or one of these:

        - an .npy file whose name ends in logits or proba, such as
          ``model_logits.npy``, with ``model_labels.npy`` and perhaps
          ``model_client.npy`` beside it;
        - a .csv, .tsv or .parquet table (the last needs pyarrow) with columns
          ``logit_0``, ``logit_1``, ... (or ``proba_0``, ...), ``label``, perhaps
          ``client``, and perhaps ``split``, which is "val" or "test". Scores may end in
          names of classes instead, which are then the labels;
        - a folder with one of these files per client, named as the client.
    split : {"auto", "val", "test"} or None, default=None
        Rows to return. None returns the main rows, and those of ``val_*`` as `val`.
        "test" returns the main rows and "val" those of ``val_*``, without the
        other. "auto" returns the rows to calibrate on: ``val_*`` if the file has
        them, else the main rows.
    columns : dict, default=None
        Other names of arrays or columns, for the roles "logits" or "proba" (in a table:
        how the names of its columns begin), "labels" and "client".
    max_bytes : int, default=8 GiB
        Refuse a file whose arrays take more memory than this. Nothing is read before
        this is checked, so a small file cannot fill the memory.

    Returns
    -------
    federation : :class:`~sklearn.utils.Bunch`
        With these entries:

        clients : list of (ndarray, ndarray)
            Logits and labels of each client, as `fit` takes them: in the order of
            `client_names`, else of ``np.unique(client_ids)``. One client if the file
            has no ``client``. Views if the rows are sorted by client, else a copy.
        logits : ndarray of shape (n, n_classes) or (n,)
            As stored, in the order of the file; float16 becomes float32.
        labels : ndarray of shape (n,)
            Whole numbers.
        client_ids : ndarray of shape (n,) or None
            Whole numbers: positions in `client_names`, if there are names.
        client_names : ndarray of str or None
            Names in the file, or its distinct clients if they are strings.
        class_names : ndarray of str or None
            Names of the columns of logits, if the file has them.
        val : Bunch or None
            The entries above for the rows of ``val_*``.

    See Also
    --------
    save_federation : Write such a file.
    make_federation : Synthetic federations.

    Notes
    -----
    Pickled objects are never loaded: a file cannot run code.

    Examples
    --------
    >>> import os, tempfile
    >>> from skfedcal.clients import load_federation, save_federation
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.npz")
    ...     save_federation(path, [[2.0, 0.0], [0.0, 1.0], [3.0, 1.0]], [0, 1, 1],
    ...                     client_ids=["b", "a", "b"])
    ...     federation = load_federation(path)
    >>> federation.client_names
    array(['a', 'b'], dtype='<U1')
    >>> [labels for _, labels in federation.clients]
    [array([1]), array([0, 1])]
    """
    max_bytes = as_number("max_bytes", max_bytes)
    known = split is None or isinstance(split, str)
    if not known or split not in (None, "auto", "val", "test"):
        raise ValueError(f"split must be None, 'auto', 'val' or 'test', got {split!r}.")
    path = as_path(path)
    arrays, found = read_arrays(path, max_bytes, check_roles(columns))
    return federation_of(arrays, found, path, split)


def federation_of(arrays, found, path, split):
    """Check arrays that were read and put them together; see `load_federation`."""
    _check_names(arrays, found, path)
    has_val = any(name.startswith("val_") for name in arrays)
    if split == "auto":
        split = "val" if has_val else "test"
    names = _client_names(arrays, path)
    if split == "val":
        return Bunch(**_named_rows(arrays, "val_", names, path), val=None)
    main, val = _named_rows(arrays, "", names, path), None
    if has_val and split is None:
        val = _named_rows(arrays, "val_", names, path)
        _check_columns(main, val, path)
    return Bunch(**main, val=val)


def _named_rows(arrays, prefix, names, path):
    """Rows of one split, with the names of clients and classes."""
    rows = _rows(arrays, prefix, names, path)
    return Bunch(**rows, class_names=check_class_names(arrays, rows.logits, path))


def check_class_names(arrays, logits, path):
    """Names of the classes, or None."""
    if CLASS_NAMES not in arrays:
        return None
    names = arrays[CLASS_NAMES]
    n_classes = max(2, logits.shape[1]) if logits.ndim == 2 else 2
    if names.shape != (n_classes,) or len(np.unique(names)) < n_classes:
        raise ValueError(
            f"{path}: {CLASS_NAMES} must be {n_classes} different names, one for each "
            f"column of logits; got {names[:10].tolist()} of shape {names.shape}."
        )
    return names.astype(str)


def save_federation(
    path: PathLike,
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    client_ids: ArrayLike | None = None,
    client_names: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    val_logits: ArrayLike | None = None,
    val_labels: ArrayLike | None = None,
    val_client_ids: ArrayLike | None = None,
    compress: bool = True,
) -> None:
    """Write logits, labels and clients to a file for `load_federation`.

    The file appears whole or not at all: a crash leaves an older file as it was.

    Parameters
    ----------
    path : str or path-like
        File to write, by custom with the ending ``.npz``.
    logits : array-like of shape (n, n_classes) or (n,)
        Logits; one-dimensional for binary log-odds.
    labels : array-like of shape (n,)
        Column of the true class of each row.
    client_ids : array-like of shape (n,) or None, default=None
        Whole number or string for each row.
    client_names : array-like of str or None, default=None
        Names of clients 0, 1, ...
    class_names : array-like of str of shape (n_classes,) or None, default=None
        Names of the columns of `logits`.
    val_logits, val_labels, val_client_ids : array-like or None, default=None
        Further rows to calibrate on, in the same form.
    compress : bool, default=True
        Whether to compress the file.

    See Also
    --------
    load_federation : Read the file.

    Examples
    --------
    >>> import os, tempfile
    >>> from skfedcal.clients import save_federation
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_federation(os.path.join(folder, "model.npz"), [0.3, -1.2], [1, 0])
    ...     os.listdir(folder)
    ['model.npz']
    """
    given = {
        "logits": logits,
        "labels": labels,
        "client": client_ids,
        "client_names": client_names,
        CLASS_NAMES: class_names,
        "val_logits": val_logits,
        "val_labels": val_labels,
        "val_client": val_client_ids,
    }
    arrays = {
        name: _plain(read_array(value, name), name)
        for name, value in given.items()
        if value is not None
    }
    # The checks of the reader: what is written can be read.
    path = Path(os.path.realpath(as_path(path)))
    names = _client_names(arrays, path)
    main = _named_rows(arrays, "", names, path)
    if any(name.startswith("val_") for name in arrays):
        _check_columns(main, _rows(arrays, "val_", names, path), path)
    compress = check_flag("compress", compress)
    save = np.savez_compressed if compress else np.savez
    write_whole(path, lambda stream: save(stream, **arrays))


def _plain(array, name):
    """Turn strings held as objects into plain strings."""
    if array.dtype.kind in "OTS":
        if not all(isinstance(value, (str, bytes)) for value in array.ravel()):
            raise TypeError(f"{name} must hold numbers or strings only.")
        return array.astype(str)
    return array


def _check_names(arrays, found, path):
    """Say what is there when something needed is not."""
    if "labels" in arrays and any(name in arrays for name in SCORE_NAMES):
        return
    what = "arrays" if path.suffix.lower() in ("", ".npz") else "names"
    raise ValueError(
        f"{path} needs the {what} 'logits' (or 'proba') and 'labels'; "
        f"it has {sorted(found)}. Other names are given by columns (--columns), "
        "such as labels=y."
    )


def _first(arrays, prefix, names):
    """Name of the first array present, or None."""
    return next((prefix + name for name in names if prefix + name in arrays), None)


def _rows(arrays, prefix, names, path):
    """Check and pack the rows of one split."""
    score_name, label_name = _first(arrays, prefix, SCORE_NAMES), f"{prefix}labels"
    if score_name is None or label_name not in arrays:
        missing = label_name if score_name else f"{prefix}logits"
        raise ValueError(f"{path} has no array {missing!r}; it has {sorted(arrays)}.")
    is_logits = score_name.endswith("logits")
    read = check_logits if is_logits else log_proba
    logits = read(arrays[score_name], score_name, path)
    labels = check_labels(arrays[label_name], label_name, logits, path)
    client_ids, codes, n_clients = None, np.zeros(len(labels), dtype=np.int64), 1
    client_name = _first(arrays, prefix, CLIENT_NAMES)
    if client_name is not None:
        client_ids = check_clients(arrays[client_name], client_name, names, path)
        check_length(client_ids, client_name, logits, path)
        distinct, codes = np.unique(client_ids, return_inverse=True)
        n_clients = len(distinct)
        if names is not None:
            codes, n_clients = client_ids, len(names)
    return Bunch(
        clients=rows_by_client(codes, n_clients, logits, labels),
        logits=logits,
        labels=labels,
        client_ids=client_ids,
        client_names=names,
    )


def _check_columns(main, val, path):
    if main.logits.shape[1:] != val.logits.shape[1:]:
        raise ValueError(
            f"{path}: logits have shape {main.logits.shape} but val_logits have shape "
            f"{val.logits.shape}; the classes must be the same."
        )


def _client_names(arrays, path):
    """Names in the file, else the distinct clients if they are strings."""
    if "client_names" in arrays:
        names = arrays["client_names"]
        if names.ndim != 1 or not names.size:
            raise ValueError(f"{path}: client_names has shape {names.shape}, not (k,).")
        names = names.astype(str)
        if len(np.unique(names)) < len(names):
            raise ValueError(f"{path}: client_names has repeated names.")
        return names
    keys = (_first(arrays, prefix, CLIENT_NAMES) for prefix in ("", "val_"))
    texts = [arrays[k] for k in keys if k and arrays[k].dtype.kind in "US"]
    if not texts:
        return None
    return np.unique(np.concatenate([t.astype(str).ravel() for t in texts]))
