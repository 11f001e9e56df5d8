"""What a record of the ledger is, what may follow it and what records add up to."""

import hashlib
import json
import math
import time
import uuid
from typing import TYPE_CHECKING, Any

from skfedcal.exceptions import LedgerCorruptedError
from skfedcal.privacy._filters import Spending, filter_epsilon

if TYPE_CHECKING:
    from skfedcal.privacy._events import PrivacyEvent

Record = dict[str, Any]

VERSION = 1
GENESIS = "0" * 64
ENTRY_KEYS = frozenset({"event", "label", "population", "mode", "run_id", "details"})
RECORD_KEYS = ENTRY_KEYS | {"v", "id", "n", "t", "hash"}
MODES = ("secure", "simulation")


def canonical(value: object) -> bytes:
    """Return the one JSON text of `value` that is hashed and written."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def digest(record: Record, previous: str) -> str:
    """Hash a record and, through `previous`, all records before it."""
    body = {key: value for key, value in record.items() if key != "hash"}
    return hashlib.sha256(previous.encode() + canonical(body)).hexdigest()


def seal(entry: Record, records: list[Record]) -> Record:
    """Make the record that follows `records`."""
    stamp = {"v": VERSION, "id": uuid.uuid4().hex, "n": len(records), "t": time.time()}
    record = json.loads(canonical(entry | stamp))
    record["hash"] = digest(record, head_of(records))
    return record


def head_of(records: list[Record]) -> str:
    return records[-1]["hash"] if records else GENESIS


def parse(raw: bytes) -> object:
    """Read one line; ValueError if it is not JSON, as after a torn write."""
    # Any byte decodes, so that two joined lines never pass for one torn line.
    text = raw.decode("latin-1").lstrip()
    value, stop = json.JSONDecoder().raw_decode(text)
    if stop < len(text):
        raise LedgerCorruptedError("has text after the record")
    return value


def check(record: object, raw: bytes, records: list[Record]) -> Record:
    """Return `record` if it is the one that may follow `records`."""
    if not isinstance(record, dict) or "v" not in record or "hash" not in record:
        raise LedgerCorruptedError("is not a ledger record")
    if record["v"] != VERSION:
        raise LedgerCorruptedError(f"has the unknown version {record['v']!r}")
    if record.keys() != RECORD_KEYS:
        raise LedgerCorruptedError("is not a ledger record")
    if record["n"] != len(records):
        raise LedgerCorruptedError(f"has number {record['n']}, not {len(records)}")
    try:
        intact = record["hash"] == digest(record, head_of(records))
        intact = intact and canonical(record) == raw
    except ValueError:
        intact = False
    if not intact:
        raise LedgerCorruptedError("does not match its hash")
    return record


def same_release(record: Record, entry: Record) -> str:
    """Return the id of `record` if it pays for `entry` too."""
    for key in ("event", "population", "mode"):
        if record[key] != entry[key]:
            raise ValueError(
                f"run_id {entry['run_id']!r} has already paid with {key} "
                f"{record[key]!r}, now {entry[key]!r}. Use another run_id for another "
                f"release."
            )
    return record["id"]


def check_entry(entry: Record) -> Record:
    """Return the entry as it will be read back."""
    if entry["mode"] not in MODES:
        raise ValueError(f"mode must be one of {MODES}; got {entry['mode']!r}.")
    for key in ("label", "population", "run_id"):
        optional = key == "run_id" and entry[key] is None
        if not optional and not isinstance(entry[key], str):
            raise TypeError(f"{key} must be a string; got {entry[key]!r}.")
    event = entry["event"]
    if not hasattr(event, "to_dict"):
        raise TypeError(f"event must be a privacy event; got {event!r}.")
    try:
        entry = json.loads(canonical({**entry, "event": event.to_dict()}))
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"event and details must be JSON values: {error}") from error
    # A record that cannot be read back would make the ledger unusable.
    if read_event(entry["event"]) != event:
        raise ValueError(f"The event {event!r} changes when it is written and read.")
    return entry


def check_head(head: str | None) -> None:
    if head is not None and not isinstance(head, str):
        raise TypeError(
            f"head must be the text of PrivacyLedger.head, 64 digits; got {head!r}."
        )


def check_budget(budget: tuple[float, float]) -> tuple[float, float]:
    try:
        eps, delta = (float(value) for value in budget)
    except (TypeError, ValueError):
        raise ValueError(
            f"budget must be (eps, delta), e.g. (1.0, 1e-5); got {budget!r}."
        ) from None
    if not (0 < eps < math.inf):
        raise ValueError(f"The eps of a budget must be positive; got {eps}.")
    check_delta(delta)
    return eps, delta


def check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1; got {delta}.")


def read_event(event: Record) -> "PrivacyEvent":
    from skfedcal.privacy._events import event_from_dict

    return event_from_dict(event)


def unit_of(entry: Record) -> str | None:
    """Return what the release hides, a client or an example, where it says so."""
    return (entry["details"] or {}).get("unit")


class Account(Spending):
    """Running total of one population, and the unit that it is about."""

    def __init__(self) -> None:
        super().__init__()
        self.unit: str | None = None

    def epsilon(self, delta: float, budget: float | None = None) -> float:
        """Return what the account is charged; see `filter_epsilon`."""
        if math.isinf(self.sum_mu2):
            return math.inf
        if self.first is None:
            return 0.0
        from skfedcal.privacy._accounting import compose_epsilon, gdp_epsilon

        return filter_epsilon(
            self,
            delta,
            budget,
            gdp_epsilon=gdp_epsilon,
            alone=lambda event, delta: compose_epsilon([event], delta),
        )


class Totals:
    """What the records of a ledger add up to."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.n_counted = 0
        self.accounts: dict[str, Account] = {}
        self.runs: dict[str, Record] = {}
        # The smallest and the first budget that a record was made under.
        self.budget: tuple[float, float] | None = None
        self.first_budget: tuple[float, float] | None = None

    def catch_up(self, where: str) -> None:
        while self.n_counted < len(self.records):
            record = self.records[self.n_counted]
            try:
                event = read_event(record["event"])
            except (TypeError, ValueError, KeyError) as error:
                raise LedgerCorruptedError(
                    f"{where}, line {record['n'] + 1} holds an event that this "
                    f"version of skfedcal cannot read: {record['event']!r}."
                ) from error
            account = self.accounts.setdefault(record["population"], Account())
            account.add(event)
            account.unit = account.unit or unit_of(record)
            self._tighten((record["details"] or {}).get("budget"))
            if record["run_id"] is not None:
                self.runs[record["run_id"]] = record
            self.n_counted += 1

    def _tighten(self, budget: Any) -> None:
        """Keep the smallest budget that a record was made under."""
        if budget is not None:
            eps, delta = (float(value) for value in budget)
            old = self.budget or (math.inf, math.inf)
            self.budget = min(eps, old[0]), min(delta, old[1])
            self.first_budget = self.first_budget or (eps, delta)

    def account(self, population: str) -> Account:
        return self.accounts.get(population, Account())

    def chosen(self, population: str | None) -> list[Account]:
        """Return the account of one population, or all of them."""
        if population is not None:
            return [self.account(population)]
        return list(self.accounts.values())
