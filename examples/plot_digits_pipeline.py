"""
Tutorial: calibrate a scikit-learn classifier
=============================================

You know ``CalibratedClassifierCV``. `FederatedCalibratedClassifier` is its counterpart
for rows that belong to clients: a classifier and a calibrator in one estimator. The
data are scikit-learn's digits, whose rows belong to 20 clients with label skew;
cross-validation keeps the clients with their rows.
"""

# %%
# Clients
# -------

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score
from sklearn.model_selection import StratifiedKFold
from sklearn.naive_bayes import GaussianNB

from skfedcal import (
    DirichletPartitioner,
    FedBinCalibrator,
    FederatedCalibratedClassifier,
    FedTempCalibrator,
)
from skfedcal.metrics import (
    calibration_floor,
    classwise_calibration_error,
    negative_log_likelihood,
)

X, y = load_digits(return_X_y=True)
client_ids = DirichletPartitioner(20, 0.3, random_state=0).assign(y)
sizes = np.bincount(client_ids)
print(f"{len(y)} rows; clients have {sizes.min()} to {sizes.max()} of them")

# %%
# Models
# ------
# Naive Bayes is known to be over-confident: it counts correlated pixels as independent
# evidence. `FederatedCalibratedClassifier` trains it, and fits the calibrator on logits
# of rows that the classifier was not trained on.

base = GaussianNB(var_smoothing=1e-3)
models = {
    "naive Bayes": base,
    "+ temperature": FederatedCalibratedClassifier(base, FedTempCalibrator()),
    "+ binning": FederatedCalibratedClassifier(base, FedBinCalibrator()),
}
folds = list(StratifiedKFold(5, shuffle=True, random_state=0).split(X, y))
predicted = {name: np.empty((len(y), 10)) for name in models}
for train, test in folds:
    for name, model in models.items():
        ids = {} if model is base else {"client_ids": client_ids[train]}
        model.fit(X[train], y[train], **ids)
        predicted[name][test] = model.predict_proba(X[test])

# %%
# Results
# -------
# Each number on rows that neither the classifier nor the calibrator has seen. The floor
# is the value that a perfectly calibrated model with the same predictions would show.

print(f"{'':>14}   cwECE   floor  log loss  accuracy")
table = {}
for name, proba in predicted.items():
    error = classwise_calibration_error(y, proba)
    floor = calibration_floor(proba, random_state=0).mean
    loss = negative_log_likelihood(y, proba)
    accuracy = accuracy_score(y, proba.argmax(axis=1))
    table[name] = error, floor, loss
    print(f"{name:>14}  {error:.4f}  {floor:.4f}  {loss:8.3f}  {accuracy:8.3f}")

# %%

fig, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
names = list(table)
errors, floors, losses = zip(*table.values(), strict=True)
place = np.arange(len(names))
axes[0].bar(place, errors, color="C0", label="measured")
axes[0].hlines(floors, place - 0.4, place + 0.4, color="k", label="floor")
axes[0].set(ylabel="classwise calibration error")
axes[0].legend()
axes[1].bar(place, losses, color="C1")
axes[1].set(ylabel="log loss")
for ax in axes:
    ax.set_xticks(place, names)
plt.show()

# %%
# The log loss falls to less than a third with either calibrator: the classifier no
# longer calls its errors impossible. The two calibrators rank differently: binning has
# the lower classwise error, the temperature the lower log loss. Bins correct each class
# by itself and give coarse probabilities; a temperature keeps the order of classes, and
# so the accuracy.
#
# A calibration error alone would have hidden what the temperature gains. Look at the
# error, its floor and the log loss together.
#
# To use your own rows, replace `X`, `y` and `client_ids`. Without clients, leave
# `client_ids` out: all rows are then one client.
