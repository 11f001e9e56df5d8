"""The attack on float noise: floats near 0 betray which numbers were added up."""

import numpy as np
import pytest

from skfedcal.contract import BlockSpec
from skfedcal.privacy import CentralDP, PrivacyLedger, gdp_mu
from skfedcal.privacy.audits.errors import Claim, Errors
from skfedcal.privacy.entropy import SeededEntropy
from skfedcal.privacy.models import ReleasePlan

# One count, 0 or 1, and noise for eps = 1. A float in [0.5, 2) is a multiple of 2**-53,
# and the difference of two such is one too: 1 + noise near 0 always is, 0 + noise
# hardly ever. An answer near 0 that is no multiple shows that the count was not 1.
N = 40_000
STEP = 2.0**-53
CLAIMS = {"l2": Claim(1.0, 1e-5, gdp_mu(1.0, 1e-5)), "l1": Claim(1.0)}


def float_release(count, norm, seed):
    """Noise of numpy on a float."""
    rng = np.random.default_rng(seed)
    if norm == "l1":
        return count + rng.laplace(0, 1.0, size=N)
    return count + rng.normal(0, 1 / CLAIMS[norm].mu, size=N)


def lattice_release(count, norm, seed):
    """Noise of the library, in one release of many equal counts, each charged alone."""
    mechanism = CentralDP(1.0, delta=1e-5).mechanism(
        ReleasePlan(100, 1, 1, 1.0, N, norm=norm),
        entropy=SeededEntropy(seed),
        ledger=PrivacyLedger(),
    )
    kind = "count" if norm == "l1" else "real"
    codec = mechanism.codec({"x": BlockSpec((N,), kind, clip=1.0, norm=norm)})
    mechanism.open("run")
    code = codec.blocks["x"]
    total = np.full((1, N), count * code.largest)
    return mechanism.release({"x": total}, codec, 0)["x"], code.step


def says_not_one(values):
    """Mironov's distinguisher: near 0, and no multiple of the spacing at 1."""
    near = np.abs(values) < 0.25
    return near & (np.rint(values / STEP) * STEP != values)


def p_value(absent, present, claim):
    """P-value of the claim against the distinguisher, which calls the rest present."""
    alarms = int((~says_not_one(absent)).sum())
    misses = int(says_not_one(present).sum())
    return Errors(alarms, misses, N, N).p_value(claim)


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_floating_point_attack_breaks_float_noise(norm):
    absent, present = (float_release(count, norm, seed=count) for count in (0, 1))
    # With certainty, and thousands of times more often than delta allows.
    assert not says_not_one(present).any()
    assert says_not_one(absent).mean() > 0.04
    assert p_value(absent, present, CLAIMS[norm]) < 1e-9


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_floating_point_attack_finds_nothing_on_the_lattice(norm):
    (absent, _), (present, _) = (
        lattice_release(count, norm, seed=count) for count in (0, 1)
    )
    # The p-value of an honest mechanism is below 1e-6 with a chance of 1e-6.
    assert p_value(absent, present, CLAIMS[norm]) > 1e-6


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_both_counts_are_released_as_points_of_one_lattice(norm):
    (absent, step), (present, _) = (
        lattice_release(count, norm, seed=count) for count in (0, 1)
    )
    for values in (absent, present):
        assert np.array_equal(np.rint(values / step) * step, values)
    # Where both counts reach the same point it is the same float.
    seen = [dict(zip(np.rint(v / step), v, strict=True)) for v in (absent, present)]
    common = seen[0].keys() & seen[1].keys()
    assert len(common) > 10
    assert all(seen[0][place] == seen[1][place] for place in common)
