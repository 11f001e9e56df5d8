"""The account of one site, charged without scipy.

A process that answers one message should not take longer to import its accountant than
to answer. It is charged by the same filters as a `PrivacyLedger`; only the curve of
Gaussian noise is bounded from above, and sampling of clients earns nothing.
"""

from __future__ import annotations

import math
import os
from typing import Any, Literal

from skfedcal.privacy.events import PrivacyEvent, PureEvent
from skfedcal.privacy.filters import filter_epsilon
from skfedcal.privacy.ledger import PrivacyLedger
from skfedcal.privacy.ledger_file import Account, Signed

# For what is lost where two nearly equal chances are subtracted.
_MARGIN = 1e-13
_HALVINGS = 200


def site_epsilon(account: Account, delta: float, budget: float | None = None) -> float:
    """Return what the account of a site is charged; see `filter_epsilon`.

    Sampling earns no credit: a site cannot see whether the server samples, nor whether
    it keeps the sample to itself.
    """
    return filter_epsilon(
        account,
        delta,
        budget,
        gdp_epsilon=gaussian_epsilon,
        alone=_alone,
        credit=False,
    )


def _alone(event: PrivacyEvent, delta: float) -> float:
    """Bound the eps of one release by itself, at `delta`, from above."""
    left = (delta - event.delta_slack) * math.exp(-event.eps_slack / 2)
    if left <= 0:
        return math.inf
    if isinstance(event, PureEvent):
        return event.eps + event.eps_slack
    one = Account()
    one.add(event)
    mu = math.sqrt(one.gaussian_mu2)
    if not math.isfinite(mu):
        return math.inf
    return gaussian_epsilon(mu, left) + event.eps_slack


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
        Most that the site may spend in total.
    require_secure : bool or 'auto', default='auto'
        Whether to refuse debits for noise drawn from a seed.
    head : str, default=None
        A head written down earlier; a file in which it does not occur is refused.
    signed : callable, default=None
        ``signed(text, signature)`` says whether the site signed a raise of its budget;
        a ledger with another raise is refused. None asks for no signature.

    Examples
    --------
    >>> from skfedcal.privacy import PureEvent
    >>> from skfedcal.privacy.site_ledger import SiteLedger
    >>> ledger = SiteLedger(budget=(1.0, 1e-5))
    >>> _ = ledger.debit(PureEvent(0.4), label="histogram")
    >>> ledger.spent()
    0.4
    """

    _epsilon = staticmethod(site_epsilon)

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        budget: tuple[float, float] | None = None,
        require_secure: bool | Literal["auto"] = "auto",
        head: str | None = None,
        signed: Signed | None = None,
    ) -> None:
        self._signed = signed
        super().__init__(path, budget=budget, require_secure=require_secure, head=head)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (*super().__reduce__()[1], self._signed)


def _reopen(
    path: str | os.PathLike[str],
    budget: tuple[float, float] | None,
    secure: Any,
    head: str | None = None,
    signed: Signed | None = None,
) -> SiteLedger:
    return SiteLedger(
        path, budget=budget, require_secure=secure, head=head, signed=signed
    )
