"""Derivatives of the log loss against finite differences and exact arithmetic."""

import numpy as np
import pytest

from skfedcal.methods.temperature.moments import LossDerivatives


def exact(row, label, beta, order):
    """Derivatives 1..order of ``log sum exp(beta d) - beta d_y``, in 60 digits."""
    mpmath = pytest.importorskip("mpmath", reason="comes with torch")
    with mpmath.workdps(60):
        gaps = [mpmath.mpf(float(v)) - mpmath.mpf(float(max(row))) for v in row]

        def loss(b):
            return (
                mpmath.log(mpmath.fsum(mpmath.exp(b * g) for g in gaps))
                - b * gaps[label]
            )

        taylor = mpmath.taylor(loss, mpmath.mpf(beta), order)
        return [float(t * mpmath.factorial(k)) for k, t in enumerate(taylor)][1:]


@pytest.mark.parametrize("c", [2, 5, 60])
@pytest.mark.parametrize("beta", [0.05, 1.0, 3.0])
def test_five_derivatives_against_exact_arithmetic(c, beta):
    rng = np.random.default_rng(c)
    rows, labels = rng.normal(size=(4, c)) * 2, rng.integers(0, c, 4)
    found = np.stack(LossDerivatives(np.float64)(rows, labels, beta, 5))
    expected = np.array(
        [exact(r, y, beta, 5) for r, y in zip(rows, labels, strict=True)]
    ).T
    # Cumulants are differences of raw moments; these grow like the gap to the k.
    gap = np.ptp(rows, axis=1).max()
    for k in range(5):
        np.testing.assert_allclose(
            found[k], expected[k], rtol=1e-9, atol=1e-13 * gap ** (k + 1)
        )


@pytest.mark.parametrize("c", [3, 70])
def test_each_derivative_is_the_slope_of_the_one_before(c):
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(30, c)), rng.integers(0, c, 30)
    derivatives = LossDerivatives(np.float64)
    h = 1e-5
    above = np.stack(derivatives(rows, labels, 0.7 + h, 5)).copy()
    below = np.stack(derivatives(rows, labels, 0.7 - h, 5)).copy()
    here = np.stack(derivatives(rows, labels, 0.7, 5))
    np.testing.assert_allclose(
        (above - below)[:4] / (2 * h), here[1:], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("c", [3, 70])
@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_lower_orders_and_one_beta_per_row_give_the_same(c, order):
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(30, c)), rng.integers(0, c, 30)
    derivatives = LossDerivatives(np.float64)
    full = np.stack(derivatives(rows, labels, 0.7, 5)).copy()
    part = np.stack(derivatives(rows, labels, 0.7, order)).copy()
    np.testing.assert_array_equal(part, full[:order])
    beta = rng.uniform(0.1, 2, 30)
    mixed = np.stack(derivatives(rows, labels, beta, order)).copy()
    for i in range(30):
        one = np.stack(derivatives(rows[i : i + 1], labels[i : i + 1], beta[i], order))
        np.testing.assert_array_equal(mixed[:, i], one[:, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("c", [2, 60])
def test_extreme_rows_stay_finite_and_the_input_is_not_changed(dtype, c):
    big = np.finfo(dtype).max / 2
    rows = np.zeros((5, c), dtype=dtype)
    rows[0, 0], rows[0, 1], rows[1, 0] = big, -big, -np.inf
    rows[2] = 1e4 * (np.arange(c) % 2)
    rows[3] = -big
    before = rows.copy()
    labels = np.array([1, 0, 1, 0, 0])
    for order in (1, 2, 5):
        values = np.stack(LossDerivatives(dtype)(rows, labels, 1.0, order))
        assert values.dtype == np.float64 and np.isfinite(values).all()
    np.testing.assert_array_equal(rows, before)
    empty = LossDerivatives(dtype)(rows[:0], labels[:0], 1.0, 2)
    assert [len(v) for v in empty] == [0, 0]
