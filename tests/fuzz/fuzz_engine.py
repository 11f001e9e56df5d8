"""Run one hostile case and judge what came of it.

A case is an entry point and choices drawn from one seed. Its outcome is an answer
that keeps its promises, or an error of the library's own list whose text is the
library's or scikit-learn's. Everything else is a finding.
"""

import errno
import linecache
import os
import re
import signal
import warnings
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import numpy as np
from sklearn.exceptions import NotFittedError

import skfedcal
from skfedcal import exceptions

# The classes themselves: LinAlgError and UnicodeDecodeError are ValueErrors too.
PLAIN = (ValueError, TypeError, NotFittedError, ImportError, NotImplementedError)
FILES = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)

# Whose words an error may have: the library's and scikit-learn's.
# Installed, or the source that pytest has read for its doctests.
_INSTALLED = os.path.dirname(skfedcal.__file__) + os.sep
_OWN = (_INSTALLED, os.path.join(Path(__file__).parents[2], "skfedcal", ""))
_SKLEARN = f"{os.sep}sklearn{os.sep}"

# OpenBLAS sets this flag now and then on finite numbers (numpy issue 24067).
_BLAS = "invalid value encountered in matmul"

# No case has more than some hundred rows: what takes this long does not end.
SECONDS = 20


class Broken(Exception):
    """A promise that an answer does not keep."""


class TooLong(BaseException):
    """A case that does not end."""


@dataclass
class Case:
    """Choices of one case; `notes` say which they were."""

    seed: int
    index: int
    folder: str
    notes: list = field(default_factory=list)
    outcome: str = "answer"
    twice: bool = False

    def __post_init__(self):
        self.rng = np.random.default_rng([self.seed, self.index])
        self._watched = []

    def chance(self, share):
        """Whether to do something, in this share of all cases."""
        return bool(self.rng.random() < share)

    def pick(self, name, choices):
        """Draw one of `choices`, a mapping or a sequence, and note it."""
        keys = list(choices)
        key = keys[int(self.rng.integers(len(keys)))]
        value = choices[key] if isinstance(choices, dict) else key
        self.notes.append(f"{name}={key if isinstance(key, str) else _short(key)}")
        return value

    def watch(self, *values):
        """Remember what arguments are, to see that they are left alone."""
        for value in values:
            self._watched.append((value, fingerprint(value)))

    def path(self, name):
        """Path of a file of this case."""
        return os.path.join(self.folder, name)

    def changed(self):
        """Whether an argument is not what it was."""
        return any(fingerprint(value) != before for value, before in self._watched)


def fingerprint(value, depth=4):
    """Content of arrays and containers of arrays, as something that compares."""
    if isinstance(value, np.ndarray):
        mask = getattr(value, "mask", None)
        content = value.tolist() if value.dtype.hasobject else value.tobytes()
        return str(value.dtype), value.shape, repr(content), repr(mask)
    if depth and isinstance(value, dict):
        return [(repr(k), fingerprint(v, depth - 1)) for k, v in value.items()]
    if depth and isinstance(value, (list, tuple)):
        return [fingerprint(v, depth - 1) for v in value]
    if hasattr(value, "to_numpy"):
        return fingerprint(value.to_numpy())
    return id(value)


@dataclass(frozen=True)
class Finding:
    """One outcome that should not be."""

    entry: str
    index: int
    what: str
    notes: str

    def __str__(self):
        return f"[{self.index}] {self.entry}: {self.what}\n      {self.notes}"


@dataclass
class Report:
    """Counts of outcomes, and all findings."""

    outcomes: Counter = field(default_factory=Counter)
    entries: dict = field(default_factory=dict)
    findings: list = field(default_factory=list)

    def __iadd__(self, other):
        self.outcomes += other.outcomes
        for name, counts in other.entries.items():
            self.entries.setdefault(name, Counter()).update(counts)
        self.findings += other.findings
        return self

    def add(self, name, outcome):
        """Count one case."""
        self.outcomes[outcome] += 1
        answers = "answers" if outcome == "answer" else "refusals"
        kind = "findings" if outcome == "finding" else answers
        self.entries.setdefault(name, Counter())[kind] += 1

    def table(self):
        """Cases, answers, refusals and findings of each entry point."""
        lines = [f"{'entry point':40s} {'cases':>7s} {'answers':>8s} {'refusals':>8s}"]
        for name, counts in sorted(self.entries.items()):
            numbers = counts.total(), counts["answers"], counts["refusals"]
            lines.append("{:40s} {:7d} {:8d} {:8d}".format(name, *numbers))
        return "\n".join(lines)

    def kinds(self):
        """One finding of each kind, and how many there are of it."""
        groups = {}
        for finding in self.findings:
            kind = re.sub(r"(:\d+): .*", r"\1", finding.what)
            groups.setdefault(kind, []).append(finding)
        return [(found[0], len(found)) for found in groups.values()]

    def __str__(self):
        total = sum(self.outcomes.values())
        lines = [f"{total} cases over {len(self.entries)} entry points"]
        lines += [f"  {n:8d}  {what}" for what, n in self.outcomes.most_common()]
        lines.append(f"{len(self.findings)} unexpected")
        lines += [f"  {n} x {finding}" for finding, n in self.kinds()]
        return "\n".join(lines)


