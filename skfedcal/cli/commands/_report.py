"""``skfedcal report``."""

from __future__ import annotations

import argparse
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
    from skfedcal.experiments.report._verdict import Verdict

DESCRIPTION = f"""\
Write a report as one HTML page: verdict, warnings, table, reliability diagrams, what
privacy was spent and what that means, and how to run it again. The page needs no
network.

{FILE_FORMS}
or a .json file that `skfedcal compare -o` wrote; then nothing is run.
"""

EXAMPLES = """\
examples:
  skfedcal report model.npz -o report.html
  skfedcal report model.npz --eps none 1 --seeds 5 -o report.html
  skfedcal compare model.npz -o result.json && skfedcal report result.json -o a.html
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``skfedcal report``."""
    add_input(parser, "clients, or a comparison as .json")
    parser.add_argument(
        "-o", "--output", required=True, metavar="PATH", help=".html file to write"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing PATH")
    add_compare_options(parser)


def run(args: argparse.Namespace, console: Console) -> None:
    """Compare, or read a comparison, and write the page."""
    if Path(args.output).suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"-o {args.output}: expected a name that ends in .html.")
    read_vary(args)
    check_file(args)
    check_output(args, args.file)
    if args.file.lower().endswith(".json"):
        found = _read(args.file)
    else:
        found = run_comparison(args, console)
    verdict = _write(found, args)
    data = {
        "output": args.output,
        "verdict": verdict.sentences,
        "warnings": verdict.warnings,
    }
    lines = [*verdict.sentences, *(f"warning: {text}" for text in verdict.warnings)]
    console.result("\n".join([*lines, f"written: {args.output}"]), data)


def _write(found: Comparison, args: argparse.Namespace) -> Verdict:
    """Write the page; runs of a file may lack what it shows."""
    from skfedcal.experiments.comparison._result import DAMAGE
    from skfedcal.experiments.report import html_report, verdict_of

    try:
        page, verdict = html_report(found).encode("utf-8"), verdict_of(found)
    except DAMAGE as error:
        if not args.file.lower().endswith(".json"):
            raise
        raise ValueError(
            f"{args.file}: The comparison is damaged: {error!r}. Expected a comparison "
            "written by `skfedcal compare -o`."
        ) from error
    write_whole(Path(args.output), lambda stream: stream.write(page))
    return verdict


def _read(path: str) -> Comparison:
    from skfedcal.experiments import Comparison

    try:
        text = Path(path).read_text(encoding="utf-8")
        return Comparison.from_json(text)
    except ValueError as error:
        raise ValueError(
            f"{path}: {error} Expected a comparison written by `skfedcal compare -o`."
        ) from error


REPORT = Command(
    name="report",
    summary="write a comparison as an HTML page",
    description=DESCRIPTION,
    examples=EXAMPLES,
    add_options=add_options,
    run=run,
)
