"""FederatedCalibratedClassifier next to scikit-learn's CalibratedClassifierCV.

``python -m benchmarks.bench_migration [FOLDER] [--out migration.json]``

Log loss on held-out rows, by data set, model and method: scikit-learn, one client, 20
clients. Data: sets that scikit-learn bundles and two-class problems made of them, its
generators, and, with FOLDER, the ``nat_*.npz`` tables of raw data with natural clients.
The 20 clients are made by a Dirichlet partition of the labels, so that most lack some
class; they calibrate with the same folds as scikit-learn, and by the default with folds
that each client makes of its own rows.
"""

import argparse
import json
import warnings
from pathlib import Path

import joblib
import numpy as np
from sklearn import datasets as toys
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
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


def cell(X, y, model):
    """Log losses of one data set and one model."""
    y = np.unique(y, return_inverse=True)[1]
    model = Remembered(model, {})
    X, X_test, y, y_test = train_test_split(
        X, y, test_size=0.5, random_state=0, stratify=y
    )
    ids = DirichletPartitioner(N_CLIENTS, 0.5, random_state=0).assign(y)

    def loss(calibrated, **params):
        proba = calibrated.fit(X, y, **params).predict_proba(X_test)
        return float(log_loss(y_test, proba, labels=np.arange(y.max() + 1)))

    found = {}
    for method in METHODS:
        folds, here = StratifiedKFold(5), FederatedCalibratedClassifier
        found[method] = [
            loss(CalibratedClassifierCV(model, method=method)),
            loss(here(model, method)),
            loss(here(model, method, cv=folds), client_ids=ids),
        ]
    default = FederatedCalibratedClassifier(model)
    found["default"] = [
        found["sigmoid"][0],
        loss(default),
        loss(default, client_ids=ids),
    ]
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
        text = " ".join(f"{k} {v[0]:.4f} {v[2]:.4f}" for k, v in losses.items())
        print(f"{name:20s} {kind:12s} {text}", flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", help="folder of nat_*.npz files")
    parser.add_argument("--jobs", type=int, help="processes")
    parser.add_argument("--out", help="JSON file of all cells")
    args = parser.parse_args()
    sets = [*bundled(), *generated(), *(raw(args.folder) if args.folder else ())]
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
