"""``skfedcal audit --site``: a table of what a dishonest server learnt from a site."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from skfedcal._table import text_pairs

if TYPE_CHECKING:
    from skfedcal.cli._console import Console
    from skfedcal.federation._dishonest_server import Finding, Target
    from skfedcal.federation._policy import SitePolicy

# Widths of the columns that hold sentences, and of those that hold numbers.
_WIDTHS = (26, 40, 29)
_NUMBERS = (8, 8, 11)
_CHARGED = """\
answered: requests that came as far as the rows.
eps charged: the most that one copy of the ledger was charged. Each request goes to a
fresh copy of the site and of its ledger, the requests of a search to one copy."""


def audit_site_file(path: str, thorough: bool, console: Console) -> None:
    """Attack the site of a configuration file and print what was learnt.

    Raises
    ------
    ValueError
        If something was learnt.
    """
    from skfedcal.federation._dishonest_server import (
        Target,
        attacked,
        site_from_file,
    )

    console.progress(f"reading {path}")
    target = Target.of(
        site_from_file(path), n_samples=4000 if thorough else 400, thorough=thorough
    )
    findings = attacked(target, progress=console.progress)
    learnt = [finding for finding in findings if finding.learnt]
    data = {
        "site": target.copies.name,
        "passed": not learnt,
        "requests": len(target.entries),
        "answered_plain": len(target.plain),
        "answered_masked": len(target.masked),
        "findings": [finding.to_dict() for finding in findings],
    }
    console.result(_text(target, findings), data)
    if learnt:
        raise ValueError(
            f"Site {target.copies.name!r} gives a dishonest server what its policy "
            f"does not allow: {len(learnt)} of {len(findings)} attacks succeeded."
        )


def _text(target: Target, findings: Sequence[Finding]) -> str:
    copies = target.copies
    failed = sum(bool(finding.learnt) for finding in findings)
    left = "none: what is answered is not added up"
    if copies.has_ledger:
        left = f"a copy, with eps {copies.remaining:.4g} left"
    pairs = [
        ("site", copies.name),
        ("rows", f"{len(copies.rows)}, {target.schema.n_columns} columns"),
        ("policy", _policy_text(copies.policy)),
        ("ledger", left),
        (
            "requests",
            f"{len(target.entries)} kinds that an honest server can send; of these "
            f"{len(target.plain)} are answered plain, {len(target.masked)} masked",
        ),
        ("verdict", f"FAILED: {failed} attacks succeeded" if failed else "PASSED"),
    ]
    if not target.plain and not target.masked:
        pairs.append(
            ("warning", "the site answers nothing: its rows were never reached")
        )
    return f"{text_pairs(pairs)}\n\n{findings_table(findings)}\n\n{_CHARGED}"


def _policy_text(policy: SitePolicy) -> str:
    """Conditions that are not as they are without a word."""
    said = []
    for name in (f.name for f in fields(policy)):
        value = getattr(policy, name)
        if name in ("min_clients", "noise") or value != getattr(type(policy)(), name):
            text = ", ".join(value) if isinstance(value, tuple) else str(value)
            said.append(f"{name.replace('_', '-')} {text}")
    return "; ".join(said)


def findings_table(findings: Sequence[Finding]) -> str:
    """One row per attack: what was tried, what came of it, and what it was charged."""
    header = (
        "attack",
        "what a dishonest server tried",
        "outcome",
        "messages",
        "answered",
        "eps charged",
    )
    lines = [_line(header), _line(tuple("-" * w for w in (*_WIDTHS, *_NUMBERS)))]
    for finding in findings:
        lines += _wrapped(finding)
    return "\n".join(lines)


def _wrapped(finding: Finding) -> list[str]:
    outcome = f"LEARNT: {finding.learnt}" if finding.learnt else "nothing learnt"
    if finding.learnt and finding.bits:
        outcome += f" ({finding.bits:.3g} bits)"
    cells = [
        textwrap.wrap(text, width)
        for text, width in zip(
            (finding.attack, finding.tried, outcome), _WIDTHS, strict=True
        )
    ]
    eps = "no ledger" if math.isnan(finding.eps) else f"{finding.eps:.3g}"
    numbers = [[str(finding.messages)], [str(finding.answered)], [eps]]
    height = max(map(len, cells))
    columns: list[Any] = [
        part + [""] * (height - len(part)) for part in (*cells, *numbers)
    ]
    return [_line(row) for row in zip(*columns, strict=True)]


def _line(cells: Sequence[str]) -> str:
    left = [cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=False)]
    right = [cell.rjust(width) for cell, width in zip(cells[3:], _NUMBERS, strict=True)]
    return "  ".join([*left, *right]).rstrip()
