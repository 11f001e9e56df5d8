"""Noise of clients: same law as central noise, enough of it, and refused if not."""

import math
import pickle
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.base import clone

from skfedcal import (
    ClasswiseResiduals,
    FedBiasTempCalibrator,
    FedBinCalibrator,
    FederatedRunner,
    FedTempCalibrator,
    load,
    make_federation,
)
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import BlockSpec, CellRows
from skfedcal.exceptions import BudgetExceededError, NotEnoughClientsError
from skfedcal.federation import InProcess, Joblib, Request, respond
from skfedcal.methods.bins.rounds import ClassHistograms
from skfedcal.methods.score_curves.rounds import ScoreCounts
from skfedcal.methods.temperature.posterior import TemperaturePosterior
from skfedcal.privacy import (
    CentralDP,
    DistributedDP,
    GaussianEvent,
    PrivacyLedger,
    PureEvent,
    SecureAggregation,
    SourceDP,
    gdp_mu,
)
from skfedcal.privacy.client_mechanisms import square_parts, summed_gaussians
from skfedcal.privacy.entropy import OSEntropy, SeededEntropy
from skfedcal.privacy.events import event_from_dict
from skfedcal.privacy.mechanisms import laplace_variance

# Seeds are fixed, so that no test can flake; a new seed fails by chance this often.
ALPHA = 1e-7
MODES = ["fast", "faithful"]

pytestmark = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning",
    "ignore::skfedcal.exceptions.CalibrationWarning",
)


@dataclass(frozen=True)
class Cells:
    """Count labels; each client sends up to `clip` of its rows, one count each."""

    sizes: tuple[int, ...] = (6,)
    clip: float = 1.0
    kind: str = "count"
    norm: str = "l1"
    sparse: bool = True
    weights: tuple[float, ...] = ()
    n_rounds: int = 1

    def init(self, n_classes):
        return 0

    def broadcast(self, state):
        return {}

    def spec(self, broadcast):
        weights = self.weights or (1.0,) * len(self.sizes)
        return {
            f"b{i}": BlockSpec(
                (size,), self.kind, clip=self.clip, norm=self.norm, weight=weight
            )
            for i, (size, weight) in enumerate(zip(self.sizes, weights, strict=True))
        }

    def query(self, broadcast, clients):
        owner = np.repeat(np.arange(len(clients)), clients.sizes)
        labels = clients.labels[clients.offsets[0] : clients.offsets[-1]]
        rows = {
            f"b{i}": CellRows(owner, labels % size, len(clients), (size,))
            for i, size in enumerate(self.sizes)
        }
        return rows if self.sparse else {n: r.dense() for n, r in rows.items()}

    def update(self, state, total, n_clients):
        return state + 1

    def done(self, state):
        return False


def dataset(n_clients=40, per_client=1, n_classes=6):
    labels = np.arange(n_clients * per_client) % n_classes
    offsets = np.arange(n_clients + 1) * per_client
    rows = np.zeros((len(labels), 1))
    return FederatedDataset(rows, labels, offsets, range(n_clients), n_classes)


def build(model, algorithm, data, *, seed=0, ledger=None, runner=None, **options):
    runner = runner or FederatedRunner()
    return model.mechanism(
        runner.release_plan(algorithm, data, model.unit),
        entropy=OSEntropy() if seed is None else SeededEntropy(seed),
        ledger=ledger,
        **options,
    )


def released(model, algorithm, data, *, seed=0, engine=None, runner=None, ledger=None):
    runner = runner or FederatedRunner()
    mechanism = build(
        model, algorithm, data, seed=seed, ledger=ledger, runner=runner, label="Cells"
    )
    _, history = runner.run(
        algorithm,
        engine(data) if engine else data,
        mechanism,
        SeededEntropy(seed),
        n_classes=data.n_classes,
    )
    return history, mechanism


class Missing:
    """An engine in which the last clients do not answer."""

    def __init__(self, data, n_answers):
        self.data, self.n_answers = data, n_answers

    def ids(self):
        return self.data.names

    def total(self, request, cohort):
        cohort = cohort[cohort < self.n_answers]
        return InProcess(self.data).total(request, cohort)


