"""ScoreHistogram: the statistic from which all metrics of binary scores are computed.

- Count scores by label and bucket under a privacy model.
- Histograms as JSON, exact to the last bit, and the sum of two of them.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import asdict, fields, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from skfedcal._json import parse
from skfedcal._version import __version__
from skfedcal.evaluation.answers import answers_documented
from skfedcal.evaluation.calibration import CalibrationErrors
from skfedcal.evaluation.collect import Statistic
from skfedcal.evaluation.grid import ScoreGrid
from skfedcal.evaluation.inputs import Clients, check_choices
from skfedcal.evaluation.noise import (
    LevelLaw,
    NoiseModel,
    is_depth,
    merged_noise,
    split_levels,
)
from skfedcal.evaluation.planning import Plan, planned_levels
from skfedcal.evaluation.population import (
    ClientMoments,
    Population,
    choose_population,
    collect_moments,
    describe_estimand,
    warn_one_row,
)
from skfedcal.evaluation.ranking import RankingAnswers
from skfedcal.evaluation.thresholds import ThresholdAnswers
from skfedcal.federation.history import RoundHistory
from skfedcal.methods.score_curves.rounds import LAW_FIELDS, LAW_KINDS, ClassScoreCounts
from skfedcal.privacy.events import PrivacyReport

if TYPE_CHECKING:
    from skfedcal._typing import ArrayLike, ClientRows, InputType, PerRow, Seed
    from skfedcal.clients.dataset import FederatedDataset
    from skfedcal.federation.collecting import Collected
    from skfedcal.federation.history import RoundRecord
    from skfedcal.federation.remote import RemoteDataset
    from skfedcal.federation.runner import FederatedRunner
    from skfedcal.privacy.ledger import PrivacyLedger
    from skfedcal.privacy.models import PrivacyModel


def collect_counts(
    statistic: Statistic,
    data: FederatedDataset | RemoteDataset,
    scores: ClassScoreCounts,
    max_examples: int | None,
    weighting: str,
) -> tuple[ClassScoreCounts, Collected]:
    """Run a counting algorithm under a privacy model; return it and what it found."""
    limit = statistic.limit(max_examples)
    if weighting == "client" and statistic.private and statistic.unit == "example":
        raise ValueError(
            f"weighting='client': {statistic.model!r} protects single examples, so "
            "the weight of one must not depend on other rows. Pass "
            "weighting='example'."
        )
    if statistic.local and weighting == "client":
        limit, weighting = 1, "example"  # one row each: the same expectation
    bound = 1.0 if weighting == "client" else limit
    algorithm = replace(
        scores,
        max_examples=limit if weighting == "example" else max_examples,
        clip=float(bound or 1.0) if statistic.private else None,
        weighting=weighting,  # type: ignore[arg-type]
        by_round=statistic.local,
        salt=0 if limit is None else statistic.salt(),
        n_rounds=len(scores.levels) if statistic.local else 1,
    )
    n_parts = len(scores.levels) if statistic.local else 1
    found = statistic.run(algorithm, data, n_parts=n_parts, drop_empty=statistic.local)
    return algorithm, found


_FORMAT = "skfedcal-histogram"
_VERSION = 1

# From here on discrete Laplace noise has no variance in double precision.
_NO_NOISE = 600.0

# Below the root of the largest float: answers have squares of counts.
_LARGEST = 1e100


def to_json(hist: ScoreHistogram) -> str:
    """Write all fields of a histogram but its history."""
    content = {
        "format": _FORMAT,
        "format_version": _VERSION,
        "skfedcal": __version__,
        "height": hist.grid.height,
        "space": hist.grid.space,
        "kind": hist.kind,
        "classes": hist.classes,
        "weighting": hist.weighting,
        "n_clients": hist.n_clients_,
        "levels": hist.noise_.to_list(),
        "totals": [total.tolist() for total in hist.totals],
        "population": hist.population_,
        "max_examples": hist.max_examples,
        "moments": [
            one.to_dict() for one in hist.moments_ if isinstance(one, ClientMoments)
        ],
        "privacy": write_report(hist.privacy_),
    }
    return json.dumps(content, allow_nan=False)


def from_json(text: str) -> dict[str, Any]:
    """Read the arguments of a histogram; raises ValueError for any other text."""
    try:
        content = parse(text, "The text")
        if content["format"] != _FORMAT or content["format_version"] != _VERSION:
            raise ValueError(
                f"format {content['format']!r}, version {content['format_version']!r}"
            )
        return _arguments(content)
    except (
        KeyError, TypeError, ValueError, AttributeError, RecursionError,
        ArithmeticError,
    ) as error:  # fmt: skip
        raise ValueError(f"Not a histogram of skfedcal: {error!r}.") from error


def merged(first: ScoreHistogram, second: ScoreHistogram) -> dict[str, Any]:
    """Arguments of the histogram of the clients of both; ValueError if unlike."""
    if not isinstance(second, type(first)):
        raise TypeError(
            f"merge() got a {type(second).__name__}; pass another ScoreHistogram."
        )
    for name in ("grid", "kind", "classes", "weighting"):
        mine, theirs = getattr(first, name), getattr(second, name)
        if mine != theirs:
            raise ValueError(
                f"Histograms with {name} {mine!r} and {theirs!r} cannot be merged; "
                f"fit both with the same {name}."
            )
    return {
        "noise": merged_noise(first.noise_, second.noise_),
        "totals": [a + b for a, b in zip(first.totals, second.totals, strict=True)],
        "grid": first.grid,
        "kind": first.kind,
        "classes": first.classes,
        "weighting": first.weighting,
        "n_clients": first.n_clients_ + second.n_clients_,
        "privacy": _merged_report(first.privacy_, second.privacy_),
        "history": (*first.history_, *second.history_),
        **_merged_population(first, second),
    }


def _merged_population(first: ScoreHistogram, second: ScoreHistogram) -> dict[str, Any]:
    """Clients where both have them as the population, else rows."""
    both = (first.population_, second.population_) == ("clients", "clients")
    limits = (first.max_examples, second.max_examples)
    return {
        "population": "clients" if both else "rows",
        "max_examples": None if None in limits else max(filter(None, limits)),
        "moments": (*first.moments_, *second.moments_) if both else (),
    }


def _merged_report(first: PrivacyReport, second: PrivacyReport) -> PrivacyReport:
    for name in ("unit", "adjacency", "trust"):
        mine, theirs = getattr(first, name), getattr(second, name)
        if mine != theirs:
            raise ValueError(
                f"The guarantees differ in {name} ({mine!r} and {theirs!r}), so that "
                "no common guarantee can be stated; do not merge these histograms."
            )
    worst = first if first.eps >= second.eps else second
    text = "merged histograms have no client in common"
    notes = dict.fromkeys((*first.assumptions, *second.assumptions, text))
    return replace(
        worst,
        delta=max(first.delta, second.delta),
        n_clients=first.n_clients + second.n_clients,
        secure=first.secure and second.secure,
        seeded=first.seeded or second.seeded,
        assumptions=tuple(notes),
        ledger_ids=(*first.ledger_ids, *second.ledger_ids),
    )


def _arguments(content: dict[str, Any]) -> dict[str, Any]:
    noise = NoiseModel(tuple(_law(law) for law in content["levels"]))
    check_choices(
        space=content["space"], kind=content["kind"], weighting=content["weighting"]
    )
    if len({law.kind if not law.local else "local" for law in noise.levels}) > 1:
        raise ValueError("levels have different kinds of noise")
    if not isinstance(content["classes"], list) or len(content["classes"]) != 2:
        raise ValueError("classes must be two labels")
    for label in content["classes"]:
        number = isinstance(label, (int, float)) and isfinite(label)
        if not number and not isinstance(label, str):
            raise ValueError(f"class {label!r} is not a number or text")
    if not _whole(content["n_clients"]):
        raise ValueError(f"n_clients={content['n_clients']!r} is no count")
    totals = [np.array(total, dtype=np.float64) for total in content["totals"]]
    shapes = [(2, 2**law.bits) for law in noise.levels]
    if [total.shape for total in totals] != shapes:
        raise ValueError("counts do not have the shape of their levels")
    if not noise.levels or noise.bits[-1] != content["height"]:
        raise ValueError("the last level differs from height")
    if not all((np.abs(total) < _LARGEST).all() for total in totals):
        raise ValueError("counts are not finite")
    report = read_report(content["privacy"])
    # With a huge eps the noise is 0, so the counts are exact. Any other eps has noise.
    if noise.exact and report.eps < _NO_NOISE:
        raise ValueError(f"counts without noise, but eps={report.eps:g}")
    return {
        "totals": totals,
        "noise": noise,
        "grid": ScoreGrid(content["height"], content["space"]),
        "kind": content["kind"],
        "classes": content["classes"],
        "weighting": content["weighting"],
        "n_clients": content["n_clients"],
        "privacy": report,
        **_population(content, noise),
    }


def _population(content: dict[str, Any], noise: NoiseModel) -> dict[str, Any]:
    """What intervals are for; rows in files of older versions."""
    population = content.get("population", "rows")
    limit, listed = content.get("max_examples"), content.get("moments", [])
    if population not in ("clients", "rows"):
        raise ValueError(f"unknown population {population!r}")
    if limit is not None and not (_whole(limit) and limit > 0):
        raise ValueError(f"invalid max_examples {limit!r}")
    size = 2 ** noise.bits[-1]
    moments = [ClientMoments.from_dict(one, size) for one in listed]
    if moments and not (noise.exact and population == "clients"):
        raise ValueError("second moments do not match the population")
    return {"population": population, "max_examples": limit, "moments": moments}


def _law(values: dict[str, Any]) -> LevelLaw:
    """Noise distribution of one level; raises ValueError for impossible values."""
    law = LevelLaw(**values)
    numbers = (law.variance, law.p, law.q)
    if not all(type(v) in (int, float) and 0 <= v < _LARGEST for v in numbers):
        raise ValueError(f"invalid variance, p or q in {values}")
    if law.kind not in LAW_KINDS or not is_depth(law.bits):
        raise ValueError(f"invalid kind or bits in {values}")
    if not _whole(law.n_reports) or not _whole(law.domain):
        raise ValueError(f"invalid n_reports or domain in {values}")
    if law.kind == "additive" and not law.variance > 0:
        raise ValueError(f"noise without variance: {values}")
    if law.local and not (
        law.q < law.p <= 1 and law.domain == 2 * 2**law.bits and law.n_reports
    ):
        raise ValueError(f"invalid p, q or domain in {values}")
    return law


def _whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def write_report(report: PrivacyReport) -> dict[str, Any]:
    """Give the fields of a report as JSON values."""
    return {
        name: "inf" if value == float("inf") else value
        for name, value in asdict(report).items()
    }


def read_report(values: dict[str, Any]) -> PrivacyReport:
    """Give the report of the fields of `write_report`; ValueError for any other."""
    known = {field.name for field in fields(PrivacyReport)}
    if not set(values) <= known:
        raise ValueError(f"privacy has unknown fields {sorted(set(values) - known)}")
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
    }
    if plain.get("eps") == "inf":
        plain["eps"] = float("inf")
    report = PrivacyReport(**plain)
    numbers = (report.eps, report.delta, report.noise_multiplier)
    if not all(type(v) in (int, float) and float(v) >= 0 for v in numbers):
        raise ValueError("invalid eps, delta or noise_multiplier in privacy")
    kinds = {"clip": dict, "assumptions": tuple, "ledger_ids": tuple}
    if not all(isinstance(getattr(report, k), kind) for k, kind in kinds.items()):
        raise ValueError(f"invalid {', '.join(kinds)} in privacy")
    sizes = [v for v in (report.mu, *report.clip.values()) if v is not None]
    if not all(type(v) in (int, float) and 0 <= v < _LARGEST for v in sizes):
        raise ValueError("invalid mu or clip in privacy")
    for text in (*report.assumptions, *report.ledger_ids):
        if not isinstance(text, str):
            raise ValueError("invalid assumptions or ledger_ids in privacy")
    for name in ("unit", "adjacency", "trust", "accountant"):
        if not isinstance(getattr(report, name), str):
            raise ValueError(f"invalid {name} in privacy")
    if not _whole(report.n_rounds) or not _whole(report.n_clients):
        raise ValueError("invalid n_rounds or n_clients in privacy")
    if not report.private and "eps" not in values:
        raise ValueError("privacy has no eps")
    if any(type(v) is not bool for v in (report.secure, report.seeded)):
        raise ValueError("invalid secure or seeded in privacy")
    return report


Array = NDArray[Any]


@answers_documented
class ScoreHistogram(ThresholdAnswers, RankingAnswers, CalibrationErrors):
    """Joint counts of labels and score buckets over all clients.

    Created by `fit`, `merge` or `from_json`. Every metric is an `Estimate`: a float
    with a confidence interval and its parts.

    Parameters
    ----------
    totals : sequence of ndarray of shape (2, 2**bits)
        Released counts of each level, negatives first.
    noise : NoiseModel
        Law of the noise of each level.
    grid : ScoreGrid
        The buckets of the last level.
    kind : {'binary', 'top'}
        Score of the positive class, or of the top label, whose outcome is whether it is
        correct.
    classes : sequence of length 2
        Labels of the two rows of counts.
    weighting : {'example', 'client'}
        Whether each example or each client has a total weight of 1.
    n_clients
    privacy : PrivacyReport
        Privacy guarantee of the release.
    history : sequence of RoundRecord, default=()
        Rounds of the run.
    population : {'clients', 'rows'}, default='rows'
        What intervals are for.
    max_examples : int, default=None
        Maximum number of rows of a client; None is all of them.
    moments : sequence of ClientMoments, default=()
        Second moments of the counts of clients, where they are the population.

    Attributes
    ----------
    counts_ : ndarray of shape (2, n_buckets)
        Unbiased counts of negatives and positives; not clipped at 0.
    n_examples_ : float
        Sum of the counts.
    n_clients_
    noise_ : NoiseModel
        Law of the noise of each level.
    privacy_, history_
    population_ : {'clients', 'rows'}
        What intervals are for.
    estimand_
    moments_ : tuple of ClientMoments
        Second moments of the counts of clients; empty under privacy.

    Notes
    -----
    A row falls into one of ``2 * 2**height`` cells, so that a client with one row has
    an L1 norm of 1. Levels with independent noise are made consistent by weighted least
    squares. The variance of a metric follows from its gradient in the counts (delta
    method): ``sum_c x_c (g_c - mean)^2`` for sampling, with unclipped counts, and the
    exact variance of the least squares fit for privacy; where clients randomise their
    own reports, a sandwich of both.

    With clients as the population, exact sums have a second round: the products of any
    two coarse counts of a client are summed, and the sampling variance is that between
    clients, with corrections for few clients. Under noise one row of each client is
    counted by default, and these are independent; with more rows, and with
    ``weighting='client'``, the sampling error is an upper bound: rows of one client
    are taken to be all alike.

    References
    ----------
    Cormode and Markov, "Federated Calibration and Evaluation of Binary Classifiers",
    VLDB 2023, sections 3 and 4.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal import ScoreHistogram
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(4000)
    >>> labels = (rng.random(4000) < scores).astype(int)
    >>> hist = ScoreHistogram.fit(scores, labels, client_ids=np.arange(4000) % 50,
    ...                           input_type="proba")
    >>> print(f"{hist.roc_auc():.3f}, {hist.accuracy(0.4):.3f}")
    0.827, 0.739
    >>> hist.roc_auc().se_privacy
    0.0
    """

    def __init__(
        self,
        totals: Sequence[Array],
        noise: NoiseModel,
        grid: ScoreGrid,
        *,
        kind: str,
        classes: Sequence[Hashable],
        weighting: str,
        n_clients: int,
        privacy: PrivacyReport,
        history: Sequence[RoundRecord] = (),
        population: Population = "rows",
        max_examples: int | None = None,
        moments: Sequence[ClientMoments] = (),
    ) -> None:
        self.totals = tuple(np.asarray(total, dtype=np.float64) for total in totals)
        self.grid = grid
        self.kind = kind
        self.classes = list(classes)
        self.weighting = weighting
        self.noise_ = noise
        self.counts_ = noise.estimate(self.totals)
        self.n_examples_ = float(self.counts_.sum())
        self.n_clients_ = n_clients
        self.privacy_ = privacy
        self.history_ = RoundHistory(history)
        self.population_ = population
        self.max_examples = max_examples
        self.estimand_ = describe_estimand(weighting, max_examples)
        self.moments_ = tuple(moments)
        # Rows of a client that may be all alike, where nothing is known of them.
        alike = population == "clients" and not self.moments_ and weighting != "client"
        self.rows_each_ = max_examples or 1 if alike else 1

    @classmethod
    def fit(
        cls,
        clients: ClientRows,
        y: PerRow | None = None,
        *,
        client_ids: ArrayLike | None = None,
        privacy: PrivacyModel | None = None,
        height: int | Literal["auto"] = "auto",
        levels: Sequence[int] | Literal["auto"] = "auto",
        plan: Plan | str | None = None,
        space: Literal["both", "prob", "logit"] = "both",
        kind: Literal["binary", "top"] = "binary",
        max_examples_per_client: int | None = None,
        weighting: Literal["example", "client"] = "example",
        population: Literal["auto", "clients", "rows"] = "auto",
        classes: ArrayLike | None = None,
        pos_label: Hashable | None = None,
        input_type: InputType = "logits",
        ledger: PrivacyLedger | None = None,
        runner: FederatedRunner | None = None,
        random_state: Seed = None,
    ) -> ScoreHistogram:
        """Collect the counts of all clients.

        Parameters
        ----------
        clients : list of (scores, labels) pairs, list of arrays, or array-like
            In the forms that ``fit`` of a calibrator takes. Scores have one column
            (of the positive class) or one per class.
        y, client_ids, privacy
        height : int or 'auto', default='auto'
            There are ``2**height`` buckets. 'auto' is 10 for exact sums; under noise it
            follows from the public number of rows, the budget and `plan`; under
            `LocalDP` it is 5 up to eps=2, else 6 (with ``space='prob'`` 4, then 5 below
            eps=4, then 6).
        levels : sequence of int or 'auto', default='auto'
            Depths that are released, the last one being `height`. 'auto' is chosen
            with the height; with a given one it is every fourth, such as (2, 6, 10),
            under noise, and `height` alone without. Under
            `LocalDP` every depth is used, and each client reports on one depth,
            assigned at random.
        plan : Plan or str, default=None
            What `skfedcal.evaluation.plan` returned, whose levels and bound on rows are
            used; or the name of the metric that the height is chosen for: None is
            'roc_auc', and functions take their own.
        space : {'both', 'prob', 'logit'}, default='both'
            Scale on which buckets have equal width: probability; log-odds from -16 to
            16; or the mean of the two, which is fine enough both for scores near 0 or
            1 and for those between.
        kind : {'binary', 'top'}, default='binary'
            Scores of the positive of two classes; or the largest probability of any
            number of classes, where a row is positive if it is of that class.
        max_examples_per_client : int, default=None
            Maximum number of rows that a client contributes, chosen by a hash of their
            position at the client. None is all rows, or 1 under client-level privacy,
            because the noise grows with this number.
        weighting
        population : {'auto', 'clients', 'rows'}, default='auto'
            What intervals are for: other clients like these, whose rows may be alike,
            or other rows, each independent of the others. 'auto' is clients if there
            are several, and rows if single examples are protected.
        classes : array-like of shape (2,), default=None
            Labels in the order of the columns; None takes them from `y`.
        pos_label : label, default=None
            Label of the positive class; a single column of scores belongs to it. None
            is the second of the classes.
        input_type : {'logits', 'log_proba', 'proba'}, default='logits'
            Type of the scores; it is never inferred from the data. One column of
            'logits' holds log-odds.
        ledger, runner, random_state

        Returns
        -------
        ScoreHistogram
        """
        statistic = Statistic(privacy, ledger, runner, random_state, cls.__name__)
        check_choices(space=space, kind=kind, weighting=weighting)
        bounded = statistic.private and statistic.unit == "client"
        if isinstance(plan, Plan) and bounded and not statistic.local:
            max_examples_per_client = max_examples_per_client or plan.max_examples
        # Before clients are read: a wrong setting is reported first.
        planned_levels(plan, 2.0, statistic.model, height, levels, space)
        given = Clients(
            clients, y, client_ids, classes, input_type, private=statistic.private
        )
        common: Any = {"space": space, "input_type": input_type}
        labels: list[Hashable] = ["wrong", "right"]
        if kind == "top":
            if pos_label is not None:
                raise ValueError(
                    f"pos_label={pos_label!r}: with kind='top' a row is positive if "
                    "its most probable class is right. Leave pos_label out."
                )
            data, columns = given.several()
            common |= {"scores": "top", "n_classes": len(columns)}
        else:
            data, positive, labels = given.binary(pos_label)
            common["positive"] = positive
        depths = planned_levels(
            plan,
            statistic.public_rows(data, max_examples_per_client),
            statistic.model,
            height,
            levels,
            space,
            statistic.limit(max_examples_per_client) or 1,
            len(data),
        )
        grid = ScoreGrid(depths[-1], space)
        scores = ClassScoreCounts(depths, **common)
        statistic.assumptions = given.assumptions
        return cls._collected(
            statistic, data, labels, grid, scores, max_examples_per_client, weighting,
            population,
        )  # fmt: skip

    @classmethod
    def _fit_at(
        cls,
        threshold: float,
        clients: ClientRows,
        y: PerRow | None = None,
        *,
        client_ids: ArrayLike | None = None,
        privacy: PrivacyModel | None = None,
        max_examples_per_client: int | None = None,
        weighting: Literal["example", "client"] = "example",
        population: Literal["auto", "clients", "rows"] = "auto",
        classes: ArrayLike | None = None,
        pos_label: Hashable | None = None,
        input_type: InputType = "logits",
        ledger: PrivacyLedger | None = None,
        runner: FederatedRunner | None = None,
        random_state: Seed = None,
    ) -> ScoreHistogram:
        """Count the rows on either side of one threshold, with the least noise.

        The two buckets are [0, 1/2) and [1/2, 1]; scores from `threshold` on are in the
        second. Parameters are those of `fit`.
        """
        statistic = Statistic(privacy, ledger, runner, random_state, cls.__name__)
        check_choices(weighting=weighting)
        given = Clients(
            clients, y, client_ids, classes, input_type, private=statistic.private
        )
        data, positive, labels = given.binary(pos_label)
        scores = ClassScoreCounts(
            (1,),
            space="prob",
            input_type=input_type,
            positive=positive,
            cut=float(threshold),
        )
        statistic.assumptions = given.assumptions
        return cls._collected(
            statistic, data, labels, ScoreGrid(1, "prob"), scores,
            max_examples_per_client, weighting, population,
        )  # fmt: skip

    @classmethod
    def _collected(
        cls,
        statistic: Statistic,
        data: FederatedDataset | RemoteDataset,
        labels: Sequence[Hashable],
        grid: ScoreGrid,
        scores: ClassScoreCounts,
        max_examples: int | None,
        weighting: str,
        population: str,
    ) -> ScoreHistogram:
        limit = statistic.limit(max_examples)
        chosen = choose_population(population, statistic, len(data))
        if statistic.private and limit == 1 and max_examples is None:
            warn_one_row(weighting, stacklevel=4)
        algorithm, found = collect_counts(
            statistic, data, scores, max_examples, weighting
        )
        totals = split_levels(found.state.totals, scores.levels, 2)
        moments: list[ClientMoments] = []
        history: Sequence[RoundRecord] = found.history
        if chosen == "clients" and not statistic.private:
            n_clients = int(found.state.laws[-1, LAW_FIELDS.index("n_reports")])
            of_clients, later = collect_moments(
                statistic, data, algorithm, totals[-1], grid, n_clients
            )
            moments, history = [of_clients], [*history, *later.history]
        return cls(
            totals,
            NoiseModel.from_rows(scores.levels, found.state.laws),
            grid,
            kind=scores.scores,
            classes=labels,
            weighting=weighting,
            n_clients=found.n_clients,
            privacy=found.report,
            history=history,
            population=chosen,
            max_examples=limit,
            moments=moments,
        )

    def merge(self, other: ScoreHistogram) -> ScoreHistogram:
        """Histogram of the clients of both.

        Parameters
        ----------
        other : ScoreHistogram
            Histogram with the same grid, classes and kind of noise; under noise fit
            both with the same `height` or `plan`. Its clients must be
            different ones: a client that is in both is counted twice and spends its
            budget twice.

        Returns
        -------
        ScoreHistogram
        """
        return type(self)(**merged(self, other))

    def to_json(self) -> str:
        """Everything but the history as JSON, exact to the last bit.

        Returns
        -------
        str
        """
        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> ScoreHistogram:
        """Restore a histogram from the text of `to_json`.

        Parameters
        ----------
        text : str
            JSON; nothing in it is executed.

        Returns
        -------
        ScoreHistogram
        """
        return cls(**from_json(text))

    def __repr__(self) -> str:
        noise = "exact" if self.noise_.exact else f"eps={self.privacy_.eps:g}"
        return (
            f"ScoreHistogram({self.n_examples_:.0f} {self.weighting}s of "
            f"{self.n_clients_} clients, {self.grid.n_buckets} buckets in "
            f"{self.grid.space}, {noise})"
        )
