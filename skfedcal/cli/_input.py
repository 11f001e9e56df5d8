"""Clients that a command reads: one description, one set of options, one reader."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any, Literal

from skfedcal.cli._command import UsageError
from skfedcal.cli._files import check_input

if TYPE_CHECKING:
    from skfedcal.cli._console import Console

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

    from skfedcal.data import load_federation

    return load_federation(args.file, split=split, columns=read_columns(args))


def file_name(path: str) -> str:
    """Last part of a path, for texts that others read."""
    return os.path.basename(os.path.normpath(path))
