"""Worst-case clients: what a client can do to be seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pair = tuple[NDArray[Any], NDArray[Any]]

# Logits of this size are as certain as any, and squares of their sums are finite.
_LARGE = 1e6
# Rows of a canary: more than any default bound lets through.
_N_ROWS = 240


@dataclass(frozen=True, slots=True)
class Canary:
    """A client that is audited.

    Attributes
    ----------
    name : str
        What is special about it.
    logits, labels : ndarray
        Its rows.
    """

    name: str
    logits: NDArray[Any]
    labels: NDArray[Any]

    @property
    def pair(self) -> Pair:
        return self.logits, self.labels


def canaries(n_classes: int, unit: str = "client") -> list[Canary]:
    """Worst-case clients, or worst-case rows, for any calibrator.

    Parameters
    ----------
    n_classes : int
        Number of columns.
    unit : {'client', 'example'}, default='client'
        What is hidden; an example is a client of one row.
    """
    n_rows = _N_ROWS if unit == "client" else 1
    turn = np.arange(n_rows) % n_classes
    certain = np.full((n_rows, n_classes), -_LARGE)
    certain[:, 0] = _LARGE
    full = np.where(np.arange(n_classes) == turn[:, None], 4.0, 0.0)
    found = [
        Canary("certain and wrong", certain, np.full(n_rows, 1)),
        Canary("opposite direction", -certain / _LARGE, np.full(n_rows, 0)),
        Canary("all in one bin", np.zeros((n_rows, n_classes)), np.zeros_like(turn)),
        Canary("every class full", full, turn),
    ]
    if unit == "client":
        nothing = np.empty((0, n_classes)), np.empty(0, dtype=np.int64)
        found.append(Canary("empty client", *nothing))
    return found


def ordinary(n_classes: int = 4, n_clients: int = 8, n_rows: int = 6) -> list[Pair]:
    """Clients among which the canary hides, for audits without data."""
    rng = np.random.default_rng(0)
    out = []
    for _ in range(n_clients):
        logits = 2 * rng.normal(size=(n_rows, n_classes))
        labels = (logits / 1.5 + rng.gumbel(size=logits.shape)).argmax(axis=1)
        out.append((logits, labels))
    return out


def disguised(
    pairs: list[Pair], n_classes: int, unit: str, *, keep_empty: bool = False
) -> list[Pair]:
    """Rows of other sign, size and label.

    If clients are hidden there are fewer rows too, and none of the last client unless
    `keep_empty` says that who has no rows stays as it is.
    """
    out = [(-1.7 * logits, (labels + 1) % n_classes) for logits, labels in pairs]
    if unit == "client":
        fewer = [max(1, len(labels) // 2) for _, labels in out]
        if not keep_empty:
            fewer[-1] = 0
        out = [(z[:n], y[:n]) for (z, y), n in zip(out, fewer, strict=True)]
    return out
