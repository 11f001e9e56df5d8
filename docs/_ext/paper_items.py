"""Write what the guide says about ``skfedcal reproduce``: its items, the leaderboard.

``python docs/_ext/paper_items.py`` writes docs/guide/papers_items.inc from the table of
items and the seconds in papers_times.json (of ``python -m benchmarks.paper_items``),
and docs/reference/leaderboard.rst from leaderboard.json. With the name of a folder, it
computes leaderboard.json from the files of logits in that folder first; interrupted,
it continues. Tests compare the pages with the items and with the numbers.
"""

import json
import sys
from math import isnan
from pathlib import Path

from skfedcal.papers import leaderboard
from skfedcal.papers.items import PAPERS, Setting, find_items, run_item

GUIDE = Path(__file__).parents[1] / "guide"
TARGET = GUIDE / "papers_items.inc"
TIMES = GUIDE / "papers_times.json"
PAGE = GUIDE.parent / "reference" / "leaderboard.rst"
NUMBERS = PAGE.with_suffix(".json")
START = """\
.. list-table::
   :header-rows: 1
   :widths: 24 38 30 8

   * - Item
     - {shows}
     - Command
     - CPU s
"""
# Numbers of a row of the leaderboard, with the digits that are kept.
KEPT = {"cwECE": 6, "sd_cwECE": 6, "acc change": 5, "NLL": 4}


def render():
    """Return the text of the file."""
    parts = []
    for word, (_, title) in PAPERS.items():
        items = find_items(word)
        if not items:
            continue
        parts.append(f"{title}\n{'-' * len(title)}\n")
        plain = [item for item in items if item.kind != "reading"]
        readings = [item for item in items if item.kind == "reading"]
        if plain:
            parts.append(
                table(plain, "What the paper says; whether a quick run agrees")
            )
        if readings:
            parts.append(
                "Places that can be read in two ways, with the measured effect:\n"
            )
            parts.append(table(readings, "Readings"))
    return "\n".join(parts)


def table(items, shows):
    """Return a list-table of items."""
    lines = [START.format(shows=shows)]
    seconds = json.loads(TIMES.read_text(encoding="utf-8"))
    for item in items:
        verdict = ""
        if item.kind != "reading" and item.agrees is not None:
            verdict = " Agrees." if item.agrees else f" Does not agree: {item.because}"
        kind = "" if item.kind == "reading" else f"{item.kind.capitalize()} "
        lines.append(f"   * - {kind}{item.number}: {escaped(item.title)}\n")
        lines.append(f"     - {escaped(item.shows)}{escaped(verdict)}\n")
        lines.append(f"     - ``{item.command}``\n")
        lines.append(f"     - {seconds[item.name]:.1f}\n")
    return "".join(lines)


def escaped(text):
    """Return the text with what reStructuredText would read as marks escaped."""
    return "".join(f"\\{c}" if c in "*|`_\\" else c for c in text)


def measure(folder):
    """Compute the leaderboard of a folder and write its numbers."""
    (item,) = find_items("leaderboard")
    store = Path.cwd() / ".skfedcal" / "cells"
    setting = Setting("usual", Path(folder), store, progress=print)
    rows = run_item(item, setting).table.rows
    keys = ("classes", "data", "K", "eps", "method", "n_runs")
    lines = []
    for row in rows:
        numbers = {
            name: None if isnan(row[name]) else round(row[name], digits)
            for name, digits in KEPT.items()
        }
        lines.append(json.dumps({**{key: row[key] for key in keys}, **numbers}))
    NUMBERS.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


INTRO = """\
Leaderboard
===========

.. This page is written by docs/_ext/paper_items.py from leaderboard.json.

Classwise calibration error (cwECE, in %) of the methods with the defaults of this
library, by number of classes, clients (K) and budget of a client (eps, delta = 1e-5).
One command makes it from files of logits:

.. code-block:: console

   $ skfedcal reproduce leaderboard --data DIR -o leaderboard.md

Half of the rows of a file (or its ``val`` part) is calibrated on, assigned to K clients
with label skew (Dirichlet, beta = 0.1); the other rows are measured on. Where there are
fewer than {rows} K rows, they are drawn from the first half with replacement: there are
more clients then, but not more different rows. Where no file has a number of classes,
the table shows the first classes of a larger file, or made-up rows
(:func:`~skfedcal.make_federation`). Numbers are means over {seeds} seeds, with 10,000
clients over {least}: a simulation. A star marks a loss of accuracy of more than a
point, **bold** the lowest error without such a loss. {slow} are left out from
{many:,} clients or {classes} classes on, where a fit takes up to minutes.

"""
PAYS = """\
Binning pays where the better of FedBBQ and FedBBQ-all has a lower cwECE than FedTemp
and than the input, by more than {margin:.0%} of the error of the input, and does not
lose more than a point of accuracy:

"""


