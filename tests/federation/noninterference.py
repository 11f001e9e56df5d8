"""Non-interference of a site: what it replies does not depend on its rows.

Any request that the wire format can carry, and two sets of rows. Everything that is
observable of the replies, except the agreed randomised content, must be the same: kind,
text, exceptions, names, shapes and types of arrays, entries of the ledger, and the
state that later replies depend on.

The randomness of the site is a recorded stream, the same for both sets of rows, so that
keys, shares and the state are compared to the last byte. Half of the cases also put
zeros in place of what the algorithm computes (it computes it all the same): then the
content is compared to the last byte as well.

Run ``python tests/federation/noninterference.py --cases 100000`` for the long form and
a summary that shows how many requests reached the rows.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import logging
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from skfedcal.contract import CellRows
from skfedcal.federation import Site, SitePolicy, SiteRows, crypto
from skfedcal.federation.attacks.changes import CHANGES
from skfedcal.federation.attacks.copies import (
    Letter,
    SiteCopies,
    ask_masked,
    ask_plain,
    clean_rows,
    letter_of,
    masked_shapes,
    observe,
    paths,
    unknown_label,
    value_at,
    with_label,
    with_value,
    without,
)
from skfedcal.federation.request_catalogue import Entry, Schema, catalogue
from skfedcal.methods import registry
from skfedcal.privacy.site_ledger import SiteLedger

SCHEMAS = (
    Schema((0, 1, 2), 3, "logits"),
    Schema((0, 1), 1, "proba"),
    Schema(("no", "yes"), 2, "scores"),
    Schema((0, 1, 2), 4, "features"),
)
POLICIES = (
    # Sums that list single rows are answered only by a policy that names them.
    SitePolicy(
        methods=tuple(registry.algorithms()), allow_plain=True, allow_seeded_noise=True
    ),
    SitePolicy(noise="own"),
    SitePolicy(noise="shared"),
    SitePolicy(noise="central", allow_plain=True, unit="client"),
)
BENDS = tuple(c.bend for name, c in CHANGES.items() if name != "nothing")


def _entries() -> dict[int, list[Entry]]:
    """Requests by schema; in each, all algorithms, laws of noise and units that fit."""
    return {
        i: catalogue(schema, n_clients=3, n_rows=60, eps=0.5)
        for i, schema in enumerate(SCHEMAS)
    }


ENTRIES = _entries()
# By algorithm, so that one with many variants is not asked more often than others.
CHOICES = {
    (i, name): [entry for entry in found if entry.algorithm == name]
    for i, found in ENTRIES.items()
    for name in registry.algorithms()
}
CHOICES = {key: found for key, found in CHOICES.items() if found}


# ---------------------------------------------------------------------- what is drawn

NUMBERS = st.one_of(
    st.integers(-3, 70),
    st.sampled_from([10**3, 10**6, 2**31, 2**53, 2**61, 2**63, 10**30]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, 0.1, 0.5, 1.0, 1e-9, 1e-300, 1e300, -1.0]),
)
TEXTS = st.sampled_from(
    ["", "l1", "l2", "client", "example", "count", "real", "logits", "proba", "given",
     "features", "log_proba", "rr", "grr", "oue", "olh", "subset", "pure", "gaussian",
     "top", "ovr", "binary", "both", "prob", "logit", "nll", "ece", "x" * 50]
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=3)
    ),
    max_leaves=6,
)
SCORES = st.one_of(
    st.floats(-4, 4),
    st.sampled_from(
        [0.0, 1.0, -1.0, 0.5, 1e300, -1e300, 1e30, np.nan, np.inf, -np.inf]
    ),
)


@st.composite
def site_rows(draw: Any, schema: Schema) -> SiteRows:
    """Rows of a site: fit, or with anything in them; none, some or many."""
    n_rows = draw(st.sampled_from([0, 1, 2, 3, 5, 12, 130]))
    rng = np.random.default_rng(draw(st.integers(0, 20)))
    scores = rng.normal(size=(n_rows, schema.n_columns))
    if schema.kind == "proba":
        scores = rng.uniform(size=(n_rows, schema.n_columns))
    labels = np.asarray(schema.classes)[rng.integers(0, len(schema.classes), n_rows)]
    if n_rows:
        for _ in range(draw(st.sampled_from([0, 0, 1, 3]))):
            i = draw(st.integers(0, n_rows - 1))
            scores[i, draw(st.integers(0, schema.n_columns - 1))] = draw(SCORES)
        change = draw(st.sampled_from(["none", "none", "one class", "unknown", "type"]))
        if change == "one class":
            labels = np.full(n_rows, draw(st.sampled_from(schema.classes)))
        elif change == "unknown":
            labels = with_label(labels, 0, unknown_label(schema.classes))
        elif change == "type":
            texts = labels.dtype.kind == "U"
            labels = np.arange(n_rows) * 1.5 if texts else labels.astype(str)
    kind: Any = schema.kind
    return SiteRows(scores, labels, kind)


@st.composite
def bent_letters(draw: Any, entry: Entry) -> Letter:
    """A request of the catalogue, valid, nearly valid or hostile."""
    letter = letter_of(entry)
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 1, 2]))):
        how = draw(st.sampled_from(["bend", "bend", "value", "drop", "add", "array"]))
        if how == "bend":
            chosen = BENDS
            if entry.model == "reports":
                # Half of them: reports are what a server can bend most.
                chosen = (*BENDS, *[CHANGES["oracles"].bend] * (len(BENDS) - 1))
            bend, found = draw(st.sampled_from(chosen)), []
            with contextlib.suppress(Exception):  # what is bent already may not bend
                found = list(bend(letter))
            if found:
                letter = found[draw(st.integers(0, len(found) - 1))]
            continue
        if how == "array":
            letter = draw(bent_arrays(letter))
            continue
        places = [p for p in paths(letter.content) if p]
        path = places[draw(st.integers(0, len(places) - 1))]
        content = letter.content
        if how == "value":
            content = with_value(content, path, draw(VALUES))
        elif how == "drop":
            content = without(content, path)
        else:
            inside = value_at(content, path)
            if isinstance(inside, dict):
                more = (*path, draw(TEXTS))
                content = with_value(content, more, draw(VALUES))
            elif isinstance(inside, list):
                content = with_value(content, path, [*inside, draw(VALUES)])
        letter = Letter(f"{letter.what}: {how} {path}", content, letter.arrays)
    return letter


@st.composite
def bent_arrays(draw: Any, letter: Letter) -> Letter:
    """Another broadcast, announced or not."""
    arrays = dict(letter.arrays)
    name = draw(st.sampled_from([*sorted(arrays), "more"]))
    shape = draw(st.sampled_from([(), (1,), (2,), (3,), (5,), (0,), (2, 2), (40,)]))
    if draw(st.booleans()):
        shape = np.shape(arrays.get(name, 0.0))
    kind = draw(
        st.sampled_from(["<f8", "<f8", "<f4", "<i8", "|u1", "|b1", ">f8", "<U2"])
    )
    value = draw(
        st.one_of(st.floats(-5, 5), st.sampled_from([0.0, 1e300, 700.0, 1e18]))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arrays[name] = np.full(shape, value).astype(kind)
    bent = letter.broadcasting(f"{name} {kind} {shape} {value}", arrays)
    if draw(st.integers(0, 9)) == 0:
        return replace(bent, content=letter.content)  # another one than is announced
    return bent


@dataclass(frozen=True)
class Case:
    """Two sets of rows of a site, and a request."""

    entry: Entry
    policy: SitePolicy
    schema: Schema
    letter: Letter
    first: SiteRows
    second: SiteRows
    masked: bool
    zeros: bool


@st.composite
def cases(draw: Any, name: str) -> Case:
    """Any case of the algorithm of this name."""
    i = draw(st.sampled_from([i for i, known in sorted(CHOICES) if known == name]))
    # First the law of noise: some have one request, others a dozen.
    model = draw(st.sampled_from(sorted({e.model for e in CHOICES[i, name]})))
    entry = draw(st.sampled_from([e for e in CHOICES[i, name] if e.model == model]))
    return Case(
        entry,
        # The first policy lets most requests through to the rows.
        draw(st.sampled_from([POLICIES[0], POLICIES[0], *POLICIES])),
        SCHEMAS[i],
        draw(bent_letters(entry)),
        draw(site_rows(SCHEMAS[i])),
        draw(site_rows(SCHEMAS[i])),
        draw(st.sampled_from([False, False, True])),
        draw(st.booleans()),
    )


# ----------------------------------------------------------------- recorded randomness


class Stream:
    """Random bytes that are the same whenever they are asked for in the same order."""

    def __init__(self) -> None:
        self.restart("start")

    def restart(self, label: str) -> None:
        self._label, self._n = label.encode(), 0

    def __call__(self, n: int) -> bytes:
        self._n += 1
        return hashlib.shake_128(self._label + b"/%d" % self._n).digest(n)


class Queries:
    """Puts zeros in place of what queries give, if asked to."""

    zeros = False

    def wrapped(self, query: Any) -> Any:
        def zeroed(algorithm: Any, broadcast: Any, clients: Any) -> Any:
            out = query(algorithm, broadcast, clients)
            if not self.zeros:
                return out
            return {name: _zeros(value) for name, value in out.items()}

        return zeroed


def _zeros(value: Any) -> Any:
    if isinstance(value, CellRows):
        numbers = None if value.values is None else value.values[:0]
        return replace(
            value, rows=value.rows[:0], cells=value.cells[:0], values=numbers
        )
    return np.zeros_like(value)


@contextlib.contextmanager
def recorded() -> Iterator[Queries]:
    """Randomness of all sites from a stream that each message restarts."""
    stream, reached = Stream(), Queries()
    handle = Site.handle

    def restarted(site: Any, kind: str, message: Any, arrays: Any) -> Any:
        stream.restart(f"{site.name} {kind}")
        return handle(site, kind, message, arrays)

    def new_key() -> Any:
        return crypto.X25519PrivateKey.from_private_bytes(os.urandom(32))

    owners = {
        owner
        for algorithm in registry.algorithms().values()
        for owner in algorithm.load().__mro__
        if "query" in vars(owner)
    }
    with contextlib.ExitStack() as stack:
        for place, name, new in (
            (Site, "handle", restarted),
            (os, "urandom", stream),
            (crypto, "new_key", new_key),
            *(
                (owner, "query", reached.wrapped(vars(owner)["query"]))
                for owner in owners
            ),
        ):
            stack.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, new)
        level = logging.root.manager.disable
        stack.callback(logging.disable, level)
        logging.disable(logging.CRITICAL)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield reached


# ------------------------------------------------------------------------- two worlds


def look(site: Site, kind: str, message: Any, arrays: Any, zeros: bool) -> Any:
    """All that may not depend on rows, to the last byte."""
    seen, reply, words = observe(site, kind, dict(message), arrays)
    content = ()
    if zeros:
        # A number of rows that is summed under the mask is agreed content.
        content = tuple(
            (name, value.tobytes())
            for name, value in sorted(words.items())
            if kind != "masked" or not name.startswith("/")
        )
    return seen, repr(reply), content, repr(sorted(site.state.items()))


_LEDGER = SiteLedger(budget=(100.0, 1e-5))
_COPIES: dict[Any, SiteCopies] = {}


def copies_of(case: Case) -> SiteCopies:
    """The site of a case, with any rows; made once, as its keys are."""
    key = (case.policy, case.schema)
    if key not in _COPIES:
        rows = clean_rows(case.schema)
        site = Site("site", rows, policy=case.policy, ledger=_LEDGER)
        _COPIES[key] = SiteCopies(site)
    return _COPIES[key]


def check(case: Case, reached: Queries) -> str:
    """Compare the two worlds; give what became of the request."""
    reached.zeros = case.zeros
    copies = copies_of(case)
    if case.masked:
        first, second, refused = _masked(case, copies)
    else:
        message = {"run": "run", "round": 0, "position": 0, "request": case.letter.text}
        first, second = (
            [look(copies.site(rows), "answer", message, case.letter.arrays, case.zeros)]
            for rows in (case.first, case.second)
        )
        refused = bool(first[0][0].refused)
    assert first == second, difference(case, first, second)
    return "refused" if refused else "answered"


def _masked(case: Case, copies: SiteCopies) -> tuple[Any, Any, bool]:
    """All stages of a masked round, each from the same state in both worlds."""
    # A round that the site does not begin needs no other sites.
    plan = copies.plan().to_message()
    asked = {**plan, "you": 0, "request": case.letter.text}
    first = [look(copies.site(case.first), "keys", asked, {}, case.zeros)]
    second = [look(copies.site(case.second), "keys", asked, {}, case.zeros)]
    if first[0][0].refused or first != second:
        return first, second, True
    target = copies.site(case.first)
    shapes = masked_shapes(case.entry)
    with contextlib.suppress(Exception):
        shapes = _asked_shapes(case.letter)
    _, stages = ask_masked(copies, target, case.letter, shapes)
    out: tuple[list[Any], list[Any]] = ([], [])
    for seen, rows in zip(out, (case.first, case.second), strict=True):
        site = copies.site(rows)
        for stage in stages:
            site.state = json_free_copy(stage.state)
            seen.append(look(site, stage.kind, stage.message, stage.arrays, case.zeros))
    return *out, any(seen[0].refused for seen in out[0])


def _asked_shapes(letter: Letter) -> Any:
    from skfedcal.federation.endpoint import request_words
    from skfedcal.federation.wire import read_request

    request = read_request(letter.text, letter.arrays)
    return request_words(request, masked=True).shapes


def json_free_copy(state: Any) -> Any:
    """A copy of plain values."""
    return {k: list(v) if isinstance(v, list) else v for k, v in state.items()}


def difference(case: Case, first: Any, second: Any) -> str:
    """What a server sees of one world and not of the other."""
    lines = [f"{'masked' if case.masked else 'plain'}: {case.letter.what}"]
    for one, two in zip(first, second, strict=False):
        if one == two:
            continue
        for name in ("reply", "arrays", "error", "ledger", "state"):
            mine, theirs = getattr(one[0], name), getattr(two[0], name)
            if mine != theirs:
                lines.append(f"{one[0].kind} {name}: {mine!r:.200} | {theirs!r:.200}")
        if one[0] == two[0]:
            lines.append(f"{one[0].kind}: bytes differ")
        break
    return "\n".join(lines)


# ------------------------------------------------------------ one row, and its own part


def contributions(entry: Entry, schema: Schema, rows: SiteRows) -> dict[str, Any]:
    """Integers that a site sends without a mask or noise of its own."""
    site = Site("site", rows, policy=POLICIES[0])
    seen, words = ask_plain(site, letter_of(entry))
    assert not seen.refused, seen.refused
    return {name: value.tolist() for name, value in words.items()}


@contextlib.contextmanager
def failing_on(algorithm: Any, row: Any) -> Iterator[None]:
    """A query that fails wherever this row is among its rows."""
    owner = next(c for c in type(algorithm).__mro__ if "query" in vars(c))
    query = vars(owner)["query"]

    def failing(self: Any, broadcast: Any, clients: Any) -> Any:
        if (
            (clients.rows[slice(clients.offsets[0], clients.offsets[-1])] == row)
            .all(axis=1)
            .any()
        ):
            raise ZeroDivisionError("this row cannot be computed")
        return query(self, broadcast, clients)

    owner.query = failing
    try:
        yield
    finally:
        owner.query = query


# ----------------------------------------------------------------------- the long form


# Hypothesis varies what it has drawn before: fresh starts keep cases apart.
_BATCH = 500


def run(
    n_cases: int, start: int, keep_going: bool, algorithms: Sequence[str] = ()
) -> tuple[Counter[Any], list[str]]:
    """Run so many cases, as many of each algorithm.

    Returns
    -------
    counts : Counter
        Cases by algorithm, path, what became of them, and whether the request is valid.
    differences : list of str
        What a server sees of one world and not of the other; empty if all is well.
    """
    counts: Counter[Any] = Counter()
    differences: list[str] = []
    names = sorted(algorithms or registry.algorithms())
    with recorded() as reached:
        for k, name in enumerate(names):
            left = n_cases // len(names) + (k < n_cases % len(names))
            batch = 0
            while left > 0:
                _run_batch(
                    name,
                    min(left, _BATCH),
                    start * 10**6 + k * 10**3 + batch,
                    keep_going,
                    reached,
                    counts,
                    differences,
                )
                left -= _BATCH
                batch += 1
    return counts, differences


def _run_batch(
    name: str,
    n_cases: int,
    start: int,
    keep_going: bool,
    reached: Queries,
    counts: Counter[Any],
    differences: list[str],
) -> None:
    @seed(start)
    @settings(
        max_examples=n_cases,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(name))
    def every_case(case: Case) -> None:
        path = "masked" if case.masked else "plain"
        try:
            became = check(case, reached)
        except AssertionError as error:
            if not keep_going:
                raise
            differences.append(str(error))
            became = "DIFFERENT"
        valid = case.letter.what == case.entry.name
        counts[case.entry.algorithm, path, became, valid] += 1

    every_case()


def summary(counts: Counter[Any]) -> str:
    """Table of cases by algorithm."""
    from skfedcal._table import text_table

    fates = ("answered", "refused", "DIFFERENT")
    rows = []
    for name in [*sorted(registry.algorithms()), "all"]:
        for path in ("plain", "masked"):
            found: Counter[str] = Counter()
            for (algorithm, how, fate, valid), n in counts.items():
                if how == path and name in (algorithm, "all"):
                    found[fate] += n
                    found["cases"] += n
                    found["valid"] += n * valid
            columns = ("cases", "valid", *fates)
            rows.append([name, path, *(str(found[column]) for column in columns)])
    return text_table(["algorithm", "path", "cases", "valid", *fates], rows, n_left=2)


def main() -> int:
    """Run the long form."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    begun = time.perf_counter()
    counts, differences = run(options.cases, options.seed, keep_going=True)
    lines = [summary(counts)]
    lines.append(f"{sum(counts.values())} cases in {time.perf_counter() - begun:.0f} s")
    kinds = Counter(text.split("\n", maxsplit=1)[-1][:160] for text in differences)
    for kind, n in kinds.most_common(20):
        lines.append(f"{n} x {kind}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
