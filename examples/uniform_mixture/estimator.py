"""The estimator: parameters, algorithm, fitted attributes; and its map."""

import numpy as np

from skfedcal.methods.base import BaseCalibrator
from skfedcal.methods.graph import softmax
from uniform_mixture.rounds import MixtureScoring


class FedMixtureCalibrator(BaseCalibrator):
    """Divide logits by a temperature and mix the result with the uniform law.

    Parameters
    ----------
    eps, delta, clip, if_improves, privacy, ledger : see FedTempCalibrator
    classes, input_type, runner, random_state : see FedTempCalibrator

    Attributes
    ----------
    temperature_, weight_ : T and w of ``(1 - w) softmax(z / T) + w / n_classes``

    Examples
    --------
    >>> from skfedcal import make_federation
    >>> fed = make_federation(n_clients=50, temperature=2.0, noise=0.0, random_state=0)
    >>> round(FedMixtureCalibrator().fit(fed.clients).temperature_, 1)
    2.0
    """

    _fitted_names = ("temperature_", "weight_")

    def __init__(self, eps=None, *, delta=None, clip="auto", if_improves=True,
                 privacy=None, ledger=None, classes=None, input_type="logits",
                 runner=None, random_state=None):  # fmt: skip
        self.eps, self.delta, self.clip, self.input_type = eps, delta, clip, input_type
        self.runner, self.random_state, self.ledger = runner, random_state, ledger
        self.if_improves, self.privacy, self.classes = if_improves, privacy, classes

    def _make_algorithm(self, setting):
        clip = 1.0 if self.clip == "auto" else float(self.clip)
        return MixtureScoring(clip, 5) if setting.private else MixtureScoring()

    def _set_state(self, state):
        self.temperature_ = float(np.exp(-state.point[0]))
        self.weight_ = float(1 / (1 + np.exp(-state.point[1])))
        self._evidence = state.evidence

    def _improves(self):
        return self._evidence > 3.0  # standard deviations

    def _check_restored(self):
        if not (0 < self.temperature_ < np.inf and 0 < self.weight_ < 1):
            raise ValueError("temperature_ or weight_ is out of range")


def mixture(cal, logits):
    p = softmax(logits / cal.temperature_)
    return (p * (1 - cal.weight_) + cal.weight_ / len(cal.classes_)).log()
