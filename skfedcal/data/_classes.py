"""Find out which label belongs to which column."""

import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from skfedcal.data._arrays import clear_errors, distinct, read_array
from skfedcal.exceptions import LogitsWarning, PrivacyWarning

# Said in the report of a fit whose classes nobody gave.
LABELS_PUBLIC = "the set of class labels, read from y, is public"

__all__ = ["ClassMap", "assume_labels_public", "resolve_classes"]


@dataclass(frozen=True)
class ClassMap:
    """Labels and columns of a classifier.

    Parameters
    ----------
    classes : ndarray of shape (n_classes,)
        Sorted labels, as scikit-learn wants them.
    order : ndarray of shape (n_classes,)
        Column of each entry of `classes`; columns keep the order of the model.
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

    @property
    def in_order(self):
        """Whether columns are in the order of `classes`."""
        return bool((self.order == np.arange(len(self))).all())

    @property
    def plain(self):
        """Whether labels are the column numbers."""
        return self.classes.dtype.kind in "iu" and bool(
            (self.classes == np.arange(len(self))).all()
        )


def assume_labels_public(*, stacklevel):
    """Warn that private y decides which labels there are; say so for the report."""
    warnings.warn(
        "The class labels were read from private y; pass `classes` so that only "
        "public knowledge decides which classes there are.",
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
    if private and _are_column_numbers(seen, max(n_columns, 2)):
        n_classes = max(n_columns, 2)
        return ClassMap(np.arange(n_classes, dtype=seen.dtype), np.arange(n_classes))
    if len(seen) < 2:
        raise ValueError(
            f"y holds only one class ({seen.tolist()}). Pass `classes` if the others "
            "are only missing from the calibration data."
        )
    if len(seen) == n_columns > 1:
        return ClassMap(seen, np.arange(n_columns))
    n_classes = max(n_columns, 2)
    if _are_column_numbers(seen, n_classes):
        dtype = seen.dtype
        return ClassMap(np.arange(n_classes, dtype=dtype), np.arange(n_classes))
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
    if y.dtype.kind in "iu" and y.size and y.min() >= 0 and y.max() <= n_columns + 1:
        # bincount of older numpy refuses uint64; these labels are small.
        return np.flatnonzero(np.bincount(y.astype(np.int64))).astype(y.dtype)
    with clear_errors("y"):
        check_classification_targets(y)
    return distinct(y, "y")


def _are_labels(names, seen):
    """Whether every label is the name of a column."""
    return names is not None and seen.dtype.kind in "OU" and set(seen) <= set(names)


def _are_column_numbers(seen, n_classes):
    if seen.dtype.kind not in "iuf" or not seen.size:
        return False
    whole = (seen == np.floor(seen)).all()
    return bool(whole and 0 <= seen[0] <= seen[-1] < n_classes)


def _given_classes(classes, seen, n_columns):
    classes = column_or_1d(read_array(classes, "`classes`"))
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
