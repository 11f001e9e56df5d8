"""FedAccTempCalibrator: the temperature at which confidence equals accuracy."""

from __future__ import annotations

import warnings
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skfedcal._docs import documented
from skfedcal._params import as_number
from skfedcal._sklearn_compat import Interval, StrOptions
from skfedcal.clients.arrays import read_array, to_logits
from skfedcal.exceptions import CalibrationWarning
from skfedcal.methods.accuracy_temperature.gap_curve import CURVE_GRID
from skfedcal.methods.accuracy_temperature.rounds import (
    AccuracyRoot,
    EceGrid,
    GapParts,
    TemperatureSearch,
    mean_confidence,
)
from skfedcal.methods.base import BaseCalibrator
from skfedcal.methods.temperature.rounds import newton_for
from skfedcal.privacy.models import CLIP_RANGE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from skfedcal._typing import ArrayLike, InputType, Seed
    from skfedcal.contract import Array, FederatedAlgorithm
    from skfedcal.federation.runner import FederatedRunner
    from skfedcal.methods.base import FitSetting
    from skfedcal.privacy.ledger import PrivacyLedger
    from skfedcal.privacy.models import PrivacyModel


Search = Literal["two_point", "bisect", "golden", "golden_linear", "newton", "grid"]

# Searches that an objective has, the first of which 'auto' takes under noise, and what
# it takes without.
SEARCHES: dict[
    str, tuple[Literal["two_point", "bisect", "golden", "golden_linear"], ...]
] = {
    "accuracy": ("two_point", "bisect", "golden", "golden_linear"),
    "nll": ("bisect", "golden", "golden_linear"),
    "ece": ("golden", "golden_linear"),
}
EXACT: dict[str, Literal["newton", "grid"]] = {
    "accuracy": "newton",
    "nll": "newton",
    "ece": "grid",
}

# Queries of 'auto', and the fewest that a search can do with. The paper's golden
# section has K = 5 steps, which are 6 queries.
_USUAL = {"bisect": 4, "golden": 6, "golden_linear": 6}
_FEWEST = {"two_point": 2, "bisect": 1, "golden": 2, "golden_linear": 2}
# Temperatures asked at once, by the least noise per unit that they are for.
_POINTS = ((0.03, 2), (0.003, 4), (0.0, 6))

# Public rows that are used.
_MAX_PUBLIC = 5000


def choose_search(params: FedAccTempCalibrator, private: bool) -> Search:
    """Search method for an objective: as given, or the best one.

    params: Estimator whose parameters are read.
    private: Whether there is noise.
    Result: The last two are exact.
    """
    allowed = SEARCHES[params.objective]
    if params.search == "auto" and private:
        return allowed[0]
    if params.search == "auto":
        if params.n_queries != "auto":
            raise ValueError(
                f"n_queries={params.n_queries!r} is not used by the exact search that "
                "search='auto' selects without noise; pass a search, or eps."
            )
        return EXACT[params.objective]
    if params.search not in allowed:
        raise ValueError(
            f"search={params.search!r} does not support "
            f"objective={params.objective!r}; pass one of {('auto', *allowed)}."
        )
    return params.search


def choose_queries(n_queries: int | Literal["auto"], search: str, noise: float) -> int:
    """Number of temperatures to query, given the noise per unit."""
    if n_queries == "auto":
        if search in _USUAL:
            return _USUAL[search]
        return next(n for least, n in _POINTS if noise >= least)
    if n_queries < _FEWEST[search]:
        raise ValueError(
            f"n_queries={n_queries} is too few for search={search!r}, which needs at "
            f"least {_FEWEST[search]}."
        )
    return int(n_queries)


def n_asked(total: Mapping[str, Array]) -> int:
    """Number of temperatures that were queried in a round, from its release."""
    if "parts" in total:
        return (len(total["parts"]) + 1) // 2
    return len(total["gaps"]) if "gaps" in total else 1


