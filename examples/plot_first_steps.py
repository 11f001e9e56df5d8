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
from skfedcal.plotting import plot_reliability

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
# Rows are sorted by the probability of the predicted class and cut into 15 bins. In a
# calibrated model the share of right predictions in each bin lies on the diagonal. The
# bars say how many rows there are at which confidence.

predictions = {
    "before": softmax(fed.test_logits, axis=1),
    "exact sums": exact.predict_proba(fed.test_logits),
    "eps = 1": private.predict_proba(fed.test_logits),
}

fig, axes = plt.subplots(1, 3, figsize=(11, 4.4), layout="constrained")
plot_reliability(fed.test_labels, predictions, axes=axes)
plt.show()

# %%
# The error of a perfect model is not zero either, because each bin holds few rows: this
# is the floor. And the log loss, which no trick lowers, belongs next to both.

for name, proba in predictions.items():
    ece = expected_calibration_error(fed.test_labels, proba)
    nll = negative_log_likelihood(fed.test_labels, proba)
    floor = calibration_floor(
        proba, metric="expected_calibration_error", random_state=0
    )
    print(f"{name:>10}: ECE {ece:.4f} (floor {floor.mean:.4f}), log loss {nll:.4f}")

# %%
# Before, accuracy lies below the confidence in every bin that is shown. After
# either fit the points follow the diagonal. A temperature never changes which class is
# predicted, so that accuracy is the same in all three panels. The noise of this page is
# drawn anew in every build: the private numbers differ a little from build to build.
