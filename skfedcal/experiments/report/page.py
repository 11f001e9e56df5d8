"""A comparison as one HTML page: style, diagrams, tables and text.

- Style of the page: light and dark, wide and narrow, on screen and on paper.
- Parts of the page: tiles, table, choice of a row, plan and words about privacy.
- One file without network: the policy of the page allows its own style and script only.

The page shows and embeds what `Comparison.to_json` has for the rows of its table: means
over runs, and sums by bin over the test rows of the first run. There are no rows, no
labels and no names of clients in it, and nothing is computed from clients for the page.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from math import ceil, exp, floor, isnan, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skfedcal._json import dump
from skfedcal.experiments.comparison.result import data_note
from skfedcal.experiments.forecasting import HALF_WIDTH, clients_needed, eps_needed
from skfedcal.experiments.report._figures import (
    BIN_HEADS,
    BIN_TEXT,
    FRAME,
    curves,
    means_text,
    read_bins,
    reliability_svg,
)
from skfedcal.experiments.report.verdict import (
    Pick,
    Verdict,
    best_by_budget,
    outcome_text,
    picks_of,
    verdict_of,
)
from skfedcal.privacy.models import CentralDP

if TYPE_CHECKING:
    from skfedcal.experiments.comparison.result import Comparison

STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--soft:#57606a;--line:#d0d7de;
--card:#f6f8fa;--accent:#0b5cad;--gap:#e69f00;--good:#116329;--mixed:#7d4e00;
--none:#57606a;--warn:#fff8e6;--warnline:#b98a00}
@media (prefers-color-scheme:dark){:root{--bg:#0f1419;--fg:#e6e9ec;--soft:#a3adb8;
--line:#343c45;--card:#171d24;--accent:#6cb6ff;--gap:#d19000;--good:#6fdd8b;
--mixed:#f0b849;--none:#a3adb8;--warn:#2a2412;--warnline:#b98a00}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--fg);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:80rem;margin:0 auto;padding:1.2rem 1rem 4rem}
h1{font-size:1.05rem;color:var(--soft);font-weight:600;margin:.2rem 0 .8rem}
h2{font-size:1.25rem;margin:2.4rem 0 .6rem}
h3{font-size:1rem;margin:0 0 .3rem}
p,li{max-width:46rem;overflow-wrap:anywhere}
.skip{position:absolute;left:-99rem}
.skip:focus{left:1rem;top:.5rem;background:var(--bg);padding:.4rem .8rem;z-index:3}
:focus-visible{outline:3px solid var(--accent);outline-offset:2px}
.verdict{border-left:.4rem solid var(--tone);padding:.2rem 0 .2rem 1rem}
.verdict .headline{font-size:1.55rem;line-height:1.25;font-weight:700;margin:0 0 .5rem}
.good{--tone:var(--good)}.mixed{--tone:var(--mixed)}.none{--tone:var(--none)}
.mark{color:var(--tone);font-weight:700}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));gap:.8rem;
margin:1.2rem 0;padding:0}
.tiles div{background:var(--card);border:1px solid var(--line);border-radius:.5rem;
padding:.7rem .9rem}
.tiles dt{color:var(--soft);font-size:.85rem}
.tiles dd{margin:.1rem 0 0;font-size:1.25rem;font-weight:650}
.tiles small{display:block;font-weight:400;font-size:.8rem;color:var(--soft)}
.warnings{background:var(--warn);border:1px solid var(--warnline);border-radius:.5rem;
padding:.6rem 1rem .6rem 2.2rem;margin:.6rem 0}
.warnings li{margin:.35rem 0}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:.5rem}
table{border-collapse:collapse;font-size:.82rem;font-variant-numeric:tabular-nums;
width:100%}
th,td{padding:.36rem .5rem;text-align:right;white-space:nowrap;
border-bottom:1px solid var(--line)}
tr:last-child>*{border-bottom:0}
thead th{background:var(--card);vertical-align:bottom}
.fit{width:fit-content;max-width:100%}
.key{text-align:left}
th.first{position:sticky;left:0;background:var(--bg);z-index:1;text-align:left}
thead th.first{background:var(--card)}
tr.turn>*{border-top:2px solid var(--soft)}
td.best{font-weight:700}
td small{color:var(--soft)}
.star{color:var(--mixed);font-weight:700}
.diagrams{display:grid;grid-template-columns:repeat(auto-fill,minmax(15.5rem,1fr));
gap:1rem}
.curves{display:grid;gap:1rem;
grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr))}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:.5rem;
padding:.7rem}
figure.reliability{max-width:26rem}
.hit{fill:transparent}
.bin:focus{outline:0}
.bin.on .hit,.bin:hover .hit{fill:var(--accent);fill-opacity:.1}
.bin:focus-visible .hit{stroke:var(--accent);stroke-width:2}
.readout{font-size:.85rem;min-height:4.7em;margin:.3rem 0;
font-variant-numeric:tabular-nums}
fieldset{display:flex;flex-wrap:wrap;gap:.8rem 1.4rem;border:1px solid var(--line);
border-radius:.5rem;padding:.6rem .9rem .8rem;margin:1rem 0;background:var(--card);
min-width:0}
fieldset[hidden],.readout[hidden]{display:none}
legend{font-weight:600;padding:0 .3rem}
label{display:block;font-size:.85rem}
select{font:inherit;color:inherit;background:var(--bg);border:1px solid var(--soft);
border-radius:.35rem;padding:.4rem .5rem;min-height:2.75rem;max-width:100%}
fieldset div{min-width:0;max-width:100%}
caption{text-align:left;padding:.4rem .5rem;font-weight:600}
#choice-summary{font-weight:600}
.diagrams .scroll{align-self:start}
@media (min-width:64rem){.diagrams .scroll{grid-column:span 2}}
#numbers thead th{white-space:normal}
details .scroll{margin:.6rem 0}
figcaption{font-size:.85rem;color:var(--soft)}
figcaption b{color:var(--fg)}
svg{display:block;width:100%;height:auto}
.plot{fill:var(--bg);stroke:var(--soft);stroke-width:1}
.grid{stroke:var(--line);stroke-width:.7}
.perfect{stroke:var(--soft);stroke-width:1.2;stroke-dasharray:5 4}
.gap{fill:var(--gap);fill-opacity:.45}
.band{stroke:var(--accent);stroke-width:1.4}
.point{fill:var(--accent)}
.count{fill:var(--soft);fill-opacity:.65}
.tick,.name{fill:var(--soft);font:11px system-ui,sans-serif}
.name{font-size:12px}
.curve{fill:none;stroke-width:2}
pre{background:var(--card);border:1px solid var(--line);border-radius:.5rem;
padding:.7rem .9rem;white-space:pre-wrap;overflow-wrap:anywhere;font-size:.85rem}
details{border:1px solid var(--line);border-radius:.5rem;padding:.5rem .9rem;
margin:.6rem 0}
summary{cursor:pointer;font-weight:600}
dl.words dt{font-weight:600;margin-top:.5rem}
dl.words dd{margin:0 0 0 1rem;max-width:44rem}
footer{margin-top:3rem;color:var(--soft);font-size:.85rem}
@media (max-width:34rem){.verdict .headline{font-size:1.3rem}
main{padding:.8rem .8rem 3rem}}
@media print{fieldset,.readout{display:none}.scroll{overflow:visible}
figure,.tiles div{break-inside:avoid}
body{font-size:12px}}
"""


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


