"""Errors that are foretold against those that simulations have."""

import numpy as np
import pytest
from scipy.special import expit

import skfedcal
from skfedcal.evaluation import ScoreHistogram, expected_error, plan
from skfedcal.evaluation.grid import ScoreGrid
from skfedcal.evaluation.noise import level_noise
from skfedcal.evaluation.planning import (
    METRICS,
    ScoreModel,
    auto_release,
    ratio,
)
from skfedcal.evaluation.ranking import auc_with_gradient as area
from skfedcal.evaluation.ranking import average_precision
from skfedcal.privacy import (
    CentralDP,
    DistributedDP,
    LocalDP,
    SecureAggregation,
    SourceDP,
)

REPEATS = 400
# A standard deviation of 400 draws is known to 1 / sqrt(800) = 3.5 %; five of these,
# and room for the delta method.
FACTOR = 1.2

MODEL = ScoreModel(0.3, 0.75)


GRID = ScoreGrid(8, "both")


def grid_of(cells):
    return ScoreGrid(int(np.log2(cells.shape[1])), "both")


def laplace(rng, eps, shape):
    chance = -np.expm1(-eps)
    return rng.geometric(chance, shape) - rng.geometric(chance, shape)


def with_gradient(name, cells):
    if name == "roc_auc":
        return area(cells)
    if name == "average_precision":
        return average_precision(cells, exact=False)
    return ratio(name, cells, grid_of(cells), 0.4)


def metric_of(name, cells):
    return with_gradient(name, cells)[0]


def spread(name, draw):
    """Root mean square distance from the truth of repeated estimates."""
    truth = metric_of(name, MODEL.cells(GRID))
    return np.sqrt(
        np.mean([(metric_of(name, draw()) - truth) ** 2 for _ in range(REPEATS)])
    )


def test_scores_of_the_model_are_calibrated_and_have_the_area():
    cells = MODEL.cells(ScoreGrid(12, "prob"))
    assert cells.sum(axis=1) == pytest.approx([0.7, 0.3])
    centres = (np.arange(2**12) + 0.5) / 2**12
    heavy = cells.sum(axis=0) > 1e-6
    shares = cells[1, heavy] / cells[:, heavy].sum(axis=0)
    np.testing.assert_allclose(shares, centres[heavy], atol=2**-12)
    assert area(cells)[0] == pytest.approx(0.75, abs=1e-6)


@pytest.mark.parametrize("n_buckets", [5, 10, 20, 40])
def test_smooth_scores_follow_theorem_4(n_buckets):
    cells = MODEL.cells(ScoreGrid(12, "prob"))
    mass = np.cumsum(cells.sum(axis=0))
    first = np.searchsorted(mass, np.arange(1, n_buckets) / n_buckets)
    counts = np.add.reduceat(cells, np.append(0, first), axis=1)
    assert abs(area(counts)[0] - 0.75) < 1.5 / (3 * n_buckets**2)


@pytest.mark.parametrize("name", [m for m in METRICS if "ece" not in m])
def test_gradients_are_those_of_finite_differences(name):
    cells = MODEL.cells(ScoreGrid(3, "both"))
    found = with_gradient(name, cells)
    for index in np.ndindex(cells.shape):
        if name == "average_precision" and cells[:, index[1]].sum() == 0:
            continue  # precision above the first row has a kink
        step = np.zeros(cells.shape)
        # A ratio of small counts at the top has a large curvature.
        size = 1e-7 if name == "average_precision" else 1e-6
        step[index] = size
        both = [metric_of(name, cells + sign * step) for sign in (1, -1)]
        slope = (both[0] - both[1]) / (2 * size)
        assert found[1][index] == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("name", ["roc_auc", "accuracy", "precision", "f1", "log_loss"])
def test_distributed_noise_gives_the_error_foretold(name):
    rng = np.random.default_rng(0)
    n, levels, eps = 3000, (4, 8), 0.5
    privacy = DistributedDP(eps)
    cells = MODEL.cells(GRID)
    noise = level_noise(privacy, levels).model

    def draw():
        counts = rng.multinomial(n, cells.ravel()).reshape(cells.shape)
        totals = [
            counts.reshape(2, 2**b, -1).sum(axis=-1) + laplace(rng, eps / 2, (2, 2**b))
            for b in levels
        ]
        return noise.estimate(totals)

    foretold = expected_error(
        name,
        n,
        privacy=privacy,
        levels=levels,
        positive_rate=0.3,
        auc=0.75,
        threshold=0.4,
    )
    # The truth of a simulation on leaves has no discretisation error.
    error = np.hypot(foretold.privacy, foretold.sampling)
    assert error / FACTOR < spread(name, draw) < error * FACTOR
    assert foretold.privacy > foretold.sampling / 4


