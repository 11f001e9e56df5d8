"""
Compare methods and budgets on your own logits
==============================================

`compare` runs methods, budgets and seeds on the same clients and the same test rows, by
the same accounting. It is what ``skfedcal compare model.npz`` runs, and the question
that it answers is the first one: does any of this help here, and what does it cost?
"""

# %%
# The data
# --------
# Made-up logits of a model that is too sure and favours some classes, at 100 clients
# with label skew. With your own: a list of pairs (logits, labels), or the path of a
# file. All noise is seeded: a comparison is a simulation.

import matplotlib.pyplot as plt

from skfedcal import compare, make_federation
from skfedcal.plotting import CostDisplay, SweepDisplay

fed = make_federation(100, 5000, class_bias=0.7, random_state=0)
result = compare(
    fed.clients,
    (fed.test_logits, fed.test_labels),
    methods=["temp", "biastemp", "bbq"],
    eps=[None, 0.3, 1.0, 3.0],
    class_prior="uniform",
    seeds=3,
    progress=False,
)
print(result.to_text(width=100))

# %%
# What privacy costs, and what a client sends
# -------------------------------------------

fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
SweepDisplay.from_table(result.table, x="eps", y="cwECE", ax=left)
CostDisplay.from_table(result.table, ax=right)
plt.show()

# %%
# Left: with exact sums FedBiasTemp is at the central fit, and most of that is left at
# an eps of 1. A temperature cannot correct the biases, and noise hardly changes it. The
# many counts of FedBBQ need thousands of clients under noise: here its releases are no
# more than noise, and it returns the input unchanged. Right: bytes of one client in all
# rounds, the mean over budgets. The same result as a page for others:
# ``result.to_html("report.html")``.
