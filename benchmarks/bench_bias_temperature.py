"""Bias and temperature scaling: equal to a central fit, against others, and its time.

python -m benchmarks.bench_bias_temperature FOLDER

reads .npz files with `logits`, `labels`, optional `client` and `val_*` arrays. Seed 0
uses the rows as a file divides them; further seeds pool the rows of both parts and
divide them anew, client by client, so that each seed scores other rows of one network.
Files without clients are spread over 100 by Dirichlet(0.1).
"""

import warnings
from pathlib import Path

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

from benchmarks._harness import (
    arguments,
    cpu_best,
    make_logits,
    print_table,
    unit,
    write_json,
)
from benchmarks.bench_private_temperature import calibration_and_test
from skfedcal import (
    FedBBQCalibrator,
    FedBiasTempCalibrator,
    FederatedRunner,
    FedTempCalibrator,
    load_federation,
)
from skfedcal.exceptions import CalibrationWarning
from skfedcal.metrics import (
    classwise_calibration_error,
    expected_calibration_error,
    negative_log_likelihood,
)

CENTRAL = (
    "cifar10_netcal_lenet-5",
    "cifar10_phan_resnet18",
    "cifar100_netcal_wideresnet-16-4",
    "fed_cifar10_cnn_dir01",
    "fed_wisdm_mlp",
)
RIDGE = 1e-5


def split(path, seed):
    """Rows to calibrate with and rows to score, others for each seed."""
    data, test = calibration_and_test(path, seed)
    fed = load_federation(path)
    if fed.val is None or seed == 0:
        return data, test
    logits = np.concatenate([fed.val.logits, fed.logits])
    labels = np.concatenate([fed.val.labels, fed.labels])
    ids = np.concatenate([fed.val.client_ids, fed.client_ids])
    rng = np.random.default_rng(seed)
    # Every second row of a client, in a random order of its rows.
    order = np.lexsort([rng.random(len(ids)), ids])
    chosen, rest = order[::2], order[1::2]
    return (logits[chosen], labels[chosen], ids[chosen]), (logits[rest], labels[rest])


def central_fit(logits, labels):
    """Optimum of the pooled objective by scipy: 1 / T and biases."""
    rows = logits.astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    own = np.arange(len(labels)), labels

    def loss(point):
        logs = log_softmax(point[0] * rows + point[1:], axis=1)
        residual = np.exp(logs)
        residual[own] -= 1
        slope = np.concatenate([[(residual * rows).sum()], residual.sum(axis=0)])
        slope /= len(labels)
        slope[1:] += RIDGE * point[1:]
        value = -logs[own].mean() + RIDGE / 2 * point[1:] @ point[1:]
        return value, slope

    start = np.concatenate([[1.0], np.zeros(rows.shape[1])])
    options = {"maxiter": 10_000, "maxfun": 20_000, "ftol": 1e-14, "gtol": 1e-8}
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
    return found.x[0], found.x[1:]


def scores(labels, proba):
    """NLL, classwise and top-label error in percent, accuracy in percent."""
    classes = range(proba.shape[1])
    return {
        "NLL": negative_log_likelihood(labels, proba, labels=classes),
        "cwECE %": 100 * classwise_calibration_error(labels, proba, labels=classes),
        "ECE %": 100 * expected_calibration_error(labels, proba, labels=classes),
        "accuracy %": 100 * float((proba.argmax(axis=1) == labels).mean()),
    }


def against_central(folder, n_seeds):
    """Largest difference from the central fit over seeds, and rounds."""
    rows = []
    for name in CENTRAL:
        path = folder / f"{name}.npz"
        if not path.exists():
            print(f"skipped: {path} is not there")
            continue
        differences, rounds = [], []
        for seed in range(n_seeds):
            (logits, labels, ids), test = split(path, seed)
            cal = FedBiasTempCalibrator(classes=range(logits.shape[1]))
            cal.fit(logits, labels, client_ids=ids)
            beta, bias = central_fit(logits, labels)
            ours = scores(test[1], cal.predict_proba(test[0]))
            logs = log_softmax(beta * test[0].astype(np.float64) + bias, axis=1)
            theirs = scores(test[1], np.exp(logs))
            differences.append([abs(ours[k] - theirs[k]) for k in ours])
            rounds.append(cal.n_rounds_)
        worst = np.max(differences, axis=0)
        rows.append(
            {
                "file": name,
                "seeds": n_seeds,
                "rounds": max(rounds),
                **{f"max diff {k}": float(v) for k, v in zip(ours, worst, strict=True)},
            }
        )
    return rows


