"""One account of privacy spending, debited before any noise is drawn."""

from __future__ import annotations

import copy
import math
import os
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from skfedcal._params import check_number
from skfedcal.exceptions import BudgetExceededError, LedgerCorruptedError
from skfedcal.privacy.events import PrivacyEvent, PureEvent
from skfedcal.privacy.ledger_file import (
    EXACT,
    GENESIS,
    RAISE,
    Account,
    Budget,
    FileStore,
    MemoryStore,
    Record,
    Signed,
    Totals,
    check_budget,
    check_entry,
    check_head,
    check_path,
    head_of,
    is_raise,
    raise_text,
    read_event,
    same_release,
    unit_of,
)

# Room for rounding in the sum of many debits that use up a budget exactly.
BUDGET_RTOL = 1e-9


def refuse_simulation(mode: str) -> None:
    """Refuse debits for simulated noise."""
    if mode == "simulation":
        raise ValueError(
            "This ledger refuses mode='simulation': noise from a seed, or added by a "
            "party that holds the exact values, protects no client. Pass "
            "random_state=None (LocalDP and SourceDP: mode='faithful' as well), or "
            "use PrivacyLedger(path, require_secure=False)."
        )


def refuse_looser_budget(where: str, budget: Budget | None, totals: Totals) -> None:
    """Refuse to debit under a looser budget than the records were made under."""
    if totals.budget is None:
        return
    eps, delta = totals.budget
    if budget is None or budget[0] > eps or budget[1] > delta:
        raise ValueError(
            f"The ledger ({where}) is kept under the budget ({eps:g}, {delta:g}), this "
            f"debit under {budget}. Open it with that budget or a smaller one, or "
            "raise it first: skfedcal ledger FILE --raise EPS."
        )


def refuse_other_unit(account: Account, entry: Record) -> None:
    """Refuse to add up examples and clients."""
    unit = unit_of(entry)
    if unit is not None and account.unit not in (None, unit):
        raise ValueError(
            f"Population {entry['population']!r} accounts for privacy per "
            f"{account.unit}, but this release protects one {unit}; the two cannot be "
            "added up. Use another ledger."
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
            "is spent. Nothing was debited. Pass a smaller eps."
        )


