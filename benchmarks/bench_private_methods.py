"""Every method under user-level privacy: same clients, rounds of all, accounting.

python -m benchmarks.bench_private_methods FOLDER

reads .npz files with `logits`, `labels`, optional `client` and `val_*` arrays. A seed
is a seed of the noise; files without validation rows are also halved anew, and files
without clients spread over 100 by Dirichlet(0.1). All methods of a seed see the same
rows. Constants of our methods were chosen on the files of DEVELOPMENT; those of
CALIBRATED and FEW_CLIENTS were looked at for `if_improves` and for FedAuto. Rows of an
earlier run stay in the JSON file unless they are measured again, so that a long run can
be done in parts.
"""

import json
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks._harness import arguments, print_table, write_json
from benchmarks.bench_bias_temperature import scores
from benchmarks.bench_private_temperature import calibration_and_test
from skfedcal import (
    FedAutoCalibrator,
    FedBBQCalibrator,
    FedBiasTempCalibrator,
    FedMLPCalibrator,
    FedOPVectorCalibrator,
    FedTempCalibrator,
    FedVectorCalibrator,
)
from skfedcal.exceptions import CalibrationWarning, SimulatedPrivacyWarning
from skfedcal.privacy import CentralDP

DEVELOPMENT = (
    "fed_cifar10_cnn_dir01",
    "fed_mnist_writers_mlp",
    "cifar10_netcal_lenet-5",
    "cifar10_kangsepp_densenet40",
)
CONFIRMATION = (
    "cifar10_phan_vgg16_bn",
    "cifar10_phan_resnet50",
    "cifar10_phan_mobilenet_v2",
    "cifar10_kerrigan_resnet-110",
    "cifar10_netcal_wideresnet-16-4",
    "fed_chem97_mlp",
    "cifar100_netcal_wideresnet-16-4",
)
CALIBRATED = ("cifar10_phan_googlenet", "mnist_metacal_cnn_writers")
FEW_CLIENTS = ("fed_adult_gbm", "fed_tv16_mlp", "fed_wisdm_mlp")

PRIVATE = {
    "FedTemp": (FedTempCalibrator, {}),
    # Algorithm 2 of the paper with its clip, in three rounds of all clients.
    "FedTemp average": (FedTempCalibrator, {"solver": "average", "clip": 0.5}),
    "FedVector": (FedVectorCalibrator, {}),
    "FedOPVector": (FedOPVectorCalibrator, {}),
    "FedMLP": (FedMLPCalibrator, {}),
    "FedBBQ": (FedBBQCalibrator, {}),
    "FedBBQ all": (FedBBQCalibrator, {"weighting": "all"}),
    "FedBiasTemp uniform": (FedBiasTempCalibrator, {"class_prior": "uniform"}),
    "FedBiasTemp always": (
        FedBiasTempCalibrator,
        {"class_prior": "uniform", "if_improves": False},
    ),
    "FedBiasTemp None": (FedBiasTempCalibrator, {"class_prior": None}),
    "FedAuto uniform": (FedAutoCalibrator, {"class_prior": "uniform"}),
    "FedAuto": (FedAutoCalibrator, {}),
}
EXACT = {
    "exact FedTemp": (FedTempCalibrator, {}),
    "exact FedBiasTemp": (FedBiasTempCalibrator, {}),
}
# Slow ones, with as many seeds as there is time for.
MOST_SEEDS = {
    "FedMLP": 5,
    "FedOPVector": 5,
    "cifar100_netcal_wideresnet-16-4": 10,
}
SHOWN = ("cwECE %", "NLL", "accuracy %")


