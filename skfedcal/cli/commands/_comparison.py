"""``skfedcal compare`` and ``skfedcal report``."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skfedcal._files import write_whole
from skfedcal.cli._command import (
    Command,
    UsageError,
    chance_number,
    class_prior,
    eps_number,
    positive_count,
    positive_number,
    seed_number,
    to_stderr,
)
from skfedcal.cli._input import (
    FILE_FORMS,
    add_input,
    add_workers,
    check_file,
    check_output,
    file_name,
    is_shards,
    open_shards,
    read_federation,
)
from skfedcal.experiments.presets import printed
from skfedcal.methods.registry import configurations, short_name

if TYPE_CHECKING:
    from skfedcal.cli._command import Console
    from skfedcal.experiments import Comparison
    from skfedcal.experiments.report.verdict import Verdict


def clip_value(text: str) -> float | tuple[float, float]:
    """Read a bound, or a pair of bounds such as 10/50."""
    first, mark, second = text.partition("/")
    if not mark:
        return positive_number(text)
    return positive_number(first), positive_number(second)


def word_or_none(text: str) -> str | None:
    """Read a name; ``none`` is None."""
    return None if text == "none" else text


# What ``--vary`` may change, and how its values are read.
VARY: dict[str, Callable[[str], Any]] = {
    "rounds": positive_count,
    "beta": positive_number,
    "eps": eps_number,
    "bins": positive_count,
    "clip": clip_value,
    "clients": positive_count,
    "solver": str,
    "weighting": word_or_none,
    "privacy": str,
}

# Methods and their variants, by their words of the command line.
NAMES = tuple(short_name(n) for n, (m, _) in configurations().items() if m.command)
DEFAULT = [short_name(n) for n, (m, _) in configurations().items() if m.compared]
# Methods of the paper, which have presets; FedCal is FedMLP here.
PRESETS = {short_name(name): name for name in printed()}


def add_comparison_options(parser: argparse.ArgumentParser) -> None:
    """Add what is compared, and how."""
    what = parser.add_argument_group("comparison")
    what.add_argument(
        "--methods",
        nargs="+",
        choices=list(dict.fromkeys([*NAMES, *PRESETS])),
        metavar="NAME",
        help=f"some of {', '.join(NAMES)} (default: {' '.join(DEFAULT)})",
    )
    what.add_argument(
        "--preset",
        choices=("printed", "amplified"),
        help="methods as the paper on private federated calibration prints them: "
        f"{', '.join(PRESETS)} (12 rounds of 10 clients unless --rounds and --cohort "
        "are given, zCDP, no result is refused); amplified: with Poisson cohorts, "
        "whose randomness lowers the noise",
    )
    what.add_argument(
        "--eps",
        nargs="+",
        type=eps_number,
        default=[None, 3.0, 1.0, 0.5],
        metavar="E",
        help="privacy budgets of a client; none: no noise (default: none 3 1 0.5)",
    )
    what.add_argument(
        "--delta", type=chance_number, metavar="D", help="delta of fits with eps"
    )
    what.add_argument(
        "--seeds",
        type=positive_count,
        default=3,
        metavar="N",
        help="how often each fit is repeated, with another seed (default: 3)",
    )
    what.add_argument(
        "--first-seed",
        type=seed_number,
        default=0,
        metavar="N",
        help="first of these seeds (default: 0)",
    )
    what.add_argument(
        "--vary",
        nargs="+",
        metavar=("NAME", "VALUE"),
        help=f"repeat all fits for several values of one of {', '.join(VARY)}",
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
        help="number of processes (default: one per core)",
    )
    work.add_argument(
        "--store",
        metavar="DIR",
        help="folder for finished cells (default: .skfedcal/cells, here)",
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
        "--rounds",
        type=positive_count,
        metavar="N",
        help="number of rounds of every method",
    )
    group.add_argument(
        "--cohort",
        type=positive_count,
        metavar="N",
        help="clients drawn for each round (default: all)",
    )
    group.add_argument(
        "--sampling",
        choices=("independent", "poisson", "permuted"),
        help="how a cohort is drawn (default: independent); poisson: each client by "
        "chance, which lowers the noise; permuted: all clients in turn",
    )
    group.add_argument(
        "--reassign",
        action="store_true",
        help="ignore the clients in FILE and assign its rows anew (--clients, --beta)",
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


def read_methods(args: argparse.Namespace) -> list[Any] | None:
    """Return names, or presets."""
    if args.preset is None:
        missing = sorted(set(args.methods or ()) - set(NAMES))
        if missing:
            raise UsageError(f"--methods {missing[0]} needs --preset.")
        if args.sampling is not None and args.cohort is None:
            raise UsageError("--sampling needs --cohort, the clients of a round.")
        return args.methods
    if args.sampling is not None:
        raise UsageError("--preset has its own cohorts; leave out --sampling.")
    known = printed(amplified=args.preset == "amplified")
    words = args.methods or list(PRESETS)
    missing = [word for word in words if word not in PRESETS]
    if missing:
        raise UsageError(
            f"--methods {missing[0]} has no preset; those of the paper are "
            f"{', '.join(PRESETS)}."
        )
    return [known[PRESETS[word]] for word in words]


def run_comparison(args: argparse.Namespace, console: Console) -> Comparison:
    """Read FILE and compare; an interrupt says how to go on."""
    read_vary(args)
    read_methods(args)
    if is_shards(args):
        if args.reassign:
            raise UsageError("--reassign: clients in shards stay as they are.")
        with open_shards(args, console, "test") as shards:
            return _compared(args, console, shards, 1)
    federation = read_federation(args, console)
    if args.reassign:
        for part in (federation, federation.val):
            if part is not None:
                part.client_ids = None
    rows = federation if federation.val is None else federation.val
    if rows.client_ids is None:
        console.progress(
            f"{args.file} has no clients: its rows are assigned to "
            f"{args.clients or 100} clients with label skew, Dirichlet beta = "
            f"{args.beta:g}"
        )
    return _compared(args, console, federation, args.jobs or os.cpu_count() or 1)


def _compared(
    args: argparse.Namespace, console: Console, clients: Any, jobs: int
) -> Comparison:
    from skfedcal.experiments import compare
    from skfedcal.experiments.store import project_store
    from skfedcal.federation import FederatedRunner

    _check_prior(args.class_prior, clients)
    store = None if args.fresh else args.store or project_store()
    console.progress(f"comparing with {jobs} process{'es' * (jobs != 1)}")
    if store is not None:
        console.progress(f"finished cells are kept in {store}")
    try:
        found = compare(
            clients,
            methods=read_methods(args),
            eps=args.eps,
            seeds=range(args.first_seed, args.first_seed + args.seeds),
            vary=read_vary(args),
            n_clients=args.clients,
            beta=args.beta,
            test_size=args.test_size,
            delta=args.delta,
            class_prior=args.class_prior,
            runner=FederatedRunner(
                n_rounds=args.rounds,
                cohort="full"
                if args.cohort is None
                else args.sampling or "independent",
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
    if args.input:
        words += ["--input", args.input]
    if args.methods:
        words += ["--methods", *args.methods]
    if args.preset:
        words += ["--preset", args.preset]
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
    if args.sampling:
        words += ["--sampling", args.sampling]
    if args.reassign:
        words.append("--reassign")
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


def _check_prior(prior: str | list[float] | None, clients: Any) -> None:
    """Refuse class frequencies that all methods would be left out for."""
    n_classes = getattr(clients, "n_classes", None)
    if n_classes is None and getattr(clients, "logits", None) is not None:
        n_classes = max(2, clients.logits[:1].reshape(1, -1).shape[1])
    if isinstance(prior, list) and n_classes not in (None, len(prior)):
        raise ValueError(
            f"--class-prior has {len(prior)} numbers, and there are {n_classes} "
            "classes. Pass one number per class, or uniform."
        )


COMPARE_DESCRIPTION = f"""\
Calibrate the clients in FILE with several methods, with and without differential
privacy, and print what each gains and costs on held-out rows. Everything is seeded: a
simulation on rows in one place, to choose a method before clients are asked.

