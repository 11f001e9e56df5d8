"""FedHistogramCalibrator: calibration curves from one score histogram."""

from __future__ import annotations

import warnings
from itertools import pairwise
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skfedcal._docs import documented
from skfedcal._sklearn_compat import Interval, StrOptions
from skfedcal.clients.arrays import read_array
from skfedcal.exceptions import CalibrationWarning
from skfedcal.methods.base import BaseCalibrator
from skfedcal.methods.score_curves.rounds import ClassScoreCounts, odds_of
from skfedcal.privacy.models import CentralDP, DistributedDP, LocalDP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skfedcal._typing import ArrayLike, InputType, Seed
    from skfedcal.contract import FederatedAlgorithm
    from skfedcal.federation.runner import FederatedRunner
    from skfedcal.methods.base import FitSetting
    from skfedcal.methods.score_curves.curves import Curve, Leaves
    from skfedcal.privacy.ledger import PrivacyLedger
    from skfedcal.privacy.models import PrivacyModel


# Depth of the leaves: for exact sums, and with noise.
_EXACT_HEIGHT, _NOISY_HEIGHT = 10, 7

# Numbers of all clients up to which their rows are weighted; 50 MB of them. Unweighted
# ones are counted without being held apart.
_MAX_NUMBERS = 6_000_000

# Beyond: most rows of a client that count, and clients at eps=1 for each of them.
_MAX_ROWS, _CLIENTS_PER_ROW = 10, 2000


def contribution(
    clip: float | Literal["auto"],
    setting: FitSetting,
    model: Any,
    n_numbers: int,
) -> tuple[int | None, bool]:
    """Maximum rows of a client (None: all), and whether they share a weight of 1.

    The noise is proportional to the bound on a client. With a shared weight of 1, all
    rows are used at the noise of one row, and a client with many rows has no more
    weight than others.
    """
    local = isinstance(model, LocalDP)
    if not isinstance(clip, str):
        if local and clip != 1:
            raise ValueError(
                f"clip={clip!r}: under LocalDP each further report of a client would "
                "spend eps again. Pass clip=1 or 'auto'."
            )
        if setting.private and setting.unit == "example" and clip != 1:
            raise ValueError(
                f"clip={clip!r}: {model!r} protects single rows, so a larger bound "
                "would only add noise. Pass clip=1 or 'auto'."
            )
        return int(clip), False
    if not setting.private:
        return None, False
    if setting.unit == "example" or local:
        return 1, False
    if setting.n_clients * n_numbers <= _MAX_NUMBERS:
        return None, True
    # Twice the noise is half the eps.
    eps = model.eps / (2 if getattr(model, "adjacency", "") == "replace" else 1)
    rows = min(setting.n_clients * eps**2 / _CLIENTS_PER_ROW, _MAX_ROWS)
    return max(int(rows), 1), False


def levels_of_counts(
    levels: Sequence[int] | Literal["auto"],
    height: int | Literal["auto"],
    setting: FitSetting,
    model: Any,
) -> tuple[int, ...]:
    """Depths at which rows are counted, the last one that of the leaves."""
    from skfedcal.evaluation.noise import auto_levels

    local = isinstance(model, LocalDP)
    if not isinstance(levels, str):
        return _checked(levels, height, local)
    if height == "auto":
        height = _NOISY_HEIGHT if setting.private else _EXACT_HEIGHT
        if local:
            height = 4 if model.eps < 4 else 5
    # Exact leaves add up to all other levels.
    if not setting.private or local:
        return (int(height),)
    return auto_levels(int(height))


def _checked(
    levels: Sequence[int], height: int | Literal["auto"], local: bool
) -> tuple[int, ...]:
    given = read_array(levels, "levels").ravel()
    whole = given.dtype.kind in "iuf" and np.isfinite(given).all()
    if not whole or (given % 1 != 0).any():
        raise ValueError(f"levels={levels!r} must be whole numbers.")
    found = tuple(map(int, given.tolist()))
    rising = all(a < b for a, b in pairwise(found))
    if not found or not rising or found[0] < 1 or found[-1] > 16:
        raise ValueError(f"levels={levels!r} must be increasing depths from 1 to 16.")
    if height not in ("auto", found[-1]):
        raise ValueError(
            f"levels={levels!r} end at {found[-1]}, not at height={height!r}; leave "
            "one of the two out."
        )
    if local and len(found) > 1:
        raise ValueError(
            f"levels={levels!r}: under LocalDP a client reports once. Pass one level, "
            "or 'auto'."
        )
    return found


