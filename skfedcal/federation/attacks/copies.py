"""Copies of a site, requests to them, and all that a server sees of the replies."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from skfedcal.exceptions import NotEnoughClientsError, SecureAggregationError
from skfedcal.federation.endpoint import request_words
from skfedcal.federation.mask_plan import plan_masks
from skfedcal.federation.masking_server import masked_sum
from skfedcal.federation.plain import WireError
from skfedcal.federation.policy import SitePolicy
from skfedcal.federation.reading import SiteRows
from skfedcal.federation.request_catalogue import Entry, Schema
from skfedcal.federation.roster import Roster, SiteKey
from skfedcal.federation.site import Site
from skfedcal.federation.wire import digest, request_hash, terms_hash, write_request
from skfedcal.privacy.site_ledger import SiteLedger

Message = dict[str, Any]
Arrays = Mapping[str, Any]
Content = dict[str, Any]
Path = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Observation:
    """All that is observable of one reply, except the content of agreed arrays.

    kind: Message that was answered.
    reply: The plain values; random bytes by their length.
    arrays (tuple of (name, dtype, shape)): Arrays beside them.
    error: Type and text of an exception that left the site; empty if none did.
    ledger: Entries that the message added to the ledger.
    state: State of the site after it; random bytes by their length.
    """

    kind: str
    reply: Any
    arrays: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    error: str = ""
    ledger: tuple[str, ...] = ()
    state: Any = ()

    @property
    def refused(self) -> str:
        """Text of a refusal or of an error; empty for an answer."""
        found = dict(self.reply).get("refused", "") if self.reply else ""
        return self.error or str(found)


def observe(
    site: Site, kind: str, message: Message, arrays: Arrays
) -> tuple[Observation, Message, Arrays]:
    """Send one message; give what is observable, and the reply itself."""
    before = n_entries(site)
    error = ""
    reply: Message = {}
    words: Arrays = {}
    try:
        reply, words = site.handle(kind, message, arrays)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    seen = Observation(
        kind,
        _visible(reply),
        tuple(
            (name, value.dtype.str, value.shape)
            for name, value in sorted(words.items())
        ),
        error,
        entries_since(site, before),
        _visible(site.state),
    )
    return seen, reply, words


def _visible(value: Any) -> Any:
    """A value that can be compared: random bytes by their length."""
    if isinstance(value, Mapping):
        return tuple((str(k), _visible(v)) for k, v in sorted(value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(_visible(part) for part in value)
    if isinstance(value, (bytes, bytearray)):
        return ("bytes", len(value))
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape)
    return value


def n_entries(site: Site) -> int:
    """Entries in the ledger of a site."""
    return 0 if site._ledger is None else len(site._ledger)


def entries_since(site: Site, start: int) -> tuple[str, ...]:
    """What entries of the ledger say, but for times and numbers."""
    if site._ledger is None:
        return ()
    names = ("event", "label", "population", "mode", "run_id", "details")
    return tuple(
        json.dumps({name: record[name] for name in names}, sort_keys=True)
        for record in site._ledger.records()[start:]
    )


# ------------------------------------------------------------------- copies of the site


class SiteCopies:
    """Copies of one site, with a copy of its ledger and of its state.

    site: The site; it is never asked anything.

    Notes
    -----
    Masked rounds need the other sites of the roster. They are made up: they bear the
    names of the roster and keys of their own, and the copy of the site gets a roster
    with these keys.
    """

    def __init__(self, site: Site) -> None:
        if not isinstance(site._rows, SiteRows):
            raise TypeError("The audit needs a site with rows as its file has them.")
        self.name, self.rows, self.policy = str(site.name), site._rows, site.policy
        self._state = copy.deepcopy(site.state)
        self._budget, self._records, self._secure = None, None, False
        if site._ledger is not None:
            self._budget = site._ledger.budget
            self._secure = site._ledger.refuses_simulations
            self._records = site._ledger.records()
        self.others = [
            name for name in getattr(site._roster, "sites", ()) if name != self.name
        ]
        self.signed = site._roster is not None
        least = max(self.policy.min_clients, 3)
        if not self.signed:
            self.others = [f"other-{i}" for i in range(least - 1)]
        self.n_clients = 1 + len(self.others)
        if self.n_clients < least:
            raise ValueError(
                f"The roster of site {self.name!r} has {self.n_clients} site(s), and a "
                f"masked sum needs {least}. Join the rosters of the other sites first "
                f"(skfedcal flower keys --join), then audit."
            )
        names = [self.name, *self.others]
        self._keys: dict[str, Any] = {name: SiteKey.generate(name) for name in names}
        self._roster = Roster({name: key.public for name, key in self._keys.items()})

    @property
    def has_ledger(self) -> bool:
        """Whether the site adds up what it answers."""
        return self._records is not None

    @property
    def remaining(self) -> float:
        """Eps that is left in the ledger."""
        ledger = self._ledger()
        return math.inf if ledger is None else ledger.remaining()

    def site(
        self,
        rows: SiteRows | Callable[[], SiteRows] | None = None,
        *,
        budget: bool = True,
        ledger: Any = None,
    ) -> Site:
        """A fresh copy, with these rows in place of its own.

        Without its budget it has an empty ledger; else a copy of the site's, or the
        one that is passed.
        """
        if ledger is None:
            ledger = self._ledger()
        if ledger is not None and not budget:
            ledger = SiteLedger()
        return self._made(self.name, self.rows if rows is None else rows, ledger)

    def peers(self) -> list[Site]:
        """The other sites of a masked round, with rows of no interest."""
        return [self._made(name, self.rows, None) for name in self.others]

    def plan(self, run: str = "audit") -> Any:
        """Terms of a masked round of all sites."""
        colluders = self.policy.max_colluders
        return plan_masks(
            run, 0, self.n_clients, active=self.signed, max_colluders=colluders
        )

    def _made(self, name: str, rows: Any, ledger: SiteLedger | None) -> Site:
        signed = {"site_key": self._keys[name], "roster": self._roster}
        return Site(
            name,
            rows,
            policy=self.policy,
            ledger=ledger,
            state=copy.deepcopy(self._state) if name == self.name else None,
            **(signed if self.signed else {}),
        )

    def _ledger(self) -> SiteLedger | None:
        if self._records is None:
            return None
        # In memory: a debit of a file is synced to disk.
        ledger = SiteLedger(budget=self._budget, require_secure=self._secure)
        ledger._store.records.extend(self._records)
        return ledger


def site_schema(rows: SiteRows, policy: SitePolicy) -> Schema:
    """What is public of the rows: classes, columns, and their kind."""
    labels = rows.labels
    width = rows.scores.shape[1]
    if policy.classes is not None:
        readers: dict[str, Callable[[str], Any]] = {
            "i": int,
            "u": int,
            "f": float,
            "b": "True".__eq__,
        }
        read = readers.get(labels.dtype.kind, str)
        try:
            return Schema(tuple(read(c) for c in policy.classes), width, rows.kind)
        except ValueError:
            return Schema(tuple(policy.classes), width, rows.kind)
    values, counts = np.unique(labels[labels == labels], return_counts=True)
    found = values[np.argsort(-counts, kind="stable")].tolist()
    n_classes = max(2, width) if rows.kind != "features" else max(2, len(found))
    chosen = sorted(found[:n_classes])
    while len(chosen) < n_classes:
        chosen.append(unknown_label(chosen or [0]))
    return Schema(tuple(chosen), width, rows.kind)


def unknown_label(known: Sequence[Any]) -> Any:
    """A label of the same type that is none of these."""
    if any(isinstance(label, str) for label in known):
        return "z" + max(map(str, known), key=len)
    return max(known) + 1 + len(known)


# --------------------------------------------------------------------------- the worlds


@dataclass(frozen=True, slots=True)
class World:
    """Rows of another world, and the property in which they differ."""

    question: str
    rows: SiteRows


def neighbouring_worlds(rows: SiteRows, schema: Schema) -> list[World]:
    """Copies of the rows of a site in which something differs.

    What is public stays the same: the columns, and what the file calls them.
    """
    scores, labels = rows.scores, rows.labels
    classes = np.asarray(schema.classes)
    found: list[World] = []

    def add(question: str, new_scores: Any, new_labels: Any) -> None:
        made = SiteRows(new_scores, new_labels, rows.kind)
        found.append(World(question, made))

    if len(labels):
        i = int(np.argmax([str(x) == str(classes[-1]) for x in labels]))
        for label in schema.classes:
            other = with_label(labels, i, label)
            if not (other == labels).all():
                add(f"whether a label is {label!r}", scores, other)
        unknown = with_label(labels, i, unknown_label(schema.classes))
        add("whether a label is unknown", scores, unknown)
        texts = labels.astype(str)
        texts[i] = "x"
        numbers = np.arange(len(labels), dtype=float)
        as_numbers = labels.dtype.kind == "U"
        add("whether labels are all numbers", scores, numbers if as_numbers else texts)
        every = np.full(len(labels), classes[0])
        add("whether a class has rows", scores, every.astype(labels.dtype, copy=False))
        for text, value in (
            ("NaN", np.nan),
            ("infinite", np.inf),
            ("beyond 1e30", 3e30),
            ("negative", -0.25),
            ("beyond 1", 1.5),
            ("zero", 0.0),
        ):
            changed = np.array(scores, dtype=np.float64)
            changed[i, 0] = value
            add(f"whether a score is {text}", changed, labels)
        changed = np.array(scores, dtype=np.float64)
        changed[i] = changed[i, ::-1]
        changed[i] += 1.0 if rows.kind != "proba" else 0.0
        add("the scores of a row", changed, labels)
        add("whether a row exists", np.delete(scores, i, 0), np.delete(labels, i))
        twice = np.concatenate([scores, scores])
        add("the number of rows", twice, np.concatenate([labels, labels]))
        add("whether there are rows", scores[:0], labels[:0])
    many = np.zeros((40, scores.shape[1])) + (0.5 if rows.kind == "proba" else 0.0)
    column = classes[np.arange(40) % len(classes)].astype(labels.dtype, copy=False)
    add("whether rows are as good as none", many, column)
    return found


def with_label(labels: Any, i: int, label: Any) -> Any:
    """A copy of labels with another one at position i."""
    out = labels.astype(np.result_type(labels, np.asarray(label)))
    out[i] = label
    return out


def clean_rows(schema: Schema, n_rows: int = 40) -> SiteRows:
    """Rows that fit, to see which requests a site answers at all."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(n_rows, schema.n_columns))
    if schema.kind == "proba":
        scores = np.exp(scores)
        # A column that is not there has the rest of the sum.
        rest = float(schema.n_columns < len(schema.classes))
        scores /= scores.sum(axis=1, keepdims=True) + rest
    labels = np.asarray(schema.classes)[np.arange(n_rows) % len(schema.classes)]
    kind: Any = schema.kind
    return SiteRows(scores, labels, kind)


