"""FederatedCalibratedClassifier next to scikit-learn's CalibratedClassifierCV.

``python -m benchmarks.bench_migration [FOLDER] [--out migration.json]``

Log loss on held-out rows, by data set, model and method: scikit-learn, one client, 20
clients. Data: sets that scikit-learn bundles and two-class problems made of them, its
generators, and, with FOLDER, the ``nat_*.npz`` tables of raw data with natural clients.
The 20 clients are made by a Dirichlet partition of the labels, so that most lack some
class; they calibrate with the same folds as scikit-learn, and by the default with folds
that each client makes of its own rows.

``--fresh`` takes other data, which had no part in the choice of the default.

Where the temperatures of scikit-learn and of one client differ, the log loss of the
rows of a fold is compared with the least one that scipy finds for any temperature.
"""

import argparse
import json
import warnings
from pathlib import Path

import joblib
import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn import datasets as toys
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from skfedcal import DirichletPartitioner, FederatedCalibratedClassifier

METHODS = ("sigmoid", "isotonic", "temperature")
N_CLIENTS, N_ROWS = 20, 600
# Log losses below this are all right: shares of them would say nothing.
LEAST = 1e-3
# Probabilities, log losses and folds that differ by less are equal.
SAME = 1e-6
RAW = ("heart_4hospitals", "wisdm_users", "chem97_schools", "tv16_states",
       "adult_occupation")  # fmt: skip


class Remembered(ClassifierMixin, BaseEstimator):
    """A model that is trained once for the same rows; all methods share its folds."""

    def __init__(self, model, memory):
        self.model = model
        self.memory = memory

    def __sklearn_clone__(self):
        return Remembered(self.model, self.memory)

    def fit(self, X, y):
        """Train the model, or take what was trained on these rows before."""
        key = joblib.hash((X, y))
        if key not in self.memory:
            self.memory[key] = clone(self.model).fit(X, y)
        self.fitted_ = self.memory[key]
        self.classes_ = self.fitted_.classes_
        return self

    def __getattr__(self, name):
        if name in ("decision_function", "predict_proba", "predict_log_proba"):
            known = vars(self).get("fitted_", self.model)
            return getattr(known, name)
        raise AttributeError(name)

    def predict(self, X):
        """Labels by the model."""
        return self.fitted_.predict(X)


def models():
    """One model of each family."""
    scaled = StandardScaler()
    return {
        "forest": RandomForestClassifier(30, random_state=0),
        "boosting": HistGradientBoostingClassifier(max_iter=20, random_state=0),
        "naive Bayes": GaussianNB(),
        "neighbours": make_pipeline(scaled, KNeighborsClassifier(10)),
        "SVM": make_pipeline(scaled, SVC()),
        "MLP": make_pipeline(scaled, MLPClassifier((32,), max_iter=60, random_state=0)),
        "logistic": make_pipeline(scaled, LogisticRegression(max_iter=500)),
    }


def bundled():
    """Sets that scikit-learn bundles, and two-class problems made of them."""
    for name in ("iris", "wine", "breast_cancer", "digits"):
        yield name, *getattr(toys, f"load_{name}")(return_X_y=True)
    X, y = toys.load_digits(return_X_y=True)
    for a, b in ((3, 8), (1, 7), (4, 9)):
        rows = (y == a) | (y == b)
        yield f"digits {a} or {b}", X[rows], y[rows] == b
    yield "digits, odd", X, y % 2
    X, y = toys.load_wine(return_X_y=True)
    yield "wine, second", X, y == 1


def generated():
    """Generators of scikit-learn."""
    make = toys.make_classification
    common = {"n_samples": N_ROWS, "n_informative": 6}
    yield "easy", *make(**common, class_sep=1.5, random_state=0)
    yield "noisy labels", *make(**common, flip_y=0.2, random_state=1)
    yield "10 % positive", *make(**common, weights=[0.9], flip_y=0.05, random_state=2)
    yield "4 classes", *make(**common, n_classes=4, flip_y=0.1, random_state=3)
    weights = [0.4, 0.2, 0.15, 0.1, 0.1]
    yield (
        "6 classes, skewed",
        *make(**common, n_classes=6, weights=weights, random_state=4),
    )
    yield "moons", *toys.make_moons(N_ROWS, noise=0.3, random_state=5)
    yield "circles", *toys.make_circles(N_ROWS, noise=0.2, factor=0.6, random_state=6)
    yield (
        "5 blobs",
        *toys.make_blobs(N_ROWS, 5, centers=5, cluster_std=4.0, random_state=7),
    )
    yield "Hastie", *toys.make_hastie_10_2(N_ROWS, random_state=8)
    yield (
        "3 shells",
        *toys.make_gaussian_quantiles(
            n_samples=N_ROWS, n_features=5, n_classes=3, random_state=9
        ),
    )


