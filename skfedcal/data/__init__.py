"""Clients: the accepted forms of input, and the one form that algorithms use."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.data._dataset import FederatedDataset
    from skfedcal.data._load import load_federation, save_federation
    from skfedcal.data._partition import (
        DirichletPartitioner,
        GroupPartitioner,
        IIDPartitioner,
    )
    from skfedcal.data._synthetic import make_federation

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
        "_dataset": ["FederatedDataset"],
        "_load": ["load_federation", "save_federation"],
        "_partition": ["DirichletPartitioner", "GroupPartitioner", "IIDPartitioner"],
        "_synthetic": ["make_federation"],
    },
)
