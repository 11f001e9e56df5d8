"""Requests as they are written today, one of each method and kind of noise."""

import json
from functools import partial
from pathlib import Path

import frozen_adapt as adapt
import frozen_cases as cases
import numpy as np

from skfedcal.federation import respond

FILES = Path(__file__).parent / "files"
MODELS = ("exact", "central", "central, rows", "shares", "local reports")


def _plain(array):
    return {
        "dtype": array.dtype.str,
        "shape": list(array.shape),
        "values": array.ravel().tolist(),
    }


def arrays_of(entry):
    return {
        name: np.array(a["values"], dtype=a["dtype"]).reshape(a["shape"])
        for name, a in entry["arrays"].items()
    }


def answer(request, n_classes):
    """Integers that one fixed client answers; None where last bits or noise differ."""
    real = any(adapt.is_real(request, name) for name in request.codec.blocks)
    if real or request.randomizer is not None:
        return None
    rows, labels = cases.make_clients(n_classes)[cases.NAMES[1]]
    # Without a reading, rows are as the algorithm sees them.
    one = cases.sf.FederatedDataset(
        rows, labels, np.array([0, len(rows)]), [cases.NAMES[1]], n_classes
    )
    total = respond(request, one).total
    return {name: np.ravel(value).tolist() for name, value in sorted(total.items())}


def _requests():
    known = set()
    for name in cases.CASES:
        method, _, model = name.partition(" / ")
        if model not in MODELS or (model != "exact" and "," in method):
            continue
        if method == "scores, as given" and model != "exact":
            continue
        seen = cases.run_case(name)
        algorithms = tuple(n for a in seen.algorithms for n in adapt.names_of(a))
        if seen.error is None and (algorithms, model) not in known:
            known.add((algorithms, model))  # one of each keeps the record small
            # The last round has the broadcast with the most in it.
            yield name, cases.METHODS[method][0], seen.requests[-1]
            if "held back" in name:  # the first run is of another algorithm
                yield f"{name}, fit", cases.METHODS[method][0], seen.requests[0]


def file_name():
    """One file for each format, so that an old one stays beside a new one."""
    return f"{adapt.wire_format().replace(' ', '-')}.json"


def write_all():
    found = {}
    for name, n_classes, request in _requests():
        text, arrays = adapt.write_wire(request)
        # The name of a run is drawn anew each time.
        content = json.loads(text) | {"run": "0" * 32}
        found[name] = {
            "n_classes": n_classes,
            "text": json.dumps(content, separators=(",", ":")),
            "arrays": {key: _plain(a) for key, a in arrays.items()},
            "algorithms": adapt.names_of(request.algorithm),
        }
        if not name.startswith("scores, as given"):
            found[name]["answer"] = answer(request, n_classes)
    small = partial(json.dumps, separators=(",", ":"))
    lines = ",\n".join(f"{small(n)}:{small(e)}" for n, e in found.items())
    form = json.dumps(adapt.wire_format())
    text = f'{{"format": {form},\n"requests": {{\n{lines}\n}}}}\n'
    (FILES / file_name()).write_text(text, encoding="utf-8")
    print(f"{file_name()}: {len(found)} requests, {len(text)} bytes")  # noqa: T201
