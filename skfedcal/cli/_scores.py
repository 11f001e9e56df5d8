"""Read logits to predict on; unlike those to fit on, they need no labels."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Scores:
    """Rows of logits and what came with them."""

    logits: np.ndarray
    labels: np.ndarray | None = None
    client: np.ndarray | None = None
    client_names: np.ndarray | None = None

    @property
    def n_classes(self) -> int:
        """Number of classes; one column of log-odds means two."""
        return max(2, self.logits.shape[1]) if self.logits.ndim == 2 else 2

    def rows_for(self, calibrator: Any) -> np.ndarray:
        """Return the rows in the form that the calibrator was fitted on."""
        from skfedcal import _logits

        rows = self.logits
        if rows.ndim == 1 or rows.shape[1] == 1:
            rows = _logits.as_two_columns(rows)
        one_column = calibrator.n_features_in_ == 1
        if calibrator.input_type == "proba":
            rows = _logits.softmax(rows)
            return rows[:, 1:] if one_column else rows
        if calibrator.input_type == "log_proba":
            return _logits.log_softmax(rows)
        return rows[:, 1:] - rows[:, :1] if one_column else rows


def read_scores(path: str, *, split: str) -> Scores:
    """Read the rows of one split of an .npz file."""
    from skfedcal.data import load_federation

    prefix = "val_" if split == "val" else ""
    if not zipfile.is_zipfile(path) or f"{prefix}labels" in _array_names(path):
        rows = load_federation(path, split=split)
        return Scores(rows.logits, rows.labels, rows.client_ids, rows.client_names)
    return Scores(_read_unlabelled(path, prefix))


def _array_names(path: str) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise ValueError(f"{path} is damaged or not readable: {error}") from error


def _read_unlabelled(path: str, prefix: str) -> np.ndarray:
    """Read logits, or the logarithms of probabilities."""
    import numpy as np

    from skfedcal.data._load import SCORE_NAMES
    from skfedcal.data._scores import to_logits

    names = _array_names(path)
    found = [prefix + name for name in SCORE_NAMES if prefix + name in names]
    if not found:
        raise ValueError(
            f"{path} needs the array '{prefix}logits' or '{prefix}proba'; it has "
            f"{sorted(names)}."
        )
    try:
        with np.load(path, allow_pickle=False) as archive:
            rows = archive[found[0]]
    except MemoryError:
        raise
    # zipfile, zlib, tokenize and numpy raise a dozen kinds on damaged bytes.
    except Exception as error:
        raise ValueError(f"{path} is damaged or not readable: {error}") from error
    if rows.dtype.kind not in "fiu" or rows.ndim not in (1, 2) or not rows.size:
        raise ValueError(
            f"{path}: {found[0]} must be numbers of shape (n, n_classes) or (n,), got "
            f"{rows.dtype} of shape {rows.shape}."
        )
    if rows.dtype not in (np.float32, np.float64):
        rows = rows.astype(np.float32 if rows.dtype == np.float16 else np.float64)
    if found[0].endswith("logits"):
        return rows
    rows = rows.reshape(len(rows), -1)
    return to_logits(rows, max(2, rows.shape[1]), input_type="proba")