def run_case(entry, case):
    """Outcome of a case: a word, or what is wrong as a Finding."""
    # Noise of the operating system, too, is the same whenever a case is run again.
    source = np.random.default_rng([case.seed, case.index, 2])
    np.random.seed(case.index % 2**32)  # noqa: NPY002  # unseeded estimators
    with (
        patch("os.urandom", source.bytes),
        warnings.catch_warnings(record=True) as heard,
        _limit(SECONDS),
    ):
        warnings.simplefilter("always")
        try:
            entry(case)
            outcome, wrong = case.outcome, None
        except TooLong:
            outcome, wrong = "finding", f"no end after {SECONDS} s"
        except Broken as error:
            outcome, wrong = "finding", f"broken promise: {error}"
        except Exception as error:
            outcome, wrong = type(error).__name__, wrong_error(error)
    wrong = wrong or _wrong_warning(heard)
    if wrong is None and case.changed():
        wrong = "an argument was changed"
    if wrong is None and any(name.endswith(".tmp") for name in os.listdir(case.folder)):
        wrong = "a draft of a file was left behind"
    return outcome, wrong


def wrong_error(error):
    """Say what is wrong with an exception, or None."""
    kind = type(error)
    own_kind = kind.__module__.split(".")[0] in ("skfedcal", "sklearn")
    listed = kind in PLAIN or kind in FILES or kind.__name__ in exceptions.__all__
    where, line = _innermost(error)
    if kind.__name__ == "UFuncTypeError" and _SKLEARN in where:
        return None  # scikit-learn's `score` compares labels that have no order
    if kind is OSError and error.errno == errno.ENAMETOOLONG:
        return None  # the text of the system names the path
    if not (listed or own_kind):
        return f"{kind.__name__} at {where}: {_short(str(error))}"
    if kind in (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None  # the text of the system names the path
    own_words = where.startswith(_OWN) and line.startswith("raise")
    if own_words or _sklearn_reads(error):
        return None if str(error).strip() else f"{kind.__name__} without a text"
    if where.startswith(_OWN) and _says_so(error, line):
        return None
    return f"bare {kind.__name__} at {where}: {_short(str(error))}"


def _says_so(error, line):
    """Whether Python itself words the error: a keyword that a class does not have."""
    words = "unexpected keyword argument", "missing", "positional argument"
    return (
        type(error) is TypeError
        and line.startswith(("return cls(", "return super()"))
        and any(word in str(error) for word in words)
    )


def _wrong_warning(heard):
    for warning in heard:
        text = str(warning.message)
        if _SKLEARN in warning.filename and "encountered in cast" in text:
            continue  # its own look at labels or settings that are no whole numbers
        deprecated = issubclass(
            warning.category, (DeprecationWarning, FutureWarning)
        ) and warning.filename.startswith(_OWN)
        if deprecated or (
            issubclass(warning.category, RuntimeWarning) and _BLAS not in text
        ):
            name = os.path.relpath(warning.filename, _INSTALLED)
            return f"{warning.category.__name__} at {name}:{warning.lineno}: {text}"
    return None


def _sklearn_reads(error):
    """Whether scikit-learn had been handed the values, as by its own estimators."""
    trace, deepest = error.__traceback__, ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.startswith(_OWN) or _SKLEARN in name:
            deepest = name
        trace = trace.tb_next
    return _SKLEARN in deepest


def _innermost(error):
    """File and line of the frame that raised, and the text of that line."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    name, number = trace.tb_frame.f_code.co_filename, trace.tb_lineno
    return f"{name}:{number}", linecache.getline(name, number).strip()


def _short(value):
    text = value if isinstance(value, str) else repr(value)
    text = " ".join(text.split())
    return text if len(text) < 160 else text[:157] + "..."


@contextmanager
def _limit(seconds):
    def stop(number, frame):
        raise TooLong

    # Time of the processor, as others may use the machine; the clock for one who waits.
    limits = (
        (signal.SIGPROF, signal.ITIMER_PROF, seconds),
        (signal.SIGALRM, signal.ITIMER_REAL, 10 * seconds),
    )
    old = [signal.signal(number, stop) for number, _, _ in limits]
    for _, timer, limit in limits:
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for (number, timer, _), before in zip(limits, old, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, before)


def run_cases(entries, indices, folder, seed=0, only=None):
    """Run cases by number; `entries` are (name, share, function) triples."""
    names = [name for name, _, _ in entries]
    shares = np.array([share for _, share, _ in entries], dtype=float)
    report = Report()
    for index in indices:
        chosen = np.random.default_rng([seed, index, 1]).choice(
            len(entries), p=shares / shares.sum()
        )
        name = names[chosen]
        if only is not None and only not in name:
            continue
        case = Case(seed, index, folder)
        outcome, wrong = run_case(entries[chosen][2], case)
        report.add(name, "finding" if wrong else outcome)
        if wrong:
            found = Finding(name, index, wrong, ", ".join(case.notes))
            report.findings.append(found)
    return report
