"""
Follow calibration over a year
==============================

A model is used week after week, and its data drift.
:class:`~skfedcal.CalibrationMonitor` counts scores and outcomes in every week under one
budget for the whole year, and raises an alarm when calibration changes.
"""

# %%
# A year
# ------
# 2,000 clients with a new row each in every week. From week 31 on the model is too sure
# of itself: its temperature should be 1.5. The seed makes the noise repeatable: a
# simulation.
import matplotlib.pyplot as plt
import numpy as np

from skfedcal import CalibrationMonitor
from skfedcal.plotting import CalibrationMonitorDisplay

rng = np.random.default_rng(0)
n_clients, n_classes = 2000, 10


def week(temperature):
    logits = rng.normal(size=(n_clients, n_classes)) * 2.5
    proba = np.exp(logits / temperature)
    proba /= proba.sum(axis=1, keepdims=True)
    labels = (proba.cumsum(axis=1) < rng.random((n_clients, 1))).sum(axis=1)
    return logits, np.minimum(labels, n_classes - 1)


monitor = CalibrationMonitor(
    eps=3.0,
    periods=52,
    classes=range(n_classes),
    max_examples_per_client=1,
    random_state=0,
)
for number in range(40):
    logits, labels = week(1.0 if number < 30 else 1.5)
    monitor.update(logits, labels, client_ids=np.arange(n_clients))
print(monitor.summary())

# %%
# What is drawn
# -------------
# The band holds for all 52 weeks at once, with 95 %.
figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
CalibrationMonitorDisplay.from_monitor(monitor, "gap", ax=axes[0])
CalibrationMonitorDisplay.from_monitor(monitor, "accuracy", ax=axes[1])
plt.show()
