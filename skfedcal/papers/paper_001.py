"""Tables and figures of "Federated Calibration and Evaluation of Binary Classifiers".

As printed: each client has one row, counts of all levels 1 to h of a hierarchy of equal
buckets of the score, prefix sums by as few nodes as possible, noise of DistDP with
eps = 1 and of LocalDP (OUE) with eps = 5. Ours: fewer levels, all of them combined by
least squares, buckets in the mean of probability and log-odds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skfedcal.experiments.results import ResultTable
from skfedcal.papers.items import (
    OURS,
    PRINTED,
    Claim,
    Panel,
    PaperResult,
    Setting,
    below,
    make_items,
)
from skfedcal.papers.public_data import readings_differ

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skfedcal.evaluation.histogram import ScoreHistogram

    Array = NDArray[Any]

MODELS = ("Federated", "DistDP", "LocalDP")
METRICS = ("precision", "recall", "accuracy")
# Folders of the Kaggle competitions of Table 2, their label and the paper's numbers.
KAGGLE = {
    "Sep": ("tabular-playground-series-sep-2021", "claim", 958_000, 0.79),
    "Oct": ("tabular-playground-series-oct-2021", "target", 1_000_000, 0.85),
    "Nov": ("tabular-playground-series-nov-2021", "target", 600_000, 0.73),
}
CLASSIFIERS = {"Sep": "boosting", "Oct": "boosting", "Nov": "logistic regression"}


@dataclass(frozen=True)
class Scores:
    """Scores in [0, 1] and labels; half of them are for calibration.

    data: Name of the data.
    classifier: What made the scores.
    """

    data: str
    classifier: str
    scores: Array
    labels: Array

    def part(self, n: int, seed: int) -> tuple[Array, Array]:
        """Rows of so many clients, drawn with replacement if there are not enough."""
        import numpy as np

        rng = np.random.default_rng([seed, n])
        replace = n > len(self.labels)
        rows = rng.choice(len(self.labels), n, replace=replace)
        return self.scores[rows], self.labels[rows]


def find_scores(setting: Setting) -> list[Scores]:
    """Scores of the files of ``--data``, or of classifiers on drawn rows."""
    if setting.data is None:
        return [_drawn(name, _n_drawn(setting)) for name in CLASSIFIERS]
    found = [s for path in sorted(setting.data.glob("*.npz")) for s in _of_file(path)]
    for name, (folder, label, *_) in KAGGLE.items():
        path = setting.data / folder / "train.csv"
        if path.is_file():
            setting.progress(f"training {CLASSIFIERS[name]} on {path}")
            found.append(_fitted(name, *_of_table(path, label), name))
    if not found:
        raise FileNotFoundError(
            f"{setting.data} has no scores of two classes: expected .npz files of "
            "logits (or prob) and labels, or folders of Kaggle such as "
            f"{KAGGLE['Sep'][0]} with train.csv."
        )
    return found


def _n_drawn(setting: Setting) -> int:
    return setting.pick(200_000, 400_000, 1_000_000)


def some_scores(setting: Setting, usual: int) -> list[Scores]:
    """One data set for a quick run, so many for a usual one, all for a full one."""
    n = setting.pick(1, usual, 3)
    if setting.data is None:
        return [_drawn(name, _n_drawn(setting)) for name in list(CLASSIFIERS)[:n]]
    return find_scores(setting)[:n]


@cache
def _drawn(name: str, n_rows: int) -> Scores:
    """A classifier on rows that are drawn as those of the competitions were."""
    from sklearn.datasets import make_classification

    apart, flipped = {"Sep": (0.6, 0.15), "Oct": (0.8, 0.1), "Nov": (1.2, 0.2)}[name]
    X, y = make_classification(
        n_rows + 4000,
        12,
        n_informative=6,
        n_clusters_per_class=3,
        class_sep=apart,
        flip_y=flipped,
        random_state=list(CLASSIFIERS).index(name),
    )
    return _fitted(f"{name}-like", X, y, name)


def _fitted(data: str, X: Any, y: Any, name: str) -> Scores:
    """Train on a part of the rows, at most 4000, and score the others."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    if CLASSIFIERS[name] == "boosting":
        # Too many steps for so few rows: too sure, as the paper's model of Sep is.
        steps = 300 if name == "Sep" else 60
        clf: Any = HistGradientBoostingClassifier(max_iter=steps, random_state=0)
    else:
        clf = LogisticRegression(C=0.01, max_iter=1000)
    n_train = min(4000, len(y) // 2)
    clf.fit(X[:n_train], y[:n_train])
    scores = clf.predict_proba(X[n_train:])[:, 1]
    return Scores(data, CLASSIFIERS[name], scores, y[n_train:])


def _of_file(path: Path) -> list[Scores]:
    """Scores of a file of two classes; none of any other file."""
    import numpy as np
    from scipy.special import softmax

    with np.load(path, allow_pickle=False) as file:
        if "labels" not in file.files or not {"logits", "prob"} & set(file.files):
            return []
        labels = file["labels"].astype(int)
        if "prob" in file.files and file["prob"].ndim == 1:
            return [Scores(path.stem, "-", file["prob"].astype(float), labels)]
        if "logits" not in file.files or file["logits"].shape[1:] != (2,):
            return []
        scores = softmax(file["logits"].astype(float), axis=1)[:, 1]
    return [Scores(path.stem, "-", scores, labels)]


def _of_table(path: Path, label: str) -> tuple[Array, Array]:
    """Columns of a table of Kaggle but its row number, and its label."""
    import numpy as np

    with path.open() as stream:
        names = stream.readline().strip().split(",")
        if label not in names:
            raise ValueError(f"{path} has no column {label!r}; it has {names[:5]} ...")
        table = np.genfromtxt(stream, delimiter=",")
    place = names.index(label)
    kept = [i for i in range(len(names)) if i != place and names[i] != "id"]
    X = table[:, kept]
    # Logistic regression takes no missing values; those of Sep are its only ones.
    center = np.nanmean(X, axis=0)
    return np.where(np.isnan(X), center, X), table[:, place].astype(int)


# Histograms


def histogram(
    scores: Array, labels: Array, model: str, height: int, seed: int, kind: str
) -> ScoreHistogram:
    """Collect the counts of one row per client, as printed or by our defaults."""
    import numpy as np

    from skfedcal import ScoreHistogram
    from skfedcal.privacy import DistributedDP, LocalDP

    privacy: Any = None
    given: dict[str, Any] = {"height": height, "space": "prob"}
    if model == "DistDP":
        privacy = DistributedDP(1.0)
        given["levels"] = range(1, height + 1)
    elif model == "LocalDP":
        privacy = LocalDP(5.0, oracle="oue")
    if kind == OURS:
        given = {}
        privacy = LocalDP(5.0) if model == "LocalDP" else privacy
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ScoreHistogram.fit(
            scores,
            labels,
            client_ids=np.arange(len(labels)),
            privacy=privacy,
            input_type="proba",
            classes=[0, 1],
            max_examples_per_client=None if privacy is None else 1,
            random_state=seed,
            **given,
        )


def printed_counts(hist: ScoreHistogram) -> Array:
    """Leaf counts as differences of prefix sums by as few nodes as possible (2.3).

    The sum up to leaf r has one node for each bit of r. Under local noise a level is
    known from its own group of clients, and is scaled to all of them.
    """
    import numpy as np

    if hist.noise_.exact:
        return hist.counts_
    height, n = hist.grid.height, hist.n_clients_
    prefix = np.zeros((2, 2**height + 1))
    places = np.arange(1, 2**height)
    for law, total in zip(hist.noise_.levels, hist.totals, strict=True):
        scale = n / law.n_reports if law.local else 1.0
        shift = height - law.bits
        used = (places >> shift) & 1 == 1
        prefix[:, 1:-1][:, used] += scale * total[:, (places[used] >> shift) - 1]
        if law.bits == 1:
            prefix[:, -1] = scale * total.sum(axis=1)
    return np.diff(prefix, axis=1)


def rates(counts: Array, threshold: float) -> dict[str, float]:
    """Precision, recall and accuracy at a threshold, from leaves at or above it."""
    import numpy as np

    size = counts.shape[1]
    first = int(np.ceil(threshold * size - 1e-9))
    negative, positive = counts.sum(axis=1)
    fp, tp = counts[:, first:].sum(axis=1)
    found = {
        "precision": tp / max(fp + tp, 1e-9),
        "recall": tp / max(positive, 1e-9),
        "accuracy": (tp + negative - fp) / max(positive + negative, 1e-9),
    }
    return {name: float(np.clip(value, 0, 1)) for name, value in found.items()}


def rate_errors(
    rows: tuple[Array, Array], model: str, height: int, seed: int, kind: str
) -> list[dict[str, Any]]:
    """Errors of the three metrics at the ten thresholds of section 7.1."""
    scores, labels = rows
    hist = histogram(scores, labels, model, height, seed, kind)
    counts = printed_counts(hist)
    runs = []
    for i in range(1, 11):
        t = i / 11
        tp, fp = (int(((scores >= t) & (labels == k)).sum()) for k in (1, 0))
        positive, n = int(labels.sum()), len(labels)
        truth = {
            "precision": tp / max(tp + fp, 1),
            "recall": tp / positive,
            "accuracy": (tp + n - positive - fp) / n,
        }
        found: Any = (
            rates(counts, t)
            if kind == PRINTED
            else {name: float(getattr(hist, name)(t)) for name in METRICS}
        )
        for name in METRICS:
            error = abs(found[name] - truth[name])
            runs.append({"metric": name, "seed": i, "error": error})
    return runs


def _sweep(
    setting: Setting,
    title: str,
    key: str,
    points: Mapping[str, Sequence[int]],
    rows_of: Callable[[Scores, int, int], tuple[tuple[Array, Array], int]],
) -> tuple[ResultTable, list[Scores]]:
    """Errors of precision, recall and accuracy over heights or numbers of clients."""
    found = some_scores(setting, 2)
    runs: list[dict[str, Any]] = []
    repeats = setting.pick(2, 5, 10)
    for data in found:
        for model in MODELS:
            setting.progress(f"{data.data}, {model}")
            for point in points[model]:
                for kind in (PRINTED, OURS):
                    names = {"data": data.data, "model": model, key: point}
                    for seed in range(repeats):
                        rows, height = rows_of(data, point, seed)
                        made = rate_errors(rows, model, height, seed, kind)
                        runs += [{**names, "kind": kind, **run} for run in made]
    keys = ["data", "model", "kind", "metric", key]
    return ResultTable(title, keys, {"error": ".5f"}, runs), found


def _panels(found: Sequence[Scores], key: str) -> list[Panel]:
    return [
        Panel(
            f"{data.data}, {model}",
            key,
            "error",
            "metric",
            {"data": data.data, "model": model, "kind": PRINTED},
            log=key == "clients",
        )
        for data in found
        for model in MODELS
    ]


def _mean(table: ResultTable, **where: Any) -> float:
    import numpy as np

    value = next(iter(table.values))
    rows = [r for r in table.runs if all(r[k] == v for k, v in where.items())]
    return float(np.mean([r[value] for r in rows]))


def heights(setting: Setting) -> PaperResult:
    """Figure 2: errors of precision, recall and accuracy by height."""
    n = setting.pick(20_000, 100_000, 900_000)
    exact = setting.pick((3, 6, 10), (3, 4, 6, 8, 10, 12, 14), tuple(range(3, 15)))
    noisy = setting.pick((2, 9, 14), (2, 4, 6, 8, 10, 12, 14), tuple(range(2, 15)))
    local = setting.pick((2, 5, 8), (2, 4, 5, 6, 8, 10), tuple(range(2, 11)))
    points = dict(zip(MODELS, (exact, noisy, local), strict=True))
    table, found = _sweep(
        setting,
        f"Figure 2: error of precision, recall and accuracy by height, {n} clients",
        "height",
        points,
        lambda data, height, seed: (data.part(n, seed), height),
    )
    claims = []
    for data in found:
        where = {"data": data.data, "kind": PRINTED}
        by = {
            model: [_mean(table, model=model, height=h, **where) for h in points[model]]
            for model in MODELS
        }
        exact_errors = by["Federated"]
        claims.append(
            below(
                f"{data.data}: exact errors vanish with the height",
                (f"h = {exact[-1]}", exact_errors[-1]),
                (f"a tenth of h = {exact[0]}", exact_errors[0] / 10),
            )
        )
        for model in MODELS[1:]:
            first, *middle, last = by[model]
            claims.append(
                below(
                    f"{data.data}: under {model} a middle height is best",
                    ("best between", min(middle)),
                    ("ends", min(first, last)),
                )
            )
        claims.append(
            below(
                f"{data.data}: LocalDP has larger errors than DistDP",
                ("DistDP", min(by["DistDP"])),
                ("LocalDP", min(by["LocalDP"])),
            )
        )
    notes = ["errors over ten thresholds 1/11 to 10/11; ours takes its own height"]
    return PaperResult(table, claims, panels=_panels(found, "height"), notes=notes)


def populations(setting: Setting) -> PaperResult:
    """Figure 3: errors of precision, recall and accuracy by number of clients."""
    sizes = setting.pick(
        (1000, 10_000, 40_000),
        (1000, 3000, 10_000, 30_000, 100_000),
        (1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000),
    )
    table, found = _sweep(
        setting,
        "Figure 3: error of precision, recall and accuracy by clients, h = 10",
        "clients",
        dict.fromkeys(MODELS, sizes),
        lambda data, n, seed: (data.part(n, seed), 10),
    )
    claims = []
    for data in found:
        for model in MODELS[1:]:
            ends = [
                _mean(table, data=data.data, model=model, kind=PRINTED, clients=n)
                for n in (sizes[-1], sizes[0])
            ]
            claims.append(
                below(
                    f"{data.data}: under {model} errors fall with the clients",
                    (f"{sizes[-1]}", ends[0]),
                    (f"a third of {sizes[0]}", ends[1] / 3),
                )
            )
    return PaperResult(table, claims, panels=_panels(found, "clients"))


# Area under the curve


def areas(setting: Setting) -> PaperResult:
    """Figure 4: error of the area under the ROC curve by buckets."""
    import numpy as np
    from sklearn.metrics import roc_auc_score

    from skfedcal.evaluation.grid import equal_mass
    from skfedcal.evaluation.ranking import auc_with_gradient

    found = some_scores(setting, 2)
    n = setting.pick(20_000, 100_000, 500_000)
    buckets = setting.pick((5, 20, 100), (3, 5, 10, 20, 40, 100), (3, 5, 10, 20, 40,
        60, 100, 200))  # fmt: skip
    runs: list[dict[str, Any]] = []
    for data in found:
        for model in MODELS:
            setting.progress(f"{data.data}, {model}")
            for seed in range(setting.pick(5, 10, 10)):
                scores, labels = data.part(n, seed)
                truth = roc_auc_score(labels, scores)
                counts = printed_counts(
                    histogram(scores, labels, model, 10, seed, PRINTED)
                )
                ours = histogram(scores, labels, model, 10, seed, OURS).roc_auc()
                size = counts.shape[1]
                for b in buckets:
                    names = {"data": data.data, "model": model, "buckets": b}
                    firsts = {
                        "quantile": equal_mass(counts, b),
                        "uniform": np.arange(b) * size // b,
                    }
                    merged = {
                        line: np.add.reduceat(counts, first, axis=1)
                        for line, first in firsts.items()
                    }
                    seen = np.maximum(merged["quantile"], 0)
                    sums = counts.sum(axis=1)
                    values = {
                        line: abs(auc_with_gradient(own)[0] - truth)
                        for line, own in merged.items()
                    }
                    values["worst case"] = float(
                        (seen[0] * seen[1]).sum() / (2 * sums[0] * sums[1])
                    )
                    values["1 / 2B"], values["1 / 3B^2"] = 1 / (2 * b), 1 / (3 * b**2)
                    rows = [(PRINTED, line, v) for line, v in values.items()]
                    rows.append((OURS, "all buckets", abs(ours - truth)))
                    runs += [
                        {
                            **names,
                            "kind": kind,
                            "line": line,
                            "seed": seed,
                            "error": float(v),
                        }
                        for kind, line, v in rows
                    ]
    table = ResultTable(
        f"Figure 4: error of the area under the ROC curve by buckets, {n} clients",
        ["data", "model", "kind", "line", "buckets"],
        {"error": ".6f"},
        runs,
    )
    claims = [claim for data in found for claim in _area_claims(table, data, buckets)]
    panels = [
        Panel(
            f"{data.data}, {model}",
            "buckets",
            "error",
            "line",
            {"data": data.data, "model": model},
            log=True,
        )
        for data in found
        for model in MODELS
    ]
    return PaperResult(table, claims, panels=panels)


def _area_claims(
    table: ResultTable, data: Scores, buckets: Sequence[int]
) -> list[Claim]:
    def error(model: str, line: str, b: int) -> float:
        return _mean(table, data=data.data, model=model, line=line, buckets=b)

    few, many = buckets[0], buckets[-1]
    name = data.data
    return [
        below(
            f"{name}: with exact sums, the worst case is of the order of 1 / 2B",
            ("worst case", error("Federated", "worst case", many)),
            ("twice 1 / 2B", 1 / many),
        ),
        below(
            f"{name}: with exact sums, the error is of the order of 1 / B^2",
            ("quantile", error("Federated", "quantile", many)),
            ("1 / B^2", 1 / many**2),
        ),
        below(
            f"{name}: with exact sums, quantiles beat uniform buckets",
            ("quantile", error("Federated", "quantile", few)),
            ("uniform", error("Federated", "uniform", few)),
        ),
        below(
            f"{name}: noise of DistDP is a limit that more buckets do not pass",
            ("exact", error("Federated", "quantile", many)),
            ("DistDP", error("DistDP", "quantile", many)),
        ),
        below(
            f"{name}: LocalDP has larger errors than DistDP",
            ("DistDP", error("DistDP", "quantile", many)),
            ("LocalDP", error("LocalDP", "quantile", many)),
        ),
    ]


# Calibration


def calibrations(setting: Setting) -> PaperResult:
    """Figure 5: calibration error by bins, uncalibrated, isotonic, bins and BBQ."""
    from skfedcal.metrics import calibration_error

    found = some_scores(setting, 3)
    n = setting.pick(100_000, 100_000, 300_000)
    bins = setting.pick((5, 20, 50), (5, 10, 20, 50, 100), (5, 10, 20, 50, 100, 200))
    runs: list[dict[str, Any]] = []
    for data in found:
        for model in MODELS:
            setting.progress(f"{data.data}, {model}")
            for seed in range(setting.pick(2, 5, 10)):
                scores, labels = data.part(2 * n, seed)
                maps = _maps(scores[:n], labels[:n], model, seed, bins)
                test, truth = scores[n:], labels[n:]
                for b in bins:
                    for kind, line, b_own, apply in maps:
                        if b_own not in (None, b):
                            continue
                        error = calibration_error(truth, apply(test), n_bins=b)
                        names = {"data": data.data, "model": model, "kind": kind}
                        row = {**names, "line": line, "bins": b, "seed": seed}
                        runs.append({**row, "ECE": float(error)})
    table = ResultTable(
        f"Figure 5: calibration error by evaluation bins, {n} clients",
        ["data", "model", "kind", "line", "bins"],
        {"ECE": ".4f"},
        runs,
    )
    claims = []
    for data in found:
        name = data.data
        mean = {
            (model, line): _mean(table, data=name, model=model, line=line)
            for model in MODELS
            for line in ("uncalibrated", "bins", "BBQ")
        }
        base = ("uncalibrated", mean["Federated", "uncalibrated"])
        claims += [
            below(
                f"{name}: bins of exact sums improve on the scores",
                ("bins", mean["Federated", "bins"]),
                base,
            ),
            below(
                f"{name}: BBQ of exact sums improves on the scores",
                ("BBQ", mean["Federated", "BBQ"]),
                base,
            ),
            below(
                f"{name}: noise of DistDP changes little",
                ("DistDP", mean["DistDP", "bins"]),
                ("Federated", mean["Federated", "bins"]),
                slack=0.005,
            ),
            below(
                f"{name}: LocalDP has larger errors",
                ("DistDP", mean["DistDP", "bins"]),
                ("LocalDP", mean["LocalDP", "bins"]),
            ),
        ]
    panels = [
        Panel(
            f"{data.data}, {model}",
            "bins",
            "ECE",
            "line",
            {"data": data.data, "model": model},
        )
        for data in found
        for model in MODELS
    ]
    return PaperResult(table, claims, panels=panels)


def _maps(
    scores: Array, labels: Array, model: str, seed: int, bins: Sequence[int]
) -> list[tuple[str, str, int | None, Callable[[Array], Array]]]:
    """Kind, line, bins (None: all) and map from scores to probabilities."""
    import numpy as np
    from sklearn.isotonic import IsotonicRegression

    from skfedcal import FedHistogramCalibrator
    from skfedcal.evaluation.grid import equal_mass
    from skfedcal.methods.score_curves.curves import Leaves, fit_quantile_bbq, odds_of

    height = 6 if model == "LocalDP" else 10
    hist = histogram(scores, labels, model, height, seed, PRINTED)
    counts, size = printed_counts(hist), 2**height

    def leaf(test: Array) -> Array:
        return np.minimum((test * size).astype(int), size - 1)

    isotonic = IsotonicRegression(out_of_bounds="clip").fit(scores, labels)
    out: list[Any] = [
        (PRINTED, "uncalibrated", None, lambda test: test),
        (PRINTED, "isotonic, central", None, isotonic.predict),
    ]
    for b in bins:
        first = equal_mass(counts, b)
        own = np.maximum(np.add.reduceat(counts, first, axis=1), 0.0)
        rate = np.divide(own[1], own.sum(axis=0), out=np.full(len(first), 0.5),
                         where=own.sum(axis=0) > 0)  # fmt: skip
        table = rate[np.searchsorted(first, np.arange(size), "right") - 1]
        out.append((PRINTED, "bins", b, partial(_looked_up, table, leaf)))
    leaves = Leaves(
        counts, odds_of(hist.grid.centres), odds_of(hist.grid.edges[1:-1]), hist.noise_
    )
    table = fit_quantile_bbq(leaves).values
    out.append((PRINTED, "BBQ", None, partial(_looked_up, table, leaf)))
    privacy: Any = hist_privacy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cal = FedHistogramCalibrator(
            privacy=privacy, classes=[0, 1], random_state=seed
        ).fit(odds_of(scores), labels, client_ids=np.arange(len(labels)))
    out.append(
        (OURS, "auto", None, lambda test: cal.predict_proba(odds_of(test))[:, 1])
    )
    return out


def _looked_up(table: Array, leaf: Callable[[Array], Any], test: Array) -> Array:
    return table[leaf(test)]


def hist_privacy(model: str) -> Any:
    """Privacy model of our calibrators, with the budgets of the paper."""
    from skfedcal.privacy import DistributedDP, LocalDP

    return {"DistDP": DistributedDP(1.0), "LocalDP": LocalDP(5.0)}.get(model)


# Tables


def bounds(setting: Setting) -> PaperResult:
    """Table 1: bounds in three privacy models, and what was measured."""
    import numpy as np
    from sklearn.metrics import roc_auc_score

    from skfedcal.evaluation import auc_bound, calibration_bound, rates_bound
    from skfedcal.evaluation.ranking import auc_with_gradient
    from skfedcal.metrics import calibration_error

    n, height = setting.pick(20_000, 100_000, 900_000), 10
    (data,) = some_scores(setting, 1)
    trusts: dict[str, tuple[Any, float | None]] = {
        "Federated": ("exact", None),
        "DistDP": ("distributed", 1.0),
        "LocalDP": ("local", 5.0),
    }
    runs: list[dict[str, Any]] = []
    for model, (trust, eps) in trusts.items():
        given: dict[str, Any] = {"trust": trust, "eps": eps}
        n_bins = max(int(n ** (1 / 3)), 2)
        stated = {
            "P/R/A": rates_bound(n, **given, n_buckets=2**height)[0],
            "ROC AUC": auc_bound(n, 2**height, **given, height=height),
            "ECE": calibration_bound(n, **given)[0],
        }
        for seed in range(setting.pick(3, 10, 10)):
            scores, labels = data.part(n, seed)
            hist = histogram(scores, labels, model, height, seed, PRINTED)
            counts = printed_counts(hist)
            errors = [
                run["error"]
                for run in rate_errors((scores, labels), model, height, seed, PRINTED)
            ]
            area = abs(auc_with_gradient(counts)[0] - roc_auc_score(labels, scores))
            maps = _maps(scores[: n // 2], labels[: n // 2], model, seed, [n_bins])
            apply = next(m[3] for m in maps if m[1] == "bins")
            left = calibration_error(
                labels[n // 2 :], apply(scores[n // 2 :]), n_bins=n_bins
            )
            measured = {"P/R/A": float(np.mean(errors)), "ROC AUC": area, "ECE": left}
            for metric, value in measured.items():
                row = {"metric": metric, "model": model, "seed": seed}
                runs.append({**row, "kind": PRINTED, "error": float(value)})
        for metric, value in stated.items():
            row = {"metric": metric, "model": model, "seed": 0}
            runs.append({**row, "kind": "bound", "error": float(value)})
    table = ResultTable(
        f"Table 1: order of the error bounds, and errors; {n} clients, h = {height}",
        ["metric", "kind", "model"],
        {"error": ".5f"},
        runs,
    )
    claims = [
        below(
            f"{metric} is below its bound in every model",
            (
                "largest ratio",
                max(
                    _mean(table, metric=metric, model=m, kind=PRINTED)
                    / _mean(table, metric=metric, model=m, kind="bound")
                    for m in MODELS
                ),
            ),
            ("3 (bounds are orders)", 3.0),
        )
        for metric in ("P/R/A", "ROC AUC", "ECE")
    ]
    return PaperResult(table, claims, "model", "error")


def data_table(setting: Setting) -> PaperResult:
    """Table 2: data, classifiers and their areas."""
    from sklearn.metrics import roc_auc_score

    runs: list[dict[str, Any]] = []
    for data in find_scores(setting):
        names = {"data": data.data, "kind": "here", "classifier": data.classifier}
        area = roc_auc_score(data.labels, data.scores)
        row = {**names, "seed": 0, "rows": len(data.labels)}
        runs.append({**row, "ROC AUC": float(area)})
        if data.data in KAGGLE:
            _, _, rows, area = KAGGLE[data.data]
            row = {**names, "kind": "paper", "seed": 0, "rows": rows}
            runs.append({**row, "ROC AUC": area})
    table = ResultTable(
        "Table 2: data and classifiers",
        ["data", "kind", "classifier"],
        {"rows": ".0f", "ROC AUC": ".2f"},
        runs,
    )
    return PaperResult(table, [])


def bbq_bins(setting: Setting) -> PaperResult:
    """Section 7.3: bins of equal mass, or nested bins of equal width."""
    import numpy as np

    from skfedcal import FedHistogramCalibrator
    from skfedcal.methods.score_curves.rounds import odds_of
    from skfedcal.metrics import calibration_error

    n = setting.pick(20_000, 100_000, 300_000)
    runs: list[dict[str, Any]] = []
    readings = {"equal mass (bbq_quantile)": "bbq_quantile", "equal width (bbq)": "bbq"}
    for data in some_scores(setting, 3):
        for model in MODELS:
            for seed in range(setting.pick(3, 5, 10)):
                scores, labels = data.part(2 * n, seed)
                odds, truth = odds_of(scores), labels[n:]
                for reading, method in readings.items():
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        cal = FedHistogramCalibrator(
                            method=method,  # type: ignore[arg-type]
                            privacy=hist_privacy(model),
                            if_improves=False,
                            classes=[0, 1],
                            random_state=seed,
                        ).fit(odds[:n], labels[:n], client_ids=np.arange(n))
                    proba = cal.predict_proba(odds[n:])[:, 1]
                    error = calibration_error(truth, proba, n_bins=20)
                    names = {"data": data.data, "model": model, "reading": reading}
                    loss = -np.log(np.where(truth == 1, proba, 1 - proba)).mean()
                    run = {**names, "seed": seed, "ECE": float(error)}
                    runs.append({**run, "NLL": float(loss)})
    table = ResultTable(
        "Section 7.3: bins that BBQ averages",
        ["data", "reading", "model"],
        {"ECE": ".4f", "NLL": ".4f"},
        runs,
    )
    return PaperResult(table, [readings_differ(table)], "model", "ECE")


_HIERARCHY = (
    "Theorem 5 counts the noise of one level of buckets; a hierarchy that finds their "
    "quantiles has h levels, with h times the noise on each"
)
_ITEMS: tuple[tuple[Any, ...], ...] = (
    ("table", "1", "error bounds in three privacy models",
     "Errors are of the order of the bounds.", bounds, _HIERARCHY),
    ("table", "2", "data and classifiers", "Three tasks of two classes.",
     data_table, None),
    ("figure", "2", "precision, recall, accuracy by height",
     "Exact errors vanish with the height; under noise a middle height is best.",
     heights, ""),
    ("figure", "3", "precision, recall, accuracy by clients",
     "Errors fall with the number of clients under noise.", populations, ""),
    ("figure", "4", "area under the ROC curve by buckets",
     "1 / 2B at worst, 1 / B^2 in fact; quantile buckets are best; noise is a limit.",
     areas, ""),
    ("figure", "5", "calibration error by bins",
     "Bins and BBQ improve the scores; DistDP changes little, LocalDP does harm.",
     calibrations, ""),
    ("reading", "7.3", "bins that BBQ averages",
     "BBQ of Naeini et al. has bins of equal mass; nested bins of equal width are "
     "those of FedBBQ.", bbq_bins, ""),
)  # fmt: skip
ITEMS = make_items("001", _ITEMS)
