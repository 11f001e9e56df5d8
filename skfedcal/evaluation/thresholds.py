"""Answers at a threshold: accuracy, precision, recall, F1, confusion."""

from __future__ import annotations

from itertools import product
from math import inf, nan, sqrt
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from skfedcal._params import as_number
from skfedcal.evaluation.answers import (
    Answers,
    Array,
    answers_documented,
    undefined,
)
from skfedcal.evaluation.intervals import (
    Estimate,
    quantile,
    unit_interval,
    with_guarantee,
)


class Confusion(NamedTuple):
    """Numbers of rows, in the order of ``confusion_matrix(y, pred).ravel()``.

    Attributes
    ----------
    tn, fp, fn, tp : Estimate
        True negatives, false positives, false negatives, true positives.
    """

    tn: Estimate
    fp: Estimate
    fn: Estimate
    tp: Estimate

    @property
    def matrix(self) -> Array:
        """The numbers as ``[[tn, fp], [fn, tp]]``."""
        return np.array(self, dtype=np.float64).reshape(2, 2)


@answers_documented
class ThresholdAnswers(Answers):
    """Answers for the rule: positive if the score is at least `threshold`.

    The threshold may be chosen after the fit. Scores are assumed to be uniform inside
    its bucket; `discretisation` bounds the error of this assumption.
    """

    kind: str

    @with_guarantee
    def accuracy(self, threshold: float | None = None, *, ci: float = 0.95) -> Estimate:
        """Fraction of the rows that are predicted correctly.

        Parameters
        ----------
        threshold : float, default=None
            Probability from which on a row is predicted positive. None is 0.5; with
            ``kind='top'`` it is 0: the most probable class is always predicted.
        ci

        Returns
        -------
        Estimate
        """
        if threshold is None:
            threshold = 0.0 if self.kind == "top" else 0.5
        return self._at("accuracy", threshold, ci)

    @with_guarantee
    def precision(self, threshold: float = 0.5, *, ci: float = 0.95) -> Estimate:
        """Fraction of the predicted positives that are positive.

        Parameters
        ----------
        threshold, ci

        Returns
        -------
        Estimate
        """
        return self._at("precision", threshold, ci)

    @with_guarantee
    def recall(self, threshold: float = 0.5, *, ci: float = 0.95) -> Estimate:
        """Fraction of the positives that are predicted positive.

        Parameters
        ----------
        threshold, ci

        Returns
        -------
        Estimate
        """
        return self._at("recall", threshold, ci)

    @with_guarantee
    def f1(self, threshold: float = 0.5, *, ci: float = 0.95) -> Estimate:
        """Harmonic mean of precision and recall.

        Parameters
        ----------
        threshold, ci

        Returns
        -------
        Estimate
        """
        return self._at("f1", threshold, ci)

    @with_guarantee
    def confusion(self, threshold: float = 0.5, *, ci: float = 0.95) -> Confusion:
        """Count correct and wrong predictions of both classes.

        Parameters
        ----------
        threshold, ci

        Returns
        -------
        Confusion
            Estimates `tn`, `fp`, `fn`, `tp`; not clipped, so that sums stay unbiased.
        """
        above = self._above(threshold)
        inside = self._inside(threshold)
        total = max(sum(self._sums), 1.0)
        out = []
        for row, side in product((0, 1), (0, 1)):
            weight = np.zeros_like(self.counts_)
            weight[row] = above if side else 1 - above
            value = float((self.counts_ * weight).sum())
            spread, privacy, free = map(float, self._spread(weight))
            share = min(max(value / total, 0.0), 1.0)
            sampling = total * share * (1 - share) * self.rows_each_
            if self.moments_:
                sampling = spread
            low, high = unit_interval(
                share,
                sampling / total**2,
                privacy / total**2,
                quantile(ci, free if self.moments_ else inf),
                total,
            )
            out.append(
                Estimate(
                    value,
                    min(low * total, value),
                    max(high * total, value),
                    se_sampling=sqrt(sampling),
                    se_privacy=sqrt(privacy),
                    discretisation=float(self._seen()[row] @ inside),
                )
            )
        return Confusion(*out)

    def _above(self, threshold: float) -> Array:
        """Part of each bucket at or above a threshold."""
        value = check_threshold(threshold)
        # Local reports leave few buckets, and many rows in that of the threshold.
        return self.grid.above(value, smooth=self.noise_.local)

    def _inside(self, threshold: float) -> Array:
        """Larger part of the bucket that contains the threshold; 0 elsewhere."""
        above = self.grid.above(float(threshold))
        return np.where((above > 0) & (above < 1), np.maximum(above, 1 - above), 0.0)

    def _at(self, metric: str, threshold: float, ci: float) -> Estimate:
        above = self._above(threshold)
        found = self._share(*weights(metric, above), ci)
        if found is None:
            undefined(NAMES[metric], "there are no rows to divide by", "0.0")
            return Estimate(0.0, 0.0, 1.0, se_sampling=nan, se_privacy=nan)
        share, low, high, slope = float(found), found.low, found.high, 1.0
        if metric == "f1":
            slope = 2 / (1 + share) ** 2
            share, low, high = (2 * j / (1 + j) for j in (share, low, high))
        return Estimate(
            share,
            low,
            high,
            se_sampling=found.se_sampling * slope,
            se_privacy=found.se_privacy * slope,
            discretisation=self._distance(metric, threshold, share),
        )

    def _distance(self, metric: str, threshold: float, value: float) -> float:
        """Bound for rows of the threshold's bucket that may lie on either side."""
        plain = self.grid.above(float(threshold))
        inside = (plain > 0) & (plain < 1)
        edge = (plain >= 1).astype(np.float64)
        counts = self.counts_ if not inside.any() else self._seen()
        corners = []
        for sides in product((edge, edge + inside), repeat=2):
            both = np.stack(sides)
            upper, lower = (
                float((counts * weight).sum()) for weight in weights(metric, both)
            )
            if lower > 0:
                share = min(max(upper / lower, 0.0), 1.0)  # noise may leave [0, 1]
                share = 2 * share / (1 + share) if metric == "f1" else share
                corners.append(abs(share - value))
        return min(max(corners, default=1.0), 1.0) if inside.any() else 0.0


def check_threshold(threshold: Any) -> float:
    """Return the threshold as one probability, or raise ValueError."""
    if (
        not isinstance(threshold, Real)
        or not 0 <= as_number("threshold", threshold) <= 1
    ):
        raise ValueError(
            f"threshold must be one probability from 0 to 1, got {threshold!r}."
        )
    return float(threshold)


NAMES = {
    "accuracy": "Accuracy",
    "precision": "Precision",
    "recall": "Recall",
    "f1": "F1",
}


def weights(metric: str, above: Array) -> tuple[Array, Array]:
    """Weights of the counts in the two sums whose ratio is a metric.

    `above` is the part of each bucket that is predicted positive, for both classes
    together or one row for each. The ratio for 'f1' is the share j of true positives
    among all rows that are, or are predicted, positive; F1 is ``2 j / (1 + j)``.
    """
    negative, positive = above if above.ndim == 2 else (above, above)
    none, ones = np.zeros_like(positive), np.ones_like(positive)
    part, whole = {
        "accuracy": ((1 - negative, positive), (ones, ones)),
        "precision": ((none, positive), (negative, positive)),
        "recall": ((none, positive), (none, ones)),
        "f1": ((none, positive), (negative, ones)),
    }[metric]
    return np.stack(part), np.stack(whole)
