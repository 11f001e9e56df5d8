"""What all calibrators share: reading clients, running rounds, predicting."""

import warnings
from abc import ABCMeta, abstractmethod

from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from skfedcal import _logits
from skfedcal._sklearn_compat import (
    CallbackSupportMixin,
    KnownParams,
    RoundCallbacks,
    StrOptions,
    fit_context,
    undone_on_error,
)
from skfedcal.calibrators._clients import read_clients
from skfedcal.calibrators._export import ExportMixin
from skfedcal.calibrators._setting import setting_of
from skfedcal.data._classes import ClassMap, assume_labels_public
from skfedcal.data._scores import INPUT_TYPES, check_scores, to_logits
from skfedcal.exceptions import CalibrationWarning
from skfedcal.federation._collect import collect
from skfedcal.federation._runner import FederatedRunner
from skfedcal.privacy._mixin import PrivacyMixin


class BaseCalibrator(
    ExportMixin,
    CallbackSupportMixin,
    PrivacyMixin,
    KnownParams,
    ClassifierMixin,
    BaseEstimator,
    metaclass=ABCMeta,
):
    """Base class of calibrators; a subclass fills in three hooks.

    ``_make_algorithm(setting)`` builds the federated algorithm from the parameters,
    ``_set_state(state)`` names the result, ``_calibrate(logits)`` maps centred logits,
    one column per class in the order of the input, to calibrated logits.
    """

    _parameter_constraints = {
        **PrivacyMixin._privacy_constraints,
        "classes": ["array-like", None],
        "input_type": [StrOptions(set(INPUT_TYPES))],
        "runner": [FederatedRunner, None],
        "if_improves": ["boolean"],
    }

    # Under metadata routing `client_ids` reaches `fit` without set_fit_request.
    __metadata_request__fit = {"client_ids": True}

    # What to say about unit='example' where a method knows it.
    _other_unit = ""

    # Fitted attributes beyond those of every calibrator, for `save`.
    _fitted_names: tuple[str, ...] = ()

    @fit_context()
    def fit(self, X, y=None, *, client_ids=None, sample_weight=None):
        """Fit the calibration map from clients.

        Parameters
        ----------
        X : list of (logits, labels) pairs, list of arrays, array-like or RemoteClients
            All of these are read: ``fit([(Z1, y1), ...])``, ``fit({name: (Z1, y1)})``,
            ``fit([Z1, ...], [y1, ...])``, ``fit(Z, y)`` (one client) and
            ``fit(Z, y, client_ids=ids)``. `RemoteClients` are sites that keep their
            rows.
        y : array-like of shape (n_samples,), or list of these, default=None
            Labels; omitted when `X` is a list of pairs.
        client_ids : array-like of shape (n_samples,), default=None
            Client that owns each row. None makes all rows one client. With a list of
            clients: one name per client.
        sample_weight : array-like of shape (n_samples,), or list of these, default=None
            Weight of each row: 0 leaves it out, 2 counts it twice. Not with privacy,
            where the bound on a client would no longer hold.

        Returns
        -------
        self : object
            Fitted calibrator.
        """
        with undone_on_error(self):
            model = self._privacy_model()
            clients, classes = read_clients(
                self, X, y, client_ids, sample_weight, model
            )
            numbered = classes.plain and self.n_features_in_ in (1, len(classes))
            assumptions = ()
            if model.private and self.classes is None and not numbered:
                assumptions = assume_labels_public(stacklevel=4)
            runner = self.runner if self.runner is not None else FederatedRunner()
            setting = setting_of(model, clients, runner)
            algorithm = self._make_algorithm(setting)
            self._class_map, self.classes_ = classes, classes.classes
            self.improves_ = True  # callbacks may predict in between
            callbacks = RoundCallbacks(self, lambda state, _: self._set_state(state))
            found = collect(
                algorithm,
                clients,
                privacy=model,
                runner=runner,
                ledger=self.ledger,
                entropy=self._entropy(model),
                label=type(self).__name__,
                split=self._noise_split(),
                assumptions=assumptions,
                clone_number=self._clone_number,
                on_start=callbacks.start,
                on_round=callbacks.round,
            )
            self.history_, self.privacy_ = found.history, found.report
            self._set_state(found.state)
            self.n_clients_, self.n_rounds_ = found.n_clients, len(found.history)
            self.improves_ = not setting.private or bool(self._improves())
            self._after_fit(setting)
            if not self.improves_:
                self._warn_no_gain()
            callbacks.end()
            return self

    def decision_function(self, X):
        """Calibrated logits.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_columns)
            Scores of the form given to `fit`.

        Returns
        -------
        logits : ndarray of shape (n_samples,) or (n_samples, n_classes)
            One column of log-odds when there are two classes.
        """
        logits = self._calibrated_logits(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X):
        """Calibrated probabilities.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_columns)
            Scores of the form given to `fit`.

        Returns
        -------
        proba : ndarray of shape (n_samples, n_classes)
            One column per entry of `classes_`, in the dtype of X.
        """
        logits = self._calibrated_logits(X)
        return _logits.softmax(logits, out=logits)

    def predict_log_proba(self, X):
        """Logarithm of the calibrated probabilities.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_columns)
            Scores of the form given to `fit`.

        Returns
        -------
        log_proba : ndarray of shape (n_samples, n_classes)
            One column per entry of `classes_`.
        """
        return _logits.log_softmax(self._calibrated_logits(X))

    def predict(self, X):
        """Most probable class of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_columns)
            Scores of the form given to `fit`.

        Returns
        -------
        labels : ndarray of shape (n_samples,)
            Entries of `classes_`.
        """
        # Before `classes_` is read: an unfitted estimator must say so.
        logits = self._calibrated_logits(X)
        return self.classes_[logits.argmax(axis=1)]

    def _calibrated_logits(self, X):
        check_is_fitted(self)
        scores = check_scores(self, X, reset=False)
        logits = to_logits(
            scores,
            len(self.classes_),
            input_type=self.input_type,
            warn=True,
            stacklevel=4,
        )
        logits = _logits.center(logits)
        used = self.improves_ or not self.if_improves
        out = self._calibrate(logits) if used else self._unchanged(logits)
        return out if self._class_map.in_order else out[:, self._class_map.order]

    def _restore_classes(self, classes, order):
        self._class_map = ClassMap(classes, order)
        self.classes_ = classes

    def _noise_split(self):
        """How noise is divided over blocks."""
        return "split"

    def _after_fit(self, setting):
        """Warn about a result that should be looked at."""

    def _improves(self):
        """Whether what was released is more than what noise alone would be."""
        return True

    def _unchanged(self, logits):
        """Input as the output of a calibrator that is not used."""
        return logits

    def _warn_no_gain(self):
        use = (
            "Predictions are those of the input; if_improves=False uses the map"
            if self.if_improves
            else "The map is used all the same; if_improves=True would not"
        )
        warnings.warn(
            "What the clients sent is no more than the noise explains, so that the "
            f"calibration map is as likely to do harm as good. {use}. More clients or "
            f"a larger eps would help{self._other_unit}.",
            CalibrationWarning,
            stacklevel=4,
        )

    @abstractmethod
    def _make_algorithm(self, setting):
        """Federated algorithm with the parameters of this estimator."""

    @abstractmethod
    def _set_state(self, state):
        """Fitted attributes from the state of the server."""

    @abstractmethod
    def _calibrate(self, logits):
        """Calibrated logits from centred logits; may work in place."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        # Accuracy is that of the incoming logits.
        tags.classifier_tags.poor_score = True
        return tags
