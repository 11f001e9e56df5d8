"""Private, federated probability calibration with the scikit-learn API."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach
from skfedcal._version import __version__

if TYPE_CHECKING:
    from skfedcal.calibrators import FedBinCalibrator, FedTempCalibrator, load
    from skfedcal.compose import FederatedCalibratedClassifier, LogitTransformer
    from skfedcal.data import (
        DirichletPartitioner,
        FederatedDataset,
        GroupPartitioner,
        IIDPartitioner,
        load_federation,
        make_federation,
        save_federation,
    )
    from skfedcal.federation import FederatedRunner
    from skfedcal.privacy import CentralDP, PrivacyLedger, SecureAggregation

__all__ = [
    "CentralDP",
    "DirichletPartitioner",
    "FedBinCalibrator",
    "FedTempCalibrator",
    "FederatedCalibratedClassifier",
    "FederatedDataset",
    "FederatedRunner",
    "GroupPartitioner",
    "IIDPartitioner",
    "LogitTransformer",
    "PrivacyLedger",
    "SecureAggregation",
    "__version__",
    "load",
    "load_federation",
    "make_federation",
    "save_federation",
]

__getattr__, __dir__, _names = attach(
    __name__,
    {
        "calibrators": ["FedBinCalibrator", "FedTempCalibrator", "load"],
        "compose": ["FederatedCalibratedClassifier", "LogitTransformer"],
        "data": [
            "DirichletPartitioner",
            "FederatedDataset",
            "GroupPartitioner",
            "IIDPartitioner",
            "load_federation",
            "make_federation",
            "save_federation",
        ],
        "federation": ["FederatedRunner"],
        "privacy": ["CentralDP", "PrivacyLedger", "SecureAggregation"],
    },
)
