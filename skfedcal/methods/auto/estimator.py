"""FedAutoCalibrator: choose a map by held-back loss, or from public values."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from sklearn.utils.validation import check_is_fitted

from skfedcal._docs import documented
from skfedcal._sklearn_compat import StrOptions
from skfedcal.clients.forms import drop_client_column, read_scores
from skfedcal.federation.runner import FederatedRunner
from skfedcal.methods.base import BaseCalibrator, FitSetting
from skfedcal.methods.bias_temperature.estimator import (
    FedBiasTempCalibrator,
    checked_prior,
)
from skfedcal.methods.shape.estimator import FedShapeCalibrator
from skfedcal.methods.shape.noisy_rounds import MAP_SIGNAL
from skfedcal.methods.shape.rounds import (
    MANY_CLASSES,
    MIN_ROUNDS,
    MIN_ROUNDS_MATRIX,
    MapNewton,
    MapState,
)
from skfedcal.methods.temperature.estimator import FedTempCalibrator
from skfedcal.methods.temperature.posterior import MIN_SIGNAL
from skfedcal.methods.temperature.rounds import TemperatureGrid

if TYPE_CHECKING:
    from collections.abc import Callable

    from skfedcal._typing import ArrayLike, InputType, Rows, Seed
    from skfedcal.contract import Array, FederatedAlgorithm
    from skfedcal.evaluation.intervals import Estimate
    from skfedcal.privacy.ledger import PrivacyLedger
    from skfedcal.privacy.models import PrivacyModel


# Rounds of a temperature and biases, without noise: after 3 the log loss was within
# 5e-4 of the optimum on seven networks; after 2 it was not.
_ROUNDS_BIAS = 3

# Rounds under noise: with fewer one of the stages of a map would have none.
_ROUNDS_PRIVATE = 4

# Most classes for which a matrix is tried.
_MATRIX_CLASSES = 20

# Standard errors by which the Brier score must fall where the input may have zeros; of
# 0, .5, 1, 1.5 and 2 the best mean Brier score on nearest neighbours.
_PROBA_MARGIN = 1.0

# What a method fitted on its own has, beside its own results.
_SHARED = ("_class_map", "classes_", "n_features_in_", "feature_names_in_", "improves_",
           "n_clients_", "n_rounds_", "privacy_", "history_")  # fmt: skip

_METHODS = (FedTempCalibrator, FedBiasTempCalibrator, FedShapeCalibrator)

# Calibrators of the maps that are compared without noise.
_MAPS: dict[str, tuple[type[BaseCalibrator], dict[str, Any]]] = {
    "none": (FedTempCalibrator, {}),
    "T": (FedTempCalibrator, {}),
    "S": (FedShapeCalibrator, {"biases": False}),
    "B": (FedBiasTempCalibrator, {}),
    "BS": (FedShapeCalibrator, {"biases": True}),
    "SM": (FedShapeCalibrator, {"matrix": True}),
}


@dataclass(frozen=True)
class Choice:
    """A calibrator, the options that differ from its defaults, and why.

    With `kinds` it is one of several maps, which the clients' held-back rows decide.
    """

    estimator: type[BaseCalibrator]
    reason: str
    options: dict[str, Any] = field(default_factory=dict)
    kinds: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.kinds:
            one = (str(Choice(_MAPS[k][0], "", _MAPS[k][1])) for k in self.kinds)
            return "one of none, " + ", ".join(one)
        shown = (f"{name}={_text(value)}" for name, value in self.options.items())
        return f"{self.estimator.__name__}({', '.join(shown)})"


@documented
class FedAutoCalibrator(BaseCalibrator):
    """Choose a calibration map, explain the choice, and fit it; the usual way to start.

    Without `eps` the clients' held-back rows decide, and the input is returned where no
    map is better than it. With `eps` the choice is made before any client is asked. It
    then depends on the number of clients, classes and rounds, on the budget and on the
    parameters, and on no row or label: it costs no privacy. One fit is one run.

    Parameters
    ----------
    eps
    keep_order : bool, default=False
        Choose a method that never changes the order of classes, nor the accuracy.
    class_prior : 'uniform', 'private', array-like of shape (n_classes,) or None, \
            default=None
        Public class frequencies of the whole population, one per column of X; only used
        with `eps`. 'private' or None: they are not known.
    strict : bool, default=False
        Without `eps`, take a map with more numbers only if it is better on held-back
        rows by one standard error; False takes the better one.
    delta
    clip : float or 'auto', default='auto'
        Passed to the chosen method, which defines the meaning of a number; 'auto' is a
        public constant. Only a temperature has one.
    if_improves : bool, default=True
        With `eps`, return the input unchanged if no gain is expected (`improves_`).
    hold_back : bool, default=True
        Without `eps`, hold back a fifth of each client's rows, on which maps are
        compared with each other and with the input. False fits biases and a
        temperature, or with `keep_order` a temperature, to all rows.
    privacy, ledger, classes, input_type, runner, random_state

    Attributes
    ----------
    choice_ : str
        The chosen calibrator with its options, as it would be written; 'none' if the
        input is returned because no map was better on held-back rows.
    reason_ : str
        Reason of the choice in one sentence, with its numbers.
    calibrator_ : FedTempCalibrator, FedShapeCalibrator or FedBiasTempCalibrator
        The chosen calibrator, fitted; predicts the same.
    classes_
    improves_ : bool
        With `eps`, whether a gain is expected; without it False if `hold_back` found
        harm.
    gain_ : Estimate or None
        Without `eps`, decrease of the mean log loss from the input to the chosen map on
        held-back rows, with a 95 % interval of the paired difference; of the map before
        it is fitted further with all rows. The choice was made on the same rows, which
        makes it a little too large. None where no rows are held back, with `eps`, where
        `federated_compare_scores` measures it, and in a calibrator from a file.
    comparison_, n_clients_, n_rounds_, privacy_, history_

    See Also
    --------
    FedTempCalibrator : Temperature alone.
    FedShapeCalibrator : Temperature, shared shape, and biases or a matrix.
    FedBiasTempCalibrator : Class biases and a temperature.

    Notes
    -----
    Without `eps` the candidates are the input, a temperature (T), a shared shape (S),
    class biases (B), both (BS), and a matrix on top of the shape (SM). Each client
    holds back a fifth of its rows by a public hash. All maps are fitted to the other
    rows in the same rounds; then clients send summed losses of held-back rows, and sums
    of squared differences. From few numbers to many, a map must be better than the best
    so far, and no worse than the input in the Brier score of all rows; better by a
    standard error where the input is probabilities, which may be 0. The chosen one is
    fitted further with all rows. SM has the ridge of largest evidence, which leaves S
    as it is where rows are few; it needs a held-back loss of 0.1 and at most 20
    classes. Biases are left out from 50 classes on. Below 100 rows nothing is held
    back: the choice is between T and the input. Fewer than 11 rounds leave out SM;
    fewer than 6 allow no comparison, and the choice is B, or T below 3.
    With partial cohorts it is ``solver='grid'``, which accumulates the sums of all
    rounds. Where both fits converge and no order is kept, the held-back log loss of the
    second is not above that of the first, nor therefore that of the input.

    With `eps` the signal is ``K mu`` for K clients (or rows, with ``unit='example'``)
    and a budget of mu in Gaussian differential privacy. Below 1 nobody is asked. From 8
    on the choice is a shape with biases, see `FedShapeCalibrator`; a temperature below
    that, where fewer than 4 rounds are allowed, and where a round leaves clients out.

    Examples
    --------
    >>> from skfedcal import FedAutoCalibrator, make_federation
    >>> fed = make_federation(n_clients=50, class_bias=1.0, random_state=0)
    >>> FedAutoCalibrator().fit(fed.clients).choice_
    'FedBiasTempCalibrator()'
    >>> FedAutoCalibrator(eps=0.5).explain(n_clients=50, n_classes=10)[0]
    'FedTempCalibrator()'
    """

    _parameter_constraints = {
        **BaseCalibrator._parameter_constraints,
        "keep_order": ["boolean"],
        "strict": ["boolean"],
        "class_prior": [StrOptions({"uniform", "private"}), "array-like", None],
    }
    _fitted_names = ("choice_", "reason_", "calibrator_")
    _compares_itself = True
    gain_: Estimate | None = None

    def __init__(
        self,
        eps: float | None = None,
        *,
        keep_order: bool = False,
        class_prior: ArrayLike | Literal["uniform", "private"] | None = None,
        strict: bool = False,
        delta: float | None = None,
        clip: float | Literal["auto"] = "auto",
        if_improves: bool = True,
        hold_back: bool = True,
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
        self.strict = strict
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

    def explain(self, n_clients: int, n_classes: int) -> tuple[str, str]:
        """Return what `fit` would choose, and why; no data are needed.

        Parameters
        ----------
        n_clients : int
            Number of clients; of rows, with ``unit='example'``.
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
            n_clients,
            runner.cohort,
            runner.cohort_size,
        )
        choice = self._choose(setting)
        return str(choice), choice.reason

    def _choose(self, setting: FitSetting) -> Choice:
        # Refused whatever is chosen: an error must not wait for the next client.
        checked_prior(self.class_prior, setting.n_classes)
        partial = _leaves_clients_out(self.runner, setting.n_clients)
        if not setting.private:
            return _exact_choice(setting, self.keep_order, partial, self.hold_back)
        return _private_choice(setting, self.keep_order, partial, self.class_prior)

    def _make_algorithm(self, setting: FitSetting) -> FederatedAlgorithm[Any] | None:
        choice = self._choose(setting)
        if self.clip != "auto" and choice.estimator is FedShapeCalibrator:
            where = "by a shape" if setting.private else "without eps"
            raise ValueError(
                f"clip={self.clip!r} is not used {where}; leave it out, or use "
                "FedTempCalibrator."
            )
        self.choice_, self.reason_ = str(choice), choice.reason
        self.gain_ = None
        self.calibrator_ = self._inner(choice.estimator, choice.options)
        if choice.kinds:
            return MapNewton(
                choice.kinds,
                choose=True,
                margin=1.0 if self.strict else 0.0,
                # Probabilities may be 0, and what replaces them decides the log loss.
                brier_margin=_PROBA_MARGIN if "proba" in self.input_type else 0.0,
                keep_order=bool(self.keep_order),
            )
        return self.calibrator_._make_algorithm(setting)

    def _inner(
        self, estimator: type[BaseCalibrator], options: dict[str, Any]
    ) -> BaseCalibrator:
        """Calibrator of the choice, with the parameters that it shares with this."""
        known = estimator._get_param_names()
        own = {k: v for k, v in self.get_params(deep=False).items() if k in known}
        own |= {"class_prior": None} if "class_prior" in known else {}
        return estimator(**own | options)

    def _set_state(self, state: Any) -> None:
        if isinstance(state, MapState):
            estimator, options = _MAPS[state.kind]
            if state.kind == "S" and self.keep_order:
                options = {"keep_order": True}
            self.calibrator_ = self._inner(estimator, options)
            self.choice_ = str(Choice(estimator, "", options))
            if state.kind == "none":
                self.choice_ = "none"
            self.reason_ = _compared(state)
            self.comparison_ = _comparison(state)
            self.gain_ = _gain(state)
        # A copy: callbacks keep the calibrator of an earlier round.
        self.calibrator_ = copy(self.calibrator_)
        self._share_attributes()
        self.calibrator_._set_state(state)

    def _share_attributes(self) -> None:
        for name in _SHARED:
            if hasattr(self, name):
                setattr(self.calibrator_, name, getattr(self, name))

    def _noise_split(self) -> Literal["split", "joint", "each"]:
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

    def _direct_proba(self, X: Rows) -> Array | None:
        check_is_fitted(self)
        try:
            return self.calibrator_._direct_proba(drop_client_column(self, X))
        except (TypeError, ValueError) as error:
            refusal = error
        read_scores(self, X, reset=False)  # refuses it by the name of this class
        raise refusal

    def _unchanged(self, logits: Array) -> Array:
        return self.calibrator_._unchanged(logits)