@pytest.mark.parametrize("oracle", ["grr", "oue"])
@pytest.mark.parametrize("name", ["roc_auc", "accuracy"])
def test_local_noise_gives_the_error_foretold(name, oracle):
    rng = np.random.default_rng(1)
    n, levels = 40_000, (2, 4, 8)
    privacy = LocalDP(3.0, oracle=oracle)
    cells = MODEL.cells(GRID)
    noise = level_noise(privacy, levels).model
    # The laws as for these clients; those of the plan have more reports.
    laws = [type(law)(law.bits, law.kind, 0.0, law.p, law.q, n // 3, law.domain)
            for law in noise.levels]  # fmt: skip
    noise = type(noise)(tuple(laws))

    def reports(law):
        mine = rng.multinomial(
            n // 3, cells.reshape(2, 2**law.bits, -1).sum(-1).ravel()
        )
        if oracle == "grr":
            # Own value kept with chance p - q, else any value, or none, alike.
            kept = rng.binomial(mine, law.p - law.q)
            other = np.full(law.domain + 1, 1 / (law.domain + 1))
            seen = kept + rng.multinomial(mine.sum() - kept.sum(), other)[:-1]
        else:
            seen = rng.binomial(mine, law.p) + rng.binomial(mine.sum() - mine, law.q)
        return ((seen - mine.sum() * law.q) / (law.p - law.q)).reshape(2, -1)

    foretold = expected_error(
        name,
        n,
        privacy=privacy,
        levels=levels,
        positive_rate=0.3,
        auc=0.75,
        threshold=0.4,
    )
    error = np.hypot(foretold.privacy, foretold.sampling)
    found = spread(name, lambda: noise.estimate([reports(law) for law in noise.levels]))
    assert error / FACTOR < found < error * FACTOR
    assert foretold.privacy > foretold.sampling


@pytest.mark.parametrize("eps", [None, 0.1])
def test_bins_are_as_far_from_the_truth_as_foretold(eps):
    rng = np.random.default_rng(2)
    n, n_bins = 20_000, 10
    privacy = None if eps is None else DistributedDP(eps)
    cells = MODEL.cells(GRID)
    mass = cells.sum(axis=0)
    bins = ((np.cumsum(mass) - mass / 2) * n_bins).astype(int)
    fine = GRID.centres
    levels = (4, 8)
    noise = level_noise(privacy, levels).model
    errors = []
    for _ in range(200):
        counts = rng.multinomial(n, cells.ravel()).reshape(cells.shape)
        totals = [
            counts.reshape(2, 2**b, -1).sum(axis=-1)
            + (0 if eps is None else laplace(rng, eps / 2, (2, 2**b)))
            for b in levels
        ]
        pooled = np.stack(
            [np.bincount(bins, row, n_bins) for row in noise.estimate(totals)]
        )
        values = np.clip(pooled[1] / np.maximum(pooled.sum(axis=0), 1), 0, 1)
        errors.append(mass @ np.abs(values[bins] - fine))
    foretold = expected_error(
        "calibration", n, privacy=privacy, levels=levels, n_bins=n_bins,
        positive_rate=0.3, auc=0.75,
    )  # fmt: skip
    # Errors of the three kinds are added in squares; mean sizes are not quite that.
    assert foretold.total / 1.3 < np.mean(errors) < 1.3 * foretold.total


@pytest.mark.parametrize("name", [m for m in METRICS if m != "cwece"])
@pytest.mark.parametrize(
    "privacy", [None, CentralDP, DistributedDP, LocalDP], ids=lambda p: str(p)[-20:-2]
)
def test_more_examples_and_a_larger_budget_never_hurt(name, privacy):
    def error(n, eps):
        model = None if privacy is None else privacy(eps)
        return float(expected_error(name, n, privacy=model, height=5))

    over_n = [error(n, 1.0) for n in (1e3, 1e4, 1e5, 1e6)]
    assert over_n == sorted(over_n, reverse=True)
    over_eps = [error(1e4, eps) for eps in (0.3, 1.0, 3.0, 9.0)]
    assert over_eps == sorted(over_eps, reverse=True)


def test_what_costs_more_noise():
    def private(**options):
        model = options.pop("privacy", DistributedDP(1.0))
        return expected_error(
            "roc_auc", 1e4, privacy=model, height=10, **options
        ).privacy

    assert private(privacy=SecureAggregation()) == private(privacy=None) == 0
    assert private(max_examples=10) == pytest.approx(10 * private(), rel=0.05)
    twice = private(privacy=DistributedDP(1.0, adjacency="replace"))
    assert twice == pytest.approx(2 * private(), rel=0.05)
    sources = private(privacy=SourceDP(1.0), n_sources=25)
    assert sources == pytest.approx(5 * private())
    with pytest.raises(ValueError, match="n_sources"):
        private(privacy=SourceDP(1.0))


def test_default_heights_by_privacy():
    assert expected_error("brier", 1e4).levels == (10,)
    # Fewer buckets and levels, the fewer rows and the less budget there are.
    heights = [
        expected_error("roc_auc", n, privacy=DistributedDP(eps)).height
        for n, eps in ((1e3, 0.5), (1e4, 1.0), (1e5, 1.0), (1e6, 5.0))
    ]
    assert heights == sorted(heights) and heights[0] < 6 < heights[-1]
    for eps, height in ((1.0, 5), (3.0, 6), (5.0, 6)):
        error = expected_error("brier", 1e4, privacy=LocalDP(eps))
        assert error.levels == tuple(range(1, height + 1))


@pytest.mark.parametrize("privacy", [None, DistributedDP(1.0), LocalDP(4.0)])
def test_a_plan_needs_as_many_examples_as_it_says(privacy):
    found = plan("roc_auc", 0.01, privacy=privacy)
    height = found.error.height

    def error(n):
        return float(expected_error("roc_auc", n, privacy=privacy, height=height))

    assert error(found.n_needed) <= 0.01 < error(0.95 * found.n_needed)
    assert found.enough and "needs" in repr(found)


def test_a_plan_says_whether_there_are_enough():
    few = plan("accuracy", 0.01, n_examples=500, privacy=DistributedDP(1.0))
    many = plan("accuracy", 0.01, n_examples=500_000, privacy=DistributedDP(1.0))
    assert not few.enough and "500: not enough" in repr(few)
    assert many.enough and "500,000: enough" in repr(many)
    assert few.n_needed == many.n_needed
    # The best of three reasons to be wrong.
    assert float(many.error) < 0.01 < float(few.error)


def test_more_noise_is_planned_with_fewer_leaves():
    heights = [
        plan("roc_auc", 0.01, privacy=LocalDP(3.0), n_examples=n).error.height
        for n in (1e3, 1e5, 1e7)
    ]
    assert heights == sorted(heights) and heights[0] < heights[-1]


def test_what_no_number_of_examples_reaches():
    found = plan("roc_auc", 1e-5, height=1, n_examples=1000)
    assert found.n_needed == np.inf and not found.enough
    assert "cannot be reached with any number of examples" in repr(found)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: expected_error("auc", 100), "metric='auc'"),
        (lambda: expected_error("roc_auc", 0), "n_examples=0"),
        (lambda: expected_error("roc_auc", 100, auc=0.4), "auc=0.4"),
        (
            lambda: expected_error("roc_auc", 100, positive_rate=0),
            "positive_rate must.*got 0",
        ),
        (
            lambda: expected_error("calibration", 100, height=3, n_bins=9),
            "n_bins must.*got 9",
        ),
        (lambda: plan("roc_auc", 0), "target must.*got 0"),
    ],
)
def test_a_value_that_cannot_be_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_what_is_no_model_of_privacy_is_named():
    for given, message in (
        ("dp", "privacy='dp' is no"),
        (LocalDP, "LocalDP is a class"),
    ):
        with pytest.raises(TypeError, match=message):
            expected_error("roc_auc", 100, privacy=given)

    class Other(CentralDP.__base__):
        unit, private, eps = "client", True, 1.0

        def validate(self): ...

        strength = mechanism = validate

    with pytest.raises(ValueError, match="not supported for planning; pass None"):
        expected_error("roc_auc", 100, privacy=Other())


