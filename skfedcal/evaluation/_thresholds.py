"""Answers at a threshold: accuracy, precision, recall, F1, confusion."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import nan
from typing import Any, NamedTuple

import numpy as np

from skfedcal.evaluation._answers import Answers, Array, undefined
from skfedcal.evaluation._estimate import Estimate


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


class ThresholdAnswers(Answers):
    """Answers for the rule: positive if the score is at least `threshold`.

    The threshold may be chosen after the fit. Scores are taken to be spread evenly
    inside its bucket; `discretisation` bounds what that can be off.
    """

    def accuracy(self, threshold: float = 0.5, *, ci: float = 0.95) -> Estimate:
        """Part of the rows that are predicted right.

        Parameters
        ----------
        threshold : float, default=0.5
            Probability from which on a row is predicted positive.
        ci : float, default=0.95
            Level of the confidence interval.

        Returns
        -------
        Estimate
        """

        def gradient(value: float, above: Array) -> Array:
            total = sum(self._sums)
            return np.stack([1 - above - value, above - value]) / total

        return self._at(threshold, ci, "Accuracy", _accuracy, gradient)

    def precision(self, threshold: float = 0.5, *, ci: float = 0.95) -> Estimate:
        """Part of the predicted positives that are positive.

        Parameters
        ----------
        threshold : float, default=0.5
            Probability from which on a row is predicted positive.
        ci : float, default=0.95
            Level of the confidence interval.

        Returns
        -------
        Estimate
        """

        def gradient(value: float, above: Array) -> Array:
            predicted = float((self.counts_ * above).sum())
            return np.stack([-above * value, above * (1 - value)]) / predicted

        return self._at(threshold, ci, "Precision", _precision, gradient)

    def recall(self, threshold: float = 0.5, *, ci: float = 0.95) -> Estimate:
        """Part of the positives that are predicted positive.

        Parameters
        ----------
        threshold : float, default=0.5
            Probability from which on a row is predicted positive.
        ci : float, default=0.95
            Level of the confidence interval.

        Returns
        -------
        Estimate
        """

        def gradient(value: float, above: Array) -> Array:
            return np.stack([np.zeros_like(above), above - value]) / self._sums[1]

        return self._at(threshold, ci, "Recall", _recall, gradient)

    def f1(self, threshold: float = 0.5, *, ci: float = 0.95) -> Estimate:
        """Harmonic mean of precision and recall.

        Parameters
        ----------
        threshold : float, default=0.5
            Probability from which on a row is predicted positive.
        ci : float, default=0.95
            Level of the confidence interval.

        Returns
        -------
        Estimate
        """

        def gradient(value: float, above: Array) -> Array:
            whole = self._sums[1] + float((self.counts_ * above).sum())
            own = 2 * above - value * (1 + above)
            return np.stack([-value * above, own]) / whole

        return self._at(threshold, ci, "F1", _f1, gradient)

    def confusion(self, threshold: float = 0.5, *, ci: float = 0.95) -> Confusion:
        """Count right and wrong predictions of both classes.

        Parameters
        ----------
        threshold : float, default=0.5
            Probability from which on a row is predicted positive.
        ci : float, default=0.95
            Level of the confidence intervals.

        Returns
        -------
        Confusion
            Estimates `tn`, `fp`, `fn`, `tp`; not clipped, so that sums stay unbiased.
        """
        above = self._above(threshold)
        inside = (above > 0) & (above < 1)
        out = []
        for part, label in product((0, 1), (0, 1)):
            row, side = (0, label) if part == 0 else (1, label)
            weight = np.zeros_like(self.counts_)
            weight[row] = above if side else 1 - above
            rest = np.where(inside, np.maximum(above, 1 - above), 0.0)
            out.append(
                self._estimate(
                    float((self.counts_ * weight).sum()),
                    weight,
                    ci,
                    bounds=None,
                    discretisation=float((self._seen()[row] * rest).sum()),
                )
            )
        return Confusion(*out)

    def _above(self, threshold: float) -> Array:
        value = float(threshold)
        if not 0 <= value <= 1:
            raise ValueError(
                f"threshold={threshold!r} is not a probability; pass 0 <= threshold "
                "<= 1."
            )
        return self.grid.above(value)

    def _at(
        self,
        threshold: float,
        ci: float,
        name: str,
        metric: Callable[[Any, Any, float, float], Any],
        gradient: Callable[[float, Array], Array],
    ) -> Estimate:
        above = self._above(threshold)
        negatives, positives = self._sums
        fp, tp = (float(v) for v in (self.counts_ * above).sum(axis=1))
        value = metric(tp, fp, positives, negatives)
        if not np.isfinite(value):
            undefined(name, "there are no rows to divide by", "0.0")
            return Estimate(0.0, 0.0, 1.0, se_sampling=nan, se_privacy=nan)
        # The rows of the threshold's bucket may all lie on either side of it.
        inside = np.where((above > 0) & (above < 1), self._seen(), 0.0)
        down, up = (inside * above).sum(axis=1), (inside * (1 - above)).sum(axis=1)
        corners = [
            metric(tp + a, fp + b, positives, negatives)
            for a, b in product((-down[1], up[1]), (-down[0], up[0]))
        ]
        gaps = [abs(c - value) for c in corners if np.isfinite(c)]
        return self._estimate(
            value,
            gradient(value, above),
            ci,
            discretisation=min(float(max(gaps, default=1.0)), 1.0),
        )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else nan


def _accuracy(tp: float, fp: float, positives: float, negatives: float) -> float:
    return _ratio(tp + negatives - fp, positives + negatives)


def _precision(tp: float, fp: float, *_: float) -> float:
    return _ratio(tp, tp + fp)


def _recall(tp: float, _: float, positives: float, __: float) -> float:
    return _ratio(tp, positives)


def _f1(tp: float, fp: float, positives: float, _: float) -> float:
    return _ratio(2 * tp, positives + tp + fp)