def warning_text(cal: FedAccTempCalibrator, private: bool) -> str | None:
    """Text of the warning about a fitted temperature, or None."""
    low, high = (float(v) for v in cal._range())
    start, stop = cal.temperature_interval_
    if cal._bounded:
        return (
            f"No optimum inside temperature_range={(low, high)}: stopped at T = "
            f"{cal.temperature_:.4g}. The range may be too narrow, or the predictions "
            "may be all correct, all wrong, or unrelated to the labels."
        )
    if not cal._converged:
        return (
            f"Not converged after {cal.n_rounds_} rounds: cohorts that change from "
            "round to round move the optimum. Use cohort='full'."
        )
    if private and cal._gain and (start < 1.02 * low or stop > 0.98 * high):
        return (
            f"The interval for T, {start:.3g} to {stop:.3g}, reaches the end of "
            f"temperature_range={(low, high)}; a wider range may give another T."
        )
    if cal._gain and (cal.temperature_ < start or cal.temperature_ > stop):
        return (
            f"search={cal.search_!r} ended at T = {cal.temperature_:.3g}, outside the "
            f"interval {start:.3g} to {stop:.3g} that follows from all its answers: "
            "the noise misled the search, or there were too few queries. "
            "search='two_point' combines all answers."
        )
    return None


def less_noise(model: PrivacyModel) -> str:
    """Hint for less noise at the same eps, for a message; '' if there is none."""
    from skfedcal.privacy.models import SourceDP

    other = "DistributedDP(eps, unit='example')"
    if isinstance(model, SourceDP):
        return f", and so would noise that is added once: {other}"
    if model.unit == "client":
        return f", and so would privacy for single rows instead of clients: {other}"
    return ""


def checked_range(temperature_range: ArrayLike, prior_temperature: float) -> Array:
    """Lowest and highest temperature; raises unless they enclose the prior."""
    pair = read_array(temperature_range, "temperature_range")
    good = pair.shape == (2,) and pair.dtype.kind in "iuf"
    if not good or not 0 < pair[0] < pair[1] < np.inf:
        raise ValueError(
            f"temperature_range={temperature_range!r} must be two finite numbers above "
            "0, the lower one first."
        )
    prior = as_number("prior_temperature", prior_temperature)
    if not pair[0] <= prior <= pair[1]:
        raise ValueError(
            f"prior_temperature={prior_temperature!r} is outside of "
            f"temperature_range={temperature_range!r}; widen the range."
        )
    return pair.astype(np.float64)