def test_log_odds_of_the_model_are_normal():
    rng = np.random.default_rng(3)
    spread_, prior = MODEL.spread, np.log(0.3 / 0.7)
    scores = expit(prior + spread_**2 / 2 + spread_ * rng.normal(size=100_000))
    exact = MODEL.below(np.array([0.2, 0.5]))[1] / 0.3
    # Five standard deviations of a share of 100,000 draws are below 0.008.
    np.testing.assert_allclose(
        [(scores < t).mean() for t in (0.2, 0.5)], exact, atol=0.008
    )


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
@pytest.mark.parametrize("space", ["both", "prob"])
@pytest.mark.parametrize(
    "privacy",
    [None, CentralDP(0.3), DistributedDP(0.3), LocalDP(5.0)],
    ids=lambda p: type(p).__name__,
)
def test_a_histogram_has_the_errors_foretold(privacy, space):
    rng = np.random.default_rng(4)
    n = 50_000
    labels = (rng.random(n) < 0.3).astype(int)
    shift = np.log(0.3 / 0.7) + (labels - 0.5) * MODEL.spread**2
    odds = shift + MODEL.spread * rng.normal(size=n)
    histogram = ScoreHistogram.fit(
        odds, labels, client_ids=np.arange(n), privacy=privacy, space=space,
        random_state=0,
    )  # fmt: skip
    for name, found in (
        ("roc_auc", histogram.roc_auc()),
        ("accuracy", histogram.accuracy(0.4)),
        ("recall", histogram.recall(0.4)),
    ):
        foretold = expected_error(
            name, n, privacy=privacy, space=space, positive_rate=0.3, auc=0.75,
            threshold=0.4, levels=histogram.noise_.bits,
        )  # fmt: skip
        assert found.se_privacy == pytest.approx(foretold.privacy, rel=0.1)
        assert found.se_sampling == pytest.approx(foretold.sampling, rel=0.1)


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
def test_a_plan_is_what_a_fit_does():
    rng = np.random.default_rng(0)
    odds = rng.normal(size=3000)
    labels = (rng.random(3000) < expit(odds)).astype(int)
    privacy = CentralDP(1.0)
    call = {"client_ids": np.arange(3000) % 1000, "privacy": privacy, "random_state": 0}
    found = plan("ece", 0.05, privacy=privacy, n_examples=3000, max_examples=3)
    hist = ScoreHistogram.fit(odds, labels, plan=found, **call)
    assert hist.noise_.bits == found.error.levels
    assert set(hist.privacy_.clip.values()) == {3.0}
    for metric in ("roc_auc", "average_precision", "ece", "calibration"):
        levels = expected_error(metric, 1000, privacy=privacy).levels
        named = ScoreHistogram.fit(odds, labels, plan=metric, **call)
        assert named.noise_.bits == levels
    function = skfedcal.federated_average_precision_score
    same = ScoreHistogram.fit(odds, labels, plan="average_precision", **call)
    assert function(odds, labels, **call) == same.average_precision()
    assert function(odds, labels, plan=found, **call).eps == 1.0
    with pytest.raises(ValueError, match="plan='speed'"):
        ScoreHistogram.fit(odds, labels, plan="speed", **call)
    with pytest.raises(ValueError, match="leave one of them out"):
        ScoreHistogram.fit(odds, labels, plan=found, height=4, **call)


