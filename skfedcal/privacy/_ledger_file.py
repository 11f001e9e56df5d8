"""Where a ledger keeps its records: a list in memory or a hash-chained JSONL file."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from skfedcal._files import as_path
from skfedcal.exceptions import LedgerCorruptedError
from skfedcal.privacy._ledger_records import (
    GENESIS,
    Record,
    canonical,
    check,
    head_of,
    parse,
    seal,
)

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
        """Do nothing: memory is no disk."""

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
        """Say in an OSError what was being done; its type stays."""
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
