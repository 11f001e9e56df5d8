"""``skfedcal audit``: of a method, or of a site against a dishonest server."""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Sequence
from dataclasses import fields
from math import isnan
from typing import TYPE_CHECKING, Any

from skfedcal._table import text_pairs
from skfedcal.cli._command import (
    CheckFailedError,
    Command,
    Console,
    UsageError,
    add_seed_option,
    chance_number,
    positive_count,
    positive_number,
)
from skfedcal.cli._input import check_input
from skfedcal.cli._options import METHODS

if TYPE_CHECKING:
    from skfedcal.federation.attacks import Finding, Target
    from skfedcal.federation.policy import SitePolicy

# Widths of the columns that hold sentences, and of those that hold numbers.
_WIDTHS = (26, 40, 29)
_NUMBERS = (8, 8, 11)
_CHARGED = """\
answered: requests that the site computed an answer to, from its rows.
eps charged: largest charge to one copy of the ledger. Each request goes to a fresh copy
of the site and of its ledger; the requests of one binary search go to the same copy."""


def audit_site_file(path: str, thorough: bool, console: Console) -> None:
    """Attack the site of a configuration file and print what was learnt.

    Raises CheckFailedError: If something was learnt.
    """
    from skfedcal.federation.attacks import Target, attacked, site_from_file

    console.progress(f"reading {path}")
    target = Target.of(
        site_from_file(path), n_samples=4000 if thorough else 400, thorough=thorough
    )
    findings = attacked(target, progress=console.progress)
    learnt = [finding for finding in findings if finding.learnt]
    data = {
        "site": target.copies.name,
        "passed": not learnt,
        "requests": len(target.entries),
        "answered_plain": len(target.plain),
        "answered_masked": len(target.masked),
        "findings": [finding.to_dict() for finding in findings],
    }
    console.result(_finding_text(target, findings), data)
    if learnt:
        raise CheckFailedError(
            f"Site {target.copies.name!r} gives a dishonest server what its policy "
            f"does not allow: {len(learnt)} of {len(findings)} attacks succeeded."
        )


def _finding_text(target: Target, findings: Sequence[Finding]) -> str:
    copies = target.copies
    failed = sum(bool(finding.learnt) for finding in findings)
    left = "none: the site does not record the privacy that its answers spend"
    if copies.has_ledger:
        left = f"a copy, with eps {copies.remaining:.4g} left"
    pairs = [
        ("site", copies.name),
        ("rows", f"{len(copies.rows)}, {target.schema.n_columns} columns"),
        ("policy", _policy_text(copies.policy)),
        ("ledger", left),
        (
            "requests",
            f"{len(target.entries)} kinds that an honest server can send; of these "
            f"{len(target.plain)} are answered plain, {len(target.masked)} masked",
        ),
        ("verdict", f"FAILED: {failed} attacks succeeded" if failed else "PASSED"),
    ]
    if not target.plain and not target.masked:
        pairs.append(
            ("warning", "the site refused every request, so that nothing was tested")
        )
    return f"{text_pairs(pairs)}\n\n{findings_table(findings)}\n\n{_CHARGED}"


def _policy_text(policy: SitePolicy) -> str:
    """Conditions that are not as they are without a word."""
    said = []
    for name in (f.name for f in fields(policy)):
        value = getattr(policy, name)
        if name in ("min_clients", "noise") or value != getattr(type(policy)(), name):
            text = ", ".join(value) if isinstance(value, tuple) else str(value)
            said.append(f"{name.replace('_', '-')} {text}")
    return "; ".join(said)


def findings_table(findings: Sequence[Finding]) -> str:
    """One row per attack: what was tried, what came of it, and what it was charged."""
    header = (
        "attack",
        "what a dishonest server tried",
        "outcome",
        "messages",
        "answered",
        "eps charged",
    )
    lines = [_line(header), _line(tuple("-" * w for w in (*_WIDTHS, *_NUMBERS)))]
    for finding in findings:
        lines += _wrapped(finding)
    return "\n".join(lines)


