"""How the cost grows: slopes of log time over log size.

python -m benchmarks.bench_growth

A slope of 1 is linear. It is fitted by least squares to all sizes but the first, where
what a fit costs at any size is a large part. Maps that are fitted in as many rounds as
it takes are measured per round: how many there are depends on the rows drawn. The note
says how many, and the slope of whole fits with them. Every note also has the slope of
U, one `scipy.special.log_softmax` pass, over the same arrays, and by how much ours is
above it: where arrays stop fitting into a cache the slope of any code is above 1.
`STEEP` says why some slopes are above 1.05.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks._harness import (  # isort: skip  (sets the number of threads)
    OURS,
    arguments,
    cpu_spread,
    make_logits,
    print_table,
    record,
    unit,
    write_json,
)

import numpy as np
from scipy.special import softmax

import skfedcal
from skfedcal import (
    FedBinCalibrator,
    FederatedRunner,
    FedMatrixCalibrator,
    FedMLPCalibrator,
    FedTempCalibrator,
    methods,
    metrics,
)

Rows = list[dict[str, Any]]
# A call may return the fitted estimator, whose rounds are then counted.
Points = dict[int, Callable[[], object]]

MODELS = tuple(
    getattr(skfedcal, name) for name in methods.__all__ if name.startswith("Fed")
)
ITERATED = tuple(
    f"Fed{name}Calibrator"
    for name in ("AccTemp", "Auto", "BiasTemp", "Matrix", "OPVector", "Temp", "Vector")
)
# Slow ones are measured at smaller sizes: a client of the first makes thousands of
# steps, and sends as many numbers; the others send a curvature.
SMALLER = {
    "FedMLPCalibrator": 16,
    "FedMatrixCalibrator": 4,
    "FedOPVectorCalibrator": 4,
}
LIMIT = 1.05
ROWS = (10_000, 20_000, 40_000, 80_000, 160_000)
CLASSES = (16, 32, 64, 128)
CLIENTS = (1000, 4000, 16_000, 64_000)
ROUNDS = (2, 4, 8, 16, 32)
BINS = (16, 64, 256, 1024)
_PAIRS = "a curvature of c x c entries"
STEEP = {
    ("FedMatrixCalibrator", "classes"): "c x c parameters, so that a row costs c x c "
    "by nature; growth in parameters is per parameter",
    ("FedOPVectorCalibrator", "classes"): "sorted rows, and more rounds with more "
    "classes",
    ("FedVectorCalibrator", "classes"): _PAIRS,
    ("FedBiasTempCalibrator", "classes"): _PAIRS,
    ("FedAutoCalibrator", "classes"): f"its choice has {_PAIRS}",
    # 10,000 rows sixteen times over take as long per row as once, and two thirds of the
    # time of 160,000 different ones.
    ("classwise_calibration_error", "rows"): "the processor remembers the branches of "
    "up to about 20,000 rows that come again and again, as they do here",
}


def slope(
    points: Points, seconds: float, by_round: bool
) -> tuple[float, float, float, str]:
    """Slopes of best and of median times, CPU time of the last, rounds as a note.

    All sizes but the first count.
    """
    times = cpu_spread({str(n): call for n, call in points.items()}, seconds=seconds)
    both = np.array([found[:2] for found in times.values()]).T  # best and median
    last, told = float(both[0, -1]), ""
    if by_round:
        rounds = [getattr(call(), "n_rounds_", 1) for call in points.values()]
        both /= rounds
        told = "; rounds " + " ".join(map(str, rounds))
    size = np.log(np.array(list(points), dtype=float)[1:])
    best, median = (float(np.polyfit(size, np.log(t[1:]), 1)[0]) for t in both)
    if by_round:
        more = float(np.polyfit(size, np.log(rounds[1:]), 1)[0])
        told += f", {best + more:.2f} for whole fits"
    return best, median, last, told


def line(
    name: str,
    what: str,
    points: Points,
    seconds: float,
    by_round: bool = False,
    machine: float | None = None,
) -> dict[str, Any]:
    """One slope as a row of the suite; `machine` is that of U."""
    found, median, last, told = slope(points, seconds, by_round)
    sizes = list(points)
    note = f"{sizes[0]} to {sizes[-1]}; {last:.3g} s at the last{told}"
    note += f"; {median:.2f} by medians"
    if machine is not None:
        note += f"; U {machine:.2f}, ours {found - machine:+.2f}"
    if found > LIMIT:
        reason = STEEP.get((name, what))
        if reason is None and machine is not None and found - machine <= LIMIT - 1:
            reason = "as U"
        if reason is None:
            near = min(found, median) <= LIMIT
            reason = "not so by medians" if near else "not explained"
        note += f"; above {LIMIT}: {reason}"
    return record(f"growth in {what}", name, OURS, found, "slope") | {"note": note}


def _fit(model: Any, *args: Any, **keys: Any) -> Callable[[], object]:
    return lambda: model.fit(*args, **keys)


def _model(kind: Any, **keys: Any) -> Any:
    if kind is FedMLPCalibrator:  # rounds of a fixed number, all alike
        keys["runner"] = FederatedRunner(n_rounds=2)
    return kind(**keys)


def _all_models(
    what: str,
    sizes: Sequence[int],
    data: Callable[[int], tuple[np.ndarray, np.ndarray, Mapping[str, Any]]],
    seconds: float,
    keys: Callable[[int], Mapping[str, Any]] = lambda n: {},
) -> Rows:
    """Slopes of all calibrators over what `data` gives for each size."""
    slopes: dict[int, float] = {}
    rows = []
    for kind in MODELS:
        name = kind.__name__
        part = 1 if what == "classes" else SMALLER.get(name, 1)
        own = [n // part for n in sizes]
        if part not in slopes:
            units: Points = {n: unit(data(n)[0]) for n in own}
            slopes[part] = slope(units, seconds, by_round=False)[0]
        points: Points = {}
        for n in own:
            logits, labels, more = data(n)
            points[n] = _fit(_model(kind, **keys(n)), logits, labels, **more)
        by_round = name in ITERATED
        rows.append(line(name, what, points, seconds, by_round, slopes[part]))
    return rows


def in_rows(sizes: Sequence[int], seconds: float) -> Rows:
    """Rows of one client, ten classes."""
    logits, labels = make_logits(max(sizes), 10, np.float32)
    rows = _all_models("rows", sizes, lambda n: (logits[:n], labels[:n], {}), seconds)
    proba = softmax(logits, axis=1)
    units: Points = {n: unit(logits[:n]) for n in sizes}
    machine = slope(units, seconds, by_round=False)[0]
    for name in ("expected_calibration_error", "classwise_calibration_error"):
        score = getattr(metrics, name)
        points: Points = {
            n: (lambda n=n, score=score: score(labels[:n], proba[:n])) for n in sizes
        }
        rows.append(line(name, "rows", points, seconds, machine=machine))
    return rows


def in_classes(sizes: Sequence[int], seconds: float) -> Rows:
    """Columns of 5,000 rows; a matrix also by its number of parameters."""
    data = {n: make_logits(5000, n, np.float32) for n in sizes}
    rows = _all_models(
        "classes",
        sizes,
        lambda n: (*data[n], {}),
        seconds,
        lambda n: {"classes": range(n)},
    )
    points: Points = {
        n * (n + 1): _fit(FedMatrixCalibrator(classes=range(n)), *data[n])
        for n in sizes
    }
    name = FedMatrixCalibrator.__name__
    return [*rows, line(name, "parameters", points, seconds, by_round=True)]


def in_clients(sizes: Sequence[int], seconds: float) -> Rows:
    """Clients of five rows and five classes."""
    logits, labels = make_logits(5 * max(sizes), 5, np.float32)
    ids = np.arange(len(labels)) // 5

    def data(n: int) -> tuple[np.ndarray, np.ndarray, Mapping[str, Any]]:
        own = slice(5 * n)
        return logits[own], labels[own], {"client_ids": ids[own]}

    return _all_models("clients", sizes, data, seconds)


def in_rounds(sizes: Sequence[int], seconds: float) -> Rows:
    """Rounds of a private temperature over 200 clients."""
    logits, labels = make_logits(20_000, 10, np.float32)
    ids = np.arange(len(labels)) // 100
    points = {
        n: _fit(
            FedTempCalibrator(
                eps=1.0,
                classes=range(10),
                runner=FederatedRunner(
                    n_rounds=n, cohort="independent", cohort_size=100
                ),
            ),
            logits,
            labels,
            client_ids=ids,
        )
        for n in sizes
    }
    return [line("FedTempCalibrator, eps=1", "rounds", points, seconds)]


def in_bins(sizes: Sequence[int], seconds: float) -> Rows:
    """Bins of 10,000 rows and ten classes."""
    logits, labels = make_logits(10_000, 10, np.float32)
    proba = softmax(logits, axis=1)
    points = {n: _fit(FedBinCalibrator(n_bins=n), logits, labels) for n in sizes}
    score = metrics.classwise_calibration_error
    errors: Points = {
        n: (lambda n=n: score(labels, proba, n_bins=n, labels=range(10))) for n in sizes
    }
    return [
        line("FedBinCalibrator", "bins", points, seconds),
        line("classwise_calibration_error", "bins", errors, seconds),
    ]


def questions(seconds: float, quick: bool = True) -> Rows:
    """All slopes; the long form goes to four times the size."""
    warnings.simplefilter("ignore")
    more = 1 if quick else 4
    return [
        *in_rows([more * n for n in ROWS], seconds),
        *in_classes([(1 if quick else 2) * n for n in CLASSES], seconds),
        *in_clients([more * n for n in CLIENTS], seconds),
        *in_rounds(ROUNDS, seconds),
        *in_bins(BINS, seconds),
    ]


def main() -> None:
    """Print and write the table."""
    options = arguments("growth", __doc__).parse_args()
    rows = questions(options.seconds, quick=False)
    print_table(rows)
    write_json(options.out, rows)


if __name__ == "__main__":
    main()
