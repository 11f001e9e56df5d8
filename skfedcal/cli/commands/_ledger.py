"""``skfedcal ledger``, and ``skfedcal verify``: a result against ledgers."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skfedcal._table import text_pairs, text_table
from skfedcal.cli._command import (
    Command,
    Console,
    UsageError,
    chance_number,
    positive_number,
    to_stderr,
)
from skfedcal.cli._input import check_input, check_output

if TYPE_CHECKING:
    from skfedcal.privacy import PrivacyLedger

DESCRIPTION = """\
Verify a privacy ledger and print what was spent.

All records are checked from the first on. The last line of the result is the head, the
hash of the last record. Store it where it cannot be changed together with the file, and
pass it later as --head: a file that was cut or put back to an older copy is refused.

--create begins an empty ledger. A site refuses to start without the file of its ledger,
as a lost one would mean a fresh budget.

--raise allows more from now on. It adds a record with the new budget and the reason,
signed with --key; all earlier records stay. A site that has a key accepts no other
raise. The new eps holds at the sum of the deltas of all budgets. Then write the new
max-eps into site.toml, and the new head wherever the old one is kept, and reload the
site.

--summary writes a data-protection summary: what was processed, the unit that is
protected, eps spent and left, who sees what, and the questions of a data protection
impact assessment (GDPR Art. 35(7)) with answers from the files, or with what the
controller has to answer. --result adds what a saved calibrator, result or histogram
states; if it contradicts the ledger, the exit code is 1.
"""

EXAMPLES = """\
examples:
  skfedcal ledger ledger.jsonl
  skfedcal ledger ledger.jsonl --head "$(cat /safe/place/head)"
  skfedcal ledger --create ledger.jsonl
  skfedcal ledger ledger.jsonl --raise 5 --reason "second study, board of May" \\
      --key hospital-a.key
  skfedcal ledger ledger.jsonl --summary --result cal.json -o summary.md
