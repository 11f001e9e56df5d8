"""FedTempCalibrator, and the temperature of each client for simulations."""

from __future__ import annotations

import warnings
from dataclasses import replace
from math import isnan, nan
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from sklearn.base import BaseEstimator

from skfedcal import _compiled, _numerics
from skfedcal._docs import documented
from skfedcal._params import as_number
from skfedcal._sklearn_compat import Interval, StrOptions
from skfedcal.clients.arrays import INPUT_TYPES, check_finite
from skfedcal.clients.forms import make_dataset
from skfedcal.exceptions import CalibrationWarning
from skfedcal.methods.base import BaseCalibrator
from skfedcal.methods.temperature.posterior import MIN_SIGNAL, TemperaturePosterior
from skfedcal.methods.temperature.rounds import (
    TemperatureAverage,
    TemperatureGrid,
    local_temperatures,
    newton_for,
)

if TYPE_CHECKING:
    from skfedcal._typing import (
        ArrayLike,
        ClientRows,
        FloatArray,
        InputType,
        PerRow,
        Rows,
        Seed,
    )
    from skfedcal.clients.dataset import FederatedDataset
    from skfedcal.contract import Array, FederatedAlgorithm
    from skfedcal.federation.runner import FederatedRunner
    from skfedcal.methods.base import FitSetting
    from skfedcal.privacy.ledger import PrivacyLedger
    from skfedcal.privacy.models import PrivacyModel


