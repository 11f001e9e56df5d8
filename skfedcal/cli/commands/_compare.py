"""``skfedcal compare``."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from skfedcal._files import write_whole
from skfedcal.cli._command import Command, UsageError
from skfedcal.cli._compare import add_options as add_compare_options
from skfedcal.cli._compare import read_vary, run_comparison
from skfedcal.cli._files import check_output
from skfedcal.cli._input import FILE_FORMS, add_input, check_file

if TYPE_CHECKING:
    from skfedcal.cli._console import Console
    from skfedcal.experiments import Comparison

DESCRIPTION = f"""\
Calibrate the clients in FILE with several methods, with and without differential
privacy, and print what each gains and costs on rows that were not used. Everything is
seeded: a simulation on rows at hand, to choose a method before it is run for real.

Finished cells (a method, an eps, a seed) are stored on disk: the same command
continues where an interrupted one stopped.

{FILE_FORMS}
If FILE has no clients, its rows are dealt to 100 of them with label skew.
"""

EXAMPLES = """\
columns:
  cwECE          gap between probability and frequency, mean over classes (15 bins);
                 * where accuracy drops by more than 1 %
  floor          cwECE of a perfect model on as many rows
  ECE            the same gap for the predicted class only
  NLL, Brier     proper scores: reward calibration and sharpness together
  acc change     in points of accuracy, against base
  gap closed     share of the way in cwECE from base to central (all rows in one place)
  eps spent      differential privacy of one client, of one fit
  rounds, bytes, client seconds   of one client that takes part in all rounds

examples:
  skfedcal compare model.npz
  skfedcal compare model.npz --eps none 1 --seeds 3
  skfedcal compare table.csv --columns labels=y client=hospital --methods temp bbq
  skfedcal compare model.npz --methods temp bbq --eps none --vary rounds 1 3 12
  skfedcal compare model.npz -o table.tex
"""

FORMATS = ("text", "markdown", "csv", "json", "latex")
ENDINGS = {
    ".txt": "text",
    ".md": "markdown",
    ".csv": "csv",
    ".json": "json",
    ".tex": "latex",
    ".html": "html",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``skfedcal compare``."""
    add_input(parser)
    add_compare_options(parser)
    group = parser.add_argument_group("result")
    group.add_argument(
        "--format",
        choices=FORMATS,
        default="text",
        help="form of the table on stdout (default: text)",
    )
    group.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help=f"file to write too, of the form that its name ends in "
        f"({' '.join(ENDINGS)})",
    )
    group.add_argument("--force", action="store_true", help="replace an existing PATH")


def run(args: argparse.Namespace, console: Console) -> None:
    """Compare, print and write."""
    if args.json and args.format not in ("text", "json"):
        raise UsageError(f"--json and --format {args.format} do not go together.")
    read_vary(args)
    check_file(args)
    if args.output is not None:
        form_of(args.output)
        check_output(args, args.file)
    found = run_comparison(args, console)
    if args.output is not None:
        write(found, args.output)
        console.progress(f"written: {args.output}")
    form = "json" if args.json else args.format
    text = shown(found, form, text_width())
    console.result(text.rstrip("\n"), json.loads(found.to_json()))


def form_of(path: str) -> str:
    """Form that the name of a file asks for."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in ENDINGS:
        raise UsageError(
            f"-o {path}: expected a name that ends in {', '.join(ENDINGS)}."
        )
    return ENDINGS[ending]


def shown(comparison: Comparison, form: str, width: int | None = None) -> str:
    """Return the comparison in a form; as text it ends with what that means."""
    if form != "text":
        return str(getattr(comparison, f"to_{form}")())

    from skfedcal.experiments.report import verdict_of

    sentences = verdict_of(comparison).sentences
    if width is not None:
        sentences = [textwrap.fill(text, max(width, 40)) for text in sentences]
    return "\n".join([comparison.to_text(width), "", *sentences])


def write(comparison: Comparison, path: str) -> None:
    """Write the form that the name asks for."""
    form = form_of(path)
    if form == "html":
        comparison.to_html(path)
        return
    text = shown(comparison, form).rstrip("\n") + "\n"
    write_whole(Path(path), lambda stream: stream.write(text.encode("utf-8")))


def text_width() -> int | None:
    """Letters of a line of the terminal; a file or a pipe has no end of line."""
    if not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


COMPARE = Command(
    name="compare",
    summary="compare methods, with and without privacy, on the clients in a file",
    description=DESCRIPTION,
    examples=EXAMPLES,
    add_options=add_options,
    run=run,
)
