"""How a dishonest server changes a valid request: each way yields many letters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from skfedcal.federation.attacks.copies import Letter, paths, unknown_label, value_at

Bend = Callable[[Letter], Iterator[Letter]]


class Change(NamedTuple):
    """One way to change a request: a name and what it tries, for the table."""

    name: str
    tried: str
    bend: Bend


# All ways, by the name of their function.
CHANGES: dict[str, Change] = {}


def _change(name: str, tried: str) -> Callable[[Bend], Bend]:
    def add(bend: Bend) -> Bend:
        CHANGES[bend.__name__.strip("_")] = Change(name, tried, bend)
        return bend

    return add


ORACLES = ("oue", "olh", "subset", "grr", "rr")
_HUGE = 10**8


@_change(
    "an honest request", "send what an honest server sends, and compare the refusals"
)
def _nothing(letter: Letter) -> Iterator[Letter]:
    yield letter


@_change(
    "report kind and domain",
    "name a randomised report of another kind or with other cells than the block",
)
def _oracles(letter: Letter) -> Iterator[Letter]:
    for block, oracle in letter.noise.get("oracles", {}).items():
        path = ("randomizer", "oracles", block)
        n = oracle["domain"]
        domains = sorted({1, 2, n // 2, n - 1, n + 1, 4 * n})
        for other in letter.each((*path, "domain"), domains):
            yield other
            yield from other.each((*path, "kind"), ORACLES)
        yield from letter.each((*path, "kind"), ORACLES)
        yield from letter.each((*path, "eps"), (1e-9, 1e-3, 700.0))
        yield letter.lacking(path)
        yield letter.changed("an oracle too many", (*path[:-1], "none"), oracle)


@_change(
    "class list",
    "leave classes out, add, rename or reorder them, or give them other types",
)
def _classes(letter: Letter) -> Iterator[Letter]:
    if letter.content.get("reading") is None:
        return
    path = ("reading", "classes")
    classes = list(value_at(letter.content, path))
    unknown = unknown_label(classes)
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
        "hundreds": [*classes, *(unknown_label([*classes, i]) for i in range(200))],
        **{f"turned by {i}": classes[i:] + classes[:i] for i in range(1, len(classes))},
    }
    for what, value in lists.items():
        bent = letter.changed(f"classes {what}", path, value)
        yield bent
        if abs(len(value) - len(classes)) == 1:
            # As many columns as before, with one class more or less.
            columns = letter.content["reading"]["n_columns"]
            yield bent.changed("columns kept", ("reading", "n_columns"), columns)


@_change(
    "numbers of rows and sites",
    "announce numbers of rows, sites and colluders that are wrong",
)
def _counts(letter: Letter) -> Iterator[Letter]:
    values = (0, 1, 2, 3, 7, 39, 40, 41, 100, 10**6, 2**40, 2**61)
    for name in ("n_units", "n_rows", "n_clients", "n_min", "max_colluders"):
        if name in letter.content:
            yield from letter.each((name,), values)


@_change(
    "bounds and shapes",
    "name other bounds, steps, norms, groups and shapes than the algorithm has",
)
def _blocks(letter: Letter) -> Iterator[Letter]:
    for name, code in (letter.content.get("codec") or {}).items():
        spec = code["spec"]
        shape = spec["shape"]
        shapes = [[*shape[:-1], shape[-1] + d] for d in (-1, 1)] if shape else [[1]]
        values: dict[tuple[str, ...], list[Any]] = {
            ("step",): [None, 1.0, *_multiples(code["step"])],
            ("spec", "clip"): [None, 1.0, *_multiples(spec["clip"])],
            ("spec", "weight"): _multiples(spec["weight"]),
            ("spec", "norm"): ["l1", "l2"],
            ("spec", "kind"): ["count", "real"],
            ("spec", "shape"): [
                *shapes, [math.prod(shape)], [1, *shape], [*shape, 1], shape[::-1], []
            ],
            ("spec", "groups"): [1, 2, *shape[:1]],
        }  # fmt: skip
        for where, others in values.items():
            yield from letter.each(("codec", name, *where), others)
        yield letter.lacking(("codec", name))
        yield letter.changed("a block too many", ("codec", "more"), code)


def _multiples(value: float | None) -> list[float]:
    return [] if value is None else [value * factor for factor in (1e-3, 0.5, 2, 1e3)]


@_change(
    "law of the noise",
    "ask for noise of another law, of tiny or huge scale, or for another claim",
)
def _noise(letter: Letter) -> Iterator[Letter]:
    if "randomizer" not in letter.content:
        return
    blocks = list(letter.content.get("codec") or {})
    laws: list[Any] = [
        None,
        {"class": "noise.gaussian_shares/1"},
        {"class": "noise.one_hot_rows/1"},
        {"class": "noise.laplace_shares/1", "scales": {}},
    ]
    for scale in (1e-6, 1e-2, 1.0, 50.0, 1e6):
        own = dict.fromkeys(blocks, scale)
        laws.append({"class": "noise.laplace_shares/1", "scales": own})
    polya = {"class": "noise.polya_shares/1", "scales": dict.fromkeys(blocks, 1.0)}
    laws += [{**polya, "n_shares": n} for n in (0, 1, 3, 10**6)]
    for kind in ("oue", "rr", "grr"):
        for n in (1, 4, 16):
            oracle = {"kind": kind, "eps": 0.1, "domain": n}
            oracles = dict.fromkeys(blocks, oracle)
            laws.append({"class": "noise.local_reports/1", "oracles": oracles})
    yield from letter.each(("randomizer",), laws)
    for block, scale in (letter.noise.get("scales") or {}).items():
        others = [scale * factor for factor in (1e-9, 1e-3, 0.5, 1e6)]
        yield from letter.each(("randomizer", "scales", block), others)
    if "claim" in letter.content:
        slack = {"eps_slack": 0.0, "delta_slack": 0.0}
        pure = {"kind": "pure", "eps": 1e-9, **slack}
        gaussian = {"kind": "gaussian", "mu": 1e-9, **slack}
        yield from letter.each(("claim",), (None, pure, gaussian))
    if "seed" in letter.content:
        yield letter.changed("a seed", ("seed",), [7, 0])


@_change(
    "meaning of rows",
    "read rows as logits, probabilities or features, by client or by row",
)
def _reading(letter: Letter) -> Iterator[Letter]:
    if letter.content.get("reading") is None:
        return
    for kind in ("logits", "log_proba", "proba"):
        one = letter.changed(f"input_type {kind}", ("reading", "input_type"), kind)
        yield one
        for rows in ("logits", "given", "features"):
            both = one.changed(f"rows {rows}", ("reading", "rows"), rows)
            yield both
            if "input_type" in letter.content["algorithm"]:
                yield both.changed("both", ("algorithm", "input_type"), kind)
    columns = letter.content["reading"]["n_columns"]
    wrong = (0, 1, columns - 1, columns + 1, 10**6)
    yield from letter.each(("reading", "n_columns"), wrong)
    yield letter.changed("no reading", ("reading",), None)
    yield from letter.each(("unit",), ("client", "example"))


@_change(
    "broadcast", "send zeros, huge or negative values and wrong shapes to the algorithm"
)
def _broadcast(letter: Letter) -> Iterator[Letter]:
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
            "missing": None,
        }
        for what, other in values.items():
            yield letter.broadcasting(f"{name} {what}", {name: other})
    yield letter.broadcasting("an array too many", {"more": np.ones(3)})
    for name in ("log_beta", "temperature", "params", "bias", "n_classes"):
        if name not in letter.arrays:
            yield letter.broadcasting(f"{name} too", {name: np.ones(2)})


@_change("algorithm parameters", "change every parameter of the algorithm")
def _parameters(letter: Letter) -> Iterator[Letter]:
    words = ("client", "example", "l1", "l2", "both", "prob", "logit", "top",
             "ovr", "binary", "proba", "logits", "nll", "ece", "")  # fmt: skip
    algorithm = letter.content["algorithm"]
    for path in paths(algorithm):
        value = value_at(algorithm, path)
        if not path or path[-1] == "class" or isinstance(value, (dict, list)):
            continue
        others: tuple[Any, ...] = (None, 0, 1, 2, 3)
        if isinstance(value, bool):
            others = (not value,)
        elif isinstance(value, str):
            others = words
        elif isinstance(value, float):
            others = (None, 0.0, -1.0, 1e-300, 1e300, 0.5, 2.0)
        elif isinstance(value, int):
            others = (None, 0, 1, 2, 3, -1, 7, 1000)
        yield from letter.each(("algorithm", *path), others)


@_change(
    "rounds and fields", "name other rounds and runs, leave fields out and add some"
)
def _round(letter: Letter) -> Iterator[Letter]:
    yield from letter.each(("round_index",), (1, 2, 5, 10**6, 2**61))
    yield from letter.each(("run",), ("", "another", "x" * 1000))
    yield from (letter.lacking((name,)) for name in letter.content)
    yield letter.changed("a field too many", ("more",), 1)


def bombs(letter: Letter) -> Iterator[Letter]:
    """Small requests for much memory or time."""
    content = letter.content
    counts = ("n_bins", "n_points", "n_features", "n_classes", "max_examples",
              "epochs", "local_iter", "n_rounds", "n_others", "salt")  # fmt: skip
    parameters: dict[str, list[Any]] = {
        **{name: [_HUGE, 2**61] for name in counts},
        "levels": [[30], [40], [62], [3] * 1000, list(range(63))],
        "hidden": [[10**5, 10**5], [4] * 10_000],
    }
    for name, values in parameters.items():
        if name in content["algorithm"]:
            yield from letter.each(("algorithm", name), values)
    for block, code in (content.get("codec") or {}).items():
        shape = code["spec"]["shape"]
        large = ([*shape[:-1], _HUGE], [_HUGE, _HUGE], [1] * 100)
        yield from letter.each(("codec", block, "spec", "shape"), large)
        yield from letter.each(("codec", block, "spec", "groups"), [_HUGE])
        yield from letter.each(("codec", block, "step"), [1e-300])
        yield from letter.each(("codec", block, "spec", "clip"), [1e300])
    for block in letter.noise.get("oracles") or {}:
        where = ("randomizer", "oracles", block)
        for other in letter.each((*where, "domain"), (_HUGE, 10**10, 2**61)):
            yield other
            yield from other.each((*where, "kind"), ORACLES)
    for block in letter.noise.get("scales") or {}:
        where = ("randomizer", "scales", block)
        yield from letter.each(where, (1e-300, 1e18, 1e300))
    if "n_shares" in letter.noise:
        yield letter.changed("n_shares", ("randomizer", "n_shares"), 2**61)
    for name, value in letter.arrays.items():
        if np.ndim(value):
            longer = {name: np.ones(200_000)}
            yield letter.broadcasting(f"{name} of 200,000", longer)
        else:
            for number in (_HUGE, 2**40):
                more = {name: np.asarray(number)}
                yield letter.broadcasting(f"{name}={number}", more)
    if content.get("reading") is not None:
        yield from letter.each(("reading", "classes"), [list(range(100_000))])
        yield from letter.each(("reading", "n_columns"), [2**61])
