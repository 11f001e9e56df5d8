"""Entropy sources and integer noise: the law of every draw, to the last unit."""

import bisect
import math
from concurrent.futures import ThreadPoolExecutor

import mpmath as mp
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import stats

from skfedcal.privacy import samplers
from skfedcal.privacy.entropy import OSEntropy, SeededEntropy, _FromWords
from skfedcal.privacy.samplers import (
    GAUSSIAN_BASE_SIGMA,
    GAUSSIAN_SIGMA,
    LAPLACE_SCALE,
    MAX_LAPLACE_SCALE,
    discrete_gaussian,
    discrete_gaussian_base,
    discrete_laplace,
)

# Seeded tests cannot flake; those against opendp, which has no seed, fail by chance
# with this probability.
ALPHA = 1e-7


class Script(_FromWords):
    """Entropy that returns the words it was given, in order."""

    secure = False

    def __init__(self, *words):
        self.words = list(words)

    def uint64(self, n):
        taken, self.words = self.words[:n], self.words[n:]
        return np.array(taken, dtype=np.uint64)

    def child(self, *key):
        return self


class Recorder(_FromWords):
    """OS entropy that remembers its words."""

    secure = True

    def __init__(self):
        self.words = []

    def uint64(self, n):
        words = OSEntropy().uint64(n)
        self.words += words.tolist()
        return words

    def child(self, *key):
        return self


def cdf_integers(table):
    return [
        (int(high) << 64) + int(low)
        for high, low in zip(table.high, table.low, strict=True)
    ]


def assert_follows(values, cdf, n_bins=200):
    """Chi-square of values against a distribution function on the integers."""
    low, high = np.percentile(values, [0.05, 99.95])
    edges = np.unique(np.linspace(math.floor(low), math.ceil(high), n_bins).round())
    expected = np.diff(np.concatenate([[0.0], cdf(edges), [1.0]])) * values.size
    observed = np.bincount(np.searchsorted(edges, values), minlength=edges.size + 1)
    big = expected > 5
    expected = np.append(expected[big], expected[~big].sum())
    observed = np.append(observed[big], observed[~big].sum())
    used = expected > 1e-9
    assert observed[~used].sum() == 0
    assert stats.chisquare(observed[used], expected[used]).pvalue > ALPHA


def laplace_cdf(k, scale):
    q = math.exp(-1 / scale)
    return np.where(k < 0, q ** np.maximum(-k, 0), 1 + q - q ** (np.abs(k) + 1)) / (
        1 + q
    )


def gaussian_cdf(k, sigma):
    # Equal to the lattice sum up to 1e-6/sigma^2, by Euler-Maclaurin.
    return stats.norm.cdf((k + 0.5) / sigma)


# Tables


def test_gaussian_table_is_exact_to_the_last_unit():
    found = cdf_integers(samplers._gaussian_table())
    with mp.workprec(400):
        double_variance = mp.mpf(2 * GAUSSIAN_BASE_SIGMA**2)
        weights = [mp.exp(-k * k / double_variance) for k in range(9000)]
        weights = [weights[0]] + [2 * weight for weight in weights[1:]]
        total, partial = mp.fsum(weights), mp.mpf(0)
        for weight, entry in zip(weights, found, strict=False):
            partial += weight
            assert entry == int(mp.nint(mp.ldexp(partial / total, 127)))
    assert found[-2] < found[-1] == 2**127


@pytest.mark.parametrize("scale", [1e-3, 0.3, 1.0, math.pi, 700.5, 65536, 1e6, 2.0**48])
def test_geometric_tables_are_exact_to_the_last_unit(scale):
    base, tables = samplers.geometric_tables(float(scale))
    with mp.workprec(400):
        for i, table in enumerate(tables):
            ratio = mp.exp(-(mp.mpf(base) ** i) / mp.mpf(scale))
            whole = 1 - (ratio**base if i + 1 < len(tables) else 0)
            found = cdf_integers(table)
            for k, entry in enumerate(found):
                exact = (1 - ratio ** (k + 1)) / whole
                assert entry == int(mp.nint(mp.ldexp(exact, 127)))
            assert found[-1] == 2**127
            assert len(found) < 2**15


def test_table_error_is_a_bound():
    n_gaussian = 2 * len(samplers._gaussian_table().high)
    worst = max(
        2 * sum(len(table.high) for table in samplers.geometric_tables(scale)[1])
        for scale in np.append(
            2.0 ** np.arange(48), [190_000, 780e6, MAX_LAPLACE_SCALE]
        )
    )
    assert max(n_gaussian, worst) * 2.0**-128 < samplers.TABLE_ERROR