HINT = "Point at a bin, or use the arrow keys on a focused diagram, for its numbers."


def choice(comparison: Comparison, picks: Sequence[Pick]) -> str:
    """Before and after for one row, which the reader can choose.

    Without a script it is the row of the tiles, and the form to choose is hidden.
    """
    best = best_by_budget(picks)
    shown = _default(list(best.values()))
    data = choice_data(comparison, picks)
    start = data["views"][_after(picks).index(shown)]
    before = data["before"][start["before"]]
    base = next(pick for pick in picks if pick.row is shown.base)
    return (
        '<p>If the model says "80 % sure", is it right 80 % of the time? Points on the '
        "dashed line: yes. Orange: the gap. Lines through points: 95 % intervals. Bars "
        "below: how many rows. Predicted class, first run.</p>"
        f"{_form(data, start)}"
        '<p id="choice-summary" role="status" aria-live="polite" aria-atomic="true">'
        f"{escape(start['summary'])}</p>"
        f'<div class="diagrams">{_diagram(base, before, "before-figure")}'
        f"{_diagram(shown, start, 'after-figure')}"
        f"{_numbers(comparison, before, start)}</div>{_bin_tables(before, start)}"
        f"{_gallery(list(best.values()))}"
        f'<script type="application/json" id="data">{_embedded(data)}</script>'
    )


