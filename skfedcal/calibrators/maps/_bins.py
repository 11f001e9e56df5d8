"""Maps that look probabilities up in tables."""

import numpy as np

from skfedcal.calibrators.maps._shares import share_rest, temper_to
from skfedcal.export._formulas import inside, log1p, softmax


def class_bins(cal, logits):
    """One table for each class against the rest."""
    n_bins = cal._n_bins
    proba = softmax(logits)
    first = np.arange(len(cal.classes_))[None] * n_bins
    values = (_bin(proba, n_bins) + first).take_from(cal.bin_values_)
    if cal.weighting is not None:
        values = _weighed(cal, values, logits, proba)
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


def _bin(proba, n_bins):
    """Number of the equal-width bin, the last one closed."""
    return (proba * float(n_bins)).floor().at_most(n_bins - 1.0)
