"""What private fits do to a model that needs no calibration.

python -m benchmarks.bench_unneeded
python -m benchmarks.bench_unneeded --fits 10 --methods temp bin

Labels are drawn from the model's own probabilities: 100 clients, 3,000 rows, ten
classes, eps = 1, a new model, clients and noise in each fit. `used` counts fits with
`improves_`; changes are those of the log loss on 3,000 other rows, over the fits that
are used.
"""

import warnings

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


def measure(method, n_fits):
    """Return how many fits use their map, and what it does to the log loss."""
    changes = []
    for seed in range(n_fits):
        fed = make_federation(
            100, 3000, n_test=3000, temperature=1.0, noise=0.0, random_state=seed
        )
        estimator = getattr(skfedcal, METHODS[method])
        cal = estimator(eps=1.0, random_state=seed).fit(fed.clients)
        if not cal.improves_:
            continue
        before, after = (
            negative_log_likelihood(fed.test_labels, proba)
            for proba in (
                softmax(fed.test_logits.astype(float), axis=1),
                cal.predict_proba(fed.test_logits),
            )
        )
        changes.append(100 * (after / before - 1))
    return {
        "method": method,
        "fits": n_fits,
        "used": len(changes),
        "mean change %": float(np.mean(changes)) if changes else None,
        "worst %": float(np.max(changes)) if changes else None,
    }


def main():
    parser = arguments("unneeded", __doc__)
    parser.add_argument("--fits", type=int, default=100, help="fits of each method")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = [measure(method, given.fits) for method in given.methods]
    print_table(rows)
    write_json(given.out, rows)


if __name__ == "__main__":
    main()
