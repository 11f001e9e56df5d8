"""Exact fits compared: the maps that FedAuto chooses among, and other libraries.

Tables of `benchmarks.small_data`. A library that is not installed is skipped with a
note; what has no answer for a file has NaN there.
"""

from benchmarks._harness import optional  # isort: skip  (sets the number of threads)

from functools import partial

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator

from benchmarks._peers import Passed, quiet
from skfedcal import (
    FedAutoCalibrator,
    FedBiasTempCalibrator,
    FedShapeCalibrator,
    FedTempCalibrator,
)

# Printed figures by rows: best map in hindsight, T, S, B, BS, SM, held-back choice, the
# same with one standard error.
PRINTED = {
    200: (-17.7, -13.5, -14.6, -13.9, -15.0, -13.8, -13.2, -8.7),
    1000: (-20.1, -14.2, -15.9, -15.6, -17.3, -17.9, -19.1, -17.8),
    5000: (-18.5, -14.6, -16.6, -16.0, -18.0, -18.0, -18.4, -17.9),
}
MAPS = {
    "T": FedTempCalibrator(),
    "S": FedShapeCalibrator(biases=False),
    "B": FedBiasTempCalibrator(),
    "BS": FedShapeCalibrator(biases=True),
    "SM": FedShapeCalibrator(matrix=True),
}
CHOICES = {"held-back": {}, "held-back, 1 SE": {"strict": True}}
# Files on which the rules of FedAuto without eps were chosen; the others confirm.
CHOSEN_ON = ("cifar10_kangsepp_densenet40", "cifar10_netcal_lenet-5", "fed_adult_gbm",
             "cifar10_phan_resnet18", "fed_wisdm_mlp", "fed_chem97_mlp",
             "fed_cifar10_cnn_dir01", "imdb_cleanlab_cv", "fed_fsdd_mlp")  # fmt: skip
# Clients of an exact fit: any partition has the same optimum.
N_CLIENTS = 20


def log_loss(proba, labels):
    """Mean log loss of probabilities."""
    own = proba[np.arange(len(labels)), labels]
    return -np.log(np.maximum(own, 1e-300)).mean()


def softmax(logits):
    """Probabilities in float64."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def gain(proba, test, labels):
    """Change of the log loss in percent of that of the input."""
    return 100 * (log_loss(proba, labels) / log_loss(softmax(test), labels) - 1)


def drawn(logits, labels, n_rows, seed):
    """Rows to calibrate with."""
    rows = np.random.default_rng([seed, n_rows]).permutation(len(labels))[:n_rows]
    return logits[rows], labels[rows]


def fitted(cal, logits, labels):
    """Fit of a calibrator on rows of equal clients."""
    ids = np.arange(len(labels)) % N_CLIENTS
    return cal.set_params(classes=range(logits.shape[1])).fit(
        logits, labels, client_ids=ids
    )


def by_map(halves, paths, sizes, draws):
    """Table 6.4: each map on its own, and the choice among them."""
    rows = []
    for n_rows in sizes:
        found = {name: [] for name in (*MAPS, *CHOICES)}
        chosen = []
        for path in paths:
            logits, labels, test, test_labels = halves(path, 0)
            if logits.shape[1] > 20:
                continue
            for seed in range(draws):
                part = drawn(logits, labels, n_rows, seed)
                cals = MAPS | {k: FedAutoCalibrator(**v) for k, v in CHOICES.items()}
                for name, cal in cals.items():
                    fitted(cal, *part)
                    change = gain(cal.predict_proba(test), test, test_labels)
                    found[name].append(change)
                chosen.append(cals["held-back"].choice_)
        every = np.array([found[name] for name in MAPS])
        printed = PRINTED.get(n_rows, (np.nan,) * 8)
        row = {"table": "choice", "rows": n_rows, "fits": every.shape[1]}
        row["hindsight"] = np.minimum(every.min(axis=0), 0).mean()
        row["printed"] = printed[0]
        for (name, values), figure in zip(found.items(), printed[1:], strict=True):
            row |= {name: np.mean(values), f"printed {name}": figure}
            row[f"worst {name}"] = max(values)
        rows.append(row)
    return rows


def peer_fits(logits, labels):
    """Fits of other libraries by name; each returns a function of logits."""
    fits = {}
    n_classes = logits.shape[1]
    proba = softmax(logits)

    def by_sklearn(method):
        frozen = FrozenEstimator(Passed(n_classes))
        cal = CalibratedClassifierCV(frozen, method=method, ensemble=False)
        scores = _margins(logits)
        cal.fit(scores, labels)
        return lambda rows: cal.predict_proba(_margins(rows))

    for method in ("temperature", "sigmoid", "isotonic"):
        fits[f"scikit-learn {method}"] = partial(by_sklearn, method)
    for module, names in (
        ("netcal.scaling", ("TemperatureScaling", "BetaCalibration")),
        ("netcal.binning", ("HistogramBinning", "BBQ")),
    ):
        if netcal := optional(module):
            for name in names:
                if name != "BBQ" or n_classes <= 10:
                    cls = getattr(netcal, name)
                    fits[f"netcal {name}"] = partial(_netcal, cls, proba, labels)
    if probmetrics := optional("probmetrics.calibrators"):
        for name in ("ts-mix", "svs", "sms", "logistic-mix", "isotonic"):
            if n_classes <= 20 or name not in ("sms", "logistic-mix"):
                fits[f"probmetrics {name}"] = partial(
                    _probmetrics, probmetrics.get_calibrator, name, proba, labels
                )
    return fits


def _margins(logits):
    """Decision function of scikit-learn's form: one column for two classes."""
    return logits if logits.shape[1] > 2 else logits[:, 1] - logits[:, 0]