def raw(folder):
    """Tables of raw data in a folder."""
    for name in RAW:
        file = np.load(Path(folder) / f"nat_{name}.npz")
        y = file["y"].astype(int)
        y = (y > 0).astype(int) if name.startswith("heart") else y
        rows = np.random.default_rng(0).permutation(len(y))[:N_ROWS]
        yield name, np.nan_to_num(file["X"].astype(float))[rows], y[rows]


def fresh(folder):
    """Data that had no part in the choice of the default."""
    make = toys.make_classification
    size = {"n_samples": N_ROWS}
    yield "weak", *make(**size, n_informative=3, class_sep=0.5, random_state=100)
    yield "wide", *make(**size, n_features=100, n_informative=10, random_state=101)
    yield (
        "clusters",
        *make(**size, n_informative=5, n_clusters_per_class=4, random_state=102),
    )
    yield (
        "3 classes, skewed",
        *make(**size, n_informative=4, n_classes=3, weights=[0.8, 0.15],
              random_state=103),
    )  # fmt: skip
    yield (
        "8 classes",
        *make(**size, n_informative=8, n_classes=8, class_sep=2.0, random_state=104),
    )
    yield "3 % positive", *make(1500, weights=[0.97], flip_y=0.0, random_state=105)
    for number in (1, 2, 3):
        X, y = getattr(toys, f"make_friedman{number}")(
            N_ROWS, noise=1.0 if number == 1 else 0.1, random_state=105 + number
        )
        yield f"Friedman {number}", X, np.digitize(y, np.quantile(y, [0.4, 0.8]))
    X, y = toys.make_swiss_roll(N_ROWS, noise=1.0, random_state=109)
    yield "Swiss roll", X, np.digitize(y, np.quantile(y, [0.25, 0.5, 0.75]))
    X, y = toys.load_diabetes(return_X_y=True)
    yield "diabetes, median", X, y > np.median(y)
    yield "diabetes, thirds", X, np.digitize(y, np.quantile(y, [1 / 3, 2 / 3]))
    if folder:
        yield from fresh_files(Path(folder))


def fresh_files(folder):
    """Written and spoken digits, and letters of Shakespeare."""
    file = np.load(folder / "raw_mnist_writers.npz")
    rows = np.random.default_rng(2).permutation(10_000)[:N_ROWS]
    X = PCA(40, random_state=0).fit_transform(file["X_test"][rows] / 255.0)
    y = file["y_test"][rows].astype(int)
    yield "MNIST", X, y
    yield "MNIST, below 5", X, y < 5
    file = np.load(folder / "nat_fsdd_speakers.npz")
    rows = np.random.default_rng(3).permutation(3000)[:N_ROWS]
    yield "spoken digits", file["X"][rows].astype(float), file["y"][rows].astype(int)
    text = np.load(folder / "nat_shakespeare_roles.npz")
    letters = text["alphabet"][text["text"][:100_000]]
    at = np.random.default_rng(4).permutation(99_000)[:N_ROWS] + 5
    before = np.stack([letters[at - k] for k in (1, 2, 3)], axis=1)
    X = (before[:, :, None] == np.unique(before)).reshape(N_ROWS, -1).astype(float)
    yield "next is a vowel", X, np.isin(letters[at], list("aeiouAEIOU"))


def cell(X, y, model):
    """Log losses of one data set and one model."""
    y = np.unique(y, return_inverse=True)[1]
    model = Remembered(model, {})
    X, X_test, y, y_test = train_test_split(
        X, y, test_size=0.5, random_state=0, stratify=y
    )
    ids = DirichletPartitioner(N_CLIENTS, 0.5, random_state=0).assign(y)

    fitted = []

    def loss(calibrated, **params):
        proba = calibrated.fit(X, y, **params).predict_proba(X_test)
        fitted.append(calibrated)
        return float(log_loss(y_test, proba, labels=np.arange(y.max() + 1)))

    found = {}
    for method in METHODS:
        folds, here = StratifiedKFold(5), FederatedCalibratedClassifier
        found[method] = [
            loss(CalibratedClassifierCV(model, method=method)),
            loss(here(model, method)),
            loss(here(model, method, cv=folds), client_ids=ids),
        ]
    found["folds"] = excess_of_folds(X, y, X_test, *fitted[-3:-1])
    default = FederatedCalibratedClassifier(model)
    found["default"] = [
        found["sigmoid"][0],
        loss(default),
        loss(default, client_ids=ids),
    ]
    return found


