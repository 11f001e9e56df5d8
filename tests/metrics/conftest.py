import numpy as np
import pytest
from scipy.special import softmax


@pytest.fixture
def make_problem():
    """Return a maker of overconfident predictions: ``(y, proba)``."""

    def make(n_samples=600, n_classes=5, seed=0, dtype=np.float64):
        rng = np.random.default_rng(seed)
        scores = rng.normal(size=(n_samples, n_classes)) * 1.5
        y = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
        # Every class occurs, so that `labels` can be left out.
        y[:n_classes] = np.arange(n_classes)
        return y, softmax(1.8 * scores, axis=1).astype(dtype)

    return make
