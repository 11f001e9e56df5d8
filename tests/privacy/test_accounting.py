"""Conversions, calibration and composition against exact and independent values."""

import dataclasses
import json
import math
import sys
import warnings

import mpmath as mp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.optimize import brentq, minimize

from skfedcal.exceptions import PrivacyWarning
from skfedcal.privacy import accounting
from skfedcal.privacy.accounting import (
    calibrate_noise,
    compose_epsilon,
    gdp_delta,
    gdp_epsilon,
    gdp_mu,
    zcdp_delta,
    zcdp_epsilon,
    zcdp_rho,
)
from skfedcal.privacy.events import (
    GaussianEvent,
    PureEvent,
    SampledGaussianEvent,
    event_from_dict,
)
from skfedcal.privacy.mechanisms import split_noise
from skfedcal.privacy.samplers import GAUSSIAN_SIGMA, lattice_slack, table_slack

DELTA = 1e-5
CORNERS = [
    (eps, delta)
    for eps in (1e-3, 0.02, 0.5, 1.0, 3.0, 8.0, 50.0)
    for delta in (1e-12, 1e-5, 0.1)
]


@pytest.fixture
def without_dp_accounting(monkeypatch):
    for name in ("dp_accounting", "dp_accounting.pld"):
        monkeypatch.setitem(sys.modules, name, None)


def exact_gdp_delta(mu, eps):
    with mp.workdps(60):
        mu, eps = mp.mpf(mu), mp.mpf(eps)

        def upper(x):
            return mp.erfc(x / mp.sqrt(2)) / 2

        return upper(eps / mu - mu / 2) - mp.exp(eps) * upper(eps / mu + mu / 2)


def relative(value, exact):
    return abs(float(mp.mpf(value) / exact - 1))


# Conversions


@pytest.mark.parametrize(("eps", "delta"), CORNERS)
def test_gdp_conversions_are_exact(eps, delta):
    mu = gdp_mu(eps, delta)
    with mp.workdps(60):
        exact_mu = mp.findroot(
            lambda m: exact_gdp_delta(m, eps) / delta - 1, mp.mpf(mu)
        )
    assert relative(mu, exact_mu) < 1e-12
    assert relative(gdp_delta(mu, eps), exact_gdp_delta(mu, eps)) < 1e-12
    assert relative(gdp_epsilon(mu, delta), mp.mpf(eps)) < 1e-12


@pytest.mark.parametrize(
    ("mu", "eps"),
    [
        (1e-8, 0),
        (1e-6, 1e-8),
        (0.499999, 0.1),
        (0.5, 0.1),
        (3, 0),
        (100, 3),
        (90, 4500),
    ],
)
def test_gdp_delta_has_no_weak_spot(mu, eps):
    assert relative(gdp_delta(mu, eps), exact_gdp_delta(mu, eps)) < 1e-12


def test_gdp_limits():
    assert gdp_delta(0, 1) == gdp_epsilon(0, DELTA) == gdp_delta(1, math.inf) == 0
    assert gdp_delta(math.inf, 1) == 1 and gdp_epsilon(math.inf, DELTA) == math.inf
    assert gdp_delta(1e-3, 1) == 0 and gdp_epsilon(1e-9, DELTA) == 0
    assert gdp_mu(0, 0.3) == pytest.approx(2 * math.sqrt(2) * float(mp.erfinv(0.3)))


@pytest.mark.parametrize(("eps", "delta"), CORNERS)
def test_zcdp_conversions_invert_each_other_and_bound_the_gaussian(eps, delta):
    rho = zcdp_rho(eps, delta)
    assert zcdp_delta(rho, eps) == pytest.approx(delta, rel=1e-10)
    assert zcdp_epsilon(rho, delta) == pytest.approx(eps, rel=1e-10)
    assert gdp_delta(math.sqrt(2 * rho), eps) < delta


