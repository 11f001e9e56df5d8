"""Cross-check of the ledger: what was debited, against reports and measured noise."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log, sqrt
from typing import Any

from skfedcal.privacy.audits.audit_result import AuditCheck
from skfedcal.privacy.audits.checks import NoiseTally, laplace_scale
from skfedcal.privacy.audits.errors import Claim
from skfedcal.privacy.events import (
    GaussianEvent,
    PrivacyEvent,
    PrivacyReport,
    PureEvent,
    event_from_dict,
)
from skfedcal.privacy.ledger import PrivacyLedger

# Of equations that are solved for mu or eps, and of grids of dp-accounting.
_SOLVED = 1e-5


def debit_size(event: PrivacyEvent, claim: Claim) -> float:
    """Size of a debit in the kind of the claim: `mu`, or `eps` at its delta."""
    from skfedcal.privacy.accounting import compose_epsilon

    if claim.mu is not None:
        # Another kind of event stands for no Gaussian noise.
        return event.mu if isinstance(event, GaussianEvent) else 0.0
    if isinstance(event, PureEvent):
        return event.eps
    return compose_epsilon([event], max(claim.delta, 1e-300))


def check_debits(
    ledger: PrivacyLedger, reports: Sequence[PrivacyReport], claim: Claim
) -> AuditCheck:
    """Whether each fit is one debit of what it reports, and the total covers all.

    Fits that pay from one ledger: one record each, of the size that is reported, named
    in the report, and booked as a simulation if and only if the report says so. The
    total at the delta of the claim is at least the composition of what is reported.
    """
    from skfedcal.privacy.accounting import compose_epsilon

    kind = "eps" if claim.mu is None else "mu"
    records = ledger.records()
    sizes = [debit_size(event_from_dict(r["event"]), claim) for r in records]
    least = min(sizes, default=0.0)
    allowed = f"{len(reports)} of {kind} {claim.size:.4f}"
    passed = len(records) == len(reports) and least >= claim.size * (1 - _SOLVED)
    found = f"{len(records)} debits, least {kind} {least:.4f}"
    for record, report in zip(records, reports, strict=False):
        if (record["mode"] == "secure") != report.secure:
            passed, found = False, f"{found}; booked as {record['mode']}"
        if record["id"] not in report.ledger_ids:
            passed, found = False, f"{found}; not the one that is reported"
    # A pure claim comes with a tiny delta, for the tables of the noise.
    delta = max(claim.delta, 1e-5)
    events: list[PrivacyEvent] = [
        PureEvent(r.eps) if r.mu is None else GaussianEvent(r.mu) for r in reports
    ]
    total, least_total = ledger.spent(delta), compose_epsilon(events, delta)
    if not total >= least_total * (1 - 1e-3):
        passed, found = False, f"{found}; total eps {total:.4f} < {least_total:.4f}"
    return AuditCheck("ledger", passed, found, allowed)


def check_measured_debit(
    tally: NoiseTally, event: PrivacyEvent, claim: Claim, alpha: float
) -> AuditCheck:
    """Whether the debit covers what the measured noise costs.

    The variance of the noise in each block and round, bounded from above at the level
    `alpha` over all of them together, and the bound of a unit give `mu` (or `eps`) of
    the release from below. A debit of less is refuted.
    """
    kind = "eps" if claim.mu is None else "mu"
    cost, debit = tally.least_cost(alpha), debit_size(event, claim)
    return AuditCheck(
        "ledger and noise",
        debit >= cost * (1 - 1e-9),
        f"{kind} {debit:.4f} debited",
        f">= {kind} {cost:.4f} (by {tally.n_draws} draws)",
    )


def upper_variance(
    mean_square: float, n: int, sd: float, mu: Any, alpha: float
) -> float:
    """Bound the variance of noise from above, by a mean of `n` squares.

    For Gaussian noise by the chi-square law; for Laplace noise by the bound on the
    lower tail of a mean of squares in `NoiseTally`. In units of the stated variance;
    `sd` is the stated standard deviation in lattice steps.
    """
    from scipy.stats import chi2

    if mu is not None:
        return mean_square * n / float(chi2.ppf(alpha, n))
    part = 1 - sqrt(2 * (6 + 1 / sd**2) * log(1 / alpha) / n)
    return mean_square / part if part > 0 else inf


def block_cost(reach: float, sd: float, mu: Any) -> float:
    """Squared `mu`, or `eps`, of a block: bound of a unit over measured noise."""
    if sd == inf:
        return 0.0
    if mu is not None:
        return (reach / sd) ** 2 if sd > 0 else inf
    return reach / laplace_scale(sd) if sd > 0 else inf
