"""Metrics of several classes from tables of predictions and class scores.

- Tables of one release: counts, their noise, and how a row was counted.
- Metrics of predictions: accuracy, precision, recall, F1, confusion matrix.
- Metrics of class scores: areas, average precision, losses, calibration errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from math import ceil, inf, log2, nan, sqrt
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from skfedcal.evaluation.answers import Answers, undefined
from skfedcal.evaluation.calibration import CalibrationErrors
from skfedcal.evaluation.collect import Statistic
from skfedcal.evaluation.grid import ScoreGrid
from skfedcal.evaluation.histogram import ScoreHistogram
from skfedcal.evaluation.inputs import Clients, check_choices
from skfedcal.evaluation.intervals import (
    Estimate,
    make_estimate,
    replace,
    with_guarantee,
)
from skfedcal.evaluation.noise import NoiseModel, is_depth
from skfedcal.evaluation.planning import Plan
from skfedcal.evaluation.population import (
    Population,
    can_multiply,
    choose_population,
    collect_table_moments,
    describe_estimand,
    warn_one_row,
)
from skfedcal.evaluation.ranking import RankingAnswers, average_precision
from skfedcal.evaluation.rounds import ClassTables, Part
from skfedcal.federation.history import RoundHistory

if TYPE_CHECKING:
    from skfedcal.evaluation.population import PredictionMoments
    from skfedcal.privacy.events import PrivacyReport

Array = NDArray[Any]

# Buckets of scores, as a power of 2: of exact counts, under noise that is added once,
# and where every client adds noise. Measured at eps=1, 10,000 clients and 10 classes:
# 6 has half the error of 8 for areas of 'scores'; pairs have K times as many tables.
_HEIGHTS: dict[str, tuple[int, int, int]] = {
    "scores": (10, 6, 4),
    "top": (10, 6, 5),
    "binary": (10, 6, 5),
    "pairs": (10, 4, 3),
}
# Simulated releases of a parametric bootstrap.
_REPEATS = 40
# Most cells of tables of pairs.
_MOST_CELLS = 1 << 22
# Up to so many classes a confusion matrix has less noise in its margins than counts
# of the margins themselves, which are twice as sensitive.
_FEW_CLASSES = 8


@dataclass(frozen=True)
class Tables:
    """Tables of one release.

    algorithm: How rows were counted.
    counts: Unbiased counts of each part, not clipped at 0.
    noise: Law of the noise of each part.
    classes of shape (n_classes,): Labels in the order of the columns.
    n_clients: Clients that were asked.
    privacy_: Privacy guarantee of the release.
    history: Rounds of the run.
    population ('clients', 'rows'): What intervals are for.
    """

    algorithm: ClassTables
    counts: dict[str, Array]
    noise: dict[str, NoiseModel]
    classes: Array
    n_clients: int
    privacy_: PrivacyReport
    history: RoundHistory
    population: Population = "rows"
    moments: dict[str, list[Any]] = field(default_factory=dict)

    def _described(self, answers: Any) -> Any:
        """Attach what intervals are for and what counts."""
        answers.population_ = self.population
        answers.estimand_ = describe_estimand("example", self.algorithm.max_examples)
        answers.rows_each_ = self.rows_each
        return answers

    @property
    def rows_each(self) -> int:
        """How many rows of a client may be all alike, where that is not known."""
        by_client = self.population == "clients" and self.algorithm.private
        return (self.algorithm.max_examples or 1) if by_client else 1

    def grid(self, part: Part) -> ScoreGrid:
        """Buckets of the scores of a part."""
        height = self.algorithm.heights[self.algorithm.parts.index(part)]
        return ScoreGrid(height, self.algorithm.space)

    def predictions(self) -> Predictions:
        """Metrics of predicted classes."""
        part: Part = "margins" if "margins" in self.counts else "confusion"
        out: Predictions = self._described(
            Predictions(
                self.counts[part],
                self.noise[part],
                self.classes,
                self.privacy_,
                margins=part == "margins",
            )
        )
        out.moments_ = tuple(self.moments.get(part, ()))
        out.n_clients_ = self.n_clients
        return out

    def scores(self, part: Part = "scores") -> ClassScores:
        """Metrics of class scores; `part` is 'scores' or 'pairs'."""
        out: ClassScores = self._described(ClassScores(self, part))
        return out

    def top(self) -> ScoreHistogram:
        """Histogram of the largest score, positive if that class is correct."""
        return self._histogram("top", ["wrong", "right"])

    def binary(self) -> ScoreHistogram:
        """Histogram of the score of the second of two classes."""
        return self._histogram("binary", self.classes.tolist())

    def _histogram(self, part: Part, labels: list[Any]) -> ScoreHistogram:
        return ScoreHistogram(
            [self.counts[part]],
            self.noise[part],
            self.grid(part),
            kind=part,
            classes=labels,
            weighting="example",
            n_clients=self.n_clients,
            privacy=self.privacy_,
            history=self.history,
            population=self.population,
            max_examples=self.algorithm.max_examples,
            moments=self.moments.get(part, ()),
        )


def fit_tables(
    parts: Sequence[Part], clients: tuple[Any, Any], settings: dict[str, Any], name: str
) -> Tables:
    """Collect tables of several classes; `settings` as of `ScoreHistogram.fit`."""
    statistic = Statistic(
        settings["privacy"],
        settings.get("ledger"),
        settings.get("runner"),
        settings["random_state"],
        name,
    )
    check_choices(
        space=settings.get("space", "both"),
        weighting=settings.get("weighting", "example"),
    )
    for option, default in (
        ("weighting", "example"),
        ("levels", "auto"),
        ("pos_label", None),
    ):
        value = settings.get(option, default)
        if not (value is default or (isinstance(value, str) and value == default)):
            raise ValueError(
                f"{option}={value!r} is not used with more than two classes; leave it "
                "out."
            )
    given = Clients(
        *clients,
        settings["client_ids"],
        settings.get("classes"),
        settings.get("input_type", "logits"),
        statistic.private,
    )
    data, classes = given.several()
    statistic.assumptions = given.assumptions
    bound, plan = settings.get("max_examples_per_client"), settings.get("plan")
    if isinstance(plan, Plan) and statistic.private and statistic.unit == "client":
        bound = bound or (None if statistic.local else plan.max_examples)
    limit = statistic.limit(bound)
    asked = settings.get("population", "auto")
    population = choose_population(asked, statistic, len(data))
    if statistic.private and limit == 1 and bound is None:
        warn_one_row("example", stacklevel=5)
    algorithm = table_algorithm(
        parts,
        len(classes),
        statistic,
        height=_planned_height(settings),
        space=settings.get("space", "both"),
        max_examples=limit,
        input_type=given.input_type,
        salt=statistic.salt() if statistic.private else 0,
    )
    chosen = algorithm.parts
    if (
        population == "clients"
        and not statistic.private
        and not can_multiply(algorithm)
    ):
        if asked == "clients":
            raise ValueError(
                f"population='clients': {len(classes)} classes have too many products "
                "of two counts for these metrics. Pass population='rows'."
            )
        population = "rows"
    found = statistic.run(
        algorithm,
        data,
        n_parts=len(chosen) if statistic.local else 1,
        drop_empty=statistic.local,
    )
    counts: dict[str, Array] = {}
    noise: dict[str, NoiseModel] = {}
    start = 0
    for part, law in zip(chosen, found.state.laws, strict=True):
        shape = algorithm.shape(part)
        size = shape[0] * shape[1]
        depth = ceil(log2(shape[1]))
        noise[part] = NoiseModel.from_rows((depth,), law[None])
        totals = found.state.totals[start : start + size].reshape(shape)
        counts[part] = noise[part].estimate([totals])
        start += size
    history = found.history
    moments: dict[str, list[Any]] = {}
    if population == "clients" and not statistic.private:
        moments, later = collect_table_moments(
            statistic, data, algorithm, counts, found.n_clients
        )
        history = RoundHistory([*history, *later.history])
    return Tables(
        algorithm, counts, noise, classes, found.n_clients, found.report, history,
        population, moments,
    )  # fmt: skip


def table_algorithm(
    parts: Sequence[Part],
    n_classes: int,
    statistic: Statistic,
    *,
    height: Any = "auto",
    max_examples: int | None = None,
    **options: Any,
) -> ClassTables:
    """How clients count the rows of these tables under a privacy model."""
    chosen = tuple(_released(part, n_classes, statistic) for part in parts)
    return ClassTables(
        chosen,
        tuple(_height(part, height, n_classes, statistic) for part in chosen),
        n_classes=n_classes,
        n_others=1 if statistic.private else n_classes - 1,
        one_cell=statistic.local,
        max_examples=1 if statistic.local else max_examples,
        private=statistic.private,
        by_values=statistic.private and statistic.unit == "example",
        by_round=statistic.local,
        n_rounds=len(chosen) if statistic.local else 1,
        **options,
    )


def _planned_height(settings: dict[str, Any]) -> Any:
    """Height that was asked for, or that of a plan."""
    height, plan = settings.get("height", "auto"), settings.get("plan")
    if not isinstance(plan, Plan):
        return height
    if not isinstance(height, str):
        raise ValueError(
            f"plan has height {plan.error.height}, but height={height!r} is given; "
            "leave one of them out."
        )
    return plan.error.height or height


def _released(part: Part, n_classes: int, statistic: Statistic) -> Part:
    """The table of predictions with less noise; others as they are."""
    if part != "margins":
        return part
    few = n_classes <= _FEW_CLASSES or statistic.local or not statistic.private
    return "confusion" if few else "margins"


def _height(part: Part, asked: Any, n_classes: int, statistic: Statistic) -> int:
    if part not in _HEIGHTS:
        return 0
    if not (isinstance(asked, str) and asked == "auto"):
        if not is_depth(asked):
            raise ValueError(
                f"height={asked!r}: pass 'auto' or a whole number from 1 to 20."
            )
        return int(asked)
    height = _HEIGHTS[part][2 if statistic.local else 1 if statistic.private else 0]
    if part == "pairs":
        most = log2(_MOST_CELLS / n_classes**2)
        height = max(min(height, int(most)), 2)
    return height


class Predictions(Answers):
    """Metrics of the most probable class, from a confusion matrix or its margins.

    counts of shape (n_classes, n_classes) or (3, n_classes): Rows by label and
        predicted class; or correct, missed and false rows.
    noise: Law of the noise.
    classes of shape (n_classes,): Labels.
    privacy: Privacy guarantee of the release.
    margins: Whether `counts` are margins.
    """

    def __init__(
        self,
        counts: Array,
        noise: NoiseModel,
        classes: Array,
        privacy: PrivacyReport,
        *,
        margins: bool,
    ) -> None:
        self.counts_, self.noise_ = counts, noise
        self.classes_, self.privacy_ = classes, privacy
        self.n_clients_ = 1
        self._square = not margins
        # A wrong row has two entries in margins: (a + b)^2 <= 2 a^2 + 2 b^2.
        self._entries = 1.0 if self._square else 2.0

    def _weights(self, correct: Array, predicted: Array, actual: Array) -> Array:
        """Weights of cells from those of correct, predicted and actual rows."""
        if self._square:
            return actual[:, None] + predicted + np.diag(correct)
        return np.stack([correct + predicted + actual, actual, predicted])

    def _numbers(self) -> tuple[Array, Array, Array]:
        """Correct, predicted and actual rows of each class."""
        if self._square:
            matrix = self.counts_
            return np.diag(matrix).copy(), matrix.sum(axis=0), matrix.sum(axis=1)
        correct, missed, false = self.counts_
        return correct, correct + false, correct + missed

    @with_guarantee
    def matrix(self, normalize: str | None, ci: float) -> list[list[Estimate]]:
        """Numbers of rows by label and predicted class, or shares of them."""
        k = len(self.classes_)
        if normalize is None and self._square and self.noise_.exact:
            return self._exact_cells(ci)
        whole = {
            None: lambda i, j: None,
            "true": lambda i, j: (i, slice(None)),
            "pred": lambda i, j: (slice(None), j),
            "all": lambda i, j: (slice(None), slice(None)),
        }[normalize]
        return [[self._cell(i, j, whole(i, j), ci) for j in range(k)] for i in range(k)]

    def _cell(self, i: int, j: int, whole: Any, ci: float) -> Estimate:
        weight = np.zeros_like(self.counts_)
        weight[i, j] = 1.0
        if whole is not None:
            lower = np.zeros_like(weight)
            lower[whole] = 1.0
            share = self._share(weight, lower, ci)
            return _zero() if share is None else share
        return self._number(weight, ci)

    def _exact_cells(self, ci: float) -> list[list[Estimate]]:
        """Numbers of rows of all cells, without weights of all others for each."""
        counts = self.counts_
        sampling = counts - counts**2 / max(float(counts.sum()), 1.0)
        sampling = np.maximum(sampling, 0.0) * self.rows_each_
        if self.moments_:
            moments = cast("PredictionMoments", self.moments_[0])
            between = moments.of_cells(counts)
            sampling = self._between(between, counts)
        return [
            [
                self._counted(value, spread, 0.0, ci)
                for value, spread in zip(*row, strict=True)
            ]
            for row in zip(counts.tolist(), sampling.tolist(), strict=True)
        ]

    def _between(self, squares: Any, value: Any) -> Any:
        """Variance of the sum over clients of independent numbers."""
        few = max(self.n_clients_, 2)
        return np.maximum(squares - value**2 / few, 0.0) * few / (few - 1)

    def _number(self, weight: Array, ci: float) -> Estimate:
        """Number of rows; not clipped, so that sums stay unbiased."""
        value = float((self.counts_ * weight).sum())
        sampling, privacy = map(float, self.noise_.variances(self.counts_, weight))
        sampling *= self.rows_each_
        if self.moments_:
            between = float(self.moments_[0].projected(self.counts_, weight)[0])
            sampling = float(self._between(between, value))
        return self._counted(value, sampling, privacy, ci)

    @staticmethod
    def _counted(value: float, sampling: float, privacy: float, ci: float) -> Estimate:
        found = make_estimate(
            max(value, 0.0), sampling, privacy, ci=ci, bounds=(0.0, np.inf)
        )
        return Estimate(
            value,
            min(found.low, value),
            max(found.high, value),
            se_sampling=found.se_sampling,
            se_privacy=found.se_privacy,
        )

    @with_guarantee
    def support(self, ci: float = 0.95) -> list[Estimate]:
        """Number of rows of each class."""
        out = []
        for view, k in self._by_class():
            none, one = np.zeros(len(view.classes_)), np.eye(len(view.classes_))[k]
            out.append(view._number(view._weights(none, none, one), ci))
        return out

    def _by_class(self) -> Iterator[tuple[Predictions, int]]:
        """Tables for metrics of each class, and its number in the table.

        Of exact counts each class has a table of its own, of two by two cells; with all
        cells the work would grow with the third power of the number of classes.
        """
        size = len(self.classes_)
        if not (self._square and self.noise_.exact and size > 2):
            yield from ((self, k) for k in range(size))
            return
        total = float(self.counts_.sum())
        for k, (correct, predicted, actual) in enumerate(
            zip(*self._numbers(), strict=True)
        ):
            view = copy(self)
            rest = total - predicted - actual + correct
            view.counts_ = np.array(
                [[rest, predicted - correct], [actual - correct, correct]]
            )
            view.classes_ = np.arange(2)
            view.moments_ = tuple(
                cast("PredictionMoments", one).one_vs_rest(k, size)
                for one in self.moments_
            )
            yield view, 1

    @with_guarantee
    def accuracy(self, ci: float = 0.95) -> Estimate:
        """Fraction of the rows that are predicted correctly."""
        none, ones = np.zeros(len(self.classes_)), np.ones(len(self.classes_))
        found = self._share(
            self._weights(ones, none, none), self._weights(none, none, ones), ci
        )
        return _undefined("Accuracy") if found is None else found

    @with_guarantee
    def balanced_accuracy(self, adjusted: bool = False, ci: float = 0.95) -> Estimate:
        """Mean recall of the classes that have rows."""
        actual = self._numbers()[2]
        weights = (actual > 0) / max((actual > 0).sum(), 1)
        found = self._average("recall", weights, False, ci)
        if not adjusted:
            return found
        chance = 1 / max(int((actual > 0).sum()), 1)
        low, value, high = (
            (v - chance) / (1 - chance) for v in (found.low, float(found), found.high)
        )
        scale = 1 / (1 - chance)
        return Estimate(
            value,
            low,
            high,
            se_sampling=found.se_sampling * scale,
            se_privacy=found.se_privacy * scale,
        )

    @with_guarantee
    def score(
        self, metric: str, average: str | None, ci: float = 0.95
    ) -> Estimate | list[Estimate]:
        """Precision, recall or F1: of each class, or an average of them."""
        k = len(self.classes_)
        if average is None:
            return [view._one(metric, i, ci) for view, i in self._by_class()]
        if average == "micro":  # one label per row: all three are the accuracy
            return self.accuracy(ci)
        if average == "macro":
            return self._average(metric, np.full(k, 1 / k), False, ci)
        actual = self._numbers()[2]
        return self._average(metric, actual / max(actual.sum(), 1e-12), True, ci)

    def _one(self, metric: str, i: int, ci: float) -> Estimate:
        none, one = np.zeros(len(self.classes_)), np.eye(len(self.classes_))[i]
        whole = {
            "precision": self._weights(none, one, none),
            "recall": self._weights(none, none, one),
            "f1": self._weights(-one, one, one),
        }[metric]
        found = self._share(self._weights(one, none, none), whole, ci)
        if found is None:
            return _zero()
        if metric != "f1":
            return found
        slope = 2 / (1 + float(found)) ** 2
        value, low, high = (
            2 * j / (1 + j) for j in (float(found), found.low, found.high)
        )
        return Estimate(
            value,
            low,
            high,
            se_sampling=found.se_sampling * slope,
            se_privacy=found.se_privacy * slope,
        )

    def _average(
        self, metric: str, weights: Array, by_rows: bool, ci: float
    ) -> Estimate:
        """Weighted mean over classes; `by_rows` if weights are the shares of rows."""
        correct, predicted, actual = self._numbers()
        lower = {
            "precision": predicted,
            "recall": actual,
            "f1": (predicted + actual) / 2,
        }[metric]
        safe = np.where(lower > 0, lower, 1.0)
        each = np.where(lower > 0, np.clip(correct / safe, 0.0, 1.0), 0.0)
        value = float(weights @ each)
        up = np.where(lower > 0, weights / safe, 0.0)
        down = -up * each
        parts = {
            "precision": (down, np.zeros_like(up)),
            "recall": (np.zeros_like(up), down),
            "f1": (down / 2, down / 2),
        }[metric]
        actual_slope = parts[1]
        if by_rows:
            actual_slope = actual_slope + (each - value) / max(actual.sum(), 1.0)
        gradient = self._weights(up, parts[0], actual_slope)
        sampling, privacy, free = map(float, self._spread(gradient))
        rows = max(float(actual.sum()), 1.0) / self._alike(gradient, sampling)
        return make_estimate(
            value, self._entries * sampling, privacy, ci=ci, rows=rows,
            freedom=free if self.moments_ else inf,
        )  # fmt: skip


def _zero() -> Estimate:
    return Estimate(0.0, 0.0, 1.0, se_sampling=nan, se_privacy=nan)


def _undefined(metric: str) -> Estimate:
    undefined(metric, "there are no rows", "nan")
    return Estimate(nan, nan, nan, se_sampling=nan, se_privacy=nan)


@dataclass(frozen=True)
class TableNoise:
    """Noise of two sums of tables: negatives and positives of one binary question.

    base: Noise of all tables.
    counts of shape (n_tables, n_buckets): Counts of all tables, before scaling.
    rows: Tables of negatives and of positives.
    scale: Rows that one entry of each stands for.
    entries: Most entries of one row in these tables; their sum has at most this many
        times the sampling variance of as many independent ones.
    total: Sum of all counts.
    """

    base: NoiseModel
    counts: Array
    rows: tuple[list[int], list[int]]
    scale: tuple[float, float]
    entries: int
    total: float

    @property
    def exact(self) -> bool:
        return self.base.exact

    @property
    def local(self) -> bool:
        return self.base.local

    def variances(self, counts: Array, functional: Array) -> tuple[Array, Array]:
        """Sampling and privacy variance of functionals of the two scaled sums."""
        tables = [*self.rows[0], *self.rows[1]]
        sides = np.repeat([0, 1], [len(rows) for rows in self.rows])
        own = functional[..., sides, :] * np.asarray(self.scale)[sides, None]
        if self.base.local:
            full = np.zeros((*functional.shape[:-2], *self.counts.shape))
            full[..., tables, :] = own
            sampling, privacy = self.base.variances(self.counts, full)
            return self.entries * sampling, privacy
        # Other tables add nothing but their rows.
        _, privacy = self.base.variances(self.counts[tables], own)
        weighted = self.counts[tables] * own
        mean, square = weighted.sum(axis=(-2, -1)), (weighted * own).sum(axis=(-2, -1))
        sampling = square - mean**2 / max(self.total, 1.0)
        return self.entries * np.maximum(sampling, 0.0), privacy

    def direction(self, functional: Array) -> Array:
        """Direction in which noise moves a functional most."""
        factor = [
            len(rows) * scale**2
            for rows, scale in zip(self.rows, self.scale, strict=True)
        ]
        return functional * np.asarray(factor)[:, None]


class OneQuestion(RankingAnswers, CalibrationErrors):
    """Metrics of one binary question that tables of several classes answer."""

    def __init__(
        self, counts: Array, noise: TableNoise, grid: ScoreGrid, privacy: PrivacyReport
    ) -> None:
        self.counts_, self.grid, self.privacy_ = counts, grid, privacy
        self.noise_ = noise  # type: ignore[assignment]

    @with_guarantee
    def average_precision(self, *, ci: float = 0.95) -> Estimate:
        """Mean of precision over recall, as scikit-learn sums it up.

        Few rows of a class and many scaled negatives: noise does not average out of a
        ratio of them. Noisy cumulative counts are made monotone first; bias and noise
        of the result are those of the same computation on simulated noise (parametric
        bootstrap with a fixed seed), whose bias is subtracted.
        """
        if self.noise_.exact or min(self._sums) <= 0:
            return super().average_precision(ci=ci)
        counts = self._monotone(self.counts_)
        value, slope, gap = average_precision(counts, exact=False)
        cells = np.eye(2 * counts.shape[1]).reshape(-1, *counts.shape)
        sd = np.sqrt(self.noise_.variances(counts, cells)[1]).reshape(counts.shape)
        rng = np.random.default_rng(0)
        again = []
        for _ in range(_REPEATS):
            noisy = self._monotone(counts + sd * rng.standard_normal(counts.shape))
            if noisy[1].sum() > 0:
                again.append(average_precision(noisy, exact=False)[0])
        if len(again) < _REPEATS // 2:
            return Estimate(value, 0.0, 1.0, discretisation=gap)
        bias = float(np.mean(again)) - value
        sampling = float(self.noise_.variances(counts, slope)[0]) * self.rows_each_
        # The bias is itself an estimate, known to about a third.
        privacy = float(np.var(again)) * (1 + 1 / len(again)) + (bias / 3) ** 2
        return make_estimate(value - bias, sampling, privacy, ci=ci, discretisation=gap)

    def _monotone(self, counts: Array) -> Array:
        """Counts whose cumulative sums, from the top, do not decrease."""
        from scipy.optimize import isotonic_regression

        rows = []
        for row in counts:
            sums = np.append(0.0, np.cumsum(row[::-1]))
            total = max(float(sums[-1]), 0.0)
            fitted = np.clip(isotonic_regression(sums).x, 0.0, total)
            fitted[0] = 0.0
            rows.append(np.diff(fitted)[::-1])
        return np.stack(rows)


class ClassScores:
    """Metrics of class scores.

    part ('scores', 'pairs'): The part with the scores.
    """

    def __init__(self, tables: Tables, part: Part) -> None:
        self.tables, self.classes_ = tables, tables.classes
        self.privacy_, self.part = tables.privacy_, part
        self.raw, self.noise = tables.counts[part], tables.noise[part]
        self._total = float(self.raw.sum())
        # Answers of all classes, and the same counts with rows as the population: a
        # report needs them several times.
        self._known: dict[tuple[str, float], list[Estimate]] = {}
        self._alone: Self | None = None
        self.grid = tables.grid(part)
        algorithm, k = tables.algorithm, len(tables.classes)
        # Rows that an entry stands for: classes were sampled at these rates.
        half = 2.0 if algorithm.one_cell else 1.0
        self.scale = (half * (k - 1) / algorithm.n_others, half)
        self._sampled = algorithm.n_others < k - 1
        self._entries = 1 if algorithm.one_cell else algorithm.n_others + 1
        self.moments_ = tuple(tables.moments.get(part, ()))
        self.rows_each_ = tables.rows_each

    def _of_rows(self) -> Self:
        """Give the same counts with independent rows as the population."""
        if self._alone is None:
            self._alone = copy(self)
            self._alone._known = {}
            self._alone.moments_, self._alone.rows_each_ = (), 1
        return self._alone

    def _each(self, metric: str, ci: float) -> list[Estimate]:
        """Answers of all classes against the others."""
        if (metric, ci) not in self._known:
            self._known[metric, ci] = [
                getattr(self.one_vs_rest(k), metric)(ci=ci)
                for k in range(len(self.classes_))
            ]
        return self._known[metric, ci]

    def question(
        self, negatives: list[int], positives: list[int], group: int = 0
    ) -> OneQuestion:
        """Question whose negatives and positives are in these tables."""
        entries = min(len(negatives), self._entries)
        noise = TableNoise(
            self.noise,
            self.raw,
            (negatives, positives),
            self.scale,
            entries,
            self._total,
        )
        counts = np.stack(
            [
                self.raw[rows].sum(axis=0) * scale
                for rows, scale in zip(noise.rows, noise.scale, strict=True)
            ]
        )
        out = OneQuestion(counts, noise, self.grid, self.privacy_)
        out.moments_ = self.moments_[group : group + 1]
        out.rows_each_ = self.rows_each_
        return out

    def one_vs_rest(self, k: int) -> OneQuestion:
        """Whether a row is of this class."""
        return self.question([k], [len(self.classes_) + k], 1 + k)

    def pair(self, a: int, b: int) -> OneQuestion:
        """Whether a row of classes `a` and `b` is of class `a`, by the score of `a`."""
        size = len(self.classes_)
        return self.question([b * size + a], [a * size + a], a * size + b)

    def _all(self) -> OneQuestion:
        """All classes and rows together."""
        size = len(self.classes_)
        return self.question([*range(size)], [*range(size, 2 * size)])

    @property
    def _freedom(self) -> float:
        return max(self.tables.n_clients - 1, 1) if self.moments_ else inf

    @with_guarantee
    def area(self, multi_class: str, average: str | None, ci: float) -> Any:
        """Area under the ROC curve; a list if `average` is None."""
        if multi_class == "ovo":
            return self._pairs(average, ci)
        return self._averaged("roc_auc", average, ci)

    @with_guarantee
    def average_precision(self, average: str | None, ci: float) -> Any:
        """Mean of precision over recall; a list if `average` is None."""
        return self._averaged("average_precision", average, ci)

    @with_guarantee
    def cwece(self, n_bins: int, debias: bool, ci: float) -> Estimate:
        """Mean calibration error over classes."""
        found = [
            self.one_vs_rest(k).ece(n_bins, debias=debias, ci=ci)
            for k in range(len(self.classes_))
        ]
        each = np.full(len(found), 1 / len(found))
        mean = _combined(
            found, each, ci, self._overlap(each, found), freedom=self._freedom
        )
        # An absolute value has no slope at 0: ends are means of ends, not of variances.
        low, high = (np.mean([getattr(e, n) for e in found]) for n in ("low", "high"))
        return replace(mean, low=min(low, float(mean)), high=max(high, float(mean)))

    def _supports(self) -> Array:
        """Number of rows of each class."""
        size = len(self.classes_)
        if self.part == "scores":
            own = self.raw[size:].sum(axis=1)
        else:
            own = self.raw[np.arange(size) * (size + 1)].sum(axis=1)
        return np.asarray(own * self.scale[1])

    def _averaged(self, metric: str, average: str | None, ci: float) -> Any:
        size = len(self.classes_)
        if average == "micro":
            return getattr(self._all(), metric)(ci=ci)
        found = self._each(metric, ci)
        if average is None:
            return found
        weights = np.full(size, 1 / size)
        if average == "weighted":
            supports = np.maximum(self._supports(), 0.0)
            weights = supports / max(supports.sum(), 1e-12)
        sampling = self._overlap(weights, found)
        if average == "weighted":
            sampling = (sqrt(sampling) + self._of_weights(weights, found)) ** 2
        return _combined(found, weights, ci, sampling, freedom=self._freedom)

    def _overlap(self, weights: Array, found: list[Estimate]) -> float:
        """Bound on the sampling variance of a weighted mean over classes.

        A row that is counted for two classes enters two estimates:
        ``(a + b)^2 <= 2 a^2 + 2 b^2``. Else the standard errors add up at most.
        """
        errors = weights * [e.se_sampling for e in found]
        most = float(errors.sum() ** 2)
        if not self._sampled or np.isnan(most):
            return most
        return min(most, 2 * float((errors**2).sum()))

    def _of_weights(self, weights: Array, found: list[Estimate]) -> float:
        """Standard error that random shares of the classes add."""
        values = np.array([float(e) for e in found])
        rows = max(float(self._supports().sum()), 1.0)
        if self.moments_:  # errors of the shares of clients' classes, added up
            gaps = np.abs(values - weights @ values)
            slopes = np.array([0.0, 1.0])[:, None] - weights[:, None, None]
            shape = np.ones(self.grid.n_buckets)
            errors = [
                sqrt(float(self.one_vs_rest(k).variances(slopes[k] * shape / rows)[0]))
                for k in range(len(weights))
            ]
            return float(gaps @ errors)
        rows /= self.rows_each_
        return sqrt(float(weights @ (values - weights @ values) ** 2) / rows)

    def _pairs(self, average: str | None, ci: float) -> Estimate:
        """Mean area over pairs of classes (Hand and Till)."""
        size = len(self.classes_)
        supports = np.maximum(self._supports(), 0.0)
        found, weights, owners = [], [], []
        for a in range(size):
            for b in range(size):
                if a != b:
                    found.append(self.pair(a, b).roc_auc(ci=ci))
                    weights.append(supports[a] + supports[b])
                    owners.append(a)
        if average == "weighted":
            shares = np.array(weights) / max(sum(weights), 1e-12)
        else:
            shares = np.full(len(found), 1 / len(found))
        errors = shares * [e.se_sampling for e in found]
        by_owner = np.bincount(owners, errors)
        sampling = float(errors.sum() ** 2)
        if self._sampled and not np.isnan(sampling):
            sampling = min(sampling, 2 * float((by_owner**2).sum()))
        # The positives of a class, and their noise, are in all of its pairs.
        noise = np.bincount(owners, shares * [e.se_privacy for e in found])
        privacy = 2 * float((noise**2).sum())
        if self.noise.local:
            privacy = float(noise.sum() ** 2)
        return _combined(found, shares, ci, sampling, privacy, self._freedom)

    @with_guarantee
    def log_loss(self, ci: float) -> Estimate:
        """Mean negative log-likelihood, from the scores of the rows' own classes."""
        edges = np.clip(self.grid.edges, _TINY, 1.0)
        own = -np.log(self.grid.centres)
        ends = np.abs(-np.log(np.stack([edges[:-1], edges[1:]])) - own)
        return self._mean_loss("Log loss", own, None, ends.max(axis=0), None, ci)

    @with_guarantee
    def brier(self, ci: float, scale: float = 1.0) -> Estimate:
        """Mean squared distance of probabilities and outcome, from 0 to 2."""
        centres, edges = self.grid.centres, self.grid.edges
        sides = np.stack([edges[:-1], edges[1:]])
        own, other = (1 - centres) ** 2, centres**2
        gaps = [
            np.abs((1 - sides) ** 2 - own).max(axis=0),
            np.abs(sides**2 - other).max(axis=0),
        ]
        found = self._mean_loss("Brier score", own, other, gaps[0], gaps[1], ci)
        return Estimate(
            float(found) * scale,
            found.low * scale,
            found.high * scale,
            se_sampling=found.se_sampling * scale,
            se_privacy=found.se_privacy * scale,
            discretisation=found.discretisation * scale,
        )

    def _mean_loss(
        self,
        name: str,
        own: Array,
        other: Array | None,
        own_gap: Array,
        other_gap: Array | None,
        ci: float,
    ) -> Estimate:
        """Mean over rows of losses of the own class, and of other classes."""
        size = len(self.classes_)
        rows = float(self._supports().sum())
        if rows <= 0:
            return _undefined(name)
        functional = np.zeros_like(self.raw)
        functional[size:] = own * self.scale[1]
        gap = np.zeros_like(self.raw)
        gap[size:] = own_gap * self.scale[1]
        if other is not None:
            functional[:size] = other * self.scale[0]
            gap[:size] = other_gap * self.scale[0]  # type: ignore[operator]
        value = float((self.raw * functional).sum()) / rows
        slope = functional / rows
        slope[size:] -= value * self.scale[1] / rows
        sampling, privacy = map(float, self.noise.variances(self.raw, slope))
        if other is not None and not self.noise.local:
            halves = []
            for part in (slice(None, size), slice(size, None)):
                one = np.zeros_like(slope)
                one[part] = slope[part]
                halves.append(sqrt(float(self.noise.variances(self.raw, one)[0])))
            sampling = sum(halves) ** 2
            if not self._sampled:
                # Other classes share 1 - p_y: their squares are at most its square.
                most = 4 * float((self.raw[size:] @ own**2).sum()) / rows - value**2
                sampling = max(most, 0.0) / rows
        bound = float((np.maximum(self.raw, 0.0) * gap).sum()) / rows
        most_ = np.inf if other is None else 2.0
        sampling = sampling * self.rows_each_ + min(value**2, 1.0) * 4 / rows**2
        free = inf
        if self.moments_:
            losses = [np.zeros_like(own) if other is None else other, own - value]
            between, _, few = self._all()._spread(np.stack(losses) / rows)
            sampling, free = float(between), float(few)
        return make_estimate(
            value, sampling, privacy, ci=ci, bounds=(0.0, most_), discretisation=bound,
            freedom=free,
        )  # fmt: skip


# Where scikit-learn's log loss takes scores that are nearer to 0.
_TINY = float(np.finfo(np.float64).eps)


def _combined(
    found: Sequence[Estimate],
    weights: Array,
    ci: float,
    sampling: float,
    privacy: float | None = None,
    freedom: float = inf,
) -> Estimate:
    """Weighted mean of estimates whose noise is independent unless `privacy` says."""
    values = np.array([float(e) for e in found])
    if np.isnan(values).any():
        return Estimate(nan, nan, nan, se_sampling=nan, se_privacy=nan)
    if np.isnan(sampling):  # nothing is known of some of them
        mean = float(weights @ values)
        return Estimate(mean, 0.0, 1.0, se_sampling=nan, se_privacy=nan)
    if privacy is None:
        noise = weights * [e.se_privacy for e in found]
        privacy = float((noise**2).sum())
    return make_estimate(
        float(weights @ values),
        sampling,
        privacy,
        ci=ci,
        discretisation=min(float(weights @ [e.discretisation for e in found]), 1.0),
        freedom=freedom,
    )
