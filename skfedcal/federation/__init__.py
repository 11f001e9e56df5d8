"""Rounds over clients, on any engine."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.federation._backends import Backend, InProcess, Joblib
    from skfedcal.federation._collect import Collected, collect
    from skfedcal.federation._endpoint import PartialSum, Request, respond
    from skfedcal.federation._flower import FlowerTransport, make_client_app
    from skfedcal.federation._history import RoundHistory
    from skfedcal.federation._in_process import InProcessTransport
    from skfedcal.federation._messages import MessageBackend, Transport
    from skfedcal.federation._policy import SitePolicy
    from skfedcal.federation._reading import Reading, SiteRows
    from skfedcal.federation._remote import RemoteClients
    from skfedcal.federation._roster import Roster, SiteKey
    from skfedcal.federation._run import RoundRecord
    from skfedcal.federation._runner import FederatedRunner
    from skfedcal.federation._self_test import find_faulty_sites
    from skfedcal.federation._site import Site
    from skfedcal.federation._tree import Aggregators, TreeBackend

__all__ = [
    "Aggregators",
    "Backend",
    "Collected",
    "FederatedRunner",
    "FlowerTransport",
    "InProcess",
    "InProcessTransport",
    "Joblib",
    "MessageBackend",
    "PartialSum",
    "Reading",
    "RemoteClients",
    "Request",
    "Roster",
    "RoundHistory",
    "RoundRecord",
    "Site",
    "SiteKey",
    "SitePolicy",
    "SiteRows",
    "Transport",
    "TreeBackend",
    "collect",
    "find_faulty_sites",
    "make_client_app",
    "respond",
]

__getattr__, __dir__, _names = attach(
    __name__,
    {
        "_backends": ["Backend", "InProcess", "Joblib"],
        "_collect": ["Collected", "collect"],
        "_endpoint": ["PartialSum", "Request", "respond"],
        "_flower": ["FlowerTransport", "make_client_app"],
        "_history": ["RoundHistory"],
        "_in_process": ["InProcessTransport"],
        "_messages": ["MessageBackend", "Transport"],
        "_policy": ["SitePolicy"],
        "_reading": ["Reading", "SiteRows"],
        "_remote": ["RemoteClients"],
        "_roster": ["Roster", "SiteKey"],
        "_run": ["RoundRecord"],
        "_runner": ["FederatedRunner"],
        "_self_test": ["find_faulty_sites"],
        "_site": ["Site"],
        "_tree": ["Aggregators", "TreeBackend"],
    },
)
