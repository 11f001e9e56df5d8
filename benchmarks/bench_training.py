"""Clients trained together or one by one: CPU time of a round of federated averaging.

python -m benchmarks.bench_training

Digits at 100 clients, one epoch in batches of 10; images and texts are drawn at random
for 20 clients with 64 rows, in batches of 32. A round is what the server waits for:
training, clipping, encoding and summing. ``torch loop`` is the usual code: for each
client a copy of the module, a DataLoader and torch.optim, without encoding.
"""

import copy

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks._harness import arguments, cpu_spread, print_table, write_json
from skfedcal.clients import DirichletPartitioner
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.federation.endpoint import Request, respond
from skfedcal.privacy.mechanisms import ExactSum
from skfedcal.training import MLP, CharLSTM, CrossEntropy, ResNet18
from skfedcal.training._fedavg import FedAvg
from skfedcal.training._local_training import ClientTraining, LocalSGD
from skfedcal.training._objective import Objective
from skfedcal.training.modules import Network, auto_cohort

BATCH, LR = 10, 0.1


def small_cnn(depth=1, side=8, first=8, second=16):
    """Two convolutions of 3 x 3 with pooling, and a linear layer."""
    return nn.Sequential(
        nn.Unflatten(1, (depth, side, side)),
        nn.Conv2d(depth, first, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * (side // 4) ** 2, 10),
    )


MODULES = {
    "logistic": lambda: MLP((64,), 10, hidden=()),
    "MLP 64": lambda: MLP((64,), 10, hidden=(64,)),
    "MLP 128": lambda: MLP((64,), 10, hidden=(128,)),
    "CNN 8-16": small_cnn,
    "MLP 512": lambda: MLP((64,), 10, hidden=(512,)),
    "MLP 512-256-128-64": lambda: MLP((64,), 10),
}
IMAGE, TEXT, TOKENS = (3, 32, 32), (20,), 80
# Rows at random: how long a step takes does not depend on what they hold.
LARGE = {
    "CNN 8-16, 32 x 32": (lambda: small_cnn(3, 32), (3 * 32 * 32,)),
    "CNN 16-32, 32 x 32": (lambda: small_cnn(3, 32, 16, 32), (3 * 32 * 32,)),
    "ResNet18 of width 8, 32 x 32": (lambda: ResNet18(IMAGE, 10, width=8), IMAGE),
    "LSTM 64, 20 characters": (lambda: CharLSTM(TEXT, 10, hidden=64), TEXT),
}
LARGE_BATCH = 32


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


def random_rows(shape, n_clients=20, n_rows=64, seed=0):
    """Images, or texts of tokens, with labels, at clients of equal size."""
    rng = np.random.default_rng(seed)
    size = (n_clients * n_rows, *shape)
    rows = rng.normal(size=size).astype(np.float32)
    if shape == TEXT:
        rows = rng.integers(0, TOKENS, size)
    labels = rng.integers(0, 10, len(rows))
    offsets = np.arange(n_clients + 1) * n_rows
    return FederatedDataset(rows, labels, offsets, list(range(n_clients)), 10)


def request(network, cohort_size, batch=BATCH):
    """Question of the first round."""
    training = ClientTraining(
        network,
        Objective(CrossEntropy()),
        LocalSGD(LR, seed=(0,)),
        batch_size=batch,
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


def torch_loop(module, clients, batch=BATCH):
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
        for x, y in DataLoader(data, batch_size=batch, shuffle=True):
            optimiser.zero_grad()
            nn.functional.cross_entropy(own(x), y).backward()
            optimiser.step()


def measure(name, n_clients, alpha, seconds):
    """One line of the table."""
    torch.manual_seed(0)
    if name in LARGE:
        make, shape = LARGE[name]
        clients, batch = random_rows(shape), LARGE_BATCH
    else:
        make, batch = MODULES[name], BATCH
        clients = federation(n_clients, alpha)
    network = Network(make())
    together, alone = (request(network, size, batch) for size in (1 << 30, 1))
    ways = {
        "cohort": lambda: respond(together, clients),
        "one by one": lambda: respond(alone, clients),
        "torch loop": lambda: torch_loop(network.module, clients, batch),
    }
    torch_loop(network.module, clients, batch)  # torch loads modules at its first step
    times = cpu_spread(ways, seconds=seconds)
    best = {way: found[0] for way, found in times.items()}
    changes = [mean_change(asked, clients) for asked in (together, alone)]
    rows = min(batch, int(clients.sizes.max()))
    chosen = auto_cohort(network, clients.rows.shape[1:], rows)
    auto = "cohort" if chosen > 1 else "one by one"
    return {
        "module": name,
        "parameters": network.n_params,
        "split": "equal" if alpha is None else f"Dirichlet({alpha})",
        "largest client": int(clients.sizes.max()),
        "cohort ms": 1e3 * best["cohort"],
        "one by one ms": 1e3 * best["one by one"],
        "torch loop ms": 1e3 * best["torch loop"],
        "largest difference": float(np.abs(changes[0] - changes[1]).max()),
        "auto": auto,
        "torch / auto": best["torch loop"] / best[auto],
    }


def main():
    """Print and write the table."""
    parser = arguments("training", __doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--modules", nargs="*", default=[*MODULES, *LARGE])
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        measure(name, args.clients, alpha, args.seconds)
        for name in args.modules
        for alpha in ((None,) if name in LARGE else (None, 0.1))
    ]
    print_table(rows)
    write_json(args.out, rows)


if __name__ == "__main__":
    main()
