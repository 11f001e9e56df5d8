"""CalibrationMonitor: noise over a year, false alarms, and weeks until an alarm.

python -m benchmarks.monitoring [--quick]

- `mechanisms`: noise of sums over 52 periods under one budget, exact, in units of the
  bound of a client over mu. Independent noise, the binary tree with least squares over
  all of its nodes, and the square root factorisation of prefix sums; for a client that
  takes part in all periods, and for one that takes part in a single one.
- `week 52`: root mean square error of the metrics of all 52 weeks together, against the
  same counts without noise: one monitor with eps=3, and 52 histograms with eps=3/52.
- `false alarms`: part of the years without a change that have an alarm.
- `delay`: weeks until a change of the temperature from 1 to 1.5 is found.
"""

import argparse
import warnings
from functools import reduce

import numpy as np

from benchmarks._harness import print_table
from skfedcal import CalibrationMonitor, CentralDP, ScoreHistogram
from skfedcal.privacy import calibrate_noise

WEEKS, EPS, DELTA = 52, 3.0, 1e-5


def tree(n):
    """Nodes of the binary tree over n periods, as rows."""
    size = 1
    rows = []
    while size < 2 * n:
        starts = range(0, n - size + 1, size)
        rows += [np.isin(np.arange(n), np.arange(a, a + size)) for a in starts]
        size *= 2
    return np.array(rows, dtype=float)


def square_root(n):
    """Lower triangular C with C C equal to the matrix of prefix sums."""
    k = np.arange(1, n)
    column = np.concatenate([[1.0], np.cumprod(1 - 0.5 / k)])
    lag = np.subtract.outer(np.arange(n), np.arange(n))
    return np.where(lag >= 0, column[np.maximum(lag, 0)], 0.0)


def noise_of(strategy, everywhere):
    """Deviations of the total, of single periods (mean) and of prefix sums (largest).

    Entries of a strategy are at least 0, so that the worst client sends the same in all
    periods.
    """
    gram = strategy.T @ strategy
    reach = gram.sum() if everywhere else gram.diagonal().max()
    covariance = np.linalg.inv(gram) * reach
    prefix = np.tril(np.ones_like(gram))
    sums = np.einsum("ij,jk,ik->i", prefix, covariance, prefix)
    weekly = covariance.diagonal().mean()
    return np.sqrt([sums[-1], weekly, sums.max()])


def mechanisms():
    strategies = {
        "independent": np.eye(WEEKS),
        "tree": tree(WEEKS),
        "factorisation": square_root(WEEKS),
    }
    return [
        [who, name, *noise_of(strategy, who == "every period").round(3)]
        for who in ("every period", "one period")
        for name, strategy in strategies.items()
    ]


def week(rng, n, temperature=1.0, n_classes=10, scale=2.5):
    """Logits of a model, and labels of one that is less sure by a temperature."""
    logits = rng.normal(size=(n, n_classes)) * scale
    proba = np.exp((logits - logits.max(axis=1, keepdims=True)) / temperature)
    proba /= proba.sum(axis=1, keepdims=True)
    labels = (proba.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return logits, np.minimum(labels, n_classes - 1)


def started(eps=EPS, seed=0, **options):
    return CalibrationMonitor(
        eps,
        classes=range(10),
        max_examples_per_client=1,
        random_state=seed,
        **options,
    )


def last_week(n_clients, seeds):
    """Errors at week 52 of one monitor, and of budgets that are split evenly."""
    ids, errors = np.arange(n_clients), {}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        one, exact, split = started(seed=seed), started(None), []
        for number in range(WEEKS):
            rows = week(rng, n_clients)
            one.update(*rows, client_ids=ids)
            exact.update(*rows, client_ids=ids)
            split.append(
                ScoreHistogram.fit(
                    *rows,
                    client_ids=ids,
                    classes=range(10),
                    kind="top",
                    levels=(2, 6),
                    height=6,
                    max_examples_per_client=1,
                    privacy=CentralDP(EPS / WEEKS),
                    random_state=1000 * seed + number,
                )
            )
        together = reduce(ScoreHistogram.merge, split)
        for metric in ("accuracy", "brier", "ece"):
            options = {"debias": False} if metric == "ece" else {}
            true, mine, even = (
                getattr(hist, metric)(**options)
                for hist in (exact.histogram(), one.histogram(), together)
            )
            errors.setdefault(metric, []).append([mine - true, even - true])
    rows = []
    for metric, pairs in errors.items():
        mine, even = np.sqrt(np.mean(np.square(pairs), axis=0))
        rows.append([metric, f"{mine:.5f}", f"{even:.5f}", round(even / mine, 2)])
    joint = calibrate_noise(EPS, DELTA, n_rounds=WEEKS).noise_multiplier
    alone = calibrate_noise(EPS / WEEKS, DELTA / WEEKS).noise_multiplier
    rows.append(
        ["Gaussian noise / bound", f"{joint:.2f}", f"{alone:.2f}",
         round(alone / joint, 2)]
    )  # fmt: skip
    return rows


def false_alarms(years, n_clients):
    """Part of the years that have an alarm though nothing changes."""
    ids, found = np.arange(n_clients), 0
    for seed in range(years):
        rng, monitor = np.random.default_rng(seed), started(seed=seed)
        for _ in range(WEEKS):
            monitor.update(*week(rng, n_clients), client_ids=ids)
        found += bool(monitor.alarms_)
    rate = found / years
    error = np.sqrt(monitor.false_alarm_rate * (1 - monitor.false_alarm_rate) / years)
    return [[years, n_clients, found, round(rate, 4), monitor.false_alarm_rate,
             round(error, 4)]]  # fmt: skip


def delays(years, n_clients):
    """Weeks from the change on until the alarm, 1 for the week of the change."""
    rows = []
    for scale in (1.0, 2.5, 5.0):
        ids, weeks = np.arange(n_clients), []
        for seed in range(years):
            rng, monitor = np.random.default_rng(seed), started(seed=seed)
            for number in range(24):
                now = week(rng, n_clients, 1.5 if number >= 20 else 1.0, scale=scale)
                monitor.update(*now, client_ids=ids)
            later = [a.period - 19 for a in monitor.alarms_ if a.period >= 20]
            weeks.append(min(later, default=np.inf))
        accuracy = float(monitor.estimate("accuracy", slice(0, 20)))
        in_time = np.mean(np.array(weeks) <= 4)
        rows.append([scale, round(accuracy, 3), years, np.max(weeks), in_time])
    return rows


def show(title, names, rows):
    print(f"\n{title}")
    print_table([dict(zip(names, row, strict=True)) for row in rows])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute")
    quick = parser.parse_args().quick
    warnings.simplefilter("ignore")
    show(
        "noise of sums over 52 periods, in units of the bound over mu",
        ["client in", "noise", "total", "a period", "prefix"],
        mechanisms(),
    )
    show(
        "error of all 52 weeks together, 5,000 clients, eps=3 in total",
        ["metric", "monitor", "split evenly", "ratio"],
        last_week(5000, 2 if quick else 8),
    )
    show(
        "years with an alarm though nothing changes",
        ["years", "clients", "alarms", "rate", "stated", "error"],
        false_alarms(40 if quick else 300, 500),
    )
    show(
        "weeks until a change of T from 1 to 1.5 is found, 5,000 clients",
        ["logit scale", "accuracy", "years", "longest", "within 4"],
        delays(2 if quick else 10, 5000),
    )


if __name__ == "__main__":
    main()
