"""Check rows of scores and convert them to logits, one column per class."""

import numpy as np
from sklearn.utils.validation import validate_data

from skfedcal.data._arrays import clear_errors, from_tensor, read_array
from skfedcal.data._to_logits import (
    INPUT_TYPES,
    check_finite,
    check_proba,
    to_logits,
)

__all__ = ["INPUT_TYPES", "check_proba", "check_scores", "from_tensor", "to_logits"]

_FLOATS = (np.float64, np.float32)


def check_scores(estimator, X, *, reset):
    """Validate rows of scores; 1-D input becomes one column."""
    if _is_clean(estimator, X, reset):
        if reset:
            estimator.n_features_in_ = X.shape[1]
        check_finite(X)
        return X
    with clear_errors("X"):
        X = _as_table(estimator, from_tensor(X), reset)
        X = validate_data(
            estimator, X, dtype=_FLOATS, ensure_all_finite=False, reset=reset
        )
    check_finite(X)
    return X


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
