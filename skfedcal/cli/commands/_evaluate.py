"""``skfedcal evaluate``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from skfedcal._table import text_table
from skfedcal.cli._command import SEED_WARNING, Command, EmptyAnswerError
from skfedcal.cli._input import (
    CALIBRATOR,
    FILE_FORMS,
    NO_CLIENTS,
    add_input,
    add_workers,
    check_file,
    check_input,
    is_shards,
    load_calibrator,
    open_shards,
    read_scores,
)
from skfedcal.cli._options import (
    add_privacy_options,
    add_unit_option,
    central_model,
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
  skfedcal evaluate hospitals.csv --eps 1 --unit example
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

SHARDS_LEGEND = (
    "From sums over buckets of scores. cwECE, ECE: gap between probability and\n"
    "frequency, over classes and for the predicted class, without that of a perfect\n"
    "model on as many rows."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``skfedcal evaluate``."""
    add_input(parser, "logits and labels")
    add_workers(parser)
    parser.add_argument(
        "--calibrator", metavar="CAL", help=f"{CALIBRATOR}, to measure too"
    )
    parser.add_argument(
        "--split",
        choices=("test", "val"),
        default="test",
        help="rows to measure: main arrays (test, the default) or val_* arrays",
    )
    privacy = parser.add_argument_group("privacy")
    add_privacy_options(privacy)
    add_unit_option(privacy)
    privacy.add_argument(
        "--force",
        action="store_true",
        help="spend the budget also where next to nothing would be learned",
    )


def run(args: argparse.Namespace, console: Console) -> None:
    """Measure and print."""
    check_privacy(args)
    check_file(args)
    if args.calibrator is not None:
        check_input(args.calibrator, CALIBRATOR)
    if args.seed is not None and args.eps is not None:
        console.warning(SEED_WARNING)
    if is_shards(args):
        with open_shards(args, console, args.split) as shards:
            _sharded(args, shards, console)
        return
    console.progress(f"reading {args.file}")
    scores = read_scores(args)
    if scores.labels is None:
        raise ValueError(
            f"{args.file} has no labels, which are needed to measure calibration."
        )
    if len(scores.labels) < 2:
        raise ValueError(f"{args.file} has one row; nothing is measured on it.")
    if args.calibrator is not None:
        calibrator = load_calibrator(args.calibrator)
        scores = scores.for_classes(calibrator, args.file, args.calibrator)
    tables = {"base": scores.proba()}
    if args.calibrator is not None:
        tables[type(calibrator).__name__.removesuffix("Calibrator")] = (
            calibrator.predict_proba(scores.rows_for(calibrator))[
                :, scores.places(calibrator)
            ]
        )
    if args.eps is None:
        _exact(args, scores, tables, console)
    else:
        if scores.client is None:
            console.warning(NO_CLIENTS.format(args.file))
        owned = (scores.labels, scores.client)
        given = {name: (proba, *owned) for name, proba in tables.items()}
        _private(args, given, scores.n_clients, len(tables["base"]), console)


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


# Entries of the report on shards, and their columns.
REPORTED = {
    "accuracy": ("acc %", 100, ".2f"),
    "classwise ece": ("cwECE %", 100, ".2f"),
    "ece": ("ECE %", 100, ".2f"),
    "log loss": ("NLL", 1, ".4f"),
    "brier": ("Brier", 1, ".4f"),
}


