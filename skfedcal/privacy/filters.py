"""Privacy filters: which lists of releases a budget admits, chosen adaptively or not.

An analyst sees the result of one release before the next one, and its noise, are
chosen. A bound for a list that was fixed in advance (such as the composition of privacy
loss distributions) then proves nothing. A privacy filter (Rogers et al. 2016) is a rule
that refuses releases such that all that were admitted keep ``(eps, delta)``, however
they were chosen. The ledgers use this module and nothing else to decide.

Needs numpy only: a site decides by the same rule.

Notes
-----
Write ``L`` for the privacy loss of all releases. The budget is kept if
``E[(1 - exp(eps - L))_+] <= delta`` for every pair of neighbouring data sets. Filters
that are proved one by one:

basic
    Pure eps that add up to at most eps: ``L <= eps`` with certainty (Rogers et al.
    2016).
gaussian
    Releases that are mu_i-GDP with ``sum(mu_i^2) <= mu^2`` are mu-GDP (Smith and
    Thakurta 2022). A pure eps is mu-GDP with ``Phi(-mu/2) = 1/(1 + exp(eps))``: both
    trade-off curves are convex, and the pure one is the chord of the other.
renyi
    At an order ``a`` that is fixed in advance, Renyi divergences that add up to at most
    ``b`` are ``(a, b)``-RDP (Feldman and Zrnic 2021); then Proposition 12
    of Canonne, Kamath and Steinke (2020). A pure eps costs what randomised response
    costs, sampled Gaussian rounds what Mironov, Talwar and Zhang (2019) compute.
split k
    Pure eps that add up to at most ``e_k = eps k/10``, and other releases that keep the
    gaussian filter of ``eps - e_k``: ``L`` is at most ``e_k`` plus their loss.

The least of several bounds is *not* a filter: an analyst may choose, by what was seen,
which of them the list will end in. But a list may be admitted if *any* of several
filters admits it, where filter j keeps ``(eps, delta_j)`` and the delta_j add up to
delta. Proof: let an analyst keep to the union, and stop a copy of the analyst where the
list leaves filter j. The sets are closed under prefixes, so that every outcome of the
analyst whose list ends in j is an outcome of the copy, with the same ``L``; outcomes
that end in j therefore add at most ``delta_j`` to the expectation above. *basic* adds 0
and needs no delta.

The first release is chosen before anything was seen. So the filters may depend on it:
of delta, 0.9 goes to *gaussian* if it is Gaussian and else to *renyi*, 0.1 to the nine
splits in equal parts. And a list of one release may be admitted by its own exact curve.
The order of *renyi* depends on the budget alone.

Slack (how far the noise that is drawn is from the law that is accounted): a hundredth
of delta is kept for the `delta_slack` of all releases. `eps_slack` bounds what a loss
may gain, so that it counts as pure eps in *basic* and *split*, where it may be at most
a twentieth of eps, costs ``(2a-1)/(2a-2)`` times itself at order ``a``, and is kept out
of eps in *gaussian*, where its part of eps is fixed by the first release.

References
----------
Rogers, Roth, Ullman and Vadhan, "Privacy Odometers and Filters: Pay-as-you-Go
Composition", NeurIPS 2016. Feldman and Zrnic, "Individual Privacy Accounting via a
Renyi Filter", NeurIPS 2021. Smith and Thakurta, "Fully Adaptive Composition for
Gaussian Differential Privacy", arXiv:2210.17520. Whitehouse, Ramdas, Rogers and Wu,
"Fully Adaptive Composition in Differential Privacy", ICML 2023 (approximate guarantees,
whose deltas add up). Mironov, Talwar and Zhang, "Renyi Differential Privacy of the
Sampled Gaussian Mechanism", arXiv:1908.10530.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from skfedcal.privacy.events import PrivacyEvent

__all__ = [
    "Spending",
    "filter_epsilon",
    "pure_mu",
    "pure_renyi",
    "renyi_epsilon",
    "renyi_order",
    "sampled_renyi",
]

GdpEpsilon = Callable[[float, float], float]

# Shares of delta: the main filter, and all splits together.
_MAIN, _SPLITS = 0.9, 0.1
_N_SPLITS = 10
# Part of delta that is kept for the `delta_slack` of all releases.
_DELTA_KEPT = 0.01
# Parts of eps that slack may take: in a split, and in the gaussian filter.
_SLACK_IN_SPLIT = 0.05
_SLACK_LEAST, _SLACK_MOST = 0.005, 0.05
# Orders of the renyi filter.
_LEAST_ORDER, _LARGEST_ORDER = 1 + 1e-3, 1e5
# For rounding in logarithms and in the quantile of the normal law.
_ROUNDING = 1e-12
_SMALL_EPS = 1e-4
_HALVINGS = 100


@dataclass(eq=False)
class Spending:
    """What was released about one population, folded to what the filters need.

    sum_mu2: Sum of squared mu of Gaussian events.
    pure: Number of pure events of each eps.
    sampled (dict of (noise_multiplier, sampling_rate) to int): Number of rounds of
        sampled Gaussian events.
    eps_slack, delta_slack: Sums over all events.
    first: First event that costs anything.
    n_events: Events that cost anything.
    """

    sum_mu2: float = 0.0
    pure: dict[float, int] = field(default_factory=dict)
    sampled: dict[tuple[float, float], int] = field(default_factory=dict)
    eps_slack: float = 0.0
    delta_slack: float = 0.0
    first: PrivacyEvent | None = None
    n_events: int = 0

    def add(self, event: Any) -> None:
        """Count one more event, of any kind."""
        if event.kind == "gaussian":
            self.sum_mu2 += event.mu * event.mu  # inf, where ** would overflow
            costs = event.mu > 0
        elif event.kind == "pure":
            costs = event.eps > 0
            if costs:
                self.pure[event.eps] = self.pure.get(event.eps, 0) + 1
        else:
            key, costs = (event.noise_multiplier, event.sampling_rate), True
            self.sampled[key] = self.sampled.get(key, 0) + event.n_rounds
        self.eps_slack += event.eps_slack
        self.delta_slack += event.delta_slack
        if costs or event.eps_slack or event.delta_slack:
            self.n_events += 1
            self.first = self.first or event

    def plus(self, event: PrivacyEvent) -> Self:
        """Return what it would be with one more event."""
        out = copy.copy(self)
        out.pure, out.sampled = dict(self.pure), dict(self.sampled)
        out.add(event)
        return out

    @property
    def gaussian_mu2(self) -> float:
        """Squared mu of all Gaussian rounds; sampling earns no credit."""
        return self.sum_mu2 + math.fsum(n / z / z for (z, _), n in self.sampled.items())

    @property
    def pure_sum(self) -> float:
        return math.fsum(eps * n for eps, n in self.pure.items())

    def pure_mu2(self) -> float:
        """Squared mu of all pure events."""
        return math.fsum(n * pure_mu(eps) ** 2 for eps, n in self.pure.items())

    def renyi(self, order: float, credit: bool) -> float:
        """Renyi divergence of all events at one order, slack included."""
        total = order * self.sum_mu2 / 2
        total += math.fsum(n * pure_renyi(e, order) for e, n in self.pure.items())
        total += math.fsum(
            n * sampled_renyi(z, rate if credit else 1.0, order)
            for (z, rate), n in self.sampled.items()
        )
        return total + self.eps_slack * (2 * order - 1) / (2 * (order - 1))


def filter_epsilon(
    spent: Spending,
    delta: float,
    budget: float | None = None,
    *,
    gdp_epsilon: GdpEpsilon,
    alone: Callable[[PrivacyEvent, float], float],
    credit: bool = True,
) -> float:
    """Return what a list of releases is charged.

    spent: The releases.
    delta: Of the budget.
    budget: Eps of the budget, by which the filters are fixed. None returns the least
        budget that would have admitted the list.
    gdp_epsilon: ``gdp_epsilon(mu, delta)``, or a bound from above.
    alone: ``alone(event, delta)`` is eps of one release by itself.
    credit: Whether sampling of clients is credited.
    Result: The list is admitted under `budget` if and only if this is at most `budget`.
    """
    if spent.first is None:
        return 0.0
    # Its own curve is needed for a list of one, and to fix the part of the slack.
    known = spent.n_events == 1 or spent.first.eps_slack > 0
    own = alone(spent.first, delta) if known else math.inf
    filters = _Filters(spent, delta, gdp_epsilon, own, credit)
    charged = filters.charged(budget) if budget is not None else filters.least()
    return min(charged, own) if spent.n_events == 1 else charged


class _Filters:
    """The filters of one budget, and what they charge for one list."""

    def __init__(
        self,
        spent: Spending,
        delta: float,
        gdp_epsilon: GdpEpsilon,
        own: float,
        credit: bool,
    ) -> None:
        self.spent = spent
        self.gdp_epsilon = gdp_epsilon
        self.own, self.credit = own, credit
        self.usable = delta * (1 - _DELTA_KEPT)
        self.lost = spent.delta_slack > delta * _DELTA_KEPT
        self.mu2 = spent.gaussian_mu2
        self.pure = spent.pure_sum
        first = spent.first
        assert first is not None
        credited = credit and getattr(first, "sampling_rate", 1.0) < 1
        self.gaussian = first.kind != "pure" and not credited
        self.pure_mu2 = spent.pure_mu2() if self.gaussian else 0.0

    def charged(self, budget: float) -> float:
        """Return the least charge of all filters of a budget."""
        if self.lost or not math.isfinite(self.mu2 + self.pure):
            return math.inf
        found = [self.basic()]
        found.append(self.by_gaussian(budget) if self.gaussian else self.renyi(budget))
        if self.mu2 > 0 and self.pure + self.spent.eps_slack > 0:
            found += [self.split(budget, k) for k in range(1, _N_SPLITS)]
        return min(found)

    def least(self) -> float:
        """Return the least budget that admits the list."""
        high = 1e-3
        while self.charged(high) > high:
            if high > 1e9:
                return math.inf
            high *= 4
        low = high / 4 if high > 1e-3 else 0.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if high - low <= 1e-12 * high or not low < middle < high:
                break
            if self.charged(middle) <= middle:
                high = middle
            else:
                low = middle
        return high

    def basic(self) -> float:
        if self.mu2 > 0:
            return math.inf
        return self.pure + self.spent.eps_slack

    def by_gaussian(self, budget: float) -> float:
        first = self.spent.first
        assert first is not None
        # Slack adds up as fast as mu^2, which is about (budget / own)^2 such releases.
        part = first.eps_slack * budget / self.own**2 if self.own > 0 else 0.0
        part = min(max(part, _SLACK_LEAST), _SLACK_MOST)
        kept = part * budget
        if self.spent.eps_slack > kept:
            return math.inf
        left = _MAIN * self.usable * math.exp(-kept / 2)
        if left == 0:
            return math.inf
        # At most the budget if and only if what is not kept covers the noise.
        noise = self.gdp_epsilon(math.sqrt(self.mu2 + self.pure_mu2), left)
        return noise / (1 - part)

    def renyi(self, budget: float) -> float:
        left = _MAIN * self.usable
        order = renyi_order(budget, left)
        return renyi_epsilon(self.spent.renyi(order, self.credit), order, left)

    def split(self, budget: float, k: int) -> float:
        pure = budget * k / _N_SPLITS
        slack = _SLACK_IN_SPLIT * budget
        if self.pure + self.spent.eps_slack > pure or self.spent.eps_slack > slack:
            return math.inf
        left = _SPLITS / (_N_SPLITS - 1) * self.usable * math.exp(-slack / 2)
        if left == 0:
            return math.inf
        return pure + self.gdp_epsilon(math.sqrt(self.mu2), left)


def pure_mu(eps: float) -> float:
    """Return mu such that every mechanism of pure eps is mu-GDP, rounded up.

    ``Phi(-mu/2) = 1/(1 + exp(eps))``; never more than ``sqrt(pi/2) eps``.
    """
    straight = math.sqrt(math.pi / 2) * eps
    if eps < _SMALL_EPS:
        return straight
    if eps > 700:
        return math.inf if math.isinf(eps) else straight
    exact = -2 * NormalDist().inv_cdf(math.exp(-eps) / (1 + math.exp(-eps)))
    return min(straight, exact * (1 + _ROUNDING))


def pure_renyi(eps: float, order: float) -> float:
    """Return the Renyi divergence of randomised response, the worst of a pure eps."""
    quadratic = order * eps * eps / 2  # Bun and Steinke 2016, Proposition 3.3
    if eps < _SMALL_EPS:
        return min(eps, quadratic)
    gain = math.log1p(math.exp(-(2 * order - 1) * eps)) - math.log1p(math.exp(-eps))
    exact = eps + gain / (order - 1)
    return min(eps, quadratic, exact + _ROUNDING * eps)


@functools.lru_cache(maxsize=512)
def sampled_renyi(z: float, rate: float, order: float) -> float:
    """Return the Renyi divergence of one Poisson sampled Gaussian round.

    At whole orders it is the sum of Mironov et al. (2019); ``(a-1) D_a`` is
    convex in a, and between whole orders it is bounded by its chord.
    """
    plain = order / (2 * z * z)
    if rate == 1 or not math.isfinite(plain):
        return plain
    below = math.floor(order)
    low, high = _log_moment(z, rate, below), _log_moment(z, rate, below + 1)
    weight = order - below
    chord = (1 - weight) * low + weight * high
    return min(plain, max(chord, 0.0) * (1 + _ROUNDING) / (order - 1))


def _log_moment(z: float, rate: float, order: int) -> float:
    """Logarithm of the mean of the likelihood ratio to the power of a whole order."""
    import numpy as np

    if order <= 1:
        return 0.0
    k = np.arange(order + 1, dtype=np.float64)
    steps = np.log(order - k[:-1]) - np.log(k[1:])
    choose = np.concatenate([[0.0], np.cumsum(steps)])
    terms = choose + k * math.log(rate) + (order - k) * math.log1p(-rate)
    terms += k * (k - 1) / (2 * z * z)
    top = float(terms.max())
    # Below 1 only by rounding of what is nearly a sum of binomial chances.
    return top + math.log(math.fsum(np.exp(terms - top))) + _ROUNDING


def renyi_epsilon(divergence: float, order: float, delta: float) -> float:
    """Return eps at `delta` of a Renyi divergence (Canonne et al. 2020, Prop. 12)."""
    less = order * math.log1p(-1 / order) - math.log(order - 1) - math.log(delta)
    return max(0.0, divergence + less / (order - 1))


@functools.lru_cache(maxsize=512)
def renyi_order(eps: float, delta: float) -> float:
    """Return the order at which a budget admits the largest zCDP parameter."""

    def room(t: float) -> float:
        order = 1 + math.exp(t)
        return (eps - renyi_epsilon(0.0, order, delta)) / order

    low, high = math.log(_LEAST_ORDER - 1), math.log(_LARGEST_ORDER)
    for _ in range(200):
        one, two = low + (high - low) / 3, high - (high - low) / 3
        if room(one) < room(two):
            low = one
        else:
            high = two
    return 1 + math.exp((low + high) / 2)
