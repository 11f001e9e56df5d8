"""Find the sites that corrupt masked sums, without using any rows."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from itertools import combinations, islice
from typing import Any

import numpy as np

from skfedcal._params import check_integer
from skfedcal.contract import Sums
from skfedcal.exceptions import (
    FaultyClientWarning,
    NotEnoughClientsError,
    SecureAggregationError,
)
from skfedcal.federation.endpoint import Request
from skfedcal.federation.reading import Reading
from skfedcal.federation.self_test_rounds import SelfTest
from skfedcal.privacy.mechanisms import ExactSum

# Cohorts that are tried before the search is given up.
_MAX_COHORTS = 500


def find_faulty_sites(sites: Any, *, min_clients: int = 3) -> dict[Hashable, str]:
    """Identify sites that corrupt masked sums.

    Every site is asked for the same public numbers, in masked sums over different
    cohorts. No site looks at its rows for that, so that nothing can leak and no budget
    is spent. A cohort whose sum is right has honest members; each other site is then
    tried together with that cohort.

    Parameters
    ----------
    sites : RemoteClients or Transport
        Sites to test.
    min_clients : int, default=3
        Sites of a cohort, at least: the largest ``min-clients`` of their policies.

    Returns
    -------
    dict
        What was found, by name of the site; empty if all sums are right.

    Raises
    ------
    NotEnoughClientsError
        If no cohort of `min_clients` sites has the correct sum.

    Notes
    -----
    A site that answers this test and sends false numbers in a fit is not found. Leave
    sites out of the fit in turn; that is paid from the budgets of the others.

    Examples
    --------
    >>> from skfedcal import make_federation
    >>> from skfedcal.federation import (
    ...     InProcessTransport, RemoteClients, Site, SiteRows, find_faulty_sites)
    >>> fed = make_federation(n_clients=4, n_samples=400, n_classes=3, random_state=0)
    >>> sites = {n: Site(n, SiteRows(*rows)) for n, rows in zip("abcd", fed.clients)}
    >>> def garbage(kind, name, reply):
    ...     if kind == "masked" and name == "c":
    ...         reply = reply[0], {k: w + 2**30 for k, w in reply[1].items()}
    ...     return reply
    >>> remote = RemoteClients(InProcessTransport(sites, on_reply=garbage))
    >>> find_faulty_sites(remote)
    {'c': 'spoils masked sums'}
    """
    from skfedcal.federation.messages import MessageBackend

    check_integer("min_clients", min_clients, 1)
    engine = getattr(sites, "_engine", sites)
    operator = getattr(sites, "_operator", None)
    backend = MessageBackend(engine, secure=True, operator=operator)
    test = _Test(backend)
    names = list(backend.ids())
    everybody = range(len(names))
    if test.passes(everybody):
        return {}
    honest = _honest_cohort(test, len(names), max(3, min_clients))
    found: dict[Hashable, str] = {}
    for i in everybody:
        if i in honest or test.passes([*honest, i]):
            continue
        found[names[i]] = test.faults.get(names[i], "spoils masked sums")
    return found


def _honest_cohort(test: _Test, n_sites: int, size: int) -> Sequence[int]:
    """Cohort whose sum is right."""
    # Disjoint ones first: with many sites and few faulty ones the first is right.
    disjoint = [range(i, i + size) for i in range(0, n_sites - size + 1, size)]
    tried = [*disjoint, *islice(combinations(range(n_sites), size), _MAX_COHORTS)]
    for cohort in tried:
        if test.passes(cohort):
            return cohort
    raise NotEnoughClientsError(
        f"None of {len(tried)} cohorts of {size} among {n_sites} sites has the correct "
        "sum: too many sites are faulty or do not answer. Ask each of them to run "
        "'skfedcal flower doctor --site site.toml'."
    )


class _Test:
    """Masked sums of public numbers over cohorts."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.faults: dict[Hashable, str] = {}

    def passes(self, cohort: Sequence[int]) -> bool:
        """Whether all of these sites answer and their sum is right."""
        algorithm, mechanism = SelfTest(), ExactSum()
        codec = mechanism.codec(algorithm.spec({}))
        request = Request(algorithm, {}, codec, reading=Reading((0, 1)))
        positions = np.array(cohort)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FaultyClientWarning)
                answer = self.backend.total(request, positions)
        except (SecureAggregationError, NotEnoughClientsError):
            self.faults |= self.backend.faults
            return False
        self.faults |= self.backend.faults
        total: Sums = mechanism.release(answer.total, codec, 0)
        right = algorithm.update(algorithm.init(2), total, len(cohort)).right
        return answer.n_clients == len(cohort) and right
