"""FedShapeCalibrator: a temperature and one curve for all log-probabilities."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skfedcal._docs import documented
from skfedcal._sklearn_compat import StrOptions
from skfedcal.methods.base import BaseCalibrator, FitSetting
from skfedcal.methods.bias_temperature.estimator import check_table, checked_prior
from skfedcal.methods.scaling.estimator import keep_ranks
from skfedcal.methods.shape.noisy_rounds import (
    ShapePosterior,
    planned_stages,
    stage_weights,
)
from skfedcal.methods.shape.rounds import MANY_CLASSES, MAX_BIAS_CLASSES, MapNewton
from skfedcal.methods.shape.shape_features import N_FEATURES
from skfedcal.methods.temperature.posterior import MIN_SIGNAL

if TYPE_CHECKING:
    from skfedcal._typing import ArrayLike, InputType, Seed
    from skfedcal.contract import Array, FederatedAlgorithm
    from skfedcal.federation.runner import FederatedRunner
    from skfedcal.privacy.ledger import PrivacyLedger
    from skfedcal.privacy.models import PrivacyModel

# Bounds on the numbers of a saved map, far beyond those of a fit.
_LARGEST = 1e6


@documented
class FedShapeCalibrator(BaseCalibrator):
    """Temperature and a shared shape: one curve for the probabilities of all classes.

    Three numbers bend the log-probability of every class in the same way; a temperature
    is the straight special case. Class biases or a matrix can be added.

    Parameters
    ----------
    eps : float, default=None
        Privacy budget epsilon for a whole client (client-level differential privacy).
        None computes the exact optimum of the pooled log loss.
    biases : bool or 'auto', default='auto'
        Whether to add a bias per class. 'auto' adds them below 50 classes, unless
        `keep_order` or `matrix` is set; with `eps` from a signal of 8 on (see Notes).
    matrix : bool, default=False
        Add a matrix on top of the shape, with biases of its own; needs exact sums and
        many rows.
    keep_order : bool, default=False
        Guarantee that the order of classes, and so the accuracy, does not change.
    class_prior : 'uniform', 'private', array-like of shape (n_classes,) or None, \
            default=None
        Public class frequencies of the whole population, one per column of X; only used
        with `eps` and biases, where they remove the label skew of clients. 'private' or
        None: they are not known.
    delta
    clip : 'auto', default='auto'
        Bounds on contributions follow public rules; there is nothing to set.
    if_improves : bool, default=True
        With `eps`, return the input unchanged if no gain is expected (`improves_`).
    hold_back, privacy, ledger, classes, input_type, runner, random_state

    Attributes
    ----------
    temperature_ : float
        The temperature.
    shape_ : ndarray of shape (3,)
        Weights theta of the features phi.
    bias_ : ndarray of shape (n_classes,)
        Bias of each entry of `classes_`; sums to 0.
    matrix_ : ndarray of shape (n_classes, n_classes) or None
        The matrix, rows and columns in the order of `classes_`.
    converged_ : bool
        Whether the optimum was found inside the bounds; with `eps`, whether the
        released values determine the temperature better than the prior.
    expected_gain_ : float
        With `eps`, expected decrease of the mean log loss given the released values,
        never negative; NaN without `eps`.
    classes_, comparison_
    improves_ : bool
        With `eps`, whether a gain is expected; without it False if `hold_back` found
        harm.
    n_clients_, n_rounds_, privacy_, history_

    See Also
    --------
    FedAutoCalibrator : Chooses among maps, this one included.
    FedTempCalibrator : Temperature alone.
    FedBiasTempCalibrator : Class biases and a temperature.

    Notes
    -----
    With ``l = log softmax(z / T)`` and ``p = exp(l)`` the calibrated logits are
    ``s_j = l_j + theta . phi(max(l_j, -12)) + b_j``, with
    ``phi = [l, log(p + 0.01), -log(1 - p + 0.01)]``. All features are bounded.

    The order of two classes is kept if the map increases up to ``p = 1/2`` and of a
    pair ``(1 - q, q)`` the larger one stays the larger: two probabilities of a row add
    up to at most 1. With `keep_order` theta is scaled down until both hold.

    Exact fits find T on a grid in one round and theta and b by Newton steps on summed
    derivatives, with a ridge of ``1 / (n s^2)`` for the spread s of theta on public
    networks. The ridge of a matrix, toward the identity, has the largest evidence.

    With `eps` temperature, biases and shape are released one after the other with parts
    of one budget, each as a posterior mean under a prior with a spike at "nothing to
    correct". The parts depend on public numbers only: on the signal ``K mu`` of K
    clients (or rows, with ``unit='example'``) and a budget of mu in Gaussian
    differential privacy. Below 8 the temperature gets all of it. Below 1 nobody is
    asked, nothing is spent, and the input is returned with a warning.

    Examples
    --------
    >>> from skfedcal import FedShapeCalibrator, make_federation
    >>> fed = make_federation(n_clients=50, temperature=2.0, noise=0.0, random_state=0)
    >>> cal = FedShapeCalibrator(keep_order=True).fit(fed.clients)
    >>> cal.shape_.shape
    (3,)
    >>> bool((cal.predict(fed.logits) == fed.logits.argmax(axis=1)).all())
    True
    """

    _parameter_constraints = {
        **BaseCalibrator._parameter_constraints,
        "biases": ["boolean", StrOptions({"auto"})],
        "clip": [StrOptions({"auto"})],
        "matrix": ["boolean"],
        "keep_order": ["boolean"],
        "class_prior": [StrOptions({"uniform", "private"}), "array-like", None],
    }
    _fitted_names = (
        "temperature_",
        "shape_",
        "bias_",
        "matrix_",
        "converged_",
        "expected_gain_",
    )

    def __init__(
        self,
        eps: float | None = None,
        *,
        biases: bool | Literal["auto"] = "auto",
        matrix: bool = False,
        keep_order: bool = False,
        class_prior: ArrayLike | Literal["uniform", "private"] | None = None,
        delta: float | None = None,
        clip: Literal["auto"] = "auto",
        if_improves: bool = True,
        hold_back: bool = False,
        privacy: PrivacyModel | None = None,
        ledger: PrivacyLedger | None = None,
        classes: ArrayLike | None = None,
        input_type: InputType = "logits",
        runner: FederatedRunner | None = None,
        random_state: Seed = None,
    ) -> None:
        self.eps = eps
        self.biases = biases
        self.matrix = matrix
        self.keep_order = keep_order
        self.class_prior = class_prior
        self.delta = delta
        self.clip = clip
        self.if_improves = if_improves
        self.hold_back = hold_back
        self.privacy = privacy
        self.ledger = ledger
        self.classes = classes
        self.input_type = input_type
        self.runner = runner
        self.random_state = random_state

    def _make_algorithm(self, setting: FitSetting) -> FederatedAlgorithm[Any] | None:
        self._check_parts(setting)
        biases = self._uses_biases(setting.n_classes)
        if setting.private:
            return self._private_algorithm(setting, biases)
        kind = "SM" if self.matrix else "BS" if biases else "S"
        return MapNewton(kinds=(kind,), keep_order=bool(self.keep_order))

    def _private_algorithm(
        self, setting: FitSetting, biases: bool
    ) -> ShapePosterior | None:
        """Stages by public numbers; None where a release would say too little."""
        signal = setting.signal(1)
        if signal < MIN_SIGNAL:
            return None
        prior = checked_prior(self.class_prior, setting.n_classes)
        weights = stage_weights(signal, biases)
        return planned_stages(signal, weights, prior, bool(self.keep_order))

    def _check_parts(self, setting: FitSetting) -> None:
        """Refuse parts of the map that exclude each other."""
        checked_prior(self.class_prior, setting.n_classes)
        if self.keep_order and (self.matrix or self.biases is True):
            part = "matrix=True" if self.matrix else "biases=True"
            raise ValueError(
                f"{part} can change the order of classes, which keep_order=True "
                "excludes. Leave one of them out."
            )
        if self.matrix and self.biases is True:
            raise ValueError("matrix=True has biases of its own; leave biases out.")
        if self.matrix and setting.private:
            raise ValueError("matrix=True needs exact sums; fit with eps=None.")
        if setting.n_classes > MAX_BIAS_CLASSES and (
            self.matrix or self.biases is True
        ):
            part = "matrix=True" if self.matrix else "biases=True"
            raise ValueError(
                f"{part} is limited to {MAX_BIAS_CLASSES} classes, and there are "
                f"{setting.n_classes}; use FedBiasTempCalibrator or "
                "FedVectorCalibrator."
            )

    def _uses_biases(self, n_classes: int) -> bool:
        if self.biases != "auto":
            return bool(self.biases)
        return n_classes < MANY_CLASSES and not self.keep_order and not self.matrix

    def _is_optimum(self, setting: FitSetting) -> bool:
        return setting.cohort == "full"

    def _set_state(self, state: Any) -> None:
        order = self._class_map.order
        # Nobody expects anything where nobody was asked.
        missing = np.nan if state is not None else 0.0
        if state is None:
            state = replace(MapNewton().init(len(order)), kind="none")
        self.temperature_ = float(state.temperature)
        self.shape_ = np.asarray(state.shape, dtype=np.float64)
        self.bias_ = np.asarray(state.bias, dtype=np.float64)[order]
        matrix = state.matrix
        self.matrix_ = None if matrix is None else matrix[np.ix_(order, order)].copy()
        self.converged_ = bool(state.converged)
        self.expected_gain_ = float(getattr(state, "expected_gain", missing))
        self._bounded = bool(getattr(state, "bounded", False))

    def _improves(self) -> bool:
        return not self.expected_gain_ <= 0

    def _after_fit(self, setting: FitSetting) -> None:
        if not self.converged_ and not setting.private:
            started = f"started at T = {self.temperature_:.4g}"
            self._warn_no_optimum(self._bounded, started)

    def _check_restored(self) -> None:
        n_classes = len(self.classes_)
        if type(self.temperature_) is not float or not 0 < self.temperature_ < np.inf:
            raise ValueError(f"temperature_={self.temperature_!r} is not positive")
        if type(self.converged_) is not bool:
            raise ValueError(f"converged_={self.converged_!r} is not true or false")
        if type(self.expected_gain_) is not float or self.expected_gain_ < 0:
            raise ValueError(f"expected_gain_={self.expected_gain_!r} is not a gain")
        check_table("shape_", self.shape_, (N_FEATURES,), _LARGEST)
        check_table("bias_", self.bias_, (n_classes,), _LARGEST)
        if self.matrix_ is not None:
            check_table("matrix_", self.matrix_, (n_classes, n_classes), _LARGEST)

    def _rounded(self, values: Array, logits: Array) -> Array:
        # Rounding may exchange two classes that are almost equal.
        return keep_ranks(values, logits) if self.keep_order else values
