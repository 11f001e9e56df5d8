"""``skfedcal predict``."""

from __future__ import annotations

import argparse
import csv
import io
import os
from collections.abc import Callable
from functools import partial
from typing import IO, Any

from skfedcal._files import write_whole
from skfedcal._table import text_pairs
from skfedcal.cli._command import Command, Console, UsageError
from skfedcal.cli._input import (
    CALIBRATOR,
    Scores,
    add_input,
    check_input,
    check_output,
    load_calibrator,
    read_columns,
    read_scores,
)

DESCRIPTION = """\
Apply a fitted calibrator to the logits in FILE and write the probabilities.

FILE is a file or folder as in `skfedcal fit --help`, but needs no labels; labels and
client are passed on if they are there. The ending of PATH says what is written:
  .npz       arrays proba (n, n_classes), calibrated probabilities; classes
             (n_classes,), the class of each column; predicted (n,), the column of the
             most probable class; labels (n,), the column of the true class, client and
             client_names (if FILE has them); class_names, if classes have names
  .csv, .tsv, .parquet
             columns proba_CLASS, predicted (the most probable class), label and client
             (if FILE has them)
All of them can be read by `skfedcal evaluate` and the other commands.
"""

EXAMPLES = """\
examples:
  skfedcal predict cal.json model.npz -o proba.npz
  skfedcal predict cal.json scores.csv -o proba.csv
  skfedcal predict cal.json model.npz --split val -o proba.npz --force
"""

INPUT = "logits: an .npz, .npy, .csv or .parquet file, or a folder of such files"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``skfedcal predict``."""
    parser.add_argument("calibrator", metavar="CAL", help=f"{CALIBRATOR}, JSON")
    add_input(parser, "logits")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="PATH",
        help="file to write: .npz, .csv, .tsv or .parquet",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing PATH")
    parser.add_argument(
        "--split",
        choices=("test", "val"),
        default="test",
        help="rows to predict: main arrays (test, the default) or val_* arrays",
    )


def run(args: argparse.Namespace, console: Console) -> None:
    """Predict, write and print a summary."""
    check_input(args.calibrator, CALIBRATOR)
    read_columns(args)
    check_input(args.file, INPUT, folder=True)
    write = _writer(args.output)
    check_output(args, args.calibrator, args.file)
    console.progress(f"reading {args.calibrator} and {args.file}")

    calibrator = load_calibrator(args.calibrator)
    scores = read_scores(args).for_classes(calibrator, args.file, args.calibrator)
    arrays = predict(calibrator, scores)
    write_whole(args.output, lambda stream: write(stream, arrays))
    data = {
        "calibrator": type(calibrator).__name__,
        "rows": len(arrays["proba"]),
        "classes": len(arrays["classes"]),
        "arrays": sorted(arrays),
        "output": args.output,
    }
    text = {**data, "arrays": ", ".join(data["arrays"])}
    text["written"] = text.pop("output")
    console.result(text_pairs([(k, str(v)) for k, v in text.items()]), data)


def predict(calibrator: Any, scores: Scores) -> dict[str, Any]:
    """Return the arrays of the output file."""
    proba = calibrator.predict_proba(scores.rows_for(calibrator))
    arrays = {
        "proba": proba,
        "classes": calibrator.classes_,
        "predicted": proba.argmax(axis=1),
    }
    if scores.labels is not None:
        # Columns of the file are in model order, those of `proba` sorted by class.
        arrays["labels"] = scores.places(calibrator)[scores.labels]
    if scores.client is not None:
        arrays["client"] = scores.client
        if scores.client_names is not None:
            arrays["client_names"] = scores.client_names
    if arrays["classes"].dtype.kind in "US":
        arrays["class_names"] = arrays["classes"]
    return arrays


def _writer(path: str) -> Callable[[IO[bytes], dict[str, Any]], object]:
    """How a file with this ending is written; raises for other endings."""
    ending = os.path.splitext(path)[1].lower()
    if ending == ".parquet":  # said before any work is done
        from skfedcal.clients.file_formats import import_pyarrow

        import_pyarrow(path)
    writers: dict[str, Callable[[IO[bytes], dict[str, Any]], object]] = {
        ".npz": _write_npz,
        ".csv": partial(_write_text, separator=","),
        ".tsv": partial(_write_text, separator="\t"),
        ".parquet": _write_parquet,
    }
    if ending not in writers:
        raise UsageError(
            f"-o {path}: the ending {ending!r} is not known. Expected "
            f"{', '.join(writers)}."
        )
    return writers[ending]


def _write_npz(stream: IO[bytes], arrays: dict[str, Any]) -> None:
    import numpy as np

    np.savez_compressed(stream, **arrays)


def _columns(arrays: dict[str, Any]) -> dict[str, Any]:
    """Columns of a table: classes and clients by their names."""
    classes, proba = arrays["classes"], arrays["proba"]
    columns = {f"proba_{name}": proba[:, i] for i, name in enumerate(classes)}
    columns["predicted"] = classes[arrays["predicted"]]
    if "labels" in arrays:
        columns["label"] = classes[arrays["labels"]]
    if "client" in arrays:
        columns["client"] = arrays["client"]
        if "client_names" in arrays:
            columns["client"] = arrays["client_names"][arrays["client"]]
    return columns


def _write_text(stream: IO[bytes], arrays: dict[str, Any], separator: str) -> None:
    columns = _columns(arrays)
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    lines = csv.writer(text, delimiter=separator, lineterminator="\n")
    lines.writerow(columns)
    # As Python numbers, whose text gives back the same number.
    values = (column.tolist() for column in columns.values())
    lines.writerows(zip(*values, strict=True))
    text.detach()


def _write_parquet(stream: IO[bytes], arrays: dict[str, Any]) -> None:
    import pyarrow
    import pyarrow.parquet

    columns = {name: column.tolist() for name, column in _columns(arrays).items()}
    pyarrow.parquet.write_table(pyarrow.table(columns), stream)


PREDICT = Command(
    name="predict",
    summary="write the calibrated probabilities of the logits in a file",
    description=DESCRIPTION,
    examples=EXAMPLES,
    add_options=add_options,
    run=run,
)
