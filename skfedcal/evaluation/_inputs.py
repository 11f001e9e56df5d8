"""Read clients with scores: the forms that calibrators take, as positions on a grid."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from skfedcal import _logits
from skfedcal.algorithms._binning import softmax64
from skfedcal.data._classes import ClassMap
from skfedcal.data._dataset import FederatedDataset
from skfedcal.data._scores import INPUT_TYPES, check_proba, to_logits
from skfedcal.data._validate import make_dataset, read_dataset
from skfedcal.evaluation._grid import ScoreGrid
from skfedcal.exceptions import LogitsWarning, PrivacyWarning

Array = NDArray[Any]


class _Reader(BaseEstimator):
    """Holds what scikit-learn's validation writes down."""


@dataclass(frozen=True)
class Clients:
    """Clients as the user gave them, and which label is which column."""

    X: Any
    y: Any = None
    client_ids: Any = None
    classes: Any = None
    input_type: str = "logits"
    private: bool = False

    def scores(self) -> tuple[FederatedDataset, ClassMap]:
        """Validated rows with the columns that the user has."""
        self._check_type()
        reader = _Reader()
        clients, classes = read_dataset(
            reader,
            self.X,
            self.y,
            self.client_ids,
            classes=self.classes,
            private=self.private,
        )
        self._warn_labels(reader.n_features_in_, classes)
        return clients, classes

    def logits(self) -> tuple[FederatedDataset, ClassMap]:
        """Validated rows of logits, one column per class."""
        self._check_type()
        reader = _Reader()
        clients, classes = make_dataset(
            reader,
            self.X,
            self.y,
            self.client_ids,
            classes=self.classes,
            input_type=self.input_type,
            private=self.private,
        )
        self._warn_labels(reader.n_features_in_, classes)
        return clients, classes

    def _check_type(self) -> None:
        if self.input_type not in INPUT_TYPES:
            raise ValueError(
                f"input_type={self.input_type!r} is unknown; pass one of {INPUT_TYPES}."
            )

    def _warn_labels(self, n_columns: int, classes: ClassMap) -> None:
        numbered = classes.plain and n_columns in (1, len(classes))
        if self.private and self.classes is None and not numbered:
            warnings.warn(
                "The class labels were read from private y; pass `classes` so that "
                "only public knowledge decides which classes there are.",
                PrivacyWarning,
                stacklevel=5,
            )


def binary_positions(
    given: Clients, grid: ScoreGrid, pos_label: Any = None
) -> tuple[FederatedDataset, list[Any]]:
    """Positions of the positive class's scores and labels 0 or 1.

    Returns the clients and the two labels, negative first.
    """
    clients, classes = given.scores()
    if len(classes) != 2:
        raise ValueError(
            f"There are {len(classes)} classes ({classes.classes[:5].tolist()}); a "
            "histogram of scores is for two. Pass kind='top' for the top label of "
            "several classes."
        )
    columns = np.empty(2, dtype=np.int64)
    columns[classes.order] = np.arange(2)
    by_column = classes.classes[columns].tolist()
    positive = 1
    if pos_label is not None:
        if pos_label not in by_column:
            raise ValueError(
                f"pos_label={pos_label!r} is not a class; classes are {by_column}."
            )
        positive = by_column.index(pos_label)
    position = _binary_position(clients.rows, grid, given, positive)
    labels = (clients.labels == positive).astype(np.int8)
    positions = replace(clients, rows=position[:, None], labels=labels, n_classes=2)
    return positions, [by_column[1 - positive], by_column[positive]]


def _binary_position(
    rows: Array, grid: ScoreGrid, given: Clients, positive: int
) -> Array:
    if given.input_type == "proba":
        # Not by logits and back: a probability on an edge must stay on its side.
        score = _positive_proba(rows, positive)
        return grid.position(score)
    if given.input_type == "log_proba" or rows.shape[1] == 2:
        rows = to_logits(
            rows, 2, input_type=given.input_type, warn=not given.private
        ).astype(np.float64, copy=False)
        # -inf next to a finite score is a probability of zero.
        odds = rows[:, positive] - rows[:, 1 - positive]
        return grid.position_of_logit(odds)
    odds = rows[:, 0].astype(np.float64, copy=False)
    if not given.private and rows.min() >= 0 and rows.max() <= 1:
        warnings.warn(
            "All scores are between 0 and 1, so they look like probabilities, but "
            "input_type='logits'. Pass input_type='proba'.",
            LogitsWarning,
            stacklevel=5,
        )
    return grid.position_of_logit(odds if positive else -odds)


def _positive_proba(rows: Array, positive: int) -> Array:
    if rows.shape[1] == 2:
        out: Array = check_proba(rows, 2)[:, positive]
        return out
    if rows.min() < 0 or rows.max() > 1:
        raise ValueError(
            "input_type='proba' needs scores between 0 and 1; pass input_type='logits' "
            "for log-odds."
        )
    return rows[:, 0] if positive else 1 - rows[:, 0]


def top_positions(
    given: Clients, grid: ScoreGrid
) -> tuple[FederatedDataset, list[Any]]:
    """Positions of the largest probability of each row; label 1 where it is right."""
    clients, _ = given.logits()
    start, stop = int(clients.offsets[0]), int(clients.offsets[-1])
    where = slice(start, stop) if clients.order is None else clients.order[start:stop]
    rows = clients.rows[where]
    top = rows.argmax(axis=1)
    proba = softmax64(rows)[np.arange(len(rows)), top]
    if grid.space == "logit":
        shifted = _logits.center(rows.astype(np.float64))
        rest = np.exp(shifted).sum(axis=1) - 1.0
        with np.errstate(divide="ignore"):
            position = grid.position_of_logit(-np.log(np.maximum(rest, 0.0)))
    else:
        position = grid.position(proba)
    right = (top == clients.labels[start:stop]).astype(np.int8)
    positions = replace(
        clients,
        rows=position[:, None],
        labels=right,
        offsets=clients.offsets - start,
        n_classes=2,
        order=None,
    )
    return positions, ["wrong", "right"]


def class_logits(given: Clients) -> tuple[FederatedDataset, Array]:
    """Logits of all classes, and the label of each column."""
    clients, classes = given.logits()
    by_column = np.empty_like(classes.classes)
    by_column[classes.order] = classes.classes
    return clients, by_column
