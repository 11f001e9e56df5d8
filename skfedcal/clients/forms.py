"""Every accepted form of `fit` arguments, as a validated `FederatedDataset`.

- Find out which label belongs to which column.
- Check rows of scores and convert them to logits, one column per class.
"""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from skfedcal._sklearn_compat import num_samples
from skfedcal.clients.arrays import (
    check_finite,
    check_proba,
    clear_errors,
    distinct,
    from_tensor,
    join,
    read_array,
    to_logits,
)
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.clients.row_ids import RowIds
from skfedcal.exceptions import LogitsWarning, PrivacyWarning

__all__ = [
    "ClassMap",
    "RawClients",
    "as_vector",
    "assume_labels_public",
    "check_scores",
    "drop_client_column",
    "make_dataset",
    "parse_clients",
    "read_scores",
    "resolve_classes",
    "split_client_column",
]

# Said in the report of a fit whose classes nobody gave.
LABELS_PUBLIC = "the set of class labels, read from y, is public"


@dataclass(frozen=True)
class ClassMap:
    """Labels and columns of a classifier.

    classes of shape (n_classes,): Sorted labels, as scikit-learn wants them.
    order of shape (n_classes,): Column of each entry of `classes`; columns keep the
        order of the model.
    """

    classes: np.ndarray
    order: np.ndarray

    def __len__(self):
        return len(self.classes)

    def columns(self, y):
        """Column of each label, in a small integer type."""
        small = np.int16 if len(self) < 2**15 else np.int32
        if y.dtype.kind in "iu" and self.in_order and self.plain:
            return y.astype(small)
        return self.order[np.searchsorted(self.classes, y)].astype(small)

    @classmethod
    def numbered(cls, n_classes, dtype):
        """Labels that are the column numbers."""
        numbers = np.arange(n_classes)
        labels = numbers.astype(dtype)
        # Any type holds 127; labels that occur may need fewer bits than all columns.
        if n_classes > 128 and (labels != numbers).any():
            wide = np.promote_types(dtype, np.min_scalar_type(n_classes - 1))
            labels = numbers.astype(wide)
        found = cls(labels, numbers)
        # What the properties below would find.
        vars(found).update(in_order=True, plain=dtype.kind in "iu")
        return found

    @cached_property
    def in_order(self):
        """Whether columns are in the order of `classes`."""
        return bool((self.order == np.arange(len(self))).all())

    @cached_property
    def plain(self):
        """Whether labels are the column numbers."""
        return self.classes.dtype.kind in "iu" and bool(
            (self.classes == np.arange(len(self))).all()
        )


def assume_labels_public(*, stacklevel):
    """Warn that private y decides which labels there are; say so for the report."""
    warnings.warn(
        "The class labels were read from y, which is private, so the result reveals "
        "which labels occur. Pass `classes`, the list of all labels.",
        PrivacyWarning,
        stacklevel=stacklevel,
    )
    return (LABELS_PUBLIC,)


def resolve_classes(y, classes, *, n_columns, names=None, private=False):
    """Map labels to columns.

    `classes` names the columns of X in their order. Without it, column names (of a
    dataframe) that are the labels do. Else the labels must settle the question: one
    label per column, labels that are column numbers, or one label more than columns
    (log-odds against the first class, as in a binary `decision_function`).

    With `private`, labels that are column numbers mean all columns, whichever of them
    occur: which do is a secret.
    """
    seen = _distinct(y, n_columns)
    if classes is None and _are_labels(names, seen):
        classes = names
    if classes is not None:
        return _given_classes(classes, seen, n_columns)
    n_classes = max(n_columns, 2)
    if (private or len(seen) > 1) and _are_column_numbers(seen, n_classes):
        return ClassMap.numbered(n_classes, seen.dtype)
    if len(seen) < 2:
        raise ValueError(
            f"y holds only one class ({seen.tolist()}). Pass `classes` if the others "
            "are only missing from the calibration data."
        )
    if len(seen) == n_columns > 1:
        return ClassMap(seen, np.arange(n_columns))
    if len(seen) == n_columns + 1:
        if n_columns > 1:
            warnings.warn(
                f"X has {n_columns} columns for {len(seen)} labels and is read as "
                f"log-odds against {seen[0]!r}. Pass `classes` to confirm.",
                LogitsWarning,
                stacklevel=6,
            )
        return ClassMap(seen, np.arange(len(seen)))
    raise ValueError(
        f"X has {n_columns} logit columns but y has {len(seen)} classes "
        f"({seen[:5].tolist()}). Pass `classes` with one label per column, in column "
        "order."
    )