def test_calibration_is_an_old_name_of_ece():
    old, new = (expected_error(name, 1e4) for name in ("calibration", "ece"))
    assert old == new and new.metric == "ece"


@pytest.mark.parametrize("eps", [0.5, 1.0, 5.0])
@pytest.mark.parametrize("n", [1e3, 1e4, 1e5])
def test_automatic_levels_are_nearly_the_best(n, eps):
    # In closed form, for scores that the levels were not chosen for.
    shape = {"positive_rate": 0.2, "auc": 0.75, "privacy": CentralDP(eps)}

    def error(**options):
        found = expected_error("roc_auc", n, **shape, **options)
        return np.hypot(found.privacy, found.discretisation)

    best = min(error(height=h) for h in range(3, 13))
    assert error() <= 1.1 * best


@pytest.mark.parametrize("metric", ["accuracy", "precision", "brier", "log_loss"])
def test_automatic_levels_of_other_metrics_are_nearly_the_best(metric):
    for n, eps in ((1e3, 1.0), (1e4, 0.5), (1e4, 5.0), (1e5, 1.0)):
        for rate, auc in ((0.3, 0.8), (0.1, 0.9), (0.5, 0.7)):
            common = {"privacy": CentralDP(eps), "positive_rate": rate, "auc": auc}
            own = expected_error(metric, n, **common)
            assert own.levels == auto_release(metric, n, CentralDP(eps))
            fixed = (
                expected_error(metric, n, height=h, **common) for h in range(3, 12)
            )
            assert own.total <= 1.1 * min(map(float, fixed)), (n, eps, rate)


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
@pytest.mark.parametrize(
    ("unit", "bound"), [("client", 1), ("client", 3), ("example", 1)]
)
def test_classwise_residuals_have_the_error_foretold(unit, bound):
    fed = skfedcal.make_federation(
        400, 4000, 4, temperature=1.0, noise=0.0, balance=True, random_state=0
    )
    privacy = CentralDP(0.3, unit=unit)
    rows = {} if unit == "example" else {"max_examples_per_client": bound}
    found = [
        skfedcal.ClasswiseResiduals.fit(
            fed.clients, classes=range(4), privacy=privacy, random_state=i, **rows
        )
        for i in range(20)
    ]
    foretold = expected_error(
        "cwece", 4000 if unit == "example" else 400 * bound, privacy=privacy,
        n_classes=4, max_examples=bound,
    )  # fmt: skip
    # Scores are calibrated, so that all of it is error; 1200 draws of Laplace noise,
    # whose mean size is .89 of a normal one, and a bound for sampling.
    size = np.mean([float(one.cwece(debias=False)) for one in found])
    assert 0.7 * foretold.total < size < 1.05 * foretold.total
    assert foretold.privacy > foretold.sampling


