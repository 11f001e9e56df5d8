"""The three panels of the paper's figures 1 to 3."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import NullFormatter, ScalarFormatter

from benchmarks._shift_methods import AS_PRINTED, TWO_POINT

LINES = {
    "none": ("none", "-", "0.6", "-"),
    "one source": ("one source wide", "-", "0.3", ":"),
    "histogram binning": (AS_PRINTED, "source", "C5", "-"),
    "ECE-T": ("ECE-T wide", "source", "C2", "-"),
    "NLL-T": ("NLL-T wide", "source", "C0", "-"),
    "Acc-T, golden K=5": ("Acc-T golden K=5 wide", "source", "C1", "-"),
    "FedTopBin": ("FedTopBin", "source", "C4", "-"),
    "two_point": (TWO_POINT, "source", "C3", "-"),
    "FedTopBin, noise once": ("FedTopBin", "sum", "C4", "--"),
    "two_point, noise once": (TWO_POINT, "sum", "C3", "--"),
}
AXES = {
    "sources": (0, "sources", "{1} samples each, eps = {2:g}"),
    "samples": (1, "samples per source", "{0} sources, eps = {2:g}"),
    "eps": (2, "eps", "{0} sources with {1} samples each"),
}


def draw_panels(folder, data, rows, panels, shown):
    """Write a picture of the mean of all conditions, and one of each that is shown."""
    folder.mkdir(parents=True, exist_ok=True)
    present = {row["condition"] for row in rows}
    for name in ("mean", *(c for c in shown if c in present)):
        mine = [row for row in rows if name in ("mean", row["condition"])]
        path = folder / f"shift_{data}_{name}.png"
        figure(data, name, mine, panels).savefig(path, dpi=110)
        plt.close()
        print(f"wrote {path}")


def figure(data, name, rows, panels):
    """Calibration error against sources, samples per source and eps."""
    fig, axes = plt.subplots(1, 3, figsize=(13, 4.2), sharey=True, layout="constrained")
    for ax, (title, cells) in zip(axes, panels.items(), strict=True):
        place, label, fixed = AXES[title]
        cells = [cell for cell in cells if any(row["cell"] == cell for row in rows)]
        for text, (method, model, color, style) in LINES.items():
            values = [
                np.mean([r["error"][method, model] for r in rows if r["cell"] == cell])
                for cell in cells
            ]
            at = [cell[place] for cell in cells]
            ax.plot(at, values, style, color=color, marker=".", label=text)
        ax.set(xlabel=label, yscale="log")
        ax.set_yticks([0.01, 0.02, 0.05, 0.1, 0.2, 0.5])
        ax.yaxis.set_major_formatter(ScalarFormatter())
        ax.yaxis.set_minor_formatter(NullFormatter())
        if cells:
            ax.set_title(fixed.format(*cells[0]), fontsize=10)
    condition = "mean of all conditions" if name == "mean" else name
    axes[0].set_ylabel(f"ECE ({data}, {condition})")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
    return fig
