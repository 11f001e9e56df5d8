"""Features that are in this process, or at sites that keep them."""

from __future__ import annotations

from typing import Any

import numpy as np

from skfedcal.calibrators._clients import is_remote
from skfedcal.data._features import FeatureClients, read_features


def read_rows(
    estimator: Any, X: Any, y: Any, client_ids: Any, model: Any
) -> FeatureClients:
    """Clients of a fit whose algorithm sites know."""
    if not is_remote(X):
        found: FeatureClients = read_features(
            estimator,
            X,
            y,
            client_ids,
            classes=estimator.classes,
            private=model.private,
        )
        return found
    X.check_arguments(y=y, client_ids=client_ids)
    classes = estimator.classes
    labels = None if classes is None else np.sort(classes)
    clients, known = X.read(labels, "logits", rows="features")
    estimator.n_features_in_ = clients.n_columns
    return FeatureClients(clients, known.classes)


def refuse_sites(X: Any) -> None:
    """Raise where clients train a network: code that sites do not have.

    Raises
    ------
    TypeError
        For `RemoteClients`.
    """
    if is_remote(X):
        raise TypeError(
            "RemoteClients answer with sums that they know; training a network is code "
            "of your own. Train with an app of your federation's framework, and pass "
            "RemoteClients to FedGaussianHead or to a calibrator."
        )
