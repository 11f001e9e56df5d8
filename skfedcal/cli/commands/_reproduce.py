"""``skfedcal reproduce``."""

from __future__ import annotations

import argparse
import json
import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from skfedcal._files import write_whole
from skfedcal.cli._command import Command, UsageError, positive_count, to_stderr
from skfedcal.papers.drawing import ENDINGS as DRAWN

if TYPE_CHECKING:
    from skfedcal.cli._command import Console
    from skfedcal.papers import PaperItem, PaperResult
    from skfedcal.papers.items import Size

DESCRIPTION = """\
Make the tables and figures of the five papers that the library implements: with the
methods as printed, as printed with amplification by sampled cohorts where that
applies, and as this library does it by default; beside them the paper's own numbers
where the data set is the same. A line says whether the ordering of the paper was
found. Everything is seeded and simulated.

Without --data the rows come with scikit-learn, and small networks are trained by
federated averaging (needs torch). Amplified rows need dp-accounting, drawings
matplotlib: pip install "skfedcal[torch,accounting,plot]". Finished parts are stored on
disk: the same command continues where an interrupted one stopped.
"""

EXAMPLES = """\
DIR of --data holds data sets in the layouts in which they are published (see the guide
about datasets), or .npz files of logits, labels and client.

examples:
  skfedcal reproduce --list
  skfedcal reproduce 000 --table 3 --quick
  skfedcal reproduce 000 --table 3 --data logits/ -o table3.tex
  skfedcal reproduce 000 --figure 2 -o figure2.svg
  skfedcal reproduce 001 --figure 4
  skfedcal reproduce 000 --quick -o results/
  skfedcal reproduce leaderboard --data logits/ -o leaderboard.md
"""

