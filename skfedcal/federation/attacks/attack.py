"""What every attack has: a target, a count of what was sent, and a finding."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from typing import Any

from skfedcal.federation.attacks.copies import (
    Letter,
    Observation,
    SiteCopies,
    World,
    ask_masked,
    ask_plain,
    clean_rows,
    entries_since,
    letter_of,
    masked_shapes,
    neighbouring_worlds,
    site_schema,
    with_value,
)
from skfedcal.federation.request_catalogue import Entry, Schema, catalogue
from skfedcal.federation.site import Site
from skfedcal.methods import registry
from skfedcal.privacy.ledger_file import Account
from skfedcal.privacy.site_ledger import site_epsilon

DELTA = 1e-5


@dataclass(slots=True)
class Finding:
    """What one attack learnt, and what the site charged for it.

    Parameters
    ----------
    attack, tried : str
        Name, and what the dishonest server tried, in a sentence.
    learnt : str
        What it learnt; empty if nothing.
    bits : float
        Bits of the rows that it knows with certainty (or as the bound says).
    messages, answered : int
        Messages sent, and messages that the site answered.
    eps : float
        Eps that one copy of the ledger was debited. Each request goes to a fresh copy
        (a search to one copy for all its requests): this is the largest charge, or the
        charge for what was learnt if something was; NaN without a ledger.
    examples : list of str
        Requests by which it was learnt.
    """

    attack: str
    tried: str
    learnt: str = ""
    bits: float = 0.0
    messages: int = 0
    answered: int = 0
    eps: float = math.nan
    examples: list[str] = field(default_factory=list)

    def saw(self, looks: Sequence[Observation], charged: float) -> bool:
        """Count the replies to one request; true if it was answered."""
        answered = is_answered(looks)
        self.count(len(looks), answered, charged)
        return answered

    def count(self, messages: int, answered: int, charged: float) -> None:
        """Add up messages and answers; the largest charge counts."""
        self.messages += messages
        self.answered += answered
        if not self.learnt and charged > self.eps:
            self.eps = charged

    def learn(self, what: str, by: str, charged: float, bits: float = 1.0) -> None:
        """Note once what was learnt, by which request and for which charge."""
        if what in self.learnt.split("; "):
            return
        self.eps = max(self.eps, charged) if self.learnt else charged
        self.learnt = f"{self.learnt}; {what}" if self.learnt else what
        self.bits += bits
        self.examples.append(f"{what}: {by}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        eps = None if math.isnan(self.eps) else self.eps
        return {**asdict(self), "eps": eps, "examples": self.examples[:20]}


def is_answered(looks: Iterable[Observation]) -> bool:
    """Whether no reply is a refusal."""
    return not any(look.refused for look in looks)


@dataclass(slots=True)
class Target:
    """A site under attack, and what is public of it."""

    copies: SiteCopies
    schema: Schema
    entries: list[Entry]
    plain: list[Entry]
    masked: list[Entry]
    worlds: list[World]
    n_samples: int = 400
    alpha: float = 1e-6
    thorough: bool = False

    @classmethod
    def of(cls, site: Site, **options: Any) -> Target:
        """Look which requests of the catalogue the site answers at all."""
        with quiet():
            return cls._of(site, **options)

    @classmethod
    def _of(cls, site: Site, **options: Any) -> Target:
        copies = SiteCopies(site)
        schema = site_schema(copies.rows, copies.policy)
        policy = copies.policy
        eps = min(1.0, copies.remaining / 2)
        if policy.min_noise:
            eps = min(eps, 0.9 / policy.min_noise)
        names = None
        if policy.methods is not None:
            pairs = {p for word in policy.methods for p in registry.allowed_by(word)}
            allowed = {name for name, _ in pairs}
            names = [name for name in registry.algorithms() if name in allowed]
        entries = catalogue(
            schema,
            n_clients=copies.n_clients,
            eps=max(eps, 1e-6),
            max_colluders=policy.max_colluders,
            algorithms=names,
        )
        worlds = neighbouring_worlds(copies.rows, schema)
        target = cls(copies, schema, entries, [], [], worlds, **options)
        for secure, answered in ((False, target.plain), (True, target.masked)):
            for entry in entries:
                site = copies.site(clean_rows(schema))
                if is_answered(target.ask(site, entry, letter_of(entry), secure)):
                    answered.append(entry)
        return target

    def ask(
        self, site: Site, entry: Entry, letter: Letter, secure: bool, run: str = "audit"
    ) -> list[Observation]:
        """Ask a copy for a plain answer or for a masked one."""
        if secure:
            return ask_masked(self.copies, site, letter, masked_shapes(entry), run)[0]
        return [ask_plain(site, letter, run)[0]]

    def variants(self) -> Iterator[tuple[Entry, bool]]:
        """One request of each algorithm, trust model and unit, plain and masked."""
        for secure, entries in ((False, self.plain), (True, self.masked)):
            for entry in one_of_each(entries, "algorithm", "model", "unit"):
                yield entry, secure

    @property
    def delta(self) -> float:
        """Delta of the budget of the site."""
        budget = self.copies._budget
        return DELTA if budget is None else budget[1]

    def charged(self, site: Site) -> float:
        """Eps that the ledger of a copy was debited since the copy was made."""
        if site._ledger is None:
            return math.nan
        from skfedcal.privacy.events import event_from_dict

        account = Account()
        entries = entries_since(site, len(self.copies._records or ()))
        for text in entries:
            account.add(event_from_dict(json.loads(text)["event"]))
        return site_epsilon(account, self.delta) if entries else 0.0


def one_of_each(entries: Iterable[Entry], *names: str) -> list[Entry]:
    """First entry for each combination of these attributes."""
    chosen: dict[Any, Entry] = {}
    for entry in entries:
        chosen.setdefault(attrgetter(*names)(entry), entry)
    return list(chosen.values())


class Attack(ABC):
    """One attack; it has a name, and a sentence that says what it tries."""

    name: str
    tried: str
    # Whether the answers are masked.
    secure = False

    def run(self, target: Target) -> Finding:
        """Attack copies of the site."""
        found = Finding(self.name, self.tried, eps=0.0)
        self.attack(target, found)
        if not target.copies.has_ledger:
            found.eps = math.nan
        return found

    @abstractmethod
    def attack(self, target: Target, found: Finding) -> None:
        """Send requests; write down what was sent and learnt."""


class Asker:
    """Asks one copy of the site again and again, plain or masked; counts and pays."""

    def __init__(self, target: Target, entry: Entry, secure: bool) -> None:
        self.target, self.entry, self.secure = target, entry, secure
        self.site = target.copies.site()
        self.letter = cheap(letter_of(entry))
        self.n_messages = self.n_asked = self.n_answered = 0

    def refusal(self, letter: Letter) -> str:
        """Text of the refusal of a request; empty if it is answered."""
        self.n_asked += 1
        site = self.site
        if self.secure:
            # A fresh state for each round: the order of rounds is not attacked.
            site = self.target.copies.site(ledger=self.site._ledger)
        run = f"audit {self.n_asked}"
        seen = self.target.ask(site, self.entry, letter, self.secure, run)
        self.n_messages += len(seen)
        self.n_answered += is_answered(seen)
        return next((look.refused for look in seen if look.refused), "")

    def report(self, found: Finding, learnt: str = "", bits: float = 0.0) -> None:
        """Write down what was sent, and what it told."""
        spent = self.target.charged(self.site)
        found.count(self.n_messages, self.n_answered, spent)
        if learnt:
            found.learn(learnt, self.entry.name, spent, bits)


def cheap(letter: Letter) -> Letter:
    """The same request for next to no eps, where the site draws the noise itself."""
    content = letter.content
    for name in letter.noise.get("oracles", {}):
        where = ("randomizer", "oracles", name)
        content = with_value(content, (*where, "eps"), 1e-7)
        content = with_value(content, (*where, "kind"), "oue")
    for name, scale in letter.noise.get("scales", {}).items():
        content = with_value(content, ("randomizer", "scales", name), scale * 1e6)
    return Letter(letter.what, content, letter.arrays)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A site logs each refusal, and there will be thousands."""
    log = logging.getLogger("skfedcal.site")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
