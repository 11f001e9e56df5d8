"""Unequal parts of a budget: over rounds, and over the blocks of a round."""

import math

import numpy as np
import pytest

from skfedcal.contract import BlockSpec
from skfedcal.privacy import CentralDP, SecureAggregation, gdp_mu
from skfedcal.privacy.entropy import SeededEntropy
from skfedcal.privacy.models import ReleasePlan
from skfedcal.privacy.samplers import GAUSSIAN_SIGMA

SPEC = {"x": BlockSpec((3,), clip=2.0)}


def make(shares=(), *, n_releases=2, part=None, rate=1.0, model=None):
    plan = ReleasePlan(100, n_releases, part or n_releases, rate, 50, shares)
    return (model or CentralDP(1.0, delta=1e-5)).mechanism(
        plan, entropy=SeededEntropy(0), ledger=None
    )


def strength(mechanism, index, spec=SPEC):
    """Bound over noise of one round, all blocks together."""
    codec = mechanism.codec(spec, index)
    return math.sqrt(
        sum(
            (spec[name].sensitivity / (code.step * GAUSSIAN_SIGMA)) ** 2
            for name, code in codec.blocks.items()
        )
    )


def test_squared_strengths_add_up_to_the_budget_whatever_the_shares():
    equal, unequal = make(), make((0.2, 0.8))
    for mechanism in (equal, unequal):
        total = sum(strength(mechanism, i) ** 2 for i in range(2))
        assert math.sqrt(total) == pytest.approx(mechanism.plan.mu, rel=1e-9)
    ratio = strength(unequal, 1) / strength(unequal, 0)
    assert ratio == pytest.approx(2.0)
    assert unequal.plan == equal.plan


def test_noise_of_a_round_follows_its_share():
    mechanism = make((0.1, 0.9))
    mechanism.open("run")
    noise = []
    for index in range(2):
        codec = mechanism.codec(SPEC, index)
        noise.append(mechanism.release(codec.zeros(), codec, index).noise["x"])
    assert noise[0] / noise[1] == pytest.approx(3.0)


def test_a_codec_of_a_richer_round_is_refused_in_a_poorer_one():
    mechanism = make((0.1, 0.9))
    mechanism.open("run")
    rich = mechanism.codec(SPEC, 1)
    with pytest.raises(RuntimeError, match="exceed the planned budget"):
        mechanism.release(rich.zeros(), rich, 0)


@pytest.mark.parametrize(
    ("shares", "options"),
    [
        ((0.5, 0.5, 0.0), {"n_releases": 3}),
        ((0.6, 0.6), {}),
        ((1.5, -0.5), {}),
    ],
)
def test_shares_that_are_no_shares_are_refused(shares, options):
    with pytest.raises(ValueError, match="positive and add up to 1"):
        make(shares, **options)


def test_unequal_shares_need_everybody_in_every_round():
    # A client in one round of four would be hidden by the noise of that round alone.
    with pytest.raises(ValueError, match="every client takes part"):
        make((0.1, 0.2, 0.3, 0.4), n_releases=4, part=1)
    with pytest.raises(ValueError, match="every client takes part"):
        make((0.5, 0.5), n_releases=3)


def test_unequal_shares_are_refused_where_sampling_is_credited():
    pytest.importorskip("dp_accounting")
    with pytest.raises(ValueError, match="every client takes part"):
        make((0.4, 0.6), rate=0.1)


def test_a_heavier_block_gets_less_noise():
    # sigma^2 is in proportion to 1 / sqrt(weight) at equal bounds and sizes.
    spec = {"a": BlockSpec((4,), clip=1.0), "b": BlockSpec((4,), clip=1.0, weight=16.0)}
    mechanism = make(n_releases=1)
    steps = {n: c.step for n, c in mechanism.codec(spec).blocks.items()}
    assert steps["a"] / steps["b"] == pytest.approx(2.0)
    assert strength(mechanism, 0, spec) == pytest.approx(mechanism.plan.mu, rel=1e-9)


def test_strength_is_what_one_release_may_show():
    mu = gdp_mu(1.0, 1e-5)
    assert CentralDP(1.0, delta=1e-5).strength(100) == pytest.approx(mu)
    weaker = CentralDP(1.0, delta=1e-5, accountant="zcdp").strength(100)
    assert weaker == pytest.approx(1 / 4.04513, rel=1e-5)  # Lemma B.7, one round
    assert np.isinf(SecureAggregation().strength(100))