def _distinct(y, n_columns):
    """Sorted distinct labels; counted, not sorted, where labels are column numbers."""
    if y.dtype.kind in "iu" and y.size:
        # Negative labels are large numbers without sign.
        whole = y.astype(np.int64, copy=False)
        if np.maximum.reduce(whole.view(np.uint64)) <= n_columns + 1:
            return np.bincount(whole).nonzero()[0].astype(y.dtype)
    with clear_errors("y"):
        check_classification_targets(y)
    return distinct(y, "y")


def _are_labels(names, seen):
    """Whether every label is the name of a column."""
    return names is not None and seen.dtype.kind in "OU" and set(seen) <= set(names)


def _are_column_numbers(seen, n_classes):
    if seen.dtype.kind not in "iuf" or not seen.size:
        return False
    whole = seen.dtype.kind != "f" or (seen == np.floor(seen)).all()
    return bool(whole and 0 <= seen[0] <= seen[-1] < n_classes)


def _given_classes(classes, seen, n_columns):
    classes = read_array(classes, "`classes`")
    if _are_all_numbers(classes, seen, n_columns):
        return ClassMap(classes.copy(), np.arange(len(classes)))
    classes = column_or_1d(classes)
    if (
        len(distinct(classes, "`classes`")) != len(classes)
        or len(classes) < 2
        or len(classes) not in (n_columns, n_columns + 1)
    ):
        raise ValueError(
            f"`classes` must hold {max(n_columns, 2)} distinct labels, one per column "
            f"of X; got {classes.tolist()}."
        )
    unknown = np.setdiff1d(seen, classes)
    if unknown.size:
        raise ValueError(f"y contains labels not in `classes`: {unknown[:5].tolist()}.")
    order = np.argsort(classes, kind="stable")
    return ClassMap(classes[order], order)


def _are_all_numbers(classes, seen, n_columns):
    """Whether the classes are 0, 1, ..., as they mostly are; checked in a tenth."""
    return (
        classes.ndim == 1
        and classes.dtype.kind in "iu"
        and seen.dtype.kind in "iu"
        and len(classes) >= 2
        and n_columns <= len(classes) <= n_columns + 1
        and (classes == np.arange(len(classes))).all()
        and (not seen.size or (seen[0] >= 0 and seen[-1] < len(classes)))
    )


_FLOATS = (np.float64, np.float32)


def split_client_column(X, client_ids):
    """Take `client_ids` out of the columns of a data frame, if it names one.

    Result X: Without that column.
    Result client_ids: Client of each row, as it was given or as the column has it.
    """
    if not isinstance(client_ids, str):
        return X, client_ids
    columns = getattr(X, "columns", None)
    if columns is None:
        raise ValueError(
            f"client_ids={client_ids!r} names a column, but X is of type "
            f"{type(X).__name__}; pass a data frame, or one id per row."
        )
    if list(columns).count(client_ids) != 1:
        raise ValueError(
            f"client_ids={client_ids!r} must name one column of X, which has "
            f"{list(columns)[:10]}."
        )
    return X.drop(columns=client_ids), X[client_ids]


def drop_client_column(estimator, X):
    """Leave out the column that named the clients in `fit`, if X has it."""
    column = getattr(estimator, "_client_column", None)
    if column is None or column not in getattr(X, "columns", ()):
        return X
    return X.drop(columns=column)


def check_scores(estimator, X, *, reset):
    """Validate rows of scores; 1-D input becomes one column."""
    return read_scores(estimator, X, reset=reset)[0]


def read_scores(estimator, X, *, reset, look=True):
    """Validated rows of scores, and whether all of them are known to be finite.

    look: Look for NaN and infinities in float matrices; otherwise the caller does.
    """
    if not reset:
        X = drop_client_column(estimator, X)
    if _is_clean(estimator, X, reset):
        if reset:
            estimator.n_features_in_ = X.shape[1]
        return X, look and check_finite(X)
    with clear_errors("X"):
        X = _as_table(estimator, from_tensor(X), reset)
        X = validate_data(
            estimator, X, dtype=_FLOATS, ensure_all_finite=False, reset=reset
        )
    return X, check_finite(X)


def _is_clean(estimator, X, reset):
    """Whether scikit-learn's checks, a tenth of a small fit, would change nothing."""
    return (
        type(X) is np.ndarray
        and X.dtype in _FLOATS
        and X.ndim == 2
        and X.size > 0
        and not hasattr(estimator, "feature_names_in_")
        and (reset or X.shape[1] == estimator.n_features_in_)
    )


