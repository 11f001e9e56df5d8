import numpy as np
import pytest
from sklearn.datasets import load_digits, load_sample_image


def crops(side, step=97):
    """Pieces of the two photographs that come with scikit-learn."""
    return np.stack(
        [
            photo[top : top + side, left : left + side]
            for photo in map(load_sample_image, ("china.jpg", "flower.jpg"))
            for top in range(0, photo.shape[0] - side, step)
            for left in range(0, photo.shape[1] - side, step)
        ]
    )


@pytest.fixture(scope="session")
def photos():
    """Colour images of 32 x 32 pixels."""
    return crops(32)


@pytest.fixture(scope="session")
def odd_photos():
    """Colour images whose sides are no multiples of anything."""
    return crops(37, 131)[:, :, :35]


@pytest.fixture(scope="session")
def digits():
    """Grey images of 8 x 8 pixels."""
    return (load_digits().images[:300] * 255 / 16).astype(np.uint8)
