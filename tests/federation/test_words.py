"""Words: sums are exact, as wide as they must be, and never wrap around."""

from dataclasses import replace
from functools import reduce
from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import BlockSpec
from skfedcal.federation import PartialSum, Request, respond
from skfedcal.federation.endpoint import (
    UNITS,
    add_words,
    plan_words,
    request_words,
    wrong_words,
)
from skfedcal.methods.score_curves.rounds import ScoreCounts
from skfedcal.privacy.codec import BlockCode, Codec
from skfedcal.privacy.entropy import ClientStreams, OSEntropy, _FromWords
from skfedcal.privacy.polya import polya_law, polya_limit, polya_shares
from skfedcal.privacy.randomizers import (
    GaussianShares,
    LaplaceShares,
    LocalReports,
    OneHotRows,
    Oracle,
    PolyaShares,
)
from skfedcal.privacy.samplers import (
    discrete_gaussian_base,
    discrete_laplace,
    gaussian_base_limit,
    geometric,
    laplace_limit,
)

L2 = BlockCode(BlockSpec((3, 2), clip=1.0), step=0.01)
L1 = BlockCode(BlockSpec((4,), kind="count", clip=5.0, norm="l1"), step=1.0)
CODEC = Codec(
    {
        "l2": L2,
        "real": BlockCode(BlockSpec((4,))),
        "count": BlockCode(BlockSpec((2,), "count")),
    }
)


def plan(codec=CODEC, randomizer=None, n_clients=10, n_units=None, count_units=False):
    return plan_words(
        codec,
        randomizer,
        n_clients=n_clients,
        n_units=n_clients if n_units is None else n_units,
        count_units=count_units,
    )


# How wide words are.


def test_bytes_of_an_answer_by_hand():
    # 6 lattice numbers of 4 bytes, 4 reals of 3 words of 8 bytes, 2 counts of 8 bytes.
    assert plan().n_bytes == 6 * 4 + 4 * 24 + 2 * 8
    # Single numbers are at most 100 steps. 6 random words must be out of range but for
    # one case in 2^40, so that 7 bits are left free in each.
    assert L2.largest == 99  # a hair below 100, as squares are compared
    limit = (2**24 - 1) // 99
    assert plan(n_clients=limit).n_bytes == 6 * 4 + 4 * 24 + 2 * 8
    with pytest.raises(ValueError, match="64-bit words"):
        plan(n_clients=2**31)  # limbs and counts of 2^32 each
    narrow = Codec({"l2": L2})
    assert plan(narrow, n_clients=limit).n_bytes == 24
    assert plan(narrow, n_clients=limit + 1).n_bytes == 48


def test_rows_are_counted_in_a_word():
    found = plan(Codec({"l1": L1}), n_clients=10, n_units=1000, count_units=True)
    assert found.shapes == {"l1": ((1, 4), 4), UNITS: ((1,), 8)}
    assert found.n_bytes == 24
    many = plan(Codec({"l1": L1}), n_clients=10, n_units=2**31, count_units=True)
    assert many.shapes == {"l1": ((1, 4), 8), UNITS: ((1,), 8)}


@pytest.mark.parametrize(
    ("randomizer", "share"),
    [
        (None, 0),
        (GaussianShares(), gaussian_base_limit()),
        (LaplaceShares({"l2": 3.0}), laplace_limit(3.0)),
        (PolyaShares({"l2": 3.0}, 7), polya_limit(3.0, 6 * 10)),
    ],
)
def test_noise_has_room(randomizer, share):
    found = plan(Codec({"l2": L2}), randomizer, n_clients=10)
    assert found.bounds["l2"] == (99, share)
    # The least number of clients that needs 8 bytes, from the proof itself.
    for n_clients in (2, 10**4, 10**6, 10**7, 10**8):
        shapes = plan(Codec({"l2": L2}), randomizer, n_clients=n_clients).shapes
        if isinstance(randomizer, PolyaShares):
            share = polya_limit(3.0, 6 * n_clients)
        fits = n_clients * (99 + share) < 2 ** (31 - 7)
        assert shapes["l2"][1] == (4 if fits else 8)


