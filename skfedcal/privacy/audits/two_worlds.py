"""Audits of anything that can be run: two worlds, or many canaries at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import nan, sqrt
from typing import Any

import numpy as np

from skfedcal._params import as_number, check_integer, check_number
from skfedcal.privacy.audits.audit_result import AuditCheck, AuditResult
from skfedcal.privacy.audits.errors import (
    Claim,
    Errors,
    Floats,
    combined_p_value,
    eps_of,
    lower_bound,
    power,
)
from skfedcal.privacy.ledger import PrivacyLedger

# Share of the runs that chooses a direction and a threshold and is not counted.
PILOT = 0.1
# Share of the level for the threshold of the first runs where another one is known: it
# is needed only for mechanisms that are far off.
_CHOSEN_WEIGHT = 0.1
# Sums and squares of what is released must stay numbers.
_LARGEST = 1e100


def audit(
    release: Callable[[Any], Any],
    absent: Any,
    present: Any,
    *,
    mu: float | None = None,
    eps: float | None = None,
    delta: float = 0.0,
    score: Callable[[Any], float] | None = None,
    threshold: float | None = None,
    n_runs: int = 1500,
    alpha: float = 0.01,
    ledger: PrivacyLedger | None = None,
) -> AuditResult:
    """Audit a mechanism by telling two neighbouring data sets apart.

    The mechanism is run `n_runs` times on each; a tenth of the runs chooses a direction
    and a threshold, the others count errors. No test of a mechanism that is as claimed
    makes fewer errors than the claimed trade-off curve allows; that it does is tested
    with exact binomial tails.

    Parameters
    ----------
    release : callable
        ``release(data)`` is a number or an array; it draws fresh noise at every call.
    absent, present : object
        Neighbouring data sets: without the canary, and with it.
    mu : float, default=None
        Claim of Gaussian differential privacy.
    eps : float, default=None
        Claim of pure differential privacy, or with `delta` of (eps, delta). With `mu`
        it is only shown.
    delta : float, default=0.0
        Of the claim; with `mu`, where eps is read off.
    score : callable, default=None
        ``score(released)`` is large if the canary seems present; None projects on the
        difference of the means of the first runs, which sees little among many values:
        give a score where you know what the canary changes.
    threshold : float, default=None
        Score at which a run is called present; None chooses it in the first runs.
    n_runs : int, default=1500
        Runs for each of the two.
    alpha : float, default=0.01
        Chance that an honest mechanism fails.
    ledger : PrivacyLedger, default=None
        Account that `release` debits at each call: every call must be a debit of the
        claim at least, and of what the errors show at least.

    Returns
    -------
    AuditResult
        Its `power` is that of a canary that fills the claim, seen through the best
        score; without a score, through the direction of the first runs.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal.privacy import audit, gdp_mu
    >>> rng = np.random.default_rng(0)
    >>> noise = 1 / gdp_mu(1.0, 1e-5)
    >>> honest = audit(lambda x: x + rng.normal(0, noise), 0.0, 1.0,
    ...                mu=gdp_mu(1.0, 1e-5), delta=1e-5)
    >>> honest.passed
    True
    >>> audit(lambda x: x + rng.normal(0, noise / 2), 0.0, 1.0,
    ...       mu=gdp_mu(1.0, 1e-5), delta=1e-5).passed
    False
    """
    claim = make_claim(mu, eps, delta)
    alpha = check_runs(n_runs, alpha)
    for name, function in (("release", release), ("score", score)):
        if not callable(function) and not (name == "score" and function is None):
            raise TypeError(f"{name}={function!r} cannot be called; pass a function.")
    if not isinstance(ledger, PrivacyLedger | None):
        raise TypeError(f"ledger={ledger!r} must be a PrivacyLedger or None.")
    n_before = 0 if ledger is None else len(ledger)
    runs = [[release(data) for _ in range(n_runs)] for data in (absent, present)]
    n_pilot, reach = int(PILOT * n_runs), 1.0
    if score is None:
        scores, size = _projected(runs, n_pilot)
        reach = _reach(claim, size, n_pilot)
    else:
        found = [[[score(out)] for out in side] for side in runs]
        scores = (_table(found[0], "score")[:, 0], _table(found[1], "score")[:, 0])
    fixed = None
    if threshold is not None:
        fixed = (as_number("threshold", threshold), "as given")
    # Runs that chose the direction would speak for it.
    n_used = n_pilot if score is None else 0
    errors, check, lower = judge(*scores, claim, alpha, fixed, n_used)
    checks: tuple[AuditCheck, ...] = (check,)
    if ledger is not None:
        records = ledger.records()[n_before:]
        checks += (check_debits_of_runs(records, 2 * n_runs, claim, lower),)
    return AuditResult(
        claim=claim,
        checks=checks,
        errors=errors,
        lower=lower,
        eps_lower=eps_of(claim, lower),
        alpha=alpha,
        power=power(claim, errors[0], alpha, reach),
        n_runs=n_runs,
        tried=("two worlds, one canary",),
    )


def check_debits_of_runs(
    records: list[dict[str, Any]], n_calls: int, claim: Claim, lower: float
) -> AuditCheck:
    """Whether every release was paid, with the claim and what was shown at least."""
    from skfedcal.privacy.audits.books import debit_size
    from skfedcal.privacy.events import event_from_dict

    kind = "eps" if claim.mu is None else "mu"
    sizes = [debit_size(event_from_dict(r["event"]), claim) for r in records]
    least, needed = min(sizes, default=0.0), max(claim.size * (1 - 1e-5), lower)
    return AuditCheck(
        "ledger",
        len(records) >= n_calls and least >= needed,
        f"{len(records)} debits, least {kind} {least:.4f}",
        f"{n_calls} of {kind} {needed:.4f}",
    )


def make_claim(mu: float | None, eps: float | None, delta: float) -> Claim:
    """Check and complete a claim."""
    from skfedcal.privacy.accounting import gdp_epsilon

    for name, value in (("mu", mu), ("eps", eps)):
        if value is not None:
            check_number(name, value, 0, np.inf, "neither")
    check_number("delta", delta, 0, 1, "left")
    if mu is None and eps is None:
        raise ValueError("There is no claim to audit; pass mu, or eps and delta.")
    if mu is not None and delta == 0:
        delta = 1e-5
    if eps is None:
        assert mu is not None
        eps = gdp_epsilon(mu, delta)
    return Claim(float(eps), float(delta), None if mu is None else float(mu))


def check_seed(random_state: int | None) -> None:
    """Raise unless `random_state` is an integer or None."""
    if random_state is not None:
        check_integer("random_state", random_state, 0)


def check_runs(n_runs: int, alpha: float, name: str = "n_runs") -> float:
    """Return the level; raise for an invalid one, and for too few runs."""
    check_integer(name, n_runs, 20)  # fewer are too few for a statistical test
    return check_number("alpha", alpha, 0, 1, "neither")


def judge(
    absent: Floats,
    present: Floats,
    claim: Claim,
    alpha: float,
    fixed: tuple[float, str] | None = None,
    n_used: int = 0,
) -> tuple[tuple[Errors, ...], AuditCheck, float]:
    """Count errors at fixed thresholds, compare them with the claim, and bound it.

    One threshold may be known beforehand; another one comes from the first runs, which
    are not counted. `n_used` runs that had a say in the scores count for neither.
    """
    n_pilot = max(1, int(PILOT * len(absent)))
    chosen = _threshold(absent[:n_pilot], present[:n_pilot], claim)
    rest = absent[n_pilot:], present[n_pilot:]
    errors = [count_errors(*rest, chosen, "chosen in the first runs")]
    if fixed is not None:
        first = count_errors(absent[n_used:], present[n_used:], *fixed)
        errors = [
            replace(first, weight=1 - _CHOSEN_WEIGHT),
            replace(errors[0], weight=_CHOSEN_WEIGHT),
        ]
    p_value = combined_p_value(errors, claim)
    kind = "eps" if claim.mu is None else "mu"
    lower = lower_bound(errors, claim, alpha)
    check = AuditCheck(
        "two worlds",
        p_value >= alpha,
        f"{kind} >= {lower:.4f} (p {p_value:.2g})",
        f"{kind} <= {claim.size:.4f}",
    )
    return tuple(errors), check, lower


def count_errors(
    absent: Floats, present: Floats, threshold: float, how: str = "fixed"
) -> Errors:
    """Errors of the test that calls scores from `threshold` on present."""
    false_alarms = int((absent >= threshold).sum())
    misses = int((present < threshold).sum())
    return Errors(false_alarms, misses, len(absent), len(present), how)


def _threshold(absent: Floats, present: Floats, claim: Claim) -> float:
    """Where the claimed curve is nearest: the middle, or for pure eps the median."""
    if claim.mu is None:
        return float(np.median(present))
    return float(np.median(absent) + np.median(present)) / 2


def _projected(
    runs: list[list[Any]], n_pilot: int
) -> tuple[tuple[Floats, Floats], int]:
    """Scores along the difference of the first means, and the number of values."""
    values = [_table([np.ravel(out) for out in side], "release") for side in runs]
    if values[0].shape != values[1].shape:
        raise ValueError("release gives arrays of several shapes; they must be of one.")
    direction = values[1][:n_pilot].mean(axis=0) - values[0][:n_pilot].mean(axis=0)
    length = np.linalg.norm(direction)
    direction = direction / length if length > 0 else np.ones_like(direction)
    return (values[0] @ direction, values[1] @ direction), len(direction)


def _table(values: list[Any], what: str) -> Floats:
    """What was released, one row for each run."""
    try:
        with np.errstate(over="ignore"):
            # No complex numbers, whose other half a cast would drop.
            table = np.array(values).astype(float, casting="same_kind")
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{what} must give a number, or arrays of one shape: {error}"
        ) from error
    if table.ndim != 2 or not (np.abs(table) < _LARGEST).all():
        raise ValueError(
            f"{what} must give finite numbers below {_LARGEST:g}, each time as many; "
            "pass a `score` that maps what is released to a number."
        )
    return table


def _reach(claim: Claim, size: int, n_pilot: int) -> float:
    """Share of twice the eps that a direction from the first runs shows.

    The cosine of its angle with the best one, if all values have the same noise; over
    Laplace noise it is known for a single number only.
    """
    from skfedcal.privacy.accounting import gdp_mu

    if claim.mu is None:
        return 1.0 if size == 1 else nan
    strength = gdp_mu(2 * claim.eps, claim.delta)
    return strength / sqrt(strength**2 + 2 * (size - 1) / n_pilot)
