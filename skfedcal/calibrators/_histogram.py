"""What calibrators made of histograms share: counts, weights, look-up, do no harm."""

from numbers import Real

import numpy as np

from skfedcal import _logits
from skfedcal._sklearn_compat import StrOptions
from skfedcal.algorithms import ClassHistograms
from skfedcal.algorithms._class_bins import ClassBins, softmax64
from skfedcal.calibrators._base import BaseCalibrator
from skfedcal.calibrators._bin_lookup import look_up
from skfedcal.data._arrays import read_array
from skfedcal.privacy._mixin import CLIP_RANGE

# Bound on the positive counts of a client; public, as in the paper's experiments.
_CLIP_POSITIVE = 10.0

# The gain must be this many standard deviations of its own noise.
_MIN_GAIN = 2.0

# The input inside a bin is taken to be this part of its width away from the edges.
_EDGE = 0.05

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
        "noise": [StrOptions({"split", "joint"})],
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

    def _chosen_space(self, private):
        """Scale of the bins; must not depend on rows."""
        return self.space

    @property
    def _bins(self):
        return ClassBins(self._n_bins, self.space_)

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
        self.bin_values_ = _inside(table.values)
        self._gain = not any(noise) or noticeable_gain(
            state, self._judged(state, table), self._bins
        )

    def _judged(self, state, table):
        """Table by which `improves_` is decided."""
        return table

    def _improves(self):
        return self._gain

    def _unchanged(self, logits):
        return _logits.log_softmax(logits) if self.normalize == "none" else logits

    def _check_restored(self):
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

    def _calibrate(self, logits):
        # Blocks of rows are changed in place, in one layout.
        logits = np.ascontiguousarray(logits)
        if self.weighting is None:
            table = self._log_values(self.bin_values_).astype(logits.dtype)
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

    def _log_values(self, values):
        out = _logits.from_proba(values)
        if self.normalize == "logit":
            out -= np.log1p(-values)
        return out

    def _weigh(self, values, logits, proba):
        """Averages of bins and input where the parameters say so."""
        weights = self.class_weights_
        mixed = _inside(weights * values + (1 - weights) * proba)
        if self.weighting == "all":
            return mixed
        changed = values.argmax(axis=1) != logits.argmax(axis=1)
        return np.where(changed[:, None], mixed, values)


def class_weights(state, totals=None):
    """Trust in the bins of each class, between 0 (none) and 1.

    Parameters
    ----------
    state : HistogramState
        Released counts and their noise.
    totals : array-like of shape (n_classes,), default=None
        Rows of each class at all clients.

    Returns
    -------
    weights : ndarray of shape (n_classes,)
        Section 4.1 of the paper; under noise appendix B.5, with the noise of all
        rounds and without negative weights.
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


def noticeable_gain(state, table, bins):
    """Whether a table fits the released counts better than the input, noise aside.

    The gain is in one-vs-rest log loss, summed over classes. Fitted and measured on the
    same noisy counts it comes out too large: on average, by Stein's identity, by the
    variance of the noise times the derivative of the logarithm of the values. That is
    taken off, and what is left must stand out from its own noise.
    """
    counts = np.stack([state.positive, state.negative])
    variance = np.square([[[state.noise_positive]], [[state.noise_negative]]])
    positive, negative = np.maximum(counts, 0.0)
    values, start = _inside(table.values), _kindest_input(positive, negative, bins)
    logs = np.stack([np.log(values / start), np.log1p(-values) - np.log1p(-start)])
    slopes = np.stack([table.rise / values, table.fall / (1 - values)])
    gain = np.sum(counts * logs - variance * slopes)
    return bool(gain > _MIN_GAIN * np.sqrt(np.sum(variance * logs**2)))


def _kindest_input(positive, negative, bins):
    """Constant inside each bin that fits the counts best.

    Counts do not tell where in its bin the input is: a good input would be there.
    """
    rows = positive + negative
    left = np.arange(bins.n_bins)
    middle = np.broadcast_to(bins.midpoints, rows.shape).copy()
    best = np.divide(positive, rows, out=middle, where=rows > 0)
    low, high = bins.proba_at(left + _EDGE), bins.proba_at(left + 1 - _EDGE)
    if bins.space == "logit":  # where the outermost bins have no end
        low[0], high[-1] = 0.0, 1.0
    return _inside(np.clip(best, low, high))


def _inside(values):
    limits = np.finfo(np.float64)
    return np.clip(values, limits.tiny, 1 - limits.epsneg)


def _check_totals(totals, setting):
    if totals is None:
        return
    if setting.private:
        raise ValueError(
            "class_totals has no use under privacy, where the weights come from the "
            "noise; leave it out."
        )
    values = read_array(totals, "class_totals", np.float64)
    good = values.shape == (setting.n_classes,)
    if not good or not (np.isfinite(values) & (values >= 0)).all():
        raise ValueError(
            f"class_totals={totals!r} must hold {setting.n_classes} numbers of rows, "
            "one for each class in the order of the columns."
        )
