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
            and row.get(self.field) is not None
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


# Fits that other libraries have as well.
MAPS = (
    ("Temperature fit", "temperature, fit"),
    ("Prediction of a temperature", "temperature, predict_proba"),
    ("Vector scaling", "vector scaling, fit"),
    ("Matrix scaling", "matrix scaling, fit"),
    ("Histogram binning", "histogram binning, fit"),
    ("BBQ", "BBQ, fit"),
    ("ECE", "ECE"),
    ("cwECE", "cwECE"),
)

AIMS = (
    *(
        Aim(f"{what}: no peer is faster", question, 1, False, "ratio", _others)
        for what, question in MAPS
    ),
    Aim(
        "Temperature fit: scikit-learn takes at least 15 times as long at every size",
        "temperature, fit",
        15,
        False,
        "ratio",
        _of("scikit-learn"),
    ),
    Aim(
        "The same, of its private inner class, which checks no input",
        "temperature, fit",
        15,
        False,
        "ratio",
        _of("scikit-learn, inner class"),
        why="It skips the checks that ours makes.",
    ),
    Aim(
        "Temperature fit of 100 x 10 rows: at most 1 ms (1,000 ns per entry)",
        "temperature, fit",
        1000,
        field="ns",
        pick=lambda row: row["library"] == OURS and row["case"].startswith("100 x 10,"),
    ),
    Aim(
        "Temperature fit of 10,000 rows and more: at most 3 times one pass of its "
        "inner loop",
        "temperature, fit",
        3,
        field="limit",
        pick=lambda row: row["library"] == OURS and not row["case"].startswith("100 x"),
        why="Checks of the input, further rounds, and what is the same at any size are "
        "added to the pass.",
    ),
    Aim(
        "predict_proba of a temperature: at most 3 passes of the compiled softmax (P)",
        "temperature, predict_proba",
        3,
        field="passes",
        why="Its result is new memory, whose pages the system clears; P writes to "
        "memory that is there.",
    ),
    Aim(
        "BBQ: a fit takes at most 9 P, three times a loop with a softmax, log-odds and "
        "counts",
        "BBQ, fit",
        9,
        field="passes",
        why="A third to a half of a fit is the comparison of the map with its input, "
        "which such a loop does not make.",
    ),
    Aim(
        "BBQ: predict_proba takes at most 9 P, three times such a loop",
        "predict_proba",
        9,
        field="passes",
        pick=_of("FedBBQCalibrator"),
    ),
    Aim(
        "Matrix scaling without ridge: at most 1e-5 above the least log loss",
        "matrix scaling, fit",
        1e-5,
        field="excess",
        pick=_of(f"{OURS}, without ridge"),
    ),
    *(
        Aim(
            f"FedAvg, {what}: a plain torch loop takes at least {limit:.3g} times as "
            "long",
            "FedAvg round",
            limit,
            False,
            "ratio",
            lambda row, kind=kind: (
                row["library"] == "torch, loop over clients" and kind in row["case"]
            ),
        )
        for what, kind, limit in (
            ("small network, clients of equal and unequal size", "MLP 64", 5),
            ("convolutional networks", "CNN", 1 / 1.05),
        )
    ),
    *(
        Aim(
            f"A fit of a million rows by {kinds} as client_ids: at most {limit} times "
            "that by integers",
            "client_ids",
            limit,
            field="ratio",
            pick=lambda row, kind=kind: (
                row["library"] == f"{OURS}, whole fit" and row["case"].endswith(kind)
            ),
        )
        for kinds, kind, limit in (
            ("strings", ", strings", 2.5),
            ("objects", ", objects", 2.5),
            ("categoricals", ", categorical", 1.3),
        )
    ),
    *(
        Aim(
            f"A million clients of ten rows, {name}, eps = 1: at most {limit} s",
            "many clients",
            limit,
            pick=lambda row, name=name: name in row["case"],
        )
        for name, limit in (("FedTempCalibrator", 1.5), ("FedBBQCalibrator", 8))
    ),
    Aim("cwECE: at most 0.25 U", "cwECE", 0.25),
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
        why="Sums without noise also add the second moments of each client.",
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
            f"Growth in {what}: slope at most 1.05 for every calibrator but "
            "FedMatrixCalibrator, per round",
            f"growth in {what}",
            1.05,
            pick=lambda row: (
                row["case"].startswith("Fed") and row["case"] != "FedMatrixCalibrator"
            ),
            why="Reasons, and slopes of whole fits, are below the table of growth.",
        )
        for what in ("rows", "classes", "clients")
    ),
    Aim(
        "Growth of FedMatrixCalibrator in its c x c parameters: slope at most 1.3 per "
        "round",
        "growth in parameters",
        1.3,
    ),
)  # fmt: skip