def _default(best: Sequence[Pick]) -> Pick:
    """Row with the smallest eps that clearly gains; else the best of the last eps."""
    return next((pick for pick in reversed(best) if pick.clear), best[-1])


def _after(picks: Sequence[Pick]) -> list[Pick]:
    return [pick for pick in picks if pick.row["method"] != "base"]


def choice_data(comparison: Comparison, picks: Sequence[Pick]) -> dict[str, Any]:
    """Values that report.js shows: one view per row of the table, texts included.

    A view has None where a control does not concern it: the central oracle has no eps.
    """
    table = comparison.table
    rows = [cells[len(table.keys) :] for cells in table._cells()]
    texts = dict(zip(map(id, picks), rows, strict=True))
    bases = [pick for pick in picks if pick.row["method"] == "base"]
    places = {id(pick.row): i for i, pick in enumerate(bases)}
    after = _after(picks)
    methods = list(dict.fromkeys(pick.row["method"] for pick in after))
    points = list(dict.fromkeys(", ".join(p.point) for p in after if p.point))
    budgets = list(best_by_budget(picks))
    views = [
        {
            "method": methods.index(pick.row["method"]),
            "eps": None if pick.row["eps"] == "-" else budgets.index(pick.row["eps"]),
            "point": points.index(", ".join(pick.point)) if pick.point else None,
            "before": places[id(pick.base)],
            "summary": outcome_text(pick),
            **_view(pick, f"After: {pick.name}", texts[id(pick)]),
        }
        for pick in after
    ]
    return {
        "frame": FRAME,
        "hint": HINT,
        "bin_text": BIN_TEXT,
        "methods": methods,
        "eps": budgets,
        "points": points,
        "before": [_view(p, f"Before: {p.name}", texts[id(p)]) for p in bases],
        "views": views,
    }


def _view(pick: Pick, title: str, cells: Sequence[str]) -> dict[str, Any]:
    run = pick.runs[0]
    return {
        "title": title,
        "means": means_text(run["reliability"]),
        "caption": _caption(pick),
        "cells": [_with_spread(cell) for cell in cells],
        "n_bins": len(run["reliability"]["n"]),
        "bins": [one.to_list() for one in read_bins(run["reliability"])],
    }


def _caption(pick: Pick) -> str:
    return f"ECE {100 * pick.runs[0]['ECE']:.2f} % in the first run"


def _with_spread(cell: str) -> str:
    """Text of a cell of the table: mean, deviation and star."""
    text, _, spread = cell.removesuffix("*").partition(" (sd ")
    text += f" ± {spread.removesuffix(')')}" if spread else ""
    return text + " *" * cell.endswith("*")


