"""``skfedcal demo``."""

from __future__ import annotations

import argparse
import json
import textwrap

from skfedcal.cli._command import SEED_WARNING, Command, Console, add_seed_option
from skfedcal.cli._input import check_output

DESCRIPTION = """\
Train a net on scikit-learn's digits by federated averaging, calibrate it over 100 other
clients with and without differential privacy, print what it gained and what it cost,
and write a report as an HTML page. Needs no files and no network, and takes a few
seconds.

The digits are 8 x 8 images, here with noise on the pixels and moved by up to one pixel.
200 train the net at 40 clients; 600 belong to the 100 clients of the calibration, all
in nine views each. Most clients have few of the ten classes (Dirichlet, alpha = 0.1),
so that the net favours some classes. The other 997, in one view each, are the test. No
digit is in two places.
"""

EXAMPLES = """\
columns and sentences are those of skfedcal compare; base is the net as it is.

examples:
  skfedcal demo
  skfedcal demo -o report.html
  skfedcal demo --seed 1 --json
"""

WIDTH = 80

DEFAULT_OUTPUT = "skfedcal_demo.html"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``skfedcal demo``."""
    add_seed_option(
        parser,
        "repeatable digits, net and noise: a simulation without any guarantee "
        "(default: noise from the operating system)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help=f"HTML report to write (default: {DEFAULT_OUTPUT} in this folder)",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing PATH")


def run(args: argparse.Namespace, console: Console) -> None:
    """Run the experiment and print the table."""
    output = _output(args, console)
    if args.seed is not None:
        console.warning(SEED_WARNING)
    # Said before scikit-learn is imported, which takes a second or two.
    console.progress("loading scikit-learn and its digits")

    from skfedcal.cli._demo_experiment import run_experiment
    from skfedcal.cli.commands._comparison import shown
    from skfedcal.experiments.report import verdict_of

    result = run_experiment(console.progress, console.detail, seed=args.seed)
    comparison = result.comparison
    if output is not None:
        comparison.to_html(output)
    console.progress("done")
    text = shown(comparison, "text", WIDTH)
    text += f"\n{textwrap.fill(result.privacy, WIDTH)}"
    if output is not None:
        text += f"\nReport, to open in a browser: {output}"
    data = {
        **json.loads(comparison.to_json()),
        "simulated": result.simulated,
        "total_eps": result.total_eps,
        "total_delta": result.total_delta,
        "meaning": [*verdict_of(comparison).sentences, result.privacy],
        "report": output,
    }
    console.result(text, data)


def _output(args: argparse.Namespace, console: Console) -> str | None:
    """Where the report goes; a file that is not a report is not replaced."""
    if args.output is not None:
        check_output(args)
        return str(args.output)
    target = argparse.Namespace(output=DEFAULT_OUTPUT, force=_is_report(DEFAULT_OUTPUT))
    try:
        check_output(target)
    except OSError as error:
        console.warning(f"No report is written: {error} Pass -o PATH for another.")
        return None
    return DEFAULT_OUTPUT


def _is_report(path: str) -> bool:
    """Whether a file is a report that an earlier demo wrote."""
    try:
        with open(path, encoding="utf-8") as stream:
            return 'name="generator" content="skfedcal' in stream.read(600)
    except (OSError, UnicodeDecodeError):
        return False


DEMO = Command(
    name="demo",
    summary="see on scikit-learn's digits what calibration gains and privacy costs",
    description=DESCRIPTION,
    examples=EXAMPLES,
    add_options=add_options,
    run=run,
)
