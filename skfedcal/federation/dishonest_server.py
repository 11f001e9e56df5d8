"""A scripted dishonest server: what it can learn from a site by any requests.

Every attack speaks to copies of one site through `Site.handle` only. Most of them
compare two worlds: the rows of the site, and a copy in which something differs. All
that a server sees, except the content of an agreed answer, must be the same in both:
texts, exceptions, names, shapes and types of arrays, entries of the ledger, and the
state that later replies depend on. Content with noise is compared by a distinguishing
test, whose lower confidence bound on eps may not exceed the eps that was charged.

Time is not measured.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import math
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from skfedcal.exceptions import NotEnoughClientsError, SecureAggregationError
from skfedcal.federation.endpoint import request_words
from skfedcal.federation.policy import SitePolicy
from skfedcal.federation.reading import SiteRows
from skfedcal.federation.request_catalogue import Entry, Schema, catalogue
from skfedcal.federation.site import Site
from skfedcal.federation.wire import ALGORITHMS, digest, request_hash, write_request
from skfedcal.privacy.ledger_file import Account
from skfedcal.privacy.site_ledger import SiteLedger, site_epsilon

Message = dict[str, Any]
Content = dict[str, Any]
Arrays = Mapping[str, Any]

DELTA = 1e-5
# Names and values of a reply that are random: only their length is compared.
_RANDOM = (bytes, bytearray)


# ------------------------------------------------------------------- what a server sees


@dataclass(frozen=True, slots=True)
class Observation:
    """All that is observable of one reply, except the content of agreed arrays.

    Parameters
    ----------
    kind : str
        Message that was answered.
    reply : object
        The plain values; random bytes by their length.
    arrays : tuple of (name, dtype, shape)
        Arrays beside them.
    error : str
        Type and text of an exception that left the site; empty if none did.
    ledger : tuple of str
        Entries that the message added to the ledger.
    state : object
        State of the site after it; random bytes by their length.
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
) -> tuple[Observation, Message, Mapping[str, Any]]:
    """Send one message; give what is observable, and the reply itself."""
    before = _n_entries(site)
    error = ""
    reply: Message = {}
    words: Mapping[str, Any] = {}
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
        _entries(site, before),
        _visible(site.state),
    )
    return seen, reply, words


