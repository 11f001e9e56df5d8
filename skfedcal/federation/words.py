"""Answers as unsigned words that add up modulo a power of 2, and back.

Sums of words are exact: the number of bits of a word is derived before any client is
asked, from the bounds of what one client can send. A site limits its own answer to
them, so that a sum of honest answers cannot wrap around, and a sum that exceeds its
bound shows that a site was not honest. Needs numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skfedcal.federation.endpoint import PartialSum, Request
from skfedcal.privacy.codec import Codec

if TYPE_CHECKING:
    from skfedcal.privacy.randomizers import Randomizer

Words = dict[str, NDArray[Any]]
Shapes = dict[str, tuple[tuple[int, ...], int]]

# Name of the word that counts rows in a masked sum. An answer without a mask has none:
# it would show the number of rows of one site.
UNITS = "/units"
# Most rows of a sum. A constant: a site whose answer depended on a number that the
# server names would tell whether it has more rows.
MAX_ROWS = 1 << 30
# A sum that holds random words in place of an answer passes for an honest one with a
# chance below 2**-40 for each block of 4-byte words, and for each block of 8-byte words
# in sums over up to 2,000 clients.
_DETECTION_BITS = 40


@dataclass(frozen=True, slots=True)
class WordPlan:
    """How the answers to one request are written.

    Parameters
    ----------
    shapes : mapping of str to (shape, n_bytes)
        Arrays of words and the width of a word.
    bounds : mapping of str to (int, int)
        Largest size of an integer: of each unit of a client, and of its noise.
    n_units : int
        Units of all clients of a sum, at most.
    by_row : bool, default=False
        Whether units are rows, and not clients.
    """

    shapes: Shapes
    bounds: Mapping[str, tuple[int, int]]
    n_units: int
    by_row: bool = False

    @property
    def n_bytes(self) -> int:
        """Size of one client's answer."""
        return sum(prod(shape) * width for shape, width in self.shapes.values())

    def encode(self, answer: PartialSum) -> Words:
        """Words of the answer of a client, or of a sum over some.

        Integers beyond their bound are set to it: a refusal would show that the answer
        is a large one. That happens only with more rows than `n_units`, with exact
        counts beyond ``2**32`` and, with a chance below ``2**-80`` in a whole run, with
        shares of noise.
        """
        numbers = dict(answer.total)
        n_units = min(answer.n_units, self.n_units)
        if UNITS in self.shapes:
            numbers[UNITS] = np.array([n_units], dtype=np.int64)
        words = {}
        for name, (shape, width) in self.shapes.items():
            unit, share = self.bounds[name]
            allowed = unit * n_units + share * answer.n_clients
            value = np.clip(numbers[name], -allowed, allowed)
            words[name] = value.reshape(shape).astype(f"<u{width}")
        return words

    def decode(self, words: Mapping[str, Any], n_clients: int) -> PartialSum:
        """Sum of the answers of `n_clients`, from the sum of their words."""
        total = {}
        for name, (_, width) in self.shapes.items():
            value = np.asarray(words[name]).astype(f"<u{width}", copy=False)
            total[name] = value.view(f"<i{width}").astype(np.int64)
        n_units = n_clients
        if UNITS in total:
            n_units = int(total.pop(UNITS)[0])
        return PartialSum(total, n_clients, n_units)

    def fault(self, words: Mapping[str, Any], n_clients: int = 1) -> str:
        """Fault of the words of some clients; empty if they are valid.

        For answers without masks, and for sums whose masks are off.
        """
        fault = wrong_words(words, self.shapes)
        if fault:
            return fault
        answer = self.decode(words, n_clients)
        hidden = self.by_row and UNITS not in self.shapes
        n_units = self.n_units if hidden else answer.n_units
        if not 0 <= n_units <= self.n_units:
            return f"reports {n_units} rows"
        for name, value in answer.total.items():
            unit, share = self.bounds[name]
            largest = unit * n_units + share * n_clients
            if value.size and not -largest <= value.min() <= value.max() <= largest:
                return f"sent numbers in {name!r} that are out of range"
        return ""

    def zeros(self) -> Words:
        """Sum over no clients."""
        return {name: np.zeros(s, f"<u{w}") for name, (s, w) in self.shapes.items()}


