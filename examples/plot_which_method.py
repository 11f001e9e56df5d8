"""
When to use which calibrator
============================

What helps depends on what is wrong with the model, and under privacy on how much a
method has to learn through the noise. Three models, seven methods, with exact sums and
with an eps of 1.
"""

# %%
# The experiment
# --------------
# 100 clients with strong label skew and 30 rows on average; 10 classes. The first model
# is too confident in everything. The second one also favours some classes over others,
# as a model does that was trained on skewed clients. The third one is calibrated.
#
# Under eps each fit is repeated with two seeds; a seed makes the noise repeatable, so
# that the fit is a simulation. The frequencies of the classes are taken to be public.

import warnings

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import softmax

from skfedcal import (
    FedAutoCalibrator,
    FedBBQCalibrator,
    FedBiasTempCalibrator,
    FedMatrixCalibrator,
    FedOPVectorCalibrator,
    FedTempCalibrator,
    FedVectorCalibrator,
    make_federation,
)
from skfedcal.exceptions import CalibrationWarning, SimulatedPrivacyWarning
from skfedcal.metrics import (
    calibration_floor,
    classwise_calibration_error,
    negative_log_likelihood,
)

warnings.simplefilter("ignore", SimulatedPrivacyWarning)
# "No more than the noise explains": part of what is shown here.
warnings.simplefilter("ignore", CalibrationWarning)

models = {
    "too confident": {"temperature": 2.0},
    "class-biased": {"temperature": 1.5, "class_bias": 1.0},
    "calibrated": {"temperature": 1.0},
}
federations = {
    name: make_federation(100, 3000, noise=0.0, random_state=0, **params)
    for name, params in models.items()
}
seeds = range(2)


def make_methods(fed):
    prior = np.bincount(fed.test_labels)
    return {
        "FedTemp": FedTempCalibrator(),
        "FedBiasTemp": FedBiasTempCalibrator(class_prior=prior),
        "FedVector": FedVectorCalibrator(),
        "FedMatrix": FedMatrixCalibrator(),
        "FedOPVector": FedOPVectorCalibrator(),
        "FedBBQ": FedBBQCalibrator(),
        "FedAuto": FedAutoCalibrator(class_prior=prior),
    }


def scores(proba, fed):
    """Classwise error and its floor in %, log loss, change of accuracy in points."""
    labels = fed.test_labels
    right = (proba.argmax(axis=1) == labels).mean()
    before = (fed.test_logits.argmax(axis=1) == labels).mean()
    return (
        100 * classwise_calibration_error(labels, proba),
        100 * calibration_floor(proba, n_repeats=5, random_state=0).mean,
        negative_log_likelihood(labels, proba),
        100 * (right - before),
    )


exact, private, choices = {}, {}, {}
for model, fed in federations.items():
    none = scores(softmax(fed.test_logits, axis=1), fed)
    exact[model, "none"], private[model, "none"] = none, np.array([none])
    for method, calibrator in make_methods(fed).items():
        calibrator.fit(fed.clients)
        exact[model, method] = scores(calibrator.predict_proba(fed.test_logits), fed)
        found = [getattr(calibrator, "choice_", "")]
        repeats = []
        for seed in seeds:
            calibrator.set_params(eps=1.0, random_state=seed).fit(fed.clients)
            repeats.append(scores(calibrator.predict_proba(fed.test_logits), fed))
        private[model, method] = np.array(repeats)
        choices[model, method] = [*found, getattr(calibrator, "choice_", "")]

# %%
# The result
# ----------
# The floor is the error that perfect probabilities would show on these rows.

methods = ["none", *make_methods(fed)]
fig, axes = plt.subplots(
    1, 3, figsize=(10, 4.2), sharex=True, sharey=True, layout="constrained"
)
for ax, model in zip(axes, models, strict=True):
    for place, method in enumerate(methods):
        error, floor = exact[model, method][:2]
        noisy = private[model, method][:, 0]
        ax.plot([floor, floor], [place - 0.35, place + 0.35], color="0.6", linewidth=2)
        ax.plot(error, place - 0.12, "o", color="C0")
        ax.plot(noisy, np.full(len(noisy), place + 0.12), "d", color="C1", alpha=0.6)
    ax.set(title=model, xlabel="classwise calibration error, %")
axes[0].set_xlim(left=0)
axes[0].set_yticks(range(len(methods)), methods)
axes[0].invert_yaxis()
handles = [
    plt.Line2D([], [], marker="o", color="C0", linestyle="", label="exact sums"),
    plt.Line2D([], [], marker="d", color="C1", linestyle="", label="eps = 1, 2 seeds"),
    plt.Line2D([], [], color="0.6", linewidth=2, label="floor"),
]
fig.legend(handles=handles, loc="outside lower center", ncols=3)
plt.show()

# %%
# The same with log loss and accuracy; under eps the mean over the seeds.

head = f"{'cwECE':>6} {'floor':>6} {'NLL':>6} {'acc.':>6}"
for model in models:
    print(f"{model:<14}{'exact sums':^30}{'eps = 1':^30}")
    print(f"{'':<13} {head}   {head}")
    for method in methods:
        cells = []
        for cwece, floor, loss, gain in (
            exact[model, method],
            private[model, method].mean(axis=0),
        ):
            gain = round(gain, 1) + 0.0  # no "-0.0"
            cells.append(f"{cwece:>6.2f} {floor:>6.2f} {loss:>6.3f} {gain:>+6.1f}")
        print(f"{method:<13} {'   '.join(cells)}")
    print()
for text in choices["class-biased", "FedAuto"]:
    print("FedAuto chose", text)

# %%
# Which one to use
# ----------------
#
# - **A model that is only too confident:** FedTemp. It learns one number: nothing
#   does better with exact sums, and noise hardly matters. It never changes a decision.
# - **A model that favours some classes:** FedBiasTemp. Methods that keep the order of
#   classes (FedTemp, FedOPVector) cannot take the bias back; a bias per class does, and
#   accuracy rises with it. With exact sums FedVector finds the same. Under eps
#   FedBiasTemp is ahead: what a client sends is adjusted for its own label skew.
# - **A calibrated model:** none. With exact sums nothing is gained; FedBBQ loses some.
#   Under eps a method that has seen no more than noise says so and leaves the input as
#   it is (``if_improves``).
# - **FedMatrix** is for models that mix up certain classes, which none of these three
#   does. **FedOPVector** is for models that one temperature does not correct and whose
#   decisions must stay: with exact sums it comes closer than FedTemp on the second
#   model. **FedBBQ** assumes nothing about the form of the map and pays for it with
#   rows. There are too few here, and under eps with 100 clients it gives up.
# - **Not sure:** FedAuto. It decides from the number of clients, classes and rounds and
#   from eps, before any client is asked. So it cannot see that a model would do with
#   less than class biases; that costs little here. With fewer clients or a smaller eps
#   it takes a temperature. ``FedAutoCalibrator(...).explain(n_clients, n_classes)``
#   tells the choice without data.
