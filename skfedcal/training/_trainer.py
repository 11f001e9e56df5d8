"""What a federated trainer does with its parameters: read clients, run rounds."""

import warnings
from dataclasses import replace
from hashlib import sha256

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import column_or_1d

from skfedcal._sklearn_compat import (
    CallbackSupportMixin,
    RoundCallbacks,
    fit_context,
    undone_on_error,
)
from skfedcal.data._features import read_features
from skfedcal.federation._collect import collect
from skfedcal.privacy._entropy import Stream, draw_seed
from skfedcal.privacy._mixin import PrivacyMixin
from skfedcal.training import _settings
from skfedcal.training._algorithm import FedAvg
from skfedcal.training._build import as_input, build_network
from skfedcal.training._client import ClientTraining
from skfedcal.training._counts import ask_counts
from skfedcal.training._fitted import FittedNetworkMixin
from skfedcal.training._head import fit_head, joint_report, with_head
from skfedcal.training._local import LocalSGD
from skfedcal.training._memory import ClientMemory
from skfedcal.training._monitor import Monitor
from skfedcal.training._shapes import check_input_shape
from skfedcal.training._sites import refuse_sites
from skfedcal.training._torch import import_torch

# Said in the report of a private fit that was scored, and perhaps ended, by rows.
EVAL_PUBLIC = "the rows of eval_set are public"


