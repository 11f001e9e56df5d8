"""The runs of the demo as a comparison, for its report."""

from __future__ import annotations

from typing import Any

import numpy as np

from skfedcal._version import __version__
from skfedcal.cli.demo._digits import DemoSize, DigitsFederation

N_BINS = 15


class DemoReport:
    """Collects what the demo fits.

    Parameters
    ----------
    data : DigitsFederation
        Logits of clients and test.
    base : ndarray of shape (n_test, 10)
        Probabilities of the net as it is.
    seed : int
        Seed of the floor.
    seeded : bool
        Whether the user gave it, so that noise is seeded too.
    """

    def __init__(
        self, data: DigitsFederation, base: np.ndarray, seed: int, seeded: bool
    ) -> None:
        self.data, self.base, self.seed, self.seeded = data, base, seed, seeded
        self.runs: list[dict[str, Any]] = []
        self._keep("base", "-", None, base)
        self._keep("central", "-", None, self._central())

    def add(
        self, method: str, eps: float | None, calibrator: Any, proba: np.ndarray
    ) -> None:
        """Keep one fit."""
        self._keep(method, "none" if eps is None else f"{eps:g}", calibrator, proba)

    def comparison(self) -> Any:
        """Return what `compare` would."""
        from skfedcal.experiments import Comparison

        command = (
            f"skfedcal demo --seed {self.seed}" if self.seeded else "skfedcal demo"
        )
        methods = dict.fromkeys(run["method"] for run in self.runs[2:])
        settings = {
            "version": __version__,
            "methods": list(methods),
            "eps": [None, 1.0],
            "seeds": [self.seed],
            "vary": {},
            "n_classes": self.base.shape[1],
            "clients dealt": True,
            "beta": DemoSize().alpha,
            "test given": True,
            "oracle": "FedBiasTemp",
            "n_bins": N_BINS,
            "file": "the digits of scikit-learn",
            "command": command,
        }
        return Comparison(self.runs, settings)

    def _central(self) -> np.ndarray:
        from skfedcal import FedBiasTempCalibrator

        oracle = FedBiasTempCalibrator(classes=np.arange(10))
        oracle.fit(self.data.logits, self.data.labels)
        proba: np.ndarray = oracle.predict_proba(self.data.test_logits)
        return proba

    def _keep(self, method: str, eps: str, calibrator: Any, proba: np.ndarray) -> None:
        from skfedcal.experiments.comparison._cells import cost, measure

        labels = self.data.test_labels
        scores = measure(labels, proba, self.base, seed=self.seed, n_bins=N_BINS)
        self.runs.append(
            {
                "method": method,
                "eps": eps,
                "seed": self.seed,
                **scores,
                **cost(calibrator),
                "n_clients": len(np.unique(self.data.client_ids)),
                "n_rows": len(self.data.labels),
                "n_test": len(labels),
            }
        )
