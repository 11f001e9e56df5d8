"""One-vs-rest counts of class scores, with few entries per row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skfedcal.algorithms._base import Array
from skfedcal.algorithms._own_rows import kept_rows, packed
from skfedcal.algorithms._score_counts import ScoreCounts, bucket_index
from skfedcal.data._dataset import FederatedDataset


@dataclass(frozen=True, slots=True)
class OneVsRestCounts(ScoreCounts):
    """Count each row for its own class and for its most probable other classes.

    A row of the data holds the positions of all classes. It enters the positives of its
    own class and the negatives of the `n_others` classes with the largest position
    among the others: L1 norm ``n_others + 1``, whatever the number of classes.
    Negatives that are not reported are taken to be in the lowest bucket.

    Parameters
    ----------
    n_classes : int, default=2
        Classes; tables are the negatives of all classes, then the positives.
    n_others : int, default=1
        Other classes that a row is counted for.
    """

    n_classes: int = 2
    n_others: int = 1

    @property
    def n_tables(self) -> int:  # type: ignore[override]
        """Negatives and positives of each class."""
        return 2 * self.n_classes

    def entries(self, clients: FederatedDataset) -> tuple[Array, Array, Array | None]:
        """Client, leaf cell and weight (None: 1) of every score that counts."""
        rows, labels, owner = packed(clients)
        if self.max_examples is not None:
            kept = kept_rows(clients, self.max_examples, self.salt)
            rows, labels, owner = rows[kept], labels[kept], owner[kept]
        index = np.arange(len(rows))
        others = rows.copy()
        others[index, labels] = -1.0  # below every position
        n_others = min(self.n_others, self.n_classes - 1)
        # A stable sort: ties are broken by the number of the class.
        top = np.argsort(-others, axis=1, kind="stable")[:, :n_others]
        column = np.concatenate([labels[:, None], top], axis=1).astype(np.int64)
        table = column.copy()
        table[:, 0] += self.n_classes
        bucket = bucket_index(rows[index[:, None], column], self.levels[-1])
        cell = table * np.int64(2 ** self.levels[-1]) + bucket
        return np.repeat(owner, n_others + 1), cell.reshape(-1), None
