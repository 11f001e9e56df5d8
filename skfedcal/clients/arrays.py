"""Arrays and logits from whatever a caller holds; numpy only.

Convert arguments to arrays; errors name the argument. numpy, pandas and torch each
raise their own kinds of error on values that are not arrays.

Convert scores of a model to logits, one column per class. Needs numpy only: a site
reads its own file with it.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal import _compiled, _numerics
from skfedcal.exceptions import LogitsWarning

__all__ = [
    "INPUT_TYPES",
    "check_finite",
    "check_given",
    "check_proba",
    "clear_errors",
    "distinct",
    "from_tensor",
    "join",
    "read_array",
    "to_logits",
    "usable_rows",
]


@contextmanager
def clear_errors(what: str) -> Iterator[None]:
    """Pass on scikit-learn's messages and prefix those of others with `what`."""
    try:
        # scikit-learn compares labels with whole numbers: 1e308 is none, quietly.
        with np.errstate(invalid="ignore", over="ignore"):
            yield
    except MemoryError:
        raise
    except Exception as error:
        if type(error) in (ValueError, TypeError):
            raise
        raise ValueError(f"{what} cannot be read as an array: {error}") from error


def read_array(value: Any, what: str, dtype: Any = None) -> NDArray[Any]:
    """Array of `value`; raises an error that names `what` if it cannot be converted."""
    try:
        array = np.asarray(from_tensor(value))
        if dtype is None:
            return array
        if array.dtype.kind not in "biufOUS":
            raise TypeError(f"it holds values of type {array.dtype}")
        return array.astype(dtype, copy=False)
    except MemoryError:
        raise
    except Exception as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        numbers = "" if dtype is None else " of numbers"
        raise kind(f"{what} cannot be read as an array{numbers}: {error}") from error


def join(parts: Sequence[NDArray[Any]], what: str) -> NDArray[Any]:
    """Concatenate what clients have."""
    try:
        return np.concatenate(parts)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{what} of the clients cannot be concatenated: {error}"
        ) from error


def distinct(values: Any, what: str, **options: Any) -> Any:
    """Sorted distinct values, as `numpy.unique`."""
    try:
        return np.unique(values, **options)
    except (TypeError, ValueError) as error:
        kinds = sorted({type(value).__name__ for value in np.ravel(values)})
        raise TypeError(
            f"{what} mixes {kinds}, which cannot be sorted; pass all as strings."
        ) from error


def from_tensor(X: Any) -> Any:
    """Array of a torch tensor, possibly with a gradient or on a GPU; else X itself.

    Refuses masked entries: everything behind would use what the mask hides.
    """
    if type(X) in (list, tuple, np.ndarray):  # to look for an attribute takes longer
        return X
    if isinstance(X, np.ma.MaskedArray):
        if np.ma.is_masked(X):
            raise ValueError("A masked array has masked entries; fill or drop them.")
        return X.data
    if not hasattr(X, "detach"):
        return X
    X = X.detach().cpu()
    # numpy has no bfloat16; float32 holds every value of it.
    return (X.float() if "bfloat16" in str(X.dtype) else X).numpy()


INPUT_TYPES = ("logits", "log_proba", "proba")

# Rows of probabilities may be this far from 1: float32 outputs, rounded files.
_SUM_TOLERANCE = 1e-3


def check_finite(X):
    """Refuse rows that are not scores; -inf is allowed next to a finite score.

    Result finite: Whether no entry can be -inf; False also where sums overflow.
    """
    if _compiled.all_finite(X):  # one pass, and nearly always the only one
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        if isfinite(X.sum()):
            return True
    low, high = X.min(), X.max()
    bad = np.isnan(low) or np.isnan(high) or np.isposinf(high)
    if bad or (np.isneginf(low) and not np.isfinite(_numerics.row_max(X)).all()):
        rows = X.reshape(len(X), -1)
        wrong = (np.isnan(rows) | np.isposinf(rows)).any(axis=1)
        wrong |= np.isneginf(rows).all(axis=1)
        raise ValueError(
            "Input X contains NaN, +inf, or a row of only -inf, in "
            f"{np.count_nonzero(wrong)} of {len(rows)} rows (first in row "
            f"{int(wrong.argmax())}, counted from 0). Leave such rows out, or correct "
            "them."
        )
    return False


