"""Lets long names in code go on in a new line after a dot, and not within a word.

``<wbr>`` marks the places. Unlike a zero-width space it is not copied with the text.
"""

import re

SPAN = re.compile(r'(<span class="(?:pre|classifier)">)([^<]+)(?=</span>)')
LONG = re.compile(r"\S{20,}")
PLACE = re.compile(r"(?<=\w)([.=/(\[{,]+)(?=[\w'\"\u2018\u2019&])")


def break_names(_app, _name, _template, context, _doctree):
    """Mark the places in the body of a page."""
    if "body" in context:
        context["body"] = SPAN.sub(
            lambda span: span[1] + LONG.sub(_marked, span[2]), context["body"]
        )


def _marked(word):
    return PLACE.sub(r"\1<wbr>", word[0])


def setup(app):
    """Register the hook."""
    app.connect("html-page-context", break_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
