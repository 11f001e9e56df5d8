"""Compare two scores of the same rows: the difference of a metric, paired."""

from __future__ import annotations

from dataclasses import replace
from math import nan, sqrt
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from skfedcal._params import check_flag
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.evaluation.answers import answers_documented, undefined
from skfedcal.evaluation.collect import Statistic
from skfedcal.evaluation.inputs import Clients, check_choices
from skfedcal.evaluation.intervals import Estimate, check_level, quantile, with_noise
from skfedcal.evaluation.noise import NoiseModel, release_levels, split_levels
from skfedcal.evaluation.paired_rounds import (
    PairedDifferences,
    PairedScoreCounts,
    PairedState,
)
from skfedcal.evaluation.population import (
    choose_population,
    describe_estimand,
    warn_one_row,
    weighted_variance,
)
from skfedcal.evaluation.ranking import auc_with_gradient
from skfedcal.evaluation.rounds import SIZE_UNIT
from skfedcal.federation.history import RoundHistory
from skfedcal.federation.remote import RemoteClients, RemoteDataset
from skfedcal.methods.buckets import class_rows

if TYPE_CHECKING:
    from skfedcal._typing import ArrayLike, ClientRows, InputType, PerRow, Seed
    from skfedcal.federation.runner import FederatedRunner
    from skfedcal.privacy.events import PrivacyReport
    from skfedcal.privacy.ledger import PrivacyLedger
    from skfedcal.privacy.models import PrivacyModel

Array = NDArray[Any]
Metric = Literal["accuracy", "brier", "log_loss", "roc_auc"]
METRICS = ("accuracy", "brier", "log_loss", "roc_auc")

# Depth of the buckets of an area: weights of as many buckets are sent to sites.
_HEIGHT = 8
# Shares of eps for the counts of the two scores and for the squares of the differences.
_SHARES = (0.4, 0.4, 0.2)
# Rows that the variance of a difference of accuracies counts in addition, one for and
# one against the second score, so that an interval of few changed rows is not a
# point (Bonett and Price, 2012, adjusted Wald interval of paired proportions).
_ADDED_CHANGES = 2.0
# Largest difference of log losses under privacy; larger ones are cut.
_LOG_BOUND = 2.0


