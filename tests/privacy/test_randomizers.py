"""What clients draw: exact ratios, exact laws, and the same bits on every engine."""

import itertools
from decimal import Decimal, localcontext
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from skfedcal.contract import BlockSpec, CellRows
from skfedcal.privacy import polya
from skfedcal.privacy.client_mechanisms import summed_laplace, summed_reports
from skfedcal.privacy.codec import BlockCode, Codec, add_up
from skfedcal.privacy.entropy import (
    ClientStreams,
    SeededEntropy,
    _FromWords,
    uniform_below,
)
from skfedcal.privacy.randomizers import (
    GaussianShares,
    LaplaceShares,
    LocalReports,
    Oracle,
    PolyaShares,
    choose_oracle,
    one_hot_cells,
    report,
)

# Seeds are fixed, so that no test can flake; a new seed fails by chance this often.
ALPHA = 1e-7
WORD = 1 << 64


class Script:
    """Hands out the words it is given."""

    secure = True

    def __init__(self, *words):
        self.words = [int(word) for word in words]

    def uint64(self, n):
        out, self.words = self.words[:n], self.words[n:]
        assert len(out) == n
        return np.array(out, dtype=np.uint64)

    def child(self, *key):
        return self


class Secret(_FromWords):
    """One stream for all, as the operating system's, that tests can repeat."""

    secure = True

    def __init__(self, seed):
        self.generator = np.random.Philox(seed)

    def uint64(self, n):
        return self.generator.random_raw(n)

    def child(self, *key):
        return self


def streams(n, seed=0, entropy=None):
    return ClientStreams(entropy or SeededEntropy(seed), np.arange(n))


def chi_square(drawn, chances):
    """P-value of draws (one key each) against a mapping of keys to chances."""
    n = len(drawn)
    keys = sorted(chances)
    seen = dict.fromkeys(keys, 0)
    for key in drawn:
        assert key in seen
        seen[key] += 1
    observed = np.array([seen[key] for key in keys], float)
    expected = n * np.array([float(chances[key]) for key in keys])
    common = expected > 8
    observed = np.append(observed[common], observed[~common].sum())
    expected = np.append(expected[common], expected[~common].sum())
    if expected[-1] < 8:
        observed, expected = observed[:-1], expected[:-1]
        expected *= observed.sum() / expected.sum()
    if len(expected) < 2:
        return 1.0
    return stats.chisquare(observed, expected).pvalue


def report_law(oracle, cell):
    """Exact chances of reports as sets of cells, "none" included, by definition."""
    own, other = (Fraction(t, WORD) for t in oracle.thresholds)
    value = oracle.domain if cell < 0 else cell
    law = {}
    if oracle.kind == "rr":
        bit = cell == 0
        return {(0,): own if bit else other, (): other if bit else own}
    if oracle.kind == "grr":
        return {(v,): own if v == value else other for v in range(oracle.n_values)}
    if oracle.kind == "subset":
        k, d = oracle.set_size, oracle.n_values
        inside, outside = own / comb(d - 1, k - 1), (1 - own) / comb(d - 1, k)
        for chosen in itertools.combinations(range(d), k):
            law[chosen] = inside if value in chosen else outside
        return law
    own = own if oracle.kind == "oue" else Fraction(oracle.thresholds.own, WORD)
    other = other if oracle.kind == "oue" else Fraction(1, oracle.n_values)
    for bits in itertools.product((0, 1), repeat=oracle.domain):
        chance = Fraction(1)
        for i, bit in enumerate(bits):
            p = own if i == cell else other
            chance *= p if bit else 1 - p
        law[tuple(i for i, bit in enumerate(bits) if bit)] = chance
    return law


def exceeds(ratio, eps):
    """Whether a fraction is more than exp(eps), in 80 digits."""
    with localcontext() as context:
        context.prec = 80
        return (
            Decimal(ratio.numerator) / Decimal(ratio.denominator) > Decimal(eps).exp()
        )


# ------------------------------------------------------------ eps to the last bit

EPS = [1e-3, 0.1, 1.0, 2.5, 5.0, 12.0, 40.0]


