"""One site: everything that leaves it goes through `Site.handle`.

It reads a request, checks it against what the algorithm announces and against its own
policy, pays, computes on its own rows, and sends words: masked, or plain where its
policy allows that. Needs numpy, and `cryptography` for masks.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from skfedcal._version import __version__
from skfedcal.data._dataset import FederatedDataset
from skfedcal.exceptions import (
    BudgetExceededError,
    SecureAggregationError,
    SiteRefusalError,
)
from skfedcal.federation._endpoint import Request, respond
from skfedcal.federation._plain import WireError
from skfedcal.federation._policy import Cost, SitePolicy
from skfedcal.federation._reading import SiteRows
from skfedcal.federation._wire import FORMAT, read_request, request_hash
from skfedcal.federation._words import Words, request_words
from skfedcal.privacy._randomizers import LocalReports, OneHotRows

if TYPE_CHECKING:
    from skfedcal.federation._masking_client import MaskingClient
    from skfedcal.federation._roster import Roster, SiteKey
    from skfedcal.privacy._ledger import PrivacyLedger

Message = dict[str, Any]
Reply = tuple[Message, Words]

# What went wrong at a site is for the site; the server gets a short text.
_log = logging.getLogger("skfedcal.site")

# Entries of the state that are not those of the masks.
_OWN = ("request", "plain_runs", "plain_rounds")


class Site:
    """A client of a federation that answers messages.

    Parameters
    ----------
    name : hashable
        Name of the site, the same in all runs; a string in a deployment.
    rows : SiteRows or FederatedDataset
        Its scores and labels; or, in a simulation, one client whose rows are ready for
        the algorithm.
    policy : SitePolicy, default=None
        Conditions under which it answers; None is ``SitePolicy()``.
    site_key : SiteKey, default=None
        Signs the keys of masked rounds.
    roster : Roster, default=None
        Sites whose keys are accepted; None trusts the server to pass on true keys.
    ledger : PrivacyLedger, default=None
        Account of this site, debited before an answer leaves it.
    state : mapping, default=None
        What an earlier message left behind.

    Attributes
    ----------
    state : dict
        Plain numbers, strings, bytes and lists; secret. A process that handles one
        message keeps it for the next one.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal.federation import Site, SiteRows
    >>> rows = SiteRows(np.array([[2.0, 0.0], [0.5, 1.0]]), np.array([0, 1]))
    >>> Site("hospital-a", rows).handle("hello", {}, {})[0]["name"]
    'hospital-a'
    """

    def __init__(
        self,
        name: Hashable,
        rows: SiteRows | FederatedDataset,
        *,
        policy: SitePolicy | None = None,
        site_key: SiteKey | None = None,
        roster: Roster | None = None,
        ledger: PrivacyLedger | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(rows, FederatedDataset) and len(rows) != 1:
            raise ValueError(f"A site is one client; got rows of {len(rows)}.")
        if site_key is not None and site_key.name != name:
            raise ValueError(f"The key of {site_key.name!r} is not that of {name!r}.")
        self.name = name
        self.policy = SitePolicy() if policy is None else policy
        self.state: Message = dict(state or {})
        self._rows = rows
        self._site_key, self._roster, self._ledger = site_key, roster, ledger

    def handle(self, kind: str, message: Message, arrays: Mapping[str, Any]) -> Reply:
        """Answer one message.

        Parameters
        ----------
        kind : {'hello', 'answer', 'keys', 'shares', 'masked', 'unmask'}
            What is asked: who it is, a plain answer, or a stage of a masked sum.
        message : dict
            Plain values.
        arrays : mapping of str to ndarray
            The broadcast, for 'answer' and 'masked'.

        Returns
        -------
        message, arrays : dict
            The reply. A refusal is ``{'refused': text}``; the text holds nothing of the
            rows.
        """
        try:
            if kind == "hello":
                return self._hello(), {}
            if kind == "answer":
                return self._plain(message, arrays)
            if kind in ("keys", "shares", "masked", "unmask"):
                return self._masked(kind, message, arrays)
            raise SiteRefusalError(f"it knows no message of the kind {kind!r}")
        except (SiteRefusalError, SecureAggregationError, WireError) as error:
            _log.warning("refused %r: %s", kind, error)
            return {"refused": str(error)}, {}
        except BudgetExceededError as error:
            _log.warning("refused %r: %s", kind, error)
            return {"refused": "its budget does not cover the answer"}, {}
        except Exception as error:
            # The text of an unforeseen error may hold values of rows.
            _log.exception("failed at %r", kind)
            name = type(error).__name__
            return {"refused": f"it could not answer {kind!r} ({name})"}, {}

    def _hello(self) -> Message:
        return {"name": str(self.name), "format": FORMAT, "version": __version__}

    def _plain(self, message: Message, arrays: Mapping[str, Any]) -> Reply:
        request = read_request(message.get("request"), arrays)
        cost = self.policy.check(request, masked=False)
        check_codec(request)
        run, index = _run_and_round(message)
        runs = self.state.get("plain_runs", ())
        seen = dict(zip(runs, self.state.get("plain_rounds", ()), strict=True))
        if index <= seen.get(run, -1):
            raise SiteRefusalError(f"it answered round {index} of run {run!r} before")
        # Before anything is computed: a message that fails is not tried again.
        seen[run] = index
        self.state |= {"plain_runs": list(seen), "plain_rounds": list(seen.values())}
        return {"run": run, "round": index}, self._words(request, cost, message)

    def _masked(self, kind: str, message: Message, arrays: Mapping[str, Any]) -> Reply:
        own = {name: self.state[name] for name in _OWN if name in self.state}
        rest = {name: v for name, v in self.state.items() if name not in own}
        client = self._client(rest)
        words: Words = {}
        try:
            if kind == "keys":
                text = self._checked_text(message)
                # By its own reading: keys fit together only where all were asked the
                # same.
                reply = client.keys(message, request_hash(text))
                # Not before: a refused message must not change the round under way.
                own["request"] = text
            elif kind == "masked":
                reply, words = {}, self._masked_words(client, own, message, arrays)
            else:
                reply = getattr(client, kind)(message)
        finally:
            if kind == "unmask":
                own.pop("request", None)
            self.state = {**client.state, **own}
        return reply, words

    def _client(self, state: Message) -> MaskingClient:
        from skfedcal.federation._masking_client import MaskingClient

        return MaskingClient(
            state,
            site_key=self._site_key,
            roster=self._roster,
            min_clients=self.policy.min_clients,
        )

    def _checked_text(self, message: Message) -> str:
        """Text of the request of a round, refused before keys are made."""
        from skfedcal.federation._mask_plan import MaskPlan

        request = read_request(message.get("request"))
        self.policy.check(request, masked=True)
        plan = MaskPlan.from_message(message)
        self.policy.check_masks(plan)
        if self._roster is not None and plan.n_clients > len(self._roster.sites):
            # Above 50 clients it sees a part of them only, and would count on the
            # noise of sites that are not there.
            raise SiteRefusalError(
                f"the round has {plan.n_clients} clients, its roster "
                f"{len(self._roster.sites)} sites"
            )
        if plan.n_clients > request.n_clients:
            raise SiteRefusalError(
                f"the words are wide enough for {request.n_clients} clients, the round "
                f"has {plan.n_clients}"
            )
        return str(message["request"])

    def _masked_words(
        self,
        client: MaskingClient,
        own: Message,
        message: Message,
        arrays: Mapping[str, Any],
    ) -> Words:
        if "request" not in own:
            raise SiteRefusalError("no round is under way")
        request = read_request(own["request"], arrays)
        cost = self.policy.check(request, masked=True)
        check_codec(request)
        return client.masked(
            message, lambda: self._words(request, cost, message), request.n_min
        )

    def _words(self, request: Request, cost: Cost, message: Message) -> Words:
        """Pay, then compute: noise that was drawn is never given away for nothing."""
        rows = self._clients(request)
        plan = request_words(request)
        position = None
        if request.entropy is not None:
            position = np.array([int(message["position"])])
        self._pay(request, cost, message)
        answer = respond(request, rows, position)
        return plan.encode(answer)

    def _clients(self, request: Request) -> FederatedDataset:
        if isinstance(self._rows, FederatedDataset):
            if request.reading is not None:
                raise SiteRefusalError("its rows are ready, and cannot be read anew")
            return self._rows
        if request.reading is None:
            raise SiteRefusalError("the request does not say what rows and labels mean")
        return request.reading.dataset(self._rows, self.name)

    def _pay(self, request: Request, cost: Cost, message: Message) -> None:
        if self._ledger is None or cost.event is None:
            return
        run, index = _run_and_round(message)
        by_word = cost.kind == "central"
        self._ledger.debit(
            cost.event,
            label=type(request.algorithm).__name__,
            mode="secure" if request.entropy is None else "simulation",
            # A claim is about a whole run; an answer with noise of its own pays for
            # itself, however often it is asked for.
            run_id=f"claim {request.run}" if by_word else None,
            details={
                "unit": request.unit,
                "noise": cost.kind,
                "run": run,
                "round": index,
            },
        )


def check_codec(request: Request) -> None:
    """Refuse a code that lets more out than the algorithm announces.

    Raises
    ------
    SiteRefusalError
        Naming the block.
    """
    spec = request.algorithm.spec(request.broadcast)
    blocks = request.codec.blocks
    if set(spec) != set(blocks):
        raise SiteRefusalError(
            f"the request writes the blocks {sorted(blocks)}, the algorithm sends "
            f"{sorted(spec)}"
        )
    reports = isinstance(request.randomizer, (LocalReports, OneHotRows))
    if reports and request.unit != "client":
        raise SiteRefusalError("reports are of whole clients")
    for name, announced in spec.items():
        asked = blocks[name].spec
        if replace(asked, clip=announced.clip, norm=announced.norm) != announced:
            raise SiteRefusalError(
                f"block {name!r} is written as {asked.kind} of shape {asked.shape}, "
                f"the algorithm sends {announced.kind} of shape {announced.shape}"
            )
        # One number has the same bound in both norms.
        if asked.norm != announced.norm and announced.size > 1:
            raise SiteRefusalError(f"block {name!r} is bounded in another norm")
        if announced.clip is None or reports:
            continue  # a report is of one entry, which is checked
        if asked.clip is None or asked.clip > announced.clip:
            raise SiteRefusalError(
                f"block {name!r} is bounded by {asked.clip}, the algorithm by "
                f"{announced.clip}"
            )


def _run_and_round(message: Message) -> tuple[str, int]:
    run, index = message.get("run"), message.get("round")
    if not isinstance(run, str) or type(index) is not int or index < 0:
        raise SiteRefusalError("the message names no run and round")
    return run, index
