"""Shapes of the paper's figures and tables, with its methods as printed.

python -m benchmarks.bench_paper_shapes FOLDER

Local fits are averaged (Algorithm 2), bins are plain frequencies, each class is
clipped by itself, and nothing is refused. Clients are the 100 of the FedAvg CNN; seeds
after the first divide its rows anew. The numbers are not those of the paper, whose
networks are others; whether a curve rises, falls or crosses another can be compared.
"""

import warnings
from itertools import product
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np

from benchmarks._harness import arguments, print_table, write_json
from benchmarks.bench_bias_temperature import scores, split
from benchmarks.bench_private_methods import unchanged
from skfedcal import (
    DirichletPartitioner,
    FedBBQCalibrator,
    FedBinCalibrator,
    FederatedRunner,
    FedMatrixCalibrator,
    FedMLPCalibrator,
    FedOPVectorCalibrator,
    FedTempCalibrator,
    FedVectorCalibrator,
    client_temperatures,
)
from skfedcal.exceptions import CalibrationWarning, SimulatedPrivacyWarning
from skfedcal.privacy import CentralDP

NETWORK, OTHER = "fed_cifar10_cnn_dir01.npz", "cifar10_netcal_lenet-5.npz"
AVERAGE = {"solver": "average", "local_solver": "lbfgs"}
PRINTED = {"bins": "frequency", "space": "prob"}
LITERAL = {
    "FedTemp": (FedTempCalibrator, {"solver": "average"}),
    "FedOPVector": (FedOPVectorCalibrator, AVERAGE),
    "FedVector": (FedVectorCalibrator, AVERAGE),
    "FedMatrix": (FedMatrixCalibrator, AVERAGE),
    "FedMLP": (FedMLPCalibrator, {}),
    "FedBin": (FedBinCalibrator, {}),
    "FedBBQ": (FedBBQCalibrator, PRINTED),
    "FedBBQ all": (FedBBQCalibrator, {**PRINTED, "weighting": "all"}),
}
HISTOGRAMS = ("FedBin", "FedBBQ", "FedBBQ all")
COMPARED = ("FedTemp", "FedOPVector", "FedMLP", "FedBBQ", "FedBBQ all")
SKEWS = (0.1, 0.3, 0.5, 0.8, np.inf)
TWELVE = (12, "independent")


def fitted(name, data, seed, *, cohorts=None, eps=None, **changes):
    """Fit of a method of the paper; `cohorts` are a number of rounds and a kind."""
    kind, parameters = LITERAL[name]
    parameters = {**parameters, "if_improves": False, **changes}
    n_classes = data[0].shape[1]
    if eps is not None:
        parameters["privacy"] = CentralDP(eps, delta=1e-5, accountant="zcdp")
        parameters.setdefault("clip", (10, 50) if name in HISTOGRAMS else 0.5)
    if eps is not None and name in HISTOGRAMS:
        parameters.update(clip_per_class=True, noise="joint")
    if eps is None and name == "FedBBQ all":
        # The paper's server knows how many rows of each class there are.
        parameters["class_totals"] = np.bincount(data[1], minlength=n_classes)
    runner = FederatedRunner(n_rounds=1)
    if cohorts is not None:
        runner = FederatedRunner(*cohorts, cohort_size=10)
    cal = kind(**parameters, classes=range(n_classes), runner=runner, random_state=seed)
    return cal.fit(data[0], data[1], client_ids=data[2])


def mean_scores(path, n_seeds, name, skew=None, **setting):
    """Means over seeds, their standard deviations, and the change of accuracy."""
    found, before = [], []
    for seed in range(n_seeds):
        data, test = split(path, seed)
        if skew is not None:
            data = (*data[:2], spread(data[1], skew, seed))
        cal = fitted(name, data, seed, **setting)
        found.append(scores(test[1], cal.predict_proba(test[0].astype(np.float64))))
        before.append(unchanged(test)["accuracy %"])
    out = {}
    for key in ("cwECE %", "accuracy %"):
        values = [result[key] for result in found]
        out[key], out[f"sd {key}"] = fmean(values), pstdev(values)
    out["change of accuracy"] = out["accuracy %"] - fmean(before)
    return out


def spread(labels, skew, seed):
    """Spread rows over 100 clients by Dirichlet(`skew`)."""
    return DirichletPartitioner(100, skew, min_size=0, random_state=seed).assign(labels)


