"""Histogram binning and Bayesian binning as calibrators.

Replace logits by the values of the bins that their probabilities fall in. Bins are
those of the softmax in float64. With many classes most probabilities lie in the first
bin of equal width, so that float32, which is several times faster, decides almost all
of them; an entry too close to an edge is computed again in float64. With bins of
log-odds every entry is looked up.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skfedcal import _compiled, _numerics
from skfedcal._docs import SharedDocs, documented
from skfedcal._numerics import rare_flags
from skfedcal._sklearn_compat import Interval, StrOptions
from skfedcal.clients.arrays import read_array
from skfedcal.methods.base import BaseCalibrator
from skfedcal.methods.bins.bbq_table import (
    Levels,
    bbq_table,
    joined_table,
    level_shares,
)
from skfedcal.methods.bins.rounds import (
    ClassHistograms,
    bin_table,
    noticeable_gain,
    strictly_inside,
)
from skfedcal.methods.buckets import ClassBins, bin_index, softmax64
from skfedcal.privacy.models import CLIP_RANGE

if TYPE_CHECKING:
    from skfedcal._typing import ArrayLike, FloatArray, InputType, Rows, Seed
    from skfedcal.clients.dataset import FederatedDataset
    from skfedcal.contract import Array, FederatedAlgorithm
    from skfedcal.federation.runner import FederatedRunner
    from skfedcal.methods.base import FitSetting
    from skfedcal.methods.bins.rounds import BinTable, HistogramState
    from skfedcal.privacy.ledger import PrivacyLedger
    from skfedcal.privacy.models import PrivacyModel


# Entries at a time: their float32 copies and flags stay in the cache.
_LOOKUP_CELLS = 1 << 17

# Entries at a time of the dense form, which makes several float64 copies.
_DENSE_CELLS = 1 << 15

# With fewer classes too many entries lie above the first bin.
_MANY_CLASSES = 32

# Above this share of entries outside the first bin the dense form is faster.
_MAX_SHARE = 1 / 8


def look_up(logits: Array, table: Array, space: Literal["logit", "prob"]) -> Array:
    """Replace centred logits, in place, by values of their bins.

    logits of shape (n_samples, n_classes): C-contiguous, each row with maximum 0.
    table of shape (n_classes, n_bins): Value of each bin, in the dtype of `logits`.
    space: Scale on which bins have equal width.
    Result of shape (n_samples, n_classes): `logits` itself.
    """
    n_classes = logits.shape[1]
    bins = ClassBins(table.shape[1], space)
    sparse = space == "prob" and n_classes >= _MANY_CLASSES
    step = max(1, _LOOKUP_CELLS // n_classes)
    for start in range(0, len(logits), step):
        rows = logits[start : start + step]
        # Rows are alike: where one block has too many entries, the next will too.
        sparse = sparse and _sparse(rows, table)
        if not sparse:
            _dense(rows, table, bins)
    return logits


def _dense(rows: Array, table: Array, bins: ClassBins) -> None:
    """Look up every entry."""
    n_classes, n_bins = table.shape
    size = _DENSE_CELLS if bins.space == "prob" else _LOOKUP_CELLS
    step = max(1, size // n_classes)
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        cells = bins.index(part)
        cells += np.arange(n_classes, dtype=cells.dtype) * n_bins
        part[:] = table.take(cells)


def _sparse(rows: Array, table: Array) -> bool:
    """Look up the entries above the first bin; False if there are too many."""
    n_classes, n_bins = table.shape
    slack = _slack(n_classes)
    low, high = np.float32(1 - slack), np.float32(1 + slack)
    # Probabilities in units of a bin, each off by a factor between low and high.
    with np.errstate(over="ignore"):  # -1e300 is -inf, and its probability 0
        level = np.exp(rows.astype(np.float32, copy=False))
    level *= (np.float32(n_bins) / np.einsum("ij->i", level))[:, None]
    above = (level >= low).reshape(-1)
    if np.count_nonzero(above) > _MAX_SHARE * above.size:
        return False
    where = rare_flags(above)
    level = level.reshape(-1).take(where)
    where32 = where.astype(np.int32)  # division is several times faster
    row = where32 // n_classes
    column = where32 - row * n_classes
    bins = (level * low).astype(np.int32)
    np.minimum(bins, n_bins - 1, out=bins)
    # The last bin holds whatever is above it.
    in_doubt = (bins + 1 <= level * high) & (bins < n_bins - 1)
    in_doubt = in_doubt.nonzero()[0]
    if len(in_doubt):
        # Each row once: all entries of a row may be near an edge.
        again, place = np.unique(row.take(in_doubt), return_inverse=True)
        exact = bin_index(softmax64(rows[again]), n_bins)
        bins[in_doubt] = exact[place, column.take(in_doubt)]
    rows[:] = table[:, 0]
    rows.reshape(-1)[where] = table.take(column * n_bins + bins)
    return True


def _slack(n_classes: int) -> float:
    """Bound on the relative error of a float32 probability of at least half a bin.

    In half units in the last place: a sum of n terms, n; its terms and the numerator,
    5 each from the exponential; float64 logits as float32, their size, which is below
    ``log(2 * n_bins)`` for an entry that reaches half a bin and on average below
    ``log(n_classes)`` in the sum; divisions and products, 1 each. With 64 for all but
    the first, this is twice as much.
    """
    return (n_classes + 64) * float(np.finfo(np.float32).eps)


# Bound on the positive counts of a client; public, as in the paper's experiments.
_CLIP_POSITIVE = 10.0

# Entries that are looked up at a time: float64 copies of so many stay in the cache.
_BLOCK_CELLS = 1 << 15


class HistogramCalibrator(BaseCalibrator):
    """Base of calibrators that look up a table of one-vs-rest bins.

    A subclass gives ``_n_bins`` and ``_make_table(state)``, which returns a `BinTable`.
    """

    _parameter_constraints = {
        **BaseCalibrator._parameter_constraints,
        "clip": [
            CLIP_RANGE,
            StrOptions({"auto"}),
            tuple,
            list,
        ],
        "clip_per_class": ["boolean"],
        "noise": [StrOptions({"split", "joint", "each"})],
        "normalize": [StrOptions({"l1", "logit", "none"})],
        "space": [StrOptions({"logit", "prob"})],
        "weighting": [StrOptions({"all", "changed"}), None],
        "class_totals": ["array-like", None],
    }
    _fitted_names: tuple[str, ...] = (
        "bin_values_",
        "positive_",
        "negative_",
        "class_weights_",
        "space_",
    )

    def predict_proba(self, X: Rows) -> FloatArray:
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
            return np.exp(self._prediction_logits(X))
        return super().predict_proba(X)

    def predict_log_proba(self, X: Rows) -> FloatArray:
        if self.normalize == "none":
            return self._prediction_logits(X)
        return super().predict_log_proba(X)

    def _make_algorithm(self, setting: FitSetting) -> FederatedAlgorithm[Any]:
        _check_totals(self.class_totals, setting)
        positive, negative = self._clips(setting)
        return ClassHistograms(
            n_bins=self._n_bins,
            clip_positive=positive,
            clip_negative=negative,
            per_class=self.clip_per_class,
            weighted=setting.weighted,
            population=setting.n_clients,
            space=self._chosen_space(setting.private),
        )

    def _chosen_space(self, private: bool) -> Literal["logit", "prob"]:
        """Scale of the bins; it must not depend on rows."""
        return self.space

    @property
    def _bins(self) -> ClassBins:
        return ClassBins(self._n_bins, self.space_)

    def _clips(self, setting: FitSetting) -> tuple[float | None, ...]:
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
                f"clip={self.clip!r} must be 'auto', a positive number, or a pair of "
                "numbers, for positive and negative counts."
            )
        return tuple(pair)

    def _noise_split(self) -> Literal["split", "joint", "each"]:
        return self.noise

    def _set_state(self, state: Any) -> None:
        if getattr(self, "positive_", None) is state.positive:
            return  # the last round's state comes twice
        noise = state.noise_positive, state.noise_negative
        self.space_ = self._chosen_space(any(noise))
        table = self._make_table(state)
        self.positive_, self.negative_ = state.positive, state.negative
        self.class_weights_ = np.ones(len(state.positive))
        if self.weighting is not None:
            self.class_weights_ = class_weights(state, self.class_totals)
        # Strictly inside (0, 1) also where the prior is lost to rounding.
        self.bin_values_ = strictly_inside(table.values)
        self._gain = not any(noise) or noticeable_gain(
            state, self._judged(state, table), self._bins
        )

    def _judged(self, state: HistogramState, table: BinTable) -> BinTable:
        """Table from which `improves_` is computed."""
        return table

    def _improves(self) -> bool:
        return self._gain

    def _unchanged(self, logits: Array) -> Array:
        return _numerics.log_softmax(logits) if self.normalize == "none" else logits

    def _check_restored(self) -> None:
        table = (len(self.classes_), self._n_bins)
        if self.space_ not in ("logit", "prob"):
            raise ValueError("space_ has a wrong value")
        for name in ("bin_values_", "positive_", "negative_", "class_weights_"):
            value = getattr(self, name)
            shape = table[:1] if name == "class_weights_" else table
            if value.shape != shape or value.dtype != np.float64:
                raise ValueError(f"{name} has a wrong shape or type")
        if not ((self.bin_values_ > 0) & (self.bin_values_ < 1)).all():
            raise ValueError("bin_values_ has values outside (0, 1)")
        if not ((self.class_weights_ >= 0) & (self.class_weights_ <= 1)).all():
            raise ValueError("class_weights_ has values outside [0, 1]")

    def _calibrate(self, logits: Array) -> Array:
        # Blocks of rows are changed in place, in one layout.
        logits = np.ascontiguousarray(logits)
        if self.weighting is None:
            terms = self._bins.terms
            if _compiled.bin_values(logits, terms, self._log_table, logits):
                return logits
            table = self._log_table.astype(logits.dtype)
            return look_up(logits, table, self.space_)
        first = np.arange(logits.shape[1]) * self._n_bins
        step = max(1, _BLOCK_CELLS // logits.shape[1])
        for start in range(0, len(logits), step):
            rows = logits[start : start + step]
            cells = self._bins.index(rows) + first
            values = self.bin_values_.take(cells)
            values = self._weigh(values, rows, softmax64(rows))
            rows[:] = self._log_values(values)
        return logits

    def _prediction_logits(self, X: Rows) -> Array:
        check_is_fitted(self)
        if not self._map_is_used:
            return super()._prediction_logits(X)
        logits = self._input_logits(X)
        if self.weighting is None:
            out = np.empty_like(logits, order="C")
            terms = self._bins.terms
            if _compiled.bin_values(logits, terms, self._log_table, out):
                return self._in_order(out)
        # Distances in single precision would be rounded onto edges of bins.
        gaps = _numerics.center(logits.astype(np.float64))
        found = self._calibrate(gaps).astype(logits.dtype, copy=False)
        return self._in_order(found)

    def _direct_proba(self, X: Rows) -> FloatArray | None:
        if _compiled.core is None or self.normalize != "l1":
            return None
        logits = self._input_logits(X)
        out = np.empty_like(logits, order="C")
        terms = self._bins.terms
        if not self._map_is_used:
            out = _numerics.softmax(logits)
        elif not _compiled.bin_values(
            logits, terms, self.bin_values_, out, normalise=True
        ):
            out = _numerics.softmax(self._calibrate(_numerics.center(logits)))
        elif self.weighting is not None:
            moved = np.arange(len(out))
            if self.weighting == "changed":
                moved = np.flatnonzero(out.argmax(axis=1) != logits.argmax(axis=1))
            part = _numerics.center(logits[moved].astype(np.float64))
            out[moved] = _numerics.softmax(self._calibrate(part))
        return self._in_order(out)

    def _map_scores(self, clients: FederatedDataset) -> Array | None:
        if self.weighting is not None or clients.n_classes == 1:
            return None
        table, out = self.bin_values_, np.empty((4, clients.n_rows))
        if self.normalize == "logit":
            table = table / (1 - table)
        done = _compiled.bin_scores(clients, self._bins.terms, table, out)
        return out if done else None

    @property
    def _log_table(self) -> Array:
        return self._log_values(self.bin_values_)

    def _log_values(self, values: Array) -> Array:
        out = _numerics.from_proba(values)
        if self.normalize == "logit":
            out -= np.log1p(-values)
        return out

    def _weigh(self, values: Array, logits: Array, proba: Array) -> Array:
        """Average of bins and input if `weighting` is set."""
        weights = self.class_weights_
        mixed = strictly_inside(weights * values + (1 - weights) * proba)
        if self.weighting == "all":
            return mixed
        changed = values.argmax(axis=1) != logits.argmax(axis=1)
        return np.where(changed[:, None], mixed, values)


def class_weights(state: HistogramState, totals: ArrayLike | None = None) -> Array:
    """Weight of the bins of each class, between 0 (none) and 1.

    state: Released counts and their noise.
    totals of shape (n_classes,): Rows of each class at all clients.
    Result of shape (n_classes,): Section 4.1 of the paper; under noise appendix B.5,
        with the noise of all rounds and without negative weights.
    """
    rows = state.positive.sum(axis=1)
    if state.noise_positive:
        # Mean size of the noise in a count, times the counts that are added up.
        error = np.sqrt(2 / np.pi) * state.noise_positive * state.positive.shape[1]
        return np.clip(rows / error, 0.0, 1.0)
    if totals is None:
        asked = min(1.0, state.clients / state.population)
        mean = rows.mean()
        often = rows / mean if mean > 0 else np.ones(len(rows))
        return np.clip(asked * np.maximum(often, 1.0), 0.0, 1.0)
    totals = np.asarray(totals, dtype=np.float64)
    # A class without rows anywhere has been seen as a whole.
    share = np.divide(rows, totals, out=np.ones(len(rows)), where=totals > 0)
    return np.clip(share, 0.0, 1.0)


def _check_totals(totals: ArrayLike | None, setting: FitSetting) -> None:
    if totals is None:
        return
    if setting.private:
        raise ValueError(
            "class_totals is not used under privacy, where the weights are computed "
            "from the noise; leave it out."
        )
    values = read_array(totals, "class_totals", np.float64)
    good = values.shape == (setting.n_classes,)
    if not good or not (np.isfinite(values) & (values >= 0)).all():
        raise ValueError(
            f"class_totals={totals!r} must hold {setting.n_classes} row counts, one "
            "for each class in the order of the columns."
        )


# Entries of the docstrings of both calibrators.
bins_documented = SharedDocs(
    """
    weighting : {'all', 'changed'}, default=None
        Average the bins with the input, ``a g + (1 - a) p``, by `class_weights_`: for
        all rows, or only for those whose most probable class is changed by the bins.
        Meant for partial cohorts: a class that was seldom seen keeps the input.
    class_totals : array-like of shape (n_classes,), default=None
        Public numbers of rows of each class at all clients, in column order, for
        `weighting` without `eps`. None estimates them from the share of clients asked.
    normalize : {'l1', 'logit', 'none'}, default='l1'
        Divide the values of a row by their sum, take the softmax of their log-odds, or
        leave them as they are (rows then do not sum to 1).
    clip : float, pair of floats or 'auto', default='auto'
        L2 bound on a client's positive counts, or on positive and negative counts; one
        number C means ``(C, C * sqrt(n_classes - 1))``, which suits a row that is
        positive for one class and negative for all others. 'auto' is 10 under `eps`
        and no bound without.
    clip_per_class : bool, default=False
        Clip each class separately, as printed in the paper; this needs
        ``sqrt(n_classes)`` times the noise.
    noise : {'split', 'joint', 'each'}, default='split'
        Divide the noise between positive and negative counts so that the total variance
        is minimal ('split'), equally ('joint'), or in proportion to their clips
        ('each': Lemma B.7 of the paper for each histogram).
    class_weights_ : ndarray of shape (n_classes,)
        Weight ``a`` of the bins of each class, in column order; 1 without `weighting`.
    space_ : {'logit', 'prob'}
        Scale on which bins have equal width.
    """,
    documented,
)


@bins_documented
class FedBinCalibrator(HistogramCalibrator):
    """Replace each class probability by the frequency of the class in its bin.

    Every class has its own histogram of predicted probabilities (one against the
    rest); clients send counts of rows that are, and are not, of the class.

    Parameters
    ----------
    eps
    n_bins : int, default=15
        Bins per class.
    space : {'prob', 'logit'}, default='prob'
        Scale on which bins have equal width: probability, as printed in the paper, or
        log-odds from -16 to 16, with everything beyond in the two outermost bins.
        'logit' needs an even number of bins, so that one half is an edge, and 30 or
        more of them.
    delta, clip, clip_per_class, noise
    prior_weight : float, default=2.0
        Pseudo-rows per class, spread over its bins, at the midpoint of each bin; keeps
        empty bins and the log loss finite. Under noise each bin also gets as many
        pseudo-rows as the standard deviation of the noise.
    normalize : {'l1', 'logit', 'none'}, default='l1'
        Divide the frequencies of a row by their sum, take the softmax of their
        log-odds, or leave them as they are (rows then do not sum to 1).
    weighting, class_totals
    if_improves, hold_back, privacy, ledger, classes, input_type, runner, random_state

    Attributes
    ----------
    bin_values_ : ndarray of shape (n_classes, n_bins)
        Frequency for each bin; rows are the columns of the input, in their order.
    positive_, negative_ : ndarray of shape (n_classes, n_bins)
        Released counts.
    class_weights_, space_
    classes_, improves_, comparison_, n_clients_, n_rounds_, privacy_, history_

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
    share of clients asked: exactly 1 once all clients were asked. Under `eps` it is
    ``n_j / (sqrt(2 / pi) sd n_bins)``, cut to [0, 1], with sd the noise in a positive
    count over all rounds: appendix B.5 of the paper, corrected.

    `improves_` compares, in the one-vs-rest log loss, the bins with the best that the
    input can be inside each bin. The expected gain of fitting noise is subtracted, and
    the rest must be at least twice its standard deviation.

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
        eps: float | None = None,
        *,
        n_bins: int = 15,
        space: Literal["logit", "prob"] = "prob",
        delta: float | None = None,
        clip: float | tuple[float, float] | list[float] | Literal["auto"] = "auto",
        clip_per_class: bool = False,
        noise: Literal["split", "joint", "each"] = "split",
        prior_weight: float = 2.0,
        normalize: Literal["l1", "logit", "none"] = "l1",
        weighting: Literal["all", "changed"] | None = None,
        class_totals: ArrayLike | None = None,
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
        self.hold_back = hold_back
        self.privacy = privacy
        self.ledger = ledger
        self.classes = classes
        self.input_type = input_type
        self.runner = runner
        self.random_state = random_state

    @property
    def _n_bins(self) -> int:
        return int(self.n_bins)  # numpy takes True for no size

    def _make_table(self, state: HistogramState) -> BinTable:
        weight = self.prior_weight / self.n_bins
        weight += np.hypot(state.noise_positive, state.noise_negative)
        return bin_table(state.positive, state.negative, weight, self._bins)


