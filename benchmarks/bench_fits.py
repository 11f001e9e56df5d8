"""Fits and predictions next to those of other libraries, with the log loss they reach.

python -m benchmarks.bench_fits

The whole public `fit` is timed, validation included. Temperatures are held against a
root of the float64 gradient first: `excess` is the log loss above that of the root, and
a peer that is further than 1e-4 from it is not timed. Other maps differ between
libraries (priors, ridges, bins): there `quality` is the log loss on fresh rows, and for
affine maps `excess` is the plain log loss of the rows that were fitted above its tight
optimum (`_optima`), which a ridge is meant to miss. The note of our temperature
rows has ns per entry and the ratio to the inner loop by itself: one pass with five
derivatives, which no fit can do without, or a bare softmax.
"""

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks._harness import (  # isort: skip  (sets the number of threads)
    OURS,
    arguments,
    compare,
    cpu_best,
    make_logits,
    print_table,
    record,
    write_json,
)

import numpy as np
from scipy.special import log_softmax, softmax

from benchmarks import _peers
from benchmarks._optima import inverse_temperature, least_loss
from skfedcal import (
    FedBBQCalibrator,
    FedBiasTempCalibrator,
    FedBinCalibrator,
    FedMatrixCalibrator,
    FedTempCalibrator,
    FedVectorCalibrator,
)
from skfedcal._compiled import arithmetic
from skfedcal._numerics import softmax as own_softmax
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.methods.temperature.moments import derivative_sums

SIZES = ((10_000, 10), (10_000, 100), (50_000, 1000))
CLIENTS = (100, 10_000)
MAX_EXCESS = 1e-4
N_BINS = 15

Rows = list[dict[str, Any]]


def log_loss(proba: np.ndarray, labels: np.ndarray) -> float:
    """Mean log loss, with zeros taken as the smallest number."""
    own = np.take_along_axis(proba.astype(np.float64), labels[:, None], axis=1)
    return float(-np.log(np.maximum(own, 1e-300)).mean())


# The fit that seeks the optimum from which `excess` is counted.
PLAIN_MATRIX = f"{OURS}, without ridge"


def case_of(logits: np.ndarray) -> str:
    """Name of a size."""
    return f"{len(logits)} x {logits.shape[1]}, {logits.dtype}"


def temperature(
    n_rows: int, n_classes: int, dtype: type, seconds: float, quick: bool = False
) -> Rows:
    """Time of temperature scaling: one client, many, and other libraries."""
    logits, labels = make_logits(n_rows, n_classes, dtype)
    model = FedTempCalibrator()
    near = 1 / model.fit(logits, labels).temperature_
    best = inverse_temperature(logits, labels, near)
    least = _scaled_loss(logits, labels, best)
    fits = {OURS: lambda: _peers.scaled(1 / model.fit(logits, labels).temperature_)}
    peers = _peers.temperature_fits(logits, labels)
    if quick and n_classes > 100:  # the others take a minute and more
        peers = {name: peers[name] for name in ("scikit-learn",) if name in peers}
    fits |= peers
    fits |= {
        f"{OURS}, {n} clients": _of_clients(model, logits, labels, n) for n in CLIENTS
    }
    rows, calls, extra = [], {}, {}
    for name, fit in fits.items():
        excess = log_loss(fit()(logits), labels) - least
        extra[name] = {"excess": excess}
        # Asked this way round, as a NaN is on no side of a bound.
        if name.startswith(OURS) and not abs(model.temperature_ * best - 1) <= 1e-6:
            raise AssertionError(f"{name}: T is off at {logits.shape}")
        if not excess <= MAX_EXCESS:
            note = f"not timed: log loss {excess:.2g} above the optimum"
            row = record("temperature, fit", case_of(logits), name, np.nan, "U")
            rows.append(row | extra[name] | {"note": note})
        else:
            calls[name] = fit
    extra[OURS]["note"] = pace(
        lambda: model.fit(logits, labels), _one_pass(logits, labels), logits, seconds
    )
    timed = compare(
        "temperature, fit",
        case_of(logits),
        calls,
        logits=logits,
        seconds=seconds,
        extra=extra,
    )
    return [*timed, *rows]


def _one_pass(logits: np.ndarray, labels: np.ndarray) -> Callable[[], object]:
    """One pass of a temperature fit over all rows, without anything around it."""
    n_rows, n_classes = logits.shape
    clients = FederatedDataset(
        logits, labels, np.array([0, n_rows]), range(1), n_classes
    )
    return lambda: derivative_sums(clients, 0.8, 5, logits.dtype)


def pace(
    call: Callable[[], object],
    loop: Callable[[], object],
    logits: np.ndarray,
    seconds: float,
) -> str:
    """Nanoseconds per entry of a call, and its ratio to the inner loop alone."""
    times = cpu_best({"call": call, "loop": loop}, seconds=seconds / 2)
    per_entry = times["call"] / logits.size * 1e9
    ratio = times["call"] / times["loop"]
    return f"{per_entry:.2f} ns per entry, {ratio:.1f} x the loop of {arithmetic()}"


def _of_clients(
    model: FedTempCalibrator, logits: np.ndarray, labels: np.ndarray, n_clients: int
) -> _peers.Fit:
    """Fit of rows that are spread over clients, in the order of their clients."""
    ids = np.sort(np.random.default_rng(0).integers(0, n_clients, len(labels)))
    return lambda: _peers.scaled(
        1 / model.fit(logits, labels, client_ids=ids).temperature_
    )