def chi_square(noise, law):
    values, counts = np.unique(noise, return_counts=True)
    expected = len(noise) * law(values)
    common = expected > 8
    observed, expected = counts[common].astype(float), expected[common]
    rest = len(noise) - observed.sum()
    return stats.chisquare(
        np.append(observed, rest), np.append(expected, len(noise) - expected.sum())
    ).pvalue


def laplace_law(scale):
    q = math.exp(-1 / scale)
    return lambda k: (1 - q) / (1 + q) * q ** np.abs(k)


# ----------------------------------------------------------------- Laplace on counts


@pytest.mark.parametrize("mode", MODES)
def test_counts_get_discrete_laplace_noise_of_pure_eps(mode):
    # Two blocks share eps=2: sensitivity 1 and scale 1 each.
    algorithm, data = Cells((20_000, 4)), dataset(12)
    history, mechanism = released(DistributedDP(2.0, mode=mode), algorithm, data)
    noise = history[0].total["b0"].copy()
    noise[:6] -= 2
    assert chi_square(noise, laplace_law(1.0)) > ALPHA
    assert chi_square(noise, laplace_law(1.1)) < 1e-6
    report = mechanism.report()
    assert report.eps == 2.0 and report.mu is None
    assert 0 < report.delta < 1e-8
    assert report.accountant == "pure eps"
    assert report.noise_multiplier == pytest.approx(math.sqrt(laplace_variance(1.0)))


@pytest.mark.parametrize("model", [DistributedDP, CentralDP])
def test_noise_and_law_say_what_is_drawn(model):
    algorithm, data = Cells((6, 6), clip=3.0, weights=(8.0, 1.0)), dataset(9)
    mechanism = build(model(1.5), algorithm, data)
    mechanism.open("run")
    codec = mechanism.codec(algorithm.spec({}))
    sums = mechanism.release(codec.zeros(), codec, 0, 9)
    # eps is divided as 2 : 1, the cube roots of the weights.
    for name, eps in (("b0", 1.0), ("b1", 0.5)):
        variance = laplace_variance(3 / eps)
        assert sums.laws[name].variance == pytest.approx(variance)
        assert sums.laws[name].kind == "additive"
        assert sums.noise[name] == pytest.approx(math.sqrt(variance))
    assert variance == pytest.approx(2 * 6**2, rel=0.01)  # a continuous law has 2 b^2


@pytest.mark.parametrize("adjacency", ["zero-out", "replace"])
def test_replacing_a_client_is_twice_as_far_as_leaving_it_out(adjacency):
    algorithm, data = Cells(clip=2.0), dataset(9)
    model = DistributedDP(1.0, adjacency=adjacency)
    mechanism = build(model, algorithm, data)
    codec = mechanism.codec(algorithm.spec({}))
    scale = mechanism._scales(codec, 0)["b0"]
    reach = 4 if adjacency == "replace" else 2
    assert scale == pytest.approx(reach, rel=1e-9)
    assert reach / scale <= 1.0
    assert mechanism.report().adjacency == adjacency
    gaussian = model.mechanism(
        FederatedRunner().release_plan(replace(algorithm, norm="l2"), data, "client"),
        entropy=SeededEntropy(0),
        ledger=None,
    )
    steps = gaussian.codec({"x": BlockSpec((3,), clip=2.0)}).blocks["x"].step
    sigma = steps * 512 * math.sqrt(9)
    assert sigma == pytest.approx(reach * gaussian.plan.noise_multiplier)
    assert gaussian.report().noise_multiplier == pytest.approx(sigma / 2)


def test_a_client_that_does_not_exist_shows_in_the_spread_of_shares():
    # Ten clients without rows against nine of them, 100 numbers: both sums are noise,
    # with variances as 10 to 9, and what tells them apart is their length.
    n, size, eps = 10, 100, 1.0
    bend = (1 / (n - 1) - 1 / n) / 2
    cut = (eps + size / 2 * math.log(n / (n - 1))) / bend
    delta = stats.chi2.sf(cut / n, size)
    delta -= math.exp(eps) * stats.chi2.sf(cut / (n - 1), size)
    assert delta > 0.05  # where 1e-5 would be claimed
    with pytest.raises(ValueError, match="cannot hide whether one client exists"):
        DistributedDP(eps, 1e-5, n_min=9, adjacency="add-remove").validate()
    with pytest.raises(ValueError, match="number of rows is published"):
        DistributedDP(eps, adjacency="add-remove", unit="example").validate()


