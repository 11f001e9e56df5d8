"""What private fits do to a model that needs no calibration.

python -m benchmarks.bench_unneeded
python -m benchmarks.bench_unneeded --fits 10 --methods temp bin
python -m benchmarks.bench_unneeded --data FOLDER --methods topbin

Labels are drawn from the model's own probabilities: 100 clients, 3,000 rows, ten
classes, eps = 1, a new model, clients and noise in each fit. `used` counts fits with
`improves_`; changes are those of the log loss on 3,000 other rows, over the fits that
are used.

With ``--data`` the models are those of the files of logits in a folder: with their own
labels ('file'), where calibration is needed as a rule, and with labels drawn from their
probabilities at T = 1.7 ('file, drawn'). 100 and 1,000 clients by turns.
"""

import warnings
from functools import partial
from pathlib import Path

import numpy as np
from scipy.special import softmax

import skfedcal
from benchmarks._harness import arguments, print_table, write_json
from skfedcal import make_federation
from skfedcal.metrics import negative_log_likelihood

METHODS = {
    "temp": "FedTempCalibrator",
    "biastemp": "FedBiasTempCalibrator",
    "shape": "FedShapeCalibrator",
    "vector": "FedVectorCalibrator",
    "opvector": "FedOPVectorCalibrator",
    "matrix": "FedMatrixCalibrator",
    "bin": "FedBinCalibrator",
    "bbq": "FedBBQCalibrator",
    "histogram": "FedHistogramCalibrator",
    "topbin": "FedTopBinCalibrator",
    "acctemp": "FedAccTempCalibrator",
}


def change(method, seed, clients, logits, labels):
    """Return the change of the log loss in percent; None if the map is not used."""
    estimator = getattr(skfedcal, METHODS[method])
    given = {"classes": range(logits.shape[1]), "random_state": seed}
    cal = estimator(eps=1.0, **given).fit(clients)
    if not cal.improves_:
        return None
    before, after = (
        negative_log_likelihood(labels, proba)
        for proba in (softmax(logits.astype(float), axis=1), cal.predict_proba(logits))
    )
    return 100 * (after / before - 1)


def made_up(seed):
    """Clients of a model that needs no calibration, and rows to test with."""
    fed = make_federation(
        100, 3000, n_test=3000, temperature=1.0, noise=0.0, random_state=seed
    )
    return fed.clients, fed.test_logits, fed.test_labels


def of_file(path, drawn, seed):
    """Half of the rows of a file as clients, up to 4,000 others to test with."""
    rng = np.random.default_rng(seed)
    with np.load(path) as file:
        logits, labels = file["logits"].astype(np.float32), file["labels"].astype(int)
    rows = rng.permutation(len(labels))[:20_000]
    logits, labels = logits[rows], labels[rows]
    if drawn:
        logits /= 1.7
        proba = softmax(logits.astype(float), axis=1).cumsum(axis=1)
        labels = (proba > rng.random((len(rows), 1)) * proba[:, -1:]).argmax(axis=1)
    half, n_clients = len(rows) // 2, (100, 1000)[seed % 2]
    owner = np.arange(half) % n_clients
    clients = [(logits[:half][owner == i], labels[:half][owner == i])
               for i in range(min(n_clients, half))]  # fmt: skip
    return clients, logits[half:][:4000], labels[half:][:4000]


def measure(method, n_fits, source=made_up, name="made up"):
    """Return how many fits use their map, and what it does to the log loss."""
    found = [change(method, seed, *source(seed)) for seed in range(n_fits)]
    changes = [value for value in found if value is not None]
    return {
        "data": name,
        "method": method,
        "fits": n_fits,
        "used": len(changes),
        "mean change %": float(np.mean(changes)) if changes else None,
        "worst %": float(np.max(changes)) if changes else None,
    }


def main():
    parser = arguments("unneeded", __doc__)
    parser.add_argument("--fits", type=int, default=100, help="fits of each method")
    parser.add_argument("--data", help="folder with .npz files of logits and labels")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for method in given.methods:
        if given.data is None:
            rows.append(measure(method, given.fits))
            continue
        for path in sorted(Path(given.data).glob("*.npz")):
            with np.load(path) as file:
                if not {"logits", "labels"} <= set(file.files):
                    continue
            for drawn in (False, True):
                name = f"{path.stem}{', drawn' * drawn}"
                source = partial(of_file, path, drawn)
                rows.append(measure(method, given.fits, source, name))
    print_table(rows)
    write_json(given.out, rows)


if __name__ == "__main__":
    main()
