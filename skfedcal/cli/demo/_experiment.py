"""Calibrate the digits with and without privacy, and score the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from skfedcal._logits import softmax
from skfedcal.cli.demo._digits import (
    PUBLIC_SEED,
    DemoSize,
    DigitsFederation,
    make_digits_federation,
)
from skfedcal.cli.demo._report import DemoReport

# Short name, class and eps of each fit.
FITS = (
    ("FedTemp", "FedTempCalibrator", None),
    ("FedBBQ", "FedBBQCalibrator", None),
    ("FedBiasTemp", "FedBiasTempCalibrator", None),
    ("FedTemp", "FedTempCalibrator", 1.0),
    ("FedBiasTemp", "FedBiasTempCalibrator", 1.0),
)

# It is public that all digits are equally frequent.
OPTIONS = {"FedBiasTempCalibrator": {"class_prior": "uniform"}}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Scores of one method on the test digits, and what it cost.

    Errors and accuracy are fractions; `floor` is the cwECE that a perfectly calibrated
    model would show on as many rows. `eps` is None without differential privacy.
    """

    method: str
    eps: float | None
    delta: float | None
    classwise_ece: float
    floor: float
    floor_sd: float
    ece: float
    nll: float
    accuracy: float
    confidence: float
    n_rounds: int
    bytes_up: int
    bytes_down: int
    guarantee: str
    losses: np.ndarray = field(repr=False)
    gaps: np.ndarray = field(repr=False)
    hits: np.ndarray = field(repr=False)

    @property
    def name(self) -> str:
        """Method and budget, as in the text."""
        return self.method if self.eps is None else f"{self.method} (eps={self.eps:g})"

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers as JSON values, without those of single rows."""
        hidden = ("guarantee", "losses", "gaps", "hits")
        names = [name for name in self.__slots__ if name not in hidden]
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Outcomes, the first without calibration, and what all fits spent together.

    `comparison` is the same as a `Comparison`, with the central oracle, for the report.
    """

    outcomes: list[Outcome]
    n_test: int
    n_clients: int
    simulated: bool
    total_eps: float
    total_delta: float
    comparison: Any = None


def run_experiment(
    progress: Callable[[str], None],
    detail: Callable[[str], None],
    *,
    seed: int | None = None,
    size: DemoSize | None = None,
) -> DemoResult:
    """Train, calibrate and score.

    Parameters
    ----------
    progress : callable
        Told what is being done.
    detail : callable
        Told the guarantee of each private fit.
    seed : int, default=None
        Seed of everything. None takes the noise of private fits from the operating
        system, and a fixed seed for digits and base model.
    size : DemoSize, default=None
        Smaller for tests.
    """
    from skfedcal.privacy import PrivacyLedger

    size = DemoSize() if size is None else size
    public_seed = PUBLIC_SEED if seed is None else seed
    progress(
        f"training a small net on {size.n_train} noisy digits at {size.n_trainers} "
        "clients, by federated averaging"
    )
    data = make_digits_federation(size, public_seed)
    base = softmax(data.test_logits)
    outcomes = [score("base", base, data.test_labels, public_seed)]
    ledger = PrivacyLedger()
    report = DemoReport(data, base, public_seed, seed is not None)
    for method, estimator, eps in FITS:
        budget = "no noise" if eps is None else f"eps={eps:g}"
        progress(
            f"calibrating with {method}, {budget}: {size.n_clients} clients, "
            f"{len(data.labels)} rows"
        )
        calibrator = _fit(estimator, eps, data, ledger, seed)
        proba = calibrator.predict_proba(data.test_logits)
        report.add(method, eps, calibrator, proba)
        outcomes.append(_outcome(method, eps, calibrator, proba, data, public_seed))
        if eps is not None:
            detail(outcomes[-1].guarantee)
    delta = max(outcome.delta or 0.0 for outcome in outcomes)
    return DemoResult(
        outcomes=outcomes,
        n_test=len(data.test_labels),
        n_clients=size.n_clients,
        simulated=seed is not None,
        total_eps=ledger.spent(delta),
        total_delta=delta,
        comparison=report.comparison(),
    )


def _fit(
    estimator: str,
    eps: float | None,
    data: DigitsFederation,
    ledger: Any,
    seed: int | None,
) -> Any:
    import skfedcal

    calibrator = getattr(skfedcal, estimator)(
        eps=eps,
        ledger=None if eps is None else ledger,
        classes=np.arange(10),
        random_state=seed,
        **OPTIONS.get(estimator, {}),
    )
    return calibrator.fit(data.logits, data.labels, client_ids=data.client_ids)


def _outcome(
    method: str,
    eps: float | None,
    calibrator: Any,
    proba: np.ndarray,
    data: DigitsFederation,
    seed: int,
) -> Outcome:
    return score(
        method,
        proba,
        data.test_labels,
        seed,
        eps=eps,
        delta=None if eps is None else calibrator.privacy_.delta,
        guarantee=repr(calibrator.privacy_),
        n_rounds=calibrator.n_rounds_,
        bytes_up=sum(record.bytes_up for record in calibrator.history_),
        bytes_down=sum(record.bytes_down for record in calibrator.history_),
    )


def score(
    method: str, proba: np.ndarray, labels: np.ndarray, seed: int, **cost: Any
) -> Outcome:
    """Score probabilities; `cost` is the cost of the fit."""
    from skfedcal import metrics

    columns = np.arange(proba.shape[1])
    floor = metrics.calibration_floor(proba, random_state=seed)
    confidence, hits = proba.max(axis=1), proba.argmax(axis=1) == labels
    chosen = np.maximum(
        proba[np.arange(len(labels)), labels], np.finfo(proba.dtype).eps
    )
    costs = {
        "eps": None,
        "delta": None,
        "n_rounds": 0,
        "bytes_up": 0,
        "bytes_down": 0,
        "guarantee": "not fitted",
    }
    return Outcome(
        method=method,
        classwise_ece=float(
            metrics.classwise_calibration_error(labels, proba, labels=columns)
        ),
        floor=float(floor.mean),
        floor_sd=float(floor.std),
        ece=metrics.expected_calibration_error(labels, proba, labels=columns),
        nll=metrics.negative_log_likelihood(labels, proba, labels=columns),
        accuracy=float(hits.mean()),
        confidence=float(confidence.mean()),
        losses=-np.log(chosen),
        gaps=confidence - hits,
        hits=hits,
        **{**costs, **cost},
    )
