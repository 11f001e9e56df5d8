"""
Write your own method
=====================

A method of your own is a folder with two files and one entry in the registry. It then
has exact and private fits, masked sums, sites with policies, saved files, torch and
ONNX exports, and the same tests as the methods of this package.

This one mixes temperature scaling with the uniform law, for labels that are sometimes
wrong whatever the model says:

.. math:: p = (1 - w) \\, \\mathrm{softmax}(z / T) + w / c.
"""

# %%
# What clients send
# -----------------
# ``rounds.py`` needs numpy only, since it runs at sites. `query` turns the rows of each
# client into five numbers: slopes of its log loss in ``log(1 / T)`` and in the log-odds
# of w, and the Fisher information of the two. `spec` bounds them, which is all that
# privacy needs to know; `forms` lists the broadcasts that a site accepts; `update`
# takes one step from the sum.

import inspect
import sys
from pathlib import Path

try:
    here = Path(__file__).resolve().parent
except NameError:  # in the gallery
    here = Path.cwd()
sys.path.insert(0, str(here))

from uniform_mixture import METHOD, rounds

print(inspect.getsource(rounds.MixtureScoring))

# %%
# The estimator
# -------------
# ``estimator.py`` has parameters and fitted attributes; `mixture` writes the map in
# operations that numpy, torch and ONNX carry out.

from uniform_mixture import estimator

print(inspect.getsource(estimator.FedMixtureCalibrator))
print(inspect.getsource(estimator.mixture))

# %%
# The entry
# ---------
# It names the parts by their paths, and the algorithm by a name with a version, which
# goes into messages. A package that is installed can name the entry in its metadata
# instead, under the entry point group ``skfedcal.methods``.

import uniform_mixture

print(inspect.getsource(uniform_mixture))

# %%
# Is it right?
# ------------
# `check_method` runs the conformance tests: laws of a sum over clients, contributions
# within their bound, the same bits on all engines, requests that a site admits, own
# rows only, saved files, exports, documentation, and a short privacy audit.

from collections import Counter

from skfedcal.testing import check_method

results = check_method(METHOD)
print(Counter(result.outcome for result in results))

# %%
# In use
# ------
# Some labels are replaced by random ones. Temperature scaling alone has to raise T for
# all rows; the mixture keeps T and finds the share of random labels.

import matplotlib.pyplot as plt
import numpy as np

from skfedcal import FedTempCalibrator, make_federation

shares = [0.0, 0.05, 0.1, 0.2, 0.3]
losses = {"temperature": [], "mixture": [], "mixture, eps = 1": []}
for share in shares:
    fed = make_federation(200, 20_000, 10, temperature=2.0, random_state=0)
    rng = np.random.default_rng(1)

    def spoiled(labels, rng=rng, share=share):
        other = rng.integers(0, 10, len(labels))
        return np.where(rng.random(len(labels)) < share, other, labels)

    clients = [(logits, spoiled(labels)) for logits, labels in fed.clients]
    test = spoiled(fed.test_labels)
    for name, calibrator in (
        ("temperature", FedTempCalibrator()),
        ("mixture", estimator.FedMixtureCalibrator()),
        ("mixture, eps = 1", estimator.FedMixtureCalibrator(eps=1.0)),
    ):
        logs = calibrator.fit(clients).predict_log_proba(fed.test_logits)
        losses[name].append(-logs[np.arange(len(test)), test].mean())

# %%
figure, axes = plt.subplots(figsize=(6, 3.5))
for (name, values), style in zip(losses.items(), ("-", "-", "--"), strict=True):
    axes.plot(shares, values, style, marker="o", label=name)
axes.set(xlabel="share of random labels", ylabel="log loss on other rows")
axes.legend()
figure.tight_layout()
plt.show()
