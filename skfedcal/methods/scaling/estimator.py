"""Vector, matrix and order-preserving scaling as calibrators."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skfedcal import _compiled, _numerics
from skfedcal._docs import SharedDocs, documented
from skfedcal._params import as_number
from skfedcal._sklearn_compat import Interval, StrOptions
from skfedcal.exceptions import CalibrationWarning
from skfedcal.methods.base import BaseCalibrator
from skfedcal.methods.scaling.families import (
    MatrixMap,
    OrderPreservingMap,
    VectorMap,
    canonical,
)
from skfedcal.methods.scaling.rounds import LocalAverage, PooledFit

if TYPE_CHECKING:
    from skfedcal._typing import ArrayLike, InputType, Rows, Seed
    from skfedcal.contract import Array, FederatedAlgorithm
    from skfedcal.federation.runner import FederatedRunner
    from skfedcal.methods.base import FitSetting
    from skfedcal.methods.scaling.families import Family
    from skfedcal.privacy.ledger import PrivacyLedger
    from skfedcal.privacy.models import PrivacyModel

scaling_documented = SharedDocs(
    """
    solver : {'auto', 'average'}, default='auto'
        'auto': the exact optimum of the pooled log loss with a ridge, from summed
        slopes and curvature; under `eps` five rounds of federated averaging with
        gradient steps. 'average': the mean of the clients' own fits, Algorithm 2 of the
        paper; clients with few classes overfit, and accuracy falls.
    local_solver : {'lbfgs', 'gd'}, default='lbfgs'
        How a client trains where `solver` is 'average': to its own optimum by L-BFGS,
        or by gradient steps on its mean loss.
    local_iter : int, default=50
        Steps of a client in each round.
    learning_rate : float, default=0.01
        Rate of gradient steps.
    server_learning_rate : float, default=1.0
        Factor of the mean change that the server adds in a round, where clients are
        averaged (Appendix B.2 of the paper).
    clip : float or 'auto', default='auto'
        Bound on the L2 norm of the change of parameters that one client sends. A
        number also clips without `eps` where `solver` is 'average'. 'auto' is 0.5
        under `eps`.
    temperature_ : float
        The federated temperature at which the fit started and toward which the ridge
        shrinks; 1 where clients were averaged.
    converged_ : bool
        Whether the optimum was found, around a temperature inside [0.01, 100].
    improves_ : bool
        Whether the map should be used; False only under `eps`.
    comparison_
    """,
    documented,
)


# Bound on a client's update under noise, as in the paper's experiments.
DEFAULT_CLIP = 0.5

# Standard deviations by which the squared move must exceed that of pure noise.
STANDS_OUT = 2.0

# Entries that are mapped at a time, so that work arrays stay in the cache.
CHUNK_CELLS = 1 << 16

# Entries from which on the temperature at the start is found by steps, and how many.
_MANY_CELLS, _START_ROUNDS = 1 << 15, 20

STRENGTH = [Interval(Real, 0, 1e100, closed="both"), StrOptions({"auto"})]


class ScalingCalibrator(BaseCalibrator):
    """Base class; a subclass defines the family of maps and its fitted attributes."""

    _parameter_constraints = {
        **BaseCalibrator._parameter_constraints,
        "solver": [StrOptions({"auto", "average"})],
        "l2": STRENGTH,
        "local_solver": [StrOptions({"lbfgs", "gd"})],
        "local_iter": [Interval(Integral, 1, 10**5, closed="both")],
        "learning_rate": [Interval(Real, 0, 1e6, closed="right")],
        "server_learning_rate": [Interval(Real, 0, 1e6, closed="right")],
    }

    def __init__(
        self,
        eps: float | None = None,
        *,
        solver: Literal["auto", "average"] = "auto",
        l2: float | Literal["auto"] = "auto",
        local_solver: Literal["lbfgs", "gd"] = "lbfgs",
        local_iter: int = 50,
        learning_rate: float = 0.01,
        server_learning_rate: float = 1.0,
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
        self.solver = solver
        self.l2 = l2
        self.local_solver = local_solver
        self.local_iter = local_iter
        self.learning_rate = learning_rate
        self.server_learning_rate = server_learning_rate
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

    @abstractmethod
    def _family(self) -> Family:
        """Family of maps with the parameters of this estimator."""

    @abstractmethod
    def _strengths(self) -> tuple[float | None, ...]:
        """Strength of the ridge by group of parameters; None maximises the evidence."""

    @abstractmethod
    def _name_params(self, params: Array, beta: float) -> None:
        """Fitted attributes from parameters that act on rows times `beta`."""

    def _lines(self) -> Array | None:
        """Rows of parameters of a map that the compiled core has, the bias last."""
        return None

    def _calibrate(self, logits: Array) -> Array:
        lines = self._lines()
        if lines is not None and logits.shape[1] > 1:
            out = np.empty_like(logits, order="C")
            if _compiled.map_scaling(logits, len(lines) > 2, lines, out, proba=False):
                return out
        return super()._calibrate(logits)

    def _direct_proba(self, X: Rows) -> Array | None:
        check_is_fitted(self)
        lines = self._lines()
        if lines is None or _compiled.core is None or not self._map_is_used:
            return None
        logits = self._input_logits(X)
        out = np.empty_like(logits, order="C")
        matrix = len(lines) > 2
        if not _compiled.map_scaling(logits, matrix, lines, out, proba=True):
            out = _numerics.softmax(self._calibrate(_numerics.center(logits)))
        return self._in_order(out)

    def _make_algorithm(self, setting: FitSetting) -> FederatedAlgorithm[Any]:
        if setting.unit == "example":
            raise ValueError(
                f"{type(self).__name__} has no sensitivity bound for one example: a "
                "client sends the result of training on all its rows. Use "
                "unit='client'."
            )
        clip = None if self.clip == "auto" else float(self.clip)
        if setting.private or self.solver == "average":
            # Local optima of skewed clients lie far apart: under noise, early stop.
            literal = self.solver == "average"
            return LocalAverage(
                self._family(),
                local_solver=self.local_solver if literal else "gd",
                local_iter=self.local_iter,
                learning_rate=as_number("learning_rate", self.learning_rate),
                clip=DEFAULT_CLIP if clip is None and setting.private else clip,
                server_rate=as_number(
                    "server_learning_rate", self.server_learning_rate
                ),
            )
        if clip is not None:
            raise ValueError(
                f"clip={self.clip!r} is not used by solver={self.solver!r} without "
                "eps, where the exact optimum is computed; use solver='average', or "
                "set eps."
            )
        # A grid of temperatures takes one round, but as much work as ten of them.
        # Steps need all clients, rounds to spare, and weights that add up to rows.
        many = setting.n_rows * setting.n_classes >= _MANY_CELLS
        usual = setting.cohort == "full" and setting.n_rounds is None
        steps = _START_ROUNDS if many and usual and not setting.weighted else 1
        return PooledFit(self._family(), l2=self._strengths(), start_rounds=steps)

    def _is_optimum(self, setting: FitSetting) -> bool:
        return self.solver != "average" and setting.cohort == "full"

    def _set_state(self, state: Any) -> None:
        self.temperature_ = float(state.temperature)
        self.converged_ = bool(state.converged)
        self._name_params(state.params, 1.0 / self.temperature_)
        n_groups = len(self._strengths())
        self.l2_ = np.array(getattr(state, "ridge", np.zeros(n_groups)))
        self._move = state.params - self._family().start(state.n_classes)
        self._noise = getattr(state, "noise", 0.0)
        self._bounded = getattr(state, "bounded", False)

    def _improves(self) -> bool:
        # Squared length of pure noise: mean d v and sd v sqrt(2 d), v its variance.
        size, variance = len(self._move), self._noise**2
        excess = self._move @ self._move - size * variance
        return excess > STANDS_OUT * variance * np.sqrt(2 * size)

    def _after_fit(self, setting: FitSetting) -> None:
        if self.converged_ or setting.private:
            return
        if self.solver != "average":
            started = f"started at T = {self.temperature_:.4g}"
            self._warn_no_optimum(self._bounded, started)
            return
        warnings.warn(
            "The average of the local fits lies at the bounds: clients whose "
            "predictions are all correct have their optimum at infinity. Use "
            "solver='auto', or local_solver='gd'.",
            CalibrationWarning,
            stacklevel=4,
        )

    def _check_restored(self) -> None:
        n_classes = len(self.classes_)
        shapes = {**self._shapes(n_classes), "l2_": (len(self._strengths()),)}
        for name, shape in shapes.items():
            value = getattr(self, name)
            if not isinstance(value, np.ndarray) or value.shape != shape:
                raise ValueError(f"{name} does not match {n_classes} classes")
            if value.dtype != np.float64 or not np.isfinite(value).all():
                raise ValueError(f"{name} has values that are not finite")
        # Its inverse is a factor of logits.
        if (
            type(self.temperature_) is not float
            or not 1e-100 < self.temperature_ < np.inf
        ):
            raise ValueError(f"temperature_={self.temperature_!r} is not positive")
        if type(self.converged_) is not bool:
            raise ValueError(f"converged_={self.converged_!r} is not true or false")

    @abstractmethod
    def _shapes(self, n_classes: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the arrays among the fitted attributes."""


