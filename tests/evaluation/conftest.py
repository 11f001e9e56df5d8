"""Scores that are used by several files."""

import numpy as np
import pytest


def _scores(n, seed=0, power=1.3):
    """Scores and labels of a model that is a little too sure of positives."""
    rng = np.random.default_rng(seed)
    scores = rng.beta(2, 2, n)
    return scores, (rng.random(n) < scores**power).astype(int)


@pytest.fixture
def draw_scores():
    return _scores


@pytest.fixture(scope="session")
def scored():
    """Scores, labels and client ids of 3000 rows at 40 clients of unequal size."""
    scores, labels = _scores(3000)
    ids = np.random.default_rng(1).geometric(0.08, 3000).clip(max=40)
    return scores, labels, ids
