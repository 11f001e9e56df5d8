"""Time of the metrics in U, next to peers that give the same answer."""

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks._harness import (  # isort: skip  (sets the number of threads)
    arguments,
    compare,
    make_logits,
    optional,
    print_table,
    record,
    write_json,
)

import numpy as np
from scipy.special import softmax
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss

from skfedcal import metrics

N_BINS = 15
# Distance over the answer. One bin more or less moves it by 5e-3 and more; sums in
# float32, which these have for any input, are off by 3e-5 at the sizes below.
EXACT, IN_FLOAT32 = 1e-9, 1e-4
FLOAT32 = ("torchmetrics", "torchmetrics, by class", "torch-uncertainty")

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
        "scikit-learn, curve": partial(of_confidence, curve_error),
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
    if relplot := optional("relplot.metrics"):
        calls["relplot"] = partial(
            of_confidence, lambda t, p: relplot.binnedECE(p, t, N_BINS)
        )
    if verified := optional("calibration"):
        calls["uncertainty-calibration"] = partial(
            verified.get_ece, proba, y, num_bins=N_BINS
        )
    if other := torch_metrics():
        make = partial(
            other.CalibrationError,
            task="multiclass",
            num_classes=proba.shape[1],
            num_bins=N_BINS,
        )
        calls["torch-uncertainty"] = _measured(make, proba, y)
    return calls


def torch_metrics() -> Any:
    """Return the metrics of torch-uncertainty, or None with a note."""
    return optional("torch_uncertainty.metrics.classification")


def _measured(make: Callable[[], Any], proba: np.ndarray, y: np.ndarray) -> Call:
    """Return a call that makes a metric of torch-uncertainty and computes it."""
    import torch

    tensors = torch.from_numpy(proba), torch.from_numpy(y)

    def measure() -> float:
        metric = make()
        metric.update(*tensors)
        return float(metric.compute())

    return measure


def classwise_calls(y: np.ndarray, proba: np.ndarray) -> dict[str, Call]:
    """Return calls that compute cwECE.

    Peers that have none run their binary error once per class.
    """
    classes = range(proba.shape[1])

    def per_class(error: Callable[[np.ndarray, np.ndarray], float]) -> float:
        return float(np.mean([error(y == k, proba[:, k]) for k in classes]))

    calls: dict[str, Call] = {
        "skfedcal": partial(
            metrics.classwise_calibration_error, y, proba, labels=list(classes)
        )
    }
    if netcal := optional("netcal.metrics"):
        calls["netcal, by class"] = partial(
            per_class, lambda t, p: netcal.ECE(N_BINS).measure(p, t.astype(int))
        )
    if probcal := optional("probcal.metrics"):
        width = partial(probcal.ece, n_bins=N_BINS, strategy="width")
        calls["probcal, by class"] = partial(
            per_class, lambda t, p: width(t.astype(int), p)
        )
    peer = optional("torchmetrics.functional.classification")
    if peer and (torch := optional("torch")):
        columns, truth = torch.tensor(proba.T.copy()), torch.tensor(y)
        binary = partial(peer.binary_calibration_error, n_bins=N_BINS)
        calls["torchmetrics, by class"] = lambda: float(
            np.mean([float(binary(columns[k], (truth == k).int())) for k in classes])
        )
    if other := torch_metrics():
        make = partial(other.ClasswiseCalibrationError, len(classes), N_BINS)
        calls["torch-uncertainty"] = _measured(make, proba, y)
    if verified := optional("calibration"):
        calls["uncertainty-calibration"] = partial(
            verified.lower_bound_scaling_ce,
            proba,
            y,
            p=1,
            debias=False,
            num_bins=N_BINS,
            binning_scheme=verified.utils.get_equal_prob_bins,
            mode="marginal",
        )
    return calls


def score_calls(y: np.ndarray, proba: np.ndarray) -> dict[str, dict[str, Call]]:
    """Return calls of the proper scores and of the floor."""
    labels = np.arange(proba.shape[1])
    pairs: dict[str, tuple[Callable[..., float], Callable[..., float]]] = {
        "Brier score": (metrics.brier_score, brier_score_loss),
        "log loss": (metrics.negative_log_likelihood, log_loss),
    }
    calls: dict[str, dict[str, Call]] = {
        name: {
            "skfedcal": partial(ours, y, proba, labels=labels),
            "scikit-learn": partial(theirs, y, proba, labels=labels),
        }
        for name, (ours, theirs) in pairs.items()
    }
    floor = partial(metrics.calibration_floor, proba, random_state=0)
    calls["cwECE floor, 100 draws"] = {"skfedcal": floor}
    return calls


def left_out(calls: dict[str, Call], dtype: type) -> dict[str, str]:
    """Return why peers are not timed: another number, or none at all."""
    ours = calls["skfedcal"]()
    notes = {}
    for name, call in calls.items():
        if name == "skfedcal":
            continue
        exact = dtype is np.float64 and name not in FLOAT32
        try:
            theirs = call()
        except Exception as error:  # a class without labels, or anything else
            notes[name] = f"not timed: {error}"
            continue
        # Asked this way round, as a NaN is on no side of a bound.
        if not abs(theirs - ours) <= (EXACT if exact else IN_FLOAT32) * abs(ours):
            notes[name] = f"not timed: {theirs:.6g}, ours {ours:.6g}"
    return notes


def bench_shape(
    n_rows: int, n_classes: int, dtype: type, seconds: float
) -> list[dict[str, Any]]:
    """Return one row per metric and implementation."""
    logits, y = make_logits(n_rows, n_classes, dtype)
    proba = softmax(logits, axis=1)
    rows = []
    table = {
        "ECE": top_label_calls(y, proba),
        "cwECE": classwise_calls(y, proba),
        **score_calls(y, proba),
    }
    case = f"{n_rows} x {n_classes}, {np.dtype(dtype).name}"
    for metric, calls in table.items():
        notes = left_out(calls, dtype)
        sound = {name: call for name, call in calls.items() if name not in notes}
        rows += compare(metric, case, sound, logits=logits, seconds=seconds)
        rows += [
            record(metric, case, name, np.nan, "U", note=note)
            for name, note in notes.items()
        ]
    return rows


def questions(seconds: float, quick: bool = True) -> list[dict[str, Any]]:
    """All rows; the long form has a thousand classes as well."""
    rows = []
    for n_classes in (10, 100):
        for dtype in (np.float32, np.float64):
            rows += bench_shape(10_000, n_classes, dtype, seconds)
    if not quick:  # some peers take minutes here
        rows += bench_shape(10_000, 1000, np.float32, seconds)
    return rows


def main() -> None:
    """Print and write the table."""
    given = arguments("metrics", __doc__).parse_args()
    rows = questions(given.seconds, quick=False)
    print_table(rows)
    write_json(given.out, rows)


if __name__ == "__main__":
    main()