# ----------------------------------------------------------------------- what is asked


@dataclass(frozen=True, slots=True)
class Letter:
    """A request as it travels, and how it was changed."""

    what: str
    content: Content
    arrays: dict[str, Any]

    @property
    def text(self) -> str:
        """Text of the request; it announces the arrays that come with it."""
        return json.dumps(self.content, separators=(",", ":"))

    @property
    def noise(self) -> Content:
        """Noise that the site is asked to draw; empty if none."""
        return self.content.get("randomizer") or {}

    def changed(self, what: str, path: Path, value: Any) -> Letter:
        """The same letter with one value put in place of another."""
        content = with_value(self.content, path, value)
        return Letter(f"{self.what}: {what}", content, self.arrays)

    def each(self, path: Path, values: Iterable[Any]) -> Iterator[Letter]:
        """A letter for each of these values at a path that is not there already."""
        old = json.dumps(value_at(self.content, path))
        for value in values:
            if json.dumps(value) != old:
                said = ".".join(map(str, path))
                yield self.changed(f"{said}={value!r:.60}", path, value)

    def lacking(self, path: Path) -> Letter:
        """The same letter without the value at a path."""
        content = without(self.content, path)
        return Letter(f"{self.what}: no {path[-1]}", content, self.arrays)

    def broadcasting(self, what: str, arrays: Arrays) -> Letter:
        """The same letter with other arrays in its broadcast, announced as it must be.

        An array that is None is left out.
        """
        sent = {n: a for n, a in {**self.arrays, **arrays}.items() if a is not None}
        content = {**self.content, "broadcast": digest(sent)}
        return Letter(f"{self.what}: {what}", content, sent)