def test_reals_are_hidden_on_a_lattice_finer_than_the_noise():
    algorithm = Cells((5000,), kind="real", sparse=False)
    history, mechanism = released(
        DistributedDP(1.0), algorithm, dataset(50, n_classes=50)
    )
    noise = history[0].total["b0"].copy()
    noise[:50] -= 1
    # The lattice is finer than the noise by 2**10 at least.
    assert stats.kstest(noise, stats.laplace(scale=1.0).cdf).pvalue > ALPHA
    code = mechanism.codec(algorithm.spec({})).blocks["b0"]
    assert code.step <= 2.0**-10 and math.log2(code.step).is_integer()
    assert code.limit == 1 / code.step


@dataclass(frozen=True)
class Thirds(Cells):
    """A third of each count: numbers that no lattice holds."""

    def query(self, broadcast, clients):
        return {n: r / 3 for n, r in super().query(broadcast, clients).items()}


@pytest.mark.parametrize("n_min", [None, 8])
def test_shares_hide_reals_with_the_same_law_in_both_modes(n_min):
    algorithm, data = Thirds((8000,), kind="real", sparse=False), dataset(10)
    noise = {}
    for mode in MODES:
        model = DistributedDP(1.0, n_min=n_min, mode=mode)
        history, _ = released(model, algorithm, data, seed=6)
        exact = np.bincount(data.labels, minlength=8000) / 3
        noise[mode] = history[0].total["b0"] - exact
        if n_min is None:
            law = stats.laplace(scale=1.0)
            assert stats.kstest(noise[mode], law.cdf).pvalue > ALPHA
        # Laplace noise has a kurtosis of 6: a standard error is sqrt(5 / 8000) = 2.5 %.
        spread = 2 * 10 / (n_min or 10)
        assert noise[mode].var() == pytest.approx(spread, rel=0.15)
    assert stats.ks_2samp(*noise.values()).pvalue > ALPHA


@pytest.mark.parametrize(
    "model", [DistributedDP(0.7, mode="faithful"), DistributedDP(0.7, n_min=8)]
)
def test_shares_are_drawn_on_the_fine_lattice_of_the_central_model(model):
    algorithm = Thirds((40,), kind="real", sparse=False)
    shared = build(model, algorithm, dataset(9))
    codec = shared.codec(algorithm.spec({}))
    assert codec == build(CentralDP(0.7), algorithm, dataset(9)).codec(
        algorithm.spec({})
    )
    assert shared._scales(codec, 0)["b0"] >= 2.0**24
    # Rounding moves a sum over n clients by n/2 steps at most.
    code = codec.blocks["b0"]
    rows = np.random.default_rng(0).dirichlet(np.ones(40), size=500)
    error = code.decode(code.encode(rows).sum(axis=0)) - rows.sum(axis=0)
    assert np.abs(error).max() <= 250 * code.step + 1e-12
    # A million clients that all err to one side stay far below the noise.
    assert 1e6 * code.step / 2 < 0.05 / 0.7


@given(
    steps=st.lists(st.floats(-3e8, 3e8), min_size=1, max_size=60),
    eps=st.floats(0.01, 60.0),
    adjacency=st.sampled_from(["zero-out", "replace"]),
)
def test_what_rounding_adds_to_a_norm_is_paid_for(steps, eps, adjacency):
    # Halves are rounded up in all dimensions at once: the worst that can happen.
    algorithm = Cells((len(steps),), kind="real", clip=1.5)
    model = DistributedDP(eps, adjacency=adjacency, mode="faithful")
    mechanism = build(model, algorithm, dataset(9))
    codec = mechanism.codec(algorithm.spec({}))
    code, scale = codec.blocks["b0"], mechanism._scales(codec, 0)["b0"]
    worst = (np.trunc(steps) + 0.5) * code.step
    longest = max(
        sum(abs(int(q)) for q in code.encode(row[None]).ravel())
        for row in (worst, worst * 1e-6, np.asarray(steps) * code.step)
    )
    assert longest <= code.limit
    reach = 2 if adjacency == "replace" else 1
    assert Fraction(reach * longest) <= Fraction(eps) * Fraction(scale)


