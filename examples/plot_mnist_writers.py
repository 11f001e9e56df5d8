"""
A hundred writers train, others calibrate in private
====================================================

Each client is one person with their own handwriting. A hundred of them train a network
by federated averaging. Others, whose digits the network never saw, then set its
confidence right with ``eps=1``: what is learnt of any one of them, all their digits
together, is next to nothing.

With the MNIST digits by writer this takes about a minute of one core::

    python examples/plot_mnist_writers.py raw_mnist_writers.npz

The file holds ``X_train``, ``y_train`` and ``writer_train``, and the same for the test:
images of 784 pixels, labels, and the number of the writer (QMNIST's extended labels
have it). Without it, as on this page, scikit-learn's digits stand in: their neighbours
were written by the same hand.
"""

# %%
# Clients
# -------
# The path comes from the command line or from ``SKFEDCAL_MNIST_WRITERS``.

import os
import sys
import time
import warnings

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits

from skfedcal import FedTempCalibrator
from skfedcal.exceptions import SimulatedPrivacyWarning
from skfedcal.metrics import (
    calibration_floor,
    expected_calibration_error,
    negative_log_likelihood,
)
from skfedcal.training import FedAvgClassifier


def mnist(path, n_trainers=100):
    """Rows, labels and writers to train with, to calibrate with, and for the test."""
    with np.load(path, allow_pickle=False) as file:
        X, y, writer = (file[f"{name}_train"] for name in ("X", "y", "writer"))
        test = [file[f"{name}_test"] for name in ("X", "y", "writer")]
    chosen = np.random.default_rng(0).permutation(np.unique(writer))[:n_trainers]
    first = np.isin(writer, chosen)
    parts = (X[first], y[first], writer[first]), (X[~first], y[~first], writer[~first])
    return [(X / np.float32(255), *rest) for X, *rest in (*parts, test)]


def digits(n_rows=15):
    """The same from scikit-learn's digits: 15 neighbours are a client."""
    X, y = load_digits(return_X_y=True)
    writer = np.arange(len(y)) // n_rows
    cuts = [25 * n_rows, 85 * n_rows]
    return list(
        zip(*(np.split(part, cuts) for part in (X / 16, y, writer)), strict=True)
    )


path = os.environ.get("SKFEDCAL_MNIST_WRITERS", "")
path = sys.argv[1] if len(sys.argv) > 1 else path
train, calibration, test = mnist(path) if path else digits()
for name, (_, labels, writer) in zip(
    ("train", "calibrate", "test"), (train, calibration, test), strict=True
):
    print(f"{name:>9}: {len(np.unique(writer)):3} writers, {len(labels):5} digits")

# %%
# Federated averaging
# -------------------
# Ten passes over few digits at a time: each client learns its own by heart, and the
# mean of them is too sure. `eval_set` scores every round. It is the test set here, to
# draw the curve only.

X, y, writer = train
test_X, test_y, _ = test
# Fifteen digits per client take more rounds than a hundred do.
length = {"n_rounds": 30, "lr": 0.3} if path else {"n_rounds": 100, "lr": 0.5}
clf = FedAvgClassifier(
    module_params={"hidden": (64,)},
    clients_per_round=0.2,
    local_epochs=10,
    batch_size=20,
    **length,
    eval_set=(test_X, test_y),
    random_state=0,
)
# Matrices this small are multiplied no faster by several threads.
torch.set_num_threads(1)
start = time.process_time()
clf.fit(X, y, client_ids=writer)
print(f"{clf.n_rounds_} rounds: {time.process_time() - start:.0f} s of one core")

fig, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
rounds = [s.round + 1 for s in clf.scores_]
ax.plot(rounds, [1 - s.accuracy for s in clf.scores_], label="wrong")
ax.plot(rounds, [s.variation_ratio for s in clf.scores_], label="1 - confidence")
ax.set(xlabel="round", ylabel="share of the test", ylim=(0, 0.6))
ax.legend()
plt.show()

# %%
# Where the confidence line is below the other, the network is too sure.

# %%
# A private temperature
# ---------------------
# The other writers ask the network for logits of their own digits, and send a few
# clipped numbers each. A seed makes the noise repeatable, and such a fit a simulation;
# the warning is switched off. Without a seed the guarantee is real.

warnings.simplefilter("ignore", SimulatedPrivacyWarning)
X, y, writer = calibration
clients = clf.client_logits(X, y, client_ids=writer)
start = time.process_time()
fits = {
    "eps=1": FedTempCalibrator(eps=1, classes=clf.classes_, random_state=0),
    "no noise": FedTempCalibrator(classes=clf.classes_),
}
logits = clf.predict_logits(test_X)
predictions = {"before": clf.predict_proba(test_X)}
for name, cal in fits.items():
    predictions[name] = cal.fit(clients).predict_proba(logits)
    print(f"{name:>8}: T = {cal.temperature_:.3f}")
print(f"{time.process_time() - start:.1f} s")

# %%
# The guarantee is for the writers who calibrate. Those who trained have none: for them,
# `FedAvgClassifier` has an `eps` of its own.

fits["eps=1"].privacy_

# %%
# Result
# ------
# The floor is the error that a perfectly calibrated model shows on as many rows.

fig, ax = plt.subplots(figsize=(4.6, 4.4), layout="constrained")
ax.plot([0, 1], [0, 1], color="0.7")
for name, proba in predictions.items():
    error = expected_calibration_error(test_y, proba)
    floor = calibration_floor(
        proba, metric="expected_calibration_error", random_state=0
    )
    nll = negative_log_likelihood(test_y, proba)
    right = np.mean(clf.classes_[proba.argmax(axis=1)] == test_y)
    print(
        f"{name:>8}: accuracy {right:.3f}, NLL {nll:.3f}, ECE {error:.4f} "
        f"(floor {floor.mean:.4f})"
    )
    bins = np.minimum((proba.max(axis=1) * 8).astype(int), 7)
    counts = np.bincount(bins, minlength=8)
    hits = np.bincount(bins, proba.argmax(axis=1) == test_y, 8)
    sure = np.bincount(bins, proba.max(axis=1), 8)
    keep = counts >= 10
    ax.plot(sure[keep] / counts[keep], hits[keep] / counts[keep], "o-", label=name)
ax.set(xlabel="confidence", ylabel="share that is right")
ax.legend()
plt.show()
