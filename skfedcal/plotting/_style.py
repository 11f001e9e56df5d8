"""Colours, lines and markers that stay distinguishable without colour vision."""

from __future__ import annotations

from typing import Any

# Okabe and Ito (2008): told apart with any colour vision. Black is for references.
COLOURS = (
    "#0072B2",  # blue
    "#D55E00",  # vermilion
    "#009E73",  # green
    "#CC79A7",  # purple
    "#E69F00",  # orange
    "#56B4E9",  # sky blue
)
# In grey, lines differ by these.
LINES = ("-", "--", "-.", (0, (1, 1.2)), (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++")

REFERENCE = "0.35"


def line_style(number: int) -> dict[str, Any]:
    """Keywords of ``Axes.plot`` for the line of this number, from 0."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": LINES[number % len(LINES)],
        "marker": MARKS[number % len(MARKS)],
        "markersize": 5,
    }


def bar_style(number: int) -> dict[str, Any]:
    """Keywords of ``Axes.bar`` for the bars of this number, from 0."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "hatch": HATCHES[number % len(HATCHES)],
        "edgecolor": "white",
        "linewidth": 0.8,
    }


def set_cycle(ax: Any) -> None:
    """Let curves that give no style of their own differ by colour and line."""
    from cycler import cycler

    ax.set_prop_cycle(cycler(color=COLOURS) + cycler(linestyle=LINES))


def next_number(ax: Any) -> int:
    """Number of the next curve on these axes: how many have a style of ours."""
    return sum(1 for line in ax.lines if line.get_gid() == "skfedcal")


def tidy(ax: Any, axis: str = "both") -> None:
    """Light grid behind the data; no frame at the top and on the right."""
    ax.grid(True, axis=axis, color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