@pytest.mark.parametrize(("rho", "eps"), [(0.03, 1), (0.5, 3), (2, 0.1), (1e-6, 1e-3)])
def test_zcdp_delta_is_the_least_over_orders(rho, eps):
    with mp.workdps(40):
        orders = [1 + mp.mpf(10) ** (mp.mpf(i) / 200) for i in range(-1000, 1400)]
        bounds = [
            mp.exp((a - 1) * (a * rho - eps)) * (1 - 1 / a) ** a / (a - 1)
            for a in orders
        ]
        grid = float(min(1, *bounds))
    assert grid * (1 - 1e-3) < zcdp_delta(rho, eps) <= grid * (1 + 1e-12)


def test_zcdp_limits():
    assert zcdp_delta(0, 1) == zcdp_epsilon(0, DELTA) == 0
    assert zcdp_delta(math.inf, 1) == 1 and zcdp_epsilon(math.inf, DELTA) == math.inf
    assert zcdp_delta(1000, 1) == 1
    with pytest.raises(ValueError, match="eps=0"):
        zcdp_rho(0, DELTA)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (gdp_delta, (-1, 1), "mu=-1"),
        (gdp_delta, (1, math.nan), "eps=nan"),
        (gdp_epsilon, (1, 0), "delta=0"),
        (gdp_mu, (math.inf, 0.1), "eps=inf"),
        (gdp_mu, (1, 1), "delta=1"),
        (zcdp_delta, (-0.1, 1), "rho=-0.1"),
        (zcdp_rho, (1, -1), "delta=-1"),
    ],
)
def test_conversions_refuse_values_out_of_range(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)


# Slack of the lattice


def log_ratio(x, s):
    """Return log r(x)/p(x) for the rounded and the discrete Gaussian."""
    with mp.workdps(50):
        s = mp.mpf(s)

        def excess(t):
            return mp.expm1(-(t * t + 2 * x * t) / (2 * s * s))

        # E_p[h] = 1 up to exp(-2 pi^2 s^2), by Poisson summation.
        return mp.log1p(mp.quad(excess, [-0.5, 0, 0.5]))


@pytest.mark.parametrize("s", [512.0, GAUSSIAN_SIGMA])
def test_log_ratio_of_the_lattice_laws_is_within_the_bound(s):
    for scales in (0, 0.5, 1, 2, 5, 10, 14):
        size = abs(log_ratio(round(scales * s), s))
        assert size <= 9 / s**2
        leading = abs(scales**2 - 1) / 24 / s**2
        assert float(size) == pytest.approx(leading, abs=0.02 / s**2)


def test_variance_of_the_log_ratio_is_far_below_the_bound():
    # chi^2(r||p) = 1/(288 s^4) to leading order.
    x = np.arange(-8000, 8001.0)
    p = np.exp(-(x**2) / (2 * 512**2))
    p /= p.sum()
    ratio = np.array([float(log_ratio(v, 512.0)) for v in x[8000::100]])
    chi2 = np.interp(np.abs(x), x[8000::100], ratio) ** 2 @ p
    assert chi2 == pytest.approx(1 / (288 * 512**4), rel=0.02)
    eta = lattice_slack(1000, 1).eps / 2
    assert eta > 20 * math.sqrt(1000 * chi2)


@pytest.mark.parametrize(("shift", "eps"), [(137, 1.0), (512, 0.1), (900, 5.0)])
def test_slack_covers_the_discrete_gaussian_in_one_dimension(shift, eps):
    s = 512.0
    x = np.arange(-8000, 8001.0)
    p = np.exp(-(x**2) / (2 * s**2))
    p /= p.sum()
    moved = (
        np.exp(-((x - shift) ** 2) / (2 * s**2)) / np.exp(-(x**2) / (2 * s**2)).sum()
    )
    slack = lattice_slack(1, 1)
    discrete = np.maximum(moved - math.exp(eps + slack.eps) * p, 0).sum()
    bound = math.exp(slack.eps / 2) * gdp_delta(shift / s, eps) + slack.delta
    assert discrete <= bound
    assert discrete == pytest.approx(bound, rel=0.02)


