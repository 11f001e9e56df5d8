"""FedBiasTempCalibrator: bias and temperature scaling."""

from __future__ import annotations

import warnings
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skfedcal._docs import documented
from skfedcal._params import as_number
from skfedcal._sklearn_compat import Interval, StrOptions
from skfedcal.exceptions import CalibrationWarning
from skfedcal.methods.base import BaseCalibrator
from skfedcal.methods.bias_temperature.rounds import (
    N_BINS,
    SAMPLE,
    BiasTemperatureNewton,
    BiasTemperatureResidual,
)
from skfedcal.methods.shape.noisy_rounds import (
    MAP_SIGNAL,
    SHARES_BIAS,
    SHARES_TEMPERATURE,
    planned_stages,
)
from skfedcal.methods.temperature.posterior import MIN_SIGNAL

if TYPE_CHECKING:
    from skfedcal._typing import ArrayLike, InputType, Seed
    from skfedcal.contract import Array, FederatedAlgorithm
    from skfedcal.federation.runner import FederatedRunner
    from skfedcal.methods.base import FitSetting
    from skfedcal.privacy.ledger import PrivacyLedger
    from skfedcal.privacy.models import PrivacyModel

# With so many rows the first round asks one in SAMPLE.
_MANY_ROWS = 2048


@documented
class FedBiasTempCalibrator(BaseCalibrator):
    """Add a bias to each class and divide by one temperature, from sums over clients.

    Parameters
    ----------
    eps
    residual : {'bins', None}, default=None
        'bins' corrects the remaining difference between labels and probabilities, by
        class and probability, in two more rounds. Not supported with `eps`.
    ridge : float, default=1e-5
        Strength of the ridge on the biases: weight of ``|bias_|^2 / 2`` beside the mean
        log loss. The default keeps the bias of a class without rows finite and changes
        no other; 1e-3 is better for 100 classes with 50 rows each. Not used with `eps`.
    class_prior : 'uniform', 'private', array-like of shape (n_classes,) or None, \
            default=None
        Class frequencies of the whole population, one per column of X, up to a factor,
        as public knowledge; only used with `eps`. With them, label skew at the clients
        costs little accuracy. Wrong frequencies do harm: their error ends up in the
        bias. 'uniform' means that classes are equally frequent. 'private' or None: they
        are not known; one more round then decides how much of the biases is used that
        equal frequencies would have.
    delta
    clip : float or 'auto', default='auto'
        Bound, under `eps`, on the length of a client's mean residual; 'auto' is 0.04.
        The part for the temperature is bounded as in `FedTempCalibrator`.
    if_improves : bool, default=True
        With `eps`, return the input unchanged if no gain is expected (`improves_`).
    hold_back, privacy, ledger, classes, input_type, runner, random_state

    Attributes
    ----------
    temperature_ : float
        The temperature, in [1e-4, 1e4].
    bias_ : ndarray of shape (n_classes,)
        Bias that is added to the logits of each entry of `classes_`; sums to 0.
    residual_ : ndarray of shape (n_classes, 12) or None
        Correction of the probability of each entry of `classes_` at the nodes
        ``-6.5, -5.5, ..., 4.5`` of its logit; all 0 if a correction does not help.
    converged_ : bool
        Whether the optimum was found inside the bounds; with `eps`, whether the
        released values determine it better than the prior.
    classes_, improves_, comparison_, n_clients_, n_rounds_, privacy_, history_

    See Also
    --------
    FedTempCalibrator : Temperature alone; never changes the order of classes.
    FedBinCalibrator : Histogram binning.

    Notes
    -----
    The calibrated logits are ``z / T + b``. A model trained by federated averaging on
    clients with few classes each favours some classes over others; a bias per class
    corrects this, which no map that keeps the order of the classes can do. Shifting all
    logits of a row changes nothing.

    The mean log loss with its ridge is convex in ``(1 / T, b)`` and its derivatives are
    sums over rows, so that any partition into clients has the same optimum. The first
    round finds the temperature on a grid and a first guess of the biases; Newton steps
    follow, and a step that increases the loss is shortened. Outputs of real networks
    take 3 to 5 rounds. Beyond 128 classes clients send the diagonal of the curvature
    only, and the server estimates the rest from its steps (BFGS).

    With ``residual='bins'`` each probability q of class j becomes
    ``q + min(1, q / q_0) sum_m h_m(q) d_jm``, at least q / 20, and rows are normalised.
    h are hat functions in the logit of q and q_0 is the lowest node. d is the mean of
    ``y - q`` under h, of all classes together and then of each class beyond that, each
    shrunk by ``t2 / (t2 + v)``: v is the sampling variance of the labels and t2 the
    variance of d in excess of it. The correction is left out, or halved, if that lowers
    the log loss of the clients. It can change which class is the most probable.

    Under `eps` a client knows its own label frequencies f, a little smoothed, and sends
    its mean residual ``onehot(y) - softmax(z / T + b + log(f / prior))`` at the current
    T and b: label skew is removed at the client, the remaining residual is the error of
    the model, and its norm is small, so that a tight bound and little noise suffice. f
    itself never leaves the client. Slope and curvature for T are taken without f. Five
    rounds are released, six without a class prior. The server keeps a posterior of T as
    in `FedTempCalibrator`. It averages the estimates of b, weighted by their known
    noise, and shrinks the average by the posterior mean under a prior with a spike at
    "no bias" and a normal part of unknown variance. With fewer than about 30 clients at
    ``eps=1`` (a signal ``K mu`` below 8) the whole budget goes to the temperature.
    How the constants were chosen is in docs/research/study.rst.

    References
    ----------
    .. [1] Alexandari et al., "Maximum Likelihood with Bias-Corrected Calibration is
       Hard-To-Beat at Label Shift Adaptation", ICML 2020.

    Examples
    --------
    >>> from skfedcal import FedBiasTempCalibrator, make_federation
    >>> fed = make_federation(n_clients=50, temperature=2.0, noise=0.0, random_state=0)
    >>> cal = FedBiasTempCalibrator().fit(fed.clients)
    >>> round(cal.temperature_, 1)
    2.0
    >>> cal.bias_.shape
    (10,)
    """

    _parameter_constraints = {
        **BaseCalibrator._parameter_constraints,
        "residual": [StrOptions({"bins"}), None],
        "ridge": [Interval(Real, 1e-8, 1e3, closed="both")],
        "class_prior": [StrOptions({"uniform", "private"}), "array-like", None],
    }
    _fitted_names = ("temperature_", "bias_", "residual_", "converged_")

    def __init__(
        self,
        eps: float | None = None,
        *,
        residual: Literal["bins"] | None = None,
        ridge: float = 1e-5,
        class_prior: ArrayLike | Literal["uniform", "private"] | None = None,
        delta: float | None = None,
        clip: float | Literal["auto"] = "auto",
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
        self.residual = residual
        self.ridge = ridge
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
        prior = checked_prior(self.class_prior, setting.n_classes)
        if setting.private:
            return self._private_algorithm(setting, prior)
        if self.clip != "auto":
            raise ValueError(
                f"clip={self.clip!r} is not used without eps, where the exact optimum "
                "is computed. Leave it out, or set eps."
            )
        ridge = as_number("ridge", self.ridge)
        sample = SAMPLE if setting.n_rows >= _MANY_ROWS else 1
        if self.residual is None:
            return BiasTemperatureNewton(ridge=ridge, sample=sample)
        return BiasTemperatureResidual(ridge=ridge, sample=sample)

    def _private_algorithm(
        self, setting: FitSetting, prior: tuple[float, ...]
    ) -> FederatedAlgorithm[Any] | None:
        if self.residual is not None:
            raise ValueError(
                f"residual={self.residual!r} needs exact sums; leave it out, or fit "
                "with eps=None."
            )
        signal = setting.signal(5)
        if setting.unit == "example" and self.clip != "auto":
            raise ValueError(
                f"clip={self.clip!r} is a bound for clients; leave it out with "
                "unit='example'."
            )
        if signal < MIN_SIGNAL:
            return None
        if self.clip != "auto":
            clip = float(self.clip)
            return planned_stages(signal, SHARES_BIAS, prior, clip=clip)
        if signal < MAP_SIGNAL:
            return planned_stages(signal, SHARES_TEMPERATURE)
        return planned_stages(signal, SHARES_BIAS, prior)

    def _is_optimum(self, setting: FitSetting) -> bool:
        return self.residual is None and setting.cohort == "full"

    def _set_state(self, state: Any) -> None:
        order = self._class_map.order
        if state is None:  # nobody was asked
            state = planned_stages(0.0, SHARES_TEMPERATURE).init(len(order))
        self.temperature_ = float(state.temperature)
        self.bias_ = np.asarray(state.bias, dtype=np.float64)[order]
        self.residual_ = None
        if self.residual is not None:
            self.residual_ = state.residual[order]
        self.converged_ = bool(state.converged)
        self._bounded = getattr(state, "bounded", True)
        self._gain = getattr(state, "improves", True)

    def _improves(self) -> bool:
        return self._gain

    def _after_fit(self, setting: FitSetting) -> None:
        if self.converged_ or not self.improves_:
            return
        if not setting.private:
            largest = np.abs(self.bias_).max()
            at = (
                f"stopped at T = {self.temperature_:.4g} and biases up to {largest:.3g}"
            )
            self._warn_no_optimum(self._bounded, at)
            return
        warnings.warn(
            "The noise is too large to determine bias and temperature: with this "
            "number of clients and this eps, the released values add little to the "
            "prior around T = 1.",
            CalibrationWarning,
            stacklevel=4,
        )

    def _check_restored(self) -> None:
        from skfedcal.methods.bias_temperature.bias_moments import BIAS_BOUND

        n_classes = len(self.classes_)
        if type(self.temperature_) is not float or not 0 < self.temperature_ < np.inf:
            raise ValueError(f"temperature_={self.temperature_!r} is not positive")
        if type(self.converged_) is not bool:
            raise ValueError(f"converged_={self.converged_!r} is not true or false")
        check_table("bias_", self.bias_, (n_classes,), 2 * BIAS_BOUND)
        if (self.residual is None) != (self.residual_ is None):
            raise ValueError("residual_ does not match the parameter residual")
        if self.residual_ is not None:
            check_table("residual_", self.residual_, (n_classes, N_BINS), 1.0)

    def _calibrate(self, logits: Array) -> Array:
        if self.residual_ is not None and self.residual_.any():
            return super()._calibrate(logits)
        # In place, which takes half the time of the registered map.
        bias = np.empty_like(self.bias_)
        bias[self._class_map.order] = self.bias_
        with np.errstate(over="ignore"):  # a far lower logit is -inf: probability 0
            logits /= logits.dtype.type(self.temperature_)
            logits += bias.astype(logits.dtype)
        return logits


def checked_prior(class_prior: ArrayLike | None, n_classes: int) -> tuple[float, ...]:
    """Public class frequencies; empty if none are used, or not known yet."""
    if class_prior is None:
        return ()
    if isinstance(class_prior, str):
        return () if class_prior == "private" else (1 / n_classes,) * n_classes
    try:
        prior = np.asarray(class_prior, dtype=np.float64)
    except (TypeError, ValueError):
        prior = np.empty(0)
    if prior.shape != (n_classes,) or not ((prior > 0) & np.isfinite(prior)).all():
        raise ValueError(
            f"class_prior={class_prior!r} must hold {n_classes} positive numbers, one "
            "per column of X; or pass 'uniform', 'private' or None."
        )
    return tuple((prior / prior.sum()).tolist())


def check_table(name: str, value: Array, shape: tuple[int, ...], bound: float) -> None:
    """Raise ValueError unless a restored table has this shape and finite entries."""
    if value.shape != shape or value.dtype != np.float64:
        raise ValueError(f"{name} has a wrong shape or type")
    if not (np.abs(value) <= bound).all():
        raise ValueError(f"{name} has values beyond {bound:g}")
