"""Rules of a ledger: which debits are refused."""

from __future__ import annotations

from collections.abc import Callable

from skfedcal.exceptions import BudgetExceededError
from skfedcal.privacy._ledger_records import (
    Account,
    Record,
    Totals,
    read_event,
    unit_of,
)

Budget = tuple[float, float]

# Room for rounding in the sum of many debits that use up a budget exactly.
BUDGET_RTOL = 1e-9


def refuse_simulation(mode: str) -> None:
    """Refuse noise that protects nobody."""
    if mode == "simulation":
        raise ValueError(
            "This ledger refuses mode='simulation': noise from a seed, or drawn by one "
            "who holds what it should hide, protects nobody. Pass random_state=None "
            "(LocalDP and SourceDP: mode='faithful' as well), or use "
            "PrivacyLedger(path, require_secure=False)."
        )


def refuse_looser_budget(where: str, budget: Budget | None, totals: Totals) -> None:
    """Refuse to debit under a looser budget than the records were made under."""
    if totals.budget is None:
        return
    eps, delta = totals.budget
    if budget is None or budget[0] > eps or budget[1] > delta:
        raise ValueError(
            f"The ledger ({where}) is kept under the budget ({eps:g}, {delta:g}), this "
            f"debit under {budget}. Open it with that budget or a smaller one; a "
            "larger one needs a new ledger."
        )


def refuse_other_unit(account: Account, entry: Record) -> None:
    """Refuse to add up examples and clients."""
    unit = unit_of(entry)
    if unit is not None and account.unit not in (None, unit):
        raise ValueError(
            f"Population {entry['population']!r} is an account per {account.unit}, and "
            f"this release hides one {unit}: their sum means nothing. Use another "
            "ledger."
        )


def within(spent: float, eps: float) -> bool:
    """Tell whether a charge is covered by a budget, up to rounding."""
    return spent <= eps * (1 + BUDGET_RTOL)


def refuse_overspending(
    budget: Budget | None,
    account: Account,
    entry: Record,
    epsilon: Callable[[Account, float, float | None], float] = Account.epsilon,
) -> None:
    """Refuse a debit that the budget does not cover."""
    if budget is None:
        return
    eps, delta = budget
    spent = epsilon(account, delta, eps)
    if not within(spent, eps):
        raise BudgetExceededError(
            f"Population {entry['population']!r} has already spent eps = {spent:.6g} "
            f"at delta = {delta:g}, and the budget is eps = {eps:g}. Its records were "
            "made under a looser budget, or by a version of skfedcal that charged less "
            f"for releases chosen one after the other. The debit {entry['label']!r} is "
            "refused, as is every further one. Nothing was debited."
        )
    total = epsilon(account.plus(read_event(entry["event"])), delta, eps)
    if not within(total, eps):
        raise BudgetExceededError(
            f"The debit {entry['label']!r} would bring population "
            f"{entry['population']!r} to eps = {total:.6g} at delta = {delta:g}; "
            f"the budget is eps = {eps:g}, of which {spent:.6g} "
            f"is spent. Nothing was debited."
        )
