"""Entry points of a deployment: messages, sites, policies, remote clients, ledgers."""

import functools
import json
from pathlib import Path

import numpy as np
from entries_estimators import CALIBRATORS, QUICK, checked_fit, clean_rows
from entries_files import mutated
from fuzz_engine import Broken
from fuzz_values import HOSTILE_LABELS, HOSTILE_ROWS, HOSTILE_SETTINGS

import skfedcal
from skfedcal import FederatedRunner, ScoreHistogram
from skfedcal.federation import (
    InProcess,
    InProcessTransport,
    Operator,
    Reading,
    RemoteClients,
    Roster,
    ShardedClients,
    Site,
    SiteKey,
    SitePolicy,
    SiteRows,
    backends,
)
from skfedcal.federation.wire import read_request, write_request
from skfedcal.privacy import DistributedDP, LocalDP

_KEY = SiteKey.generate("operator")


@functools.cache
def letters():
    """Requests of a few fits, as they are sent."""
    seen, plain = [], InProcess.total

    def total(self, request, cohort):
        seen.append(write_request(request))
        return plain(self, request, cohort)

    logits, labels, ids = clean_rows(2)
    backends.InProcess.total = total
    try:
        for model in (None, DistributedDP(1.0, mode="faithful"),
                      LocalDP(1.0, mode="faithful")):  # fmt: skip
            ScoreHistogram.fit(logits, labels, client_ids=ids, privacy=model, height=2)
        for name in ("FedTempCalibrator", "FedVectorCalibrator", "FedBBQCalibrator"):
            getattr(skfedcal, name)().fit(logits, labels, client_ids=ids)
    finally:
        backends.InProcess.total = plain
    return seen


def message(case):
    """`read_request` on mutated messages."""
    sent = letters()
    text, arrays = sent[case.pick("letter", range(len(sent)))]
    text, arrays = _spoilt(case, text, arrays)
    read_request(text, arrays)


def _spoilt(case, text, arrays):
    kind = case.pick("kind", ("text", "arrays", "both", "odd"))
    if kind in ("text", "both"):
        text = mutated(case, text).decode("utf-8", "replace")
    if kind in ("arrays", "both") and arrays:
        arrays = dict(arrays)
        name = case.pick("array", list(arrays))
        choices = {**HOSTILE_ROWS, **HOSTILE_LABELS}
        with np.errstate(all="ignore"):
            value = case.pick("value", HOSTILE_SETTINGS)
            if case.chance(0.7):
                key = case.pick("array value", list(choices))
                rows = clean_rows()[key in HOSTILE_LABELS and key not in HOSTILE_ROWS]
                value = choices[key](rows, case.rng)
        arrays[name] = value
    if kind == "odd":
        text = case.pick("odd text", HOSTILE_SETTINGS)
    return text, arrays


@functools.cache
def rows_of_site():
    """Rows of one site with two classes."""
    logits, labels, _ = clean_rows(2)
    return SiteRows(logits[:8], labels[:8])


@functools.cache
def letters_to_sites():
    """Messages of fits on two sites, as one of them gets them."""
    seen = []

    class Listening(InProcessTransport):
        def call(self, kind, letters):
            seen.extend((kind, *letter) for letter in list(letters.values())[:1])
            return super().call(kind, letters)

    policy = SitePolicy(allow_plain=True, min_clients=1)
    for name in ("FedTempCalibrator", "FedVectorCalibrator", "FedBBQCalibrator"):
        sites = {n: Site(n, rows_of_site(), policy=policy) for n in "ab"}
        clients = RemoteClients(Listening(sites))
        getattr(skfedcal, name)(classes=[0, 1]).fit(clients)
    return [letter for letter in seen if letter[0] == "answer"]


def site(case):
    """A site answers a mutated message, or refuses it in a message of its own."""
    policy = SitePolicy(allow_plain=case.chance(0.9), min_clients=1)
    answering = Site("a", rows_of_site(), policy=policy)
    sent = letters_to_sites()
    _, message, arrays = sent[case.pick("letter", range(len(sent)))]
    letter = dict(message)
    if case.chance(0.7):
        letter["request"], arrays = _spoilt(case, message["request"], arrays)
    if case.chance(0.4):
        letter[case.pick("field", ["run", "round", "position", "request"])] = case.pick(
            "value", HOSTILE_SETTINGS
        )
    kind = case.pick("message", ("answer", "answer", "keys", "masked", "unmask", "x"))
    reply, words = answering.handle(kind, letter, arrays)
    json.dumps(reply)
    if "refused" in reply:
        case.outcome = "refused"
        if "could not answer" in reply["refused"]:
            raise Broken(f"unforeseen: {reply['refused']}")
    elif not words or not all(isinstance(w, np.ndarray) for w in words.values()):
        raise Broken("an answer that is no array")


