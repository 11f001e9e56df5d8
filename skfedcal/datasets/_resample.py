"""Shift by resampling rows: other class frequencies, or another part of the space."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri
from scipy.stats import rankdata
from sklearn.utils import Bunch, check_array, check_scalar, column_or_1d

from skfedcal._sklearn_compat import num_samples
from skfedcal._typing import RandomState
from skfedcal.data._arrays import clear_errors, distinct, from_tensor, read_array
from skfedcal.data._partition import as_generator

__all__ = ["covariate_shift", "label_shift"]

# Standard deviations by which strength 1 moves the mean of a normal projection. The
# effective number of rows falls by exp(-MAX_TILT**2), to a tenth.
MAX_TILT = 1.5

# Far below the root of the largest float.
LARGEST = 1e140


def label_shift(
    X: Any,
    y: ArrayLike,
    prior: ArrayLike | None = None,
    *,
    strength: float = 1.0,
    n_samples: int | None = None,
    random_state: RandomState = None,
) -> Bunch:
    r"""Draw rows so that classes have other frequencies.

    Parameters
    ----------
    X : array-like, sparse matrix or data frame of n rows
        Features, logits or images.
    y : array-like of shape (n,)
        Labels.
    prior : array-like of shape (n_classes,), default=None
        Class frequencies at strength 1, in the order of ``np.unique(y)``. None draws
        them from the flat Dirichlet law.
    strength : float, default=1.0
        From 0, the frequencies of `y`, to 1, those of `prior`; in between, the mix.
    n_samples : int, default=None
        Number of rows to draw. None is the number given.
    random_state : int, RandomState, Generator or None, default=None
        Seed of all draws.

    Returns
    -------
    shifted : :class:`~sklearn.utils.Bunch`
        With these entries:

        X, y : of n_samples rows
            Shifted rows; `X` is of the type given.
        indices : ndarray of shape (n_samples,)
            Where each of them is found in the rows given.
        prior : ndarray of shape (n_classes,)
            Class probabilities that were drawn from.
        weights : ndarray of shape (n,)
            Importance weight of each row given, with mean 1.
        classes : ndarray of shape (n_classes,)
            Labels in the order of `prior`.

    See Also
    --------
    covariate_shift : Other features, the same labels given the features.
    make_shift : Data with shift whose densities are known.

    Notes
    -----
    A label is drawn from the prior, then a row of that class, with replacement: given
    the class, features are distributed as before. The weight of a row is
    :math:`\pi'_y / \pi_y`.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal.datasets import label_shift
    >>> X, y = np.arange(8.0).reshape(8, 1), np.repeat([0, 1], 4)
    >>> shifted = label_shift(X, y, [0.25, 0.75], random_state=0)
    >>> shifted.weights
    array([0.5, 0.5, 0.5, 0.5, 1.5, 1.5, 1.5, 1.5])
    """
    labels, n_samples = _check_rows(X, y, n_samples)
    strength = check_strength(strength)
    rng = as_generator(random_state)
    classes, codes, counts = distinct(
        labels, "y", return_inverse=True, return_counts=True
    )
    source = counts / len(labels)
    wanted = _check_prior(prior, classes) if prior is not None else None
    if wanted is None:
        wanted = rng.dirichlet(np.ones(len(classes)))
    target = (1 - strength) * source + strength * wanted
    drawn = rng.choice(len(classes), size=n_samples, p=target)
    # Rows sorted by class: one of those that belong to the class drawn.
    order, first = np.argsort(codes, kind="stable"), np.cumsum(counts) - counts
    indices = order[first[drawn] + rng.integers(counts[drawn])]
    return Bunch(
        X=_take(X, indices),
        y=labels[indices],
        indices=indices,
        prior=target,
        weights=(target / source)[codes],
        classes=classes,
    )


def covariate_shift(
    X: ArrayLike,
    y: ArrayLike,
    strength: float = 0.5,
    *,
    direction: ArrayLike | None = None,
    n_samples: int | None = None,
    random_state: RandomState = None,
) -> Bunch:
    r"""Draw rows from one side of the feature space more often.

    Parameters
    ----------
    X : array-like of shape (n, n_features)
        Numeric features.
    y : array-like of shape (n,)
        Labels.
    strength : float, default=0.5
        From 0, no shift, to 1: the projection of the rows on `direction` moves by 1.5
        standard deviations.
    direction : array-like of shape (n_features,), default=None
        Where to, for columns of standard deviation 1. None draws a direction from the
        uniform law.
    n_samples : int, default=None
        Number of rows to draw. None is the number given.
    random_state : int, RandomState, Generator or None, default=None
        Seed of all draws.

    Returns
    -------
    shifted : :class:`~sklearn.utils.Bunch`
        With these entries:

        X, y : of n_samples rows
            Shifted rows.
        indices : ndarray of shape (n_samples,)
            Where each of them is found in the rows given.
        weights : ndarray of shape (n,)
            Importance weight of each row given, with mean 1.
        direction : ndarray of shape (n_features,)
            The direction, of length 1.
        n_effective : float
            Rows given that carry the weight, :math:`(\sum w)^2 / \sum w^2`.

    See Also
    --------
    label_shift : Other class frequencies, the same features given the class.
    feature_shift : Features that are measured differently.

    Notes
    -----
    Row i is drawn, with replacement, with a probability in proportion to its weight
    :math:`w_i \propto \exp(1.5\, s\, t_i)`, where :math:`t_i` is the normal score of
    the rank of its projection. Ranks keep a few far rows from taking all
    the weight. Labels come with their rows, so that their law given the features stays
    as it is.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal.datasets import covariate_shift
    >>> X = np.random.default_rng(0).normal(size=(5000, 2))
    >>> y = (X[:, 1] > 0).astype(int)
    >>> shifted = covariate_shift(X, y, 1.0, direction=[1, 0], random_state=0)
    >>> bool(abs(shifted.X[:, 0].mean() - 1.5) < 0.1)
    True
    """
    with clear_errors("X"):
        table: NDArray = check_array(
            from_tensor(X), dtype=(np.float64, np.float32), input_name="X"
        )
    check_size(table)
    labels, n_samples = _check_rows(table, y, n_samples)
    strength = check_strength(strength)
    rng = as_generator(random_state)
    spread = table.std(axis=0, dtype=np.float64)
    unit = _check_direction(direction, table.shape[1], rng)
    projection = (table / np.where(spread > 0, spread, 1)) @ unit
    scores = ndtri((rankdata(projection) - 0.5) / len(table))
    weights = np.exp(MAX_TILT * strength * scores)
    weights /= weights.mean()
    indices = rng.choice(len(table), size=n_samples, p=weights / len(table))
    return Bunch(
        X=table[indices],
        y=labels[indices],
        indices=indices,
        weights=weights,
        direction=unit,
        n_effective=float(len(table) ** 2 / np.sum(weights**2)),
    )


def check_size(table: NDArray) -> None:
    """Refuse numbers whose squares overflow."""
    if (np.abs(table, dtype=np.float64) > LARGEST).any():
        raise ValueError(f"X has values above {LARGEST:g}; scale the columns first.")


def check_strength(strength: float) -> float:
    """Return a strength from 0 to 1."""
    check_scalar(strength, "strength", Real)
    if not 0 <= strength <= 1:
        raise ValueError(f"strength must be from 0 to 1, got {strength}.")
    return float(strength)


def _check_rows(X: Any, y: ArrayLike, n_samples: int | None) -> tuple[NDArray, int]:
    """Return labels and the number of rows to draw."""
    with clear_errors("y"):
        labels = column_or_1d(from_tensor(y))
    n_rows = num_samples(X)
    if n_rows != len(labels):
        raise ValueError(f"X has {n_rows} rows but y has {len(labels)} labels.")
    if not n_rows:
        raise ValueError("X has no rows to draw from.")
    if n_samples is None:
        return labels, n_rows
    check_scalar(n_samples, "n_samples", Integral, min_val=1)
    return labels, int(n_samples)


def _check_prior(prior: ArrayLike, classes: NDArray) -> NDArray:
    probabilities = read_array(prior, "prior", np.float64)
    if probabilities.shape != classes.shape:
        raise ValueError(
            f"prior has shape {probabilities.shape} but y has {len(classes)} classes "
            f"({classes[:5].tolist()}). Pass one probability per class, in this order."
        )
    if not (probabilities >= 0).all() or abs(probabilities.sum() - 1) > 1e-6:
        raise ValueError(
            f"prior must hold probabilities that sum to 1, got {prior!r} with the sum "
            f"{probabilities.sum()}."
        )
    return probabilities / probabilities.sum()


def _check_direction(
    direction: ArrayLike | None, n_features: int, rng: np.random.Generator
) -> NDArray:
    """Return a direction of length 1, drawn where none is given."""
    if direction is None:
        direction = rng.standard_normal(n_features)
    vector = read_array(direction, "direction", np.float64)
    with np.errstate(over="ignore"):
        length = float(np.linalg.norm(vector.ravel()))
    if vector.shape != (n_features,) or not 0 < length < np.inf:
        raise ValueError(
            f"direction must hold {n_features} finite numbers, one per column of X and "
            f"not all 0; got {direction!r}."
        )
    return vector / length


def _take(X: Any, indices: NDArray) -> Any:
    """Select rows of a data frame, a sparse matrix or an array."""
    if hasattr(X, "iloc"):
        return X.iloc[indices]
    return X[indices] if hasattr(X, "shape") else read_array(X, "X")[indices]
