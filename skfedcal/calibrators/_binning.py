"""Federated histogram binning."""

import warnings
from numbers import Integral, Real

import numpy as np

from skfedcal import _logits
from skfedcal._sklearn_compat import Interval, StrOptions
from skfedcal.algorithms import ClassHistograms
from skfedcal.algorithms._binning import bin_index, softmax64
from skfedcal.calibrators._base import BaseCalibrator
from skfedcal.exceptions import CalibrationWarning
from skfedcal.privacy._mixin import CLIP_RANGE

# Bound on the positive counts of a client; public, as in the paper's experiments.
_CLIP_POSITIVE = 10.0

# With fewer rows per bin than this many deviations of the noise, binning raised the log
# loss on four of the five federations tried.
_ROWS_PER_NOISE = 10


class FedBinCalibrator(BaseCalibrator):
    """Replace each class probability by the frequency of the class in its bin.

    Every class has its own histogram of predicted probabilities (one against the
    rest); clients send counts of rows that are, and are not, of the class.

    Parameters
    ----------
    eps : float, default=None
        Budget of differential privacy for a whole client. None adds no noise.
    n_bins : int, default=15
        Equal-width bins of [0, 1] per class.
    delta : float, default=None
        Chance that the bound of `eps` does not hold; None is ``min(1e-5, 1 / (10 K))``
        for K clients.
    clip : float, pair of floats or 'auto', default='auto'
        L2 bound on a client's positive counts, or on positive and negative counts; one
        number C means ``(C, C * sqrt(n_classes - 1))``, which suits a row that is
        positive for one class and negative for all others. 'auto' is 10 under `eps`
        and no bound without.
    clip_per_class : bool, default=False
        Bound each class by itself, as the paper prints it; costs ``sqrt(n_classes)``
        times the noise.
    noise : {'split', 'joint'}, default='split'
        Divide noise over positive and negative counts so that the total variance is
        least, or give both the same.
    prior_weight : float, default=2.0
        Pseudo-rows per class, spread over its bins, that vote for the bin's own
        midpoint; keeps empty bins and the log loss finite. Under noise each bin also
        gets as many as the noise has standard deviation.
    normalize : {'l1', 'logit', 'none'}, default='l1'
        Divide the frequencies of a row by their sum, take the softmax of their
        log-odds, or leave them as they are (rows then do not sum to 1).
    if_improves : bool, default=True
        Leave the input as it is where, under `eps`, the released values are no more
        than noise explains (`improves_`).
    privacy : CentralDP or SecureAggregation, default=None
        Other settings of privacy, instead of `eps` and `delta`.
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
    bin_values_ : ndarray of shape (n_classes, n_bins)
        Frequency for each bin; rows are the columns of the input, in their order.
    positive_, negative_ : ndarray of shape (n_classes, n_bins)
        Released counts.
    classes_ : ndarray of shape (n_classes,)
        Sorted labels; the order of the columns of `predict_proba`.
    improves_ : bool
        Whether the releases, under `eps`, say more than noise; always without.
    n_clients_, n_rounds_ : int
        Clients seen and rounds run.
    privacy_ : PrivacyReport
        The guarantee of this fit.
    history_ : list of RoundRecord
        What each round cost and what the server saw.

    See Also
    --------
    FedTempCalibrator : One temperature; never changes the order of classes.

    Notes
    -----
    With P positive and N negative rows in a bin with midpoint m, the value is
    ``(P + w m) / (P + N + w)``, ``w = prior_weight / n_bins``: the posterior mean under
    a Beta prior. Bins are ``[l, r)``, the last one closed.

    Examples
    --------
    >>> from skfedcal import FedBinCalibrator, make_federation
    >>> fed = make_federation(n_clients=50, random_state=0)
    >>> cal = FedBinCalibrator(n_bins=10).fit(fed.clients)
    >>> cal.bin_values_.shape
    (10, 10)
    """

    _parameter_constraints = {
        **BaseCalibrator._parameter_constraints,
        "clip": [
            CLIP_RANGE,
            StrOptions({"auto"}),
            tuple,
            list,
        ],
        "n_bins": [Interval(Integral, 1, None, closed="left")],
        "clip_per_class": ["boolean"],
        "noise": [StrOptions({"split", "joint"})],
        "prior_weight": [Interval(Real, 0, None, closed="neither")],
        "normalize": [StrOptions({"l1", "logit", "none"})],
    }
    _fitted_names = ("bin_values_", "positive_", "negative_")

    def __init__(
        self,
        eps=None,
        *,
        n_bins=15,
        delta=None,
        clip="auto",
        clip_per_class=False,
        noise="split",
        prior_weight=2.0,
        normalize="l1",
        if_improves=True,
        privacy=None,
        ledger=None,
        classes=None,
        input_type="logits",
        runner=None,
        random_state=None,
    ):
        self.eps = eps
        self.n_bins = n_bins
        self.delta = delta
        self.clip = clip
        self.clip_per_class = clip_per_class
        self.noise = noise
        self.prior_weight = prior_weight
        self.normalize = normalize
        self.if_improves = if_improves
        self.privacy = privacy
        self.ledger = ledger
        self.classes = classes
        self.input_type = input_type
        self.runner = runner
        self.random_state = random_state

    def predict_proba(self, X):
        """Calibrated probabilities.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_columns)
            Scores of the form given to `fit`.

        Returns
        -------
        proba : ndarray of shape (n_samples, n_classes)
            One column per entry of `classes_`; rows sum to 1 unless
            ``normalize='none'``.
        """
        if self.normalize == "none":
            return np.exp(self._calibrated_logits(X))
        return super().predict_proba(X)

    def predict_log_proba(self, X):
        """Logarithm of the calibrated probabilities.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_columns)
            Scores of the form given to `fit`.

        Returns
        -------
        log_proba : ndarray of shape (n_samples, n_classes)
            One column per entry of `classes_`.
        """
        if self.normalize == "none":
            return self._calibrated_logits(X)
        return super().predict_log_proba(X)

    def _make_algorithm(self, setting):
        positive, negative = self._clips(setting)
        return ClassHistograms(
            n_bins=self.n_bins,
            clip_positive=positive,
            clip_negative=negative,
            per_class=self.clip_per_class,
            weighted=setting.weighted,
        )

    def _clips(self, setting):
        clip = self.clip
        if isinstance(clip, str):
            if not setting.private:
                return None, None
            # One row is the whole contribution when an example is the unit.
            clip = 1.0 if setting.unit == "example" else _CLIP_POSITIVE
        if isinstance(clip, Real):
            return float(clip), float(clip * np.sqrt(setting.n_classes - 1))
        pair = [float(c) if isinstance(c, Real) else np.nan for c in clip]
        if len(pair) != 2 or not all(1e-50 <= c <= 1e50 for c in pair):
            raise ValueError(
                f"clip={self.clip!r} must be 'auto', a positive number, or two: for "
                "positive and for negative counts."
            )
        return tuple(pair)

    def _noise_split(self):
        return self.noise

    def _set_state(self, state):
        positive = np.maximum(state.positive, 0.0)
        negative = np.maximum(state.negative, 0.0)
        weight = self.prior_weight / self.n_bins
        weight += np.hypot(state.noise_positive, state.noise_negative)
        middle = (np.arange(self.n_bins) + 0.5) / self.n_bins
        self.positive_, self.negative_ = state.positive, state.negative
        self._noise_positive, self._noise_negative = (
            state.noise_positive,
            state.noise_negative,
        )
        values = (positive + weight * middle) / (positive + negative + weight)
        # Strictly inside (0, 1) also where the prior is lost to rounding.
        limits = np.finfo(np.float64)
        self.bin_values_ = np.clip(values, limits.tiny, 1 - limits.epsneg)

    def _after_fit(self, setting):
        if not setting.private:
            return
        noise = np.hypot(self._noise_positive, self._noise_negative)
        rows = np.maximum(self.positive_ + self.negative_, 0.0).mean()
        if rows < _ROWS_PER_NOISE * noise:
            warnings.warn(
                f"A bin holds {rows:.0f} rows on average and noise of {noise:.0f}: the "
                "result may be worse than no calibration. Use fewer bins, more clients "
                "or a larger eps, or FedTempCalibrator.",
                CalibrationWarning,
                stacklevel=4,
            )

    def _check_restored(self):
        expected = (len(self.classes_), self.n_bins)
        for name in self._fitted_names:
            value = getattr(self, name)
            if value.shape != expected or value.dtype != np.float64:
                raise ValueError(f"{name} has a wrong shape or type")
        if not ((self.bin_values_ > 0) & (self.bin_values_ < 1)).all():
            raise ValueError("bin_values_ has values outside (0, 1)")

    def _calibrate(self, logits):
        bins = bin_index(softmax64(logits), self.n_bins)
        values = self.bin_values_[np.arange(logits.shape[1]), bins]
        out = _logits.from_proba(values)
        if self.normalize == "logit":
            out -= np.log1p(-values)
        return out.astype(logits.dtype, copy=False)