@pytest.mark.parametrize("fraction", [(1, 10**9), (1, 3), (7, 2), (100, 1), (177, 1)])
def test_fixed_point_exponential(fraction):
    with mp.workprec(600):
        exact = mp.ldexp(mp.exp(-mp.mpf(fraction[0]) / fraction[1]), 256)
        assert abs(samplers.exp_fixed(*fraction) - exact) < 2


def test_convolution_is_the_discrete_gaussian_of_the_lattice():
    with mp.workprec(800):
        double = mp.mpf(2 * GAUSSIAN_BASE_SIGMA**2)

        def weight(x):
            centre = round(x * 128 / (128**2 + 1))
            shifts = range(centre - 110, centre + 111)
            return mp.fsum(
                mp.exp(-(i * i + (x - 128 * i) ** 2) / double) for i in shifts
            )

        origin = weight(0)
        for x in (1, 63, 64, 128, 1000, 65538, 200_001, 850_000):
            target = mp.exp(-(mp.mpf(x) ** 2) / (double * (128**2 + 1)))
            assert abs(weight(x) / origin / target - 1) < mp.mpf(10) ** -130


def test_tables_are_the_same_from_many_threads():
    samplers._gaussian_table.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        draws = list(
            pool.map(lambda _: discrete_gaussian(500, SeededEntropy(3)), range(16))
        )
    for draw in draws:
        assert_array_equal(draw, draws[0])


# Look-up


def test_every_word_finds_its_entry_by_exact_comparison():
    table = samplers._gaussian_table()
    cdf = cdf_integers(table)
    near = [int(h) + step for h in table.high[:-1:37] for step in (-1, 0, 1)]
    for high in [*near, 0, 2**63 - 1]:
        high = min(high, 2**63 - 1)
        for low in (0, 2**63, 2**64 - 1):
            found = discrete_gaussian_base(1, Script(high << 1, low))
            assert abs(found[0]) == bisect.bisect_right(cdf, (high << 64) + low)


def test_low_words_are_drawn_on_ties_only_and_settle_them():
    table = samplers._gaussian_table()
    for k in (0, 5, 700, 3000):
        high, low = int(table.high[k]), int(table.low[k])
        before, at = Script(high << 1, low - 1), Script(high << 1, low)
        assert discrete_gaussian_base(1, before) == k
        assert discrete_gaussian_base(1, at) == k + 1
        free = Script((high - 1) << 1, 99)
        discrete_gaussian_base(1, free)
        assert before.words == at.words == [] and free.words == [99]


def test_the_far_tail_is_reached_through_ties():
    # All entries above 9 sigma share the largest high word.
    table = samplers._gaussian_table()
    tied = np.flatnonzero(table.high == 2**63 - 1)
    assert tied.size > 1000
    words = [(2**63 - 1) << 1] * 3
    lows = [int(table.low[tied[i]]) for i in (0, 500, -1)]
    assert_array_equal(
        discrete_gaussian_base(3, Script(*words, *lows)), tied[[0, 500, -1]] + 1
    )


def test_last_bit_is_the_sign_and_zero_has_none():
    table = samplers._gaussian_table()
    word = (int(table.high[9]) - 5) << 1
    values = discrete_gaussian_base(4, Script(word, word + 1, 0, 1))
    assert_array_equal(values, [9, -9, 0, 0])


def test_lattice_value_is_built_from_two_base_values():
    base = discrete_gaussian_base(200, SeededEntropy(5))
    assert_array_equal(
        discrete_gaussian(100, SeededEntropy(5)), 128 * base[::2] + base[1::2]
    )


@pytest.mark.parametrize(
    "draw",
    [
        discrete_gaussian,
        discrete_gaussian_base,
        lambda n, entropy: discrete_laplace(n, 1e6, entropy),
    ],
)
def test_os_and_seeded_entropy_share_one_path(draw):
    recorder = Recorder()
    values = draw(1000, recorder)
    assert_array_equal(draw(1000, Script(*recorder.words)), values)
    assert values.dtype == np.int64 and values.shape == (1000,)
    assert draw(0, SeededEntropy(0)).shape == (0,)
    assert_array_equal(draw(50, SeededEntropy(4)), draw(50, SeededEntropy(4)))


# Laws