@documented
class FedTempCalibrator(BaseCalibrator):
    """Divide all logits by one temperature learned from sums over clients.

    Parameters
    ----------
    eps, delta
    solver : {'auto', 'newton', 'grid', 'average'}, default='auto'
        'newton': the exact optimum of the pooled log loss; under `eps` the temperature
        of least expected loss given five noisy releases, for clients of any number of
        rows. 'grid': the exact optimum in one round, T in [0.01, 100]. 'average': the
        mean of the clients' own optima, as printed in the paper; biased when clients
        differ. 'auto' is 'newton', or without `eps` 'grid' if `runner` has one round.
    clip : float or 'auto', default='auto'
        Bound on the contribution of one client: its mean slope in log T for 'newton'
        (of one row with ``unit="example"``), its curve for 'grid', its change of T for
        'average'. A number also clips without `eps` where the solver is 'average'.
        'auto' is a public rule of the solver.
    server_learning_rate : float, default=1.0
        Factor of the mean change that the server adds in a round of 'average'
        (Appendix B.2 of the paper).
    if_improves : bool, default=True
        With `eps` and solver 'grid' or 'average', return the input unchanged if the
        released values cannot be distinguished from noise (`improves_`). It has no
        effect on 'newton', whose result is shrunk toward T = 1 as far as the noise
        requires.
    hold_back, privacy, ledger, classes, input_type, runner, random_state

    Attributes
    ----------
    temperature_ : float
        The temperature, from exp(-10) to exp(10); 1 leaves the input unchanged.
    converged_ : bool
        Whether the optimum was found inside the bounds; with `eps`, whether the
        released values determine it better than the prior.
    classes_
    improves_ : bool
        With `eps`, ``expected_gain_ > 0``; for solver 'grid' or 'average', whether the
        released values can be distinguished from noise. Without `eps`, False if
        `hold_back` found that the input is better.
    comparison_
    expected_gain_ : float
        With `eps` and solver 'newton', the decrease of the mean log loss, in nats per
        row, that is expected given the released values; never negative, and 0 if no
        client was asked. NaN otherwise.
    n_clients_, n_rounds_, privacy_, history_

    See Also
    --------
    FedBinCalibrator : Histogram binning.
    skfedcal.metrics.expected_calibration_error : Error of the top label.

    Notes
    -----
    The log loss in ``1 / T`` is convex and its derivatives are sums over rows, so that
    any partition into clients has the same optimum. Order and accuracy never change.

    With `eps` no client is asked and nothing is spent if the number of clients times mu
    (Gaussian differential privacy of eps and delta) is below 1: the releases would say
    less than what is known about networks beforehand.

    References
    ----------
    .. [1] Guo et al., "On Calibration of Modern Neural Networks", ICML 2017.

    Examples
    --------
    >>> from skfedcal import FedTempCalibrator, make_federation
    >>> fed = make_federation(n_clients=50, temperature=2.0, noise=0.0, random_state=0)
    >>> cal = FedTempCalibrator().fit(fed.clients)
    >>> round(cal.temperature_, 1)
    2.0
    >>> cal.predict_proba(fed.test_logits).shape
    (10000, 10)
    """

    _parameter_constraints = {
        **BaseCalibrator._parameter_constraints,
        "solver": [StrOptions({"auto", "newton", "grid", "average"})],
        "server_learning_rate": [Interval(Real, 0, 1e6, closed="right")],
    }
    _fitted_names = ("temperature_", "converged_", "expected_gain_")
    _other_unit = (
        "; with few clients of many rows so would CentralDP(eps, unit='example'), "
        "which protects single rows, not whole clients"
    )

    def __init__(
        self,
        eps: float | None = None,
        *,
        delta: float | None = None,
        solver: Literal["auto", "newton", "grid", "average"] = "auto",
        clip: float | Literal["auto"] = "auto",
        server_learning_rate: float = 1.0,
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
        self.delta = delta
        self.solver = solver
        self.clip = clip
        self.server_learning_rate = server_learning_rate
        self.if_improves = if_improves
        self.hold_back = hold_back
        self.privacy = privacy
        self.ledger = ledger
        self.classes = classes
        self.input_type = input_type
        self.runner = runner
        self.random_state = random_state

    def _make_algorithm(self, setting: FitSetting) -> FederatedAlgorithm[Any] | None:
        clip = None if self.clip == "auto" else float(self.clip)
        if self.solver == "average":
            if setting.unit == "example":
                raise ValueError(
                    "solver='average' has no sensitivity bound for one example; use "
                    "unit='client', or solver='newton'."
                )
            rate = as_number("server_learning_rate", self.server_learning_rate)
            if setting.private:
                return TemperatureAverage(clip or 0.5, n_rounds=3, server_rate=rate)
            return TemperatureAverage(clip, server_rate=rate)
        if not setting.private:
            _refuse_clip(self.clip, self.solver)
            # Newton steps need more than one round, also to see enough rows.
            if self.solver == "grid" or (
                self.solver == "auto" and setting.n_rounds == 1
            ):
                return TemperatureGrid()
            return newton_for(setting.n_rows)
        if self.solver == "grid":
            return TemperatureGrid(n_points=17, clip=clip or 1.0)
        algorithm = TemperaturePosterior(clip=clip)
        signal = setting.signal(algorithm.n_rounds)
        if signal < MIN_SIGNAL:
            return None
        return replace(algorithm, signal=signal)

    def _is_optimum(self, setting: FitSetting) -> bool:
        return self.solver != "average" and setting.cohort == "full"

    def _set_state(self, state: Any) -> None:
        self.temperature_ = 1.0 if state is None else float(state.temperature)
        self.converged_ = state is not None and bool(state.converged)
        # Only a posterior has one; nobody expects anything of no releases.
        missing = nan if state is not None else 0.0
        self.expected_gain_ = float(getattr(state, "gain", missing))
        self._bounded = getattr(state, "bounded", True)
        self._gain = state is not None and getattr(state, "improves", True)

    def _improves(self) -> bool:
        return self._gain

    def _after_fit(self, setting: FitSetting) -> None:
        newton = self.solver == "newton" or (
            self.solver == "auto" and setting.n_rounds != 1
        )
        if newton and not setting.private and self._has_changing_cohorts():
            # Exact steps end at the optimum of the cohort that was asked last.
            self.converged_ = False
        if self.converged_ or not self.improves_:
            return
        if not setting.private:
            reached = f"stopped at T = {self.temperature_:.4g}"
            self._warn_no_optimum(self._bounded, reached, "or solver='grid'")
            return
        warnings.warn(
            "The noise is too large to determine the temperature: with this number of "
            "clients and this eps, the released values add little to the prior around "
            "T = 1.",
            CalibrationWarning,
            stacklevel=4,
        )

    def _warn_no_gain(self) -> None:
        if self.solver in ("grid", "average"):
            super()._warn_no_gain()
            return
        warnings.warn(
            "Given the released values, no temperature is expected to reduce the loss: "
            f"T = 1. More clients or a larger eps would help{self._other_unit}.",
            CalibrationWarning,
            stacklevel=4,
        )

    def _has_changing_cohorts(self) -> bool:
        drawn = self.runner is not None and self.runner.cohort != "full"
        return drawn and any(r.n_clients < self.n_clients_ for r in self.history_)

    def _check_restored(self) -> None:
        if type(self.temperature_) is not float or not 0 < self.temperature_ < np.inf:
            raise ValueError(f"temperature_={self.temperature_!r} is not positive")
        if type(self.expected_gain_) is not float or self.expected_gain_ < 0:
            raise ValueError(f"expected_gain_={self.expected_gain_!r} is negative")
        if type(self.converged_) is not bool:
            raise ValueError(f"converged_={self.converged_!r} is not true or false")

    def _calibrate(self, logits: Array) -> Array:
        logits /= logits.dtype.type(self.temperature_)
        return logits

    def _map_scores(self, clients: FederatedDataset) -> Array | None:
        if clients.n_classes == 1:
            return None
        out = np.empty((4, clients.n_rows))
        done = _compiled.scaled_scores(clients, 1 / self.temperature_, out)
        return out if done else None

    def _direct_proba(self, X: Rows) -> FloatArray | None:
        if _compiled.core is None:
            return None
        # One pass less over large rows: where a row has NaN, +inf or -inf only, all of
        # its probabilities are NaN.
        logits = self._input_logits(X, look=False)
        scale = 1 / self.temperature_ if self._map_is_used else 1.0
        out = np.empty_like(logits, order="C")
        done = _compiled.softmax(logits, out, scale)
        if not done or isnan(out[:, 0].sum()):
            check_finite(logits)
        if not done:
            out = _numerics.softmax(_numerics.center(logits) * scale)
        return self._in_order(out)


def _refuse_clip(clip: float | Literal["auto"], solver: str) -> None:
    if clip != "auto":
        raise ValueError(
            f"clip={clip!r} is not used by solver={solver!r} without eps, where the "
            "exact optimum is computed; use solver='average', or set eps."
        )


@documented
def client_temperatures(
    clients: ClientRows,
    y: PerRow | None = None,
    *,
    client_ids: ArrayLike | None = None,
    classes: ArrayLike | None = None,
    input_type: InputType = "logits",
) -> FloatArray:
    """Temperature that each client would fit to its own rows alone.

    It reads each client separately and adds no noise: use it on simulated federations,
    to see how much clients differ, not on private data. The more the labels are skewed,
    the larger is the variance of these temperatures.

    Parameters
    ----------
    clients : list of (logits, labels) pairs, list of arrays, or array-like
        Clients in any form that `fit` reads.
    y : array-like of shape (n_samples,), or list of these, default=None
        Labels; omitted when `clients` is a list of pairs.
    client_ids, classes
    input_type : {'logits', 'log_proba', 'proba'}, default='logits'
        Type of the scores; it is never inferred from the data.

    Returns
    -------
    temperatures : ndarray of shape (n_clients,)
        Optimum of the client's log loss in [0.05, 20], in the order of the clients
        (sorted, if they come as `client_ids`). NaN for clients without rows. A client
        whose predictions are all correct, or all wrong, has no optimum and ends at a
        bound, or on the way there where its loss is zero in floating point.

    See Also
    --------
    FedTempCalibrator : One temperature for all; ``solver='average'`` is the mean of
        these.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal import client_temperatures, make_federation
    >>> for alpha in (0.1, 0.5, None):
    ...     fed = make_federation(
    ...         50, class_bias=2.0, alpha=alpha, balance=True, random_state=0
    ...     )
    ...     print(alpha, round(np.var(client_temperatures(fed.clients)), 2))
    0.1 0.19
    0.5 0.08
    None 0.02
    """
    if not isinstance(input_type, str) or input_type not in INPUT_TYPES:
        raise ValueError(f"input_type={input_type!r}: pass one of {INPUT_TYPES}.")
    dataset, _ = make_dataset(
        BaseEstimator(), clients, y, client_ids, classes=classes, input_type=input_type
    )
    return np.where(dataset.filled, local_temperatures(dataset), np.nan)
