"""What a site makes of a request before it looks at its rows.

A server may say anything. `admit` reads a message once, into one object, and checks it
against what the site derives by itself: shapes, bounds, the domain of reports and the
cost follow from the algorithm and its public parameters. Only an `Admitted` request
reaches code that touches rows. Everything here, texts of refusals included, depends on
the message and on the policy of the site, never on its rows. Needs numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from skfedcal.algorithms._base import BlockSpec, check_broadcast
from skfedcal.data._dataset import FederatedDataset
from skfedcal.exceptions import SiteRefusalError
from skfedcal.federation._endpoint import Request, respond
from skfedcal.federation._policy import Cost, SitePolicy
from skfedcal.federation._wire import read_request
from skfedcal.federation._words import WordPlan, request_words
from skfedcal.privacy._entropy import SeededEntropy
from skfedcal.privacy._oracles import Oracle
from skfedcal.privacy._randomizers import (
    LaplaceShares,
    LocalReports,
    OneHotRows,
    PolyaShares,
)

Message = dict[str, Any]

# Longest name of a run, and most arrays of a broadcast.
_MAX_NAME, _MAX_ARRAYS = 200, 32
# Most classes, and most clients of a sum.
_MAX_CLASSES, _MAX_CLIENTS = 1 << 20, 1 << 31
# Noise scales, in lattice steps, whose tables take little time and memory.
_SCALES = (2.0**-20, 2.0**45)
# Most numbers of an answer of which every row has its own.
_MAX_ROW_VALUES = 1 << 20
# Most rounds of one claim.
_MAX_ROUNDS = 100_000
# Beyond this eps a report is the value itself.
_MAX_REPORT_EPS = 700.0


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that a site has checked and is ready to answer.

    Parameters
    ----------
    request : Request
        What is asked, with its broadcast.
    cost : Cost
        What the answer costs the site.
    words : WordPlan
        How the answer is written: shapes and lengths depend on the request only.
    run : str
        Run of the message.
    round_index : int
        Number of the message in its run.
    position : int or None
        Place of a simulated client among all of them.
    """

    request: Request
    cost: Cost
    words: WordPlan
    run: str
    round_index: int
    position: int | None = None


def admit(
    text: Any,
    message: Message,
    arrays: Mapping[str, Any],
    *,
    policy: SitePolicy,
    n_classes: int | None,
    masked: bool,
) -> Admitted:
    """Check a request that is to be answered.

    Parameters
    ----------
    text : str
        The request.
    message : dict
        The message that came with it: names run and round.
    arrays : mapping of str to ndarray
        The broadcast.
    policy : SitePolicy
        Conditions of the site.
    n_classes : int or None
        Classes of rows that are ready for the algorithm; None where the request says
        how rows are read.
    masked : bool
        Whether the answer is masked.

    Raises
    ------
    SiteRefusalError, WireError
        Naming what the site does not accept.
    """
    run, index = run_and_round(message)
    _check_arrays(arrays, policy)
    request = read_request(text, arrays)
    cost = check_terms(request, policy, n_classes, masked=masked)
    n_classes = classes_of(request, n_classes)
    spec = _own_spec(request, n_classes, policy)
    _check_codec(request, spec)
    _check_randomizer(request, spec)
    try:
        words = request_words(request, masked=masked)
    except (ValueError, OverflowError) as error:
        raise SiteRefusalError(f"the answer cannot be written: {error}") from error
    _rehearse(str(text), request, n_classes)
    return Admitted(request, cost, words, run, index, _position(request, message))


def check_terms(
    request: Request, policy: SitePolicy, n_classes: int | None, *, masked: bool
) -> Cost:
    """Check all of a request but its broadcast, as far as that goes without it.

    Returns
    -------
    Cost
        What an answer costs.

    Raises
    ------
    SiteRefusalError
        Naming what the site does not accept.
    """
    if len(request.run) > _MAX_NAME:
        raise SiteRefusalError(f"the name of the run is longer than {_MAX_NAME}")
    if request.n_clients > _MAX_CLIENTS:
        raise SiteRefusalError(f"the sum has more than {_MAX_CLIENTS} clients")
    _check_reading(request, classes_of(request, n_classes))
    _check_numbers(request)
    return policy.check(request, masked=masked)


