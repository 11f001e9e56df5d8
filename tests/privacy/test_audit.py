"""Audits: never against an honest mechanism, almost always against a broken one."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from skfedcal.privacy import (
    CentralDP,
    DistributedDP,
    LocalDP,
    audit,
    audit_one_run,
    gdp_epsilon,
    gdp_mu,
)
from skfedcal.privacy.audits.errors import (
    Claim,
    Errors,
    combined_p_value,
    lower_bound,
    power,
    upper_bound,
)
from skfedcal.privacy.audits.one_run import one_run_p_value
from skfedcal.privacy.audits.two_worlds import count_errors, judge

MU, MU_OF_TWO = gdp_mu(1.0, 1e-5), gdp_mu(2.0, 1e-5)
GAUSSIAN = Claim(1.0, 1e-5, MU)
PURE = Claim(1.0)


# ---------------------------------------------------------------------- the test


def test_claimed_curves_by_hand():
    rates = np.array([0.1, 0.5])
    assert GAUSSIAN.curve(rates)[1] == pytest.approx(stats.norm.cdf(-MU))
    assert GAUSSIAN.curve(GAUSSIAN.curve(rates)) == pytest.approx(rates)
    e = math.e
    assert PURE.curve(rates) == pytest.approx([1 - 0.1 * e, 0.5 / e])
    assert Claim(1.0, 0.1).curve(rates) == pytest.approx([0.9 - 0.1 * e, 0.4 / e])


@pytest.mark.parametrize(("count", "n"), [(0, 10), (3, 10), (10, 10), (700, 1500)])
def test_upper_bound_is_that_of_clopper_and_pearson(count, n):
    expected = stats.binomtest(count, n).proportion_ci(0.98, "exact").high
    assert upper_bound(count, n, 0.01) == pytest.approx(expected)


@pytest.mark.parametrize("claim", [Claim(3.0, 1e-5, 1.5), PURE, Claim(1.0, 0.05)])
@pytest.mark.parametrize("rate", [0.001, 0.05, 0.2, 0.3085, 0.5, 0.9])
def test_p_value_is_valid_on_the_whole_curve(claim, rate):
    # By enumeration: two binomial counts with chances on the curve.
    n, miss = 10, float(claim.curve(np.array([rate]))[0])
    chance = np.outer(
        stats.binom.pmf(np.arange(n + 1), n, rate),
        stats.binom.pmf(np.arange(n + 1), n, miss),
    )
    values = np.array(
        [
            [Errors(a, b, n, n).p_value(claim) for b in range(n + 1)]
            for a in range(n + 1)
        ]
    )
    for alpha in (0.3, 0.05, 0.01):
        assert chance[values < alpha].sum() <= alpha


def test_lower_bound_is_where_the_p_value_is_alpha():
    errors = Errors(500, 480, 1500, 1500)
    for claim in (GAUSSIAN, PURE):
        bound = lower_bound([errors], claim, 0.01)
        assert errors.p_value(claim, bound) == pytest.approx(0.01, rel=1e-3)
        assert errors.p_value(claim, bound + 0.01) > 0.01
    assert lower_bound([Errors(750, 750, 1500, 1500)], GAUSSIAN, 0.01) == 0
    assert lower_bound([Errors(0, 0, 1500, 1500)], GAUSSIAN, 0.01) > 4


@pytest.mark.parametrize("claim", [GAUSSIAN, Claim(6.0, 1e-5, MU_OF_TWO), PURE])
@pytest.mark.parametrize("counts", [(500, 480), (660, 640), (5, 700), (0, 1500)])
def test_region_reaches_the_curve_unless_the_claim_is_refuted(claim, counts):
    errors = Errors(*counts, 1500, 1500)
    rates = np.linspace(0, 1, 20001)
    region = errors.region(rates, 0.01)
    refuted = errors.p_value(claim) < 0.01
    assert (region < claim.curve(rates)).all() == refuted
    a, b = errors.rates
    assert np.interp(a, rates, region) >= b


def rejection_rate(sample, claim, threshold, n_trials, n_runs=1500, alpha=0.01):
    """Share of audits that fail; `sample` draws scores without and with the canary."""
    caught = 0
    for _ in range(n_trials):
        absent, present = sample(n_runs)
        # The thresholds and the level of `audit_estimator`.
        n_pilot = n_runs // 10
        chosen = float(np.median(absent[:n_pilot]) + np.median(present[:n_pilot])) / 2
        errors = [
            replace(count_errors(absent, present, threshold), weight=0.9),
            replace(
                count_errors(absent[n_pilot:], present[n_pilot:], chosen), weight=0.1
            ),
        ]
        caught += combined_p_value(errors, claim) < 0.8 * alpha
    return caught / n_trials


def gaussian_worlds(mu, seed):
    rng = np.random.default_rng(seed)
    return lambda n: (rng.normal(size=n), rng.normal(size=n) + mu)


def laplace_worlds(eps, seed):
    rng = np.random.default_rng(seed)
    return lambda n: (rng.laplace(size=n), rng.laplace(size=n) + eps)


WORLDS = [
    pytest.param(gaussian_worlds, (MU, MU_OF_TWO), GAUSSIAN, MU / 2, id="mu-GDP"),
    pytest.param(laplace_worlds, (1.0, 2.0), PURE, 1.0, id="pure"),
]


@pytest.mark.parametrize(("worlds", "sizes", "claim", "threshold"), WORLDS)
def test_honest_mechanisms_pass_and_twice_the_eps_is_caught(
    worlds, sizes, claim, threshold
):
    # A rate of 1 % gives more than 9 of 60 with chance 5e-10, one of 95 % fewer than 45
    # with chance 3e-8.
    rates = [
        rejection_rate(worlds(size, seed), claim, threshold, 60)
        for seed, size in enumerate(sizes)
    ]
    assert rates[0] <= 9 / 60
    assert rates[1] >= 45 / 60


@pytest.mark.slow
@pytest.mark.parametrize(("worlds", "sizes", "claim", "threshold"), WORLDS)
def test_rates_of_the_specification(worlds, sizes, claim, threshold):
    # A rate of 1 % gives more than 29 of 1,000, and one of 95 % fewer than 912, with
    # chance 2e-7. The rates are 0.002 and 0.987 for Gaussian noise, 0.002 and 1 for
    # Laplace noise.
    rates = [
        rejection_rate(worlds(size, seed), claim, threshold, 1000)
        for seed, size in enumerate(sizes)
    ]
    assert rates[0] <= 29 / 1000
    assert rates[1] >= 912 / 1000


def test_power_tells_how_often_twice_the_eps_is_caught():
    long = power(GAUSSIAN, Errors(0, 0, 1500, 1500), 0.01)
    assert long >= 0.95
    assert power(GAUSSIAN, Errors(0, 0, 200, 200), 0.01) < 0.5
    assert power(PURE, Errors(0, 0, 1500, 1500), 0.01) >= 0.95


@pytest.mark.parametrize(("size", "sees"), [(1, True), (100, False)])
def test_power_without_a_score_falls_with_the_number_of_values(size, sees):
    rng = np.random.default_rng(0)
    noise = iter(rng.normal(0, 1 / MU_OF_TWO, size=(3000, size)))
    canary = np.eye(1, size)[0]
    result = audit(
        lambda rows: rows + next(noise), 0 * canary, canary, mu=MU, delta=1e-5
    )
    assert result.passed is not sees
    assert (result.power > 0.9) is sees


def test_power_at_a_single_point_is_not_known():
    assert math.isnan(power(Claim(1.0, 1e-5), Errors(0, 0, 1500, 1500), 0.01))


def test_runs_that_chose_the_direction_are_not_counted():
    # Among a thousand values the first runs are told apart by the direction that they
    # gave, however honest the noise is: a tenth of the runs without an error.
    rng = np.random.default_rng(0)
    zero = np.zeros(1000)
    result = audit(
        lambda rows: rows + rng.normal(size=1000), zero, zero, mu=0.01, threshold=0.0
    )
    assert result.passed
    assert {error.n_absent for error in result.errors} == {1350}


def test_releases_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="finite numbers"):
        audit(lambda rows: math.nan, 0.0, 1.0, mu=1.0)


def test_a_shifted_release_is_caught_by_the_threshold_of_the_first_runs():
    # Scores that are far from where an honest mechanism has them.
    rng = np.random.default_rng(0)
    absent, present = rng.normal(size=(2, 500)) - 1e6
    errors, check, _ = judge(absent, present + 2, GAUSSIAN, 1e-6, (0.0, "fixed"))
    assert errors[0].rates == (0.0, 1.0)
    assert not check.passed
    assert judge(absent, present, GAUSSIAN, 1e-6, (0.0, "fixed"))[1].passed


# ------------------------------------------------------------------------- audit


def noisy_sum(sd, seed=0):
    rng = np.random.default_rng(seed)
    return lambda rows: np.sum(rows, axis=0) + rng.normal(0, sd, size=3)


ROWS = np.eye(3) * 0.5
CANARY = np.vstack([ROWS, [[0.6, 0.0, 0.8]]])


@pytest.mark.parametrize(("factor", "passed"), [(1.0, True), (0.25, False)])
def test_audit_of_a_function(factor, passed):
    release = noisy_sum(factor / MU)
    result = audit(release, ROWS, CANARY, mu=MU, delta=1e-5, n_runs=1500, alpha=1e-6)
    assert result.passed is passed
    assert result.claim.eps == pytest.approx(1.0)
    assert (result.lower > MU) is not passed
    assert result.eps_lower == pytest.approx(
        gdp_epsilon(result.lower, 1e-5) if result.lower else 0.0
    )


@pytest.mark.parametrize(("scale", "passed"), [(1.0, True), (0.4, False)])
def test_audit_of_pure_eps_with_a_score_of_ones_own(scale, passed):
    rng = np.random.default_rng(0)
    result = audit(
        lambda value: {"sum": value + rng.laplace(0, scale)},
        0.0,
        1.0,
        eps=1.0,
        score=lambda out: out["sum"],
        threshold=1.0,
        alpha=1e-6,
    )
    assert result.passed is passed
    assert result.claim.mu is None
    assert result.errors[0].threshold == "as given"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no claim to audit"),
        ({"mu": -1.0}, "mu=-1.0 is out of range"),
        ({"eps": math.inf}, "eps=inf is out of range"),
        ({"eps": 1.0, "delta": 1.0}, "delta=1.0"),
        ({"eps": 1.0, "n_runs": 5}, "n_runs=5"),
        ({"eps": 1.0, "alpha": 0.0}, "alpha=0.0"),
    ],
)
def test_wrong_claims_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        audit(noisy_sum(1.0), ROWS, CANARY, **options)


def test_result_says_what_was_found():
    rng = np.random.default_rng(0)
    result = audit(lambda x: x + rng.normal(0, 0.1), 0.0, 1.0, mu=MU, delta=1e-5)
    text = repr(result)
    assert text.startswith("AuditResult(FAILED; claimed eps=1, delta=1e-05, mu=0.2681")
    assert "1500 runs per side" in text
    assert "two worlds  FAIL" in text
    assert [check.name for check in result.failures] == ["two worlds"]
    data = result.to_dict()
    assert data["passed"] is False
    assert data["checks"][0]["allowed"] == "mu <= 0.2681"
    assert 0.95 <= data["power"] <= 1


# ----------------------------------------------------------------------- one run


@pytest.mark.parametrize("norm", ["l2", "l1"])
@pytest.mark.parametrize(
    ("model", "n_canaries"),
    [(CentralDP(1.0), 2560), (DistributedDP(1.0, mode="faithful"), 200)],
)
def test_one_run_with_many_canaries_passes(norm, model, n_canaries):
    result = audit_one_run(
        model, n_canaries=n_canaries, norm=norm, alpha=1e-6, random_state=0
    )
    assert result.passed, result
    assert (result.claim.mu is None) is (norm == "l1")
    found = {check.name for check in result.checks}
    assert found == {
        "bound of a client",
        "lattice",
        "many canaries",
        "any mechanism",
        "noise scale",
    }
    assert "one release" in repr(result)


def test_one_run_knows_how_much_of_the_claim_a_canary_shows():
    assert audit_one_run(CentralDP(1.0), random_state=0).power > 0.9
    replaced = DistributedDP(1.0, adjacency="replace")
    assert audit_one_run(replaced, random_state=0).power < 0.1


@pytest.mark.parametrize("eps", [0.5, 2.0])
@pytest.mark.parametrize("n_right", [0, 5, 9, 12])
def test_one_run_bound_is_attained_by_randomised_response(eps, n_right):
    # Coins that are told truly with chance e^eps / (1 + e^eps) are guessed so often.
    keep = math.exp(eps) / (1 + math.exp(eps))
    ways = [
        math.comb(12, k) * keep**k * (1 - keep) ** (12 - k) for k in range(n_right, 13)
    ]
    assert one_run_p_value(12, 12, n_right, eps, 0.0) == pytest.approx(sum(ways))


def test_one_run_bound_holds_for_a_mechanism_that_fails_with_chance_delta():
    # All coins are told with chance delta, which is within (0, delta); else nothing.
    delta, n = 0.01, 20
    for n_right in range(n + 1):
        beyond = sum(math.comb(n, k) for k in range(n_right, n + 1)) / 2**n
        true = delta + (1 - delta) * beyond
        assert one_run_p_value(n, n, n_right, 0.0, delta) >= min(1.0, true) - 1e-12


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (CentralDP(1.0, unit="example"), {}, ValueError, "does not protect clients"),
        (LocalDP(1.0), {}, ValueError, "clients report"),
        (
            CentralDP(1.0),
            {"norm": "l3"},
            ValueError,
            "norm must be one of 'l2', 'l1'; got 'l3'",
        ),
        (CentralDP(1.0), {"n_canaries": 3}, ValueError, "n_canaries=3"),
        ("central", {}, TypeError, "not a privacy model"),
    ],
)
def test_one_run_names_what_it_cannot_audit(model, options, error, message):
    with pytest.raises(error, match=message):
        audit_one_run(model, **options)
