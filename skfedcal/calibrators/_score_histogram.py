"""Federated calibration curves from one score histogram."""

from itertools import pairwise
from numbers import Integral, Real
from typing import Any

import numpy as np

from skfedcal._sklearn_compat import Interval, StrOptions
from skfedcal.algorithms._class_scores import ClassScoreCounts
from skfedcal.calibrators._base import BaseCalibrator
from skfedcal.privacy._models import CentralDP

# Curves and laws of noise are imported where they are used: importing the package
# stays quick.

# Rows of a client that count under privacy, if a client is protected as a whole.
_ROWS = 10

# Depth of the leaves: for exact sums, with noise, and with noise of every client.
_EXACT_HEIGHT, _NOISY_HEIGHT = 10, 7

METHODS = ("bins", "bbq", "isotonic", "platt", "beta")
_KINDS = {"bins": "steps", "bbq": "steps", "isotonic": "line"}


class FedHistogramCalibrator(BaseCalibrator):
    """Fit a curve to the counts of both labels in narrow buckets of the score.

    One round: each row falls into one bucket of the histogram of its label. The server
    sees the (noisy) sums and fits any curve to them, and none where it would not help.

    Parameters
    ----------
    eps : float, default=None
        Budget of differential privacy for a whole client. None adds no noise.
    method : {'auto', 'bins', 'bbq', 'isotonic', 'platt', 'beta'}, default='auto'
        Frequencies of `n_bins` bins of equal mass; Bayesian average of nested bins; a
        monotone curve; a line in log-odds; or a line in log p and log(1 - p). 'auto'
        takes 'isotonic' or 'platt', whichever would save more log loss on other rows.
        Bins do not keep the order of scores, and 'bbq' is poor under noise.
    n_bins : int, default=15
        Bins of ``method='bins'``.
    multiclass : {'auto', 'ovr', 'top'}, default='auto'
        With more than two classes: one curve for each class against the rest; or one
        for the most probable class, the others sharing what is left in proportion. A
        row is in one histogram for 'top', and in as many as there are classes, which
        multiplies the noise, for 'ovr'. 'auto' is 'top' under privacy, else 'ovr'.
    height : int or 'auto', default='auto'
        There are ``2**height`` buckets; 'auto' is 10, with noise 7, and 5 or, below
        ``eps=4``, 4 where every client adds noise.
    levels : sequence of int or 'auto', default='auto'
        Depths at which rows are counted under noise, the last one the height; 'auto' is
        every fourth, for LocalDP the height only.
    space : {'auto', 'both', 'prob', 'logit'}, default='auto'
        Scale on which buckets have equal width: probability, log-odds (up to 16), or
        the mean of both; 'auto' is 'both' under noise, else 'logit'.
    delta : float, default=None
        Chance that the bound of `eps` does not hold, for 'ovr'; None is
        ``min(1e-5, 1 / (10 K))`` for K clients. Laplace noise, for 'top' and for two
        classes, needs none.
    clip : int or 'auto', default='auto'
        Rows of a client that count; of more, a fixed choice by row number is taken.
        'auto' is 10 under privacy, 1 where a row or a report is what is protected, and
        all rows without.
    if_improves : bool, default=True
        Leave the input as it is where, under privacy, the released counts do not show
        that the curve saves log loss on other rows (`improves_`).
    privacy : privacy model, default=None
        Other settings of privacy, instead of `eps` and `delta`: CentralDP,
        DistributedDP, LocalDP, SourceDP or SecureAggregation.
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
    method_ : str
        Method of the curves.
    scores_ : {'binary', 'ovr', 'top'}
        What the curves are of.
    counts_ : ndarray of shape (n_scores, 2, 2**height)
        Negatives and positives of each score by bucket: unbiased, under noise with
        negative numbers among them.
    curve_points_, curve_values_ : list of ndarray
        Where each curve has steps or corners, and its values or coefficients.
    classes_ : ndarray of shape (n_classes,)
        Sorted labels; the order of the columns of `predict_proba`.
    improves_ : bool
        Whether, under privacy, the curves save log loss beyond noise and overfitting;
        always without.
    n_clients_, n_rounds_ : int
        Clients seen and rounds run.
    privacy_ : PrivacyReport
        The guarantee of this fit.
    history_ : list of RoundRecord
        What each round cost and what the server saw.

    See Also
    --------
    FedBinCalibrator : Bins of equal width, with weights for partial cohorts.
    FedTempCalibrator : One temperature; never changes the order of classes.

    Notes
    -----
    Counts of several depths are combined by least squares. Platt and beta solve
    ``sum_j x_j (p_j - (p_j + n_j) q_j) = 0`` over buckets with the unclipped counts
    ``p_j`` and ``n_j``, which are unbiased, if there is a solution near that of clipped
    counts. Slopes are not negative. Isotonic fits use leaves, under noise 64 buckets of
    equal mass, and are straight between them.

    The saving of a curve is that on the released counts, less what the covariance of
    the counts explains of it (Stein's identity): the number of coefficients, and more
    with noise.

    References
    ----------
    .. [1] Cormode and Markov, "Federated Calibration and Evaluation of Binary
       Classifiers", PVLDB 16(11), 2023.

    Examples
    --------
    >>> from skfedcal import FedHistogramCalibrator, make_federation
    >>> fed = make_federation(n_clients=200, n_classes=2, random_state=0)
    >>> cal = FedHistogramCalibrator(method="platt").fit(fed.clients)
    >>> cal.method_, cal.scores_, cal.counts_.shape
    ('platt', 'binary', (1, 2, 1024))
    """

    _parameter_constraints = {
        **BaseCalibrator._parameter_constraints,
        "method": [StrOptions({"auto", *METHODS})],
        "n_bins": [Interval(Integral, 1, None, closed="left")],
        "multiclass": [StrOptions({"auto", "ovr", "top"})],
        "height": [Interval(Integral, 1, 16, closed="both"), StrOptions({"auto"})],
        "levels": ["array-like", StrOptions({"auto"})],
        "space": [StrOptions({"auto", "both", "prob", "logit"})],
        "clip": [Interval(Real, 1, None, closed="left"), StrOptions({"auto"})],
    }
    _fitted_names = ("method_", "scores_", "counts_", "curve_points_", "curve_values_")

    def __init__(
        self,
        eps=None,
        *,
        method="auto",
        n_bins=15,
        multiclass="auto",
        height="auto",
        levels="auto",
        space="auto",
        delta=None,
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
        self.method = method
        self.n_bins = n_bins
        self.multiclass = multiclass
        self.height = height
        self.levels = levels
        self.space = space
        self.delta = delta
        self.clip = clip
        self.if_improves = if_improves
        self.privacy = privacy
        self.ledger = ledger
        self.classes = classes
        self.input_type = input_type
        self.runner = runner
        self.random_state = random_state

    def _make_algorithm(self, setting):
        from skfedcal.privacy._client_models import DistributedDP, LocalDP

        model = self._privacy_model()
        local = isinstance(model, LocalDP)
        scores = self._scores(setting, local)
        # A row in many tables is short in L2; in one, Laplace noise is smaller.
        gaussian = scores == "ovr" and isinstance(model, CentralDP | DistributedDP)
        norm: Any = "l2" if gaussian else "l1"
        rows, clip = self._clips(setting, local), None
        if setting.private:
            tables = setting.n_classes if scores == "ovr" else 1
            clip = float(rows * (np.sqrt(tables) if norm == "l2" else tables))
        space = self.space
        if space == "auto":
            space = "both" if setting.private else "logit"
        self._algorithm = ClassScoreCounts(
            levels=self._levels(setting, model if local else None),
            # A row by itself is one row; the choice would be by its number, 0.
            max_examples=None if setting.unit == "example" else rows,
            clip=clip,
            norm=norm,
            scores=scores,
            space=space,
            n_classes=setting.n_classes,
            weighted=setting.weighted,
        )
        return self._algorithm

    def _scores(self, setting, local):
        if setting.n_classes == 2:
            return "binary"
        if self.multiclass == "auto":
            return "top" if setting.private else "ovr"
        if self.multiclass == "ovr" and local:
            raise ValueError(
                "multiclass='ovr' needs a report for each class, and LocalDP allows "
                "one; pass multiclass='top'."
            )
        return self.multiclass

    def _clips(self, setting, local):
        if not isinstance(self.clip, str):
            if local and self.clip != 1:
                raise ValueError(
                    f"clip={self.clip!r}: under LocalDP each further report of a "
                    "client would spend eps again. Pass clip=1 or 'auto'."
                )
            return int(self.clip)
        if not setting.private:
            return None
        return 1 if setting.unit == "example" or local else _ROWS

    def _levels(self, setting, local):
        from skfedcal.evaluation._bounds import auto_levels

        height = self.height
        if not isinstance(self.levels, str):
            levels = tuple(int(level) for level in np.asarray(self.levels).ravel())
            rising = all(a < b for a, b in pairwise(levels))
            if not levels or not rising or levels[0] < 1 or levels[-1] > 16:
                raise ValueError(
                    f"levels={self.levels!r} must be increasing depths from 1 to 16."
                )
            if height not in ("auto", levels[-1]):
                raise ValueError(
                    f"levels={self.levels!r} end at {levels[-1]}, not at "
                    f"height={height!r}; leave one of the two out."
                )
            if local is not None and len(levels) > 1:
                raise ValueError(
                    f"levels={self.levels!r}: under LocalDP a client reports once. "
                    "Pass one level, or 'auto'."
                )
            return levels
        if height == "auto":
            height = _NOISY_HEIGHT if setting.private else _EXACT_HEIGHT
            if local is not None:
                height = 4 if local.eps < 4 else 5
        # Exact leaves add up to all other levels.
        if not setting.private or local is not None:
            return (int(height),)
        return auto_levels(int(height))

    def _noise_split(self):
        return "joint"

    def _set_state(self, state):
        from skfedcal.calibrators._curve_choice import fit_curves

        if getattr(self, "_totals", None) is state.totals:
            return  # the last round's state comes twice
        self._totals = state.totals
        algorithm = self._algorithm
        self.scores_ = algorithm.scores
        every = self._leaves(state, algorithm)
        self.counts_ = np.stack([leaves.counts for leaves in every])
        self.method_, curves, self._gain = fit_curves(every, self.method, self.n_bins)
        self.curve_points_ = [curve.points for curve in curves]
        self.curve_values_ = [curve.values for curve in curves]

    def _leaves(self, state, algorithm):
        """Counts of each score, made consistent over levels."""
        from skfedcal.calibrators._curves import Leaves, to_odds
        from skfedcal.evaluation._grid import ScoreGrid
        from skfedcal.evaluation._levels import split_levels
        from skfedcal.evaluation._noise import NoiseModel

        noise = NoiseModel.from_rows(algorithm.levels, state.laws)
        n_tables = algorithm.n_tables
        totals = split_levels(state.totals, algorithm.levels, n_tables)
        grid = ScoreGrid(algorithm.levels[-1], algorithm.space)
        odds, edges = to_odds(grid.centres), to_odds(grid.edges[1:-1])
        return [
            Leaves(noise.estimate([t[i : i + 2] for t in totals]), odds, edges, noise)
            for i in range(0, n_tables, 2)
        ]

    def _after_fit(self, setting):
        # Needed in between rounds only.
        del self._algorithm, self._totals

    def _improves(self):
        return self._gain

    def _curves(self):
        from skfedcal.calibrators._curves import Curve

        kind: Any = _KINDS.get(self.method_, self.method_)
        pairs = zip(self.curve_points_, self.curve_values_, strict=True)
        return [Curve(kind, points, values) for points, values in pairs]

    def _calibrate(self, logits):
        from skfedcal.calibrators._class_curves import apply_curves

        return apply_curves(logits, self.scores_, self._curves())

    def _check_restored(self):
        known = self.method_ in METHODS and self.scores_ in ("binary", "ovr", "top")
        n_scores = len(self.classes_) if self.scores_ == "ovr" else 1
        if not known or self.counts_.shape[:2] != (n_scores, 2):
            raise ValueError("counts_ has a wrong shape, or method_ is unknown")
        sizes = {"platt": (0, 2), "beta": (0, 3)}.get(self.method_)
        if not len(self.curve_points_) == len(self.curve_values_) == n_scores:
            raise ValueError("there is not one curve for each score")
        for points, values in zip(self.curve_points_, self.curve_values_, strict=True):
            steps = _KINDS.get(self.method_) == "steps"
            size = (len(points), len(values))
            if size != (sizes or (size[0], size[0] + steps)):
                raise ValueError("curve_points_ do not fit curve_values_")
            if points.dtype != np.float64 or values.dtype != np.float64:
                raise ValueError("a curve has a wrong type")
            if not np.isfinite(values).all() or (np.diff(points) <= 0).any():
                raise ValueError("a curve has values that cannot be")