@answers_documented
def federated_compare_scores(
    clients_a: ClientRows,
    clients_b: ClientRows | None = None,
    y: PerRow | None = None,
    *,
    client_ids: ArrayLike | None = None,
    metric: Metric = "brier",
    privacy: PrivacyModel | None = None,
    held_back: bool = False,
    max_examples_per_client: int | None = None,
    weighting: Literal["example", "client"] = "example",
    population: Literal["auto", "clients", "rows"] = "auto",
    classes: ArrayLike | None = None,
    input_type: InputType = "logits",
    ci: float = 0.95,
    ledger: PrivacyLedger | None = None,
    runner: FederatedRunner | None = None,
    random_state: Seed = None,
) -> Estimate:
    """Difference of a metric between two scores of the same rows, b minus a.

    Scores of one row have errors in common, which cancel in the difference: the
    interval is much shorter than that of two separate answers. The scores may be those
    of two models, or of one model before and after calibration.

    Parameters
    ----------
    clients_a, clients_b : list of (scores, labels) pairs, list of arrays, or array-like
        Scores a and b of the same rows, in the same order and form, with one column per
        class (or one, of two classes). Sites (`RemoteClients`) have the logits of both
        in the columns of their features, a before b; `clients_b` is then None.
    y : array-like of shape (n_samples,), or list of these, default=None
        Labels; omitted when clients are lists of pairs.
    client_ids
    metric : {'accuracy', 'brier', 'log_loss', 'roc_auc'}, default='brier'
        For 'brier' and 'log_loss' a difference below 0 is in favour of b. 'roc_auc' is
        for two classes.
    privacy : privacy model, default=None
        Privacy model of the release; None is `SecureAggregation`: exact sums. Under
        privacy, differences of log losses of a row are cut at 2 and -2.
    held_back : bool, default=False
        Use only the fifth of each client's rows that fits hold back, by a public hash.
        Not with single examples as the unit of privacy.
    max_examples_per_client : int, default=None
        Maximum number of rows that a client contributes. None is all rows, or 1 under
        client-level privacy.
    weighting
    population : {'auto', 'clients', 'rows'}, default='auto'
        What the interval is for, as for `ScoreHistogram.fit`.
    classes
    input_type : {'logits', 'log_proba', 'proba'}, default='logits'
        Type of both scores; it is never inferred from the data.
    ci, ledger, runner, random_state

    Returns
    -------
    Estimate
        The difference; its interval holds 0 where the scores cannot be told apart. NaN,
        with a warning, for areas if there is only one class.

    Notes
    -----
    Under privacy the square of a client's difference is released too, with a bound of
    its own, so that the interval is for clients whatever the number of their rows.
    The exact interval of 'accuracy' counts one more changed row in each direction [1]_,
    so that it is not a point where no prediction changes. The other metrics have no
    such rule: if the difference comes from less than about one row in a hundred, have
    more than 16 clients.

    'roc_auc' takes three releases: counts of both scores, with 40 % of eps each, and
    the squares of the differences of their influence values.

    References
    ----------
    .. [1] D. Bonett and R. Price. Adjusted Wald confidence interval for a difference of
       binomial proportions based on paired data. Journal of Educational and Behavioral
       Statistics 37(4), 2012.

    Examples
    --------
    >>> from skfedcal import (
    ...     FedTempCalibrator, federated_compare_scores, make_federation)
    >>> fed = make_federation(n_clients=50, n_samples=5000, random_state=0)
    >>> cal = FedTempCalibrator().fit(fed.clients[:25])
    >>> rest = fed.clients[25:]
    >>> after = [(z / cal.temperature_, y) for z, y in rest]
    >>> gain = federated_compare_scores(rest, after, metric="log_loss")
    >>> gain.high < 0
    True
    """
    if not isinstance(metric, str) or metric not in METRICS:
        raise ValueError(f"metric={metric!r}: pass one of {METRICS}.")
    check_choices(weighting=weighting)
    check_level(ci)
    statistic = Statistic(
        privacy, ledger, runner, random_state, "federated_compare_scores"
    )
    by_row = statistic.private and statistic.unit == "example"
    held_back = check_flag("held_back", held_back)
    if statistic.local:
        raise ValueError(
            "federated_compare_scores sums real numbers, which LocalDP cannot "
            "randomise; use DistributedDP or CentralDP."
        )
    if by_row and (held_back or weighting == "client"):
        name = "held_back=True" if held_back else "weighting='client'"
        raise ValueError(
            f"{name}: {statistic.model!r} protects single examples, which must not "
            "depend on the other rows of their client. Leave it out."
        )
    limit = statistic.limit(max_examples_per_client)
    if weighting == "client":  # which bounds a client by itself
        limit = max_examples_per_client
    given = Clients(clients_a, y, client_ids, classes, input_type, statistic.private)
    data: FederatedDataset | RemoteDataset
    if clients_b is None:
        data = _remote(given)
    else:
        data = _paired(given, replace(given, X=clients_b, assumptions=[]))
    statistic.assumptions = given.assumptions
    if metric == "roc_auc" and data.n_classes != 2:
        raise ValueError(
            f"metric='roc_auc' is for two classes, not for {data.n_classes}; pass "
            "'accuracy', 'brier' or 'log_loss'."
        )
    chosen = choose_population(population, statistic, len(data))
    if statistic.private and limit == 1 and max_examples_per_client is None:
        warn_one_row(weighting, stacklevel=3)
    settings: dict[str, Any] = {
        "n_features": _n_columns(data),
        "max_examples": limit,
        "weighting": weighting,
        "held": held_back,
        "salt": 0 if limit is None else statistic.salt(),
    }
    if metric == "roc_auc":
        found = _areas(statistic, data, settings, chosen)
    else:
        found = mean_difference(
            statistic, data, PairedDifferences, settings, metric, chosen
        )
    if found is None:
        undefined("Difference of areas", "only one class is present", "nan")
        return Estimate(nan, nan, nan, se_sampling=nan, se_privacy=nan)
    return found.estimate(ci, chosen, describe_estimand(weighting, limit))


