"""Temperature scaling: time in U, exactness, peak memory, and clients by the thousand.

python -m benchmarks.bench_temperature

One U is one `scipy.special.log_softmax` pass over the same array in the same run. The
whole public `fit` is timed, validation included. The answer is compared with a root of
the float64 gradient before anything is timed. `bench_fits` has the other libraries.
"""

import time

import numpy as np
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax

from benchmarks._harness import (
    arguments,
    cpu_best,
    make_logits,
    peak_share,
    print_table,
    unit,
    write_json,
)
from benchmarks._optima import inverse_temperature
from skfedcal import FedTempCalibrator
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.methods.temperature.rounds import local_temperatures

SIZES = ((10_000, 10), (10_000, 100), (50_000, 1000))


def measure(n_rows, n_classes, dtype, seconds):
    """One line of the table."""
    logits, labels = make_logits(n_rows, n_classes, dtype)
    rng = np.random.default_rng(0)
    shuffled = rng.integers(0, 100, n_rows)
    clients = np.sort(shuffled)
    ours = FedTempCalibrator()
    found = 1 / ours.fit(logits, labels).temperature_
    error = found / inverse_temperature(logits, labels, found) - 1
    if not abs(error) <= 1e-6:
        raise AssertionError(f"relative error {error:.1e} at {logits.shape}")
    calls = {
        "U": unit(logits),
        "one": lambda: ours.fit(logits, labels),
        "hundred": lambda: ours.fit(logits, labels, client_ids=clients),
        "shuffled": lambda: ours.fit(logits, labels, client_ids=shuffled),
    }
    best = cpu_best(calls, seconds=seconds)
    return {
        "rows": n_rows,
        "classes": n_classes,
        "dtype": np.dtype(dtype).name,
        "U ms": 1e3 * best["U"],
        "1 client U": best["one"] / best["U"],
        "100 clients U": best["hundred"] / best["U"],
        "shuffled U": best["shuffled"] / best["U"],
        "rel error": error,
        "peak memory": 1 + peak_share(lambda: ours.fit(logits, labels), logits),
        "peak, shuffled": 1
        + peak_share(lambda: ours.fit(logits, labels, client_ids=shuffled), logits),
    }


def local_fits(n_clients=100_000, n_rows=20, n_classes=10, n_loop=300, n_turns=3):
    """All local temperatures at once against loops of scipy.

    Loops go over `n_loop` clients, and their time is extrapolated. Everything is timed
    in turn, best of `n_turns`.
    """
    logits, labels = make_logits(n_clients * n_rows, n_classes, np.float32)
    offsets = np.arange(0, n_clients * n_rows + 1, n_rows)
    clients = FederatedDataset(
        logits, labels, offsets, range(n_clients), n_classes=n_classes
    )
    few = [
        (logits[a : a + n_rows].astype(float), labels[a : a + n_rows])
        for a in offsets[: min(n_loop, n_clients)]
    ]
    loops = {
        name: lambda solve=solve: np.array([solve(*own) for own in few])
        for name, solve in SOLVERS.items()
    }
    calls = {"ours": lambda: local_temperatures(clients), **loops}
    found = {name: call() for name, call in calls.items()}
    best = _best_of(calls, n_turns)
    row = {"clients": n_clients, "rows each": n_rows, "ours s": best["ours"]}
    own = np.log(found["ours"][: len(few)])
    for name in SOLVERS:
        row[f"{name} loop s"] = best[name] * n_clients / len(few)
        row[f"{name} ratio"] = row[f"{name} loop s"] / best["ours"]
    gaps = [np.abs(np.log(found[name]) - own).max() for name in SOLVERS]
    return row | {"max |d log T|": float(max(gaps))}


def _best_of(calls, n_turns):
    best = dict.fromkeys(calls, np.inf)
    for _ in range(n_turns):
        for name, call in calls.items():
            started = time.process_time()
            call()
            best[name] = min(best[name], time.process_time() - started)
    return best


LOG_BOUND = np.log(20.0)


def _loss(log_beta, logits, labels):
    log_proba = log_softmax(np.exp(log_beta) * logits, axis=1)
    return -log_proba[np.arange(len(labels)), labels].mean()


def _loss_and_slope(log_beta, logits, labels):
    scaled = np.exp(log_beta) * logits
    log_proba = log_softmax(scaled, axis=1)
    own = np.arange(len(labels)), labels
    slope = (np.exp(log_proba) * scaled).sum(axis=1) - scaled[own]
    return -log_proba[own].mean(), slope.mean()


def _lbfgs(logits, labels):
    """As users write it: scipy takes the gradient from differences."""
    found = minimize(
        lambda u: _loss(u.item(), logits, labels),
        [0.0],
        method="L-BFGS-B",
        bounds=[(-LOG_BOUND, LOG_BOUND)],
    )
    return np.exp(-found.x[0])


def _lbfgs_slope(logits, labels):
    found = minimize(
        lambda u: _loss_and_slope(u.item(), logits, labels),
        [0.0],
        jac=True,
        method="L-BFGS-B",
        bounds=[(-LOG_BOUND, LOG_BOUND)],
    )
    return np.exp(-found.x[0])


def _bounded(logits, labels):
    found = minimize_scalar(
        lambda u: _loss(u, logits, labels),
        bounds=(-LOG_BOUND, LOG_BOUND),
        method="bounded",
        options={"xatol": 1e-8},
    )
    return np.exp(-found.x)


SOLVERS = {
    "L-BFGS-B": _lbfgs,
    "L-BFGS-B with gradient": _lbfgs_slope,
    "bounded": _bounded,
}


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
