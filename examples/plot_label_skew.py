"""
Label skew: average of optima or optimum of the sum
===================================================

Each client can find its own best temperature, and the server can average them. Or each
client sends derivatives of its loss, and the server finds the best temperature of all
rows. The second way does not depend on how rows are split over clients; the first does.
"""

# %%
# The experiment
# --------------
# Ten data sets, each split over 100 clients five times, with more or less label skew. A
# client has 30 rows on average and the model is right for about 87 % of them, so that
# some clients have no wrong prediction at all. Their own best temperature is 0; the
# average takes it at its lower bound of 0.05.

import matplotlib.pyplot as plt
import numpy as np

from skfedcal import DirichletPartitioner, FedTempCalibrator, make_federation
from skfedcal.metrics import negative_log_likelihood

alphas = [0.05, 0.1, 0.3, 1.0, 10.0]
seeds = range(10)
solvers = ["newton", "average"]

temperature = np.empty((len(solvers), len(alphas), len(seeds)))
loss = np.empty_like(temperature)
faultless = np.empty((len(alphas), len(seeds)))
for k, seed in enumerate(seeds):
    fed = make_federation(
        n_samples=3000, temperature=2.0, noise=0.0, separation=4.0, random_state=seed
    )
    for j, alpha in enumerate(alphas):
        partitioner = DirichletPartitioner(100, alpha, random_state=seed)
        clients = partitioner.split(fed.logits, fed.labels)
        right = [(rows.argmax(axis=1) == labels).all() for rows, labels in clients]
        faultless[j, k] = np.mean(right)
        for i, solver in enumerate(solvers):
            calibrator = FedTempCalibrator(solver=solver).fit(clients)
            temperature[i, j, k] = calibrator.temperature_
            proba = calibrator.predict_proba(fed.test_logits)
            loss[i, j, k] = negative_log_likelihood(fed.test_labels, proba)

# %%
# The result
# ----------

fig, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
labels = {"newton": "optimum of the sum", "average": "average of local optima"}
for i, solver in enumerate(solvers):
    style = {"marker": "os"[i], "color": f"C{i}", "capsize": 3}
    mean, spread = temperature[i].mean(axis=1), temperature[i].std(axis=1)
    axes[0].errorbar(alphas, mean, spread, label=labels[solver], **style)
excess = loss[1] - loss[0]
axes[1].errorbar(
    alphas, excess.mean(axis=1), excess.std(axis=1), marker="s", color="C1", capsize=3
)
axes[1].axhline(0, color="C0", linestyle="--")
axes[0].set(xscale="log", ylabel="temperature (mean and spread, 10 data sets)")
axes[1].set(xscale="log", ylabel="test log loss above that of the optimum")
for ax in axes:
    ax.set_xlabel("Dirichlet concentration (left: more label skew)")
axes[0].legend()
plt.show()

# %%
moved = np.ptp(temperature[0], axis=0).max()
print(f"partition moves the optimum of the sum by at most {moved:.1e}")
print("alpha  average - optimum  clients without an error")
for j, alpha in enumerate(alphas):
    bias = temperature[1, j] - temperature[0, j]
    share = faultless[j].mean()
    print(f"{alpha:>5g}    {bias.mean():+.2f} +- {bias.std():.2f}      {share:.0%}")

# %%
# The optimum of the sum is one number for each data set, whatever the partition. The
# average of local optima is too low, the more so the stronger the skew, and its spread
# grows too. Small clients cause part of it: the average is low even with little skew.
#
# How large this bias is depends on the data. With larger clients or a less accurate
# model few clients are free of errors, and skew then adds scatter rather than bias.