# Curves and laws of noise are imported where they are used: importing the package
# stays quick.

METHODS = ("bins", "bbq", "bbq_quantile", "isotonic", "platt", "beta")
_KINDS = dict.fromkeys(("bins", "bbq", "bbq_quantile"), "steps") | {"isotonic": "line"}


@documented
class FedHistogramCalibrator(BaseCalibrator):
    """Fit a curve to the counts of both labels in narrow buckets of the score.

    One round: each row falls into one bucket of the histogram of its label. The server
    receives the (noisy) sums, fits a curve to them, and shrinks it toward the input by
    its estimated gain; `reason_` explains the result.

    Parameters
    ----------
    eps
    method : {'auto', 'bins', 'bbq', 'bbq_quantile', 'isotonic', 'platt', 'beta'}, \
            default='auto'
        Frequencies of `n_bins` bins of equal mass; Bayesian average of 2, 4, ... nested
        bins of equal width in `space`, or, as the paper has it, of B bins of equal mass
        with all B from ``M**(1/3) / 10`` to ``10 M**(1/3)`` for M rows; a monotone
        curve; a line in log-odds; or a line in log p and log(1 - p). 'auto' takes
        'isotonic' or 'platt', whichever has the larger estimated decrease of log loss
        on new rows. Bins do not keep the order of scores, and both averages are poor
        under noise.
    n_bins : int, default=15
        Bins of ``method='bins'``.
    multiclass : {'auto', 'ovr', 'top'}, default='auto'
        With more than two classes: one curve for each class against the rest, with as
        many histograms, which multiplies the noise; or one for the most probable class,
        which remains the most probable: the row is divided by a temperature if its
        probability decreases; if it increases, the others keep their proportions.
        'auto' is 'top' under privacy, else 'ovr'.
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
        Delta of (eps, delta) differential privacy, for 'ovr'; None is
        ``min(1e-5, 1 / (10 K))`` for K clients. Laplace noise, for 'top' and for two
        classes, needs none.
    clip : int or 'auto', default='auto'
        Maximum number of rows that a client contributes; of more rows, a fixed choice
        by row number is used. 'auto' is all rows without privacy, and 1 if the unit of
        privacy is a row or a report. For client-level privacy, the rows of a client
        share a weight of 1; beyond 22,000 clients, to limit memory, 'auto' is
        ``n_clients * eps**2 / 2000`` rows, from 1 to 10.
    if_improves : bool, default=True
        Shrink the curve toward the input by its estimated gain (`curve_weight_`), and
        return the input unchanged if there is none (`improves_`); see Notes. False uses
        the curve as fitted in all cases. May be set after `fit`.
    hold_back
    privacy : privacy model, default=None
        Privacy model to use instead of `eps` and `delta`: CentralDP, DistributedDP,
        LocalDP, SourceDP or SecureAggregation.
    ledger, classes, input_type, runner, random_state

    Attributes
    ----------
    method_ : str
        Method of the curves.
    scores_ : {'binary', 'ovr', 'top'}
        Scores that the curves calibrate.
    counts_ : ndarray of shape (n_scores, 2, 2**height)
        Negatives and positives of each score by bucket: unbiased, under noise with
        negative numbers among them.
    curve_points_, curve_values_ : list of ndarray
        Where each curve has steps or corners, and its values or coefficients.
    evidence_ : float
        Standard deviations by which labels differ from the scores.
    gain_ : float
        Estimated decrease of the log loss per row on new rows, by the curves as fitted.
    curve_weight_ : float
        Weight of the curves in the calibrated log-odds, from 0 to 1, the rest being
        that of the input.
    reason_ : str
        Explanation with these numbers.
    classes_
    improves_ : bool
        Whether there is evidence, and a gain beyond noise and overfitting; also
        computed without privacy.
    comparison_
    n_clients_, n_rounds_, privacy_, history_

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
    equal mass, straight between; ends have half an example of the other label.

    A curve can do harm: it follows the noise, or the few rows that there are. It is
    used only if the labels differ from the scores by one standard deviation of sampling
    and noise, under privacy by 3.5, and if its decrease of log loss on the released
    counts exceeds the optimism of that decrease, which follows from the covariance of
    the counts (Stein's identity): the number of coefficients, and more with noise, for
    'bbq' by its deviation. If both hold, the log-odds are ``w curve(z) + (1 - w) z``
    with ``w = 1 - (optimism / saving)**2``. Weights of rows count as numbers of rows.

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
    >>> cal.reason_.split("; ")[1:]
    ['platt would lower the log loss by 0.0477 on new rows',
     'the curve has a weight of 100 %.']
    """

    _parameter_constraints = {
        **BaseCalibrator._parameter_constraints,
        "method": [StrOptions({"auto", *METHODS})],
        "n_bins": [Interval(Integral, 1, 2**20, closed="both")],
        "multiclass": [StrOptions({"auto", "ovr", "top"})],
        "height": [Interval(Integral, 1, 16, closed="both"), StrOptions({"auto"})],
        "levels": ["array-like", StrOptions({"auto"})],
        "space": [StrOptions({"auto", "both", "prob", "logit"})],
        "clip": [Interval(Real, 1, 1e50, closed="both"), StrOptions({"auto"})],
    }
    _fitted_names = (
        "method_",
        "scores_",
        "counts_",
        "curve_points_",
        "curve_values_",
        "curve_weight_",
        "evidence_",
        "gain_",
    )
    _other_unit = (
        ", and where few clients have many rows CentralDP(eps, unit='example'), "
        "which protects single rows, not whole clients"
    )

    def __init__(
        self,
        eps: float | None = None,
        *,
        method: Literal[
            "auto", "bins", "bbq", "bbq_quantile", "isotonic", "platt", "beta"
        ] = "auto",
        n_bins: int = 15,
        multiclass: Literal["auto", "ovr", "top"] = "auto",
        height: int | Literal["auto"] = "auto",
        levels: Sequence[int] | Literal["auto"] = "auto",
        space: Literal["auto", "both", "prob", "logit"] = "auto",
        delta: float | None = None,
        clip: float | Literal["auto"] = "auto",
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
        self.method = method
        self.n_bins = n_bins
        self.multiclass = multiclass
        self.height = height
        self.levels = levels
        self.space = space
        self.delta = delta
        self.clip = clip
        self.if_improves = if_improves
        self.hold_back = hold_back
        self.privacy = privacy
        self.ledger = ledger
        self.classes = classes
        self.input_type = input_type
        self.runner = runner
        self.random_state = random_state

    def _make_algorithm(self, setting: FitSetting) -> FederatedAlgorithm[Any]:
        model = self._privacy_model()
        scores = self._scores(setting, isinstance(model, LocalDP))
        # A row in many tables is short in L2; in one, Laplace noise is smaller.
        gaussian = scores == "ovr" and isinstance(model, CentralDP | DistributedDP)
        norm: Any = "l2" if gaussian else "l1"
        levels = levels_of_counts(self.levels, self.height, setting, model)
        tables = setting.n_classes if scores == "ovr" else 1
        n_numbers = 2 * tables * sum(2**bits for bits in levels)
        rows, shared = contribution(self.clip, setting, model, n_numbers)
        clip = None
        if setting.private:
            bound = 1 if rows is None else rows
            clip = float(bound * (np.sqrt(tables) if norm == "l2" else tables))
        space = self.space
        if space == "auto":
            space = "both" if setting.private else "logit"
        self._algorithm = ClassScoreCounts(
            levels=levels,
            # A row by itself is one row; the choice would be by its number, 0.
            max_examples=None if setting.unit == "example" else rows,
            clip=clip,
            norm=norm,
            weighting="client" if shared else "example",
            scores=scores,
            space=space,
            n_classes=setting.n_classes,
            weighted=setting.weighted,
        )
        return self._algorithm

    def _scores(
        self, setting: FitSetting, local: bool
    ) -> Literal["binary", "ovr", "top"]:
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

    def _noise_split(self) -> Literal["split", "joint", "each"]:
        return "joint"

    def _set_state(self, state: Any) -> None:
        from skfedcal.methods.score_curves.curves import choose

        if getattr(self, "_totals", None) is state.totals:
            return  # the last round's state comes twice
        self._totals = state.totals
        algorithm = self._algorithm
        self.scores_ = algorithm.scores
        every = self._leaves(state, algorithm)
        self.counts_ = np.stack([leaves.counts for leaves in every])
        choice = choose(every, self.method, self.n_bins)
        self.method_, self.curve_weight_ = choice.method, choice.weight
        self.gain_, self.evidence_ = choice.gain, choice.evidence
        self.curve_points_ = [curve.points for curve in choice.curves]
        self.curve_values_ = [curve.values for curve in choice.curves]

    def _leaves(self, state: Any, algorithm: ClassScoreCounts) -> list[Leaves]:
        """Counts of each score, made consistent over levels."""
        from skfedcal.evaluation.grid import ScoreGrid
        from skfedcal.evaluation.noise import NoiseModel, split_levels
        from skfedcal.methods.score_curves.curves import Leaves

        noise = NoiseModel.from_rows(algorithm.levels, state.laws)
        n_tables = algorithm.n_tables
        totals = split_levels(state.totals, algorithm.levels, n_tables)
        grid = ScoreGrid(algorithm.levels[-1], algorithm.space)
        odds, edges = odds_of(grid.centres), odds_of(grid.edges[1:-1])
        return [
            Leaves(noise.estimate([t[i : i + 2] for t in totals]), odds, edges, noise)
            for i in range(0, n_tables, 2)
        ]

    def _after_fit(self, setting: FitSetting) -> None:
        # Also without noise: few rows are no better than noisy ones.
        self.improves_ = self._improves()
        # Needed in between rounds only.
        del self._algorithm, self._totals

    def _improves(self) -> bool:
        return self.curve_weight_ > 0

    def _warn_no_gain(self) -> None:
        more = "more rows would show it"
        if self.privacy_.private:
            more = f"more clients or a larger eps would show it{self._other_unit}"
        warnings.warn(
            f"{self.reason_} The scores may already be calibrated; if they are not, "
            f"{more}.",
            CalibrationWarning,
            stacklevel=4,
        )

    @property
    def reason_(self) -> str:
        """Chosen method, evidence, gain and weight, as text."""
        from skfedcal.methods.score_curves.curves import in_words

        choice = self.method_, self.gain_, self.evidence_
        weight = self.curve_weight_ if self.if_improves else None
        return in_words(*choice, weight, noisy=self.privacy_.private)

    @property
    def _kind(self) -> str:
        """Kind of the curves."""
        return _KINDS.get(self.method_, self.method_)

    def _curves(self) -> list[Curve]:
        from skfedcal.methods.score_curves.curves import Curve

        kind: Any = self._kind
        pairs = zip(self.curve_points_, self.curve_values_, strict=True)
        return [Curve(kind, points, values) for points, values in pairs]

    def _check_restored(self) -> None:
        known = self.method_ in METHODS and self.scores_ in ("binary", "ovr", "top")
        n_scores = len(self.classes_) if self.scores_ == "ovr" else 1
        if not known or self.counts_.shape[:2] != (n_scores, 2):
            raise ValueError("counts_ has a wrong shape, or method_ is unknown")
        numbers = self.curve_weight_, self.gain_, self.evidence_
        if not all(type(x) is float for x in numbers) or not 0 <= numbers[0] <= 1:
            raise ValueError("curve_weight_, gain_ or evidence_ has an invalid value")
        if not len(self.curve_points_) == len(self.curve_values_) == n_scores:
            raise ValueError("the numbers of curves and scores differ")
        for curve in self._curves():
            curve.check()
