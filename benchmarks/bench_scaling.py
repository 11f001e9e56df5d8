"""Federated scaling maps beside the central fit of the same map and ridge.

python -m benchmarks.bench_scaling FOLDER

Clients are those of the file, or 100 with Dirichlet(0.1) skew. The central fit is
L-BFGS of scipy on the pooled rows. ``--private`` adds fits under eps.
"""

import warnings
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from benchmarks._harness import arguments, print_table, write_json
from benchmarks.bench_private_temperature import calibration_and_test
from skfedcal import (
    FedMatrixCalibrator,
    FedOPVectorCalibrator,
    FedTempCalibrator,
    FedVectorCalibrator,
)
from skfedcal.exceptions import CalibrationWarning, PrivacyWarning
from skfedcal.metrics import classwise_calibration_error

FILES = (
    "cifar10_netcal_lenet-5",
    "cifar10_phan_resnet18",
    "fed_cifar10_cnn_dir01",
    "fed_wisdm_mlp",
    "cifar100_netcal_wideresnet-16-4",
)
METHODS = (FedVectorCalibrator, FedMatrixCalibrator, FedOPVectorCalibrator)


def scores(proba, labels):
    """NLL, classwise error in percent, accuracy in percent."""
    proba = proba.astype(np.float64)
    own = np.maximum(proba[np.arange(len(labels)), labels], 1e-300)
    return (
        -np.log(own).mean(),
        100 * classwise_calibration_error(labels, proba),
        100 * (proba.argmax(axis=1) == labels).mean(),
    )


def central_proba(calibrator, logits, labels, test):
    """Probabilities of the central optimum with the ridge of `calibrator`."""
    matrix = isinstance(calibrator, FedMatrixCalibrator)
    c, n = logits.shape[1], len(labels)
    x, other = (centred(z) / calibrator.temperature_ for z in (logits, test))
    weights = np.repeat(calibrator.l2_[:2], c)
    start = np.repeat([1.0, 0.0], c)
    if matrix:
        off = np.full((c, c), calibrator.l2_[2])
        np.fill_diagonal(off, calibrator.l2_[0])
        weights = np.concatenate([off.ravel(), np.full(c, calibrator.l2_[1])])
        start = np.concatenate([np.eye(c).ravel(), np.zeros(c)])

    def mapped(params, rows):
        if matrix:
            return rows @ params[: c * c].reshape(c, c) + params[c * c :]
        return rows * params[:c] + params[c:]

    def objective(params):
        proba = softmax(mapped(params, x))
        own = np.maximum(proba[np.arange(n), labels], 1e-300)
        move = params - start
        value = -np.log(own).mean() + weights @ move**2 / (2 * n)
        proba[np.arange(n), labels] -= 1
        first = (x.T @ proba).ravel() if matrix else (proba * x).sum(axis=0)
        slope = np.concatenate([first, proba.sum(axis=0)])
        return value, (slope + weights * move) / n

    options = {"maxiter": 2000, "ftol": 1e-13, "gtol": 1e-8}
    best = minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x
    return softmax(mapped(best, other))


def centred(logits):
    """Rows of mean zero, in float64."""
    logits = logits.astype(np.float64)
    return logits - logits.mean(axis=1, keepdims=True)


def softmax(logits):
    """Probabilities of each row."""
    out = np.exp(logits - logits.max(axis=1, keepdims=True))
    return out / out.sum(axis=1, keepdims=True)


def exact_rows(name, data, test, seed):
    """One row per method without noise."""
    logits, labels, ids = data
    classes = range(logits.shape[1])
    rows = []
    for cls in (FedTempCalibrator, *METHODS):
        calibrator = cls(classes=classes).fit(logits, labels, client_ids=ids)
        nll, cwece, accuracy = scores(calibrator.predict_proba(test[0]), test[1])
        row = {
            "file": name,
            "seed": seed,
            "method": cls.__name__,
            "rounds": calibrator.n_rounds_,
            "kB up": sum(r.bytes_up for r in calibrator.history_) / 1000,
            "NLL": round(nll, 5),
            "cwECE %": round(cwece, 4),
            "accuracy %": round(accuracy, 2),
            "central NLL": float("nan"),
            "central cwECE %": float("nan"),
        }
        if cls in METHODS[:2]:
            proba = central_proba(calibrator, logits, labels, test[0])
            best = scores(proba, test[1])
            row["central NLL"] = round(best[0], 5)
            row["central cwECE %"] = round(best[1], 4)
        rows.append({k: str(v) if v != v else v for k, v in row.items()})
    return rows


def private_rows(name, data, test, seeds):
    """One row per method and eps: means over noise seeds, the map always used."""
    logits, labels, ids = data
    rows = []
    for cls in METHODS:
        for eps in (0.5, 1.0, 3.0):
            found, used = [], []
            for seed in range(seeds):
                calibrator = cls(
                    eps,
                    classes=range(logits.shape[1]),
                    if_improves=False,
                    random_state=seed,
                ).fit(logits, labels, client_ids=ids)
                used.append(calibrator.improves_)
                found.append(scores(calibrator.predict_proba(test[0]), test[1]))
            nll, cwece, accuracy = np.mean(found, axis=0)
            rows.append(
                {
                    "file": name,
                    "method": cls.__name__,
                    "eps": eps,
                    "NLL": round(nll, 4),
                    "cwECE %": round(cwece, 3),
                    "standard error": round(
                        np.std(found, axis=0)[1] / np.sqrt(seeds), 3
                    ),
                    "accuracy %": round(accuracy, 2),
                    "improves_": float(np.mean(used)),
                }
            )
    return rows


def main():
    """Print and write the tables."""
    parser = arguments("scaling", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--split-seeds", type=int, default=1)
    parser.add_argument("--private", type=int, default=0, help="noise seeds")
    args = parser.parse_args()
    warnings.simplefilter("ignore", PrivacyWarning)
    warnings.simplefilter("ignore", CalibrationWarning)
    exact, private = [], []
    for name in FILES:
        path = args.folder / f"{name}.npz"
        if not path.exists():
            print(f"skipped: {path} is not there")
            continue
        for seed in range(args.split_seeds):
            data, test = calibration_and_test(path, seed)
            exact += exact_rows(name, data, test, seed)
        if args.private and data[0].shape[1] <= 10:
            data, test = calibration_and_test(path, 0)
            private += private_rows(name, data, test, args.private)
    print_table(exact)
    print_table(private)
    write_json(args.out, exact + private)


if __name__ == "__main__":
    main()
