"""One site: everything that leaves it goes through `Site.handle`.

It admits a request (`_admission`), pays, computes on its own rows, and sends words:
masked, or plain where its policy allows that. Before rows are touched a request may be
refused, for reasons that do not depend on them. From then on nothing can fail visibly:
rows that cannot be used send zeros, which is only in the log of the site. Needs numpy,
and `cryptography` for masks.

- A site from its configuration.

  The entries are in a TOML file of the site, or in ``flower-supernode --node-config``;
  the site decides on them, and the server never sees them. Needs numpy only, and
  `cryptography` for keys.
"""

from __future__ import annotations

import logging
import os
import tomllib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skfedcal._compiled import arithmetic
from skfedcal._json import read_file, write_file
from skfedcal._version import __version__
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.exceptions import (
    BudgetExceededError,
    SecureAggregationError,
    SiteRefusalError,
)
from skfedcal.federation.endpoint import Request, Words, respond
from skfedcal.federation.plain import WireError
from skfedcal.federation.policy import (
    Admitted,
    AnsweredRuns,
    Cost,
    SitePolicy,
    admit,
    check_terms,
    neighbouring_relation,
    run_and_round,
    seeded,
)
from skfedcal.federation.reading import OwnRows, SiteRows
from skfedcal.federation.wire import (
    FORMAT,
    algorithm_names,
    read_request,
    request_hash,
    terms_hash,
)

if TYPE_CHECKING:
    from skfedcal.federation.masking_client import MaskingClient
    from skfedcal.federation.roster import Roster, SiteKey
    from skfedcal.privacy.ledger import PrivacyLedger

Message = dict[str, Any]
Reply = tuple[Message, Words]

# What went wrong at a site is for the site; the server gets a short text.
_log = logging.getLogger("skfedcal.site")

# Entries of the state that are not those of the masks.
_OWN = ("plain_runs", "plain_rounds", "plain_before")
# Most rounds whose cost is added up in advance.
_MAX_CHECKED = 10_000


