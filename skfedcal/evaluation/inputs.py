"""Read and validate clients with scores, in the forms that calibrators accept.

The rows keep the columns of the user; they are converted to scores at the site.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from skfedcal.clients.arrays import INPUT_TYPES, check_given
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.clients.forms import ClassMap, assume_labels_public, make_dataset
from skfedcal.evaluation.grid import SPACES
from skfedcal.federation.remote import RemoteClients, RemoteDataset

if TYPE_CHECKING:
    from skfedcal._typing import ArrayLike, ClientRows, InputType, PerRow

Array = NDArray[Any]
Rows = FederatedDataset | RemoteDataset


class _Reader(BaseEstimator):
    """Object on which scikit-learn's validation sets its attributes."""


@dataclass(frozen=True)
class ReadClients:
    """Clients that have been read: `Clients` takes them in place of the user's."""

    rows: Rows
    classes: ClassMap
    assumptions: list[str]


@dataclass(frozen=True)
class Clients:
    """Clients as given by the user, and the label of each column.

    After reading, `assumptions` lists what must be public about them.
    """

    X: ClientRows | ReadClients
    y: PerRow | None = None
    client_ids: ArrayLike | None = None
    classes: ArrayLike | None = None
    input_type: InputType = "logits"
    private: bool = False
    assumptions: list[str] = field(default_factory=list)

    def binary(
        self, pos_label: Hashable | None = None
    ) -> tuple[Rows, int, list[Hashable]]:
        """Rows of two classes, column of the positive one, labels (negative first)."""
        clients, classes = self._read()
        if len(classes) != 2:
            raise ValueError(
                f"There are {len(classes)} classes ({classes.classes[:5].tolist()}); a "
                "histogram of scores is for two. For several, "
                "ScoreHistogram.fit(kind='top') counts the most probable class, and "
                "federated_report and the other functions have metrics of all classes."
            )
        by_column = label_of_columns(classes).tolist()
        positive = 1
        if pos_label is not None:
            if isinstance(pos_label, np.ndarray) or pos_label not in by_column:
                raise ValueError(
                    f"pos_label={pos_label!r} is not a class; classes are {by_column}."
                )
            positive = by_column.index(pos_label)
        return clients, positive, [by_column[1 - positive], by_column[positive]]

    def several(self) -> tuple[Rows, Array]:
        """Rows of any number of classes, and the label of each column."""
        clients, classes = self._read()
        return clients, label_of_columns(classes)

    def read(self) -> ReadClients:
        """Read the clients once, for several collections or checks."""
        rows, classes = self._read()
        return ReadClients(rows, classes, self.assumptions)

    def _read(self) -> tuple[Rows, ClassMap]:
        if isinstance(self.X, ReadClients):
            if self.assumptions is not self.X.assumptions:
                self.assumptions.extend(self.X.assumptions)
            return self.X.rows, self.X.classes
        if isinstance(self.X, RemoteClients):
            self.X.check_arguments(y=self.y, client_ids=self.client_ids)
            return self.X.read(self.classes, self.input_type, rows="given")
        known = isinstance(self.input_type, str) and self.input_type in INPUT_TYPES
        if not known:
            raise ValueError(
                f"input_type={self.input_type!r} is unknown; pass one of {INPUT_TYPES}."
            )
        reader = _Reader()
        clients, classes = make_dataset(
            reader,
            self.X,
            self.y,
            self.client_ids,
            classes=self.classes,
            input_type=None,  # checked below, not changed
            private=self.private,
        )
        numbered = classes.plain and reader.n_features_in_ in (1, len(classes))
        if self.private and self.classes is None and not numbered:
            self.assumptions.extend(assume_labels_public(stacklevel=5))
        # A warning about the values of private rows would be a release of its own.
        check_given(
            clients.rows,
            len(classes),
            input_type=self.input_type,
            warn=not self.private,
            stacklevel=6,
        )
        return clients, classes


def label_of_columns(classes: ClassMap) -> Array:
    """Labels in the order of the columns."""
    out = np.empty_like(classes.classes)
    out[classes.order] = classes.classes
    return out


def check_choices(**given: str) -> None:
    """Raise ValueError for a setting that is not one of its choices."""
    allowed = {
        "space": SPACES,
        "kind": ("binary", "top"),
        "weighting": ("example", "client"),
    }
    for name, value in given.items():
        if not isinstance(value, str) or value not in allowed[name]:
            raise ValueError(f"{name}={value!r}: pass one of {allowed[name]}.")
