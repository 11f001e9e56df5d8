"""Whether a private temperature is told from noise: the claim has to be honest."""

import numpy as np
import pytest

from skfedcal.contract import Sums
from skfedcal.methods.temperature.rounds import PrivateState, SlopePosterior


def releases(curvature, optimum, seed, noise=6.0, n_clients=100):
    """State after five noisy rounds of a loss with this curvature and optimum."""
    rng = np.random.default_rng(seed)
    algorithm = SlopePosterior()
    state = PrivateState()
    while not algorithm.done(state):
        slope = curvature * (state.log_beta - optimum) / state.clip
        sums = n_clients * np.array([slope, curvature]) + noise * rng.normal(size=2)
        state = algorithm.update(
            state, Sums({"slopes": sums}, {"slopes": noise}), n_clients
        )
    return state


@pytest.mark.parametrize("curvature", [0.02, 0.1, 0.4, 0.8])
def test_noise_around_the_right_temperature_passes_as_rarely_as_it_should(curvature):
    # The larger of two normal numbers is beyond 1.8 deviations in 14 % of fits at most;
    # 80 of 300 have a chance below 1e-8.
    fits = [releases(curvature, 0.0, seed) for seed in range(300)]
    assert sum(state.improves for state in fits) < 80
    # The first release is normal to the letter: a mean of 300 squares is within 0.5 of
    # 1 but for a chance of 1e-9.
    first = [abs(s.slopes[0]) / np.sqrt(s.slope_noise[0]) for s in fits]
    assert abs(np.mean(np.square(first)) - 1) < 0.5


def test_a_temperature_far_from_one_is_seen():
    for seed in range(20):
        assert releases(0.4, -0.6, seed, noise=2.0).improves


def test_evidence_grows_with_the_budget():
    values = [
        np.mean([releases(0.4, -0.3, seed, noise=noise).evidence for seed in range(30)])
        for noise in (12.0, 3.0, 0.5)
    ]
    assert values == sorted(values)


def test_nothing_released_is_no_evidence():
    state = PrivateState()
    assert state.evidence == 0
    assert not state.improves