"""

LEDGER_FILE = "a ledger written by `skfedcal fit --ledger` or PrivacyLedger"
# Of a ledger that was never given a budget, which would name one.
DEFAULT_DELTA = 1e-5
SUMMARY_ENDINGS = (".txt", ".md", ".json")


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
    parser.add_argument(
        "--raise",
        type=positive_number,
        dest="raised",
        metavar="EPS",
        help="raise the budget to EPS, and to --delta if given",
    )
    parser.add_argument(
        "--reason", metavar="TEXT", help="with --raise: who decided it, and why"
    )
    parser.add_argument(
        "--key", metavar="FILE", help="key of the site: signs and checks raises"
    )
    group = parser.add_argument_group("data-protection summary")
    group.add_argument(
        "--summary", action="store_true", help="write a data-protection summary"
    )
    group.add_argument(
        "--result",
        metavar="FILE",
        action="append",
        dest="results",
        default=[],
        help="saved calibrator, result of sites or histogram that the ledger paid for; "
        "may be given several times",
    )
    group.add_argument(
        "--format",
        choices=("text", "markdown"),
        default="text",
        help="form on stdout (default: text; --json for JSON)",
    )
    group.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help=f"file to write instead, by its ending ({' '.join(SUMMARY_ENDINGS)})",
    )
    group.add_argument("--force", action="store_true", help="replace an existing PATH")


def run(args: argparse.Namespace, console: Console) -> int:
    """Verify, add up and print."""
    _check_summary(args)
    if args.create:
        # Never an old one: `os.O_EXCL`.
        try:
            os.close(os.open(args.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            raise FileExistsError(
                f"{args.file} exists, and a ledger is never begun anew. Leave out "
                "--create to read it, or pass another name."
            ) from None
    check_input(args.file, LEDGER_FILE)
    if (args.raised is None) != (args.reason is None):
        raise UsageError("--raise EPS and --reason TEXT belong together.")
    from skfedcal.privacy import PrivacyLedger
    from skfedcal.privacy.site_ledger import SiteLedger

    key = None
    if args.key is not None:
        from skfedcal.federation import SiteKey

        check_input(args.key, "a key of `skfedcal flower keys`")
        key = SiteKey.load(args.key)
        SiteLedger(args.file, signed=key.signed)  # refuses raises of others
    ledger = PrivacyLedger(args.file, head=args.head)
    if args.raised is not None:
        _raise(ledger, args, None if key is None else key.sign)
    history = ledger.records()
    records = [record for record in history if record["mode"] not in ("raise", "exact")]
    levels = ledger.budgets()
    budget = _budget(history)
    delta = args.delta or (budget[1] if budget else DEFAULT_DELTA)
    if args.summary:
        return _summarize(ledger, delta, budget, args, console)
    names = sorted({record["population"] for record in records})
    data = {
        "file": args.file,
        "debits": len(records),
        "exact": sum(record["mode"] == "exact" for record in history),
        "simulated": sum(record["mode"] == "simulation" for record in records),
        "budget": budget,
        "raises": [
            {"time": record["t"], **record["details"]}
            for record in history
            if record["mode"] == "raise"
        ],
        # Filters of each budget may fail.
        "holds_at": sum(delta for _, delta in levels) or None,
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
    return 0


def _check_summary(args: argparse.Namespace) -> None:
    """Refuse options of the summary before anything is read or written."""
    if not args.summary:
        for name, given in (
            ("--result", args.results),
            ("--format", args.format != "text"),
            ("-o", args.output),
        ):
            if given:
                raise UsageError(f"{name} needs --summary.")
        return
    if args.output is not None:
        ending = Path(args.output).suffix.lower()
        if ending not in SUMMARY_ENDINGS:
            raise UsageError(
                f"-o {args.output}: the ending {ending!r} is not known. Expected "
                f"{', '.join(SUMMARY_ENDINGS)}."
            )
        check_output(args, args.file, *args.results)


def _summarize(
    ledger: PrivacyLedger,
    delta: float,
    budget: list[float] | None,
    args: argparse.Namespace,
    console: Console,
) -> int:
    from skfedcal._files import write_whole
    from skfedcal._json import dump
    from skfedcal.cli.commands import _summary

    for path in args.results:
        check_input(path, _summary.RESULT_FILE)
    results = [_summary.Result.read(path) for path in args.results]
    checked = args.head is not None
    data = _summary.summary_of(ledger, delta, budget, results, head_checked=checked)
    forms = {".txt": _summary.as_text, ".md": _summary.as_markdown}
    if args.output is None:
        form = ".txt" if args.format == "text" else ".md"
        console.result(forms[form](data), data)
    else:
        form = Path(args.output).suffix.lower()
        text = forms[form](data) if form in forms else dump(data, indent=1)
        content = f"{text}\n".encode()
        write_whole(args.output, lambda stream: stream.write(content))
        console.result(f"Written: {args.output}", {"output": args.output})
    for text in data["contradictions"]:
        to_stderr(f"skfedcal: error: {text}.")
    return 1 if data["contradictions"] else 0


def _raise(
    ledger: PrivacyLedger,
    args: argparse.Namespace,
    sign: Callable[[bytes], bytes] | None,
) -> None:
    levels = ledger.budgets()
    delta = args.delta or (levels[-1][1] if levels else DEFAULT_DELTA)
    ledger.raise_budget((args.raised, delta), reason=args.reason, sign=sign)


def _budget(history: list[dict[str, Any]]) -> list[float] | None:
    """Return the budget in force: the last raise, or less if a debit was under less."""
    from skfedcal.privacy.ledger_file import Totals

    totals = Totals(history)
    totals.catch_up("the ledger")
    return None if totals.budget is None else list(totals.budget)


def _text(data: dict[str, Any]) -> str:
    budget = data["budget"]
    pairs = [
        ("debits", f"{data['debits']}, of which {data['simulated']} simulated"),
        ("budget", f"eps {budget[0]:g}, delta {budget[1]:g}" if budget else "none"),
    ]
    for record in data["raises"]:
        eps, delta = record["budget"]
        day = datetime.fromtimestamp(record["time"], UTC).date()
        text = f"to eps {eps:g}, delta {delta:g} on {day}: {record['reason']}"
        pairs.append(("raised", text))
    if data["raises"]:
        text = f"eps {budget[0]:g} at delta {data['holds_at']:g}, the sum of all deltas"
        pairs.append(("holds", text))
    if data["exact"]:
        pairs.append(("exact answers", f"{data['exact']}, which no budget covers"))
    rows = [
        [name, str(account["debits"]), f"{account['eps']:.6g}"]
        for name, account in data["populations"].items()
    ]
    header = ["population", "debits", f"eps at delta={data['delta']:g}"]
    table = f"\n{text_table(header, rows)}\n" if rows else ""
    return f"{text_pairs(pairs)}\n{table}\n{text_pairs([('head', data['head'])])}"


LEDGER = Command(
    name="ledger",
    summary="verify a privacy ledger; print what was spent, or a summary for officers",
    description=DESCRIPTION,
    examples=EXAMPLES,
    add_options=add_options,
    run=run,
)

VERIFY_DESCRIPTION = """\
Check the result of a run over sites: that the operator signed it and nobody changed it,
that its rounds follow from each other, that its statements follow from what sites were
asked, and that ledgers of sites have its debits.

