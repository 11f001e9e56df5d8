"""One-vs-rest counts of class scores, with few entries per row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skfedcal.algorithms._base import (
    Array,
    check_range,
)
from skfedcal.algorithms._class_scores import ClassScoreCounts, log_odds
from skfedcal.algorithms._positions import class_rows, place_of_odds


@dataclass(frozen=True, slots=True)
class OneVsRestCounts(ClassScoreCounts):
    """Count each row for its own class and for its most probable other classes.

    A row enters the positives of its own class and the negatives of the `n_others`
    classes with the largest scores among the others: L1 norm ``n_others + 1``, whatever
    the number of classes. Negatives that are not reported are taken to be in the lowest
    bucket. Tables are the negatives of all classes, then the positives.

    Parameters
    ----------
    n_others : int, default=1
        Other classes that a row is counted for.
    """

    n_others: int = 1

    @property
    def n_tables(self) -> int:  # type: ignore[override]
        """Negatives and positives of each class."""
        return 2 * self.n_classes

    def _check_classes(self, n_classes: int) -> None:
        """Refuse a number of classes that the tables do not stand for."""
        if n_classes != self.n_classes:
            raise ValueError(f"tables of {self.n_classes} classes, not of {n_classes}")
        check_range("n_others", self.n_others, 0, n_classes)

    def placed(self, rows: Array, labels: Array) -> tuple[Array, Array]:
        """Places in [0, 1] of the scores of each row, and the table each is in."""
        odds = log_odds(class_rows(rows, self.input_type, self.n_classes))
        index = np.arange(len(rows))
        others = odds.copy()
        others[index, labels] = -np.inf
        n_others = min(self.n_others, self.n_classes - 1)
        # A stable sort: ties are broken by the number of the class.
        top = np.argsort(-others, axis=1, kind="stable")[:, :n_others]
        column = np.concatenate([labels[:, None], top], axis=1).astype(np.int64)
        place = place_of_odds(odds[index[:, None], column], self.space)
        column[:, 0] += self.n_classes
        return place, column
