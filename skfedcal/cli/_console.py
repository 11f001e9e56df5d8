"""Output of a command: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TextIO

from skfedcal.exceptions import SimulatedPrivacyWarning


@dataclass
class Console:
    """Where a command writes.

    Attributes
    ----------
    quiet, verbose : bool
        Leave out progress, or add detail.
    as_json : bool
        Whether `result` prints the data instead of the text.
    """

    quiet: bool = False
    verbose: bool = False
    as_json: bool = False
    _started: float = field(default_factory=time.perf_counter)
    _warned: set[str] = field(default_factory=set)

    def result(self, text: str, data: dict[str, Any]) -> None:
        """Print the result in the form that was asked for."""
        if self.as_json:
            text = json.dumps(data, indent=1, allow_nan=False)
        print(text)

    def progress(self, text: str) -> None:
        """Say what is being done."""
        if not self.quiet:
            elapsed = time.perf_counter() - self._started
            to_stderr(f"[{elapsed:5.1f} s] {text}")

    def detail(self, text: str) -> None:
        """Print a detail, with --verbose only."""
        if self.verbose:
            to_stderr(text)

    def warning(self, text: str) -> None:
        """Print a warning on one line, once."""
        if text not in self._warned:
            self._warned.add(text)
            to_stderr(f"skfedcal: warning: {one_line(text)}")

    @contextmanager
    def clean_warnings(self) -> Iterator[None]:
        """Show Python's warnings without file name and source line."""

        def show(message: Warning | str, *_: object, **__: object) -> None:
            self.warning(str(message))

        with warnings.catch_warnings():
            # The commands say this themselves, in the words of their options.
            warnings.simplefilter("ignore", SimulatedPrivacyWarning)
            before = warnings.showwarning
            warnings.showwarning = show
            try:
                yield
            finally:
                warnings.showwarning = before


def to_stderr(text: str) -> None:
    """Print to stderr; a closed pipe must not end a fit that has spent privacy."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        with suppress(OSError, ValueError):
            send_nowhere(sys.stderr)
    except ValueError:  # closed by the host
        pass


def send_nowhere(stream: TextIO) -> None:
    """Drop what a stream holds and gets: the interpreter would fail on it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    finally:
        os.close(nowhere)


def one_line(text: str) -> str:
    """Return the text with all white space as single blanks."""
    return " ".join(text.split())
