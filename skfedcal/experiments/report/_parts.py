"""Parts of the page: tiles, table, diagrams and words about privacy."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import exp, isnan
from typing import TYPE_CHECKING, Any

from skfedcal.experiments.report._diagram import reliability_svg
from skfedcal.experiments.report._picks import Pick

if TYPE_CHECKING:
    from skfedcal.experiments.comparison._result import Comparison
    from skfedcal.experiments.report._verdict import Verdict


def tiles(verdict: Verdict) -> str:
    """Key figures of the best row: the one with the smallest eps that gains."""
    clear = [pick for pick in verdict.best.values() if pick.clear]
    if not clear:
        return ""
    pick = clear[-1]
    row, base = pick.row, pick.base
    pairs = [
        ("Best choice", pick.name, ""),
        (
            "Classwise error",
            f"{100 * base['cwECE']:.2f} → {100 * row['cwECE']:.2f} %",
            f"floor {100 * row['floor']:.2f} %",
        ),
        ("Log loss", f"{base['NLL']:.3f} → {row['NLL']:.3f}", "lower is better"),
        (
            "Accuracy",
            f"{100 * row['acc change']:+.2f} points",
            f"{100 * pick.runs[0]['accuracy']:.1f} % in the first run",
        ),
    ]
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(more)}</small>"
        "</dd></div>"
        for name, value, more in pairs
    )
    return f'<dl class="tiles">{cells}</dl>'


def table(comparison: Comparison, picks: Sequence[Pick]) -> str:
    """All rows; the lowest cwECE of each eps is bold, a drop in accuracy starred."""
    shown = comparison.table
    header = shown._header()
    n_keys = len(shown.keys)
    best = _lowest(picks)
    lines = []
    before = None
    for pick, cells in zip(picks, shown._cells(), strict=True):
        eps = pick.row["eps"]
        turn = ' class="turn"' if before not in (None, eps) else ""
        before = eps
        keys = "".join(
            f'<td class="key">{escape(cell)}</td>' for cell in cells[1:n_keys]
        )
        values = "".join(
            _value(cell, i == 0 and id(pick) in best)
            for i, cell in enumerate(cells[n_keys:])
        )
        lines.append(
            f'<tr{turn}><th scope="row" class="first">{escape(cells[0])}</th>{keys}'
            f"{values}</tr>"
        )
    first, *names = (escape(name) for name in header)
    heads = "".join(
        f'<th scope="col"{" class=key" if i < n_keys - 1 else ""}>{name}</th>'
        for i, name in enumerate(names)
    )
    return (
        '<div class="scroll" tabindex="0" role="region" '
        'aria-label="Table of all methods"><table><thead><tr>'
        f'<th scope="col" class="first">{first}</th>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _value(cell: str, best: bool) -> str:
    star = '<span class="star" title="accuracy drops by more than 1 %">*</span>'
    text, _, spread = cell.removesuffix("*").partition(" (sd ")
    inner = escape(text)
    if spread:
        inner += f" <small>± {escape(spread.removesuffix(')'))}</small>"
    return f"<td{' class=best' if best else ''}>{inner}{star * cell.endswith('*')}</td>"


def _lowest(picks: Sequence[Pick]) -> set[int]:
    found: dict[str, Pick] = {}
    for pick in picks:
        eps = pick.row["eps"]
        if eps == "-" or pick.starred or isnan(pick.row["cwECE"]):
            continue
        if eps not in found or pick.row["cwECE"] < found[eps].row["cwECE"]:
            found[eps] = pick
    return {id(pick) for pick in found.values()}


def diagrams(picks: Sequence[Pick], verdict: Verdict) -> str:
    """Before, and after the best of each budget; of the first seed."""
    chosen = [("Before", picks[0])]
    chosen += [
        ("After" if pick.clear else "After (no clear gain)", pick)
        for pick in verdict.best.values()
    ]
    figures = "".join(
        "<figure>"
        + reliability_svg(pick.runs[0]["reliability"], f"{when}: {pick.name}")
        + f"<figcaption><b>{escape(when)}: {escape(pick.name)}</b><br>ECE "
        f"{100 * pick.runs[0]['ECE']:.2f} %</figcaption></figure>"
        for when, pick in chosen
    )
    return (
        '<p>If the model says "80 % sure", is it right 80 % of the time? Points on the '
        "dashed line: yes. Orange: the gap. Lines through points: 95 % intervals. Bars "
        "below: how many rows. Predicted class, first seed.</p>"
        f'<div class="diagrams">{figures}</div>'
    )


def clients(comparison: Comparison) -> str:
    """How far clients differ; nothing if that was not measured."""
    shown = comparison.client_table
    if not shown.runs:
        return ""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in shown._header())
    lines = "".join(
        f"<tr>{''.join(_value(cell, False) for cell in cells)}</tr>"
        for cells in shown._cells()
    )
    return (
        "<h2 id=clients>How far clients differ</h2><p>Classes that a client has on "
        "average; variance over clients of the temperatures T_k that each would fit "
        "alone, and of its classwise error with it; mean distance from the temperature "
        "T of all rows. The more they differ, the less a single client can correct "
        "the model alone.</p>"
        '<div class="scroll fit" tabindex="0" role="region" '
        'aria-label="How far clients differ"><table><thead><tr>'
        f"{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _odds(eps: float) -> str:
    """Bound of the odds; none beyond what a float can hold."""
    return f"{exp(eps):.3g}-fold" if eps < 700 else "without bound"


def privacy(comparison: Comparison) -> str:
    """What was spent, and what that means for one client."""
    private = [run for run in comparison.runs if run.get("eps spent") is not None]
    if not private:
        return (
            "<p>No noise was added. The server learns exact sums over clients, which "
            "can reveal information about single clients, especially if there are "
            "few.</p>"
        )
    budgets: dict[float, Any] = {}
    for run in private:
        budgets.setdefault(run["eps spent"], run)
    lines = "".join(
        f'<tr><th scope="row" class="first">{eps:g}</th><td>{run["delta"]:g}</td>'
        f"<td>{_odds(eps)}</td><td>{100 / (1 + exp(-eps)):.0f} %</td></tr>"
        for eps, run in sorted(budgets.items(), reverse=True)
    )
    units = " or ".join(sorted({run["unit"] for run in private}))
    simulated = any(run["simulated"] for run in private)
    warning = (
        "<p><strong>This comparison itself gives no privacy:</strong> its noise is "
        "seeded, and it was run on rows that were all in one place. It shows what a "
        "real fit with this budget would give. Leave the seed out for a release.</p>"
        if simulated
        else ""
    )
    return (
        f"<p>A budget eps limits what all releases together can reveal about one whole "
        f"{escape(units)}. Take somebody who knows everything else and asks whether "
        f"this {escape(units)} gave its own data or nothing:</p>"
        '<div class="scroll fit" tabindex="0" role="region" '
        'aria-label="Meaning of eps"><table><thead><tr>'
        '<th scope="col" class="first">eps of one fit</th>'
        '<th scope="col">delta</th><th scope="col">odds grow at most</th>'
        '<th scope="col">50 % suspicion becomes at most</th></tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
        "<p>The bound holds up to a slack of delta. It is that of one fit: every "
        "further fit on the same clients adds to it, and a privacy ledger keeps the "
        "account. The server is trusted to add the noise; how many clients there are "
        "is public. eps below 1 is strong privacy, above 10 is weak.</p>"
        f"{warning}"
    )
