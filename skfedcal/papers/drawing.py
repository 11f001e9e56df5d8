"""Figures of results, in the layout of the paper."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skfedcal._files import write_whole
from skfedcal.papers.items import Panel, PaperResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Panels of one row of a figure.
PER_ROW = 3
ENDINGS = (".png", ".svg", ".pdf")


def draw(result: PaperResult, path: str | os.PathLike[str]) -> None:
    """Write the panels of a result to a file whose name says its form."""
    ending = Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise ValueError(f"{path}: expected a name that ends in {', '.join(ENDINGS)}.")
    if not result.panels:
        raise ValueError(f"{result.name or 'This result'} is a table: nothing to draw.")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Figures need matplotlib: pip install 'skfedcal[plot]'."
        ) from error
    n_columns = min(PER_ROW, len(result.panels))
    n_rows = -(-len(result.panels) // PER_ROW)
    figure = Figure(figsize=(4.4 * n_columns, 3.4 * n_rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    rows = result.table.rows
    for panel, ax in zip(result.panels, axes, strict=False):
        draw_panel(ax, panel, rows, result.table.values)
    for ax in axes[len(result.panels) :]:
        ax.set_axis_off()
    figure.suptitle(result.table.title, fontsize=10)
    form = ending[1:]
    write_whole(path, lambda stream: figure.savefig(stream, format=form, dpi=150))


def draw_panel(
    ax: Axes, panel: Panel, rows: Sequence[Mapping[str, Any]], forms: Mapping[str, str]
) -> None:
    """Draw one panel; values with a percent format are shown times a hundred."""
    from skfedcal.plotting.display import bar_style, line_style

    chosen = [r for r in rows if all(r[k] == v for k, v in panel.where.items())]
    names = _distinct(None if panel.line is None else r[panel.line] for r in chosen)
    words = panel.kind == "bar" or any(isinstance(r[panel.x], str) for r in chosen)
    ticks = _distinct(r[panel.x] for r in chosen)
    for number, name in enumerate(names):
        own = [r for r in chosen if panel.line is None or r[panel.line] == name]
        own = [r for r in own if not isnan(r[panel.y])]
        x = [ticks.index(r[panel.x]) if words else r[panel.x] for r in own]
        factors = _factor(forms, panel.y), _factor(forms, panel.x)
        y = [r[panel.y] * factors[0] for r in own]
        label = None if name is None else str(name)
        if panel.kind == "bar":
            width = 0.8 / max(len(names), 1)
            places = [place + (number + 0.5) * width - 0.4 for place in x]
            ax.bar(places, y, width, label=label, **bar_style(number))
        elif panel.kind == "scatter":
            marks = {k: v for k, v in line_style(number).items() if k != "linestyle"}
            points = [value * factors[1] for value in x]
            ax.plot(points, y, linestyle="none", label=label, **marks)
        else:
            spread = [r[f"sd_{panel.y}"] * factors[0] for r in own]
            if any(isnan(s) for s in spread):
                ax.plot(x, y, label=label, **line_style(number))
            else:
                ax.errorbar(x, y, spread, label=label, capsize=2, **line_style(number))
    if words:
        ax.set_xticks(range(len(ticks)), [str(tick) for tick in ticks])
    elif panel.log:
        ax.set_xscale("log")
    ax.set_title(panel.title, fontsize=9)
    ax.set_xlabel(_label(panel.x, forms))
    ax.set_ylabel(_label(panel.y, forms))
    if panel.line is not None and names:
        ax.legend(fontsize=7)


def _factor(forms: Mapping[str, str], name: str) -> float:
    return 100.0 if forms.get(name, "").endswith("%") else 1.0


def _label(name: str, forms: Mapping[str, str]) -> str:
    return f"{name} (%)" if forms.get(name, "").endswith("%") else name


def _distinct(values: Any) -> list[Any]:
    return list(dict.fromkeys(values))