def test_base_gaussian_follows_its_law():
    values = discrete_gaussian_base(400_000, SeededEntropy(11))
    k = np.arange(-6800, 6801)
    pmf = np.exp(-(k**2) / (2 * GAUSSIAN_BASE_SIGMA**2))
    cumulative = np.cumsum(pmf / pmf.sum())
    assert_follows(values, lambda x: cumulative[x.astype(int) + 6800])
    for size in (0, 1, 2):
        expected = pmf[np.abs(k) == size].sum() / pmf.sum()
        count = np.sum(np.abs(values) == size)
        assert stats.binomtest(int(count), values.size, expected).pvalue > ALPHA
    positive = int(np.sum(values > 0))
    assert stats.binomtest(positive, int(np.sum(values != 0))).pvalue > ALPHA


def test_lattice_gaussian_follows_its_law():
    values = discrete_gaussian(1_000_000, SeededEntropy(12))
    assert_follows(values, lambda x: gaussian_cdf(x, GAUSSIAN_SIGMA))
    spread = SeededEntropy(13).uint64(values.size) / 2**64 - 0.5
    assert stats.kstest((values + spread) / GAUSSIAN_SIGMA, "norm").pvalue > ALPHA
    for bits in (1, 7, 8):
        counts = np.bincount(values % 2**bits, minlength=2**bits)
        assert stats.chisquare(counts).pvalue > ALPHA
    variance = np.sum(values.astype(float) ** 2) / GAUSSIAN_SIGMA**2
    assert 2 * stats.chi2(values.size).sf(variance) > ALPHA
    assert 2 * stats.chi2(values.size).cdf(variance) > ALPHA


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.3, 40.25, LAPLACE_SCALE, 1e6, 3e11])
def test_laplace_follows_its_law(scale):
    values = discrete_laplace(200_000, scale, SeededEntropy(14))
    assert_follows(values, lambda x: laplace_cdf(x, scale))
    q = math.exp(-1 / scale)
    variance = 2 * q / math.expm1(-1 / scale) ** 2
    # Var(X^2) <= E X^4 <= 24 scale^4 (1 + o(1)) and at most E X^4 for small scales.
    fourth = variance + 24 * max(scale, 1) ** 4
    bound = 5.4 * math.sqrt(fourth / values.size)
    assert abs(np.mean(values.astype(float) ** 2) - variance) < bound
    zeros = int(np.sum(values == 0))
    assert stats.binomtest(zeros, values.size, (1 - q) / (1 + q)).pvalue > ALPHA


def test_laplace_digits_have_no_seams():
    # A wrong digit would show at multiples of the base.
    base, _ = samplers.geometric_tables(float(LAPLACE_SCALE))
    values = discrete_laplace(1_000_000, LAPLACE_SCALE, SeededEntropy(15))
    counts = np.bincount(values % base % 64, minlength=64)
    residues = np.bincount(np.arange(base) % 64, minlength=64) / base
    # The law of X mod base is uniform up to base^2/scale^2 ~ 1e-3: a small sample.
    small = counts / values.size
    assert np.max(np.abs(small / residues - 1)) < 0.06


def test_tiny_scale_is_zero_and_bad_scales_are_refused():
    assert not discrete_laplace(1000, 1e-3, SeededEntropy(0)).any()
    for scale in (0, -1.0, math.inf, math.nan, 2 * MAX_LAPLACE_SCALE):
        with pytest.raises(ValueError, match="scale="):
            discrete_laplace(1, scale, SeededEntropy(0))


def opendp_draws(kind, scale, n):
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    if kind == "gaussian":
        space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="i64")
        mechanism = space >> dp.m.then_gaussian(scale=float(scale))
    else:
        space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
        mechanism = space >> dp.m.then_laplace(scale=float(scale))
    return np.array(mechanism([0] * n))


@pytest.mark.parametrize(
    ("kind", "scale"),
    [
        ("gaussian", GAUSSIAN_BASE_SIGMA),
        ("gaussian", GAUSSIAN_SIGMA),
        ("laplace", 2.5),
        ("laplace", LAPLACE_SCALE),
    ],
)
def test_agrees_with_opendp(kind, scale):
    theirs = opendp_draws(kind, scale, 20_000)
    entropy = SeededEntropy(16)
    if kind == "laplace":
        ours = discrete_laplace(200_000, scale, entropy)
    elif scale == GAUSSIAN_SIGMA:
        ours = discrete_gaussian(200_000, entropy)
    else:
        ours = discrete_gaussian_base(200_000, entropy)
    edges = np.unique(np.quantile(ours, np.linspace(0, 1, 41)[1:-1]))
    table = [
        np.bincount(np.searchsorted(edges, sample), minlength=edges.size + 1)
        for sample in (ours, theirs)
    ]
    assert stats.chi2_contingency(table).pvalue > ALPHA
    # The variance of 20 000 Laplace draws has a relative sd of sqrt(5/20 000).
    assert np.var(theirs) / np.var(ours) == pytest.approx(1, abs=0.12)


