"""Noise: paid first, of the right size, on a lattice, never used twice."""

import math
import os
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from skfedcal import FedBinCalibrator, FederatedRunner, FedTempCalibrator
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import BlockSpec
from skfedcal.exceptions import BudgetExceededError, CheckpointError
from skfedcal.federation import InProcess
from skfedcal.methods.bins.rounds import ClassHistograms
from skfedcal.methods.temperature.posterior import TemperaturePosterior
from skfedcal.privacy import CentralDP, PrivacyLedger, calibrate_noise, gdp_mu
from skfedcal.privacy.codec import BlockCode, Codec
from skfedcal.privacy.entropy import OSEntropy, SeededEntropy
from skfedcal.privacy.mechanisms import ExactSum, LatticeGaussian
from skfedcal.privacy.samplers import GAUSSIAN_SIGMA

# Exact: 512 * sqrt(128^2 + 1), squared.
SIGMA_SQUARED = 512**2 * (128**2 + 1)

# Seeds are fixed, so that no test can flake; a new seed fails by chance this often.
ALPHA = 1e-7

pytestmark = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning",
    "ignore::skfedcal.exceptions.CalibrationWarning",
)


def make_mechanism(
    *,
    eps=1.0,
    delta=1e-5,
    n_releases=1,
    n_values=10_000,
    split="split",
    entropy=None,
    ledger=None,
    unit="client",
):
    plan = calibrate_noise(eps, delta, n_rounds=n_releases, n_values=n_values)
    return LatticeGaussian(
        plan,
        entropy=SeededEntropy(0) if entropy is None else entropy,
        ledger=PrivacyLedger() if ledger is None else ledger,
        n_units=100,
        n_releases=n_releases,
        n_values=n_values,
        split=split,
        unit=unit,
    )


def release_zeros(mechanism, spec, round_index=0):
    codec = mechanism.codec(spec)
    return codec, mechanism.release(codec.zeros(), codec, round_index)


def tiny_federation(n_clients=12, n_rows=8, n_classes=3, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_clients * n_rows, n_classes)) * 2
    labels = (rows + rng.gumbel(size=rows.shape)).argmax(axis=1)
    offsets = np.arange(n_clients + 1) * n_rows
    return FederatedDataset(rows, labels, offsets, range(n_clients), n_classes)


def as_pairs(dataset):
    return [
        (dataset.rows[a:b], dataset.labels[a:b])
        for a, b in zip(dataset.offsets[:-1], dataset.offsets[1:], strict=True)
    ]


# ---------------------------------------------------------------- what is refused


def test_nothing_is_released_before_it_is_paid():
    mechanism = make_mechanism()
    codec = mechanism.codec({"x": BlockSpec((3,), clip=1.0)})
    with pytest.raises(RuntimeError, match="has not been debited"):
        mechanism.release(codec.zeros(), codec, 0)


def test_more_rounds_than_paid_are_refused():
    mechanism = make_mechanism(n_releases=2)
    spec = {"x": BlockSpec((3,), clip=1.0)}
    mechanism.open("run")
    for index in range(2):
        release_zeros(mechanism, spec, index)
    with pytest.raises(RuntimeError, match="debited for 0 more rounds"):
        release_zeros(mechanism, spec, 2)


def test_rounds_released_before_a_resume_count():
    mechanism = make_mechanism(n_releases=3)
    spec = {"x": BlockSpec((3,), clip=1.0)}
    mechanism.open("run", rounds_done=2)
    release_zeros(mechanism, spec, 2)
    with pytest.raises(RuntimeError, match="debited for 0 more rounds"):
        release_zeros(mechanism, spec, 3)


def test_a_round_is_never_released_twice():
    # A seeded mechanism would add the same noise to both sums.
    mechanism = make_mechanism(n_releases=3)
    spec = {"x": BlockSpec((3,), clip=1.0)}
    mechanism.open("run")
    release_zeros(mechanism, spec, 0)
    with pytest.raises(RuntimeError, match="released already"):
        release_zeros(mechanism, spec, 0)
    resumed = make_mechanism(n_releases=3)
    resumed.open("run", rounds_done=1)
    with pytest.raises(RuntimeError, match="released already"):
        release_zeros(resumed, spec, 0)