@pytest.mark.parametrize(
    "randomizer", [OneHotRows(), LocalReports({"l1": Oracle("oue", 1.0, 4)})]
)
def test_a_report_is_one_entry(randomizer):
    code = BlockCode(BlockSpec((4,), "count", norm="l1"))
    found = plan(Codec({"l1": code}), randomizer, n_clients=2**21 - 1)
    assert found.bounds["l1"] == (1, 0) and found.shapes["l1"][1] == 4


def test_what_no_word_holds_is_an_error_before_anybody_is_asked():
    fine = BlockCode(BlockSpec((1,), clip=1.0, norm="l1"), step=2.0**-30)
    wide = LaplaceShares({"x": 2.0**48})
    with pytest.raises(ValueError, match=r"'x' over 1000000 clients .* smaller bound"):
        plan(Codec({"x": fine}), wide, n_clients=10**6)


# The limits of samplers are their limits.


class Fixed(_FromWords):
    """Source of one word."""

    secure = True

    def __init__(self, word):
        self.word = word

    def uint64(self, n):
        return np.full(n, self.word, dtype=np.uint64)

    def child(self, *key):
        return self


TOP = Fixed(2**64 - 1)


def test_the_largest_gaussian_draw():
    assert abs(discrete_gaussian_base(3, TOP)).max() == gaussian_base_limit() == 6712


@pytest.mark.parametrize("scale", [0.01, 0.5, 1.0, 37.5, 5000.0, 2.0**24, 2.0**48])
def test_the_largest_laplace_draw(scale):
    assert geometric(1, scale, TOP)[0] == laplace_limit(scale)
    assert abs(discrete_laplace(2000, scale, OSEntropy())).max() <= laplace_limit(scale)


@pytest.mark.parametrize("scale", [0.3, 2.0, 1000.0, 2.0**24])
@pytest.mark.parametrize("n_values", [1, 2560 * 30, 10**12])
def test_the_bound_of_polya_shares_holds_for_the_whole_law(scale, n_values):
    # A part of a share is at most a geometric variable: chance exp(-k / scale) of k.
    limit = polya_limit(scale, n_values)
    assert log2(2 * n_values) - limit / scale / np.log(2) <= -100
    # And it is no larger than that needs.
    assert limit <= scale * np.log(2) * (101.1 + log2(n_values)) + 2


def test_polya_shares_stay_below_their_bound():
    law = polya_law(50.0, 1000, 3)
    streams = ClientStreams(OSEntropy(), np.arange(1))
    drawn = max(abs(polya_shares(1000, law, streams, 0)).max() for _ in range(50))
    assert 50 < drawn <= polya_limit(50.0, 1000)


# There and back.


@st.composite
def sums(draw):
    """A codec, and answers of some clients that it can have written."""
    n_clients = draw(st.integers(1, 6))
    size = draw(st.integers(1, 4))
    clip = draw(st.sampled_from([1.0, 1000.0, 2.0**20]))
    code = BlockCode(BlockSpec((size,), clip=clip, norm="l1"), step=1.0)
    codec = Codec({"a": code, "b": BlockCode(BlockSpec((1,)))})
    numbers = st.integers(-code.largest, code.largest)
    exact = st.integers(-(2**32), 2**32)
    answers = [
        PartialSum(
            {
                "a": np.array([draw(st.lists(numbers, min_size=size, max_size=size))]),
                "b": np.array([[draw(exact)] for _ in range(3)]),
            },
            1,
            1,
        )
        for _ in range(n_clients)
    ]
    return codec, answers