@scaling_documented
class FedVectorCalibrator(ScalingCalibrator):
    r"""Scale and shift the logit of each class, learned from sums over clients.

    Parameters
    ----------
    eps
    solver
    l2 : float or 'auto', default='auto'
        Strength of the ridge of 'auto' without `eps`; 'auto' is 0.1, which matters
        only for classes with a handful of rows.
    local_solver, local_iter, learning_rate, server_learning_rate
    delta
    clip
    if_improves, hold_back, privacy, ledger, classes, input_type, runner, random_state

    Attributes
    ----------
    scale_, bias_ : ndarray of shape (n_classes,)
        The map ``scale_ * z + bias_``, in the order of the columns of X.
    l2_ : ndarray of shape (n_groups,)
        Strength of the ridge on both vectors; 0 where clients were averaged.
    temperature_, converged_, improves_
    classes_, n_clients_, n_rounds_, privacy_, history_

    See Also
    --------
    FedTempCalibrator : One scale for all classes; keeps the order of classes.
    FedMatrixCalibrator : Mixes the logits of all classes.
    FedOPVectorCalibrator : As many parameters, and the order is kept.

    Notes
    -----
    The map is :math:`g(z) = a \odot z + b`. Without `eps` it minimises, for n rows,

    .. math:: \frac1n \sum_i -\log \mathrm{softmax}(g(z_i))_{y_i} +
        \frac{\lambda}{2n} (\|T a - 1\|^2 + \|b\|^2)

    with T the federated temperature and :math:`\lambda` the parameter `l2`. The
    result does not depend on how rows are spread over clients.

    Rows are shifted to a mean of zero over the classes before they are fitted or
    mapped, so that a constant added to a row changes nothing. Entries more than 1e6
    below the largest one of the row (or -inf) are left out of the mean, and their
    classes get probability 0; a row whose own class is one of them is not used.

    References
    ----------
    .. [1] Guo et al., "On Calibration of Modern Neural Networks", ICML 2017.

    Examples
    --------
    >>> from skfedcal import FedVectorCalibrator, make_federation
    >>> fed = make_federation(n_clients=50, class_bias=0.5, random_state=0)
    >>> cal = FedVectorCalibrator().fit(fed.clients)
    >>> cal.scale_.shape, cal.bias_.shape
    ((10,), (10,))
    >>> cal.predict_proba(fed.test_logits).shape
    (10000, 10)
    """

    _fitted_names = ("scale_", "bias_", "l2_", "temperature_", "converged_")

    def _family(self) -> VectorMap:
        return VectorMap()

    def _strengths(self) -> tuple[float | None, ...]:
        from skfedcal.methods.scaling.families import WEAK

        return (WEAK if self.l2 == "auto" else as_number("l2", self.l2),) * 2

    def _name_params(self, params: Array, beta: float) -> None:
        scale, self.bias_ = np.split(params.copy(), 2)
        self.scale_ = scale * beta

    def _lines(self) -> Array:
        return np.stack([self.scale_, self.bias_])

    def _shapes(self, n_classes: int) -> dict[str, tuple[int, ...]]:
        return {"scale_": (n_classes,), "bias_": (n_classes,)}