def excess_of_folds(X, y, X_test, there, here):
    """Log loss above the least, scikit-learn's and ours, of folds that differ."""
    pairs = zip(
        StratifiedKFold(5).split(X, y),
        there.calibrated_classifiers_,
        here.calibrated_classifiers_,
        strict=True,
    )
    found = []
    for (_, rows), theirs, ours in pairs:
        apart = theirs.predict_proba(X_test) - ours.predict_proba(X_test)
        if abs(apart).max() <= SAME:
            continue
        model, of_label = theirs.estimator, (np.arange(len(rows)), y[rows])
        if hasattr(model, "decision_function"):
            scores = model.decision_function(X[rows])
            pair = np.column_stack([-scores, scores])
            scores = pair if scores.ndim == 1 else scores
        else:
            proba = model.predict_proba(X[rows])
            two = np.column_stack([1 - proba[:, 1], proba[:, 1]])
            scores = np.log((two if proba.shape[1] == 2 else proba) + 1e-12)

        def loss(log_beta, scores=scores, of_label=of_label):
            return -log_softmax(np.exp(log_beta) * scores, axis=1)[of_label].mean()

        least = minimize_scalar(loss, bounds=(-10, 10), options={"xatol": 1e-13}).fun
        with np.errstate(divide="ignore"):
            both = [
                -np.log(pair.predict_proba(X[rows])[of_label]).mean() - least
                for pair in (theirs, ours)
            ]
        found.append([float(value) for value in both])
    return found


def summary(cells):
    """Lines of the tables in the documentation."""
    for method in METHODS:
        there, one, many = np.array([c[method] for c in cells.values()]).T
        least = np.maximum(there, LEAST)
        apart = [100 * ((here - there) / least).max() for here in (one, many)]
        yield (
            f"{method:12s} {len(there)} cells, worst {apart[0]:+.4f} % with one "
            f"client, {apart[1]:+.4f} % with {N_CLIENTS}"
        )
    differ = [
        c["folds"]
        for c in cells.values()
        if abs(c["temperature"][1] - c["temperature"][0]) > SAME
    ]
    excess = np.array([fold for folds in differ for fold in folds]).reshape(-1, 2)
    yield (
        f"temperature  differs in {len(differ)} cells, by {len(excess)} folds, whose "
        f"log loss is at most {excess[:, 0].max(initial=0):.1e} (scikit-learn) and "
        f"{excess[:, 1].max(initial=0):.1e} (ours) above the least"
    )
    for group in ("all", *models()):
        rows = [c["default"] for k, c in cells.items() if group in ("all", k[1])]
        there, one, many = np.array(rows).T
        yield (
            f"default {group:12s} better in {(one < there).sum()} and "
            f"{(many < there).sum()} of {len(there)}; median of the ratio "
            f"{np.median(one / there):.3f} and {np.median(many / there):.3f}; largest "
            f"{(one / there).max():.2f} and {(many / there).max():.2f}"
        )


def row(name, X, y):
    """All models of one data set."""
    warnings.simplefilter("ignore")
    rows = np.random.default_rng(1).permutation(len(y))[:N_ROWS]
    found = {(name, kind): cell(X[rows], y[rows], m) for kind, m in models().items()}
    for (_, kind), losses in found.items():
        text = " ".join(
            f"{k} {v[0]:.4f} {v[2]:.4f}" for k, v in losses.items() if k != "folds"
        )
        print(f"{name:20s} {kind:12s} {text}", flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", help="folder of nat_*.npz files")
    parser.add_argument("--fresh", action="store_true", help="other data sets")
    parser.add_argument("--jobs", type=int, help="processes")
    parser.add_argument("--out", help="JSON file of all cells")
    args = parser.parse_args()
    sets = [*bundled(), *generated(), *(raw(args.folder) if args.folder else ())]
    if args.fresh:
        sets = list(fresh(args.folder))
    found = joblib.Parallel(n_jobs=args.jobs)(
        joblib.delayed(row)(name, X, y) for name, X, y in sets
    )
    cells = {key: value for part in found for key, value in part.items()}
    print(*summary(cells), sep="\n")
    if args.out:
        content = {" / ".join(key): value for key, value in cells.items()}
        Path(args.out).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
