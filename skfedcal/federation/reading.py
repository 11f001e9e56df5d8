"""How a site turns the scores and labels of its file into what an algorithm sees.

A request says which label each column stands for; the site maps its own labels. Rows
that do not fit the request are left out: they send zeros, and only the site itself is
told. Needs numpy only.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skfedcal.clients.arrays import (
    check_finite,
    check_given,
    read_array,
    to_logits,
    usable_rows,
)
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.clients.npz import read_npz
from skfedcal.methods.own_rows import HELD_SHARE, held_back_mark

Array = NDArray[Any]
Label = str | int | float | bool

Part = Literal["all", "fit", "held"]
# Share of the rows of each part, on average.
SHARES: dict[str, float] = {"all": 1.0, "fit": 1 - HELD_SHARE, "held": HELD_SHARE}

_FLOATS = (np.float64, np.float32)
_MAX_BYTES = 8 * 2**30
# Arrays of scores by what they hold, as in `load_federation`.
_SCORES = {
    "logits": "logits",
    "proba": "proba",
    "prob": "proba",
    "features": "features",
}


@dataclass(frozen=True, slots=True, eq=False)
class SiteRows:
    """Scores (or features) and labels of one site, as its file has them.

    Parameters
    ----------
    scores : ndarray of shape (n,) or (n, n_columns)
        One column per class, or per class but the first; or features.
    labels : ndarray of shape (n,)
        Labels, as they are known to all sites.
    kind : {'scores', 'logits', 'proba', 'features'}, default='scores'
        What the file calls the scores. Where a request reads something else, all rows
        send zeros. 'scores' leaves it to the request.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal.federation import SiteRows
    >>> len(SiteRows(np.array([[2.0, 0.0], [0.5, 1.0]]), np.array(["sick", "well"])))
    2
    """

    scores: Array
    labels: Array
    kind: Literal["scores", "logits", "proba", "features"] = "scores"

    def __post_init__(self) -> None:
        scores = read_array(self.scores, "scores")
        labels = read_array(self.labels, "labels")
        if scores.ndim == 1:
            scores = scores[:, None]
        if scores.ndim != 2 or labels.shape != scores.shape[:1]:
            raise ValueError(
                f"Scores of shape {scores.shape} and labels of shape {labels.shape}: "
                "pass one row of scores and one label per example."
            )
        if scores.dtype.kind not in "fiu" or labels.dtype.kind not in "iufbU":
            raise ValueError(
                f"Scores of type {scores.dtype} and labels of type {labels.dtype}: "
                "pass numbers, and numbers or strings."
            )
        if scores.dtype not in _FLOATS:
            half = scores.dtype == np.float16
            scores = scores.astype(np.float32 if half else np.float64)
        # Sums along a row are rounded by the layout: it must not change when a row that
        # does not fit is left out.
        scores = np.ascontiguousarray(scores)
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SiteRows:
        """Read an .npz file with ``labels`` and ``logits``, ``proba`` or ``features``.

        Parameters
        ----------
        path : str or path-like
            File as `save_federation` writes it; clients in it are not told apart.

        Returns
        -------
        SiteRows
        """
        arrays, found = read_npz(path, {*_SCORES, "labels"}, _MAX_BYTES)
        names = [name for name in _SCORES if name in arrays]
        if not names or "labels" not in arrays:
            raise ValueError(
                f"{path} needs the arrays 'labels' and 'logits', 'proba' or "
                f"'features'; it has {sorted(found)}."
            )
        kind: Any = _SCORES[names[0]]
        return cls(arrays[names[0]], arrays["labels"], kind)


class OwnRows(NamedTuple):
    """Rows of a site as an algorithm sees them.

    `n_rows` counts all rows of the site, those that do not fit included: a row that
    does not fit sends zeros, as under zero-out adjacency, and is counted. `unfit`
    counts these by reason, for the log of the site.
    """

    clients: FederatedDataset
    n_rows: int
    unfit: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Reading:
    """Public agreement on what the rows of all sites mean.

    Parameters
    ----------
    classes : tuple of str, int, float or bool
        Label of each column, in column order.
    input_type : {'logits', 'log_proba', 'proba'}, default='logits'
        What scores are.
    n_columns : int, default=0
        Columns of scores: one per class, or one less; 0 is one per class. Of features,
        any number.
    rows : {'logits', 'given', 'features'}, default='logits'
        What the algorithm sees: logits of all classes, scores as they are, or features.
    part : {'all', 'fit', 'held'}, default='all'
        Rows that count: all, those of a fit, or the fifth that a fit leaves out so that
        its result can be compared with the input. A public hash of the number of the
        row in the file and of the name of the site decides, and no value of any row.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal.federation import Reading, SiteRows
    >>> rows = SiteRows(np.array([[2.0, 0.0], [0.5, 1.0]]), np.array(["sick", "well"]))
    >>> Reading(("sick", "well")).dataset(rows, "hospital-a").labels.tolist()
    [0, 1]
    """

    classes: tuple[Label, ...]
    input_type: Literal["logits", "log_proba", "proba"] = "logits"
    n_columns: int = 0
    rows: Literal["logits", "given", "features"] = "logits"
    part: Part = "all"

    def __post_init__(self) -> None:
        for name in ("input_type", "rows", "part"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(
                    f"{name} must be a string, got {getattr(self, name)!r}."
                )
        if not isinstance(self.classes, tuple) or not all(
            isinstance(label, (str, int, float)) for label in self.classes
        ):
            raise TypeError(f"classes={self.classes!r}: pass a tuple of labels.")
        if type(self.n_columns) is not int:
            raise TypeError(f"n_columns={self.n_columns!r}: pass a whole number.")
        if self.part not in SHARES:
            raise ValueError(f"part={self.part!r}: pass one of {tuple(SHARES)}.")
        n_classes = len(self.classes)
        kinds = {_kind(label) for label in self.classes}
        if n_classes < 2 or len(set(self.classes)) != n_classes or len(kinds) != 1:
            raise ValueError(
                f"classes={self.classes!r}: pass two or more distinct labels, all of "
                "them numbers or all of them strings."
            )
        if self.rows == "features":
            if self.n_columns < 1:
                raise ValueError(
                    f"n_columns={self.n_columns}: pass the number of features."
                )
        elif self.n_columns not in (0, n_classes, n_classes - 1):
            raise ValueError(
                f"n_columns={self.n_columns} does not fit {n_classes} classes; pass "
                f"{n_classes} or {n_classes - 1}."
            )

    def dataset(self, own: SiteRows, name: Hashable) -> FederatedDataset:
        """Rows of one site that fit the agreement, as an algorithm sees them.

        Never raises for what is in the rows: see `read` for what does not fit.
        """
        return self.read(own, name).clients

    def read(self, own: SiteRows, name: Hashable) -> OwnRows:
        """Rows of one site that fit the agreement, and why others do not."""
        if self.part != "all":
            # By the number in the file: a row that does not fit must not move others.
            keep = held_back_mark(len(own), name) == (self.part == "held")
            own = replace(own, scores=own.scores[keep], labels=own.labels[keep])
        unfit = self._unfit_file(own)
        if unfit:
            return OwnRows(self._empty(name), len(own), {unfit: len(own)})
        columns, known = self._columns(own.labels)
        scores, usable = self._usable(own.scores)
        keep = known & usable
        found = {
            "label is not one of the classes": int((~known).sum()),
            f"scores are not {self._asked!r}": int((~usable & known).sum()),
        }
        kept = own.scores
        while not keep.all():
            kept, columns = kept[keep], columns[keep]
            # Again, and not once: a row that is judged otherwise now must not take the
            # others with it.
            scores, keep = self._usable(kept)
        if not len(columns):
            return OwnRows(self._empty(name), len(own), found)
        ends = np.array([0, len(columns)])
        clients = FederatedDataset(scores, columns, ends, [name], len(self.classes))
        return OwnRows(clients, len(own), found)

    @property
    def _asked(self) -> str:
        return "features" if self.rows == "features" else self.input_type

    @property
    def _width(self) -> int:
        return self.n_columns or len(self.classes)

    def _empty(self, name: Hashable) -> FederatedDataset:
        """Client without rows."""
        width = len(self.classes) if self.rows == "logits" else self._width
        rows, labels = np.zeros((0, width)), np.zeros(0, dtype=np.int16)
        return FederatedDataset(
            rows, labels, np.array([0, 0]), [name], len(self.classes)
        )

    def _unfit_file(self, own: SiteRows) -> str:
        """Why no row of the file fits; empty if rows may."""
        if own.scores.shape[1] != self._width:
            return f"{own.scores.shape[1]} columns instead of {self._width}"
        # Logarithms of probabilities are logits.
        as_stored = "logits" if self._asked == "log_proba" else self._asked
        if own.kind not in ("scores", as_stored):
            return f"the file holds {own.kind!r}, the request reads {self._asked!r}"
        text = isinstance(self.classes[0], str)
        if (own.labels.dtype.kind == "U") != text and len(own):
            return "labels are of another type than the classes"
        return ""

    def _usable(self, scores: Array) -> tuple[Array, Array]:
        """Scores as the algorithm sees them, and which rows are usable.

        The scores are valid only where all rows are usable.
        """
        every = np.ones(len(scores), dtype=bool)
        if not len(scores):
            return scores, every
        if self.rows == "features":
            return scores, np.logical_and.reduce(np.isfinite(scores), axis=1)
        n_classes = len(self.classes)
        try:
            check_finite(scores)
            if self.rows == "given":
                check_given(scores, n_classes, input_type=self.input_type)
                return scores, every
            return to_logits(scores, n_classes, input_type=self.input_type), every
        except ValueError:
            return scores, usable_rows(scores, n_classes, input_type=self.input_type)

    def _columns(self, labels: Array) -> tuple[Array, Array]:
        """Column of each label, and whether it has one."""
        known = np.asarray(self.classes)
        order = np.argsort(known, kind="stable")
        place = np.searchsorted(known[order], labels)
        columns = order[np.minimum(place, len(order) - 1)]
        small = np.int16 if len(known) < 2**15 else np.int32
        return columns.astype(small), known[columns] == labels


def _kind(label: Label) -> str:
    return "text" if isinstance(label, str) else "number"
