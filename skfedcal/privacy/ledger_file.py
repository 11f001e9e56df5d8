"""Records of a ledger and where they are kept: in memory or in a file."""

import errno
import hashlib
import json
import math
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any

from skfedcal._files import as_path
from skfedcal._params import check_number
from skfedcal.exceptions import LedgerCorruptedError
from skfedcal.privacy.filters import Spending, filter_epsilon

if TYPE_CHECKING:
    from skfedcal.privacy.events import PrivacyEvent

Record = dict[str, Any]

VERSION = 1
GENESIS = "0" * 64
ENTRY_KEYS = frozenset({"event", "label", "population", "mode", "run_id", "details"})
RECORD_KEYS = ENTRY_KEYS | {"v", "id", "n", "t", "hash"}
MODES = ("secure", "simulation")
_KINDS: dict[str, type | tuple[type, ...]] = {
    "event": dict,
    "label": str,
    "population": str,
    "mode": str,
    "run_id": (str, NoneType),
    "details": (dict, NoneType),
    "id": str,
    "t": (int, float),
    "hash": str,
}
# Mode of a record that is no debit: from here on the budget is a larger one.
RAISE = "raise"
Budget = tuple[float, float]
# Whether a signature under a text is one of the owner of the ledger.
Signed = Callable[[bytes, bytes], bool]
# Mode of a record that is no debit: of a release without noise, which has no eps.
EXACT = "exact"


def canonical(value: object) -> bytes:
    """Return the one JSON text of `value` that is hashed: sorted names, no blanks."""
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
    """Return the hash of the last record, which covers all before it."""
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
    if any(not isinstance(record[k], kind) for k, kind in _KINDS.items()):
        raise LedgerCorruptedError("is not a ledger record")
    if record["mode"] not in (*MODES, RAISE, EXACT):
        raise LedgerCorruptedError(f"has the unknown mode {record['mode']!r:.40}")
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
    """Refuse a head that is not text."""
    if head is not None and not isinstance(head, str):
        raise TypeError(
            f"head must be the text of PrivacyLedger.head, 64 digits; got {head!r}."
        )


def check_budget(budget: Budget) -> Budget:
    """Return a budget as two numbers, or refuse it."""
    try:
        eps, delta = (float(value) for value in budget)
    except (TypeError, ValueError):
        raise ValueError(
            f"budget must be (eps, delta), e.g. (1.0, 1e-5); got {budget!r}."
        ) from None
    if not (0 < eps < math.inf):
        raise ValueError(f"The eps of a budget must be positive; got {eps}.")
    check_number("delta", delta, 0, 1, "neither")
    return eps, delta


def read_event(event: Record) -> "PrivacyEvent":
    """Return the event that a record describes."""
    from skfedcal.privacy.events import event_from_dict

    return event_from_dict(event)


def unit_of(entry: Record) -> str | None:
    """Return what the release hides, a client or an example, where it says so."""
    return (entry["details"] or {}).get("unit")


def is_raise(old: Budget, new: Budget) -> bool:
    """Tell whether a budget is larger than another, and in nothing smaller."""
    return new != old and all(b >= a for a, b in zip(old, new, strict=True))


def raise_text(budget: Budget, reason: str, previous: str) -> bytes:
    """Return what the owner of a ledger signs to raise its budget.

    `previous` is the head, so that the signature is valid in one place of one ledger.
    """
    content = {"budget": list(budget), "reason": reason, "previous": previous}
    return b"skfedcal ledger raise 1" + canonical(content)


@dataclass(eq=False)
class Account(Spending):
    """Running total of one population, and the unit that it is about."""

    unit: str | None = None

    def epsilon(self, delta: float, budget: float | None = None) -> float:
        """Return what the account is charged; see `filter_epsilon`."""
        if math.isinf(self.sum_mu2):
            return math.inf
        if self.first is None:
            return 0.0
        from skfedcal.privacy.accounting import compose_epsilon, gdp_epsilon

        return filter_epsilon(
            self,
            delta,
            budget,
            gdp_epsilon=gdp_epsilon,
            alone=lambda event, delta: compose_epsilon([event], delta),
        )


