"""Measurement shift: noise, gain, offset and missing columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import Bunch, check_array

from skfedcal._params import as_number
from skfedcal._typing import RandomState
from skfedcal.data._arrays import clear_errors, from_tensor, read_array
from skfedcal.data._partition import as_generator
from skfedcal.datasets._resample import check_size, check_strength

__all__ = ["feature_shift"]

KINDS = ("noise", "scale", "offset", "missing")


def feature_shift(
    X: ArrayLike,
    kind: str,
    strength: float = 0.5,
    *,
    columns: ArrayLike | None = None,
    fill: float | None = None,
    random_state: RandomState = None,
) -> Bunch:
    r"""Apply a measurement shift to the columns of a table.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Numeric features; NaN stays NaN.
    kind : {"noise", "scale", "offset", "missing"}
        "noise" adds normal noise of `strength` standard deviations of the column;
        "scale" multiplies the distance from the column mean by ``2**strength`` or
        ``2**-strength``; "offset" adds or takes away `strength` standard deviations;
        "missing" loses a share `strength` of the columns. Signs, and the columns that
        are lost, are drawn.
    strength : float, default=0.5
        From 0, no shift, to 1.
    columns : array-like of int, default=None
        Columns that may change. None is all of them.
    fill : float, default=None
        What stands in lost columns. None is the column's mean.
    random_state : int, RandomState, Generator or None, default=None
        Seed of all draws.

    Returns
    -------
    shifted : :class:`~sklearn.utils.Bunch`
        With these entries:

        X : ndarray of shape (n_samples, n_features)
            Shifted features; float32 stays float32.
        gain, offset, noise : ndarray of shape (n_features,)
            Factor, added constant and standard deviation of the noise of each column;
            1, 0 and 0 for columns that did not change.
        missing : ndarray of shape (n_features,), bool
            Columns that were lost.

    See Also
    --------
    covariate_shift : Other rows, measured as before.
    corrupt : The same for images.

    Notes
    -----
    With column mean :math:`\mu` the new value is :math:`\mu + g (x - \mu) + o + s\, n`,
    :math:`n \sim N(0, 1)`. The law of the labels given the features changes with it.

    Examples
    --------
    >>> from skfedcal.datasets import feature_shift
    >>> shifted = feature_shift([[0.0], [2.0]], "offset", 0.5, random_state=0)
    >>> abs(shifted.offset)
    array([0.5])
    """
    with clear_errors("X"):
        table = check_array(
            from_tensor(X),
            dtype=(np.float64, np.float32),
            ensure_all_finite="allow-nan",
            copy=True,
            input_name="X",
        )
    check_size(table)
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}.")
    fill = None if fill is None else as_number("fill", fill)
    strength = check_strength(strength)
    rng = as_generator(random_state)
    n_features = table.shape[1]
    chosen = _check_columns(columns, n_features)
    mean, spread = _moments(table)
    gain, offset, noise = (
        np.ones(n_features),
        np.zeros(n_features),
        np.zeros(n_features),
    )
    missing = np.zeros(n_features, dtype=bool)
    signs = rng.choice([-1.0, 1.0], size=len(chosen))
    if kind == "scale":
        gain[chosen] = 2 ** (strength * signs)
    elif kind == "offset":
        offset[chosen] = strength * signs * spread[chosen]
    elif kind == "noise":
        noise[chosen] = strength * spread[chosen]
    else:
        n_lost = int(strength * len(chosen) + 0.5)
        missing[rng.choice(chosen, size=n_lost, replace=False)] = True
    change = (gain - 1) * (table - mean) + offset
    if kind == "noise":
        change += noise * rng.standard_normal(table.shape)
    table += change.astype(table.dtype)
    table[:, missing] = mean[missing] if fill is None else fill
    return Bunch(X=table, gain=gain, offset=offset, noise=noise, missing=missing)


def _moments(table: NDArray) -> tuple[NDArray, NDArray]:
    """Mean and standard deviation of each column; 0 where it holds no number."""
    known = ~np.isnan(table)
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, table, 0).sum(axis=0, dtype=np.float64) / count
    square = np.where(known, (table - mean) ** 2, 0).sum(axis=0, dtype=np.float64)
    return mean, np.sqrt(square / count)


def _check_columns(columns: ArrayLike | None, n_features: int) -> NDArray[np.intp]:
    """Return distinct column numbers."""
    if columns is None:
        return np.arange(n_features)
    chosen = read_array(columns, "columns")
    whole = chosen.ndim == 1 and chosen.dtype.kind in "iu"
    if not whole or not np.isin(chosen, np.arange(n_features)).all():
        raise ValueError(
            f"columns must be a list of numbers from 0 to {n_features - 1}, got "
            f"{columns!r}."
        )
    return np.unique(chosen)
