"""``skfedcal evaluate``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from skfedcal._table import text_table
from skfedcal.cli._command import SEED_WARNING, Command
from skfedcal.cli._input import (
    CALIBRATOR,
    FILE_FORMS,
    add_input,
    check_file,
    check_input,
    load_calibrator,
    read_columns,
    read_scores,
)
from skfedcal.cli._options import (
    add_privacy_options,
    check_privacy,
    ledger_facts,
    ledger_text,
    open_ledger,
)

if TYPE_CHECKING:
    from skfedcal.cli._command import Console

DESCRIPTION = f"""\
Measure the probabilities in FILE, before and after a calibrator that `skfedcal fit`
wrote: accuracy and calibration, each error next to what a perfect model would show.
With --eps the clients in FILE send counts with noise instead, and what is printed are
private estimates with an interval.

{FILE_FORMS}"""

EXAMPLES = """\
examples:
  skfedcal evaluate model.npz
  skfedcal evaluate model.npz --calibrator cal.json --json
  skfedcal evaluate model.npz --eps 1 --ledger spent.jsonl --budget 3 1e-5
"""

COLUMNS = {
    "accuracy": ("acc %", 100, ".2f"),
    "cwECE": ("cwECE %", 100, ".2f"),
    "floor": ("floor %", 100, ".2f"),
    "ECE": ("ECE %", 100, ".2f"),
    "NLL": ("NLL", 1, ".4f"),
    "Brier": ("Brier", 1, ".4f"),
    "confidence": ("confidence %", 100, ".2f"),
}
LEGEND = (
    "cwECE, ECE: gap between probability and frequency, over classes and for the "
    "predicted\nclass. floor: cwECE of a perfect model on as many rows. confidence: "
    "mean probability\nof the predicted class; above acc: over-confident."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``skfedcal evaluate``."""
    add_input(parser, "logits and labels")
    parser.add_argument(
        "--calibrator", metavar="CAL", help=f"{CALIBRATOR}, to measure too"
    )
    parser.add_argument(
        "--split",
        choices=("test", "val"),
        default="test",
        help="rows to measure: main arrays (test, the default) or val_* arrays",
    )
    add_privacy_options(parser.add_argument_group("privacy"))


def run(args: argparse.Namespace, console: Console) -> None:
    """Measure and print."""
    check_privacy(args)
    check_file(args)
    if args.calibrator is not None:
        check_input(args.calibrator, CALIBRATOR)
    if args.seed is not None and args.eps is not None:
        console.warning(SEED_WARNING)
    console.progress(f"reading {args.file}")
    scores = read_scores(args.file, split=args.split, columns=read_columns(args))
    if scores.labels is None:
        raise ValueError(
            f"{args.file} has no labels, which are needed to measure calibration."
        )
    if len(scores.labels) < 2:
        raise ValueError(f"{args.file} has one row; nothing is measured on it.")
    tables = {"base": scores.proba()}
    if args.calibrator is not None:
        calibrator = load_calibrator(args.calibrator)
        scores.check_classes(calibrator, args.file, args.calibrator)
        tables[type(calibrator).__name__.removesuffix("Calibrator")] = (
            calibrator.predict_proba(scores.rows_for(calibrator))[
                :, scores.places(calibrator)
            ]
        )
    if args.eps is None:
        _exact(args, scores, tables, console)
    else:
        _private(args, scores, tables, console)


def _exact(
    args: argparse.Namespace, scores: Any, tables: dict[str, Any], console: Console
) -> None:
    from skfedcal.experiments.comparison.cells import measure

    found = []
    for name, proba in tables.items():
        console.progress(f"measuring {name}: {len(proba)} rows")
        values = measure(
            scores.labels, proba, tables["base"], seed=args.seed or 0, n_bins=15
        )
        found.append({"name": name, **{key: values[key] for key in COLUMNS}})
    rows = [
        [row["name"]]
        + [f"{row[key] * scale:{form}}" for key, (_, scale, form) in COLUMNS.items()]
        for row in found
    ]
    header = ["rows", *(name for name, _, _ in COLUMNS.values())]
    text = f"{text_table(header, rows)}\n{LEGEND}"
    data = {"rows": len(scores.labels), "private": False, "scores": found}
    console.result(text, data)


