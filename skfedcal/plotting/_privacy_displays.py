"""Pictures of privacy: how a budget was spent, and what an audit measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from skfedcal._params import as_number, check_choice, check_flag, check_number
from skfedcal.plotting.display import (
    BAND_ALPHA,
    COLOURS,
    LINES,
    REFERENCE,
    Array,
    Display,
    documented,
    line_style,
    tidy,
)
from skfedcal.privacy import PrivacyLedger
from skfedcal.privacy.audits.audit_result import AuditResult
from skfedcal.privacy.ledger_file import Account, read_event

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# With more debits than this their names are not written beside them; with more letters
# than this they are aslant, or each would run into the next.
_MOST_NAMES, _MOST_LETTERS = 12, 60


@dataclass(frozen=True, slots=True, eq=False)
class Spending:
    """What one population has spent after each of its debits.

    Parameters
    ----------
    number : ndarray of shape (n_debits,)
        Number of the debit in the ledger, from 1.
    time : ndarray of shape (n_debits,)
        Seconds since 1970.
    eps : ndarray of shape (n_debits,)
        Spent so far.
    labels : list of str
        What was paid for.
    simulated : ndarray of shape (n_debits,)
        True where noise came from a seed.
    """

    number: Array
    time: Array
    eps: Array
    labels: list[str]
    simulated: Array


@documented
class LedgerDisplay(Display):
    """Privacy spent over the debits of a ledger, against its budget.

    Made by `from_ledger`.

    Parameters
    ----------
    spending : dict of str to Spending
        By population.
    delta : float
        At which eps is computed.
    budget : float or None
        Most that may be spent.

    Attributes
    ----------
    lines_ : dict of str to matplotlib Line2D
        Steps, by population.
    simulated_ : list of matplotlib Line2D
        Open marks on debits for seeded noise, which guarantee nothing.
    budget_line_ : matplotlib Line2D or None
        The budget.
    ax_, figure_

    See Also
    --------
    skfedcal.PrivacyLedger : The account.

    Examples
    --------
    >>> from skfedcal.plotting import LedgerDisplay
    >>> from skfedcal.privacy import GaussianEvent, PrivacyLedger
    >>> ledger = PrivacyLedger(budget=(2.0, 1e-5))
    >>> for label in ("temperature", "accuracy", "histogram"):
    ...     _ = ledger.debit(GaussianEvent(mu=0.2), label=label)
    >>> display = LedgerDisplay.from_ledger(ledger)
    >>> display.spending["default"].eps.round(2).tolist()
    [0.73, 1.07, 1.34]
    """

    def __init__(
        self, spending: dict[str, Spending], *, delta: float, budget: float | None
    ) -> None:
        self.spending = spending
        self.delta = delta
        self.budget = budget

    @classmethod
    def from_ledger(
        cls,
        ledger: PrivacyLedger,
        *,
        delta: float | None = None,
        population: str | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Add up the debits of a ledger, and draw.

        Parameters
        ----------
        ledger : PrivacyLedger
            The account.
        delta : float, default=None
            None takes that of the budget.
        population : str, default=None
            Draw one population; None draws all.
        ax, **kwargs

        Returns
        -------
        LedgerDisplay
        """
        if not isinstance(ledger, PrivacyLedger):
            raise TypeError(f"ledger={ledger!r}: pass a PrivacyLedger.")
        if delta is None:
            if ledger.budget is None:
                raise ValueError("A ledger without a budget needs delta, e.g. 1e-5.")
            delta = ledger.budget[1]
        delta = as_number("delta", delta)
        check_number("delta", delta, 0, 1, "neither")
        if not isinstance(population, str | None):
            raise TypeError(f"population={population!r}: pass a name, or None for all.")
        records = ledger.records(population)
        if not records:
            whose = "" if population is None else f" of population {population!r}"
            raise ValueError(f"The ledger has no debits{whose} to draw.")
        budget = None
        if ledger.budget is not None and delta == ledger.budget[1]:
            budget = ledger.budget[0]
        names = dict.fromkeys(record["population"] for record in records)
        with ledger._session() as totals:
            eps = ledger._reference_eps(totals)
        spending = {
            name: _spending([r for r in records if r["population"] == name], delta, eps)
            for name in names
        }
        return cls(spending, delta=delta, budget=budget).plot(ax, **kwargs)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        x: str = "debit",
        names: bool = True,
        **line_kw: Any,
    ) -> Self:
        """Draw steps, marks and the budget.

        Parameters
        ----------
        ax
        x : {'debit', 'time'}, default='debit'
            Number of the debit, or when it was made (UTC).
        names : bool, default=True
            Write beside each debit of one population what it paid for, up to 12.
        **line_kw : dict
            Keywords of ``Axes.step`` for all populations.

        Returns
        -------
        LedgerDisplay
        """
        check_choice("x", x, ("debit", "time"))
        names = check_flag("names", names)
        ax = self._set_axes(ax, (6.4, 4.0))
        self.lines_: dict[str, Any] = {}
        self.simulated_: list[Any] = []
        for i, (name, own) in enumerate(self.spending.items()):
            places: Any = own.number if x == "debit" else _moments(own.time)
            style = {**line_style(i), "label": name, "where": "post", **line_kw}
            (self.lines_[name],) = ax.step(places, own.eps, **style)
            self._mark_simulated(ax, np.asarray(places), own, style)
        if names and len(self.spending) == 1:
            _write_names(ax, *self.lines_.values(), *self.spending.values())
        self.budget_line_ = None
        if self.budget is not None:
            self.budget_line_ = ax.axhline(
                self.budget, color="k", ls="--", lw=1.3,
                label=f"budget: eps {self.budget:g}",
            )  # fmt: skip
        tidy(ax)
        ax.set(ylabel=f"eps spent (delta = {self.delta:g})")
        ax.set_xlabel("debit" if x == "debit" else "time (UTC)")
        ax.set_ylim(bottom=0)
        ax.margins(x=0.13)
        _set_ticks(ax, x)
        ax.legend(fontsize=8, framealpha=0.9)
        return self

    def _mark_simulated(
        self, ax: Any, places: Array, own: Spending, style: Any
    ) -> None:
        if not own.simulated.any():
            return
        label = "seeded noise: no guarantee" if not self.simulated_ else None
        (marks,) = ax.plot(
            places[own.simulated], own.eps[own.simulated], ls="", marker="o", ms=10,
            mfc="none", mec=REFERENCE, label=label,
        )  # fmt: skip
        self.simulated_.append(marks)


