"""Maps that look probabilities up in tables."""

import numpy as np

from skfedcal.algorithms._positions import LOGIT_RANGE
from skfedcal.calibrators.maps._curves import log_odds
from skfedcal.calibrators.maps._shares import share_rest, temper_to
from skfedcal.export._formulas import inside, log1p, softmax


def class_bins(cal, logits):
    """One table for each class against the rest."""
    n_bins, n_classes = cal._n_bins, len(cal.classes_)
    if cal.space_ == "logit":
        place = log_odds(logits, n_classes) / (2 * LOGIT_RANGE) + 0.5
        place = place.at_least(0.0)
    else:
        place = softmax(logits)
    index = _bin(place, n_bins) + np.arange(n_classes)[None] * n_bins
    if cal.weighting is None:
        # Not by values, which single precision may take for 1.
        return index.take_from(cal._log_values(cal.bin_values_))
    values = index.take_from(cal.bin_values_)
    values = _weighed(cal, values, logits, softmax(logits))
    out = values.log()
    return out - log1p(-values) if cal.normalize == "logit" else out


def _weighed(cal, values, logits, proba):
    """Averages of bins and input where the parameters say so."""
    weights = cal.class_weights_
    mixed = inside(values * weights + proba * (1 - weights))
    if cal.weighting == "all":
        return mixed
    return values.argmax().equals(logits.argmax()).choose(values, mixed)


def top_bins(cal, logits):
    """One table for the confidence in the most probable class."""
    n_bins = cal.n_bins
    confidence = softmax(logits).max()
    index = _bin(confidence, n_bins)
    away = confidence - (index + 0.5) / n_bins
    own = index.take_from(cal.bin_values_) + index.take_from(1 - cal.bin_trust_) * away
    own = inside(own)
    if cal.keep_order:
        return temper_to(logits, own, len(cal.classes_))
    return share_rest(logits, own)


def _bin(place, n_bins):
    """Number of the equal-width bin of a place in [0, 1], the last one closed."""
    return (place * float(n_bins)).floor().at_most(n_bins - 1.0)
