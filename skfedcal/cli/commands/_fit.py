"""``skfedcal fit``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from skfedcal._table import text_pairs
from skfedcal.cli._command import (
    SEED_WARNING,
    Command,
    UsageError,
    add_seed_option,
    chance_number,
    eps_number,
    positive_count,
    positive_number,
)
from skfedcal.cli._console import Console
from skfedcal.cli._files import check_input, check_output
from skfedcal.cli._methods import METHODS, method_options

DESCRIPTION = """\
Fit a calibrator on the clients in FILE and write it as JSON.

FILE is an .npz archive with the arrays
  logits   (n, n_classes), or (n,) for binary log-odds; or proba, probabilities
  labels   (n,), the column of the true class, from 0
  client   (n,), a number or a name for the owner of each row (optional: without
           it all rows are one client)
  val_logits, val_labels, val_client   rows to calibrate on (optional)
"""

EXAMPLES = """\
examples:
  skfedcal fit model.npz -o cal.json
  skfedcal fit model.npz --method temp --eps 1 -o cal.json
  skfedcal fit model.npz --method bin --n-bins 10 -o cal.json
  skfedcal fit model.npz --eps 1 --ledger spent.jsonl --budget 3 1e-5 -o cal.json
"""

INPUT = "an .npz file with the arrays 'logits' and 'labels'"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``skfedcal fit``."""
    parser.add_argument("file", metavar="FILE", help="clients, as .npz")
    parser.add_argument(
        "-o", "--output", required=True, metavar="PATH", help="JSON file to write"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing PATH")
    parser.add_argument(
        "--split",
        choices=("auto", "val", "test"),
        default="auto",
        help="rows to fit on: val_* arrays, main arrays (test), or val_* if there are "
        "any (auto, the default)",
    )
    method = parser.add_argument_group("method")
    method.add_argument(
        "--method",
        choices=METHODS,
        default="temp",
        metavar="NAME",
        help=f"{', '.join(METHODS)} (default: temp)",
    )
    method.add_argument(
        "--solver",
        choices=("auto", "newton", "grid", "average"),
        help="how temp finds its temperature (default: auto)",
    )
    method.add_argument(
        "--residual",
        choices=("bins",),
        help="what biastemp does about what is left (default: nothing)",
    )
    method.add_argument(
        "--class-prior",
        type=class_prior,
        metavar="P",
        help="class frequencies of the whole population, for biastemp and auto under "
        "--eps: uniform, private, or numbers with commas (default: unknown)",
    )
    method.add_argument(
        "--n-bins",
        type=positive_count,
        metavar="B",
        help="bins per class of bin, bins of topbin (default: 15)",
    )
    method.add_argument(
        "--n-levels",
        type=positive_count,
        metavar="M",
        help="histograms of bbq, of 2 to 2^M bins (default: 7)",
    )
    _add_privacy_options(parser.add_argument_group("privacy"))


def class_prior(text: str) -> str | list[float]:
    """Read the option: a word, or one number per class."""
    if text in ("uniform", "private"):
        return text
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not 'uniform', 'private' or numbers such as 0.7,0.3"
        ) from None


def _add_privacy_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--eps",
        type=eps_number,
        metavar="E",
        help="differential privacy of a whole client (default: none, exact sums)",
    )
    group.add_argument(
        "--delta",
        type=chance_number,
        metavar="D",
        help="chance that the bound fails (default: min(1e-5, 1 / (10 clients)))",
    )
    group.add_argument(
        "--ledger", metavar="PATH", help="JSONL file that adds up what was spent"
    )
    group.add_argument(
        "--budget",
        nargs=2,
        type=positive_number,
        metavar=("EPS", "DELTA"),
        help="refuse to spend more than this from the ledger",
    )
    add_seed_option(group, "repeatable noise: a simulation without any guarantee")


def run(args: argparse.Namespace, console: Console) -> None:
    """Fit, write and print a summary."""
    _check_options(args)
    check_input(args.file, INPUT)
    inputs = [args.file] if args.ledger is None else [args.file, args.ledger]
    check_output(args, *inputs)
    if args.seed is not None and args.eps is not None:
        console.warning(SEED_WARNING)
    console.progress(f"reading {args.file}")

    from skfedcal.data import load_federation

    federation = load_federation(args.file, split=args.split)
    calibrator = _make_calibrator(args, federation)
    n_rows, n_clients = len(federation.labels), len(federation.clients)
    # How many rows there are is not public under eps.
    rows = f"{n_rows} rows of " if args.eps is None else ""
    console.progress(
        f"fitting {type(calibrator).__name__} on {rows}{n_clients} "
        f"client{'s' * (n_clients != 1)}"
    )
    if args.eps is not None and federation.client_ids is None:
        console.warning(f"{args.file} has no array 'client': all rows are one client.")
    calibrator.fit(federation.clients)
    calibrator.save(args.output)
    console.detail(repr(calibrator.privacy_))
    data = summarize(args, calibrator, n_rows)
    console.result(_text(data), data)