def _embedded(data: Mapping[str, Any]) -> str:
    """JSON that cannot end the element it is in, whatever its texts are."""
    text = dump(_showable(data))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _showable(value: Any) -> Any:
    """Replace letters of texts as in the rest of the page."""
    if isinstance(value, str):
        return value.translate(UNSHOWN)
    if isinstance(value, Mapping):
        return {name: _showable(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_showable(entry) for entry in value]
    return value


def _form(data: Mapping[str, Any], start: Mapping[str, Any]) -> str:
    """Controls for eps, method and what was varied; hidden until the script runs."""
    budgets = ["none (exact sums)" if eps == "none" else eps for eps in data["eps"]]
    methods = [
        "central (all rows in one place)" if name == "central" else name
        for name in data["methods"]
    ]
    controls = [
        ("eps", "Privacy budget eps", budgets),
        ("method", "Method", methods),
        ("point", "Setting", data["points"]),
    ]
    parts = "".join(
        f'<div><label for="choice-{name}">{label}</label>'
        f'<select id="choice-{name}" autocomplete="off"'
        f"{' disabled' * (start[name] is None)}>"
        + "".join(
            f'<option value="{i}"{" selected" * (i == start[name])}>{escape(text)}'
            "</option>"
            for i, text in enumerate(options)
        )
        + "</select></div>"
        for name, label, options in controls
        if options
    )
    return (
        '<fieldset id="choice" hidden><legend>Compare with base</legend>'
        f"{parts}</fieldset>"
    )


def _diagram(pick: Pick, view: Mapping[str, Any], name: str = "") -> str:
    own = f' id="{name}"' if name else ""
    return (
        f'<figure class="reliability"{own}>'
        + reliability_svg(pick.runs[0]["reliability"], view["title"])
        + '<p class="readout" aria-hidden="true" hidden></p>'
        f"<figcaption><b>{escape(view['title'])}</b><br>"
        f"<span>{escape(view['caption'])}</span></figcaption></figure>"
    )


def _numbers(
    comparison: Comparison, before: Mapping[str, Any], after: Mapping[str, Any]
) -> str:
    """All numbers of the choice beside those of the base."""
    shown = comparison.table
    lines = "".join(
        f'<tr><th scope="row" class="first">{escape(name)}</th>'
        f'<td class="before">{escape(old)}</td><td class="after">{escape(new)}</td>'
        "</tr>"
        for name, old, new in zip(
            shown._header()[len(shown.keys) :],
            before["cells"],
            after["cells"],
            strict=True,
        )
    )
    return (
        '<div class="scroll fit" tabindex="0" role="region" '
        'aria-label="Numbers of the choice"><table id="numbers"><thead><tr>'
        '<th scope="col" class="first">mean over runs</th>'
        f'<th scope="col" id="before-name">{escape(before["title"])}</th>'
        f'<th scope="col" id="after-name">{escape(after["title"])}</th></tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _bin_tables(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Numbers of the two diagrams as tables."""
    heads = "".join(
        f'<th scope="col"{"" if i else " class=first"}>{name}</th>'
        for i, name in enumerate(BIN_HEADS)
    )
    tables = "".join(
        '<div class="scroll fit" tabindex="0" role="region" '
        f'aria-label="Bins {name}"><table id="{name}-bins">'
        f"<caption>{escape(view['title'])}</caption>"
        f"<thead><tr>{heads}</tr></thead><tbody>"
        + "".join(
            f'<tr><th scope="row" class="first">{one[-1][0]}</th>'
            + "".join(f"<td>{cell}</td>" for cell in one[-1][1:])
            + "</tr>"
            for one in view["bins"]
        )
        + "</tbody></table></div>"
        for name, view in (("before", before), ("after", after))
    )
    return (
        f"<details><summary>Numbers of the bins</summary>{tables}<p>A row of the "
        "table is a bin of confidence: the test rows in it, their mean confidence, the "
        "share that is right, and its Wilson interval.</p></details>"
    )


def _gallery(best: Sequence[Pick]) -> str:
    """Best of each eps side by side."""
    if len(best) < 2:
        return ""
    names = [pick.name + ("" if pick.clear else " (no clear gain)") for pick in best]
    figures = "".join(
        _diagram(pick, {"title": name, "caption": _caption(pick)})
        for pick, name in zip(best, names, strict=True)
    )
    return f'<h3>Best method of each eps</h3><div class="diagrams">{figures}</div>'


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
        "<h2 id=clients>How far clients differ</h2><p>Mean number of classes of a "
        "client; variance over clients of the temperature T_k fitted to one client "
        "alone, and of the classwise error at T_k; mean distance between T_k and the "
        "temperature T of all rows. The more clients differ, the worse a map that one "
        "client fits alone.</p>"
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
        f"{escape(units)}. Consider an attacker who knows all other data and guesses "
        f"whether this {escape(units)} contributed its data or nothing:</p>"
        '<div class="scroll fit" tabindex="0" role="region" '
        'aria-label="Meaning of eps"><table><thead><tr>'
        '<th scope="col" class="first">eps of one fit</th>'
        '<th scope="col">delta</th><th scope="col">odds grow at most</th>'
        '<th scope="col">50 % suspicion becomes at most</th></tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
        "<p>The bound may fail with a probability of about delta. It holds for one "
        "fit: every further fit on the same clients adds to it, and a PrivacyLedger "
        "adds them up. The server is trusted to add the noise, and the number of "
        "clients is public. eps below 1 is strong privacy, above 10 is weak.</p>"
        f"{warning}"
    )


# Rows of the plan, each of which takes up to a second; eps that is planned for; most
# clients, rows and classes of `forecast`.
MOST_PLANNED, PLANNED_EPS = 5, (1e-3, 1e3)
MOST_UNITS, MOST_CLASSES = 10**9, 1000

NEEDS = {
    "temperature": "a private temperature",
    "shape": "private class biases and shape",
    "accuracy": f"accuracy within ±{100 * HALF_WIDTH:g} points",
    "ece": f"ECE within ±{100 * HALF_WIDTH:g} points",
}


def plan(comparison: Comparison) -> str:
    """How many clients, or which eps, private fits and releases would need.

    Computed from the numbers of clients, rows and classes and from eps, which the page
    shows as well; no data are read.
    """
    run, n_classes = comparison.runs[0], comparison.settings["n_classes"]
    n_clients = run["n_clients"]
    rows = max(round(run["n_rows"] / n_clients), 1)
    if max(n_clients, rows) > MOST_UNITS or n_classes > MOST_CLASSES:
        return ""
    models = _planned(comparison)
    lines = [
        (f"eps = {model.eps:g}", clients_needed(rows, n_classes, model), n_clients)
        for model in models
    ]
    cells = "".join(_plan_row(*line) for line in lines)
    eps = eps_needed(n_clients, rows, n_classes, models[-1])
    cells += _plan_row(f"{n_clients:,} clients, as here", eps, None)
    heads = "".join(f'<th scope="col">{NEEDS[name]}</th>' for name in eps)
    command = (
        f"skfedcal plan --clients {n_clients} --rows {rows} --classes {n_classes} "
        f"--eps {models[-1].eps:g}"
    )
    if models[-1].unit == "example":
        command += " --unit example"
    return (
        "<h2 id=plan>Plan: more clients or another eps</h2><p>Number of clients that "
        f"are needed at an eps, with {rows:,} rows each; in the last row, the smallest "
        f"eps for {n_clients:,} clients. A private fit with fewer clients returns its "
        "input. The last columns are 95 % intervals of an evaluation on the clients "
        "(federated_report) under the same eps, computed for a synthetic model.</p>"
        '<div class="scroll fit" tabindex="0" role="region" aria-label="Plan">'
        '<table><thead><tr><th scope="col" class="first">given</th>'
        f"{heads}</tr></thead><tbody>{cells}</tbody></table></div>"
        "<p>The noise is that of CentralDP with its usual delta. For all intervals and "
        f"the chance of a gain:</p><pre>{command}</pre>"
    )


def _planned(comparison: Comparison) -> list[CentralDP]:
    """Budgets of the table from large to small; eps = 1 if there is none."""
    low, high = PLANNED_EPS
    found = {
        (float(run["eps"]), run["unit"]): CentralDP(float(run["eps"]), unit=run["unit"])
        for run in comparison.runs
        if run.get("eps spent") is not None
        and low <= float(run["eps"]) <= high
        and run["unit"] in ("client", "example")
    }
    order = sorted(found, reverse=True)[:MOST_PLANNED]
    return [found[key] for key in order] or [CentralDP(1.0)]


def _plan_row(
    name: str, needed: Mapping[str, float | None], n_clients: int | None
) -> str:
    """Clients, or budgets if `n_clients` is None."""
    cells = []
    for value in needed.values():
        if n_clients is None:
            text = "more clients" if value is None else f"eps {_rounded_up(value):g}"
        else:
            assert value is not None
            text = f"{_rounded_up(value):,.0f}"
            text += " (reached)" if value <= n_clients else ""
        cells.append(f"<td>{text}</td>")
    return f'<tr><th scope="row" class="first">{name}</th>{"".join(cells)}</tr>'


def _rounded_up(value: float) -> float:
    """Two significant digits; at least 0.001."""
    value = max(value, 1e-3)
    unit = 10.0 ** (floor(log10(value)) - 1)
    return float(f"{ceil(value / unit - 1e-9) * unit:.2g}")


# One sentence for each column of the table.
WORDS = {
    "cwECE": "Classwise calibration error: the gap between stated probability and "
    "observed frequency, mean over classes and bins; it is small for many classes, so "
    "compare it with that of base.",
    "floor": "The cwECE that a perfectly calibrated model would show on as many test "
    "rows; an error near it is not distinguishable from zero.",
    "ECE": "Expected calibration error: the gap between confidence and accuracy of the "
    "predicted class, mean over bins; lower is better.",
    "NLL": "Negative log likelihood, or log loss: the mean of -log of the probability "
    "that was stated for the true class; lower is better.",
    "Brier": "Mean squared difference between the probabilities and the true class; "
    "lower is better.",
    "acc change": "Change of accuracy against base, in points; a star marks a drop of "
    "more than 1 %.",
    "gap closed": "Share of the way in cwECE from base to the central oracle.",
    "eps spent": "Budget of differential privacy that one fit costs one client; "
    "none: exact sums.",
    "rounds": "Number of times that clients are asked.",
    "bytes": "Messages up and down of one client that takes part in all rounds.",
    "client seconds": "Time that such a client computes.",
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
        tiles(verdict),
        f"<p>{escape(data_note(comparison))}</p>",
        _warnings(verdict),
        "<h2 id=table>All methods</h2>",
        table(comparison, picks),
        _glossary(comparison),
        curves(comparison, picks),
        "<h2 id=diagrams>Before and after</h2>",
        choice(comparison, picks),
        clients(comparison),
        plan(comparison),
        "<h2 id=privacy>Privacy</h2>",
        privacy(comparison),
        "<h2 id=again>How to run it again</h2>",
        _again(comparison),
    ]
    version = escape(str(comparison.settings["version"]))
    text = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="generator" content="skfedcal {version}">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        '<body><a class="skip" href="#table">Skip to the table</a>\n<main>\n'
        + "\n".join(part for part in parts if part)
        + f"\n<footer>skfedcal {version}</footer>\n</main>\n"
        f"<script>{script()}</script></body></html>\n"
    )
    return text.translate(UNSHOWN)


# Letters that names may have and a page may not, or that would reorder the text around
# them: control characters, halves of letters and directional overrides.
UNSHOWN = dict.fromkeys(
    [
        *(i for i in range(32) if chr(i) not in "\t\n"),
        *range(0x7F, 0xA0),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
        *range(0xD800, 0xE000),
    ],
    "\ufffd",
)


@cache
def script() -> str:
    """Script of the page."""
    return Path(__file__).with_name("report.js").read_text(encoding="utf-8")


def _policy() -> str:
    """Allow the style and the script of this page, and no address."""
    own = [
        base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()
        for text in (script(), STYLE)
    ]
    return (
        f"default-src 'none'; script-src 'sha256-{own[0]}'; "
        f"style-src 'sha256-{own[1]}'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
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
        "than two standard errors, which are for other clients like these where the "
        "test rows have owners. Log loss and classwise error: lower is better; "
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