def test_more_numbers_than_planned_are_refused():
    mechanism = make_mechanism(n_values=4)
    mechanism.open("run")
    with pytest.raises(RuntimeError, match="releases 5 numbers"):
        release_zeros(mechanism, {"x": BlockSpec((5,), clip=1.0)})
    release_zeros(mechanism, {"x": BlockSpec((2, 2), clip=1.0)})


@pytest.mark.parametrize(
    "block", [BlockSpec((2,)), BlockSpec((2,), clip=1.0, norm="l1")]
)
def test_noise_refuses_a_block_without_an_l2_bound(block):
    with pytest.raises(ValueError, match="'x' has no L2 bound"):
        make_mechanism().codec({"ok": BlockSpec((1,), clip=1.0), "x": block})


@pytest.mark.parametrize("factor", [0.5, 0.99, 1 - 1e-6])
def test_a_codec_with_too_little_noise_is_refused(factor):
    spec = {"x": BlockSpec((3,), clip=1.0)}
    mechanism = make_mechanism()
    step = mechanism.codec(spec).blocks["x"].step
    forged = Codec({"x": BlockCode(spec["x"], step=step * factor)})
    mechanism.open("run")
    with pytest.raises(RuntimeError, match="exceed the planned budget"):
        mechanism.release(forged.zeros(), forged, 0)


def test_exact_sums_need_no_bound_and_claim_nothing():
    mechanism = ExactSum(n_clients=3)
    codec = mechanism.codec({"x": BlockSpec((2,)), "n": BlockSpec((1,), kind="count")})
    mechanism.open("run")
    sent = codec.encode({"x": np.array([[0.5, -2.0]]), "n": np.array([[7]])})
    sums = mechanism.release({k: v.sum(axis=0) for k, v in sent.items()}, codec, 0)
    assert sums["x"].tolist() == [0.5, -2.0]
    assert sums["n"].tolist() == [7.0]
    assert sums.noise == {}
    assert not mechanism.report().private


# --------------------------------------------------------- the claim, in integers


@st.composite
def specs(draw):
    n_blocks = draw(st.integers(1, 4))
    out = {}
    for i in range(n_blocks):
        groups = draw(st.integers(1, 12))
        width = draw(st.integers(1, 30))
        clip = draw(st.floats(1e-6, 1e6))
        out[f"b{i}"] = BlockSpec((groups, width), clip=clip, groups=groups)
    return out


@settings(max_examples=150, deadline=None)
@given(
    specs(),
    st.sampled_from(["split", "joint"]),
    st.sampled_from([0.01, 0.5, 1.0, 8.0, 1e4]),
    st.integers(1, 40),
)
def test_what_clients_can_send_never_exceeds_the_budget(spec, split, eps, n_rounds):
    mechanism = make_mechanism(eps=eps, n_releases=n_rounds, split=split)
    codec = mechanism.codec(spec)
    spent = sum(code.limit * code.spec.groups for code in codec.blocks.values())
    per_round = Fraction(spent, SIGMA_SQUARED)
    z, mu = Fraction(mechanism.plan.noise_multiplier), Fraction(mechanism.plan.mu)
    assert per_round <= 1 / z**2
    assert n_rounds * per_round <= mu**2
    # ... and uses it up, but for the steps that rounding down costs: a bound of r
    # steps squared loses at most 1 and a relative 1e-12 per group.
    lost = sum(code.spec.groups for code in codec.blocks.values())
    assert spent + lost >= SIGMA_SQUARED / z**2 * (1 - Fraction(1, 10**9))


@pytest.mark.parametrize(("positive", "negative"), [(10.0, 50.0), (1.0, 1.0), (3, 0.2)])
def test_split_noise_is_that_of_the_formula(positive, negative):
    spec = {
        "positive": BlockSpec((10, 15), clip=positive),
        "negative": BlockSpec((10, 15), clip=negative),
    }
    mechanism = make_mechanism(split="split")
    codec = mechanism.codec(spec)
    mu = mechanism.plan.mu
    both = positive + negative
    for name, clip in (("positive", positive), ("negative", negative)):
        sigma = codec.blocks[name].step * GAUSSIAN_SIGMA
        assert sigma == pytest.approx(math.sqrt(clip * both) / mu, rel=1e-12)