def _check_options(args: argparse.Namespace) -> None:
    """Raise for options that do not go together."""
    method_options(args)
    if args.eps is None:
        for name in ("delta", "ledger", "budget"):
            if getattr(args, name) is not None:
                raise UsageError(f"--{name} needs --eps: nothing is spent without it.")
    if args.budget is not None and args.ledger is None:
        raise UsageError("--budget needs --ledger PATH, the file that adds it up.")
    if args.ledger is not None and args.seed is not None:
        raise UsageError(
            "--ledger refuses --seed: repeatable noise hides nothing. Leave out --seed "
            "for a release, or --ledger for a simulation."
        )


def _make_calibrator(args: argparse.Namespace, federation: Any) -> Any:
    import numpy as np

    import skfedcal
    from skfedcal.privacy import PrivacyLedger

    ledger = None
    if args.ledger is not None:
        budget = None if args.budget is None else tuple(args.budget)
        ledger = PrivacyLedger(args.ledger, budget=budget)
    logits = federation.logits
    n_classes = max(2, logits.shape[1]) if logits.ndim == 2 else 2
    estimator = getattr(skfedcal, METHODS[args.method].estimator)
    return estimator(
        **method_options(args),
        eps=args.eps,
        delta=args.delta,
        ledger=ledger,
        # In the file a label is a column; clients may miss some.
        classes=np.arange(n_classes),
        random_state=args.seed,
    )


def summarize(args: argparse.Namespace, calibrator: Any, n_rows: int) -> dict[str, Any]:
    """Return what was fitted and what it cost, as JSON values."""
    report, history = calibrator.privacy_, calibrator.history_
    data = {
        "method": args.method,
        **METHODS[args.method].describe(calibrator),
        "used": bool(calibrator.improves_),
        "eps": report.eps if report.private else None,
        "delta": report.delta if report.private else None,
        "unit": report.unit,
        "simulated": report.private and not report.secure,
        "clients": calibrator.n_clients_,
        "rows": None if report.private else n_rows,
        "classes": len(calibrator.classes_),
        "rounds": calibrator.n_rounds_,
        "bytes_up": sum(record.bytes_up for record in history),
        "bytes_down": sum(record.bytes_down for record in history),
        "output": str(Path(args.output)),
    }
    ledger = calibrator.ledger
    if ledger is not None:
        delta = report.delta if ledger.budget is None else ledger.budget[1]
        data["ledger"] = {
            "path": args.ledger,
            "debits": len(ledger),
            "eps_spent": ledger.spent(delta),
            "delta": delta,
            "eps_budget": None if ledger.budget is None else ledger.budget[0],
        }
    return data


def _text(data: dict[str, Any]) -> str:
    method = METHODS[data["method"]]
    pairs = [("method", method.estimator)]
    pairs += [(name, _shown(data[name])) for name in method.facts]
    if not data["used"]:
        pairs.append(("used", "no: the map is not told from noise, input is kept"))
    eps = "none: exact sums, no differential privacy"
    if data["eps"] is not None:
        eps = f"{data['eps']:g} (delta {data['delta']:.3g}) per {data['unit']}"
        if data["simulated"]:
            eps += ", SIMULATED from a seed: no guarantee"
    rows = "" if data["rows"] is None else f" ({data['rows']} rows)"
    pairs += [
        ("eps spent", eps),
        ("clients", f"{data['clients']}{rows}"),
        ("classes", f"{data['classes']}"),
        ("rounds", f"{data['rounds']}"),
        ("bytes", f"{data['bytes_up']} up, {data['bytes_down']} down, per client"),
    ]
    if "ledger" in data:
        pairs.append(("ledger", _ledger_text(data["ledger"])))
    return text_pairs([*pairs, ("written", data["output"])])


def _shown(fact: Any) -> str:
    return f"{fact:.6g}" if isinstance(fact, float) else str(fact)


def _ledger_text(ledger: dict[str, Any]) -> str:
    of = "" if ledger["eps_budget"] is None else f" of {ledger['eps_budget']:g}"
    return (
        f"{ledger['path']}: eps {ledger['eps_spent']:.4g}{of} spent at delta "
        f"{ledger['delta']:g} in {ledger['debits']} debit"
        f"{'s' * (ledger['debits'] != 1)}"
    )


FIT = Command(
    name="fit",
    summary="fit a calibrator on the clients in an .npz file",
    description=DESCRIPTION,
    examples=EXAMPLES,
    add_options=add_options,
    run=run,
)
