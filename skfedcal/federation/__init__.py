"""Rounds over clients, on any engine."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.federation._backends import Backend, InProcess, Joblib
    from skfedcal.federation._endpoint import PartialSum, Request, respond
    from skfedcal.federation._run import RoundRecord
    from skfedcal.federation._runner import FederatedRunner

__all__ = [
    "Backend",
    "FederatedRunner",
    "InProcess",
    "Joblib",
    "PartialSum",
    "Request",
    "RoundRecord",
    "respond",
]

__getattr__, __dir__, _names = attach(
    __name__,
    {
        "_backends": ["Backend", "InProcess", "Joblib"],
        "_endpoint": ["PartialSum", "Request", "respond"],
        "_run": ["RoundRecord"],
        "_runner": ["FederatedRunner"],
    },
)
