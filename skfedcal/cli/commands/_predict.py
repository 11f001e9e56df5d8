"""``skfedcal predict``."""

from __future__ import annotations

import argparse
from typing import Any

from skfedcal._files import write_whole
from skfedcal._table import text_pairs
from skfedcal.cli._command import Command, Console
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
client are passed on if they are there. The output is an .npz archive with the arrays
  proba      (n, n_classes), calibrated probabilities
  classes    (n_classes,), the class of each column
  predicted  (n,), the column of the most probable class
  labels     (n,), the column of the true class (if FILE has labels)
  client, client_names   as in FILE (if there)
"""

EXAMPLES = """\
examples:
  skfedcal predict cal.json model.npz -o proba.npz
  skfedcal predict cal.json model.npz --split val -o proba.npz --force
"""

INPUT = "logits: an .npz, .npy, .csv or .parquet file, or a folder of such files"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``skfedcal predict``."""
    parser.add_argument("calibrator", metavar="CAL", help=f"{CALIBRATOR}, JSON")
    add_input(parser, "logits")
    parser.add_argument(
        "-o", "--output", required=True, metavar="PATH", help=".npz file to write"
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
    check_output(args, args.calibrator, args.file)
    console.progress(f"reading {args.calibrator} and {args.file}")

    import numpy as np

    calibrator = load_calibrator(args.calibrator)
    scores = read_scores(args.file, split=args.split, columns=read_columns(args))
    scores.check_classes(calibrator, args.file, args.calibrator)
    arrays = predict(calibrator, scores)
    write_whole(args.output, lambda stream: np.savez_compressed(stream, **arrays))
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
    return arrays


PREDICT = Command(
    name="predict",
    summary="write the calibrated probabilities of the logits in a file",
    description=DESCRIPTION,
    examples=EXAMPLES,
    add_options=add_options,
    run=run,
)
