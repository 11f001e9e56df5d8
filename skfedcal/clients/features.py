"""Clients of raw features and labels -> `FederatedDataset`; for model training."""

from dataclasses import dataclass

import numpy as np
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from skfedcal.clients.arrays import (
    clear_errors,
    distinct,
    from_tensor,
    join,
    read_array,
)
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.clients.forms import (
    as_vector,
    assume_labels_public,
    check_column_names,
    client_rows,
    n_labels,
    parse_clients,
    uniform_blocks,
)

__all__ = [
    "check_features",
    "read_features",
]

_FLOATS = (np.float64, np.float32)

# Far below the root of the largest float: covariances have squares.
_LARGEST = 1e140


@dataclass(frozen=True)
class FeatureClients:
    """Validated clients.

    dataset: Labels are positions in `classes`.
    classes of shape (n_classes,): Sorted labels.
    assumptions: What must be public for a guarantee to hold.
    """

    dataset: FederatedDataset
    classes: np.ndarray
    assumptions: tuple[str, ...] = ()


def read_features(
    estimator, X, y=None, client_ids=None, *, classes=None, private=False, **checks
):
    """Validate the arguments of `fit` once, on the pooled rows, and cut into clients.

    Takes the forms that `parse_clients` lists. `classes` may hold labels that no row
    has. Further arguments go to scikit-learn's `validate_data`, such as
    ``allow_nd=True`` for images.
    """
    raw = parse_clients(X, y, client_ids, what="features")
    rows, labels, sizes = _pool(raw, estimator)
    rows = check_features(estimator, rows, reset=True, **checks)
    known = _known_classes(labels, classes)
    assumed = private and classes is None
    assumptions = assume_labels_public(stacklevel=5) if assumed else ()
    labels = np.searchsorted(known, labels)
    names, order = raw.names, None
    if raw.row_ids is not None:
        names, sizes, order = raw.row_ids.grouped()
    if order is not None:
        labels = labels[order]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    dataset = FederatedDataset(rows, labels, offsets, names, len(known), order=order)
    return FeatureClients(dataset, known, assumptions)


def check_features(estimator, X, *, reset, **checks):
    """Validate rows of features; a float type is preserved."""
    kind = getattr(getattr(X, "dtype", None), "kind", None)
    if kind in ("m", "M"):
        raise TypeError(f"X holds dates or durations ({X.dtype}); pass numbers.")
    with clear_errors("X"):
        rows = validate_data(
            estimator, from_tensor(X), **{"dtype": _FLOATS, "reset": reset, **checks}
        )
    if rows.dtype.kind == "O":  # whole numbers beyond 64 bits
        rows = read_array(rows, "X", np.float64)
    # Two numbers, as the absolute values of all rows would take their memory again.
    if rows.dtype.kind == "f" and max(float(rows.max()), -float(rows.min())) > _LARGEST:
        raise ValueError(f"X has values above {_LARGEST:g}; scale the features first.")
    return rows


def _pool(raw, estimator):
    """All rows and labels in one array each, and the sizes of clients."""
    if raw.from_arrays:
        with clear_errors("y"):
            X, y = from_tensor(raw.X[0]), as_vector(from_tensor(raw.y[0]), warn=True)
            check_consistent_length(X, y)
        return X, _check_y(y, estimator), [len(y)]
    if (uniform := uniform_blocks(raw)) is not None:
        rows = join(uniform[0], "Features")
        return rows, _check_y(join(raw.y, "Labels"), estimator), uniform[1]
    sizes = [n_labels(labels) for labels in raw.y]
    columns = getattr(raw.X[0], "columns", None)
    blocks: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for i, name in enumerate(raw.names):
        block = _check_client(raw.X[i], name, sizes[i], blocks, columns)
        if sizes[i]:
            blocks.append(block)
            labels.append(read_array(raw.y[i], f"The labels of client {name!r}"))
    if not blocks:
        raise ValueError("Found 0 samples: every client is empty.")
    rows = join(blocks, "Features")
    if columns is not None:
        rows = type(raw.X[0])(rows, columns=columns)
    return rows, _check_y(column_or_1d(join(labels, "Labels")), estimator), sizes


def _check_client(X, name, size, blocks, columns):
    """Features of one client, of the shape of those before it."""
    block = client_rows(X, "features", name, size)
    if size and blocks and block.shape[1:] != blocks[0].shape[1:]:
        raise ValueError(
            f"Client {name!r} has rows of shape {block.shape[1:]}, earlier clients "
            f"have {blocks[0].shape[1:]}."
        )
    check_column_names(X, name, columns)
    return block


def _check_y(y, estimator):
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise ValueError("Input y contains NaN or infinity.")
    with clear_errors("y"):
        check_classification_targets(y)
    if not len(y):
        raise ValueError(
            "Found array with 0 sample(s) while a minimum of 1 is required by "
            f"{type(estimator).__name__}."
        )
    return y


def _known_classes(labels, classes):
    """Sorted labels, given or seen."""
    seen = distinct(labels, "y")
    if classes is None:
        if len(seen) < 2:
            raise ValueError(
                f"y holds only one class ({seen.tolist()}). Pass `classes` if the "
                "others are only missing from these rows."
            )
        return seen
    known = distinct(column_or_1d(read_array(classes, "`classes`")), "`classes`")
    if len(known) != len(classes) or len(known) < 2:
        raise ValueError(
            "`classes` must hold at least two labels, each once; got "
            f"{np.asarray(classes).tolist()}."
        )
    unknown = np.setdiff1d(seen, known)
    if unknown.size:
        raise ValueError(f"y contains labels not in `classes`: {unknown[:5].tolist()}.")
    return known
