"""Check rows of scores and bring them into the form of logits, one column a class."""

import warnings

import numpy as np
from sklearn.utils.validation import validate_data

from skfedcal import _logits
from skfedcal.exceptions import LogitsWarning

__all__ = ["INPUT_TYPES", "check_proba", "check_scores", "from_tensor", "to_logits"]

INPUT_TYPES = ("logits", "log_proba", "proba")

_FLOATS = (np.float64, np.float32)

# Rows of probabilities may be this far from 1: float32 outputs, rounded files.
_SUM_TOLERANCE = 1e-3


def check_scores(estimator, X, *, reset):
    """Validate rows of scores; 1-D input becomes one column."""
    X = from_tensor(X)
    if _is_1d(X):
        if not reset and estimator.n_features_in_ != 1:
            raise ValueError(
                f"Expected 2D array with {estimator.n_features_in_} columns, got 1D "
                "array instead. Reshape your data either using array.reshape(-1, 1) or "
                "array.reshape(1, -1)."
            )
        X = np.reshape(np.asarray(X), (-1, 1))
    X = validate_data(estimator, X, dtype=_FLOATS, ensure_all_finite=False, reset=reset)
    # -inf means probability zero and is allowed next to a finite score.
    low, high = X.min(), X.max()
    bad = np.isnan(low) or np.isnan(high) or np.isposinf(high)
    if bad or (np.isneginf(low) and not np.isfinite(_logits.row_max(X)).all()):
        raise ValueError("Input X contains NaN, +inf, or a row of only -inf.")
    return X


def from_tensor(X):
    """Array of a torch tensor, possibly with a gradient or on a GPU; else X itself."""
    if not hasattr(X, "detach"):
        return X
    X = X.detach().cpu()
    # numpy has no bfloat16; float32 holds every value of it.
    return (X.float() if "bfloat16" in str(X.dtype) else X).numpy()


def to_logits(X, n_classes, *, input_type, warn=False, stacklevel=5):
    """Logits with one column per class, from whatever columns the user has.

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


def check_proba(X, n_classes):
    """Probabilities with one column per class; raises where X holds others."""
    if X.shape[1] == n_classes - 1:
        # Probabilities of all classes but the first.
        X = np.hstack([1 - X.sum(axis=1, keepdims=True), X])
    if X.min() < 0 or np.abs(X.sum(axis=1) - 1).max(initial=0) > _SUM_TOLERANCE:
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


def _is_1d(X):
    return getattr(X, "ndim", None) == 1 or (
        isinstance(X, (list, tuple)) and len(X) > 0 and np.ndim(X[0]) == 0
    )