def test_split_noise_of_the_paper_setting_by_the_numbers_of_the_spec():
    # spec/privacy.md section 3, (1, 1e-5), T = 1, C+ = 10, C- = 50, joint clip.
    spec = {
        "p": BlockSpec((10, 128), clip=10.0),
        "n": BlockSpec((10, 128), clip=50.0),
    }
    sigmas = {
        split: {
            name: code.step * GAUSSIAN_SIGMA
            for name, code in make_mechanism(split=split).codec(spec).blocks.items()
        }
        for split in ("split", "joint")
    }
    assert sigmas["split"]["p"] == pytest.approx(91.4, rel=1e-3)
    assert sigmas["split"]["n"] == pytest.approx(204, rel=2e-3)
    assert sigmas["joint"]["p"] == sigmas["joint"]["n"]
    assert sigmas["joint"]["p"] == pytest.approx(190, rel=2e-3)


def test_blocks_of_unequal_size_share_the_noise_by_their_weight():
    # sigma_b^2 = C_b / sqrt(w_b) * sum_i C_i sqrt(w_i) / mu^2, w = numbers per block.
    spec = {"a": BlockSpec((100,), clip=2.0), "b": BlockSpec((4,), clip=3.0)}
    mechanism = make_mechanism()
    codec = mechanism.codec(spec)
    total = 2 * 10 + 3 * 2
    for name, clip, root in (("a", 2, 10), ("b", 3, 2)):
        expected = math.sqrt(clip / root * total) / mechanism.plan.mu
        assert codec.blocks[name].step * GAUSSIAN_SIGMA == pytest.approx(expected)


@pytest.mark.parametrize("n_classes", [2, 10])
def test_clipping_each_class_costs_the_root_of_the_classes(n_classes):
    noise = {}
    for per_class in (False, True):
        algorithm = ClassHistograms(
            clip_positive=10.0, clip_negative=50.0, per_class=per_class
        )
        spec = algorithm.spec({"n_classes": np.asarray(n_classes)})
        assert spec["positive"].sensitivity == pytest.approx(
            10.0 * (math.sqrt(n_classes) if per_class else 1)
        )
        codec = make_mechanism().codec(spec)
        noise[per_class] = codec.blocks["positive"].step
    assert noise[True] / noise[False] == pytest.approx(math.sqrt(n_classes))


def test_an_absurd_eps_is_refused_instead_of_overflowing():
    with pytest.raises(ValueError, match="too fine"):
        make_mechanism(eps=1e12).codec({"x": BlockSpec((1,), clip=1.0)})


# -------------------------------------------------------------------- the noise


@pytest.mark.parametrize("split", ["split", "joint"])
@pytest.mark.parametrize("entropy", [SeededEntropy(11), OSEntropy()])
def test_noise_has_the_scale_that_was_paid(split, entropy):
    spec = {
        "a": BlockSpec((20, 100), clip=10.0, groups=20),
        "b": BlockSpec((2000,), clip=1.0),
    }
    mechanism = make_mechanism(split=split, entropy=entropy)
    mechanism.open("run")
    _, released = release_zeros(mechanism, spec)
    sensitivities = {"a": 10 * math.sqrt(20), "b": 1.0}
    budget = 0.0
    alpha = 1e-8  # 12 comparisons with fresh noise in all: 1e-7
    for name, value in released.items():
        sigma = released.noise[name]
        # Sum of squares of 2000 normal numbers of variance 1 is chi-square; the
        # discrete law differs from the normal one by 1e-10 per number.
        p = stats.chi2.cdf(float(((value / sigma) ** 2).sum()), value.size)
        assert alpha < p < 1 - alpha
        mean = float(value.sum()) / sigma / math.sqrt(value.size)
        assert abs(mean) < stats.norm.isf(alpha / 2)
        budget += (sensitivities[name] / sigma) ** 2
    assert budget == pytest.approx(gdp_mu(1.0, 1e-5) ** 2, rel=1e-4)
    assert budget <= gdp_mu(1.0, 1e-5) ** 2
    if split == "joint":
        assert released.noise["a"] == released.noise["b"]


