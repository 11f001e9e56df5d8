"""What the compiled core gives: ours with it, without it, and trials in numba.

python -m benchmarks.bench_compiled

Two loops: the pass of a temperature fit (slope and curvature of every client), and
cwECE. Trials are not a part of the library. That of cwECE takes labels 0 to c - 1 and
15 bins only. Entries are compared as the integers of their bits, which have the order
of positive floats and put negative ones and NaN above all others. A row has few entries
above the first bin, and what is in the first bin is the rest of each column. Indices
are unsigned, as numba has to ask of signed ones whether they count from the end.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks._harness import (  # isort: skip  (sets the number of threads)
    OURS,
    arguments,
    compare,
    make_logits,
    optional,
    print_table,
    write_json,
)

import numpy as np
from scipy.special import softmax

from skfedcal import _compiled
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.methods.temperature.moments import derivative_sums
from skfedcal.metrics import classwise_calibration_error

QUESTION = "compiled loops"
N_BINS = 15
TRIAL = "trial in numba"
WITHOUT = f"{OURS}, without the core"
BETA = 0.8
# Sums may take any order; NaN and infinities keep their meaning.
FAST = {"reassoc", "nsz", "contract"}
WORD = {np.dtype(np.float32): np.uint32, np.dtype(np.float64): np.uint64}

Error = Callable[[np.ndarray, np.ndarray], float]


def listed(bits, least, out):
    """Write where bits are at least `least`, eights first, and return how many."""
    u = np.uint64
    half, n_eights, n_found = u(out.size // 2), u(0), u(0)
    for i in range(u(bits.size // 8)):
        at, top = i * u(8), bits[i * u(8)]
        for k in range(u(8)):
            top = max(top, bits[at + k])
        out[half + n_eights] = at
        n_eights += u(top >= least)
    for i in range(n_eights):
        at = out[half + i]
        for k in range(u(8)):
            out[n_found] = at + k
            n_found += u(bits[at + k] >= least)
    return n_found


def binned(flat, bits, infinite, where, n_found, labels, gaps):
    """Add listed entries to their bins, take labels off, and tell if all are valid."""
    u = np.uint64
    n_classes, n_cells = np.uint32(gaps.shape[0]), gaps.shape[1] - 1
    for i in range(n_found):
        at = where[i]
        if bits[at] > infinite:
            return False
        column = u(np.uint32(at) % n_classes)
        value = np.float64(flat[at])
        gaps[column, u(np.int64(value * n_cells))] += value
    for i in range(u(labels.size)):
        column = u(labels[i])
        value = np.float64(flat[i * u(n_classes) + column])
        gaps[column, u(np.int64(value * n_cells))] -= 1.0
    return True


def summed(rows, columns, totals):
    """Add up columns, eight rows at a time, and rows."""
    u = np.uint64
    n_classes = u(rows.shape[1])
    for i in range(u(rows.shape[0] // 8)):
        for j in range(n_classes):
            own = 0.0
            for k in range(u(8)):
                own += np.float64(rows[u(8) * i + k, j])
            columns[j] += own
    for i in range(u(rows.shape[0])):
        total = rows[i, 0] * 0
        for j in range(n_classes):
            total += rows[i, j]
        totals[i] = total


def compiled(numba: Any) -> Error:
    """Return cwECE of labels and of rows, as many as a multiple of eight."""
    find, add = numba.njit(listed), numba.njit(fastmath=FAST)(binned)
    add_up = numba.njit(fastmath=FAST)(summed)
    kept = np.empty(0, np.uint64)  # buffers are kept in the library as well

    def error(labels: np.ndarray, proba: np.ndarray) -> float:
        nonlocal kept
        n_rows, n_classes = proba.shape
        if kept.size < 2 * proba.size + 2:  # one index more is written than found
            kept = np.empty(2 * proba.size + 2, np.uint64)
        counts = np.bincount(labels, minlength=n_classes)
        if len(counts) > n_classes or not counts.all():
            raise ValueError("labels are not those of the columns")
        flat, word = proba.reshape(-1), WORD[proba.dtype]
        # One cell more than bins: for a probability of 1.
        gaps = np.zeros((n_classes, N_BINS + 1))
        columns, totals = -counts.astype(float), np.empty(n_rows, proba.dtype)
        least, infinite = np.array([(1 - 1e-6) / N_BINS, np.inf], proba.dtype).view(
            word
        )
        n_found = find(flat.view(word), least, kept)
        valid = add(flat, flat.view(word), infinite, kept, n_found, labels, gaps)
        add_up(proba, columns, totals)
        if not (valid and totals.min() > 0.999 and totals.max() < 1.001):
            raise ValueError("rows are not probabilities")
        gaps[:, 0] += columns - gaps.sum(axis=1)
        gaps[:, N_BINS - 1] += gaps[:, N_BINS]
        return float(np.abs(gaps[:, :N_BINS]).sum() / n_rows / n_classes)

    return error


def slopes(rows, labels, beta, offsets, out):
    """Write the first two derivatives of each client's log loss in beta."""
    for client in range(out.shape[0]):
        first = second = 0.0
        for i in range(offsets[client], offsets[client + 1]):
            own, top = rows[i, labels[i]], rows[i, 0]
            for j in range(rows.shape[1]):
                top = max(top, rows[i, j])
            total = mean = square = rows[i, 0] * 0
            for j in range(rows.shape[1]):
                gap = rows[i, j] - top
                weight = np.exp(beta * gap)
                total += weight
                mean += weight * gap
                square += weight * gap * gap
            mean, square = mean / total, square / total
            first += mean - (own - top)
            second += square - mean * mean
        out[client, 0], out[client, 1] = first, second