class Totals:
    """What the records of a ledger add up to."""

    def __init__(self, records: list[Record], signed: Signed | None = None) -> None:
        self.records = records
        self.n_counted = 0
        self.accounts: dict[str, Account] = {}
        self.runs: dict[str, Record] = {}
        # The first budget, and what it was raised to since.
        self.levels: list[Budget] = []
        # The smallest budget that a record was made under since the last raise.
        self.budget: Budget | None = None
        self._before_raise: Budget | None = None
        self._signed = signed

    def catch_up(self, where: str) -> None:
        while self.n_counted < len(self.records):
            record = self.records[self.n_counted]
            if record["mode"] == RAISE:
                self._raise(record, where)
            else:
                self._count(record, where)
            self.n_counted += 1

    def _count(self, record: Record, where: str) -> None:
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
        try:
            self._tighten((record["details"] or {}).get("budget"))
        except ValueError as error:
            raise LedgerCorruptedError(
                f"{where}, line {record['n'] + 1}: {error}"
            ) from error
        if record["run_id"] is not None:
            self.runs[record["run_id"]] = record

    def _tighten(self, budget: Any) -> None:
        """Keep the smallest budget that a record was made under."""
        if budget is None:
            return
        eps, delta = check_budget(budget)
        if (eps, delta) == self._before_raise:
            # A process that was not told of the raise yet does not take it back.
            return
        old = self.budget or (math.inf, math.inf)
        self.budget = min(eps, old[0]), min(delta, old[1])
        self.levels = self.levels or [(eps, delta)]

    def _raise(self, record: Record, where: str) -> None:
        """Read a raise of the budget; one that its owner did not sign is refused."""
        details = record["details"]
        try:
            budget = check_budget(details["budget"])
            signature = bytes.fromhex(details["signature"])
            previous = head_of(self.records[: record["n"]])
            text = raise_text(budget, details["reason"], previous)
            if self._signed is not None and not self._signed(text, signature):
                raise ValueError("it is not signed by the key of this site")
            if self.budget is None or not is_raise(self.budget, budget):
                raise ValueError(f"it is no raise of {self.budget}")
        except (TypeError, ValueError, KeyError) as error:
            raise LedgerCorruptedError(
                f"{where}, line {record['n'] + 1} raises the budget, which is refused: "
                f"{error}. No debit is possible."
            ) from error
        self._before_raise, self.budget = self.budget, budget
        self.levels.append(budget)

    def account(self, population: str) -> Account:
        return self.accounts.get(population, Account())

    def chosen(self, population: str | None) -> list[Account]:
        """Return the account of one population, or all of them."""
        if population is not None:
            return [self.account(population)]
        return list(self.accounts.values())


NO_FILE = -1
# Keys are sorted in a line, so each line begins with the first of them.
LINE_START = b'{"details":'