def render_leaderboard():
    """Return the text of the leaderboard."""
    rows = json.loads(NUMBERS.read_text(encoding="utf-8"))
    parts = [
        INTRO.format(
            rows=leaderboard.ROWS_OF_A_CLIENT,
            seeds=max(row["n_runs"] for row in rows),
            slow=" and ".join(leaderboard.SLOW),
            least=min(row["n_runs"] for row in rows),
            many=leaderboard.MANY_CLIENTS,
            classes=leaderboard.MANY_CLASSES,
        ),
        heading("Where private binning begins to pay"),
        PAYS.format(margin=leaderboard.MARGIN),
        *(f"- {escaped(text)}.\n" for text in leaderboard.crossings(rows)),
        "\n",
        heading("Which method has the lowest error"),
        *(f"- {text}.\n" for text in winners(rows)),
        f"- {escaped(auto_text(rows))}.\n\n",
    ]
    for n_classes, data in dict.fromkeys((r["classes"], r["data"]) for r in rows):
        own = [r for r in rows if (r["classes"], r["data"]) == (n_classes, data)]
        parts.append(heading(f"{n_classes} classes: {data}"))
        parts.append(board(own))
    return "".join(parts)


def heading(text):
    """Return a heading of a section."""
    return f"{escaped(text)}\n{'-' * len(escaped(text))}\n\n"


def usable(rows):
    """Return rows that keep the accuracy within a point."""
    return [row for row in rows if row["acc change"] >= leaderboard.STAR]


def settings_of(rows):
    """Return the rows of each data set, number of clients and budget, with the base."""
    found = {}
    for row in rows:
        if row["eps"] != "-":
            found.setdefault((row["data"], row["K"], row["eps"]), []).append(row)
    for row in rows:
        if row["eps"] == "-":
            for (data, n_clients, _), own in found.items():
                if (data, n_clients) == (row["data"], row["K"]):
                    own.append(row)
    return found


def winners(rows):
    """Return a sentence for each budget: how often which method is best."""
    groups, lines = settings_of(rows), []
    for eps in dict.fromkeys(key[2] for key in groups):
        counts = {}
        own = [usable(group) for key, group in groups.items() if key[2] == eps]
        for group in own:
            name = min(group, key=lambda row: row["cwECE"])["method"]
            counts[name] = counts.get(name, 0) + 1
        order = sorted(counts, key=lambda name: -counts[name])
        shown = ", ".join(f"{name} {counts[name]}" for name in order)
        start = "Without noise" if eps == "none" else f"At eps = {eps}"
        lines.append(f"{start}, of {len(own)} settings: {shown}")
    return lines


def auto_text(rows):
    """Return what is true of FedAuto and the input."""
    claim = leaderboard.auto_is_never_far(rows)
    start = claim.text if claim.holds else f"It is not true that {claim.text}"
    return f"{start}: {claim.because}"


def board(rows):
    """Return the table of one data set."""
    groups = settings_of(rows)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    lines = [".. list-table::\n   :header-rows: 1\n\n   * - K\n     - eps\n"]
    lines += [f"     - {name}\n" for name in methods]
    for (_, n_clients, eps), group in groups.items():
        best = min(row["cwECE"] for row in usable(group))
        own = {row["method"]: row for row in group}
        lines.append(f"   * - {n_clients:,}\n     - {eps}\n")
        for name in methods:
            lines.append(f"     - {cell(own.get(name), best)}\n")
    return "".join(lines) + "\n"


def cell(row, best):
    """Return a number of a table, with its marks."""
    if row is None:
        return "\\-"
    text = f"{100 * row['cwECE']:.3f}"
    if not usable([row]):
        return rf"{text}\*"
    return f"**{text}**" if row["cwECE"] == best else text


def main(folders):
    """Write both files."""
    for folder in folders:
        measure(folder)
    TARGET.write_text(render(), encoding="utf-8")
    PAGE.write_text(render_leaderboard(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
