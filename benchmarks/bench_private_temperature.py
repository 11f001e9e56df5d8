"""Share of the NLL gap between T = 1 and the central optimum that a private fit closes.

python -m benchmarks.bench_private_temperature FOLDER

reads .npz files with `logits`, `labels`, optional `client` and `val_*` arrays. Files
with validation rows calibrate on these (Dirichlet(0.1) over 100 clients unless they
name clients) and are scored on the others; files without are halved at random.
"""

import warnings
from pathlib import Path

import numpy as np

from benchmarks._harness import arguments, print_table, write_json
from skfedcal import DirichletPartitioner, FedTempCalibrator, load_federation
from skfedcal.exceptions import CalibrationWarning, PrivacyWarning
from skfedcal.metrics import negative_log_likelihood

FILES = (
    "cifar10_kangsepp_densenet40",
    "fed_mnist_writers_mlp",
    "cifar10_netcal_lenet-5",
    "cifar10_phan_resnet18",
    "fed_cifar10_cnn_dir01",
    "cifar10_netcal_wideresnet-16-4",
    "imdb_cleanlab_cv",
)


def calibration_and_test(path, seed):
    """Rows, labels and clients to calibrate with; rows and labels to score."""
    fed = load_federation(path)
    rng = np.random.default_rng(seed)
    if fed.val is not None:
        source, test = fed.val, (fed.logits, fed.labels)
        logits, labels, ids = source.logits, source.labels, source.client_ids
    else:
        half = rng.random(len(fed.labels)) < 0.5
        logits, labels = fed.logits[half], fed.labels[half]
        ids = None if fed.client_ids is None else fed.client_ids[half]
        test = fed.logits[~half], fed.labels[~half]
    if ids is None:
        split = DirichletPartitioner(100, 0.1, min_size=0, random_state=seed)
        ids = split.assign(labels)
    return (logits, labels, ids), test


def closed_gap(data, test, eps, seed):
    """Share of the gap that one private fit closes."""
    logits, labels, ids = data
    n_classes = logits.shape[1]
    central = FedTempCalibrator(classes=range(n_classes)).fit(logits, labels)
    private = FedTempCalibrator(eps, classes=range(n_classes), random_state=seed)
    private.fit(logits, labels, client_ids=ids)
    base, best, mine = (
        negative_log_likelihood(
            test[1], proba, labels=range(n_classes), min_prob=1e-300
        )
        for proba in (
            _softmax(test[0]),
            central.predict_proba(test[0]),
            private.predict_proba(test[0]),
        )
    )
    return (base - mine) / (base - best), base, best, mine


def main():
    """Print and write the table."""
    parser = arguments("private_temperature", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--eps", type=float, nargs="+", default=[0.5, 1.0, 3.0])
    args = parser.parse_args()
    warnings.simplefilter("ignore", PrivacyWarning)
    warnings.simplefilter("ignore", CalibrationWarning)
    rows = []
    for name in FILES:
        path = args.folder / f"{name}.npz"
        if not path.exists():
            print(f"skipped: {path} is not there")
            continue
        for eps in args.eps:
            cells = []
            for seed in range(args.seeds):
                data, test = calibration_and_test(path, seed)
                cells.append(closed_gap(data, test, eps, seed))
            share, base, best, mine = np.mean(cells, axis=0)
            rows.append(
                {
                    "file": name,
                    "eps": eps,
                    "NLL T=1": base,
                    "NLL central": best,
                    "NLL private": mine,
                    "closed %": 100 * share,
                    "worst seed %": 100 * min(cell[0] for cell in cells),
                }
            )
    print_table(rows)
    write_json(args.out, rows)


def _softmax(logits):
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True), dtype=np.float64)
    return shifted / shifted.sum(axis=1, keepdims=True)


if __name__ == "__main__":
    main()