def public_curve(
    rows: ArrayLike | None, n_classes: int, input_type: InputType
) -> tuple[float, ...]:
    """Mean confidence of public rows at the temperatures of `CURVE_GRID`."""
    if rows is None:
        return ()
    try:
        rows = np.asarray(rows, dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"public_logits must hold numbers: {error}.") from None
    rows = rows.reshape(-1, 1) if rows.ndim == 1 else rows
    fits = rows.ndim == 2 and rows.shape[1] in (n_classes - 1, n_classes)
    if not fits or not len(rows) or not np.isfinite(rows.max(axis=1)).all():
        raise ValueError(
            f"public_logits of shape {rows.shape} must hold rows for {n_classes} "
            "classes, of the form given to fit, without NaN and +inf."
        )
    rows = rows[:: -(-len(rows) // _MAX_PUBLIC)]
    logits = to_logits(rows, n_classes, input_type=input_type)
    return tuple(float(v) for v in mean_confidence(logits, np.exp(CURVE_GRID)))


# Rows that a client counts for at most, where it is protected as a whole.
_ROWS = 10


@documented
class FedAccTempCalibrator(BaseCalibrator):
    """Divide all logits by the temperature at which confidence equals accuracy.

    Confidence is the probability of the predicted class. Its mean falls as the
    temperature rises; where it equals the accuracy, the model is as accurate as it
    claims. A row moves the gap between the two by at most 1, so that little noise
    protects it: a method for few labelled rows at some sources, such as hospitals after
    a change of scanner.

    Parameters
    ----------
    eps : float, default=None
        Privacy budget epsilon for a whole client (client-level differential privacy).
        None adds no noise. To protect single rows pass `privacy`.
    delta : float, default=None
        Accepted for a uniform interface and not used: Laplace noise gives pure
        eps-differential privacy.
    objective : {'accuracy', 'nll', 'ece'}, default='accuracy'
        'accuracy': mean confidence equals accuracy. 'nll': least log loss. 'ece': least
        calibration error of the predicted class in `n_bins` bins.
    search : {'auto', 'two_point', 'bisect', 'golden', 'golden_linear'}, default='auto'
        'two_point': two to six temperatures in one round, and the posterior mean; for
        'accuracy'. 'bisect': the sign of the gap, or of the slope of the log loss, one
        temperature a round. 'golden': golden section on the size of the objective, in
        log T; 'golden_linear': the same in T, as in the paper. 'auto': under noise
        'two_point' for 'accuracy', 'bisect' for 'nll', 'golden' for 'ece'; without
        noise the exact optimum.
    n_queries : int or 'auto', default='auto'
        Number of temperatures that clients are queried for; they share the budget. K
        steps of golden section are K + 1 queries. 'auto' is 6 for these and 4 for
        'bisect'; for 'two_point' 2, 4 or 6, the fewer the larger the noise.
    temperature_range : tuple of float, default=(0.25, 32.0)
        Lowest and highest temperature.
    loss_clip : float, default=10.0
        Bound on the log loss of a row for 'golden', on its slope in 1 / T for 'bisect'.
    clip : float or 'auto', default='auto'
        Maximum weight of a client, in rows, under client-level privacy: sums over more
        rows are scaled down to this number. A client with fewer rows counts less under
        the same noise, so pass about as many as most clients have. 'auto' is 10.
    n_bins : int, default=15
        Equal-width bins of confidence for 'ece'.
    public_logits : array-like of shape (n_samples, n_columns), default=None
        Rows of the same model without labels, of the form given to `fit`, that you
        declare public: the curve of their mean confidence over T is added to a built-in
        family of such curves, as its most likely one. It helps little, and only under
        noise. These rows enter no sum and are not protected.
    prior_temperature : float, default=1.0
        Temperature that is kept if nothing is learnt, and centre of the prior.
    if_improves : bool, default=True
        Under privacy, use `prior_temperature` if the released values add no information
        about T to the prior (`improves_`).
    hold_back
    privacy : privacy model, default=None
        Privacy model to use instead of `eps` and `delta`: SourceDP, CentralDP,
        DistributedDP or SecureAggregation.
    ledger, classes, input_type, runner, random_state

    Attributes
    ----------
    temperature_ : float
        The temperature, inside `temperature_range`. Predictions divide by
        `prior_temperature` instead where `improves_` is false and `if_improves` true.
    temperature_interval_ : ndarray of shape (2,)
        Nominal 95 % interval for the temperature of the population, which accounts for
        sampling, noise, and uncertainty about the curve. It combines all answers: where
        noise misled 'bisect' or 'golden', `temperature_` is outside. NaN for 'nll' and
        'ece'.
    search_ : {'two_point', 'bisect', 'golden', 'golden_linear', 'newton', 'grid'}
        The search that was used; the last two are exact.
    n_queries_ : int
        Number of temperatures that clients were queried for.
    classes_
    improves_ : bool
        Under privacy, whether the released values narrowed the prior of T; without it
        False if `hold_back` found harm.
    comparison_
    n_clients_, n_rounds_, privacy_, history_

    See Also
    --------
    FedTempCalibrator : Least log loss, exact or under Gaussian noise.
    FedTopBinCalibrator : Confidences set bin by bin.

    Notes
    -----
    Trust models, from the least noise to the most, with d sources of n rows:
    ``CentralDP(eps, unit="example")``, or ``DistributedDP`` where no server is to see
    exact sums, adds noise once; ``SourceDP(eps)`` adds noise at every source, so that a
    row is protected even if all other parties collude, at sqrt(d) times the noise;
    `eps` alone protects a source as a whole, at n times the noise per row. The first
    two assume that each person has only one row.

    'two_point' sends the gap of a row in steps from one temperature to the next, whose
    L1 norm is at most 1. The gap at each of m temperatures then has noise of variance
    ``2 m / eps**2``, where m separate queries have ``2 m**2 / eps**2``. The posterior
    compares the gaps with curves of rows whose predicted class leads all others by a
    gamma-distributed margin, of any accuracy and several shapes; a curve may deviate
    from them by a smooth random function that is zero at the root. The prior of log T
    is Student's t distribution with 3 degrees of freedom and a scale of 0.4 below and
    0.8 above `prior_temperature`.

    'golden_linear' is Algorithm 1 of the paper with a new point inside the new bracket
    (its appendix C.1) and without its last query, whose answer is not used; 'golden' is
    the same in log T. As printed it asks 7 times for K = 5 with noise for 6, and spends
    7 / 6 of eps.

    References
    ----------
    .. [1] "Privacy Preserving Recalibration under Domain Shift", sections 3.2 and 4,
       appendix C; anonymous text under review.

    Examples
    --------
    >>> from skfedcal import FedAccTempCalibrator, make_federation
    >>> fed = make_federation(n_clients=50, temperature=3.0, noise=0.0, random_state=0)
    >>> cal = FedAccTempCalibrator().fit(fed.clients)
    >>> round(cal.temperature_, 1)
    3.0
    >>> from skfedcal.privacy import SourceDP
    >>> cal = FedAccTempCalibrator(privacy=SourceDP(0.2)).fit(fed.clients)
    >>> cal.search_, cal.n_queries_, cal.privacy_.unit
    ('two_point', 4, 'example')
    """

    _parameter_constraints = {
        **BaseCalibrator._parameter_constraints,
        "objective": [StrOptions(set(SEARCHES))],
        "search": [StrOptions({"auto", *SEARCHES["accuracy"]})],
        "n_queries": [
            Interval(Integral, 1, 10**4, closed="both"),
            StrOptions({"auto"}),
        ],
        "temperature_range": ["array-like"],
        "loss_clip": [CLIP_RANGE],
        "clip": [Interval(Real, 1, 1e6, closed="both"), StrOptions({"auto"})],
        "n_bins": [Interval(Integral, 1, 2**20, closed="both")],
        "public_logits": ["array-like", None],
        "prior_temperature": [Interval(Real, 0, None, closed="neither")],
    }
    _fitted_names = ("temperature_", "temperature_interval_", "search_", "n_queries_")

    def __init__(
        self,
        eps: float | None = None,
        *,
        delta: float | None = None,
        objective: Literal["accuracy", "nll", "ece"] = "accuracy",
        search: Literal[
            "auto", "two_point", "bisect", "golden", "golden_linear"
        ] = "auto",
        n_queries: int | Literal["auto"] = "auto",
        temperature_range: ArrayLike = (0.25, 32.0),
        loss_clip: float = 10.0,
        clip: float | Literal["auto"] = "auto",
        n_bins: int = 15,
        public_logits: ArrayLike | None = None,
        prior_temperature: float = 1.0,
        if_improves: bool = True,
        hold_back: bool = False,
        privacy: PrivacyModel | None = None,
        ledger: PrivacyLedger | None = None,
        classes: ArrayLike | None = None,
        input_type: InputType = "logits",
        runner: FederatedRunner | None = None,
        random_state: Seed = None,
    ) -> None:
        self.eps = eps
        self.delta = delta
        self.objective = objective
        self.search = search
        self.n_queries = n_queries
        self.temperature_range = temperature_range
        self.loss_clip = loss_clip
        self.clip = clip
        self.n_bins = n_bins
        self.public_logits = public_logits
        self.prior_temperature = prior_temperature
        self.if_improves = if_improves
        self.hold_back = hold_back
        self.privacy = privacy
        self.ledger = ledger
        self.classes = classes
        self.input_type = input_type
        self.runner = runner
        self.random_state = random_state

    def _make_algorithm(self, setting: FitSetting) -> FederatedAlgorithm[Any]:
        low, high = (float(v) for v in np.log(self._range()))
        center = float(np.log(self.prior_temperature))
        full_rows = self._full_rows(setting)
        search = choose_search(self, setting.private)
        if search == "newton" and self.objective == "nll":
            return newton_for(setting.n_rows)
        if search == "newton":
            return AccuracyRoot(low, high, center)
        if search == "grid":
            return EceGrid(low, high, center, n_bins=int(self.n_bins))
        noise = self._noise_per_unit(setting)
        n_queries = choose_queries(self.n_queries, search, noise)
        common: dict[str, Any] = {
            "center": center,
            "full_rows": full_rows,
            "public_curve": public_curve(
                self.public_logits, setting.n_classes, self.input_type
            ),
        }
        if search == "two_point":
            return GapParts(
                low, high, n_points=n_queries, n_clients=setting.n_units, **common
            )
        return TemperatureSearch(
            low,
            high,
            self.objective,
            search,
            n_rounds=n_queries,
            loss_clip=as_number("loss_clip", self.loss_clip),
            n_bins=int(self.n_bins),
            **common,
        )

    def _full_rows(self, setting: FitSetting) -> float:
        """Rows from which on a client has full weight; 0 for sums without a bound."""
        whole = setting.private and setting.unit == "client"
        if not isinstance(self.clip, str):
            if not whole:
                raise ValueError(
                    f"clip={self.clip!r} bounds the contribution of a client under "
                    "client-level privacy; leave it out for unit='example' and "
                    "without noise."
                )
            return float(self.clip)
        if whole:
            return float(_ROWS)
        return 1.0 if setting.private else 0.0

    def _noise_per_unit(self, setting: FitSetting) -> float:
        """Standard deviation of the Laplace noise of one sum that uses all of eps."""
        from skfedcal.privacy.models import SourceDP

        if not setting.private:
            return 0.0
        model = self._privacy_model()
        n_draws = setting.n_clients if isinstance(model, SourceDP) else 1
        eps = float(getattr(model, "eps", 1.0))
        return np.sqrt(2 * n_draws) / eps / setting.n_units

    def _range(self) -> Array:
        return checked_range(self.temperature_range, self.prior_temperature)

    def _set_state(self, state: Any) -> None:
        low, high = self._range()
        self.temperature_ = float(np.clip(state.temperature, low, high))
        interval = getattr(state, "interval", np.full(2, np.nan))
        self.temperature_interval_ = np.clip(interval, low, high)
        self._gain = getattr(state, "learnt", True)
        outside = not low <= state.temperature <= high
        self._bounded = outside or getattr(state, "bounded", False)
        self._converged = getattr(state, "converged", True)

    def _improves(self) -> bool:
        return self._gain

    def _after_fit(self, setting: FitSetting) -> None:
        self.search_ = choose_search(self, setting.private)
        self.n_queries_ = sum(n_asked(record.total) for record in self.history_)
        text = warning_text(self, setting.private)
        if text is not None:
            warnings.warn(text, CalibrationWarning, stacklevel=4)

    def _warn_no_gain(self) -> None:
        kept = f"T = {self.prior_temperature:.4g}"
        other = less_noise(self._privacy_model())
        use = (
            f"Predictions keep {kept}; if_improves=False uses temperature_"
            if self.if_improves
            else f"temperature_ is used anyway; if_improves=True keeps {kept}"
        )
        warnings.warn(
            "The released values add hardly more information about the temperature "
            f"than the prior. {use}. More rows or a larger eps would help{other}.",
            CalibrationWarning,
            stacklevel=4,
        )

    def _check_restored(self) -> None:
        for value in (self.temperature_, *self._range()):
            if not isinstance(value, float) or not 0 < value < np.inf:
                raise ValueError(f"temperature {value!r} is not positive")
        interval = self.temperature_interval_
        if getattr(interval, "shape", None) != (2,) or interval.dtype != np.float64:
            raise ValueError(f"temperature_interval_={interval!r} is not an interval")
        known = {*SEARCHES["accuracy"], *EXACT.values()}
        if self.search_ not in known:
            raise ValueError(f"search_={self.search_!r} is unknown")
        if type(self.n_queries_) is not int:
            raise ValueError(f"n_queries_={self.n_queries_!r} is not an integer")

    def _calibrate(self, logits: Array) -> Array:
        logits /= logits.dtype.type(self.temperature_)
        return logits

    def _unchanged(self, logits: Array) -> Array:
        if not self.privacy_.private:  # harm on held-back rows
            return logits
        logits /= logits.dtype.type(self.prior_temperature)
        return logits