# 4096 bins per class: finer ones hold no rows, and a message would have millions.
_MAX_LEVELS = 12


@bins_documented
class FedBBQCalibrator(HistogramCalibrator):
    """Average histograms of 2, 4, ... bins by how well each explains the labels.

    Clients send one histogram of ``2**n_levels`` bins per class, as for
    FedBinCalibrator. The server merges neighbouring bins to the coarser histograms, so
    that the average costs no further privacy, and keeps one table per class.

    Parameters
    ----------
    eps
    n_levels : int, default=7
        Histograms to average, of 2, 4, ..., ``2**n_levels`` bins; 1 to 12.
    space : {'auto', 'logit', 'prob'}, default='auto'
        Scale on which bins have equal width: log-odds from -16 to 16, with all that is
        beyond in the outermost two, or probability, as printed in the paper. 'auto' is
        'logit' for exact sums and 'prob' under noise.
    bins : {'posterior', 'frequency'}, default='posterior'
        Value of a bin: the mean of its posterior, or the plain frequency as printed in
        the paper, which is the bin's own midpoint where there are no rows, may be 0 or
        1, and is not corrected for noise (`improves_` is then that of 'posterior').
    weighting, class_totals, normalize, delta, clip, clip_per_class, noise
    if_improves, hold_back, privacy, ledger, classes, input_type, runner, random_state

    Attributes
    ----------
    bin_values_ : ndarray of shape (n_classes, 2**n_levels)
        Averaged value of each bin; rows are the columns of the input, in their order.
    level_weights_ : ndarray of shape (n_classes, n_levels)
        Weight of each histogram in the average, coarsest first.
    positive_, negative_ : ndarray of shape (n_classes, 2**n_levels)
        Released counts.
    class_weights_, space_
    classes_, improves_, comparison_, n_clients_, n_rounds_, privacy_, history_

    See Also
    --------
    FedBinCalibrator : One histogram; same weights and `improves_`.
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

    Under `eps` merged counts below 0 are taken for 0. Scores use effective numbers of
    rows, which have the same information without noise, and each bin gets pseudo-rows
    at the value of the input, three times the standard deviation of its noise. All of
    2**n_levels counts carry noise, also those that are merged: with few clients or a
    small `eps` take a small `n_levels`, or FedTempCalibrator. With 100 clients of 60
    rows, `improves_` was false at any eps up to 8.

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
        eps: float | None = None,
        *,
        n_levels: int = 7,
        space: Literal["auto", "logit", "prob"] = "auto",
        bins: Literal["posterior", "frequency"] = "posterior",
        weighting: Literal["all", "changed"] | None = None,
        class_totals: ArrayLike | None = None,
        normalize: Literal["l1", "logit", "none"] = "l1",
        delta: float | None = None,
        clip: float | tuple[float, float] | list[float] | Literal["auto"] = "auto",
        clip_per_class: bool = False,
        noise: Literal["split", "joint", "each"] = "split",
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
        self.hold_back = hold_back
        self.privacy = privacy
        self.ledger = ledger
        self.classes = classes
        self.input_type = input_type
        self.runner = runner
        self.random_state = random_state

    @property
    def _n_bins(self) -> int:
        return 2**self.n_levels

    def _chosen_space(self, private: bool) -> Literal["logit", "prob"]:
        if self.space != "auto":
            return self.space
        # Noise outweighs the few rows of a class in the tails of log-odds.
        return "prob" if private else "logit"

    @property
    def _levels(self) -> Levels:
        return Levels.of(self._n_bins, self.space_)

    def _make_table(self, state: HistogramState) -> BinTable:
        counts, levels = (state.positive, state.negative), self._levels
        noisy, frequency = state.noise_positive > 0, self.bins == "frequency"
        if self.space_ == "logit" and not noisy and not frequency:
            own, other = map(levels.merge, counts)
            self.level_weights_ = shares = level_shares(own, other, levels)
            return joined_table(*counts, shares, levels)
        noise = state.noise_positive, state.noise_negative
        table, self.level_weights_ = bbq_table(
            *counts, noise, frequency=frequency, levels=levels
        )
        return table

    def _judged(self, state: HistogramState, table: BinTable) -> BinTable:
        if self.bins == "posterior":
            return table
        # A frequency of 0 has no finite log loss to compare; these are never better.
        noise = state.noise_positive, state.noise_negative
        levels = self._levels
        return bbq_table(state.positive, state.negative, noise, levels=levels)[0]

    def _check_restored(self) -> None:
        super()._check_restored()
        shape = (len(self.classes_), self.n_levels)
        if self.level_weights_.shape != shape or self.level_weights_.dtype != float:
            raise ValueError("level_weights_ has a wrong shape or type")