def test_classwise_residuals_run_with_shares_of_clients():
    fed = make_federation(n_clients=60, n_samples=600, n_classes=3, random_state=0)
    central = ClasswiseResiduals.fit(fed.clients, privacy=CentralDP(1.0))
    for mode in MODES:
        for n_min in (None, 48):
            model = DistributedDP(1.0, n_min=n_min, mode=mode)
            shared = ClasswiseResiduals.fit(fed.clients, privacy=model, random_state=0)
            wider = 60 / (n_min or 60)
            assert shared.noise_variance_ == pytest.approx(
                wider * central.noise_variance_, rel=1e-6
            )
            assert np.isfinite(shared.residuals_).all()


def test_every_sum_that_is_opened_has_enough_shares():
    # Cohorts of a full round are summed one by one: 31 clients by 4 leave 3.
    runner = FederatedRunner(cohort_size=4)
    with pytest.raises(ValueError, match="only guaranteed to have 3"):
        released(DistributedDP(1.0), Cells(), dataset(31), runner=runner)
    released(DistributedDP(1.0, n_min=3), Cells(), dataset(31), runner=runner)


@pytest.mark.parametrize("model", [DistributedDP(1.0, mode="faithful")])
def test_answers_with_noise_of_their_own_are_not_asked_twice(model, tmp_path):
    runner = FederatedRunner(checkpoint=tmp_path / "run.npz")
    with pytest.raises(ValueError, match="answer a resumed round twice"):
        released(model, Cells(), dataset(9), runner=runner)
    assert not (tmp_path / "run.npz").exists()


def test_weights_in_fixed_point_are_sent_as_they_are():
    mechanism = build(CentralDP(0.3), Cells(kind="real"), dataset(9))
    code = mechanism.codec(Cells(kind="real").spec({})).blocks["b0"]
    values = np.array([[1, 3, 0, 65536 - 4, 0, 0]]) / 65536
    assert np.array_equal(code.encode(values)[0, 0] * code.step, values[0])


def test_rounds_and_shares_divide_eps():
    algorithm, data = Cells(n_rounds=4), dataset(9)
    mechanism = build(CentralDP(2.0), algorithm, data)
    codec = mechanism.codec(algorithm.spec({}), 3)
    assert mechanism._scales(codec, 3)["b0"] == pytest.approx(2.0)
    plan = FederatedRunner().release_plan(algorithm, data, "client")
    uneven = CentralDP(2.0).mechanism(
        replace(plan, shares=(0.1, 0.2, 0.3, 0.4)),
        entropy=SeededEntropy(0),
        ledger=None,
    )
    assert uneven._scales(codec, 3)["b0"] == pytest.approx(1 / 0.8)
    with pytest.raises(ValueError, match="add up to 1"):
        CentralDP(2.0).mechanism(
            replace(plan, shares=(0.5, 0.6)), entropy=SeededEntropy(0), ledger=None
        )


def test_a_scale_never_spends_more_than_eps():
    for eps in np.random.default_rng(0).random(200) * 10 + 1e-3:
        algorithm = Cells((6, 6, 6), clip=7.0)
        mechanism = build(CentralDP(float(eps)), algorithm, dataset(9))
        codec = mechanism.codec(algorithm.spec({}))
        scales = mechanism._scales(codec, 0).values()
        assert math.fsum(7 / scale for scale in scales) <= eps


# -------------------------------------------------------------------------- Gaussian


@given(st.integers(0, 10**9))
def test_squares_add_up_and_fill_the_gaps(n):
    parts = square_parts(n)
    assert sum(p * p for p in parts) == n
    left = n
    for part in parts:
        left -= part * part
        if part > 1:
            assert 512 * math.sqrt(left) >= 4 * part
    assert len(parts) < 60


