"""The page as a whole."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from skfedcal.experiments.comparison._notes import data_note
from skfedcal.experiments.report import _parts
from skfedcal.experiments.report._curves import curves
from skfedcal.experiments.report._picks import picks_of
from skfedcal.experiments.report._style import STYLE
from skfedcal.experiments.report._verdict import Verdict, verdict_of

if TYPE_CHECKING:
    from skfedcal.experiments.comparison._result import Comparison

WORDS = {
    "cwECE": "Classwise calibration error: gap between stated probability and "
    "frequency, mean over classes and bins. Small for many classes, so compare it "
    "with base.",
    "floor": "cwECE that a perfect model would show on as many test rows. An error "
    "near it is not distinguishable from zero.",
    "ECE": "The same gap for the predicted class only.",
    "NLL, Brier": "Log loss and squared error of the probabilities. They fall only if "
    "the probabilities become better, and cannot be gamed.",
    "acc change": "Change of accuracy in points. A star marks a drop of more than 1 %.",
    "gap closed": "Share of the way in cwECE from base to the central oracle, which "
    "has all rows in one place and adds no noise.",
    "eps spent": "Differential privacy of one client for one fit; none: exact sums.",
    "rounds, bytes, client seconds": "What a client does that takes part in all "
    "rounds: messages up and down, and time to compute.",
}
MARKS = {"good": "✔", "mixed": "◐", "none": "○"}


def html_report(comparison: Comparison) -> str:
    """Return the page."""
    verdict = verdict_of(comparison)
    picks = picks_of(comparison)
    name = comparison.settings.get("file")
    title = "Calibration report" + (f": {name}" if name else "")
    parts = [
        f"<h1>{escape(title)}</h1>",
        _verdict(verdict),
        _parts.tiles(verdict),
        f"<p>{escape(data_note(comparison))}</p>",
        _warnings(verdict),
        "<h2 id=table>All methods</h2>",
        _parts.table(comparison, picks),
        _glossary(comparison),
        curves(comparison, picks),
        "<h2 id=diagrams>Before and after</h2>",
        _parts.diagrams(picks, verdict),
        _parts.clients(comparison),
        "<h2 id=privacy>Privacy</h2>",
        _parts.privacy(comparison),
        "<h2 id=again>How to run it again</h2>",
        _again(comparison),
    ]
    version = escape(str(comparison.settings["version"]))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="generator" content="skfedcal {version}">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        '<body><a class="skip" href="#table">Skip to the table</a>\n<main>\n'
        + "\n".join(part for part in parts if part)
        + f"\n<footer>skfedcal {version}</footer>\n</main></body></html>\n"
    )


def _verdict(verdict: Verdict) -> str:
    first, *rest = verdict.sentences
    lines = "".join(f"<li>{escape(text)}</li>" for text in rest)
    return (
        f'<section class="verdict {verdict.tone}"><p class="headline">'
        f'<span class="mark" aria-hidden="true">{MARKS[verdict.tone]}</span> '
        f"{escape(first)}</p><ul>{lines}</ul></section>"
        "<p><small>The best rows were chosen on the rows that they are measured on, so "
        "that they look a little better than they are. A gain is clear if it is more "
        "than two standard errors. Log loss and classwise error: lower is better; "
        "floor: the classwise error that a perfect model would show on as many rows."
        f"{_budget_words(verdict)}</small></p>"
    )


def _budget_words(verdict: Verdict) -> str:
    if all(eps == "none" for eps in verdict.best):
        return ""
    return (
        " eps: privacy budget of one client; smaller means stronger privacy "
        '(see <a href="#privacy">Privacy</a>).'
    )


def _warnings(verdict: Verdict) -> str:
    if not verdict.warnings:
        return ""
    lines = "".join(f"<li>{escape(text)}</li>" for text in verdict.warnings)
    return f'<h2 id=warnings>What to know</h2><ul class="warnings">{lines}</ul>'


def _glossary(comparison: Comparison) -> str:
    oracle = str(comparison.settings["oracle"])
    words = {
        "base, central": f"The model as it is; {oracle} on all rows in one place.",
        **WORDS,
    }
    pairs = "".join(
        f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>"
        for word, text in words.items()
    )
    return (
        "<details><summary>What the columns mean</summary>"
        f'<dl class="words">{pairs}</dl></details>'
    )


def _again(comparison: Comparison) -> str:
    settings = comparison.settings
    command = settings.get("command")
    shown = f"<pre>{escape(str(command))}</pre>" if command else ""
    left_out = ("command", "file")
    pairs = "".join(
        f'<tr><th scope="row" class="first">{escape(str(name))}</th>'
        f'<td class="key wrap">{escape(_text(value))}</td></tr>'
        for name, value in settings.items()
        if name not in left_out and value not in (None, {}, [])
    )
    return (
        f"{shown}<details><summary>All settings</summary>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Settings">'
        f"<table><tbody>{pairs}</tbody></table></div></details>"
    )


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join("none" if entry is None else _text(entry) for entry in value)
    if isinstance(value, dict):
        return "; ".join(f"{name}: {_text(entry)}" for name, entry in value.items())
    return str(value)
