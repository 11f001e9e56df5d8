"""``skfedcal ledger``."""

from __future__ import annotations

import argparse
import os
from typing import Any

from skfedcal._table import text_pairs, text_table
from skfedcal.cli._command import Command, Console, chance_number
from skfedcal.cli._input import check_input

DESCRIPTION = """\
Verify a privacy ledger and print what was spent.

All records are checked from the first on. The last line of the result is the head, the
hash of the last record. Store it where it cannot be changed together with the file, and
pass it later as --head: a file that was cut or put back to an older copy is refused.

--create begins an empty ledger. A site refuses to start without the file of its ledger,
as a lost one would mean a fresh budget.
"""

EXAMPLES = """\
examples:
  skfedcal ledger ledger.jsonl
  skfedcal ledger ledger.jsonl --head "$(cat /safe/place/head)"
  skfedcal ledger --create ledger.jsonl
"""

LEDGER_FILE = "a ledger written by `skfedcal fit --ledger` or PrivacyLedger"
# Of a ledger that was never given a budget, which would name one.
DEFAULT_DELTA = 1e-5


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``skfedcal ledger``."""
    parser.add_argument("file", metavar="FILE", help="privacy ledger, JSONL")
    parser.add_argument(
        "--head", metavar="HASH", help="head written down earlier; must occur in FILE"
    )
    parser.add_argument(
        "--delta",
        type=chance_number,
        metavar="D",
        help="delta at which eps is stated (default: that of the budget, else 1e-5)",
    )
    parser.add_argument(
        "--create", action="store_true", help="begin an empty ledger; FILE must be new"
    )


def run(args: argparse.Namespace, console: Console) -> None:
    """Verify, add up and print."""
    if args.create:
        # Never an old one: `os.O_EXCL`.
        os.close(os.open(args.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    check_input(args.file, LEDGER_FILE)
    from skfedcal.privacy import PrivacyLedger

    ledger = PrivacyLedger(args.file, head=args.head)
    records = ledger.records()
    budget = _budget(records)
    delta = args.delta or (budget[1] if budget else DEFAULT_DELTA)
    names = sorted({record["population"] for record in records})
    data = {
        "file": args.file,
        "debits": len(records),
        "simulated": sum(record["mode"] == "simulation" for record in records),
        "budget": budget,
        "delta": delta,
        "populations": {
            name: {
                "debits": sum(record["population"] == name for record in records),
                "eps": ledger.spent(delta, name),
            }
            for name in names
        },
        "head": ledger.head,
    }
    console.result(_text(data), data)


def _budget(records: list[dict[str, Any]]) -> list[float] | None:
    """Return the smallest budget that a record was made under."""
    budgets = [(record["details"] or {}).get("budget") for record in records]
    pairs = [pair for pair in budgets if pair is not None]
    return [min(values) for values in zip(*pairs, strict=True)] if pairs else None


def _text(data: dict[str, Any]) -> str:
    budget = data["budget"]
    pairs = [
        ("debits", f"{data['debits']}, of which {data['simulated']} simulated"),
        ("budget", f"eps {budget[0]:g}, delta {budget[1]:g}" if budget else "none"),
    ]
    rows = [
        [name, str(account["debits"]), f"{account['eps']:.6g}"]
        for name, account in data["populations"].items()
    ]
    header = ["population", "debits", f"eps at delta={data['delta']:g}"]
    table = f"\n{text_table(header, rows)}\n" if rows else ""
    return f"{text_pairs(pairs)}\n{table}\n{text_pairs([('head', data['head'])])}"


LEDGER = Command(
    name="ledger",
    summary="verify a privacy ledger and print what was spent",
    description=DESCRIPTION,
    examples=EXAMPLES,
    add_options=add_options,
    run=run,
)
