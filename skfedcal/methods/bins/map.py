"""Map of one table of bins for each class, as a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from skfedcal.export.graph import inside, log1p, softmax
from skfedcal.methods.buckets import LOGIT_RANGE
from skfedcal.methods.map_formulas import bin_of, log_odds

if TYPE_CHECKING:
    from skfedcal.export.graph import Value
    from skfedcal.methods.bins.estimator import FedBBQCalibrator, FedBinCalibrator


def class_bins(cal: FedBinCalibrator | FedBBQCalibrator, logits: Value) -> Value:
    """One table for each class against the rest."""
    n_bins, n_classes = cal._n_bins, len(cal.classes_)
    if cal.space_ == "logit":
        place = log_odds(logits, n_classes) / (2 * LOGIT_RANGE) + 0.5
        place = place.at_least(0.0)
    else:
        place = softmax(logits)
    index = bin_of(place, n_bins) + np.arange(n_classes)[None] * n_bins
    if cal.weighting is None:
        # Not by values, which single precision may take for 1.
        return index.take_from(cal._log_values(cal.bin_values_))
    values = index.take_from(cal.bin_values_)
    values = _weighed(cal, values, logits, softmax(logits))
    out = values.log()
    return out - log1p(-values) if cal.normalize == "logit" else out


def _weighed(
    cal: FedBinCalibrator | FedBBQCalibrator, values: Value, logits: Value, proba: Value
) -> Value:
    """Average of bins and input if `weighting` is set."""
    weights = cal.class_weights_
    mixed = inside(values * weights + proba * (1 - weights))
    if cal.weighting == "all":
        return mixed
    return values.argmax().equals(logits.argmax()).choose(values, mixed)
