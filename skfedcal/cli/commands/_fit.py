"""``skfedcal fit``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from skfedcal._table import text_pairs
from skfedcal.cli._command import (
    SEED_WARNING,
    Command,
    Console,
    UsageError,
    class_prior,
    positive_count,
)
from skfedcal.cli._input import (
    FILE_FORMS,
    NO_CLIENTS,
    add_input,
    add_workers,
    check_file,
    check_output,
    open_clients,
)
from skfedcal.cli._options import (
    METHODS,
    add_privacy_options,
    add_unit_option,
    central_model,
    check_privacy,
    ledger_facts,
    ledger_text,
    method_options,
    open_ledger,
)

DESCRIPTION = f"""\
Fit a calibrator on the clients in FILE and write it as JSON.

{FILE_FORMS}
Without clients all rows are one client.
"""

EXAMPLES = """\
examples:
  skfedcal fit model.npz -o cal.json
  skfedcal fit model.npz --method temp --eps 1 -o cal.json
  skfedcal fit model.npz --method bin --n-bins 10 -o cal.json
  skfedcal fit hospitals.csv --eps 1 --unit example -o cal.json
  skfedcal fit 'part-*.npz' --eps 1 --workers 4 -o cal.json
  skfedcal fit model.npz --eps 1 --ledger spent.jsonl --budget 3 1e-5 -o cal.json
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``skfedcal fit``."""
    add_input(parser)
    add_workers(parser)
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
        default="auto",
        metavar="NAME",
        help=f"{', '.join(METHODS)} (default: auto)",
    )
    method.add_argument(
        "--solver",
        choices=("auto", "newton", "grid", "average"),
        help="how temp finds its temperature (default: auto)",
    )
    method.add_argument(
        "--residual",
        choices=("bins",),
        help="how biastemp corrects remaining errors (default: not at all)",
    )
    method.add_argument(
        "--class-prior",
        type=class_prior,
        metavar="P",
        help="class frequencies of the whole population, for auto, shape and "
        "biastemp under --eps: uniform, private, or comma-separated numbers (default: "
        "unknown)",
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
    method.add_argument(
        "--hold-back",
        action=argparse.BooleanOptionalAction,
        help="without --eps, compare the map with the input on a fifth of the rows, "
        "and return the input where that is better (default: with auto only)",
    )
    privacy = parser.add_argument_group("privacy")
    add_privacy_options(privacy)
    add_unit_option(privacy)


def run(args: argparse.Namespace, console: Console) -> None:
    """Fit, write and print a summary."""
    method_options(args)
    check_privacy(args)
    if args.hold_back is not None and args.eps is not None:
        option = "--hold-back" if args.hold_back else "--no-hold-back"
        raise UsageError(
            f"{option} is for exact fits; with --eps nothing is held back. Leave it "
            "out."
        )
    check_file(args)
    inputs = [args.file] if args.ledger is None else [args.file, args.ledger]
    check_output(args, *inputs)
    if args.seed is not None and args.eps is not None:
        console.warning(SEED_WARNING)
    with open_clients(args, console, args.split) as given:
        calibrator = _make_calibrator(args, given.classes)
        # How many rows there are is not public under eps.
        rows = f"{given.n_rows} rows of " if args.eps is None else ""
        console.progress(
            f"fitting {type(calibrator).__name__} on {rows}{given.n_clients} "
            f"client{'s' * (given.n_clients != 1)}"
        )
        if args.eps is not None and not given.have_ids:
            console.warning(NO_CLIENTS.format(args.file))
        calibrator.fit(given.clients)
    calibrator.save(args.output)
    console.detail(repr(calibrator.privacy_))
    data = summarize(args, calibrator, given.n_rows)
    console.result(_text(data), data)


def _make_calibrator(args: argparse.Namespace, classes: Any) -> Any:
    hold_back = {} if args.hold_back is None else {"hold_back": args.hold_back}
    return METHODS[args.method].load()(
        **method_options(args),
        **hold_back,
        privacy=central_model(args),
        ledger=open_ledger(args),
        classes=classes,
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
        data["ledger"] = ledger_facts(args, ledger, report.delta)
    return data


def _text(data: dict[str, Any]) -> str:
    method = METHODS[data["method"]]
    pairs = [("method", method.estimator_name)]
    pairs += [(name, _shown(data[name])) for name in method.facts]
    if not data["used"]:
        why = (
            "not better on held-back rows"
            if data["eps"] is None
            else "not distinguishable from noise"
        )
        pairs.append(("used", f"no: {why}, input unchanged"))
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
        pairs.append(("ledger", ledger_text(data["ledger"])))
    return text_pairs([*pairs, ("written", data["output"])])


def _shown(fact: Any) -> str:
    return f"{fact:.6g}" if isinstance(fact, float) else str(fact)


FIT = Command(
    name="fit",
    summary="fit a calibrator on the clients in a file",
    description=DESCRIPTION,
    examples=EXAMPLES,
    add_options=add_options,
    run=run,
)