def _exact_choice(
    setting: FitSetting, keep_order: bool, partial: bool, hold_back: bool
) -> Choice:
    """Choose for exact sums: what can be fitted in the rounds that are allowed."""
    if partial:
        reason = (
            "Each round has only a part of the clients, so sums are "
            "accumulated over rounds."
        )
        return Choice(FedTempCalibrator, reason, {"solver": "grid"})
    n_rounds = inf if setting.n_rounds is None else setting.n_rounds
    if n_rounds < MIN_ROUNDS or not hold_back:
        reason = f"n_rounds is {n_rounds}; a comparison of maps needs {MIN_ROUNDS}."
        if not hold_back:
            reason = "hold_back is False, so that no rows are left to compare maps."
        if keep_order or n_rounds < _ROUNDS_BIAS:
            return Choice(FedTempCalibrator, reason, {"solver": "grid"})
        return Choice(FedBiasTempCalibrator, reason)
    kinds: tuple[str, ...] = ("T", "S")
    if not keep_order and setting.n_classes < MANY_CLASSES:
        kinds += ("B", "BS")
        if setting.n_classes <= _MATRIX_CLASSES and n_rounds >= MIN_ROUNDS_MATRIX:
            kinds += ("SM",)
    reason = "Sums are exact, so that the loss of held-back rows decides."
    return Choice(FedShapeCalibrator, reason, {}, kinds)


