"""Map of one table for the most probable class, as a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skfedcal.export.graph import inside, softmax
from skfedcal.methods.map_formulas import bin_of, share_rest, temper_to

if TYPE_CHECKING:
    from skfedcal.export.graph import Value
    from skfedcal.methods.top_bins.estimator import FedTopBinCalibrator


def top_bins(cal: FedTopBinCalibrator, logits: Value) -> Value:
    """One table for the confidence in the most probable class."""
    n_bins = cal.n_bins
    confidence = softmax(logits).max()
    index = bin_of(confidence, n_bins)
    away = confidence - (index + 0.5) / n_bins
    own = index.take_from(cal.bin_values_) + index.take_from(1 - cal.bin_trust_) * away
    own = inside(own)
    if cal.keep_order:
        return temper_to(logits, own, len(cal.classes_))
    return share_rest(logits, own)
