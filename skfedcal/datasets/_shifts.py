"""Shifts of data: rows drawn anew, measured differently, or made up.

- Shift by resampling rows: other class frequencies, or another part of the space.
- Measurement shift: noise, gain, offset and missing columns.
- Data before and after a shift, with all densities known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, softmax
from scipy.stats import rankdata
from sklearn.utils import Bunch, check_array, check_scalar, column_or_1d

from skfedcal._params import as_number, check_choice, check_number
from skfedcal._sklearn_compat import num_samples
from skfedcal._typing import RandomState
from skfedcal.clients.arrays import clear_errors, distinct, from_tensor, read_array
from skfedcal.clients.partitions import IIDPartitioner, as_generator, rows_by_client
from skfedcal.clients.synthetic import MAX_NUMBERS

__all__ = [
    "covariate_shift",
    "feature_shift",
    "label_shift",
    "make_shift",
]

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
    return check_number("strength", strength, 0, 1)


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


FEATURE_KINDS = ("noise", "scale", "offset", "missing")


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
    check_choice("kind", kind, FEATURE_KINDS)
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


SHIFT_KINDS = ("label", "covariate", "noise", "scale", "offset")


def make_shift(
    n_clients: int = 50,
    n_samples: int = 1500,
    n_classes: int = 3,
    *,
    kind: str = "covariate",
    strength: float = 0.5,
    n_features: int = 4,
    separation: float = 1.5,
    n_train: int = 5000,
    n_test: int = 5000,
    random_state: RandomState = None,
) -> Bunch:
    r"""Make training rows, and rows of clients after a distribution shift.

    Parameters
    ----------
    n_clients : int, default=50
        Number of clients.
    n_samples : int, default=1500
        Number of rows of all clients together, in equal shares.
    n_classes : int, default=3
        Number of classes, at least 2.
    kind : {"label", "covariate", "noise", "scale", "offset"}, default="covariate"
        "label": other class frequencies. "covariate": other features, the same labels
        given the features. "noise", "scale", "offset": features that are measured with
        noise, with another unit, from another zero.
    strength : float, default=0.5
        From 0, no shift, to 1.
    n_features : int, default=4
        Number of columns.
    separation : float, default=1.5
        Standard deviation of the class means; that of a feature within a class is 1.
    n_train : int, default=5000
        Number of rows from before the shift.
    n_test : int, default=5000
        Number of further rows from after the shift, without client; 0 for none.
    random_state : int, RandomState, Generator or None, default=None
        Seed of all draws.

    Returns
    -------
    shift : :class:`~sklearn.utils.Bunch`
        With these entries:

        X_train, y_train : of n_train rows
            Rows from before the shift.
        clients : list of (ndarray, ndarray)
            Features and labels of each client, after the shift.
        X, y, client_ids : of n_samples rows
            The same in one piece, sorted by client.
        X_test, y_test : of n_test rows
            Further rows from after the shift.
        weights : ndarray of shape (n_train,)
            Importance weight of each training row: its density after the shift, over
            that before.
        train_prior, prior : ndarray of shape (n_classes,)
            Class probabilities before and after.
        train_proba, proba, test_proba : ndarray of shape (..., n_classes)
            Probability of each class given the features of `X_train` before the
            shift, and of `X` and `X_test` after it: the best possible answer.

    See Also
    --------
    label_shift, covariate_shift, feature_shift : Shifts of given data.
    corrupt : Shifts of images.

    Notes
    -----
    Before the shift class :math:`c` has frequency :math:`1/C` and features
    :math:`N(\mu_c, I)`. With strength :math:`s`, afterwards

    - label: frequencies :math:`(1-s)/C + s\,\pi_c`, :math:`\pi` flat Dirichlet;
    - covariate: the density of :math:`x` is multiplied by
      :math:`\exp(1.5\, s\, u^T x)`, up to a constant, :math:`u` a random direction.
      That makes the features :math:`N(\mu_c + 1.5\, s\, u, I)` and the
      frequencies proportional to :math:`\exp(1.5\, s\, u^T \mu_c)`;
    - noise: :math:`N(\mu_c, (1 + s^2) I)`;
    - scale: :math:`N(2^s \mu_c, 4^s I)`;
    - offset: :math:`N(\mu_c + s\, v, I)`, :math:`v` a vector of random signs.

    Examples
    --------
    >>> from skfedcal.datasets import make_shift
    >>> shift = make_shift(5, 100, kind="label", random_state=0)
    >>> len(shift.clients), shift.X.shape, shift.X_train.shape
    (5, (100, 4), (5000, 4))
    """
    check_scalar(n_samples, "n_samples", Integral, min_val=1)
    check_scalar(n_classes, "n_classes", Integral, min_val=2)
    check_scalar(n_features, "n_features", Integral, min_val=1)
    check_scalar(n_train, "n_train", Integral, min_val=1)
    check_scalar(n_test, "n_test", Integral, min_val=0)
    check_number("separation", separation, -1e6, 1e6, "neither")
    sizes = map(int, (n_samples, n_train, n_test))
    n_numbers = (int(n_classes) + int(n_features)) * max(sizes)
    if n_numbers > MAX_NUMBERS:
        raise ValueError(f"These are {n_numbers} numbers; pass fewer rows or columns.")
    if not isinstance(kind, str):
        raise TypeError(f"kind must be one of {', '.join(SHIFT_KINDS)}; got {kind!r}.")
    n_samples, n_train, n_test = int(n_samples), int(n_train), int(n_test)
    n_classes, n_features = int(n_classes), int(n_features)
    rng = as_generator(random_state)
    means = float(separation) * rng.standard_normal((n_classes, n_features))
    old = World(means, 1.0, np.full(n_classes, 1 / n_classes))
    new = _shifted(old, kind, check_strength(strength), rng)
    X_train, y_train = old.draw(n_train, rng)
    X, y = new.draw(n_samples, rng)
    X_test, y_test = new.draw(n_test, rng)
    client_ids = np.sort(IIDPartitioner(n_clients, random_state=rng).assign(y))
    rows = np.arange(n_train)
    ratio = new.log_joint(X_train) - old.log_joint(X_train)
    return Bunch(
        X_train=X_train,
        y_train=y_train,
        clients=rows_by_client(client_ids, n_clients, X, y),
        X=X,
        y=y,
        client_ids=client_ids,
        X_test=X_test,
        y_test=y_test,
        weights=np.exp(ratio[rows, y_train]),
        train_prior=old.prior,
        prior=new.prior,
        train_proba=softmax(old.log_joint(X_train), axis=1),
        proba=softmax(new.log_joint(X), axis=1),
        test_proba=softmax(new.log_joint(X_test), axis=1),
    )


@dataclass(frozen=True, slots=True)
class World:
    """Classes with normal features of one variance in all directions.

    means of shape (n_classes, n_features): Mean of each class.
    variance: Variance of each feature within a class.
    prior of shape (n_classes,): Class probabilities.
    """

    means: NDArray
    variance: float
    prior: NDArray

    def draw(self, n_rows: int, rng: np.random.Generator) -> tuple[NDArray, NDArray]:
        """Draw features and labels."""
        labels = rng.choice(len(self.prior), size=n_rows, p=self.prior)
        noise = rng.standard_normal((n_rows, self.means.shape[1]))
        return self.means[labels] + np.sqrt(self.variance) * noise, labels

    def log_joint(self, X: NDArray) -> NDArray:
        """Log density of features and class, up to a constant for all worlds."""
        distance = np.square(X[:, None, :] - self.means).sum(axis=2)
        volume = 0.5 * X.shape[1] * np.log(self.variance)
        with np.errstate(divide="ignore"):  # a class that the shift leaves out
            log_prior = np.log(self.prior)
        return log_prior - distance / (2 * self.variance) - volume


def _shifted(old: World, kind: str, strength: float, rng: np.random.Generator) -> World:
    """Return the world after a shift."""
    means, n_features = old.means, old.means.shape[1]
    if kind == "label":
        drawn = rng.dirichlet(np.ones(len(old.prior)))
        return replace(old, prior=(1 - strength) * old.prior + strength * drawn)
    if kind == "covariate":
        direction = rng.standard_normal(n_features)
        tilt = MAX_TILT * strength * direction / np.linalg.norm(direction)
        prior = softmax(np.log(old.prior) + means @ tilt)
        return replace(old, means=means + tilt, prior=prior)
    if kind == "noise":
        return replace(old, variance=1 + strength**2)
    if kind == "scale":
        return replace(old, means=2**strength * means, variance=4**strength)
    if kind == "offset":
        signs = rng.choice([-1.0, 1.0], size=n_features)
        return replace(old, means=means + strength * signs)
    raise ValueError(f"kind must be one of {', '.join(SHIFT_KINDS)}; got {kind!r}.")
