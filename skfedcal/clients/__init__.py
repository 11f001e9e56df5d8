"""Clients: the accepted forms of input, and the one form that algorithms use."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.clients.dataset import FederatedDataset
    from skfedcal.clients.federation_files import load_federation, save_federation
    from skfedcal.clients.partitions import (
        DirichletPartitioner,
        GroupPartitioner,
        IIDPartitioner,
    )
    from skfedcal.clients.synthetic import make_federation

__all__ = [
    "DirichletPartitioner",
    "FederatedDataset",
    "GroupPartitioner",
    "IIDPartitioner",
    "load_federation",
    "make_federation",
    "save_federation",
]

__getattr__, __dir__, _names = attach(
    __name__,
    {
        "dataset": ["FederatedDataset"],
        "federation_files": ["load_federation", "save_federation"],
        "partitions": ["DirichletPartitioner", "GroupPartitioner", "IIDPartitioner"],
        "synthetic": ["make_federation"],
    },
)
