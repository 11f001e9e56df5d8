"""Heights that `height="auto"` chooses, against the best fixed height.

python -m benchmarks.evaluation_plans [--quick]

For each number of rows, eps and model of scores: the root mean square error of the area
under the curve and of average precision with every fixed height, and with the levels
that ``height="auto"`` has. `ratio` is that of the errors, the distance to the number of
the model. `of noise` is that of the distance to the exact number of the same rows: the
part of the error that heights do not have in common. Counts are drawn with the noise of
`CentralDP` and answered by `ScoreHistogram`.
"""

import argparse
import warnings

import numpy as np

from benchmarks._harness import print_table
from skfedcal.evaluation import ScoreHistogram
from skfedcal.evaluation.grid import ScoreGrid
from skfedcal.evaluation.noise import level_noise, release_levels
from skfedcal.evaluation.planning import ScoreModel, auto_release
from skfedcal.evaluation.ranking import auc_with_gradient, average_precision
from skfedcal.privacy import CentralDP
from skfedcal.privacy.events import PrivacyReport

SIZES, BUDGETS = (1000, 10_000, 100_000), (0.5, 1.0, 5.0)
MODELS = (ScoreModel(0.3, 0.8), ScoreModel(0.1, 0.9), ScoreModel(0.5, 0.7))
METRICS = ("roc_auc", "average_precision")
HEIGHTS = range(3, 12)
# Leaves that stand for scores without buckets.
FINE = 14


def exact(metric, cells):
    if metric == "roc_auc":
        return auc_with_gradient(cells)[0]
    return average_precision(cells, exact=False)[0]


def errors(metric, n, eps, model, levels, n_draws, seed=0):
    """Errors of repeated releases of these levels; the rows do not depend on them.

    Of shape (2, n_draws): distances to the number of the model and to that of the rows.
    """
    rows, noise = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    cells = model.cells(ScoreGrid(FINE, "both")).ravel()
    law = level_noise(CentralDP(eps), levels).model
    chance = -np.expm1(-eps / len(levels))
    truth = exact(metric, cells.reshape(2, -1))
    report = PrivacyReport(eps=eps)
    found = []
    for _ in range(n_draws):
        counts = rows.multinomial(n, cells).reshape(2, -1)
        totals = []
        for bits in levels:
            total = counts.reshape(2, 2**bits, -1).sum(axis=-1)
            drawn = noise.geometric(chance, (2, *total.shape))
            totals.append((total + drawn[0] - drawn[1]).astype(float))
        hist = ScoreHistogram(
            totals, law, ScoreGrid(levels[-1], "both"), kind="binary", classes=[0, 1],
            weighting="example", n_clients=n, privacy=report,
        )  # fmt: skip
        value = float(getattr(hist, metric)())
        found.append([value - truth, value - exact(metric, counts)])
    return np.array(found).T


def rmse(found):
    """Root mean squares; an area without rows of a class counts as an error of 1/2."""
    return np.sqrt(np.mean(np.nan_to_num(found, nan=0.5) ** 2, axis=1))


def measure(metric, n, eps, model, n_draws):
    """Row of the table: the best fixed height, and the automatic levels."""
    privacy = CentralDP(eps)
    fixed = {
        h: rmse(errors(metric, n, eps, model, release_levels(privacy, h, "auto"),
                       n_draws))
        for h in HEIGHTS
    }  # fmt: skip
    best = min(fixed, key=lambda h: fixed[h][0])
    levels = auto_release(metric, n, privacy)
    own = rmse(errors(metric, n, eps, model, levels, n_draws))
    return {
        "metric": metric,
        "rows": n,
        "eps": eps,
        "positives": model.positive_rate,
        "AUC": model.auc,
        "best height": best,
        "best rmse": fixed[best][0],
        "auto levels": str(levels),
        "auto rmse": own[0],
        "ratio": own[0] / fixed[best][0],
        "of noise": own[1] / min(both[1] for both in fixed.values()),
        "height 10": fixed[10][0] / fixed[best][0],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer draws and models")
    parser.add_argument("--draws", type=int, default=200)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    models, n_draws = (MODELS[:1], 60) if args.quick else (MODELS, args.draws)
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
        print(f"{metric}: largest ratio {worst['ratio']:.2f} at {worst['rows']} rows, "
              f"eps {worst['eps']:g}")  # fmt: skip


if __name__ == "__main__":
    main()