def classes_of(request: Request, n_classes: int | None) -> int:
    """Give the classes that the algorithm sees."""
    if n_classes is not None:
        if request.reading is not None:
            raise SiteRefusalError("its rows are ready, and cannot be read anew")
        return n_classes
    if request.reading is None:
        raise SiteRefusalError("the request does not say what rows and labels mean")
    return len(request.reading.classes)


def run_and_round(message: Message) -> tuple[str, int]:
    """Run and number of a message.

    Raises
    ------
    SiteRefusalError
        If it names none.
    """
    run, index = message.get("run"), message.get("round")
    if not isinstance(run, str) or type(index) is not int or not 0 <= index < 2**62:
        raise SiteRefusalError("the message names no run and round")
    if len(run) > _MAX_NAME:
        raise SiteRefusalError(f"the name of the run is longer than {_MAX_NAME}")
    return run, index


def _position(request: Request, message: Message) -> int | None:
    if request.entropy is None:
        return None
    position = message.get("position")
    if type(position) is not int or not 0 <= position < 2**31:
        raise SiteRefusalError("the message names no position of the client")
    return position


def _check_arrays(arrays: Mapping[str, Any], policy: SitePolicy) -> None:
    """Limit a broadcast before anything is done with it."""
    if len(arrays) > _MAX_ARRAYS:
        raise SiteRefusalError(f"the broadcast has more than {_MAX_ARRAYS} arrays")
    size = sum(getattr(array, "size", 0) for array in arrays.values())
    if size > policy.max_values:
        raise SiteRefusalError(
            f"its policy (max_values) allows {policy.max_values} numbers, the "
            f"broadcast has {size}"
        )


def _check_reading(request: Request, n_classes: int) -> None:
    """Refuse a reading that the algorithm is not made for."""
    if not 2 <= n_classes <= _MAX_CLASSES:
        raise SiteRefusalError(f"{n_classes} classes are out of range")
    reading = request.reading
    if reading is None:
        return
    n_features = getattr(request.algorithm, "n_features", None)
    if (n_features is not None) != (reading.rows == "features"):
        raise SiteRefusalError(
            f"the request reads {reading.rows!r}, the algorithm needs "
            f"{'features' if n_features is not None else 'scores'}"
        )
    if n_features is not None and n_features != reading.n_columns:
        raise SiteRefusalError(
            f"the request reads {reading.n_columns} features, the algorithm "
            f"{n_features}"
        )
    input_type = getattr(request.algorithm, "input_type", None)
    seen = reading.input_type if reading.rows == "given" else "logits"
    if input_type is not None and input_type != seen:
        raise SiteRefusalError(
            f"the request reads {seen!r}, the algorithm {input_type!r}"
        )


def _check_numbers(request: Request) -> None:
    """Refuse counts below 0, and noise whose law is not defined or takes long."""
    for field in fields(request.algorithm):  # type: ignore[arg-type]
        value = getattr(request.algorithm, field.name)
        for number in value if isinstance(value, tuple) else (value,):
            if type(number) is int and not 0 <= number < 2**64:
                raise SiteRefusalError(f"{field.name}={number} is out of range")
    n_rounds = getattr(request.claim, "n_rounds", 1)
    if n_rounds > _MAX_ROUNDS:
        raise SiteRefusalError(f"a claim of {n_rounds} rounds is out of range")
    randomizer = request.randomizer
    if isinstance(randomizer, (PolyaShares, LaplaceShares)):
        low, high = _SCALES
        if not all(low <= scale <= high for scale in randomizer.scales.values()):
            raise SiteRefusalError(f"noise scales must be between {low:g} and {high:g}")
    if isinstance(randomizer, PolyaShares) and not (
        1 <= randomizer.n_shares <= _MAX_CLIENTS
    ):
        raise SiteRefusalError(f"noise of {randomizer.n_shares} shares is not defined")
    for code in request.codec.blocks.values():
        if code.step is not None and code.spec.clip is not None:
            try:
                _ = code.limit
            except (ValueError, OverflowError) as error:
                raise SiteRefusalError(f"a block cannot be written: {error}") from error