def _private_choice(
    setting: FitSetting, keep_order: bool, partial: bool, class_prior: ArrayLike | None
) -> Choice:
    """Choose for noisy sums, from public numbers."""
    signal = setting.signal(1)
    units = "rows" if setting.unit == "example" else "clients"
    reason = (
        f"The signal of {setting.n_units} {units} at this budget (mu = "
        f"{setting.strength:.3g}) is {signal:.3g} times the noise; a temperature needs "
        f"{MIN_SIGNAL:g}, a shape {MAP_SIGNAL:g}."
    )
    n_rounds = setting.n_rounds
    if n_rounds is not None and n_rounds < _ROUNDS_PRIVATE:
        reason = f"n_rounds is {n_rounds}; a shape needs {_ROUNDS_PRIVATE}."
    elif partial:
        reason = "Each round has only a part of the clients; a shape needs all of them."
    elif signal >= MAP_SIGNAL:
        # A line search takes the place of frequencies that are not known.
        known = class_prior is not None and _text(class_prior) != "'private'"
        options = {"class_prior": class_prior} if known else {}
        if keep_order:
            options = {"keep_order": True}
        return Choice(FedShapeCalibrator, reason, options)
    return Choice(FedTempCalibrator, reason)


def _compared(state: MapState) -> str:
    """Sentence about the losses of the maps on held-back rows."""
    if not state.chosen:
        return "Maps are being fitted; the loss of held-back rows will decide."
    names = ("none", *state.kinds.split())
    losses = ", ".join(
        f"{name} {loss:.4f}" for name, loss in zip(names, state.losses, strict=True)
    )
    rows = "held-back rows" if state.held_back else "all rows (there are few)"
    return f"The mean log loss of {rows} chose {state.kind}: {losses}."