def letter_of(entry: Entry) -> Letter:
    """The valid request of the catalogue."""
    text, arrays = write_request(entry.request)
    return Letter(entry.name, json.loads(text), arrays)


def with_value(content: Any, path: Sequence[Any], value: Any) -> Any:
    """A copy with another value at a path of names and numbers."""
    if not path:
        return value
    out = copy.copy(content)
    old = content[path[0]] if len(path) > 1 else None
    out[path[0]] = with_value(old, path[1:], value)
    return out


def without(content: Any, path: Sequence[Any]) -> Any:
    """A copy without the value at a path of names and numbers."""
    parent = copy.copy(value_at(content, path[:-1]))
    del parent[path[-1]]
    return with_value(content, path[:-1], parent)


def paths(content: Any, start: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values of a request, at any depth."""
    yield start
    if isinstance(content, dict):
        for name, value in content.items():
            yield from paths(value, (*start, name))
    elif isinstance(content, list):
        for i, value in enumerate(content):
            yield from paths(value, (*start, i))


def value_at(content: Any, path: Sequence[Any]) -> Any:
    """Value at a path."""
    for step in path:
        content = content[step]
    return content


def ask_plain(
    site: Site, letter: Letter, run: str = "audit", index: int = 0
) -> tuple[Observation, Arrays]:
    """Ask for a plain answer."""
    message = {"run": run, "round": index, "position": 0, "request": letter.text}
    seen, _, words = observe(site, "answer", message, letter.arrays)
    return seen, words


class Stage(NamedTuple):
    """One message of a masked round to the target, and its state before."""

    kind: str
    message: Message
    arrays: Arrays
    state: Message


def masked_shapes(entry: Entry) -> Arrays:
    """Shapes of the masked words of a valid request."""
    return request_words(entry.request, masked=True).shapes


def ask_masked(
    copies: SiteCopies,
    target: Site,
    letter: Letter,
    shapes: Arrays,
    run: str = "audit",
) -> tuple[list[Observation], list[Stage]]:
    """Ask all sites for a masked sum; give what is seen of the target, by stage.

    run: A ledger answers each run once, so that questions to one need a run each.
    """
    sites = [target, *copies.peers()]
    try:
        terms = terms_hash(letter.text)
    except WireError:  # what the site refuses has no terms
        terms = b""
    plan = replace(copies.plan(run), about=terms)
    seen: list[Observation] = []
    stages: list[Stage] = []

    def exchange(stage: str, messages: Mapping[int, Message]) -> dict[int, Any]:
        replies = {}
        for i, message in messages.items():
            asked = dict(message)
            if stage in ("keys", "masked"):
                asked["request"] = letter.text
            arrays = letter.arrays if stage == "masked" else {}
            if i == 0:
                state = copy.deepcopy(target.state)
                stages.append(Stage(stage, dict(asked), arrays, state))
            looked, reply, words = observe(sites[i], stage, asked, arrays)
            if i == 0:
                seen.append(looked)
            if not looked.refused:
                replies[i] = (reply, words)
        return replies

    with contextlib.suppress(NotEnoughClientsError, SecureAggregationError):
        masked_sum(exchange, plan, dict(shapes), about=request_hash(letter.text))
    return seen, stages


def ask_again(site: Site, stages: Sequence[Stage]) -> list[Observation]:
    """The same messages to another world, each in the same state."""
    seen = []
    for stage in stages:
        site.state = copy.deepcopy(stage.state)
        seen.append(observe(site, stage.kind, dict(stage.message), stage.arrays)[0])
    return seen
