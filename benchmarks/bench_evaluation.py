"""Federated evaluation on real files against scikit-learn, and a million clients.

python -m benchmarks.bench_evaluation FOLDER

Three parts, which end with exit code 1 if a promise is not kept. Exact sums: the area
within its certificate and 1e-4 of scikit-learn's, answers at ten thresholds equal
(functions) or within their own bounds (histogram). Noise: rows of a file are drawn with
replacement, one for each client, so that the numbers of the file are those of the
population; 95 of 100 intervals hold them. Time: `ScoreHistogram.fit` and an area, from
arrays of a million clients with one row each, in CPU seconds of one core.
"""

import sys
import time
import warnings
from pathlib import Path

import numpy as np
from scipy.special import expit
from sklearn import metrics

from benchmarks._harness import arguments, print_table, write_json
from skfedcal import ScoreHistogram, evaluation, load_federation
from skfedcal.privacy import CentralDP, DistributedDP, LocalDP, SourceDP

FILES = ("bin_538_games", "imdb_cleanlab_cv", "fed_adult_gbm", "fed_tv16_mlp")
THRESHOLDS = np.linspace(0.05, 0.95, 10)
KINDS = ("accuracy", "precision", "recall")
NOISY = (DistributedDP(1.0), LocalDP(5.0))
MODELS = (None, CentralDP(1.0), *NOISY, SourceDP(1.0))


def exact(name, odds, labels):
    """Compare exact sums of one file with scikit-learn."""
    hist, scores = ScoreHistogram.fit(odds, labels), expit(odds)
    area = hist.roc_auc()
    off = abs(area - metrics.roc_auc_score(labels, odds))
    ends, inside, functions = [], True, 0.0
    for threshold in THRESHOLDS:
        for kind in KINDS:
            truth = getattr(metrics, f"{kind}_score")(labels, scores >= threshold)
            found = getattr(hist, kind)(threshold)
            ends.append(abs(found - truth))
            inside &= ends[-1] <= found.discretisation + 1e-12
            one = getattr(evaluation, f"federated_{kind}_score")
            found = one(odds, labels, threshold=threshold)
            functions = max(functions, abs(found - truth))
    kept = off <= area.discretisation and off < 1e-4 and inside and functions < 1e-9
    return {
        "file": name,
        "rows": len(labels),
        "area off": off,
        "certificate": area.discretisation,
        "histogram off": max(ends),
        "functions off": functions,
        "kept": bool(kept),
    }


def coverage(name, odds, labels, model, repeats):
    """Part of the intervals that hold the numbers of the file."""
    truth = {
        "roc_auc": metrics.roc_auc_score(labels, odds),
        "accuracy": np.mean((odds >= 0) == labels),
        "brier": np.mean((expit(odds) - labels) ** 2),
    }
    rng, inside = np.random.default_rng(0), dict.fromkeys(truth, 0)
    for seed in range(repeats):
        drawn = rng.integers(0, len(labels), len(labels))
        hist = ScoreHistogram.fit(
            odds[drawn], labels[drawn], client_ids=np.arange(len(labels)),
            classes=[0, 1], privacy=model, random_state=seed,
        )  # fmt: skip
        for kind, true in truth.items():
            found = getattr(hist, kind)()
            inside[kind] += bool(found.low <= true <= found.high)
    shares = {kind: n / repeats for kind, n in inside.items()}
    # .92 to .98 at 300 repeats is 2.4 standard errors; as many at other numbers.
    slack = 0.03 * np.sqrt(300 / repeats)
    kept = all(abs(share - 0.95) <= slack for share in shares.values())
    return {"file": name, "privacy": repr(model), **shares, "kept": bool(kept)}


def n_repeats(n):
    """How often a call on so many rows is timed."""
    return max(3, 300_000 // n)


def million(n=1_000_000):
    """CPU seconds from arrays to an area, best of several."""
    rng = np.random.default_rng(0)
    scores = rng.random(n)
    labels, ids = (rng.random(n) < scores).astype(int), np.arange(n)
    rows = []
    for model in MODELS:
        best = np.inf
        for _ in range(n_repeats(n)):
            start = time.process_time()
            ScoreHistogram.fit(
                scores, labels, client_ids=ids, input_type="proba", classes=[0, 1],
                privacy=model,
            ).roc_auc()  # fmt: skip
            best = min(best, time.process_time() - start)
        rows.append({"privacy": repr(model), "seconds": best, "kept": best < 0.5})
    return rows


def main():
    """Measure, print, write, and fail if a promise is not kept."""
    parser = arguments("evaluation", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeats", type=int, default=300)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    tables = [[], [], million()]
    for name in FILES:
        fed = load_federation(options.folder / f"{name}.npz")
        logits, labels = np.asarray(fed.logits, float), np.asarray(fed.labels)
        odds = logits[:, -1] - (logits[:, 0] if logits.shape[1] == 2 else 0)
        tables[0].append(exact(name, odds, labels))
        tables[1] += [
            coverage(name, odds, labels, model, options.repeats) for model in NOISY
        ]
    for rows in tables:
        print_table(rows)
    write_json(options.out, [row for rows in tables for row in rows])
    sys.exit(0 if all(row["kept"] for rows in tables for row in rows) else 1)


if __name__ == "__main__":
    main()