class Found:
    """A difference, its variances and the report."""

    def __init__(
        self,
        value: float,
        spread: tuple[float, float, float],
        noise: float,
        bound: float,
        report: PrivacyReport,
        discretisation: float = 0.0,
    ) -> None:
        self.value = min(max(value, -bound), bound)
        self.sampling, self.free, self.effect = spread
        self.privacy, self.bound, self.report = noise, bound, report
        self.discretisation = discretisation
        # Mean of the first score, where it is asked for, its noise, and the rounds.
        self.before, self.before_noise, self.history = nan, 0.0, RoundHistory()

    def estimate(self, ci: float, population: Any, estimand: str) -> Estimate:
        """Difference with its interval."""
        free = with_noise(np.array(self.free), self.sampling, self.privacy)
        half = quantile(ci, float(free)) * sqrt(self.sampling + self.privacy)
        return Estimate(
            self.value,
            max(self.value - half, -self.bound),
            min(self.value + half, self.bound),
            se_sampling=sqrt(self.sampling),
            se_privacy=sqrt(self.privacy),
            discretisation=self.discretisation,
            privacy=self.report if self.report.private else None,
            population=population,
            estimand=estimand,
            design_effect=self.effect,
        )


def mean_difference(
    statistic: Statistic,
    data: Any,
    make: type[PairedDifferences],
    settings: dict[str, Any],
    metric: str,
    chosen: str,
    log_bound: float = _LOG_BOUND,
) -> Found:
    """Difference of the mean of a number of each row."""
    # A Brier score of K > 2 classes is at most 2.
    most = 2.0 if metric == "brier" and data.n_classes > 2 else 1.0
    bound = log_bound if metric == "log_loss" else most
    algorithm = make(
        metric=metric,  # type: ignore[arg-type]
        bound=bound if statistic.private else None,
        count_rows=statistic.unit != "example",
        **settings,
    )
    found = statistic.run(algorithm, data)
    state = found.state
    rows = max(float(state.sums[2]), 1.0)
    value = float(state.sums[0]) / rows
    rare = metric == "accuracy" and settings["weighting"] == "example"
    added = _ADDED_CHANGES if rare else 0.0
    spread = _spread(state, rows, statistic.private, chosen, added)
    noise = float(state.noise[0] + value**2 * state.noise[2]) / rows**2
    limit = bound if statistic.private or metric != "log_loss" else np.inf
    out = Found(value, spread, noise, limit, found.report)
    out.before, out.before_noise = state.before / rows, sqrt(state.before_noise) / rows
    out.history = found.history
    return out


def _spread(
    state: PairedState, rows: float, private: bool, population: str, added: float = 0.0
) -> tuple[float, float, float]:
    """Sampling variance of a mean, its degrees of freedom and its design effect.

    added: Variance of the total that exact sums get in addition.
    """
    if private:
        # One standard deviation of its noise more, so that noise does not make it too
        # small; the mean is not taken off, which makes it an upper bound.
        doubt = sqrt(float(state.noise[1]))
        return max(float(state.sums[1]) + doubt, doubt) / rows**2, np.inf, 1.0
    total, squares, _ = state.sums
    own, cross, sizes = state.products
    cubes, fourths = state.powers * [SIZE_UNIT**3, SIZE_UNIT**4]
    found, free, alone = map(
        float,
        weighted_variance(
            np.array([total, squares, own, cross]),
            np.array([rows, sizes, cubes, fourths]),
        ),
    )
    if population == "rows":
        return (alone + added) / (rows * max(rows - 1, 1.0)), np.inf, 1.0
    return (found + added) / rows**2, free, found / alone if alone else 1.0


