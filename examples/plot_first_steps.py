"""
One temperature from a hundred clients
======================================

A classifier is over-confident. A hundred clients hold the rows on which this can be
seen, each with its own mix of classes. They find one temperature together: first with
exact sums, then with differential privacy for each client.
"""

# %%
# The data
# --------
# `make_federation` draws logits of a model that overstates its true logits by a factor
# of 1.8, and deals the rows to clients by label (Dirichlet, concentration 0.1).

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import softmax

from skfedcal import FedTempCalibrator, make_federation
from skfedcal.metrics import (
    calibration_floor,
    expected_calibration_error,
    negative_log_likelihood,
)

fed = make_federation(n_clients=100, temperature=1.8, random_state=0)
sizes = [len(labels) for _, labels in fed.clients]
n_seen = [len(np.unique(labels)) for _, labels in fed.clients]
print(f"{len(fed.clients)} clients with {min(sizes)} to {max(sizes)} rows each,")
print(f"{min(n_seen)} to {max(n_seen)} of 10 classes, median {np.median(n_seen):.0f}")

# %%
# Two fits
# --------
# Without `eps` the server learns exact sums over clients, and the result is the optimum
# of the pooled log loss. With ``eps=1`` every sum is noisy, and what the server
# publishes hides any one client.

exact = FedTempCalibrator().fit(fed.clients)
private = FedTempCalibrator(eps=1.0).fit(fed.clients)
print(f"exact   T = {exact.temperature_:.3f}")
print(f"private T = {private.temperature_:.3f}")

# %%
# What was guaranteed, and under which conditions:

private.privacy_

# %%
# Reliability before and after
# ----------------------------
# Rows are sorted into 15 bins by the probability of the predicted class. In a
# calibrated model the share of right predictions in each bin lies on the diagonal.

predictions = {
    "before": softmax(fed.test_logits, axis=1),
    "exact sums": exact.predict_proba(fed.test_logits),
    "eps = 1": private.predict_proba(fed.test_logits),
}


def reliability(proba, labels, n_bins=15):
    """Mean confidence and accuracy of the bins that hold at least 20 rows."""
    confidence, right = proba.max(axis=1), proba.argmax(axis=1) == labels
    index = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    counts = np.bincount(index, minlength=n_bins)
    keep = counts >= 20
    means = [np.bincount(index, v, n_bins)[keep] for v in (confidence, right)]
    return [m / counts[keep] for m in means]


fig, axes = plt.subplots(1, 3, figsize=(9, 3.9), sharey=True, layout="constrained")
for ax, (name, proba) in zip(axes, predictions.items(), strict=True):
    ece = expected_calibration_error(fed.test_labels, proba)
    nll = negative_log_likelihood(fed.test_labels, proba)
    floor = calibration_floor(
        proba, metric="expected_calibration_error", random_state=0
    )
    print(f"{name:>10}: ECE {ece:.4f} (floor {floor.mean:.4f}), log loss {nll:.4f}")
    ax.plot([0, 1], [0, 1], color="0.6", linestyle="--")
    ax.plot(*reliability(proba, fed.test_labels), marker="o", color="C0")
    ax.set(title=f"{name}\nECE {ece:.3f}, log loss {nll:.3f}", xlabel="confidence")
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
axes[0].set_ylabel("accuracy")
plt.show()

# %%
# Before, accuracy lies below the confidence in every bin that is shown. After
# either fit the points follow the diagonal. A temperature never changes which class is
# predicted, so that accuracy is the same in all three panels. The noise of this page is
# drawn anew in every build: the private numbers differ a little from build to build.
