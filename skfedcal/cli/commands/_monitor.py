"""``skfedcal monitor``: a monitor in a file, period by period."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from skfedcal.cli._command import (
    SEED_WARNING,
    Command,
    UsageError,
    chance_number,
    positive_count,
)
from skfedcal.cli._input import (
    FILE_FORMS,
    add_columns,
    add_workers,
    check_file,
    check_input,
    file_name,
    is_shards,
    open_shards,
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
paid once, in the first update. In place of FILE, flower://HOST:PORT asks the live sites
of a SuperLink for the rows that they have now.

{FILE_FORMS}"""

EXAMPLES = """\
examples:
  skfedcal monitor init state.json --eps 3 --periods 52 --classes 10
  skfedcal monitor update state.json week1.npz --ledger spent.jsonl
  skfedcal monitor show state.json
  skfedcal monitor init sites.json --eps 3 --unit example --classes 2
  skfedcal monitor update sites.json flower://superlink.example.org:8443 \\
      --ca ca.crt --secret superexec.secret --n-rows 3000
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``skfedcal monitor``."""
    parser.add_argument("action", choices=("init", "update", "show"))
    parser.add_argument("state", metavar="STATE", help="file of the monitor")
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="update: rows of the period, or flower://HOST:PORT of live sites",
    )
    add_columns(parser)
    add_workers(parser)
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
    parser.add_argument(
        "--unit",
        choices=("client", "example"),
        help="init: what eps protects, all rows of a client or single ones (client)",
    )
    parser.add_argument("--name", metavar="TEXT", help="update: name of the period")
    parser.add_argument(
        "--new-reference",
        action="store_true",
        help="update: the model is a new one, compare with this period from now on",
    )
    sites = parser.add_argument_group("live sites (update)")
    for name, text in (
        ("ca", "certificate of the authority (default: none, without TLS)"),
        ("secret", "file of the SuperLink's --superexec-auth-secret-file"),
    ):
        sites.add_argument(f"--{name}", metavar="FILE", default=None, help=text)
    sites.add_argument(
        "--sites", metavar="NAMES", help="names with commas (default: who is there)"
    )
    sites.add_argument(
        "--n-rows",
        type=positive_count,
        metavar="N",
        help="public number of rows of all sites, for --unit example",
    )
    add_privacy_options(parser.add_argument_group("privacy (init; --ledger: update)"))


_OF_INIT = ("periods", "classes", "alarms", "unit", "eps", "delta", "seed")
_OF_SITES = ("ca", "secret", "sites", "n_rows")
_OF_FILE = ("columns", "input", "workers")
_OF_UPDATE = ("file", "name", "ledger", "budget", "new_reference",
              *_OF_FILE, *_OF_SITES)  # fmt: skip


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
    live = args.file.startswith("flower://")
    for name in _OF_FILE if live else _OF_SITES:
        if getattr(args, name) is not None:
            what = "live sites have their own" if live else "a file has no sites"
            raise UsageError(f"--{name.replace('_', '-')}: {what}. Leave it out.")
    if not live:
        check_file(args)
    ledger = open_ledger(args)
    monitor = CalibrationMonitor.load(args.state, ledger=ledger)
    if ledger is not None and not monitor.privacy.private:
        raise UsageError(
            "--ledger: this monitor counts without noise, nothing is paid."
        )
    if monitor.n_periods_ >= monitor.periods:
        raise ValueError(
            f"All {monitor.periods} periods are over in {args.state}, and no further "
            "one is paid for. Start another one by `skfedcal monitor init`."
        )
    number = f"period {monitor.n_periods_ + 1}"
    name = args.name or (number if live else file_name(args.file))
    console.progress(f"{number} of {monitor.periods}: {name}")
    about = {"name": name, "new_reference": args.new_reference}
    if live:
        _ask_sites(monitor, args, about)
    elif is_shards(args):
        with open_shards(args, console, "test") as shards:
            monitor.update(shards, **about)
    else:
        fed = read_federation(args, console)
        n_classes = max(2, fed.logits.shape[1]) if fed.logits.ndim == 2 else 2
        # Scores of one class less would be read as log-odds against the first one.
        if monitor.classes is not None and len(monitor.classes) != n_classes:
            raise ValueError(
                f"{args.file} has scores of {n_classes} classes, but {args.state} "
                f"counts {len(monitor.classes)}. Use the same model."
            )
        monitor.update(fed.logits, fed.labels, client_ids=fed.client_ids, **about)
    _print(monitor, args, console, ledger)


def _ask_sites(monitor: Any, args: argparse.Namespace, about: dict[str, Any]) -> None:
    from skfedcal import FederatedRunner
    from skfedcal.federation import connect

    if getattr(monitor.privacy, "unit", "") == "example" and args.n_rows is None:
        raise UsageError("This monitor protects single rows: --n-rows N is missing.")
    monitor.runner = FederatedRunner(secure=True)
    names = [n.strip() for n in (args.sites or "").split(",") if n.strip()]
    with connect(
        args.file,
        root_certificates=args.ca,
        secret=args.secret,
        insecure=args.ca is None,
        sites=names or None,
        n_rows=args.n_rows,
    ) as sites:
        monitor.update(sites, **about)


def _init(args: argparse.Namespace, console: Console) -> None:
    from skfedcal import CalibrationMonitor

    check_privacy(args)
    if os.path.exists(args.state):
        raise FileExistsError(
            f"{args.state} exists. Continue it by `skfedcal monitor update`, or pass "
            "another name."
        )
    if args.seed is not None and args.eps is not None:
        console.warning(SEED_WARNING)
    given: dict[str, Any] = {
        "periods": args.periods,
        "false_alarm_rate": args.alarms,
        "eps": args.eps,
        "delta": args.delta,
    }
    if args.classes == 1:
        raise UsageError("--classes 1: pass 2 or more.")
    single = args.unit == "example"
    if single:
        from skfedcal.privacy import CentralDP

        budget = given.pop("eps"), given.pop("delta")
        given["privacy"] = CentralDP(*budget, unit="example")
    monitor = CalibrationMonitor(
        classes=None if args.classes is None else range(args.classes),
        # One row of each client under eps, said in every result.
        max_examples_per_client=None if args.eps is None or single else 1,
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