def _spending(
    records: Sequence[dict[str, Any]], delta: float, budget: float | None
) -> Spending:
    account, spent = Account(), []
    for record in records:
        account.add(read_event(record["event"]))
        spent.append(account.epsilon(delta, budget))
    return Spending(
        np.array([record["n"] + 1 for record in records]),
        np.array([record["t"] for record in records]),
        np.array(spent),
        [record["label"] for record in records],
        np.array([record["mode"] == "simulation" for record in records]),
    )


def _set_ticks(ax: Any, x: str) -> None:
    from matplotlib import dates, ticker

    if x == "debit":
        ax.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        return
    places = dates.AutoDateLocator(minticks=3, maxticks=6)
    ax.xaxis.set_major_locator(places)
    ax.xaxis.set_major_formatter(dates.ConciseDateFormatter(places))


def _moments(seconds: Array) -> list[datetime]:
    return [datetime.fromtimestamp(t, UTC) for t in seconds]


def _write_names(ax: Any, line: Any, own: Spending) -> None:
    if len(own.labels) > _MOST_NAMES:
        return
    aslant = len("".join(own.labels)) > _MOST_LETTERS
    style = {"ha": "left", "rotation": 45} if aslant else {"ha": "center"}
    for place, eps, label in zip(line.get_xdata(), own.eps, own.labels, strict=True):
        ax.annotate(
            label, (place, eps), (0, 7), textcoords="offset points", fontsize=8,
            **{**style, "rotation_mode": "anchor"},
        )  # fmt: skip


# Points of the curve of a claim.
_N_POINTS = 501


@documented
class AuditDisplay(Display):
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
    ax_, figure_

    Examples
    --------
    >>> from skfedcal.plotting import AuditDisplay
    >>> from skfedcal.privacy import CentralDP, audit_one_run
    >>> result = audit_one_run(CentralDP(1.0), random_state=0)
    >>> AuditDisplay.from_result(result).ax_.get_xlabel()
    'false alarms'
    """

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
        ax

        Returns
        -------
        AuditDisplay
        """
        return cls(result).plot(ax=ax)

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw the curve, and a region for each test.

        Parameters
        ----------
        ax

        Returns
        -------
        AuditDisplay
        """
        result = self.result
        if not result.errors:
            raise ValueError("The audit has no runs to draw; pass n_runs > 0 to it.")
        ax = self._set_axes(ax)
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
