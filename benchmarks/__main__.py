"""All questions in some minutes: ours and the peers on the same arrays.

A question is a script, which can be run by itself at full length. Answers are checked
to agree before they are timed; a library that is not installed is skipped with a note.
The table is printed and written as JSON, after each question to a file FILE.part that
is renamed at the end. The page of the documentation is made from docs/benchmarks.json:

  python -m benchmarks --out docs/benchmarks.json
  python -m benchmarks.page
"""

import time
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

from benchmarks._harness import arguments, print_table, write_json

QUESTIONS = {
    "metrics": "ECE, cwECE, Brier score and log loss next to other libraries",
    "fits": "fits of all maps next to other libraries, and predict_proba",
    "costs": "noise, accounts, local temperatures, score histograms, masked sums, "
    "a round of training, imports",
    "exchange": "messages, and a fit over Flower next to one in this process",
    "compiled": "loops of the compiled core, of numpy, and trials in numba",
    "waits": "forms of input, ids of rows, a million clients, whole commands",
    "memory": "peak memory over the input",
    "growth": "slopes of time over rows, classes, clients, rounds and bins",
}
PEERS = (
    "netcal",
    "probmetrics",
    "torch-uncertainty",
    "uncertainty-calibration",
    "torchmetrics",
    "relplot",
    "probcal",
    "opendp",
    "dp-accounting",
    "flwr",
    "numba",
    "pandas",
)


def answer(name: str, seconds: float, quick: bool) -> list[dict[str, Any]]:
    """Rows of one question, or none with the reason why."""
    started = time.perf_counter()
    try:
        ask: Callable[..., list[dict[str, Any]]] = import_module(
            f"benchmarks.bench_{name}"
        ).questions
        rows = ask(seconds, quick=quick)
    except Exception:
        # One that fails is printed, and the others are still of use.
        traceback.print_exc()
        return []
    print(f"\n{name}: {len(rows)} rows in {time.perf_counter() - started:.0f} s")
    print_table(rows)
    return rows


def main() -> None:
    """Ask, print and write."""
    parser = arguments("all", __doc__)
    parser.prog = "python -m benchmarks"
    parser.epilog = "questions:\n" + "\n".join(
        f"  {name:<9} {text}" for name, text in QUESTIONS.items()
    )
    parser.set_defaults(seconds=0.1)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=QUESTIONS,
        default=list(QUESTIONS),
        metavar="QUESTION",
        help="ask these only",
    )
    parser.add_argument(
        "--long", action="store_true", help="large sizes as well; takes up to an hour"
    )
    options = parser.parse_args()
    if options.out.is_dir():
        parser.error(f"--out {options.out} is a folder; give a file")
    # A run that is stopped leaves the file of the last whole one as it is.
    part = options.out.with_name(f"{options.out.name}.part")
    missing, rows = [], []
    for name in dict.fromkeys(options.only):
        try:
            found = answer(name, options.seconds, not options.long)
        except KeyboardInterrupt:
            kept = f"rows before it are in {part}" if rows else "nothing was kept"
            raise SystemExit(f"\nstopped in {name}: {kept}") from None
        rows += found
        if not found:
            missing.append(name)
        write_json(part, rows, PEERS)
    part.replace(options.out)
    print(f"which is now {options.out}")
    if missing:
        raise SystemExit(f"without an answer: {', '.join(missing)}")


if __name__ == "__main__":
    main()
