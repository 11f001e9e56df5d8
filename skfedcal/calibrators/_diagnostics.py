"""Looks at clients one by one; for simulations, where no privacy is at stake."""

import numpy as np
from sklearn.base import BaseEstimator

from skfedcal import algorithms
from skfedcal.data._scores import INPUT_TYPES
from skfedcal.data._validate import make_dataset

__all__ = ["client_temperatures"]


def client_temperatures(
    clients, y=None, *, client_ids=None, classes=None, input_type="logits"
):
    """Temperature that each client would fit to its own rows alone.

    It looks at clients one by one and adds no noise: use it on simulated federations,
    to see how far clients differ, not on data that are to be kept private. The more the
    labels are skewed, the larger is the variance of these temperatures.

    Parameters
    ----------
    clients : list of (logits, labels) pairs, list of arrays, or array-like
        Clients in any form that `fit` reads.
    y : array-like of shape (n_samples,), or list of these, default=None
        Labels; omitted when `clients` is a list of pairs.
    client_ids : array-like of shape (n_samples,), default=None
        Client that owns each row. None makes all rows one client. With a list of
        clients: one name per client.
    classes : array-like of shape (n_classes,), default=None
        Labels of the logit columns, in column order. None takes column names that are
        the labels, else the sorted labels of y.
    input_type : {'logits', 'log_proba', 'proba'}, default='logits'
        What the columns hold; never guessed.

    Returns
    -------
    temperatures : ndarray of shape (n_clients,)
        Optimum of the client's log loss in [0.05, 20], in the order of the clients
        (sorted, if they come as `client_ids`). NaN for clients without rows. A client
        whose rows are all right, or all wrong, has no optimum and ends at a bound, or
        on the way there where its loss is zero in floating point.

    See Also
    --------
    FedTempCalibrator : One temperature for all; ``solver='average'`` is the mean of
        these.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal import client_temperatures, make_federation
    >>> for alpha in (0.1, 0.5, None):
    ...     fed = make_federation(
    ...         50, class_bias=2.0, alpha=alpha, balance=True, random_state=0
    ...     )
    ...     print(alpha, round(np.var(client_temperatures(fed.clients)), 2))
    0.1 0.19
    0.5 0.08
    None 0.02
    """
    if not isinstance(input_type, str) or input_type not in INPUT_TYPES:
        raise ValueError(f"input_type={input_type!r}: pass one of {INPUT_TYPES}.")
    dataset, _ = make_dataset(
        BaseEstimator(), clients, y, client_ids, classes=classes, input_type=input_type
    )
    return np.where(dataset.filled, algorithms.local_temperatures(dataset), np.nan)
