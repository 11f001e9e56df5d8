"""Read what `fit` is given: clients in this process, or a way to reach them."""

import sys

from skfedcal.calibrators._setting import check_weights
from skfedcal.data._validate import make_dataset

__all__ = ["is_remote", "read_clients"]


def read_clients(estimator, X, y, client_ids, sample_weight, model):
    """Clients of a fit, and which label is which column.

    Returns
    -------
    clients : FederatedDataset or RemoteDataset
        Rows with labels as column numbers, or sites that read theirs so.
    classes : ClassMap
        Sorted labels and their columns.
    """
    if is_remote(X):
        clients, classes = X.read(estimator.classes, estimator.input_type)
        X.check_arguments(y=y, client_ids=client_ids, sample_weight=sample_weight)
        estimator.n_features_in_ = clients.n_columns
        return clients, classes
    clients, classes = make_dataset(
        estimator,
        X,
        y,
        client_ids,
        sample_weight=sample_weight,
        classes=estimator.classes,
        input_type=estimator.input_type,
        private=model.private,
    )
    check_weights(clients.weights, model)
    return clients, classes


def is_remote(X):
    """Whether `fit` was given sites that keep their rows."""
    # Who has remote clients has imported their module; others need not wait for it.
    module = sys.modules.get("skfedcal.federation._remote")
    return module is not None and isinstance(X, module.RemoteClients)