Exit codes: 0 the result is valid; 4 it cannot be read; 6 it is not signed, was changed
or has another signer; 7 the chain of its releases is broken; 8 a ledger does not have
the debits that it states; 9 it states what its runs do not say.
"""

VERIFY_EXAMPLES = """\
examples:
  skfedcal verify result.json --roster roster.json
  skfedcal verify result.json --roster roster.json --ledger hospital-a=ledger.jsonl
"""

EXIT_CODES = {"file": 4, "signature": 6, "chain": 7, "ledger": 8, "statement": 9}


def add_verify_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``skfedcal verify``."""
    parser.add_argument("file", metavar="RESULT", help="result of a run, JSON")
    parser.add_argument(
        "--roster", metavar="FILE", help="roster with the key of the operator"
    )
    parser.add_argument(
        "--ledger",
        metavar="[SITE=]FILE",
        action="append",
        dest="ledgers",
        default=[],
        help="ledger of a site; may be given several times",
    )


def run_verify(args: argparse.Namespace, console: Console) -> int:
    """Check and print."""
    check_input(args.file, "the result of a run over sites, JSON")
    from skfedcal.compose.site_results import check_ledger, verify_result
    from skfedcal.exceptions import ResultError
    from skfedcal.federation import Roster

    if args.roster is not None:
        check_input(args.roster, "a roster of `skfedcal flower keys`")
    roster = None if args.roster is None else Roster.load(args.roster)
    ledgers = []
    for text in args.ledgers:
        site, _, path = text.rpartition("=")
        if not path:
            raise UsageError(f"--ledger {text}: pass FILE or SITE=FILE.")
        ledgers.append((site, path))
    checked = ["signature", "chain", "statements"]
    unused: list[str] = []
    try:
        result = verify_result(args.file, roster=roster)
        for site, path in ledgers:
            runs = check_ledger(result.content, site, path)
            (checked if runs else unused).append(f"ledger {Path(path).name}")
    except ResultError as error:
        to_stderr(f"skfedcal: error: {error}")
        return EXIT_CODES[error.reason]
    content = result.content
    if roster is None:
        console.warning(
            "no --roster: the signature is that of the key in the file, which anybody "
            "can make."
        )
    text = f"{result}\nvalid: {', '.join(checked)}"
    if unused:
        text += f"\nNOT checked, of sites that are in no sum: {', '.join(unused)}"
    console.result(
        text,
        {
            "valid": checked,
            "not_checked": unused,
            "gain": content["gain"],
            "left_out": content["left_out"],
            "privacy": content["privacy"],
            "versions": content["versions"],
        },
    )
    return 0


VERIFY = Command(
    name="verify",
    summary="check the signed result of a run over sites, also against ledgers",
    description=VERIFY_DESCRIPTION,
    examples=VERIFY_EXAMPLES,
    add_options=add_verify_options,
    run=run_verify,
)
