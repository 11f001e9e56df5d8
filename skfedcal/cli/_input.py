"""What commands read: clients, scores to predict on, and files."""

from __future__ import annotations

import argparse
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from skfedcal.cli._command import UsageError

if TYPE_CHECKING:
    import numpy as np

    from skfedcal.cli._command import Console


class FileOptions(Protocol):
    """Options of a command that writes a file."""

    output: str
    force: bool


def check_input(path: str, expected: str, *, folder: bool = False) -> None:
    """Raise if there is no file to read; `expected` says what it should be."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path}: no such file. Expected {expected}.")
    if os.path.isdir(path) and not folder:
        raise IsADirectoryError(f"{path} is a folder. Expected {expected}.")


def check_output(args: FileOptions, *inputs: str) -> None:
    """Raise if the result could not be written; called before any work is done."""
    path = Path(args.output)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder. Pass the name of a file.")
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"{path}: the folder {path.parent} does not exist. Create it first."
        )
    # A ledger may not exist yet, so that names are compared and not files.
    if os.path.realpath(path) in map(os.path.realpath, inputs):
        raise ValueError(f"{path} is an input or the ledger. Pass another name.")
    if path.exists() and not args.force:
        raise FileExistsError(f"{path} exists. Pass --force to replace it.")
    _try_folder(path)


def _try_folder(path: Path) -> None:
    """Raise unless a file can be made beside `path`; permissions alone do not tell."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        draft.touch(exist_ok=False)
        draft.unlink()
    except OSError as error:
        raise type(error)(
            f"{path}: the folder {path.parent} is not writable ({error.strerror})."
        ) from error


# Text of ``--help`` of every command that reads clients.
FILE_FORMS = """\
FILE is one of
  .npz      arrays logits (n, n_classes), or proba; labels (n,), the column of the true
            class, from 0; client (n,), a number or name for the owner of each row
            (optional); val_logits, val_labels, val_client, rows to calibrate on (then
            the others are for the test)
  .npy      NAME_logits.npy, with NAME_labels.npy and NAME_client.npy beside it
  .csv, .tsv, .parquet
            columns logit_0, logit_1, ... (or proba_0, ...), label, client, and split,
            which is val or test (the last two are optional)
  a folder  of such files, one per client
"""

EXPECTED = (
    "logits and labels: an .npz, .npy, .csv or .parquet file, or a folder with one "
    "file per client"
)


def add_input(parser: argparse.ArgumentParser, text: str = "clients") -> None:
    """Add FILE and how its columns are called."""
    parser.add_argument("file", metavar="FILE", help=f"{text}: a file or a folder")
    add_columns(parser)


def add_columns(parser: argparse.ArgumentParser) -> None:
    """Add how columns or arrays are called."""
    parser.add_argument(
        "--columns",
        nargs="+",
        metavar="ROLE=NAME",
        help="names of columns or arrays that are not the usual ones, such as "
        "labels=y client=hospital logits=score_ (of a table: how the names begin)",
    )


def read_columns(args: argparse.Namespace) -> dict[str, str] | None:
    """Return names by role."""
    if not args.columns:
        return None
    pairs = [text.partition("=") for text in args.columns]
    for role, mark, name in pairs:
        if not (role and mark and name):
            text = f"{role}{mark}{name}"
            raise UsageError(f"--columns {text}: expected ROLE=NAME, as in labels=y")
    return {role: name for role, _, name in pairs}


def check_file(args: argparse.Namespace) -> None:
    """Raise if FILE is missing or the options are invalid; reads nothing."""
    read_columns(args)
    check_input(args.file, EXPECTED, folder=True)


def read_federation(
    args: argparse.Namespace,
    console: Console,
    split: Literal["auto", "val", "test"] | None = None,
) -> Any:
    """Read FILE."""
    console.progress(f"reading {args.file}")

    from skfedcal.clients import load_federation

    return load_federation(args.file, split=split, columns=read_columns(args))


def file_name(path: str) -> str:
    """Last part of a path, for texts that others read."""
    return os.path.basename(os.path.normpath(path))


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
        from skfedcal import _numerics

        rows = self.logits
        if rows.ndim == 1 or rows.shape[1] == 1:
            rows = _numerics.as_two_columns(rows)
        return rows

    def proba(self) -> np.ndarray:
        """Probabilities as they are."""
        from skfedcal import _numerics

        return _numerics.softmax(self.rows())

    def rows_for(self, calibrator: Any) -> np.ndarray:
        """Return the rows in the form that the calibrator was fitted on."""
        from skfedcal import _numerics

        rows = self.rows()
        one_column = calibrator.n_features_in_ == 1
        if calibrator.input_type == "proba":
            rows = _numerics.softmax(rows)
            return rows[:, 1:] if one_column else rows
        if calibrator.input_type == "log_proba":
            return _numerics.log_softmax(rows)
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
    from skfedcal.clients.federation_files import federation_of
    from skfedcal.clients.file_formats import check_roles, read_arrays

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

    from skfedcal.clients.arrays import to_logits
    from skfedcal.clients.file_formats import SCORE_NAMES

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
