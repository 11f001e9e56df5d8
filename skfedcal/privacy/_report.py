"""What a fit guarantees, in words and numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf


@dataclass(frozen=True, slots=True, repr=False)
class PrivacyReport:
    """The guarantee of a finished fit.

    Attributes
    ----------
    eps, delta : float
        Differential privacy of everything the fit released; ``eps=inf``: none.
    mu : float or None
        The same as Gaussian differential privacy, where that is exact.
    noise_multiplier : float
        Standard deviation of the noise over the bound of a unit, per round.
    clip : dict
        Bound on each block that a client sends, in the first round.
    unit : {'client', 'example'}
        What is hidden.
    adjacency : str
        Which data sets count as neighbours.
    trust : str
        Who is trusted with what.
    secure : bool
        Whether noise came from the operating system and was drawn by those whom the
        model trusts with it. False: the fit is a simulation.
    accountant : str
        How rounds were added up.
    n_rounds, n_clients : int
        Rounds paid for, and units (clients, or examples) among which one hides.
    assumptions : tuple of str
        What must hold for the guarantee.
    ledger_ids : tuple of str
        Records of the ledger that paid for it.
    seeded : bool
        Whether noise came from a seed, with which anybody can take it off again.

    Examples
    --------
    >>> from skfedcal import FedTempCalibrator, make_federation
    >>> fed = make_federation(n_clients=50, n_samples=1000, random_state=0)
    >>> report = FedTempCalibrator(eps=1.0).fit(fed.clients).privacy_
    >>> report.eps, report.unit, report.n_rounds, report.secure
    (1.0, 'client', 5, True)
    """

    eps: float = inf
    delta: float = 0.0
    mu: float | None = None
    noise_multiplier: float = 0.0
    clip: dict[str, float | None] = field(default_factory=dict)
    unit: str = "client"
    adjacency: str = "zero-out"
    trust: str = "secure sums: the server sees the exact sum over clients"
    secure: bool = False
    accountant: str = "none"
    n_rounds: int = 0
    n_clients: int = 0
    assumptions: tuple[str, ...] = ()
    ledger_ids: tuple[str, ...] = ()
    seeded: bool = False

    @property
    def private(self) -> bool:
        """Whether noise was added."""
        return self.eps < inf

    def __repr__(self) -> str:
        if not self.private:
            return f"PrivacyReport(no differential privacy; {self.trust})"
        bounds = ", ".join(
            f"{k} {v:.4g}" for k, v in self.clip.items() if v is not None
        )
        lines = [
            f"PrivacyReport({self._simulated}eps={self.eps:g}, delta={self.delta:.3g}",
            f"  hides one {self.unit} among {self.n_clients} ({self.adjacency})",
            f"  noise {self.noise_multiplier:.4f} x the bound, {self.n_rounds} "
            f"round(s), accountant {self.accountant}"
            + (f", mu={self.mu:.4f}" if self.mu is not None else ""),
            f"  bounds: {bounds}",
            f"  trust: {self.trust}",
            *(f"  assumes: {text}" for text in self.assumptions),
            f"  ledger: {', '.join(i[:12] for i in self.ledger_ids) or 'none'})",
        ]
        return "\n".join(lines)

    @property
    def _simulated(self) -> str:
        if self.secure:
            return ""
        if self.seeded:
            return "SIMULATED, seeded noise: no guarantee; "
        return "SIMULATED, noise drawn at once by who holds the exact values; "