def _areas(
    statistic: Statistic, data: Any, settings: dict[str, Any], chosen: str
) -> Found | None:
    """Difference of two areas under the curve, from their influence values.

    None if one of the classes has no rows, or fewer than the noise.
    """
    model = statistic.model
    reports, areas, slopes, noise, tied = [], [], [], 0.0, 0.0
    depths = release_levels(model, _HEIGHT, "auto")
    rows = settings["max_examples"] if settings["weighting"] == "example" else 1
    for second in (False, True):
        if statistic.private:
            statistic.model = replace(model, eps=model.eps * _SHARES[int(second)])  # type: ignore[type-var,attr-defined]
        counting = PairedScoreCounts(
            depths,
            space="both",
            clip=float(rows or 1) if statistic.private else None,
            second=second,
            **settings,
        )
        found = statistic.run(counting, data, suffix=f".{'ab'[second]}")
        law = NoiseModel.from_rows(depths, found.state.laws)
        counts = law.estimate(split_levels(found.state.totals, depths, 2))
        reports.append(found.report)
        if (counts.sum(axis=1) <= 0).any():
            statistic.model = model
            return None
        area, slope = auc_with_gradient(counts)
        areas.append(area)
        slopes.append(slope)
        noise += float(law.variances(counts, slope)[1])
        seen = np.maximum(counts, 0.0)
        tied += float((seen[0] * seen[1]).sum()) / (2 * seen.sum(1).prod())
    scale = float(np.abs(slopes).max())
    if statistic.private:
        statistic.model = replace(model, eps=model.eps * _SHARES[2])  # type: ignore[type-var,attr-defined]
    algorithm = PairedDifferences(
        metric="weights",
        # Of influence values between -1 and 1.
        bound=2.0 if statistic.private else None,
        count_rows=False,
        # Five digits are enough for a variance.
        weights=tuple((np.stack(slopes) / scale).round(5).ravel().tolist()),
        **settings,
    )
    found = statistic.run(algorithm, data, suffix=".c")
    statistic.model = model
    reports.append(found.report)
    rows = max(float(found.state.sums[2]), 1.0)
    spread = _spread(found.state, rows, statistic.private, chosen)
    sampling = spread[0] * rows**2 * scale**2
    report = reports[0] if not statistic.private else _total(reports, model)
    return Found(
        areas[1] - areas[0],
        (sampling, *spread[1:]),
        noise,
        1.0,
        report,
        min(tied, 1.0),
    )


def _total(reports: list[PrivacyReport], model: Any) -> PrivacyReport:
    """Guarantee of several releases together (basic composition)."""
    return replace(
        reports[0],
        eps=float(model.eps),
        delta=sum(one.delta for one in reports),
        n_rounds=sum(one.n_rounds for one in reports),
        secure=all(one.secure for one in reports),
        seeded=any(one.seeded for one in reports),
        ledger_ids=tuple(i for one in reports for i in one.ledger_ids),
    )


def _n_columns(data: FederatedDataset | RemoteDataset) -> int:
    if isinstance(data, FederatedDataset):
        return int(data.rows.shape[1])
    return data.n_columns


def _remote(given: Clients) -> RemoteDataset:
    """Sites that have both scores."""
    if not isinstance(given.X, RemoteClients):
        raise ValueError(
            "clients_b is missing: pass the second score of the same rows. Only remote "
            "sites have both in one file."
        )
    given.X.check_arguments(y=given.y, client_ids=given.client_ids)
    if given.input_type != "logits":
        raise ValueError(
            f"input_type={given.input_type!r}: sites have the logits of both scores. "
            "Leave input_type out."
        )
    return given.X.read(given.classes, "logits", rows="features")[0]


def _paired(first: Clients, second: Clients) -> FederatedDataset:
    """Clients with the logits of both scores, a before b."""
    read = [one.several() for one in (first, second)]
    a, b = (clients for clients, _ in read)
    if not isinstance(a, FederatedDataset) or not isinstance(b, FederatedDataset):
        raise ValueError(
            "Remote sites have both scores in one file: leave clients_b out."
        )
    same = (
        np.array_equal(a.offsets, b.offsets)
        and list(a.names) == list(b.names)
        and np.array_equal(read[0][1], read[1][1])
        and np.array_equal(a.labels, b.labels)
    )
    if not same:
        raise ValueError(
            "clients_a and clients_b differ in clients, numbers of rows, classes or "
            "labels; pass two scores of the same rows, in the same order."
        )
    rows = [c.rows if c.order is None else c.rows[c.order] for c in (a, b)]
    if first.input_type == "proba" or rows[0].shape[1] != rows[1].shape[1]:
        rows = [class_rows(r, first.input_type, a.n_classes) for r in rows]
    both = np.concatenate([r.astype(np.float64) for r in rows], axis=1)
    return replace(a, rows=both, order=None)
