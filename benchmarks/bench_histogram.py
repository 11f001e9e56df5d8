"""Curves from a score histogram: used when they should be, and what they are worth.

python -m benchmarks.bench_histogram --folder FOLDER

has two parts. The first draws labels from known probabilities, for scores that tell
these and for scores that do not, with one row for each client: how often is a curve
used, and what does it change? Log loss and error, the mean distance from the known
probability, are exact but for the rows that are drawn. The second reads .npz files with
`logits` and `labels`, calibrates on one half and scores on the other, five times. Rows
of all clients are known to the server, or hidden one by one, or client by client.
"""

import warnings
from itertools import product
from pathlib import Path

import numpy as np
from scipy.special import expit

from benchmarks._harness import arguments, print_table, write_json
from skfedcal import FedHistogramCalibrator, FedTempCalibrator, load_federation
from skfedcal.exceptions import CalibrationWarning, PrivacyWarning
from skfedcal.metrics import expected_calibration_error, negative_log_likelihood
from skfedcal.privacy import CentralDP, DistributedDP, LocalDP

# True log-odds: two classes that are about as frequent, well told apart or not, and
# one of four in a hundred.
SCORES = {
    "even": lambda rng, n: rng.normal(-0.3, 1.5, n),
    "sure": lambda rng, n: rng.choice([-1, 1], n, p=[0.6, 0.4]) * rng.gamma(3, 1.3, n),
    "rare": lambda rng, n: rng.normal(-3.5, 1.2, n),
}
SHAPES = {
    "calibrated": lambda odds: odds,
    "overconfident": lambda odds: 2 * odds,
    "underconfident": lambda odds: odds / 2,
    "shifted": lambda odds: odds + 1,
}
MODELS = {
    "exact": None,
    "DistributedDP(1)": DistributedDP(1.0),
    "CentralDP(1)": CentralDP(1.0),
    "LocalDP(5)": LocalDP(5.0),
}
# The noise of CentralDP has the same law here.
DRAWN = ("exact", "DistributedDP(1)", "LocalDP(5)")
METHODS = ("auto", "platt", "beta", "isotonic", "bins", "bbq")
FILES = (
    "bin_538_games",
    "imdb_cleanlab_cv",
    "fed_adult_gbm",
    "fed_tv16_mlp",
    "cifar10_netcal_lenet-5",
    "cifar10_phan_resnet18",
)


def drawn(score, shape, n, seed):
    """Log-odds that a model says, labels, and probabilities of these."""
    rng = np.random.default_rng([seed, n, list(SCORES).index(score)])
    odds = SCORES[score](rng, n)
    return SHAPES[shape](odds), (rng.random(n) < expit(odds)).astype(int), expit(odds)


def truth(chance, odds):
    """Expected log loss, and mean distance from the known probability."""
    losses = chance * np.logaddexp(0, -odds) + (1 - chance) * np.logaddexp(0, odds)
    return np.array([losses.mean(), np.abs(expit(odds) - chance).mean()])


def synthetic(shape, model, n, method, n_seeds):
    """One row of the first table: means over seeds, and over kinds of scores."""
    used, change, before = [], [], []
    for score in SCORES:
        test, _, chance = drawn(score, shape, 5000, 10**6)
        start = truth(chance, test)
        for seed in range(n_seeds):
            odds, labels, _ = drawn(score, shape, n, seed)
            # One row is all that a client has: clip=1 only says so beforehand.
            cal = FedHistogramCalibrator(
                privacy=MODELS[model], method=method, clip=1, random_state=seed
            ).fit(odds, labels, client_ids=np.arange(n))
            used.append(cal.improves_)
            change.append(truth(chance, cal.decision_function(test)) - start)
            before.append(start)
    used, change = np.array(used), np.array(change)
    loss, error = change.T
    told = used.any()
    return {
        "scores": shape,
        "privacy": model,
        "rows": n,
        "method": method,
        "fits": len(used),
        "used %": 100 * float(used.mean()),
        "log loss +": float(loss.mean()),
        "if used +": float(loss[used].mean()) if told else 0.0,
        "worst +": float(loss.max()),
        "harm %": 100 * float((loss > 1e-12).mean()),
        "error %": 100 * float(np.mean(before, axis=0)[1]),
        "error % +": 100 * float(error.mean()),
        "if used % +": 100 * float(error[used].mean()) if told else 0.0,
    }


