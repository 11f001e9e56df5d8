"""
Train a network on clients that have few classes each
=====================================================

Ten clients hold digits of two or three kinds each. Federated averaging gives a network
that favours what it saw last. Two things correct that afterwards, both from sums over
clients: a new last layer from class statistics, and a calibrator.
"""

# %%
# Clients with few classes
# ------------------------
# A small Dirichlet parameter means few classes at each client. Every client keeps a
# fifth of its rows back, for calibration.

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from skfedcal import DirichletPartitioner, FedBiasTempCalibrator
from skfedcal.metrics import (
    calibration_floor,
    classwise_calibration_error,
    negative_log_likelihood,
)
from skfedcal.plotting import plot_confusion_matrices, plot_tsne
from skfedcal.training import FedAvgClassifier, FedGaussianHead, fl_fcr

# Matrices this small are multiplied no faster by several threads.
torch.set_num_threads(1)

X, y = load_digits(return_X_y=True)
X, test_X, y, test_y = train_test_split(X / 16, y, test_size=0.3, random_state=0)
ids = DirichletPartitioner(10, 0.05, random_state=0).assign(y)
held = np.random.default_rng(0).random(len(y)) < 0.2
for client in range(3):
    print(f"client {client}:", np.bincount(y[ids == client], minlength=10))

# %%
# Three ways to train
# -------------------
# The same rounds for all; `fl_fcr` also asks for class statistics after each of them,
# and the last one solves for a last layer at the end, in closed form.

shared = {
    "module_params": {"hidden": (64,)},
    "n_rounds": 10,
    "local_epochs": 3,
    "lr": 0.02,
    "momentum": 0.9,
    "eval_set": (test_X, test_y),
    "random_state": 0,
}
models = {
    "FedAvg": FedAvgClassifier(**shared),
    "FL-FCR": fl_fcr(**shared),
    "FedAvg + LDA head": FedAvgClassifier(head=FedGaussianHead(), **shared),
}
for name, clf in models.items():
    clf.fit(X[~held], y[~held], client_ids=ids[~held])
    print(f"{name:>17}: accuracy {clf.score(test_X, test_y):.3f}")

# %%
# `scores_` has what `eval_set` said of each round.

fig, axes = plt.subplots(1, 2, figsize=(9, 3.3), layout="constrained")
for name in ("FedAvg", "FL-FCR"):
    scores = models[name].scores_
    axes[0].plot([s.accuracy for s in scores], label=name)
    axes[1].plot([s.entropy for s in scores], label=name)
axes[0].set(xlabel="round", ylabel="accuracy", ylim=(0, 1))
axes[1].set(xlabel="round", ylabel="predictive entropy", ylim=(0, None))
axes[0].legend()
plt.show()

# %%
# Calibrate
# ---------
# `client_logits` turns clients of rows into clients of logits, which every calibrator
# takes. Class biases are what averaging over such clients leaves behind.

base = models["FedAvg"]
clients = base.client_logits(X[held], y[held], client_ids=ids[held])
calibrator = FedBiasTempCalibrator(classes=base.classes_).fit(clients)

proba = {name: clf.predict_proba(test_X) for name, clf in models.items()}
proba["FedAvg + FedBiasTemp"] = calibrator.predict_proba(base.predict_logits(test_X))
for name, found in proba.items():
    error = classwise_calibration_error(test_y, found)
    floor = calibration_floor(found, random_state=0).mean
    print(
        f"{name:>20}: accuracy {np.mean(found.argmax(axis=1) == test_y):.3f}, "
        f"NLL {negative_log_likelihood(test_y, found):.3f}, "
        f"cwECE {error:.4f} (floor {floor:.4f})"
    )

# %%
# Before and after: which digits were taken for which.

plot_confusion_matrices(
    test_y,
    {
        name: proba[name].argmax(axis=1)
        for name in ("FedAvg", "FedAvg + FedBiasTemp", "FL-FCR")
    },
)
plt.show()

# %%
# Features of the two networks
# ----------------------------
# The last layer sees these. Classes lie apart in both: most of what averaging spoilt is
# in the last layer, and that is why class statistics correct so much.

plot_tsne(
    {name: models[name].transform(test_X[:250]) for name in ("FedAvg", "FL-FCR")},
    test_y[:250],
    random_state=0,
)
plt.show()
