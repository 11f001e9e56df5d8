"""
Evaluate a hospital model and pick its threshold privately
==========================================================

A hospital has a model that gives each patient a probability of coming back within a
month. Whether they did is known to the clinics they go to, and stays there. From one
noisy histogram the hospital reads the ROC curve, picks a threshold and learns what
precision to expect there.
"""

# %%
# Are there enough patients?
# --------------------------
# Every clinic adds a share of the noise to its counts. What the hospital sees is their
# sum, which hides any single patient with ``eps=1``. Before anyone is asked, `plan`
# tells what error to expect, from a guess of how good the model is.

import warnings

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import softmax
from sklearn.metrics import precision_score, recall_score, roc_auc_score, roc_curve

from skfedcal import (
    FedReliabilityDisplay,
    FedRocDisplay,
    ScoreHistogram,
    make_federation,
)
from skfedcal.evaluation import plan
from skfedcal.exceptions import SimulatedPrivacyWarning
from skfedcal.privacy import DistributedDP

n_clinics, n_patients = 300, 6_000
privacy = DistributedDP(eps=1.0, unit="example")
for metric in ("roc_auc", "recall", "precision"):
    print(plan(metric, 0.01, privacy=privacy, n_examples=n_patients, auc=0.85))

# %%
# One release
# -----------
# The clinics' patients are simulated here, with classes that are unevenly spread over
# clinics. A seed makes the noise repeatable, and the library warns that such a release
# is a simulation; the warning is switched off.

warnings.simplefilter("ignore", SimulatedPrivacyWarning)
fed = make_federation(
    n_clinics,
    n_patients,
    n_classes=2,
    separation=0.0,
    alpha=1.0,
    n_test=100_000,
    random_state=1,
)
hist = ScoreHistogram.fit(fed.clients, privacy=privacy, random_state=1)
hist.privacy_

# %%
# The threshold
# -------------
# At least 90 % of those who come back shall be found. The threshold is the largest edge
# of a bucket at which the lower end of the 95 % interval of recall is above that. It is
# read from the same histogram, as are precision and its interval: none of this costs
# privacy. An interval is for one threshold; picking the best of many makes that of
# recall a little too hopeful.

edges = hist.grid.edges[1:-1]
threshold = max(edge for edge in edges if hist.recall(edge).low >= 0.9)
recall, precision = hist.recall(threshold), hist.precision(threshold)
print(f"threshold {threshold:.4f}")
for name, value in (("recall", recall), ("precision", precision)):
    print(f"{name:<9} {value:.4f}, 95 % interval {value.low:.4f} to {value.high:.4f}")
    print(f"{'':<9} error of sampling {value.se_sampling:.4f}, of privacy ", end="")
    print(f"{value.se_privacy:.4f}")

# %%
# The pictures
# ------------
# Bands and bars hold both errors. The dashed line is the curve of the pooled rows,
# which only a simulation has.

scores = softmax(fed.logits.astype(np.float64), axis=1)[:, 1]
fig, axes = plt.subplots(1, 2, figsize=(9.5, 4.6), layout="constrained")
FedRocDisplay.from_histogram(hist, ax=axes[0], name="eps = 1")
fpr, tpr, _ = roc_curve(fed.labels, scores)
axes[0].plot(fpr, tpr, "k--", linewidth=1, label="pooled rows")
chosen = hist.confusion(threshold)
axes[0].plot(chosen.fp / (chosen.fp + chosen.tn), recall, "o", color="C3")
axes[0].legend(loc="lower right")
FedReliabilityDisplay.from_histogram(hist, ax=axes[1], name="eps = 1")
plt.show()

# %%
# Left: the curve and the chosen point. Right: the model is over-confident, which does
# not matter for a threshold, but does for anyone who reads its probabilities; a
# calibrator corrects it.

# %%
# Against the pooled rows
# -----------------------
# What scikit-learn computes from all rows in one place, and from many new patients,
# whom the intervals are for. Both are there only because this is a simulation.

new_scores = softmax(fed.test_logits.astype(np.float64), axis=1)[:, 1]
auc = hist.roc_auc()
print(f"{'':<10} {'private':>8} {'interval':>18} {'pooled':>8} {'new':>8}")
for name, value, function in (
    ("ROC AUC", auc, roc_auc_score),
    ("recall", recall, recall_score),
    ("precision", precision, precision_score),
):
    found = []
    for labels, given in ((fed.labels, scores), (fed.test_labels, new_scores)):
        guess = given if function is roc_auc_score else given >= threshold
        found.append(function(labels, guess))
    print(
        f"{name:<10} {value:>8.4f} {value.low:>9.4f}-{value.high:.4f}  "
        f"{found[0]:>8.4f} {found[1]:>8.4f}"
    )
