"""Counts of class scores, read from logits, by score bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from skfedcal import _logits
from skfedcal.algorithms._base import Array, Arrays, BlockSpec
from skfedcal.algorithms._own_rows import kept_rows, packed
from skfedcal.algorithms._score_counts import ScoreCounts, bucket_index
from skfedcal.data._dataset import FederatedDataset

# Log-odds beyond this are in the outermost buckets of the logit grid.
LOGIT_RANGE = 16.0


@dataclass(frozen=True, slots=True)
class ClassScoreCounts(ScoreCounts):
    """Count rows of logits by label and by the bucket of a class's score.

    Parameters
    ----------
    scores : {'binary', 'top', 'ovr'}, default='binary'
        Score and label of a row: the second of two classes; the most probable class and
        whether it is the right one; or every class against the rest, which makes as
        many tables, and as many times the norm, as there are classes.
    space : {'both', 'prob', 'logit'}, default='logit'
        Scale on which buckets have equal width; 'both' is the mean of the other two.
    n_classes : int, default=2
        Classes, for 'ovr'.
    weighted : bool, default=False
        Rows carry weights, so that counts are real numbers.
    """

    scores: Literal["binary", "top", "ovr"] = "binary"
    space: Literal["both", "prob", "logit"] = "logit"
    n_classes: int = 2
    weighted: bool = False

    @property
    def n_tables(self) -> int:  # type: ignore[override]
        """Negatives and positives of each score."""
        return 2 * self.n_classes if self.scores == "ovr" else 2

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        return {
            f"level_{bits}": BlockSpec(
                (self.n_tables, 2**bits),
                kind="real" if self.weighted else "count",
                clip=self.clip,
                norm=self.norm,
            )
            for bits in self._asked(int(broadcast["round"]))
        }

    def entries(self, clients: FederatedDataset) -> tuple[Array, Array, Array | None]:
        """Client, leaf cell and weight (None: 1) of every score that counts."""
        rows, labels, owner = packed(clients)
        weight = None
        if self.weighted:
            assert clients.weights is not None
            weight = clients.weights[clients.offsets[0] : clients.offsets[-1]]
        if self.max_examples is not None:
            kept = kept_rows(clients, self.max_examples, self.salt)
            rows, labels, owner = rows[kept], labels[kept], owner[kept]
            weight = None if weight is None else weight[kept]
        odds, table = self._scored(rows, labels)
        n_scores = odds.shape[1]
        bucket = bucket_index(position(odds, self.space), self.levels[-1])
        cell = table * np.int64(2 ** self.levels[-1]) + bucket
        if weight is not None:
            weight = np.repeat(weight, n_scores)
        return np.repeat(owner, n_scores), cell.reshape(-1), weight

    def _scored(self, rows: Array, labels: Array) -> tuple[Array, Array]:
        """Log-odds of the scores of each row, and the table that each is in."""
        odds = log_odds(rows)
        if self.scores == "binary":
            return odds[:, 1:], labels[:, None].astype(np.int64)
        if self.scores == "ovr":
            classes = np.arange(self.n_classes)
            return odds, 2 * classes + (labels[:, None] == classes)
        top = odds.argmax(axis=1)
        return odds[np.arange(len(top)), top][:, None], (labels == top)[:, None] * 1


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


def position(odds: Array, space: str) -> Array:
    """Place of log-odds in [0, 1]."""
    scaled = np.clip(odds / (2 * LOGIT_RANGE) + 0.5, 0.0, 1.0)
    if space == "logit":
        return scaled
    with np.errstate(over="ignore"):
        proba = 1 / (1 + np.exp(-odds))
    return proba if space == "prob" else (proba + scaled) / 2
