"""What the page says besides numbers: how to read it, and notes on each table."""

HEAD = """\
Benchmarks
==========

.. This page is written by ``python -m benchmarks.page``; edit
   ``benchmarks/_texts.py`` instead.
"""

HOW = """\
How it was measured
-------------------

Ours and other libraries on the same arrays, in the same process, on one thread; memory
and imports in processes of their own. A time is processor time, the best of several
that are taken in turn with U, one library after the other; a call of a second and
more is timed once. Most are in units of U: one pass of ``scipy.special.log_softmax``
over an array of the same shape and type in the same run, which travels between
machines better than seconds do. U itself moves from run to run, in float64 by a factor
of two and more, with the state of the memory allocator. In brackets is the factor to
ours. An empty cell was not measured, mostly because the call takes minutes. Where our
column has them, ns are nanoseconds per entry of the logits, and P is one pass of the
compiled softmax over the same array: the least that a loop with an exponential per
entry takes.

Where libraries compute the same thing (errors, temperatures, accounts), answers are
held against each other before they are timed; a library whose answer is off is not
timed, and the table says so. Other maps differ in priors, ridges and bins: there the
log loss on fresh rows stands below the time. *Above the optimum* is the log loss of the
rows that were fitted, above the least that the map can reach on them. Rows are drawn
from one generator of overconfident logits, in ``benchmarks/_harness.py``: times on
other rows differ where a fit takes another number of rounds.

Fits, predictions and errors of ours are whole public calls, with their checks of the
input. What a peer needs before its own call (a softmax, tensors) is made beforehand;
its checks of the input are its own.

To repeat this, from a copy of the repository:

.. code-block:: console

   $ pip install -e ".[bench]"
   $ python -m benchmarks --out docs/benchmarks.json
   $ python -m benchmarks.page

It takes some minutes, without ``[bench]`` less: a library that is absent is skipped.
``--only metrics`` asks one question; ``--long`` adds larger sizes and slower libraries,
and takes up to an hour.
"""

COMPILED_TITLE = """\
The compiled core, and numba
----------------------------
"""

# Around the numbers of the run.
COMPILED = """\
Inner loops are in C, as an optional part of the distribution: ``pip install`` without a
compiler succeeds, and numpy takes the place of the core. ``skfedcal info`` says which
is in use, and ``SKFEDCAL_CORE=off`` switches the core off.

C was taken, and not numba, for these reasons:

- The core has exponentials and logarithms of its own, a fixed order of operations and
  no fused multiply-add, so that its bits are those of every processor. Loops of numba
  take the exponential of the system, one entry at a time, or of a vector library that
  is installed beside it: their bits follow the machine.
- numba compiles in each process, at the first call, and is a large dependency with a
  compiler of its own. The core is compiled once, when the package is installed.
- Trials in numba take at least about as long in the cases below, although that of cwECE
  takes labels from 0 on and one number of bins only.
"""

WINS_TEXT = """\
Where a peer is better
----------------------

Cases of the tables below in which another library takes less time, or reaches a log
loss that is lower by more than 0.001 on fresh rows or 0.0001 on the fitted ones. Calls
that do a part of the work, such as ``pandas.factorize``, are in the tables only.
"""

SHORT_TEXT = """\
ns are nanoseconds of processor time per entry of the logits. U is the time of one pass
of ``scipy.special.log_softmax`` over the same rows.
"""

AIMS_TEXT = """\
Bounds that this project has set itself. One run decides: where an aim is held by less
than 10 %, another run may miss it.
"""

SCRIPTS = """\
Scripts
-------

.. include:: benchmarks_scripts.inc
"""