def _netcal(cls, proba, labels):
    peer = cls()
    two = proba.shape[1] == 2
    peer.fit(proba[:, 1] if two else proba, labels)

    def predict(rows):
        out = np.asarray(peer.transform(softmax(rows)[:, 1] if two else softmax(rows)))
        return np.stack([1 - out.ravel(), out.ravel()], axis=1) if two else out

    return predict


def _probmetrics(get_calibrator, name, proba, labels):
    mix = name.endswith("-mix")
    peer = get_calibrator(name, calibrate_with_mixture=mix).fit(proba, labels)
    return lambda rows: peer.predict_proba(softmax(rows))


def by_peer(halves, paths, n_rows, draws):
    """Log loss of FedAuto beside the methods of other libraries, file by file."""
    rows = []
    for path in paths:
        logits, labels, test, test_labels = halves(path, 0)
        test, test_labels = drawn(test, test_labels, 10_000, 99)
        for seed in range(draws):
            part = drawn(logits, labels, n_rows, seed)
            auto = fitted(FedAutoCalibrator(), *part)
            row = {"table": "peers", "file": path.stem, "seed": seed}
            row["role"] = "chosen on" if path.stem in CHOSEN_ON else "confirms"
            row["choice"] = auto.choice_
            row["FedAuto"] = gain(auto.predict_proba(test), test, test_labels)
            for name, fit in peer_fits(*part).items():
                try:
                    out = quiet(lambda fit, rows: fit()(rows))(fit, test)
                    out = out / out.sum(axis=1, keepdims=True)
                    row[name] = gain(out, test, test_labels)
                except (ValueError, RuntimeError, IndexError) as error:
                    print(f"{name} on {path.stem}: {error}"[:120])
            rows.append(row)
    return rows


def peer_summary(rows):
    """Mean of each method, and on how many files FedAuto is ahead of it."""
    ours = np.array([row["FedAuto"] for row in rows])
    names = {k for row in rows for k in row if " " in k and k != "printed"}
    out = []
    every = []
    for name in sorted(names):
        theirs = np.array([row.get(name, np.nan) for row in rows])
        # A method without an answer returns the input.
        filled = np.where(np.isfinite(theirs), theirs, 0.0)
        every.append(filled)
        out.append(
            {
                "table": "peer means",
                "method": name,
                "mean": filled.mean(),
                "worst": filled.max(),
                "FedAuto ahead on": int((ours < filled).sum()),
                "of": len(ours),
            }
        )
    best = np.min(every, axis=0)
    for name, values in (("FedAuto", ours), ("best peer of each file", best)):
        out.append(
            {
                "table": "peer means",
                "method": name,
                "mean": values.mean(),
                "worst": values.max(),
                "FedAuto ahead on": int((ours < values).sum()),
                "of": len(ours),
            }
        )
    return sorted(out, key=lambda row: row["mean"])