def test_slack_grows_with_values_and_falls_with_shares():
    assert lattice_slack(0) == (0, 0)
    few, many = lattice_slack(12 * 2560), lattice_slack(4 * 12 * 2560)
    assert few.eps < 1e-5 and few.delta < 1e-11
    assert many.eps == pytest.approx(2 * few.eps, rel=1e-3)
    assert few.delta == table_slack(12 * 2560)
    shares = lattice_slack(12 * 2560, 50)
    assert shares.eps == pytest.approx(few.eps * (128**2 + 1) / 50, rel=1e-3)
    assert shares.delta == pytest.approx(50 * few.delta)
    with pytest.raises(ValueError, match="n_shares=0"):
        lattice_slack(1, 0)
    for bad in (-1, 1.5):
        with pytest.raises(ValueError, match="n_values="):
            lattice_slack(bad)


# Calibration


@pytest.mark.parametrize(
    ("n_rounds", "gdp", "zcdp", "pld"),
    [
        (1, 3.7306, 4.0451, 1.2589),
        (12, 12.923, 14.013, 1.8191),
        (30, 20.434, 22.156, 2.4096),
    ],
)
def test_noise_of_the_usual_settings(n_rounds, gdp, zcdp, pld):
    exact = calibrate_noise(1.0, DELTA, n_rounds=n_rounds)
    assert exact.accountant == "gdp" and exact.delta_slack == exact.eps_slack == 0
    assert exact.noise_multiplier == pytest.approx(gdp, rel=5e-5)
    assert exact.mu == pytest.approx(math.sqrt(n_rounds) / exact.noise_multiplier)
    paper = calibrate_noise(1.0, DELTA, n_rounds=n_rounds, accountant="zcdp")
    assert paper.noise_multiplier == pytest.approx(zcdp, rel=5e-5)
    sampled = calibrate_noise(1.0, DELTA, n_rounds=n_rounds, sampling_rate=0.1)
    assert sampled.accountant == "pld" and sampled.mu is None
    assert sampled.noise_multiplier == pytest.approx(pld, rel=5e-5)
    assert "independent" in sampled.assumptions[0]


def their_epsilon(plan, accountant):
    da = pytest.importorskip("dp_accounting")
    event = da.GaussianDpEvent(plan.noise_multiplier)
    if plan.sampling_rate < 1:
        event = da.PoissonSampledDpEvent(plan.sampling_rate, event)
    event = da.SelfComposedDpEvent(event, plan.n_rounds)
    if accountant == "rdp":
        ledger = da.rdp.RdpAccountant(list(range(2, 64)))
    else:
        ledger = da.pld.PLDAccountant(value_discretization_interval=2e-4)
    return ledger.compose(event).get_epsilon(plan.delta)


@pytest.mark.parametrize(
    ("eps", "delta", "n_rounds", "rate"),
    [
        (1.0, 1e-5, 12, 1.0),
        (1.0, 1e-5, 12, 0.1),
        (4.0, 1e-6, 3, 0.5),
        (0.3, 1e-6, 40, 0.05),
    ],
)
def test_plan_agrees_with_the_accountants_of_dp_accounting(eps, delta, n_rounds, rate):
    plan = calibrate_noise(eps, delta, n_rounds=n_rounds, sampling_rate=rate)
    assert their_epsilon(plan, "pld") == pytest.approx(eps, rel=5e-4)
    assert eps * (1 - 1e-3) < their_epsilon(plan, "rdp") < 1.5 * eps


@pytest.mark.parametrize("rate", [1.0, 0.2])
@pytest.mark.parametrize("eps", [0.05, 1.0, 8.0])
@pytest.mark.parametrize("n_values", [0, 2560])
def test_plan_keeps_its_budget_when_it_is_booked(eps, rate, n_values):
    plan = calibrate_noise(
        eps, DELTA, n_rounds=5, sampling_rate=rate, n_values=n_values
    )
    spent = compose_epsilon([plan.to_event()], DELTA)
    assert eps * (1 - 1e-4) < spent <= eps


def test_zcdp_plan_keeps_its_budget_with_room():
    plan = calibrate_noise(1.0, DELTA, n_rounds=12, accountant="zcdp", n_values=10)
    assert compose_epsilon([plan.to_event()], DELTA) == pytest.approx(0.915, abs=1e-3)


