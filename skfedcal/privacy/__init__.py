"""Differential privacy: mechanisms, accounting, ledgers and audits."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.privacy.accounting import (
        calibrate,
        calibrate_noise,
        compose_epsilon,
        gdp_delta,
        gdp_epsilon,
        gdp_mu,
        zcdp_delta,
        zcdp_epsilon,
        zcdp_rho,
    )
    from skfedcal.privacy.audits.audit_result import AuditResult
    from skfedcal.privacy.audits.estimator_audit import audit_estimator
    from skfedcal.privacy.audits.one_run import audit_one_run
    from skfedcal.privacy.audits.two_worlds import audit
    from skfedcal.privacy.events import (
        GaussianEvent,
        NoisePlan,
        PrivacyReport,
        PureEvent,
        SampledGaussianEvent,
    )
    from skfedcal.privacy.ledger import PrivacyLedger
    from skfedcal.privacy.models import (
        CentralDP,
        DistributedDP,
        LocalDP,
        SecureAggregation,
        SourceDP,
    )

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
    "calibrate_noise",
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
        "accounting": [
            "calibrate",
            "calibrate_noise",
            "compose_epsilon",
            "gdp_delta",
            "gdp_epsilon",
            "gdp_mu",
            "zcdp_delta",
            "zcdp_epsilon",
            "zcdp_rho",
        ],
        "audits.audit_result": ["AuditResult"],
        "audits.estimator_audit": ["audit_estimator"],
        "audits.one_run": ["audit_one_run"],
        "audits.two_worlds": ["audit"],
        "events": [
            "GaussianEvent",
            "NoisePlan",
            "PrivacyReport",
            "PureEvent",
            "SampledGaussianEvent",
        ],
        "ledger": ["PrivacyLedger"],
        "models": [
            "CentralDP",
            "DistributedDP",
            "LocalDP",
            "SecureAggregation",
            "SourceDP",
        ],
    },
)
