"""Sizes of arrivals: exact laws, narrow and wide, and the error that is charged."""

import math

import numpy as np
import pytest
from scipy import special, stats

from skfedcal.contract import BlockSpec
from skfedcal.privacy import polya
from skfedcal.privacy.codec import BlockCode, Codec
from skfedcal.privacy.entropy import ClientStreams, SeededEntropy
from skfedcal.privacy.randomizers import PolyaShares
from skfedcal.privacy.samplers import geometric_tables

# Seeds are fixed, so that no test can flake; a new seed fails by chance this often.
ALPHA = 1e-7
WIDE = [300.0, 2.0**13, 12345.678, 2.0**25, 2.0**40]


class Script:
    """Hands out the words it is given."""

    secure = True

    def __init__(self, *words):
        self.words = list(words)

    def uint64(self, n):
        out, self.words = self.words[:n], self.words[n:]
        assert len(out) == n
        return np.array(out, dtype=np.uint64)


def tail(n, scale):
    """Sum of exp(-k/scale)/k from n on: terms up to 512, then Euler and Maclaurin."""
    first = max(n, 512)
    k = np.arange(n, first)
    x = first / scale
    rest = special.exp1(x) + math.exp(-x) / first / 2
    rest += math.exp(-x) / 12 * (1 / first**2 + 1 / (first * scale))
    return float((np.exp(-k / scale) / k).sum() + rest)


def test_the_tail_is_what_a_sum_over_all_numbers_gives():
    k = np.arange(1, 200_000)
    terms = np.exp(-k / 2000.0) / k
    for n in (1, 3, 600, 5000):
        assert tail(n, 2000.0) == pytest.approx(terms[n - 1 :].sum(), rel=1e-9)


@pytest.mark.parametrize("scale", [0.2, 1.0, 40.0, 255.0, *WIDE])
def test_the_weight_of_all_sizes_is_a_logarithm(scale):
    import mpmath

    with mpmath.workprec(500):
        exact = -mpmath.log(1 - mpmath.exp(-1 / mpmath.mpf(scale)))
        got = mpmath.mpf(polya.log_weight(scale)) / 2**256
        # A table leaves out a tail of 2**-140.
        assert abs(got / exact - 1) < 2.0**-130
        assert 2 * exact < 2 * mpmath.log(1 + scale) < polya._MAX_ARRIVALS


@pytest.mark.parametrize("scale", [0.7, 3.0, 40.0])
def test_rejection_gives_the_law_of_the_table(scale, monkeypatch):
    table = polya.logarithmic(40_000, scale, SeededEntropy(1))
    monkeypatch.setattr(polya, "_TABLE_SCALE", 0.0)
    proposed = polya.logarithmic(40_000, scale, SeededEntropy(2))
    k = np.arange(1, 4000)
    chances = np.exp(-k / scale) / k
    chances /= chances.sum()
    for drawn in (table, proposed):
        counts = np.bincount(drawn, minlength=4000)[1:]
        common = len(drawn) * chances > 8
        observed = np.append(counts[common], counts[~common].sum())
        expected = np.append(chances[common], chances[~common].sum()) * len(drawn)
        # About 0.3 of the proposals of scale 40 are thrown away: were they kept, a
        # chance of the first number would be off by a third.
        assert stats.chisquare(observed, expected).pvalue > ALPHA


@pytest.mark.parametrize("scale", WIDE)
def test_wide_laws_are_those_of_a_logarithmic_variable(scale):
    n = 60_000
    drawn = polya.logarithmic(n, scale, SeededEntropy(3))
    # Edges inside of blocks and between them.
    last = int(math.log2(4 * scale))
    edges = np.unique(
        [1, 2, 3, 5, *(int(2**j * f) for j in range(3, last) for f in (1, 1.3, 1.7))]
    )
    tails = np.array([tail(int(edge), scale) for edge in edges])
    expected = n * -np.diff(np.append(tails, 0.0)) / tails[0]
    observed, _ = np.histogram(drawn, [*edges, np.inf])
    assert (expected > 8).all()
    assert stats.chisquare(observed, expected).pvalue > ALPHA
    assert len(np.unique(drawn[drawn > 64] % 2)) == 2


def test_one_number_of_a_block_is_kept_with_the_chance_of_its_share():
    # Below 6: 3 is below 4, 5 is not; 6 and 7 are drawn again.
    said = [
        polya._in_first_part(np.array([4]), np.array([6]), Script(*words))[0]
        for words in ([3], [5], [6, 7, 1], [7, 4])
    ]
    assert said == [True, False, True, False]
    kept = polya._in_first_part(
        np.full(40_000, 4), np.full(40_000, 7), SeededEntropy(0)
    )
    assert stats.binomtest(int(kept.sum()), 40_000, 4 / 7).pvalue > ALPHA


@pytest.mark.parametrize("scale", [0.1, 30.0, 256.0, *WIDE])
def test_the_error_that_is_charged_covers_what_is_read(scale):
    if scale <= polya._TABLE_SCALE:
        entries = len(polya._table(scale)[0].high)
    else:
        weights = [math.exp(-(2.0**j) / scale) for j in range(60)]
        tries = math.fsum(weights) / (polya.log_weight(scale) / 2**256)
        assert tries < 2
        entries = len(polya._blocks(scale).high)
        entries += sum(len(table.high) for table in geometric_tables(scale)[1])
        entries *= tries
    assert entries * 2.0**-128 < polya.SIZE_ERROR


@pytest.mark.parametrize("scale", [2000.0, 2.0**24])
def test_wide_shares_add_up_to_laplace_noise(scale):
    size, n_shares = 6000, 3
    codec = Codec({"x": BlockCode(BlockSpec((size,), clip=1.0, norm="l1"), 1.0)})
    shares = PolyaShares({"x": scale}, n_shares)
    streams = ClientStreams(SeededEntropy(5), np.arange(n_shares))
    (noise,) = shares.shares(codec, streams)["x"]
    # A step is 1/2000 of the scale, far below what 6000 draws can tell.
    assert stats.kstest(noise, stats.laplace(scale=scale).cdf).pvalue > ALPHA
    (one,) = shares.shares(codec, streams.part(0, 1))["x"]
    assert stats.kstest(one, stats.laplace(scale=scale).cdf).pvalue < 1e-12
