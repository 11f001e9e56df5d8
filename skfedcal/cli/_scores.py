"""Read logits to predict on; unlike those to fit on, they need no labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

CALIBRATOR = "a calibrator written by `skfedcal fit`"

# As `load_federation`.
MAX_BYTES = 8 * 2**30


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

    def rows(self) -> np.ndarray:
        """Logits with one column per class."""
        from skfedcal import _logits

        rows = self.logits
        if rows.ndim == 1 or rows.shape[1] == 1:
            rows = _logits.as_two_columns(rows)
        return rows

    def proba(self) -> np.ndarray:
        """Probabilities as they are."""
        from skfedcal import _logits

        return _logits.softmax(self.rows())

    def rows_for(self, calibrator: Any) -> np.ndarray:
        """Return the rows in the form that the calibrator was fitted on."""
        from skfedcal import _logits

        rows = self.rows()
        one_column = calibrator.n_features_in_ == 1
        if calibrator.input_type == "proba":
            rows = _logits.softmax(rows)
            return rows[:, 1:] if one_column else rows
        if calibrator.input_type == "log_proba":
            return _logits.log_softmax(rows)
        return rows[:, 1:] - rows[:, :1] if one_column else rows

    def places(self, calibrator: Any) -> np.ndarray:
        """Column of a calibrator's probabilities for each column of the file.

        Columns of the file are in model order, those of a calibrator sorted by class.
        """
        import numpy as np

        places: np.ndarray = np.argsort(calibrator._class_map.order)
        return places

    def check_classes(self, calibrator: Any, path: str, fitted: str) -> None:
        """Raise unless the calibrator is for as many classes."""
        n_classes = len(calibrator.classes_)
        if self.n_classes != n_classes:
            raise ValueError(
                f"{path} has logits of {self.n_classes} classes, but {fitted} was "
                f"fitted on {n_classes}. Use the same model."
            )


def load_calibrator(path: str) -> Any:
    """Read a calibrator."""
    from skfedcal import load

    try:
        return load(path)
    except ValueError as error:
        raise ValueError(f"{str(error).rstrip('.')}. Expected {CALIBRATOR}.") from error


def read_scores(
    path: str, *, split: str, columns: dict[str, str] | None = None
) -> Scores:
    """Read the rows of one split of a file or a folder."""
    from skfedcal.data._load import federation_of
    from skfedcal.data.formats._read import read_arrays
    from skfedcal.data.formats._roles import check_roles

    prefix = "val_" if split == "val" else ""
    arrays, found = read_arrays(Path(path), MAX_BYTES, check_roles(columns))
    if f"{prefix}labels" in arrays:
        rows = federation_of(arrays, found, Path(path), split)
        return Scores(rows.logits, rows.labels, rows.client_ids, rows.client_names)
    return Scores(_unlabelled(arrays, found, path, prefix))


def _unlabelled(
    arrays: dict[str, np.ndarray], names: set[str], path: str, prefix: str
) -> np.ndarray:
    """Check logits, or take the logarithms of probabilities."""
    import numpy as np

    from skfedcal.data._scores import to_logits
    from skfedcal.data.formats._roles import SCORE_NAMES

    found = [prefix + name for name in SCORE_NAMES if prefix + name in arrays]
    if not found:
        raise ValueError(
            f"{path} needs the array '{prefix}logits' or '{prefix}proba'; it has "
            f"{sorted(names)}."
        )
    rows = arrays[found[0]]
    if rows.dtype.kind not in "fiu" or rows.ndim not in (1, 2) or not rows.size:
        raise ValueError(
            f"{path}: {found[0]} must be numbers of shape (n, n_classes) or (n,), got "
            f"{rows.dtype} of shape {rows.shape}."
        )
    if rows.dtype not in (np.float32, np.float64):
        rows = rows.astype(np.float32 if rows.dtype == np.float16 else np.float64)
    if found[0].endswith("logits"):
        return rows
    if rows.ndim == 1:
        rows = rows[:, None]
    return to_logits(rows, max(2, rows.shape[1]), input_type="proba")
