"""
The scanner changed: recalibrate at many hospitals, privately
=============================================================

A model reads digits and was trained on clean images. Then it snows on all scanners. The
model is wrong more often and does not say so. Thirty hospitals have a dozen cases
with a known outcome each, and show them to nobody. From noisy sums they find the
temperature at which the model is again as sure as it is right.
"""

# %%
# Before and after the change
# ---------------------------
# `corrupt` spoils images in fifteen ways. The model sees only half of the digits, in
# clean form; the rest are the patients of tomorrow.

import warnings
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import softmax
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from skfedcal import FedAccTempCalibrator, FedTopBinCalibrator, LogitTransformer
from skfedcal.datasets import corrupt
from skfedcal.exceptions import CalibrationWarning, SimulatedPrivacyWarning
from skfedcal.metrics import calibration_floor, expected_calibration_error
from skfedcal.privacy import CentralDP, SourceDP

digits = load_digits()
images = (digits.images * 255 / 16).astype(np.uint8)
order = np.random.default_rng(0).permutation(len(images))
images, y = images[order], digits.target[order]


def features(images):
    return images.reshape(len(images), -1) / 255


network = MLPClassifier(random_state=0, max_iter=500)
model = LogitTransformer(network, cv=None).fit(features(images[:900]), y[:900])

snowy = {s: corrupt(images[900:], "snow", s, random_state=0) for s in (0, 1, 2, 3)}
for severity, seen in snowy.items():
    proba = softmax(model.transform(features(seen)), axis=1)
    right = (proba.argmax(axis=1) == y[900:]).mean()
    print(f"snow {severity}: right {right:.2f}, sure {proba.max(axis=1).mean():.2f}")

# %%

fig, axes = plt.subplots(4, 10, figsize=(7, 3), layout="constrained")
for row, (severity, seen) in zip(axes, snowy.items(), strict=True):
    for ax, image in zip(row, seen, strict=False):
        ax.imshow(image, cmap="gray", vmin=0, vmax=255)
        ax.set(xticks=[], yticks=[])
    row[0].set_ylabel(f"snow {severity}", rotation=0, ha="right", va="center")
plt.show()

# %%
# Thirty hospitals
# ----------------
# Each has twelve labelled cases of after the change. The other images are the test.

n_hospitals, n_cases = 30, 12
n_all = n_hospitals * n_cases
logits, labels = model.transform(features(snowy[3])), y[900:]
hospitals = np.repeat(np.arange(n_hospitals), n_cases)
test_logits, test_labels = logits[n_all:], labels[n_all:]

# %%
# Recalibrate
# -----------
# Under `SourceDP` each hospital adds noise to what it sends and need trust nobody. With
# `CentralDP` the exact numbers are added up first, and the sum gets noise once. Both
# hide any one case with ``eps=1``; the first has 30 times the variance. A seed makes
# the noise repeatable, and such a fit a simulation; the warning is switched off.

warnings.simplefilter("ignore", SimulatedPrivacyWarning)
trust = {
    "noise per hospital": SourceDP(1.0),
    "noise once": CentralDP(1.0, unit="example"),
    "no noise": None,
}
fits = {}
for name, privacy in trust.items():
    cal = FedAccTempCalibrator(privacy=privacy, random_state=0)
    fits[name] = cal.fit(logits[:n_all], labels[:n_all], client_ids=hospitals)
    low, high = cal.temperature_interval_
    print(f"{name:>18}: T = {cal.temperature_:.2f}, 95 % from {low:.2f} to {high:.2f}")

# %%
# What was promised, by whom, and to whom:

fits["noise per hospital"].privacy_

# %%
# Reliability
# -----------
# Of cases in which the model is 90 % sure, how many does it get right? The floor is the
# error that a perfectly calibrated model would show on so few test images.

predictions = {"before": softmax(test_logits, axis=1)}
for name in ("noise per hospital", "noise once"):
    predictions[name] = fits[name].predict_proba(test_logits)