@scaling_documented
class FedMatrixCalibrator(ScalingCalibrator):
    r"""Map logits by a matrix and a bias learned from sums over clients.

    Parameters
    ----------
    eps
    solver
    l2 : float or 'auto', default='auto'
        Strength of the ridge on diagonal and bias, of solver 'auto' without `eps`.
        'auto' takes, for each of them, the strength of largest evidence. See Notes.
    l2_off : float or 'auto', default='auto'
        Strength of the ridge on the entries off the diagonal. 'auto' takes that of
        largest evidence, at least ``n_classes ** 2 / 16``.
    local_solver, local_iter, learning_rate, server_learning_rate
    delta
    clip
    if_improves, hold_back, privacy, ledger, classes, input_type, runner, random_state

    Attributes
    ----------
    matrix_ : ndarray of shape (n_classes, n_classes)
        Matrix of the map ``matrix_ @ z + bias_``, rows and columns in the order of the
        columns of X.
    bias_ : ndarray of shape (n_classes,)
        Bias of the map.
    l2_ : ndarray of shape (n_groups,)
        Strength of the ridge on diagonal, bias and the other entries; 0 where clients
        were averaged.
    temperature_, converged_, improves_
    classes_, n_clients_, n_rounds_, privacy_, history_

    See Also
    --------
    FedVectorCalibrator : The same with a diagonal matrix.
    FedTempCalibrator : One scale for all classes; keeps the order of classes.

    Notes
    -----
    The map is :math:`g(z) = A z + b`. Without `eps` it minimises, for n rows of C
    classes,

    .. math:: \frac1n \sum_i -\log \mathrm{softmax}(g(z_i))_{y_i} +
        \frac1{2n} \Bigl(\lambda_1 \sum_j (T A_{jj} - 1)^2 + \lambda_2 \sum_j b_j^2 +
        \lambda_3 \sum_{j \ne k} (T A_{jk})^2\Bigr)

    with T the federated temperature. The strengths :math:`\lambda` are those of
    normal priors; the evidence of each, on the quadratic model of the loss at
    temperature scaling, is a function of the same sums. Where the slopes there are no
    larger than the sampling error, the strengths grow without bound and the map reduces
    to temperature scaling, so that 100 classes do not overfit. The result does not
    depend on how rows are spread over clients.

    Rows are shifted to a mean of zero over the classes before they are fitted or
    mapped, so that a constant added to a row changes nothing. Entries more than 1e6
    below the largest one of the row (or -inf) are left out of the mean, and their
    classes get probability 0; a row whose own class is one of them is not used.

    References
    ----------
    .. [1] Guo et al., "On Calibration of Modern Neural Networks", ICML 2017.

    Examples
    --------
    >>> from skfedcal import FedMatrixCalibrator, make_federation
    >>> fed = make_federation(50, n_classes=5, class_bias=0.5, random_state=0)
    >>> cal = FedMatrixCalibrator().fit(fed.clients)
    >>> cal.matrix_.shape, cal.bias_.shape
    ((5, 5), (5,))
    >>> cal.predict_proba(fed.test_logits).shape
    (10000, 5)
    """

    _parameter_constraints = {
        **ScalingCalibrator._parameter_constraints,
        "l2_off": STRENGTH,
    }
    _fitted_names = ("matrix_", "bias_", "l2_", "temperature_", "converged_")

    def __init__(
        self,
        eps: float | None = None,
        *,
        solver: Literal["auto", "average"] = "auto",
        l2: float | Literal["auto"] = "auto",
        l2_off: float | Literal["auto"] = "auto",
        local_solver: Literal["lbfgs", "gd"] = "lbfgs",
        local_iter: int = 50,
        learning_rate: float = 0.01,
        server_learning_rate: float = 1.0,
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
        self.solver = solver
        self.l2 = l2
        self.l2_off = l2_off
        self.local_solver = local_solver
        self.local_iter = local_iter
        self.learning_rate = learning_rate
        self.server_learning_rate = server_learning_rate
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

    def _family(self) -> MatrixMap:
        return MatrixMap()

    def _strengths(self) -> tuple[float | None, ...]:
        own, off = (
            None if value == "auto" else as_number(name, value)
            for name, value in (("l2", self.l2), ("l2_off", self.l2_off))
        )
        return own, own, off

    def _name_params(self, params: Array, beta: float) -> None:
        n_classes = int(np.sqrt(len(params)))
        columns = params.reshape(n_classes + 1, n_classes)
        self.matrix_ = beta * columns[:-1].T
        self.bias_ = columns[-1].copy()

    def _lines(self) -> Array:
        return np.concatenate([self.matrix_.T, self.bias_[None]])

    def _shapes(self, n_classes: int) -> dict[str, tuple[int, ...]]:
        return {"matrix_": (n_classes, n_classes), "bias_": (n_classes,)}


@scaling_documented
class FedOPVectorCalibrator(ScalingCalibrator):
    r"""Scale the gaps between sorted logits by class, and keep their order.

    Parameters
    ----------
    eps
    solver : {'auto', 'average'}, default='auto'
        'auto': the exact optimum of the pooled log loss with a ridge, from summed
        slopes and curvature; under `eps` five rounds of federated averaging with
        gradient steps. 'average': the mean of the clients' own fits, Algorithm 2 of the
        paper; clients with few classes overfit, and the log loss grows.
    l2 : float or 'auto', default='auto'
        Strength of the ridge of 'auto' without `eps`; 'auto' is 1.
    local_solver, local_iter, learning_rate, server_learning_rate
    delta
    clip
    if_improves, hold_back, privacy, ledger, classes, input_type, runner, random_state

    Attributes
    ----------
    slope_, offset_ : ndarray of shape (n_classes,)
        The vectors v and u of the map, in the order of the columns of X.
    l2_ : ndarray of shape (n_groups,)
        Strength of the ridge on both vectors; 0 where clients were averaged.
    temperature_, converged_, improves_
    classes_, n_clients_, n_rounds_, privacy_, history_

    See Also
    --------
    FedTempCalibrator : One scale for all classes; keeps the order as well.
    FedVectorCalibrator : As many parameters, and the order may change.

    Notes
    -----
    With :math:`x = z / T`, sorted so that :math:`x_1 \ge x_2 \ge \dots`, the
    calibrated logit of rank i is :math:`g_i = g_{i+1} + (x_i - x_{i+1}) m_i`, where
    :math:`m = \max(\log(1 + e^{v \odot x + u}), 10^{-6})` [1]_. The floor keeps
    classes apart where the softplus underflows, and the values are rounded so that, in
    the dtype of the input too, equal logits stay equal and others stay apart: neither
    the most probable class nor any rank changes. (Logits that differ in their last
    digit only become equal where the row is shifted to a maximum of 0, far below it.)
    The log loss is not convex in v and
    u: the fit starts at temperature scaling, and never ends with a larger loss plus
    ridge :math:`\frac{\lambda}{2n} (\|v\|^2 + \|u - \log(e - 1)\|^2)`,
    :math:`\lambda` being `l2` and n the number of rows.

    Rows are shifted to a mean of zero over the classes before they are fitted or
    mapped, so that a constant added to a row changes nothing. Entries more than 1e6
    below the largest one of the row (or -inf) are left out of the mean, and their
    classes get probability 0; a row whose own class is one of them is not used.

    References
    ----------
    .. [1] Rahimi et al., "Intra Order-preserving Functions for Calibration of
       Multi-Class Neural Networks", NeurIPS 2020.

    Examples
    --------
    >>> from skfedcal import FedOPVectorCalibrator, make_federation
    >>> fed = make_federation(n_clients=50, class_bias=0.5, random_state=0)
    >>> cal = FedOPVectorCalibrator().fit(fed.clients)
    >>> same = cal.predict(fed.test_logits) == fed.test_logits.argmax(axis=1)
    >>> bool(same.all())
    True
    """

    _fitted_names = ("slope_", "offset_", "l2_", "temperature_", "converged_")

    def _family(self) -> OrderPreservingMap:
        return OrderPreservingMap()

    def _strengths(self) -> tuple[float | None, ...]:
        return (1.0 if self.l2 == "auto" else as_number("l2", self.l2),) * 2

    def _name_params(self, params: Array, beta: float) -> None:
        self.slope_, self.offset_ = np.split(params.copy(), 2)

    def _shapes(self, n_classes: int) -> dict[str, tuple[int, ...]]:
        return {"slope_": (n_classes,), "offset_": (n_classes,)}

    def _calibrate(self, logits: Array) -> Array:
        # 0.6 of the time of the registered map with `keep_ranks`: one sort, not two.
        params = np.concatenate([self.slope_, self.offset_])
        out = np.empty_like(logits)
        step = max(1, CHUNK_CELLS // logits.shape[1])
        for start in range(0, len(logits), step):
            part, found = (x[start : start + step].T for x in (logits, out))
            rows = canonical(part.T, 1.0 / self.temperature_, ranked=True)
            values = self._family().descent(params, rows)
            ordered = np.take_along_axis(part, rows.ranks, axis=0)
            if rows.masked is not None:
                masked = np.take_along_axis(rows.masked, rows.ranks, axis=0)
                values[masked] = ordered[masked] / self.temperature_
            np.put_along_axis(found, rows.ranks, in_order(values, ordered), axis=0)
        return out


def keep_ranks(values: Array, logits: Array) -> Array:
    """Rows with the ranking and the ties of `logits`, whatever rounding has done."""
    ranks = np.argsort(-logits, axis=1, kind="stable").T
    ordered, found = (np.take_along_axis(x.T, ranks, axis=0) for x in (logits, values))
    out = np.empty_like(logits)
    np.put_along_axis(out.T, ranks, in_order(found, ordered), axis=0)
    return out


def in_order(values: Array, ordered: Array) -> Array:
    """Round `values` to the dtype of `ordered` with its ties and no others.

    Both have shape (n_classes, n_rows) and do not grow from class to class.
    """
    out = np.empty_like(ordered)
    with np.errstate(over="ignore"):
        np.copyto(out, values, casting="same_kind")
    for i in range(1, len(out)):
        below = np.nextafter(out[i - 1], out.dtype.type(-np.inf))
        tied = ordered[i] == ordered[i - 1]
        out[i] = np.where(tied, out[i - 1], np.minimum(out[i], below))
    return out
