"""Options that several commands share: methods by short name, and privacy."""

from __future__ import annotations

import argparse
from math import isfinite
from typing import Any

from skfedcal.cli._command import (
    UsageError,
    add_seed_option,
    chance_number,
    eps_number,
    positive_number,
)
from skfedcal.methods.registry import methods

# Calibration methods by the word of the command line.
METHODS = {m.command: m for m in methods("calibrator") if m.command}


def method_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of ``args.method`` that were given.

    Options that belong to other methods are an error.
    """
    names = sorted({name for method in METHODS.values() for name in method.options})
    given = {name: getattr(args, name) for name in names}
    given = {name: value for name, value in given.items() if value is not None}
    for key in given:
        if key in METHODS[args.method].options:
            continue
        owners = [other for other, m in METHODS.items() if key in m.options]
        raise UsageError(
            f"--{key.replace('_', '-')} is an option of --method "
            f"{' or '.join(owners)}, not of {args.method}. Leave it out."
        )
    return given


# Where a ledger without a budget is read, if its debits have no eps at their own delta.
DELTA = 1e-5


def add_unit_option(parser: argparse._ActionsContainer) -> None:
    """Add what eps protects."""
    parser.add_argument(
        "--unit",
        choices=("client", "example"),
        help="what eps protects: a whole client (default) or one row",
    )


def add_privacy_options(group: argparse._ArgumentGroup) -> None:
    """Add budget, ledger and seed."""
    group.add_argument(
        "--eps",
        type=eps_number,
        metavar="E",
        help="privacy budget epsilon of a whole client: the smaller, the more noise "
        "(default: none, exact sums)",
    )
    group.add_argument(
        "--delta",
        type=chance_number,
        metavar="D",
        help="delta of (eps, delta) differential privacy, a small probability "
        "(default: min(1e-5, 1 / (10 clients)))",
    )
    group.add_argument(
        "--ledger", metavar="PATH", help="JSONL file that records the privacy spent"
    )
    group.add_argument(
        "--budget",
        nargs=2,
        type=positive_number,
        metavar=("EPS", "DELTA"),
        help="limit of all fits in the ledger together; a fit beyond it is refused",
    )
    add_seed_option(group, "seed of the noise: a simulation without any guarantee")


def check_privacy(args: argparse.Namespace) -> None:
    """Raise for options that do not go together."""
    if args.eps is None:
        for name in ("delta", "unit", "ledger", "budget"):
            if getattr(args, name, None) is not None:
                raise UsageError(
                    f"--{name} needs --eps: without it no privacy is spent."
                )
    if args.budget is not None and args.ledger is None:
        raise UsageError(
            "--budget needs --ledger PATH, the file that records what is spent."
        )
    if args.budget is not None and args.budget[1] >= 1:
        raise UsageError(
            f"--budget {args.budget[0]:g} {args.budget[1]:g}: DELTA is not below 1; "
            "1e-5 is usual."
        )
    if args.ledger is not None and args.seed is not None:
        raise UsageError(
            "--ledger cannot be combined with --seed: repeatable noise gives no "
            "privacy. Leave out --seed "
            "for a release, or --ledger for a simulation."
        )


def central_model(args: argparse.Namespace) -> Any:
    """Return the privacy model of ``--eps``, ``--delta`` and ``--unit``, or None."""
    if args.eps is None:
        return None
    from skfedcal.privacy import CentralDP

    return CentralDP(args.eps, delta=args.delta, unit=args.unit or "client")


def open_ledger(args: argparse.Namespace) -> Any:
    """Return the ledger that pays, or None."""
    if args.ledger is None:
        return None
    from skfedcal.privacy import PrivacyLedger

    budget = None if args.budget is None else tuple(args.budget)
    return PrivacyLedger(args.ledger, budget=budget)


def ledger_facts(args: argparse.Namespace, ledger: Any, delta: float) -> dict[str, Any]:
    """Return what the ledger says after a release of `delta`, as JSON values.

    The delta of a release may be no more than rounding takes; the sum of several has no
    eps there, and is read at a larger one.
    """
    places = [delta, DELTA] if ledger.budget is None else [ledger.budget[1]]
    found = {place: ledger.spent(place) for place in places}
    at = next((place for place in places if isfinite(found[place])), places[-1])
    return {
        "path": args.ledger,
        "debits": len(ledger),
        "eps_spent": found[at] if isfinite(found[at]) else None,
        "delta": at,
        "eps_budget": None if ledger.budget is None else ledger.budget[0],
    }


def ledger_text(facts: dict[str, Any]) -> str:
    """Say on one line what `ledger_facts` has."""
    of = "" if facts["eps_budget"] is None else f" of {facts['eps_budget']:g}"
    spent = "inf" if facts["eps_spent"] is None else f"{facts['eps_spent']:.4g}"
    return (
        f"{facts['path']}: eps {spent}{of} spent at delta {facts['delta']:g} in "
        f"{facts['debits']} debit{'s' * (facts['debits'] != 1)}"
    )
