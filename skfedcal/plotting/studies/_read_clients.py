"""Clients shown separately; for simulations on data that are not private."""

from __future__ import annotations

from typing import Any

from sklearn.base import BaseEstimator

from skfedcal.data._classes import ClassMap
from skfedcal.data._dataset import FederatedDataset
from skfedcal.data._to_logits import INPUT_TYPES
from skfedcal.data._validate import make_dataset
from skfedcal.metrics._validation import check_choice


def read_clients(
    clients: Any,
    y: Any,
    client_ids: Any,
    classes: Any,
    input_type: str = "logits",
) -> tuple[FederatedDataset, ClassMap]:
    """Clients in any form that `fit` reads, and their classes."""
    check_choice("input_type", input_type, INPUT_TYPES)
    found: tuple[FederatedDataset, ClassMap] = make_dataset(
        BaseEstimator(), clients, y, client_ids, classes=classes, input_type=input_type
    )
    return found