def compiled_slopes(numba: Any) -> Callable[..., np.ndarray]:
    """Return derivatives of clients, whose rows follow each other."""
    loop = numba.njit(fastmath=FAST)(slopes)

    def found(rows: np.ndarray, labels: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        out = np.empty((len(offsets) - 1, 2))
        loop(rows, labels, rows.dtype.type(BETA), offsets, out)
        return out

    return found


@contextmanager
def without_core() -> Iterator[None]:
    """Switch the core off, as SKFEDCAL_CORE=off does for a whole process."""
    core, _compiled.core = _compiled.core, None
    try:
        yield
    finally:
        _compiled.core = core


def _in_numpy(call: Callable[[], Any]) -> Callable[[], Any]:
    def slow() -> Any:
        with without_core():
            return call()

    return slow


def _timed(
    case: str, calls: dict[str, Any], logits: np.ndarray, seconds: float, allowed: float
) -> list[Any]:
    """Rows of one loop, after a look at all answers; the first call compiles."""
    extra = {}
    if TRIAL in calls:
        started = time.perf_counter()
        calls[TRIAL]()
        spent = time.perf_counter() - started
        extra[TRIAL] = {"note": f"compiled in {spent:.1f} s"}
    expected = np.asarray(calls[OURS]())
    for name, call in calls.items():
        if not np.allclose(call(), expected, rtol=allowed, atol=allowed):
            raise AssertionError(f"{name} has another answer: {case}")
    return compare(QUESTION, case, calls, logits=logits, seconds=seconds, extra=extra)


def measure(numba: Any, n_classes: int, dtype: type, seconds: float) -> list[Any]:
    """Rows of both loops at one size; without numba or the core, as many fewer."""
    logits, labels = make_logits(10_000, n_classes, dtype)
    size = f"{len(logits)} x {n_classes}, {logits.dtype}"
    proba = softmax(logits, axis=1)
    offsets = np.arange(0, len(labels) + 1, 100)
    clients = FederatedDataset(
        logits, labels, offsets, range(len(offsets) - 1), n_classes
    )

    def own() -> np.ndarray:
        return np.asarray(derivative_sums(clients, BETA, 2, logits.dtype)[0])

    loops: dict[str, tuple[Any, float]] = {
        "two derivatives": (own, 1e-3 if dtype is np.float32 else 1e-9),
        "cwECE": (lambda: classwise_calibration_error(labels, proba), 1e-6),
    }
    rows = []
    for name, (call, allowed) in loops.items():
        calls = {OURS: call}
        if _compiled.core is not None:
            calls[WITHOUT] = _in_numpy(call)
        if numba is not None and name == "cwECE":
            error = compiled(numba)
            calls[TRIAL] = lambda error=error: error(labels, proba)
        elif numba is not None:
            trial = compiled_slopes(numba)
            calls[TRIAL] = lambda trial=trial: trial(logits, labels, offsets)
        rows += _timed(f"{name}, {size}", calls, logits, seconds, allowed)
    return rows


def questions(seconds: float, quick: bool = True) -> list[Any]:  # noqa: ARG001
    """All rows; there is no longer form."""
    numba = optional("numba")
    return [
        row
        for n_classes in (10, 100)
        for dtype in (np.float32, np.float64)
        for row in measure(numba, n_classes, dtype, seconds)
    ]


def main() -> None:
    """Print and write the table."""
    options = arguments("compiled", __doc__).parse_args()
    rows = questions(options.seconds)
    print_table(rows)
    write_json(options.out, rows, ["numba"])


if __name__ == "__main__":
    main()