def usable_rows(X, n_classes, *, input_type):
    """Which rows are scores of the kind that `input_type` names.

    All of them exactly where `check_finite` and `to_logits` (or `check_given`) accept
    `X`. For sites, where one row must not decide over the others.
    """
    X = np.asarray(X)
    with np.errstate(all="ignore"):
        top = X.max(axis=1, initial=-np.inf)
        usable = ~np.isnan(X).any(axis=1) & np.isfinite(top)
        if input_type == "proba" and X.shape[1] == n_classes - 1 == 1:
            return usable & (X[:, 0] >= 0) & (X[:, 0] <= 1)
        if input_type == "proba":
            if X.shape[1] == n_classes - 1:
                X = np.hstack([1 - X.sum(axis=1, keepdims=True), X])
            near = np.abs(X.sum(axis=1) - 1) <= _SUM_TOLERANCE
            return usable & (X >= 0).all(axis=1) & near
        if input_type == "log_proba":
            if X.shape[1] != n_classes:
                return np.zeros(len(X), dtype=bool)
            near = np.abs(np.exp(X).sum(axis=1) - 1) <= _SUM_TOLERANCE
            return usable & (top <= _SUM_TOLERANCE) & near
    return usable


def to_logits(X, n_classes, *, input_type, warn=False, stacklevel=5):
    """Logits with one column per class, from the columns that the user has.

    Returns X itself where it has that form already. A probability of exactly 0 is below
    the resolution of its model, so it is replaced; a logit of -inf is a class that
    cannot be, and stays.
    """
    if input_type == "proba":
        return _numerics.from_proba(check_proba(X, n_classes))
    if input_type == "log_proba":
        _check_log_proba(X, n_classes)
        zero = np.isneginf(X)
        return _numerics.fill_zeros(X.copy(), zero) if zero.any() else X
    if X.shape[1] == n_classes - 1:
        # Log-odds against the first class: its own logit is zero.
        if n_classes == 2:
            return _numerics.as_two_columns(X)
        return np.hstack([np.zeros_like(X[:, :1]), X])
    if warn and input_type == "logits" and _numerics.rows_look_like_proba(X):
        warnings.warn(
            "All rows of X are non-negative and sum to 1, so X looks like "
            "probabilities, but input_type='logits'. Pass input_type='proba', or take "
            "the logarithm first.",
            LogitsWarning,
            stacklevel=stacklevel,
        )
    return X


def check_given(X, n_classes, *, input_type, warn=False, stacklevel=5):
    """Raise, or warn, where rows are not what `input_type` says; they stay as given."""
    if input_type == "proba" and X.shape[1] == 1 and n_classes == 2:
        if X.min() < 0 or X.max() > 1:
            raise ValueError(
                "input_type='proba' needs scores between 0 and 1; pass "
                "input_type='logits' for log-odds."
            )
    elif input_type == "proba":
        check_proba(X, n_classes)
    elif X.shape[1] == n_classes or input_type == "log_proba":
        to_logits(
            X, n_classes, input_type=input_type, warn=warn, stacklevel=stacklevel + 1
        )
    elif warn and X.shape[1] == 1 and X.min() >= 0 and X.max() <= 1:
        warnings.warn(
            "All scores are between 0 and 1, so they look like probabilities, but "
            "input_type='logits'. Pass input_type='proba'.",
            LogitsWarning,
            stacklevel=stacklevel,
        )


def check_proba(X, n_classes):
    """Probabilities with one column per class; raises where X holds others."""
    if X.shape[1] == n_classes - 1:
        # Probabilities of all classes but the first.
        with np.errstate(over="ignore", invalid="ignore"):
            X = np.hstack([1 - X.sum(axis=1, keepdims=True), X])
    with np.errstate(over="ignore", invalid="ignore"):
        off = np.abs(X.sum(axis=1) - 1).max(initial=0)
    # Written so that NaN fails as well.
    if not (X.min() >= 0 and off <= _SUM_TOLERANCE):
        raise ValueError(
            "input_type='proba' needs non-negative rows that sum to 1; pass "
            "input_type='logits' for unnormalised scores."
        )
    return X


def _check_log_proba(X, n_classes):
    if X.shape[1] == n_classes - 1:
        raise ValueError(
            f"input_type='log_proba' needs one column per class, got {X.shape[1]} for "
            f"{n_classes} classes; pass input_type='logits' for log-odds."
        )
    if X.max() > _SUM_TOLERANCE or (
        np.abs(np.exp(X).sum(axis=1) - 1).max(initial=0) > _SUM_TOLERANCE
    ):
        raise ValueError(
            "input_type='log_proba' needs rows whose exponentials sum to 1; pass "
            "input_type='logits' for unnormalised scores."
        )
