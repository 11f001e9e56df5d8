"""
Does the promise hold? An audit of a fit
========================================

``eps=1`` is a claim. An audit plays the strongest reader of the releases against it:
fits with a worst-case client and fits without, over and over, and a guess which is
which. If the guesses are better than the claim allows, the claim is wrong.
"""

# %%
# An honest fit
# -------------
# The audit also looks at what every client sends, in exact integers, and at the noise.
# A pass means that this attack found nothing in so many runs. ``skfedcal audit --method
# temp --eps 1`` does the same with ten times as many.

import matplotlib.pyplot as plt
import numpy as np

from skfedcal import FedTempCalibrator
from skfedcal.plotting import AuditDisplay
from skfedcal.privacy import audit, audit_estimator, gdp_mu

honest = audit_estimator(FedTempCalibrator(eps=1.0), n_runs=150, random_state=0)
print(honest.table())

# %%
# A broken one
# ------------
# `audit` takes any function of two neighbouring data sets. This one releases the mean
# of 100 numbers between 0 and 1, with the noise that ``eps=1`` asks for. But the noise
# is for a bound of 1 / 100 on what one number can change, and the numbers are not
# clipped to 1: somebody sends a 3.

rng = np.random.default_rng(0)
claim = {"mu": gdp_mu(1.0, 1e-5), "delta": 1e-5}
noise = 1 / (100 * claim["mu"])
others = rng.random(99)


def release(numbers):
    return numbers.mean() + rng.normal(0, noise)


broken = audit(release, np.append(others, 0.0), np.append(others, 3.0), **claim)
print(broken.table())
print(f"claimed eps 1, true eps at least {broken.eps_lower:.2f}")

# %%
# The picture
# -----------
# Whoever gives few false alarms must overlook many; the line is the least that the
# claim allows. A cross is what was counted, and the corner of its box is as far as the
# true errors may lie from it by chance. A box that stays below the line refutes the
# claim.

fig, axes = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
for ax, (name, result) in zip(
    axes, {"FedTemp": honest, "not clipped": broken}.items(), strict=True
):
    AuditDisplay.from_result(result, ax=ax)
    ax.set_title(f"{name}: {'pass' if result.passed else 'fail'}")
plt.show()
