"""Temperature scaling: time in U, exactness, peak memory, and clients by the thousand.

python -m benchmarks.bench_temperature

One U is one `scipy.special.log_softmax` pass over the same array in the same run. The
whole public `fit` is timed, validation included. The answer is compared with a root of
the float64 gradient before anything is timed.
"""

import time
import tracemalloc

import numpy as np
from scipy.optimize import brentq, minimize, minimize_scalar
from scipy.special import log_softmax

from benchmarks._harness import (
    arguments,
    cpu_best,
    make_logits,
    print_table,
    unit,
    write_json,
)
from skfedcal import FedTempCalibrator
from skfedcal.algorithms import local_temperatures
from skfedcal.data._dataset import FederatedDataset

SIZES = ((10_000, 10), (10_000, 100), (50_000, 1000))


def optimum(logits, labels):
    """Float64 optimum of 1 / T: where the gradient of the log loss is zero."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    own = np.take_along_axis(shifted, labels[:, None], axis=1).mean()

    def slope(log_beta):
        proba = np.exp(log_softmax(np.exp(log_beta) * shifted, axis=1))
        return np.einsum("ij,ij->", proba, shifted) / len(labels) - own

    return np.exp(brentq(slope, -4, 4, xtol=1e-13))


def measure(n_rows, n_classes, dtype, seconds):
    """One line of the table."""
    logits, labels = make_logits(n_rows, n_classes, dtype)
    rng = np.random.default_rng(0)
    shuffled = rng.integers(0, 100, n_rows)
    clients = np.sort(shuffled)
    ours = FedTempCalibrator()
    error = 1 / ours.fit(logits, labels).temperature_ / optimum(logits, labels) - 1
    if abs(error) > 1e-6:
        raise AssertionError(f"relative error {error:.1e} at {logits.shape}")
    calls = {
        "U": unit(logits),
        "one": lambda: ours.fit(logits, labels),
        "hundred": lambda: ours.fit(logits, labels, client_ids=clients),
        "shuffled": lambda: ours.fit(logits, labels, client_ids=shuffled),
    }
    peer = _sklearn_temperature()
    if peer is not None:
        calls["peer"] = lambda: peer().fit(logits, labels)
    best = cpu_best(calls, seconds=seconds)
    return {
        "rows": n_rows,
        "classes": n_classes,
        "dtype": np.dtype(dtype).name,
        "U ms": 1e3 * best["U"],
        "1 client U": best["one"] / best["U"],
        "100 clients U": best["hundred"] / best["U"],
        "shuffled U": best["shuffled"] / best["U"],
        "sklearn U": best.get("peer", np.nan) / best["U"],
        "rel error": error,
        "peak memory": peak_memory(lambda: ours.fit(logits, labels), logits),
        "peak, shuffled": peak_memory(
            lambda: ours.fit(logits, labels, client_ids=shuffled), logits
        ),
    }


def peak_memory(call, logits):
    """Peak of what is allocated during the call, input included, over the input."""
    call()
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return 1 + peak / logits.nbytes


def local_fits(n_clients=100_000, n_rows=20, n_classes=10, n_loop=300):
    """All local temperatures at once against loops of scipy, extrapolated."""
    logits, labels = make_logits(n_clients * n_rows, n_classes, np.float32)
    offsets = np.arange(0, n_clients * n_rows + 1, n_rows)
    clients = FederatedDataset(
        logits, labels, offsets, range(n_clients), n_classes=n_classes
    )
    started = time.process_time()
    ours = local_temperatures(clients)
    seconds = time.process_time() - started
    row = {"clients": n_clients, "rows each": n_rows, "ours s": seconds}
    for name, solve in (("L-BFGS-B", _lbfgs), ("bounded", _bounded)):
        started = time.process_time()
        loop = [
            solve(logits[a : a + n_rows].astype(float), labels[a : a + n_rows])
            for a in offsets[:n_loop]
        ]
        loop_seconds = (time.process_time() - started) * n_clients / n_loop
        row[f"{name} loop s"] = loop_seconds
        row[f"{name} ratio"] = loop_seconds / seconds
    row["max |d log T|"] = float(np.abs(np.log(ours[:n_loop] / loop)).max())
    return row


def _loss(log_beta, logits, labels):
    log_proba = log_softmax(np.exp(log_beta) * logits, axis=1)
    return -log_proba[np.arange(len(labels)), labels].mean()


def _lbfgs(logits, labels):
    bound = np.log(20.0)
    found = minimize(
        lambda u: _loss(u.item(), logits, labels),
        [0.0],
        method="L-BFGS-B",
        bounds=[(-bound, bound)],
    )
    return np.exp(-found.x[0])


def _bounded(logits, labels):
    bound = np.log(20.0)
    found = minimize_scalar(
        lambda u: _loss(u, logits, labels),
        bounds=(-bound, bound),
        method="bounded",
        options={"xatol": 1e-8},
    )
    return np.exp(-found.x)


def _sklearn_temperature():
    try:  # private; the public class wraps it and takes longer
        from sklearn.calibration import _TemperatureScaling
    except ImportError:
        print("skipped scikit-learn: temperature scaling came with 1.8")
        return None
    return _TemperatureScaling


def main():
    """Print and write the tables."""
    parser = arguments("temperature", __doc__)
    args = parser.parse_args()
    rows = [
        measure(n_rows, n_classes, dtype, args.seconds)
        for n_rows, n_classes in SIZES
        for dtype in (np.float32, np.float64)
    ]
    print_table(rows)
    local = local_fits()
    print_table([local])
    write_json(args.out, [*rows, local])


if __name__ == "__main__":
    main()