def _visible(value: Any) -> Any:
    """A value that can be compared: random bytes by their length."""
    if isinstance(value, Mapping):
        return tuple((str(k), _visible(v)) for k, v in sorted(value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(_visible(part) for part in value)
    if isinstance(value, _RANDOM):
        return ("bytes", len(value))
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape)
    return value


def _n_entries(site: Site) -> int:
    return 0 if site._ledger is None else len(site._ledger)


def _entries(site: Site, start: int) -> tuple[str, ...]:
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

    Parameters
    ----------
    site : Site
        The site; it is never asked anything.

    Notes
    -----
    Masked rounds need the other sites of the roster. They are made up: they bear the
    names of the roster and keys of their own, and the copy of the site gets a roster
    with these keys.
    """

    def __init__(self, site: Site) -> None:
        from skfedcal.federation.roster import Roster, SiteKey

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
        from skfedcal.federation.mask_plan import plan_masks

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
        kind = labels.dtype.kind
        read: Callable[[str], Any] = str
        if kind in "iu":
            read = int
        elif kind == "f":
            read = float
        elif kind == "b":
            read = "True".__eq__
        try:
            return Schema(tuple(read(c) for c in policy.classes), width, rows.kind)
        except ValueError:
            return Schema(tuple(policy.classes), width, rows.kind)
    values, counts = np.unique(labels[labels == labels], return_counts=True)
    found = values[np.argsort(-counts, kind="stable")].tolist()
    n_classes = max(2, width) if rows.kind != "features" else max(2, len(found))
    chosen = sorted(found[:n_classes])
    while len(chosen) < n_classes:
        chosen.append(_unknown_label(chosen or [0]))
    return Schema(tuple(chosen), width, rows.kind)


def _unknown_label(known: Sequence[Any]) -> Any:
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
            other = _with_label(labels, i, label)
            if not (other == labels).all():
                add(f"whether a label is {label!r}", scores, other)
        unknown = _with_label(labels, i, _unknown_label(schema.classes))
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


def _with_label(labels: Any, i: int, label: Any) -> Any:
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

    def changed(self, what: str, path: Sequence[Any], value: Any) -> Letter:
        """The same letter with one value put in place of another."""
        content = with_value(self.content, path, value)
        return Letter(f"{self.what}: {what}", content, self.arrays)

    def broadcasting(self, what: str, arrays: dict[str, Any]) -> Letter:
        """The same letter with another broadcast, announced as it must be."""
        content = {**self.content, "broadcast": digest(arrays)}
        return Letter(f"{self.what}: {what}", content, arrays)


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
    out = copy.copy(content)
    if len(path) == 1:
        del out[path[0]]
    else:
        out[path[0]] = without(content[path[0]], path[1:])
    return out


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
    site: Site, letter: Letter, run: str = "audit", index: int = 0, **more: Any
) -> tuple[Observation, Mapping[str, Any]]:
    """Ask for a plain answer."""
    message = {
        "run": run,
        "round": index,
        "position": 0,
        "request": letter.text,
        **more,
    }
    seen, _, words = observe(site, "answer", message, letter.arrays)
    return seen, words


class Stage(NamedTuple):
    """One message of a masked round to the target, and its state before."""

    kind: str
    message: Message
    arrays: Mapping[str, Any]
    state: Message


def ask_masked(
    copies: SiteCopies, target: Site, letter: Letter, shapes: Mapping[str, Any]
) -> tuple[list[Observation], list[Stage]]:
    """Ask all sites for a masked sum; give what is seen of the target, by stage."""
    from skfedcal.federation.masking_server import masked_sum

    sites = [target, *copies.peers()]
    plan = replace(copies.plan(), about=request_hash(letter.text))
    seen: list[Observation] = []
    stages: list[Stage] = []

    def exchange(stage: str, messages: Mapping[int, Message]) -> dict[int, Any]:
        replies = {}
        for i, message in messages.items():
            asked = dict(message)
            if stage == "keys":
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
        masked_sum(exchange, plan, dict(shapes))
    return seen, stages


def ask_again(site: Site, stages: Sequence[Stage]) -> list[Observation]:
    """The same messages to another world, each in the same state."""
    seen = []
    for stage in stages:
        site.state = copy.deepcopy(stage.state)
        seen.append(observe(site, stage.kind, dict(stage.message), stage.arrays)[0])
    return seen


# --------------------------------------------------------------- how a request is bent


def bent_oracles(letter: Letter) -> Iterator[Letter]:
    """Frequency oracles that do not fit their block."""
    oracles = (letter.content["randomizer"] or {}).get("oracles", {})
    for block, oracle in oracles.items():
        path = ("randomizer", "oracles", block)
        domain = oracle["domain"]
        for other in sorted({1, 2, domain // 2, domain - 1, domain + 1, 4 * domain}):
            if other == domain:
                continue
            yield letter.changed(f"domain={other}", (*path, "domain"), other)
            smaller = letter.changed(f"domain={other}", (*path, "domain"), other)
            for kind in ("oue", "olh", "subset", "grr", "rr"):
                yield smaller.changed(f"kind={kind}", (*path, "kind"), kind)
        for kind in ("oue", "olh", "subset", "grr", "rr"):
            yield letter.changed(f"kind={kind}", (*path, "kind"), kind)
        for eps in (1e-9, 1e-3, 700.0):
            yield letter.changed(f"eps={eps:g}", (*path, "eps"), eps)
        content = without(letter.content, ("randomizer", "oracles", block))
        yield Letter(f"{letter.what}: no oracle of {block}", content, letter.arrays)
        yield letter.changed("an oracle too many", (*path[:-1], "none"), oracle)


def bent_classes(letter: Letter) -> Iterator[Letter]:
    """Class lists that do not fit the algorithm, or the labels of the site."""
    if letter.content.get("reading") is None:
        return
    path = ("reading", "classes")
    classes = list(value_at(letter.content, path))
    unknown = _unknown_label(classes)
    lists = {
        "the first missing": classes[1:],
        "the last missing": classes[:-1],
        "one more at the end": [*classes, unknown],
        "one more in front": [unknown, *classes],
        "one more inside": [classes[0], unknown, *classes[1:]],
        "the last renamed": [*classes[:-1], unknown],
        "the first renamed": [unknown, *classes[1:]],
        "in reverse": classes[::-1],
        "one twice": [*classes, classes[0]],
        "as texts": [str(label) for label in classes],
        "as decimals": [float(i) for i in range(len(classes))],
        "as truth values": [True, False],
        "numbers of another kind": [0.5 + i for i in range(len(classes))],
        "half numbers, half texts": [*classes[:-1], str(classes[-1])],
        "none": [],
        "two": classes[:2],
        "hundreds": [*classes, *(_unknown_label([*classes, i]) for i in range(200))],
    }
    for what, value in lists.items():
        bent = letter.changed(f"classes {what}", path, value)
        yield bent
        wide = len(value) - len(classes)
        if wide in (-1, 1):  # as many columns as before, with one class more or less
            columns = letter.content["reading"]["n_columns"]
            yield bent.changed("columns kept", ("reading", "n_columns"), columns)
    for i in range(1, len(classes)):
        turned = [*classes[i:], *classes[:i]]
        yield letter.changed("classes turned", path, turned)


def bent_counts(letter: Letter) -> Iterator[Letter]:
    """Numbers of units, rows and clients that are not those of the federation."""
    for name in ("n_units", "n_rows", "n_clients", "n_min", "max_colluders"):
        if name not in letter.content:
            continue
        for value in (0, 1, 2, 3, 7, 39, 40, 41, 100, 10**6, 2**40, 2**61):
            if value != letter.content[name]:
                yield letter.changed(f"{name}={value}", (name,), value)


def bent_blocks(letter: Letter) -> Iterator[Letter]:
    """Bounds, steps and shapes of blocks that are not those of the algorithm."""
    blocks = letter.content.get("codec") or {}
    for name, code in blocks.items():
        path = ("codec", name)
        spec = code["spec"]
        for factor in (1e-3, 0.5, 2.0, 1e3):
            if spec["clip"] is not None:
                clip = spec["clip"] * factor
                yield letter.changed(f"clip*{factor:g}", (*path, "spec", "clip"), clip)
            if code["step"] is not None:
                step = code["step"] * factor
                yield letter.changed(f"step*{factor:g}", (*path, "step"), step)
            weight = spec["weight"] * factor
            yield letter.changed(
                f"weight*{factor:g}", (*path, "spec", "weight"), weight
            )
        none = None
        yield letter.changed("no clip", (*path, "spec", "clip"), none)
        yield letter.changed("no step", (*path, "step"), none)
        yield letter.changed("step 1", (*path, "step"), 1.0)
        yield letter.changed("clip 1", (*path, "spec", "clip"), 1.0)
        for norm in ("l1", "l2"):
            yield letter.changed(f"norm {norm}", (*path, "spec", "norm"), norm)
        for kind in ("count", "real"):
            yield letter.changed(f"kind {kind}", (*path, "spec", "kind"), kind)
        shape = spec["shape"]
        shapes = [[*shape[:-1], shape[-1] + d] for d in (-1, 1)] if shape else [[1]]
        shapes += [[math.prod(shape)], [1, *shape], [*shape, 1], shape[::-1], []]
        for value in shapes:
            if value != shape:
                yield letter.changed(f"shape {value}", (*path, "spec", "shape"), value)
        for groups in {1, shape[0] if shape else 1, 2}:
            yield letter.changed(f"groups {groups}", (*path, "spec", "groups"), groups)
        content = without(letter.content, ("codec", name))
        yield Letter(f"{letter.what}: no block {name}", content, letter.arrays)
        yield letter.changed("a block too many", ("codec", "more"), code)


def bent_noise(letter: Letter) -> Iterator[Letter]:
    """Noise of another law or size than the blocks need."""
    if "randomizer" not in letter.content:
        return
    blocks = list(letter.content.get("codec") or {})
    scales = dict.fromkeys(blocks, 1.0)
    laws: list[Any] = [
        None,
        {"class": "GaussianShares"},
        {"class": "OneHotRows"},
        *(
            {"class": "LaplaceShares", "scales": dict.fromkeys(blocks, scale)}
            for scale in (1e-6, 1e-2, 1.0, 50.0, 1e6)
        ),
        *(
            {"class": "PolyaShares", "scales": scales, "n_shares": n}
            for n in (0, 1, 3, 10**6)
        ),
        {"class": "LaplaceShares", "scales": {}},
        *(
            {
                "class": "LocalReports",
                "oracles": {
                    name: {"class": "Oracle", "kind": kind, "eps": 0.1, "domain": n}
                    for name in blocks
                },
            }
            for kind in ("oue", "rr", "grr")
            for n in (1, 4, 16)
        ),
    ]
    for law in laws:
        name = "none" if law is None else law["class"]
        yield letter.changed(f"noise {name}", ("randomizer",), law)
    old = letter.content["randomizer"] or {}
    for block, scale in (old.get("scales") or {}).items():
        for factor in (1e-9, 1e-3, 0.5, 1e6):
            where = ("randomizer", "scales", block)
            yield letter.changed(f"scale*{factor:g}", where, scale * factor)
    for claim in (
        None,
        {"kind": "pure", "eps": 1e-9, "eps_slack": 0.0, "delta_slack": 0.0},
        {"kind": "gaussian", "mu": 1e-9, "eps_slack": 0.0, "delta_slack": 0.0},
    ):
        if "claim" in letter.content:
            yield letter.changed(f"claim {claim}", ("claim",), claim)
    if "seed" in letter.content:
        yield letter.changed("a seed", ("seed",), [7, 0])


def bent_reading(letter: Letter) -> Iterator[Letter]:
    """Another agreement on what rows mean than the algorithm needs."""
    if letter.content.get("reading") is None:
        return
    for kind in ("logits", "log_proba", "proba"):
        one = letter.changed(f"input_type {kind}", ("reading", "input_type"), kind)
        yield one
        for rows in ("logits", "given", "features"):
            both = one.changed(f"rows {rows}", ("reading", "rows"), rows)
            yield both
            parameters = letter.content["algorithm"]
            if "input_type" in parameters:
                yield both.changed("both", ("algorithm", "input_type"), kind)
    columns = letter.content["reading"]["n_columns"]
    for n in (0, 1, columns - 1, columns + 1, 10**6):
        yield letter.changed(f"n_columns {n}", ("reading", "n_columns"), n)
    yield letter.changed("no reading", ("reading",), None)
    for unit in ("client", "example"):
        if unit != letter.content["unit"]:
            yield letter.changed(f"unit {unit}", ("unit",), unit)


def bent_broadcast(letter: Letter) -> Iterator[Letter]:
    """Broadcasts that a query can fail on, for some rows only."""
    for name, value in letter.arrays.items():
        array = np.asarray(value)
        real = array.astype(np.float64)
        values: dict[str, Any] = {
            "zeros": np.zeros_like(array),
            "negative": -np.abs(real) - 1,
            "huge": np.full(array.shape, 1e300),
            "tiny": np.full(array.shape, 1e-300),
            "700": np.full(array.shape, 700.0),
            "float32": real.astype(np.float32),
            "integers": np.zeros(array.shape, dtype=np.int8),
            "truth values": np.ones(array.shape, dtype=bool),
            "longer": np.concatenate([real.ravel(), np.ones(1)]),
            "shorter": real.ravel()[:-1],
            "another dimension": real[None],
            "a number": np.asarray(3.0),
            "empty": np.zeros(0),
            "a whole number": np.asarray(2),
            "a large whole number": np.asarray(2**40),
        }
        for what, other in values.items():
            yield letter.broadcasting(f"{name} {what}", {**letter.arrays, name: other})
        rest = {key: v for key, v in letter.arrays.items() if key != name}
        yield letter.broadcasting(f"no {name}", rest)
    more = {**letter.arrays, "more": np.ones(3)}
    yield letter.broadcasting("an array too many", more)
    for name in ("log_beta", "temperature", "params", "bias", "n_classes"):
        if name not in letter.arrays:
            more = {**letter.arrays, name: np.ones(2)}
            yield letter.broadcasting(f"{name} too", more)


def bent_parameters(letter: Letter) -> Iterator[Letter]:
    """Parameters of the algorithm that its users do not have."""
    algorithm = letter.content["algorithm"]
    for path in paths(algorithm):
        value = value_at(algorithm, path)
        if not path or path[-1] == "class" or isinstance(value, (dict, list)):
            continue
        others: tuple[Any, ...] = (None, 0, 1, 2, 3)
        if isinstance(value, bool):
            others = (not value,)
        elif isinstance(value, str):
            others = ("client", "example", "l1", "l2", "both", "prob", "logit", "top",
                      "ovr", "binary", "proba", "logits", "nll", "ece", "")  # fmt: skip
        elif isinstance(value, float):
            others = (None, 0.0, -1.0, 1e-300, 1e300, 0.5, 2.0)
        elif isinstance(value, int):
            others = (None, 0, 1, 2, 3, -1, 7, 1000)
        for other in others:
            if other != value or type(other) is not type(value):
                where = ("algorithm", *path)
                yield letter.changed(
                    f"{'.'.join(map(str, path))}={other}", where, other
                )


def bent_round(letter: Letter) -> Iterator[Letter]:
    """Rounds and runs that do not exist."""
    for index in (1, 2, 5, 10**6, 2**61):
        yield letter.changed(f"round {index}", ("round_index",), index)
    for run in ("", "another", "x" * 1000):
        yield letter.changed(f"run {run[:8]!r}", ("run",), run)
    for name in list(letter.content):
        content = {k: v for k, v in letter.content.items() if k != name}
        yield Letter(f"{letter.what}: no {name}", content, letter.arrays)
    yield letter.changed("a field too many", ("more",), 1)


Bend = Callable[[Letter], Iterable[Letter]]


def bent_not_at_all(letter: Letter) -> Iterator[Letter]:
    """The request as an honest server sends it."""
    yield letter


# ------------------------------------------------------------------------- the findings


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

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        eps = None if math.isnan(self.eps) else self.eps
        return {
            "attack": self.attack,
            "tried": self.tried,
            "learnt": self.learnt,
            "bits": self.bits,
            "messages": self.messages,
            "answered": self.answered,
            "eps": eps,
            "examples": self.examples[:20],
        }


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
        with _quiet():
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
            names = [n for n in ALGORITHMS if n in _method_names(policy.methods)]
        entries = catalogue(
            schema,
            n_clients=copies.n_clients,
            eps=max(eps, 1e-6),
            max_colluders=policy.max_colluders,
            algorithms=names,
        )
        rows = clean_rows(schema)
        plain = [
            e for e in entries
            if not ask_plain(copies.site(rows), letter_of(e))[0].refused
        ]  # fmt: skip
        masked = []
        for entry in entries:
            seen, _ = ask_masked(
                copies, copies.site(rows), letter_of(entry), _shapes(entry)
            )
            if not any(look.refused for look in seen):
                masked.append(entry)
        worlds = neighbouring_worlds(copies.rows, schema)
        return cls(copies, schema, entries, plain, masked, worlds, **options)

    def charged(self, site: Site) -> float:
        """Eps that the ledger of a copy was debited since the copy was made."""
        if site._ledger is None:
            return math.nan
        budget = self.copies._budget
        delta = DELTA if budget is None else budget[1]
        from skfedcal.privacy.events import event_from_dict

        account = Account()
        entries = _entries(site, len(self.copies._records or ()))
        for text in entries:
            account.add(event_from_dict(json.loads(text)["event"]))
        return site_epsilon(account, delta) if entries else 0.0


def _method_names(methods: Sequence[str]) -> set[str]:
    return {method.partition(":")[0] for method in methods}


def _shapes(entry: Entry) -> Mapping[str, Any]:
    return request_words(entry.request, masked=True).shapes


# Bends that are tried on every algorithm in masked rounds, too.
_ALWAYS: tuple[Bend, ...] = (bent_not_at_all, bent_classes, bent_broadcast)


class TwoWorlds:
    """Send changed requests to two worlds, and compare all but the agreed content.

    Parameters
    ----------
    name, tried : str
        For the table.
    bend : callable
        Changes a valid request in many ways.
    secure : bool
        Whether the answer is masked.
    """

    def __init__(self, name: str, tried: str, bend: Bend, secure: bool = False) -> None:
        self.name, self.tried, self.bend, self.secure = name, tried, bend, secure
        self._n_compared = 0

    def run(self, target: Target) -> Finding:
        """Ask both worlds everything."""
        found = Finding(self.name, self.tried)
        questions: dict[str, str] = {}
        most, by_leak = 0.0, 0.0
        for entry in self._entries(target):
            for letter in self.bend(letter_of(entry)):
                if self.secure and self._refused_at_keys(target, letter):
                    found.messages += 1
                    continue
                own, eps, differ = self._compared(target, entry, letter)
                eps = 0.0 if math.isnan(eps) else eps
                found.messages += len(own)
                found.answered += not any(look.refused for look in own)
                most = max(most, eps)
                for question in differ:
                    if question not in questions:
                        questions[question] = letter.what
                        by_leak = max(by_leak, eps)
        found.bits = float(len(questions))
        found.learnt = "; ".join(questions)
        found.examples = [f"{q}: {what}" for q, what in questions.items()]
        if target.copies.has_ledger:
            found.eps = by_leak if questions else most
        return found

    def _entries(self, target: Target) -> list[Entry]:
        """One request of each algorithm, trust model and unit."""
        if self.bend is bent_not_at_all:
            return target.entries
        chosen: dict[tuple[Any, ...], Entry] = {}
        for entry in target.masked if self.secure else target.plain:
            key: tuple[Any, ...] = (
                entry.algorithm,
                entry.model,
                entry.unit,
                entry.request.round_index,
            )
            if self.secure and self.bend not in _ALWAYS:
                # Rows are read by the same code as for plain answers.
                key = (entry.model, entry.unit)
            chosen.setdefault(key, entry)
        return list(chosen.values())

    def _refused_at_keys(self, target: Target, letter: Letter) -> bool:
        """Whether a round does not begin: the rows are not looked at then."""
        message = target.copies.plan().to_message() | {"you": 0, "request": letter.text}
        return bool(observe(target.copies.site(), "keys", message, {})[0].refused)

    def _compared(
        self, target: Target, entry: Entry, letter: Letter
    ) -> tuple[list[Observation], float, list[str]]:
        """What is seen of the own rows, the charge, and worlds in which it differs."""
        site = target.copies.site()
        stages: list[Stage] = []
        if self.secure:
            own, stages = ask_masked(target.copies, site, letter, _shapes(entry))
        else:
            own = [ask_plain(site, letter)[0]]
        self._n_compared += 1
        differ = []
        for i, world in enumerate(target.worlds):
            other = target.copies.site(world.rows)
            if not self.secure:
                same = ask_plain(other, letter)[0] == own[0]
            else:
                # Rows are read in the stage 'masked'. That the other stages do not
                # read them is tried with the worlds in turn.
                turn = self._n_compared % len(target.worlds) == i
                chosen = [
                    k for k, stage in enumerate(stages)
                    if target.thorough or turn or stage.kind == "masked"
                ]  # fmt: skip
                seen = ask_again(other, [stages[k] for k in chosen])
                same = seen == [own[k] for k in chosen]
            if not same:
                differ.append(world.question)
        return own, target.charged(site), differ


# ------------------------------------------------------------- reading values of rows


class _Asker:
    """Asks one copy of the site again and again, plain or masked; counts and pays."""

    def __init__(self, target: Target, entry: Entry, secure: bool) -> None:
        self.target, self.entry, self.secure = target, entry, secure
        self.site = target.copies.site()
        self.n_messages = 0
        self.n_asked = 0
        self.n_answered = 0

    def refusal(self, letter: Letter) -> str:
        """Text of the refusal of a request; empty if it is answered."""
        self.n_asked += 1
        text = self._refusal(letter)
        self.n_answered += not text
        return text

    def _refusal(self, letter: Letter) -> str:
        if not self.secure:
            self.n_messages += 1
            return ask_plain(self.site, letter, run=f"audit {self.n_asked}")[0].refused
        # A fresh state for each round: the order of rounds is not what is attacked.
        site = self.target.copies.site(ledger=self.site._ledger)
        seen, _ = ask_masked(self.target.copies, site, letter, _shapes(self.entry))
        self.n_messages += len(seen)
        return next((look.refused for look in seen if look.refused), "")

    def spent(self) -> float:
        """Eps that was charged in all."""
        return self.target.charged(self.site)


def _cheap(letter: Letter) -> Letter:
    """The same request for next to no eps, where the site draws the noise itself."""
    noise = letter.content["randomizer"] or {}
    content = letter.content
    for name in noise.get("oracles", {}):
        where = ("randomizer", "oracles", name)
        content = with_value(content, (*where, "eps"), 1e-7)
        content = with_value(content, (*where, "kind"), "oue")
    for name, scale in noise.get("scales", {}).items():
        content = with_value(content, ("randomizer", "scales", name), scale * 1e6)
    return Letter(letter.what, content, letter.arrays)


class OracleDomain:
    """Binary search of the cell of a row, by a report with fewer cells than there are.

    A cell beyond the domain is an IndexError, and its name is in the refusal.
    """

    name = "rows in clear by a small report domain"
    tried = (
        "ask for a randomised report of fewer cells than the block has, and read from "
        "the refusal whether the row lies beyond them"
    )
    n_rows = 3
    bits = 12

    def run(self, target: Target) -> Finding:
        """Search the cells of some rows of each algorithm that sends reports."""
        found = Finding(self.name, self.tried, eps=0.0)
        for entry in target.plain:
            if entry.model == "reports":
                self._search(target, entry, found)
        if not target.copies.has_ledger:
            found.eps = math.nan
        return found

    def _search(self, target: Target, entry: Entry, found: Finding) -> None:
        letter = _cheap(letter_of(entry))
        algorithm: Any = entry.request.algorithm
        if len(getattr(algorithm, "levels", ())) == 1:
            letter = _deepened(letter, self.bits)
            levels = (self.bits,)
            algorithm = replace(algorithm, levels=levels)
        blocks = letter.content["randomizer"]["oracles"]
        if len(blocks) != 1:
            return
        (block,) = blocks
        size = math.prod(letter.content["codec"][block]["spec"]["shape"])
        asker, right, informative = _Asker(target, entry, False), 0, 0
        salts = range(self.n_rows) if hasattr(algorithm, "salt") else [0]
        for salt in salts:
            salted, asked = letter, algorithm
            if hasattr(algorithm, "salt"):
                salted = letter.changed(f"salt {salt}", ("algorithm", "salt"), salt)
                asked = replace(algorithm, salt=salt)
            low, high = 0, size - 1
            path = ("randomizer", "oracles", block, "domain")
            texts = set()
            while low < high:
                middle = (low + high + 1) // 2
                text = asker.refusal(salted.changed(f"domain {middle}", path, middle))
                texts.add(text)
                if "IndexError" in text:
                    low = middle
                else:
                    high = middle - 1
            right += low == _true_cell(asked, entry, target)
            informative += len(texts) > 1
        found.messages += asker.n_messages
        found.answered += asker.n_answered
        if target.copies.has_ledger and not found.learnt:
            found.eps = max(found.eps, asker.spent())
        # Always the same reply tells nothing, wherever the search ends.
        if right == len(salts) and informative:
            found.bits += len(salts) * math.log2(size)
            found.eps = asker.spent()
            found.learnt = f"score and label of {len(salts)} chosen rows"
            found.examples.append(f"{entry.name}: {right} cells of {size}")


def _deepened(letter: Letter, bits: int) -> Letter:
    """The same report of a finer histogram."""
    content = copy.deepcopy(letter.content)
    (old,) = content["codec"]
    new = f"level_{bits}"
    content["algorithm"]["levels"] = [bits]
    content["codec"] = {new: content["codec"][old]}
    shape = content["codec"][new]["spec"]["shape"]
    shape[-1] = 2**bits
    oracles = content["randomizer"]["oracles"]
    content["randomizer"]["oracles"] = {
        new: {**oracles[old], "domain": math.prod(shape)}
    }
    return Letter(letter.what, content, letter.arrays)


def _true_cell(algorithm: Any, entry: Entry, target: Target) -> int:
    """What the attack looks for; -2 where the rows do not fit."""
    try:
        reading = entry.request.reading
        assert reading is not None
        clients = reading.dataset(target.copies.rows, target.copies.name)
        (rows,) = algorithm.query(entry.request.broadcast, clients).values()
        cells = rows.cells if hasattr(rows, "cells") else np.flatnonzero(rows)
        return int(cells[0]) if len(cells) else -2
    except Exception:
        return -2


class LabelsOfRows:
    """Labels of chosen rows, by a class list that has more classes than tables."""

    name = "labels by a class list"
    tried = (
        "name more classes than the algorithm has tables, with one after the other in "
        "the last place, and read from the refusal whether the row has it"
    )
    n_rows = 20

    def __init__(self, secure: bool = False) -> None:
        self.secure = secure
        self.name = self.name + (", masked" if secure else "")
        self.n_rows = 5 if secure else self.n_rows

    def run(self, target: Target) -> Finding:
        """Ask for the label of the row that each salt chooses."""
        found = Finding(self.name, self.tried, eps=0.0)
        for entry in target.entries:
            options = entry.request.algorithm
            if (
                entry.model in ("own", "reports")
                and getattr(options, "max_examples", None) == 1
                and hasattr(options, "salt")
            ):
                self._labels(target, entry, found)
            if found.learnt:
                break
        if not target.copies.has_ledger:
            found.eps = math.nan
        return found

    def _labels(self, target: Target, entry: Entry, found: Finding) -> None:
        from skfedcal.methods.own_rows import kept_rows

        classes = target.schema.classes
        asker = _Asker(target, entry, self.secure)
        letter = _cheap(letter_of(entry))
        labels = target.copies.rows.labels
        right, told = 0, set()
        for salt in range(self.n_rows):
            salted = letter.changed(f"salt {salt}", ("algorithm", "salt"), salt)
            said = None
            for label in classes[1:]:
                order = [c for c in classes if c != label]
                while len(order) < 2:
                    order.append(_unknown_label([*order, label]))
                bent = salted.changed(
                    "classes", ("reading", "classes"), [*order, label]
                )
                if asker.refusal(bent):
                    said = label
                    break
            said = classes[0] if said is None else said
            reading = entry.request.reading
            assert reading is not None
            try:
                clients = reading.dataset(target.copies.rows, target.copies.name)
            except Exception:
                return
            kept = kept_rows(clients, 1, salt)
            right += bool((labels[kept] == said).all())
            told.add(said)
        found.messages += asker.n_messages
        found.answered += asker.n_answered
        if target.copies.has_ledger and not found.learnt:
            found.eps = max(found.eps, asker.spent())
        if right == self.n_rows and len(told) > 1:
            found.learnt = f"labels of {right} of {self.n_rows} chosen rows"
            found.bits = right * math.log2(len(classes))
            found.eps = asker.spent()
            found.examples.append(entry.name)


class RowCount:
    """The number of rows, by a number of units that is too small for them."""

    name = "row count"
    tried = (
        "announce ever smaller numbers of rows of all sites, and read from the refusal "
        "whether this site alone has more; look for the number beside the answer"
    )

    def __init__(self, secure: bool = False) -> None:
        self.secure = secure
        self.name = self.name + (", masked" if secure else "")

    def run(self, target: Target) -> Finding:
        """Search the number of rows by halving."""
        found = Finding(self.name, self.tried, eps=0.0)
        for entry in target.masked if self.secure else target.plain:
            if entry.unit != "example":
                continue
            if not self.secure and self._sent(target, entry, found):
                break
            asker = _Asker(target, entry, self.secure)
            letter = _cheap(letter_of(entry))
            low, high, texts = 1, 1 << 16, set()
            while low < high:
                middle = (low + high) // 2
                text = asker.refusal(letter.changed("n", ("n_units",), middle))
                texts.add(text)
                if text:
                    low = middle + 1
                else:
                    high = middle
            found.messages += asker.n_messages
            found.answered += asker.n_answered
            if target.copies.has_ledger and not found.learnt:
                found.eps = max(found.eps, asker.spent())
            if len(texts) > 1 and low == len(target.copies.rows):
                found.learnt = f"the number of rows: {low}"
                found.bits = 16.0
                found.eps = asker.spent()
                found.examples.append(entry.name)
                break
        if not target.copies.has_ledger:
            found.eps = math.nan
        return found

    def _sent(self, target: Target, entry: Entry, found: Finding) -> bool:
        """Whether a plain answer has the number of rows beside its blocks."""
        site = target.copies.site()
        seen, words = ask_plain(site, letter_of(entry))
        found.messages += 1
        found.answered += not seen.refused
        if target.copies.has_ledger:
            found.eps = max(found.eps, target.charged(site))
        beside = [v for n, v in words.items() if n not in entry.request.codec.blocks]
        n_rows = len(target.copies.rows)
        if not any(value.size == 1 and value.item() == n_rows for value in beside):
            return False
        found.learnt = f"the number of rows: {n_rows}, beside the answer"
        found.bits = 16.0
        found.eps = target.charged(site)
        found.examples.append(entry.name)
        return True


# -------------------------------------------------- content with noise: distinguishing


def binomial_bounds(k: int, n: int, alpha: float) -> tuple[float, float]:
    """Clopper and Pearson's lower and upper bounds of a chance, each at `alpha`."""
    from scipy.stats import beta

    low = 0.0 if k == 0 else float(beta.ppf(alpha, k, n - k + 1))
    high = 1.0 if k == n else float(beta.ppf(1 - alpha, k + 1, n - k))
    return low, high


def eps_lower_bound(
    first: Any, second: Any, *, alpha: float, delta: float = 0.0
) -> float:
    """Bound from below the eps of two samples of replies.

    Half of the samples choose a direction and a threshold, the other half count.

    Parameters
    ----------
    first, second : ndarray of shape (n, size)
        Replies in the two worlds.
    alpha : float
        Chance that the bound is above the true eps.
    delta : float, default=0.0
        Of the claim.
    """
    n = min(len(first), len(second)) // 2
    train = np.stack([first[:n], second[:n]]).astype(np.float64)
    means = train.mean(axis=1)
    spread = train.reshape(2 * n, -1).std(axis=0) + 1e-9
    gap = (means[1] - means[0]) / spread**2
    best = np.zeros_like(gap)
    best[np.argmax(np.abs(means[1] - means[0]) / spread)] = 1.0
    choices = []
    for direction in (gap, best):
        a, b = train[0] @ direction, train[1] @ direction
        cuts = np.unique(np.quantile(np.concatenate([a, b]), np.linspace(0, 1, 41)))
        for cut in cuts:
            for low, high in ((0, 1), (1, 0)):
                for side in (1, -1):
                    inside = [side * x >= side * cut for x in (a, b)]
                    odds = (inside[high].mean() + 1 / n) / (inside[low].mean() + 1 / n)
                    choices.append((odds, direction, cut, high, side))
    _, direction, cut, high, side = max(choices, key=lambda choice: choice[0])
    counts = [
        int((side * (sample[n : 2 * n] @ direction) >= side * cut).sum())
        for sample in (first, second)
    ]
    p = binomial_bounds(counts[high], n, alpha / 2)[0]
    q = binomial_bounds(counts[1 - high], n, alpha / 2)[1]
    return math.log((p - delta) / q) if p > delta else -math.inf


class MeasuredEps:
    """Replies with own noise: the eps that they have, and the eps that was charged."""

    name = "true eps of answers with own noise"
    tried = (
        "ask for noise of other laws, sizes and domains than the block needs, repeat, "
        "and compare how well two worlds are told apart with the eps charged"
    )

    def run(self, target: Target) -> Finding:
        """Measure every request that the site answers with noise of its own."""
        found = Finding(self.name, self.tried, eps=0.0)
        worst = 0.0
        for entry, letter in self._letters(target):
            seen, _ = ask_plain(target.copies.site(clean_rows(target.schema)), letter)
            found.messages += 1
            if seen.refused:
                continue
            found.answered += 1
            measured = self._measured(target, entry, letter, found)
            if measured is None:
                continue
            bound, charged = measured
            if bound > charged and bound - charged > worst:
                worst = bound - charged
                found.bits = bound / math.log(2)
                found.eps = charged
                found.learnt = (
                    f"eps at least {bound:.2f} where {charged:.2g} is charged"
                )
                found.examples.append(f"{letter.what}: {found.learnt}")
        if not target.copies.has_ledger:
            found.eps = math.nan
        return found

    def _letters(self, target: Target) -> Iterator[tuple[Entry, Letter]]:
        chosen: dict[tuple[Any, ...], Entry] = {}
        for entry in target.plain:
            if entry.model in ("own", "reports"):
                chosen.setdefault((entry.algorithm, entry.model), entry)
        bent_models = set()
        for entry in chosen.values():
            letter = letter_of(entry)
            yield entry, letter
            for block in (letter.content["randomizer"] or {}).get("oracles", {}):
                path = ("randomizer", "oracles", block)
                cheap = letter.changed("eps=0.1", (*path, "eps"), 0.1)
                for kind in ("rr", "grr", "oue", "olh", "subset"):
                    yield entry, cheap.changed(f"kind={kind}", (*path, "kind"), kind)
            if entry.model not in bent_models:
                bent_models.add(entry.model)
                for bend in (bent_blocks, bent_noise, bent_reading):
                    yield from ((entry, bent) for bent in bend(letter))

    def _measured(
        self, target: Target, entry: Entry, letter: Letter, found: Finding
    ) -> tuple[float, float] | None:
        """Bound and charge of the worst of some pairs of worlds."""
        worst: tuple[float, float] | None = None
        empty = _no_rows(target.schema)
        few, many = max(40, target.n_samples // 20), target.n_samples
        for rows in _canaries(target.schema):
            pair = []
            for n in (few, many):
                samples = [self._samples(target, w, letter, n) for w in (empty, rows)]
                found.messages += 2 * n
                if any(s is None for s in samples):
                    return worst
                (first, charged), (second, _) = samples  # type: ignore[misc]
                if not found.learnt and not math.isnan(charged):
                    found.eps = max(found.eps, charged)
                if math.isnan(charged):
                    charged = 1.0 if "eps=0.1" not in letter.what else 0.1
                # A look with few samples decides whether the many are worth their time.
                alpha = 0.05 if n == few else target.alpha
                bound = eps_lower_bound(first, second, alpha=alpha, delta=DELTA)
                pair.append((bound, charged))
                if bound <= charged:
                    break
            if len(pair) == 2 and (worst is None or pair[1][0] > worst[0]):
                worst = pair[1]
        return worst

    def _samples(
        self, target: Target, rows: SiteRows, letter: Letter, n: int
    ) -> tuple[Any, float] | None:
        first = target.copies.site(rows)
        if ask_plain(first, letter)[0].refused:
            return None
        charged = target.charged(first)
        # Without a budget, which so many answers would exceed.
        site = target.copies.site(rows, budget=False)
        replies = []
        for _ in range(n):
            site.state = {}
            message = {
                "run": "audit",
                "round": 0,
                "position": 0,
                "request": letter.text,
            }
            reply, words = site.handle("answer", message, letter.arrays)
            if "refused" in reply:
                return None
            replies.append(_integers(words))
        return np.array(replies), charged


def _integers(words: Mapping[str, Any]) -> Any:
    """Signed integers of a reply, but not the number of rows."""
    return np.concatenate(
        [
            value.view(value.dtype.str.replace("u", "i")).ravel().astype(np.int64)
            for name, value in sorted(words.items())
            if not name.startswith("/")
        ]
    )


def _no_rows(schema: Schema) -> SiteRows:
    rows = clean_rows(schema)
    return SiteRows(rows.scores[:0], rows.labels[:0], rows.kind)


def _canaries(schema: Schema) -> Iterator[SiteRows]:
    """One extreme row of the first and last class: all scores low, or one high."""
    kind: Any = schema.kind
    width = schema.n_columns
    low, high = (0.0, 1.0) if schema.kind == "proba" else (-30.0, 30.0)
    rows = np.full((3, width), low)
    rows[1, 0] = rows[2, -1] = high
    if width == 1:
        rows = rows[:2]
    elif schema.kind == "proba":
        rows[0] = 1 / width
    for label in (schema.classes[0], schema.classes[-1]):
        for row in rows:
            yield SiteRows(row[None], np.array([label]), kind)


# ------------------------------------------------------------ answers without a debit


class UnpaidAnswers:
    """Replays, older rounds and second questions: every answer must be paid for."""

    name = "answers that are not paid"
    tried = (
        "send the same round again, an older round, and other questions under a run or "
        "claim that is paid for already"
    )

    def run(self, target: Target) -> Finding:
        """Count answers and debits."""
        found = Finding(self.name, self.tried, eps=0.0)
        leaks = []
        chosen: dict[tuple[Any, ...], Entry] = {}
        for entry in target.plain:
            chosen.setdefault((entry.algorithm, entry.model, entry.unit), entry)
        for entry in chosen.values():
            letter = letter_of(entry)
            if entry.model == "exact" or not target.copies.has_ledger:
                continue
            leaks += self._replays(target, entry, letter, found)
        for secure, entries in ((False, target.plain), (True, target.masked)):
            central = [e for e in entries if e.model == "central"]
            leaks += self._second_questions(target, central, secure, found)
        if leaks:
            found.learnt = "; ".join(dict.fromkeys(text for text, _ in leaks))
            found.bits = float(len(leaks))
            found.examples = [example for _, example in leaks]
        if not target.copies.has_ledger:
            found.eps = math.nan
        return found

    def _replays(
        self, target: Target, entry: Entry, letter: Letter, found: Finding
    ) -> list[tuple[str, str]]:
        site, out = target.copies.site(), []
        first, _ = ask_plain(site, letter, "one", 3)
        again, _ = ask_plain(site, letter, "one", 3)
        older, _ = ask_plain(site, letter, "one", 2)
        other, _ = ask_plain(site, letter, "two", 0)
        found.messages += 4
        found.answered += sum(not s.refused for s in (first, again, older, other))
        if not first.refused and not again.refused:
            out.append(("the same round twice", letter.what))
        if not first.refused and not older.refused:
            out.append(("an older round", letter.what))
        if entry.model in ("own", "reports") and not other.refused and not other.ledger:
            out.append(("a second answer with own noise, not charged", letter.what))
        found.eps = max(found.eps, target.charged(site))
        return out

    def _second_questions(
        self, target: Target, entries: list[Entry], secure: bool, found: Finding
    ) -> list[tuple[str, str]]:
        """A claim is for one run of one algorithm: anything else is another release."""
        if not target.copies.has_ledger:
            return []
        chosen: dict[tuple[str, str], Entry] = {}
        for entry in entries:
            chosen.setdefault((entry.algorithm, entry.unit), entry)
        out = []
        for entry in chosen.values():
            first = letter_of(entry).changed("", ("run",), "one run")
            claim = first.content["claim"]
            for name, value in claim.items():
                if name in ("eps", "mu"):
                    small = with_value(claim, (name,), value * 1e-3)
                    cheap = first.changed("a small claim", ("claim",), small)
                    out += self._paid_once(
                        target, entry, cheap, entry, first, secure, found,
                        "a larger claim in a run that is paid for",
                    )  # fmt: skip
            for other in chosen.values():
                if other.algorithm == entry.algorithm or other.unit != entry.unit:
                    continue
                second = letter_of(other).changed("", ("run",), "one run")
                # The claim of the first run, word for word.
                second = second.changed("", ("claim",), claim)
                out += self._paid_once(
                    target, entry, first, other, second, secure, found,
                    "another method under a claim that is paid once",
                )  # fmt: skip
        return out

    def _paid_once(
        self,
        target: Target,
        entry: Entry,
        first: Letter,
        other: Entry,
        second: Letter,
        secure: bool,
        found: Finding,
        what: str,
    ) -> list[tuple[str, str]]:
        """Ask one question after the other; the second must be paid, or refused."""
        site = target.copies.site()
        answered, debits = 0, 0
        for i, (asked, letter) in enumerate(((entry, first), (other, second))):
            if secure:
                site.state = {}
                seen, _ = ask_masked(target.copies, site, letter, _shapes(asked))
            else:
                seen = [ask_plain(site, letter, f"run {i}")[0]]
            found.messages += len(seen)
            answered += not any(look.refused for look in seen)
            debits = sum(len(look.ledger) for look in seen)
        found.answered += answered
        found.eps = max(found.eps, target.charged(site))
        if answered == 2 and debits == 0:
            return [(what, f"{first.what}, then {second.what}")]
        return []


# --------------------------------------------------- what is charged, and when, and why


def _ask(
    target: Target, site: Site, entry: Entry, letter: Letter, secure: bool
) -> list[Observation]:
    """Ask for a plain answer or for a masked one."""
    if secure:
        return ask_masked(target.copies, site, letter, _shapes(entry))[0]
    return [ask_plain(site, letter)[0]]


def _variants(target: Target) -> Iterator[tuple[Entry, bool]]:
    """One request of each algorithm, trust model and unit, plain and masked."""
    for secure, entries in ((False, target.plain), (True, target.masked)):
        chosen: dict[tuple[str, str, str], Entry] = {}
        for entry in entries:
            chosen.setdefault((entry.algorithm, entry.model, entry.unit), entry)
        for entry in chosen.values():
            yield entry, secure


class Debits:
    """The full price, before rows are read, and nothing beyond the budget."""

    name = "price of an answer"
    tried = (
        "compare each debit with the price by the request itself; look whether rows "
        "are read before it; claim more than the budget, in every kind of claim"
    )

    def run(self, target: Target) -> Finding:
        """Ask for everything that costs something."""
        found = Finding(self.name, self.tried, eps=0.0)
        if not target.copies.has_ledger:
            found.eps = math.nan
            return found
        leaks: dict[str, str] = {}
        for entry, secure in _variants(target):
            if entry.model == "exact":
                continue
            self._price(target, entry, secure, found, leaks)
            if entry.model == "central":
                self._beyond(target, entry, secure, found, leaks)
        found.learnt = "; ".join(leaks)
        found.bits = float(len(leaks))
        found.examples = [f"{what}: {where}" for what, where in leaks.items()]
        return found

    def _price(
        self,
        target: Target,
        entry: Entry,
        secure: bool,
        found: Finding,
        leaks: dict[str, str],
    ) -> None:
        before: list[int] = []

        def load() -> SiteRows:
            before.append(_n_entries(site))
            return target.copies.rows

        site = target.copies.site(load)
        start = _n_entries(site)
        seen = _ask(target, site, entry, letter_of(entry), secure)
        found.messages += len(seen)
        if any(look.refused for look in seen):
            return
        found.answered += 1
        if before and before[0] == start:
            leaks["rows are read before the debit"] = entry.name
        charged, price = target.charged(site), self._expected(target, entry)
        found.eps = max(found.eps, charged)
        if charged < 0.99 * price:
            what = f"an answer of eps {price:.3g} is charged {charged:.3g}"
            leaks.setdefault(what, entry.name)

    def _expected(self, target: Target, entry: Entry) -> float:
        """Price by the request: of its claim, or of its noise over its bounds."""
        from skfedcal.privacy.ledger import PrivacyLedger

        content = letter_of(entry).content
        noise = content["randomizer"] or {}
        if entry.model == "reports":
            return math.fsum(o["eps"] for o in noise["oracles"].values())
        if entry.model == "own":
            codes = content["codec"]
            return math.fsum(
                codes[name]["spec"]["clip"] / codes[name]["step"] / scale
                for name, scale in noise["scales"].items()
            )
        event = entry.request.claim
        if event is None or (entry.model != "central" and _n_rounds(entry) > 1):
            return 0.0
        ledger = PrivacyLedger()
        ledger.debit(event, label="claim")
        budget = target.copies._budget
        return ledger.spent(DELTA if budget is None else budget[1])

    def _beyond(
        self,
        target: Target,
        entry: Entry,
        secure: bool,
        found: Finding,
        leaks: dict[str, str],
    ) -> None:
        if not math.isfinite(target.copies.remaining):
            return
        size = 10 * target.copies.remaining + 10
        slack = {"eps_slack": 0.0, "delta_slack": 0.0}
        rounds = {"sampling_rate": 0.5, "n_rounds": 100}
        for claim in (
            {"kind": "pure", "eps": size},
            {"kind": "gaussian", "mu": size},
            {"kind": "sampled_gaussian", "noise_multiplier": 1 / size, **rounds},
        ):
            letter = letter_of(entry).changed("claim", ("claim",), {**claim, **slack})
            site = target.copies.site()
            seen = _ask(target, site, entry, letter, secure)
            found.messages += len(seen)
            if not any(look.refused for look in seen):
                what = f"a claim ({claim['kind']}) above the budget is answered"
                leaks.setdefault(what, entry.name)


def _n_rounds(entry: Entry) -> int:
    return int(getattr(entry.request.algorithm, "n_rounds", 1))


class LargerBounds:
    """Answers with a larger bound than the algorithm announces.

    What a claim says of the noise is for the announced bound: a row with a larger one
    shows more than is charged.
    """

    name = "bounds above the announced ones"
    tried = (
        "ask for answers whose bound (clip) is above that of the algorithm, for which "
        "the claim was made"
    )

    def run(self, target: Target) -> Finding:
        """Look for an answer."""
        found = Finding(self.name, self.tried, eps=0.0)
        for entry, secure in _variants(target):
            letter = letter_of(entry)
            spec = entry.request.algorithm.spec(entry.request.broadcast)
            for block, announced in spec.items():
                for factor in (1.001, 2.0, 1e3):
                    if announced.clip is None:
                        continue
                    clip = announced.clip * factor
                    where = ("codec", block, "spec", "clip")
                    bent = letter.changed(f"clip {clip:g}", where, clip)
                    site = target.copies.site()
                    seen = _ask(target, site, entry, bent, secure)
                    found.messages += len(seen)
                    if not any(look.refused for look in seen):
                        found.answered += 1
                        charged = target.charged(site)
                        found.eps = max(found.eps, charged)
                        found.learnt = "a row may count more than the claim allows for"
                        found.bits += 1
                        found.examples.append(bent.what)
        if not target.copies.has_ledger:
            found.eps = math.nan
        return found


# ---------------------------------------------------------- memory and time of a site


def bombs(letter: Letter) -> Iterator[Letter]:
    """Small requests for much memory or time."""
    content = letter.content
    algorithm = content["algorithm"]
    huge = 10**8
    where: tuple[Any, ...]
    for name in ("n_bins", "n_points", "n_features", "n_classes", "max_examples",
                 "epochs", "local_iter", "n_rounds", "n_others", "salt"):  # fmt: skip
        if name in algorithm:
            where = ("algorithm", name)
            for value in (huge, 2**61):
                yield letter.changed(f"{name}={value}", where, value)
    if "levels" in algorithm:
        for levels in ([30], [40], [62], [3] * 1000, list(range(63))):
            yield letter.changed(
                f"levels={levels[:3]}", ("algorithm", "levels"), levels
            )
    if "hidden" in algorithm:
        for hidden in ([10**5, 10**5], [4] * 10_000):
            yield letter.changed("hidden", ("algorithm", "hidden"), hidden)
    for block, code in (content.get("codec") or {}).items():
        where = ("codec", block, "spec", "shape")
        shape = code["spec"]["shape"]
        for large in ([*shape[:-1], huge], [huge, huge], [1] * 100):
            yield letter.changed(f"shape={large[:3]}", where, large)
        groups = ("codec", block, "spec", "groups")
        yield letter.changed("groups", groups, huge)
        yield letter.changed("step", ("codec", block, "step"), 1e-300)
        yield letter.changed("clip", ("codec", block, "spec", "clip"), 1e300)
    for block in (content["randomizer"] or {}).get("oracles") or {}:
        where = ("randomizer", "oracles", block)
        for domain in (huge, 10**10, 2**61):
            for kind in ("oue", "olh", "subset", "grr", "rr"):
                bent = letter.changed(f"domain={domain}", (*where, "domain"), domain)
                yield bent.changed(f"kind={kind}", (*where, "kind"), kind)
    scales = (content["randomizer"] or {}).get("scales") or {}
    for block in scales:
        for scale in (1e-300, 1e18, 1e300):
            where = ("randomizer", "scales", block)
            yield letter.changed(f"scale={scale:g}", where, scale)
    if "n_shares" in (content["randomizer"] or {}):
        yield letter.changed("n_shares", ("randomizer", "n_shares"), 2**61)
    for name, value in letter.arrays.items():
        array = np.asarray(value)
        if array.ndim == 0:
            for number in (huge, 2**40):
                more = {**letter.arrays, name: np.asarray(number)}
                yield letter.broadcasting(f"{name}={number}", more)
        else:
            longer = {**letter.arrays, name: np.ones(200_000)}
            yield letter.broadcasting(f"{name} of 200,000", longer)
    if content.get("reading") is not None:
        classes = list(range(100_000))
        yield letter.changed("100,000 classes", ("reading", "classes"), classes)
        yield letter.changed("columns", ("reading", "n_columns"), 2**61)


class Bombs:
    """Requests for memory and time that a site does not have."""

    name = "memory and time"
    tried = (
        "ask for huge tables, domains, layers, loops and nested texts; the site must "
        "refuse before it allocates (a child process with limits)"
    )
    megabytes = 1024
    seconds = 10

    def run(self, target: Target) -> Finding:
        """Send each request to a copy in a child process with limits."""
        found = Finding(self.name, self.tried)
        if target.copies.has_ledger:
            found.eps = 0.0  # a request that is paid for is not refused
        chosen: dict[tuple[Any, ...], Entry] = {}
        for entry in target.plain or target.masked:
            chosen.setdefault((entry.algorithm, entry.model), entry)
        letters = [bent for e in chosen.values() for bent in bombs(letter_of(e))]
        secure = not target.plain
        found.messages = len(letters) + len(_TEXT_BOMBS)
        texts = [*(b.text for b in letters), *_TEXT_BOMBS]
        arrays = [*(b.arrays for b in letters), *({} for _ in _TEXT_BOMBS)]
        whats = [*(b.what for b in letters), *(t[:20] for t in _TEXT_BOMBS)]
        start, bad = 0, []
        while start < len(texts):
            done = _in_child(
                target,
                texts[start:],
                arrays[start:],
                secure,
                self.megabytes,
                self.seconds,
            )
            start += done
            if start < len(texts):
                bad.append(whats[start])
                start += 1
        if bad:
            found.learnt = f"nothing, but {len(bad)} requests exhaust the site"
            found.examples = bad
        return found


_TEXT_BOMBS = (
    "[" * 500_000,
    '{"a":' * 100_000,
    '{"format":' + "9" * 500_000 + "}",
    "{" + ",".join(f'"{i}":0' for i in range(100_000)) + "}",
    '{"format":"' + "x" * (1 << 21) + '"}',
)


def _in_child(
    target: Target,
    texts: list[str],
    arrays: list[Any],
    secure: bool,
    megabytes: int,
    seconds: int,
) -> int:
    """Messages that a child process with limits handled before it failed."""
    import multiprocessing

    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(
        target=_handle_with_limits,
        args=(target.copies, texts, arrays, secure, megabytes, seconds, writer),
    )
    child.start()
    writer.close()
    n_done = 0
    try:
        while reader.poll(3 * seconds):
            if not reader.recv():
                break
            n_done += 1
    except EOFError:
        pass
    if child.is_alive():
        child.kill()
    child.join()
    return n_done


def _handle_with_limits(
    copies: SiteCopies,
    texts: list[str],
    arrays: list[Any],
    secure: bool,
    megabytes: int,
    seconds: int,
    writer: Any,
) -> None:
    import logging
    import resource
    import signal
    import tracemalloc

    logging.disable(logging.CRITICAL)
    limit = megabytes << 20
    with open("/proc/self/statm") as stream:
        used = int(stream.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + limit, used + limit))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    site = copies.site()
    for i, (text, broadcast) in enumerate(zip(texts, arrays, strict=True)):
        signal.alarm(seconds)  # ends the process
        tracemalloc.start()
        message: Message = {"run": f"bomb {i}", "round": 0, "request": text}
        if secure:
            plan = copies.plan(f"bomb {i}")
            message = plan.to_message() | {"you": 0, "request": text}
        try:
            reply, _ = site.handle("keys" if secure else "answer", message, broadcast)
            fits = "MemoryError" not in str(reply)
        except MemoryError:
            fits = False
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        if not fits or peak > limit // 2:
            return
        writer.send(True)
    writer.close()


# --------------------------------------------------------------------------- the audit


_BENT: tuple[tuple[str, str, Bend], ...] = (
    (
        "an honest request",
        "send what an honest server sends, and compare the refusals",
        bent_not_at_all,
    ),
    (
        "report kind and domain",
        "name a randomised report of another kind or with other cells than the block",
        bent_oracles,
    ),
    (
        "class list",
        "leave classes out, add, rename or reorder them, or give them other types",
        bent_classes,
    ),
    (
        "numbers of rows and sites",
        "announce numbers of rows, sites and colluders that are wrong",
        bent_counts,
    ),
    (
        "bounds and shapes",
        "name other bounds, steps, norms, groups and shapes than the algorithm has",
        bent_blocks,
    ),
    (
        "law of the noise",
        "ask for noise of another law, of tiny or huge scale, or for another claim",
        bent_noise,
    ),
    (
        "meaning of rows",
        "read rows as logits, probabilities or features, by client or by row",
        bent_reading,
    ),
    (
        "broadcast",
        "send zeros, huge or negative values and wrong shapes to the algorithm",
        bent_broadcast,
    ),
    (
        "algorithm parameters",
        "change every parameter of the algorithm",
        bent_parameters,
    ),
    (
        "rounds and fields",
        "name other rounds and runs, leave fields out and add some",
        bent_round,
    ),
)


def all_attacks() -> list[Any]:
    """Every attack of the audit, in the order of the table."""
    plain = [TwoWorlds(name, tried, bend) for name, tried, bend in _BENT]
    masked = [
        TwoWorlds(f"{name}, masked", tried, bend, secure=True)
        for name, tried, bend in _BENT
    ]
    return [
        OracleDomain(),
        LabelsOfRows(),
        LabelsOfRows(secure=True),
        RowCount(),
        RowCount(secure=True),
        *plain,
        *masked,
        MeasuredEps(),
        UnpaidAnswers(),
        Debits(),
        LargerBounds(),
        Bombs(),
    ]


def audit_site(
    site: Site,
    *,
    attacks: Iterable[Any] | None = None,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> list[Finding]:
    """Attack copies of a site in every way that is known here.

    Parameters
    ----------
    site : Site
        Site with rows, policy, roster and ledger; none of them is changed.
    attacks : iterable, default=None
        Which attacks; None is `all_attacks`.
    progress : callable, default=None
        Called with the name of each attack.
    **options : dict
        `n_samples` and `alpha` of the distinguishing test; `thorough`.

    Returns
    -------
    list of Finding
    """
    return attacked(Target.of(site, **options), attacks=attacks, progress=progress)


def attacked(
    target: Target,
    *,
    attacks: Iterable[Any] | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Finding]:
    """Run attacks on a target; neither logs nor warnings of its sites are shown."""
    found = []
    with _quiet():
        for attack in all_attacks() if attacks is None else attacks:
            if progress is not None:
                progress(attack.name)
            found.append(attack.run(target))
    return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
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


def site_from_file(path: str | os.PathLike[str]) -> Site:
    """The site of a configuration file, with a copy of its ledger.

    The file of the ledger is read once and never opened as a ledger: nothing can be
    written to it.
    """
    from skfedcal.federation import site as node

    config = dict(node.whole_config({"site-config": str(path)}))
    name = node.client_name(config)
    key, roster = node._identity(config, name)
    with tempfile.TemporaryDirectory() as folder:
        ledger = None
        if "ledger" in config:
            copied = Path(folder, "ledger.jsonl")
            if Path(str(config["ledger"])).exists():
                shutil.copyfile(str(config["ledger"]), copied)
            opened = node._ledger({**config, "ledger": str(copied)})
            assert opened is not None
            secure = opened.refuses_simulations
            ledger = SiteLedger(budget=opened.budget, require_secure=secure)
            ledger._store.records.extend(opened.records())
        else:
            node._ledger(config)
    return Site(
        name,
        node._load_file(config),
        policy=node.site_policy(config),
        site_key=key,
        roster=roster,
        ledger=ledger,
    )