def test_noise_is_the_same_whatever_the_sum():
    spec = {"x": BlockSpec((50,), clip=1.0)}
    outputs = []
    for total in (0, 123_456):
        mechanism = make_mechanism()
        mechanism.open("run")
        codec = mechanism.codec(spec)
        sums = {"x": np.full((1, 50), total)}
        step = codec.blocks["x"].step
        released = mechanism.release(sums, codec, 0)["x"]
        outputs.append(np.rint(released / step).astype(np.int64) - total)
    assert np.array_equal(*outputs)


def test_only_lattice_points_are_released():
    spec = {"a": BlockSpec((7, 9), clip=3.0), "b": BlockSpec((500,), clip=0.1)}
    mechanism = make_mechanism()
    mechanism.open("run")
    codec, released = release_zeros(mechanism, spec)
    for name, value in released.items():
        step = codec.blocks[name].step
        assert value.shape == spec[name].shape
        assert np.array_equal(np.rint(value / step) * step, value)


def test_rounds_blocks_and_seeds_have_noise_of_their_own():
    n = 2000
    spec = {"a": BlockSpec((n,), clip=1.0), "b": BlockSpec((n,), clip=1.0)}
    vectors = []
    for seed in (0, 1):
        mechanism = make_mechanism(n_releases=3, entropy=SeededEntropy(seed))
        mechanism.open("run")
        for index in range(3):
            vectors += release_zeros(mechanism, spec, index)[1].values()
    # 66 pairs; sqrt(n) times the correlation of independent vectors is normal.
    correlation = np.corrcoef(vectors) - np.eye(len(vectors))
    bound = stats.norm.isf(ALPHA / 2 / 66) / math.sqrt(n)
    assert np.abs(correlation).max() < bound


def test_a_seed_repeats_the_noise_and_the_operating_system_does_not():
    spec = {"x": BlockSpec((20,), clip=1.0)}

    def draw(entropy):
        mechanism = make_mechanism(entropy=entropy)
        mechanism.open("run")
        return release_zeros(mechanism, spec)[1]["x"]

    assert np.array_equal(draw(SeededEntropy(5)), draw(SeededEntropy(5)))
    assert not np.array_equal(draw(SeededEntropy(5)), draw(SeededEntropy(6)))
    # 20 values that collide by chance below 1e-100 of the time.
    assert not np.array_equal(draw(OSEntropy()), draw(OSEntropy()))


# ---------------------------------------------------------------- who is paid when


class Watched:
    """Writes down who did what in which order."""

    def __init__(self):
        self.log = []

    def ledger(self, **options):
        watch = self

        class Ledger(PrivacyLedger):
            def debit(self, *args, **kwargs):
                receipt = super().debit(*args, **kwargs)
                watch.log.append("debit")
                return receipt

        return Ledger(**options)

    def entropy(self, seed=0):
        watch = self

        class Entropy(SeededEntropy):
            def uint64(self, n):
                watch.log.append("noise")
                return super().uint64(n)

            def child(self, *key):
                return Entropy(*self._path, *key)

        return Entropy(seed)

    def backend(self, clients):
        watch = self

        @dataclass(frozen=True)
        class Engine:
            inner: InProcess

            def ids(self):
                return self.inner.ids()

            def total(self, request, cohort):
                watch.log.append("client")
                return self.inner.total(request, cohort)

        return Engine(InProcess(clients))


def run_watched(watch, algorithm=None, ledger=None, **options):
    clients = tiny_federation()
    mechanism = make_mechanism(
        n_releases=3,
        entropy=watch.entropy(),
        ledger=watch.ledger() if ledger is None else ledger,
    )
    return FederatedRunner(**options).run(
        algorithm or TemperaturePosterior(n_rounds=3),
        watch.backend(clients),
        mechanism,
        SeededEntropy(3),
        n_classes=3,
    )


def test_the_ledger_is_debited_before_clients_are_asked_and_noise_is_drawn():
    watch = Watched()
    run_watched(watch)
    # A draw of noise reads two words per number, in one piece unless there are ties.
    assert watch.log == ["debit", "client", "noise"] + 2 * ["client", "noise"]


def test_a_refused_debit_asks_nobody_and_draws_nothing():
    watch = Watched()
    ledger = watch.ledger(budget=(0.5, 1e-5))
    with pytest.raises(BudgetExceededError):
        run_watched(watch, ledger=ledger)
    assert watch.log == []
    assert len(ledger) == 0