def plan_words(
    codec: Codec,
    randomizer: Randomizer | None,
    *,
    n_clients: int,
    n_units: int,
    by_row: bool = False,
    count_units: bool = False,
) -> WordPlan:
    """Choose the width of words such that no sum can wrap around.

    A sum over `n_clients` with `n_units` in all is at most ``n_units * unit +
    n_clients * share`` in size; that must be below ``2**(bits - 1)``, and so far below
    it that random words in the sum are noticed. Shares of Gaussian and Laplace noise
    come from tables and have a largest value. A Polya share has none; it is beyond its
    bound with a chance below ``2**-80`` in a whole run, and is then set to it.

    Parameters
    ----------
    codec : Codec
        How answers are clipped and written.
    randomizer : Randomizer or None
        What clients do to their answers.
    n_clients : int
        Most clients of a sum.
    n_units : int
        Most clients, or rows, of a sum.
    by_row : bool, default=False
        Whether units are rows, and not clients.
    count_units : bool, default=False
        Whether the number of rows is summed too.

    Raises
    ------
    ValueError
        If no word is wide enough.
    """
    if randomizer is None:
        bounds = {name: (code.largest, 0) for name, code in codec.blocks.items()}
    else:
        found = randomizer.bounds(codec, n_clients)
        bounds = {name: (bound.unit, bound.share) for name, bound in found.items()}
    sizes = {
        name: (code.n_limbs, code.spec.size) for name, code in codec.blocks.items()
    }
    shapes: Shapes = {}
    for name, (unit, share) in bounds.items():
        largest = n_units * unit + n_clients * share
        shapes[name] = (sizes[name], _width(name, largest, n_clients, sizes[name]))
    if count_units:
        bounds[UNITS] = (1, 0)
        shapes[UNITS] = ((1,), _width(UNITS, n_units, n_clients, (1,)))
    return WordPlan(shapes, bounds, n_units, by_row)


def request_words(request: Request, *, masked: bool) -> WordPlan:
    """Words of the answers to a request.

    Parameters
    ----------
    request : Request
        The question.
    masked : bool
        Whether answers are masked; only then rows are counted, in a word of their own.
    """
    n_clients = max(request.n_clients, 1)
    by_row = request.unit == "example"
    return plan_words(
        request.codec,
        request.randomizer,
        n_clients=n_clients,
        n_units=MAX_ROWS if by_row else n_clients,
        by_row=by_row,
        count_units=by_row and masked,
    )


def wrong_words(words: Mapping[str, Any], shapes: Mapping[str, Any]) -> str:
    """Fault of the arrays of a client; empty if they are valid."""
    if set(words) != set(shapes):
        return f"sent the arrays {sorted(words)} instead of {sorted(shapes)}"
    for name, (shape, width) in shapes.items():
        value = words[name]
        if value.shape != tuple(shape) or value.dtype.str.lstrip("<|") != f"u{width}":
            return (
                f"sent {name!r} as {value.dtype} of shape {value.shape} instead of "
                f"uint{8 * width} of shape {tuple(shape)}"
            )
    return ""


def add_words(total: Words, part: Mapping[str, Any]) -> None:
    """Add a sum of words to another, in place; words wrap around."""
    for name, value in total.items():
        value += part[name]


def _width(name: str, largest: int, n_clients: int, shape: tuple[int, ...]) -> int:
    """Bytes of a word; random words in all places are within bounds once in 2**40."""
    room = -(-_DETECTION_BITS // prod(shape))
    if largest << room < 2**31:
        return 4
    if largest < 2**63:
        return 8
    raise ValueError(
        f"Sums of block {name!r} over {n_clients} clients can be as large as "
        f"{float(largest):.2g}, which overflows 64-bit words. Pass a smaller bound "
        "per client (clip) or a larger eps, or sum fewer clients at once."
    )
