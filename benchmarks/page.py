"""Page of the documentation from the JSON of the suite.

python -m benchmarks --out docs/benchmarks.json
python -m benchmarks.page [--json FILE] [--page FILE]
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _texts as texts
from benchmarks._aims import AIMS, Aim
from benchmarks._harness import OURS
from benchmarks._tables import grouped, loss, number, of_growth, of_question, table

Row = Mapping[str, Any]
DOCS = Path(__file__).parent.parent / "docs"
JSON, PAGE = DOCS / "benchmarks.json", DOCS / "benchmarks.rst"
# Named in the table of aims; more of them are counted.
N_NAMED = 3
STEEP = 1.05
# Gain in log loss on fresh rows, and on the fitted rows, that is worth a line.
GAIN = {"quality": 1e-3, "excess": 1e-4}

# What the first lines tell: question, name, and whose factor to ours.
OTHERS = "other libraries"
SHORT = (
    ("temperature, fit", "A temperature fit", "scikit-learn"),
    ("cwECE", "The classwise calibration error (cwECE)", OTHERS),
    ("ECE", "The expected calibration error (ECE)", OTHERS),
)


def short(rows: Sequence[Row]) -> str:
    """Return what matters most, as a list."""
    lines = []
    for question, what, peers in SHORT:
        own = [row for row in rows if row["question"] == question]
        ours = [row["value"] for row in own if row["library"] == OURS]
        theirs = [
            row["ratio"]
            for row in own
            if row["ratio"] is not None
            and not row["library"].startswith(OURS)
            and (peers == OTHERS or row["library"] == peers)
        ]
        if ours and theirs:
            text = f"- {what} takes {_range(ours)} U; in {peers} it takes"
            lines.append(f"{text}\n  {_range(theirs)} times as long.")
    n_held, n_found, _ = aims(rows)
    n_better = sum(len(where) for where in better(rows).values())
    lines.append(
        f"- {n_held} of {n_found} aims are held in every case. Cases in which a peer "
        f"is faster or\n  reaches a lower log loss: {n_better}. Both are listed below."
    )
    return "\n".join([*lines, "", texts.SHORT_TEXT])


def aims(rows: Sequence[Row]) -> tuple[int, int, str]:
    """Return how many aims are held, how many were measured, and their section."""
    lines, n_held, n_found = [], 0, 0
    for aim in AIMS:
        found = aim.found(rows)
        held, told = _outcome(aim, found)
        n_held, n_found = n_held + held, n_found + bool(found)
        lines.append((aim.text, _range([value for _, value in found]), told))
    told = table(("Aim", "Found", "Where missed"), lines, widths="40 16 44")
    return n_held, n_found, f"Aims\n----\n\n{texts.AIMS_TEXT}\n{told}"


def _range(values: Sequence[float]) -> str:
    if not values:
        return "not measured"
    ends = dict.fromkeys(number(end) for end in (min(values), max(values)))
    return " to ".join(ends)


def _outcome(aim: Aim, found: Sequence[tuple[str, float]]) -> tuple[bool, str]:
    """Tell whether an aim is held, and where it is missed, worst first."""
    missed = [(name, value) for name, value in found if aim.missed(value)]
    if not found:
        return False, ""
    if not missed:
        near = any(aim.close(value) for _, value in found)
        return True, "held by less than 10 %" if near else "held"
    missed.sort(key=lambda pair: -pair[1] if aim.at_most else pair[1])
    named_ = [f"{grouped(name)} ({number(value)})" for name, value in missed[:N_NAMED]]
    rest = len(missed) - N_NAMED
    told = f"{len(missed)} of {len(found)}: " + "; ".join(named_)
    told += f"; and {rest} more." if rest > 0 else "."
    return False, f"{told} {aim.reason(found)}".rstrip()


def better(rows: Sequence[Row]) -> dict[tuple[str, str], list[str]]:
    """Return the cases in which a peer is better, by library and question."""
    own, plain = (
        {(r["question"], r["case"]): r for r in rows if r["library"] == name}
        # Who is held against the plain optimum seeks it: without a ridge.
        for name in (OURS, f"{OURS}, without ridge")
    )
    lines: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        case = row["question"], row["case"]
        ours = own.get(case)
        if ours is None or row["library"].startswith(OURS):
            continue
        told = []
        if row["ratio"] is not None and row["ratio"] < 1:
            told.append(f"{row['ratio']:.2f} of our time")
        for key, least in GAIN.items():
            own_row = plain.get(case, ours) if key == "excess" else ours
            known = own_row.get(key) is not None and row.get(key) is not None
            if known and own_row[key] - row[key] > least:
                what = "log loss" if key == "quality" else "above the optimum"
                told.append(f"{what} {loss(key, row)}, ours {loss(key, own_row)}")
        if told:
            where = lines.setdefault((row["library"], row["question"]), [])
            where.append(f"{grouped(row['case'])} ({'; '.join(told)})")
    return lines


def wins(rows: Sequence[Row]) -> str:
    """Return the cases in which a peer is better than ours, as a list."""
    return (
        "\n".join(
            f"- {library}: {question}, {', '.join(where)}.{_cause(question)}"
            for (library, question), where in better(rows).items()
        )
        or "None in this run."
    ) + "\n"


def _cause(question: str) -> str:
    cause = texts.CAUSES.get(question)
    return "" if cause is None else f" Cause: {cause}."


def measured_on(record: Mapping[str, Any]) -> str:
    """Return a paragraph on the machine and the versions."""
    machine, versions = record["machine"], record["versions"]
    there = [f"{name} {v}" for name, v in versions.items() if v != "absent"]
    absent = [name for name, v in versions.items() if v == "absent"]
    text = (
        f"Measured on {machine['processor']}, {machine['cpus']} processors, "
        f"{machine['platform']}, Python {machine['python']}; {', '.join(there)}."
    )
    if machine.get("load") is not None:
        text += f" The load average was {machine['load']}"
        busy = machine["load"] > machine["cpus"]
        text += ": other work took most of the machine." if busy else "."
    if record.get("note"):  # by hand, where a file was put together from several runs
        text += f" {record['note']}"
    if absent:
        text += f" Not installed: {', '.join(absent)}."
    return text + "\n"


def section(question: str, rows: Sequence[Row]) -> str:
    """Return title, table and notes of one question."""
    # Names such as cwECE and predict_proba stay as they are.
    plain = question.split()[0].islower() and "_" not in question
    title = question[0].upper() + question[1:] if plain else question
    note = texts.NOTES.get(question, "")
    if question == "growth":
        body, note = of_growth(rows, STEEP), texts.GROWTH_TEXT
    else:
        body = of_question(rows)
    parts = [f"{title}\n{'~' * len(title)}\n", body, note + "\n" if note else ""]
    return "\n".join(filter(None, parts))


def page(record: Mapping[str, Any]) -> str:
    """Return the whole page."""
    rows = record["rows"]
    parts = [texts.HEAD, short(rows), aims(rows)[2], texts.WINS_TEXT, wins(rows)]
    parts += [texts.COMPILED, texts.HOW, measured_on(record), "Numbers\n-------\n"]
    questions: dict[str, list[Row]] = {}
    for row in rows:
        what = row["question"]
        what = "growth" if what.startswith("growth ") else what
        questions.setdefault(what, []).append(row)
    parts += [section(question, own) for question, own in questions.items()]
    return "\n".join([*parts, texts.SCRIPTS])


def main() -> None:
    """Read the JSON and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.page",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, default=JSON)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    options.page.write_text(page(json.loads(options.json.read_text())))
    print(f"wrote {options.page}")


if __name__ == "__main__":
    main()
