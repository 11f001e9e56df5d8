"""Convert arguments to arrays; errors name the argument.

numpy, pandas and torch each raise their own kinds of error on values that are none.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["clear_errors", "distinct", "from_tensor", "join", "read_array"]


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
    if isinstance(X, np.ma.MaskedArray):
        if np.ma.is_masked(X):
            raise ValueError("A masked array has masked entries; fill or drop them.")
        return X.data
    if not hasattr(X, "detach"):
        return X
    X = X.detach().cpu()
    # numpy has no bfloat16; float32 holds every value of it.
    return (X.float() if "bfloat16" in str(X.dtype) else X).numpy()