def _wrapped(finding: Finding) -> list[str]:
    outcome = f"LEARNT: {finding.learnt}" if finding.learnt else "nothing learnt"
    if finding.learnt and finding.bits:
        outcome += f" ({finding.bits:.3g} bits)"
    cells = [
        textwrap.wrap(text, width)
        for text, width in zip(
            (finding.attack, finding.tried, outcome), _WIDTHS, strict=True
        )
    ]
    eps = "no ledger" if math.isnan(finding.eps) else f"{finding.eps:.3g}"
    numbers = [[str(finding.messages)], [str(finding.answered)], [eps]]
    height = max(map(len, cells))
    columns: list[Any] = [
        part + [""] * (height - len(part)) for part in (*cells, *numbers)
    ]
    return [_line(row) for row in zip(*columns, strict=True)]


def _line(cells: Sequence[str]) -> str:
    left = [cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=False)]
    right = [cell.rjust(width) for cell, width in zip(cells[3:], _NUMBERS, strict=True)]
    return "  ".join([*left, *right]).rstrip()


DESCRIPTION = """\
Attack the privacy of a calibrator, or of a site, and print what was found.

Calibrator (--method): whole fits are run with and without a worst-case client among a
few ordinary ones; no data are needed. The audit checks that no client sends more than
its bound, that the noise is as large as stated, of the stated distribution and drawn
anew each time, and that an attacker who knows everything but the noise cannot tell the
two kinds of fits apart better than eps allows. A pass means that this attack found
nothing.

Site (--site): a script plays a dishonest server and sends all attacks that it knows to
copies of the site, in this process. The rows are those of the site. The ledger is a
copy: its file is not changed. The table says what was tried, what was learnt and how
much eps the site charged for it. What the time of an answer reveals is not measured.

The exit code of a failed audit is 1.
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
        help="with --site: ten times as many answers, and every change of the rows in "
        "every stage of a masked sum",
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
        help="privacy budget that the method claims (default: 1)",
    )
    parser.add_argument(
        "--delta",
        type=chance_number,
        metavar="D",
        help="delta that the method claims (default: 1e-5 for Gaussian noise)",
    )
    parser.add_argument(
        "--unit",
        choices=("client", "example"),
        default="client",
        help="what is protected: a client or one example (default: client)",
    )
    parser.add_argument(
        "--runs",
        type=positive_count,
        default=1500,
        metavar="N",
        help="fits with the worst-case client (canary), and as many without; at least "
        "20 (default: 1500)",
    )
    parser.add_argument(
        "--alpha",
        type=chance_number,
        default=0.01,
        metavar="A",
        help="probability that a correct method fails (default: 0.01)",
    )
    add_seed_option(
        parser, "makes the audit repeatable (default: noise of the operating system)"
    )


def run(args: argparse.Namespace, console: Console) -> None:
    """Audit and print a certificate."""
    from skfedcal.privacy import CentralDP, audit_estimator

    if args.runs < 20:
        raise UsageError(
            f"--runs {args.runs} is too few for a conclusion; pass at least 20."
        )
    if args.site is not None:
        _run_site(args, console)
        return
    if args.thorough:
        raise UsageError("--thorough needs --site; with --method pass a larger --runs.")
    estimator = METHODS[args.method].load()
    name = estimator.__name__
    model = CentralDP(args.eps, delta=args.delta, unit=args.unit)
    console.progress(f"auditing {name}: {2 * args.runs} fits")
    result = audit_estimator(
        estimator(privacy=model),
        n_runs=args.runs,
        alpha=args.alpha,
        random_state=args.seed,
    )
    data = {"method": args.method, **result.to_dict()}
    console.result(_text(name, result), data)
    if not result.passed:
        failed = ", ".join(check.name for check in result.failures)
        raise CheckFailedError(
            f"{name} violates its claim of eps = {args.eps:g}: {failed}."
        )


def _run_site(args: argparse.Namespace, console: Console) -> None:
    unused = {"method": "temp", "delta": None, "seed": None, "eps": 1.0, "runs": 1500}
    given = [f"--{name}" for name, v in unused.items() if getattr(args, name) != v]
    if given:
        raise UsageError(f"{given[0]} is not used with --site: leave it out.")
    check_input(args.site, "the settings of a site, TOML")
    audit_site_file(args.site, args.thorough, console)


def _text(name: str, result: Any) -> str:
    power = f"{result.power:.2f} if the true eps were twice the claim"
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