def settings(case):
    """Policies, rosters, readings, rows and runners."""
    logits, labels, _ = clean_rows(2)
    made = {
        SitePolicy: {},
        FederatedRunner: {},
        Reading: {"classes": (0, 1)},
        SiteRows: {"scores": logits, "labels": labels},
        Roster: {"sites": {"a": bytes(32)}},
        SiteKey: {"name": "a", "key": None},
        Operator: {"key": _KEY, "roster": Roster({"a": bytes(32)}, _KEY.public)},
    }
    cls = case.pick("cls", list(made))
    given = dict(made[cls])
    fields = list(getattr(cls, "__dataclass_fields__", given))
    name = case.pick("field", fields)
    given[name] = case.pick("value", HOSTILE_SETTINGS)
    if cls is SiteRows and name != "kind":
        choices = HOSTILE_ROWS if name == "scores" else HOSTILE_LABELS
        clean = logits if name == "scores" else labels
        given[name] = case.pick("rows", choices)(clean, case.rng)
    if cls is SitePolicy and case.chance(0.5):
        SitePolicy.from_config({name.replace("_", "-"): given[name]})
    elif cls is Roster and case.chance(0.5):
        Roster({"a": given["sites"]})
    else:
        cls(**given)


def runner(case):
    """Fit with a runner that has a hostile field."""
    name = case.pick("field", list(FederatedRunner.__dataclass_fields__))
    value = case.pick("value", HOSTILE_SETTINGS)
    if name in ("n_jobs", "n_rounds") and isinstance(value, int) and value > 8:
        value = 2  # as many processes or rounds as were asked for: slow, not wrong
    if name == "checkpoint" and isinstance(value, (str, bytes)):
        value = case.path("checkpoint")
        Path(value).unlink(missing_ok=True)
    given = {name: value}
    if case.chance(0.3):
        given["cohort"] = case.pick("cohort", ("permuted", "poisson", "independent"))
        given.setdefault("cohort_size", 2)
    cls = case.pick("estimator", ("FedTempCalibrator", "FedBinCalibrator"))
    estimator = getattr(skfedcal, cls)(runner=FederatedRunner(**given))
    logits, labels, ids = clean_rows()
    checked_fit(case, estimator, (logits, labels), {"client_ids": ids})


def remote(case):
    """Fit on sites with hostile rows."""
    logits, labels, _ = clean_rows(2)
    policy = SitePolicy(allow_plain=True, min_clients=1)
    sites = {"a": Site("a", rows_of_site(), policy=policy)}
    rows = case.pick("rows", HOSTILE_ROWS)(logits, case.rng)
    try:
        sites["b"] = Site("b", SiteRows(rows, labels), policy=policy)
    except (ValueError, TypeError):
        case.outcome = "refused"
    clients = RemoteClients(InProcessTransport(sites))
    if case.chance(0.3):
        odd = case.pick("engine", HOSTILE_SETTINGS)
        clients = RemoteClients(odd)
    name = case.pick("estimator", CALIBRATORS)
    classes = [0, 1]
    if case.chance(0.3):
        classes = case.pick("classes", HOSTILE_SETTINGS)
    estimator = getattr(skfedcal, name)(**{**QUICK.get(name, {}), "classes": classes})
    checked_fit(case, estimator, (clients,), {})


def shards(case):
    """Fit on shards with hostile rows, ids or settings."""
    logits, labels, ids = clean_rows(2)
    held = [
        [array[part] for array in (logits, labels, ids)]
        for part in (ids == ids[0], ids != ids[0])
    ]
    which = case.pick("array", range(3))
    spoil = case.pick("rows", HOSTILE_LABELS if which else HOSTILE_ROWS)
    if case.chance(0.8):
        held[1][which] = spoil(held[1][which], case.rng)
    given = {"shards": [0, 1], "loader": held.__getitem__}
    if case.chance(0.3):
        name = case.pick(
            "field", ["shards", "executor", "loader", "columns", "split", "cache_bytes"]
        )
        given[name] = case.pick("value", HOSTILE_SETTINGS)
        if name == "executor" and isinstance(given[name], int):
            given[name] = None  # as many processes as were asked for: slow, not wrong
    clients = ShardedClients(**given)
    name = case.pick("estimator", ("FedTempCalibrator", "FedBinCalibrator"))
    classes = case.pick("classes", HOSTILE_SETTINGS) if case.chance(0.2) else [0, 1]
    estimator = getattr(skfedcal, name)(classes=classes)
    checked_fit(case, estimator, (clients,), {})


ENTRIES = [
    ("read_request", 10, message),
    ("Site.handle", 6, site),
    ("settings of sites", 4, settings),
    ("FederatedRunner", 3, runner),
    ("RemoteClients", 2, remote),
    ("ShardedClients", 2, shards),
]