if sys.platform == "win32":
    import msvcrt

    # Windows locks are mandatory: lock a byte that no ledger reaches.
    LOCK_OFFSET = 1 << 62

    def lock(fd: int, *, shared: bool) -> None:  # noqa: ARG001
        """Wait for the lock of the file (always exclusive here)."""
        while True:
            os.lseek(fd, LOCK_OFFSET, os.SEEK_SET)
            try:
                return msvcrt.locking(fd, msvcrt.LK_LOCK, 1)
            except OSError as error:
                if error.errno != errno.EDEADLK:  # raised after ten seconds
                    raise

    def unlock(fd: int) -> None:
        """Give the lock back."""
        os.lseek(fd, LOCK_OFFSET, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

    def sync_directory(path: str) -> None:
        """Do nothing: a directory cannot be synced on Windows."""

else:
    import fcntl

    def lock(fd: int, *, shared: bool) -> None:
        """Wait for the lock of the file."""
        fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)

    def unlock(fd: int) -> None:
        """Give the lock back, also for a copy of `fd` that a fork has made."""
        fcntl.flock(fd, fcntl.LOCK_UN)

    def sync_directory(path: str) -> None:
        """Make the name of a new file survive a power failure."""
        fd = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class MemoryStore:
    """Records of a ledger without a file."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._forked = False

    @contextmanager
    def session(self, *, write: bool = False) -> Iterator[list[Record]]:
        """Give the records; with `write` they may be appended to."""
        if write and self._forked:
            raise RuntimeError(
                "An in-memory PrivacyLedger cannot be debited in a forked process: "
                "the parent would not see it. Use PrivacyLedger(path)."
            )
        yield self.records

    def append(self, entry: Record) -> Record:
        self.records.append(seal(entry, self.records))
        return self.records[-1]

    def sync(self) -> None:
        """Do nothing: there is no file to sync."""

    def forget(self) -> None:
        """Do nothing: there is no file to read again."""

    def after_fork(self) -> None:
        self._forked = True


class _TornLine(Exception):
    """The last line was cut by a crash; it was never acted upon."""


class FileStore:
    """Records of a ledger file; the lines read so far are kept with their end.

    The end is a claim about the file and never trusted: each session compares the
    last known line with the file and reads everything again if it differs.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = NO_FILE
        self._seen = (0, GENESIS)
        self.forget()

    def forget(self) -> None:
        """Verify the whole file at the next use."""
        self.records: list[Record] = []
        self._end = 0
        self._last = b""

    def after_fork(self) -> None:
        """Drop what another thread of the parent may have left half done."""
        if self._fd != NO_FILE:
            os.close(self._fd)
            self._fd = NO_FILE
        self.forget()

    @contextmanager
    def session(self, *, write: bool = False) -> Iterator[list[Record]]:
        """Hold the lock and give the verified records of the file."""
        try:
            self._open_locked(write)
            self._catch_up()
            yield self.records
        finally:
            self._close()

    def append(self, entry: Record) -> Record:
        """Write one record; it is on disk when this returns."""
        record = seal(entry, self.records)
        line = canonical(record) + b"\n"
        # A last line that is whole but for its newline is kept: it may have been paid.
        data = b"\n" + line if self._ends_open() else line
        try:
            with self._doing("write to the privacy ledger"):
                if not self.records:
                    sync_directory(self.path)
                os.ftruncate(self._fd, self._end)
                self._write(data)
                os.fsync(self._fd)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self._fd, self._end)
            self.forget()
            raise
        self._accept(record, line, self._end + len(data))
        self._seen = (len(self.records), record["hash"])
        return record

    def sync(self) -> None:
        """Make sure that a record found in the file is on disk."""
        with self._doing("write to the privacy ledger"):
            os.fsync(self._fd)

    def _open_locked(self, write: bool) -> None:
        """Open and lock the file that bears the name now, if there is one."""
        flags = (os.O_RDWR | os.O_CREAT) if write else os.O_RDONLY
        flags |= getattr(os, "O_BINARY", 0)
        purpose = "for a debit" if write else "to read it"
        while True:
            with self._doing(f"open the privacy ledger {purpose}"):
                try:
                    self._fd = os.open(self.path, flags, 0o666)
                except FileNotFoundError:
                    if write:
                        raise
                    return
            with self._doing("lock the privacy ledger"):
                lock(self._fd, shared=not write)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._fd), os.stat(self.path)):
                    return
            self._close()

    def _close(self) -> None:
        if self._fd != NO_FILE:
            fd, self._fd = self._fd, NO_FILE
            with suppress(OSError):
                unlock(fd)
            os.close(fd)

    def _catch_up(self) -> None:
        """Read and verify what was written since the last session."""
        try:
            with self._doing("read the privacy ledger"):
                size = 0 if self._fd == NO_FILE else os.fstat(self._fd).st_size
                if not self._is_known(size):
                    self.forget()
                tail = self._read(self._end, size)
            self._verify(tail)
            self._check_seen()
        except BaseException:
            self.forget()
            raise

    def _is_known(self, size: int) -> bool:
        """Tell whether the last known line still stands where it stood."""
        if self._ends_open() or size < self._end:
            return False
        return self._read(self._end - len(self._last), self._end) == self._last

    def _verify(self, tail: bytes) -> None:
        """Accept all lines of `tail` but a torn last one."""
        *lines, rest = tail.split(b"\n")
        if rest:
            lines.append(rest)
        for i, raw in enumerate(lines, 1):
            at_end = i == len(lines)
            try:
                torn = at_end and (bool(rest) or _lost_pages(raw))
                record = check(self._parse(raw, torn), raw, self.records)
            except _TornLine:
                return
            except LedgerCorruptedError as error:
                where = f"{self.path}, line {len(self.records) + 1}"
                raise LedgerCorruptedError(
                    f"{where} {error}. The ledger was edited or damaged, or it is not "
                    f"a privacy ledger; no debit is possible."
                ) from error
            line = raw if at_end and rest else raw + b"\n"
            self._accept(record, line, self._end + len(line))

    def _parse(self, raw: bytes, torn: bool) -> object:
        try:
            return parse(raw)
        except (ValueError, RecursionError):
            # A first line is torn only if it began as a record: never cut a file
            # that is something else.
            begun = raw[: len(LINE_START)] == LINE_START[: len(raw)]
            if torn and (self.records or begun or not raw.strip(b"\0")):
                raise _TornLine from None
            raise LedgerCorruptedError("is not a ledger record") from None

    def _ends_open(self) -> bool:
        """Tell whether the last record lacks its newline."""
        return bool(self._last) and not self._last.endswith(b"\n")

    def _accept(self, record: Record, line: bytes, end: int) -> None:
        self.records.append(record)
        self._end, self._last = end, line

    def _check_seen(self) -> None:
        """Refuse a file that has lost records which this process has seen."""
        n, head = self._seen
        if n and (len(self.records) < n or self.records[n - 1]["hash"] != head):
            raise LedgerCorruptedError(
                f"{self.path}, line {n}: a record seen before by this process is gone. "
                f"The file was removed or replaced by another copy; no debit is "
                f"possible. Make a new PrivacyLedger to accept the file as it is."
            )
        self._seen = (len(self.records), head_of(self.records))

    def _read(self, start: int, stop: int) -> bytes:
        """Read the bytes from `start` to `stop`; fewer if the file is shorter."""
        if self._fd == NO_FILE:
            return b""
        os.lseek(self._fd, start, os.SEEK_SET)
        parts = []
        while start < stop and (part := os.read(self._fd, stop - start)):
            parts.append(part)
            start += len(part)
        return b"".join(parts)

    def _write(self, data: bytes) -> None:
        os.lseek(self._fd, self._end, os.SEEK_SET)
        while data:
            data = data[os.write(self._fd, data) :]

    @contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        """Add the failed operation to the text of an OSError; its type is kept."""
        try:
            yield
        except OSError as error:
            text = f"Cannot {what}: {error.strerror or error}"
            raise OSError(error.errno, text, self.path) from error


def _lost_pages(line: bytes) -> bool:
    """Tell whether a line with its end may be what a power failure leaves.

    Its first page, or one in the middle, is zeros then. Any other line that reached its
    end was acknowledged: it is damaged if it cannot be read, and not torn.
    """
    return not line.strip() or line.startswith(bytes(2)) or bytes(512) in line


def check_path(path: str | os.PathLike[str]) -> str:
    """Return the absolute path of a file that exists or can be made."""
    full = os.path.abspath(as_path(path))
    if os.path.isdir(full):
        text = "A privacy ledger needs a file, but this is a directory"
        raise IsADirectoryError(errno.EISDIR, text, full)
    if not os.path.isdir(os.path.dirname(full)):
        text = "Cannot open the privacy ledger: there is no such directory"
        raise FileNotFoundError(errno.ENOENT, text, os.path.dirname(full))
    return full