def _as_table(estimator, X, reset):
    """One column of 1-D input; other input as it is."""
    if getattr(getattr(X, "dtype", None), "kind", None) in ("m", "M"):
        raise TypeError(f"X holds dates or durations ({X.dtype}); pass numbers.")
    if _is_1d(X):
        if not reset and estimator.n_features_in_ != 1:
            raise ValueError(
                f"Expected 2D array with {estimator.n_features_in_} columns, got 1D "
                "array instead. Reshape your data either using array.reshape(-1, 1) or "
                "array.reshape(1, -1)."
            )
        return np.reshape(read_array(X, "X"), (-1, 1))
    return X


def _is_1d(X):
    return getattr(X, "ndim", None) == 1 or (
        isinstance(X, (list, tuple))
        and len(X) > 0
        and not isinstance(X[0], (list, tuple))
        and np.ndim(X[0]) == 0
    )


@dataclass(frozen=True)
class RawClients:
    """Per-client inputs as the user gave them, not yet validated.

    A single X, y pair (scikit-learn's own form) has one entry, `from_arrays` set and
    possibly the client of each row in `row_ids`.
    """

    names: list
    X: list
    y: list
    weights: list | None = None
    row_ids: RowIds | None = None
    from_arrays: bool = False


def parse_clients(X, y=None, client_ids=None, sample_weight=None, *, what="logits"):
    """Sort out which of the accepted call forms was used.

    ======================================  =====================================
    call                                    meaning
    ======================================  =====================================
    ``fit([(Z1, y1), (Z2, y2)])``           list of (logits, labels) pairs
    ``fit({"a": (Z1, y1), ...})``           the same with named clients
    ``fit([Z1, Z2], [y1, y2])``             one list of logits, one of labels
    ``fit(Z, y)``                           a single client
    ``fit(Z, y, client_ids=ids)``           rows of ``Z`` grouped by ``ids``
    ======================================  =====================================

    Two lists are read as clients when the entries of `y` are themselves sequences. `X`
    is never inspected for this, so nested Python lists of numbers with a flat `y` stay
    a plain matrix. `what` says in messages what the rows of `X` are.
    """
    if y is None:
        return _from_pairs(X, client_ids, sample_weight, what)
    if isinstance(y, (list, tuple)) and len(y) and all(_is_vector(v) for v in y):
        return _from_two_lists(X, y, client_ids, sample_weight, what)
    return _from_arrays(X, y, client_ids, sample_weight)


def _is_vector(value):
    if type(value) is np.ndarray:
        return value.ndim > 0
    # A list may be ragged, of which numpy refuses to give the dimensions.
    return isinstance(value, (list, tuple)) or (
        not isinstance(value, (str, bytes)) and np.ndim(value) > 0
    )


def _is_pair(value):
    return isinstance(value, (list, tuple)) and len(value) == 2 and _is_vector(value[1])


def _are_pairs(values):
    """Whether all are pairs, of plain types; asked of all at once."""
    if not {*map(type, values)} <= {tuple, list} or {*map(len, values)} != {2}:
        return False
    labels = [value[1] for value in values]
    kinds = {*map(type, labels)}
    if kinds == {np.ndarray}:
        return 0 not in {own.ndim for own in labels}
    return kinds <= {list, tuple}


def _from_pairs(clients, client_ids, sample_weight, what):
    if isinstance(clients, Mapping):
        names, pairs = list(clients.keys()), list(clients.values())
    elif isinstance(clients, (list, tuple)):
        names, pairs = list(range(len(clients))), list(clients)
    else:
        raise ValueError(
            "This estimator requires y to be passed, but the target y is None. "
            f"Only a list of ({what}, labels) pairs may be given without y; got "
            f"{type(clients).__name__}."
        )
    if not pairs:
        raise ValueError(f"Found 0 clients; at least one ({what}, labels) pair needed.")
    if client_ids is not None:
        names = _check_names(client_ids, len(pairs))
    single = () if _are_pairs(pairs) else zip(names, pairs, strict=True)
    for name, pair in single:
        if not _is_pair(pair):
            hint = " Did you mean fit([(X, y)])?" if len(pairs) == 2 else ""
            raise ValueError(
                f"Client {name!r} must be a ({what}, labels) pair, got "
                f"{type(pair).__name__}. If X holds samples, this estimator requires "
                f"y to be passed, but the target y is None.{hint}"
            )
    weights = _weights_of_clients(sample_weight, len(pairs))
    return RawClients(names, [p[0] for p in pairs], [p[1] for p in pairs], weights)


