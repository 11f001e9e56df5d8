"""Convert scores of a model to logits, one column per class.

Needs numpy only: a site reads its own file with it.
"""

import warnings

import numpy as np

from skfedcal import _logits
from skfedcal.exceptions import LogitsWarning

__all__ = [
    "INPUT_TYPES",
    "check_finite",
    "check_given",
    "check_proba",
    "to_logits",
    "usable_rows",
]

INPUT_TYPES = ("logits", "log_proba", "proba")

# Rows of probabilities may be this far from 1: float32 outputs, rounded files.
_SUM_TOLERANCE = 1e-3


def check_finite(X):
    """Refuse rows that are not scores; -inf is allowed next to a finite score."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(X.sum()):  # one pass, and nearly always the only one
            return
    low, high = X.min(), X.max()
    bad = np.isnan(low) or np.isnan(high) or np.isposinf(high)
    if bad or (np.isneginf(low) and not np.isfinite(_logits.row_max(X)).all()):
        raise ValueError("Input X contains NaN, +inf, or a row of only -inf.")


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

    Returns X itself where it has that form already.
    """
    if input_type == "proba":
        return _logits.from_proba(check_proba(X, n_classes))
    if input_type == "log_proba":
        _check_log_proba(X, n_classes)
    if X.shape[1] == n_classes - 1:
        # Log-odds against the first class: its own logit is zero.
        if n_classes == 2:
            return _logits.as_two_columns(X)
        return np.hstack([np.zeros_like(X[:, :1]), X])
    if warn and input_type == "logits" and _logits.rows_look_like_proba(X):
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
