"""Federated accuracy temperature scaling."""

import warnings
from numbers import Integral, Real

import numpy as np

from skfedcal import algorithms
from skfedcal._params import as_number
from skfedcal._sklearn_compat import Interval, StrOptions
from skfedcal.calibrators import _search_choice as choice
from skfedcal.calibrators._base import BaseCalibrator
from skfedcal.exceptions import CalibrationWarning
from skfedcal.privacy._mixin import CLIP_RANGE

# Rows that a client counts for at most, where it is protected as a whole.
_ROWS = 10


class FedAccTempCalibrator(BaseCalibrator):
    """Divide all logits by the temperature at which confidence equals accuracy.

    Confidence is the probability of the predicted class. Its mean falls as the
    temperature rises; where it equals the accuracy, the model is right as often as it
    says. A row moves the gap between the two by at most 1, so that little noise hides
    it: a method for few labelled rows at some sources, such as hospitals after a change
    of scanner.

    Parameters
    ----------
    eps : float, default=None
        Budget of differential privacy for a whole client. None adds no noise. To
        protect single rows pass `privacy`.
    delta : float, default=None
        Accepted as everywhere and not needed: Laplace noise has a pure `eps`.
    objective : {'accuracy', 'nll', 'ece'}, default='accuracy'
        'accuracy': mean confidence equals accuracy. 'nll': least log loss. 'ece': least
        calibration error of the predicted class in `n_bins` bins.
    search : {'auto', 'two_point', 'bisect', 'golden'}, default='auto'
        'two_point': two to six temperatures in one round, and the posterior mean; for
        'accuracy'. 'bisect': the sign of the gap, or of the slope of the log loss, one
        temperature a round. 'golden': golden section on the size of the objective, as
        the paper has it. 'auto': under noise 'two_point' for 'accuracy', 'bisect' for
        'nll', 'golden' for 'ece'; without noise the exact optimum.
    n_queries : int or 'auto', default='auto'
        Temperatures at which clients are asked; they share the budget. K steps of
        golden section are K + 1 queries. 'auto' is 6 for 'golden' and 4 for 'bisect';
        for 'two_point' 2, 4 or 6, the fewer the larger the noise.
    temperature_range : tuple of float, default=(0.25, 32.0)
        Lowest and highest temperature.
    loss_clip : float, default=10.0
        Bound on the log loss of a row for 'golden', on its slope in 1 / T for 'bisect'.
    clip : float or 'auto', default='auto'
        Rows that a client counts for at most where it is protected as a whole: sums
        over more rows are scaled down to so many. With fewer it counts for less, under
        the same noise: pass about as many as most clients have. 'auto' is 10.
    n_bins : int, default=15
        Equal-width bins of confidence for 'ece'.
    public_logits : array-like of shape (n_samples, n_columns), default=None
        Rows of the same model without labels, of the form given to `fit`, that you
        declare public: the curve of their mean confidence over T is added to a built-in
        family of such curves, as its most likely one. It helps little, and only under
        noise. They are part of no sum, and nothing hides them.
    prior_temperature : float, default=1.0
        Temperature to be kept where nothing is learnt, and centre of the prior.
    if_improves : bool, default=True
        Use `prior_temperature` where, under privacy, the releases say no more about T
        than was known before (`improves_`).
    privacy : privacy model, default=None
        Other settings of privacy, instead of `eps` and `delta`: SourceDP, CentralDP,
        DistributedDP or SecureAggregation.
    ledger : PrivacyLedger, default=None
        Account that is debited before any client is asked.
    classes : array-like of shape (n_classes,), default=None
        Labels of the logit columns, in column order. None takes column names that are
        the labels, else the sorted labels of y.
    input_type : {'logits', 'log_proba', 'proba'}, default='logits'
        What the columns of X hold; never guessed.
    runner : FederatedRunner, default=None
        Rounds, cohorts, engine and checkpoint.
    random_state : int, RandomState instance or None, default=None
        None draws noise and cohorts from the operating system. A seed makes a
        simulation that can be repeated and guarantees nothing.

    Attributes
    ----------
    temperature_ : float
        The temperature, inside `temperature_range`. Predictions divide by
        `prior_temperature` instead where `improves_` is false and `if_improves` true.
    temperature_interval_ : ndarray of shape (2,)
        Nominal 95 % interval for the temperature of the population: chance in the rows,
        noise, and what the family of curves leaves open. It takes all answers together:
        where 'bisect' or 'golden' was led astray by noise, `temperature_` is outside.
        NaN for 'nll' and 'ece'.
    search_ : {'two_point', 'bisect', 'golden', 'newton', 'grid'}
        The search that was used; the last two are exact.
    n_queries_ : int
        Temperatures at which clients were asked.
    classes_ : ndarray of shape (n_classes,)
        Sorted labels; the order of the columns of `predict_proba`.
    improves_ : bool
        Whether the releases, under privacy, narrowed what was known about T; always
        without.
    n_clients_, n_rounds_ : int
        Clients seen and rounds run.
    privacy_ : PrivacyReport
        The guarantee of this fit.
    history_ : list of RoundRecord
        What each round cost and what the server saw.

    See Also
    --------
    FedTempCalibrator : Least log loss, exact or under Gaussian noise.
    FedTopBinCalibrator : Confidences set bin by bin.

    Notes
    -----
    Whom to protect from whom, from the least noise to the most, with d sources of n
    rows: ``CentralDP(eps, unit="example")``, or ``DistributedDP`` where no server is to
    see exact sums, adds noise once; ``SourceDP(eps)`` adds that of every source, so
    that a row is safe if all others conspire, at sqrt(d) times the noise; `eps` alone
    hides a source as a whole, at n times the noise per row. In the first two a row is
    one person's only row.

    'two_point' sends the gap of a row in steps from one temperature to the next, whose
    L1 norm is at most 1. The gap at each of m temperatures then has noise of variance
    ``2 m / eps**2``, where m separate queries have ``2 m**2 / eps**2``. The posterior
    compares the gaps with curves of rows whose predicted class leads all others by a
    gamma law, of any accuracy and several shapes; a curve may leave them by a smooth
    random one that is zero at the root. The prior of log T is Student's law with 3
    degrees of freedom and a scale of 0.4 below and 0.8 above `prior_temperature`.

    'golden' is Algorithm 1 of the paper with a new point inside the new bracket, and
    without its last query, whose answer is not used. As printed it asks 7 times for
    K = 5 with noise for 6, and spends 7 / 6 of eps.

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
        "objective": [StrOptions(set(choice.SEARCHES))],
        "search": [StrOptions({"auto", "two_point", "bisect", "golden"})],
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
        eps=None,
        *,
        delta=None,
        objective="accuracy",
        search="auto",
        n_queries="auto",
        temperature_range=(0.25, 32.0),
        loss_clip=10.0,
        clip="auto",
        n_bins=15,
        public_logits=None,
        prior_temperature=1.0,
        if_improves=True,
        privacy=None,
        ledger=None,
        classes=None,
        input_type="logits",
        runner=None,
        random_state=None,
    ):
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
        self.privacy = privacy
        self.ledger = ledger
        self.classes = classes
        self.input_type = input_type
        self.runner = runner
        self.random_state = random_state

    def _make_algorithm(self, setting):
        low, high = (float(v) for v in np.log(self._range()))
        center = float(np.log(self.prior_temperature))
        full_rows = self._full_rows(setting)
        search = choice.choose_search(self, setting.private)
        if search == "newton" and self.objective == "nll":
            return algorithms.TemperatureNewton()
        if search == "newton":
            return algorithms.AccuracyRoot(low, high, center)
        if search == "grid":
            return algorithms.EceGrid(low, high, center, n_bins=int(self.n_bins))
        noise = self._noise_per_unit(setting)
        n_queries = choice.choose_queries(self.n_queries, search, noise)
        common = {
            "center": center,
            "full_rows": full_rows,
            "public_curve": choice.public_curve(
                self.public_logits, setting.n_classes, self.input_type
            ),
        }
        if search == "two_point":
            return algorithms.GapParts(
                low, high, n_points=n_queries, n_clients=setting.n_units, **common
            )
        return algorithms.TemperatureSearch(
            low,
            high,
            self.objective,
            search,
            n_rounds=n_queries,
            loss_clip=as_number("loss_clip", self.loss_clip),
            n_bins=int(self.n_bins),
            **common,
        )

    def _full_rows(self, setting):
        """Rows of a client that counts fully; 0 for sums without a bound."""
        whole = setting.private and setting.unit == "client"
        if not isinstance(self.clip, str):
            if not whole:
                raise ValueError(
                    f"clip={self.clip!r} bounds what a client sends that is protected "
                    "as a whole; leave it out for unit='example' and without noise."
                )
            return float(self.clip)
        if whole:
            return float(_ROWS)
        return 1.0 if setting.private else 0.0

    def _noise_per_unit(self, setting):
        """Spread of one Laplace draw in a sum, if all of eps went into it."""
        from skfedcal.privacy._client_models import SourceDP

        if not setting.private:
            return 0.0
        model = self._privacy_model()
        n_draws = setting.n_clients if isinstance(model, SourceDP) else 1
        eps = float(getattr(model, "eps", 1.0))
        return np.sqrt(2 * n_draws) / eps / setting.n_units

    def _range(self):
        return choice.checked_range(self.temperature_range, self.prior_temperature)

    def _set_state(self, state):
        low, high = self._range()
        self.temperature_ = float(np.clip(state.temperature, low, high))
        interval = getattr(state, "interval", np.full(2, np.nan))
        self.temperature_interval_ = np.clip(interval, low, high)
        self._gain = getattr(state, "learnt", True)
        outside = not low <= state.temperature <= high
        self._bounded = outside or getattr(state, "bounded", False)
        self._converged = getattr(state, "converged", True)

    def _improves(self):
        return self._gain

    def _after_fit(self, setting):
        self.search_ = choice.choose_search(self, setting.private)
        self.n_queries_ = sum(choice.n_asked(record.total) for record in self.history_)
        text = choice.doubt(self, setting.private)
        if text is not None:
            warnings.warn(text, CalibrationWarning, stacklevel=4)

    def _warn_no_gain(self):
        kept = f"T = {self.prior_temperature:.4g}"
        other = choice.less_noise(self._privacy_model())
        use = (
            f"Predictions keep {kept}; if_improves=False uses temperature_"
            if self.if_improves
            else f"temperature_ is used all the same; if_improves=True keeps {kept}"
        )
        warnings.warn(
            "The releases say hardly more about the temperature than was known before. "
            f"{use}. More rows or a larger eps would help{other}.",
            CalibrationWarning,
            stacklevel=4,
        )

    def _check_restored(self):
        for value in (self.temperature_, *self._range()):
            if not isinstance(value, float) or not 0 < value < np.inf:
                raise ValueError(f"temperature {value!r} is not positive")
        interval = self.temperature_interval_
        if getattr(interval, "shape", None) != (2,) or interval.dtype != np.float64:
            raise ValueError(f"temperature_interval_={interval!r} is not an interval")
        known = {*choice.SEARCHES["accuracy"], *choice.EXACT.values()}
        if self.search_ not in known:
            raise ValueError(f"search_={self.search_!r} is unknown")
        if type(self.n_queries_) is not int:
            raise ValueError(f"n_queries_={self.n_queries_!r} is no whole number")

    def _calibrate(self, logits):
        logits /= logits.dtype.type(self.temperature_)
        return logits

    def _unchanged(self, logits):
        logits /= logits.dtype.type(self.prior_temperature)
        return logits
