"""Time of the metrics in U, next to peers that give the same answer."""

import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks._harness import (  # isort: skip  (sets the number of threads)
    arguments,
    cpu_best,
    make_logits,
    optional,
    print_table,
    unit,
    write_json,
)

import numpy as np
from scipy.special import softmax
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss

from skfedcal import metrics

N_BINS = 15
# torchmetrics sums in float32.
TOLERANCE = {"torchmetrics": 2e-4}

Call = Callable[[], Any]


def curve_error(correct: np.ndarray, confidence: np.ndarray) -> float:
    """Return the ECE from scikit-learn's reliability curve."""
    rate, mean = calibration_curve(correct, confidence, n_bins=N_BINS)
    edges = np.linspace(0, 1, N_BINS + 1)[1:-1]
    counts = np.bincount(np.searchsorted(edges, confidence), minlength=N_BINS)
    return float(np.average(abs(rate - mean), weights=counts[counts > 0]))


def top_label_calls(y: np.ndarray, proba: np.ndarray) -> dict[str, Call]:
    """Return calls that compute the top-label ECE from probabilities."""

    def of_confidence(error: Callable[[np.ndarray, np.ndarray], float]) -> float:
        return error((proba.argmax(axis=1) == y).astype(int), proba.max(axis=1))

    labels = np.arange(proba.shape[1])
    calls: dict[str, Call] = {
        "skfedcal": partial(
            metrics.expected_calibration_error, y, proba, labels=labels
        ),
        "sklearn curve": partial(of_confidence, curve_error),
    }
    if netcal := optional("netcal.metrics"):
        calls["netcal"] = lambda: netcal.ECE(N_BINS).measure(proba, y)
    if probcal := optional("probcal.metrics"):
        width = partial(probcal.ece, n_bins=N_BINS, strategy="width")
        calls["probcal"] = partial(of_confidence, width)
    peer = optional("torchmetrics.functional.classification")
    if peer and (torch := optional("torch")):
        tensors = torch.tensor(proba), torch.tensor(y)
        calls["torchmetrics"] = lambda: float(
            peer.multiclass_calibration_error(*tensors, proba.shape[1], N_BINS)
        )
    return calls


def classwise_calls(y: np.ndarray, proba: np.ndarray) -> dict[str, Call]:
    """Return calls that compute cwECE; peers run once per class."""
    classes = range(proba.shape[1])

    def per_class(error: Callable[[np.ndarray, np.ndarray], float]) -> float:
        return float(np.mean([error(y == k, proba[:, k]) for k in classes]))

    calls: dict[str, Call] = {
        "skfedcal": partial(
            metrics.classwise_calibration_error, y, proba, labels=list(classes)
        )
    }
    if netcal := optional("netcal.metrics"):
        calls["netcal"] = partial(
            per_class, lambda t, p: netcal.ECE(N_BINS).measure(p, t.astype(int))
        )
    if probcal := optional("probcal.metrics"):
        width = partial(probcal.ece, n_bins=N_BINS, strategy="width")
        calls["probcal"] = partial(per_class, lambda t, p: width(t.astype(int), p))
    peer = optional("torchmetrics.functional.classification")
    if peer and (torch := optional("torch")):
        calls["torchmetrics"] = partial(
            per_class,
            lambda t, p: float(
                peer.binary_calibration_error(
                    torch.tensor(p), torch.tensor(t).int(), N_BINS
                )
            ),
        )
    return calls


def score_calls(y: np.ndarray, proba: np.ndarray) -> dict[str, dict[str, Call]]:
    """Return calls of the proper scores and of the floor."""
    labels = np.arange(proba.shape[1])
    pairs: dict[str, tuple[Callable[..., float], Callable[..., float]]] = {
        "brier": (metrics.brier_score, brier_score_loss),
        "nll": (metrics.negative_log_likelihood, log_loss),
    }
    calls: dict[str, dict[str, Call]] = {
        name: {
            "skfedcal": partial(ours, y, proba, labels=labels),
            "sklearn": partial(theirs, y, proba, labels=labels),
        }
        for name, (ours, theirs) in pairs.items()
    }
    floor = partial(metrics.calibration_floor, proba, random_state=0)
    calls["cwece floor, 100 draws"] = {"skfedcal": floor}
    return calls


def check_agreement(metric: str, calls: dict[str, Call], dtype: type) -> None:
    """Raise when a peer gives another number; timing it would mean nothing."""
    ours = calls["skfedcal"]()
    for name, call in calls.items():
        if name == "skfedcal":
            continue
        tolerance = TOLERANCE.get(name, 1e-10 if dtype is np.float64 else 2e-4)
        if abs(call() - ours) > tolerance:
            raise AssertionError(f"{metric}: {name} {call()} but skfedcal {ours}")


def peak_share(call: Call, proba: np.ndarray) -> float:
    """Return peak extra memory of a call as a share of the input."""
    call()
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / proba.nbytes


def bench_shape(
    n_rows: int, n_classes: int, dtype: type, seconds: float
) -> list[dict[str, Any]]:
    """Return one row per metric and implementation."""
    logits, y = make_logits(n_rows, n_classes, dtype)
    proba = softmax(logits, axis=1)
    rows = []
    table = {
        "ece": top_label_calls(y, proba),
        "cwece": classwise_calls(y, proba),
        **score_calls(y, proba),
    }
    for metric, calls in table.items():
        check_agreement(metric, calls, dtype)
        times: dict[str, float] = {}
        for name, call in calls.items():
            pair = cpu_best({"U": unit(logits), name: call}, seconds=seconds)
            times[name] = pair[name]
            rows.append(
                {
                    "metric": metric,
                    "shape": f"{n_rows}x{n_classes}",
                    "dtype": np.dtype(dtype).name,
                    "library": name,
                    "ms": pair[name] * 1e3,
                    "U_ms": pair["U"] * 1e3,
                    "in_U": pair[name] / pair["U"],
                    "times_ours": pair[name] / times["skfedcal"],
                    "peak/input": peak_share(call, proba),
                }
            )
    return rows


def main() -> None:
    parser = arguments("metrics", __doc__)
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--rows", type=int, default=10_000)
    given = parser.parse_args()
    rows = []
    for n_classes in given.classes:
        for dtype in (np.float32, np.float64):
            rows += bench_shape(given.rows, n_classes, dtype, given.seconds)
    print_table(rows)
    write_json(given.out, rows)


if __name__ == "__main__":
    main()
