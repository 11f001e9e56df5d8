"""The strip below a reliability diagram: where the scores are."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from skfedcal.plotting._style import HATCHES, tidy

Array = NDArray[Any]

# Bars of the strip; points of a density, and its width in points.
_N_BARS, _N_POINTS, _WIDTH = 30, 400, 8.0

# The strip of each axes, so that a second curve shares it.
_STRIPS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def strip_of(ax: Any) -> Any:
    """Axes below `ax` that share its scores; made once."""
    if ax not in _STRIPS:
        strip = _axes_below(ax)
        ax.tick_params(labelbottom=False)
        tidy(strip, "x")
        strip.set_ylabel("rows")
        _STRIPS[ax] = strip
    return _STRIPS[ax]


def _axes_below(ax: Any) -> Any:
    if ax.figure.get_layout_engine() is not None:
        # A child of `ax`: the layout makes room for it.
        return ax.inset_axes([0, -0.29, 1, 0.23], sharex=ax)
    from mpl_toolkits.axes_grid1 import make_axes_locatable

    # Nothing makes room below: `ax` gives up a part of its own.
    return make_axes_locatable(ax).append_axes("bottom", "26%", pad=0.1, sharex=ax)


def bottom_of(ax: Any) -> Any:
    """Axes that carry the label of the scores: the strip if there is one."""
    return _STRIPS.get(ax, ax)


def draw_margin(
    ax: Any,
    scores: Array,
    kind: str,
    scale: str,
    style: tuple[int, Any],
    weights: Array | None = None,
) -> Any:
    """Draw how many rows have which score, as bars or as a smooth curve.

    `weights` are rows of each score, where they were counted. Under noise some are
    negative: they are added up first, or all of the noise above 0 would be shown.
    """
    strip = strip_of(ax)
    number, colour = style
    places = scale_edges(_N_BARS if kind == "counts" else _N_POINTS, scale, ax)
    if kind == "counts":  # those beyond the axis are in the bars at its ends
        scores = np.clip(scores, places[0], places[-1])
    counts = np.histogram(scores, places, weights=weights)[0].astype(float)
    if kind == "counts":
        counts = np.maximum(counts, 0.0)
        _, _, drawn = strip.hist(
            places[:-1],
            places,
            weights=counts,
            histtype="stepfilled",
            alpha=0.55,
            facecolor=colour,
            edgecolor=colour,
            hatch=HATCHES[number % len(HATCHES)] or None,
        )
        return drawn[0]
    from scipy.ndimage import gaussian_filter1d

    # Rows per bar of the same width, so that both kinds have the same height.
    smooth = gaussian_filter1d(counts, _WIDTH, mode="reflect") * _N_POINTS / _N_BARS
    smooth = np.maximum(smooth, 0.0)
    middle = _between(places, scale)
    strip.plot(middle, smooth, color=colour, linewidth=1)
    return strip.fill_between(middle, 0, smooth, color=colour, alpha=0.3, linewidth=0)


def scale_edges(size: int, scale: str, ax: Any) -> Array:
    """Edges of bins of equal width on the axis."""
    if scale == "linear":
        return np.linspace(0, 1, size + 1)
    low, high = _logit(np.array(ax.get_xlim()))
    return _expit(np.linspace(low, high, size + 1))


def _between(edges: Array, scale: str) -> Array:
    if scale == "linear":
        return (edges[1:] + edges[:-1]) / 2
    odds = _logit(edges)
    return _expit((odds[1:] + odds[:-1]) / 2)


def _logit(values: Array) -> Array:
    return np.log(values / (1 - values))


def _expit(odds: Array) -> Array:
    return 1 / (1 + np.exp(-odds))
