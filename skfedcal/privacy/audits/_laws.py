"""Facts about integer noise, from its standard deviation."""

from __future__ import annotations

from math import asinh, exp, log, pi, sqrt

from skfedcal.privacy.audits._errors import Claim
from skfedcal.privacy.audits._tap import RoundTape


def is_additive(tape: RoundTape) -> bool:
    """Whether noise is added to the exact sum, on a lattice."""
    laws = tape.released.laws
    return bool(laws) and all(law.kind == "additive" for law in laws.values())


def laplace_scale(sd: float) -> float:
    """Scale of the discrete Laplace law with this standard deviation."""
    return 1 / (2 * asinh(sqrt(0.5) / sd))


def log_repeats(sd: float, claim: Claim) -> float:
    """Logarithm of the chance that two draws of integer noise are equal."""
    if claim.mu is not None:
        return log(min(1.0, 1 / (2 * sqrt(pi) * sd)))
    q = exp(-1 / laplace_scale(sd))
    return log((1 - q) * (1 + q * q) / (1 + q) ** 3)
