"""Coverage of intervals of nominal 95 % when clients are drawn anew.

python -m benchmarks.coverage_clients DATA

The clients of a file are the population: samples of clients are drawn from it with
replacement, and an interval is right if it holds the number of the whole file. `rows`
are the intervals for independent rows. With `eps` one row of each client is counted,
and the number is that of clients that count once. DATA is a folder with the files
`fed_tv16_mlp.npz`, `fed_mnist_writers_mlp.npz`, `mnist_metacal_cnn_writers.npz` and
`bin_538_games.npz`; a file that is missing is left out. `synthetic` has 927 clients
whose labels and errors differ from client to client.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np

from benchmarks._harness import print_table
from skfedcal import CentralDP, ScoreHistogram

FILES = ("fed_tv16_mlp", "fed_mnist_writers_mlp", "mnist_metacal_cnn_writers",
         "bin_538_games")  # fmt: skip
METRICS = ("accuracy", "roc_auc", "ece")


def synthetic(n_clients=927, seed=0):
    """Scores whose errors depend on the client, and clients of unequal size."""
    rng = np.random.default_rng(seed)
    sizes = np.minimum(rng.lognormal(3.8, 0.8, n_clients).astype(int) + 5, 600)
    client = np.repeat(np.arange(n_clients), sizes)
    level, slope = rng.normal(0, 0.7, n_clients), rng.normal(1.0, 0.35, n_clients)
    odds = rng.normal(0.3, 1.2, len(client)) + 0.5 * level[client]
    true = slope[client] * odds + 0.5 * level[client]
    return odds, (rng.random(len(client)) < 1 / (1 + np.exp(-true))), client


def top_label(logits, labels):
    """Log-odds of the most probable class, and whether it is right."""
    logits = logits.astype(np.float64)
    top = logits.argmax(axis=1)
    rest = logits.copy()
    rest[np.arange(len(top)), top] = -np.inf
    peak = rest.max(axis=1)
    others = peak + np.log(np.exp(rest - peak[:, None]).sum(axis=1))
    return logits[np.arange(len(top)), top] - others, top == labels


def load(folder, name):
    """Log-odds, outcomes and clients of one file."""
    if name == "synthetic":
        return synthetic()
    data = np.load(folder / f"{name}.npz")
    if "prob" in data.files:
        prob = np.clip(data["prob"].astype(np.float64), 1e-6, 1 - 1e-6)
        return np.log(prob / (1 - prob)), data["labels"] == 1, data["client"]
    logits, labels = data["logits"], data["labels"]
    if logits.shape[1] == 2:
        return logits[:, 1].astype(float) - logits[:, 0], labels == 1, data["client"]
    return (*top_label(logits, labels), data["client"])


class Population:
    """Clients of a file, and samples of them."""

    def __init__(self, odds, outcome, client, top):
        order = np.argsort(client, kind="stable")
        self.odds, self.outcome = odds[order], outcome[order].astype(int)
        sizes = np.bincount(np.unique(client, return_inverse=True)[1])
        self.ends = np.cumsum(sizes)
        self.sizes, self.top = sizes, top

    def sample(self, n_clients, rng):
        """Scores, outcomes and client of each row of clients drawn with replacement."""
        drawn = rng.integers(0, len(self.sizes), n_clients)
        sizes = self.sizes[drawn]
        starts = np.repeat(self.ends[drawn] - sizes - np.cumsum(sizes) + sizes, sizes)
        rows = starts + np.arange(sizes.sum())
        return self.odds[rows], self.outcome[rows], np.repeat(range(n_clients), sizes)

    def truth(self, weighting):
        """Numbers of the whole file."""
        ids = np.repeat(np.arange(len(self.sizes)), self.sizes)
        hist = self.fit(self.odds, self.outcome, ids, weighting=weighting,
                        population="rows")  # fmt: skip
        return self.answers(hist, debias=False)

    def fit(self, odds, outcome, ids, **options):
        return ScoreHistogram.fit(
            odds, outcome, client_ids=ids, classes=[0, 1], **options
        )

    def answers(self, hist, debias=True):
        # Of the most probable class: outcomes are right or wrong, and it is predicted.
        threshold = 0.0 if self.top else 0.5
        return (hist.accuracy(threshold), hist.roc_auc(), hist.ece(15, debias=debias))


def covered(population, n_clients, n_samples, seed=0, eps=None):
    """Coverage and mean width of each metric, for clients and for rows."""
    truth = population.truth("client" if eps else "example")
    hits = np.zeros((2, len(METRICS)))
    widths, effects, used = np.zeros((2, len(METRICS))), np.zeros(len(METRICS)), 0
    narrow = np.zeros(len(METRICS))
    rng = np.random.default_rng(seed)
    for i in range(n_samples):
        sample = population.sample(n_clients, rng)
        options = {} if eps is None else {"privacy": CentralDP(eps), "random_state": i}
        hist = population.fit(*sample, **options)
        for row, one in enumerate((hist, hist._of_rows())):
            for k, (found, right) in enumerate(
                zip(population.answers(one), truth, strict=True)
            ):
                hits[row, k] += found.low <= right <= found.high
                widths[row, k] += found.high - found.low
                if row == 0:
                    effects[k] += found.design_effect
                    narrow[k] += found.high - found.low < 0.5
        used += 1
    return hits / used, widths / used, effects / used, narrow / used


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--only", default=None, help="name of one file")
    parser.add_argument("--eps", type=float, default=1.0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for name in (*FILES, "synthetic"):
        if args.only not in (None, name):
            continue
        if name != "synthetic" and not (args.data / f"{name}.npz").exists():
            continue
        data = load(args.data, name)
        population = Population(*data, top="mnist" in name)
        for n_clients, eps in (
            (len(population.sizes), None), (16, None), (len(population.sizes), args.eps)
        ):  # fmt: skip
            hits, widths, effects, narrow = covered(
                population, n_clients, args.samples, eps=eps
            )
            for k, metric in enumerate(METRICS):
                rows.append(
                    {
                        "file": name,
                        "clients": n_clients,
                        "eps": eps,
                        "metric": metric,
                        "coverage": hits[0, k],
                        "by rows": hits[1, k],
                        "width": widths[0, k],
                        "width by rows": widths[1, k],
                        "design effect": effects[k],
                        "below 0.5": narrow[k],
                    }
                )
    print_table(rows)


if __name__ == "__main__":
    main()
