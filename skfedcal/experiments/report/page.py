"""A comparison as one HTML page: style, diagrams, tables and text.

- Style of the page: light and dark, wide and narrow, on screen and on paper.
- Reliability diagrams as SVG, drawn by hand so that no plotting library is needed.
- Parts of the page: tiles, table, diagrams and words about privacy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import exp, isnan, sqrt
from typing import TYPE_CHECKING, Any

from skfedcal.experiments.comparison.result import data_note
from skfedcal.experiments.report._curves import curves
from skfedcal.experiments.report.verdict import Pick, Verdict, picks_of, verdict_of

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
@media print{.scroll{overflow:visible}figure,.tiles div{break-inside:avoid}
body{font-size:12px}}
"""

# Size of the square, room for the numbers beside it, height of the counts below.
SIDE, LEFT, TOP, GAP, COUNTS = 220.0, 50.0, 10.0, 12.0, 34.0
WIDTH, HEIGHT = LEFT + SIDE + 12, TOP + SIDE + GAP + COUNTS + 36


def reliability_svg(bins: Mapping[str, Sequence[float]], title: str) -> str:
    """Frequency against confidence of the predicted class, and how many rows.

    bins: Sums over rows by bin: ``n``, ``confidence`` and ``hits``.
    """
    n_bins = len(bins["n"])
    most = max(bins["n"]) or 1.0
    parts = [_frame()]
    for i, (n, confidence, hits) in enumerate(
        zip(bins["n"], bins["confidence"], bins["hits"], strict=True)
    ):
        if n:
            parts.append(_bin(i, n_bins, n, confidence / n, hits / n, most))
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" '
        f'aria-label="{escape(title)}. {escape(_spoken(bins))}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _spoken(bins: Mapping[str, Sequence[float]]) -> str:
    total = sum(bins["n"]) or 1.0
    return (
        f"Mean confidence {100 * sum(bins['confidence']) / total:.1f} %, right "
        f"{100 * sum(bins['hits']) / total:.1f} %, {total:.0f} rows."
    )


def _x(value: float) -> float:
    return LEFT + SIDE * value


def _y(value: float) -> float:
    return TOP + SIDE * (1 - value)


def _frame() -> str:
    """Axes, grid, numbers and the diagonal of a perfect model."""
    parts = [
        f'<rect class="plot" x="{LEFT:g}" y="{TOP:g}" width="{SIDE:g}" '
        f'height="{SIDE:g}"/>'
    ]
    low = TOP + SIDE + GAP + COUNTS
    for k in range(5):
        value = k / 4
        parts.append(
            f'<line class="grid" x1="{_x(value):g}" x2="{_x(value):g}" y1="{TOP:g}" '
            f'y2="{TOP + SIDE:g}"/><line class="grid" x1="{LEFT:g}" '
            f'x2="{LEFT + SIDE:g}" y1="{_y(value):g}" y2="{_y(value):g}"/>'
            f'<text class="tick" x="{LEFT - 5:g}" y="{_y(value) + 4:g}" '
            f'text-anchor="end">{value:g}</text><text class="tick" x="{_x(value):g}" '
            f'y="{low + 14:g}" text-anchor="middle">{value:g}</text>'
        )
    parts.append(
        f'<line class="perfect" x1="{_x(0):g}" y1="{_y(0):g}" x2="{_x(1):g}" '
        f'y2="{_y(1):g}"/>'
    )
    middle = TOP + SIDE / 2
    parts.append(
        f'<text class="name" x="{_x(0.5):g}" y="{low + 29:g}" text-anchor="middle">'
        "confidence</text>"
        f'<text class="name" transform="translate(11 {middle:g}) rotate(-90)" '
        'text-anchor="middle">share that is right</text>'
    )
    return "".join(parts)


def _bin(
    i: int, n_bins: int, n: float, confidence: float, share: float, most: float
) -> str:
    """Gap to the diagonal, the share with its interval, and the count below."""
    step = SIDE / n_bins
    left = LEFT + i * step + 1
    low, high = wilson(share, n)
    top, bottom = _y(max(share, confidence)), _y(min(share, confidence))
    x = _x(confidence)
    height = COUNTS * n / most
    base = TOP + SIDE + GAP + COUNTS
    return (
        f'<rect class="gap" x="{left:.2f}" y="{top:.2f}" width="{step - 2:.2f}" '
        f'height="{bottom - top:.2f}"/>'
        f'<line class="band" x1="{x:.2f}" x2="{x:.2f}" y1="{_y(high):.2f}" '
        f'y2="{_y(low):.2f}"/>'
        f'<circle class="point" cx="{x:.2f}" cy="{_y(share):.2f}" r="3.2"/>'
        f'<rect class="count" x="{left:.2f}" y="{base - height:.2f}" '
        f'width="{step - 2:.2f}" height="{height:.2f}"/>'
    )


def wilson(share: float, n: float, z: float = 1.96) -> tuple[float, float]:
    """Interval of a share of `n` rows, of about 95 %."""
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(middle - half, 0.0), min(middle + half, 1.0)


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
        tiles(verdict),
        f"<p>{escape(data_note(comparison))}</p>",
        _warnings(verdict),
        "<h2 id=table>All methods</h2>",
        table(comparison, picks),
        _glossary(comparison),
        curves(comparison, picks),
        "<h2 id=diagrams>Before and after</h2>",
        diagrams(picks, verdict),
        clients(comparison),
        "<h2 id=privacy>Privacy</h2>",
        privacy(comparison),
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