# Entropy


def test_os_entropy_is_secure_and_its_children_are_itself():
    entropy = OSEntropy()
    assert entropy.secure and entropy.child(1, 2) is entropy
    words = entropy.uint64(1000)
    assert words.dtype == np.uint64 and np.unique(words).size == 1000


def test_seeded_words_are_the_raw_stream_of_the_bit_generator():
    # Recorded once: a change breaks the reproduction of published simulations.
    first = [1232279569898196538, 1457532264001425278]
    assert SeededEntropy(0).uint64(2).tolist() == first
    keyed = [10614581297579700884, 11259395541629089112]
    assert SeededEntropy(2**100, 3).uint64(2).tolist() == keyed
    assert not SeededEntropy(0).secure


def test_streams_of_different_paths_are_different():
    paths = [(0,), (0, 0), (0, 0, 0), (1,), (1, 0), (0, 1), (2**32,), (2**32, 0)]
    paths += [(0, 0, 1), (2**64,), (0, 2**32), (1, 1), (2,), (5, 1, 2), (5, 2, 1)]
    paths += [(7, i, j) for i in range(20) for j in range(20)]
    words = np.concatenate([SeededEntropy(*path).uint64(8) for path in paths])
    assert np.unique(words).size == words.size


def test_child_does_not_depend_on_the_position_of_its_parent():
    fresh, used = SeededEntropy(9), SeededEntropy(9)
    used.uint64(100)
    assert_array_equal(fresh.child(1).uint64(5), used.child(1).uint64(5))
    assert_array_equal(
        fresh.child(1).child(2).uint64(5), SeededEntropy(9, 1, 2).uint64(5)
    )


def test_children_are_uncorrelated():
    parent = SeededEntropy(10)
    noise = np.array([discrete_gaussian(4000, parent.child(i)) for i in range(40)])
    correlation = np.corrcoef(noise)[np.triu_indices(40, 1)]
    # Sum of squares of 780 correlations, each about N(0, 1/4000).
    assert stats.chi2(correlation.size).sf(4000 * np.sum(correlation**2)) > ALPHA
    assert np.max(np.abs(correlation)) < 7 / math.sqrt(4000)


@pytest.mark.parametrize("path", [(-1,), (0, -3)])
def test_negative_seeds_and_keys_are_refused(path):
    with pytest.raises(ValueError, match="is negative"):
        SeededEntropy(*path)
    with pytest.raises(TypeError):
        SeededEntropy(1.5)


def test_bits_are_fair_and_use_all_of_a_word():
    bits = SeededEntropy(1).bits(100_001)
    assert bits.dtype == np.bool_ and bits.shape == (100_001,)
    assert stats.binomtest(int(bits.sum()), bits.size).pvalue > ALPHA
    assert Script(2**64 - 1, 0).bits(65).tolist() == [True] * 64 + [False]


def test_bernoulli_is_a_threshold_rounded_down():
    assert Script(2**62 - 1, 2**62).bernoulli(2, 0.25).tolist() == [True, False]
    assert SeededEntropy(0).bernoulli(100, 1.0).all()
    assert not SeededEntropy(0).bernoulli(100, 0.0).any()
    assert not Script(0).bernoulli(1, 1e-30).any()
    below_one = math.nextafter(1, 0)
    assert not Script(2**64 - 1).bernoulli(1, below_one).any()
    count = int(SeededEntropy(2).bernoulli(100_000, 0.1).sum())
    assert stats.binomtest(count, 100_000, 0.1).pvalue > ALPHA
    with pytest.raises(ValueError, match=r"p=1\.5"):
        SeededEntropy(0).bernoulli(1, 1.5)


def test_permutation_is_uniform_and_redraws_ties():
    entropy = SeededEntropy(3)
    weights = np.array([64, 16, 4, 1])
    codes = [int(entropy.permutation(4) @ weights) for _ in range(12_000)]
    _, counts = np.unique(codes, return_counts=True)
    assert counts.size == 24
    assert stats.chisquare(counts).pvalue > ALPHA
    assert Script(5, 5, 1, 9, 3, 7).permutation(3).tolist() == [1, 2, 0]
    assert entropy.permutation(0).shape == (0,)
