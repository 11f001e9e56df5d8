"""Mutants of the mechanism that an audit must catch, and their honest twins."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from skfedcal.privacy import audit, audit_one_run, gdp_mu


def load_script():
    file = Path(__file__).with_name("sabotage.py")
    spec = importlib.util.spec_from_file_location("sabotage", file)
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script  # dataclasses look their module up
    spec.loader.exec_module(script)
    return script


script = load_script()
each_sabotage = pytest.mark.parametrize(
    "sabotage", script.SABOTAGES, ids=lambda sabotage: sabotage.name
)


@each_sabotage
def test_sabotage_is_caught(sabotage):
    failed = {check.name for check in sabotage.audit().failures}
    assert set(sabotage.caught_by) <= failed


@each_sabotage
def test_audit_passes_without_the_sabotage(sabotage):
    assert sabotage.audit(broken=False).passed


@pytest.mark.parametrize("flaw", [None, script.HalfTheNoise, script.FloatNoise])
def test_one_run_catches_it_too(flaw):
    model = script.SabotagedDP(1.0, delta=1e-5, flaw=flaw)
    result = audit_one_run(model, alpha=1e-6, random_state=0)
    failed = {check.name for check in result.failures}
    expected = {
        None: set(),
        script.HalfTheNoise: {"noise scale"},
        script.FloatNoise: {"lattice"},
    }
    assert expected[flaw] <= failed
    assert result.passed is (flaw is None)


@pytest.mark.parametrize("at_server", [False, True])
def test_clipping_of_the_sum_shows_where_others_fill_it(at_server):
    # Twenty clients at +1 and one far on the other side: a sum that is clipped as a
    # whole moves from +1 to -1, by twice the bound that the noise is made for.
    mu = gdp_mu(1.0, 1e-5)
    rng = np.random.default_rng(0)

    def release(values):
        if at_server:
            total = np.clip(np.sum(values), -1, 1)
        else:
            total = np.clip(values, -1, 1).sum()
        return total + rng.normal(0, 1 / mu)

    others = [1.0] * 20
    result = audit(release, others, [*others, -1e6], mu=mu, delta=1e-5, alpha=1e-4)
    assert result.passed is not at_server


# Sabotages that a distinguisher sees in the releases alone, and the runs it needs.
FROM_OUTSIDE = {
    "no clipping": 60,
    "noise divided by the clients": 60,
    "half the noise": 700,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FROM_OUTSIDE)
def test_distinguisher_alone_catches_it(name):
    (sabotage,) = (s for s in script.SABOTAGES if s.name == name)
    result = sabotage.audit(n_runs=FROM_OUTSIDE[name], alpha=0.01)
    assert "two worlds" in {check.name for check in result.failures}
    assert result.lower > result.claim.size