@pytest.mark.parametrize("n", [1, 16, 17, 300, 12_345])
def test_a_few_multiplied_draws_are_many_draws(n):
    drawn = summed_gaussians(40_000, n, SeededEntropy(n))
    sigma = 512 * math.sqrt(n)
    assert stats.kstest(drawn / sigma, "norm").pvalue > ALPHA
    low, high = stats.chi2(40_000).ppf([ALPHA / 2, 1 - ALPHA / 2])
    assert low < (drawn.astype(float) ** 2).sum() / sigma**2 < high
    if n > 16:  # no gaps: last digits are uniform
        digits = np.bincount(drawn % 8, minlength=8)
        assert stats.chisquare(digits).pvalue > ALPHA


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n_min", [None, 20])
def test_l2_blocks_get_gaussian_noise_of_the_clients_that_answer(mode, n_min):
    algorithm, data = Cells((3000,), norm="l2", sparse=False), dataset(25)
    model = DistributedDP(1.0, 1e-5, n_min=n_min, mode=mode)
    history, mechanism = released(model, algorithm, data, seed=4)
    noise = history[0].total["b0"]
    paid = 1 / gdp_mu(1.0, 1e-5)
    assert mechanism.plan.noise_multiplier == pytest.approx(paid, rel=0.02)
    sigma = mechanism.plan.noise_multiplier * math.sqrt(25 / (n_min or 25))
    squares = ((noise / sigma) ** 2)[6:].sum()
    low, high = stats.chi2(2994).ppf([ALPHA / 2, 1 - ALPHA / 2])
    assert low < squares < high
    assert mechanism.report().mu == mechanism.plan.mu


# ---------------------------------------------------------------- survivors, dropout


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("mode", MODES)
def test_fewer_answers_than_shares_are_refused_before_a_release(norm, mode):
    data = dataset(40)
    algorithm = Cells(norm=norm, sparse=norm == "l1")
    for model, answers in ((DistributedDP(1.0, mode=mode), 39),
                           (DistributedDP(1.0, n_min=36, mode=mode), 35)):  # fmt: skip
        mechanism = build(model, algorithm, data)
        with pytest.raises(NotEnoughClientsError, match="Nothing of this round"):
            FederatedRunner().run(
                algorithm,
                Missing(data, answers),
                mechanism,
                SeededEntropy(0),
                n_classes=6,
            )
        assert mechanism._releases_left == 1


@pytest.mark.parametrize("mode", MODES)
def test_ten_percent_may_drop_out_if_n_min_says_so(mode):
    # 36 of 40 answer and n_min=36: what is left is discrete Laplace noise of eps, with
    # 40 answers it is wider.
    data, algorithm = dataset(40, n_classes=4), Cells((20_000,))
    model = DistributedDP(1.0, n_min=36, mode=mode)
    laws = {}
    for answers in (36, 40):
        engine = lambda d, n=answers: Missing(d, n)  # noqa: E731
        history, mechanism = released(model, algorithm, data, engine=engine)
        noise = history[0].total["b0"].copy()
        noise[:4] -= answers // 4
        laws[answers] = noise
    assert chi_square(laws[36], laplace_law(1.0)) > ALPHA
    q, size = math.exp(-1), 200
    half = stats.nbinom(40 / 36, 1 - q).pmf(np.arange(size))
    wider = np.convolve(half, half[::-1])
    assert chi_square(laws[40], lambda k: wider[size - 1 + k.astype(int)]) > ALPHA
    assert "36 or more of the clients" in str(mechanism.report().assumptions)


def test_cohorts_without_enough_clients_are_refused_before_they_are_paid():
    data, algorithm = dataset(40), Cells()
    ledger = PrivacyLedger()
    for runner in (
        FederatedRunner(cohort="permuted", cohort_size=10),
        FederatedRunner(cohort="poisson", cohort_size=30),
    ):
        with pytest.raises(ValueError, match="n_min"):
            released(DistributedDP(1.0), algorithm, data, runner=runner, ledger=ledger)
    assert len(ledger) == 0
    runner = FederatedRunner(cohort="permuted", cohort_size=10)
    history, _ = released(DistributedDP(1.0, n_min=10), algorithm, data, runner=runner)
    assert len(history) == 4
    with pytest.raises(ValueError, match="there are 40 clients"):
        build(DistributedDP(1.0, n_min=41), algorithm, data)


def test_a_release_needs_to_know_who_answered():
    mechanism = build(DistributedDP(1.0), Cells(), dataset(9))
    mechanism.open("run")
    codec = mechanism.codec(Cells().spec({}))
    with pytest.raises(RuntimeError, match="number of clients"):
        mechanism.release(codec.zeros(), codec, 0)


# ----------------------------------------------------------------------- the account


