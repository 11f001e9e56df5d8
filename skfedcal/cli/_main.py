"""Entry point: parse the line, run the command, turn errors into one line."""

from __future__ import annotations

import argparse
import gc
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from skfedcal._version import __version__
from skfedcal.cli._command import (
    CheckFailedError,
    Command,
    Console,
    EmptyAnswerError,
    UsageError,
    add_common_options,
    in_flags,
    one_line,
    send_nowhere,
    to_stderr,
)
from skfedcal.cli.commands import COMMANDS
from skfedcal.exceptions import (
    BudgetExceededError,
    CheckpointError,
    LedgerCorruptedError,
    NotEnoughClientsError,
)

# What a user can cause. Anything else is a defect and keeps its traceback.
USER_ERRORS = (
    ValueError,
    TypeError,
    OSError,
    ImportError,
    MemoryError,
    ArithmeticError,
    Warning,  # PYTHONWARNINGS=error
    BudgetExceededError,
    CheckpointError,
    LedgerCorruptedError,
    NotEnoughClientsError,
)

EXIT_USAGE, EXIT_INPUT, EXIT_INTERRUPT, EXIT_CLOSED_PIPE = 2, 4, 128 + 2, 128 + 13
# The first that fits; all other errors of a user are EXIT_INPUT.
EXIT_CODES = {
    CheckFailedError: 1,
    UsageError: EXIT_USAGE,
    BudgetExceededError: 5,
    EmptyAnswerError: 5,
}
CODES = """\
exit codes:
  0    done
  1    the command ran, and what it checked failed (audit, flower doctor and check)
  2    the command line is wrong
  3    rows did not fit a request and counted as zero (site)
  4    a file, its rows or this machine do not allow it; the message says what to change
  5    refused, so that no privacy is spent: over the budget, or too few clients
  6-9  a result is not valid (verify; its --help lists them)
  130  interrupted
  141  the reader of the output is gone
"""

DESCRIPTION = """\
Calibrate the probabilities of a classifier on data that stays with many clients, with
or without differential privacy.
"""

EXAMPLES = """\
examples:
  skfedcal demo
  skfedcal plan --clients 100 --rows 50 --classes 10 --eps 1
  skfedcal compare model.npz --eps none 1
  skfedcal report model.npz -o report.html
  skfedcal fit model.npz --method temp --eps 1 -o cal.json
  skfedcal predict cal.json model.npz -o proba.npz
"""


# New objects from which on Python looks for cycles that are not used any more.
_OBJECTS = 50_000


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `skfedcal` command.

    Parameters
    ----------
    argv : sequence of str, default=None
        Words after the name of the program; None takes those of the process.

    Returns
    -------
    int
        Exit code: 0 done, 1 failed check, 2 wrong command line, 3 rows that counted as
        zero (``skfedcal site``), 4 unusable input, 5 refused to spend privacy, 6 to 9 a
        result that is not valid (``skfedcal verify``), 130 interrupted, 141 closed
        pipe.

    Examples
    --------
    >>> from skfedcal.cli import main
    >>> main(["--version"])
    skfedcal ...
    0
    """
    console = Console()
    if argv is None:
        # A process of its own: looking for unused cycles of the many objects that
        # imports make takes an eighth of their time, and finds none.
        gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])
    with _noted_interrupts() as interrupts:
        try:
            code = _run(argv, console)
            _flush()
            return code
        except BrokenPipeError:
            send_nowhere(sys.stdout)
            return EXIT_CLOSED_PIPE
        except BaseException as error:
            if interrupts or isinstance(error, KeyboardInterrupt):
                to_stderr("skfedcal: interrupted")
                return EXIT_INTERRUPT
            if not isinstance(error, USER_ERRORS):
                raise
            if console.verbose:
                traceback.print_exc()
            to_stderr(f"skfedcal: error: {_describe(error)}")
            return _exit_code(error)


def _exit_code(error: BaseException) -> int:
    kinds = (code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
    return next(kinds, EXIT_INPUT)


@contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """Yield a list that is no longer empty once Ctrl-C was pressed.

    An interrupt in the middle of the import of a compiled module comes out of it as
    another exception.
    """
    seen: list[int] = []
    old = signal.getsignal(signal.SIGINT)
    if old is not signal.default_int_handler:  # a test, a thread or a host has its own
        yield seen
        return

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        seen.append(number)
        raise KeyboardInterrupt

    try:
        signal.signal(signal.SIGINT, note)
    except ValueError:  # not the main thread
        yield seen
        return
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, old)


def _run(argv: Sequence[str] | None, console: Console) -> int:
    parser = build_parser()
    try:
        args, unknown = parser.parse_known_args(argv)
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
    if unknown:
        prog = " ".join(["skfedcal", *([args.command.name] if args.command else [])])
        raise UsageError(
            f"unrecognized arguments: {' '.join(unknown)} (see `{prog} --help`)"
        )
    if args.command is None:
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    console.quiet, console.verbose = args.quiet, args.verbose
    console.as_json = args.json
    with console.clean_warnings():
        return args.command.run(args, console) or 0


def build_parser(commands: Sequence[Command] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = _Parser(
        prog="skfedcal",
        description=DESCRIPTION,
        epilog=f"{EXAMPLES}\n{CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {__version__}"
    )
    parser.set_defaults(command=None)
    choices = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in commands:
        child = choices.add_parser(
            command.name,
            help=command.summary,
            description=command.description,
            epilog=command.examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add_options(child)
        add_common_options(child)
        child.set_defaults(command=command)
    return parser


class _Parser(argparse.ArgumentParser):
    """Report a wrong command line as an exception instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")


def _describe(error: BaseException) -> str:
    """Say on one line what went wrong."""
    if isinstance(error, MemoryError):
        return f"not enough memory. {one_line(str(error))}".strip()
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f"{error.filename}: "
        return f"{where}{error.strerror}"
    return in_flags(one_line(str(error))) or type(error).__name__


def _flush() -> None:
    """Write out stdout while errors can still be reported."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        send_nowhere(sys.stdout)  # else the interpreter fails at exit
        raise
