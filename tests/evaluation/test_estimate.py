"""Estimates behave as floats."""

import copy
import json
import math
import pickle

import numpy as np
import pytest
from scipy.optimize import brentq

from skfedcal import Estimate
from skfedcal.evaluation.intervals import make_estimate


@pytest.fixture
def estimate():
    return Estimate(0.75, 0.7, 0.8, se_sampling=0.03, se_privacy=0.04)


def test_arithmetic_gives_plain_floats(estimate):
    for result in (estimate + 1, 1 - estimate, estimate * 2, -estimate, abs(estimate)):
        assert type(result) is float
    assert estimate + 1 == 1.75
    assert sum([estimate, estimate]) == 1.5
    assert type(float(estimate)) is float and type(estimate.value) is float


def test_comparison_hash_and_format_are_those_of_the_value(estimate):
    assert estimate == 0.75 and estimate > 0.7 and hash(estimate) == hash(0.75)
    assert max(estimate, 0.5) is estimate
    assert (
        f"{estimate:.1f}|{estimate}|{estimate!s}|{estimate:g}" == "0.8|0.75|0.75|0.75"
    )
    assert "low=0.7" in repr(estimate)
    assert json.dumps(estimate) == "0.75"


def test_numpy_takes_it_for_a_number(estimate):
    array = np.array([estimate, 1.0])
    assert array.dtype == np.float64 and array.tolist() == [0.75, 1.0]
    assert np.sqrt(estimate) == np.sqrt(0.75)
    assert math.isclose(np.mean([estimate, 0.25]), 0.5)


def test_errors_add_up_in_squares(estimate):
    assert estimate.se == pytest.approx(0.05)


def test_it_cannot_be_changed(estimate):
    with pytest.raises(AttributeError, match="cannot be changed"):
        estimate.low = 0.0


def test_copies_keep_everything(estimate):
    for other in (pickle.loads(pickle.dumps(estimate)), copy.deepcopy(estimate)):
        assert repr(other) == repr(estimate) and type(other) is Estimate


def test_interval_of_a_share_is_that_of_wilson():
    """Ends are where the value is z deviations away, by the variance at the end."""
    found = make_estimate(0.8, 0.03**2, 0.04**2, ci=0.95)
    n_rows = 0.8 * 0.2 / 0.03**2

    def away(t):
        variance = t * (1 - t) / n_rows + 0.04**2
        return (t - 0.8) ** 2 - 1.9599639845**2 * variance

    assert found.low == pytest.approx(brentq(away, 0.0, 0.8), abs=1e-9)
    assert found.high == pytest.approx(brentq(away, 0.8, 1.0), abs=1e-9)


def test_interval_is_normal_without_range_and_cut_to_the_range():
    plain = make_estimate(0.5, 0.03**2, 0.04**2, ci=0.95, bounds=None)
    assert plain.high - 0.5 == pytest.approx(1.959964 * 0.05, rel=1e-6)
    cut = make_estimate(1.02, 0.01, 0.0, ci=0.9)
    assert (float(cut), cut.high) == (1.0, 1.0) and cut.low < 1
    free = make_estimate(-0.1, 0.01, 0.0, ci=0.9, bounds=None)
    assert float(free) == -0.1


@pytest.mark.parametrize("ci", [0, 1, 95])
def test_a_wrong_level_is_refused(ci):
    with pytest.raises(ValueError, match="confidence level"):
        make_estimate(0.5, 0.1, 0.0, ci=ci)
