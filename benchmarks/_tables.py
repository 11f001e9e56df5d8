"""Tables of the page: cases as rows, libraries as columns."""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks._aims import named
from benchmarks._harness import OURS

Row = Mapping[str, Any]
# Below this a log loss is that of the optimum: sums in float64 are not closer.
EXACT = 1e-9
LOSSES = {"quality": "log loss, fresh rows", "excess": "above the optimum"}
# Notes that belong beside each number.
NOTED = ("accountant", "secure aggregation", "metrics of a histogram", "compiled loops")


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], widths: str = "auto"
) -> str:
    """Return a table with one line for each row."""
    lines = [".. csv-table::", f"   :header: {_line(header)}", f"   :widths: {widths}"]
    return "\n".join([*lines, "", *(f"   {_line(row)}" for row in rows)]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return ", ".join('"' + cell.replace('"', '""') + '"' for cell in cells)


def number(value: float | None, digits: int = 3) -> str:
    """Return a number as text, empty for none."""
    if value is None:
        return ""
    return f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"


def factor(value: float) -> str:
    """Return how many times as long something takes."""
    if value < 0.995:  # nearer to 1 it would be an integer
        return f"{value:.2g}x"
    return f"{value:.1f}x" if value < 10 else f"{value:,.0f}x"


def grouped(text: str) -> str:
    """Return text with commas in its long numbers."""
    return re.sub(
        r"(?<![\d.,])\d{5,}(?![\d.])", lambda found: f"{int(found[0]):,}", text
    )


def unbroken(text: str) -> str:
    """Return text that stays on one line of its cell."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def titled(library: str) -> str:
    """Return a library as the title of a column; variants of ours by themselves."""
    return grouped(library.removeprefix(f"{OURS}, ").removesuffix("Calibrator"))


def of_question(rows: Sequence[Row]) -> str:
    """Return the table of one question, what it says of its spread, and its notes."""
    cases = list(dict.fromkeys(row["case"] for row in rows))
    names = list(dict.fromkeys(row["library"] for row in rows))
    names.sort(key=lambda name: not name.startswith(OURS))
    found = {(row["case"], row["library"]): row for row in rows}
    if len(cases) == 1 and len(names) > 4:
        return _single([found[cases[0], name] for name in names])
    lines = []
    for case in cases:
        own = [found.get((case, name)) for name in names]
        lines.append([unbroken(grouped(case)), *map(_cell, own)])
        for key, text in LOSSES.items():
            losses = [loss(key, row) for row in own]
            if any(losses):
                lines.append([f"*{text}*", *losses])
    unit = str(rows[0]["unit"])
    unit = "times the input" if unit == "x input" else f"in {unit}"
    head = [f"Case, {unit}", *map(titled, names)]
    return "\n".join(filter(None, (table(head, lines), _spread(rows), _left_out(rows))))


def _single(rows: Sequence[Row]) -> str:
    """Return one case with libraries as rows."""
    head = ["Library", str(rows[0]["unit"]), "to ours", ""]
    return table(
        head,
        [
            [
                row["library"],
                number(row["value"]),
                "" if row["ratio"] is None else factor(row["ratio"]),
                f"``{row['note']}``" if row["note"] else "",
            ]
            for row in rows
        ],
    )


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if row["value"] is None:
        return "not timed"
    text = number(row["value"])
    if row["ratio"] is not None and row["library"] != OURS:
        text += f" ({factor(row['ratio'])})"
    if row["question"] in NOTED and row["note"]:
        text += f", {row['note']}"
    if row["library"] == OURS and row.get("ns") is not None:
        text += f", {number(row['ns'], 2)} ns"
        if row.get("passes") is not None:
            text += f", {number(row['passes'], 2)} P"
    return unbroken(text)


def loss(key: str, row: Row | None) -> str:
    """Return a log loss as text, empty where there is none."""
    if row is None or row.get(key) is None:
        return ""
    if key == "quality":
        return f"{row[key]:.4f}"
    return f"{row[key]:.1g}" if abs(row[key]) > EXACT else "0"


def _spread(rows: Sequence[Row]) -> str:
    spreads = [
        (row["spread"], f"{row['library']}, {row['case']}")
        for row in rows
        if row["spread"] is not None
    ]
    if not spreads:
        return ""
    middle = statistics.median(spread for spread, _ in spreads)
    most, where = max(spreads)
    return (
        f"Spread: half of the medians are within {100 * middle:.0f} % of the best, all "
        f"within {100 * most:.0f} % (most: {grouped(where)}).\n"
    )


def _left_out(rows: Sequence[Row]) -> str:
    lines = [
        f"- {grouped(named(row))}: {row['note']}."
        for row in rows
        if row["value"] is None
    ]
    return "\n".join(lines) + "\n" if lines else ""


def of_growth(rows: Sequence[Row], limit: float) -> str:
    """Return slopes with all sizes that grow as columns, and notes on steep ones."""
    sizes = list(dict.fromkeys(row["question"] for row in rows))
    cases = list(dict.fromkeys(row["case"] for row in rows))
    found = {(row["case"], row["question"]): row for row in rows}

    def cell(case: str, size: str) -> str:
        row = found.get((case, size))
        return "" if row is None else f"{row['value']:.2f}"

    lines = [[f"``{case}``", *(cell(case, s) for s in sizes)] for case in cases]
    titles = [size.removeprefix("growth ") for size in sizes]
    text = table(["Slope", *titles], lines) + "\n"
    for size, title in zip(sizes, titles, strict=True):
        text += f"- {title}: {_spans([r for r in rows if r['question'] == size])}.\n"
    steep = [row for row in rows if row["value"] > limit or _whole(row) > limit]
    if steep:
        text += f"\nAbove {limit}, by itself or with the rounds of a whole fit:\n\n"
    for row in steep:
        size = row["question"].removeprefix("growth ")
        told = grouped("; ".join(row["note"].split("; ")[1:]))
        text += f"- ``{row['case']}`` {size}, {row['value']:.2f}: {told}.\n"
    return text


def _spans(rows: Sequence[Row]) -> str:
    """Return first and last size, and whose are others."""
    spans: dict[str, list[str]] = {}
    for row in rows:
        spans.setdefault(row["note"].split(";")[0], []).append(row["case"])
    most, *others = sorted(spans, key=lambda span: -len(spans[span]))
    told = [f"{span} for ``{'``, ``'.join(spans[span])}``" for span in others]
    return grouped("; ".join([most, *told]))


def _whole(row: Row) -> float:
    """Return the slope of whole fits, where one of rounds is told."""
    told = re.search(r"([\d.]+) for whole fits", row["note"])
    return float(told[1]) if told else float(row["value"])
