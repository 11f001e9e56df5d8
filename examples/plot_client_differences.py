"""
How much do clients differ?
===========================

Before a method is chosen, it helps to see what the clients are like: which classes
they have, and how sure the model should be on their rows alone. Both pictures show
single clients. They are for simulations and public rows, and no part of a private fit.
"""

# %%
# Two federations
# ---------------
# The same model, which favours some classes, and the same number of rows. In the first
# federation a client has all classes, in the second few of them.

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import softmax

from skfedcal import FedBiasTempCalibrator, FedTempCalibrator, make_federation
from skfedcal.metrics import classwise_calibration_error
from skfedcal.plotting import ClientTemperaturesDisplay, LabelSkewDisplay

federations = {
    name: make_federation(40, 4000, class_bias=1.5, alpha=alpha, random_state=0)
    for name, alpha in {"little skew": 10.0, "much skew": 0.1}.items()
}

# %%
# The classes of each client, and its own temperature
# ---------------------------------------------------
# Left: a row is a client, and dark is a class that it has much of. Right: the
# temperature that is best for a client's own rows, with the one that is best for all
# rows as a line. A client with two classes sees only how the model treats these two,
# and so the temperatures scatter.

fig, axes = plt.subplots(2, 2, figsize=(10, 8), layout="constrained")
for (left, right), (name, fed) in zip(axes, federations.items(), strict=True):
    skew = LabelSkewDisplay.from_clients(fed.clients, ax=left)
    own = ClientTemperaturesDisplay.from_clients(fed.clients, ax=right)
    left.set_title(f"{name}: {skew.skew:.2f} apart from the whole")
    spread = np.nanstd(np.log(own.temperatures))
    right.set(title=f"spread of log T: {spread:.2f}", ylim=(1, 6))
    print(f"{name}: skew {skew.skew:.2f}, spread of log T {spread:.2f}")
plt.show()

# %%
# What that means for a method
# ----------------------------
# A fit from sums does not depend on the assignment of rows: the two federations end at
# nearly the same errors. A temperature leaves the fault between classes, which skewed
# clients cannot see by themselves and their sum can.

for name, fed in federations.items():
    found = {"before": softmax(fed.test_logits, axis=1)}
    for label, calibrator in {
        "temperature": FedTempCalibrator(),
        "biases and temperature": FedBiasTempCalibrator(),
    }.items():
        calibrator.fit(fed.clients)
        found[label] = calibrator.predict_proba(fed.test_logits)
    for label, proba in found.items():
        error = classwise_calibration_error(fed.test_labels, proba)
        print(f"{name:>11}, {label}: cwECE {error:.2%}")
