"""What the library aims at, next to what a run of the suite found."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks._harness import OURS

Row = Mapping[str, Any]
Found = list[tuple[str, float]]
# Runs differ by about this much.
NEAR = 0.1
# These have a classwise error of their own; others are called once per class.
WITH_CLASSWISE = ("torch-uncertainty", "uncertainty-calibration")


@dataclass(frozen=True, slots=True)
class Aim:
    """A bound on one field of all rows of a question that are picked.

    `why` is told where the aim is missed: a text, or what makes one of the numbers.
    """

    text: str
    question: str
    limit: float
    at_most: bool = True
    field: str = "value"
    pick: Callable[[Row], bool] = lambda row: row["library"] == OURS
    why: str | Callable[[Found], str] = ""

    def found(self, rows: Sequence[Row]) -> Found:
        """Return name and number of each row that counts."""
        return [
            (named(row), row[self.field])
            for row in rows
            if row["question"] == self.question
            and row[self.field] is not None
            and self.pick(row)
        ]

    def missed(self, number: float) -> bool:
        """Tell whether a number is on the wrong side."""
        return number > self.limit if self.at_most else number < self.limit

    def close(self, number: float) -> bool:
        """Tell whether a number is so near that another run may change its side."""
        return abs(number / self.limit - 1) < NEAR

    def reason(self, found: Found) -> str:
        """Return why the aim is missed, as far as it is told."""
        return self.why(found) if callable(self.why) else self.why


def named(row: Row) -> str:
    """Return the case, and whose it is unless it is ours; of memory the size."""
    if row["question"].startswith("peak memory"):
        return str(row["library"])
    if row["library"] == OURS:
        return str(row["case"])
    return f"{row['library']}, {row['case']}"


def _ours(kind: str) -> Callable[[Row], bool]:
    return lambda row: row["library"] == OURS and kind in row["case"]


def _of(*names: str) -> Callable[[Row], bool]:
    return lambda row: row["library"] in names


def _others(row: Row) -> bool:
    return not row["library"].startswith(OURS)


def _case(name: str) -> Callable[[Row], bool]:
    return lambda row: row["case"] == name


def _beyond(found: Found) -> str:
    """Return what a call needs besides its input, from multiples of the input."""
    extra, sizes = [], []
    for size, multiple in found:
        n_rows, n_classes, n_bits = map(int, re.findall(r"\d+", size))
        sizes.append(n_rows * n_classes * n_bits / 8e6)
        extra.append((multiple - 1) * sizes[-1])
    return (
        f"Beyond inputs of {min(sizes):.1f} to {max(sizes):,.0f} MB it is "
        f"{min(extra):.1f} to {max(extra):.1f} MB: blocks of rows do not shrink with "
        "the input."
    )


AIMS = (
    Aim(
        "Temperature fit of float32 rows: at most 1.5 U",
        "temperature, fit",
        1.5,
        pick=_ours("float32"),
    ),
    Aim(
        "Temperature fit of float64 rows: at most 2.5 U",
        "temperature, fit",
        2.5,
        pick=_ours("float64"),
    ),
    Aim(
        "Temperature fit: scikit-learn takes at least 8 times as long",
        "temperature, fit",
        8,
        False,
        "ratio",
        _of("scikit-learn"),
    ),
    Aim(
        "The same, of its private inner class, which checks no input",
        "temperature, fit",
        8,
        False,
        "ratio",
        _of("scikit-learn, inner class"),
        why="It skips the checks that ours makes.",
    ),
    Aim("cwECE: at most 0.25 U", "cwECE", 0.25),
    Aim(
        "cwECE: libraries that have it take at least 40 times as long",
        "cwECE",
        40,
        False,
        "ratio",
        _of(*WITH_CLASSWISE),
    ),
    Aim(
        "The same, of binary errors that are called once per class",
        "cwECE",
        40,
        False,
        "ratio",
        lambda row: row["library"].endswith("by class"),
    ),
    Aim("ECE: no peer is faster", "ECE", 1, False, "ratio", _others),
    Aim("BBQ: peers take at least 20 times as long", "BBQ, fit", 20, False, "ratio",
        _others),
    Aim(
        "Matrix scaling without ridge: at most 1e-5 above the least log loss",
        "matrix scaling, fit",
        1e-5,
        field="excess",
        pick=_of(f"{OURS}, without ridge"),
    ),
    Aim(
        "Histogram binning: peers take at least twice as long",
        "histogram binning, fit",
        2,
        False,
        "ratio",
        _others,
    ),
    Aim(
        "predict_proba of a temperature: at most 1.3 times a bare softmax",
        "predict_proba",
        1.3,
        field="ratio",
        pick=_of("FedTempCalibrator"),
    ),
    Aim(
        "predict_proba of bins: at most 3 times a bare softmax",
        "predict_proba",
        3,
        field="ratio",
        pick=_of("FedBinCalibrator", "FedBBQCalibrator"),
        why="Bins of log-odds need a logarithm of each entry; `space='prob'` does not.",
    ),
    Aim(
        "Local temperatures of 100,000 clients: at most 2 s",
        "local temperatures",
        2,
        pick=_ours("100000 "),
    ),
    Aim(
        "Local temperatures of 100,000 clients: scipy in a loop takes 500 times",
        "local temperatures",
        500,
        False,
        "ratio",
        lambda row: "loop" in row["library"] and row["case"].startswith("100000 "),
    ),
    Aim(
        "AUC of a million clients under each privacy model: at most 0.5 s",
        "score histogram and AUC",
        0.5,
        pick=lambda row: (
            row["case"].startswith("1000000 ") and row["library"].startswith(OURS)
        ),
    ),
    Aim("A draw of noise: at most 2.5 us", "noise, per draw", 2.5),
    Aim(
        "A draw of noise: opendp takes at least 5 times as long",
        "noise, per draw",
        5,
        False,
        "ratio",
        _of("opendp"),
    ),
    *(
        Aim(
            f"Peak memory of {what} with the input ({how}): at most 1.25 times it",
            f"peak memory, {how}",
            1.25,
            pick=_case(case),
            why=_beyond,
        )
        for what, case in (("a temperature fit", "temperature, fit"),
                           ("cwECE", "cwECE"))
        for how in ("RSS", "tracemalloc")
    ),
    *(
        Aim(
            f"Growth in {what}: slope at most 1.05 for every calibrator, per round",
            f"growth in {what}",
            1.05,
            pick=lambda row: row["case"].startswith("Fed"),
            why=why,
        )
        for what, why in (
            ("rows", ""),
            (
                "classes",
                "Reasons, and slopes of whole fits, are below the table of growth.",
            ),
            ("clients", ""),
        )
    ),
)  # fmt: skip
