"""What commands read: clients, scores to predict on, and files."""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
  shards    a folder or a pattern such as 'part-*.npz' of such files, each with the rows
            of some clients; read by --workers (fit, evaluate, compare, monitor)
"""

NO_CLIENTS = (
    "{} has no clients: all rows are one client. If a column or an array names the "
    "owner of each row, pass --columns client=NAME."
)

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
        "labels=y client=hospital logits=score_ (of a table: how the names begin, or "
        "all of them in the order of the classes: logits=cat,dog,owl)",
    )
    parser.add_argument(
        "--input",
        choices=("logits", "proba"),
        help="what the scores in FILE are (default: as their name says)",
    )


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add who reads shards."""
    parser.add_argument(
        "--workers",
        metavar="W",
        help="who reads shards: a number of processes, ray, or the address of a dask "
        "scheduler such as tcp://host:8786 (default: this process)",
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
    names = {role: name for role, _, name in pairs}
    if len(names) < len(pairs):
        raise UsageError(f"--columns {' '.join(args.columns)}: a role is given twice.")
    from skfedcal.clients.file_formats import check_roles

    try:
        return check_roles(names)
    except ValueError as error:
        raise UsageError(f"--{error}") from error


def _read(args: argparse.Namespace) -> tuple[dict[str, np.ndarray], set[str]]:
    """Arrays of FILE by their usual names, and all names in it.

    Scores are called what they are: logits, or proba.
    """
    from skfedcal.clients.file_formats import SCORE_NAMES, check_roles, read_arrays

    path = Path(args.file)
    arrays, found = read_arrays(path, MAX_BYTES, check_roles(read_columns(args)))
    for prefix in ("", "val_"):
        names = [prefix + name for name in SCORE_NAMES if prefix + name in arrays]
        if not names:
            continue
        if args.input is not None:
            arrays[prefix + args.input] = arrays.pop(names[0])
            for other in names[1:]:
                arrays.pop(other, None)
        elif names[0].endswith("logits"):
            _check_logits(arrays[names[0]], names[0], args.file)
    return arrays, found


def _check_logits(scores: np.ndarray, name: str, path: str) -> None:
    """Raise if logits are probabilities: a calibrator of these is worth nothing."""
    from skfedcal import _numerics

    if scores.dtype.kind not in "fiu" or scores.ndim not in (1, 2) or not scores.size:
        return  # said where the rows are checked
    if scores.ndim == 2 and scores.shape[1] > 1:
        # Published probabilities are rounded.
        suspect = _numerics.rows_look_like_proba(scores, atol=1e-2)
        what = "all rows are non-negative and sum to 1"
    else:
        # A few log-odds may be there by chance.
        suspect = scores.size >= 10 and bool(scores.min() >= 0 and scores.max() <= 1)
        what = "all numbers are between 0 and 1"
    if suspect:
        raise ValueError(
            f"{path}: {name} look like probabilities: {what}. Pass --input proba if "
            "they are, or --input logits if they are not."
        )


def check_file(args: argparse.Namespace) -> None:
    """Raise if FILE is missing or the options are invalid; reads nothing."""
    read_columns(args)
    if not is_shards(args):
        check_input(args.file, EXPECTED, folder=True)


def is_shards(args: argparse.Namespace) -> bool:
    """Whether FILE is a folder or a pattern of shards.

    Raises UsageError: If workers are named for another file.
    """
    from skfedcal.federation.shard_rows import is_sharded

    workers = getattr(args, "workers", None)
    # Files of one client each are shards where workers are to read them.
    found = is_sharded(args.file) or (workers is not None and os.path.isdir(args.file))
    if workers is not None and not found:
        raise UsageError(
            f"--workers {args.workers}: {args.file} is not a folder or a pattern such "
            "as 'part-*.npz'"
        )
    return found


@contextmanager
def open_shards(
    args: argparse.Namespace, console: Console, split: Any
) -> Iterator[Any]:
    """Shards of FILE, and the workers that read them."""
    from skfedcal.federation import ShardedClients
    from skfedcal.federation.backends import open_executor

    if args.input is not None:
        raise UsageError(
            f"--input {args.input}: shards are read by the names of their arrays; pass "
            f"--columns {args.input}=NAME"
        )
    with open_executor(args.workers) as executor:
        shards = ShardedClients(
            args.file, executor=executor, columns=read_columns(args), split=split
        )
        console.progress(f"reading {shards.n_shards} shards of {args.file}")
        yield shards


@dataclass(frozen=True, slots=True)
class FitClients:
    """Clients to fit on, and what is known of them."""

    clients: Any
    n_rows: int
    n_clients: int
    classes: Any
    have_ids: bool


@contextmanager
def open_clients(
    args: argparse.Namespace, console: Console, split: Literal["auto", "val", "test"]
) -> Iterator[FitClients]:
    """Clients of a file, of a folder or in shards."""
    if is_shards(args):
        with open_shards(args, console, split) as shards:
            data, classes = shards.read(None, "logits")
            labels = classes.classes
            yield FitClients(shards, data.n_rows, data.n_clients, labels, have_ids=True)
        return
    import numpy as np

    fed = read_federation(args, console, split)
    clients, classes = fed.clients, fed.class_names
    if classes is None:  # a label is a column; clients may miss some
        n_columns = fed.logits.shape[1] if fed.logits.ndim == 2 else 2
        classes = np.arange(max(2, n_columns))
    else:
        clients = [(logits, classes[labels]) for logits, labels in clients]
    have_ids = fed.client_ids is not None
    yield FitClients(clients, len(fed.labels), len(clients), classes, have_ids)


def read_federation(
    args: argparse.Namespace,
    console: Console,
    split: Literal["auto", "val", "test"] | None = None,
) -> Any:
    """Read FILE."""
    console.progress(f"reading {args.file}")

    from skfedcal.clients.federation_files import federation_of

    return federation_of(*_read(args), Path(args.file), split)


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
    class_names: np.ndarray | None = None

    @property
    def n_clients(self) -> int:
        """Number of clients; rows without any are one."""
        import numpy as np

        if self.client_names is not None:
            return len(self.client_names)
        return 1 if self.client is None else len(np.unique(self.client))

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

    def for_classes(self, calibrator: Any, path: str, fitted: str) -> Scores:
        """Return the rows with columns in the order that the calibrator was fitted on.

        Raises ValueError: If the classes are not the same.
        """
        import numpy as np

        classes = calibrator.classes_
        if self.n_classes != len(classes):
            raise ValueError(
                f"{path} has logits of {self.n_classes} classes, but {fitted} was "
                f"fitted on {len(classes)}. Use the same model."
            )
        if self.class_names is None or classes.dtype.kind not in "US":
            return self
        columns = np.empty_like(classes)
        columns[calibrator._class_map.order] = classes
        if (columns == self.class_names).all():
            return self
        if set(columns) != set(self.class_names):
            other = sorted(set(self.class_names.tolist()) - set(columns))
            raise ValueError(
                f"{path} has the classes {other[:10]}, which {fitted} does not know: "
                f"it was fitted on {columns[:10].tolist()}. Use the same model."
            )
        place = {name: i for i, name in enumerate(self.class_names)}
        order = np.array([place[name] for name in columns])
        labels = self.labels
        if labels is not None:
            labels = np.argsort(order)[labels]
        return replace(
            self, logits=self.rows()[:, order], labels=labels, class_names=columns
        )


def load_calibrator(path: str) -> Any:
    """Read a calibrator."""
    from skfedcal import load

    try:
        return load(path)
    except ValueError as error:
        raise ValueError(f"{str(error).rstrip('.')}. Expected {CALIBRATOR}.") from error


def read_scores(args: argparse.Namespace) -> Scores:
    """Read the rows of one split of FILE."""
    from skfedcal.clients.federation_files import check_class_names, federation_of

    prefix = "val_" if args.split == "val" else ""
    arrays, found = _read(args)
    if f"{prefix}labels" in arrays:
        rows = federation_of(arrays, found, Path(args.file), args.split)
        return Scores(
            rows.logits,
            rows.labels,
            rows.client_ids,
            rows.client_names,
            rows.class_names,
        )
    logits = _unlabelled(arrays, found, args.file, prefix)
    names = check_class_names(arrays, logits, args.file)
    return Scores(logits, class_names=names)


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
