"""Picture of an audit: the claimed curve and the errors that were measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from skfedcal.plotting._display import BAND_ALPHA, COLOURS, LINES, pyplot
from skfedcal.privacy.audits.audit_result import AuditResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_N_POINTS = 501


class AuditDisplay:
    """Trade-off curve of a claim and the errors of a distinguisher.

    No test of a mechanism that is as claimed has errors below the curve. A cross is a
    test of the audit; its true errors are in the region below the line of its colour,
    but for a chance of `alpha` in all. A region that does not reach the curve refutes
    the claim: the verdict of the distinguisher is what is seen.

    Parameters
    ----------
    result : AuditResult
        With errors, that is, of an audit with runs.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
        Where it was drawn.

    Examples
    --------
    >>> from skfedcal.plotting import AuditDisplay
    >>> from skfedcal.privacy import CentralDP, audit_one_run
    >>> result = audit_one_run(CentralDP(1.0), random_state=0)
    >>> AuditDisplay.from_result(result).ax_.get_xlabel()
    'false alarms'
    """

    ax_: Any
    figure_: Any

    def __init__(self, result: AuditResult) -> None:
        if not isinstance(result, AuditResult):
            raise TypeError(
                f"result is of type {type(result).__name__}; pass an AuditResult."
            )
        self.result = result

    @classmethod
    def from_result(cls, result: AuditResult, *, ax: Axes | None = None) -> Self:
        """Draw the result of an audit.

        Parameters
        ----------
        result : AuditResult
            With errors, that is, of an audit with runs.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        AuditDisplay
        """
        return cls(result).plot(ax=ax)

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw the curve, and a region for each test.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        AuditDisplay
        """
        result = self.result
        if not result.errors:
            raise ValueError("The audit has no runs to draw; pass n_runs > 0 to it.")
        plt = pyplot()
        self.ax_ = ax = plt.subplots()[1] if ax is None else ax
        self.figure_ = ax.figure
        rates = np.linspace(0, 1, _N_POINTS)
        curve = result.claim.curve(rates)
        ax.plot(rates, curve, color=COLOURS[0], label=f"claimed: {result.claim}")
        ax.fill_between(rates, 0, curve, color=COLOURS[1], alpha=BAND_ALPHA, lw=0)
        ax.plot([0, 1], [1, 0], color="0.6", ls=":", label="no information")
        for i, errors in enumerate(result.errors):
            level = result.alpha * result.level * errors.weight
            region = errors.region(rates, level)
            # From the second on: the first is that of the claim.
            colour, line = COLOURS[(i + 1) % len(COLOURS)], LINES[i % len(LINES)]
            inside = region >= 0
            x, y = rates[inside], region[inside]
            ax.plot([*x, x[-1]], [*y, 0.0], color=colour, ls=line)
            label = f"threshold {errors.threshold}"
            ax.plot(*errors.rates, "x", color=colour, label=label)
        word = "passed" if result.passed else "FAILED"
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="false alarms", ylabel="misses")
        ax.set(title=f"audit {word}", aspect="equal")
        ax.legend(fontsize=8)
        return self
