"""Bayesian binning: time in U, and agreement with a loop over rows.

python -m benchmarks.bench_bbq

One U is one `scipy.special.log_softmax` pass over the same array in the same run. The
whole public `fit` and `predict_proba` are timed, validation included, with 128 bins per
class. The table is compared with a naive one, class by class, before anything is timed.
`bench_fits` has the other libraries.
"""

import numpy as np
from scipy.special import gammaln

from benchmarks._harness import (
    arguments,
    cpu_best,
    make_logits,
    print_table,
    unit,
    write_json,
)
from skfedcal import FedBBQCalibrator
from skfedcal.algorithms._binning import bin_index, softmax64

SIZES = ((10_000, 10), (10_000, 100))
LEVELS = 7


def naive_table(proba, labels):
    """Averaged bins of each class, one class and one level at a time."""
    table = np.empty((proba.shape[1], 2**LEVELS))
    for j, column in enumerate(proba.T):
        scores, values = [], []
        for level in range(1, LEVELS + 1):
            n_bins = 2**level
            cells = bin_index(column, n_bins)
            own = np.bincount(cells[labels == j], minlength=n_bins)
            rows = np.bincount(cells, minlength=n_bins)
            middle, weight = (np.arange(n_bins) + 0.5) / n_bins, 2 / n_bins
            alpha, beta = weight * middle, weight * (1 - middle)
            score = gammaln(weight) - gammaln(rows + weight)
            score += gammaln(own + alpha) - gammaln(alpha)
            score += gammaln(rows - own + beta) - gammaln(beta)
            scores.append(score.sum())
            values.append(
                np.repeat((own + alpha) / (rows + weight), 2**LEVELS // n_bins)
            )
        shares = np.exp(np.array(scores) - max(scores))
        table[j] = shares @ np.array(values) / shares.sum()
    return table


def measure(n_rows, n_classes, dtype, seconds):
    """One line of the table."""
    logits, labels = make_logits(n_rows, n_classes, dtype)
    shuffled = np.random.default_rng(0).integers(0, 100, n_rows)
    clients = np.sort(shuffled)
    ours = FedBBQCalibrator(n_levels=LEVELS).fit(logits, labels)
    error = np.abs(ours.bin_values_ - naive_table(softmax64(logits), labels)).max()
    if error > 1e-9:
        raise AssertionError(f"error {error:.1e} at {logits.shape}")
    best = cpu_best(
        {
            "U": unit(logits),
            "one": lambda: ours.fit(logits, labels),
            "hundred": lambda: ours.fit(logits, labels, client_ids=clients),
            "shuffled": lambda: ours.fit(logits, labels, client_ids=shuffled),
            "predict": lambda: ours.predict_proba(logits),
        },
        seconds=seconds,
    )
    return {
        "rows": n_rows,
        "classes": n_classes,
        "dtype": np.dtype(dtype).name,
        "U ms": 1e3 * best["U"],
        "1 client U": best["one"] / best["U"],
        "100 clients U": best["hundred"] / best["U"],
        "shuffled U": best["shuffled"] / best["U"],
        "predict U": best["predict"] / best["U"],
        "max error": error,
    }


def main():
    """Print and write the table."""
    args = arguments("bbq", __doc__).parse_args()
    rows = [
        measure(n_rows, n_classes, dtype, args.seconds)
        for n_rows, n_classes in SIZES
        for dtype in (np.float32, np.float64)
    ]
    print_table(rows)
    write_json(args.out, rows)


if __name__ == "__main__":
    main()
