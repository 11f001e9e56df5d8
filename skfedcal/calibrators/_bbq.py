"""Federated Bayesian binning."""

from numbers import Integral

from skfedcal._sklearn_compat import Interval, StrOptions
from skfedcal.calibrators._bbq_table import Levels, bbq_table, joined_table
from skfedcal.calibrators._histogram import HistogramCalibrator

# 4096 bins per class: finer ones hold no rows, and a message would have millions.
_MAX_LEVELS = 12


class FedBBQCalibrator(HistogramCalibrator):
    """Average histograms of 2, 4, ... bins by how well each explains the labels.

    Clients send one histogram of ``2**n_levels`` bins per class, as for
    FedBinCalibrator. The server merges neighbouring bins to the coarser histograms, so
    that the average costs no further privacy, and keeps one table per class.

    Parameters
    ----------
    eps : float, default=None
        Budget of differential privacy for a whole client. None adds no noise.
    n_levels : int, default=7
        Histograms to average, of 2, 4, ..., ``2**n_levels`` bins; 1 to 12.
    space : {'auto', 'logit', 'prob'}, default='auto'
        Scale on which bins have equal width: log-odds from -16 to 16, with all that is
        beyond in the outermost two, or probability, as the paper prints it. 'auto' is
        'logit' for exact sums and 'prob' under noise.
    bins : {'posterior', 'frequency'}, default='posterior'
        Value of a bin: the mean of its posterior, or the plain frequency as the paper
        prints it, which is the bin's own midpoint where there are no rows, may be 0 or
        1, and does not allow for noise (`improves_` is then that of 'posterior').
    weighting : {'all', 'changed'}, default=None
        Average the bins with the input, ``a g + (1 - a) p``, by `class_weights_`: for
        all rows, or only for those whose most probable class the bins change. For
        cohorts that leave out clients: a class that was seldom seen keeps the input.
    class_totals : array-like of shape (n_classes,), default=None
        Public numbers of rows of each class at all clients, in column order, for
        `weighting` without `eps`. None estimates them from the share of clients asked.
    normalize : {'l1', 'logit', 'none'}, default='l1'
        Divide the values of a row by their sum, take the softmax of their log-odds, or
        leave them as they are (rows then do not sum to 1).
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
    bin_values_ : ndarray of shape (n_classes, 2**n_levels)
        Averaged value of each bin; rows are the columns of the input, in their order.
    level_weights_ : ndarray of shape (n_classes, n_levels)
        Weight of each histogram in the average, coarsest first.
    positive_, negative_ : ndarray of shape (n_classes, 2**n_levels)
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
    FedBinCalibrator : One histogram; the weights and `improves_` are those of here.
    FedTempCalibrator : One temperature; never changes the order of classes.

    Notes
    -----
    With m positive and n negative rows in a bin with midpoint p, one of B, and
    ``a = 2 p / B``, ``b = 2 (1 - p) / B``, the score of a histogram is the product over
    its bins of ``G(2 / B) / G(m + n + 2 / B) * G(m + a) / G(a) * G(n + b) / G(b)``, G
    the gamma function; the value of a bin is ``(m + a) / (m + n + 2 / B)``. Weights are
    scores over their sum, class by class.

    On the scale of log-odds, without noise, the bins of a histogram that have rows are
    joined by lines, from the mean of the rows of one to that of the next, constant
    beyond the first and the last; a bin without rows keeps its midpoint. A value of the
    table is the average of these lines at the middle of a finest bin. With
    ``bins='frequency'`` there are no lines.

    Under `eps` merged counts below 0 are taken for 0. Scores are those of the smaller
    number of rows that would tell as much without the noise, and each bin gets pseudo-
    rows, three times the standard deviation of its noise, that leave the input as it
    is. All of 2**n_levels counts carry noise, also those that are merged: with few
    clients or a small `eps` take a small `n_levels`, or FedTempCalibrator. With 100
    clients of 60 rows, `improves_` was false at any eps up to 8.

    References
    ----------
    .. [1] Naeini et al., "Obtaining Well Calibrated Probabilities Using Bayesian
       Binning", AAAI 2015.
    .. [2] "Private Federated Multiclass Post-hoc Calibration", section 4.1 and
       appendices B.4 and B.5; anonymous text under review.

    Examples
    --------
    >>> from skfedcal import FedBBQCalibrator, FederatedRunner, make_federation
    >>> fed = make_federation(n_clients=50, random_state=0)
    >>> runner = FederatedRunner(n_rounds=2, cohort="permuted", cohort_size=5)
    >>> cal = FedBBQCalibrator(weighting="all", runner=runner).fit(fed.clients)
    >>> cal.bin_values_.shape, cal.level_weights_.shape
    ((10, 128), (10, 7))
    """

    _parameter_constraints = {
        **HistogramCalibrator._parameter_constraints,
        "n_levels": [Interval(Integral, 1, _MAX_LEVELS, closed="both")],
        "space": [StrOptions({"auto", "logit", "prob"})],
        "bins": [StrOptions({"posterior", "frequency"})],
    }
    _fitted_names = (*HistogramCalibrator._fitted_names, "level_weights_")

    def __init__(
        self,
        eps=None,
        *,
        n_levels=7,
        space="auto",
        bins="posterior",
        weighting=None,
        class_totals=None,
        normalize="l1",
        delta=None,
        clip="auto",
        clip_per_class=False,
        noise="split",
        if_improves=True,
        privacy=None,
        ledger=None,
        classes=None,
        input_type="logits",
        runner=None,
        random_state=None,
    ):
        self.eps = eps
        self.n_levels = n_levels
        self.space = space
        self.bins = bins
        self.weighting = weighting
        self.class_totals = class_totals
        self.normalize = normalize
        self.delta = delta
        self.clip = clip
        self.clip_per_class = clip_per_class
        self.noise = noise
        self.if_improves = if_improves
        self.privacy = privacy
        self.ledger = ledger
        self.classes = classes
        self.input_type = input_type
        self.runner = runner
        self.random_state = random_state

    @property
    def _n_bins(self):
        return 2**self.n_levels

    def _chosen_space(self, private):
        if self.space != "auto":
            return self.space
        # Noise outweighs the few rows of a class in the tails of log-odds.
        return "prob" if private else "logit"

    @property
    def _levels(self):
        return Levels.of(self._n_bins, self.space_)

    def _make_table(self, state):
        table, self.level_weights_ = bbq_table(
            state.positive,
            state.negative,
            (state.noise_positive, state.noise_negative),
            frequency=self.bins == "frequency",
            levels=self._levels,
        )
        noisy = state.noise_positive > 0
        if self.space_ == "prob" or noisy or self.bins == "frequency":
            return table
        return joined_table(
            state.positive, state.negative, self.level_weights_, self._levels
        )

    def _judged(self, state, table):
        if self.bins == "posterior":
            return table
        # A frequency of 0 has no finite log loss to compare; these are never better.
        noise = state.noise_positive, state.noise_negative
        levels = self._levels
        return bbq_table(state.positive, state.negative, noise, levels=levels)[0]

    def _check_restored(self):
        super()._check_restored()
        shape = (len(self.classes_), self.n_levels)
        if self.level_weights_.shape != shape or self.level_weights_.dtype != float:
            raise ValueError("level_weights_ has a wrong shape or type")