def test_a_failed_write_of_the_ledger_asks_nobody_and_draws_nothing(
    tmp_path, monkeypatch
):
    watch = Watched()
    ledger = watch.ledger(path=tmp_path / "ledger.jsonl", require_secure=False)

    def full_disk(fd):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="disk full"):
        run_watched(watch, ledger=ledger)
    assert watch.log == []


def test_what_cannot_be_released_is_refused_before_it_is_paid():
    watch = Watched()
    with pytest.raises(ValueError, match="no L2 bound"):
        run_watched(watch, ClassHistograms())
    assert watch.log == []


@pytest.mark.parametrize(
    ("params", "fit_params", "error"),
    [
        ({"solver": "nonsense"}, {}, ValueError),
        ({"clip": -1.0}, {}, ValueError),
        ({"delta": 0.5}, {}, ValueError),
        ({"privacy": CentralDP(1.0)}, {}, ValueError),
        ({"runner": FederatedRunner(cohort_size=99)}, {}, ValueError),
        ({"runner": FederatedRunner(cohort="often")}, {}, ValueError),
        ({"runner": FederatedRunner(resume=True)}, {}, ValueError),
        (
            {"runner": FederatedRunner("3", cohort="independent", cohort_size=2)},
            {},
            ValueError,
        ),
        (
            {
                "runner": FederatedRunner(
                    cohort="independent", cohort_size=2, min_clients=3
                )
            },
            {},
            ValueError,
        ),
        ({"classes": ["a", "b", "c"]}, {}, ValueError),
        ({}, {"sample_weight": [np.ones(8)] * 12}, ValueError),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")  # labels compared with strings
def test_a_fit_with_bad_arguments_is_not_charged(params, fit_params, error):
    ledger = PrivacyLedger()
    pairs = as_pairs(tiny_federation())
    if fit_params:
        X, y = zip(*pairs, strict=True)
        data = (list(X), list(y))
    else:
        data = (pairs,)
    with pytest.raises(error):
        FedTempCalibrator(eps=1.0, **{"ledger": ledger, **params}).fit(
            *data, **fit_params
        )
    assert len(ledger) == 0


def test_a_fit_with_bad_data_or_a_stale_checkpoint_is_not_charged(tmp_path):
    ledger = PrivacyLedger()
    pairs = as_pairs(tiny_federation())
    logits, labels = pairs[0]
    with pytest.raises(ValueError, match="NaN"):
        FedBinCalibrator(eps=1.0, ledger=ledger).fit(
            [(logits * np.nan, labels), *pairs[1:]]
        )
    path = tmp_path / "run.npz"
    path.write_bytes(b"anything")
    for resume in (False, True):
        runner = FederatedRunner(checkpoint=path, resume=resume)
        with pytest.raises(CheckpointError):
            FedBinCalibrator(eps=1.0, ledger=ledger, runner=runner).fit(pairs)
    assert len(ledger) == 0


def test_an_estimator_out_of_budget_is_left_without_a_release():
    pairs = as_pairs(tiny_federation())
    ledger = PrivacyLedger(budget=(1.0, 1e-5))
    kwargs = {"eps": 1.0, "delta": 1e-5, "ledger": ledger, "random_state": 0}
    FedBinCalibrator(**kwargs).fit(pairs)
    second = FedTempCalibrator(**kwargs)
    with pytest.raises(BudgetExceededError):
        second.fit(pairs)
    assert len(ledger) == 1
    for name in ("history_", "temperature_", "privacy_"):
        assert not hasattr(second, name)


def test_the_debit_is_the_plan():
    ledger = PrivacyLedger()
    mechanism = make_mechanism(n_releases=12, ledger=ledger)
    mechanism.open("run")
    (record,) = ledger.records()
    assert record["run_id"] == "run"
    assert record["mode"] == "simulation"
    assert record["event"]["mu"] == mechanism.plan.mu
    assert record["details"]["n_units"] == 100
    assert ledger.spent(1e-5) == pytest.approx(1.0, rel=1e-6)
    assert ledger.spent(1e-5) <= 1.0 + 1e-9
    assert mechanism.report().ledger_ids == (record["id"],)
    secure = PrivacyLedger()
    make_mechanism(entropy=OSEntropy(), ledger=secure).open("run")
    assert secure.records()[0]["mode"] == "secure"
