"""Fits of other libraries, each as a call that returns class probabilities.

What a peer needs besides the fit, such as a softmax of the logits or tensors, is made
beforehand and not timed. An absent library is skipped with a note.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks._harness import optional  # isort: skip  (sets the number of threads)

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV

# A fit returns a function from logits to probabilities.
Predict = Callable[[np.ndarray], np.ndarray]
Fit = Callable[[], Predict]


class Passed(ClassifierMixin, BaseEstimator):
    """Classifier whose decision function is its input: logits of some network."""

    def __init__(self, n_classes: int = 2):
        self.n_classes = n_classes
        self.classes_ = np.arange(n_classes)

    def fit(self, X: object, y: object = None) -> "Passed":
        return self

    def decision_function(self, X: np.ndarray) -> np.ndarray:
        return X

    def predict(self, X: np.ndarray) -> np.ndarray:
        return X.argmax(axis=1)


def quiet(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the call without its progress bars, warnings and log."""

    def silent(*args: Any) -> Any:
        hush = io.StringIO()
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            with (
                warnings.catch_warnings(),
                contextlib.redirect_stdout(hush),
                contextlib.redirect_stderr(hush),
            ):
                warnings.simplefilter("ignore")
                return call(*args)
        finally:
            logging.disable(before)

    return silent


def scaled(inverse: float) -> Predict:
    """Return temperature scaling with a given inverse temperature."""
    return lambda logits: softmax(inverse * logits.astype(np.float64), axis=1)


def temperature_fits(logits: np.ndarray, labels: np.ndarray) -> dict[str, Fit]:
    """Return temperature scaling by every library that has it."""
    fits: dict[str, Fit] = {}
    proba = softmax(logits, axis=1)
    try:
        from sklearn.calibration import _TemperatureScaling as inner
    except ImportError:
        print("skipped scikit-learn: temperature scaling came with 1.8")
    else:
        from sklearn.frozen import FrozenEstimator

        frozen = FrozenEstimator(Passed(logits.shape[1]))

        def public() -> Predict:
            fitted = CalibratedClassifierCV(
                frozen, method="temperature", ensemble=False
            ).fit(logits, labels)
            return scaled(fitted.calibrated_classifiers_[0].calibrators[0].beta_)

        fits["scikit-learn"] = public
        # Without the public class around it, which checks and predicts first.
        fits["scikit-learn, inner class"] = lambda: scaled(
            inner().fit(logits, labels).beta_
        )
    if netcal := optional("netcal.scaling"):

        def by_netcal() -> Predict:
            peer = netcal.TemperatureScaling()
            peer.fit(proba, labels)
            return scaled(float(peer.temperature[0]))

        fits["netcal"] = quiet(by_netcal)
    if torch_peer := _probmetrics("TemperatureScalingCalibrator", logits, labels):
        fits["probmetrics"] = lambda: scaled(float(torch_peer().invtemp_))
    if scaler := _torch_uncertainty("TemperatureScaler", logits, labels):
        fits["torch-uncertainty"] = lambda: scaled(scaler().inv_temperature[0].item())
    if newton := _torch_newton(logits, labels):
        fits["torch, Newton by hand"] = lambda: scaled(newton())
    return fits


def _torch_newton(logits: np.ndarray, labels: np.ndarray) -> Callable[[], float] | None:
    """Return Newton's method in torch, as one would write it for one temperature.

    The least of checks: no test of the input, and steps of at most a factor of four.
    """
    torch = optional("torch")
    if torch is None:
        return None
    rows, own = torch.from_numpy(logits), torch.from_numpy(labels)[:, None]

    def fit() -> float:
        beta = 1.0
        target = rows.gather(1, own).mean(dtype=torch.float64).item()
        for _ in range(50):
            weights = torch.softmax(beta * rows, dim=1)
            first = (weights * rows).sum(dim=1)
            second = (weights * rows * rows).sum(dim=1)
            slope = first.mean(dtype=torch.float64).item() - target
            bend = (second - first * first).mean(dtype=torch.float64).item()
            step = min(max(beta - slope / bend, beta / 4), beta * 4)
            done = abs(step - beta) < 1e-6 * beta
            beta = step
            if done:
                break
        return beta

    return fit


def vector_fits(logits: np.ndarray, labels: np.ndarray) -> dict[str, Fit]:
    """Return vector scaling by other libraries."""
    return _affine_fits(logits, labels, "VectorScal", few=logits.shape[1] <= 10)


