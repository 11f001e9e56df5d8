"""Turn the arguments of `fit` into a validated `FederatedDataset`."""

from dataclasses import replace

import numpy as np
from sklearn.utils import check_consistent_length, column_or_1d

from skfedcal._sklearn_compat import num_samples
from skfedcal.data._arrays import clear_errors, distinct, from_tensor, join, read_array
from skfedcal.data._classes import resolve_classes
from skfedcal.data._dataset import FederatedDataset
from skfedcal.data._parse import as_vector, parse_clients
from skfedcal.data._scores import check_scores, to_logits

__all__ = ["make_dataset", "read_dataset"]


def make_dataset(
    estimator,
    X,
    y,
    client_ids=None,
    *,
    sample_weight=None,
    classes,
    input_type,
    private=False,
):
    """Validate `fit` arguments once, on the pooled rows, then cut them into clients.

    Returns
    -------
    dataset : FederatedDataset
        Labels are column numbers, columns in the order of the input.
    classes : ClassMap
        Sorted labels and their columns.
    """
    dataset, classes = read_dataset(
        estimator,
        X,
        y,
        client_ids,
        sample_weight=sample_weight,
        classes=classes,
        private=private,
    )
    # A warning about the values of private rows would be a release of its own.
    rows = to_logits(
        dataset.rows, len(classes), input_type=input_type, warn=not private
    )
    return replace(dataset, rows=rows), classes


def read_dataset(
    estimator, X, y, client_ids=None, *, sample_weight=None, classes, private=False
):
    """Do the same as `make_dataset` and leave the columns of scores as they are."""
    raw = parse_clients(X, y, client_ids, sample_weight)
    rows, labels, weights, sizes = _pool(raw)
    rows = check_scores(estimator, rows, reset=True)
    classes = resolve_classes(
        labels,
        classes,
        n_columns=rows.shape[1],
        names=getattr(estimator, "feature_names_in_", None),
        private=private,
    )
    labels = classes.columns(labels)
    names, order = raw.names, None
    if raw.row_ids is not None:
        names, sizes, order = _group(raw.row_ids)
    if order is not None:
        labels = labels[order]
        weights = None if weights is None else weights[order]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    dataset = FederatedDataset(
        rows, labels, offsets, names, len(classes), weights=weights, order=order
    )
    return dataset, classes


def _group(ids):
    """Names, sizes and packed order of clients; order None if rows are packed."""
    if ids.dtype.kind == "f" and np.isnan(ids).any():
        raise ValueError("client_ids contains NaN; every row needs a client.")
    if ids.dtype.kind == "O" and any(map(is_missing, ids)):
        raise ValueError("client_ids contains None or NaN; every row needs a client.")
    if ids.dtype.kind in "iu":
        codes, order = ids, None
        if (ids[1:] < ids[:-1]).any():
            span = int(ids.max()) - int(ids.min())
            # Sixteen bits are sorted by counting, several times as fast.
            codes = (ids - ids.min()).astype(np.uint16) if span < 2**16 else ids
            order = np.argsort(codes, kind="stable")
        packed = ids if order is None else ids[order]
        starts = np.flatnonzero(np.r_[True, packed[1:] != packed[:-1]])
        sizes = np.diff(np.r_[starts, len(ids)])
        return packed[starts].tolist(), sizes, order
    names, codes, sizes = distinct(
        ids, "client_ids", return_inverse=True, return_counts=True
    )
    sorted_already = (codes[1:] >= codes[:-1]).all()
    order = None if sorted_already else np.argsort(codes, kind="stable")
    return names.tolist(), sizes, order


def is_missing(value):
    """Whether an id is None, NaN or missing in the sense of pandas."""
    # pandas.NA is neither equal nor unequal to anything.
    other = value != value
    return value is None or not isinstance(other, (bool, np.bool_)) or bool(other)


