"""Data before and after a shift, with all densities known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral, Real

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.utils import Bunch, check_scalar

from skfedcal._params import as_number
from skfedcal._typing import RandomState
from skfedcal.data._partition import IIDPartitioner, as_generator, rows_by_client
from skfedcal.data._synthetic import MAX_NUMBERS
from skfedcal.datasets._resample import MAX_TILT, check_strength

__all__ = ["make_shift"]

KINDS = ("label", "covariate", "noise", "scale", "offset")


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
        Number of rows of all clients together, dealt in equal shares.
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
    check_scalar(separation, "separation", Real)
    if not abs(as_number("separation", separation)) < 1e6:
        raise ValueError(f"separation == {separation}, must be below 1e6.")
    sizes = map(int, (n_samples, n_train, n_test))
    n_numbers = (int(n_classes) + int(n_features)) * max(sizes)
    if n_numbers > MAX_NUMBERS:
        raise ValueError(f"These are {n_numbers} numbers; pass fewer rows or columns.")
    if not isinstance(kind, str):
        raise TypeError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}.")
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

    Parameters
    ----------
    means : ndarray of shape (n_classes, n_features)
        Mean of each class.
    variance : float
        Variance of each feature within a class.
    prior : ndarray of shape (n_classes,)
        Class probabilities.
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
    raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}.")