@pytest.mark.parametrize("eps", EPS)
@pytest.mark.parametrize(
    ("kind", "domain"),
    [("grr", 2), ("grr", 7), ("subset", 2), ("subset", 6), ("oue", 3), ("rr", 1)],
)
def test_no_report_tells_more_than_eps(kind, domain, eps):
    oracle = Oracle(kind, eps, domain)
    laws = [report_law(oracle, cell) for cell in range(-1, domain)]
    for law in laws:
        assert sum(law.values()) == 1
    worst = max(
        first[said] / second[said]
        for first, second in itertools.permutations(laws, 2)
        for said in first
    )
    assert not exceeds(worst, eps)
    if eps < 20:  # and no more noise than that needs
        assert exceeds(worst * (1 + Fraction(1, 10**8)), eps)


@pytest.mark.parametrize("eps", EPS)
def test_hashed_reports_tell_no_more_than_eps(eps):
    # The function is drawn before the value is looked at; given it, a part is named.
    oracle = Oracle("olh", eps, 9)
    n_parts, (own, other) = oracle.n_values, oracle.thresholds
    assert own + (n_parts - 1) * other == WORD
    width = WORD // n_parts
    blank = {Fraction(width, WORD), Fraction(WORD - (n_parts - 1) * width, WORD)}
    chances = {Fraction(own, WORD), Fraction(other, WORD), *blank}
    assert not exceeds(max(chances) / min(chances), eps)


@pytest.mark.parametrize("kind", ["grr", "subset", "oue"])
def test_thresholds_one_unit_less_safe_would_break_eps(kind):
    oracle = Oracle(kind, 1.0, 4)
    own, other = oracle.thresholds
    if kind == "grr":
        ratio = Fraction(WORD - 4 * (other - 1), other - 1)
    elif kind == "oue":
        ratio = Fraction(WORD - (other - 1), other - 1)
    else:
        k, d = oracle.set_size, oracle.n_values
        ratio = Fraction(own + 1, WORD - own - 1) * (d - k) / k
    assert exceeds(ratio, 1.0)


# --------------------------------------------------- words become what is announced


def test_generalised_response_gives_every_other_value_its_words():
    oracle = Oracle("grr", 1.0, 3)
    own, other = oracle.thresholds
    said = []
    edges = [0, own - 1, own, own + other - 1, own + other, own + 2 * other, WORD - 1]
    for word in edges:
        total = report(oracle, np.array([1]), streams(1, entropy=Script(word)), 0)
        said.append(int(np.flatnonzero(total)[0]) if total.any() else 3)
    assert said == [1, 1, 2, 2, 3, 0, 0]