def _from_two_lists(X, y, client_ids, sample_weight, what):
    if not isinstance(X, (list, tuple)) or len(X) != len(y):
        found = f"of length {len(X)}" if hasattr(X, "__len__") else "without a length"
        raise ValueError(
            f"y is a list of {len(y)} clients, so X must be a list of {len(y)} "
            f"arrays of {what}; got {type(X).__name__} {found}."
        )
    names = list(range(len(X)))
    if client_ids is not None:
        names = _check_names(client_ids, len(X))
    weights = _weights_of_clients(sample_weight, len(X))
    return RawClients(names, list(X), list(y), weights)


def _from_arrays(X, y, client_ids, sample_weight):
    if client_ids is not None:
        with clear_errors("client_ids"):
            client_ids = RowIds.read(client_ids)
            check_consistent_length(X, y)
            if len(client_ids) != len(y):
                raise ValueError(
                    f"client_ids has {len(client_ids)} entries for {len(y)} rows; pass "
                    "one id per row."
                )
    weights = None if sample_weight is None else [sample_weight]
    return RawClients([0], [X], [y], weights, row_ids=client_ids, from_arrays=True)


def as_vector(values, *, warn=False):
    """Return one-dimensional values; scikit-learn's check only where it can object."""
    return values if _is_vector_of_numbers(values) else column_or_1d(values, warn=warn)


def _is_vector_of_numbers(values):
    return (
        type(values) is np.ndarray and values.ndim == 1 and values.dtype.kind in "biuf"
    )


def _check_names(client_ids, n_clients):
    names = _listed(client_ids, "client_ids")
    if len(names) != n_clients:
        raise ValueError(
            f"client_ids names {len(names)} clients but {n_clients} were given; with a "
            "list of clients pass one id per client, not per sample."
        )
    if len(set(map(str, names))) != n_clients:
        raise ValueError(
            "client_ids contains a duplicate name; client names must be unique."
        )
    return names


def _listed(values, name):
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(
            f"{name} is of type {type(values).__name__}; with a list of clients pass a "
            "list with one entry per client."
        )
    if getattr(values, "shape", None) == ():
        raise TypeError(f"{name} is a single value; pass one entry per client.")
    return list(values)