def _private(
    args: argparse.Namespace, scores: Any, tables: dict[str, Any], console: Console
) -> None:
    """Estimates from noisy counts; one release for each table of probabilities."""
    from skfedcal.exceptions import BudgetExceededError

    if scores.client is None:
        console.warning(f"{args.file} has no clients: all rows are one client.")
    ledger = open_ledger(args)
    found: list[dict[str, Any]] = []
    refused = None
    for name, proba in tables.items():
        console.progress(f"counting {name} with noise")
        try:
            found.append({"name": name, **_estimates(args, scores, proba, ledger)})
        except BudgetExceededError as error:
            refused = error
            break
    # What was paid for is shown, also where the rest is more than the budget.
    if found:
        _show_private(args, found, ledger, console)
    if refused is not None:
        raise refused


def _estimates(
    args: argparse.Namespace, scores: Any, proba: Any, ledger: Any
) -> dict[str, Any]:
    from skfedcal.evaluation import ScoreHistogram
    from skfedcal.privacy import CentralDP

    hist = ScoreHistogram.fit(
        proba,
        scores.labels,
        client_ids=scores.client,
        kind="top",
        classes=range(proba.shape[1]),
        input_type="proba",
        privacy=CentralDP(args.eps, delta=args.delta),
        max_examples_per_client=1,  # as the text below says; a warning would follow
        ledger=ledger,
        random_state=args.seed,
    )
    estimates = {"accuracy": hist.accuracy(0.0), "ECE": hist.ece()}
    found: dict[str, Any] = {
        key: {
            "value": float(value),
            "low": float(value.low),
            "high": float(value.high),
        }
        for key, value in estimates.items()
    }
    return {**found, "delta": float(hist.privacy_.delta)}


def _show_private(
    args: argparse.Namespace,
    found: list[dict[str, Any]],
    ledger: Any,
    console: Console,
) -> None:
    """Print estimates, and what they cost."""
    rows, vague = [], []
    for record in found:
        for key in ("accuracy", "ECE"):
            value, low, high = (100 * record[key][k] for k in ("value", "low", "high"))
            rows.append(
                [record["name"], f"{key} %", f"{value:.2f}", f"{low:.2f} to {high:.2f}"]
            )
            if low <= 0 and high >= 100:
                vague.append(f"{key} of {record['name']}")
    delta, n_releases = found[0].pop("delta"), len(found)
    for record in found[1:]:
        del record["delta"]
    spent = (
        f"eps {args.eps:g} (delta {delta:.3g}) was spent "
        + (f"{n_releases} times, once for each table" if n_releases > 1 else "once")
        + (", SIMULATED from a seed: no guarantee" * (args.seed is not None))
        + ". The privacy\nunit is a client: one row of each client counts."
    )
    if vague:
        spent += (
            f"\nNothing was learned about {', '.join(vague)}: there are too few "
            "clients for this eps."
        )
    data: dict[str, Any] = {
        "private": True,
        "eps": args.eps,
        "delta": delta,
        "releases": n_releases,
        "simulated": args.seed is not None,
        "scores": found,
    }
    if ledger is not None:
        data["ledger"] = ledger_facts(args, ledger, args.delta or delta)
        spent += f"\nledger {ledger_text(data['ledger'])}"
    text = text_table(["rows", "", "estimate", "95 % interval"], rows, n_left=2)
    console.result(f"{text}\n{spent}", data)


EVALUATE = Command(
    name="evaluate",
    summary="measure the calibration of the probabilities in a file",
    description=DESCRIPTION,
    examples=EXAMPLES,
    add_options=add_options,
    run=run,
)