def test_rows_of_a_client_follow_from_the_target():
    common = {"privacy": CentralDP(1.0), "n_examples": 50_000, "n_clients": 1000}
    loose = plan("accuracy", 0.02, max_examples="auto", **common)
    tight = plan("accuracy", 0.01, max_examples="auto", **common)
    assert loose.max_examples == 1 < tight.max_examples < 50
    assert loose.enough and tight.enough and tight.n_examples == 3000
    never = plan("accuracy", 1e-4, max_examples="auto", **common)
    assert not never.enough
    # Noise does not decrease with the rows of a client.
    one = expected_error("accuracy", 1000, privacy=CentralDP(1.0), height=5)
    ten = expected_error(
        "accuracy", 10_000, privacy=CentralDP(1.0), height=5, max_examples=10
    )
    assert ten.privacy == pytest.approx(one.privacy, rel=0.1)
    for options, text in (
        ({"max_examples": "auto"}, "needs n_examples and n_clients"),
        ({"max_examples": "many"}, "pass 'auto' or an integer"),
        ({"n_clients": 10}, "n_clients=10 has no effect"),
        ({"max_examples": "auto", "privacy": LocalDP(1.0)}, "protect clients"),
    ):
        with pytest.raises(ValueError, match=text):
            plan("accuracy", 0.02, **{"privacy": CentralDP(1.0), **options})


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
def test_a_plan_sets_height_and_rows_of_several_classes():
    fed = skfedcal.make_federation(200, 2000, 3, balance=True, random_state=0)
    found = plan("roc_auc", 0.05, privacy=CentralDP(2.0), max_examples=4)
    area = skfedcal.federated_roc_auc_score(
        fed.clients, classes=range(3), multi_class="ovr", privacy=CentralDP(2.0),
        plan=found, random_state=0,
    )  # fmt: skip
    assert area.estimand == "at most 4 rows of a client count"
    with pytest.raises(ValueError, match="leave one of them out"):
        skfedcal.federated_roc_auc_score(
            fed.clients, multi_class="ovr", plan=found, height=5
        )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"height": 5}, "height=5"),
        ({"privacy": LocalDP(1.0)}, "LocalDP is not possible"),
        ({"n_classes": 1}, "n_classes=1"),
    ],
)
def test_what_classwise_residuals_do_not_have(options, text):
    with pytest.raises(ValueError, match=text):
        expected_error("cwece", 1000, **options)
    with pytest.raises(ValueError, match="n_classes=3 has no effect"):
        expected_error("accuracy", 1000, n_classes=3)
    with pytest.raises(ValueError, match="ClasswiseResiduals"):
        ScoreHistogram.fit([0.1, 0.9], [0, 1], input_type="proba",
                           plan=plan("cwece", 0.1))  # fmt: skip
