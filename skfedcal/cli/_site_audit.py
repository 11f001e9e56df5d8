"""``skfedcal audit --site``: a table of what a dishonest server learnt from a site."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from skfedcal._table import text_pairs

if TYPE_CHECKING:
    from skfedcal.cli._console import Console
    from skfedcal.federation._dishonest_server import Finding, Target

# Widths of the columns that hold sentences.
_WIDTHS = (26, 40, 38)


def audit_site_file(path: str, n_samples: int, alpha: float, console: Console) -> None:
    """Attack the site of a configuration file and print what was learnt.

    Raises
    ------
    ValueError
        If something was learnt.
    """
    import logging

    from skfedcal.federation._dishonest_server import (
        Target,
        all_attacks,
        site_from_file,
    )

    # The site logs each refusal, and there will be thousands.
    log = logging.getLogger("skfedcal.site")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        console.progress(f"reading {path}")
        target = Target.of(site_from_file(path), n_samples=n_samples, alpha=alpha)
        findings = []
        for attack in all_attacks():
            console.progress(attack.name)
            findings.append(attack.run(target))
    finally:
        log.setLevel(level)
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
        ("policy", str(copies.policy)),
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
    return f"{text_pairs(pairs)}\n\n{findings_table(findings)}"


def findings_table(findings: Sequence[Finding]) -> str:
    """One row per attack: what was tried, what came of it, and what it was charged."""
    header = (
        "attack",
        "what a dishonest server tried",
        "outcome",
        "messages",
        "eps charged",
    )
    lines = [_line(header), _line(tuple("-" * w for w in (*_WIDTHS, 8, 11)))]
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
    numbers = [[str(finding.messages)], [eps]]
    height = max(map(len, cells))
    columns: list[Any] = [
        part + [""] * (height - len(part)) for part in (*cells, *numbers)
    ]
    return [_line(row) for row in zip(*columns, strict=True)]


def _line(cells: Sequence[str]) -> str:
    left = [cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=False)]
    return "  ".join([*left, cells[3].rjust(8), cells[4].rjust(11)]).rstrip()
