"""Variances of answers, against enumeration and simulation of reports."""

from itertools import combinations, product

import numpy as np
import pytest

from skfedcal.evaluation.noise import LevelLaw, NoiseModel, _one_report


def reports(kind, d, p, q):
    """All reports of a client with value v: list of (chance, supported cells) per v."""
    out = []
    for v in range(d):
        if kind == "grr":
            law = [(p if c == v else q, (c,)) for c in range(d)]
        elif kind == "unary":
            law = []
            for bits in product((0, 1), repeat=d):
                rate = [p if c == v else q for c in range(d)]
                chance = np.prod(
                    [r if b else 1 - r for r, b in zip(rate, bits, strict=True)]
                )
                law.append((chance, tuple(np.flatnonzero(bits))))
        else:
            size = round(q * (d - 1) + p)
            sets = list(combinations(range(d), size))
            with_v = sum(v in s for s in sets)
            law = [
                (p / with_v if v in s else (1 - p) / (len(sets) - with_v), s)
                for s in sets
            ]
        out.append(law)
    return out


def chances(kind, d):
    if kind == "grr":
        p = 0.6
        return p, (1 - p) / (d - 1)
    if kind == "unary":
        return 0.5, 0.2
    size, p = 3, 0.7
    return p, (size - p) / (d - 1)


@pytest.mark.parametrize("kind", ["grr", "unary", "subset"])
def test_variance_of_one_report_is_that_of_all_its_outcomes(kind):
    d = 8
    p, q = chances(kind, d)
    rng = np.random.default_rng(0)
    share, weight = rng.dirichlet(np.ones(d)), rng.normal(size=d)
    laws = reports(kind, d, p, q)
    first = second = 0.0
    for f, law in zip(share, laws, strict=True):
        assert sum(chance for chance, _ in law) == pytest.approx(1)
        for chance, cells in law:
            value = weight[list(cells)].sum()
            first += f * chance * value
            second += f * chance * value**2
    law = LevelLaw(2, kind, 0.0, p, q, 1, d)
    assert _one_report(law, weight, share) == pytest.approx(second - first**2)


def test_local_variance_is_that_of_simulated_fits():
    # GRR on levels of 4 and 8 cells, half of 2000 clients each, drawn 4000 times. The
    # variance of a normal variable is estimated to 1 +- 2.2 %; 12 % are 5.4 of these.
    rng = np.random.default_rng(2)
    share = rng.dirichlet(np.ones(8)).reshape(2, 4)
    functional = rng.normal(size=(2, 4))
    laws, draws = [], []
    for bits, d in ((1, 4), (2, 8)):
        p, q = chances("grr", d)
        laws.append(LevelLaw(bits, "grr", 0.0, p, q, 1000, d))
        true = share.reshape(2, 2**bits, -1).sum(axis=-1).ravel()
        counts = rng.multinomial(1000, q + (p - q) * true, size=4000)
        draws.append(((counts - 1000 * q) / (p - q)).reshape(-1, 2, 2**bits))
    noise = NoiseModel(tuple(laws))
    fits = noise.estimate(draws)
    np.testing.assert_allclose(fits.mean(axis=0), share * 2000, atol=8)
    found = (fits * functional).sum(axis=(1, 2)).var()
    sampling, privacy = noise.variances(share * 2000, functional)
    assert found == pytest.approx(sampling + privacy, rel=0.12)


def test_exact_counts_have_multinomial_variance():
    counts = np.array([[3.0, 5.0], [4.0, 8.0]])
    functional = np.array([[1.0, 0.0], [0.0, 0.0]])
    noise = NoiseModel((LevelLaw(1),))
    sampling, privacy = noise.variances(counts, functional)
    assert sampling == pytest.approx(20 * 0.15 * 0.85)
    assert privacy == 0


def test_functionals_come_in_stacks():
    rng = np.random.default_rng(0)
    laws = (LevelLaw(1, "additive", 2.0), LevelLaw(3, "additive", 3.0))
    noise, counts = NoiseModel(laws), rng.uniform(0, 9, (2, 8))
    stack = rng.normal(size=(5, 2, 8))
    together = noise.variances(counts, stack)
    for i, functional in enumerate(stack):
        alone = noise.variances(counts, functional)
        np.testing.assert_allclose([together[0][i], together[1][i]], alone)


def test_the_direction_of_least_noise_is_the_covariance_times_the_functional():
    levels = (LevelLaw(1, "additive", 3.0), LevelLaw(3, "additive", 2.0))
    model, rng = NoiseModel(levels), np.random.default_rng(4)
    functional, other = rng.normal(size=(2, 2, 8))
    step = model.direction(functional)
    counts = np.full((2, 8), 50.0)
    variance = model.variances(counts, functional)[1]
    assert (step * functional).sum() == pytest.approx(variance)
    # Covariance with any other functional, from variances of sums.
    both, apart = (
        model.variances(counts, functional + sign * other)[1] for sign in (1, -1)
    )
    assert (step * other).sum() == pytest.approx((both - apart) / 4)
