"""Clients trained together or one by one: CPU time of a round of federated averaging.

python -m benchmarks.bench_training

Digits at 100 clients, one epoch in batches of 10. A round is what the server waits for:
training, clipping, encoding and summing. ``torch loop`` is the usual code: for each
client a copy of the module, a DataLoader and torch.optim, without encoding.
"""

import copy

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks._harness import arguments, cpu_best, print_table, write_json
from skfedcal.clients import DirichletPartitioner
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.federation.endpoint import Request, respond
from skfedcal.privacy.mechanisms import ExactSum
from skfedcal.training import MLP, CrossEntropy
from skfedcal.training._fedavg import FedAvg
from skfedcal.training._local_training import ClientTraining, LocalSGD
from skfedcal.training._objective import Objective
from skfedcal.training.modules import Network, auto_cohort

BATCH, LR = 10, 0.1


def small_cnn():
    """Two convolutions of 8 and 16 channels on the 8 x 8 images."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


MODULES = {
    "logistic": lambda: MLP((64,), 10, hidden=()),
    "MLP 64": lambda: MLP((64,), 10, hidden=(64,)),
    "MLP 128": lambda: MLP((64,), 10, hidden=(128,)),
    "CNN 8-16": small_cnn,
    "MLP 512": lambda: MLP((64,), 10, hidden=(512,)),
    "MLP 512-256-128-64": lambda: MLP((64,), 10),
}


def federation(n_clients, alpha, seed=0):
    """Digits over clients: equal parts, or Dirichlet(alpha) skew of labels."""
    X, y = load_digits(return_X_y=True)
    ids = np.arange(len(y)) % n_clients
    if alpha is not None:
        split = DirichletPartitioner(n_clients, alpha=alpha, random_state=seed)
        ids = split.assign(y)
    order = np.argsort(ids, kind="stable")
    offsets = np.r_[0, np.cumsum(np.bincount(ids, minlength=n_clients))]
    rows = (X / 16).astype(np.float32)[order]
    return FederatedDataset(rows, y[order], offsets, list(range(n_clients)), 10)


def request(network, cohort_size):
    """Question of the first round."""
    training = ClientTraining(
        network,
        Objective(CrossEntropy()),
        LocalSGD(LR, seed=(0,)),
        batch_size=BATCH,
        cohort_size=cohort_size,
    )
    method = FedAvg(training, network.flat())
    told = method.broadcast(method.init(10))
    return Request(method, told, ExactSum().codec(method.spec(told)))


def mean_change(asked, clients):
    """Change of the server's parameters that a round makes."""
    method = asked.algorithm
    answer = respond(asked, clients)
    total = ExactSum().release(answer.total, asked.codec, 0, answer.n_clients)
    state = method.init(10)
    return method.update(state, total, len(clients)).params - state.params


def torch_loop(module, clients):
    """Train a copy of the module at each client, as most scripts do."""
    for i in range(len(clients)):
        start, stop = clients.offsets[i], clients.offsets[i + 1]
        if start == stop:
            continue
        own = copy.deepcopy(module)
        data = TensorDataset(
            torch.from_numpy(clients.rows[start:stop]),
            torch.from_numpy(clients.labels[start:stop]),
        )
        optimiser = torch.optim.SGD(own.parameters(), lr=LR)
        for x, y in DataLoader(data, batch_size=BATCH, shuffle=True):
            optimiser.zero_grad()
            nn.functional.cross_entropy(own(x), y).backward()
            optimiser.step()


def measure(name, n_clients, alpha, seconds):
    """One line of the table."""
    torch.manual_seed(0)
    network = Network(MODULES[name]())
    clients = federation(n_clients, alpha)
    together, alone = request(network, 1 << 30), request(network, 1)
    best = cpu_best(
        {
            "cohort": lambda: respond(together, clients),
            "one by one": lambda: respond(alone, clients),
            "torch loop": lambda: torch_loop(network.module, clients),
        },
        seconds=seconds,
    )
    changes = [mean_change(asked, clients) for asked in (together, alone)]
    return {
        "module": name,
        "parameters": network.n_params,
        "split": "equal" if alpha is None else f"Dirichlet({alpha})",
        "largest client": int(clients.sizes.max()),
        "cohort ms": 1e3 * best["cohort"],
        "one by one ms": 1e3 * best["one by one"],
        "torch loop ms": 1e3 * best["torch loop"],
        "one by one / cohort": best["one by one"] / best["cohort"],
        "torch / cohort": best["torch loop"] / best["cohort"],
        "largest difference": float(np.abs(changes[0] - changes[1]).max()),
        "auto": "cohort" if auto_cohort(network) > 1 else "one by one",
    }


def main():
    """Print and write the table."""
    parser = arguments("training", __doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--modules", nargs="*", default=list(MODULES))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        measure(name, args.clients, alpha, args.seconds)
        for name in args.modules
        for alpha in (None, 0.1)
    ]
    print_table(rows)
    write_json(args.out, rows)


if __name__ == "__main__":
    main()
