"""Requests as plain data: JSON text for the question, numpy arrays for the broadcast.

A site builds algorithms that are registered (`methods.registry`), by the names that
they have there; nothing that it receives is executed. The seed of a server does not
travel, unless the whole federation is a simulation in one process that says so. Needs
numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from typing import Any, Literal, get_origin

import numpy as np

from skfedcal._json import dump
from skfedcal.contract import FederatedAlgorithm
from skfedcal.federation.endpoint import Request
from skfedcal.federation.plain import (
    WireError,
    from_plain,
    parse,
    read,
    read_object,
    to_plain,
)
from skfedcal.federation.reading import Reading
from skfedcal.methods import registry
from skfedcal.methods.scaling.families import Family
from skfedcal.privacy.codec import BlockCode, Codec
from skfedcal.privacy.entropy import SeededEntropy
from skfedcal.privacy.events import PrivacyEvent, event_from_dict

FORMAT = "skfedcal wire 4"

# Noise that clients add, by its name in messages.
_NOISES = "skfedcal.privacy.randomizers"
_RANDOMIZERS = {
    "noise.gaussian_shares/1": f"{_NOISES}:GaussianShares",
    "noise.laplace_shares/1": f"{_NOISES}:LaplaceShares",
    "noise.local_reports/1": f"{_NOISES}:LocalReports",
    "noise.one_hot_rows/1": f"{_NOISES}:OneHotRows",
    "noise.polya_shares/1": f"{_NOISES}:PolyaShares",
}
# Fields of a request that are plain values.
_PLAIN = ("unit", "n_min", "round_index", "n_clients", "max_colluders", "n_rounds")
# Fields that may differ between the rounds of a run.
_OF_ROUND = ("broadcast", "codec", "randomizer", "round_index", "seed")
_NAMES = {"format", "algorithm", "codec", "randomizer", "reading", "claim", "broadcast",
          "seed", "run", "simulated", *_PLAIN}  # fmt: skip


def write_request(
    request: Request, *, simulate: bool = False
) -> tuple[str, dict[str, np.ndarray]]:
    """Text and arrays of a request.

    request: The request. Its entropy is left out: a site draws from its own system.
    simulate: Send the seed of clients' noise too; only for sites in this process.
    Raises WireError: If it has an algorithm that sites do not know.
    """
    if registry.algorithm_name(type(request.algorithm)) is None:
        raise WireError(
            f"{request.algorithm!r} cannot be sent to sites, which know the algorithms "
            f"{', '.join(registry.algorithms())}. A method of another package is added "
            "by skfedcal.methods.register_method."
        )
    arrays = {key: np.asarray(v) for key, v in sorted(request.broadcast.items())}
    for key, array in arrays.items():
        _check_array(key, array)
    seeded = simulate and request.randomizer is not None
    content = {
        "format": FORMAT,
        "algorithm": to_plain(request.algorithm, _name_of),
        "codec": to_plain(dict(request.codec.blocks)),
        "randomizer": to_plain(request.randomizer, _name_of),
        "reading": _plain_reading(request.reading),
        "claim": None if request.claim is None else request.claim.to_dict(),
        "broadcast": digest(arrays),
        "seed": _path(request.entropy) if seeded else None,
        "run": request.run,
        "simulated": bool(request.simulated),
        **{key: to_plain(getattr(request, key)) for key in _PLAIN},
    }
    return dump(content), arrays


def read_request(text: Any, arrays: Mapping[str, Any] | None = None) -> Request:
    """Request from its text and arrays.

    text: What `write_request` wrote.
    arrays: The broadcast; None leaves it empty, for a look at the rest.
    Raises WireError: Naming what cannot be read.
    """
    if not isinstance(text, str):
        raise WireError("The request is not a string.")
    request, announced = _question(text)
    if arrays is None:
        return request
    for key, array in arrays.items():
        _check_array(key, array)
    if digest(arrays) != announced:
        raise WireError("The broadcast is not the one that was announced.")
    return replace(request, broadcast=dict(arrays))


def request_hash(text: str) -> bytes:
    """Hash of the text of a request, and by it of the broadcast."""
    return sha256(text.encode()).digest()


@lru_cache(maxsize=4)
def terms_hash(text: str) -> bytes:
    """Hash of what a request has in common with those of all rounds of its run.

    Method and its parameters, reading, unit, claim, numbers of clients and rounds. What
    is left out is derived from these by a site, or is checked by it in every round.
    """
    return sha256(b"skfedcal terms" + common_terms(text).encode()).digest()


def common_terms(text: str) -> str:
    """Text of what `terms_hash` is the hash of."""
    found = parse(text, "the request")
    return dump({key: value for key, value in found.items() if key not in _OF_ROUND})


# Clients of a simulation get the same text.
@lru_cache(maxsize=4)
def _question(text: str) -> tuple[Request, str]:
    """Request without its broadcast, and the hash of that."""
    found = parse(text, "the request")
    if found.get("format") != FORMAT:
        raise WireError(
            f"The request has the format {found.get('format')!r}, this site reads "
            f"{FORMAT!r}. Install the same version of skfedcal at all sites."
        )
    if found.keys() != _NAMES:
        odd = min(found.keys() ^ _NAMES)
        state = "unknown" if odd in found else "missing"
        raise WireError(f"The request has the {state} field {odd!r}.")
    request = Request(
        _object(_algorithms(), found["algorithm"], "algorithm"),
        {},
        _codec(found["codec"]),
        read(Literal["client", "example"], found["unit"], "unit"),
        _object(_RANDOMIZERS, found["randomizer"], "randomizer", optional=True),
        _entropy(found["seed"]),
        **{key: _count(found[key], key) for key in _PLAIN[1:]},
        reading=_reading(found["reading"]),
        claim=_claim(found["claim"]),
        run=read(str, found["run"], "run"),
        simulated=read(bool, found["simulated"], "simulated"),
    )
    return request, read(str, found["broadcast"], "broadcast")


def digest(arrays: Mapping[str, Any]) -> str:
    """Hash of named arrays: their names, types, shapes and bytes."""
    sha = sha256()
    for key in sorted(arrays):
        array = np.ascontiguousarray(arrays[key])
        head = (key, array.dtype.str.lstrip("<|="), list(np.shape(arrays[key])))
        sha.update(dump(to_plain(head)).encode() + b"\n" + array.tobytes())
    return sha.hexdigest()


def algorithm_names(algorithm: Any) -> tuple[str, str]:
    """Names of an algorithm and of its family of maps; empty without one.

    An algorithm on a part of the rows has the names of the algorithm.
    """
    algorithm = getattr(algorithm, "inner", algorithm)
    family = getattr(algorithm, "family", None)
    name = registry.algorithm_name(type(algorithm)) or type(algorithm).__name__
    return name, registry.family_name(type(family)) or ""


def _check_array(key: Any, array: Any) -> None:
    if not isinstance(key, str) or not isinstance(array, np.ndarray):
        raise WireError(f"The broadcast {key!r} is not an array.")
    if array.dtype.kind not in "fiub" or array.dtype.byteorder == ">":
        raise WireError(f"The broadcast {key!r} is of type {array.dtype}.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise WireError(f"The broadcast {key!r} holds numbers that are not finite.")


def _algorithms() -> dict[str, str]:
    known = (*registry.algorithms().values(), *registry.OPT_IN)
    return {a.name: a.path for a in known}


def _name_of(cls: type) -> str | None:
    """Name of a class, where the type of its field does not tell it."""
    path = registry.class_path(cls)
    known = (name for name, noise in _RANDOMIZERS.items() if noise == path)
    return (
        registry.algorithm_name(cls) or registry.family_name(cls) or next(known, None)
    )


def _find(hint: Any, name: Any) -> type:
    if get_origin(hint) is FederatedAlgorithm:
        return _class(_algorithms(), name, "inner")
    if hint is not Family:
        raise WireError(f"A field of type {hint} cannot be read.")
    return _class(registry.FAMILIES, name, "family")


def _class(known: Mapping[str, str], name: Any, where: str) -> type:
    if not isinstance(name, str) or name not in known:
        raise WireError(f"{where} {name!r} is unknown; known are {', '.join(known)}.")
    out: type = registry.load_object(known[name])
    return out


def _object(
    known: Mapping[str, str], value: Any, where: str, optional: bool = False
) -> Any:
    if value is None and optional:
        return None
    return read_object(lambda name: _class(known, name, where), value, where, _find)


def _plain_reading(reading: Reading | None) -> Any:
    """Reading as it is written: without `part`, which came later, if it is all."""
    plain = to_plain(reading)
    if plain is not None and plain["part"] == "all":
        del plain["part"]
    return plain


def _reading(value: Any) -> Reading | None:
    if value is None:
        return None
    if isinstance(value, dict) and "part" not in value:
        value = {**value, "part": "all"}
    out: Reading = from_plain(Reading, value, "reading")
    return out


def _codec(value: Any) -> Codec:
    blocks = read(Mapping[str, BlockCode], value, "codec")
    for name, code in blocks.items():
        spec = code.spec
        whole = min(spec.shape, default=1) >= 1 and spec.groups >= 1
        if not whole or (spec.shape and spec.shape[0] % spec.groups):
            raise WireError(f"codec[{name!r}] has an invalid shape.")
        if not all(x is None or x > 0 for x in (code.step, spec.clip, spec.weight)):
            raise WireError(f"codec[{name!r}] needs positive numbers.")
    return Codec(blocks)


def _count(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value < 2**62:
        raise WireError(f"{where} is {value!r:.80}; expected an integer.")
    return value


def _claim(value: Any) -> PrivacyEvent | None:
    if value is None:
        return None
    try:
        return event_from_dict(value)
    except (AttributeError, TypeError, ValueError) as error:
        raise WireError(f"claim is refused: {error}") from error


def _path(entropy: Any) -> list[int] | None:
    return list(entropy._path) if isinstance(entropy, SeededEntropy) else None


def _entropy(value: Any) -> SeededEntropy | None:
    if value is None:
        return None
    numbers = read(tuple[int, ...], value, "seed")
    if not numbers or min(numbers) < 0:
        raise WireError("seed must be integers >= 0.")
    return SeededEntropy(*numbers)
