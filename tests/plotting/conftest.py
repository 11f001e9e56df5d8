"""Histograms to draw, and figures that are closed again."""

import matplotlib
import numpy as np
import pytest

from skfedcal import ScoreHistogram
from skfedcal.privacy import DistributedDP

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def close_figures():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def _scores(n, seed=0):
    """Scores and labels of a model that is a little too sure of positives."""
    rng = np.random.default_rng(seed)
    scores = rng.beta(2, 2, n)
    return scores, (rng.random(n) < scores**1.3).astype(int)


@pytest.fixture
def draw_scores():
    return _scores


@pytest.fixture(scope="session")
def clients():
    scores, labels = _scores(3000)
    return [
        (scores[part], labels[part]) for part in np.array_split(np.arange(3000), 30)
    ]


@pytest.fixture(scope="session")
def exact(clients):
    return ScoreHistogram.fit(clients, input_type="proba")


@pytest.fixture(scope="session")
def noisy(clients):
    with pytest.warns(UserWarning, match="simulation"):
        return ScoreHistogram.fit(
            clients,
            privacy=DistributedDP(1.0, unit="example"),
            input_type="proba",
            random_state=0,
        )


@pytest.fixture(params=["exact", "noisy"])
def hist(request):
    return request.getfixturevalue(request.param)
