"""Sites in this process, behind the same messages as those far away."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from skfedcal.data._dataset import FederatedDataset
from skfedcal.federation._messages import Letter, Reply
from skfedcal.federation._policy import SitePolicy
from skfedcal.federation._site import Site

# A simulation is told all seeds, and may look at single answers.
_SIMULATED = SitePolicy(
    min_clients=1, allow_plain=True, allow_seeded_noise=True, min_neighbours=2
)

Hook = Callable[[str, Hashable, Reply], Reply | str | None]


class InProcessTransport:
    """Transport to sites in this process: for simulations, and for tests of faults.

    Parameters
    ----------
    sites : FederatedDataset, or mapping of name to Site
        Clients, each of which becomes a site that answers everything; or sites.
    n_jobs : int, default=None
        Threads; None is one.
    on_reply : callable, default=None
        ``on_reply(kind, name, reply)`` gives what arrives in place of a reply: another
        one, a text, or None for nothing.

    Examples
    --------
    >>> from skfedcal import make_federation
    >>> from skfedcal.federation import InProcessTransport, Site, SiteRows
    >>> fed = make_federation(n_clients=3, n_samples=60, random_state=0)
    >>> sites = {n: Site(n, SiteRows(*rows)) for n, rows in zip("abc", fed.clients)}
    >>> InProcessTransport(sites).ids()
    ['a', 'b', 'c']
    """

    def __init__(
        self,
        sites: FederatedDataset | Mapping[Hashable, Site],
        *,
        n_jobs: int | None = None,
        on_reply: Hook | None = None,
    ) -> None:
        if isinstance(sites, FederatedDataset):
            sites = {
                name: Site(name, sites.slice(i, i + 1), policy=_SIMULATED)
                for i, name in enumerate(sites.names)
            }
        if not isinstance(sites, Mapping) or not all(
            hasattr(site, "handle") for site in sites.values()
        ):
            raise TypeError(
                f"sites is of type {type(sites).__name__}; pass a FederatedDataset or "
                "a mapping of name to Site."
            )
        self.sites = dict(sites)
        self._n_jobs, self._on_reply = n_jobs, on_reply

    def ids(self) -> Sequence[Hashable]:
        return list(self.sites)

    def call(
        self, kind: str, letters: Mapping[Hashable, Letter]
    ) -> dict[Hashable, Reply | str]:
        names = list(letters)
        if self._n_jobs in (None, 1):
            replies: list[Any] = [
                self._one(kind, name, letters[name]) for name in names
            ]
        else:
            from joblib import Parallel, delayed

            replies = Parallel(n_jobs=self._n_jobs, backend="threading")(
                delayed(self._one)(kind, name, letters[name]) for name in names
            )
        found = zip(names, replies, strict=True)
        return {name: reply for name, reply in found if reply is not None}

    def _one(self, kind: str, name: Hashable, letter: Letter) -> Reply | str | None:
        message, arrays = letter
        reply: Reply | str | None = self.sites[name].handle(kind, dict(message), arrays)
        if self._on_reply is not None:
            reply = self._on_reply(kind, name, reply)  # type: ignore[arg-type]
        return reply
