"""Private, federated probability calibration with the scikit-learn API."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach
from skfedcal._version import __version__

if TYPE_CHECKING:
    from skfedcal.calibrators import (
        FedAutoCalibrator,
        FedBBQCalibrator,
        FedBiasTempCalibrator,
        FedBinCalibrator,
        FedMatrixCalibrator,
        FedMLPCalibrator,
        FedOPVectorCalibrator,
        FedTempCalibrator,
        FedVectorCalibrator,
        client_temperatures,
        load,
    )
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
    "FedAutoCalibrator",
    "FedBBQCalibrator",
    "FedBiasTempCalibrator",
    "FedBinCalibrator",
    "FedMLPCalibrator",
    "FedMatrixCalibrator",
    "FedOPVectorCalibrator",
    "FedTempCalibrator",
    "FedVectorCalibrator",
    "FederatedCalibratedClassifier",
    "FederatedDataset",
    "FederatedRunner",
    "GroupPartitioner",
    "IIDPartitioner",
    "LogitTransformer",
    "PrivacyLedger",
    "SecureAggregation",
    "__version__",
    "client_temperatures",
    "load",
    "load_federation",
    "make_federation",
    "save_federation",
]

__getattr__, __dir__, _names = attach(
    __name__,
    {
        "calibrators": [
            "FedAutoCalibrator",
            "FedBBQCalibrator",
            "FedBiasTempCalibrator",
            "FedBinCalibrator",
            "FedMLPCalibrator",
            "FedMatrixCalibrator",
            "FedOPVectorCalibrator",
            "FedTempCalibrator",
            "FedVectorCalibrator",
            "client_temperatures",
            "load",
        ],
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
