"""Operations on images against naive or independent ones."""

import numpy as np
import pytest
from scipy import ndimage

from skfedcal.datasets.corruptions._images import (
    convolve,
    displace,
    gaussian_rows,
    line_kernels,
    splat,
    stretch_rows,
)

RNG = np.random.default_rng(5)
PLANES = RNG.random((4, 3, 14, 19)).astype(np.float32)


def test_convolve_agrees_with_ndimage():
    one, many = RNG.random((5, 5)), RNG.random((4, 7, 7))
    for kernels in (one, many):
        each = np.broadcast_to(kernels, (4, *kernels.shape[-2:]))
        expected = [
            [ndimage.convolve(plane, kernel, mode="reflect") for plane in image]
            for image, kernel in zip(PLANES.astype(float), each, strict=True)
        ]
        np.testing.assert_allclose(convolve(PLANES, kernels), expected, atol=1e-4)


def test_displace_agrees_with_map_coordinates():
    offsets = RNG.normal(0, 5, (4, 2, 14, 19)).astype(np.float32)
    rows, columns = np.indices((14, 19))
    expected = [
        [
            ndimage.map_coordinates(
                plane, [rows + down, columns + right], order=1, mode="nearest"
            )
            for plane in image
        ]
        for image, (down, right) in zip(PLANES, offsets, strict=True)
    ]
    np.testing.assert_allclose(displace(PLANES, offsets), expected, atol=1e-5)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.5])
def test_gaussian_rows_agree_with_ndimage(sigma):
    # Reflections beyond the first are left out: nothing at six deviations.
    expected = ndimage.gaussian_filter1d(
        np.eye(16), sigma, axis=0, mode="reflect", truncate=6
    )
    np.testing.assert_allclose(gaussian_rows(16, sigma), expected, atol=1e-6)


def test_stretched_values_are_interpolated():
    values = RNG.random(9)
    # Middles of 18 halves of 9 cells; the ends stay flat.
    expected = np.interp((np.arange(18) + 0.5) / 2 - 0.5, np.arange(9), values)
    np.testing.assert_allclose(stretch_rows(18, 9) @ values, expected, atol=1e-6)
    np.testing.assert_allclose(stretch_rows(9, 9), np.eye(9), atol=1e-12)
    # Twofold magnification of 8 cells shows the middle four.
    ramp = stretch_rows(8, 8, 2.0) @ np.arange(8.0)
    np.testing.assert_allclose(ramp, 1.75 + np.arange(8) / 2, atol=1e-6)


def test_line_kernel_worked_by_hand():
    # 17 points from -2 to 2. Pixel 2 gets 1 + 3/4 + 1/2 + 1/4 of the last four, an
    # inner pixel that twice less the point on it.
    level, upright = line_kernels(4.0, np.array([0.0, np.pi / 2]))
    expected = np.zeros((5, 5))
    expected[2] = np.array([2.5, 4, 4, 4, 2.5]) / 17
    np.testing.assert_allclose(level, expected, atol=1e-12)
    np.testing.assert_allclose(upright, expected.T, atol=1e-12)


def test_line_kernels_point_along_their_angle():
    angles = np.linspace(-1.5, 1.5, 7)
    kernels = line_kernels(9.0, angles)
    np.testing.assert_allclose(kernels.sum(axis=(1, 2)), 1)
    rows, columns = np.indices(kernels.shape[1:]) - kernels.shape[1] // 2
    for kernel, angle in zip(kernels, angles, strict=True):
        along = rows * np.sin(angle) + columns * np.cos(angle)
        across = columns * np.sin(angle) - rows * np.cos(angle)
        # A line of 9 pixels: 9**2 / 12, and about a pixel's own spread across.
        assert (kernel * along**2).sum() == pytest.approx(9**2 / 12, rel=0.1)
        assert (kernel * across**2).sum() < 0.35


def test_a_point_between_pixels_is_shared_by_distance():
    kernel = splat(np.array([[[0.25, -0.5]]]), 1)[0]
    expected = [[0, 0, 0], [0.375, 0.375, 0], [0.125, 0.125, 0]]
    np.testing.assert_allclose(kernel, expected)
