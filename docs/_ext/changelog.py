"""Give the page ``changelog`` the text of CHANGELOG.md.

The file has headings, lists and code in backticks, and no more; that much of Markdown
is turned into reStructuredText here, so that the site needs no parser for it.
"""

import re
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "CHANGELOG.md"
UNDERLINES = "=-~"


def to_rst(text):
    """Return the changelog as reStructuredText."""
    lines = []
    for line in text.splitlines():
        heading = re.fullmatch(r"(#{1,3}) (.+)", line)
        if heading:
            title = heading[2]
            lines += [title, UNDERLINES[len(heading[1]) - 1] * len(title), ""]
        else:
            # A list needs an empty line before it.
            if line.startswith("- ") and lines and lines[-1][:2] not in ("- ", "  "):
                lines.append("")
            lines.append(re.sub(r"`+([^`]+)`+", r"``\1``", line))
    return "\n".join(lines) + "\n"


def read(app, docname, source):
    """Replace the source of the page."""
    if docname == "changelog":
        app.env.note_dependency(str(SOURCE))
        source[0] = to_rst(SOURCE.read_text(encoding="utf-8"))


def setup(app):
    """Register with Sphinx."""
    app.connect("source-read", read)
    return {"parallel_read_safe": True}