def test_what_is_paid_is_what_is_drawn():
    ledger = PrivacyLedger()
    released(DistributedDP(1.5), Cells(), dataset(), ledger=ledger)
    released(
        DistributedDP(1.5), Cells(norm="l2", sparse=False), dataset(), ledger=ledger
    )
    pure, gaussian = (event_from_dict(r["event"]) for r in ledger.records())
    assert isinstance(pure, PureEvent) and pure.eps == 1.5
    assert isinstance(gaussian, GaussianEvent)
    assert gaussian.delta_slack > 0 and gaussian.eps_slack > 0
    tight = PrivacyLedger(budget=(2.0, 1e-5))
    released(DistributedDP(1.5), Cells(), dataset(), ledger=tight)
    with pytest.raises(BudgetExceededError):
        released(DistributedDP(1.5), Cells(), dataset(), ledger=tight)


def test_nothing_is_released_before_it_is_paid_or_twice():
    algorithm = Cells(n_rounds=2)
    mechanism = build(DistributedDP(1.0), algorithm, dataset(9))
    codec = mechanism.codec(algorithm.spec({}))
    with pytest.raises(RuntimeError, match="has not been debited"):
        mechanism.release(codec.zeros(), codec, 0, 9)
    with pytest.raises(RuntimeError, match="planned for 2 rounds"):
        mechanism.open("run", n_participations=3)
    mechanism.open("run")
    mechanism.release(codec.zeros(), codec, 0, 9)
    with pytest.raises(RuntimeError, match="released already"):
        mechanism.release(codec.zeros(), codec, 0, 9)


def test_a_block_without_an_l1_bound_is_refused():
    mechanism = build(DistributedDP(1.0), Cells(), dataset(9), label="FedThing")
    for block in (BlockSpec((3,), norm="l1"), BlockSpec((3,), clip=1.0)):
        with pytest.raises(ValueError, match=r"FedThing sends block 'x'.*Distributed"):
            mechanism.codec({"x": block})
    mechanism.codec({"x": BlockSpec((1,), clip=1.0)})  # one number has one norm
    with pytest.raises(ValueError, match="a bound of at least 1"):
        mechanism.codec({"x": BlockSpec((3,), "count", clip=0.5, norm="l1")})
    with pytest.raises(ValueError, match="too wide for shares"):
        build(DistributedDP(1e-13, mode="faithful"), Cells(), dataset(9)).codec(
            Cells().spec({})
        )


@pytest.mark.parametrize("model", [CentralDP, DistributedDP, SourceDP])
def test_an_eps_that_the_slack_of_the_tables_is_not_for_is_said(model):
    said = "the error of the noise tables is charged for eps=40"
    for eps, expected in ((40.0, False), (41.0, True)):
        report = build(model(eps), Cells(), dataset(9)).report()
        assert any(said in text for text in report.assumptions) is expected


def test_who_is_trusted_is_in_the_report():
    for mode, secure in ((m, s) for m in MODES for s in (True, False)):
        mechanism = build(
            DistributedDP(1.0, mode=mode),
            Cells(),
            dataset(9),
            seed=None if secure else 0,
        )
        report = mechanism.report()
        assert report.trust.startswith("distributed: clients add the noise")
        assert ("added once to the exact sum" in report.trust) == (mode == "fast")
        assert report.secure is secure
        assert "secure aggregation reveals no sum" in str(report)


# ----------------------------------------------------------------- engines and units


ENGINES = {
    "threads": lambda data: Joblib(data, n_jobs=3),
    "loky": lambda data: Joblib(data, n_jobs=2, prefer="loky"),
}
# Other processes know the algorithms of the library, not those of a test.
PUBLIC = ClassHistograms(n_bins=4, clip_positive=3.0, clip_negative=6.0, n_rounds=2)


@pytest.mark.parametrize(
    ("engine", "algorithm"),
    [
        ("threads", Cells((50, 7), norm="l1", n_rounds=2)),
        ("threads", Cells((50, 7), norm="l2", sparse=False, n_rounds=2)),
        ("loky", PUBLIC),
    ],
)
def test_seeded_shares_are_the_same_bits_on_every_engine(engine, algorithm):
    data, model = dataset(31), DistributedDP(1.0, n_min=3, mode="faithful")
    data = replace(data, rows=np.zeros((31, 6)))
    here, _ = released(model, algorithm, data)
    there, _ = released(model, algorithm, data, engine=ENGINES[engine])
    runner = FederatedRunner(cohort_size=4)
    pieces, _ = released(model, algorithm, data, runner=runner)
    for first, second, third in zip(here, there, pieces, strict=True):
        for name, value in first.total.items():
            assert np.array_equal(value, second.total[name])
            assert np.array_equal(value, third.total[name])
    name = next(iter(here[0].total))
    assert not np.array_equal(here[0].total[name], here[1].total[name])