Finished cells (a method, an eps, a seed) are stored on disk: the same command
continues where an interrupted one stopped.

{FILE_FORMS}
If FILE has no clients, its rows are assigned to 100 clients with label skew.
"""

COLUMNS = """\
columns:
  cwECE        Classwise calibration error: the gap between probability and
               frequency in 15 bins, mean over all classes; 0 is best. A * marks
               a drop in accuracy of more than 1 %.
  floor        The cwECE that a perfect model would show on so few rows.
  ECE          Expected calibration error: the same gap for the predicted class.
  NLL          Negative log-likelihood (log loss): the mean of -log(probability
               of the true class); lower is better.
  Brier        The mean squared difference between probabilities and the true
               class; lower is better.
  acc change   Accuracy less that of base, in points.
  gap closed   The share of the way in cwECE from base to central (all rows in
               one place, without noise).
  eps spent    The privacy loss of one client in one fit; lower protects more.
  rounds       How often each client is asked.
  bytes        What one client sends in all rounds.
  client seconds
               How long one client computes in all rounds.
"""

COMPARE_EXAMPLES = f"""\
{COLUMNS}
examples:
  skfedcal compare model.npz
  skfedcal compare model.npz --eps none 1 --seeds 3
  skfedcal compare table.csv --columns labels=y client=hospital --methods temp bbq
  skfedcal compare model.npz --methods temp bbq --eps none --vary rounds 1 3 12
  skfedcal compare model.npz --preset amplified --eps 1 --delta 1e-5
  skfedcal compare model.npz -o table.tex
"""

FORMATS = ("text", "markdown", "csv", "json", "latex")
ENDINGS = {
    ".txt": "text",
    ".md": "markdown",
    ".csv": "csv",
    ".json": "json",
    ".tex": "latex",
    ".html": "html",
}


def add_compare_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``skfedcal compare``."""
    add_input(parser)
    add_workers(parser)
    add_comparison_options(parser)
    group = parser.add_argument_group("result")
    group.add_argument(
        "--format",
        choices=FORMATS,
        default="text",
        help="form of the table on stdout (default: text)",
    )
    group.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help=f"file to write too, of the form that its name ends in "
        f"({' '.join(ENDINGS)})",
    )
    group.add_argument("--force", action="store_true", help="replace an existing PATH")