def methods(labels, n_classes, seed):
    """Calibrators to compare, histograms also on the paper's schedule of cohorts.

    `weighting` does nothing with all clients, nor with 12 cohorts of a tenth unless
    the true class totals are told: 120 answers of 100 clients count as all rows.
    """
    classes, totals = range(n_classes), np.bincount(labels, minlength=n_classes)
    tenth = FederatedRunner(n_rounds=12, cohort="independent", cohort_size=10)
    yield "FedTemp", FedTempCalibrator(classes=classes)
    yield "FedBiasTemp", FedBiasTempCalibrator(classes=classes)
    yield "FedBiasTemp + bins", FedBiasTempCalibrator(residual="bins", classes=classes)
    yield (
        "FedBiasTemp ridge=1e-3",
        FedBiasTempCalibrator(ridge=1e-3, classes=classes),
    )
    yield "FedBBQ", FedBBQCalibrator(classes=classes)
    for weighting in (None, "all"):
        cal = FedBBQCalibrator(
            weighting=weighting,
            class_totals=totals if weighting else None,
            classes=classes,
            runner=tenth,
            random_state=seed,
        )
        yield f"FedBBQ{'-all' if weighting else ''} 10 x 12", cal


def comparison(path, n_seeds):
    """Mean and worst scores of each method over seeds, and wins of the last ours."""
    found = {}
    for seed in range(n_seeds):
        (logits, labels, ids), test = split(path, seed)
        for name, cal in methods(labels, logits.shape[1], seed):
            cal.fit(logits, labels, client_ids=ids)
            found.setdefault(name, []).append(
                scores(test[1], cal.predict_proba(test[0]))
            )
    ours = found["FedBiasTemp + bins"]
    rows = []
    for name, results in found.items():
        row = {"file": path.stem, "method": name, "seeds": n_seeds}
        for key in results[0]:
            values = np.array([result[key] for result in results])
            sign = -1 if key == "accuracy %" else 1
            wins = sum(
                sign * (a[key] - b[key]) < 0 for a, b in zip(ours, results, strict=True)
            )
            row[key] = float(values.mean())
            row[f"sd {key}"] = float(values.std(ddof=1)) if n_seeds > 1 else 0.0
            row[f"+bins wins {key}"] = wins
        rows.append(row)
    return rows


def timing(n_rows, n_classes, dtype, seconds):
    """Time of a whole fit in U, one pass of log_softmax."""
    logits, labels = make_logits(n_rows, n_classes, dtype)
    clients = np.arange(n_rows) // max(1, n_rows // 100)
    plain, bins = FedBiasTempCalibrator(), FedBiasTempCalibrator(residual="bins")
    best = cpu_best(
        {
            "U": unit(logits),
            "one": lambda: plain.fit(logits, labels),
            "hundred": lambda: plain.fit(logits, labels, client_ids=clients),
            "bins": lambda: bins.fit(logits, labels, client_ids=clients),
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
        "with bins U": best["bins"] / best["U"],
        "rounds": plain.n_rounds_,
    }


def main():
    """Print and write the tables."""
    parser = arguments("bias_temperature", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    warnings.simplefilter("ignore", CalibrationWarning)
    tables = [against_central(args.folder, args.seeds)]
    for name in CENTRAL:
        path = args.folder / f"{name}.npz"
        if path.exists():
            tables.append(comparison(path, args.seeds))
    tables.append(
        [
            timing(10_000, n_classes, dtype, args.seconds)
            for n_classes in (10, 100)
            for dtype in (np.float32, np.float64)
        ]
    )
    for table in tables:
        print_table(table)
        print()
    write_json(args.out, [row for table in tables for row in table])


if __name__ == "__main__":
    main()