NOTES = {
    "temperature, fit": (
        "The optimum is the root of the float64 gradient. The inner class of "
        "scikit-learn is private: it does not check its input. Ours is within 1e-6 of "
        "the optimal temperature, or the run stops. torch-uncertainty computes in "
        "float32. Columns *clients* are ours with the rows spread over as many."
    ),
    "ECE": (
        "From the whole matrix: scikit-learn, probcal and relplot are given the top "
        "probability and whether it is right, which is found in the timed call. "
        "torch-uncertainty and torchmetrics compute in float32."
    ),
    "cwECE": (
        "*By class*: the library has no classwise error, and its binary one is called "
        "for each class. torch-uncertainty and torchmetrics compute in float32."
    ),
    "cwECE floor, 100 draws": (
        "The cwECE that as many rows show by chance if they are calibrated, from draws "
        "of labels (:func:`skfedcal.metrics.calibration_floor`). No peer was asked."
    ),
    "BBQ, fit": (
        "Libraries differ in bins and scores: ours are nested and of equal width in "
        "log-odds, so that clients can add counts; those of torch-uncertainty have "
        "equal mass, up to 15 of them."
    ),
    "histogram binning, fit": (
        "netcal gives some labels no chance at all, so that its log loss is infinite; "
        "here such a label counts as 1e-300, and the number says how many there are."
    ),
    "vector scaling, fit": (
        "The optimum is that of the plain log loss by L-BFGS in float64, on the rows "
        "as each library takes them: ours with a mean of zero, torch-uncertainty's as "
        "they are, probmetrics' as log-probabilities. Ours has a weak ridge. "
        "Below zero, a library has a map that can do more than the one that is taken "
        "for it here."
    ),
    "matrix scaling, fit": (
        "The optimum as for vector scaling. Ours has a ridge, whose strength it finds: "
        "it stays above the optimum on purpose and is better on fresh rows. Without "
        "ridge (``l2=0, l2_off=0``) it reaches the optimum. That of 100 classes, with "
        "10,100 parameters, is far overfitted and not sought."
    ),
    "bias and temperature, fit": (
        "The optimum as for vector scaling. No peer has this map."
    ),
    "predict_proba": "In brackets is the factor to the bare softmax.",
    "temperature, predict_proba": (
        "The same product and softmax without checks; torch is given a tensor."
    ),
    "compiled loops": (
        "*Two derivatives* is the pass of a temperature fit over 100 rows of each "
        "client. The trial of cwECE takes labels from 0 on and 15 bins only."
    ),
    "forms of clients": (
        "*packed* is the same rows in one array with client_ids. numpy puts them "
        "together, and checks and groups nothing."
    ),
    "client_ids": (
        "Reading is what ids decide; in brackets after a whole temperature fit is the "
        "factor to integer ids in the same order. ``pandas.factorize`` numbers the ids "
        "and does nothing else."
    ),
    "many clients": "Whole private fits, timed once.",
    "commands": (
        "Whole commands in a process of their own, imports included, without cells "
        "that an earlier run stored."
    ),
    "noise, per draw": (
        "Ours draws 64,000 numbers at a time of the one scale that its mechanisms use, "
        "from tables that are made before; opendp 20,000 at a time, and it takes any "
        "scale. *Seeded* is for tests and protects nobody."
    ),
    "accountant": (
        "Ours has a closed form for Gaussian rounds, and no more is timed here; "
        "dp-accounting goes the same way for any mechanism. RDP gives a looser bound: "
        "a larger eps, or more noise."
    ),
    "local temperatures": (
        "Loops are measured on 50 clients, and the time of all is computed from that. "
        "All start from rows that have been checked."
    ),
    "score histogram and AUC": (
        "One row per client, from arrays to the area. The first column is that of "
        "exact sums; scikit-learn has all scores in one place."
    ),
    "metrics of a histogram": (
        "Ours starts from a histogram of a million scores, which is all that a server "
        "has and whose own time is above, scikit-learn from the scores: the times are "
        "not those of one task. *Off by* is the distance to scikit-learn's value."
    ),
    "secure aggregation": (
        "All parties in one process; each client sends as many counts. The plain sum "
        "hides nothing."
    ),
    "FedAvg round": (
        "Our clients are trained together where the module is small. The loop is the "
        "usual code: for each client a copy of the module, a DataLoader and "
        "torch.optim."
    ),
    "Flower, exchange": (
        "A private temperature of three rounds. *messages* are those of a deployment, "
        "handed over in this process; *Flower* sends them through its transport and "
        "client app on a grid in this process, as bytes, without network, TLS and the "
        "start of processes. All results are equal to the last bit."
    ),
    "import": (
        "A fresh interpreter, less an empty one. ``import skfedcal`` by itself loads "
        "nothing yet: names are loaded when they are used."
    ),
    "peak memory, RSS": (
        "Growth of the resident set of a child process over the size of the input, "
        "which is the 1 in it. Buffers that are kept between calls count."
    ),
    "peak memory, tracemalloc": "The same by what Python allocates.",
    "peak memory, tracemalloc, second call": (
        "The same where a call finds the buffers of the one before."
    ),
}
GROWTH_TEXT = (
    "Slopes of log time over log size; 1 is linear. Maps that take as many rounds as "
    "they need are measured per round; whole fits grow with the number of rounds as "
    "well. Where a slope is far below 1, fixed costs are a large part at these sizes, "
    "and it says nothing of larger ones."
)

# Why a peer is ahead, by question: said beside the rows in which one is.
CAUSES = {
    "compiled loops": "a trial takes one form of input and one number of bins, and "
    "checks less",
    "temperature, fit": "checks of the input, the record of each round and the report "
    "take as long at any number of rows",
    "temperature, predict_proba": "both are bound by the memory of rows and result, "
    "and ours also checks its input",
    "score histogram and AUC": "sums without noise also add the second moments of each "
    "client, for intervals: a product for any two cells in which it has rows",
    "import": "ours loads scikit-learn as well",
    "ECE": "ours also checks labels and rows",
    "cwECE": "ours also checks labels and rows",
    "vector scaling, fit": "a round of ours sums a curvature of c x c numbers in a "
    "fixed order, without BLAS, whose last bits depend on the number of threads",
    "matrix scaling, fit": "a round of ours sums the curvature in a fixed order, "
    "without BLAS",
    "FedAvg round": "a round of ours also encodes and sums the updates of all clients, "
    "which the loop leaves out; steps themselves take as long",
}