def _scaled_loss(logits: np.ndarray, labels: np.ndarray, inverse: float) -> float:
    return log_loss(np.exp(log_softmax(inverse * logits.astype(float), axis=1)), labels)


def halves(n_rows: int, n_classes: int) -> tuple[np.ndarray, ...]:
    """Logits and labels to fit, and as many of the same network to score."""
    logits, labels = make_logits(2 * n_rows, n_classes, np.float32)
    return logits[:n_rows], labels[:n_rows], logits[n_rows:], labels[n_rows:]


def other_maps(n_rows: int, n_classes: int, seconds: float) -> Rows:
    """Vector, matrix and bias scaling, binning and Bayesian binning."""
    logits, labels, test, truth = halves(n_rows, n_classes)
    rows: Rows = []
    todo: dict[str, tuple[Any, Mapping[str, _peers.Fit]]] = {
        "vector scaling, fit": (
            FedVectorCalibrator(),
            _peers.vector_fits(logits, labels),
        ),
        "matrix scaling, fit": (
            FedMatrixCalibrator(),
            _peers.matrix_fits(logits, labels),
        ),
        "bias and temperature, fit": (FedBiasTempCalibrator(), {}),
        "histogram binning, fit": (
            FedBinCalibrator(n_bins=N_BINS),
            _peers.binning_fits(logits, labels, N_BINS),
        ),
        "BBQ, fit": (FedBBQCalibrator(), _peers.bbq_fits(logits, labels)),
    }
    check_bins(logits, labels)
    kinds = {"vector scaling, fit": "vector", "bias and temperature, fit": "bias"}
    if n_classes <= 10:  # the plain optimum of 100 x 100 entries is far overfitted
        kinds["matrix scaling, fit"] = "matrix"
    for question, (model, peers) in todo.items():
        fits = {OURS: _ours(model, logits, labels), **peers}
        if kinds.get(question) == "matrix":
            plain = FedMatrixCalibrator(l2=0, l2_off=0)
            fits[PLAIN_MATRIX] = _ours(plain, logits, labels)
        extra: dict[str, dict[str, float]] = {}
        for name, fit in fits.items():
            fitted = fit()
            extra[name] = {"quality": log_loss(fitted(test), truth)}
            if question in kinds:
                library = OURS if name == PLAIN_MATRIX else name
                least = least_loss(kinds[question], library, logits, labels)
                extra[name]["excess"] = log_loss(fitted(logits), labels) - least
        rows += compare(
            question,
            case_of(logits),
            fits,
            logits=logits,
            seconds=seconds,
            extra=extra,
        )
    return rows


def _ours(model: Any, logits: np.ndarray, labels: np.ndarray) -> _peers.Fit:
    return lambda: model.fit(logits, labels).predict_proba


def check_bins(logits: np.ndarray, labels: np.ndarray) -> None:
    """Raise when plain frequencies, which all libraries know, differ from ours."""
    proba = softmax(logits.astype(np.float64), axis=1)
    model = FedBinCalibrator(n_bins=N_BINS, prior_weight=1e-9).fit(logits, labels)
    cells = np.minimum((proba * N_BINS).astype(int), N_BINS - 1)
    for j, own in enumerate(cells.T):
        n_rows = np.bincount(own, minlength=N_BINS)
        rates = np.bincount(own[labels == j], minlength=N_BINS) / np.maximum(n_rows, 1)
        off = np.abs(model.bin_values_[j] - rates)[n_rows > 0].max()
        if not off <= 2e-3:  # a row may lie on the other side of an edge in float32
            raise AssertionError(f"bins of class {j} differ by {off:.1e}")


def predictions(n_rows: int, n_classes: int, dtype: type, seconds: float) -> Rows:
    """`predict_proba` next to a bare softmax of the same rows."""
    logits, labels = make_logits(n_rows, n_classes, dtype)
    calls: dict[str, Callable[[], object]] = {
        "bare softmax": lambda: softmax(logits, axis=1)
    }
    extra: dict[str, dict[str, str]] = {}
    for model in (
        FedTempCalibrator(),
        FedVectorCalibrator(),
        FedBinCalibrator(),
        FedBBQCalibrator(),
    ):
        model.fit(logits, labels)
        calls[type(model).__name__] = lambda model=model: model.predict_proba(logits)
    name = FedTempCalibrator.__name__
    extra[name] = {
        "note": pace(calls[name], lambda: own_softmax(logits), logits, seconds)
    }
    rows = compare(
        "predict_proba",
        case_of(logits),
        calls,
        logits=logits,
        seconds=seconds,
        extra=extra,
    )
    bare = rows[0]["value"]
    return [row | {"ratio": row["value"] / bare} for row in rows]


def questions(seconds: float, quick: bool = True) -> Rows:
    """All rows; `quick` has scikit-learn as the only peer at a thousand classes."""
    rows: Rows = []
    for n_rows, n_classes in SIZES:
        for dtype in (np.float32, np.float64):
            rows += temperature(n_rows, n_classes, dtype, seconds, quick)
    for n_classes in (10, 100):
        rows += other_maps(10_000, n_classes, seconds)
        for dtype in (np.float32, np.float64):
            rows += predictions(10_000, n_classes, dtype, seconds)
    return rows


def main() -> None:
    """Print and write the table."""
    parser = arguments("fits", __doc__)
    options = parser.parse_args()
    rows = questions(options.seconds, quick=False)
    print_table(rows)
    write_json(options.out, rows)


if __name__ == "__main__":
    main()
