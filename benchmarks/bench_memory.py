"""Peak memory of fits and metrics as a multiple of their input, which is the 1 in it.

python -m benchmarks.bench_memory

A child process makes the input, calls on a few rows of it, so that what is imported or
tabulated once is there, and then measures calls on all rows. `tracemalloc` is the peak
of what Python allocates; `RSS` is the growth of the resident set of the process, which
only Linux tells, in pages of 4 kB. What is returned counts as well. Buffers that the
library keeps between calls are dropped before, so that they count; `second call` is the
peak by tracemalloc of a call that finds them.
"""

import ctypes
import gc
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._harness import (  # isort: skip  (sets the number of threads)
    arguments,
    make_logits,
    print_table,
    record,
    traced_peak,
    write_json,
)

import numpy as np
from scipy.special import softmax

from skfedcal import (
    FedBBQCalibrator,
    FedBiasTempCalibrator,
    FedBinCalibrator,
    FedTempCalibrator,
    FedVectorCalibrator,
    metrics,
)
from skfedcal.clients import dataset

Rows = list[dict[str, Any]]
Call = Callable[[np.ndarray, np.ndarray], object]

SMALL = ((10_000, 10), (10_000, 100))
LARGE = (50_000, 1000)
FEW = 200


def _fit(kind: Any) -> Call:
    return lambda logits, labels: kind(classes=range(logits.shape[1])).fit(
        logits, labels
    )


def _error(score: Callable[..., object]) -> Call:
    return lambda proba, labels: score(labels, proba, labels=range(proba.shape[1]))


def _floor(proba: np.ndarray, labels: np.ndarray) -> object:  # noqa: ARG001
    return metrics.calibration_floor(proba, random_state=0)


FITS = {
    "temperature, fit": _fit(FedTempCalibrator),
    "bias and temperature, fit": _fit(FedBiasTempCalibrator),
    "vector scaling, fit": _fit(FedVectorCalibrator),
    "histogram binning, fit": _fit(FedBinCalibrator),
    "BBQ, fit": _fit(FedBBQCalibrator),
}
METRICS = {
    "ECE": _error(metrics.expected_calibration_error),
    "cwECE": _error(metrics.classwise_calibration_error),
    "Brier score": _error(metrics.brier_score),
    "log loss": _error(metrics.negative_log_likelihood),
    "cwECE floor, 100 draws": _floor,
}
# Also for a thousand classes; the curvature of the other fits has c x c entries.
AT_LARGE = ("temperature, fit", "histogram binning, fit", "ECE", "cwECE")
KINDS = ("RSS", "tracemalloc", "tracemalloc, second call")


def resident_growth(call: Callable[[], object]) -> int | None:
    """Peak of the resident set above that before the call in bytes, None if untold."""
    try:
        # Freed pages go back first: the call would take them without growth.
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # starts VmHWM anew
        before = _status("VmRSS")
    except OSError:
        return None
    call()
    return max(_status("VmHWM") - before, 0)


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(
        1024 * int(line.split()[1]) for line in lines if line.startswith(f"{key}:")
    )


def _forget() -> None:
    vars(dataset._kept).clear()
    gc.collect()


def given_rows(n_rows: int, n_classes: int, dtype: type) -> tuple[np.ndarray, ...]:
    """Rows as all benchmarks have them, repeated where they are many: it is quicker."""
    some = min(n_rows, 10_000)
    logits, labels = make_logits(some, n_classes, dtype)
    return np.tile(logits, (n_rows // some, 1)), np.tile(labels, n_rows // some)


def of_shape(n_rows: int, n_classes: int, dtype: type) -> Rows:
    """Measure all calls at one size, in this process."""
    logits, labels = given_rows(n_rows, n_classes, dtype)
    size = f"{n_rows} x {n_classes}, {logits.dtype}"
    rows: Rows = []
    for calls in (FITS, METRICS):
        given = logits if calls is FITS else softmax(logits, axis=1)
        for name, call in calls.items():
            if n_classes > 100 and name not in AT_LARGE:
                continue
            call(given[:FEW], labels[:FEW])
            peaks = _peaks(partial(call, given, labels))
            rows += [
                record(f"peak memory, {kind}", name, size, 1 + n / given.nbytes,
                       "x input")
                for kind, n in zip(KINDS, peaks, strict=True)
                if n is not None
            ]  # fmt: skip
    return rows


def _peaks(call: Callable[[], object]) -> tuple[int | None, int, int]:
    _forget()
    grown = resident_growth(call)
    _forget()
    return grown, traced_peak(call), traced_peak(call)


def child(quick: bool) -> None:
    """Measure all sizes and print them as JSON."""
    warnings.simplefilter("ignore")
    gc.freeze()  # what was imported is not looked at again
    todo = [(*size, dtype) for size in SMALL for dtype in (np.float32, np.float64)]
    # The smaller type has the larger share.
    todo += [(*LARGE, dtype) for dtype in (np.float32, np.float64)[: 1 if quick else 2]]
    print(json.dumps([row for size in todo for row in of_shape(*size)]))


def questions(seconds: float, quick: bool = True) -> Rows:  # noqa: ARG001
    """All rows, from a fresh process; the long form has one more large input."""
    words = [sys.executable, "-m", "benchmarks.bench_memory"]
    words += ["--child", "quick" if quick else "long"]
    ended = subprocess.run(words, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(ended.stderr)
    rows: Rows = json.loads(ended.stdout)
    if not any(row["question"].endswith("RSS") for row in rows):
        print("skipped RSS: this system does not tell it")
    # One table after the other.
    return sorted(rows, key=lambda row: row["question"])


def main() -> None:
    """Print and write the table."""
    parser = arguments("memory", __doc__)
    parser.add_argument(
        "--child", choices=("quick", "long"), help="measure here and print JSON"
    )
    options = parser.parse_args()
    if options.child:
        child(options.child == "quick")
        return
    rows = questions(options.seconds, quick=False)
    print_table(rows)
    write_json(options.out, rows)


if __name__ == "__main__":
    main()
