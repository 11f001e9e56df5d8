"""BaseCalibrator: shared parts of all calibrators, from clients to predictions."""

from __future__ import annotations

import sys
import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf, sqrt
from typing import TYPE_CHECKING, Any, Literal, Self, TypeGuard

from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from skfedcal import _numerics
from skfedcal._docs import documented
from skfedcal._logit_predictions import LogitPredictions
from skfedcal._sklearn_compat import (
    CallbackSupportMixin,
    KnownParams,
    StrOptions,
    fit_context,
    has_callbacks,
    undone_on_error,
)
from skfedcal.clients.arrays import INPUT_TYPES, check_finite, check_given, to_logits
from skfedcal.clients.forms import (
    ClassMap,
    assume_labels_public,
    make_dataset,
    read_scores,
)
from skfedcal.exceptions import CalibrationWarning
from skfedcal.federation.collecting import Collected, collect, collect_nothing
from skfedcal.federation.history import RoundHistory
from skfedcal.federation.runner import (
    DEFAULT_RUNNER,
    FederatedRunner,
    Schedule,
    check_settings,
)
from skfedcal.methods.graph import map_rows
from skfedcal.methods.held_back import (
    HeldBackFit,
    compare_rows,
    comparison,
    does_no_harm,
    fit_here,
    has_map,
    loss_text,
    map_losses,
    shows_errors,
)
from skfedcal.methods.own_rows import split_rows
from skfedcal.methods.persistence import ExportMixin
from skfedcal.methods.registry import load_object, method_of
from skfedcal.privacy.models import PrivacyMixin

if TYPE_CHECKING:
    from sklearn.utils import Tags

    from skfedcal._typing import (
        ArrayLike,
        ClientRows,
        InputType,
        PerRow,
        Rows,
    )
    from skfedcal.clients.dataset import FederatedDataset
    from skfedcal.contract import Array, FederatedAlgorithm
    from skfedcal.federation.history import RoundRecord
    from skfedcal.federation.remote import RemoteClients, RemoteDataset
    from skfedcal.federation.runner import Cohort
    from skfedcal.privacy.events import PrivacyReport
    from skfedcal.privacy.models import PrivacyModel


# Share of the log loss of the input by which a map must be worse for a warning: less
# happens by chance where the input is calibrated.
_HARM = 1e-3
# Up to this many rows times classes a fit that holds nothing back is followed by one
# that does, for the warning. With more, harm shows on the rows of the fit, too.
_FEW_CELLS = 20_000


@dataclass(frozen=True)
class FitSetting:
    """Public values that a method may use before it is run."""

    n_classes: int
    private: bool
    unit: str
    weighted: bool
    n_clients: int = 1
    # mu of Gaussian differential privacy: the bound of a unit over the noise, if the
    # whole budget went into one release.
    strength: float = inf
    # Rounds that the runner asks for.
    n_rounds: int | None = None
    # Number of privacy units: of clients, or of rows with unit='example'.
    n_units: int = 1
    # How clients are chosen, and how many for a round.
    cohort: Cohort = "full"
    cohort_size: int | None = None
    # Rows of an exact fit; 0 under noise, and where sites have not stated them.
    n_rows: int = 0

    def signal(self, n_rounds: int) -> float:
        """Number of units times mu: signal over noise of a released mean.

        It is 1 over the standard deviation of the noise in a mean over all units that
        are bounded by 1, of all releases together. Below about 1 the noise is as large
        as the bound. For 'poisson' it is an upper bound: sampling is fully credited.
        """
        if self.cohort in ("full", "poisson") or self.cohort_size is None:
            return self.n_units * self.strength
        n_rounds = n_rounds if self.n_rounds is None else self.n_rounds
        size, n_clients = self.cohort_size, self.n_clients
        taken = Schedule(self.cohort, n_clients, size, n_rounds).n_participations
        share = size / n_clients * sqrt(n_rounds / taken)
        return self.n_units * self.strength * share


