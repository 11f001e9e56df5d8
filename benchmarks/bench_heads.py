"""Heads from class statistics on Adult, by prior.

python -m benchmarks.bench_heads FOLDER

reads nat_adult_occupation.npz (arrays X, y, client) in FOLDER: 15 clients, one per
occupation. Numbers are means over random halves into rows of clients and test rows.
"""

import json
from pathlib import Path

import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from benchmarks._harness import arguments, machine, versions
from skfedcal import FedGaussianHead
from skfedcal._table import text_table
from skfedcal.metrics import classwise_calibration_error

METHODS = ("lda", "qda", "sample")
PRIORS = ("empirical", "uniform")


def scores(head, rows, labels, clients, seed):
    """Accuracy and classwise calibration error, in percent."""
    mine, other = train_test_split(
        np.arange(len(labels)), train_size=0.5, random_state=seed, stratify=labels
    )
    scaler = StandardScaler().fit(rows[mine])
    head.fit(scaler.transform(rows[mine]), labels[mine], client_ids=clients[mine])
    proba = head.predict_proba(scaler.transform(rows[other]))
    error = classwise_calibration_error(labels[other], proba)
    right = proba.argmax(axis=1) == labels[other]
    return 100 * right.mean(), 100 * error


def main():
    """Print the table and write all runs."""
    parser = arguments("heads", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3, help="number of halvings")
    args = parser.parse_args()
    with np.load(args.folder / "nat_adult_occupation.npz", allow_pickle=False) as file:
        rows, labels = file["X"].astype(float), file["y"].astype(int)
        clients = file["client"].astype(int)
    table = []
    for method in METHODS:
        for prior in PRIORS:
            head = FedGaussianHead(method=method, prior=prior, random_state=0)
            runs = [
                scores(head, rows, labels, clients, seed) for seed in range(args.seeds)
            ]
            accuracy, error = np.mean(runs, axis=0)
            table.append([method, prior, f"{accuracy:.1f}", f"{error:.2f}"])
    print(text_table(["method", "prior", "accuracy %", "cwECE %"], table, n_left=2))
    record = {"machine": machine(), "versions": versions(), "rows": table}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