def test_seeded_clients_need_their_positions_and_real_ones_do_not():
    data, algorithm = dataset(5), Cells()
    model = DistributedDP(1.0, mode="faithful")
    for seed in (0, None):
        mechanism = build(model, algorithm, data, seed=seed)
        codec = mechanism.codec(algorithm.spec({}))
        request = Request(
            algorithm,
            {},
            codec,
            "client",
            mechanism.randomizer(codec, 0),
            mechanism.site_entropy,
        )
        again = pickle.loads(pickle.dumps(request))
        if seed is None:
            assert respond(again, data.slice(0, 1)).n_clients == 1
        else:
            with pytest.raises(ValueError, match="position of each"):
                respond(again, data.slice(0, 1))
            here = respond(request, data.slice(2, 3), np.array([2]))
            there = respond(again, data.slice(2, 3), np.array([2]))
            assert np.array_equal(here.total["b0"], there.total["b0"])


@pytest.mark.parametrize("mode", MODES)
def test_examples_are_bounded_one_by_one_and_shares_are_by_client(mode):
    data = dataset(10, per_client=30)
    model = DistributedDP(2.0, unit="example", mode=mode)
    algorithm = Cells((20_000,))
    history, mechanism = released(model, algorithm, data)
    noise = history[0].total["b0"].copy()
    noise[:6] -= 50
    assert chi_square(noise, laplace_law(0.5)) > ALPHA
    assert mechanism.n_min == 10
    assert "number of rows is public" in str(mechanism.report().assumptions)


def test_sparse_and_dense_rows_give_the_same_release():
    data = dataset(40, per_client=3)
    for model in (SecureAggregation(), CentralDP(1.0), DistributedDP(1.0)):
        first, _ = released(model, Cells(clip=3.0), data)
        second, _ = released(model, Cells(clip=3.0, sparse=False), data)
        assert np.array_equal(first[0].total["b0"], second[0].total["b0"])


# ------------------------------------------------------------------------ calibrators


FED = make_federation(n_clients=60, n_samples=1800, n_classes=3, random_state=0)
METHODS = [FedTempCalibrator, FedBinCalibrator, FedBiasTempCalibrator]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", MODES)
def test_calibrators_run_with_the_noise_of_the_central_model(method, mode):
    central = method(eps=2.0, random_state=0).fit(FED.clients)
    model = DistributedDP(2.0, mode=mode)
    shared = method(privacy=model, random_state=0).fit(FED.clients)
    assert shared.privacy_.noise_multiplier == pytest.approx(
        central.privacy_.noise_multiplier, rel=1e-3
    )
    assert shared.privacy_.delta == central.privacy_.delta
    first, second = central.history_[0].total, shared.history_[0].total
    assert first.keys() == second.keys()
    proba = shared.predict_proba(FED.clients[0][0])
    assert np.isfinite(proba).all()


def test_noise_in_histograms_is_that_of_the_central_model():
    # Differences of many cells: a two-sample test of the laws.
    algorithm = ClassHistograms(n_bins=256, clip_positive=5.0, clip_negative=5.0)
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(600, 3)), rng.integers(0, 3, 600)
    data = FederatedDataset(rows, labels, np.arange(31) * 20, range(30), 3)
    exact, _ = released(
        SecureAggregation(),
        replace(algorithm, clip_positive=None, clip_negative=None),
        data,
    )
    noise = {}
    for model in (
        CentralDP(0.01, 1e-5),
        DistributedDP(0.01, 1e-5),
        DistributedDP(0.01, 1e-5, mode="faithful"),
    ):
        history, _ = released(model, algorithm, data)
        noise[repr(model)] = np.concatenate(
            [
                (history[0].total[k] - exact[0].total[k]).ravel()
                for k in ("positive", "negative")
            ]
        )
    first, *others = noise.values()
    for other in others:
        assert stats.ks_2samp(first, other).pvalue > ALPHA