def _sharded(args: argparse.Namespace, shards: Any, console: Console) -> None:
    """Measure on the workers, which return sums."""
    tables = {"base": shards}
    if args.calibrator is not None:
        calibrator = load_calibrator(args.calibrator)
        name = type(calibrator).__name__.removesuffix("Calibrator")
        tables[name] = shards.calibrated(calibrator)
    if args.eps is not None:
        given = {name: (found, None, None) for name, found in tables.items()}
        _private(args, given, len(shards), shards.n_rows, console)
        return
    from skfedcal import federated_report

    found: list[dict[str, Any]] = []
    for name, clients in tables.items():
        console.progress(f"measuring {name} on shards")
        report: dict[str, Any] = federated_report(
            clients, random_state=args.seed
        ).to_dict(intervals=True)
        # Two classes have one error.
        values = {key: report[key] for key in REPORTED if key in report}
        found.append({"name": name, **values})
    shown = {key: style for key, style in REPORTED.items() if key in found[0]}
    rows = [
        [row["name"]]
        + [f"{row[key]['value'] * x:{form}}" for key, (_, x, form) in shown.items()]
        for row in found
    ]
    text = text_table(["rows", *(name for name, _, _ in shown.values())], rows)
    data = {"rows": shards.n_rows, "private": False, "scores": found}
    console.result(f"{text}\n{SHARDS_LEGEND}", data)


def _private(
    args: argparse.Namespace,
    tables: dict[str, Any],
    n_clients: int,
    n_rows: int,
    console: Console,
) -> None:
    """Estimates from noisy counts; one release for each table of probabilities."""
    from skfedcal.exceptions import BudgetExceededError

    if not args.force:
        _check_worth(args, n_rows if args.unit == "example" else n_clients)
    ledger = open_ledger(args)
    found: list[dict[str, Any]] = []
    refused = None
    for name, given in tables.items():
        console.progress(f"counting {name} with noise")
        try:
            found.append({"name": name, **_estimates(args, ledger, *given)})
        except BudgetExceededError as error:
            refused = error
            break
    # What was paid for is shown, also where the rest is more than the budget.
    if found:
        _show_private(args, found, ledger, console)
    if refused is not None:
        raise refused


def _check_worth(args: argparse.Namespace, n_units: int) -> None:
    """Raise if the intervals are expected to be as wide as what can be; public."""
    from skfedcal.evaluation import expected_error

    model = central_model(args)
    for key, name in (("accuracy", "accuracy"), ("ECE", "ece")):
        # Twice on each side: an interval over half of what is possible.
        if n_units > 1 and float(expected_error(name, n_units, privacy=model)) < 0.25:
            continue
        rows = args.unit == "example"
        unit = ("row" if rows else "client") + "s" * (n_units != 1)
        more = "" if rows else ", and so would --unit example, which protects one row"
        raise EmptyAnswerError(
            f"With {n_units} {unit} and --eps {args.eps:g} the interval of {key} would "
            "span half of all values or more. Nothing was spent. More "
            f"{unit.removesuffix('s')}s or a larger eps would help{more} (`skfedcal "
            "plan` says how much); --force goes on."
        )


def _estimates(
    args: argparse.Namespace, ledger: Any, rows: Any, labels: Any, owners: Any
) -> dict[str, Any]:
    from skfedcal.evaluation import ScoreHistogram

    in_memory = labels is not None
    hist = ScoreHistogram.fit(
        rows,
        labels,
        client_ids=owners,
        kind="top",
        classes=range(rows.shape[1]) if in_memory else None,
        input_type="proba" if in_memory else "logits",
        privacy=central_model(args),
        # As the text below says; a warning would follow.
        max_examples_per_client=None if args.unit == "example" else 1,
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
            if not (low > 0 or high < 100):  # true for NaN, too
                vague.append(f"{key} of {record['name']}")
    delta, n_releases = found[0].pop("delta"), len(found)
    for record in found[1:]:
        del record["delta"]
    spent = (
        f"eps {args.eps:g} (delta {delta:.3g}) was spent "
        + (f"{n_releases} times, once for each table" if n_releases > 1 else "once")
        + (", SIMULATED from a seed: no guarantee" * (args.seed is not None))
        + ". The privacy\nunit is "
        + (
            "one row; all rows count."
            if args.unit == "example"
            else "a client: one row of each client counts."
        )
    )
    if vague:
        spent += (
            f"\nNothing was learned about {', '.join(vague)}: there are too few "
            f"{'rows' if args.unit == 'example' else 'clients'} for this eps."
        )
    data: dict[str, Any] = {
        "private": True,
        "eps": args.eps,
        "delta": delta,
        "unit": args.unit or "client",
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
