"""Secret sharing against slow arithmetic in the field of AES."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skfedcal.federation.mask_plan import join, multiply, split


def slow_product(a, b):
    """Peasant's multiplication of polynomials modulo x^8 + x^4 + x^3 + x + 1."""
    out = 0
    while b:
        if b & 1:
            out ^= a
        a <<= 1
        if a & 0x100:
            a ^= 0x11B
        b >>= 1
    return out


def test_products_are_those_of_the_field():
    values = np.arange(256, dtype=np.uint8)
    table = multiply(values[:, None], values[None, :])
    expected = [[slow_product(a, b) for b in range(256)] for a in range(256)]
    np.testing.assert_array_equal(table, expected)


def test_the_worked_example_of_fips_197():
    assert multiply(np.uint8([0x57]), np.uint8([0x83]))[0] == 0xC1


@given(data=st.data(), secret=st.binary(min_size=1, max_size=64))
def test_any_threshold_of_shares_gives_the_secret(data, secret):
    n_shares = data.draw(st.integers(1, 255))
    threshold = data.draw(st.integers(1, n_shares))
    shares = split(secret, threshold, n_shares)
    chosen = data.draw(st.permutations(range(n_shares)))[:threshold]
    assert join({i + 1: shares[i] for i in chosen}) == secret


def test_more_shares_than_needed_give_the_secret_too():
    shares = split(b"secret", 3, 6)
    assert join({i + 1: share for i, share in enumerate(shares)}) == b"secret"


def test_fewer_shares_fit_every_secret():
    # Two of three needed shares: for every last byte there is a third share that
    # completes it, so that the two tell nothing.
    shares = split(b"\x2a", 3, 3)
    reached = {
        join({1: shares[0], 2: shares[1], 3: bytes([third])}) for third in range(256)
    }
    assert len(reached) == 256


def test_shares_of_one_secret_differ_from_call_to_call():
    assert split(bytes(32), 2, 2) != split(bytes(32), 2, 2)


@pytest.mark.parametrize(("threshold", "n_shares"), [(0, 3), (4, 3), (2, 256)])
def test_impossible_shares_are_refused(threshold, n_shares):
    with pytest.raises(ValueError, match="threshold"):
        split(b"x", threshold, n_shares)


@pytest.mark.parametrize("shares", [{}, {0: b"x"}])
def test_shares_of_nobody_are_refused(shares):
    with pytest.raises(ValueError, match="shareholders"):
        join(shares)