def reliability(proba, labels, n_bins=8):
    """Mean confidence, accuracy and share of rows of the bins with at least 10."""
    confidence, right = proba.max(axis=1), proba.argmax(axis=1) == labels
    index = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    counts = np.bincount(index, minlength=n_bins)
    keep = counts >= 10
    means = [np.bincount(index, v, n_bins)[keep] for v in (confidence, right)]
    return *(m / counts[keep] for m in means), counts[keep]


fig, axes = plt.subplots(1, 3, figsize=(9.5, 3.7), sharey=True, layout="constrained")
for ax, (name, proba) in zip(axes, predictions.items(), strict=True):
    error = expected_calibration_error(test_labels, proba)
    floor = calibration_floor(
        proba, metric="expected_calibration_error", random_state=0
    )
    print(f"{name:>18}: ECE {error:.3f} (floor {floor.mean:.3f})")
    confidence, accuracy, counts = reliability(proba, test_labels)
    ax.plot([0, 1], [0, 1], color="0.7")
    ax.vlines(confidence, accuracy, confidence, color="C3", alpha=0.4, linewidth=3)
    ax.scatter(confidence, accuracy, s=counts, color="C0", zorder=3)
    ax.set(xlabel="confidence", xlim=(0, 1), ylim=(0, 1))
    ax.set_title(f"{name}: ECE {error:.3f}", fontsize=11)
axes[0].set_ylabel("share that is right")
plt.show()

# %%
# A dot is a bin, its size the number of cases; bars show how far it is off. No
# prediction has changed, only how sure the model is of it. One draw of noise says
# little about which noise is better; many follow.

# %%
# How much privacy can be had
# ---------------------------
# Means of 20 draws of cases and noise. Where the noise drowns the cases, `improves_` is
# false and the calibrator leaves the model as it is: the left end of the curves.

# "The released values add hardly more information": expected at the left end.
warnings.simplefilter("ignore", CalibrationWarning)
budgets = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0]
draws = [np.random.default_rng(seed).permutation(len(labels)) for seed in range(20)]
once = partial(CentralDP, unit="example")
lines = {
    "temperature, noise per hospital": (FedAccTempCalibrator, SourceDP, "C3-"),
    "bins, noise per hospital": (FedTopBinCalibrator, SourceDP, "C0-"),
    "temperature, noise once": (FedAccTempCalibrator, once, "C3--"),
    "bins, noise once": (FedTopBinCalibrator, once, "C0--"),
}


def one_fit(draw, cal):
    """Calibration error of a fit on new cases, and whether it was used."""
    cases, others = draw[:n_all], draw[n_all:]
    cal.fit(logits[cases], labels[cases], client_ids=hospitals)
    proba = cal.predict_proba(logits[others])
    return expected_calibration_error(labels[others], proba), cal.improves_


fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for name, (kind, trusted, style) in lines.items():
    errors, used = [], []
    for eps in budgets:
        found = [
            one_fit(draw, kind(privacy=trusted(eps), random_state=seed))
            for seed, draw in enumerate(draws)
        ]
        errors.append(np.mean([error for error, _ in found]))
        used.append(np.mean([use for _, use in found]))
    ax.plot(budgets, errors, style, marker="o", label=name)
    print(f"{name:>32}: used in {', '.join(f'{share:.0%}' for share in used)}")
exact = np.mean([one_fit(draw, FedAccTempCalibrator())[0] for draw in draws])
before = expected_calibration_error(labels, softmax(logits, axis=1))
ax.axhline(before, color="0.5", label="before")
ax.axhline(exact, color="0.5", linestyle=":", label="temperature, no noise")
ax.set(xscale="log", xlabel="eps", ylabel="calibration error", ylim=(0, None))
ax.set_xticks(budgets, [f"{eps:g}" for eps in budgets])
ax.legend(fontsize=9, loc="center right")
plt.show()

# %%
# The noise of thirty hospitals needs an eps about five times as large, the root of
# their number, for the same result as noise in the sum. Bins ask for more: fifteen
# pairs of counts where a temperature has two or four numbers.
