"""Draw the picture of the README and of the first page.

python docs/make_picture.py

writes ``docs/_static/before_after.svg``. The noise is seeded, so that the file changes
only when the code does.
"""

import warnings
from pathlib import Path

import matplotlib.pyplot as plt
from scipy.special import softmax

from skfedcal import FedBiasTempCalibrator, make_federation
from skfedcal.exceptions import SimulatedPrivacyWarning
from skfedcal.plotting import plot_reliability

TARGET = Path(__file__).resolve().parent / "_static" / "before_after.svg"


def main():
    """Fit with and without noise, and draw."""
    warnings.simplefilter("ignore", SimulatedPrivacyWarning)
    fed = make_federation(100, 6000, class_bias=0.8, temperature=1.3, random_state=0)
    private = FedBiasTempCalibrator(eps=1, class_prior="uniform", random_state=0)
    exact = FedBiasTempCalibrator()
    fits = {"eps = 1 for each client": private, "exact sums": exact}
    predictions = {"before": softmax(fed.test_logits, axis=1)}
    for name, calibrator in fits.items():
        calibrator.fit(fed.clients)
        predictions[name] = calibrator.predict_proba(fed.test_logits)
    plt.rcParams["svg.hashsalt"] = "skfedcal"
    _, axes = plt.subplots(1, 3, figsize=(10, 4), layout="constrained")
    plot_reliability(fed.test_labels, predictions, axes=axes)
    plt.savefig(TARGET, metadata={"Date": None})


if __name__ == "__main__":
    main()
