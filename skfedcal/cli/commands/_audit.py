"""``skfedcal audit``."""

from __future__ import annotations

import argparse
from math import isnan
from typing import Any

from skfedcal._table import text_pairs
from skfedcal.cli._command import (
    Command,
    UsageError,
    add_seed_option,
    chance_number,
    positive_count,
    positive_number,
)
from skfedcal.cli._console import Console
from skfedcal.cli._methods import METHODS

DESCRIPTION = """\
Attack the privacy of a calibrator, or of a site, and print what was found.

Calibrator (--method): whole fits are run with and without a worst-case client among a
few ordinary ones; no data are needed. What clients send is checked in integers, the
noise for its size, its shape, its lattice and its freshness, and a distinguisher that
knows everything but the noise is compared with the claimed trade-off curve. A pass
means that this attack found nothing.

Site (--site): a scripted dishonest server asks copies of the site everything that it
can think of, in this process. The rows are those of the site, the ledger is a copy: the
file of the ledger is not changed. The table says what was tried, what was learnt and
what the site was charged for it. Time is not measured.

The exit status of a failed audit is 2.
"""

EXAMPLES = """\
examples:
  skfedcal audit --method temp --eps 1
  skfedcal audit --method bin --eps 1 --runs 3000
  skfedcal audit --method topbin --eps 0.5 --unit example --json
  skfedcal audit --site site.toml
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``skfedcal audit``."""
    parser.add_argument(
        "--site",
        metavar="FILE",
        help="audit a site against a dishonest server, from its configuration",
    )
    parser.add_argument(
        "--thorough",
        action="store_true",
        help="with --site: ten times as many answers, all worlds in all stages",
    )
    parser.add_argument(
        "--method",
        choices=METHODS,
        default="temp",
        metavar="NAME",
        help=f"{', '.join(METHODS)} (default: temp)",
    )
    parser.add_argument(
        "--eps",
        type=positive_number,
        default=1.0,
        metavar="E",
        help="claim to audit (default: 1)",
    )
    parser.add_argument(
        "--delta",
        type=chance_number,
        metavar="D",
        help="of the claim (default: 1e-5 for Gaussian noise)",
    )
    parser.add_argument(
        "--unit",
        choices=("client", "example"),
        default="client",
        help="privacy unit (default: client)",
    )
    parser.add_argument(
        "--runs",
        type=positive_count,
        default=1500,
        metavar="N",
        help="fits with the canary, and as many without, 20 at least (default: 1500)",
    )
    parser.add_argument(
        "--alpha",
        type=chance_number,
        default=0.01,
        metavar="A",
        help="probability that a correct method fails (default: 0.01)",
    )
    add_seed_option(parser, "repeat an audit (default: noise from the system)")


def run(args: argparse.Namespace, console: Console) -> None:
    """Audit and print a certificate."""
    import skfedcal
    from skfedcal.privacy import CentralDP, audit_estimator

    if args.runs < 20:
        raise UsageError(
            f"--runs {args.runs} is too few for a conclusion; pass at least 20."
        )
    if args.site is not None:
        _run_site(args, console)
        return
    if args.thorough:
        raise UsageError("--thorough is used with --site only: pass --runs.")
    name = METHODS[args.method].estimator
    model = CentralDP(args.eps, delta=args.delta, unit=args.unit)
    console.progress(f"auditing {name}: {2 * args.runs} fits")
    result = audit_estimator(
        getattr(skfedcal, name)(privacy=model),
        n_runs=args.runs,
        alpha=args.alpha,
        random_state=args.seed,
    )
    data = {"method": args.method, **result.to_dict()}
    console.result(_text(name, result), data)
    if not result.passed:
        failed = ", ".join(check.name for check in result.failures)
        raise ValueError(f"{name} does not keep eps={args.eps:g}: {failed}.")


def _run_site(args: argparse.Namespace, console: Console) -> None:
    from skfedcal.cli._site_audit import audit_site_file

    unused = {"method": "temp", "delta": None, "seed": None, "eps": 1.0, "runs": 1500}
    given = [f"--{name}" for name, v in unused.items() if getattr(args, name) != v]
    if given:
        raise UsageError(f"{given[0]} is not used with --site: leave it out.")
    audit_site_file(args.site, args.thorough, console)


def _text(name: str, result: Any) -> str:
    power = f"{result.power:.2f} against twice the eps"
    pairs = [
        ("method", name),
        ("claim", str(result.claim)),
        ("verdict", "PASSED" if result.passed else "FAILED"),
        ("lower bound", result.bound),
        ("runs", f"{result.n_runs} with the canary, {result.n_runs} without"),
        ("false alarm", f"{result.alpha:g} at most"),
        ("power", "not known" if isnan(result.power) else power),
        *(("tried", text) for text in result.tried),
    ]
    return f"{text_pairs(pairs)}\n\n{result.table()}"


AUDIT = Command(
    name="audit",
    summary="attack the privacy of a method, or of a site, and print a certificate",
    description=DESCRIPTION,
    examples=EXAMPLES,
    add_options=add_options,
    run=run,
)
