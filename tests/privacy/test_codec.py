"""The door: whatever a client holds, what it sends is inside the bound, in integers."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from skfedcal.contract import BlockSpec
from skfedcal.privacy import codec
from skfedcal.privacy.codec import BlockCode, Codec, clip_rows, round_within

ANY_FLOAT = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, width=64),
    st.sampled_from(
        [np.nan, np.inf, -np.inf, 1e300, -1e300, 1.7e308, 5e-324, -1e-310, 0.0, -0.0]
    ),
    st.floats(-10, 10),
)

laws = settings(max_examples=150, deadline=None)


@st.composite
def lattice_codes(draw):
    """A clipped block on a lattice, from one step per bound to a billion."""
    norm = draw(st.sampled_from(["l1", "l2"]))
    groups = draw(st.integers(1, 4))
    width = draw(st.integers(1, 12))
    clip = draw(st.sampled_from([1e-300, 1e-3, 0.5, 1.0, 10.0, 1e6, 1e300]))
    radius = draw(st.one_of(st.floats(0.3, 40.0), st.floats(0.3, 2.0**30)))
    spec = BlockSpec((groups, width), clip=clip, norm=norm, groups=groups)
    return BlockCode(spec, step=clip / radius)


@st.composite
def coded_values(draw, values=ANY_FLOAT):
    code = draw(lattice_codes())
    n_clients = draw(st.integers(0, 4))
    shape = (n_clients, *code.spec.shape)
    return code, draw(hnp.arrays(np.float64, shape, elements=values))


def group_norms(code, integers):
    """Squared L2 (or L1) norm of every group of every client, in Python integers."""
    groups = integers.reshape(-1, code.spec.size // code.spec.groups).tolist()
    power = 1 if code.spec.norm == "l1" else 2
    return [sum(abs(q) ** power for q in group) for group in groups]


def exact_limit(code):
    radius = code.spec.clip / code.step
    return radius if code.spec.norm == "l1" else radius**2


# --------------------------------------------------------------------- the lattice


@laws
@given(coded_values())
def test_no_array_passes_the_integer_bound(case):
    code, values = case
    sent = code.encode(values)
    assert sent.shape == (len(values), 1, code.spec.size)
    assert sent.dtype == np.int64
    assert all(norm <= code.limit for norm in group_norms(code, sent))
    assert code.limit <= exact_limit(code)


@laws
@given(coded_values())
def test_leaving_out_a_client_moves_the_sum_by_less_than_the_bound(case):
    code, values = case
    total = code.encode(values).sum(axis=0)
    for i in range(len(values)):
        zeroed = values.copy()
        zeroed[i] = 0.0
        for world in (zeroed, np.delete(values, i, axis=0)):
            moved = total - code.encode(world).sum(axis=0)
            norms = group_norms(code, moved)
            assert all(norm <= code.limit for norm in norms)
            assert sum(norms) <= code.limit * code.spec.groups


@laws
@given(coded_values())
def test_a_client_sends_the_same_integers_alone_and_in_company(case):
    code, values = case
    together = code.encode(values)
    for i in range(len(values)):
        assert np.array_equal(code.encode(values[i : i + 1])[0], together[i])


@laws
@given(coded_values(st.floats(-3, 3)))
def test_what_fits_the_ball_is_rounded_to_the_nearest_point(case):
    code, values = case
    clipped = clip_rows(
        values.reshape(len(values), code.spec.size),
        code.spec.clip,
        code.spec.norm,
        code.spec.groups,
    )
    points = clipped / code.step
    nearest = np.rint(points).astype(np.int64)
    sent = code.encode(values)[:, 0]
    width = code.spec.size // code.spec.groups
    fits = [n <= code.limit for n in group_norms(code, nearest)]
    groups = sent.reshape(-1, width)
    for k, fit in enumerate(fits):
        if fit:
            assert groups[k].tolist() == nearest.reshape(-1, width)[k].tolist()
    # A shrink by f = sqrt(limit)/|rint v| moves v by at most sqrt(d)/2 + 1 (L2), as
    # |rint v| <= R + sqrt(d)/2; at most 13 shrinks, and a rounding of 1 at the end.
    # In L1: d/2 + 1 per shrink, d for the rounding.
    off = np.abs(sent - points).reshape(-1, width)
    if code.spec.norm == "l2":
        size = np.sqrt((off**2).sum(axis=1))
        assert (size <= 13 * (math.sqrt(width) / 2 + 1) + math.sqrt(width)).all()
    else:
        assert (off.sum(axis=1) <= 13 * (width / 2 + 1) + width).all()


@pytest.mark.parametrize("d", [1, 10, 2560, 20_000])
def test_rounding_a_long_vector_costs_about_half_a_step_per_number(d):
    rng = np.random.default_rng(d)
    code = BlockCode(BlockSpec((d,), clip=1.0), step=1 / 3207)
    values = rng.normal(size=(3, d)) * 10
    sent = code.encode(values)[:, 0]
    clipped = clip_rows(values, 1.0)
    off = np.linalg.norm(sent * code.step - clipped, axis=1)
    # Nearest rounding is off by sqrt(d/4) steps at most; shrinking first at most as
    # much again plus one step.
    assert (off <= (math.sqrt(d) + 1.5) * code.step).all()


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("limit", [0, 1, 2, 7, 10**6])
def test_rounding_up_many_numbers_at_once_stays_below_the_bound(norm, limit):
    values = np.full((2, 1000), 0.5000001)
    values[1] = 1.4999999
    out = round_within(values, limit, norm)
    power = 1 if norm == "l1" else 2
    for row in out.tolist():
        assert sum(abs(q) ** power for q in row) <= limit


def test_clipping_keeps_direction_and_leaves_short_rows_alone():
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [1e300, 0.0], [0.0, 0.0]])
    clipped = clip_rows(rows, 1.0)
    assert np.allclose(clipped, [[0.6, 0.8], [0.3, 0.4], [1.0, 0.0], [0.0, 0.0]])
    assert np.array_equal(clipped[1], rows[1])
    by_group = clip_rows(np.array([[3.0, 4.0, 0.1, 0.0]]), 1.0, groups=2)
    assert np.allclose(by_group, [[0.6, 0.8, 0.1, 0.0]])
    assert np.allclose(clip_rows(rows[:1], 1.0, "l1"), [[3 / 7, 4 / 7]])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_sent_as_zero(bad):
    for code in (
        BlockCode(BlockSpec((2,), clip=1.0), step=0.01),
        BlockCode(BlockSpec((2,))),
        BlockCode(BlockSpec((2,), kind="count")),
    ):
        sent = code.encode(np.array([[bad, 3.0]]))
        assert (sent[:, :, 0] == 0).all()
        assert (sent[:, :, 1] != 0).any()


@pytest.mark.parametrize("radius", [2.0**31, 1e20, 1e200])
def test_a_lattice_whose_squares_would_wrap_around_is_refused(radius):
    code = BlockCode(BlockSpec((2,), clip=1.0), step=1 / radius)
    with pytest.raises(ValueError, match="too fine"):
        code.encode(np.ones((1, 2)))


def test_a_block_without_bound_has_no_limit():
    with pytest.raises(ValueError, match="clipped"):
        BlockCode(BlockSpec((2,))).limit
    with pytest.raises(ValueError, match="clipped"):
        BlockCode(BlockSpec((2,)), step=0.1).encode(np.ones((1, 2)))


# ------------------------------------------------------- exact sums, without noise

WIDE = BlockCode(BlockSpec((1,)))


@laws
@given(
    st.lists(
        st.one_of(
            st.floats(-1e15, 1e15),
            st.floats(-1, 1),
            st.floats(-1e-8, 1e-8),
            st.sampled_from([2.0**24, -(2.0**24), 2.0**24 - 2.0**-28, -1e-12, 1e15]),
        ),
        max_size=40,
    ),
    st.randoms(use_true_random=False),
)
def test_fixed_point_sums_are_those_of_fsum_in_any_order(values, random):
    rows = np.array(values).reshape(-1, 1)
    total = WIDE.encode(rows).sum(axis=0)
    shuffled = list(values)
    random.shuffle(shuffled)
    again = WIDE.encode(np.array(shuffled).reshape(-1, 1)).sum(axis=0)
    assert np.array_equal(total, again)
    # Each value is rounded once, to 2^-40; the total is read out to a few ulps.
    expected = math.fsum(values)
    off = abs(float(WIDE.decode(total)[0]) - expected)
    assert off <= 2.0**-40 * len(values) + 4 * math.ulp(expected)


@pytest.mark.parametrize("value", [-0.1, -1e-5, -1234.56789, -1e-12, 0.1, 1e10, -1e10])
def test_negative_numbers_are_as_exact_as_positive_ones(value):
    total = WIDE.encode(np.array([[value]])).sum(axis=0)
    assert abs(float(WIDE.decode(total)[0]) - value) <= 2.0**-41 + math.ulp(value)


def test_large_values_of_both_signs_cancel_exactly():
    values = np.array([3e15, -3e15, 1e-6, 2.0**24, -(2.0**24), -(2.0**-20)])
    total = WIDE.encode(values[:, None]).sum(axis=0)
    assert abs(float(WIDE.decode(total)[0]) - math.fsum(values)) <= 6 * 2.0**-41


@laws
@given(hnp.arrays(np.float64, (5, 3), elements=ANY_FLOAT))
def test_fixed_point_limbs_leave_room_for_a_billion_clients(values):
    sent = BlockCode(BlockSpec((3,))).encode(values)
    assert np.abs(sent).max(initial=0) <= 2**32


def test_what_is_out_of_range_saturates():
    sent = WIDE.encode(np.array([[1e300], [-1e300], [2.0**54]]))
    top = 2.0**55
    assert 0.999 * top < WIDE.decode(sent[0])[0] < top
    assert WIDE.decode(sent[1])[0] == -WIDE.decode(sent[0])[0]
    assert WIDE.decode(sent[2])[0] == 2.0**54


def test_a_bound_without_noise_clips_and_is_summed_in_fixed_point():
    code = BlockCode(BlockSpec((2,), kind="count", clip=1.0))
    total = code.encode(np.array([[3, 4], [0, 1]])).sum(axis=0)
    assert np.allclose(code.decode(total), [0.6, 1.8], atol=2.0**-39)


@laws
@given(
    hnp.arrays(np.int64, (6, 4), elements=st.integers(-(2**50), 2**50)),
    st.permutations(range(6)),
)
def test_counts_are_summed_exactly(values, order):
    code = BlockCode(BlockSpec((2, 2), kind="count"))
    rows = values.reshape(6, 2, 2)
    total = code.encode(rows).sum(axis=0)
    assert total.tolist() == [[sum(col) for col in zip(*values.tolist(), strict=True)]]
    assert np.array_equal(code.encode(rows[list(order)]).sum(axis=0), total)
    assert code.decode(total).shape == (2, 2)


def test_encoding_leaves_the_input_alone():
    for dtype in (np.int64, np.float64):
        values = np.array([[1, 2], [3, 4]], dtype=dtype)
        for code in (
            BlockCode(BlockSpec((2,), kind="count")),
            BlockCode(BlockSpec((2,), clip=1.0), step=0.1),
        ):
            code.encode(values)[:] = 0
            assert values.tolist() == [[1, 2], [3, 4]]


# ------------------------------------------------------------------------ messages

CODEC = Codec(
    {
        "a": BlockCode(BlockSpec((2, 3), clip=1.0, groups=2), step=0.01),
        "b": BlockCode(BlockSpec((4,))),
        "n": BlockCode(BlockSpec((2,), kind="count")),
    }
)


def rows_for(codec, n_clients):
    return {
        name: np.ones((n_clients, *code.spec.shape))
        for name, code in codec.blocks.items()
    }


def test_no_clients_send_nothing():
    sent = CODEC.encode(rows_for(CODEC, 0))
    zeros = CODEC.zeros()
    for name, code in CODEC.blocks.items():
        assert sent[name].shape == (0, code.n_limbs, code.spec.size)
        assert np.array_equal(sent[name].sum(axis=0), zeros[name])
        assert np.array_equal(code.decode(zeros[name]), np.zeros(code.spec.shape))


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.pop("a"),
        lambda rows: rows.update(extra=np.ones((3, 1))),
        lambda rows: rows.update(b=np.ones((3, 5))),
        lambda rows: rows.update(a=np.ones((3, 6))),
        lambda rows: rows.update(b=np.ones((3, 4, 1))),
        lambda rows: rows.update(b=np.ones(3)),
    ],
)
def test_blocks_that_were_not_announced_are_refused(change):
    rows = rows_for(CODEC, 3)
    CODEC.encode(rows)
    change(rows)
    with pytest.raises(ValueError, match="announces"):
        CODEC.encode(rows)


@laws
@given(lattice_codes())
def test_no_integer_is_larger_than_the_code_says(code):
    # The whole bound in one number.
    row = np.zeros((1, *code.spec.shape))
    row.flat[0] = code.spec.clip
    found = np.abs(code.encode(row)).max()
    assert found <= code.largest
    if code.spec.norm == "l1":
        assert code.largest == code.limit
    else:
        assert code.largest**2 <= code.limit < (code.largest + 1) ** 2


def test_limbs_are_within_their_bound():
    code = BlockCode(BlockSpec((4,)))
    far = np.array([[2.0**55, -(2.0**55), 2.0**24 - 2.0**-8, 2.0**-8 - 2.0**-60]])
    assert np.abs(code.encode(far)).max() <= code.largest == 2**32


@pytest.mark.parametrize("n_clients", [0, 1, 7, 50])
@pytest.mark.parametrize("piece", [1, 60, 1 << 14])
def test_limbs_add_up_to_the_same_in_any_pieces(monkeypatch, n_clients, piece):
    monkeypatch.setattr(codec, "_PIECE", piece)
    rng = np.random.default_rng(0)
    values = rng.normal(size=(n_clients, 20)) * 10.0 ** rng.integers(-9, 19, 20)
    values[::3, 4] = np.inf
    for clip in (None, 2.0):
        code = BlockCode(BlockSpec((20,), clip=clip))
        expected = code.encode(values).sum(axis=0)
        np.testing.assert_array_equal(code.encode_sum(values), expected)
