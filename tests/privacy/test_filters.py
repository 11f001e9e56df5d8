"""Privacy filters: what a ledger charges is proved for releases chosen one by one."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from skfedcal.exceptions import BudgetExceededError
from skfedcal.privacy import (
    GaussianEvent,
    PrivacyLedger,
    PureEvent,
    SampledGaussianEvent,
    calibrate_noise,
    compose_epsilon,
    gdp_delta,
    gdp_epsilon,
    zcdp_rho,
)
from skfedcal.privacy.filters import (
    pure_mu,
    pure_renyi,
    renyi_epsilon,
    renyi_order,
    sampled_renyi,
)
from skfedcal.privacy.ledger_file import Account, canonical, digest
from skfedcal.privacy.site_ledger import SiteLedger, gaussian_epsilon, site_epsilon

DELTA = 1e-5
ORDERS = [1.5, 2.0, 2.5, 7.0, 20.3]


def account(events):
    out = Account()
    for event in events:
        out.add(event)
    return out


def charge(events, eps, delta=DELTA):
    return account(events).epsilon(delta, eps)


# ------------------------------------------------------------------ curves, one by one


@pytest.mark.parametrize("eps", [1e-6, 0.05, 1.0, 8.0])
@pytest.mark.parametrize("order", ORDERS)
def test_renyi_of_a_pure_eps_is_that_of_randomised_response(eps, order):
    p = 1 / (1 + math.exp(-eps))
    one = p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)
    right = math.log(one) / (order - 1)
    assert pure_renyi(eps, order) >= right - 1e-12
    assert pure_renyi(eps, order) == pytest.approx(right, rel=1e-6, abs=1e-10)
    assert pure_renyi(eps, order) <= min(eps, order * eps**2 / 2)


@pytest.mark.parametrize("eps", [1e-5, 0.01, 0.5, 3.0, 20.0])
def test_a_pure_eps_is_gdp_with_its_mu_and_no_less(eps):
    mu = pure_mu(eps)
    alphas = np.concatenate([np.linspace(1e-9, 1, 4001), [1 / (1 + math.exp(eps))]])
    gaussian = ndtr(ndtri(1 - alphas) - mu)
    pure = np.maximum(0, 1 - math.exp(eps) * alphas)
    pure = np.maximum(pure, math.exp(-eps) * (1 - alphas))
    assert (gaussian <= pure + 1e-12).all()
    # They touch at the middle, so that no smaller mu would do.
    assert gaussian[-1] == pytest.approx(pure[-1], rel=1e-4)


@pytest.mark.parametrize("order", [2, 3, 8, 19, 64])
@pytest.mark.parametrize(("z", "rate"), [(0.8, 0.01), (1.0, 0.3), (4.0, 0.1), (2, 1.0)])
def test_renyi_of_sampled_rounds_is_that_of_dp_accounting(z, rate, order):
    pytest.importorskip("dp_accounting")
    import dp_accounting as dpa
    from dp_accounting.rdp import RdpAccountant

    found = RdpAccountant([order])
    event = dpa.GaussianDpEvent(z)
    event = event if rate == 1 else dpa.PoissonSampledDpEvent(rate, event)
    right = found.compose(event)._rdp[0]
    mine = sampled_renyi(z, rate, float(order))
    assert right * (1 - 1e-12) <= mine <= right * (1 + 1e-9) + 2e-12


@pytest.mark.parametrize("order", [1.3, 2.5, 7.7])
def test_renyi_between_whole_orders_is_bounded_from_above(order):
    z, rate = 1.3, 0.2

    def density(x):  # of the mixture to the order, over that without the client
        ratio = 1 - rate + rate * math.exp((2 * x - 1) / (2 * z * z))
        return ratio**order * norm.pdf(x, scale=z)

    right = math.log(quad(density, -40, 60, limit=400)[0]) / (order - 1)
    found = sampled_renyi(z, rate, order)
    assert right * (1 - 1e-9) <= found <= 2 * right


@pytest.mark.parametrize(("eps", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-3)])
def test_the_order_of_a_budget_admits_its_largest_zcdp_parameter(eps, delta):
    order = renyi_order(eps, delta)
    rho = zcdp_rho(eps, delta)  # the best over all orders, by another route
    assert renyi_epsilon(order * rho, order, delta) == pytest.approx(eps, rel=1e-6)


def test_the_conversion_is_that_of_dp_accounting():
    pytest.importorskip("dp_accounting")
    import dp_accounting as dpa
    from dp_accounting.rdp import RdpAccountant

    order = 17
    one = RdpAccountant([order]).compose(dpa.GaussianDpEvent(5.0), 12)
    found = renyi_epsilon(12 * order / 50, order, DELTA)
    assert found == pytest.approx(one.get_epsilon(DELTA), rel=1e-12)


# ------------------------------------------------------- what the ledger charges for it


def test_a_hundred_small_pure_releases_by_hand():
    budget, left = 2.5, 0.9 * 0.99 * DELTA
    order = renyi_order(budget, left)
    p = 1 / (1 + math.exp(-0.05))
    moment = p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)
    total = 100 * math.log(moment) / (order - 1)
    by_hand = total + (
        math.log(1 / left) + order * math.log(1 - 1 / order) - math.log(order - 1)
    ) / (order - 1)
    assert charge([PureEvent(0.05)] * 100, budget) == pytest.approx(by_hand, rel=1e-9)
    assert by_hand == pytest.approx(2.166, abs=1e-3)  # the former charge was 1.97


def test_sums_of_pure_eps_are_admitted_exactly():
    assert charge([PureEvent(0.25)] * 4, 1.0) == 1.0
    assert charge([PureEvent(0.25)] * 5, 1.0) > 1.0


def test_equal_gaussian_releases_by_hand():
    left = 0.9 * 0.99 * DELTA * math.exp(-0.005 / 2)
    by_hand = gdp_epsilon(0.05 * math.sqrt(20), left) / 0.995
    assert charge([GaussianEvent(0.05)] * 20, 1.0) == pytest.approx(by_hand)


def test_one_release_of_the_whole_budget_is_admitted_and_nothing_after_it():
    for rate in (1.0, 0.1):
        event = calibrate_noise(1.0, DELTA, n_rounds=5, sampling_rate=rate, n_values=4)
        ledger = PrivacyLedger(budget=(1.0, DELTA))
        ledger.debit(event.to_event(), label="all")
        assert ledger.spent() == pytest.approx(1.0, rel=1e-5)
        with pytest.raises(BudgetExceededError):
            ledger.debit(PureEvent(1e-6), label="more")


def test_mixtures_by_hand():
    """A pure eps of 0.3 is in the split of 0.3, with a ninetieth of delta."""
    gaussian = GaussianEvent(0.14)
    left = 0.1 / 9 * 0.99 * DELTA * math.exp(-0.05 / 2)
    split = 0.3 + gdp_epsilon(0.14, left)
    assert charge([gaussian, PureEvent(0.3)], 1.0) == pytest.approx(split)
    # Small ones are cheaper as mu: pi / 2 of their squares.
    many = [gaussian] + [PureEvent(0.01)] * 20
    mu2 = 0.14**2 + 20 * math.pi / 2 * 0.01**2
    left = 0.9 * 0.99 * DELTA * math.exp(-0.005 / 2)
    by_hand = gdp_epsilon(math.sqrt(mu2), left) / 0.995
    assert charge(many, 1.0) == pytest.approx(by_hand, rel=1e-4)


def test_slack_by_hand():
    """Slack is pure eps: beyond 0.005 of eps it needs a split."""
    events = [GaussianEvent(0.14), GaussianEvent(0.0, eps_slack=0.03)]
    left = 0.1 / 9 * 0.99 * DELTA * math.exp(-0.05 / 2)
    assert charge(events, 1.0) == pytest.approx(0.1 + gdp_epsilon(0.14, left))
    # In sums it is added; at one order it costs (2a - 1) / (2a - 2) times itself.
    pure = [PureEvent(0.1, eps_slack=0.01)] * 2
    assert charge(pure, 1.0) == pytest.approx(0.22)
    order = 7.0
    more = account(pure).renyi(order, credit=True) - 2 * pure_renyi(0.1, order)
    assert more == pytest.approx(0.02 * 13 / 12)


def test_slack_beyond_a_hundredth_of_delta_is_refused():
    for kind in (GaussianEvent, PureEvent):
        fits = [kind(0.01, delta_slack=0.004 * DELTA)] * 2
        assert charge(fits, 1.0) < 0.2
        assert charge([*fits, *fits], 1.0) == math.inf


def test_poisson_fits_are_charged_at_one_order():
    pytest.importorskip("dp_accounting")
    import dp_accounting as dpa
    from dp_accounting.rdp import RdpAccountant

    event = SampledGaussianEvent(1.1, 0.05, 10)
    budget = 3.0
    order = renyi_order(budget, 0.9 * 0.99 * DELTA)
    found = charge([event] * 10, budget)
    # dp-accounting has whole orders only; ours is a chord between two of them.
    bounds = []
    for whole in (math.floor(order), math.ceil(order)):
        one = RdpAccountant([whole])
        sampled = dpa.PoissonSampledDpEvent(0.05, dpa.GaussianDpEvent(1.1))
        bounds.append(one.compose(sampled, 100)._rdp[0])
    left = 0.9 * 0.99 * DELTA
    low, high = (renyi_epsilon(b, order, left) for b in bounds)
    assert low <= found <= high
    assert found > compose_epsilon([event] * 10, DELTA)


PLAIN = st.one_of(
    st.builds(GaussianEvent, st.floats(0, 1)), st.builds(PureEvent, st.floats(0, 1))
)
SAMPLED = st.builds(
    SampledGaussianEvent, st.floats(1, 9), st.floats(0.01, 1), st.integers(1, 9)
)


@settings(max_examples=15, deadline=None)
@given(st.lists(PLAIN | SAMPLED, max_size=3), st.floats(0.1, 10))
def test_no_list_is_charged_less_than_its_composition(events, budget):
    """A list fixed in advance is a case of an adaptive one."""
    exact = compose_epsilon(events, DELTA)
    # Grids of dp-accounting, which round up.
    assert charge(events, budget) >= exact * (1 - 1e-3) - 1e-3


@settings(max_examples=60, deadline=None)
@given(st.lists(PLAIN, max_size=5), st.floats(0.1, 10))
def test_charges_grow_and_a_site_never_charges_less(events, budget):
    one, last = Account(), 0.0
    for event in events:
        one.add(event)
        found = one.epsilon(DELTA, budget)
        assert found >= last * (1 - 1e-9)
        assert site_epsilon(one, DELTA, budget) >= found * (1 - 1e-9)
        last = found


def test_the_curve_of_a_site_is_a_hair_above():
    for mu in (1e-3, 0.1, 1.0, 7.0):
        right = gdp_epsilon(mu, DELTA)
        assert right <= gaussian_epsilon(mu, DELTA) <= right * (1 + 1e-6) + 1e-9


def test_without_a_budget_the_least_that_admits_is_shown():
    events = [PureEvent(0.05)] * 30 + [GaussianEvent(0.1)] * 3
    least = account(events).epsilon(DELTA)
    assert charge(events, least * (1 + 1e-9)) <= least * (1 + 1e-8)
    ledger = PrivacyLedger(budget=(least * (1 + 1e-9), DELTA))
    for event in events:
        ledger.debit(event, label="x")


RECORD = Path(__file__).parents[2] / "docs" / "research" / "privacy_accounting.rst"


def test_the_table_of_charges_in_the_docs():
    pytest.importorskip("dp_accounting")
    fit = calibrate_noise(0.3, DELTA, n_rounds=10, sampling_rate=0.05, n_values=10)
    small, half = (calibrate_noise(eps, DELTA).to_event() for eps in (0.1, 0.5))
    cases = {
        "100 pure, eps 0.05 each": [PureEvent(0.05)] * 100,
        "10 pure, eps 0.1 each": [PureEvent(0.1)] * 10,
        "20 Gaussian, eps 0.1 each": [small] * 20,
        "one Poisson fit, eps 0.3": [fit.to_event()],
        "10 Poisson fits, eps 0.3 each": [fit.to_event()] * 10,
        "Gaussian 0.5, then pure 0.3": [half, PureEvent(0.3)],
        "pure 0.3, then Gaussian 0.5": [PureEvent(0.3), half],
        "10 Gaussian of 0.1, then 10 pure of 0.05": [small] * 10
        + [PureEvent(0.05)] * 10,
    }
    text = RECORD.read_text(encoding="utf-8")
    for name, events in cases.items():
        (line,) = [row for row in text.splitlines() if row.startswith(f"{name} ")]
        budget, before, now = line.removeprefix(name).split()
        assert f"{compose_epsilon(events, DELTA):.2f}" == before, name
        assert f"{charge(events, float(budget)):.2f}" == now, name


# --------------------------------------------- why the least of several is not a filter


def test_an_adaptive_analyst_breaks_the_least_of_two_bounds():
    """Eps of Gaussian noise plus a sum of pure eps is no filter, and ours is one.

    First Gaussian noise, then by what was seen either more of it or randomised
    response; both lists keep ``pure + gdp_epsilon <= 1``. The chance of a loss beyond
    eps is integrated over the first loss.
    """
    eps, mu = 1.0, 0.1417
    pure = eps - gdp_epsilon(mu, DELTA)
    whole = 0.26804  # mu of the whole budget
    assert gdp_epsilon(whole, DELTA) <= eps
    more = math.sqrt(whole**2 - mu**2)

    def after(loss):
        keep = 1 / (1 + math.exp(-pure))
        response = 0.0
        for sign, chance in ((1, keep), (-1, 1 - keep)):
            response += chance * max(0.0, 1 - math.exp(eps - loss - sign * pure))
        left = eps - loss
        gaussian = gdp_delta(more, left) if left >= 0 else 1.0
        return max(response, gaussian)

    def weighed(loss):
        return after(loss) * norm.pdf(loss, mu**2 / 2, mu)

    delta = sum(quad(weighed, a, b, limit=200)[0] for a, b in ((-1, 0.4), (0.4, 1)))
    assert delta > 1.2 * DELTA
    # Both lists cannot be admitted by one budget of the ledger.
    lists = (
        [GaussianEvent(mu), PureEvent(pure)],
        [GaussianEvent(mu), GaussianEvent(more)],
    )
    assert max(charge(events, eps) for events in lists) > eps


# ---------------------------------------------------------- files of older versions


def old_file(path, events, budget):
    """Write records as version 1 wrote them."""
    previous = "0" * 64
    with path.open("wb") as file:
        for n, event in enumerate(events):
            record = {
                "v": 1, "id": f"{n:032x}", "n": n, "t": 1.7e9 + n, "label": "x",
                "event": event.to_dict(), "population": "default", "mode": "secure",
                "run_id": None, "details": {"budget": list(budget)},
            }  # fmt: skip
            record = json.loads(canonical(record))
            record["hash"] = previous = digest(record, previous)
            file.write(canonical(record) + b"\n")


@pytest.mark.parametrize("kind", [PrivacyLedger, SiteLedger])
def test_an_old_file_that_is_now_beyond_its_budget(tmp_path, kind):
    """100 releases of eps 0.05 were charged 1.97, and are charged 2.14 now."""
    path = tmp_path / "ledger.jsonl"
    old_file(path, [PureEvent(0.05)] * 100, (2.0, DELTA))
    before = path.read_bytes()
    ledger = kind(path, budget=(2.0, DELTA))
    assert len(ledger) == ledger.verify() == 100
    assert 2.0 < ledger.spent() < 2.3
    assert ledger.remaining() == 0.0
    assert "BEYOND THE BUDGET" in repr(ledger)
    with pytest.raises(BudgetExceededError, match=r"has already spent eps = 2\.1"):
        ledger.debit(PureEvent(1e-9), label="more")
    assert path.read_bytes() == before


def test_an_old_file_within_its_budget_goes_on(tmp_path):
    path = tmp_path / "ledger.jsonl"
    old_file(path, [GaussianEvent(0.05)] * 4, (1.0, DELTA))
    ledger = PrivacyLedger(path, budget=(1.0, DELTA))
    ledger.debit(GaussianEvent(0.05), label="more")
    assert len(ledger) == 5 and "BEYOND" not in repr(ledger)


def test_a_debit_passes_the_filters_of_the_first_budget_too(monkeypatch):
    from skfedcal.privacy import ledger as _ledger

    seen = []
    monkeypatch.setattr(_ledger, "refuse_overspending", lambda b, *_: seen.append(b))
    ledger = PrivacyLedger(budget=(2.0, DELTA))
    ledger.debit(PureEvent(0.05), label="x")
    ledger.budget = (1.5, DELTA)
    seen.clear()
    ledger.debit(PureEvent(0.05), label="x")
    assert set(seen) == {(2.0, DELTA), (1.5, DELTA)}


def test_a_smaller_budget_keeps_the_filters_of_the_first(tmp_path):
    """A budget that is lowered on the way does not choose other filters."""
    path = tmp_path / "ledger.jsonl"
    PrivacyLedger(path, budget=(2.0, DELTA)).debit(PureEvent(0.05), label="x")
    ledger = PrivacyLedger(path, budget=(1.5, DELTA))
    while charge([PureEvent(0.05)] * (len(ledger) + 1), 1.5) <= 1.5:
        ledger.debit(PureEvent(0.05), label="x")
    with pytest.raises(BudgetExceededError, match=r"the budget is eps = 1\.5"):
        ledger.debit(PureEvent(0.05), label="x")
    n = len(ledger)
    assert charge([PureEvent(0.05)] * n, 1.5) <= 1.5
    assert charge([PureEvent(0.05)] * n, 2.0) <= 2.0
    assert charge([PureEvent(0.05)] * (n + 1), 1.5) > 1.5
