"""Budgets, noise and accounts; nothing here knows what is being aggregated."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.privacy._accounting import (
        NoisePlan,
        calibrate,
        compose_epsilon,
        gdp_delta,
        gdp_epsilon,
        gdp_mu,
        zcdp_delta,
        zcdp_epsilon,
        zcdp_rho,
    )
    from skfedcal.privacy._client_models import DistributedDP, LocalDP, SourceDP
    from skfedcal.privacy._events import (
        GaussianEvent,
        PureEvent,
        SampledGaussianEvent,
    )
    from skfedcal.privacy._ledger import PrivacyLedger
    from skfedcal.privacy._models import CentralDP, SecureAggregation
    from skfedcal.privacy._report import PrivacyReport
    from skfedcal.privacy.audits._estimator import audit_estimator
    from skfedcal.privacy.audits._one_run import audit_one_run
    from skfedcal.privacy.audits._result import AuditResult
    from skfedcal.privacy.audits._two_worlds import audit

# Written out for type checkers; a test compares it with the lazy table below.
__all__ = [
    "AuditResult",
    "CentralDP",
    "DistributedDP",
    "GaussianEvent",
    "LocalDP",
    "NoisePlan",
    "PrivacyLedger",
    "PrivacyReport",
    "PureEvent",
    "SampledGaussianEvent",
    "SecureAggregation",
    "SourceDP",
    "audit",
    "audit_estimator",
    "audit_one_run",
    "calibrate",
    "compose_epsilon",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "zcdp_delta",
    "zcdp_epsilon",
    "zcdp_rho",
]

__getattr__, __dir__, _names = attach(
    __name__,
    {
        "_accounting": [
            "NoisePlan",
            "calibrate",
            "compose_epsilon",
            "gdp_delta",
            "gdp_epsilon",
            "gdp_mu",
            "zcdp_delta",
            "zcdp_epsilon",
            "zcdp_rho",
        ],
        "_client_models": ["DistributedDP", "LocalDP", "SourceDP"],
        "_events": ["GaussianEvent", "PureEvent", "SampledGaussianEvent"],
        "_ledger": ["PrivacyLedger"],
        "_models": ["CentralDP", "SecureAggregation"],
        "_report": ["PrivacyReport"],
        "audits._estimator": ["audit_estimator"],
        "audits._one_run": ["audit_one_run"],
        "audits._result": ["AuditResult"],
        "audits._two_worlds": ["audit"],
    },
)
