"""A million clients with one count each: fast mode in seconds, faithful mode as ratio.

python -m benchmarks.bench_privacy_models

A run is `FederatedRunner.run` from the packed scores to the released counts: binning,
sum, noise. Levels (10,) are one block of 2 x 1024 counts; levels (2, 6, 10) share eps.
The faithful mode of reports and of sources draws thousands of words per client, so that
it is run on fewer clients and scaled up; Polya shares are run on all of them.
"""

import time
import warnings
from dataclasses import replace

import numpy as np

from benchmarks._harness import arguments, print_table, write_json
from skfedcal import FederatedDataset, FederatedRunner
from skfedcal.methods.score_curves.rounds import ScoreCounts
from skfedcal.privacy import (
    CentralDP,
    DistributedDP,
    LocalDP,
    SecureAggregation,
    SourceDP,
)
from skfedcal.privacy.entropy import OSEntropy

LEVELS = ((10,), (2, 6, 10))
MODELS = {
    "secure sums": SecureAggregation(),
    "central": CentralDP(1.0),
    "distributed": DistributedDP(1.0),
    "distributed, 10 % may drop out": DistributedDP(1.0),
    "local auto": LocalDP(5.0),
    "local oue": LocalDP(5.0, "oue"),
    "local olh": LocalDP(5.0, "olh"),
    "local grr": LocalDP(5.0, "grr"),
    "local subset": LocalDP(5.0, "subset"),
    "source": SourceDP(1.0),
}


def make_clients(n_clients):
    """Return clients with one score in [0, 1) and one label each."""
    rng = np.random.default_rng(0)
    scores = rng.random((n_clients, 1))
    labels = (rng.random(n_clients) < scores[:, 0]).astype(np.int64)
    offsets = np.arange(n_clients + 1)
    return FederatedDataset(scores, labels, offsets, range(n_clients), 2)


def seconds(model, levels, clients, repeats):
    """Return the best CPU time of a whole run."""
    runner, best = FederatedRunner(), np.inf
    algorithm = ScoreCounts(levels, clip=1.0, max_examples=1)
    for _ in range(repeats):
        entropy = OSEntropy()
        start = time.process_time()
        plan = runner.release_plan(algorithm, clients, model.unit)
        mechanism = model.mechanism(plan, entropy=entropy, ledger=None)
        runner.run(algorithm, clients, mechanism, entropy)
        best = min(best, time.process_time() - start)
    return best


def measure(name, model, levels, clients, few):
    """Return one row of the table."""
    if "drop" in name:
        model = replace(model, n_min=int(0.9 * len(clients)))
    fast = seconds(model, levels, clients, 3)
    row = {"model": name, "levels": str(levels), "fast s": fast, "faithful / fast": "-"}
    if not hasattr(model, "mode"):
        return row
    slow = replace(model, mode="faithful")
    if isinstance(model, DistributedDP):
        faithful = seconds(slow, levels, clients, 1)
    else:
        faithful = seconds(slow, levels, few, 1) * len(clients) / len(few)
    return row | {"faithful / fast": faithful / fast}


def main():
    """Measure, print and write."""
    parser = arguments("privacy_models", __doc__)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--few", type=int, default=10_000)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    clients, few = make_clients(options.clients), make_clients(options.few)
    rows = [
        measure(name, model, levels, clients, few)
        for levels in LEVELS
        for name, model in MODELS.items()
    ]
    print_table(rows)
    write_json(options.out, rows)


if __name__ == "__main__":
    main()
