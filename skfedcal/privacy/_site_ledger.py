"""The account of one site, added up without scipy.

A process that answers one message should not take longer to import its accountant than
to answer. The sum is an upper bound, and at most a hair above that of `PrivacyLedger`
for events of one kind.
"""

from __future__ import annotations

import math
import os
from typing import Any

from skfedcal.privacy._events import PureEvent, SampledGaussianEvent
from skfedcal.privacy._ledger import PrivacyLedger
from skfedcal.privacy._ledger_records import Account

# For what is lost where two nearly equal chances are subtracted.
_MARGIN = 1e-13
_HALVINGS = 200


def plain_epsilon(account: Account, delta: float) -> float:
    """Bound the eps of an account at `delta` from above.

    Pure eps are added to that of the Gaussian rounds; or all of it is converted by way
    of zCDP, whichever is less. Sampling earns no credit.
    """
    pure = [event.eps for event in account.others if isinstance(event, PureEvent)]
    sampled = [e for e in account.others if isinstance(e, SampledGaussianEvent)]
    mu_squared = account.sum_mu2 + math.fsum(
        e.n_rounds / e.noise_multiplier**2 for e in sampled
    )
    eps_slack = account.eps_slack + math.fsum(e.eps_slack for e in account.others)
    slack = account.delta_slack + math.fsum(e.delta_slack for e in account.others)
    left = (delta - slack) * math.exp(-eps_slack / 2)
    if not math.isfinite(mu_squared) or left <= 0:
        return math.inf
    added = math.fsum(pure) + gaussian_epsilon(math.sqrt(mu_squared), left)
    rho = (mu_squared + math.fsum(eps * eps for eps in pure)) / 2
    converted = rho + 2 * math.sqrt(-rho * math.log(left))
    return min(added, converted) + eps_slack


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Bound the eps of a mu-GDP release at `delta` from above."""
    if mu == 0:
        return 0.0
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))
    if _gaussian_delta(mu, low) <= delta:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if _gaussian_delta(mu, middle) <= delta:
            high = middle
        else:
            low = middle
    return high


def _gaussian_delta(mu: float, eps: float) -> float:
    """Bound ``Phi(-u) - exp(eps) Phi(-v)`` with ``v = u + mu`` from above."""
    u = eps / mu - mu / 2
    first = math.erfc(u / math.sqrt(2)) / 2
    second = math.erfc((u + mu) / math.sqrt(2)) / 2
    if second == 0.0 or eps > 600:  # too small to take off
        return first
    return first * (1 + _MARGIN) - math.exp(eps) * second * (1 - _MARGIN)


class SiteLedger(PrivacyLedger):
    """Account of what one site has answered; see `PrivacyLedger`.

    Parameters
    ----------
    path : str or path-like, default=None
        JSONL file; None keeps the records in memory.
    budget : tuple (eps, delta), default=None
        Most that the site gives away in all.
    require_secure : bool or 'auto', default='auto'
        Whether to refuse debits for noise drawn from a seed.
    head : str, default=None
        A head written down earlier; a file in which it does not occur is refused.

    Examples
    --------
    >>> from skfedcal.privacy import PureEvent
    >>> from skfedcal.privacy._site_ledger import SiteLedger
    >>> ledger = SiteLedger(budget=(1.0, 1e-5))
    >>> _ = ledger.debit(PureEvent(0.4), label="histogram")
    >>> ledger.spent()
    0.4
    """

    _epsilon = staticmethod(plain_epsilon)

    def spent(self, delta: float | None = None, population: str | None = None) -> float:
        """Return the eps spent at `delta`, by default that of the budget."""
        if delta is None:
            if self.budget is None:
                raise ValueError("A ledger without a budget needs delta, e.g. 1e-5.")
            delta = self.budget[1]
        with self._session() as totals:
            accounts = totals.accounts
            chosen = accounts if population is None else {population}
            return max(
                (plain_epsilon(accounts[p], delta) for p in chosen if p in accounts),
                default=0.0,
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, super().__reduce__()[1]


def _reopen(
    path: str | os.PathLike[str],
    budget: tuple[float, float] | None,
    secure: Any,
    head: str | None = None,
) -> SiteLedger:
    return SiteLedger(path, budget=budget, require_secure=secure, head=head)
