"""Write docs/guide/papers_items.inc from the table of items of ``skfedcal reproduce``.

``python docs/_ext/paper_items.py`` writes the file; a test compares it with the items.
"""

from pathlib import Path

from skfedcal.papers.items import PAPERS, find_items

TARGET = Path(__file__).parents[1] / "guide" / "papers_items.inc"
START = """\
.. list-table::
   :header-rows: 1
   :widths: 26 40 34

   * - Item
     - {shows}
     - Command
"""


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
    for item in items:
        verdict = ""
        if item.kind != "reading" and item.agrees is not None:
            verdict = " Agrees." if item.agrees else f" Does not agree: {item.because}"
        kind = "" if item.kind == "reading" else f"{item.kind.capitalize()} "
        lines.append(f"   * - {kind}{item.number}: {escaped(item.title)}\n")
        lines.append(f"     - {escaped(item.shows)}{escaped(verdict)}\n")
        lines.append(f"     - ``{item.command}``\n")
    return "".join(lines)


def escaped(text):
    """Return the text with what reStructuredText would read as marks escaped."""
    return "".join(f"\\{c}" if c in "*|`_\\" else c for c in text)


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