class BaseTrainer(
    CallbackSupportMixin, PrivacyMixin, FittedNetworkMixin, BaseEstimator
):
    """Base class of `FedAvgClassifier`, which has the parameters."""

    @fit_context()
    def fit(self, X, y=None, *, client_ids=None):
        """Train the module on clients.

        Parameters
        ----------
        X : list of (rows, labels) pairs, list of arrays, or array-like
            All of these are read: ``fit([(X1, y1), ...])``, ``fit({name: (X1, y1)})``,
            ``fit([X1, ...], [y1, ...])``, ``fit(X, y)`` (one client) and
            ``fit(X, y, client_ids=ids)``. Rows may have more than one axis.
        y : array-like of shape (n_samples,), or list of these, default=None
            Labels; omitted when `X` is a list of pairs.
        client_ids : array-like of shape (n_samples,), default=None
            Client that owns each row. None makes all rows one client. With a list of
            clients: one name per client.

        Returns
        -------
        self : object
            Fitted classifier.
        """
        import_torch()
        with undone_on_error(self):
            model = self._privacy_model()
            refuse_sites(X)
            read = read_features(
                self,
                X,
                y,
                client_ids,
                classes=self.classes,
                private=model.private,
                allow_nd=True,
                dtype="numeric",
            )
            self.classes_ = read.classes
            for name in ("head_", "scores_"):  # of an earlier fit
                self.__dict__.pop(name, None)
            entropy = self._entropy(model)
            network, clients = self._network(read.dataset, entropy)
            known = read.assumptions
            if model.private and self.eval_set is not None:
                known = (*known, EVAL_PUBLIC)
            made = self._run_rounds(model, network, clients, entropy, known)
            self.privacy_, callbacks = made
            if self.head is not None:
                self.head_ = fit_head(self, clients, entropy)
                self.privacy_ = joint_report(self.privacy_, self.head_.privacy_)
            callbacks.end()
            return self

    def _run_rounds(self, model, network, clients, entropy, assumptions):
        """Run the rounds on clients that are validated."""
        runner = _settings.make_runner(
            self.runner, self.clients_per_round, self.sampling, len(clients)
        )
        n_rounds = self.n_rounds if runner.n_rounds is None else runner.n_rounds
        runner = replace(runner, n_rounds=int(n_rounds))
        monitor = self._monitor(network)
        algorithm = self._make_algorithm(network, clients, model, runner, entropy)
        algorithm = replace(algorithm, monitor=monitor)
        if self.head is not None:
            algorithm = with_head(self, algorithm, model, entropy)
            runner = replace(runner, n_rounds=algorithm.n_rounds)

        def show(state, record):
            # Fifty rounds would otherwise keep fifty models.
            record.total.clear()
            self._set_state(network, state)

        callbacks = RoundCallbacks(self, show)
        found = collect(
            algorithm,
            clients,
            privacy=model,
            runner=runner,
            ledger=self.ledger,
            entropy=entropy,
            label=type(self).__name__,
            assumptions=assumptions,
            clone_number=self._clone_number,
            on_start=callbacks.start,
            on_round=callbacks.round,
        )
        state, self.history_ = found.state, found.history
        for record in self.history_:  # those of a resumed run were loaded
            record.total.clear()
        self._set_state(network, state)
        self.n_clients_, self.n_rounds_ = len(clients), int(state.rounds)
        if monitor is not None:
            self.scores_ = monitor.scores
        _warn_diverged(state)
        return found.report, callbacks

    def _network(self, clients, entropy):
        """First parameters, and clients with rows as the module takes them."""
        rows = clients.rows
        self._row_shape = self.input_shape_ = rows.shape[1:]
        if self.input_shape is not None:
            check_input_shape(tuple(self.input_shape), rows.shape[1:])
            self.input_shape_ = tuple(int(n) for n in self.input_shape)
        network = build_network(
            self.module,
            self.module_params,
            self.input_shape_,
            len(self.classes_),
            seed=draw_seed(entropy, Stream.FIRST_PARAMETERS),
            device=self.device,
        )
        return network, replace(
            clients, rows=as_input(self._shaped(rows), network.module)
        )

    def _make_algorithm(self, network, clients, model, runner, entropy):
        training = ClientTraining(
            network,
            _settings.make_objective(self.loss, self.penalties),
            LocalSGD(
                float(self.lr),
                float(self.momentum),
                float(self.weight_decay),
                seed=(draw_seed(entropy, Stream.ROW_ORDER),),
            ),
            epochs=int(self.local_epochs),
            batch_size=None if self.batch_size is None else int(self.batch_size),
            correction=self.correction,
            cohort_size=_settings.choose_cohort(
                self.cohort_size, network, model, secure=entropy.secure
            ),
            device=self.device,
        )
        _settings.refuse_private(training, model)
        _settings.refuse_lost_memory(training, runner)
        if training.remembers:
            training = replace(training, memory=ClientMemory())
        clip = _settings.choose_clip(self.clip, model)
        start = network.flat()
        counts = None
        if "global_counts" in training.objective.needs:
            counts = ask_counts(runner, clients, entropy)
        return FedAvg(
            training,
            start,
            weighting=_settings.choose_weighting(self.weighting, model, clip),
            clip=clip,
            server_lr=float(self.server_lr),
            server_momentum=float(self.server_momentum),
            n_clients=len(clients),
            global_counts=counts,
            n_rounds=runner.n_rounds,
            # Drawn parameters follow from the seed; those of a module that was handed
            # over tell one fit from another.
            start_name=_digest(start) if hasattr(self.module, "parameters") else "",
        )

    def _monitor(self, network):
        if self.eval_set is None:
            if self.target_accuracy is not None:
                raise ValueError(
                    f"target_accuracy={self.target_accuracy!r} needs an eval_set, a "
                    "tuple (X, y) of public rows."
                )
            return None
        if len(self.eval_set) != 2:
            raise ValueError(
                f"eval_set has {len(self.eval_set)} entries; pass a tuple (X, y)."
            )
        X, y = self.eval_set
        rows, y = self._check_rows(X), column_or_1d(np.asarray(y))
        if len(rows) != len(y):
            raise ValueError(f"eval_set has {len(rows)} rows but {len(y)} labels.")
        unknown = np.setdiff1d(y, self.classes_)
        if unknown.size:
            raise ValueError(f"eval_set has unknown labels: {unknown[:5].tolist()}.")
        return Monitor(
            network.copy(),
            as_input(self._shaped(rows), network.module),
            np.searchsorted(self.classes_, y),
            self.target_accuracy,
            self.device,
        )

    def _set_state(self, network, state):
        self.module_ = network.load(state.params.astype(np.float32))

    @property
    def _n_features_out(self):
        """Number of features of `transform`."""
        kind = np.float32
        return self._features(np.zeros((1, *self.input_shape_), kind)).shape[1]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        # Noise may drown everything.
        tags.classifier_tags.poor_score = self.eps is not None or bool(self.privacy)
        tags.input_tags.three_d_array = True
        return tags


def _digest(values):
    return sha256(values.tobytes()).hexdigest()


def _warn_diverged(state):
    if state.n_diverged:
        warnings.warn(
            f"{state.n_diverged} times a client's training did not end in finite "
            "numbers, and its change was left out. Lower `lr`, or scale the columns.",
            ConvergenceWarning,
            stacklevel=5,
        )
