"""Federated histogram binning."""

from numbers import Integral, Real

import numpy as np

from skfedcal._sklearn_compat import Interval
from skfedcal.algorithms._binning import bin_table
from skfedcal.calibrators._histogram import HistogramCalibrator


class FedBinCalibrator(HistogramCalibrator):
    """Replace each class probability by the frequency of the class in its bin.

    Every class has its own histogram of predicted probabilities (one against the
    rest); clients send counts of rows that are, and are not, of the class.

    Parameters
    ----------
    eps : float, default=None
        Budget of differential privacy for a whole client. None adds no noise.
    n_bins : int, default=15
        Bins per class.
    space : {'prob', 'logit'}, default='prob'
        Scale on which bins have equal width: probability, as the paper prints it, or
        log-odds from -16 to 16, with all that is beyond in the outermost two. 'logit'
        wants an even number of bins, 30 or more: one half is an edge then.
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
    weighting : {'all', 'changed'}, default=None
        Average the bins with the input, ``a g + (1 - a) p``, by `class_weights_`: for
        all rows, or only for those whose most probable class the bins change. For
        cohorts that leave out clients: a class that was seldom seen keeps the input.
    class_totals : array-like of shape (n_classes,), default=None
        Public numbers of rows of each class at all clients, in column order, for
        `weighting` without `eps`. None estimates them from the share of clients asked.
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
    class_weights_ : ndarray of shape (n_classes,)
        Weight ``a`` of the bins of each class, in column order; 1 without `weighting`.
    space_ : {'logit', 'prob'}
        Scale on which bins have equal width.
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
    FedBBQCalibrator : Averages histograms of 2, 4, 8, ... bins.
    FedTempCalibrator : One temperature; never changes the order of classes.

    Notes
    -----
    With P positive and N negative rows in a bin with midpoint m, the value is
    ``(P + w m) / (P + N + w)``, ``w = prior_weight / n_bins``: the posterior mean under
    a Beta prior. Bins are ``[l, r)``, the last one closed.

    The weight of class j is ``n_j / N_j``, rows seen over `class_totals`, at most 1.
    Without `class_totals` it is ``s max(1, n_j / mean(n))``, at most 1, with s the
    share of clients asked: exactly 1 once everybody was. Under `eps` it is
    ``n_j / (sqrt(2 / pi) sd n_bins)``, cut to [0, 1], with sd the noise in a positive
    count over all rounds: appendix B.5 of the paper, corrected.

    `improves_` compares, in the one-vs-rest log loss, the bins with the best that the
    input can be inside each bin. The gain that fitting noise would show is taken off,
    and what is left must be twice its standard deviation.

    References
    ----------
    .. [1] Zadrozny and Elkan, "Transforming Classifier Scores into Accurate Multiclass
       Probability Estimates", KDD 2002.
    .. [2] "Private Federated Multiclass Post-hoc Calibration", Algorithm 1, section 4.1
       and appendices B.3 and B.5; anonymous text under review.

    Examples
    --------
    >>> from skfedcal import FedBinCalibrator, make_federation
    >>> fed = make_federation(n_clients=50, random_state=0)
    >>> cal = FedBinCalibrator(n_bins=10).fit(fed.clients)
    >>> cal.bin_values_.shape
    (10, 10)
    """

    _parameter_constraints = {
        **HistogramCalibrator._parameter_constraints,
        "n_bins": [Interval(Integral, 1, 2**20, closed="both")],
        "prior_weight": [Interval(Real, 1e-300, 1e100, closed="both")],
    }

    def __init__(
        self,
        eps=None,
        *,
        n_bins=15,
        space="prob",
        delta=None,
        clip="auto",
        clip_per_class=False,
        noise="split",
        prior_weight=2.0,
        normalize="l1",
        weighting=None,
        class_totals=None,
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
        self.space = space
        self.delta = delta
        self.clip = clip
        self.clip_per_class = clip_per_class
        self.noise = noise
        self.prior_weight = prior_weight
        self.normalize = normalize
        self.weighting = weighting
        self.class_totals = class_totals
        self.if_improves = if_improves
        self.privacy = privacy
        self.ledger = ledger
        self.classes = classes
        self.input_type = input_type
        self.runner = runner
        self.random_state = random_state

    @property
    def _n_bins(self):
        return int(self.n_bins)  # numpy takes True for no size

    def _make_table(self, state):
        weight = self.prior_weight / self.n_bins
        weight += np.hypot(state.noise_positive, state.noise_negative)
        return bin_table(state.positive, state.negative, weight, self._bins)