def setting_of(
    model: PrivacyModel,
    clients: FederatedDataset | RemoteDataset,
    runner: FederatedRunner,
) -> FitSetting:
    """Return the public values of a fit."""
    check_settings(runner, clients.n_clients)
    n_units = clients.n_rows if model.unit == "example" else clients.n_clients
    return FitSetting(
        clients.n_classes,
        model.private,
        model.unit,
        clients.weights is not None,
        clients.n_clients,
        model.strength(n_units),
        runner.n_rounds,
        n_units,
        runner.cohort,
        runner.cohort_size,
        0 if model.private else _known_rows(clients),
    )


def _known_rows(clients: FederatedDataset | RemoteDataset) -> int:
    """Rows of all clients; 0 where sites have not stated them."""
    try:
        return clients.n_rows
    except ValueError:
        return 0


def check_weights(weights: Array | None, model: PrivacyModel) -> None:
    """Raise ValueError if row weights cannot be used."""
    if weights is None:
        return
    if model.private:
        raise ValueError(
            "sample_weight cannot be used with privacy: a weighted client could send "
            "more than its bound. Leave it out, or fit with eps=None."
        )
    if not weights.any():
        raise ValueError("sample_weight is zero for every row; nothing is left to fit.")


def read_clients(
    estimator: BaseCalibrator,
    X: ClientRows,
    y: PerRow | None,
    client_ids: ArrayLike | None,
    sample_weight: PerRow | None,
    model: PrivacyModel,
) -> tuple[FederatedDataset | RemoteDataset, ClassMap]:
    """Clients of a fit, and the label of each column.

    Result clients: Rows with labels as column numbers, or sites that read theirs so.
    Result classes: Sorted labels and their columns.
    """
    given = estimator._rows == "given"
    if is_remote(X):
        reading = {"rows": "given"} if given else {}
        clients, classes = X.read(estimator.classes, estimator.input_type, **reading)
        X.check_arguments(y=y, client_ids=client_ids, sample_weight=sample_weight)
        estimator.n_features_in_ = clients.n_columns
        return clients, classes
    clients, classes = make_dataset(
        estimator,
        X,
        y,
        client_ids,
        sample_weight=sample_weight,
        classes=estimator.classes,
        input_type=None if given else estimator.input_type,
        private=model.private,
    )
    if given:
        check_given(
            clients.rows,
            clients.n_classes,
            input_type=estimator.input_type,
            warn=not model.private,
            stacklevel=6,
        )
    check_weights(clients.weights, model)
    if clients.weights is not None:
        estimator._check_weights(clients.weights)
    return clients, classes


def is_remote(X: object) -> TypeGuard[RemoteClients]:
    """Whether `fit` was given sites that keep their rows."""
    # Who has remote clients has imported their module; others need not wait for it.
    module = sys.modules.get("skfedcal.federation.remote")
    return module is not None and isinstance(X, module.RemoteClients)


class RoundCallbacks:
    """Show the rounds of a fit to the callbacks of an estimator, if it has any.

    estimator: With `CallbackSupportMixin`.
    set_state: ``set_state(state, record)`` gives the estimator the state after a round,
        with callbacks or without.
    """

    def __init__(
        self, estimator: Any, set_state: Callable[[Any, RoundRecord], None]
    ) -> None:
        self._estimator, self._set_state = estimator, set_state
        self._watched = has_callbacks(estimator)

    def start(self, n_rounds: int) -> None:
        """Begin the fit."""
        if not self._watched:
            return
        self._root = self._estimator._init_callback_context(max_subtasks=n_rounds)
        self._root.call_on_fit_task_begin(estimator=self._estimator)

    def round(self, state: Any, record: RoundRecord) -> bool:
        """Report one round to the callbacks; True from one of them stops the run."""
        if not self._watched:
            self._set_state(state, record)
            return False
        context = self._root.subcontext(task_name="round")
        context.call_on_fit_task_begin(estimator=self._estimator)
        self._set_state(state, record)
        # No data are handed on: scores on private rows would not be paid for.
        stop: bool = context.call_on_fit_task_end(
            estimator=self._estimator, reconstruction_attributes=dict
        )
        return stop

    def end(self) -> None:
        """End the fit."""
        if self._watched:
            self._root.call_on_fit_task_end(estimator=self._estimator)


