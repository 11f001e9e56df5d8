"""An engine that reaches clients by messages, and a transport in this process."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from skfedcal._params import check_flag
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.exceptions import (
    FaultyClientWarning,
    FaultySumError,
    NotEnoughClientsError,
)
from skfedcal.federation.backends import Positions, check_engine
from skfedcal.federation.endpoint import (
    PartialSum,
    Request,
    WordPlan,
    Words,
    add_words,
    request_words,
)
from skfedcal.federation.policy import SitePolicy
from skfedcal.federation.site import Site
from skfedcal.federation.wire import request_hash, terms_hash, write_request

if TYPE_CHECKING:
    from skfedcal.federation.masking_server import MaskedRounds
    from skfedcal.federation.roster import Operator

Message = dict[str, Any]
Letter = tuple[Message, Mapping[str, Any]]
Reply = tuple[Message, Mapping[str, Any]]


class GroupReply(NamedTuple):
    """Sum of the answers of several clients, from an aggregator between them and here.

    Only a transport creates it: a site must not answer for others.
    """

    message: Message
    arrays: Mapping[str, Any]
    clients: Sequence[Hashable]


_NO_ANSWER = "did not answer"
# Longest text of a site that is shown or kept.
_MAX_TEXT = 500


class PreflightEnd(Exception):
    """A run that only asked whether sites would answer.

    faults: Why sites would not, by name.
    least: Number of sites that the run needs.
    """

    def __init__(self, faults: Mapping[Hashable, str], least: int) -> None:
        super().__init__(f"{len(faults)} sites would not answer")
        self.faults, self.least = faults, least


class Transport(Protocol):
    """Carries messages to sites and brings back what they reply.

    A message is a flat dict of strings, numbers, bytes and lists of one of these, with
    named numpy arrays beside it. How long an exchange may take is up to the transport.

    Examples
    --------
    >>> from skfedcal import make_federation
    >>> from skfedcal.federation import InProcessTransport, Site, SiteRows
    >>> fed = make_federation(n_clients=2, n_samples=100, random_state=0)
    >>> sites = {name: Site(name, SiteRows(*rows))
    ...          for name, rows in zip("ab", fed.clients)}
    >>> transport = InProcessTransport(sites)
    >>> replies = transport.call("hello", {name: ({}, {}) for name in transport.ids()})
    >>> sorted(replies)
    ['a', 'b']
    """

    def ids(self) -> Sequence[Hashable]:
        """Names of the sites that can be asked, always in the same order."""

    def call(
        self, kind: str, letters: Mapping[Hashable, Letter]
    ) -> Mapping[Hashable, Reply | GroupReply | str]:
        """One exchange: send each site its letter and wait for the replies.

        Parameters
        ----------
        kind : {'hello', 'check', 'answer', 'keys', 'shares', 'masked', 'survivors',
            'unmask'}
            For `Site.handle`.
        letters : mapping of name to (message, arrays)
            What each site gets.

        Returns
        -------
        mapping of name to (message, arrays) or str
            Replies; a text says why there is none. Sites that did not answer in time
            are left out. Where aggregators add up words, a `GroupReply` under the name
            of one of its clients.
        """


class MessageBackend:
    """Sums over sites that a transport reaches.

    Parameters
    ----------
    transport : Transport
        Carries the messages.
    secure : bool, default=False
        Whether sites mask their answers, so that only sums can be read.
    simulate : bool, default=False
        Whether all sites are in this process, so that the seed of their noise may be
        sent to them.
    operator : Operator, default=None
        Signs what sites are asked, where their roster names an operator.
    threshold, dropout, colluders : optional
        How masked sums are planned; see `plan_masks`.

    Attributes
    ----------
    faults : dict
        Faults in the last sum, by name of the site.

    Examples
    --------
    >>> from skfedcal import make_federation
    >>> from skfedcal.federation import (
    ...     MessageBackend, InProcessTransport, Site, SitePolicy, SiteRows)
    >>> fed = make_federation(n_clients=4, n_samples=600, n_classes=4, random_state=0)
    >>> policy = SitePolicy(allow_plain=True)
    >>> sites = {name: Site(name, SiteRows(*rows), policy=policy)
    ...          for name, rows in zip("abcd", fed.clients)}
    >>> MessageBackend(InProcessTransport(sites)).ids()
    ['a', 'b', 'c', 'd']
    """

    def __init__(
        self,
        transport: Transport,
        *,
        secure: bool = False,
        simulate: bool = False,
        operator: Operator | None = None,
        **masks: Any,
    ) -> None:
        check_engine(transport, "transport")
        self.transport, self.operator = transport, operator
        self.secure = check_flag("secure", secure)
        self.simulate = check_flag("simulate", simulate)
        self.faults: dict[Hashable, str] = {}
        self._masks = masks
        # A name that no site has seen: an old message is of another run.
        self._run = secrets.token_hex(16)
        self._n_sums = 0
        # Cohorts that were asked, their rounds that have keys, and who was lost last.
        self._cohorts: set[tuple[Hashable, ...]] = set()
        self._prepared: dict[tuple[Hashable, ...], _Prepared] = {}
        self._lost: set[Hashable] = set()

    def ids(self) -> Sequence[Hashable]:
        return self.transport.ids()

    def total(self, request: Request, cohort: Positions) -> PartialSum:
        """Sum of the answers of the clients at these positions of `ids`.

        Clients that do not answer, or whose answer is invalid, are left out and named
        in a warning.

        Raises
        ------
        NotEnoughClientsError
            If too few are left; it names the missing ones. Nothing was opened.
        FaultySumError
            If a masked sum is out of bounds: at least one site sent an invalid answer.
        """
        names = list(self.ids())
        asked = {names[i]: int(i) for i in cohort}
        request.check_clients(len(asked))
        if request.n_min and not self.secure and not self.simulate:
            raise ValueError(
                "Clients that add shares of noise must mask their answers, or the "
                "server would see each answer with only its own noise share. Pass "
                "FederatedRunner(secure=True)."
            )
        request = replace(request, n_clients=max(request.n_clients, len(names)))
        words = request_words(request, masked=self.secure)
        self.faults = {}
        exchange = _Exchange(self, request, asked)
        try:
            if self.secure:
                answer = self._masked(exchange, words)
            else:
                answer = self._plain(exchange, words)
            request.check_clients(answer.n_clients)
        except NotEnoughClientsError as error:
            raise NotEnoughClientsError(
                f"{error}{format_faults(self.faults)}"
            ) from error
        if self.faults:
            warnings.warn(
                f"The sum does not include all clients.{format_faults(self.faults)}",
                FaultyClientWarning,
                stacklevel=2,
            )
        faults = {str(name): text for name, text in self.faults.items()}
        return replace(answer, faults=faults)

    def check_sites(self, request: Request, n_rounds: int, min_clients: int) -> None:
        """Ask sites whether they would answer, before any row is used and paid for.

        Only over a transport that says by ``preflight = True`` that its sites know the
        message; ``preflight = 'only'`` ends the run here.

        Parameters
        ----------
        request : Request
            First request of the run.
        n_rounds : int
            Rounds of the run that are left.
        min_clients : int
            Least number of sites of a sum.

        Raises
        ------
        NotEnoughClientsError
            If too few sites would answer; it has the reason of each.
        PreflightEnd
            With ``preflight = 'only'``.
        """
        preflight = getattr(self.transport, "preflight", False)
        if not preflight:
            return
        names = list(self.ids())
        request = replace(request, n_clients=max(request.n_clients, len(names)))
        text = write_request(request)[0]
        message: Message = {"masked": self.secure, "rounds": n_rounds}
        if self.operator is not None:
            about = request_hash(text)
            message |= self.operator.sign_request("check", message, about)
        message["request"] = text
        found = self.transport.call("check", {name: (message, {}) for name in names})
        faults = {name: wrong_reply(found.get(name, _NO_ANSWER)) for name in names}
        faults = {name: why for name, why in faults.items() if why}
        least = max(min_clients, request.n_min, 1)
        if self.secure:
            from skfedcal.federation.mask_plan import plan_masks

            colluders = request.max_colluders
            plan = plan_masks("", 0, len(names), max_colluders=colluders, **self._masks)
            least = max(least, plan.threshold if plan.complete else 1)
        if preflight == "only":
            raise PreflightEnd(faults, least)
        if len(names) - len(faults) < least:
            raise NotEnoughClientsError(
                f"{len(names) - len(faults)} of {len(names)} sites would answer, at "
                f"least {least} must.{format_faults(faults)} No row was used and "
                "nothing was paid."
            )

    def _plain(self, exchange: _Exchange, words: WordPlan) -> PartialSum:
        total, n_clients = words.zeros(), 0
        exchange.base = {"run": self._run, "round": self._next_sums(1)}
        replies = exchange("answer", {name: {} for name in exchange.asked}, full=True)
        for name, (message, arrays) in replies.items():
            n_in = len(exchange.included[name])
            fault = words.fault(arrays, n_in)
            if any(message.get(key) != value for key, value in exchange.base.items()):
                fault = "answered another round"
            if fault:
                self.faults[name] = fault
                continue
            add_words(total, arrays)
            n_clients += n_in
        answer = words.decode(total, n_clients)
        if exchange.request.unit != "example":
            return answer
        # Sites do not show their numbers of rows: the public total, of those who
        # answered.
        share = n_clients / max(exchange.request.n_clients, 1)
        return replace(answer, n_units=round(exchange.request.n_units * share))

    def _masked(self, exchange: _Exchange, words: WordPlan) -> PartialSum:
        names = tuple(exchange.asked)
        number = {name: i for i, name in enumerate(names)}

        def by_number(stage: str, messages: Mapping[int, Message]) -> dict[int, Any]:
            letters = {names[i]: message for i, message in messages.items()}
            full = stage in ("keys", "masked")
            replies = exchange(stage, letters, full=full)
            return {number[name]: reply for name, reply in replies.items()}

        def inside(client: int) -> list[int]:
            return sorted(number[name] for name in exchange.included[names[client]])

        # Rounds are used up even if one fails: it is prepared again then.
        ready = self._prepared.pop(names, None)
        terms = terms_hash(exchange.text)
        if ready is None or ready.terms != terms:
            ready = self._prepare(exchange, names, terms, by_number)
        rounds, n_min = ready.rounds, exchange.request.n_min
        self.faults |= ready.faults
        exchange.base = {"run": rounds.plan.run, "round": rounds.next}
        found = rounds.sum(
            by_number,
            words.shapes,
            n_min=n_min,
            inside=inside,
            about=request_hash(exchange.text),
        )
        self.faults |= {names[i]: text for i, text in found.faults.items()}
        self._keep(names, ready, {names[i] for i in found.clients})
        fault = words.fault(found.words, len(found.clients))
        if fault:
            raise FaultySumError(
                f"The masked sum of round {exchange.request.round_index} over "
                f"{len(found.clients)} sites cannot be a sum of honest answers (it "
                f"{fault}): at least one site is faulty or dishonest. Nothing of this "
                "round is released; the debit is not refunded. "
                "skfedcal.federation.find_faulty_sites identifies the site without "
                "using any rows."
            )
        return words.decode(found.words, len(found.clients))

    def _prepare(
        self,
        exchange: _Exchange,
        names: tuple[Hashable, ...],
        terms: bytes,
        by_number: Callable[[str, Mapping[int, Message]], dict[int, Any]],
    ) -> _Prepared:
        """Keys and shares of the rounds that are left, in two exchanges."""
        from skfedcal.federation.mask_plan import plan_masks
        from skfedcal.federation.masking_server import MaskedRounds

        request = exchange.request
        # A cohort that is drawn by chance is not asked again.
        again = len(names) == len(self.ids()) or names in self._cohorts
        self._cohorts.add(names)
        left = request.n_rounds - request.round_index if again else 1
        # A site has keys of one setup at a time.
        others = self._prepared.items()
        self._prepared = {k: v for k, v in others if not set(k) & set(names)}
        plan = plan_masks(
            self._run,
            self._n_sums,
            len(names),
            # Sites elsewhere may hold rosters, and do not trust the server then.
            active=not self.simulate,
            max_colluders=request.max_colluders,
            n_rounds=left,
            **self._masks,
        )
        self._next_sums(plan.n_rounds)
        plan = replace(plan, about=terms)
        exchange.base = {"run": plan.run, "round": plan.round_index}
        exchange.terms = plan.to_message()
        rounds = MaskedRounds(by_number, plan, n_min=request.n_min, names=names)
        return _Prepared(terms, rounds, dict(self.faults))

    def _keep(
        self, names: tuple[Hashable, ...], ready: _Prepared, alive: set[Hashable]
    ) -> None:
        """Keep the keys of later rounds, unless a site was lost that may return."""
        lost = set(names) - alive
        if lost - self._lost:
            # It may have been started again, and would refuse a run that it answered.
            self._run, self._n_sums = secrets.token_hex(16), 0
        elif ready.rounds.next in ready.rounds.plan.rounds:
            self._prepared[names] = ready
        self._lost = (self._lost - set(names)) | lost

    def _next_sums(self, n_sums: int) -> int:
        """Numbers of sums that no other sum of the run has; the first of them."""
        first, self._n_sums = self._n_sums, self._n_sums + n_sums
        return first


class _Prepared(NamedTuple):
    """Rounds that have keys: what is asked in them, and who was left out of them."""

    terms: bytes
    rounds: MaskedRounds
    faults: dict[Hashable, str]


class _Exchange:
    """Messages of one sum, and the faults of clients that do not answer."""

    def __init__(
        self,
        backend: MessageBackend,
        request: Request,
        asked: Mapping[Hashable, int],
    ) -> None:
        self.backend, self.request, self.asked = backend, request, asked
        # Run and round of messages; and all terms of masked rounds.
        self.base: Message = {}
        self.terms: Message = {}
        # Clients whose answers are in a reply: its sender, and more from an aggregator.
        self.included: dict[Hashable, list[Hashable]] = {}
        self._seeded = backend.simulate and request.entropy is not None
        self.text, self._arrays = write_request(request, simulate=backend.simulate)

    def __call__(
        self, kind: str, messages: Mapping[Hashable, Message], full: bool = False
    ) -> dict[Hashable, Reply]:
        """Replies that can be read; `full` letters carry the request."""
        letters: dict[Hashable, Letter] = {}
        shown = {"request": self.text} if full else {}
        if full and self.backend.operator is not None:
            terms = self.terms if kind == "keys" else self.base
            about = request_hash(self.text)
            shown |= self.backend.operator.sign_request(kind, terms, about)
        for name, message in messages.items():
            letter, arrays = {**message, **self.base, **shown}, {}
            if full and kind != "keys":
                arrays = self._arrays
                if self._seeded:
                    letter["position"] = self.asked[name]
            letters[name] = (letter, arrays)
        return self._sorted_out(
            kind, self.backend.transport.call(kind, letters), letters
        )

    def _sorted_out(
        self, kind: str, found: Mapping[Hashable, Any], asked: Mapping[Hashable, Letter]
    ) -> dict[Hashable, Reply]:
        """Valid replies of one exchange; faults of the others are recorded."""
        replies: dict[Hashable, Reply] = {}
        faults: dict[Hashable, str] = {}
        inside: set[Hashable] = set()
        for name in asked:
            reply = found.get(name, _NO_ANSWER)
            fault = wrong_reply(reply)
            names: list[Hashable] = [name]
            if not fault and isinstance(reply, GroupReply):
                names = list(reply.clients)
                fault = "" if name in names else "sent a sum of other clients"
            new = len({*inside, *names}) == len(inside) + len(names)
            if not fault and not (new and asked.keys() >= set(names)):
                fault = "sent a sum of other clients"
            if fault:
                faults[name] = f"{fault} ({kind})"
                continue
            inside |= set(names)
            self.included[name] = names
            replies[name] = (reply[0], reply[1])
        left_out = {name: why for name, why in faults.items() if name not in inside}
        self.backend.faults |= left_out
        return replies


def wrong_reply(reply: Any) -> str:
    """Why a reply cannot be used; empty if it can."""
    if isinstance(reply, str):
        return one_line(reply) or "sent an empty text"
    size = 3 if isinstance(reply, GroupReply) else 2
    well_formed = isinstance(reply, tuple) and len(reply) == size
    if not well_formed or not all(isinstance(part, Mapping) for part in reply[:2]):
        return "sent no message"
    if "refused" in reply[0]:
        return f"refused: {one_line(reply[0]['refused'])}"
    if not all(isinstance(array, np.ndarray) for array in reply[1].values()):
        return "sent no arrays"
    return ""


def one_line(text: object) -> str:
    """Text of somebody else as one line, for people: no control characters."""
    line = str(text)[:_MAX_TEXT]
    return "".join(c if c.isprintable() else " " for c in line)


def format_faults(faults: Mapping[Hashable, str]) -> str:
    """Format the faults of clients as a text that follows an error message."""
    if not faults:
        return ""
    return " " + "; ".join(f"{name!r} {why}" for name, why in faults.items()) + "."


def sum_words(parts: Sequence[Mapping[str, Any]]) -> Words:
    """Sum of the words of several clients, or of sums of them: what may be passed up.

    Words wrap around, so that any order and any tree of sums gives the same bits.
    """
    total: Words = {name: np.array(value) for name, value in parts[0].items()}
    for part in parts[1:]:
        add_words(total, part)
    return total


class _SimulatedPolicy(SitePolicy):
    """Policy of a site whose rows are in this process already."""

    def _check_listing(self, algorithm: object) -> None:
        """Sums that list single rows show nothing new."""


# A simulation is told all seeds, and may look at single answers.
_SIMULATED = _SimulatedPolicy(
    min_clients=1, allow_plain=True, allow_seeded_noise=True, min_neighbours=2
)

Hook = Callable[[str, Hashable, Reply], Reply | str | None]


class InProcessTransport:
    """Transport to sites in this process: for simulations, and for tests of faults.

    Parameters
    ----------
    sites : FederatedDataset, or mapping of name to Site
        Clients, each of which becomes a site that answers every request; or sites.
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