def test_values_are_paid_for_over_all_rounds():
    plan = calibrate_noise(1.0, DELTA, n_rounds=12, n_values=2560)
    assert (plan.eps_slack, plan.delta_slack) == lattice_slack(12 * 2560)
    bare = calibrate_noise(1.0, DELTA, n_rounds=12)
    assert 1 < plan.noise_multiplier / bare.noise_multiplier < 1 + 1e-4
    with pytest.raises(ValueError, match="fewer values"):
        calibrate_noise(1e-6, DELTA, n_values=10**6)
    shared = calibrate_noise(1.0, DELTA, n_rounds=12, n_values=2560, n_shares=50)
    assert (shared.eps_slack, shared.delta_slack) == lattice_slack(12 * 2560, 50)
    assert compose_epsilon([shared.to_event()], DELTA) <= 1
    assert "eps=50" in calibrate_noise(50, DELTA, n_values=1).assumptions[0]


def test_pld_without_sampling_is_gdp():
    exact = calibrate_noise(1.0, DELTA, n_rounds=3)
    plan = calibrate_noise(1.0, DELTA, n_rounds=3, accountant="pld")
    assert plan.accountant == "pld"
    assert plan.noise_multiplier == exact.noise_multiplier and plan.mu == exact.mu


def test_sampling_is_not_credited_by_zcdp_and_refused_by_gdp():
    full = calibrate_noise(1.0, DELTA, accountant="zcdp")
    sampled = calibrate_noise(1.0, DELTA, accountant="zcdp", sampling_rate=0.1)
    assert sampled.noise_multiplier == full.noise_multiplier
    assert sampled.assumptions == ("sampling rate 0.1 is charged as 1",)
    with pytest.raises(ValueError, match="accountant='gdp' needs sampling_rate=1"):
        calibrate_noise(1.0, DELTA, accountant="gdp", sampling_rate=0.1)


def test_missing_dp_accounting_means_more_noise_and_a_warning(without_dp_accounting):
    with pytest.warns(PrivacyWarning, match=r'pip install "skfedcal\[accounting\]"'):
        plan = calibrate_noise(1.0, DELTA, sampling_rate=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        full = calibrate_noise(1.0, DELTA)
    assert plan.accountant == "gdp"
    assert plan.noise_multiplier == full.noise_multiplier
    assert plan.assumptions == ("sampling rate 0.1 is charged as 1",)
    with pytest.raises(ImportError, match=r'pip install "skfedcal\[accounting\]"'):
        calibrate_noise(1.0, DELTA, sampling_rate=0.1, accountant="pld")


@pytest.mark.parametrize(
    ("eps", "delta", "rate", "n_rounds"),
    [
        (1000.0, 1e-5, 0.5, 1),  # less noise than PLD grids can hold
        (1.0, 1e-3, 1e-4, 1),  # sampling alone is enough
        (1.0, 1e-5, 0.9999, 2),  # next to nothing to gain
    ],
)
def test_pld_at_its_edges_is_still_safe(eps, delta, rate, n_rounds):
    plan = calibrate_noise(eps, delta, sampling_rate=rate, n_rounds=n_rounds)
    full = calibrate_noise(eps, delta, n_rounds=n_rounds)
    assert 0 < plan.noise_multiplier <= full.noise_multiplier * (1 + 1e-9)
    assert compose_epsilon([plan.to_event()], delta) <= eps


def test_pld_search_needs_few_fine_evaluations(monkeypatch):
    grids = []
    true_epsilon = accounting._epsilon

    def counting(events, delta, grid):
        grids.append(grid / accounting._grid(events))
        return true_epsilon(events, delta, grid)

    monkeypatch.setattr(accounting, "_epsilon", counting)
    calibrate_noise(1.5, 1e-5, n_rounds=7, sampling_rate=0.15)
    assert sum(grid < 2 for grid in grids) <= 4
    n_calls = len(grids)
    calibrate_noise(1.5, 1e-5, n_rounds=7, sampling_rate=0.15)
    assert len(grids) == n_calls


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eps": 0}, "eps=0"),
        ({"eps": math.inf}, "eps=inf"),
        ({"delta": 0}, "delta=0"),
        ({"delta": 1.0}, "delta=1.0"),
        ({"n_rounds": 0}, "n_rounds=0"),
        ({"n_rounds": 1.5}, "n_rounds=1.5"),
        ({"sampling_rate": 0}, "sampling_rate=0"),
        ({"sampling_rate": 1.1}, "sampling_rate=1.1"),
        ({"n_values": -1}, "n_values=-1"),
        ({"accountant": "clt"}, "accountant must be one of .* got 'clt'"),
    ],
)
def test_calibrate_refuses_values_out_of_range(changes, message):
    arguments = {"eps": 1.0, "delta": DELTA} | changes
    with pytest.raises(ValueError, match=message):
        calibrate_noise(**arguments)