@documented
class BaseCalibrator(
    ExportMixin,
    CallbackSupportMixin,
    PrivacyMixin,
    KnownParams,
    LogitPredictions,
    BaseEstimator,
    metaclass=ABCMeta,
):
    """Base class of calibrators; a subclass implements three methods.

    ``_make_algorithm(setting)`` builds the federated algorithm from the parameters,
    ``_set_state(state)`` names the result, ``_calibrate(logits)`` maps centred logits,
    one column per class in the order of the input, to calibrated logits.
    """

    classes: ArrayLike | None
    input_type: InputType
    runner: FederatedRunner | None
    if_improves: bool
    # Methods of other packages need not have the parameter.
    hold_back: bool = False

    classes_: Array
    improves_: bool
    comparison_: dict[str, float] | None
    n_clients_: int
    n_rounds_: int
    n_features_in_: int
    privacy_: PrivacyReport
    history_: RoundHistory

    _class_map: ClassMap

    _parameter_constraints = {
        **PrivacyMixin._privacy_constraints,
        "classes": ["array-like", None],
        "input_type": [StrOptions(set(INPUT_TYPES))],
        "runner": [FederatedRunner, None],
        "if_improves": ["boolean"],
        "hold_back": ["boolean"],
    }

    # Under metadata routing `client_ids` reaches `fit` without set_fit_request.
    __metadata_request__fit = {"client_ids": True}

    # What its algorithms read: centred logits, or the columns as they are given.
    _rows: Literal["logits", "given"] = "logits"

    # What to say about unit='example' where a method knows it.
    _other_unit = ""

    # Fitted attributes beyond those of every calibrator, for `save`.
    _fitted_names: tuple[str, ...] = ()

    @fit_context()
    def fit(
        self,
        X: ClientRows,
        y: PerRow | None = None,
        *,
        client_ids: ArrayLike | None = None,
        sample_weight: PerRow | None = None,
    ) -> Self:
        """Fit the calibration map from clients.

        Parameters
        ----------
        X : list of (logits, labels) pairs, list of arrays, array-like or RemoteClients
            All of these are read: ``fit([(Z1, y1), ...])``, ``fit({name: (Z1, y1)})``,
            ``fit([Z1, ...], [y1, ...])``, ``fit(Z, y)`` (one client) and
            ``fit(Z, y, client_ids=ids)``. `RemoteClients` are sites that keep their
            rows, `ShardedClients` rows on the workers of a cluster.
        y, client_ids
        sample_weight : array-like of shape (n_samples,), or list of these, default=None
            Weight of each row: 0 leaves it out, 2 counts it twice. Not supported with
            privacy, because the bound on a client would no longer hold.

        Returns
        -------
        self : object
            Fitted calibrator.
        """
        model = self._privacy_model()
        self._check_model(model)
        with undone_on_error(self):
            clients, classes = read_clients(
                self, X, y, client_ids, sample_weight, model
            )
            assumptions = self._disclosed()
            if model.private and self.classes is None:
                numbered = self.n_features_in_ in (1, len(classes)) and classes.plain
                if not numbered:
                    assumptions += assume_labels_public(stacklevel=4)
            runner = self.runner if self.runner is not None else DEFAULT_RUNNER
            setting = setting_of(model, clients, runner)
            algorithm = self._make_algorithm(setting)
            self._class_map, self.classes_ = classes, classes.classes
            self.improves_ = True  # callbacks may predict in between
            self.comparison_ = None
            run = partial(
                collect,
                privacy=model,
                runner=runner,
                ledger=self.ledger,
                entropy=self._entropy(model),
                label=type(self).__name__,
                split=self._noise_split(),
                assumptions=assumptions,
                clone_number=self._clone_number,
            )
            callbacks = RoundCallbacks(self, lambda state, _: self._set_state(state))
            fit_all = partial(run, on_start=callbacks.start, on_round=callbacks.round)
            harm = False
            may_be_worse = self._may_be_worse(setting)
            if algorithm is None:
                found = collect_nothing(
                    clients,
                    privacy=model,
                    runner=runner,
                    clone_number=self._clone_number,
                )
            elif self.hold_back and not setting.private and not self._compares_itself:
                found, harm = self._fit_without_harm(algorithm, clients, run, fit_all)
            else:
                found = fit_all(algorithm, clients)
                if not is_remote(X) and may_be_worse:
                    self._compare_first(algorithm, clients, found.state)
            self.history_, self.privacy_ = found.history, found.report
            self._set_state(found.state)
            self.n_clients_, self.n_rounds_ = found.n_clients, len(found.history)
            self.improves_ = not harm and (
                not setting.private or bool(self._improves())
            )
            self._after_fit(setting)
            if harm:
                self.improves_ = False
                self._warn_harm()
            elif algorithm is None:
                self._warn_nobody_asked(setting)
            elif not self.improves_:
                self._warn_no_gain()
            elif may_be_worse and not (is_remote(X) and X.keeps_rows):
                if not is_remote(X):
                    self._compare_here(clients, setting)
                elif not self._is_optimum(setting):
                    self._compare(clients, run, held=False)
                self._warn_worse()
            if algorithm is None or harm:
                callbacks.start(0)
            callbacks.end()
            return self

    def _fit_without_harm(
        self,
        algorithm: FederatedAlgorithm[Any],
        clients: FederatedDataset | RemoteDataset,
        run: Callable[..., Collected],
        fit_all: Callable[..., Collected],
    ) -> tuple[Collected, bool]:
        """Fit without the held-back rows, compare on these, then fit to all rows.

        The fit to all rows is compared as well: where it is worse than the input, the
        first one is used.
        """
        if not has_map(self):
            raise ValueError(
                f"hold_back=True needs the map of {type(self).__name__} in the "
                "registry, so that clients can compare it with the input; name it in "
                "the entry of skfedcal.methods.register_method, or leave hold_back out."
            )
        if self.runner is not None and self.runner.checkpoint is not None:
            raise ValueError(
                "hold_back=True makes several runs, and a checkpoint holds one; leave "
                "hold_back or the checkpoint out."
            )
        first = run(HeldBackFit(algorithm), clients)
        self._set_state(first.state)
        compared = self._compare(clients, run)
        records = [*first.history, *compared]
        harm = not does_no_harm(self.comparison_ or {})
        found = first
        if not harm:
            whole = fit_all(algorithm, clients)
            self._set_state(whole.state)
            one = self.comparison_
            compared = self._compare(clients, run)
            records += [*whole.history, *compared]
            if does_no_harm(self.comparison_ or {}):
                found = whole
            else:
                self.comparison_ = one
        numbered = [replace(record, round=i) for i, record in enumerate(records)]
        return replace(found, history=RoundHistory(numbered)), harm

    def _compare(
        self,
        clients: FederatedDataset | RemoteDataset,
        run: Callable[..., Collected],
        *,
        held: bool = True,
    ) -> RoundHistory:
        """Losses of input and map on the held-back rows, or all, of all clients."""
        runner = self.runner if self.runner is not None else DEFAULT_RUNNER
        runner = replace(
            runner, cohort="full", n_rounds=None, checkpoint=None, resume=False
        )
        found = run(map_losses(self, held=held), clients, runner=runner)
        self.comparison_ = comparison(found.state, held=held)
        return found.history

    # Whether the algorithm of a method compares its map with the input itself.
    _compares_itself = False

    def _is_optimum(self, setting: FitSetting) -> bool:
        """Whether no map of the method has a lower log loss on the rows of the fit."""
        return False

    def _may_be_worse(self, setting: FitSetting) -> bool:
        """Whether a fit without held-back rows is to be compared with its input."""
        if setting.private or self.hold_back or self._compares_itself:
            return False
        return has_map(self)

    def _compare_first(
        self, algorithm: FederatedAlgorithm[Any], clients: Any, state: Any
    ) -> None:
        """Losses on held-back rows by a map fitted to the others, if rows are few."""
        if clients.n_rows * clients.n_classes > _FEW_CELLS:
            return
        held, fitted = split_rows(clients)
        if held.n_rows and fitted.n_rows:
            self._set_state(fit_here(algorithm, fitted, state))
            self.comparison_ = compare_rows(self, held, held=True)

    def _compare_here(self, clients: Any, setting: FitSetting) -> None:
        """Losses of input and map on all rows, where an optimum cannot be worse."""
        if self.comparison_ is None and not self._is_optimum(setting):
            self.comparison_ = compare_rows(self, clients, held=False)

    @property
    def _map_is_used(self) -> bool:
        """Whether predictions are by the map, and not the input."""
        if self.improves_:
            return True
        return not (self.if_improves or (self.hold_back and not self.privacy_.private))

    def _input_logits(self, X: Rows, *, look: bool = True) -> Array:
        """Logits of checked scores; may be X itself.

        look: Refuse NaN and infinities here. If False, the caller finds them in its
            result.
        """
        check_is_fitted(self)
        look = look or self.input_type != "logits"
        scores, _ = read_scores(self, X, reset=False, look=look)
        if not look and scores.shape[1] != len(self.classes_):
            check_finite(scores)  # a column is put in front, beside which -inf is fine
        return to_logits(
            scores,
            len(self.classes_),
            input_type=self.input_type,
            warn=True,
            stacklevel=5,
        )

    def _prediction_logits(self, X: Rows) -> Array:
        logits = _numerics.center(self._input_logits(X))
        used = self._map_is_used
        out = self._calibrate(logits) if used else self._unchanged(logits)
        return self._in_order(out)

    def _in_order(self, columns: Array) -> Array:
        """Columns of the input as columns of `classes_`."""
        order = self._class_map
        return columns if order.in_order else columns[:, order.order]

    @property
    def _columns(self) -> Array:
        """Column of each class."""
        return self._class_map.order

    def _restore_classes(self, classes: Array, order: Array) -> None:
        self._class_map = ClassMap(classes, order)
        self.classes_ = classes

    def _check_model(self, model: PrivacyModel) -> None:
        """Raise ValueError for a privacy model that the method does not have."""

    def _check_weights(self, weights: Array) -> None:
        """Raise ValueError for weights of rows that the method cannot sum."""

    def _disclosed(self) -> tuple[str, ...]:
        """What the server learns beyond the map, for the report."""
        return ()

    def _noise_split(self) -> Literal["split", "joint", "each"]:
        """Division of the noise over blocks."""
        return "split"

    def _after_fit(self, setting: FitSetting) -> None:
        """Warn about a result that needs attention."""

    def _improves(self) -> bool:
        """Whether the released values are more than noise alone would produce."""
        return True

    def _unchanged(self, logits: Array) -> Array:
        """Output of a calibrator whose map is not used: the input."""
        return logits

    def _warn_harm(self) -> None:
        found = self.comparison_ or {}
        why = "No row was held back, so that no gain can be shown"
        if found.get("n_rows"):
            why = f"On {found['n_rows']:g} held-back rows {loss_text(found)}"
            if found["log_loss"] <= found["log_loss_input"] and not shows_errors(found):
                why += ", which is too few errors to judge a map by"
        warnings.warn(
            f"{why}. Predictions return the input unchanged; hold_back=False applies "
            "the map.",
            CalibrationWarning,
            stacklevel=4,
        )

    def _warn_worse(self) -> None:
        found = self.comparison_ or {}
        if not found:
            return
        worse = found["log_loss"] - found["log_loss_input"]
        held, n_rows = found["held_back"], f"{found['n_rows']:g}"
        chance = found.pop("error", 0.0)  # shards return sums only
        if worse > max(_HARM * found["log_loss_input"], 2 * chance if held else 0.0):
            rows = (
                f"{n_rows} held-back rows, when it is fitted to the others"
                if held
                else f"the {n_rows} rows that it was fitted to"
            )
            warnings.warn(
                f"The map is worse than the input on {rows}: {loss_text(found)}. "
                "hold_back=True returns the input where a map is worse on rows that it "
                "has not seen.",
                CalibrationWarning,
                stacklevel=4,
            )

    def _warn_no_gain(self) -> None:
        use = (
            "Predictions return the input unchanged; if_improves=False applies the map"
            if self.if_improves
            else (
                "The map is applied anyway; if_improves=True would return the "
                "input unchanged"
            )
        )
        warnings.warn(
            "The released values cannot be distinguished from noise, so the "
            "calibration map is as likely to increase the error as to reduce it. "
            f"{use}. More clients or a larger eps would help{self._other_unit}.",
            CalibrationWarning,
            stacklevel=4,
        )

    def _warn_no_optimum(
        self, bounded: bool, reached: str, advice: str = "and leave n_rounds out"
    ) -> None:
        """Warn that an exact fit ended at a bound, or before its optimum."""
        text = (
            f"The log loss has no minimum inside the bounds: {reached}. The "
            "predictions may be all correct, all wrong, or unrelated to the labels, or "
            "the logits far too large or too small."
            if bounded
            else f"Not converged after {self.n_rounds_} rounds: too few, or cohorts "
            "that change from round to round move the optimum. Use cohort='full' "
            f"{advice}."
        )
        warnings.warn(text, CalibrationWarning, stacklevel=5)

    def _warn_nobody_asked(self, setting: FitSetting) -> None:
        units = "rows" if setting.unit == "example" else "clients"
        signal = setting.n_units * setting.strength
        warnings.warn(
            "No client was asked and no privacy was spent: the noise would hide any "
            f"gain. At this eps the signal of all {units} ({setting.n_units}) is "
            f"{signal:.2g} times the noise, and 1 is needed. Predictions return the "
            f"input unchanged. More {units} or a larger eps would help"
            f"{self._other_unit if setting.unit == 'client' else ''}.",
            CalibrationWarning,
            stacklevel=4,
        )

    @abstractmethod
    def _make_algorithm(self, setting: FitSetting) -> FederatedAlgorithm[Any] | None:
        """Federated algorithm with the parameters of this estimator.

        None asks no client and spends nothing.
        """

    @abstractmethod
    def _set_state(self, state: Any) -> None:
        """Fitted attributes from the state of the server; None if nobody was asked."""

    def _calibrate(self, logits: Array) -> Array:
        """Calibrated logits from centred logits; may work in place.

        By the map of the method's entry in the registry. A method overrides this where
        numpy has a faster way.
        """
        if logits.shape[1] == 1:
            return logits
        formula = load_object(self._map_path())
        return map_rows(lambda rows: formula(self, rows), logits, self._rounded)

    def _map_scores(self, clients: FederatedDataset) -> Array | None:
        """Log loss and Brier score of each row before the map, and those after it.

        Of shape (4, n_rows). None: the caller takes them from `_calibrate`.
        """
        return None

    def _rounded(self, values: Array, logits: Array) -> Array:
        """Values in double precision, ready for the type of `logits`."""
        return values

    def _map_path(self) -> str:
        """Path of the map, which subclasses inherit."""
        for cls in type(self).__mro__:
            method = method_of(cls)
            if method is not None and method.map:
                return method.map
        raise NotImplementedError(
            f"{type(self).__name__} has neither a map in its entry of "
            "skfedcal.methods.register_method nor a method _calibrate."
        )

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # Accuracy is that of the incoming logits.
        tags.classifier_tags.poor_score = True
        return tags
