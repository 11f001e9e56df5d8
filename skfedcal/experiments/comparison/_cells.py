"""One cell of a comparison: a method, an eps and a seed on one split of the rows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

import joblib
import numpy as np

from skfedcal import _logits
from skfedcal._sklearn_compat import copy_to_fit
from skfedcal.exceptions import (
    CalibrationWarning,
    NotEnoughClientsError,
    SimulatedPrivacyWarning,
)
from skfedcal.experiments._scores import score
from skfedcal.experiments._store import CellStore, code_version, key_of
from skfedcal.experiments.comparison._clients import client_differences
from skfedcal.experiments.comparison._rows import Array, Rows
from skfedcal.metrics import brier_score
from skfedcal.metrics._binning import bin_index, bin_sums

BASE, CENTRAL = "base", "central"

# What data or settings can make a method refuse; the other cells go on.
REFUSALS = (ValueError, ArithmeticError, NotEnoughClientsError)

# Warnings that the result says in columns: whether it is simulated, and was used.
SAID = (SimulatedPrivacyWarning, CalibrationWarning)


@dataclass(frozen=True, slots=True)
class Cell:
    """What is fitted: the estimator is None for the rows as they are.

    `labels` are the keys of the row in the table, `split` says how rows are dealt.
    """

    method: str
    estimator: Any
    labels: Mapping[str, Any]
    split: Mapping[str, Any]
    n_bins: int

    def key(self, digest: str) -> str:
        """Name of the cell in a store."""
        params = None
        if self.estimator is not None:
            kind = type(self.estimator)
            # Two classes of one name are two methods.
            name = f"{kind.__module__}.{kind.__qualname__}"
            params = (name, self.estimator.get_params())
        settings = {
            "version": code_version(),
            "data": digest,
            "central": self.method == CENTRAL,
            "estimator": joblib.hash(params),
            "split": dict(self.split),
            "n_bins": self.n_bins,
        }
        return key_of(settings)


def run_cell(cell: Cell, key: str, rows: Rows, store: CellStore) -> dict[str, Any]:
    """Fit, measure and store; a method that refuses gives its message."""
    # Processes would print warnings with places in files; they are part of the result.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = _result(cell, rows)
        except REFUSALS as error:
            return {"error": f"{type(error).__name__}: {error}"}
    result["warnings"] = sorted(
        {str(w.message) for w in caught if not issubclass(w.category, SAID)}
    )
    store.save(key, result)
    return result


def _result(cell: Cell, rows: Rows) -> dict[str, Any]:
    split = rows.partition(**cell.split)
    base = _logits.softmax(split.test_logits.astype(np.float64))
    proba, fitted = base, None
    if cell.estimator is not None:
        owners = None if cell.method == CENTRAL else split.clients
        fitted = copy_to_fit(cell.estimator).fit(
            split.logits, split.labels, client_ids=owners
        )
        proba = fitted.predict_proba(split.test_logits)
    seed, n_bins = cell.split["seed"], cell.n_bins
    result = {
        **measure(split.test_labels, proba, base, seed=seed, n_bins=n_bins),
        # The oracle has no clients that could pay.
        **cost(None if cell.method == CENTRAL else fitted),
        "n_clients": split.n_clients,
        "n_rows": len(split.labels),
        "n_test": len(split.test_labels),
    }
    if cell.method == BASE:
        n_classes = len(rows.classes)
        result["clients differ"] = client_differences(split, n_classes, n_bins)
    return result


def measure(
    labels: Array, proba: Array, base: Array, *, seed: int, n_bins: int
) -> dict[str, Any]:
    """Scores of probabilities, and what they gain over those of the base."""
    proba = np.asarray(proba, dtype=np.float64)
    classes = np.arange(proba.shape[1])
    found = score(labels, proba, classes, seed, n_bins=n_bins)
    gain = _losses(base, labels) - _losses(proba, labels)
    hits = proba.argmax(axis=1) == labels
    confidence = proba.max(axis=1)
    bins = bin_sums(confidence, hits, bin_index(confidence, n_bins), n_bins)
    return {
        **found,
        "Brier": float(brier_score(labels, proba, labels=classes)),
        "acc change": float(hits.mean() - (base.argmax(axis=1) == labels).mean()),
        "NLL gain": float(gain.mean()),
        "NLL gain error": float(gain.std(ddof=1) / np.sqrt(len(gain)))
        if len(gain) > 1
        else nan,
        "confidence": float(confidence.mean()),
        "reliability": {
            "n": bins.weight.tolist(),
            "confidence": bins.proba.tolist(),
            "hits": bins.labels.tolist(),
        },
    }


def cost(fitted: Any) -> dict[str, Any]:
    """Cost of a fit; empty where nothing was fitted."""
    if fitted is None:
        return {"used": True}
    report, history = fitted.privacy_, fitted.history_
    seconds = sum(record.client_seconds for record in history)
    found: dict[str, Any] = {
        "used": bool(fitted.improves_),
        "rounds": int(fitted.n_rounds_),
        "bytes": sum(record.bytes_up + record.bytes_down for record in history),
        "client seconds": float(seconds) if isfinite(seconds) else None,
    }
    if report.private:
        found |= {
            "eps spent": float(report.eps),
            "delta": float(report.delta),
            "unit": report.unit,
            "simulated": not report.secure,
            "noise": float(report.noise_multiplier),
            "accountant": report.accountant,
        }
    return found


def _losses(proba: Array, labels: Array) -> Array:
    chosen = proba[np.arange(len(labels)), labels]
    losses: Array = -np.log(np.maximum(chosen, np.finfo(np.float64).eps))
    return losses
