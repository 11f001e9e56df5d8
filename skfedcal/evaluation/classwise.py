"""Answers about several classes: ClasswiseResiduals and one-vs-rest areas."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, fields
from dataclasses import replace as copy_with
from math import inf, nan, sqrt
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from skfedcal._params import check_flag
from skfedcal.evaluation.answers import answers_documented, check_bins, undefined
from skfedcal.evaluation.calibration import KNOWN, sum_interval, unfold
from skfedcal.evaluation.collect import Statistic
from skfedcal.evaluation.grid import ScoreGrid
from skfedcal.evaluation.inputs import Clients, check_choices
from skfedcal.evaluation.intervals import (
    Estimate,
    make_estimate,
    quantile,
    replace,
    with_guarantee,
)
from skfedcal.evaluation.noise import NoiseModel, release_levels, split_levels
from skfedcal.evaluation.population import (
    Population,
    choose_population,
    describe_estimand,
    warn_one_row,
    weighted_variance,
)
from skfedcal.evaluation.ranking import auc_with_gradient
from skfedcal.evaluation.rounds import (
    MAX_WEIGHTS,
    ClassResiduals,
    OneVsRestCounts,
    OneVsRestMoments,
    ResidualMoments,
)

if TYPE_CHECKING:
    from skfedcal._typing import ArrayLike, ClientRows, InputType, PerRow, Seed
    from skfedcal.federation.history import RoundRecord
    from skfedcal.federation.runner import FederatedRunner
    from skfedcal.privacy.events import PrivacyReport
    from skfedcal.privacy.ledger import PrivacyLedger
    from skfedcal.privacy.models import PrivacyModel

Array = NDArray[Any]


class ClientSpread(NamedTuple):
    """Variance between clients of some weighted sums, and degrees of freedom."""

    variance: Array
    freedom: Array


def _spread_of(found: Any, n_rows: float) -> ClientSpread:
    """Read the second moments of a run over so many rows."""
    sizes = np.array([n_rows, *found.state.powers])
    return ClientSpread(*weighted_variance(found.state.sums, sizes)[:2])


@answers_documented
class ClasswiseResiduals:
    """Sums of outcome minus probability per class and bin.

    Made by `fit`. A row adds ``y_k - p_k`` to the bin of ``p_k`` of every class: L1
    norm at most 2, however many classes there are, where counts of positives and
    negatives would have the number of classes.

    Parameters
    ----------
    residuals : ndarray of shape (n_classes, n_bins)
        Sums, noise included.
    n_examples : float
        Number of rows.
    variance : float
        Of the noise in each sum.
    squares : ndarray of shape (n_classes, n_bins) or None
        Sums of squared residuals; only with exact sums, None under noise.
    classes : ndarray of shape (n_classes,)
        Label of each row of `residuals`.
    n_clients
    privacy : PrivacyReport
        Privacy guarantee of the release.
    history : list of RoundRecord
        Rounds of the run.
    max_examples : int, default=None
        Maximum number of rows of a client; None is all of them.
    population : {'clients', 'rows'}, default='rows'
        What intervals are for.
    moments : tuple of ClientSpread, default=()
        Variance between clients of the sum over bins and classes, with the signs that
        are known, of that of each class, and of each of the sums.

    Attributes
    ----------
    residuals_ : ndarray of shape (n_classes, n_bins)
        Sums, noise included.
    classes_ : ndarray of shape (n_classes,)
        Label of each row.
    n_examples_ : float
        Number of rows.
    n_clients_, privacy_, history_, estimand_

    Examples
    --------
    >>> from skfedcal import ClasswiseResiduals, make_federation
    >>> fed = make_federation(n_clients=20, n_samples=2000, random_state=0)
    >>> residuals = ClasswiseResiduals.fit(fed.clients)
    >>> print(f"{residuals.cwece(debias=False):.3f}")
    0.029
    """

    def __init__(
        self,
        residuals: Array,
        n_examples: float,
        variance: float,
        squares: Array | None,
        classes: Array,
        n_clients: int,
        privacy: PrivacyReport,
        history: list[RoundRecord],
        max_examples: int | None = None,
        population: Population = "rows",
        moments: tuple[ClientSpread, ...] = (),
    ) -> None:
        self.residuals_ = residuals
        self.n_examples_ = n_examples
        self.noise_variance_ = variance
        self.squares_ = squares
        self.classes_ = classes
        self.n_clients_ = n_clients
        self.privacy_ = privacy
        self.history_ = history
        self.estimand_ = describe_estimand("example", max_examples)
        self.population_ = population
        self.moments_ = moments
        # Rows of a client that may be all alike, where nothing is known of them.
        alike = population == "clients" and not moments
        self.rows_each_ = max_examples or 1 if alike else 1

    @classmethod
    def fit(
        cls,
        clients: ClientRows,
        y: PerRow | None = None,
        *,
        client_ids: ArrayLike | None = None,
        privacy: PrivacyModel | None = None,
        n_bins: int = 15,
        max_examples_per_client: int | None = None,
        population: Literal["auto", "clients", "rows"] = "auto",
        classes: ArrayLike | None = None,
        input_type: InputType = "logits",
        ledger: PrivacyLedger | None = None,
        runner: FederatedRunner | None = None,
        random_state: Seed = None,
    ) -> ClasswiseResiduals:
        """Collect the residuals of all clients.

        Parameters
        ----------
        clients : list of (scores, labels) pairs, list of arrays, or array-like
            In the forms that ``fit`` of a calibrator takes; one column per class.
        y, client_ids, privacy
        n_bins : int, default=15
            Equal-width bins of [0, 1].
        max_examples_per_client : int, default=None
            Maximum number of rows that a client contributes. None is all rows, or 1
            under client-level privacy.
        population : {'auto', 'clients', 'rows'}, default='auto'
            What intervals are for, as for `ScoreHistogram.fit`.
        classes
        input_type : {'logits', 'log_proba', 'proba'}, default='logits'
            Type of the scores; it is never inferred from the data.
        ledger, runner, random_state

        Returns
        -------
        ClasswiseResiduals
        """
        statistic = Statistic(privacy, ledger, runner, random_state, cls.__name__)
        if statistic.local:
            raise ValueError(
                "ClasswiseResiduals are real numbers, which LocalDP cannot randomise; "
                "use DistributedDP, CentralDP or SourceDP, or "
                "ScoreHistogram.fit(kind='top') for the top label."
            )
        check_bins(n_bins)
        given = Clients(clients, y, client_ids, classes, input_type, statistic.private)
        data, labels = given.several()
        statistic.assumptions = given.assumptions
        limit = statistic.limit(max_examples_per_client)
        chosen = choose_population(population, statistic, len(data))
        if limit == 1 and max_examples_per_client is None:
            warn_one_row("example", stacklevel=3)
        # Rows of its own for each unit; clients may have none.
        one_each = statistic.private and statistic.model.unit == "example"
        algorithm = ClassResiduals(
            n_bins=int(n_bins),
            max_examples=limit,
            private=statistic.private,
            count_rows=not one_each,
            input_type=input_type,
            salt=0 if limit is None else statistic.salt(),
        )
        found = statistic.run(algorithm, data)
        state, moments = found.state, list[ClientSpread]()
        history: list[RoundRecord] = found.history
        if chosen == "clients" and not statistic.private:
            signs = np.sign(state.residuals) * _visible(state.residuals, state.squares)
            options = {f.name: getattr(algorithm, f.name) for f in fields(algorithm)}
            later = statistic.run(
                ResidualMoments(**options, weights=tuple(signs.ravel().tolist())),
                data,
                suffix=".moments",
            )
            moments = [_spread_of(later, max(state.n_rows, 1.0))]
            history = [*history, *later.history]
        return cls(
            state.residuals,
            state.n_rows,
            state.variance,
            None if statistic.private else state.squares,
            labels,
            found.n_clients,
            found.report,
            history,
            limit,
            chosen,
            tuple(moments),
        )

    @with_guarantee
    def cwece(self, *, debias: bool = True, ci: float = 0.95) -> Estimate:
        """Classwise calibration error: mean over classes of the mean gap over bins.

        Parameters
        ----------
        debias : bool, default=True
            Subtract the bias that noise (and sampling, for exact sums) adds to absolute
            values.
        ci

        Returns
        -------
        Estimate
            Under noise `se_sampling` is an upper bound, because the squared residuals
            are not released.
        """
        return self._mean(np.arange(len(self.residuals_)), debias, ci)

    @with_guarantee
    def per_class(self, *, debias: bool = True, ci: float = 0.95) -> list[Estimate]:
        """Mean gap over bins of each class, in the order of `classes_`.

        Parameters
        ----------
        debias : bool, default=True
            Subtract the bias that noise (and sampling, for exact sums) adds to absolute
            values.
        ci

        Returns
        -------
        list of Estimate
        """
        rows = range(len(self.residuals_))
        return [self._mean(np.array([k]), debias, ci) for k in rows]

    def _mean(self, rows: Array, debias: bool, ci: float) -> Estimate:
        n = self.n_examples_
        if n <= 0:
            undefined("Calibration error", "there are no rows", "nan")
            return Estimate(nan, nan, nan, se_sampling=nan, se_privacy=nan)
        sizes = np.abs(self.residuals_[rows]).ravel()
        sampling, noise = self._sampling(rows), self.noise_variance_
        sigmas = np.sqrt(sampling + noise)
        found = sizes
        if check_flag("debias", debias):
            released = sampling if self.squares_ is not None else 0.0
            found = unfold(sizes, np.sqrt(released + noise))
        # A row adds to every class: its sum over classes is at most twice its largest
        # part, as probabilities add up to 1.
        shared = min(4.0, len(rows))
        known, z = sizes > KNOWN * sigmas, quantile(ci)
        joint = shared * float(sampling[known].sum())
        if self.moments_:
            question = 0 if len(rows) > 1 else 1 + int(rows[0])
            joint = float(self.moments_[0].variance[question])
            z = quantile(ci, float(self.moments_[0].freedom[question]))
        variance = joint + noise * float(known.sum())
        low, high = sum_interval(sizes, sigmas * sqrt(shared), variance, z)
        scale = 1 / (n * len(rows))
        value = min(float(found.sum()) * scale, 1.0)
        return Estimate(
            value,
            min(low * scale, value),
            min(max(high * scale, value), 1.0),
            se_sampling=sqrt(joint + shared * float(sampling[~known].sum())) * scale,
            se_privacy=sqrt(noise * sizes.size) * scale,
        )

    def _sampling(self, rows: Array) -> Array:
        """Sampling variance of each sum, between clients where they are the population.

        Sums whose sign was not known to rows are not part of the joint variance: at
        least the variance of rows keeps them apart from those that are. Without
        released squares, an upper bound on their total, divided equally:
        outcomes of one class have a variance of 1/4, of K classes of 1 - 1/K.
        """
        n_classes, n_bins = self.residuals_.shape
        if self.squares_ is not None:
            out: Array = self.squares_[rows].ravel()
            if self.moments_:
                cells = self.moments_[0].variance[1 + n_classes :]
                own = cells.reshape(n_classes, n_bins)[rows].ravel()
                seen = _visible(self.residuals_, self.squares_)[rows].ravel()
                out = np.where(seen, own, np.maximum(own, out))
            return out
        most = 0.25 if len(rows) == 1 else 1 - 1 / len(rows)
        share = self.n_examples_ * most * self.rows_each_ / (len(rows) * n_bins)
        return np.full(len(rows) * n_bins, share)

    def _of_rows(self) -> Self:
        """Give the same sums with independent rows as the population."""
        out = copy(self)
        out.moments_, out.rows_each_ = (), 1
        return out


def _visible(residuals: Array, squares: Array) -> Array:
    """Whether the sign of each sum is known, if rows are independent."""
    out: Array = np.abs(residuals) > KNOWN * np.sqrt(squares)
    return out


@dataclass(frozen=True)
class OneVsRest:
    """Counts of (class, negative or positive, bucket) over all clients.

    counts of shape (2, n_classes, n_buckets): Negatives that were reported, and
        positives.
    noise: Law of the noise of each level.
    classes of shape (n_classes,): Labels.
    ceiling: Highest bucket in which a negative that was not reported can lie.
    privacy_: Privacy guarantee of the release.
    """

    counts: Array
    noise: NoiseModel
    classes: Array
    ceiling: int
    privacy_: PrivacyReport
    estimand_: str
    population_: Population = "rows"
    moments_: tuple[ClientSpread, ...] = ()
    rows_each_: int = 1

    def _of_rows(self) -> Self:
        """Give the same counts with independent rows as the population."""
        return copy_with(self, moments_=(), rows_each_=1)

    @with_guarantee
    def macro_auc(self, ci: float) -> Estimate:
        """Mean of the areas of all classes against the rest."""
        parts = [self._class(k) for k in range(len(self.classes))]
        if any(part is None for part in parts):
            undefined("ROC AUC", "a class has no rows, or all of them", "nan")
            return Estimate(nan, nan, nan, se_sampling=nan, se_privacy=nan)
        values, slopes, tied, unseen = zip(
            *[p for p in parts if p is not None], strict=True
        )
        each = [self._sampling(k, slope) for k, slope in enumerate(slopes)]
        # Rows enter several classes; the mean of the errors bounds that of the mean.
        sampling = float(np.mean(np.sqrt(each))) ** 2
        privacy = self._privacy(np.mean(slopes, axis=0))
        found = self._estimate(
            0, float(np.mean(values)), sampling, privacy, ci, float(np.mean(tied))
        )
        return _lowered(found, float(np.mean(unseen)))

    @with_guarantee
    def per_class(self, ci: float) -> list[Estimate]:
        """Area of each class against the rest."""
        out = []
        for k in range(len(self.classes)):
            part = self._class(k)
            if part is None:
                undefined(
                    "ROC AUC",
                    f"class {self.classes[k]!r} has no rows, or all of them",
                    "nan",
                )
                out.append(Estimate(nan, nan, nan, se_sampling=nan, se_privacy=nan))
                continue
            value, slope, tied, unseen = part
            both = self._sampling(k, slope), self._privacy(slope)
            found = self._estimate(k + 1, value, *both, ci, tied)
            out.append(_lowered(found, unseen))
        return out

    def _class(self, k: int) -> tuple[float, Array, float, float] | None:
        """Area of one class, its gradient in the counts, and its error bounds.

        The bounds are that for ties inside buckets, and the part that can only
        overestimate.
        """
        negative, positive = self.counts[0, k].copy(), self.counts[1, k]
        rows = float(self.counts[1].sum())
        # Negatives that were not reported count as lowest, which makes the area too
        # large; how much at most is part of the bound.
        hidden = rows - float(positive.sum()) - float(negative.sum())
        negative[0] += hidden
        n, p = float(negative.sum()), float(positive.sum())
        if min(n, p) <= 0:
            return None
        value, (down, up) = auc_with_gradient(np.stack([negative, positive]))
        slope = np.zeros_like(self.counts)
        slope[0, k] = down - down[0]
        slope[1] = down[0]  # a row of any other class is one more negative
        slope[1, k] = up
        seen = np.maximum(negative, 0) * np.maximum(positive, 0)
        tied = min(float(seen.sum()) / (2 * n * p), 0.5)
        below = max(float(positive[: self.ceiling + 1].sum()), 0.0)
        unseen = min(max(hidden, 0.0) / n * below / p, 1.0)
        return value, slope, min(tied + unseen, 1.0), unseen

    def _privacy(self, slope: Array) -> float:
        """Variance that noise adds."""
        tables = (-1, self.counts.shape[-1])
        both = self.noise.variances(self.counts.reshape(tables), slope.reshape(tables))
        return float(both[1])

    def _sampling(self, k: int, slope: Array) -> float:
        """Variance of the area of one class, if rows are independent."""
        weight, counts = _own(k, slope), self.counts[:, k]
        mean = float((counts * weight).sum())
        square = float((counts * weight**2).sum())
        rows = max(float(self.counts[1].sum()), 1.0)
        return max(square - mean**2 / rows, 0.0) * self.rows_each_

    def _estimate(
        self,
        question: int,
        value: float,
        sampling: float,
        privacy: float,
        ci: float,
        tied: float,
    ) -> Estimate:
        """Estimate of one of the questions of `OneVsRestMoments`."""
        free = inf
        if self.moments_:
            sampling, free = (float(part[question]) for part in self.moments_[0])
        return make_estimate(
            value, sampling, privacy, ci=ci, discretisation=tied, freedom=free
        )

    def weights(self) -> Array:
        """Slopes of the areas, `_own`; 0 for a class without an area."""
        out = np.zeros_like(self.counts)
        for k in range(len(self.classes)):
            part = self._class(k)
            if part is not None:
                out[:, k] = _own(k, part[1])
        return out


def _own(k: int, slope: Array) -> Array:
    """Slope of one area in its own counts, of shape (2, n_buckets).

    Every row of another class adds a constant to it; the slopes are those beyond that,
    so that a row has one of them or none.
    """
    return np.stack([slope[0, k], slope[1, k] - slope[1, k - 1, 0]])


def _lowered(found: Estimate, unseen: float) -> Estimate:
    """Lower the interval of an estimate that may be too large by `unseen`."""
    return replace(found, low=max(found.low - unseen, 0.0))


def fit_one_vs_rest(
    clients: tuple[Any, Any], settings: dict[str, Any], n_others: int | None
) -> OneVsRest:
    """Count the scores of all classes; `settings` as of `ScoreHistogram.fit`."""
    check_choices(weighting=settings.get("weighting", "example"))
    if settings.get("weighting", "example") != "example":
        raise ValueError(
            "multi_class='ovr' supports weighting='example' only; leave weighting out."
        )
    if settings.get("pos_label") is not None:
        raise ValueError(
            f"pos_label={settings['pos_label']!r}: multi_class='ovr' treats each "
            "class as positive in turn; leave pos_label out."
        )
    check_choices(space=settings.get("space", "both"))
    statistic = Statistic(
        settings["privacy"],
        settings.get("ledger"),
        settings.get("runner"),
        settings["random_state"],
        "federated_roc_auc_score",
    )
    given = Clients(
        *clients,
        settings["client_ids"],
        settings.get("classes"),
        settings.get("input_type", "logits"),
        statistic.private,
    )
    data, classes = given.several()
    space = settings.get("space", "both")
    depths = release_levels(
        statistic.model,
        settings.get("height", "auto"),
        settings.get("levels", "auto"),
        space,
    )
    n_others = _checked_others(n_others, len(classes), statistic)
    limit = statistic.limit(settings.get("max_examples_per_client"))
    asked = settings.get("population", "auto")
    population = choose_population(asked, statistic, len(data))
    n_weights = 2 * len(classes) * 2 ** depths[-1]
    if population == "clients" and not statistic.private and n_weights > MAX_WEIGHTS:
        if asked == "clients":
            raise ValueError(
                f"population='clients': {n_weights} weights of counts are more than "
                f"{MAX_WEIGHTS}. Pass a smaller height, or population='rows'."
            )
        population = "rows"
    grid = ScoreGrid(depths[-1], space)
    algorithm = OneVsRestCounts(
        depths,
        max_examples=limit,
        clip=float((n_others + 1) * (limit or 1)) if statistic.private else None,
        salt=0 if limit is None else statistic.salt(),
        space=grid.space,
        n_classes=len(classes),
        input_type=given.input_type,
        n_others=n_others,
    )
    found = statistic.run(algorithm, data)
    state = found.state
    noise = NoiseModel.from_rows(depths, state.laws)
    totals = split_levels(state.totals, depths, 2 * len(classes))
    counts = noise.estimate(totals).reshape(2, len(classes), -1)
    # A class that is not among the n_others most probable other ones has at most this.
    highest = grid.position(1 / (n_others + 1))
    ceiling = int(highest * grid.n_buckets)
    ceiling = min(ceiling, grid.n_buckets - 1)
    estimand = describe_estimand("example", limit)
    alike = population == "clients" and statistic.private
    out = OneVsRest(
        counts, noise, classes, ceiling, found.report, estimand, population,
        rows_each_=limit or 1 if alike else 1,
    )  # fmt: skip
    if population == "rows" or statistic.private:
        return out
    weights = out.weights()
    scale = max(float(np.abs(weights).max()), 1e-300)
    options = {f.name: getattr(algorithm, f.name) for f in fields(algorithm)}
    # Five digits are enough for a variance.
    listed = (weights / scale).round(5).ravel().tolist()
    later = statistic.run(
        OneVsRestMoments(**options, weights=tuple(listed)), data, suffix=".moments"
    )
    spread = _spread_of(later, max(float(counts[1].sum()), 1.0))
    both = ClientSpread(spread.variance * scale**2, spread.freedom)
    return copy_with(out, moments_=(both,))


def _checked_others(n_others: int | None, n_classes: int, statistic: Statistic) -> int:
    """Number of other classes that a row is counted for.

    None is all of them for exact sums, and 1 under noise, because the noise grows with
    it.
    """
    if statistic.local:
        raise ValueError(
            "multi_class='ovr' counts a row for several classes, which would spend eps "
            "under LocalDP several times; use DistributedDP or CentralDP."
        )
    if n_others is None:
        n_others = 1 if statistic.private else n_classes - 1
    whole = isinstance(n_others, Integral) and not isinstance(n_others, bool)
    if not whole or not 1 <= n_others <= n_classes - 1:
        raise ValueError(
            f"n_others={n_others!r}: pass a whole number from 1 to {n_classes - 1}."
        )
    return n_others