# Split noise


@pytest.mark.parametrize(
    ("clips", "weights"),
    [([10, 50], None), ([1, 2, 3], [5, 1, 0.2]), ([0.5], [3]), ([1e-3, 1e3], None)],
)
def test_split_noise_is_the_best_split(clips, weights):
    clips = np.asarray(clips, dtype=float)
    factors = split_noise(clips, weights)
    weights = np.ones_like(clips) if weights is None else np.asarray(weights)
    assert np.sum((clips / factors) ** 2) == pytest.approx(1)

    def cost(log_shares):  # shares of mu^2, which add to one
        shares = np.exp(log_shares - np.logaddexp.reduce(log_shares))
        return np.log(np.sum(weights * clips**2 / shares))

    best = minimize(cost, np.zeros_like(clips), options={"gtol": 1e-10})
    assert np.log(np.sum(weights * factors**2)) <= best.fun + 1e-9


def test_split_noise_of_the_binning_query():
    mu = gdp_mu(1.0, DELTA)
    assert_allclose(split_noise([10, 50]) / mu, [91.4, 204.3], rtol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 0],), "clips="),
        (([[1.0]],), "clips="),
        (([1, 2], [1, -1]), "weights="),
        (([1, 2], [1]), "2 clips but 1 weights"),
    ],
)
def test_split_noise_refuses_bad_blocks(arguments, message):
    with pytest.raises(ValueError, match=message):
        split_noise(*arguments)


# Events and composition

EVENTS = [
    GaussianEvent(0.25, eps_slack=1e-6, delta_slack=1e-12),
    PureEvent(0.1),
    SampledGaussianEvent(1.8, 0.1, 12, delta_slack=1e-9),
]


@pytest.mark.parametrize("event", EVENTS)
def test_events_survive_json(event):
    record = json.loads(json.dumps(event.to_dict()))
    assert event_from_dict(record) == event
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.delta_slack = 0.0


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "quantum", "mu": 1.0},
        {"mu": 1.0},
        {"kind": ["gaussian"]},
        {"kind": "gaussian", "eps_slack": 0.0, "delta_slack": 0.0},
        GaussianEvent(1.0).to_dict() | {"refund": 1},
        GaussianEvent(1.0).to_dict() | {"mu": -1.0},
    ],
)
def test_records_that_are_not_understood_are_refused(record):
    with pytest.raises(ValueError):
        event_from_dict(record)


@pytest.mark.parametrize(
    ("cls", "arguments"),
    [
        (GaussianEvent, (math.inf,)),
        (PureEvent, (math.nan,)),
        (SampledGaussianEvent, (0.0, 0.5)),
        (SampledGaussianEvent, (1.0, 0.0)),
        (SampledGaussianEvent, (1.0, 0.5, 0)),
    ],
)
def test_events_refuse_values_out_of_range(cls, arguments):
    with pytest.raises(ValueError):
        cls(*arguments)
    with pytest.raises(ValueError, match="delta_slack"):
        GaussianEvent(1.0, delta_slack=-1e-9)


def test_gaussian_events_compose_exactly():
    events = [GaussianEvent(0.3), GaussianEvent(0.4), SampledGaussianEvent(2.0, 1.0, 3)]
    assert compose_epsilon(events, DELTA) == gdp_epsilon(1.0, DELTA)


def test_nothing_costs_nothing():
    assert compose_epsilon([], DELTA) == 0
    assert compose_epsilon([GaussianEvent(0.0), PureEvent(0.0)], DELTA) == 0


