"""FedAutoCalibrator: choose a calibrator from public values."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from math import sqrt
from typing import TYPE_CHECKING, Any, Literal

from skfedcal._docs import documented
from skfedcal._sklearn_compat import StrOptions
from skfedcal.federation.runner import FederatedRunner
from skfedcal.methods.base import BaseCalibrator, FitSetting
from skfedcal.methods.bias_temperature.estimator import (
    FedBiasTempCalibrator,
    checked_prior,
)
from skfedcal.methods.temperature.estimator import FedTempCalibrator
from skfedcal.methods.temperature.rounds import TemperatureGrid

if TYPE_CHECKING:
    from collections.abc import Callable

    from skfedcal._typing import ArrayLike, InputType, Seed
    from skfedcal.contract import Array, FederatedAlgorithm
    from skfedcal.privacy.ledger import PrivacyLedger
    from skfedcal.privacy.models import PrivacyModel


# Rounds, without noise. A temperature and the biases take 3 to 5 rounds on the outputs
# of real networks, the bins two more, the last of which may be dropped. After 3 rounds
# the log loss with biases was within 5e-4 of the optimum on seven networks; after 2 it
# was not.
_ROUNDS_BIAS, _ROUNDS_BINS = 3, 6

# Rounds under noise: with fewer the biases are measured far from the temperature.
_ROUNDS_PRIVATE = 3

# From this many classes on a class seldom has the rows for a bias of its own: at 100
# classes with 50 rows each this ridge was better by 0.006 in log loss, at 10 it changed
# nothing.
_MANY_CLASSES, _RIDGE = 50, 1e-3

# Under noise, 15, 24 and 51 clients were better off with a temperature at every eps up
# to 3; about 100 clients with biases from a signal of 10 on, if the class frequencies
# were known. Residuals that are not adjusted to them carry the skew of the clients.
_CLIENTS, _SIGNAL_PRIOR, _SIGNAL_PLAIN = 60, 10.0, 40.0

# The number of classes that the signal was measured at; noise grows with the root.
_CLASSES = 10

# What a method fitted on its own has, beside its own results.
_SHARED = ("_class_map", "classes_", "n_features_in_", "feature_names_in_", "improves_",
           "n_clients_", "n_rounds_", "privacy_", "history_")  # fmt: skip

_METHODS = (FedTempCalibrator, FedBiasTempCalibrator)


@dataclass(frozen=True)
class Choice:
    """A calibrator, the options that differ from its defaults, and why."""

    estimator: type[BaseCalibrator]
    reason: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = (f"{name}={_text(value)}" for name, value in self.options.items())
        return f"{self.estimator.__name__}({', '.join(shown)})"


@documented
class FedAutoCalibrator(BaseCalibrator):
    """Choose between temperature and class biases from public numbers, then fit.

    The choice is made before any client is asked. It depends on the number of clients,
    classes and rounds, on the budget and on the parameters, and on no row or label: it
    costs no privacy. One fit is one run of the chosen method.

    Parameters
    ----------
    eps
    keep_order : bool, default=False
        Choose a method that never changes the order of classes, nor the accuracy.
    class_prior : 'uniform', 'private', array-like of shape (n_classes,) or None, \
            default=None
        Public class frequencies of the whole population, one per column of X; only used
        with `eps`. 'private' estimates them with a part of the budget; None: they are
        not known.
    delta
    clip : float or 'auto', default='auto'
        Passed to the chosen method, which defines the meaning of a number; 'auto' is a
        public constant.
    if_improves, privacy, ledger, classes, input_type, runner, random_state

    Attributes
    ----------
    choice_ : str
        The chosen calibrator with its options, as it would be written.
    reason_ : str
        Reason of the choice, with its numbers.
    calibrator_ : FedTempCalibrator or FedBiasTempCalibrator
        The chosen calibrator, fitted; predicts the same.
    classes_, improves_, n_clients_, n_rounds_, privacy_, history_

    See Also
    --------
    FedBiasTempCalibrator : Class biases and a temperature.
    FedTempCalibrator : Temperature alone.

    Notes
    -----
    Without `eps`: class biases, a temperature and residual bins; without the bins if
    the runner allows fewer than 6 rounds, a temperature if fewer than 3. With partial
    cohorts the choice is ``solver='grid'``, which accumulates the sums of all rounds;
    Newton steps, also those of the biases, would follow an optimum that changes with
    the cohort.

    With `eps`: for K clients, c classes and a budget of mu in Gaussian differential
    privacy the signal is ``K mu / max(1, sqrt(c / 10))``. Biases are chosen from 60
    clients and a signal of 10 on if the class frequencies are known, of 40 on if they
    are not. A temperature is chosen below that, for ``unit='example'``, where fewer
    than 3 rounds are allowed, and where a round leaves clients out.

    Examples
    --------
    >>> from skfedcal import FedAutoCalibrator, make_federation
    >>> fed = make_federation(n_clients=50, random_state=0)
    >>> FedAutoCalibrator().fit(fed.clients).choice_
    "FedBiasTempCalibrator(residual='bins')"
    >>> FedAutoCalibrator(eps=1.0).explain(n_clients=50, n_classes=10)[0]
    'FedTempCalibrator()'
    """

    _parameter_constraints = {
        **BaseCalibrator._parameter_constraints,
        "keep_order": ["boolean"],
        "class_prior": [StrOptions({"uniform", "private"}), "array-like", None],
    }
    _fitted_names = ("choice_", "reason_", "calibrator_")

    def __init__(
        self,
        eps: float | None = None,
        *,
        keep_order: bool = False,
        class_prior: ArrayLike | Literal["uniform", "private"] | None = None,
        delta: float | None = None,
        clip: float | Literal["auto"] = "auto",
        if_improves: bool = True,
        privacy: PrivacyModel | None = None,
        ledger: PrivacyLedger | None = None,
        classes: ArrayLike | None = None,
        input_type: InputType = "logits",
        runner: FederatedRunner | None = None,
        random_state: Seed = None,
    ) -> None:
        self.eps = eps
        self.keep_order = keep_order
        self.class_prior = class_prior
        self.delta = delta
        self.clip = clip
        self.if_improves = if_improves
        self.privacy = privacy
        self.ledger = ledger
        self.classes = classes
        self.input_type = input_type
        self.runner = runner
        self.random_state = random_state

    def explain(self, n_clients: int, n_classes: int) -> tuple[str, str]:
        """Return what `fit` would choose, and why; no data are needed.

        Parameters
        ----------
        n_clients : int
            Number of clients.
        n_classes : int
            Number of classes.

        Returns
        -------
        choice : str
            The calibrator, as in `choice_`.
        reason : str
            Reason of the choice, as in `reason_`.
        """
        self._validate_params()
        model = self._privacy_model()
        runner = self.runner if self.runner is not None else FederatedRunner()
        setting = FitSetting(
            n_classes,
            model.private,
            model.unit,
            False,
            n_clients,
            model.strength(n_clients),
            runner.n_rounds,
        )
        choice = self._choose(setting)
        return str(choice), choice.reason

    def _choose(self, setting: FitSetting) -> Choice:
        # Refused whatever is chosen: an error must not wait for the next client.
        checked_prior(self.class_prior, setting.n_classes)
        partial = _leaves_clients_out(self.runner, setting.n_clients)
        if not setting.private:
            return _exact_choice(setting, self.keep_order, partial)
        return _private_choice(setting, self.keep_order, partial, self.class_prior)

    def _make_algorithm(self, setting: FitSetting) -> FederatedAlgorithm[Any] | None:
        choice = self._choose(setting)
        shared = self.get_params(deep=False)
        for name in ("keep_order", "class_prior"):
            del shared[name]
        self.choice_, self.reason_ = str(choice), choice.reason
        self.calibrator_ = choice.estimator(**shared, **choice.options)
        return self.calibrator_._make_algorithm(setting)

    def _set_state(self, state: Any) -> None:
        # A copy: callbacks keep the calibrator of an earlier round.
        self.calibrator_ = copy(self.calibrator_)
        self._share_attributes()
        self.calibrator_._set_state(state)

    def _share_attributes(self) -> None:
        for name in _SHARED:
            if hasattr(self, name):
                setattr(self.calibrator_, name, getattr(self, name))

    def _noise_split(self) -> Literal["split", "joint"]:
        return self.calibrator_._noise_split()

    def _improves(self) -> bool:
        return self.calibrator_._improves()

    @property
    def _after_fit(self) -> Callable[[FitSetting], None]:
        # Handed out, not called here: its warnings point at the caller of `fit`.
        self._share_attributes()
        return self.calibrator_._after_fit

    def _check_restored(self) -> None:
        inner = self.calibrator_
        if not isinstance(inner, _METHODS):
            raise ValueError(f"calibrator_ is not one of {_METHODS}")
        for name in ("choice_", "reason_"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} is not a text")
        same = self.classes_.tolist() == inner.classes_.tolist()
        same &= self._class_map.order.tolist() == inner._class_map.order.tolist()
        if not same:
            raise ValueError("calibrator_ has other classes")

    def _calibrate(self, logits: Array) -> Array:
        return self.calibrator_._calibrate(logits)

    def _unchanged(self, logits: Array) -> Array:
        return self.calibrator_._unchanged(logits)


def _exact_choice(setting: FitSetting, keep_order: bool, partial: bool) -> Choice:
    """Choose for exact sums."""
    if partial:
        reason = (
            "Each round has only a part of the clients, so sums are "
            "accumulated over rounds."
        )
        return Choice(FedTempCalibrator, reason, {"solver": "grid"})
    n_rounds: Any = setting.n_rounds
    few = n_rounds is not None and n_rounds < _ROUNDS_BINS
    if keep_order:
        reason = "keep_order=True excludes class biases."
        return Choice(FedTempCalibrator, reason, {"solver": "grid"} if few else {})
    allowed = "Sums are exact and the number of rounds is not limited"
    if n_rounds is not None:
        allowed = f"Sums are exact and n_rounds is {n_rounds}"
    if few and n_rounds < _ROUNDS_BIAS:
        reason = f"{allowed}; class biases need {_ROUNDS_BIAS}."
        return Choice(FedTempCalibrator, reason, {"solver": "grid"})
    options: dict[str, Any] = {} if few else {"residual": "bins"}
    reason = f"{allowed}; residual bins need {_ROUNDS_BINS}."
    if setting.n_classes >= _MANY_CLASSES:
        options["ridge"] = _RIDGE
        reason = f"{reason[:-1]}, and {setting.n_classes} classes need a ridge."
    return Choice(FedBiasTempCalibrator, reason, options)


def _private_choice(
    setting: FitSetting, keep_order: bool, partial: bool, class_prior: ArrayLike | None
) -> Choice:
    """Choose for noisy sums."""
    reason = _private_obstacle(setting, keep_order, partial)
    if reason:
        return Choice(FedTempCalibrator, reason)
    n_clients, n_classes = setting.n_clients, setting.n_classes
    signal = n_clients * setting.strength / max(1.0, sqrt(n_classes / _CLASSES))
    known = class_prior is not None and _text(class_prior) != "'private'"
    needed = _SIGNAL_PRIOR if known else _SIGNAL_PLAIN
    enough = n_clients >= _CLIENTS and signal >= needed
    reason = (
        f"{n_clients} clients, {n_classes} classes and mu = {setting.strength:.3g} "
        f"give a signal of {signal:.3g}; with class_prior={_text(class_prior)} biases "
        f"need {_CLIENTS} clients and a signal of {needed:g}"
    )
    if not known:
        reason += f" ({_SIGNAL_PRIOR:g} with public class frequencies)"
    reason += "."
    if not enough:
        return Choice(FedTempCalibrator, reason)
    return Choice(FedBiasTempCalibrator, reason, {"class_prior": class_prior})


def _private_obstacle(setting: FitSetting, keep_order: bool, partial: bool) -> str:
    """Return why class biases are excluded under noise, or None."""
    n_rounds = setting.n_rounds
    if keep_order:
        return "keep_order=True excludes class biases."
    if setting.unit == "example":
        return "Class biases have no sensitivity bound for one example."
    if n_rounds is not None and n_rounds < _ROUNDS_PRIVATE:
        return f"n_rounds is {n_rounds}; class biases need {_ROUNDS_PRIVATE}."
    if partial:
        return (
            "Each round has only a part of the clients; class biases need all of them."
        )
    return ""


def _leaves_clients_out(runner: FederatedRunner | None, n_clients: int) -> bool:
    """Return whether a release is made without some of the clients."""
    if runner is None:
        return False
    schedule = runner.schedule(TemperatureGrid(), n_clients)
    return schedule.cohort != "full" and schedule.size < n_clients


def _text(value: object) -> str:
    """Short form of an option."""
    return repr(value) if value is None or isinstance(value, str | float) else "[...]"