def _weights_of_clients(sample_weight, n_clients):
    if sample_weight is None:
        return None
    weights = _listed(sample_weight, "sample_weight")
    if len(weights) != n_clients or not all(_is_vector(w) for w in weights):
        raise ValueError(
            f"With a list of {n_clients} clients pass sample_weight as a list of "
            f"{n_clients} arrays, one per client."
        )
    return weights


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

    `input_type` None leaves the columns of scores as they are.

    Result dataset: Labels are column numbers, columns in the order of the input.
    Result classes: Sorted labels and their columns.
    """
    column = client_ids if y is not None and isinstance(client_ids, str) else None
    estimator._client_column = column
    if y is not None:
        X, client_ids = split_client_column(X, client_ids)
    raw = parse_clients(X, y, client_ids, sample_weight)
    rows, labels, weights, sizes = _pool(raw)
    rows, finite = read_scores(estimator, rows, reset=True)
    classes = resolve_classes(
        labels,
        classes,
        n_columns=rows.shape[1],
        names=getattr(estimator, "feature_names_in_", None),
        private=private,
    )
    labels = classes.columns(labels)
    if input_type is not None:
        # A warning about the values of private rows would be a release of its own.
        if not private and not (finite and input_type == "logits"):
            _warn_about_zeros(rows, labels, len(classes), input_type)
        rows = to_logits(
            rows, len(classes), input_type=input_type, warn=not private, stacklevel=6
        )
    names, order = raw.names, None
    if raw.row_ids is not None:
        names, sizes, order = raw.row_ids.grouped()
    if order is not None:
        labels = labels[order]
        weights = None if weights is None else weights[order]
    if len(sizes) == 1:
        offsets = np.array((0, sizes[0]), dtype=np.int64)
    else:
        offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
        np.cumsum(sizes, out=offsets[1:])
    dataset = FederatedDataset(
        rows, labels, offsets, names, len(classes), weights=weights, order=order
    )
    return dataset, classes


def _warn_about_zeros(rows, labels, n_classes, input_type):
    """Say how many rows give their own label probability 0."""
    if input_type == "proba" and rows.shape[1] == n_classes - 1:
        rows = check_proba(rows, n_classes)
    if rows.shape[1] != n_classes:
        return
    impossible = 0 if input_type == "proba" else -np.inf
    n_zero = int((rows[np.arange(len(labels)), labels] == impossible).sum())
    if not n_zero:
        return
    use = (
        "-inf is kept: no temperature can correct it. Pass probabilities with "
        "input_type='proba', where zeros are replaced"
        if input_type == "logits"
        else "each is replaced by the lesser of exp(-12) and the least other "
        "probability of the row"
    )
    warnings.warn(
        f"{n_zero} of {len(labels)} rows give their true class probability 0; {use}.",
        LogitsWarning,
        stacklevel=6,
    )


def _pool(raw):
    """All rows, labels and weights in one array each, and the sizes of clients."""
    if raw.from_arrays:
        X, y = raw.X[0], raw.y[0]
        if not (_is_vector_of_numbers(y) and type(X) is np.ndarray):
            with clear_errors("y"):
                y = as_vector(from_tensor(y), warn=True)
        if not (type(X) is type(y) is np.ndarray and X.shape[:1] == y.shape):
            with clear_errors("y"):
                check_consistent_length(X, y)
        weights = (
            None if raw.weights is None else _check_weights(raw.weights[0], len(y))
        )
        return X, _check_y(y), weights, [len(y)]
    if raw.weights is None and (uniform := uniform_blocks(raw)) is not None:
        rows = join_blocks(uniform[0], "Logits")
        return rows, _check_y(join(raw.y, "Labels")), None, uniform[1]
    sizes = [n_labels(labels) for labels in raw.y]
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
    rows = join_blocks(blocks, "Logits")
    if names is not None:
        rows = type(raw.X[0])(rows, columns=names)
    pooled = np.concatenate(parts) if parts else None
    return rows, _check_y(column_or_1d(join(labels, "Labels"))), pooled, sizes


def n_labels(labels):
    """Number of labels; scikit-learn asks every list whether it is a table."""
    return len(labels) if type(labels) in (list, tuple) else num_samples(labels)


def uniform_blocks(raw):
    """Matrices that hold rows, and all sizes; None where clients need a check each.

    Clients are uniform if they hold plain arrays, matrices of one type and width and as
    many labels of one axis.
    """
    if {*map(type, raw.X), *map(type, raw.y)} != {np.ndarray}:
        return None
    first = raw.X[0]
    uniform = (
        first.ndim == 2
        and first.dtype.kind in "biuf"
        and {block.ndim for block in raw.X} == {2}
        and {labels.ndim for labels in raw.y} == {1}
        and {block.shape[1] for block in raw.X} == {first.shape[1]}
        and {block.dtype for block in raw.X} == {first.dtype}
        and len({labels.dtype for labels in raw.y}) == 1
    )
    if not uniform:
        return None
    # Numbers, not shapes: Python would collect garbage among as many tuples.
    sizes = list(map(len, raw.X))
    if sizes != list(map(len, raw.y)) or not any(sizes):
        return None
    return (raw.X if all(sizes) else [block for block in raw.X if len(block)]), sizes


def join_blocks(blocks, what):
    """One array over the rows of all blocks, without a copy where it can be."""
    rows = _adjacent(blocks)
    return join(blocks, what) if rows is None else rows


def client_rows(X, what, name, size):
    """Rows of one client as an array; `what` is 'logits' or 'features'."""
    block = read_array(X, f"The {what} of client {name!r}")
    if not block.ndim:
        raise TypeError(
            f"The {what} of client {name!r} are of type {type(X).__name__}; pass a "
            "dense array with one row per sample."
        )
    if block.dtype.kind in "mM":
        raise TypeError(
            f"The {what} of client {name!r} are dates or durations; pass numbers."
        )
    if len(block) != size:
        raise ValueError(
            f"Client {name!r} has {len(block)} rows of {what} but {size} labels."
        )
    return block


def check_column_names(X, name, columns):
    """Refuse a data frame whose columns are not those of the first client."""
    if columns is not None and list(getattr(X, "columns", ())) != list(columns):
        raise ValueError(
            f"Client {name!r} has different column names than the first client."
        )


def _check_client(raw, i, name, size, blocks, columns):
    """Logits of client `i` as a matrix that fits those before it."""
    block = client_rows(raw.X[i], "logits", name, size)
    block = block.reshape(-1, 1) if block.ndim == 1 and block.size else block
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
    if columns is not None:
        check_column_names(raw.X[i], name, columns)
    return block


def _adjacent(blocks):
    """One array over blocks that lie behind each other in memory, else None."""
    first, owner, dtype = blocks[0], _owner(blocks[0]), blocks[0].dtype
    address = first.__array_interface__["data"][0]
    for block in blocks:
        if (
            _owner(block) is not owner
            or block.__array_interface__["data"][0] != address
            or block.dtype != dtype
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
    return y.astype(np.float64) if y.dtype.kind == "f" and y.dtype.itemsize > 8 else y
