"""Counts of scores, mapped from what a site holds, by score bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from skfedcal import _logits
from skfedcal.algorithms._base import Array
from skfedcal.algorithms._positions import (
    InputType,
    Space,
    class_rows,
    place_of_odds,
    place_of_proba,
    sigmoid,
)
from skfedcal.algorithms._score_counts import ScoreCounts
from skfedcal.data._dataset import FederatedDataset

__all__ = ["ClassScoreCounts", "log_odds"]


@dataclass(frozen=True, slots=True)
class ClassScoreCounts(ScoreCounts):
    """Count rows of scores by label and by the bucket of a class's score.

    Rows are in the columns that a site has them in: one per class, or one fewer.

    Parameters
    ----------
    scores : {'binary', 'top', 'ovr'}, default='binary'
        Score and label of a row: one of two classes; the most probable class and
        whether it is the right one; or every class against the rest, which makes as
        many tables, and as many times the norm, as there are classes.
    space : {'both', 'prob', 'logit'}, default='logit'
        Scale on which buckets have equal width; 'both' is the mean of the other two.
    n_classes : int, default=2
        Classes.
    weighted : bool, default=False
        Rows carry weights, so that counts are real numbers; with ``weighting='client'``
        they are not read.
    input_type : {'logits', 'log_proba', 'proba'}, default='logits'
        What the columns hold.
    positive : {0, 1}, default=1
        Label, and column, of the positive class, for 'binary'; one column alone is that
        of the positive class.
    cut : float, default=None
        Two buckets in place of those of `space`, for 'binary': probabilities below
        `cut`, and from it on.
    """

    scores: Literal["binary", "top", "ovr"] = "binary"
    space: Space = "logit"
    n_classes: int = 2
    weighted: bool = False
    input_type: InputType = "logits"
    positive: int = 1
    cut: float | None = None

    @property
    def n_tables(self) -> int:  # type: ignore[override]
        """Negatives and positives of each score."""
        return 2 * self.n_classes if self.scores == "ovr" else 2

    def _check_classes(self, n_classes: int) -> None:
        """Refuse a number of classes that the tables do not stand for."""
        if n_classes != self.n_classes or (self.scores == "binary" and n_classes != 2):
            raise ValueError(
                f"{self.scores!r} scores of {self.n_classes} classes do not fit "
                f"{n_classes} classes"
            )
        if self.positive not in (0, 1):
            raise ValueError(f"positive={self.positive} must be 0 or 1")

    @property
    def _plain(self) -> bool:
        """Whether every row counts 1."""
        return self.weighting == "example" and not self.weighted

    def _weights(self, clients: FederatedDataset) -> Array | None:
        """Weight of each row, if rows carry any."""
        if not self.weighted:
            return None
        assert clients.weights is not None
        return clients.weights[clients.offsets[0] : clients.offsets[-1]]

    def placed(self, rows: Array, labels: Array) -> tuple[Array, Array]:
        """Places in [0, 1] of the scores of each row, and the table each is in."""
        if self.scores == "binary":
            table = (labels == self.positive)[:, None].astype(np.int64)
            return self._binary_place(rows)[:, None], table
        odds = log_odds(class_rows(rows, self.input_type, self.n_classes))
        if self.scores == "ovr":
            classes = np.arange(self.n_classes)
            table = 2 * classes + (labels[:, None] == classes)
            return place_of_odds(odds, self.space), table
        top = odds.argmax(axis=1)
        highest = odds[np.arange(len(top)), top][:, None]
        right = (labels == top)[:, None].astype(np.int64)
        return place_of_odds(highest, self.space), right

    def _binary_place(self, rows: Array) -> Array:
        """Place of the score of the positive class."""
        if self.input_type == "proba":
            # Not by logits and back: a probability on an edge must stay on its side.
            proba = rows[:, -1] if self.positive else rows[:, 0]
            if self.cut is not None:
                return np.where(proba >= self.cut, 0.75, 0.25)
            return place_of_proba(proba, self.space)
        if rows.shape[1] == 1:
            odds = rows[:, 0].astype(np.float64, copy=False)
        else:
            odds = log_odds(rows)[:, self.positive]
        if self.cut is not None:
            return np.where(sigmoid(odds) >= self.cut, 0.75, 0.25)
        return place_of_odds(odds, self.space)


def log_odds(logits: Array) -> Array:
    """Log-odds of each class against the rest, in float64, within +-MAX_SPAN."""
    # One layout, so that a row is added up in the same order in any array.
    rows = _logits.center(logits.astype(np.float64, order="C", copy=False))
    np.maximum(rows, -_logits.MAX_SPAN, out=rows)
    if rows.shape[1] == 1:
        return np.full(rows.shape, _logits.MAX_SPAN)
    if rows.shape[1] == 2:
        gap = rows[:, 1] - rows[:, 0]
        return np.stack([-gap, gap], axis=1)
    which = (np.arange(len(rows)), rows.argmax(axis=1))
    weights = np.exp(rows)
    weights[which] = 0.0
    # The sum without the largest first: 1 minus a probability near 1 has no digits.
    rest = np.einsum("ij->i", weights)
    others = np.log1p(rest[:, None] - weights)
    # Far below the largest their exponentials vanish; the second largest does not.
    second = rows.copy()
    second[which] = -np.inf
    peak = second.max(axis=1, keepdims=True)
    tail = np.exp(second - peak)
    others[which] = peak[:, 0] + np.log(np.einsum("ij->i", tail))
    return np.clip(rows - others, -_logits.MAX_SPAN, _logits.MAX_SPAN)