def one_fit(method, eps, data, test, seed):
    """Scores of one fit, whether it says that it should be used, and its choice."""
    kind, parameters = method
    privacy = None if eps is None else CentralDP(eps, delta=1e-5, accountant="gdp")
    calibrator = kind(
        **parameters,
        privacy=privacy,
        classes=range(data[0].shape[1]),
        random_state=seed,
    ).fit(data[0], data[1], client_ids=data[2])
    # In float64: the smallest probability that counts depends on the dtype.
    found = scores(test[1], calibrator.predict_proba(test[0].astype(np.float64)))
    choice = getattr(calibrator, "choice_", "")
    return {**found, "used": calibrator.improves_, "choice": choice}


def unchanged(test):
    """Scores of the network itself."""
    shifted = test[0].astype(np.float64)
    proba = np.exp(shifted - shifted.max(axis=1, keepdims=True))
    proba /= proba.sum(axis=1, keepdims=True)
    return {**scores(test[1], proba), "used": False, "choice": ""}


def one_file(path, n_seeds, budgets, names):
    """Results of all seeds by budget and method."""
    found = {}
    n_seeds = min(n_seeds, MOST_SEEDS.get(path.stem, n_seeds))
    for seed in range(n_seeds):
        data, test = calibration_and_test(path, seed)
        found.setdefault(("-", "none"), []).append(unchanged(test))
        for name, method in EXACT.items():
            if name in names:
                result = one_fit(method, None, data, test, seed)
                found.setdefault(("-", name), []).append(result)
        for name, method in PRIVATE.items():
            if name not in names or seed >= MOST_SEEDS.get(name, n_seeds):
                continue
            for eps in budgets:
                result = one_fit(method, eps, data, test, seed)
                found.setdefault((eps, name), []).append(result)
    return found


def table(file, found):
    """One row per budget and method, with means and their standard errors."""
    rows = []
    for (eps, name), results in sorted(found.items(), key=lambda item: str(item[0][0])):
        row = {"file": file, "eps": eps, "method": name, "seeds": len(results)}
        for key in SHOWN:
            values = np.array([result[key] for result in results])
            spread = values.std(ddof=1) if len(values) > 1 else np.nan
            row[key] = round(float(values.mean()), 4)
            row[f"se {key}"] = round(float(spread / np.sqrt(len(values))), 4)
        row["refused"] = sum(not result["used"] for result in results)
        choices = Counter(result["choice"] for result in results).most_common()
        row["choice"] = ", ".join(f"{c} {n}" for c, n in choices if c)
        rows.append(row)
    return rows


def shown(row):
    """A row to print, with the standard error behind each mean."""
    scored = {key: f"{row[key]:.3f} ({row[f'se {key}']:.3f})" for key in SHOWN}
    first = {key: row[key] for key in ("file", "eps", "method", "seeds")}
    return {**first, **scored, "refused": row["refused"], "choice": row["choice"]}


def merged(path, rows):
    """These rows, and those of an earlier run that they do not replace."""
    keys = {(row["file"], row["eps"], row["method"]) for row in rows}
    old = json.loads(path.read_text())["rows"] if path.exists() else []
    kept = [r for r in old if (r["file"], r["eps"], r["method"]) not in keys]
    return kept + rows


def main():
    """Print and write a table for each file."""
    every = (*DEVELOPMENT, *CONFIRMATION, *CALIBRATED, *FEW_CLIENTS)
    parser = arguments("private_methods", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--eps", type=float, nargs="+", default=[0.5, 1.0, 3.0])
    parser.add_argument("--files", nargs="+", default=every)
    parser.add_argument("--methods", nargs="+", default=[*PRIVATE, *EXACT])
    args = parser.parse_args()
    warnings.simplefilter("ignore", SimulatedPrivacyWarning)
    warnings.simplefilter("ignore", CalibrationWarning)
    for name in args.files:
        path = args.folder / f"{name}.npz"
        if not path.exists():
            print(f"skipped: {path} is not there")
            continue
        rows = table(name, one_file(path, args.seeds, args.eps, args.methods))
        print_table([shown(row) for row in rows])
        write_json(args.out, merged(args.out, rows))


if __name__ == "__main__":
    main()
