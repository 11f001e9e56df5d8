"""What a subcommand is: options that all share, and what it prints where."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TextIO

from skfedcal._json import dump
from skfedcal.exceptions import SimulatedPrivacyWarning


@dataclass
class Console:
    """Where a command writes.

    quiet, verbose: Leave out progress, or add detail.
    as_json: Whether `result` prints the data instead of the text.
    """

    quiet: bool = False
    verbose: bool = False
    as_json: bool = False
    _started: float = field(default_factory=time.perf_counter)
    _warned: set[str] = field(default_factory=set)

    def result(self, text: str, data: dict[str, Any]) -> None:
        """Print the result in the form that was asked for."""
        if self.as_json:
            text = dump(data, indent=1)
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
        text = in_flags(text)
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


# What messages of the library call a parameter, and what the command line calls it.
_FLAGS = (
    (r"; if_improves=False (applies the map|uses temperature_)", ""),
    (r"\bhold_back=True\b", "--hold-back"),
    (r"\bhold_back=False\b", "--no-hold-back"),
    (r"\binput_type='(\w+)'", r"--input \1"),
    (r"[Pp]ass client_ids or a list of clients", "Pass --columns client=NAME"),
    (r"\bpass a delta (far below [^,]+), or None",
     r"pass a --delta \1, or leave it out"),
    (r"\bor eps=None for no privacy", "or --eps none for no privacy"),
    (r", one per column of X; or pass 'uniform', 'private' or None",
     ", one per class with commas; or pass uniform or private, or leave it out"),
    (r"unit='example' \(CentralDP\(eps, unit='example'\)\)", "--unit example"),
    (r"(?<![\w(])(?:CentralDP|DistributedDP)\(eps, unit='example'\)",
     "--unit example of fit"),
    (r"\bunit='(\w+)'", r"--unit \1"),
    (r"Open it with that budget or a smaller one",
     "Pass that budget as --budget EPS DELTA, or a smaller one"),
    (r" Pass a dict of name and calibrator for others\.", ""),
    (r"(?<![\w-])n_(classes|clients|rows)=", r"--\1 "),
    (r"FederatedRunner\(cohort_size=(\d+)\)", r"--cohort \1"),
    (r"(?<![\w-])(n_bins|n_levels)=",
     lambda found: f"--{found[1].replace('_', '-')} "),
    (r"(?<![\w-])class_prior=", "--class-prior "),
    (r"(?<![\w-])(eps|delta)=(?=[\d.])", r"--\1 "),
    (r"(?<![\w-])random_state\b", "--seed"),
)  # fmt: skip


def in_flags(text: str) -> str:
    """Return a message of the library with the options of the command line."""
    for pattern, flag in _FLAGS:
        text = re.sub(pattern, flag, text)
    return text


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand; its module imports nothing heavy before `run` is called.

    name, summary: What is typed, and one line for ``skfedcal --help``.
    description, examples: Text of ``skfedcal NAME --help``, above and below the
        options.
    add_options: Adds the options of this command to a parser.
    run: Does the work and prints the result; its errors become one line. Returns
        None, or an exit code.
    """

    name: str
    summary: str
    description: str
    examples: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Console], int | None]


SEED_WARNING = (
    "--seed makes the noise repeatable: this is a simulation and guarantees nothing. "
    "Leave it out for a release."
)


class UsageError(ValueError):
    """The command line itself is wrong."""


class CheckFailedError(ValueError):
    """The command did its work, and the answer is no: an audit or a check failed."""


class EmptyAnswerError(ValueError):
    """The answer would be empty at this budget; nothing was spent."""


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command."""
    group = parser.add_argument_group("output")
    group.add_argument(
        "--json", action="store_true", help="print the result as JSON on stdout"
    )
    level = group.add_mutually_exclusive_group()
    level.add_argument(
        "-q", "--quiet", action="store_true", help="print warnings, but no progress"
    )
    level.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="print more detail, and the traceback of an error",
    )


def add_seed_option(parser: argparse._ActionsContainer, text: str) -> None:
    """Add ``--seed``; `text` says what the seed changes."""
    parser.add_argument("--seed", type=seed_number, metavar="N", help=text)


def eps_number(text: str) -> float | None:
    """Read a privacy budget; ``none`` and ``inf`` mean no noise."""
    if text.lower() in ("none", "inf"):
        return None
    value = positive_number(text)
    if not 1e-100 <= value <= 1e100:
        raise argparse.ArgumentTypeError(
            f"{text!r} is out of range; pass a number from 1e-100 to 1e100, or none"
        )
    return value


def positive_number(text: str) -> float:
    """Read a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number above 0")
    return value


def chance_number(text: str) -> float:
    """Read a number above 0 and below 1."""
    value = positive_number(text)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not below 1")
    return value


def positive_count(text: str) -> int:
    """Read a whole number above 0."""
    if not _is_whole(text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def seed_number(text: str) -> int:
    """Read a seed that numpy accepts."""
    if not _is_whole(text) or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole number from 0 to {2**32 - 1}"
        )
    return int(text)


def class_prior(text: str) -> str | list[float]:
    """Read class frequencies: a word, or one number per class."""
    if text in ("uniform", "private"):
        return text
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not 'uniform', 'private' or numbers such as 0.7,0.3"
        ) from None


def _is_whole(text: str) -> bool:
    # The length bounds int(), which is slow and refuses beyond 4300 digits.
    return text.isascii() and text.isdigit() and len(text) < 20