def local_overfitting(folder, n_seeds):
    """Figure 1c: accuracy after local fits are averaged, against skew and rounds."""
    cases = [(None, None), (None, TWELVE), *((skew, None) for skew in SKEWS)]
    names = ("FedTemp", "FedOPVector", "FedVector", "FedMatrix")
    for name, (skew, cohorts) in product(names, cases):
        found = mean_scores(folder / NETWORK, n_seeds, name, skew, cohorts=cohorts)
        asked = "1 x 100" if cohorts is None else "12 x 10"
        row = {"figure": "1c", "method": name, "skew": str(skew or "own")}
        yield row | {"asked": asked} | found


def rounds_needed(folder, n_seeds):
    """Figures 2a and 2b: error and accuracy against the number of rounds."""
    cohorts = product(("independent", "permuted"), COMPARED, (1, 3, 6, 12, 30))
    for kind, name, n in cohorts:
        found = mean_scores(folder / NETWORK, n_seeds, name, cohorts=(n, kind))
        row = {"figure": "2a, 2b", "method": name, "cohorts": kind, "rounds": n}
        yield row | found


def under_noise(folder, n_seeds):
    """Figure 3 and Table 3: error and accuracy against the budget."""
    for name, eps in product(COMPARED, (0.5, 1.0, 3.0, 10.0, 100.0)):
        found = mean_scores(folder / NETWORK, n_seeds, name, cohorts=TWELVE, eps=eps)
        yield {"figure": "3", "method": name, "eps": eps} | found


def bins_and_clips(folder, n_seeds):
    """Appendices A.3.3 (number of bins), A.3.4 (clips) and A.3.5 (clipped T)."""
    cases = []
    for name in ("FedBBQ", "FedBBQ all"):
        for n, eps in ((1, None), (12, None), (12, 3.0)):
            cases += [("A.3.3", name, n, eps, {"n_levels": m}) for m in range(2, 11)]
        for pair in product((1, 5, 10, 50), (10, 50, 200)):
            cases.append(("A.3.4", name, 12, 3.0, {"clip": pair}))
    for clip in ("auto", 0.1, 0.25, 0.5, 1.0):
        cases += [("A.3.5", "FedTemp", n, None, {"clip": clip}) for n in (1, 5, 10, 30)]
    for figure, name, n, eps, option in cases:
        setting = {"cohorts": (n, "independent"), "eps": eps, **option}
        found = mean_scores(folder / NETWORK, n_seeds, name, **setting)
        row = {"figure": figure, "method": name, "rounds": n, "eps": eps}
        yield row | {"option": str(option)} | found


def client_spread(folder, n_seeds):
    """Table 9: spread of the clients' own temperatures against skew."""
    for file, skew in product((OTHER, NETWORK), SKEWS):
        found = []
        for seed in range(n_seeds):
            (logits, labels, _), _ = split(folder / file, seed)
            ids = spread(labels, skew, seed)
            own = client_temperatures(logits, labels, client_ids=ids, classes=range(10))
            one = FedTempCalibrator(classes=range(10)).fit(logits, labels)
            found.append([np.nanvar(own), np.nanmean(np.abs(own - one.temperature_))])
        row = {"figure": "Table 9", "file": file, "skew": f"{skew:g}"}
        variance, apart = np.mean(found, axis=0).tolist()
        yield row | {"var T_k": variance, "mean |T - T_k|": apart}


def overheads(folder, n_seeds):
    """Tables 5, 10 and 11: size of messages and time of a client, per round."""
    data, _ = split(folder / NETWORK, 0)
    for name, eps in product(LITERAL, (None, 1.0)):
        setting = {"cohorts": (12, "permuted"), "eps": eps}
        fits = [fitted(name, data, seed, **setting) for seed in range(n_seeds)]
        rounds = [record for cal in fits for record in cal.history_]
        # A round of ten clients has one time, the mean of theirs.
        times = [1e3 * record.client_seconds for record in rounds]
        row = {"figure": "Tables 5, 10, 11", "method": name, "eps": eps}
        row |= {"bytes up": rounds[0].bytes_up, "bytes down": rounds[0].bytes_down}
        yield row | {"ms": fmean(times), "least": min(times), "most": max(times)}


PARTS = {
    "a": local_overfitting,
    "b": rounds_needed,
    "c": under_noise,
    "d": bins_and_clips,
    "e": client_spread,
    "f": overheads,
}


def main():
    """Print and write a table for each part."""
    parser = arguments("paper_shapes", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    args = parser.parse_args()
    warnings.simplefilter("ignore", SimulatedPrivacyWarning)
    warnings.simplefilter("ignore", CalibrationWarning)
    rows = []
    for part in args.parts:
        table = list(PARTS[part](args.folder, args.seeds))
        print(f"\n{PARTS[part].__doc__}")
        print_table(table)
        rows += table
    write_json(args.out, rows)


if __name__ == "__main__":
    main()