def _pool(raw):
    """All rows, labels and weights in one array each, and the sizes of clients."""
    if raw.from_arrays:
        with clear_errors("y"):
            X, y = raw.X[0], as_vector(from_tensor(raw.y[0]), warn=True)
            check_consistent_length(X, y)
        weights = (
            None if raw.weights is None else _check_weights(raw.weights[0], len(y))
        )
        return X, _check_y(y), weights, [len(y)]
    sizes = [num_samples(labels) for labels in raw.y]
    names = getattr(raw.X[0], "columns", None)
    blocks: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    parts: list[np.ndarray] = []
    for i, name in enumerate(raw.names):
        block = _check_client(raw, i, name, sizes[i], blocks, names)
        if not sizes[i]:
            continue
        blocks.append(block)
        labels.append(read_array(raw.y[i], f"The labels of client {name!r}"))
        if raw.weights is not None:
            parts.append(_check_weights(raw.weights[i], sizes[i], name))
    if not blocks:
        raise ValueError("Found 0 samples: every client is empty.")
    rows = _adjacent(blocks)
    if rows is None:
        rows = join(blocks, "Logits")
    if names is not None:
        rows = type(raw.X[0])(rows, columns=names)
    pooled = np.concatenate(parts) if parts else None
    return rows, _check_y(column_or_1d(join(labels, "Labels"))), pooled, sizes


def _check_client(raw, i, name, size, blocks, columns):
    """Logits of client `i` as a matrix that fits those before it."""
    X = raw.X[i]
    block = read_array(X, f"The logits of client {name!r}")
    if not block.ndim:
        raise TypeError(
            f"The logits of client {name!r} are of type {type(X).__name__}; pass a "
            "dense array with one row per sample."
        )
    if block.dtype.kind in "mM":
        raise TypeError(
            f"The logits of client {name!r} are dates or durations; pass numbers."
        )
    block = block.reshape(-1, 1) if block.ndim == 1 and block.size else block
    if len(block) != size:
        raise ValueError(
            f"Client {name!r} has {len(block)} rows of logits but {size} labels."
        )
    if size and block.ndim != 2:
        raise ValueError(
            f"Client {name!r} has logits of shape {block.shape}; expected one row per "
            "sample and one column per class."
        )
    if size and blocks and block.shape[1] != blocks[0].shape[1]:
        raise ValueError(
            f"Client {name!r} has {block.shape[1]} logit columns, earlier clients have "
            f"{blocks[0].shape[1]}."
        )
    if columns is not None and list(getattr(X, "columns", ())) != list(columns):
        raise ValueError(
            f"Client {name!r} has different column names than the first client."
        )
    return block


def _adjacent(blocks):
    """One array over blocks that lie behind each other in memory, else None."""
    first, owner = blocks[0], _owner(blocks[0])
    address = first.__array_interface__["data"][0]
    for block in blocks:
        here = block.__array_interface__["data"][0]
        if (
            here != address
            or _owner(block) is not owner
            or block.dtype != first.dtype
            or not block.flags.c_contiguous
        ):
            return None
        address += block.nbytes
    shape = (sum(map(len, blocks)), first.shape[1])
    # Not first.strides: the stride of an axis of length 1 may be anything.
    strides = (shape[1] * first.itemsize, first.itemsize)
    return np.lib.stride_tricks.as_strided(first, shape, strides, writeable=False)


def _owner(array):
    """Return the object that holds the memory of `array`."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array if array.base is None else array.base


def _check_weights(weights, n_rows, client=None):
    """Non-negative float64 weights, one per row."""
    owner = "" if client is None else f" of client {client!r}"
    weights = read_array(weights, f"sample_weight{owner}", np.float64)
    if weights.ndim == 0:
        weights = np.full(n_rows, weights)
    if weights.shape != (n_rows,):
        raise ValueError(
            f"sample_weight{owner} has shape {weights.shape}, expected ({n_rows},): "
            "sample_weight.shape must be one weight per row."
        )
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(f"sample_weight{owner} must be finite and not negative.")
    # Sums over rows of weights times squared logits must stay finite.
    if weights.max(initial=0.0) > 1e100:
        raise ValueError(f"sample_weight{owner} is above 1e100; scale it to about 1.")
    return weights


def _check_y(y):
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise ValueError("Input y contains NaN or infinity.")
    # Labels are written to files, which have no longer floats.
    return y.astype(np.float64) if y.dtype == np.longdouble else y
