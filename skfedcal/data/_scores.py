"""Check rows of scores and bring them into the form of logits, one column a class."""

import numpy as np
from sklearn.utils.validation import validate_data

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
    check_finite(X)
    return X


def from_tensor(X):
    """Array of a torch tensor, possibly with a gradient or on a GPU; else X itself."""
    if not hasattr(X, "detach"):
        return X
    X = X.detach().cpu()
    # numpy has no bfloat16; float32 holds every value of it.
    return (X.float() if "bfloat16" in str(X.dtype) else X).numpy()


def _is_1d(X):
    return getattr(X, "ndim", None) == 1 or (
        isinstance(X, (list, tuple)) and len(X) > 0 and np.ndim(X[0]) == 0
    )