def halves(fed, seed):
    """Rows to calibrate with and rows to score."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(fed.labels))
    return order[: len(order) // 2], order[len(order) // 2 :]


def settings(fed, n_classes):
    """Calibrators by privacy and name, and whose rows hide together."""
    hists = {f"histogram {name}": {"method": name} for name in METHODS}
    units = [(name, model, "rows") for name, model in MODELS.items()]
    if fed.client_ids is not None:
        units.append(("CentralDP(1)", MODELS["CentralDP(1)"], "clients"))
    for name, model, unit in units:
        for label, parameters in hists.items():
            # The same scores with and without privacy, so that the loss is by noise.
            yield (
                name,
                unit,
                label,
                FedHistogramCalibrator(privacy=model, multiclass="top", **parameters),
            )
        if name in ("exact", "CentralDP(1)"):
            yield name, unit, "temperature", FedTempCalibrator(privacy=model)
    if n_classes > 2:
        yield "exact", "rows", "histogram ovr", FedHistogramCalibrator(multiclass="ovr")


def scored(labels, proba):
    """Log loss, and error of the predicted class in bins of equal mass in percent."""
    classes = range(proba.shape[1])
    error = expected_calibration_error(
        labels, proba, labels=classes, strategy="quantile"
    )
    return negative_log_likelihood(labels, proba, labels=classes), 100 * error


def one_file(path, n_seeds):
    """Rows of the second table for one file."""
    fed = load_federation(path)
    found = {}
    n_classes = fed.logits.shape[1]
    for seed in range(n_seeds):
        own, other = halves(fed, seed)
        rows, labels = fed.logits[other].astype(np.float64), fed.labels[other]
        plain = scored(labels, softmax(rows))
        for name, unit, label, cal in settings(fed, n_classes):
            ids = np.arange(len(own)) if unit == "rows" else fed.client_ids[own]
            cal.set_params(classes=range(n_classes), random_state=seed)
            cal.fit(fed.logits[own], fed.labels[own], client_ids=ids)
            after = scored(labels, cal.predict_proba(rows))
            result = (*plain, *after, cal.improves_)
            found.setdefault((name, unit, label), []).append(result)
    return [
        {
            "file": path.stem,
            "privacy": name,
            "unit": unit,
            "method": label,
            "used": int(np.sum([result[4] for result in results])),
            **_means(results),
        }
        for (name, unit, label), results in found.items()
    ]


def _means(results):
    loss, error, new_loss, new_error, _ = np.mean(np.float64(results), axis=0)
    return {
        "log loss": round(loss, 4),
        "after": round(new_loss, 4),
        "ECE %": round(error, 2),
        "ECE % after": round(new_error, 2),
    }


def softmax(logits):
    """Probabilities of a network."""
    proba = np.exp(logits - logits.max(axis=1, keepdims=True))
    return proba / proba.sum(axis=1, keepdims=True)


def main():
    """Print and write both tables."""
    parser = arguments("histogram", __doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seeds", type=int, default=50, help="of calibrated scores")
    parser.add_argument("--mis-seeds", type=int, default=6, help="of other scores")
    parser.add_argument("--file-seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, nargs="*", default=[500, 2000, 20_000])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--scores", nargs="+", default=SHAPES)
    parser.add_argument("--models", nargs="+", default=DRAWN)
    args = parser.parse_args()
    for kind in (PrivacyWarning, CalibrationWarning):
        warnings.simplefilter("ignore", kind)
    rows = []
    for shape, model in product(args.scores, args.models) if args.rows else ():
        n_seeds = args.seeds if shape == "calibrated" else args.mis_seeds
        found = [
            synthetic(shape, model, n, method, n_seeds)
            for n in args.rows
            for method in args.methods
        ]
        print_table(found)
        rows += found
    for name in FILES if args.folder else ():
        path = args.folder / f"{name}.npz"
        if not path.exists():
            print(f"skipped: {path} is not there")
            continue
        found = one_file(path, args.file_seeds)
        print_table(found)
        rows += found
    write_json(args.out, rows)


if __name__ == "__main__":
    main()
