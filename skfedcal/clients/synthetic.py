"""Synthetic logits of a miscalibrated classifier whose true parameters are known."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np
from sklearn.utils import Bunch, check_scalar

from skfedcal._params import check_number
from skfedcal.clients.partitions import (
    DirichletPartitioner,
    as_generator,
    rows_by_client,
)

if TYPE_CHECKING:
    from skfedcal._typing import RandomState

__all__ = [
    "make_federation",
]

# Spread of the class means and of the bump on the main class. With the defaults of
# `make_federation` accuracy is about .73 at a confidence of about .85.
MEAN_SD = 0.5
BUMP_SD = 2.5

# Entries drawn at a time: float64 work arrays stay at a few megabytes.
CHUNK = 500_000

# A terabyte; what is less is tried.
MAX_NUMBERS = 2**37


def make_federation(
    n_clients: int = 100,
    n_samples: int = 10_000,
    n_classes: int = 10,
    *,
    temperature: float = 1.8,
    class_bias: float = 0.0,
    noise: float = 0.3,
    alpha: float | None = 0.1,
    balance: bool = False,
    min_size: int = 1,
    separation: float = 2.0,
    n_test: int = 10_000,
    dtype: type[np.float32] | type[np.float64] = np.float32,
    random_state: RandomState = None,
) -> Bunch:
    r"""Make logits and labels of clients with label skew.

    Parameters
    ----------
    n_clients : int, default=100
        Number of clients.
    n_samples : int, default=10_000
        Number of rows of all clients together.
    n_classes : int, default=10
        Number of classes, at least 2.
    temperature : float, default=1.8
        Factor between the true logits and the model's; above 1 the model is
        over-confident.
    class_bias : float, default=0.0
        Standard deviation of a constant that the model adds to each class.
    noise : float, default=0.3
        Standard deviation of noise that the model adds to each logit.
    alpha : float or None, default=0.1
        Dirichlet concentration of the label skew; None or ``inf`` for none.
    balance : bool, default=False
        Give all clients the same number of rows, within one.
    min_size : int, default=1
        Smallest number of rows of a client.
    separation : float, default=2.0
        How far, in true logits, the main class of a row stands out on average, on
        top of ``log(n_classes)``. Larger is easier: 0, 2 and 4 give an accuracy of
        about .56, .73 and .87 for 10 classes.
    n_test : int, default=10_000
        Number of further rows without client, drawn like all clients together. 0
        for none.
    dtype : {np.float32, np.float64}, default=np.float32
        Type of the logits.
    random_state : int, RandomState, Generator or None, default=None
        Seed of all draws. `n_test` does not change the other rows.

    Returns
    -------
    federation : :class:`~sklearn.utils.Bunch`
        With these entries:

        clients : list of (ndarray, ndarray)
            Logits and labels of each client, as `fit` takes them. Views of `logits`
            and `labels`.
        logits : ndarray of shape (n_samples, n_classes)
            Logits of the model, sorted by client.
        labels : ndarray of shape (n_samples,)
            Labels in ``range(n_classes)``.
        client_ids : ndarray of shape (n_samples,)
            Client of each row, in ``range(n_clients)``.
        test_logits : ndarray of shape (n_test, n_classes)
            Logits of the test rows.
        test_labels : ndarray of shape (n_test,)
            Labels of the test rows.
        temperature : float
            The parameter.
        class_bias : ndarray of shape (n_classes,)
            The constants added to the classes.

    See Also
    --------
    DirichletPartitioner : The split into clients.
    load_federation : Logits of a real model from a file.

    Notes
    -----
    True logits are :math:`z^*_{ic} = \mu_c + \epsilon_{ic} + 1[c = m_i] \max(u_i, 0)`
    with :math:`\mu_c \sim N(0, 1/4)`, :math:`\epsilon_{ic} \sim N(0, 1)`, a uniform
    main class :math:`m_i` and :math:`u_i \sim N(\log C + s, 2.5^2)`, :math:`s` the
    separation. Labels follow :math:`\mathrm{softmax}(z^*_i)`, and the model says
    :math:`z_i = T z^*_i + b + \eta_i`. Without bias and noise the log loss of
    :math:`\mathrm{softmax}(z_i / T)` cannot be improved, so `temperature` is what
    temperature scaling of all rows finds, up to sampling error.

    A row's client depends on its label alone: clients differ in how often a class
    occurs (label shift), not in what its logits look like.

    Examples
    --------
    >>> from skfedcal.clients import make_federation
    >>> federation = make_federation(5, 1000, 3, random_state=0)
    >>> federation.logits.shape, len(federation.clients)
    ((1000, 3), 5)
    >>> logits, labels = federation.clients[0]
    >>> logits.shape[1], len(logits) == len(labels)
    (3, True)
    """
    _check_params(n_samples, n_classes, n_test, temperature, class_bias, noise)
    n_samples, n_classes, n_test = int(n_samples), int(n_classes), int(n_test)
    dtype = _check_dtype(dtype)
    separation = check_number("separation", separation, -np.inf, np.inf, "neither")
    rng = as_generator(random_state)
    mean = MEAN_SD * rng.standard_normal(n_classes)
    bias = float(class_bias) * rng.standard_normal(n_classes)

    def draw(n_rows):
        truth = (mean, np.log(n_classes) + separation)
        return _draw_rows(n_rows, truth, (temperature, bias, noise), dtype, rng)

    logits, labels = draw(n_samples)
    partitioner = DirichletPartitioner(
        n_clients,
        np.inf if alpha is None else alpha,
        balance=balance,
        min_size=min_size,
        random_state=rng,
    )
    client_ids = partitioner.assign(labels)
    order = np.argsort(client_ids, kind="stable")
    logits, labels, client_ids = logits[order], labels[order], client_ids[order]
    test_logits, test_labels = draw(n_test)
    return Bunch(
        clients=rows_by_client(client_ids, n_clients, logits, labels),
        logits=logits,
        labels=labels,
        client_ids=client_ids,
        test_logits=test_logits,
        test_labels=test_labels,
        temperature=float(temperature),
        class_bias=bias,
    )


def _check_params(n_samples, n_classes, n_test, temperature, class_bias, noise):
    check_scalar(n_samples, "n_samples", Integral, min_val=1)
    check_scalar(n_classes, "n_classes", Integral, min_val=2)
    check_scalar(n_test, "n_test", Integral, min_val=0)
    if n_classes * max(n_samples, n_test) > MAX_NUMBERS:
        raise ValueError(
            f"{max(n_samples, n_test)} rows of {n_classes} classes are more than "
            f"{MAX_NUMBERS} numbers; pass fewer."
        )
    check_number("temperature", temperature, 0, np.inf, "neither")
    check_number("class_bias", class_bias, 0, np.inf, "left")
    check_number("noise", noise, 0, np.inf, "left")


def _check_dtype(dtype):
    try:
        dtype = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise TypeError(f"dtype={dtype!r} is not a numeric type: {error}") from error
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"dtype must be float32 or float64, got {dtype}.")
    return dtype


def _draw_rows(n_rows, truth, model, dtype, rng):
    """Draw logits and labels, a few rows at a time."""
    mean, bump = truth
    temperature, bias, noise = model
    logits = np.empty((n_rows, len(mean)), dtype=dtype)
    labels = np.empty(n_rows, dtype=np.int64)
    step = max(1, CHUNK // len(mean))
    for start in range(0, n_rows, step):
        part = slice(start, min(start + step, n_rows))
        true_logits = rng.standard_normal(logits[part].shape) + mean
        rows = np.arange(len(true_logits))
        main = rng.integers(len(mean), size=len(rows))
        height = rng.normal(bump, BUMP_SD, size=len(rows))
        true_logits[rows, main] += np.maximum(height, 0)
        # The largest of logits plus Gumbel noise is a draw from their softmax.
        gumbel = rng.gumbel(size=true_logits.shape)
        labels[part] = np.argmax(true_logits + gumbel, axis=1)
        with np.errstate(over="ignore", invalid="ignore"):
            extra = noise * rng.standard_normal(true_logits.shape)
            logits[part] = temperature * true_logits + bias + extra
    if not np.isfinite(logits).all():
        raise ValueError(
            f"temperature, class_bias, noise or separation is too large for {dtype}."
        )
    return logits, labels
