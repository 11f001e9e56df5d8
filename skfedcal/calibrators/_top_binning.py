"""Federated histogram binning of the most probable class."""

from numbers import Integral, Real

import numpy as np

from skfedcal._sklearn_compat import Interval, StrOptions
from skfedcal.algorithms._class_bins import ClassBins, bin_index
from skfedcal.algorithms._top_bins import TopBinCounts, top_label
from skfedcal.calibrators._base import BaseCalibrator

# Rows of a client that count under privacy, if a client is protected as a whole.
_ROWS = 10

# A calibrated confidence is strictly between 0 and 1.
_LIMITS = np.finfo(np.float64)


class FedTopBinCalibrator(BaseCalibrator):
    """Set the confidence in the predicted class to how often it was right.

    Confidences, the probabilities of the most probable classes, fall into bins. Clients
    send the numbers of right and of wrong predictions in each; one row is in one of
    them. One round.

    Parameters
    ----------
    eps : float, default=None
        Budget of differential privacy for a whole client. None adds no noise. To
        protect single rows pass `privacy`.
    delta : float, default=None
        Accepted as everywhere and not needed: Laplace noise has a pure `eps`.
    n_bins : int, default=15
        Equal-width bins of [0, 1].
    shrink : bool, default=True
        Take the posterior mean of each bin, given what sampling and the known noise
        explain, around the confidence that comes in; bins learn from their neighbours.
        False takes the frequency, as the paper does.
    monotone : bool, default=True
        Let a higher bin have no lower value.
    keep_order : bool, default=True
        Divide the logits of each row by the temperature that gives its predicted class
        the new confidence: no two classes change places. False lets the others share
        the rest in proportion; `predict` may then name one of these, by a probability
        that no bin has measured.
    clip : int or 'auto', default='auto'
        Rows of a client that count; of more, a fixed choice by row number is taken.
        'auto' is 10 under privacy, 1 where a row or a report is what is protected, and
        all rows without.
    if_improves : bool, default=True
        Leave the input as it is where, under privacy, the released counts do not speak
        against it (`improves_`).
    privacy : privacy model, default=None
        Other settings of privacy, instead of `eps` and `delta`: SourceDP, CentralDP,
        DistributedDP, LocalDP or SecureAggregation.
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
    bin_edges_ : ndarray of shape (n_bins + 1,)
        Where bins begin and end.
    counts_ : ndarray of shape (2, n_bins)
        Right and wrong predictions, as released; noise makes some negative.
    bin_values_ : ndarray of shape (n_bins,)
        Calibrated confidence in the middle of each bin.
    bin_trust_ : ndarray of shape (n_bins,)
        From 0 to 1: how far the counts of the bin decide. At 1 all confidences of the
        bin get its value; below, they keep a part of their differences.
    classes_ : ndarray of shape (n_classes,)
        Sorted labels; the order of the columns of `predict_proba`.
    improves_ : bool
        Whether the counts, under privacy, speak against the input; always without.
    n_clients_, n_rounds_ : int
        Clients seen and rounds run.
    privacy_ : PrivacyReport
        The guarantee of this fit.
    history_ : list of RoundRecord
        What each round cost and what the server saw.

    See Also
    --------
    FedBinCalibrator : Bins of every class against the rest.
    FedHistogramCalibrator : Other curves, from finer counts.

    Notes
    -----
    A confidence p in a bin with middle m, value v and trust a becomes
    ``v + (1 - a) (p - m)``, with `keep_order` not less than 1 of `n_classes`. `predict`
    is the most probable class of `predict_proba`.

    With r right and w wrong predictions the residual ``(1 - m) r - m w`` measures
    ``n d``, n = r + w rows times the error d of the confidence, with the variance of n
    draws and of the noise. The prior of d is normal: an error in proportion to
    ``m - 1 / n_classes``, a smooth one, and one of the bin alone. It is averaged over
    four strengths, one of which is 0. `improves_` asks for odds of 9 to 1 against that
    one; with ``shrink=False`` it is that of FedBinCalibrator.

    One row moves one count by 1. The paper releases right and all predictions, which a
    row moves by 2, and needs twice the noise. Under SourceDP every source adds noise of
    its own; the same eps with CentralDP or DistributedDP and ``unit='example'`` has it
    once, and is better by far.

    References
    ----------
    .. [1] "Privacy Preserving Recalibration under Domain Shift", appendix C.2.3;
       anonymous text under review.
    .. [2] Zadrozny and Elkan, "Obtaining Calibrated Probability Estimates from Decision
       Trees and Naive Bayesian Classifiers", ICML 2001.

    Examples
    --------
    >>> from skfedcal import FedTopBinCalibrator, make_federation
    >>> fed = make_federation(n_clients=50, random_state=0)
    >>> cal = FedTopBinCalibrator().fit(fed.clients)
    >>> cal.bin_values_[[5, 10, 14]].round(2)
    array([0.23, 0.48, 0.91])
    """

    _parameter_constraints = {
        **BaseCalibrator._parameter_constraints,
        "n_bins": [Interval(Integral, 1, 2**20, closed="both")],
        "shrink": ["boolean"],
        "monotone": ["boolean"],
        "keep_order": ["boolean"],
        "clip": [Interval(Real, 1, 1e50, closed="both"), StrOptions({"auto"})],
    }
    _fitted_names = ("bin_edges_", "counts_", "bin_values_", "bin_trust_")

    def __init__(
        self,
        eps=None,
        *,
        delta=None,
        n_bins=15,
        shrink=True,
        monotone=True,
        keep_order=True,
        clip="auto",
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
        self.n_bins = n_bins
        self.shrink = shrink
        self.monotone = monotone
        self.keep_order = keep_order
        self.clip = clip
        self.if_improves = if_improves
        self.privacy = privacy
        self.ledger = ledger
        self.classes = classes
        self.input_type = input_type
        self.runner = runner
        self.random_state = random_state

    def _make_algorithm(self, setting):
        rows = self._n_rows(setting)
        return TopBinCounts(
            n_bins=int(self.n_bins),
            # A row by itself is one row; the choice would be by its number, 0.
            max_examples=None if setting.unit == "example" else rows,
            clip=float(rows) if setting.private else None,
            weighted=setting.weighted,
        )

    def _n_rows(self, setting):
        from skfedcal.privacy._client_models import LocalDP

        if not isinstance(self.clip, str):
            if self.clip >= 2 and setting.private and setting.unit == "example":
                raise ValueError(
                    f"clip={self.clip!r} rows would have to be hidden where one is "
                    "asked for; leave it out for unit='example'."
                )
            return int(self.clip)
        if not setting.private:
            return None
        single = setting.unit == "example" or isinstance(self.privacy, LocalDP)
        return 1 if single else _ROWS

    def _set_state(self, state):
        from skfedcal.calibrators import _top_table as tables
        from skfedcal.calibrators._histogram import noticeable_gain

        if self.shrink:
            table = tables.shrunk_table(state, len(self.classes_))
            self._gain = table.noticeable
        else:
            table = tables.frequency_table(state)
            noisy = state.noise_positive > 0
            bins = ClassBins(self.n_bins)
            self._gain = not noisy or noticeable_gain(
                state, tables.plain_bins(state), bins
            )
        if self.monotone:
            table = tables.monotone(table, state)
        self.bin_edges_ = np.arange(self.n_bins + 1) / self.n_bins
        self.counts_ = np.concatenate([state.positive, state.negative])
        self.bin_values_ = np.clip(table.values, 0.0, 1.0)
        self.bin_trust_ = table.trust

    def _improves(self):
        return self._gain

    def _calibrate(self, logits):
        from skfedcal.calibrators._sharing import share_rest, temper_to

        top, confidence = top_label(logits)
        bins = bin_index(confidence, self.n_bins)
        inside = confidence - ClassBins(self.n_bins).midpoints[bins]
        own = self.bin_values_[bins] + (1 - self.bin_trust_[bins]) * inside
        own = np.clip(own, _LIMITS.tiny, 1 - _LIMITS.epsneg)
        keep = self.keep_order
        out = temper_to(logits, own) if keep else share_rest(logits, top, own)
        return out.astype(logits.dtype, copy=False)

    def _check_restored(self):
        shapes = (self.n_bins + 1,), (2, self.n_bins), (self.n_bins,), (self.n_bins,)
        for name, shape in zip(self._fitted_names, shapes, strict=True):
            value = getattr(self, name)
            if value.shape != shape or value.dtype != np.float64:
                raise ValueError(f"{name} has a wrong shape or type")
        for name in ("bin_values_", "bin_trust_"):
            value = getattr(self, name)
            if not ((value >= 0) & (value <= 1)).all():
                raise ValueError(f"{name} has values outside [0, 1]")
