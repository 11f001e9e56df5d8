"""Coverage of intervals of nominal 95 % when clients are drawn anew.

python -m benchmarks.coverage_clients DATA

The clients of a file are the population: samples of clients are drawn from it with
replacement, and an interval is right if it holds the number of the whole file. `rows`
are the intervals for independent rows. With `eps` at most `rows each` rows of a client
are counted, and the number is that of the file with clients of as many rows. Only
intervals narrower than 0.5 count then; `narrow` is their share. DATA is a folder with
the files `fed_tv16_mlp.npz`, `fed_mnist_writers_mlp.npz`,
`mnist_metacal_cnn_writers.npz` and `bin_538_games.npz`; a file that is missing is left
out. `synthetic` has 927 clients whose labels and errors differ from client to client.

With --paired the interval is that of `federated_compare_scores`: scores as they are
against the same at 1.5 times the temperature, and the number is the difference of the
whole file. `narrower` is the width of two separate intervals, each for clients, over
that of the paired one.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np

from benchmarks._harness import print_table
from skfedcal import CentralDP, ScoreHistogram, federated_compare_scores

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

    def truth(self, most):
        """Numbers of the whole file, if at most so many rows of a client count."""
        ids = np.repeat(np.arange(len(self.sizes)), self.sizes)
        hist = self.fit(self.odds, self.outcome, ids, population="rows")
        share = np.minimum(most or np.inf, self.sizes) / self.sizes
        place = hist.grid.position(1 / (1 + np.exp(-self.odds))) * hist.grid.n_buckets
        leaf = np.minimum(place.astype(int), hist.grid.n_buckets - 1)
        counts = np.zeros_like(hist.counts_)
        np.add.at(counts, (self.outcome, leaf), share[ids])
        if most is None:  # the same buckets as those of the clients
            np.testing.assert_array_equal(counts, hist.counts_)
        hist.counts_ = counts
        return self.answers(hist, debias=False)

    def fit(self, odds, outcome, ids, **options):
        return ScoreHistogram.fit(
            odds, outcome, client_ids=ids, classes=[0, 1], **options
        )

    def answers(self, hist, debias=True):
        # Of the most probable class: outcomes are right or wrong, and it is predicted.
        threshold = 0.0 if self.top else 0.5
        return (hist.accuracy(threshold), hist.roc_auc(), hist.ece(15, debias=debias))


def covered(population, n_clients, n_samples, *, seed=0, eps=None, most=None):
    """Coverage and mean width of each metric, for clients and for rows."""
    truth = population.truth(most)
    hits, widths = np.zeros((2, len(METRICS))), np.zeros((2, len(METRICS)))
    effects, used = np.zeros(len(METRICS)), np.zeros((2, len(METRICS)))
    rng = np.random.default_rng(seed)
    for i in range(n_samples):
        sample = population.sample(n_clients, rng)
        options = {}
        if eps is not None:
            options = {"privacy": CentralDP(eps), "random_state": i,
                       "max_examples_per_client": most}  # fmt: skip
        hist = population.fit(*sample, **options)
        for row, one in enumerate((hist, hist._of_rows())):
            for k, (found, right) in enumerate(
                zip(population.answers(one), truth, strict=True)
            ):
                width = found.high - found.low
                if eps is not None and not width < 0.5:
                    continue
                used[row, k] += 1
                hits[row, k] += found.low <= right <= found.high
                widths[row, k] += width
                if row == 0:
                    effects[k] += found.design_effect
    share = used[0] / n_samples
    used = np.where(used > 0, used, np.nan)
    return hits / used, widths / used, effects / used[0], share


PAIRED = ("accuracy", "brier", "log_loss", "roc_auc")


def paired(population, n_clients, n_samples, *, seed=0, eps=None):
    """Coverage and mean width of paired differences, and two widths over one."""
    shift = 0.2  # moves some predictions over the threshold, as a bias does

    def ask(rows, metric, **options):
        odds, outcome, ids = rows
        columns = np.column_stack([np.zeros_like(odds), odds])
        other = np.column_stack([np.zeros_like(odds), odds / 1.5 + shift])
        return federated_compare_scores(
            columns, other, outcome, client_ids=ids, metric=metric, classes=[0, 1],
            **options,
        )  # fmt: skip

    every = np.repeat(np.arange(len(population.sizes)), population.sizes)
    whole = population.odds, population.outcome, every
    if eps is not None:
        # One row of each client counts: the number is that of clients.
        truth = [float(ask(whole, m, weighting="client")) for m in PAIRED[:3]]
    else:
        truth = [float(ask(whole, metric)) for metric in PAIRED]
    hits, widths = np.zeros(len(truth)), np.zeros(len(truth))
    ratios = np.full(len(truth), np.nan)
    rng = np.random.default_rng(seed)
    for i in range(n_samples):
        rows = population.sample(n_clients, rng)
        options = {}
        if eps is not None:
            options = {"privacy": CentralDP(eps), "random_state": i}
        for k, right in enumerate(truth):
            found = ask(rows, PAIRED[k], **options)
            hits[k] += found.low <= right <= found.high
            widths[k] += found.high - found.low
            if i == 0 and eps is None:
                ratios[k] = _separate(rows, PAIRED[k], shift) / (found.high - found.low)
    return hits / n_samples, widths / n_samples, ratios


def _separate(rows, metric, shift):
    """Width of the difference of two separate answers, as if they were independent."""
    odds, outcome, ids = rows
    widths = []
    for scores in (odds, odds / 1.5 + shift):
        hist = ScoreHistogram.fit(scores, outcome, client_ids=ids, classes=[0, 1])
        asked = getattr(hist, metric)
        found = asked(0.5) if metric == "accuracy" else asked()
        widths.append(found.high - found.low)
    return np.hypot(*widths)


def paired_rows(name, population, args):
    """Rows of the table of paired differences."""
    every = len(population.sizes)
    for n_clients, eps in ((every, None), (16, None), (every, args.eps)):
        found = paired(population, n_clients, args.samples, eps=eps)
        for k in range(len(found[0])):
            yield {
                "file": name,
                "clients": n_clients,
                "eps": "-" if eps is None else f"{eps:g}",
                "metric": PAIRED[k],
                "coverage": f"{found[0][k]:.3f}",
                "width": f"{found[1][k]:.4f}",
                "narrower": "-" if np.isnan(found[2][k]) else f"{found[2][k]:.1f}",
            }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--only", default=None, help="name of one file")
    parser.add_argument("--eps", type=float, default=1.0)
    parser.add_argument("--private", action="store_true", help="only with eps")
    parser.add_argument("--paired", action="store_true", help="paired differences")
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
        if args.paired:
            rows += paired_rows(name, population, args)
            continue
        every = len(population.sizes)
        settings = [(every, None, None), (16, None, None)]
        settings += [(every, args.eps, most) for most in (1, 5, 20)]
        for n_clients, eps, most in (*settings, (16, args.eps, 20)):
            if eps is None and args.private:
                continue
            hits, widths, effects, narrow = covered(
                population, n_clients, args.samples, eps=eps, most=most
            )
            for k, metric in enumerate(METRICS):
                rows.append(
                    {
                        "file": name,
                        "clients": n_clients,
                        "eps": eps,
                        "rows each": most,
                        "metric": metric,
                        "coverage": hits[0, k],
                        "by rows": hits[1, k],
                        "width": widths[0, k],
                        "width by rows": widths[1, k],
                        "design effect": effects[k],
                        "narrow": narrow[k],
                    }
                )
    print_table(rows)


if __name__ == "__main__":
    main()