def test_models_survive_saving_cloning_and_searching(tmp_path):
    model = DistributedDP(3.0, n_min=50, adjacency="replace", mode="faithful")
    estimator = FedTempCalibrator(privacy=model, random_state=0)
    assert clone(estimator).privacy == model
    assert eval(repr(model)) == model
    assert model.get_params() == {
        "eps": 3.0,
        "delta": None,
        "n_min": 50,
        "adjacency": "replace",
        "unit": "client",
        "mode": "faithful",
        "max_colluders": 0,
    }
    estimator.set_params(privacy__eps=4.0)
    assert estimator.privacy == replace(model, eps=4.0)
    estimator.fit(FED.clients).save(tmp_path / "cal.json")
    again = load(tmp_path / "cal.json")
    assert again.privacy == estimator.privacy
    assert again.privacy_ == estimator.privacy_
    scores = FED.clients[0][0]
    assert np.array_equal(again.predict_proba(scores), estimator.predict_proba(scores))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (DistributedDP(0.0), "eps=0.0 is not a privacy budget"),
        (DistributedDP("1"), "eps='1' is not"),
        (DistributedDP(1.0, 2.0), "delta=2.0 is out of range"),
        (DistributedDP(1.0, n_min=0), "n_min=0 is out of range; pass an integer >= 1"),
        (DistributedDP(1.0, n_min=2.5), "n_min=2.5"),
        (DistributedDP(1.0, n_min=True), "n_min=True"),
        (DistributedDP(1.0, adjacency="any"), "adjacency must be one of .* got 'any'"),
        (DistributedDP(1.0, unit="row"), "unit must be one of .* got 'row'"),
        (DistributedDP(1.0, mode="slow"), "mode must be one of .* got 'slow'"),
        (DistributedDP(1.0, max_colluders=-1), "max_colluders=-1 is out of range"),
        (DistributedDP(1.0, max_colluders=1.5), "max_colluders=1.5 is not an integer"),
        (
            DistributedDP(1.0, n_min=4, max_colluders=4),
            "leaves no honest client to add noise",
        ),
    ],
)
def test_values_that_cannot_be_are_named(model, message):
    with pytest.raises(ValueError, match=message):
        FedTempCalibrator(privacy=model).fit(FED.clients)


def test_strength_is_that_of_the_noise():
    mu = gdp_mu(1.0, 1e-5)
    assert DistributedDP(1.0, 1e-5).strength(100) == pytest.approx(mu)
    halved = DistributedDP(1.0, 1e-5, adjacency="replace").strength(100)
    assert halved == pytest.approx(mu / 2)


@pytest.mark.parametrize(
    "algorithm", [TemperaturePosterior(), ScoreCounts((3,), clip=1.0)]
)
@pytest.mark.parametrize("mode", ["fast", "faithful"])
def test_noise_is_made_of_the_shares_of_honest_clients(algorithm, mode):
    """As if the colluders were not there; but sums without them are refused."""
    rows, labels = np.zeros((9, 2)), np.zeros(9, dtype=int)
    data = FederatedDataset(rows, labels, np.arange(10), range(9), 2)

    def built(**options):
        model = DistributedDP(1.0, mode=mode, **options)
        plan = FederatedRunner().release_plan(algorithm, data, "client")
        mechanism = model.mechanism(plan, entropy=OSEntropy(), ledger=None)
        spec = algorithm.spec(algorithm.broadcast(algorithm.init(2)))
        return mechanism, mechanism.codec(spec)

    mechanism, codec = built(n_min=8, max_colluders=3)
    five, expected = built(n_min=5)
    assert codec.blocks == expected.blocks
    assert mechanism.randomizer(codec, 0) == five.randomizer(expected, 0)
    assert mechanism.n_min == 8 and five.n_min == 5
    assert mechanism.report().noise_multiplier == five.report().noise_multiplier
    assert "5 or more" in mechanism.report().assumptions[0]
    assert "fewer than 8" in mechanism.report().assumptions[1]
    mechanism.open("run", n_per_round=9)
    with pytest.raises(NotEnoughClientsError, match="7 clients answered"):
        mechanism.release(codec.zeros(), codec, 0, 7)
    found = mechanism.release(codec.zeros(), codec, 0, 9)
    five.open("run", n_per_round=9)
    same = five.release(expected.zeros(), expected, 0, 9)
    assert found.noise == same.noise
