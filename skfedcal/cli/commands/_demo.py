"""``skfedcal demo``."""

from __future__ import annotations

import argparse
import textwrap
from typing import TYPE_CHECKING, Any

from skfedcal._table import text_table
from skfedcal.cli._command import SEED_WARNING, Command, Console, add_seed_option
from skfedcal.cli._input import check_output

if TYPE_CHECKING:
    from skfedcal.cli._demo_experiment import DemoResult, Outcome

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
columns:
  method     base: the net as it is
  eps        differential privacy of a whole client; no DP: exact sums
  cwECE      gap between probability and frequency, mean over classes (15 bins)
  floor      cwECE that a perfect net shows on as many digits, mean +- deviation
  ECE        the same gap for the predicted class only
  NLL        log loss: rewards calibration and sharpness together
  acc        accuracy
  bytes      sent and received by one client in all rounds
"clearly" below the table: by more than two standard errors over the test digits.

examples:
  skfedcal demo
  skfedcal demo -o report.html
  skfedcal demo --seed 1 --json
"""

HEADER = (
    "method",
    "eps",
    "cwECE %",
    "floor %",
    "ECE %",
    "NLL",
    "acc %",
    "rounds",
    "bytes",
)

LEGEND = (
    "base: the net as it is. floor: cwECE of a perfect net on these digits. bytes: "
    "up and down, per client, all rounds."
)

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

    from skfedcal.cli._demo_experiment import run_experiment, verdict

    result = run_experiment(console.progress, console.detail, seed=args.seed)
    if output is not None:
        result.comparison.to_html(output)
    console.progress("done")
    sentences = verdict(result)
    text, data = _text(result, sentences), _data(result, sentences)
    if output is not None:
        text += f"\nReport, to open in a browser: {output}"
    console.result(text, {**data, "report": output})


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


def _text(result: DemoResult, sentences: list[str]) -> str:
    rows = [table_row(outcome) for outcome in result.outcomes]
    lines = [textwrap.fill(line, WIDTH) for line in (LEGEND, *sentences)]
    lines.insert(1, "")
    return "\n".join([text_table(HEADER, rows), *lines])


def table_row(outcome: Outcome) -> list[str]:
    """Return the cells of one line of the table."""
    fitted = outcome.n_rounds > 0
    eps = "no DP" if outcome.eps is None else f"{outcome.eps:g}"
    return [
        outcome.method,
        eps if fitted else "-",
        f"{100 * outcome.classwise_ece:.2f}",
        f"{100 * outcome.floor:.2f} +- {100 * outcome.floor_sd:.2f}",
        f"{100 * outcome.ece:.2f}",
        f"{outcome.nll:.4f}",
        f"{100 * outcome.accuracy:.2f}",
        str(outcome.n_rounds) if fitted else "-",
        str(outcome.bytes_up + outcome.bytes_down) if fitted else "-",
    ]


def _data(result: DemoResult, sentences: list[str]) -> dict[str, Any]:
    return {
        "n_test": result.n_test,
        "n_clients": result.n_clients,
        "simulated": result.simulated,
        "total_eps": result.total_eps,
        "total_delta": result.total_delta,
        "methods": [outcome.as_dict() for outcome in result.outcomes],
        "meaning": sentences,
    }


DEMO = Command(
    name="demo",
    summary="see on scikit-learn's digits what calibration gains and privacy costs",
    description=DESCRIPTION,
    examples=EXAMPLES,
    add_options=add_options,
    run=run,
)