@given(sums(), st.randoms())
def test_sums_of_words_are_sums_of_answers(case, random):
    codec, answers = case
    words = plan(codec, n_clients=len(answers))
    parts = [words.encode(answer) for answer in answers]
    random.shuffle(parts)
    total = words.zeros()
    for part in parts:
        assert not wrong_words(part, words.shapes)
        add_words(total, part)
    found = words.decode(total, len(answers))
    expected = reduce(PartialSum.__add__, answers)
    assert found.n_clients == found.n_units == len(answers)
    for name, value in expected.total.items():
        assert found.total[name].dtype == np.int64
        np.testing.assert_array_equal(found.total[name], value)


def test_the_number_of_rows_is_a_word_among_others():
    algorithm = ScoreCounts(levels=(2,), clip=1.0)
    rows = FederatedDataset(
        np.linspace(0, 1, 9)[:, None], np.arange(9) % 2, np.array([0, 9]), ["a"], 2
    )
    broadcast = algorithm.broadcast(algorithm.init(2))
    spec = algorithm.spec(broadcast)
    codec = Codec({name: BlockCode(block, 1.0) for name, block in spec.items()})
    request = Request(algorithm, broadcast, codec, "example", n_clients=3, n_units=50)
    words = request_words(request, masked=True)
    found = words.encode(respond(request, rows))
    assert found[UNITS].tolist() == [9] and found[UNITS].dtype == np.uint64
    assert words.decode(found, 1).n_units == 9
    # What the server says about rows changes nothing.
    assert request_words(replace(request, n_units=8), masked=True) == words
    # An answer without a mask does not show the number of rows.
    plain = request_words(request, masked=False)
    assert set(plain.shapes) == {"level_2"}
    assert set(plain.encode(respond(request, rows))) == {"level_2"}


def test_what_could_wrap_around_is_set_to_its_bound():
    """A refusal would show that the answer is a large one."""
    words = plan(Codec({"l1": L1}), n_clients=3)
    fine = PartialSum({"l1": np.array([[5, -5, 0, 0]])}, 1, 1)
    sent = words.encode(PartialSum({"l1": np.array([[6, -9, 0, 0]])}, 1, 1))
    np.testing.assert_array_equal(sent["l1"], words.encode(fine)["l1"])
    exact = plan(Codec({"n": BlockCode(BlockSpec((1,), "count"))}), n_clients=3)
    for count in (2**32, 2**32 + 1, 2**62):
        sent = exact.encode(PartialSum({"n": np.array([[count]])}, 1, 1))
        assert exact.decode(sent, 1).total["n"].tolist() == [[2**32]]


def test_plain_words_out_of_range_are_found():
    words = plan(Codec({"l1": L1}), n_clients=3)
    assert not words.fault({"l1": np.array([[5, 0, 0, 2**32 - 5]], dtype=np.uint32)})
    assert "range" in words.fault({"l1": np.array([[6, 0, 0, 0]], dtype=np.uint32)})
    assert not words.fault({"l1": np.array([[6, 0, 0, 0]], dtype=np.uint32)}, 2)


@given(st.integers(1, 2**40), st.integers(0, 2**40), st.integers(1, 2**20))
def test_the_proof(unit, share, n_clients):
    """No sum of clients that keep to their bounds leaves the signed range."""
    code = BlockCode(BlockSpec((1,), clip=float(unit), norm="l1"), step=1.0)

    class Share(OneHotRows):
        def bounds(self, codec, n_clients):
            from skfedcal.privacy.randomizers import Bound

            return {"x": Bound(unit, share)}

    largest = n_clients * (unit + share)
    try:
        width = plan(Codec({"x": code}), Share(), n_clients=n_clients).shapes["x"][1]
    except ValueError:
        assert largest >= 2**63
    else:
        assert largest < 2 ** (8 * width - 1)
        # One random word is in range once in 2^40.
        assert largest << 40 < 2**31 if width == 4 else largest << 40 >= 2**31
