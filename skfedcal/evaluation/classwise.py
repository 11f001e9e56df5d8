"""Answers about several classes: ClasswiseResiduals and one-vs-rest areas."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan, sqrt
from numbers import Integral
from typing import TYPE_CHECKING, Any

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
)
from skfedcal.evaluation.ranking import auc_with_gradient
from skfedcal.evaluation.rounds import ClassResiduals, OneVsRestCounts

if TYPE_CHECKING:
    from skfedcal._typing import ArrayLike, ClientRows, InputType, PerRow, Seed
    from skfedcal.federation.history import RoundRecord
    from skfedcal.federation.runner import FederatedRunner
    from skfedcal.privacy.events import PrivacyReport
    from skfedcal.privacy.ledger import PrivacyLedger
    from skfedcal.privacy.models import PrivacyModel

Array = NDArray[Any]


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
        What intervals are for: clients where one row of each is counted.

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
        state = found.state
        return cls(
            state.residuals,
            state.n_rows,
            state.variance,
            None if statistic.private else state.squares,
            labels,
            found.n_clients,
            found.report,
            found.history,
            limit,
            _one_row_each(statistic, limit),
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
        sampling = self._sampling(rows)
        sigmas = np.sqrt(sampling + self.noise_variance_)
        found = sizes
        if check_flag("debias", debias):
            released = sampling if self.squares_ is not None else 0.0
            found = unfold(sizes, np.sqrt(released + self.noise_variance_))
        # A row adds to every class: its sum over classes is at most twice its largest
        # part, as probabilities add up to 1.
        shared = min(4.0, len(rows))
        z, known = quantile(ci), sizes > KNOWN * sigmas
        joint = shared * sampling[known].sum() + self.noise_variance_ * known.sum()
        low, high = sum_interval(sizes, sigmas * sqrt(shared), float(joint), z)
        scale = 1 / (n * len(rows))
        value = min(float(found.sum()) * scale, 1.0)
        return Estimate(
            value,
            min(low * scale, value),
            min(max(high * scale, value), 1.0),
            se_sampling=sqrt(shared * float(sampling.sum())) * scale,
            se_privacy=sqrt(self.noise_variance_ * sizes.size) * scale,
        )

    def _sampling(self, rows: Array) -> Array:
        """Sampling variance of each sum.

        Without released squares, an upper bound on their total, divided equally:
        outcomes of one class have a variance of 1/4, of K classes of 1 - 1/K.
        """
        if self.squares_ is not None:
            out: Array = self.squares_[rows].ravel()
            return out
        most = 0.25 if len(rows) == 1 else 1 - 1 / len(rows)
        cells = len(rows) * self.residuals_.shape[1]
        return np.full(cells, self.n_examples_ * most / cells)


def _one_row_each(statistic: Statistic, limit: int | None) -> Population:
    """Clients as the population where one row of each is counted, else rows."""
    return "clients" if statistic.private and limit == 1 else "rows"


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
        both = [self._variances(slope) for slope in slopes]
        # Rows enter several classes; the mean of the errors bounds that of the mean.
        sampling = float(np.mean([sqrt(s) for s, _ in both])) ** 2
        privacy = self._variances(np.mean(slopes, axis=0))[1]
        found = make_estimate(
            float(np.mean(values)),
            sampling,
            privacy,
            ci=ci,
            discretisation=float(np.mean(tied)),
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
            both = self._variances(slope)
            found = make_estimate(value, *both, ci=ci, discretisation=tied)
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

    def _variances(self, slope: Array) -> tuple[float, float]:
        tables = (-1, self.counts.shape[-1])
        sampling, privacy = self.noise.variances(
            self.counts.reshape(tables), slope.reshape(tables)
        )
        return float(sampling), float(privacy)


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
    choose_population(asked, statistic, len(data))
    population = _one_row_each(statistic, limit)
    if asked == "clients" and population == "rows":
        raise ValueError(
            "population='clients': counts with n_others have no second moments of "
            "clients. Leave n_others out, or pass population='rows'."
        )
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
    return OneVsRest(
        counts, noise, classes, ceiling, found.report, estimand, population
    )


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