class PrivacyLedger:
    """Append-only account of privacy spending that refuses to overspend.

    A debit is on disk before :meth:`debit` returns, and noise is drawn after that: a
    crash can lose a release that was paid, never the payment. Each record carries a
    hash of all records before it: a damaged or edited file is refused. Removing the
    last records, or computing all hashes anew, cannot be seen in the file itself; write
    down :attr:`head` elsewhere and pass it as `head`, or to :meth:`verify`.

    Parameters
    ----------
    path : str or path-like, default=None
        JSONL file, created by the first debit. Threads, processes and restarts that
        use the same file share one account. None keeps the records in memory.
    budget : tuple (eps, delta), default=None
        Most that each population may spend. None only records. A debit writes the
        budget down, and later debits under a larger one, or none, are refused.
    require_secure : bool or "auto", default="auto"
        Whether to refuse debits for noise drawn from a seed. "auto" refuses them if
        `path` is given.
    head : str, default=None
        A :attr:`head` written down earlier. A file in which it does not occur is
        refused: it was cut, or put back to an older copy.

    Attributes
    ----------
    path : str or None
        Absolute path of the file.
    head : str
        Hash of the last record.

    Notes
    -----
    Populations are disjoint sets of clients. Each has its own account (parallel
    composition), and the largest total is the one that counts.

    A budget holds for releases that are chosen one after the other, by what earlier
    ones showed. It is kept by privacy filters that are proved for this case: sums of
    pure eps; squared mu of Gaussian releases (Smith and Thakurta 2022); Renyi
    divergence at an order that the budget fixes (Feldman and Zrnic 2021). The user
    guide, :ref:`adaptive`, says how they are combined and what they charge.

    ``clone``, ``copy`` and ``deepcopy`` return the ledger itself, so that all folds of
    a cross-validation pay from one account. A ledger with a path is pickled as that
    path; a ledger in memory refuses to be pickled.

    Examples
    --------
    >>> from skfedcal.privacy import GaussianEvent, PrivacyLedger
    >>> ledger = PrivacyLedger(budget=(1.0, 1e-5))
    >>> record_id = ledger.debit(GaussianEvent(mu=0.2), label="temperature")
    >>> len(ledger)
    1
    >>> ledger.spent() < 1.0
    True
    """

    # What an account is charged at a delta, under a budget or under none.
    _epsilon: Callable[[Account, float, float | None], float] = staticmethod(
        Account.epsilon
    )
    # Whether a raise of the budget is signed by the owner; None asks for no signature.
    _signed: Signed | None = None

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        budget: tuple[float, float] | None = None,
        require_secure: bool | Literal["auto"] = "auto",
        head: str | None = None,
    ) -> None:
        listed = getattr(require_secure, "shape", ()) == ()  # no array of answers
        if not listed or require_secure not in (True, False, "auto"):
            raise ValueError(
                f"require_secure must be True, False or 'auto'; got {require_secure!r}."
            )
        self.path = None if path is None else check_path(path)
        self.budget = None if budget is None else check_budget(budget)
        self.require_secure = require_secure
        self._where = self.path or "in memory"
        self._lock = threading.Lock()
        self._store = MemoryStore() if self.path is None else FileStore(self.path)
        self._totals = Totals([], self._signed)
        self._pinned = head
        _LEDGERS.add(self)
        self.verify(head)

    def debit(
        self,
        event: PrivacyEvent,
        *,
        label: str,
        population: str = "default",
        mode: Literal["secure", "simulation"] = "secure",
        run_id: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> str:
        """Pay for one release; call it before any noise is drawn.

        Parameters
        ----------
        event : GaussianEvent, PureEvent or SampledGaussianEvent
            What the release costs.
        label : str
            What the release is, for the reader of the ledger.
        population : str, default="default"
            Account to debit. Two names promise two disjoint sets of clients.
        mode : {"secure", "simulation"}, default="secure"
            "simulation" if the noise comes from a seed, or is added by a party that
            holds the exact values.
        run_id : str, default=None
            Name of this one release. A debit with the same name, event, population
            and mode is paid once: a resumed fit gets the id of the first record. Never
            use a name for a second release.
        details : dict, default=None
            Anything else worth keeping, as JSON values.

        Returns
        -------
        str
            Id of the record.

        Raises
        ------
        BudgetExceededError
            If the population would spend more than the budget. Nothing is written.
        LedgerCorruptedError
            If the file was edited or damaged.
        """
        entry = self._entry(event, label, population, mode, run_id, details)
        with self._session(write=True) as totals:
            if run_id is not None and run_id in totals.runs:
                # The process that wrote the record may have died before its sync.
                self._store.sync()
                return same_release(totals.runs[run_id], entry)
            self._refuse(totals, entry)
            return self._store.append(entry)["id"]

    def note_exact(
        self,
        *,
        label: str,
        run_id: str,
        population: str = "default",
        details: Mapping[str, Any] | None = None,
    ) -> str:
        """Record a release without noise, once; it has no eps, and no budget covers it.

        Parameters
        ----------
        label, run_id, population, details
            As for :meth:`debit`.

        Returns
        -------
        str
            Id of the record.
        """
        entry = check_entry(
            {
                "event": PureEvent(0.0),
                "label": label,
                "population": population,
                "mode": "secure",
                "run_id": run_id,
                "details": None if details is None else dict(details),
            }
        ) | {"mode": EXACT}
        with self._session(write=True) as totals:
            if run_id in totals.runs:
                self._store.sync()
                return same_release(totals.runs[run_id], entry)
            return self._store.append(entry)["id"]

    def check_debit(
        self,
        event: PrivacyEvent,
        *,
        label: str,
        population: str = "default",
        mode: Literal["secure", "simulation"] = "secure",
        run_id: str | None = None,
        details: Mapping[str, Any] | None = None,
        times: int = 1,
    ) -> None:
        """Raise what :meth:`debit` would raise; nothing is written.

        Parameters
        ----------
        event, label, population, mode, run_id, details
            Those of the debit.
        times : int, default=1
            Number of such debits, one after the other.
        """
        entry = self._entry(event, label, population, mode, run_id, details)
        with self._session() as totals:
            if run_id is not None and run_id in totals.runs:
                same_release(totals.runs[run_id], entry)
                return
            self._refuse(totals, entry, times)

    def raise_budget(
        self,
        budget: tuple[float, float],
        *,
        reason: str,
        sign: Callable[[bytes], bytes] | None = None,
    ) -> str:
        """Allow more from here on; what was spent stays spent, and the records stay.

        Parameters
        ----------
        budget : tuple (eps, delta)
            New budget: larger than the one of the records, and in neither part smaller.
        reason : str
            Who decided it and why, for the reader of the ledger.
        sign : callable, default=None
            ``sign(text)`` is the signature of the owner; see `SiteKey.sign`. A site
            that has a key accepts no other raise.

        Returns
        -------
        str
            The new :attr:`head`.

        Notes
        -----
        All records, old and new, keep the filters of the new budget. The new eps holds
        at the sum of the deltas of all budgets in :meth:`budgets`: lists of releases
        that end before the raise are admitted by the old filters, others by the new
        ones, and either may fail. That allows for a decision *whether* to raise which
        depends on releases. How far the budget may be raised must not depend on them.

        Examples
        --------
        >>> from skfedcal.privacy import PrivacyLedger, PureEvent
        >>> ledger = PrivacyLedger(budget=(1.0, 1e-5))
        >>> _ = ledger.debit(PureEvent(0.9), label="first study")
        >>> head = ledger.raise_budget((3.0, 1e-5), reason="second study, board of May")
        >>> ledger.budget, ledger.budgets()
        ((3.0, 1e-05), [(1.0, 1e-05), (3.0, 1e-05)])
        """
        budget = check_budget(budget)
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(
                f"reason must say who raised the budget and why; got {reason!r}."
            )
        with self._session(write=True) as totals:
            old = totals.budget
            if old is None:
                raise ValueError(
                    f"The ledger ({self._where}) has no debit under a budget yet: open "
                    "it with the new one."
                )
            if not is_raise(old, budget):
                raise ValueError(
                    f"The ledger ({self._where}) is kept under the budget {old}; "
                    f"{budget} does not raise it. A smaller one needs no record."
                )
            eps, delta = budget
            for name, account in totals.accounts.items():
                spent = self._epsilon(account, delta, eps)
                if not within(spent, eps):
                    raise BudgetExceededError(
                        f"Population {name!r} has spent eps = {spent:.6g} by the "
                        f"filters of the budget {budget}, which is more than it. "
                        "Nothing was changed. Raise it further."
                    )
            text = raise_text(budget, reason, head_of(totals.records))
            signature = b"" if sign is None else sign(text)
            if self._signed is not None and not self._signed(text, signature):
                raise ValueError(
                    f"The ledger ({self._where}) accepts a raise with a signature of "
                    "its site only: pass its key."
                )
            entry = check_entry(
                {
                    "event": PureEvent(0.0),
                    "label": "budget raised",
                    "population": "default",
                    "mode": "secure",
                    "run_id": None,
                    "details": {
                        "budget": list(budget),
                        "reason": reason,
                        "signature": signature.hex(),
                    },
                }
            )
            head = self._store.append(entry | {"mode": RAISE})["hash"]
        self.budget = budget
        return str(head)

    def budgets(self) -> list[tuple[float, float]]:
        """Return the first budget of the records and what it was raised to since."""
        with self._session() as totals:
            return list(totals.levels)

    def _entry(
        self,
        event: PrivacyEvent,
        label: str,
        population: str,
        mode: Literal["secure", "simulation"],
        run_id: str | None,
        details: Mapping[str, Any] | None,
    ) -> Record:
        """Checked record of a debit, before the ledger is read."""
        entry = check_entry(
            {
                "event": event,
                "label": label,
                "population": population,
                "mode": mode,
                "run_id": run_id,
                "details": self._with_budget(details),
            }
        )
        if self.refuses_simulations:
            refuse_simulation(mode)
        return entry

    def _refuse(self, totals: Totals, entry: Record, times: int = 1) -> None:
        """Refuse debits that the rules of this ledger do not allow."""
        refuse_looser_budget(self._where, self.budget, totals)
        account = totals.account(entry["population"])
        refuse_other_unit(account, entry)
        for _ in range(times - 1):
            account = account.plus(read_event(entry["event"]))
        # The filters of the first budget, or of what it was raised to last, too.
        for budget in dict.fromkeys((self.budget, *totals.levels[-1:])):
            refuse_overspending(budget, account, entry, self._epsilon)

    def spent(self, delta: float | None = None, population: str | None = None) -> float:
        """Return the eps charged at `delta`, by default the largest of all populations.

        Parameters
        ----------
        delta : float, default=None
            None takes the delta of the budget.
        population : str, default=None
            Account to look at.

        Returns
        -------
        float
            0.0 if nothing was debited. With a budget, given or in the records: what its
            privacy filters charge, which is at most the eps of the budget if and only
            if all debits are admitted. Without: the least eps of a budget that would
            have admitted them.

        Notes
        -----
        What is proved for releases that were chosen one after the other is the budget,
        not this figure on the way to it: it is the charge of a privacy filter, not of a
        privacy odometer. For releases that were fixed in advance it is itself an upper
        bound.
        """
        if delta is None:
            if self.budget is None:
                raise ValueError("A ledger without a budget needs delta, e.g. 1e-5.")
            delta = self.budget[1]
        check_number("delta", delta, 0, 1, "neither")
        with self._session() as totals:
            eps = self._reference_eps(totals)
            accounts = totals.chosen(population)
            charged = (self._epsilon(account, delta, eps) for account in accounts)
            return float(max(charged, default=0.0))

    def remaining(self, population: str | None = None) -> float:
        """Return the eps of the budget less the eps spent; inf without a budget.

        Costs of one kind add up slower than their eps: several debits whose eps sum to
        more than this may be accepted. Gaussian and pure debits together need about a
        tenth of the eps besides their sum.
        """
        if self.budget is None:
            return math.inf
        return max(0.0, self.budget[0] - self.spent(population=population))

    def records(self, population: str | None = None) -> list[Record]:
        """Return copies of the records, oldest first."""
        with self._session() as totals:
            return [
                copy.deepcopy(record)
                for record in totals.records
                if population is None or record["population"] == population
            ]

    def verify(self, head: str | None = None) -> int:
        """Check all records from the first on and return their number.

        Parameters
        ----------
        head : str, default=None
            A :attr:`head` written down earlier; it must occur in the ledger, else the
            file was rolled back to an older copy.
        """
        check_head(head)
        with self._lock:
            self._store.forget()
        with self._session() as totals:
            hashes = {GENESIS, *(record["hash"] for record in totals.records)}
            if head is not None and head not in hashes:
                raise LedgerCorruptedError(
                    f"{self._where}: no record has the hash {head!r}. The ledger was "
                    f"replaced by an older or another copy."
                )
            return len(totals.records)

    @property
    def head(self) -> str:
        """Hash of the last record, 64 zeros if there is none."""
        with self._session() as totals:
            return head_of(totals.records)

    def __len__(self) -> int:
        with self._session() as totals:
            return len(totals.records)

    def __bool__(self) -> bool:
        # An empty ledger is still a ledger: `if ledger` must not skip it.
        return True

    def __repr__(self) -> str:
        try:
            n = sum(record["mode"] not in (RAISE, EXACT) for record in self.records())
            text = f"{n} debit{'' if n == 1 else 's'}, no budget"
            if self.budget is not None:
                eps, delta = self.budget
                spent = self.spent()
                text = (
                    f"eps {spent:.4g} of {eps:g} spent at delta={delta:g}, "
                    f"{text.removesuffix(', no budget')}"
                )
                if not within(spent, eps):
                    text += "; BEYOND THE BUDGET, further debits are refused"
        except Exception as error:  # a repr must not fail
            text = f"unusable: {type(error).__name__}"
        return f"<PrivacyLedger {self._where}: {text}>"

    def __sklearn_clone__(self) -> PrivacyLedger:
        return self

    def __copy__(self) -> PrivacyLedger:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PrivacyLedger:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is None:
            raise pickle.PicklingError(
                "An in-memory PrivacyLedger cannot be pickled: a copy would be a "
                "second account. Give it a file, PrivacyLedger(path), to use it from "
                "several processes or to save an estimator that holds it."
            )
        return _reopen, (self.path, self.budget, self.require_secure, self._pinned)

    @contextmanager
    def _session(self, *, write: bool = False) -> Iterator[Totals]:
        """Hold all locks and give totals that include what others have written."""
        with self._lock, self._store.session(write=write) as records:
            if records is not self._totals.records:
                self._totals = Totals(records, self._signed)
            self._totals.catch_up(self._where)
            yield self._totals

    def _reference_eps(self, totals: Totals) -> float | None:
        """Eps of the budget by which the filters are fixed; None if there is none."""
        budget = self.budget or totals.budget
        return None if budget is None else budget[0]

    @property
    def refuses_simulations(self) -> bool:
        """Whether debits for noise from a seed are refused."""
        if self.require_secure == "auto":
            return self.path is not None
        return self.require_secure

    def _with_budget(self, details: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if self.budget is None:
            return None if details is None else dict(details)
        return {**(details or {}), "budget": list(self.budget)}

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._store.after_fork()


# A fork may copy a lock that a thread of the parent holds: no one would release it.
_LEDGERS: weakref.WeakSet[PrivacyLedger] = weakref.WeakSet()


def _renew_after_fork() -> None:
    for ledger in list(_LEDGERS):
        ledger._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_after_fork)


def _reopen(
    path: str,
    budget: tuple[float, float] | None,
    secure: Any,
    head: str | None = None,
) -> PrivacyLedger:
    return PrivacyLedger(path, budget=budget, require_secure=secure, head=head)