def test_unary_bits_and_randomised_response_follow_their_thresholds():
    oracle = Oracle("oue", 1.0, 3)
    other = oracle.thresholds.other
    words = Script(other - 1, WORD // 2 - 1, other)
    assert report(oracle, np.array([1]), streams(1, entropy=words), 0).tolist() == [
        1,
        1,
        0,
    ]
    words = Script(other, WORD // 2, 0)
    assert report(oracle, np.array([1]), streams(1, entropy=words), 0).tolist() == [
        0,
        0,
        1,
    ]
    coin = Oracle("rr", 1.0, 1)
    for word, cell, bit in [
        (coin.thresholds.own - 1, 0, 1),
        (coin.thresholds.own, 0, 0),
        (coin.thresholds.own - 1, -1, 0),
        (coin.thresholds.own, -1, 1),
    ]:
        total = report(coin, np.array([cell]), streams(1, entropy=Script(word)), 0)
        assert total.tolist() == [bit]


def test_subsets_hold_the_smallest_keys_and_redraw_ties():
    oracle = Oracle("subset", 0.1, 4)  # five values, two of which are named
    assert oracle.set_size == 2
    keys = [100, 200, 300, 400, 500]
    inside = Script(0, *keys)
    assert report(oracle, np.array([3]), streams(1, entropy=inside), 0).tolist() == [
        1,
        0,
        0,
        1,
    ]
    outside = Script(WORD - 1, *keys)
    assert report(oracle, np.array([0]), streams(1, entropy=outside), 0).tolist() == [
        0,
        1,
        1,
        0,
    ]
    tied = Script(WORD - 1, 8, 8, 300, 400, 500, *keys[::-1])
    assert report(oracle, np.array([0]), streams(1, entropy=tied), 0).tolist() == [
        0,
        0,
        0,
        1,
    ]  # 400 and "none"


def test_uniform_numbers_throw_away_the_incomplete_turn():
    over = WORD - 1  # 2**64 = 1 mod 3: the last word is one too many
    assert uniform_below(3, 3, Script(4, over, 2, over, 7)).tolist() == [1, 1, 2]
    assert uniform_below(2, 4, Script(over, 6)).tolist() == [3, 2]


# ------------------------------------------------------------------ laws of reports


@pytest.mark.parametrize(
    ("kind", "eps", "domain"),
    [
        ("rr", 0.5, 1),
        ("grr", 1.0, 3),
        ("subset", 0.4, 4),
        ("oue", 1.0, 3),
        ("olh", 1.0, 3),
    ],
)
@pytest.mark.parametrize("secure", [False, True])
def test_sums_of_reports_have_their_joint_law_in_both_modes(kind, eps, domain, secure):
    # Three clients, one without a value: the joint law of all cells by enumeration.
    oracle = Oracle(kind, eps, domain)
    cells = [-1, 0, domain - 1]
    law = {(0,) * domain: Fraction(1)}
    for cell in cells:
        after = {}
        for said, chance in report_law(oracle, cell).items():
            step = tuple(int(i in said) for i in range(domain))
            for key, before in law.items():
                new = tuple(a + b for a, b in zip(key, step, strict=True))
                after[new] = after.get(new, 0) + before * chance
        law = after
    counts = np.bincount([c for c in cells if c >= 0], minlength=domain)
    entropy = Secret(5) if secure else SeededEntropy(5)
    n = 4000
    faithful, fast = [], []
    for i in range(n):
        source = ClientStreams(entropy.child(i), np.arange(3))
        faithful.append(tuple(report(oracle, np.array(cells), source, 0).tolist()))
        fast.append(tuple(summed_reports(oracle, counts, 3, entropy.child(i)).tolist()))
    assert chi_square(faithful, law) > ALPHA
    assert chi_square(fast, law) > ALPHA


def test_fast_sums_of_subsets_have_the_covariance_of_single_reports():
    # Independent cells would have the right variances and the wrong sums of cells.
    oracle = Oracle("subset", 1.0, 15)
    counts = np.arange(15) * 4
    n = int(counts.sum()) + 10
    cells = np.append(np.repeat(np.arange(15), counts), np.full(10, -1))
    fast = np.array(
        [
            summed_reports(oracle, counts, n, SeededEntropy(i))[:8].sum()
            for i in range(1500)
        ]
    )
    slow = np.array(
        [report(oracle, cells, streams(n, seed=i), 0)[:8].sum() for i in range(1500)]
    )
    p, q, own = oracle.p, oracle.q, counts[:8].sum()
    mean = own * p + 7 * own * q + 8 * (n - own) * q
    for drawn in (fast, slow):
        assert abs(drawn.mean() - mean) < 5.4 * drawn.std() / np.sqrt(1500)
    # F test of equal variances; 1500 draws each.
    ratio = fast.var() / slow.var()
    f = stats.f(1499, 1499)
    assert f.ppf(ALPHA / 2) < ratio < f.isf(ALPHA / 2)


@pytest.mark.parametrize("kind", ["grr", "subset", "oue", "olh"])
def test_variance_is_that_of_an_estimate(kind):
    oracle = Oracle(kind, 1.5, 8)
    counts = np.array([400, 100, 100, 100, 100, 50, 50, 0])
    n = 1000
    drawn = np.array(
        [summed_reports(oracle, counts, n, SeededEntropy(i)) for i in range(3000)]
    )
    estimates = (drawn - n * oracle.q) / (oracle.p - oracle.q)
    for cell in (0, 1, 7):
        variance = n * oracle.variance(counts[cell] / n)
        got = estimates[:, cell]
        assert abs(got.mean() - counts[cell]) < 5.4 * np.sqrt(variance / 3000)
        spread = 2999 * got.var(ddof=1) / variance
        low, high = stats.chi2(2999).ppf([1e-6, 1 - 1e-6])  # not quite normal
        assert low * 0.97 < spread < high * 1.03


def test_the_best_oracle_is_that_of_the_table():
    # Small domains and large eps: response; few cells and small eps: subsets.
    assert choose_oracle(5.0, 4).kind == "grr"
    assert choose_oracle(5.0, 256).kind == "subset"
    assert choose_oracle(2.0, 16).kind == "subset"
    assert choose_oracle(1.0, 1024).kind == "oue"
    assert choose_oracle(1.0, 1).kind == "rr"
    # Variance per client of the spec (d cells; ours tells "none" from them as well).
    assert Oracle("oue", 5.0, 4).variance() == pytest.approx(0.277, abs=1e-3)
    assert Oracle("oue", 2.0, 4).variance() == pytest.approx(0.97, abs=1e-2)
    assert Oracle("grr", 5.0, 15).variance(1 / 16) == pytest.approx(0.013, abs=1e-3)
    assert Oracle("subset", 5.0, 255).variance() == pytest.approx(0.023, abs=1e-3)
    hashed, unary = Oracle("olh", 3.0, 100), Oracle("oue", 3.0, 100)
    assert hashed.variance() == pytest.approx(unary.variance(), rel=0.02)


# --------------------------------------------------------------------- Polya shares


def share_law(r, scale, reach):
    """Law of NB(r) - NB(r), by convolution."""
    q = np.exp(-1 / scale)
    size = int(60 * scale) + reach
    weights = stats.nbinom(r, 1 - q).pmf(np.arange(size))
    full = np.convolve(weights, weights[::-1])
    return {k: full[size - 1 + k] for k in range(-reach, reach + 1)}


@pytest.mark.parametrize(("scale", "n_shares"), [(1.0, 1), (0.7, 4), (3.0, 25)])
@pytest.mark.parametrize("secure", [False, True])
def test_shares_add_up_to_discrete_laplace_noise(scale, n_shares, secure):
    shares = PolyaShares({"x": scale}, n_shares)
    codec = Codec({"x": BlockCode(BlockSpec((20_000,), clip=1.0, norm="l1"), 1.0)})
    entropy = Secret(1) if secure else SeededEntropy(1)
    source = ClientStreams(entropy, np.arange(n_shares))
    (noise,) = shares.shares(codec, source)["x"]
    q = np.exp(-1 / scale)
    law = {k: (1 - q) / (1 + q) * q ** abs(k) for k in range(-200, 201)}
    assert chi_square(noise.tolist(), law) > ALPHA
    wrong = {k: v * np.exp(-0.1 * abs(k) / scale) for k, v in law.items()}
    total = sum(wrong.values())
    assert chi_square(noise.tolist(), {k: v / total for k, v in wrong.items()}) < 1e-6


def test_one_share_is_a_difference_of_negative_binomials():
    shares = PolyaShares({"x": 2.0}, 3)
    codec = Codec({"x": BlockCode(BlockSpec((30_000,), clip=1.0, norm="l1"), 1.0)})
    (noise,) = shares.shares(codec, streams(1))["x"]
    assert chi_square(noise.tolist(), share_law(1 / 3, 2.0, 150)) > ALPHA
    # Arrivals at one number do not come with arrivals at its neighbour.
    assert abs(np.corrcoef(noise[1:], noise[:-1])[0, 1]) < 5.4 / np.sqrt(len(noise))


@pytest.mark.parametrize("eps", [0.1, 1.0])
def test_missing_shares_cost_eps_and_n_min_pays_for_them(eps):
    # 100 clients, 10 of which drop out; the law of what is left, exactly.
    def true_eps(survivors, n_shares):
        law = share_law(survivors / n_shares, 1 / eps, 40)
        chances = np.array([law[k] for k in sorted(law)])
        return np.abs(np.diff(np.log(chances))).max()

    assert true_eps(100, 100) == pytest.approx(eps, rel=1e-9)
    assert true_eps(90, 100) > eps * 1.09  # spec: 1.099 at eps=1, 1.46 times at 0.1
    for survivors in range(90, 101):
        assert true_eps(survivors, 90) <= eps * (1 + 1e-9)


def test_shares_of_many_together_have_the_law_of_their_sum():
    drawn = polya.polya_sum(20_000, 1.5, 3, 10, SeededEntropy(3))
    assert chi_square(drawn.tolist(), share_law(0.3, 1.5, 120)) > ALPHA


@pytest.mark.parametrize("scale", [0.3, 1.0, 40.0])
def test_tables_of_shares_are_exact(scale):
    import mpmath

    law = polya.polya_law(scale, 7, 5)
    with mpmath.workprec(400):
        q = mpmath.exp(-1 / mpmath.mpf(scale))
        rate = -mpmath.log(1 - q)
        mean = 2 * 7 * rate / 5
        assert law.mean == pytest.approx(float(mean), rel=1e-14)
        assert law.n_draws == 1
        for table, weight in (
            (law.counts, lambda k: mpmath.exp(-mean) * mean**k / mpmath.factorial(k)),
            (
                polya._table(scale)[0],
                lambda k: q ** (k + 1) / (k + 1) / rate,
            ),
        ):
            partial = mpmath.mpf(0)
            for k, (high, low) in enumerate(zip(table.high, table.low, strict=True)):
                partial += weight(k)
                assert abs((int(high) << 64) + int(low) - partial * 2**127) < 2


def test_the_error_that_is_charged_covers_all_tables():
    for scale, size, n_shares in [
        (polya.MAX_POLYA_SCALE, 1, 1),
        (30.0, 3000, 10),
        (0.1, 5, 10**6),
        (2000.0, 50, 1),
        (1e7, 3, 40),
    ]:
        law = polya.polya_law(scale, size, n_shares)
        tables = n_shares * law.n_draws * len(law.counts.high)
        error = tables * 2.0**-128 + n_shares * law.mean * polya.SIZE_ERROR
        assert error < polya.polya_error(size, n_shares)
    with pytest.raises(ValueError, match="too wide for shares"):
        polya.polya_law(2.0**41, 3, 3)


def test_sums_of_laplace_noise_have_the_law_of_single_draws():
    n, size, scale = 5, 8000, 1.7
    codec = Codec({"x": BlockCode(BlockSpec((size,), clip=1.0, norm="l1"), 1.0)})
    slow = LaplaceShares({"x": scale}).shares(codec, streams(n, 2))["x"][0]
    fast = summed_laplace(size, scale, n, SeededEntropy(2))
    law = share_law(n, scale, 150)
    assert chi_square(slow.tolist(), law) > ALPHA
    assert chi_square(fast.tolist(), law) > ALPHA


# ------------------------------------------------------------ one client, one stream

SHARES = {
    "polya": PolyaShares({"a": 2.0, "b": 5.0}, 3),
    "wide polya": PolyaShares({"a": 2.0, "b": 1e6}, 3),
    "laplace": LaplaceShares({"a": 2.0, "b": 5.0}),
    "gaussian": GaussianShares(),
}
TWO = Codec(
    {
        name: BlockCode(BlockSpec((size,), clip=1.0, norm="l1"), 1.0)
        for name, size in (("a", 5), ("b", 9))
    }
)


@pytest.mark.parametrize("name", SHARES)
@pytest.mark.parametrize("cuts", [[3], [1, 2, 7], [8]])
def test_shares_do_not_depend_on_who_is_asked_together(name, cuts):
    whole = SHARES[name].shares(TWO, streams(10))
    order = np.array([4, 5, 6, 0, 1, 9, 8, 7, 3, 2])
    parts = np.split(order, cuts)
    total = TWO.zeros()
    for part in parts:
        answer = SHARES[name].shares(TWO, ClientStreams(SeededEntropy(0), part))
        for block, value in answer.items():
            total[block] += value
    for block, value in whole.items():
        assert np.array_equal(total[block], value)
        assert value.any()


@pytest.mark.parametrize("kind", ["grr", "subset", "oue", "olh"])
def test_reports_do_not_depend_on_who_is_asked_together(kind):
    reports = LocalReports({"x": Oracle(kind, 1.0, 6)})
    rows = np.eye(6, dtype=np.int64)[np.arange(10) % 6][:, None]
    whole = reports.reports({"x": rows}, streams(10))["x"]
    total = np.zeros_like(whole)
    for part in np.split(np.array([9, 1, 2, 3, 0, 8, 4, 7, 6, 5]), [2, 7]):
        source = ClientStreams(SeededEntropy(0), part)
        total += reports.reports({"x": rows[part]}, source)["x"]
    assert np.array_equal(total, whole)


def test_clients_and_blocks_and_rounds_draw_different_words():
    seen = set()
    for stream in range(3):
        words = streams(50).words(stream, 5)
        seen |= set(words.ravel().tolist())
        seen |= {int(streams(50).own(stream, i).uint64(1)[0]) for i in range(50)}
    assert len(seen) == 3 * (250 + 50)


def test_a_stream_can_be_entered_anywhere():
    words = SeededEntropy(3, 1).uint64(40)
    assert np.array_equal(SeededEntropy(3, 1).at(12).uint64(9), words[12:21])
    with pytest.raises(ValueError, match="multiple of 4"):
        SeededEntropy(3).at(6)


# ------------------------------------------------------------------- one-hot, sparse


@pytest.mark.parametrize("row", [[1, 1, 0], [2, 0, 0], [-1, 0, 0], [1, -1, 1]])
def test_more_than_one_entry_is_refused(row):
    rows = np.array([[0, 1, 0], row])[:, None]
    with pytest.raises(ValueError, match="max_examples_per_client=1"):
        one_hot_cells(rows, "x")


def test_cells_of_one_hot_rows():
    rows = np.array([[0, 1, 0], [0, 0, 0], [0, 0, 1]])[:, None]
    assert one_hot_cells(rows, "x").tolist() == [1, -1, 2]
    sparse = CellRows(np.array([0, 2]), np.array([1, 2]), 3, (3,))
    assert one_hot_cells(sparse, "x").tolist() == [1, -1, 2]
    twice = CellRows(np.array([0, 2, 2]), np.array([1, 2, 2]), 3, (3,))
    with pytest.raises(ValueError, match="max_examples_per_client=1"):
        one_hot_cells(twice, "x")


@given(data=st.data(), limit=st.integers(1, 4))
@settings(deadline=None)
def test_sparse_rows_are_bounded_and_summed_as_dense_ones(data, limit):
    entries = data.draw(
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=20)
    )
    entries.sort(key=lambda pair: pair[0])
    rows = np.array([r for r, _ in entries], dtype=np.int64)
    cells = np.array([c for _, c in entries], dtype=np.int64)
    sparse = CellRows(rows, cells, 6, (2, 4))
    code = BlockCode(BlockSpec((2, 4), "count", clip=limit, norm="l1"), 1.0)
    kept = code.encode(sparse)
    assert isinstance(kept, CellRows)
    sizes = np.bincount(kept.rows, minlength=6)
    assert sizes.tolist() == np.minimum(np.bincount(rows, minlength=6), limit).tolist()
    assert np.array_equal(add_up(kept), kept.dense().reshape(6, 1, 8).sum(axis=0))
    if not (np.bincount(rows, minlength=6) > limit).any():
        assert np.array_equal(add_up(kept), add_up(code.encode(sparse.dense())))
    free = BlockCode(BlockSpec((2, 4), "count"))
    assert np.array_equal(
        add_up(free.encode(sparse)), add_up(free.encode(sparse.dense()))
    )
    gaussian = BlockCode(BlockSpec((2, 4), "count", clip=1.0), 0.01)
    assert np.array_equal(gaussian.encode(sparse), gaussian.encode(sparse.dense()))


@pytest.mark.parametrize(
    ("rows", "cells"),
    [
        ([1, 0], [0, 0]),
        ([0, 3], [0, 0]),
        ([-1], [0]),
        ([0], [8]),
        ([0], [-1]),
        ([0], []),
    ],
)
def test_sparse_rows_out_of_place_are_refused(rows, cells):
    values = CellRows(np.array(rows), np.array(cells, dtype=int), 3, (2, 4))
    with pytest.raises(ValueError, match="CellRows needs one cell"):
        BlockCode(BlockSpec((2, 4), "count")).encode(values)
