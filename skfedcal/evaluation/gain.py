"""Did a calibrator help? Its map against its input, on rows that the fit left out.

The map is sent to the clients, which apply it to their own rows. Only sums of the
scores before, and of the differences, leave them (`paired_rounds.MapDifferences`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import TYPE_CHECKING, Any, Literal

from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from skfedcal._params import check_choice, check_flag, check_number
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.clients.forms import make_dataset
from skfedcal.evaluation.answers import answers_documented
from skfedcal.evaluation.collect import Statistic
from skfedcal.evaluation.inputs import check_choices, label_of_columns
from skfedcal.evaluation.intervals import Estimate, check_level
from skfedcal.evaluation.paired import mean_difference
from skfedcal.evaluation.paired_rounds import MapDifferences
from skfedcal.evaluation.population import (
    choose_population,
    describe_estimand,
    warn_one_row,
)
from skfedcal.federation.history import RoundHistory
from skfedcal.federation.remote import RemoteClients, RemoteDataset
from skfedcal.methods.held_back import has_map, map_losses
from skfedcal.methods.own_rows import held_back_rows

if TYPE_CHECKING:
    from skfedcal._typing import ArrayLike, ClientRows, Estimator, PerRow, Seed
    from skfedcal.federation.runner import FederatedRunner
    from skfedcal.privacy.ledger import PrivacyLedger
    from skfedcal.privacy.models import PrivacyModel

Metric = Literal["accuracy", "brier", "log_loss"]
METRICS = ("accuracy", "brier", "log_loss")
NORMS = {"laplace": "l1", "gaussian": "l2"}


@dataclass(frozen=True, slots=True)
class Gain:
    """A score before and after calibration, and the difference with its interval.

    Parameters
    ----------
    metric : {'accuracy', 'brier', 'log_loss'}
        What was compared. Of 'brier' and 'log_loss' less is better.
    before : float
        Mean score of the input; under privacy with noise.
    se_before : float
        Standard error that noise gives `before`.
    difference : Estimate
        After minus before, paired by rows.
    ci : float
        Level of the interval.
    held_back : bool
        Whether the rows were those that fits leave out.
    cut : float, default=None
        Where log losses of a row were cut, under privacy; None is nowhere.

    Attributes
    ----------
    after : float
        Mean score of the calibrated predictions: `before` plus the difference.
    helped : bool or None
        Whether the interval lies on the better side of 0, or on the worse; None if it
        holds 0.

    Examples
    --------
    >>> from skfedcal import Estimate
    >>> from skfedcal.evaluation import Gain
    >>> gain = Gain("log_loss", 1.04, 0.0, Estimate(-0.35, -0.41, -0.29), 0.95, True)
    >>> print(gain)
    log loss 1.04 -> 0.69, 95 % interval of the difference -0.41 to -0.29
    >>> gain.helped
    True
    """

    metric: Metric
    before: float
    se_before: float
    difference: Estimate
    ci: float
    held_back: bool
    cut: float | None = None
    history: RoundHistory = field(default_factory=RoundHistory, repr=False)

    @property
    def after(self) -> float:
        return self.before + float(self.difference)

    @property
    def helped(self) -> bool | None:
        low, high = self.difference.low, self.difference.high
        if self.metric == "accuracy":
            low, high = -high, -low
        return True if high < 0 else False if low > 0 else None

    def to_dict(self) -> dict[str, object]:
        """Return plain values, for JSON."""
        return {
            "metric": self.metric,
            "before": self.before,
            "se_before": self.se_before,
            "after": self.after,
            "difference": self.difference.to_dict(),
            "ci": self.ci,
            "held_back": self.held_back,
            "cut": self.cut,
        }

    def __str__(self) -> str:
        return gain_text(self.to_dict())


def gain_text(gain: Mapping[str, object], where: str = "") -> str:
    """Line that states a gain, from its plain values."""
    found: Any = gain
    difference = found["difference"]
    return (
        f"{found['metric'].replace('_', ' ')} {found['before']:.2f} -> "
        f"{found['after']:.2f}{where}, "
        f"{found['ci'] * 100:g} % interval of the difference "
        f"{difference['low']:.2f} to {difference['high']:.2f}"
    )


@answers_documented
def federated_gain(
    calibrator: Estimator,
    clients: ClientRows,
    y: PerRow | None = None,
    *,
    client_ids: ArrayLike | None = None,
    metric: Metric = "log_loss",
    privacy: PrivacyModel | None = None,
    bound: float = 4.0,
    noise: Literal["laplace", "gaussian"] = "laplace",
    held_back: bool = False,
    max_examples_per_client: int | None = None,
    weighting: Literal["example", "client"] = "example",
    population: Literal["auto", "clients", "rows"] = "auto",
    ci: float = 0.95,
    ledger: PrivacyLedger | None = None,
    runner: FederatedRunner | None = None,
    random_state: Seed = None,
) -> Gain:
    """Compare the predictions of a fitted calibrator with its input, at the clients.

    Parameters
    ----------
    calibrator : BaseCalibrator
        Fitted. Clients get the numbers of its map, which are public.
    clients : list of (scores, labels) pairs, list of arrays, array-like or
        RemoteClients
        As for `fit`; scores are of the type that the calibrator reads.
    y : array-like of shape (n_samples,), or list of these, default=None
        Labels; omitted when clients are lists of pairs, and for `RemoteClients`.
    client_ids
    metric : {'log_loss', 'brier', 'accuracy'}, default='log_loss'
        Score of a row.
    privacy : privacy model, default=None
        Privacy model of the release; None is `SecureAggregation`: exact sums.
    bound : float, default=4.0
        Where log losses of a row are cut under privacy: noise goes with it.
    noise : {'laplace', 'gaussian'}, default='laplace'
        Law of the noise under privacy. After a fit with Gaussian noise, Gaussian noise
        adds less to the total.
    held_back : bool, default=False
        Use only the fifth of each client's rows that a fit with
        ``RemoteClients.part('fit')`` leaves out, by a public hash.
    max_examples_per_client : int, default=None
        Maximum number of rows that a client contributes. None is all rows, or 1 under
        client-level privacy.
    weighting
    population : {'auto', 'clients', 'rows'}, default='auto'
        What the interval is for, as for `ScoreHistogram.fit`.
    ci, ledger, runner, random_state

    Returns
    -------
    Gain

    Examples
    --------
    >>> from skfedcal import FedTempCalibrator, federated_gain, make_federation
    >>> fed = make_federation(n_clients=50, n_samples=5000, random_state=0)
    >>> cal = FedTempCalibrator().fit(fed.clients[:25])
    >>> gain = federated_gain(cal, fed.clients[25:])
    >>> gain.helped
    True
    """
    if not isinstance(metric, str) or metric not in METRICS:
        raise ValueError(f"metric={metric!r}: pass one of {METRICS}.")
    check_choices(weighting=weighting)
    check_choice("noise", noise, tuple(NORMS))
    check_number("bound", bound, 0.1, 100, "both")
    check_level(ci)
    held_back = check_flag("held_back", held_back)
    statistic = Statistic(privacy, ledger, runner, random_state, "federated_gain")
    if statistic.local:
        raise ValueError(
            "federated_gain sums real numbers, which LocalDP cannot randomise; use "
            "DistributedDP or CentralDP."
        )
    by_row = statistic.private and statistic.unit == "example"
    if by_row and weighting == "client":
        raise ValueError(
            f"weighting='client': {statistic.model!r} protects single examples, which "
            "must not depend on the other rows of their client. Leave it out."
        )
    inner = _mapped_calibrator(calibrator)
    limit = statistic.limit(max_examples_per_client)
    if weighting == "client":  # which bounds a client by itself
        limit = max_examples_per_client
    data = _read(calibrator, clients, y, client_ids, statistic.private, held_back)
    chosen = choose_population(population, statistic, len(data))
    if statistic.private and limit == 1 and max_examples_per_client is None:
        warn_one_row(weighting, stacklevel=3)
    map_ = map_losses(inner, held=False)
    settings = {
        "max_examples": limit,
        "weighting": weighting,
        "salt": 0 if limit is None else statistic.salt(),
        "method": map_.method,
        "settings": map_.settings,
        "numbers": map_.numbers,
        "shapes": map_.shapes,
        "norm": NORMS[noise],
    }
    found = mean_difference(
        statistic, data, MapDifferences, settings, metric, chosen, float(bound)
    )
    difference = found.estimate(ci, chosen, describe_estimand(weighting, limit))
    return Gain(
        metric,
        max(found.before, 0.0),
        found.before_noise,
        difference,
        float(ci),
        held_back,
        float(bound) if statistic.private and metric == "log_loss" else None,
        found.history,
    )


def check_gain(
    sites: RemoteClients, classes: Any, input_type: Any, privacy: Any, runner: Any
) -> None:
    """Ask sites whether they would compare a map; over a transport that only asks.

    Raises PreflightEnd: With the reasons of those that would not.
    """
    statistic = Statistic(privacy, None, runner, None, "federated_gain")
    data = sites.part("held").read(classes, input_type)[0]
    settings = {
        "settings": {"temperature_": 1.0},
        "max_examples": statistic.limit(None),
    }
    mean_difference(statistic, data, MapDifferences, settings, "log_loss", "rows")


def noise_of_gain(n_units: float, mu: float, bound: float) -> float:
    """Standard error that Gaussian noise gives the mean difference of log losses.

    n_units: Rows that are compared, each protected for itself; or clients.
    mu: Bound of a unit over the noise, in Gaussian differential privacy.
    bound: Where losses are cut.
    """
    spec = MapDifferences(metric="log_loss", bound=bound, count_rows=False).spec({})
    parts = {n: sqrt(block.weight) * (block.clip or 1) for n, block in spec.items()}
    share = parts["difference"] / sum(parts.values())
    return bound / (mu * sqrt(share) * max(n_units, 1.0))


def _mapped_calibrator(calibrator: Any) -> Any:
    """Calibrator whose map clients apply: one that was chosen, or itself."""
    if not hasattr(calibrator, "predict_proba") or isinstance(calibrator, type):
        raise TypeError(
            f"calibrator is of type {type(calibrator).__name__}; pass a fitted "
            "calibrator such as FedTempCalibrator."
        )
    check_is_fitted(calibrator)
    inner = getattr(calibrator, "calibrator_", calibrator)
    if not has_map(inner):
        raise ValueError(
            f"The map of {type(inner).__name__} is not in the registry, so that "
            "clients cannot apply it; name it in the entry of "
            "skfedcal.methods.register_method."
        )
    if not calibrator._map_is_used:
        raise ValueError(
            "The predictions of the calibrator are its input (improves_ is False): "
            "there is nothing to compare."
        )
    return inner


def _read(
    calibrator: Any,
    clients: Any,
    y: Any,
    client_ids: Any,
    private: bool,
    held_back: bool,
) -> FederatedDataset | RemoteDataset:
    """Rows that count, as logits in the order of the calibrator's columns."""
    classes = label_of_columns(calibrator._class_map)
    if isinstance(clients, RemoteClients):
        clients.check_arguments(y=y, client_ids=client_ids)
        sites = clients.part("held") if held_back else clients
        return sites.read(classes, calibrator.input_type)[0]
    data, _ = make_dataset(
        BaseEstimator(),
        clients,
        y,
        client_ids,
        classes=classes,
        input_type=calibrator.input_type,
        private=private,
    )
    return held_back_rows(data, held=True) if held_back else data
