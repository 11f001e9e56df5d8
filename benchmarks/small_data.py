"""Private temperature for few clients, few rows per client, and exact zeros.

python -m benchmarks.small_data FOLDER

repeats the tables by which the constants of the private temperature were chosen, by
the public estimators, beside the figures printed in docs/research/study.rst.
FOLDER holds .npz files with `logits`, `labels` and optional `val_*` arrays: those with
validation rows calibrate on these, others are halved at random. All figures are changes
of the test NLL in percent of that of the input; negative is better.

  clients   fits by number of clients and eps, of each file and of a calibrated copy
  rows      fits by rows per client
  claims    T of 12,000 rows, one to five per client, next to the exact one
  rounds    fits with one to five rounds
  zeros     nearest neighbours and probabilities rounded to two decimals
  maps      FedAuto with eps beside FedTemp and FedBiasTemp, by number of clients
  choice    exact fits: each map, and the choice among them by held-back loss
  peers     exact fits: FedAuto beside scikit-learn, netcal and probmetrics

``--quick`` runs the tables of exact fits on four files, in less than a minute.
"""

import warnings
from pathlib import Path

import numpy as np

from benchmarks._choice import by_map, by_peer, gain, peer_summary
from benchmarks._harness import arguments, print_table, write_json
from skfedcal import (
    CentralDP,
    DirichletPartitioner,
    FedAutoCalibrator,
    FedBiasTempCalibrator,
    FederatedRunner,
    FedTempCalibrator,
    load_federation,
)
from skfedcal import methods as public

# Printed figures: oracle, new (mean, worst), calibrated (mean, 95th percentile, worst).
CLIENTS = {
    (4, 0.5): (-13.5, -3.4, 0.7, 0.33, 1.4, 3.5),
    (4, 1.0): (-13.5, -5.2, 2.4, 0.28, 1.2, 5.8),
    (4, 3.0): (-13.5, -9.7, 2.7, 0.12, 0.5, 5.0),
    (10, 0.5): (-13.5, -6.3, 3.9, 0.25, 1.1, 6.8),
    (10, 1.0): (-13.5, -9.3, 4.4, 0.14, 0.6, 6.0),
    (10, 3.0): (-13.5, -13.0, 1.0, 0.06, 0.2, 1.5),
    (20, 0.5): (-13.5, -8.5, 5.2, 0.19, 0.8, 7.6),
    (20, 1.0): (-13.5, -11.5, 2.3, 0.12, 0.5, 3.0),
    (20, 3.0): (-13.5, -13.1, 0.2, 0.10, 0.4, 0.9),
    (50, 0.5): (-13.5, -12.0, 1.9, 0.11, 0.5, 3.0),
    (50, 1.0): (-13.5, -13.1, 0.5, 0.09, 0.3, 1.4),
    (100, 0.5): (-13.5, -13.0, 1.2, 0.12, 0.5, 3.2),
    (100, 1.0): (-13.5, -13.2, 0.3, 0.12, 0.5, 2.9),
    (1000, 1.0): (-13.5, -13.3, 0.4, 0.08, 0.3, 1.0),
}
# Rows and number of clients: new at eps .5, 1 and 3, worst of all.
ROWS = {
    (1, 100): (-2.8, -4.5, -7.7, 5.0),
    (1, 1000): (-8.9, -9.0, -9.1, 0.7),
    (1, 20000): (-9.1, -9.1, -9.1, 0.4),
    (2, 100): (-3.5, -5.3, -8.1, 2.5),
    (2, 1000): (-9.0, -9.1, -9.1, 0.5),
    (2, 20000): (-9.1, -9.1, -9.1, 0.0),
    (3, 100): (-4.8, -6.9, -8.3, 4.5),
    (3, 1000): (-9.0, -9.0, -9.0, 0.4),
    (5, 100): (-7.2, -8.7, -9.0, 7.5),
    (5, 1000): (-9.1, -9.1, -9.1, 0.4),
    (25, 100): (-8.9, -9.0, -9.1, 1.1),
    (100, 100): (-9.1, -9.1, -9.2, 0.5),
}
# Number of clients and eps: FedAuto (mean, worst), FedTemp, FedBiasTemp.
MAPS = {
    (20, 0.5): (-13.8, 0.4, -12.9, -6.4),
    (20, 1.0): (-15.8, 0.2, -14.7, -13.8),
    (20, 3.0): (-17.4, -0.2, -15.8, -15.5),
    (100, 0.5): (-15.9, 0.0, -14.5, -14.0),
    (100, 1.0): (-16.8, -0.2, -14.8, -15.1),
    (100, 3.0): (-18.3, -0.2, -14.9, -15.7),
    (1000, 0.5): (-18.3, 0.1, -15.9, -16.3),
    (1000, 1.0): (-18.9, -0.5, -16.0, -16.8),
    (1000, 3.0): (-20.2, -1.6, -16.0, -17.2),
}
TABLES = ("clients", "rows", "claims", "rounds", "zeros", "maps", "choice", "peers")
QUICK_TABLES = ("zeros", "choice", "peers")
QUICK_FILES = ("cifar10_netcal_lenet-5", "fed_wisdm_mlp", "fed_adult_gbm",
               "cifar10_phan_vgg11_bn")  # fmt: skip
