"""What an audit found."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan
from typing import Any

from skfedcal._table import text_table
from skfedcal.privacy.audits.errors import Claim, Errors


@dataclass(frozen=True, slots=True)
class AuditCheck:
    """One question of an audit and its answer.

    Attributes
    ----------
    name : str
        Name of the check.
    passed : bool
        Whether it is as claimed.
    found, allowed : str
        What was measured and what the claim allows.
    """

    name: str
    passed: bool
    found: str
    allowed: str


@dataclass(frozen=True, slots=True, repr=False)
class AuditResult:
    """Outcome of an audit.

    An audit can show that a claim is false. That it passes means that this attack, with
    so many runs, did not show it.

    Attributes
    ----------
    claim : Claim
        What was audited: `eps`, `delta` and, for Gaussian noise, `mu`.
    checks : tuple of AuditCheck
        Checks that were made.
    errors : tuple of Errors
        Errors of the distinguisher, for the picture.
    lower : float
        Lower bound on the true `mu` (or `eps`, where no `mu` is claimed).
    eps_lower : float
        The same as eps at the delta of the claim.
    alpha : float
        Chance that an honest mechanism is flagged by the statistical checks.
    power : float
        Chance that the distinguisher catches a mechanism of twice the claimed eps; NaN
        where it is not known.
    n_runs : int
        Runs with the canary, and as many without; 1 for many canaries in one release.
    tried : tuple of str
        What was audited, and how.
    level : float
        Share of `alpha` that the distinguisher has; the other statistical checks have
        the rest.

    Examples
    --------
    >>> from skfedcal.privacy import CentralDP, audit_one_run
    >>> result = audit_one_run(CentralDP(1.0), random_state=0)
    >>> result.passed, result.claim.eps, result.eps_lower < 1
    (True, 1.0, True)
    """

    claim: Claim
    checks: tuple[AuditCheck, ...]
    errors: tuple[Errors, ...] = ()
    lower: float = 0.0
    eps_lower: float = 0.0
    alpha: float = 0.01
    power: float = nan
    n_runs: int = 0
    tried: tuple[str, ...] = field(default=())
    level: float = 1.0

    @property
    def passed(self) -> bool:
        """Whether all checks passed."""
        return all(check.passed for check in self.checks)

    @property
    def failures(self) -> tuple[AuditCheck, ...]:
        """Checks that failed."""
        return tuple(check for check in self.checks if not check.passed)

    @property
    def bound(self) -> str:
        """The lower bound in words."""
        if self.claim.mu is None:
            return f"eps {self.lower:.4f}"
        return f"mu {self.lower:.4f} (eps {self.eps_lower:.3f})"

    @property
    def runs(self) -> str:
        """How often the mechanism was run, in words."""
        return "one release" if self.n_runs == 1 else f"{self.n_runs} runs per side"

    def table(self) -> str:
        """Checks as a table of text."""
        rows = [
            [check.name, "pass" if check.passed else "FAIL", check.found, check.allowed]
            for check in self.checks
        ]
        return text_table(["check", "", "found", "allowed"], rows, n_left=4)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, for JSON."""
        return {
            "passed": self.passed,
            "eps": self.claim.eps,
            "delta": self.claim.delta,
            "mu": self.claim.mu,
            "lower": self.lower,
            "eps_lower": min(self.eps_lower, 1e308),
            "alpha": self.alpha,
            "power": None if self.power != self.power else self.power,
            "n_runs": self.n_runs,
            "checks": [
                {
                    "name": check.name,
                    "passed": check.passed,
                    "found": check.found,
                    "allowed": check.allowed,
                }
                for check in self.checks
            ],
            "tried": list(self.tried),
        }

    def __repr__(self) -> str:
        word = "passed" if self.passed else "FAILED"
        lines = [f"AuditResult({word}; claimed {self.claim}"]
        if self.errors:
            lines.append(
                f"  the true value is at least {self.bound}; {self.runs}, false alarm "
                f"at most {self.alpha:g}"
            )
            known = f"caught with probability {self.power:.2f}"
            if self.power != self.power:
                known = "caught with unknown probability"
            lines.append(f"  twice the eps would be {known}")
        lines += [f"  {line}" for line in self.table().splitlines()]
        lines += [f"  tried: {text}" for text in self.tried]
        return "\n".join(lines) + ")"
