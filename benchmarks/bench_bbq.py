"""Binning: time in U, agreement with a loop over rows, and the scale of bins.

python -m benchmarks.bench_bbq
python -m benchmarks.bench_bbq --folder FOLDER

One U is one `scipy.special.log_softmax` pass over the same array in the same run. The
whole public `fit` and `predict_proba` are timed, validation included, with 128 bins per
class. The table is compared with a naive one, class by class, before anything is timed.
`bench_fits` has the other libraries.

With a folder, bins of equal width in log-odds and in probability are scored on every
.npz file with logits and labels in it, on rows that were not fitted, divided as in
`bench_private_temperature`.
"""

from pathlib import Path

import numpy as np
from scipy.special import expit, gammaln, logit, softmax

from benchmarks._harness import (
    arguments,
    cpu_best,
    make_logits,
    print_table,
    unit,
    write_json,
)
from benchmarks.bench_bias_temperature import scores
from benchmarks.bench_private_temperature import calibration_and_test
from skfedcal import FedBBQCalibrator, FedBinCalibrator

SIZES = ((10_000, 10), (10_000, 100))
LEVELS = 7
SPACES = ("logit", "prob")


def naive_table(logits, labels, space):
    """Averaged bins of each class, one class and one level at a time."""
    proba = softmax(logits.astype(np.longdouble), axis=1)
    with np.errstate(divide="ignore"):
        place = proba if space == "prob" else logit(proba) / 32 + 0.5
    place = np.clip(place, 0, 1 - 1e-15).astype(np.float64)
    table = np.empty((logits.shape[1], 2**LEVELS))
    for j, column in enumerate(place.T):
        scores, values = [], []
        for level in range(1, LEVELS + 1):
            n_bins = 2**level
            cells = np.minimum((column * n_bins).astype(int), n_bins - 1)
            own = np.bincount(cells[labels == j], minlength=n_bins)
            rows = np.bincount(cells, minlength=n_bins)
            middle, weight = (np.arange(n_bins) + 0.5) / n_bins, 2 / n_bins
            if space == "logit":
                middle = expit(32 * middle - 16)
            alpha, beta = weight * middle, weight * (1 - middle)
            score = gammaln(weight) - gammaln(rows + weight)
            score += gammaln(own + alpha) - gammaln(alpha)
            score += gammaln(rows - own + beta) - gammaln(beta)
            scores.append(score.sum())
            value, each = (own + alpha) / (rows + weight), 2**LEVELS // n_bins
            if space == "prob":
                values.append(np.repeat(value, each))
                continue
            # A line through the means of the bins that have rows, and only there.
            odds = (np.arange(2**LEVELS) + 0.5) / 2**LEVELS * 32 - 16
            finest = np.bincount((column * 2**LEVELS).astype(int), minlength=len(odds))
            sums = (finest[: len(odds)] * odds).reshape(n_bins, each).sum(axis=1)
            seen = rows > 0
            line = np.interp(odds, sums[seen] / rows[seen], logit(value[seen]))
            line = np.where(np.repeat(seen, each), expit(line), np.repeat(middle, each))
            values.append(line)
        shares = np.exp(np.array(scores) - max(scores))
        table[j] = shares @ np.array(values) / shares.sum()
    return table


def measure(n_rows, n_classes, dtype, seconds, space):
    """One line of the table."""
    logits, labels = make_logits(n_rows, n_classes, dtype)
    shuffled = np.random.default_rng(0).integers(0, 100, n_rows)
    clients = np.sort(shuffled)
    ours = FedBBQCalibrator(n_levels=LEVELS, space=space).fit(logits, labels)
    error = np.abs(ours.bin_values_ - naive_table(logits, labels, space)).max()
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
        "space": space,
        "U ms": 1e3 * best["U"],
        "1 client U": best["one"] / best["U"],
        "100 clients U": best["hundred"] / best["U"],
        "shuffled U": best["shuffled"] / best["U"],
        "predict U": best["predict"] / best["U"],
        "max error": error,
    }


def by_space(folder, n_seeds):
    """Mean scores of bins on both scales, a line for each file."""
    rows = []
    for path in sorted(folder.glob("*.npz")):
        try:
            calibration_and_test(path, 0)
        except (ValueError, KeyError) as error:
            print(f"skipped {path.name}: {str(error).splitlines()[0]}")
            continue
        row = {"file": path.stem, "seeds": n_seeds}
        for method in (FedBinCalibrator, FedBBQCalibrator):
            for space in SPACES:
                found = []
                for seed in range(n_seeds):
                    (logits, labels, ids), test = calibration_and_test(path, seed)
                    cal = method(space=space, classes=range(logits.shape[1]))
                    cal.fit(logits, labels, client_ids=ids)
                    found.append(scores(test[1], cal.predict_proba(test[0])))
                for key in found[0]:
                    name = f"{method.__name__[3:6]} {space} {key}"
                    row[name] = float(np.mean([one[key] for one in found]))
        rows.append(row)
    return rows


def main():
    """Print and write the tables."""
    parser = arguments("bbq", __doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    rows = [
        measure(n_rows, n_classes, dtype, args.seconds, space)
        for n_rows, n_classes in SIZES
        for dtype in (np.float32, np.float64)
        for space in SPACES
    ]
    print_table(rows)
    if args.folder is not None:
        found = by_space(args.folder, args.seeds)
        print_table(found)
        rows += found
    write_json(args.out, rows)


if __name__ == "__main__":
    main()