MAX_ROWS = 20_000


def log_softmax(logits):
    """Logarithm of the softmax in float64."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def mean_loss(logits, labels):
    """Mean log loss of logits."""
    return -log_softmax(logits)[np.arange(len(labels)), labels].mean()


def halves(path, seed):
    """Logits and labels to calibrate with, and to score."""
    fed = load_federation(path)
    if fed.val is not None:
        parts = fed.val.logits, fed.val.labels, fed.logits, fed.labels
    else:
        rows = np.random.default_rng(seed).permutation(len(fed.labels))[:MAX_ROWS]
        one, two = np.split(rows, [len(rows) // 2])
        parts = fed.logits[one], fed.labels[one], fed.logits[two], fed.labels[two]
    logits, labels, test, test_labels = parts
    return logits.astype(float), labels, test.astype(float), test_labels


def files_of(folder, wanted):
    """Files of logits with enough rows, or those that were named."""
    found = []
    for path in sorted(folder.glob("*.npz")):
        if wanted and path.stem not in wanted:
            continue
        with np.load(path) as arrays:
            if "logits" not in arrays or "labels" not in arrays:
                continue
            enough = 2000 <= len(arrays["labels"]) <= 60_000
        if wanted or enough:
            found.append(path)
    return found


def change(cal, test, labels):
    """Change of the NLL in percent by a fitted temperature."""
    before = mean_loss(test, labels)
    return 100 * (mean_loss(test / cal.temperature_, labels) / before - 1)


def fit(logits, labels, ids, eps, seed, **params):
    """A seeded private fit."""
    classes = range(logits.shape[1])
    cal = FedTempCalibrator(eps, classes=classes, random_state=seed, **params)
    return cal.fit(logits, labels, client_ids=ids)


def exact(logits, labels):
    """Exact temperature of all rows."""
    return FedTempCalibrator(classes=range(logits.shape[1])).fit(logits, labels)


def seeds(number, draws):
    """Seeds of one file: no two files have the same noise."""
    return range(1000 * number, 1000 * number + draws)


def dirichlet(labels, n_clients, seed):
    """Clients with skewed labels."""
    alpha = 0.5 if n_clients <= 10 else 0.1
    split = DirichletPartitioner(n_clients, alpha, min_size=0, random_state=seed)
    return split.assign(labels)


def by_clients(paths, draws, settings):
    """Fits by number of clients and eps: each file, and a calibrated copy of it."""
    rows = []
    found = {key: ([], [], []) for key in settings}
    for number, path in enumerate(paths):
        logits, labels, test, test_labels = halves(path, 0)
        best = exact(logits, labels)
        fair, fair_test = logits / best.temperature_, test / best.temperature_
        for key in settings:
            n_clients, eps = key
            found[key][0].append(change(best, test, test_labels))
            for seed in seeds(number, draws):
                ids = dirichlet(labels, n_clients, seed)
                cal = fit(logits, labels, ids, eps, seed)
                found[key][1].append(change(cal, test, test_labels))
                cal = fit(fair, labels, ids, eps, seed)
                found[key][2].append(change(cal, fair_test, test_labels))
    for key, (oracle, new, fair) in found.items():
        printed = CLIENTS.get(key, (np.nan,) * 6)
        rows.append(
            {
                "table": "clients",
                "K": key[0],
                "eps": key[1],
                "oracle": np.mean(oracle),
                "new": np.mean(new),
                "se": file_error(new, draws),
                "printed": printed[1],
                "worst": max(new),
                "printed worst": printed[2],
                "calibrated": np.mean(fair),
                "printed cal.": printed[3],
                "p95": np.quantile(fair, 0.95),
                "printed p95": printed[4],
                "harm > .1 %": 100 * np.mean(np.array(fair) > 0.1),
                "harm > .5 %": 100 * np.mean(np.array(fair) > 0.5),
            }
        )
    return rows


def file_error(values, draws):
    """Standard error of the mean by noise and splits, files given."""
    if draws < 2:
        return np.nan
    table = np.reshape(values, (-1, draws))
    return float(np.sqrt((table.var(axis=1, ddof=1) / draws).sum()) / len(table))


def by_rows(paths, draws, settings):
    """Fits by rows per client; rows are drawn with replacement."""
    rows = []
    for key in settings:
        n_rows, n_clients = key
        new = {eps: [] for eps in (0.5, 1.0, 3.0)}
        oracle = []
        for number, path in enumerate(paths):
            logits, labels, test, test_labels = halves(path, 0)
            oracle.append(change(exact(logits, labels), test, test_labels))
            for seed in seeds(number, draws):
                drawn = np.random.default_rng(seed).integers(
                    len(labels), size=n_rows * n_clients
                )
                ids = np.repeat(np.arange(n_clients), n_rows)
                for eps, values in new.items():
                    cal = fit(logits[drawn], labels[drawn], ids, eps, seed)
                    values.append(change(cal, test, test_labels))
        printed = ROWS.get(key, (np.nan,) * 4)
        row = {"table": "rows", "rows": n_rows, "K": n_clients}
        row["oracle"] = np.mean(oracle)
        for (eps, values), figure in zip(new.items(), printed[:3], strict=True):
            row |= {f"eps {eps:g}": np.mean(values), f"printed {eps:g}": figure}
        row |= {"worst": max(map(max, new.values())), "printed worst": printed[3]}
        rows.append(row)
    return rows


def claims(folder, draws):
    """T of 12,000 rows in clients of one to five rows, at eps = 1."""
    rows = []
    for name in ("fed_adult_gbm", "imdb_cleanlab_cv", "cifar10_netcal_wideresnet-16-4"):
        path = folder / f"{name}.npz"
        if not path.exists():
            continue
        fed = load_federation(path)
        order = np.random.default_rng(0).permutation(len(fed.labels))[:12_000]
        logits, labels = fed.logits[order].astype(float), fed.labels[order]
        best = exact(logits, labels).temperature_
        cases = {f"{n} rows": (np.arange(len(labels)) // n, None) for n in (1, 2, 5)}
        cases["unit example"] = (
            np.arange(len(labels)) // 1000,
            CentralDP(1.0, unit="example"),
        )
        for case, (ids, privacy) in cases.items():
            eps = 1.0 if privacy is None else None
            found = [
                fit(logits, labels, ids, eps, seed, privacy=privacy).temperature_
                for seed in range(draws)
            ]
            off = np.abs(np.array(found) / best - 1)
            rows.append(
                {
                    "table": "claims",
                    "file": name,
                    "case": case,
                    "exact T": best,
                    "mean T": np.mean(found),
                    "mean off %": 100 * abs(np.mean(found) / best - 1),
                    "worst off %": 100 * off.max(),
                }
            )
    return rows


def by_rounds(paths, draws, settings):
    """Fits with one to five rounds."""
    rows = []
    for n_clients, eps in settings:
        row = {"table": "rounds", "K": n_clients, "eps": eps}
        for n_rounds in range(1, 6):
            values = []
            for number, path in enumerate(paths):
                logits, labels, test, test_labels = halves(path, 0)
                for seed in seeds(number, draws):
                    ids = dirichlet(labels, n_clients, seed)
                    runner = FederatedRunner(n_rounds=n_rounds)
                    cal = fit(logits, labels, ids, eps, seed, runner=runner)
                    values.append(change(cal, test, test_labels))
            row[f"{n_rounds} rounds"] = np.mean(values)
            row[f"worst {n_rounds}"] = max(values)
        rows.append(row)
    return rows


def by_private_map(paths, draws, settings):
    """Table 6.3: FedAuto with eps, and the methods that it may choose."""
    methods = {
        "FedAuto": FedAutoCalibrator,
        "FedTemp": FedTempCalibrator,
        "FedBiasTemp": FedBiasTempCalibrator,
    }
    rows = []
    for n_clients, eps in settings:
        found = {name: [] for name in methods}
        for number, path in enumerate(paths):
            logits, labels, test, test_labels = halves(path, 0)
            for seed in seeds(number, draws):
                ids = dirichlet(labels, n_clients, seed)
                for name, cls in methods.items():
                    classes = range(logits.shape[1])
                    cal = cls(eps, classes=classes, random_state=seed)
                    cal.fit(logits, labels, client_ids=ids)
                    proba = cal.predict_proba(test)
                    found[name].append(gain(proba, test, test_labels))
        printed = MAPS.get((n_clients, eps), (np.nan,) * 4)
        row = {"table": "maps", "K": n_clients, "eps": eps}
        for (name, values), figure in zip(
            found.items(), (printed[0], *printed[2:]), strict=True
        ):
            row |= {name: np.mean(values), f"worst {name}": max(values)}
            row[f"printed {name}"] = figure
        rows.append(row)
    return rows


def rounded_neighbours(name, seed=0):
    """Probabilities of nearest neighbours, rounded to two decimals, with zeros."""
    from sklearn import datasets
    from sklearn.model_selection import train_test_split
    from sklearn.neighbors import KNeighborsClassifier

    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    fitted, rest, fitted_y, rest_y = train_test_split(
        X, y, test_size=0.67, random_state=seed, stratify=y
    )
    model = KNeighborsClassifier(7, weights="distance").fit(fitted, fitted_y)
    proba = np.round(model.predict_proba(rest), 2)
    # The largest entry takes what rounding left.
    top = np.arange(len(proba)), proba.argmax(axis=1)
    proba[top] += 1 - proba.sum(axis=1)
    order = np.random.default_rng(seed).permutation(len(rest_y))
    one, two = order[::2], order[1::2]
    return (proba[one], rest_y[one]), (proba[two], rest_y[two])


def zeros():
    """Every calibrator without eps, and the temperatures with eps = 1."""
    names = [n for n in public.__all__ if n.startswith("Fed") and n.endswith("or")]
    rows = []
    for data in ("digits", "breast_cancer"):
        (proba, labels), (test, test_labels) = rounded_neighbours(data)
        cases = [(name, None) for name in names]
        cases += [("FedTempCalibrator", 1.0), ("FedBiasTempCalibrator", 1.0)]
        for name, eps in cases:
            ids = np.arange(len(labels)) % 30
            params = {"eps": eps, "input_type": "proba", "random_state": 0}
            cal = getattr(public, name)(**params)
            try:
                cal.fit(proba, labels, client_ids=ids)
            except (ValueError, TypeError) as error:
                print(f"{name} on {data}: {error}")
                continue
            found = cal.predict_proba(test)
            one_hot = np.eye(test.shape[1])[test_labels]
            rows.append(
                {
                    "table": "zeros",
                    "data": data,
                    "method": name,
                    "eps": eps,
                    "accuracy before": 100 * (test.argmax(1) == test_labels).mean(),
                    "after": 100 * (found.argmax(1) == test_labels).mean(),
                    "Brier before": ((test - one_hot) ** 2).sum(axis=1).mean(),
                    "Brier after": ((found - one_hot) ** 2).sum(axis=1).mean(),
                }
            )
    return rows


def main():
    """Print and write the tables."""
    parser = arguments("small_data", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--draws", type=int, default=24, help="splits and noise draws")
    parser.add_argument("--files", nargs="+", default=(), help="names without .npz")
    parser.add_argument("--clients", type=int, nargs="+", help="numbers of clients")
    parser.add_argument("--eps", type=float, nargs="+", help="for table 'clients'")
    parser.add_argument("--rows", type=int, nargs="+", help="rows per client")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[200, 1000, 5000], help="rows of a fit"
    )
    parser.add_argument("--quick", action="store_true", help="exact fits, four files")
    args = parser.parse_args()
    if args.quick:
        args.tables, args.draws, args.sizes = list(QUICK_TABLES), 1, [200, 1000]
        args.files = args.files or QUICK_FILES
    warnings.simplefilter("ignore")
    paths = files_of(args.folder, args.files)
    print(f"{len(paths)} files: {', '.join(path.stem for path in paths)}")
    settings = [
        key
        for key in CLIENTS
        if (not args.clients or key[0] in args.clients)
        and (not args.eps or key[1] in args.eps)
    ]
    maps = [
        key
        for key in MAPS
        if (not args.clients or key[0] in args.clients)
        and (not args.eps or key[1] in args.eps)
    ]
    sizes = [
        key
        for key in ROWS
        if (not args.rows or key[0] in args.rows)
        and (not args.clients or key[1] in args.clients)
    ]
    makers = {
        "clients": lambda: by_clients(paths, args.draws, settings),
        "rows": lambda: by_rows(paths, args.draws, sizes),
        "claims": lambda: claims(args.folder, args.draws),
        "rounds": lambda: by_rounds(paths, args.draws, settings),
        "zeros": zeros,
        "maps": lambda: by_private_map(paths, args.draws, maps),
        "choice": lambda: by_map(halves, paths, args.sizes, args.draws),
        "peers": lambda: by_peer(halves, paths, max(args.sizes), args.draws),
    }
    everything = []
    for name in args.tables:
        print(f"\n{name}")
        rows = makers[name]()
        print_table(rows)
        if name == "peers":
            rows += peer_summary(rows)
            print_table(
                rows[-len({row["method"] for row in rows if "method" in row}) :]
            )
        everything += rows
        write_json(args.out, everything)


if __name__ == "__main__":
    main()