def run_compare(args: argparse.Namespace, console: Console) -> None:
    """Compare, print and write."""
    if args.json and args.format not in ("text", "json"):
        raise UsageError(f"--json and --format {args.format} do not go together.")
    read_vary(args)
    check_file(args)
    if args.output is not None:
        form_of(args.output)
        check_output(args, args.file)
    found = run_comparison(args, console)
    if args.output is not None:
        write(found, args.output)
        console.progress(f"written: {args.output}")
    form = "json" if args.json else args.format
    text = shown(found, form, text_width())
    console.result(text.rstrip("\n"), json.loads(found.to_json()))


def form_of(path: str) -> str:
    """Form that the name of a file asks for."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in ENDINGS:
        raise UsageError(
            f"-o {path}: expected a name that ends in {', '.join(ENDINGS)}."
        )
    return ENDINGS[ending]


def shown(comparison: Comparison, form: str, width: int | None = None) -> str:
    """Return the comparison in a form; as text it ends with what that means."""
    if form != "text":
        return str(getattr(comparison, f"to_{form}")())

    from skfedcal.experiments.report import verdict_of

    sentences = verdict_of(comparison).sentences
    if width is not None:
        sentences = [textwrap.fill(text, max(width, 40)) for text in sentences]
    return "\n".join([comparison.to_text(width), "", *sentences])


def write(comparison: Comparison, path: str) -> None:
    """Write the form that the name asks for."""
    form = form_of(path)
    if form == "html":
        comparison.to_html(path)
        return
    text = shown(comparison, form).rstrip("\n") + "\n"
    write_whole(Path(path), lambda stream: stream.write(text.encode("utf-8")))


def text_width() -> int | None:
    """Letters of a line of the terminal; a file or a pipe has no end of line."""
    if not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


COMPARE = Command(
    name="compare",
    summary="compare methods, with and without privacy, on the clients in a file",
    description=COMPARE_DESCRIPTION,
    examples=COMPARE_EXAMPLES,
    add_options=add_compare_options,
    run=run_compare,
)

REPORT_DESCRIPTION = f"""\
Write a report as one HTML page: verdict, warnings, table, reliability diagrams of a
method and an eps that the reader chooses, what privacy was spent and what that means,
a plan for more clients, and how to run it again. The page needs no network.

{FILE_FORMS}
or a .json file that `skfedcal compare -o` wrote; then nothing is run.
"""

REPORT_EXAMPLES = """\
examples:
  skfedcal report model.npz -o report.html
  skfedcal report model.npz --eps none 1 --seeds 5 -o report.html
  skfedcal compare model.npz -o result.json && skfedcal report result.json -o a.html
"""


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``skfedcal report``."""
    add_input(parser, "clients, or a comparison as .json")
    add_workers(parser)
    parser.add_argument(
        "-o", "--output", required=True, metavar="PATH", help=".html file to write"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing PATH")
    add_comparison_options(parser)


def run_report(args: argparse.Namespace, console: Console) -> None:
    """Compare, or read a comparison, and write the page."""
    if Path(args.output).suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"-o {args.output}: expected a name that ends in .html.")
    read_vary(args)
    check_file(args)
    check_output(args, args.file)
    if args.file.lower().endswith(".json"):
        found = _read(args.file)
    else:
        found = run_comparison(args, console)
    verdict = _write(found, args)
    data = {
        "output": args.output,
        "verdict": verdict.sentences,
        "warnings": verdict.warnings,
    }
    lines = [*verdict.sentences, *(f"warning: {text}" for text in verdict.warnings)]
    console.result("\n".join([*lines, f"written: {args.output}"]), data)


def _write(found: Comparison, args: argparse.Namespace) -> Verdict:
    """Write the page; runs of a file may lack what it shows."""
    from skfedcal.experiments.comparison.result import DAMAGE
    from skfedcal.experiments.report import html_report, verdict_of

    try:
        page, verdict = html_report(found).encode("utf-8"), verdict_of(found)
    except DAMAGE as error:
        if not args.file.lower().endswith(".json"):
            raise
        raise ValueError(
            f"{args.file}: The comparison is damaged: {error!r}. Expected a comparison "
            "written by `skfedcal compare -o`."
        ) from error
    write_whole(Path(args.output), lambda stream: stream.write(page))
    return verdict


def _read(path: str) -> Comparison:
    from skfedcal.experiments import Comparison

    try:
        text = Path(path).read_text(encoding="utf-8")
        return Comparison.from_json(text)
    except ValueError as error:
        raise ValueError(
            f"{path}: {error} Expected a comparison written by `skfedcal compare -o`."
        ) from error


REPORT = Command(
    name="report",
    summary="write a comparison as an HTML page",
    description=REPORT_DESCRIPTION,
    examples=REPORT_EXAMPLES,
    add_options=add_report_options,
    run=run_report,
)
