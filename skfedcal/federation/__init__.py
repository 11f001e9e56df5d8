"""Federated rounds over clients, in one process or over a network."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.federation.backends import (
        Backend,
        InProcess,
        Joblib,
        ShardExecutor,
    )
    from skfedcal.federation.collecting import Collected, collect
    from skfedcal.federation.endpoint import PartialSum, Request, respond
    from skfedcal.federation.flower import FlowerTransport, make_client_app
    from skfedcal.federation.history import RoundHistory, RoundRecord
    from skfedcal.federation.messages import (
        InProcessTransport,
        MessageBackend,
        Transport,
    )
    from skfedcal.federation.policy import SitePolicy
    from skfedcal.federation.reading import Reading, SiteRows
    from skfedcal.federation.remote import RemoteClients, connect
    from skfedcal.federation.roster import Operator, Roster, SiteKey
    from skfedcal.federation.runner import FederatedRunner
    from skfedcal.federation.self_test import find_faulty_sites
    from skfedcal.federation.shards import ShardedClients
    from skfedcal.federation.site import Site
    from skfedcal.federation.tree import Aggregators, TreeBackend

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
    "Operator",
    "PartialSum",
    "Reading",
    "RemoteClients",
    "Request",
    "Roster",
    "RoundHistory",
    "RoundRecord",
    "ShardExecutor",
    "ShardedClients",
    "Site",
    "SiteKey",
    "SitePolicy",
    "SiteRows",
    "Transport",
    "TreeBackend",
    "collect",
    "connect",
    "find_faulty_sites",
    "make_client_app",
    "respond",
]

__getattr__, __dir__, _names = attach(
    __name__,
    {
        "backends": ["Backend", "InProcess", "Joblib", "ShardExecutor"],
        "collecting": ["Collected", "collect"],
        "endpoint": ["PartialSum", "Request", "respond"],
        "flower": ["FlowerTransport", "make_client_app"],
        "messages": ["InProcessTransport", "MessageBackend", "Transport"],
        "policy": ["SitePolicy"],
        "reading": ["Reading", "SiteRows"],
        "remote": ["RemoteClients", "connect"],
        "roster": ["Operator", "Roster", "SiteKey"],
        "history": ["RoundHistory", "RoundRecord"],
        "runner": ["FederatedRunner"],
        "self_test": ["find_faulty_sites"],
        "shards": ["ShardedClients"],
        "site": ["Site"],
        "tree": ["Aggregators", "TreeBackend"],
    },
)
