"""What a subcommand is, and the options that all of them share."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skfedcal.cli._console import Console


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand; its module imports nothing heavy before `run` is called.

    Attributes
    ----------
    name, summary : str
        What is typed, and one line for ``skfedcal --help``.
    description, examples : str
        Text of ``skfedcal NAME --help``, above and below the options.
    add_options : callable
        Adds the options of this command to a parser.
    run : callable
        Does the work and prints the result; its errors become one line.
    """

    name: str
    summary: str
    description: str
    examples: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Console], None]


SEED_WARNING = (
    "--seed makes the noise repeatable: this is a simulation and guarantees nothing. "
    "Leave it out for a release."
)


class UsageError(ValueError):
    """The command line itself is wrong."""


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command."""
    group = parser.add_argument_group("output")
    group.add_argument(
        "--json", action="store_true", help="print the result as JSON on stdout"
    )
    level = group.add_mutually_exclusive_group()
    level.add_argument(
        "-q", "--quiet", action="store_true", help="no progress; warnings stay"
    )
    level.add_argument(
        "-v", "--verbose", action="store_true", help="more detail, traceback of errors"
    )


def add_seed_option(parser: argparse._ActionsContainer, text: str) -> None:
    """Add ``--seed``; `text` says what the seed changes."""
    parser.add_argument("--seed", type=seed_number, metavar="N", help=text)


def eps_number(text: str) -> float | None:
    """Read a privacy budget; ``none`` and ``inf`` mean no noise."""
    if text.lower() in ("none", "inf"):
        return None
    return positive_number(text)


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
