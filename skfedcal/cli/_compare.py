"""Options and work that ``skfedcal compare`` and ``skfedcal report`` share."""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from skfedcal.cli._command import (
    UsageError,
    chance_number,
    class_prior,
    eps_number,
    positive_count,
    positive_number,
    seed_number,
)
from skfedcal.cli._console import to_stderr
from skfedcal.cli._input import file_name, read_federation
from skfedcal.cli._methods import METHODS

if TYPE_CHECKING:
    from skfedcal.cli._console import Console
    from skfedcal.experiments import Comparison

# What ``--vary`` may change, and how its values are read.
VARY = {
    "rounds": positive_count,
    "beta": positive_number,
    "eps": eps_number,
    "bins": positive_count,
    "clip": positive_number,
    "clients": positive_count,
}

# By name of the command line; the first is a form of bbq.
NAMES = (*METHODS, "bbq-all")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what is compared, and how."""
    what = parser.add_argument_group("comparison")
    what.add_argument(
        "--methods",
        nargs="+",
        choices=NAMES,
        metavar="NAME",
        help=f"some of {', '.join(NAMES)} (default: temp biastemp bbq bbq-all opvector "
        "vector mlp)",
    )
    what.add_argument(
        "--eps",
        nargs="+",
        type=eps_number,
        default=[None, 3.0, 1.0, 0.5],
        metavar="E",
        help="budgets of a client; none adds no noise (default: none 3 1 0.5)",
    )
    what.add_argument(
        "--delta", type=chance_number, metavar="D", help="of private fits"
    )
    what.add_argument(
        "--seeds", type=positive_count, default=3, metavar="N", help="runs (default: 3)"
    )
    what.add_argument(
        "--first-seed", type=seed_number, default=0, metavar="N", help="(default: 0)"
    )
    what.add_argument(
        "--vary",
        nargs="+",
        metavar=("NAME", "VALUE"),
        help=f"run all with several values of one of {', '.join(VARY)}",
    )
    what.add_argument(
        "--class-prior",
        type=class_prior,
        metavar="P",
        help="public class frequencies, for methods that can use them: uniform, "
        "private, or comma-separated numbers",
    )
    _add_rows_options(parser.add_argument_group("rows and rounds"))
    work = parser.add_argument_group("work")
    work.add_argument(
        "--jobs",
        type=positive_count,
        metavar="N",
        help="processes (default: one per core)",
    )
    work.add_argument(
        "--store",
        metavar="DIR",
        help="folder for finished cells (default: the cache folder of the user)",
    )
    work.add_argument(
        "--fresh", action="store_true", help="ignore stored cells and store none"
    )


def _add_rows_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--clients",
        type=positive_count,
        metavar="N",
        help="number of clients that rows without clients are assigned to "
        "(default: 100), or that are sampled from the given clients (default: all)",
    )
    group.add_argument(
        "--beta",
        type=positive_number,
        default=0.1,
        metavar="B",
        help="label skew of rows that are assigned to clients (default: 0.1)",
    )
    group.add_argument(
        "--test-size",
        type=chance_number,
        default=0.5,
        metavar="S",
        help="share of rows for testing, if FILE has no val rows (default: 0.5)",
    )
    group.add_argument(
        "--rounds", type=positive_count, metavar="N", help="rounds of all methods"
    )
    group.add_argument(
        "--cohort",
        type=positive_count,
        metavar="N",
        help="clients drawn for each round (default: all)",
    )


def read_vary(args: argparse.Namespace) -> dict[str, list[Any]] | None:
    """Return values by name."""
    if args.vary is None:
        return None
    name, *texts = args.vary
    if name not in VARY:
        raise UsageError(f"--vary {name}: expected one of {', '.join(VARY)}")
    if not texts:
        raise UsageError(f"--vary {name}: expected values after it")
    try:
        return {name: [VARY[name](text) for text in texts]}
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"--vary {name}: {error}") from None


def run_comparison(args: argparse.Namespace, console: Console) -> Comparison:
    """Read FILE and compare; an interrupt says how to go on."""
    vary = read_vary(args)
    federation = read_federation(args, console)

    from skfedcal.experiments import compare
    from skfedcal.experiments._store import cache_folder
    from skfedcal.federation import FederatedRunner

    rows = federation if federation.val is None else federation.val
    if rows.client_ids is None:
        console.progress(
            f"{args.file} has no clients: its rows are assigned to "
            f"{args.clients or 100} clients with label skew, Dirichlet beta = "
            f"{args.beta:g}"
        )
    store = None if args.fresh else args.store or cache_folder()
    jobs = args.jobs or os.cpu_count() or 1
    console.progress(f"comparing with {jobs} process{'es' * (jobs != 1)}")
    try:
        found = compare(
            federation,
            methods=args.methods,
            eps=args.eps,
            seeds=range(args.first_seed, args.first_seed + args.seeds),
            vary=vary,
            n_clients=args.clients,
            beta=args.beta,
            test_size=args.test_size,
            delta=args.delta,
            class_prior=args.class_prior,
            runner=FederatedRunner(
                n_rounds=args.rounds,
                cohort="full" if args.cohort is None else "independent",
                cohort_size=args.cohort,
            ),
            store=store,
            n_jobs=jobs,
            progress=not console.quiet,
        )
    except KeyboardInterrupt:
        if store is not None:
            to_stderr(
                f"[finished cells are stored in {store}; run the same command to "
                f"continue]"
            )
        raise
    extra = {"file": file_name(args.file), "command": command_text(args)}
    return replace(found, settings={**found.settings, **extra})


def command_text(args: argparse.Namespace) -> str:
    """Return the command that makes the same comparison."""
    words = ["skfedcal", "compare", file_name(args.file)]
    if args.columns:
        words += ["--columns", *args.columns]
    if args.methods:
        words += ["--methods", *args.methods]
    words += ["--eps", *("none" if e is None else _exact(e) for e in args.eps)]
    words += ["--seeds", str(args.seeds)]
    if args.first_seed:
        words += ["--first-seed", str(args.first_seed)]
    if args.vary:
        words += ["--vary", *args.vary]
    for name in ("delta", "clients", "rounds", "cohort"):
        value = getattr(args, name)
        if value is not None:
            words += [f"--{name}", _exact(value)]
    if args.class_prior is not None:
        prior = args.class_prior
        words.append("--class-prior")
        words.append(prior if isinstance(prior, str) else ",".join(map(str, prior)))
    words += ["--beta", _exact(args.beta), "--test-size", _exact(args.test_size)]
    return shlex.join(words)


def _exact(value: float) -> str:
    """Return a number that is read back as the same, short if it can be."""
    short = f"{value:g}"
    if isinstance(value, int):
        return str(value)
    return short if float(short) == value else repr(value)