def matrix_fits(logits: np.ndarray, labels: np.ndarray) -> dict[str, Fit]:
    """Return matrix scaling by other libraries."""
    return _affine_fits(logits, labels, "MatrixScal", few=logits.shape[1] <= 10)


def _affine_fits(
    logits: np.ndarray, labels: np.ndarray, name: str, few: bool
) -> dict[str, Fit]:
    fits: dict[str, Fit] = {}
    if few and (torch_peer := _probmetrics(f"{name}ingCalibrator", logits, labels)):
        fits["probmetrics"] = lambda: partial(_probmetrics_proba, torch_peer())
    if scaler := _torch_uncertainty(f"{name}er", logits, labels):
        fits["torch-uncertainty"] = lambda: partial(_torch_proba, scaler())
    return fits


def binning_fits(logits: np.ndarray, labels: np.ndarray, n_bins: int) -> dict[str, Fit]:
    """Return histogram binning by other libraries."""
    fits: dict[str, Fit] = {}
    proba = softmax(logits.astype(np.float64), axis=1)
    if netcal := optional("netcal.binning"):

        def by_netcal() -> Predict:
            peer = netcal.HistogramBinning(n_bins)
            peer.fit(proba, labels)
            return lambda rows: peer.transform(softmax(rows.astype(float), axis=1))

        fits["netcal"] = quiet(by_netcal)
    scaler = _torch_uncertainty("HistogramBinningScaler", logits, labels, n_bins)
    if scaler:
        fits["torch-uncertainty"] = lambda: partial(_torch_proba, scaler())
    return fits


def bbq_fits(logits: np.ndarray, labels: np.ndarray) -> dict[str, Fit]:
    """Return Bayesian binning by other libraries; netcal's for few classes only."""
    fits: dict[str, Fit] = {}
    proba = softmax(logits.astype(np.float64), axis=1)
    if logits.shape[1] <= 10 and (netcal := optional("netcal.binning")):

        def by_netcal() -> Predict:
            peer = netcal.BBQ()
            peer.fit(proba, labels)
            return quiet(
                lambda rows: peer.transform(softmax(rows.astype(float), axis=1))
            )

        fits["netcal"] = quiet(by_netcal)
    if scaler := _torch_uncertainty("BBQScaler", logits, labels):
        fits["torch-uncertainty"] = lambda: partial(_torch_proba, scaler())
    return fits


def _probmetrics(name: str, logits: np.ndarray, labels: np.ndarray) -> Any:
    """Return a fit by probmetrics on tensors of logits, or None."""
    peer = optional("probmetrics.calibrators")
    if peer is None:
        return None
    import torch
    from probmetrics.distributions import CategoricalLogits

    given = CategoricalLogits(torch.from_numpy(logits)), torch.from_numpy(labels)

    def fit() -> Any:
        calibrator = getattr(peer, name)()
        calibrator.fit_torch(*given)
        return calibrator

    return quiet(fit)


def _probmetrics_proba(calibrator: Any, logits: np.ndarray) -> np.ndarray:
    import torch
    from probmetrics.distributions import CategoricalLogits

    found = calibrator.predict_proba_torch(CategoricalLogits(torch.from_numpy(logits)))
    return np.asarray(found.get_probs().detach())


def _torch_uncertainty(
    name: str, logits: np.ndarray, labels: np.ndarray, *args: int
) -> Any:
    """Return a fit by torch-uncertainty on float32 tensors, or None."""
    peer = optional("torch_uncertainty.post_processing")
    if peer is None:
        return None
    import torch
    from torch.utils.data import DataLoader

    given = torch.from_numpy(logits).float(), torch.from_numpy(labels)
    # All rows are one item: a loader that picks row by row takes most of a short fit.
    loader = DataLoader([given], batch_size=None)
    classes = (logits.shape[1],) if name in ("VectorScaler", "MatrixScaler") else ()
    keys = {"num_classes": classes[0]} if classes else {}
    if args:
        keys["num_bins"] = args[0]

    def fit() -> Any:
        scaler = getattr(peer, name)(**keys)
        scaler.fit(loader, progress=False)
        return scaler

    return quiet(fit)


def _torch_proba(scaler: Any, logits: np.ndarray) -> np.ndarray:
    import torch

    with torch.no_grad():
        found = scaler(torch.from_numpy(logits).float())
    return np.exp(log_softmax(np.asarray(found, dtype=np.float64), axis=1))