def _comparison(state: MapState) -> dict[str, float] | None:
    """Losses of the input and of the chosen map; None before the choice."""
    if not state.chosen:
        return None
    chosen = ("none", *state.kinds.split()).index(state.kind)
    return {
        "n_rows": state.n_compared,
        "held_back": state.held_back,
        "log_loss_input": float(state.losses[0]),
        "log_loss": float(state.losses[chosen]),
        "brier_input": float(state.brier[0]),
        "brier": float(state.brier[chosen]),
    }


def _gain(state: MapState) -> Estimate | None:
    """Decrease of the log loss on held-back rows; None without such rows."""
    if not state.chosen or not state.held_back:
        return None
    from skfedcal.evaluation.intervals import Estimate, quantile

    chosen = ("none", *state.kinds.split()).index(state.kind)
    value, error = float(state.losses[0] - state.losses[chosen]), state.gain_error
    half = quantile(0.95) * error
    return Estimate(
        value,
        value - half,
        value + half,
        se_sampling=error,
        population="rows",
        estimand="every held-back row counts once",
    )


def _leaves_clients_out(runner: FederatedRunner | None, n_clients: int) -> bool:
    """Return whether a release is made without some of the clients."""
    if runner is None:
        return False
    schedule = runner.schedule(TemperatureGrid(), n_clients)
    return schedule.cohort != "full" and schedule.size < n_clients


def _text(value: object) -> str:
    """Short form of an option."""
    plain = value is None or isinstance(value, str | float | bool)
    return repr(value) if plain else "[...]"
