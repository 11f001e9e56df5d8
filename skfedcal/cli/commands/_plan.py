"""``skfedcal plan``."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from skfedcal.cli._command import (
    Command,
    UsageError,
    chance_number,
    eps_number,
    in_flags,
    positive_count,
)
from skfedcal.cli._options import add_unit_option
from skfedcal.cli.commands._comparison import NAMES

if TYPE_CHECKING:
    from skfedcal.cli._command import Console

DESCRIPTION = """\
Will it work for me? Say, before anything is spent, how wide the intervals of an
evaluation will be and what chance of a gain each calibrator has, for a number of
clients, rows and classes and a budget. No data are read: only these public numbers
count. Intervals are those of `federated_report` for the counts that are expected of a
synthetic model; gains are those of fits to synthetic clients. The last line is advice.

A share of the gain is relative to the largest possible decrease of the log loss; below
0 a fit does more harm than good. The table "needed" has the smallest eps for these
clients (of accuracy and ECE the first of 0.1, 0.2, 0.5, 1, 2, 5 and so on that
suffices), and the smallest number of clients for this eps.
"""

EXAMPLES = """\
examples:
  skfedcal plan --clients 12 --rows 300
  skfedcal plan --clients 3 --rows 500 --eps 1
  skfedcal plan --clients 3 --rows 500 --eps 1 --unit example
  skfedcal plan --clients 10000 --rows 1 --classes 10 --eps 1 --model distributed
  skfedcal plan --clients 16 --rows 200 --json
"""

LEGEND = """\
e.g.: value of the synthetic model. width: of the interval, for clients that are alike;
if yours differ, it is wider. se: standard error by sampling and by noise."""

# Those of `forecast`.
RANGES = {
    "clients": (1, 10**9),
    "rows": (1, 10**9),
    "classes": (2, 1000),
    "fits": (1, 1000),
}
MODELS = ("central", "distributed", "local", "source")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``skfedcal plan``."""
    parser.add_argument(
        "--clients", type=positive_count, required=True, metavar="K", help="clients"
    )
    parser.add_argument(
        "--rows",
        type=positive_count,
        required=True,
        metavar="N",
        help="rows per client",
    )
    parser.add_argument(
        "--classes", type=positive_count, default=2, metavar="C", help="default: 2"
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=NAMES,
        metavar="NAME",
        help="calibrators, as of `skfedcal compare` (default: auto temp biastemp "
        "shape)",
    )
    parser.add_argument(
        "--fits",
        type=positive_count,
        default=20,
        metavar="F",
        help="simulated fits of each calibrator (default: 20)",
    )
    group = parser.add_argument_group("privacy")
    group.add_argument(
        "--eps", type=eps_number, metavar="E", help="budget (default: none, exact sums)"
    )
    group.add_argument(
        "--delta",
        type=chance_number,
        metavar="D",
        help="probability that the bound fails (default: min(1e-5, 1 / (10 clients)))",
    )
    add_unit_option(group)
    group.add_argument(
        "--model",
        choices=MODELS,
        default="central",
        help="who adds the noise (default: central, the server)",
    )


def run(args: argparse.Namespace, console: Console) -> None:
    """Compute and print."""
    for name, (low, high) in RANGES.items():
        value = getattr(args, name)
        if not low <= value <= high:
            raise UsageError(
                f"--{name} {value} is out of range; pass a whole number from {low} to "
                f"{high}."
            )
    from skfedcal.experiments.forecasting import METHODS, forecast

    found = forecast(
        args.clients,
        args.rows,
        n_classes=args.classes,
        privacy=_model(args),
        methods=args.methods or METHODS,
        n_fits=args.fits,
    )
    needed = _needed(args)
    tables, advice = str(found).rsplit("\n\n", 1)
    parts = [tables, *_needed_text(args, needed), LEGEND, in_flags(advice)]
    console.result("\n\n".join(parts), found.to_dict() | needed)


def _needed(args: argparse.Namespace) -> dict[str, Any]:
    """Smallest eps, and with one the smallest number of clients; central noise only."""
    if args.model != "central":
        return {}
    from skfedcal.experiments.forecasting import clients_needed, eps_needed
    from skfedcal.privacy import CentralDP

    model = CentralDP(args.eps or 1.0, delta=args.delta, unit=args.unit or "client")
    found = {"eps_needed": eps_needed(args.clients, args.rows, args.classes, model)}
    if args.eps is None:
        return found
    return found | {"clients_needed": clients_needed(args.rows, args.classes, model)}


def _rounded_up(eps: float) -> float:
    """Two digits, never less than needed."""
    unit = 10.0 ** (math.floor(math.log10(eps)) - 1)
    # A last bit of a number of two digits is no reason for the next one.
    return math.ceil(eps / unit * (1 - 1e-12)) * unit


def _needed_text(args: argparse.Namespace, needed: dict[str, Any]) -> list[str]:
    """Table of what is needed; none for noise that is not central."""
    if not needed:
        return []
    from skfedcal._table import text_table
    from skfedcal.experiments.forecasting import HALF_WIDTH, SMALLEST_EPS

    aims = {
        "temperature": "fit a temperature at all",
        "shape": "fit biases and shape",
        "accuracy": f"know the accuracy to +-{HALF_WIDTH:g}",
        "ece": f"know the ECE to +-{HALF_WIDTH:g}",
    }
    plural = "s" * (args.clients != 1)
    header = ["needed to", f"eps, {args.clients:,} client{plural}"]
    rows = []
    for name, eps in needed["eps_needed"].items():
        text = "more than 50" if eps is None else f"{_rounded_up(eps):g}"
        if name in ("accuracy", "ece") and eps == SMALLEST_EPS:
            text += " or less"
        row = [aims[name], text]
        if "clients_needed" in needed:
            row.append(f"{needed['clients_needed'][name]:,}")
        rows.append(row)
    if "clients_needed" in needed:
        header.append(f"clients, eps {args.eps:g}")
    return [text_table(header, rows)]


def _model(args: argparse.Namespace) -> Any:
    """Privacy model of the options; None is exact sums."""
    from skfedcal import privacy

    given = {"delta": args.delta, "unit": args.unit}
    options = {name: value for name, value in given.items() if value is not None}
    if args.eps is None:
        for name in options:
            raise UsageError(f"--{name} needs --eps: exact sums have none.")
        if args.model != "central":
            raise UsageError(f"--model {args.model} needs --eps.")
        return None
    if args.model in ("local", "source"):
        for name in options:
            raise UsageError(f"--{name} is not an option of --model {args.model}.")
    names = {
        "central": "CentralDP",
        "distributed": "DistributedDP",
        "local": "LocalDP",
        "source": "SourceDP",
    }
    return getattr(privacy, names[args.model])(args.eps, **options)


PLAN = Command(
    name="plan",
    summary="say what a number of clients, rows and eps will give",
    description=DESCRIPTION,
    examples=EXAMPLES,
    add_options=add_options,
    run=run,
)