class Site:
    """A client of a federation that answers messages.

    Parameters
    ----------
    name : hashable
        Name of the site, the same in all runs; a string in a deployment.
    rows : SiteRows, FederatedDataset or callable
        Its scores and labels; or a function that loads them, which is called once, when
        they are needed; or, in a simulation, one client whose rows are ready for the
        algorithm.
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
    ready : bool, default=None
        Declaration of the site's operator, which the server sees: True that rows were
        checked; False refuses every request. None declares nothing.

    Attributes
    ----------
    state : dict
        Plain numbers, strings, bytes and lists; secret. A process that handles one
        message keeps it for the next one.
    trail : dict
        What the last message was about, for the log of the site only: method, run,
        noise, eps charged, and rows that counted as zero, by reason.

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
        rows: SiteRows | FederatedDataset | Callable[[], SiteRows],
        *,
        policy: SitePolicy | None = None,
        site_key: SiteKey | None = None,
        roster: Roster | None = None,
        ledger: PrivacyLedger | None = None,
        state: Mapping[str, Any] | None = None,
        ready: bool | None = None,
    ) -> None:
        if isinstance(rows, FederatedDataset) and len(rows) != 1:
            raise ValueError(f"A site is one client; got rows of {len(rows)}.")
        if site_key is not None and site_key.name != name:
            raise ValueError(f"The key of {site_key.name!r} is not that of {name!r}.")
        self.name = name
        self.policy = SitePolicy() if policy is None else policy
        self.state: Message = dict(state or {})
        self.trail: Message = {}
        self.ready = ready
        self._rows = rows
        self._site_key, self._roster, self._ledger = site_key, roster, ledger

    def handle(self, kind: str, message: Message, arrays: Mapping[str, Any]) -> Reply:
        """Answer one message.

        Parameters
        ----------
        kind : {'hello', 'check', 'answer', 'keys', 'shares', 'masked', 'survivors',
            'unmask'}
            What is asked: who it is, whether it would answer a request, a plain answer,
            or a stage of a masked sum.
        message : dict
            Plain values.
        arrays : mapping of str to ndarray
            The broadcast, for 'answer' and 'masked'.

        Returns
        -------
        message, arrays : dict
            The reply. A refusal is ``{'refused': text}``; whether there is one, and its
            text, does not depend on the rows.
        """
        self.trail = {}
        try:
            if kind == "hello":
                return self._hello(), {}
            if self.ready is False:
                raise SiteRefusalError("its operator declares it not ready")
            if kind == "check":
                return self._check(message), {}
            if kind == "answer":
                return self._plain(message, arrays)
            if kind in ("keys", "shares", "masked", "survivors", "unmask"):
                return self._masked(kind, message, arrays)
            raise SiteRefusalError(f"it does not support messages of the kind {kind!r}")
        except (SiteRefusalError, SecureAggregationError, WireError) as error:
            _log.warning("refused %r: %s", kind, error)
            return {"refused": str(error)}, {}
        except BudgetExceededError as error:
            _log.warning("refused %r: %s", kind, error)
            return {"refused": "its budget does not cover the answer"}, {}
        except Exception as error:
            # Depends on the message only: what rows cause is caught in `_words`.
            _log.exception("failed at %r", kind)
            name = type(error).__name__
            return {"refused": f"it could not answer {kind!r} ({name})"}, {}

    def forget_masks(self) -> None:
        """Erase the secrets of masked rounds that are prepared.

        For a site that lives on, where no message has come for a while; a server that
        asks again prepares new ones.
        """
        own = {name: self.state[name] for name in _OWN if name in self.state}
        client = self._client(self.state)
        client.forget()
        self.state = {**client.state, **own}

    def _hello(self) -> Message:
        words = {None: "", True: "yes", False: "no"}
        return {
            "name": str(self.name),
            "format": FORMAT,
            "version": __version__,
            # For information: numpy and the core differ in last bits, and may be mixed.
            "arithmetic": arithmetic(),
            "ready": words[self.ready],
        }

    def _check(self, message: Message) -> Message:
        """Refuse what would be refused later, by policy or budget, without any rows."""
        request = read_request(message.get("request"))
        masked, n_rounds = message.get("masked"), message.get("rounds")
        if type(masked) is not bool or type(n_rounds) is not int:
            raise WireError("A check names `masked`, true or false, and `rounds`.")
        if not 1 <= n_rounds <= _MAX_CHECKED:
            raise SiteRefusalError(f"{n_rounds} rounds are out of range")
        asked = {"masked": masked, "rounds": n_rounds}
        self._check_operator("check", asked, message, str(message["request"]))
        cost = check_terms(request, self.policy, self._n_classes, masked=masked)
        self.trail |= {"method": _method(request), "noise": cost.kind}
        if self._ledger is not None and cost.event is not None:
            terms = self._debit_terms(request, cost)
            times = 1 if cost.kind == "central" else n_rounds
            details = {"unit": request.unit}
            self._ledger.check_debit(cost.event, **terms, details=details, times=times)
        return self._hello()

    def _plain(self, message: Message, arrays: Mapping[str, Any]) -> Reply:
        admitted = self._admit(message.get("request"), message, arrays, masked=False)
        run, index = admitted.run, admitted.round_index
        asked = {"run": run, "round": index}
        self._check_operator("answer", asked, message, str(message["request"]))
        answered = AnsweredRuns(self.state, "plain")
        if why := answered.refusal(run, index):
            raise SiteRefusalError(f"it {why}")
        if run not in self.state.get("plain_runs", ()):
            self._check_forgotten(run)
        # Before anything is computed: a message that fails is not tried again.
        answered.add(run, index)
        self.state |= answered.to_state()
        self._pay(admitted)
        return asked, self._words(admitted)

    def _check_operator(
        self, kind: str, terms: Message, message: Message, text: str
    ) -> None:
        """Refuse what the operator did not sign, where the roster names one."""
        if self._roster is not None:
            self._roster.check_operator(kind, terms, request_hash(text), message)

    def _check_forgotten(self, run: str) -> None:
        """Refuse a run that was paid for, if its rounds are not remembered any more.

        The site was started again in between: the server begins another run then, and
        somebody who repeats old messages cannot.
        """
        records = [] if self._ledger is None else self._ledger.records()
        if any((record["details"] or {}).get("run") == run for record in records):
            raise SiteRefusalError(
                f"it answered run {run!r} before it was started again"
            )

    def _admit(
        self, text: Any, message: Message, arrays: Mapping[str, Any], *, masked: bool
    ) -> Admitted:
        return admit(
            text,
            message,
            arrays,
            policy=self.policy,
            n_classes=self._n_classes,
            masked=masked,
        )

    @property
    def _n_classes(self) -> int | None:
        """Classes of rows that are ready for the algorithm."""
        ready = isinstance(self._rows, FederatedDataset)
        return self._rows.n_classes if ready else None  # type: ignore[union-attr]

    def _masked(self, kind: str, message: Message, arrays: Mapping[str, Any]) -> Reply:
        own = {name: self.state[name] for name in _OWN if name in self.state}
        rest = {name: v for name, v in self.state.items() if name not in own}
        client = self._client(rest)
        words: Words = {}
        try:
            if kind == "keys":
                reply = self._keys(client, message)
            elif kind == "masked":
                reply, words = {}, self._masked_words(client, message, arrays)
            else:
                reply = getattr(client, kind)(message)
        finally:
            self.state = {**client.state, **own}
        return reply, words

    def _client(self, state: Message) -> MaskingClient:
        from skfedcal.federation.masking_client import MaskingClient

        return MaskingClient(
            state,
            site_key=self._site_key,
            roster=self._roster,
            min_clients=self.policy.min_clients,
            max_colluders=self.policy.max_colluders,
        )

    def _keys(self, client: MaskingClient, message: Message) -> Message:
        """Keys of some rounds, whose requests are checked as far as they are known."""
        from skfedcal.federation.mask_plan import MaskPlan

        run, _ = run_and_round(message)
        request = read_request(message.get("request"))
        check_terms(request, self.policy, self._n_classes, masked=True)
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
        if plan.n_rounds > max(request.n_rounds - request.round_index, 1):
            raise SiteRefusalError(
                f"keys of {plan.n_rounds} rounds are asked for, from round "
                f"{request.round_index} of a run of {request.n_rounds}"
            )
        text = str(message["request"])
        self._check_operator("keys", plan.to_message(), message, text)
        if not client.knows(run):
            self._check_forgotten(run)
        # By its own reading: keys fit together only where all were asked the same.
        return client.keys(message, terms_hash(text))

    def _masked_words(
        self, client: MaskingClient, message: Message, arrays: Mapping[str, Any]
    ) -> Words:
        if "about" not in client.state:
            raise SiteRefusalError("no round is under way")
        text = message.get("request")
        admitted = self._admit(text, message, arrays, masked=True)
        text = str(text)
        if terms_hash(text) != client.state["about"]:
            raise SiteRefusalError(
                "the request differs from the one for which keys were made in more "
                "than its broadcast"
            )
        asked = {"run": admitted.run, "round": admitted.round_index}
        self._check_operator("masked", asked, message, text)

        def answer() -> Words:
            # Noise that was drawn is never given away for nothing.
            self._pay(admitted)
            return self._words(admitted)

        n_min = admitted.request.n_min
        return client.masked(message, answer, n_min, request_hash(text))

    def _words(self, admitted: Admitted) -> Words:
        """Words of the answer. Touches rows: never raises, whatever they are."""
        request = admitted.request
        own = self._own_rows(request)
        position = None
        if admitted.position is not None:
            position = np.array([admitted.position])
        try:
            answer = respond(
                request, own.clients, position, on_failure=self._note_failure
            )
        except Exception as error:
            self._note_failure(error, len(own.clients))
            empty = replace(own.clients, offsets=np.zeros(2, dtype=np.int64))
            answer = respond(request, empty, position, on_failure=self._note_failure)
        if request.unit == "example":
            # Rows that do not fit send zeros, and are counted.
            answer = replace(answer, n_units=own.n_rows)
        return admitted.words.encode(answer)

    def _own_rows(self, request: Request) -> OwnRows:
        """Rows that fit the request; none where they cannot be read at all."""
        reading, n_rows = request.reading, 0
        nothing = SiteRows(np.zeros((0, 1)), np.zeros(0))
        if isinstance(self._rows, FederatedDataset):
            return OwnRows(self._rows, self._rows.n_rows, {})
        assert reading is not None
        if not getattr(request.algorithm, "reads_rows", True):
            return reading.read(nothing, self.name)
        try:
            if callable(self._rows):
                self._rows = self._rows()
            n_rows = len(self._rows)
            own = reading.read(self._rows, self.name)
        except Exception as error:
            self._note_failure(error, n_rows)
            return reading.read(nothing, self.name)._replace(n_rows=n_rows)
        for why, count in own.unfit.items():
            if count:
                _log.warning(
                    "%d of %d rows do not fit the request and count as zero: %s",
                    count,
                    own.n_rows,
                    why,
                )
                self._note_zeros(why, count)
        return own

    def _pay(self, admitted: Admitted) -> None:
        request, cost = admitted.request, admitted.cost
        self.trail |= {"method": _method(request), "noise": cost.kind}
        if self._ledger is None:
            return
        details = {
            "noise": cost.kind,
            "run": admitted.run,
            "round": admitted.round_index,
            "rows": "all" if request.reading is None else request.reading.part,
            "terms": admitted.terms,
        }
        if cost.event is None:
            if getattr(request.algorithm, "reads_rows", True):
                self._ledger.note_exact(
                    label=type(request.algorithm).__name__,
                    run_id=f"exact {admitted.run} {claim_name(request)}",
                    details=details,
                )
            return
        before = self._spent()
        details |= {"unit": request.unit, "adjacency": neighbouring_relation(request)}
        self._ledger.debit(
            cost.event, **self._debit_terms(request, cost), details=details
        )
        self.trail |= {"eps": self._spent() - before, "spent": self._spent()}

    @property
    def ledger(self) -> PrivacyLedger | None:
        """Account of this site."""
        return self._ledger

    def _spent(self) -> float:
        """Eps charged to the site; 0 where its ledger only records."""
        bounded = self._ledger is not None and self._ledger.budget is not None
        return self._ledger.spent() if bounded else 0.0  # type: ignore[union-attr]

    def _debit_terms(self, request: Request, cost: Cost) -> dict[str, Any]:
        assert self._ledger is not None
        simulated = seeded(request)
        if simulated and self._ledger.refuses_simulations:
            raise SiteRefusalError(
                "noise from a seed (random_state) protects no client, and its ledger "
                "accepts no simulations"
            )
        return {
            "label": type(request.algorithm).__name__,
            "mode": "simulation" if simulated else "secure",
            # A claim is about one method in a whole run; an answer with noise of its
            # own pays for itself, however often it is asked for.
            "run_id": claim_name(request) if cost.kind == "central" else None,
        }

    def _note_failure(self, error: Exception, n_units: int) -> None:
        """Log, at the site only, that rows could not be used."""
        _log.error(
            "%d unit(s) could not be computed and count as zero: %s: %s",
            n_units,
            type(error).__name__,
            error,
            exc_info=error,
        )
        self._note_zeros(f"{type(error).__name__}: {error}", n_units)

    def _note_zeros(self, why: str, n_units: int) -> None:
        zeros = self.trail.setdefault("zeros", {})
        zeros[why] = zeros.get(why, 0) + n_units


def _method(request: Request) -> str:
    name, family = algorithm_names(request.algorithm)
    return f"{name} {family}".strip()


def claim_name(request: Request) -> str:
    """Name of the debit for the cost of a run that the server claims."""
    method = sha256(repr(request.algorithm).encode()).hexdigest()[:16]
    return f"claim {request.run} {method}"


Config = Mapping[str, Any]
Load = Callable[[Config], SiteRows]

# Names the file of the site where an engine passes no node config.
ENVIRONMENT = "SKFEDCAL_SITE_CONFIG"
# Keys that are no conditions of a policy. The third line is for `skfedcal site`, the
# last is set by a simulation.
_SITE_KEYS = ("site-config", "data-path", "client-id", "site-key", "roster", "ready",
        "ledger", "ledger-head", "max-eps", "max-delta",
        "flower", "root-certificates", "insecure", "node-key", "metrics",
        "partition-id", "num-partitions")  # fmt: skip


def site_from_config(
    config: Config,
    *,
    load: Load | None = None,
    state: Mapping[str, Any] | None = None,
) -> Site:
    """Site as its node is configured.

    Parameters
    ----------
    config : mapping
        ``site-config``: TOML file with the other entries. ``client-id``: name of the
        site. ``data-path``: its file (see `SiteRows.load`). ``site-key``, ``roster``:
        files made by ``skfedcal flower keys``. ``ledger``: file that adds up what the
        site has answered, with ``max-eps`` and ``max-delta`` as its limits; beside it
        ``noise`` must be given. ``ledger-head``: hash of a record that the ledger must
        have. ``ready``: true or false, which the server is told. ``flower``,
        ``root-certificates``, ``insecure``, ``node-key`` and ``metrics`` are for
        `skfedcal site`. All others are conditions of `SitePolicy`.
    load : callable, default=None
        ``load(config)`` gives the rows, when a request needs them; None reads
        ``data-path``.
    state : mapping, default=None
        What an earlier message left behind.

    Returns
    -------
    Site

    Raises
    ------
    ValueError, OSError
        If an entry is missing or wrong.
    """
    config = whole_config(config)
    name = client_name(config)
    key, roster = _identity(config, name)
    if load is None:
        _check_file(config)
    return Site(
        name,
        # Loaded after a request is admitted and paid: whether that succeeds depends on
        # the file, and is for the site alone.
        partial(load or _load_file, config),
        policy=site_policy(config),
        site_key=key,
        roster=roster,
        ledger=_ledger(config, key),
        state=state,
        ready=_flag(config, "ready"),
    )


def whole_config(config: Config) -> Config:
    """Entries of the site's file and of its node; it is an error to give one twice."""
    path = config.get("site-config") or os.environ.get(ENVIRONMENT)
    if not path:
        return config
    try:
        entries = tomllib.loads(Path(str(path)).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    both = sorted(set(entries) & set(config))
    if both:
        raise ValueError(f"{both[0]} is in {path} and in the node config; keep one.")
    return {**entries, **config}


def client_name(config: Config) -> str:
    """Name of the site: the same in all runs."""
    if "client-id" in config:
        return str(config["client-id"])
    if "partition-id" in config:
        return f"client-{int(config['partition-id']):06d}"
    raise ValueError("The site has no client-id: pass a name in its configuration.")


def site_policy(config: Config) -> SitePolicy:
    """Conditions of the site; an unknown key is an error."""
    return SitePolicy.from_config(
        {k: v for k, v in config.items() if k not in _SITE_KEYS}
    )


def _check_file(config: Config) -> None:
    """Raise if the data file is missing; its content is checked later."""
    if "data-path" not in config:
        raise ValueError("The site has no data-path: pass its file.")
    if not Path(str(config["data-path"])).is_file():
        raise FileNotFoundError(f"data-path={config['data-path']!r} is not a file.")


def _load_file(config: Config) -> SiteRows:
    return SiteRows.load(str(config["data-path"]))


def _identity(config: Config, name: str) -> tuple[SiteKey | None, Roster | None]:
    if "site-key" not in config and "roster" not in config:
        return None, None
    from skfedcal.federation.roster import Roster, SiteKey

    if "site-key" not in config:
        raise ValueError("roster needs site-key: the others accept signed keys only.")
    key = SiteKey.load(str(config["site-key"]))
    if "roster" not in config:
        return key, None
    roster = Roster.load(str(config["roster"]))
    if roster.sites.get(name) != key.public:
        raise ValueError(
            f"The roster has no site {name!r}, or has a different key for it."
        )
    _check_newest(config, roster)
    return key, roster


def _check_newest(config: Config, roster: Roster) -> None:
    """Refuse an older roster than the site has seen, and remember this one.

    In a file beside the ledger, which can be written, or else beside the roster.
    """
    path = Path(str(config.get("ledger") or config["roster"]) + ".roster")
    seen = read_file(path) if path.exists() else {}
    try:
        other = roster.check_successor(seen)
    except ValueError as error:
        raise ValueError(f"{config['roster']}: {error} ({path})") from error
    if other:
        try:
            write_file(path, roster.to_seen())
        except OSError as error:
            _log.warning(
                "%s cannot be written (%s): this site would accept an older roster",
                path,
                error,
            )


def _ledger(config: Config, key: SiteKey | None) -> PrivacyLedger | None:
    limits = [name for name in ("max-eps", "max-delta") if name in config]
    if "ledger" not in config:
        if limits:
            raise ValueError(f"{limits[0]} needs ledger, the file of what was spent.")
        return None
    from skfedcal.privacy.site_ledger import SiteLedger

    if len(limits) != 2:
        raise ValueError("ledger needs max-eps and max-delta: the budget of the site.")
    if "noise" not in config:
        # Who sets a budget may think that it bounds everything.
        raise ValueError(
            "ledger needs noise: exact sums have no eps, and no budget covers them. "
            "noise='central' (or 'shared', 'own') refuses them; noise='none' answers "
            "them outside the budget."
        )
    path, head = str(config["ledger"]), config.get("ledger-head")
    if not Path(path).is_file():
        # A file that was lost would mean a fresh budget.
        raise FileNotFoundError(
            f"ledger={path!r} is not a file. If this site has answered before, put its "
            "ledger back: without it the budget would start again. For a new site: "
            f"skfedcal ledger --create {path}"
        )
    budget = float(config["max-eps"]), float(config["max-delta"])
    # Noise that the server draws from a seed is booked as a simulation, and paid.
    signed = None if key is None else key.signed
    return SiteLedger(
        path, budget=budget, require_secure=False, head=head, signed=signed
    )


def _flag(config: Config, name: str) -> bool | None:
    value = config.get(name)
    if value is not None and type(value) is not bool:
        raise ValueError(f"{name}={value!r}: write true or false.")
    return value