def test_slack_is_paid_from_delta_and_eps():
    event = GaussianEvent(0.3, eps_slack=1e-3, delta_slack=4e-6)
    left = (DELTA - 8e-6) * math.exp(-1e-3)
    expected = gdp_epsilon(math.hypot(0.3, 0.3), left) + 2e-3
    assert compose_epsilon([event, event], DELTA) == pytest.approx(expected, rel=1e-12)
    assert compose_epsilon([event] * 3, DELTA) == math.inf


def test_single_pure_event_costs_its_eps(without_dp_accounting):
    assert compose_epsilon([PureEvent(0.7)], DELTA) == 0.7
    assert compose_epsilon([PureEvent(0.1)] * 3, DELTA) == pytest.approx(0.3)


def test_many_pure_events_are_cheaper_than_their_sum(without_dp_accounting):
    events = [PureEvent(0.01)] * 5000
    rho = 5000 * 0.01**2 / 2
    assert compose_epsilon(events, DELTA) == pytest.approx(zcdp_epsilon(rho, DELTA))


def test_mixed_events_fall_back_to_the_least_valid_bound(without_dp_accounting):
    one = [GaussianEvent(0.3), PureEvent(0.05)]
    assert compose_epsilon(one, DELTA) == gdp_epsilon(0.3, DELTA) + 0.05
    many = [GaussianEvent(0.3), *[PureEvent(0.3)] * 30]
    rho = (0.3**2 + 30 * 0.3**2) / 2
    assert compose_epsilon(many, DELTA) == zcdp_epsilon(rho, DELTA)
    sampled = [SampledGaussianEvent(2.0, 0.1, 4)]
    assert compose_epsilon(sampled, DELTA) == gdp_epsilon(1.0, DELTA)


def test_pure_events_compose_like_randomised_response():
    pytest.importorskip("dp_accounting")
    # Randomised response is the worst mechanism of its eps: 12 answers are binomial.
    answers = np.arange(13)
    keep = 1 / (1 + math.exp(-0.1))
    p, q = (stats.binom(12, chance).pmf(answers) for chance in (keep, 1 - keep))
    exact = brentq(lambda eps: np.maximum(p - np.exp(eps) * q, 0).sum() - DELTA, 0, 2)
    assert compose_epsilon([PureEvent(0.1)] * 12, DELTA) == pytest.approx(exact, 2e-3)


def test_pld_is_the_tightest_bound_of_mixed_events(monkeypatch):
    da = pytest.importorskip("dp_accounting")
    events = [GaussianEvent(0.2), SampledGaussianEvent(2.0, 0.1, 5)] * 2
    tight = compose_epsilon(events, DELTA)
    ledger = da.pld.PLDAccountant()
    ledger.compose(da.GaussianDpEvent(5.0), 2)
    ledger.compose(da.PoissonSampledDpEvent(0.1, da.GaussianDpEvent(2.0)), 10)
    assert tight == pytest.approx(ledger.get_epsilon(DELTA), rel=1e-4)
    events += [PureEvent(0.1)] * 12
    tighter = compose_epsilon(events, DELTA)
    assert tight < tighter < tight + 1.2
    for name in ("dp_accounting", "dp_accounting.pld"):
        monkeypatch.setitem(sys.modules, name, None)
    assert tighter < compose_epsilon(events, DELTA)


def test_compose_refuses_a_bad_delta():
    for delta in (0, 1, -1e-9, math.nan):
        with pytest.raises(ValueError, match="delta="):
            compose_epsilon([GaussianEvent(1.0)], delta)


def test_old_name_of_calibrate_noise():
    """`calibrate` gives the same plan and warns until it is removed in 0.2."""
    given = {"n_rounds": 3, "n_values": 4, "n_shares": 5}
    text = "removed in 0.2; use skfedcal.privacy.calibrate_noise"
    with pytest.warns(DeprecationWarning, match=text) as found:
        plan = accounting.calibrate(1.0, DELTA, **given)
    assert plan == calibrate_noise(1.0, DELTA, **given)
    assert found[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=text):
        plan = accounting.calibrate(1.0, DELTA, sampling_rate=0.5, accountant="zcdp")
    assert plan == calibrate_noise(1.0, DELTA, sampling_rate=0.5, accountant="zcdp")
