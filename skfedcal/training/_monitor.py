"""Scores of the model on an evaluation set, round by round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skfedcal import _logits
from skfedcal.training._network import Network
from skfedcal.training._run_module import module_logits

if TYPE_CHECKING:
    from skfedcal.training._algorithm import FedAvgState

Array = NDArray[Any]

_N_BINS = 15


@dataclass(frozen=True, slots=True)
class RoundScores:
    """Scores after one round.

    Attributes
    ----------
    round : int
        Number of the round, from 0.
    accuracy : float
        Share of rows whose most probable class is theirs.
    log_loss : float
        Mean negative log-likelihood.
    calibration_error : float
        Expected calibration error of the most probable class in 15 bins.
    entropy : float
        Mean predictive entropy, in nats.
    variation_ratio : float
        Mean of one minus the largest probability.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal.training import RoundScores
    >>> RoundScores.of(0, np.array([[2.0, 0.0], [0.0, 1.0]]), np.array([0, 0])).accuracy
    0.5
    """

    round: int
    accuracy: float
    log_loss: float
    calibration_error: float
    entropy: float
    variation_ratio: float

    @classmethod
    def of(cls, index: int, logits: Array, labels: Array) -> RoundScores:
        """Scores of logits with one column per class."""
        log_proba = _logits.log_softmax(logits.astype(np.float64))
        proba = np.exp(log_proba)
        top = proba.max(axis=1)
        hit = proba.argmax(axis=1) == labels
        # The bins of `skfedcal.metrics`, which is above this room.
        bins = np.minimum((top * _N_BINS).astype(np.intp), _N_BINS - 1)
        gaps = np.bincount(bins, weights=top - hit, minlength=_N_BINS)
        return cls(
            index,
            float(hit.mean()),
            float(-log_proba[np.arange(len(labels)), labels].mean()),
            float(np.abs(gaps).sum() / len(labels)),
            float(-(proba * log_proba).sum(axis=1).mean()),
            float(1 - top.mean()),
        )


@dataclass(slots=True)
class Monitor:
    """Score the model after each round; say when it is good enough.

    Parameters
    ----------
    network : Network
        The model.
    rows, labels : ndarray
        The evaluation set, which is public.
    target_accuracy : float, default=None
        Accuracy at which the run may end.
    device : str, default='cpu'
        Where.
    scores : list of RoundScores
        Filled while the run goes on.
    """

    network: Network
    rows: Array
    labels: Array
    target_accuracy: float | None = None
    device: str = "cpu"
    scores: list[RoundScores] = field(default_factory=list)

    def __call__(self, state: FedAvgState) -> bool:
        """Whether the target is reached."""
        module = self.network.load(state.params.astype(np.float32))
        logits = module_logits(module, self.rows, self.device)
        found = RoundScores.of(state.rounds - 1, logits, self.labels)
        self.scores.append(found)
        target = self.target_accuracy
        return target is not None and found.accuracy >= target
