"""Progress of a comparison, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress

# Where nobody sees a bar move, a line now and then.
SECONDS_BETWEEN_LINES = 5.0
BAR = 24

# Cells after which the time that is left can be told.
SURE_CELLS = 5


class Progress:
    """Count finished cells; on a terminal as a bar, else as a line now and then.

    Parameters
    ----------
    total : int
        Cells in all.
    show : bool or callable
        Callable: receives the number of finished cells and of all cells.
    """

    def __init__(self, total: int, show: bool | Callable[[int, int], object]) -> None:
        self.total, self.done, self._kept = total, 0, 0
        self._tell = show if callable(show) else None
        self._shown = show is True
        self._started = self._last = time.monotonic()
        self._open = False

    def start(self, n_kept: int) -> None:
        """Say how many cells were found on disk."""
        self.done = self._kept = n_kept
        if self._shown and n_kept:
            _write(f"[{n_kept} of {self.total} cells were finished before]\n")
        self._report(force=True)

    def step(self) -> None:
        """One more cell is done."""
        self.done += 1
        self._report(force=self.done == self.total)

    def close(self) -> None:
        """End the line of the bar."""
        if self._open:
            _write("\n")
            self._open = False

    def _report(self, force: bool) -> None:
        if self._tell is not None:
            self._tell(self.done, self.total)
        if not self._shown:
            return
        now = time.monotonic()
        filled = BAR * self.done // max(self.total, 1)
        bar = f"[{'#' * filled}{'.' * (BAR - filled)}]"
        text = f"{bar} {self.done}/{self.total} cells{self._left(now)}"
        if _is_terminal():
            _write(f"\r{text:<60}")
            self._open = True
        elif force or now - self._last >= SECONDS_BETWEEN_LINES:
            _write(f"{text}\n")
            self._last = now

    def _left(self, now: float) -> str:
        fresh = self.done - self._kept
        # The first cells wait for the processes to start.
        if fresh < SURE_CELLS or self.done == self.total:
            return ""
        seconds = round((now - self._started) / fresh * (self.total - self.done))
        return f", {seconds // 60}:{seconds % 60:02d} left"


def _is_terminal() -> bool:
    with suppress(AttributeError, ValueError):
        return sys.stderr.isatty()
    return False


def _write(text: str) -> None:
    # A reader that has gone away must not end a long run.
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text)
        sys.stderr.flush()