FORMATS = ("text", "markdown", "latex", "csv", "json")
ENDINGS = {
    ".txt": "text",
    ".md": "markdown",
    ".tex": "latex",
    ".csv": "csv",
    ".json": "json",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``skfedcal reproduce``."""
    parser.add_argument(
        "paper",
        nargs="?",
        metavar="PAPER",
        help="000 to 004, or leaderboard (default: all)",
    )
    what = parser.add_argument_group("items")
    for kind, text in (
        ("table", "numbers of tables"),
        ("figure", "numbers of figures"),
        ("reading", "places that can be read in two ways, by section"),
    ):
        what.add_argument(
            f"--{kind}", nargs="+", default=[], metavar="N", help=f"{text}"
        )
    what.add_argument("--list", action="store_true", help="list the items, run none")
    work = parser.add_argument_group("work")
    size = work.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="below a minute per item")
    size.add_argument("--full", action="store_true", help="the sizes of the paper")
    work.add_argument("--data", metavar="DIR", help="folder with data or logits")
    work.add_argument(
        "--jobs",
        type=positive_count,
        metavar="N",
        help="number of processes (default: one per core, or one for little work)",
    )
    work.add_argument(
        "--store",
        metavar="DIR",
        help="folder for finished parts (default: .skfedcal/cells, here)",
    )
    work.add_argument(
        "--fresh", action="store_true", help="ignore stored parts and store none"
    )
    group = parser.add_argument_group("result")
    group.add_argument(
        "--format", choices=FORMATS, default="text", help="form on stdout"
    )
    group.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help=f"file to write too, of the form that its name ends in "
        f"({' '.join([*ENDINGS, *DRAWN])}); or a folder, for all forms of all items",
    )


def run(args: argparse.Namespace, console: Console) -> None:
    """Run the items and print each when it is done."""
    from skfedcal.papers.items import (
        PAPERS,
        Setting,
        check_folder,
        find_items,
        run_item,
    )

    if args.json and args.format not in ("text", "json"):
        raise UsageError(f"--json and --format {args.format} do not go together.")
    if args.paper is not None and args.paper not in PAPERS:
        raise UsageError(
            f"PAPER {args.paper!r} is not known; pass one of {', '.join(PAPERS)}."
        )
    items = find_items(
        args.paper, tables=args.table, figures=args.figure, readings=args.reading
    )
    if args.list:
        console.result(listed(items), {"items": [_entry(item) for item in items]})
        return
    if args.output is not None:
        _check_output(args.output, items)
    data = None if args.data is None else check_folder(args.data)

    from skfedcal.experiments.store import project_store

    store = None if args.fresh else Path(args.store or project_store())
    size: Size = "quick" if args.quick else "full" if args.full else "usual"
    jobs: int | Literal["auto"] = args.jobs or "auto"
    records = []
    for item in items:
        console.progress(f"{item.name}: {item.title}")
        try:
            result = run_item(item, Setting(size, data, store, jobs, console.progress))
        except KeyboardInterrupt:
            if store is not None:
                to_stderr(
                    f"[finished parts are stored in {store}; run the same command to "
                    "continue]"
                )
            raise
        if args.output is not None:
            for path in write(result, args.output):
                console.progress(f"written: {path}")
        records.append(json.loads(result.to_json()))
        if not args.json:
            print(shown(result, args.format), flush=True)
    if args.json:
        console.result("", {"items": records})


def listed(items: list[PaperItem]) -> str:
    """Return the items as text, by paper."""
    from skfedcal.papers.items import PAPERS

    lines = []
    for word, (_, title) in PAPERS.items():
        own = [item for item in items if item.paper == word]
        if own:
            lines += [*textwrap.wrap(f"{word}  {title}", 88, subsequent_indent="     ")]
        for item in own:
            text = f"     {f'--{item.kind} {item.number}':<22}  {item.title}"
            lines += textwrap.wrap(text, 88, subsequent_indent=" " * 29)
    return "\n".join(lines)


def shown(result: PaperResult, form: str) -> str:
    """Return a result in a form."""
    if form != "text":
        return str(getattr(result, f"to_{form}")())
    return f"{result.to_text()}\n"


def write(result: PaperResult, output: str) -> list[Path]:
    """Write a result to a file, or all its forms into a folder."""
    path = Path(output)
    folder = path.is_dir() or output.endswith(("/", os.sep))
    ending = "" if folder else path.suffix.lower()
    if ending in DRAWN:
        result.draw(path)
        return [path]
    if ending in ENDINGS:
        text = shown(result, ENDINGS[ending]).rstrip("\n") + "\n"
        write_whole(path, lambda stream: stream.write(text.encode()))
        return [path]
    path.mkdir(parents=True, exist_ok=True)
    name = result.name.replace(" ", "_").replace(",", "")
    endings = [".md", ".tex", ".csv", *([".png", ".svg"] if result.panels else [])]
    return [p for e in endings for p in write(result, str(path / f"{name}{e}"))]


def _check_output(output: str, items: list[PaperItem]) -> None:
    """Refuse a name that cannot be written, before any work is done."""
    path = Path(output)
    ending = path.suffix.lower()
    if path.is_dir() or output.endswith(("/", os.sep)) or not ending:
        if path.exists() and not path.is_dir():
            raise UsageError(f"-o {output} is a file; pass a folder, or another name.")
        return
    if ending not in (*ENDINGS, *DRAWN):
        raise UsageError(
            f"-o {output}: the ending {ending!r} is not known. Expected "
            f"{', '.join([*ENDINGS, *DRAWN])}, or a folder, as in -o {output}/."
        )
    if len(items) > 1:
        raise UsageError(
            f"-o {output} holds one item, but {len(items)} were asked for. Pass a "
            "folder, or --table or --figure with one number."
        )
    if ending in DRAWN and items[0].kind != "figure":
        raise UsageError(
            f"-o {output}: {items[0].name} is not a figure, nothing can be drawn. Pass "
            f"a name that ends in {', '.join(ENDINGS)}."
        )
    if not path.parent.is_dir():
        raise UsageError(f"-o {output}: there is no folder {path.parent}.")


def _entry(item: PaperItem) -> dict[str, object]:
    return {
        "paper": item.paper,
        "kind": item.kind,
        "number": item.number,
        "title": item.title,
        "shows": item.shows,
        "command": item.command,
    }


REPRODUCE = Command(
    name="reproduce",
    summary="make the tables and figures of the papers",
    description=DESCRIPTION,
    examples=EXAMPLES,
    add_options=add_options,
    run=run,
)