def _own_spec(
    request: Request, n_classes: int, policy: SitePolicy
) -> dict[str, BlockSpec]:
    """Shapes and bounds by the site's own account of the algorithm."""
    try:
        check_broadcast(request.algorithm, request.broadcast, n_classes)
        spec = dict(request.algorithm.spec(request.broadcast))
    except Exception as error:
        # Computed without rows: whatever the text says is about the request.
        raise SiteRefusalError(
            f"the algorithm does not fit the request: {error}"
        ) from error
    n_values = sum(prod(block.shape) for block in spec.values())
    if request.unit == "example" and n_values > _MAX_ROW_VALUES:
        raise SiteRefusalError(
            f"{n_values} numbers for each row are too many; at most "
            f"{_MAX_ROW_VALUES} are computed"
        )
    if n_values > policy.max_values:
        raise SiteRefusalError(
            f"its policy (max_values) allows {policy.max_values} numbers, the "
            f"algorithm sends {n_values}"
        )
    return spec


def _check_codec(request: Request, spec: Mapping[str, BlockSpec]) -> None:
    """Refuse a code that is not the one of the algorithm."""
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
        # A report is of one entry, which needs no clipping.
        expected = None if reports else announced.clip
        if asked.clip != expected:
            raise SiteRefusalError(
                f"block {name!r} is bounded by {asked.clip}, the algorithm by "
                f"{expected}"
            )


def _check_randomizer(request: Request, spec: Mapping[str, BlockSpec]) -> None:
    """Refuse reports on another number of cells than the block has."""
    if not isinstance(request.randomizer, LocalReports):
        return
    for name, oracle in request.randomizer.oracles.items():
        block = spec[name]
        if block.kind != "count" or block.norm != "l1" or block.clip != 1:
            raise SiteRefusalError(
                f"block {name!r} is not a count of one entry, as a report needs"
            )
        _check_oracle(name, oracle, block.size)


def _check_oracle(name: str, oracle: Oracle, n_cells: int) -> None:
    if oracle.domain != n_cells:
        raise SiteRefusalError(
            f"block {name!r} has {n_cells} cells, the report is on {oracle.domain}"
        )
    if oracle.kind == "rr" and n_cells != 1:
        raise SiteRefusalError(
            f"randomised response of one bit cannot report block {name!r} of "
            f"{n_cells} cells"
        )
    if not 0 < oracle.eps <= _MAX_REPORT_EPS:
        raise SiteRefusalError(
            f"the eps of a report must be between 0 and {_MAX_REPORT_EPS:g}"
        )
    own, other = oracle.thresholds
    if not 0 <= other < 2**64 or not 0 < own <= 2**64 or not oracle.p > oracle.q:
        raise SiteRefusalError(f"a report on block {name!r} would say nothing")


def _rehearse(text: str, request: Request, n_classes: int) -> None:
    """Answer for one public row, so that a request that cannot be computed is refused.

    What fails here fails for every site alike, and may be said.
    """
    width = n_classes
    if request.reading is not None and request.reading.rows != "logits":
        width = request.reading.n_columns or n_classes
    fault = _fault_of_rehearsal(_Rehearsal(text, request, n_classes, width))
    if fault:
        raise SiteRefusalError(f"the request cannot be computed ({fault})")


class _Rehearsal:
    """Request that is told from others by its text, which has a hash of its arrays."""

    def __init__(self, text: str, request: Request, n_classes: int, width: int) -> None:
        self.key = text, n_classes, width
        self.request, self.n_classes, self.width = request, n_classes, width

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rehearsal) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


# Clients of a simulation get the same text.
@lru_cache(maxsize=4)
def _fault_of_rehearsal(rehearsal: _Rehearsal) -> str:
    request = rehearsal.request
    rows = np.full((1, rehearsal.width), 1 / rehearsal.n_classes)
    labels = np.zeros(1, dtype=np.int16)
    weights = np.ones(1) if getattr(request.algorithm, "weighted", False) else None
    clients = FederatedDataset(
        rows, labels, np.array([0, 1]), ["public"], rehearsal.n_classes, weights
    )
    plain = replace(request, randomizer=None, entropy=None)
    try:
        with np.errstate(all="ignore"):
            respond(plain, clients)
    except Exception as error:
        return type(error).__name__
    return ""


def seeded(request: Request) -> bool:
    """Whether noise of the answer comes from a seed, by the server's own word."""
    return request.simulated or isinstance(request.entropy, SeededEntropy)
