"""FedAccTempCalibrator: scipy references, budgets, noise, fallback, parameters."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_softmax, softmax

from skfedcal import (
    CentralDP,
    DistributedDP,
    FedAccTempCalibrator,
    FederatedRunner,
    FedTempCalibrator,
    LocalDP,
    PrivacyLedger,
    SecureAggregation,
    SourceDP,
    load,
    make_federation,
)
from skfedcal.exceptions import CalibrationWarning
from skfedcal.privacy import client_mechanisms, randomizers

pytestmark = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning"
)


@pytest.fixture(scope="module")
def shifted():
    """50 sources of 30 rows, 10 classes, logits 3 times too large."""
    return make_federation(
        50, 1500, temperature=3.0, balance=True, alpha=None, random_state=0
    )


def fit(federation, seed=0, **params):
    params = {"classes": np.arange(10), "random_state": seed, **params}
    return FedAccTempCalibrator(**params).fit(federation.clients)


def gap(federation, u):
    proba = softmax(federation.logits.astype(np.float64) * np.exp(-u), axis=1)
    right = proba.argmax(axis=1) == federation.labels
    return np.mean(right - proba.max(axis=1))


def test_without_noise_confidence_equals_accuracy_as_by_brentq(shifted):
    cal = fit(shifted)
    root = np.exp(brentq(lambda u: gap(shifted, u), -1, 3, xtol=1e-13))
    assert cal.temperature_ == pytest.approx(root, rel=1e-8)
    assert cal.search_ == "newton" and cal.n_queries_ == cal.n_rounds_ <= 6
    low, high = cal.temperature_interval_
    assert low < cal.temperature_ < high < 1.2 * low
    proba = cal.predict_proba(shifted.logits.astype(np.float64))
    assert_allclose(
        proba, softmax(shifted.logits / cal.temperature_, axis=1), atol=1e-6
    )
    accuracy = (cal.predict(shifted.logits) == shifted.labels).mean()
    assert proba.max(axis=1).mean() == pytest.approx(accuracy, abs=1e-6)


def test_without_noise_the_log_loss_is_least_as_by_minimize_scalar(shifted):
    rows = np.arange(len(shifted.labels))

    def loss(u):
        logs = log_softmax(shifted.logits.astype(np.float64) * np.exp(-u), axis=1)
        return -logs[rows, shifted.labels].mean()

    best = minimize_scalar(
        loss, bounds=(-1, 3), method="bounded", options={"xatol": 1e-9}
    )
    cal = fit(shifted, objective="nll")
    # The loss is flat at its minimum: comparing values finds it to 1e-8 ** 0.5.
    assert np.log(cal.temperature_) == pytest.approx(best.x, abs=3e-7)
    assert cal.search_ == "newton"
    assert cal.temperature_ == pytest.approx(
        FedTempCalibrator().fit(shifted.clients).temperature_, rel=1e-9
    )


def test_without_noise_the_binned_error_is_no_larger_than_anywhere_on_a_grid(shifted):
    cal = fit(shifted, objective="ece", n_bins=10)

    def error(temperature):
        proba = softmax(shifted.logits.astype(np.float64) / temperature, axis=1)
        level = proba.max(axis=1)
        right = proba.argmax(axis=1) == shifted.labels
        bins = np.minimum((level * 10).astype(int), 9)
        return np.abs(np.bincount(bins, right - level, 10)).sum()

    assert error(cal.temperature_) <= min(error(t) for t in np.geomspace(0.25, 32, 98))
    assert cal.search_ == "grid" and np.isnan(cal.temperature_interval_).all()


@pytest.mark.parametrize("search", ["golden", "bisect"])
@pytest.mark.parametrize("objective", ["accuracy", "nll"])
def test_many_exact_queries_find_the_optimum(shifted, search, objective):
    exact = fit(shifted, objective=objective).temperature_
    params = {"objective": objective, "search": search, "loss_clip": 1e3}
    cal = fit(shifted, n_queries=40, **params)
    assert cal.temperature_ == pytest.approx(exact, rel=1e-6)
    assert cal.n_queries_ == cal.n_rounds_ == 40


def count_draws(monkeypatch, seen):
    """Note how many numbers each source draws, and with which scale."""
    faithful, fast = randomizers.discrete_laplace, client_mechanisms.summed_laplace

    def shares(size, scale, source):
        seen.append((size, 1, scale))
        return faithful(size, scale, source)

    def sums(size, scale, n, source):
        seen.append((size, n, scale))
        return fast(size, scale, n, source)

    monkeypatch.setattr(randomizers, "discrete_laplace", shares)
    monkeypatch.setattr(client_mechanisms, "summed_laplace", sums)


@pytest.mark.parametrize("mode", ["fast", "faithful"])
@pytest.mark.parametrize(
    ("params", "n_rounds", "size"),
    [
        ({"search": "golden", "n_queries": 6}, 6, 1),
        ({"search": "golden", "n_queries": 3, "objective": "nll"}, 3, 1),
        ({"search": "golden_linear", "n_queries": 3, "objective": "nll"}, 3, 1),
        ({"search": "golden", "n_queries": 6, "objective": "ece"}, 6, 15),
        ({"search": "bisect", "n_queries": 4}, 4, 1),
        ({"search": "two_point", "n_queries": 2}, 1, 3),
        ({"search": "two_point", "n_queries": 5}, 1, 9),
    ],
    ids=str,
)
def test_every_source_draws_once_for_each_number_and_eps_is_what_is_spent(
    shifted, monkeypatch, mode, params, n_rounds, size
):
    seen = []
    count_draws(monkeypatch, seen)
    ledger = PrivacyLedger()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        cal = fit(shifted, privacy=SourceDP(0.6, mode=mode), ledger=ledger, **params)
    numbers = sum(s * n for s, n, _ in seen)
    assert numbers == 50 * n_rounds * size
    assert cal.n_queries_ == params["n_queries"] and cal.n_rounds_ == n_rounds
    # Noise of a row's bound over the eps of one round, in steps of the lattice.
    bound = 10.0 if params.get("objective") == "nll" else 1.0
    assert len({scale for *_, scale in seen}) == 1
    law = np.sqrt(2) * n_rounds / 0.6
    assert cal.privacy_.noise_multiplier == pytest.approx(law, rel=1e-6)
    assert cal.privacy_.clip == pytest.approx({next(iter(cal.privacy_.clip)): bound})
    assert ledger.spent(delta=1e-9) == pytest.approx(0.6, rel=1e-9)
    assert (cal.privacy_.eps, cal.privacy_.n_rounds) == (0.6, n_rounds)


def test_a_seventh_answer_to_golden_section_is_not_paid_for(shifted, monkeypatch):
    """As printed, five steps ask seven times, with noise for six."""
    released = []
    release = client_mechanisms.SourceLaplace.release

    def once_more(self, total, codec, index, n_clients=None):
        out = release(self, total, codec, index, n_clients)
        released.append(index)
        if index == 5:
            release(self, total, codec, 6, n_clients)
        return out

    monkeypatch.setattr(client_mechanisms.SourceLaplace, "release", once_more)
    with pytest.raises(RuntimeError, match="debited for 0 more"):
        fit(shifted, privacy=SourceDP(1.0), search="golden", n_queries=6)
    assert released == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "privacy",
    [
        SourceDP(2.0),
        SourceDP(2.0, mode="faithful"),
        CentralDP(0.5, unit="example"),
        DistributedDP(0.5, unit="example"),
        CentralDP(3.0),
        SecureAggregation(),
    ],
    ids=repr,
)
def test_privacy_models_find_the_temperature(shifted, privacy):
    cal = fit(shifted, privacy=privacy)
    exact = fit(shifted)
    assert cal.improves_
    assert abs(np.log(cal.temperature_ / exact.temperature_)) < 0.35
    low, high = cal.temperature_interval_
    assert low < exact.temperature_ < high
    expected = "client" if privacy.unit == "client" else "example"
    assert cal.privacy_.unit == expected


@pytest.mark.parametrize(
    ("privacy", "n_units"),
    [
        (SourceDP(5e3), 1500),
        (CentralDP(5e3, unit="example"), 1500),
        (DistributedDP(5e3, unit="example"), 1500),
        # Clients of 30 rows send the mean of their gaps.
        (CentralDP(5e3), 50),
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@pytest.mark.parametrize("search", ["two_point", "bisect"])
def test_what_is_released_under_hardly_any_noise_is_the_gap(
    shifted, privacy, n_units, search
):
    cal = fit(shifted, privacy=privacy, search=search, n_queries=2)
    first = cal.history_[0].total
    # Of two temperatures, the first: what is shared, less the falls of wrong rows.
    if search == "two_point":
        sent, point = (
            first["parts"][0] - first["parts"][2],
            np.log(0.25 * 128 ** (1 / 3)),
        )
    else:
        sent, point = first["value"][0], np.log(0.25 * 128**0.5)
    # Noise of 50 sources is below 0.005 in a sum.
    assert sent / n_units == pytest.approx(gap(shifted, point), abs=1e-3)


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
def test_the_less_the_noise_the_more_temperatures_are_asked(shifted):
    n_queries = [
        fit(shifted, privacy=model).n_queries_
        for model in (SourceDP(0.05), SourceDP(1.0), CentralDP(1.0, unit="example"))
    ]
    assert n_queries == [2, 4, 6]
    # Five steps of golden section, as in the paper, are six queries.
    assert fit(shifted, privacy=SourceDP(1.0), search="golden").n_queries_ == 6
    assert fit(shifted, privacy=SourceDP(1.0), search="bisect").n_queries_ == 4


def test_temperatures_that_are_asked_do_not_depend_on_the_rows(shifted):
    other = make_federation(50, 1500, balance=True, alpha=None, random_state=9)
    asked = []
    for federation in (shifted, other):
        algorithm = []
        cal = FedAccTempCalibrator(
            privacy=SourceDP(1.0), classes=np.arange(10), random_state=0
        )
        make = cal._make_algorithm
        cal._make_algorithm = lambda s, make=make, a=algorithm: (
            a.append(make(s)) or a[0]
        )
        cal.fit(federation.clients)
        asked.append(algorithm[0].points)
    assert_array_equal(*asked)


def test_where_nothing_is_learnt_the_prior_temperature_is_kept(shifted):
    params = {"privacy": SourceDP(0.005), "prior_temperature": 2.0}
    with pytest.warns(CalibrationWarning, match="Predictions keep T = 2"):
        cal = fit(shifted, **params)
    assert not cal.improves_
    proba = cal.predict_proba(shifted.test_logits)
    assert_allclose(proba, softmax(shifted.test_logits / 2, axis=1), rtol=1e-5)
    low, high = cal.temperature_interval_
    assert high / low > 10
    with pytest.warns(CalibrationWarning, match="temperature_ is used anyway"):
        used = fit(shifted, if_improves=False, **params)
    expected = softmax(shifted.test_logits / used.temperature_, axis=1)
    assert_allclose(used.predict_proba(shifted.test_logits), expected, rtol=1e-5)
    # What noise leaves is the prior, which moves with its centre.
    with pytest.warns(CalibrationWarning, match="temperature_ is used anyway"):
        other = fit(shifted, if_improves=False, privacy=SourceDP(0.005))
    assert used.temperature_ == pytest.approx(2 * other.temperature_, rel=0.2)
    # Without a prior temperature the input stays as it is.
    with pytest.warns(CalibrationWarning, match="Predictions keep T = 1"):
        plain = fit(shifted, privacy=SourceDP(0.005))
    proba = plain.predict_proba(shifted.test_logits)
    assert_allclose(proba, softmax(shifted.test_logits, axis=1), rtol=1e-5)


@pytest.mark.parametrize(
    ("privacy", "ending"),
    [
        (SourceDP(0.005), r"is added once: DistributedDP\(eps, unit='example'\)\.$"),
        (
            CentralDP(0.005),
            r"privacy for single rows instead of clients: DistributedDP\(eps, .*\)\.$",
        ),
        (CentralDP(1e-4, unit="example"), r"a larger eps would help\.$"),
    ],
    ids=repr,
)
def test_advice_where_nothing_is_learnt_is_what_is_not_done_yet(
    shifted, privacy, ending
):
    with pytest.warns(CalibrationWarning, match=ending):
        fit(shifted, privacy=privacy)


def test_golden_section_on_noise_is_no_improvement(shifted):
    for objective in ("nll", "ece", "accuracy"):
        with pytest.warns(CalibrationWarning, match="hardly more"):
            cal = fit(
                shifted, privacy=SourceDP(0.01), search="golden", objective=objective
            )
        assert not cal.improves_


def test_public_rows_are_part_of_no_sum(shifted):
    plain = fit(shifted, privacy=SourceDP(0.3))
    public = fit(shifted, privacy=SourceDP(0.3), public_logits=shifted.test_logits)
    for one, other in zip(plain.history_, public.history_, strict=True):
        assert_array_equal(one.total["parts"], other.total["parts"])
    assert plain.temperature_ != public.temperature_
    # A shift of rows and one column fewer are the same rows.
    moved = shifted.test_logits + np.arange(len(shifted.test_logits))[:, None] % 7
    again = fit(shifted, privacy=SourceDP(0.3), public_logits=moved)
    assert again.temperature_ == pytest.approx(public.temperature_, rel=1e-5)


def test_a_clipped_loss_bounds_what_a_row_can_do():
    # One row that is wrong by 1e6 logits among 40 that are mildly over-confident.
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(41, 3)) * 3
    labels = (rows / 2 + rng.gumbel(size=rows.shape)).argmax(axis=1)
    rows[0], labels[0] = [1e6, 0, 0], 1
    free = FedAccTempCalibrator(objective="nll", search="bisect", n_queries=30)
    free.set_params(loss_clip=1e9).fit(rows, labels)
    bound = FedAccTempCalibrator(objective="nll", search="bisect", n_queries=30)
    bound.set_params(loss_clip=5.0).fit(rows, labels)
    assert free.temperature_ == pytest.approx(32.0, rel=1e-6)
    assert bound.temperature_ < 8


@pytest.mark.parametrize("labels", [0, 1])
def test_without_a_root_the_end_of_the_range_is_named(labels):
    rows = np.array([[3.0, 0.0], [2.0, 0.0]])
    cal = FedAccTempCalibrator(classes=[0, 1], temperature_range=(0.5, 4.0))
    with pytest.warns(
        CalibrationWarning, match=r"temperature_range=\(0.5, 4.0\): stopped"
    ):
        cal.fit(rows, [labels, labels])
    assert cal.temperature_ == pytest.approx(4.0 if labels else 0.5)
    assert_array_equal(cal.temperature_interval_, [0.5, 4.0])


def test_the_least_log_loss_is_sought_inside_the_range(shifted):
    with pytest.warns(CalibrationWarning, match="The range may be too narrow"):
        cal = fit(shifted, objective="nll", temperature_range=(0.5, 2.0))
    assert cal.temperature_ == 2.0


def test_a_search_that_ends_outside_of_its_interval_says_so(shifted):
    # Two halves of .25 to 32: from 2.83 to 9.5, in the middle of which is 5.19.
    with pytest.warns(CalibrationWarning, match=r"search='bisect' ended at T = 5\.19"):
        cal = fit(shifted, search="bisect", n_queries=2)
    assert cal.temperature_ > cal.temperature_interval_[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        fit(shifted, search="bisect", n_queries=9)


def test_an_interval_that_reaches_the_end_of_the_range_is_named(shifted):
    with pytest.warns(CalibrationWarning, match="reaches the end"):
        fit(shifted, privacy=SourceDP(1.0), temperature_range=(0.5, 3.0))


def test_more_rounds_over_the_same_rows_make_no_narrower_interval(shifted):
    once, again = (
        fit(shifted, search="two_point", runner=FederatedRunner(n_rounds=n))
        for n in (1, 20)
    )
    assert_allclose(again.temperature_interval_, once.temperature_interval_)


def test_clients_in_cohorts_add_up_to_one_release(shifted):
    whole = fit(shifted, search="two_point")
    parts = FederatedRunner(cohort="full", cohort_size=7)
    runner = FederatedRunner(cohort="permuted", cohort_size=10)
    assert fit(shifted, search="two_point", runner=parts).temperature_ == pytest.approx(
        whole.temperature_, rel=1e-9
    )
    dealt = fit(shifted, search="two_point", runner=runner)
    assert dealt.n_rounds_ == 5
    assert dealt.temperature_ == pytest.approx(whole.temperature_, rel=1e-9)


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@pytest.mark.parametrize("search", ["golden", "bisect"])
def test_a_run_that_is_taken_up_again_ends_as_the_whole_one(
    shifted, tmp_path, monkeypatch, search
):
    params = {"privacy": SourceDP(1.0), "search": search, "if_improves": False}
    whole = fit(shifted, **params)
    runner = FederatedRunner(checkpoint=tmp_path / "run.npz", resume=True)
    release = client_mechanisms.SourceLaplace.release

    def fails(self, total, codec, index, n_clients=None):
        if index == 2:
            raise ConnectionError
        return release(self, total, codec, index, n_clients)

    with monkeypatch.context() as patch:
        patch.setattr(client_mechanisms.SourceLaplace, "release", fails)
        with pytest.raises(ConnectionError):
            fit(shifted, runner=runner, **params)
    again = fit(shifted, runner=runner, **params)
    assert again.n_rounds_ == whole.n_rounds_
    assert again.temperature_ == whole.temperature_
    assert_array_equal(again.temperature_interval_, whole.temperature_interval_)


@pytest.mark.parametrize("params", [{}, {"objective": "ece"}, {"eps": 2.0}], ids=str)
def test_a_saved_calibrator_is_the_same(shifted, tmp_path, params):
    cal = fit(shifted, public_logits=shifted.test_logits[:50], **params)
    cal.save(tmp_path / "cal.json")
    again = load(tmp_path / "cal.json")
    for name in ("temperature_", "search_", "n_queries_", "improves_"):
        assert getattr(again, name) == getattr(cal, name)
    assert_array_equal(again.temperature_interval_, cal.temperature_interval_)
    rows = shifted.test_logits
    assert again.predict_proba(rows).tobytes() == cal.predict_proba(rows).tobytes()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"objective": "ece", "search": "bisect"}, "does not support objective='ece'"),
        (
            {"objective": "nll", "search": "two_point"},
            "does not support objective='nll'",
        ),
        ({"search": "golden", "n_queries": 1}, "needs at least 2"),
        ({"eps": 1.0, "n_queries": 1}, "needs at least 2"),
        ({"n_queries": 4}, "is not used by the exact search"),
        ({"temperature_range": (2.0, 1.0)}, "the lower one first"),
        ({"temperature_range": (0.5, 1.0, 2.0)}, "must be two finite numbers"),
        ({"temperature_range": ("a", "b")}, "must be two finite numbers"),
        ({"prior_temperature": 50.0}, "outside of temperature_range"),
        ({"clip": 5}, "leave it out"),
        ({"clip": 5, "privacy": SourceDP(1.0)}, "leave it out"),
        ({"eps": 1.0, "public_logits": np.zeros((4, 7))}, "rows for 10 classes"),
        ({"eps": 1.0, "public_logits": np.full((4, 10), np.nan)}, "without NaN"),
        (
            {"eps": 1.0, "public_logits": [["a"] * 10]},
            "public_logits must hold numbers",
        ),
        ({"objective": "brier"}, "objective"),
    ],
)
def test_wrong_parameters_are_named(shifted, params, message):
    with pytest.raises(ValueError, match=message):
        fit(shifted, **params)


def test_a_report_of_one_example_per_client_cannot_carry_gaps(shifted):
    with pytest.raises(ValueError, match="LocalDP"):
        fit(shifted, privacy=LocalDP(1.0))


def test_a_class_that_never_gets_probability_changes_nothing(shifted):
    masked = np.column_stack([shifted.logits, np.full(1500, -np.inf)])
    one = FedAccTempCalibrator(classes=np.arange(11)).fit(masked, shifted.labels)
    other = FedAccTempCalibrator(classes=np.arange(10)).fit(
        shifted.logits, shifted.labels
    )
    assert one.temperature_ == pytest.approx(other.temperature_, rel=1e-9)


def trials(n_trials, n_sources, n_rows, seed, methods, spread=(0.6, 6.0)):
    """Gap left on the population, and cover of its root, by method."""
    rng = np.random.default_rng(seed)
    left = {name: [] for name in methods}
    covered = {name: [] for name in methods}
    for _ in range(n_trials):
        scale = np.exp(rng.uniform(*np.log(spread)))
        fed = make_federation(
            n_sources,
            n_sources * n_rows,
            temperature=scale,
            noise=0.0,
            alpha=None,
            balance=True,
            separation=rng.uniform(0, 4),
            n_test=4000,
            random_state=int(rng.integers(1 << 30)),
        )
        test = fed.test_logits.astype(np.float64)
        right = (test.argmax(axis=1) == fed.test_labels).mean()
        for name, params in methods.items():
            cal = fit(fed, seed=int(rng.integers(1 << 30)), **params)
            level = cal.predict_proba(test).max(axis=1).mean()
            left[name].append(abs(level - right))
            low, high = cal.temperature_interval_
            covered[name].append(low <= scale <= high)
    return {k: np.mean(v) for k, v in left.items()}, {
        k: np.mean(v) for k, v in covered.items()
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
def test_a_few_temperatures_at_once_beat_golden_section_and_noise_once_beats_both():
    methods = {
        "golden": {"privacy": SourceDP(1.0), "search": "golden", "n_queries": 4},
        "source": {"privacy": SourceDP(1.0)},
        "once": {"privacy": CentralDP(1.0, unit="example")},
    }
    left, _ = trials(60, 50, 30, 0, methods)
    assert left["source"] < left["golden"] / 1.5
    assert left["once"] < left["source"] / 1.2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@pytest.mark.parametrize("eps", [0.2, 1.0])
def test_intervals_cover_the_temperature_of_the_population(eps):
    methods = {
        "source": {"privacy": SourceDP(eps)},
        "once": {"privacy": CentralDP(eps, unit="example")},
        "client": {"eps": eps},
        "bisect": {"privacy": SourceDP(eps), "search": "bisect"},
    }
    _, covered = trials(200, 50, 20, 1, methods)
    # Nominal .95; of 200 fits .88 are 4.5 standard deviations below.
    assert all(share >= 0.88 for share in covered.values()), covered


@pytest.mark.slow
def test_without_noise_the_interval_is_that_of_sampling():
    _, covered = trials(300, 20, 30, 2, {"exact": {}})
    # A standard deviation of .013: 4.8 of them.
    assert 0.89 <= covered["exact"] <= 0.995
