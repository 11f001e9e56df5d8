"""Heights that `height="auto"` chooses, against the best fixed height.

python -m benchmarks.evaluation_plans [--quick]

For each number of rows, eps and model of scores: the root mean square error of the area
under the curve and of average precision with every fixed height, and with the levels
that ``height="auto"`` has. The error is the distance to the number of the model. All
heights see the same rows, and the same noise where they have as many levels; draws are
added until `ratio` is three standard errors away from 1.1, or there are `--draws`.
Counts have the noise of `CentralDP`.
"""

import argparse
import warnings

import numpy as np

from benchmarks._harness import print_table
from skfedcal.evaluation import ScoreHistogram
from skfedcal.evaluation.grid import ScoreGrid
from skfedcal.evaluation.noise import level_noise, release_levels, rollup
from skfedcal.evaluation.planning import ScoreModel, auto_release
from skfedcal.evaluation.ranking import auc_with_gradient, average_precision
from skfedcal.privacy import CentralDP
from skfedcal.privacy.events import PrivacyReport

SIZES, BUDGETS = (1000, 10_000, 100_000), (0.5, 1.0, 5.0)
MODELS = (ScoreModel(0.3, 0.8), ScoreModel(0.1, 0.9), ScoreModel(0.5, 0.7))
METRICS = ("roc_auc", "average_precision")
HEIGHTS = range(3, 12)
# Leaves that stand for scores without buckets, and those that are kept of each draw.
FINE, KEPT = 14, 11
MOST, N_ERRORS, BATCH = 1.1, 3, 200


def answer(metric, totals, law, n):
    """Metric of one release; an area without rows of a class is 1/2 from the truth."""
    if metric == "roc_auc":
        counts = law.estimate(totals)
        if (counts.sum(axis=1) <= 0).any():
            return np.nan
        return auc_with_gradient(counts)[0]
    hist = ScoreHistogram(
        totals, law, ScoreGrid(law.bits[-1], "both"), kind="binary", classes=[0, 1],
        weighting="example", n_clients=n, privacy=PrivacyReport(eps=1.0),
    )  # fmt: skip
    return float(hist.average_precision())


def errors(metric, n, eps, model, choices, batch):
    """Errors of all choices of levels in one batch, of shape (n_choices, BATCH)."""
    rows = np.random.default_rng([batch, n])
    cells = model.cells(ScoreGrid(FINE, "both"))
    exact = average_precision(cells, exact=False)[0]
    truth = model.auc if metric == "roc_auc" else exact
    drawn = rows.multinomial(n, cells.ravel(), size=BATCH).reshape(BATCH, 2, -1)
    counts, noise, found = rollup(drawn, KEPT), {}, []
    for levels in choices:
        law, totals = level_noise(CentralDP(eps), levels).model, []
        for bits in levels:
            key = len(levels), bits
            if key not in noise:
                chance = -np.expm1(-eps / len(levels))
                rng = np.random.default_rng([batch, *key])
                both = rng.geometric(chance, (2, BATCH, 2, 2**bits))
                noise[key] = both[0] - both[1]
            totals.append((rollup(counts, bits) + noise[key]).astype(float))
        each = [answer(metric, one, law, n) for one in zip(*totals, strict=True)]
        found.append(np.nan_to_num(np.array(each) - truth, nan=0.5))
    return np.array(found)


def measure(metric, n, eps, model, n_draws):
    """Row of the table: the best fixed height, and the automatic levels."""
    privacy = CentralDP(eps)
    auto = auto_release(metric, n, privacy)
    fixed = [release_levels(privacy, h, "auto") for h in HEIGHTS]
    choices = list(dict.fromkeys([auto, *fixed]))
    squares = np.empty((len(choices), 0))
    for batch in range(max(n_draws // BATCH, 1)):
        new = errors(metric, n, eps, model, choices, batch) ** 2
        squares = np.append(squares, new, axis=1)
        means = squares.mean(axis=1)
        best = min(map(choices.index, fixed), key=means.__getitem__)
        ratio = np.sqrt(means[0] / means[best])
        gap = squares[0] / means[0] - squares[best] / means[best]
        # Of the logarithm of the ratio of two roots.
        error = ratio * gap.std() / (2 * np.sqrt(gap.size))
        if batch and abs(ratio - MOST) > N_ERRORS * error:
            break
    return {
        "metric": metric,
        "rows": n,
        "eps": eps,
        "positives": model.positive_rate,
        "AUC": model.auc,
        "best levels": str(choices[best]),
        "best rmse": np.sqrt(means[best]),
        "auto levels": str(auto),
        "auto rmse": np.sqrt(means[0]),
        "ratio": ratio,
        "its error": error,
        "height 10": np.sqrt(means[choices.index(fixed[7])] / means[best]),
        "draws": gap.size,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer draws and models")
    parser.add_argument("--draws", type=int, default=4000)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    models, n_draws = (MODELS[:1], 400) if args.quick else (MODELS, args.draws)
    rows = [
        measure(metric, n, eps, model, n_draws)
        for metric in METRICS
        for n in SIZES
        for eps in BUDGETS
        for model in models
    ]
    print_table(rows)
    for metric in METRICS:
        worst = max(
            (r for r in rows if r["metric"] == metric), key=lambda r: r["ratio"]
        )
        over = sum(
            r["metric"] == metric and r["ratio"] > MOST + 2 * r["its error"]
            for r in rows
        )
        print(
            f"{metric}: largest ratio {worst['ratio']:.3f} +- {worst['its error']:.3f}"
            f" at {worst['rows']} rows, eps {worst['eps']:g}; {over} above {MOST}"
        )


if __name__ == "__main__":
    main()
