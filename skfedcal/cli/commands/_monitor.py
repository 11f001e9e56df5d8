"""``skfedcal monitor``: a monitor in a file, period by period."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from skfedcal.cli._command import (
    SEED_WARNING,
    Command,
    UsageError,
    chance_number,
    positive_count,
)
from skfedcal.cli._input import (
    EXPECTED,
    FILE_FORMS,
    add_columns,
    check_input,
    file_name,
    read_federation,
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

MONITOR_FILE = "a monitor written by `skfedcal monitor init`"

DESCRIPTION = f"""\
Follow the calibration of a model over many periods under one budget. `init` makes the
file STATE, `update` counts the rows of one more period, with noise under --eps, and
`show` prints what was found: calibration and accuracy, alarms, and whether a
recalibration is worth its budget. The budget of all periods is fixed by `init` and is
paid once, in the first update.

{FILE_FORMS}"""

EXAMPLES = """\
examples:
  skfedcal monitor init state.json --eps 3 --periods 52 --classes 10
  skfedcal monitor update state.json week1.npz --ledger spent.jsonl
  skfedcal monitor show state.json
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``skfedcal monitor``."""
    parser.add_argument("action", choices=("init", "update", "show"))
    parser.add_argument("state", metavar="STATE", help="file of the monitor")
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help="rows of the period, for update"
    )
    add_columns(parser)
    parser.add_argument(
        "--periods", type=positive_count, metavar="N", help="init: how many (52)"
    )
    parser.add_argument(
        "--classes", type=positive_count, metavar="N", help="init: number of classes"
    )
    parser.add_argument(
        "--alarms",
        type=chance_number,
        metavar="P",
        help="init: chance of a false alarm in all periods (0.05)",
    )
    parser.add_argument("--name", metavar="TEXT", help="update: name of the period")
    parser.add_argument(
        "--new-reference",
        action="store_true",
        help="update: the model is a new one, compare with this period from now on",
    )
    add_privacy_options(parser.add_argument_group("privacy (init; --ledger: update)"))


_OF_INIT = ("periods", "classes", "alarms", "eps", "delta", "seed")
_OF_UPDATE = ("file", "columns", "name", "ledger", "budget", "new_reference")


def run(args: argparse.Namespace, console: Console) -> None:
    """Start, update or show a monitor."""
    allowed = {"init": _OF_INIT, "update": _OF_UPDATE, "show": ()}[args.action]
    for name in (*_OF_INIT, *_OF_UPDATE):
        if name not in allowed and getattr(args, name) not in (None, False):
            word = "FILE" if name == "file" else f"--{name.replace('_', '-')}"
            other = "update" if name in _OF_UPDATE else "init"
            raise UsageError(f"{word} belongs to `monitor {other}`. Leave it out.")
    if args.action == "init":
        _init(args, console)
        return
    check_input(args.state, MONITOR_FILE)
    from skfedcal import CalibrationMonitor

    if args.action == "show":
        _print(CalibrationMonitor.load(args.state), args, console, None)
        return
    if args.file is None:
        raise UsageError("`monitor update` needs FILE, the rows of the period.")
    if args.budget is not None and args.ledger is None:
        raise UsageError("--budget needs --ledger PATH.")
    check_input(args.file, EXPECTED, folder=True)
    ledger = open_ledger(args)
    monitor = CalibrationMonitor.load(args.state, ledger=ledger)
    if ledger is not None and not monitor.privacy.private:
        raise UsageError(
            "--ledger: this monitor counts without noise, nothing is paid."
        )
    fed = read_federation(args, console)
    name = args.name or file_name(args.file)
    console.progress(f"period {monitor.n_periods_ + 1} of {monitor.periods}: {name}")
    monitor.update(
        fed.logits,
        fed.labels,
        client_ids=fed.client_ids,
        name=name,
        new_reference=args.new_reference,
    )
    _print(monitor, args, console, ledger)


def _init(args: argparse.Namespace, console: Console) -> None:
    from skfedcal import CalibrationMonitor

    check_privacy(args)
    if args.seed is not None and args.eps is not None:
        console.warning(SEED_WARNING)
    given = {"periods": args.periods, "false_alarm_rate": args.alarms}
    monitor = CalibrationMonitor(
        args.eps,
        delta=args.delta,
        classes=None if args.classes is None else range(args.classes),
        # One row of each client under eps, said in every result.
        max_examples_per_client=None if args.eps is None else 1,
        random_state=args.seed,
        path=args.state,
        **{key: value for key, value in given.items() if value is not None},
    )
    _print(monitor, args, console, None)


def _print(
    monitor: Any, args: argparse.Namespace, console: Console, ledger: Any
) -> None:
    data: dict[str, Any] = {
        "state": args.state,
        "periods": monitor.periods,
        "names": monitor.names_,
        "alarms": [alarm._asdict() for alarm in monitor.alarms_],
        "metrics": {},
    }
    text = monitor.summary()
    for metric in ("ece", "gap", "accuracy", "log_loss"):
        columns = monitor.series(metric)._asdict()
        data["metrics"][metric] = {k: v.tolist() for k, v in columns.items()}
    if ledger is not None:
        data["ledger"] = ledger_facts(args, ledger, monitor.privacy_.delta)
        text += f"\n{ledger_text(data['ledger'])}"
    console.result(text, data)


MONITOR = Command(
    "monitor",
    "calibration over many periods under one budget",
    DESCRIPTION,
    EXAMPLES,
    add_options,
    run,
)
