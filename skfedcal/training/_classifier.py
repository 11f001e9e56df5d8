"""FedAvgClassifier: federated training of a torch module.

- The last layer from class statistics, after and during training.
- Base class of trainers: read clients, run rounds.
"""

import warnings
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise
from numbers import Integral, Real

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import column_or_1d

from skfedcal._docs import documented
from skfedcal._sklearn_compat import (
    CallbackSupportMixin,
    Interval,
    StrOptions,
    copy_to_fit,
    fit_context,
    undone_on_error,
)
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.clients.features import read_features
from skfedcal.federation.collecting import collect
from skfedcal.federation.runner import FederatedRunner
from skfedcal.methods.base import RoundCallbacks, is_remote
from skfedcal.privacy.entropy import Stream, draw_seed
from skfedcal.privacy.models import PrivacyMixin
from skfedcal.training import _settings
from skfedcal.training._fedavg import (
    FedAvg,
    HeadRounds,
    Monitor,
    ask_counts,
    head_layout,
)
from skfedcal.training._gaussian_head import FedGaussianHead
from skfedcal.training._local_training import (
    ClientMemory,
    ClientTraining,
    Scaffold,
)
from skfedcal.training._predictions import FittedNetworkMixin
from skfedcal.training.modules import (
    as_input,
    build_network,
    check_input_shape,
    import_torch,
)
from skfedcal.training.site_training import for_sites

# Said in the report of a private head on training that was not.
NOT_COVERED = (
    "the module that made the features is public: it was trained without privacy on "
    "these clients"
)


def with_head(trainer, algorithm, model, entropy):
    """Algorithm that retrains the last layer during training, if requested."""
    head = trainer.head
    if model.private and not head._privacy_model().private:
        raise ValueError(
            "Training is private, and head=FedGaussianHead() without eps would "
            "release exact sums of the same clients' features. Give the head its own "
            "budget: FedGaussianHead(eps=..., max_norm=...)."
        )
    if model.private and head._privacy_model().unit != model.unit:
        raise ValueError(
            f"Training protects a {model.unit} and the head, "
            f"{head._privacy_model()!r}, a single {head._privacy_model().unit}: the "
            f"two guarantees cannot be composed. Use unit={model.unit!r} for the head."
        )
    # What the head would refuse is refused before training is paid for.
    algorithm.training.network.check_features()
    head._validate_params()
    head._make_algorithm(head._privacy_model(), 1)
    head._given_prior(len(trainer.classes_))
    if trainer.head_every == "end":
        return algorithm
    if model.private or head._privacy_model().private:
        raise ValueError(
            f"head_every={trainer.head_every!r} would release class statistics during "
            "training, which the privacy budget does not cover. Use head_every='end'."
        )
    if head.method != "sample":
        raise ValueError(
            f"head_every={trainer.head_every!r} trains the last layer of the module on "
            f"virtual features, which method={head.method!r} does not draw. Use "
            "FedGaussianHead(method='sample'), or head_every='end'."
        )
    head_layout(algorithm.training.network)
    head = copy_to_fit(head)
    head.classes_ = trainer.classes_
    return HeadRounds(
        algorithm, head, int(trainer.head_every), draw_seed(entropy, Stream.HEAD)
    )


def fit_head(trainer, clients, entropy):
    """Fit the head on the features of all clients under the trained module."""
    head = copy_to_fit(trainer.head).set_params(classes=trainer.classes_)
    if head.ledger is None:
        head.set_params(ledger=trainer.ledger)
    if head.random_state is None and trainer.random_state is not None:
        head.set_params(random_state=draw_seed(entropy, Stream.HEAD) % 2**31)
    packed, model = clients.compact(), head._privacy_model()
    features = _features(trainer, packed, model)
    labels = trainer.classes_[packed.labels]
    cuts = packed.offsets[1:-1]
    head.fit(
        np.split(features, cuts),
        np.split(labels, cuts),
        client_ids=list(packed.names),
    )
    if model.private and not trainer._privacy_model().private:
        known = (*head.privacy_.assumptions, NOT_COVERED)
        head.privacy_ = replace(head.privacy_, assumptions=known)
    return head


def _features(trainer, packed, model):
    """Features of all rows; under privacy computed for each unit separately.

    The rounding of a row may depend on the other rows of its batch, and in a private
    release the contribution of a unit must not depend on others.
    """
    ends = packed.offsets
    if model.private and model.unit == "example":
        ends = np.arange(len(packed.rows) + 1)
    filled = [(i, j) for i, j in pairwise(ends.tolist()) if i < j]
    if not model.private or not filled:
        return trainer._features(packed.rows)
    return np.concatenate([trainer._features(packed.rows[i:j]) for i, j in filled])


def joint_report(training, head):
    """Guarantee of training and head together, if both are private.

    Eps and delta are added (basic composition); a ledger, which knows the noise,
    accounts for less.
    """
    if not (training.private and head.private):
        return training
    apart = training.trust != head.trust
    bounds = {f"head {name}": bound for name, bound in head.clip.items()}
    return replace(
        training,
        eps=training.eps + head.eps,
        delta=training.delta + head.delta,
        mu=None,
        clip={**training.clip, **bounds},
        trust=f"{training.trust}; head: {head.trust}" if apart else head.trust,
        secure=training.secure and head.secure,
        seeded=training.seeded or head.seeded,
        accountant=f"{training.accountant} + {head.accountant} (head)",
        n_rounds=training.n_rounds + head.n_rounds,
        assumptions=tuple(dict.fromkeys(training.assumptions + head.assumptions)),
        ledger_ids=training.ledger_ids + head.ledger_ids,
    )


# Said in the report of a private fit that was scored, and perhaps ended, by rows.
EVAL_PUBLIC = "the rows of eval_set are public"


@documented
class BaseTrainer(
    CallbackSupportMixin, PrivacyMixin, FittedNetworkMixin, BaseEstimator
):
    """Base class of `FedAvgClassifier`, which has the parameters."""

    @fit_context()
    def fit(self, X, y=None, *, client_ids=None):
        """Train the module on clients.

        Parameters
        ----------
        X : list of (rows, labels) pairs, list of arrays, array-like, RemoteClients
            All of these are read: ``fit([(X1, y1), ...])``, ``fit({name: (X1, y1)})``,
            ``fit([X1, ...], [y1, ...])``, ``fit(X, y)`` (one client) and
            ``fit(X, y, client_ids=ids)``. Rows may have more than one axis.
            `RemoteClients` are sites that keep their rows and train 'linear' or 'mlp',
            if their policies allow it.
        y, client_ids

        Returns
        -------
        self : object
            Fitted classifier.
        """
        import_torch()
        with undone_on_error(self):
            model = self._privacy_model()
            remote = is_remote(X)
            if remote:
                read = _settings.read_rows(self, X, y, client_ids, model)
            else:
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
            make = self._remote_network if remote else self._network
            network, clients = make(read.dataset, entropy)
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
        if isinstance(clients, FederatedDataset):
            algorithm = self._make_algorithm(network, clients, model, runner, entropy)
            algorithm = replace(algorithm, monitor=monitor)
        else:
            algorithm = self._for_sites(model, runner, entropy)
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
        """Initial parameters, and clients with rows in the form of the module."""
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

    def _remote_network(self, clients, entropy):
        """Initial parameters; sites build the same module."""
        self._row_shape = self.input_shape_ = (int(clients.n_columns),)
        # Refuse what cannot be sent before torch builds it.
        self._for_sites(self._privacy_model(), FederatedRunner(n_rounds=1), entropy)
        network = build_network(
            self.module,
            self.module_params,
            self.input_shape_,
            len(self.classes_),
            seed=draw_seed(entropy, Stream.FIRST_PARAMETERS),
            device="cpu",
        )
        return network, clients

    def _for_sites(self, model, runner, entropy):
        clip = _settings.choose_clip(self.clip, model)
        if model.private and model.unit == "example":
            raise ValueError(
                "unit='example' needs a bound on what one row changes, which local "
                "training does not have. Use unit='client'."
            )
        return for_sites(
            self,
            self._row_shape[0],
            len(self.classes_),
            n_rounds=runner.n_rounds,
            seeds=(
                draw_seed(entropy, Stream.ROW_ORDER),
                draw_seed(entropy, Stream.FIRST_PARAMETERS),
            ),
            weighting=_settings.choose_weighting(self.weighting, model, clip),
            clip=clip,
        )

    def _make_algorithm(self, network, clients, model, runner, entropy):
        batch_size = None if self.batch_size is None else int(self.batch_size)
        training = ClientTraining(
            network,
            _settings.make_objective(self.loss, self.penalties),
            _settings.make_local(self, draw_seed(entropy, Stream.ROW_ORDER)),
            epochs=int(self.local_epochs),
            batch_size=batch_size,
            correction=self.correction,
            cohort_size=_settings.choose_cohort(
                self.cohort_size,
                network,
                clients,
                batch_size,
                model,
                secure=entropy.secure,
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
            f"{state.n_diverged} times a client's training diverged to non-finite "
            "values, and its update was left out. Lower `lr`, or scale the columns.",
            ConvergenceWarning,
            stacklevel=5,
        )


_POSITIVE = Interval(Real, 0, None, closed="neither")
_NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
_COUNT = Interval(Integral, 1, None, closed="left")


@documented
class FedAvgClassifier(BaseTrainer):
    """Train a torch module on clients by federated averaging.

    In a round clients start at the server's parameters, take gradient steps on their
    own rows and send the change; the server adds the mean. Needs torch:
    ``pip install "skfedcal[torch]"``.

    Parameters
    ----------
    module : str, torch.nn.Module or callable, default='mlp'
        Name of a model of `skfedcal.training`, sized from the data; a module, which is
        copied and trained from its own parameters; or a callable that returns a module.
        It maps rows to one logit per class, in the order of the sorted labels. Layers
        with batch statistics (BatchNorm) raise an error.
    module_params : dict, default=None
        Arguments of a name or a callable, such as ``{"hidden": (64,)}``.
    loss : str or loss, default='cross_entropy'
        'cross_entropy', 'focal', 'fedlc', 'margin', 'logit_adjusted', or an object.
    penalties : penalty or list of these, default=None
        Terms that are added to the loss.
    correction : Scaffold, default=None
        Correction of client drift; not supported with privacy.
    head : FedGaussianHead, default=None
        Classifier on the features of the trained module, in place of its last layer.
        It has its own privacy budget, and needs one if `eps` is set. A private head on
        a module that was trained without `eps` does not make the result private.
    head_every : 'end' or int, default='end'
        When `head` is used: after the last round only; or also after each group of this
        many rounds, where the server trains the last layer of the module on features
        that are drawn from the class Gaussians of ``method='sample'`` (FL-FCR). The
        latter is not supported under privacy, and the class statistics need additional
        rounds.
    n_rounds : int, default=50
        Rounds, unless `runner` sets them.
    clients_per_round : int or float, default=1.0
        Number or share of the clients that take part in a round.
    sampling : {'fixed', 'poisson'}, default='fixed'
        Draw exactly this number of clients, or each client independently with this
        probability, which allows less noise (privacy amplification by sampling).
    local_epochs : int, default=1
        Epochs of a client in each round.
    batch_size : int, default=32
        Rows of one step; None is all rows of a client.
    lr : float, default=0.05
        Step length of clients.
    momentum, weight_decay : float, default=0.0
        As in ``torch.optim.SGD``. Momentum starts anew in each round, and is of 'sgd'
        only.
    optimizer : {'sgd', 'adam'}, default='sgd'
        Steps of clients, and of the server where it retrains the last layer
        (`head_every`). 'adam' is ``torch.optim.Adam`` with its default betas, for which
        a smaller `lr` such as 0.001 is usual. Its averages start at zero in each round
        and are not sent: a client that is drawn again begins anew.
    weighting : {'auto', 'examples', 'uniform'}, default='auto'
        Weight clients by their number of rows, or equally. 'auto' is 'examples' if
        updates are not clipped, else 'uniform'.
    server_lr, server_momentum : float, default=1.0 and 0.0
        Step length and momentum with which the server adds the mean.
    eps : float, default=None
        Privacy budget epsilon for a whole client and all rounds (client-level
        differential privacy). None adds no noise.
    delta
    clip : float or 'auto', default='auto'
        L2 bound on the change of all parameters that one client sends; a number also
        clips without `eps`. 'auto' is 1 under `eps`.
    privacy : CentralDP, DistributedDP or SecureAggregation, default=None
        Privacy model to use instead of `eps` and `delta`.
    ledger
    cohort_size : int or 'auto', default='auto'
        Clients that are simulated in one call of torch, with the same result. 'auto' is
        all of a round for modules of up to 50,000 parameters, whose convolutions take
        up to 3 million multiplications each in a step, else 1; and 1 under `eps`
        without `random_state`, because the update of a client must not depend on
        others, not even by rounding.
    eval_set : tuple of (X, y), default=None
        Public rows on which each round is scored.
    target_accuracy : float, default=None
        Stop when the accuracy on `eval_set` is at least this. The privacy budget of all
        rounds is spent anyway.
    input_shape : tuple of int, default=None
        Shape of one row for the module, where X holds flat rows: ``(1, 28, 28)``. None
        leaves rows as they are; X may have more than two axes.
    classes : array-like of shape (n_classes,), default=None
        All labels, also those without rows; None takes the labels of y.
    runner : FederatedRunner, default=None
        Engine, checkpoint, and other ways to draw cohorts.
    device : str, default='cpu'
        Where torch computes.
    random_state : int, RandomState instance or None, default=None
        Seed of first parameters, order of rows, dropout, cohorts and noise. None draws
        them from the operating system. With `eps`, a seed makes the fit a simulation
        without a privacy guarantee.

    Attributes
    ----------
    module_ : torch.nn.Module
        The trained module, in evaluation mode.
    head_ : FedGaussianHead
        The fitted `head`, if there is one; predictions are its own.
    classes_ : ndarray of shape (n_classes,)
        Sorted labels; the order of the columns of all outputs.
    history_ : list of RoundRecord
        Privacy cost of each round. The released sums, as large as the model, are not
        kept.
    scores_ : list of RoundScores
        Accuracy, log loss, calibration error, entropy and variation ratio on
        `eval_set`, for each round that was run here; without the final `head_`.
    n_clients_, n_rounds_
    privacy_ : PrivacyReport
        The guarantee of this fit; with a private `head` that of both together; the
        guarantee of the head alone is ``head_.privacy_``.
    input_shape_ : tuple of int
        Shape of one row for the module.
    n_features_in_ : int
        Length of the second axis of X.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if they have any.

    See Also
    --------
    skfedcal.FedTempCalibrator : Calibrates `client_logits`.
    skfedcal.FedGaussianHead : One-shot classifier on features, as `transform` gives.

    Notes
    -----
    Rows reach the module as float32, or as int64 if it has an ``nn.Embedding``. The
    order in which a client visits its rows depends on the seed, the round and its
    number of rows: the result does not depend on `cohort_size` or on the order of
    clients (up to float32 rounding). A module that draws random numbers is trained
    client by client with ``cohort_size='auto'``; with a number, its random draws depend
    on the cohort.

    A client whose training diverges to non-finite values is left out of the round.
    SCAFFOLD and MOON let clients keep a vector from round to round; in a simulation it
    is kept in this process during the fit.

    Under `eps` the change of each client is clipped and rounded to integers, the sum
    over clients gets discrete Gaussian noise, and is divided by the number of clients
    that a round has (on average, with 'poisson'), which is public [2]_.

    References
    ----------
    .. [1] McMahan et al., "Communication-Efficient Learning of Deep Networks from
       Decentralized Data", AISTATS 2017.
    .. [2] McMahan et al., "Learning Differentially Private Recurrent Language Models",
       ICLR 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_digits
    >>> from skfedcal.training import FedAvgClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> clf = FedAvgClassifier(
    ...     module_params={"hidden": (32,)}, n_rounds=20, lr=0.5, random_state=0
    ... )
    >>> clf.fit(X / 16, y, client_ids=np.arange(len(y)) % 20).n_clients_
    20
    >>> clf.score(X / 16, y) > 0.8
    True
    """

    _parameter_constraints = {
        **PrivacyMixin._privacy_constraints,
        "module": [str, callable],
        "module_params": [dict, None],
        "loss": [StrOptions(set(_settings.LOSSES)), callable],
        "penalties": "no_validation",
        "correction": [Scaffold, None],
        "head": [FedGaussianHead, None],
        "head_every": [_COUNT, StrOptions({"end"})],
        "n_rounds": [_COUNT],
        "clients_per_round": [_COUNT, Interval(Real, 0, 1, closed="right")],
        "sampling": [StrOptions({"fixed", "poisson"})],
        "local_epochs": [_COUNT],
        "batch_size": [_COUNT, None],
        "lr": [_POSITIVE],
        "momentum": [Interval(Real, 0, 1, closed="left")],
        "weight_decay": [_NOT_NEGATIVE],
        "optimizer": [StrOptions({"sgd", "adam"})],
        "weighting": [StrOptions({"auto", "examples", "uniform"})],
        "server_lr": [_POSITIVE],
        "server_momentum": [Interval(Real, 0, 1, closed="left")],
        "cohort_size": [_COUNT, StrOptions({"auto"})],
        "eval_set": [tuple, list, None],
        "target_accuracy": [Interval(Real, 0, 1, closed="both"), None],
        "input_shape": [tuple, list, None],
        "classes": ["array-like", None],
        "runner": [FederatedRunner, None],
        "device": [str],
    }

    # Under metadata routing `client_ids` reaches `fit` without set_fit_request.
    __metadata_request__fit = {"client_ids": True}

    def __init__(
        self,
        module="mlp",
        *,
        module_params=None,
        loss="cross_entropy",
        penalties=None,
        correction=None,
        head=None,
        head_every="end",
        n_rounds=50,
        clients_per_round=1.0,
        sampling="fixed",
        local_epochs=1,
        batch_size=32,
        lr=0.05,
        momentum=0.0,
        weight_decay=0.0,
        optimizer="sgd",
        weighting="auto",
        server_lr=1.0,
        server_momentum=0.0,
        eps=None,
        delta=None,
        clip="auto",
        privacy=None,
        ledger=None,
        cohort_size="auto",
        eval_set=None,
        target_accuracy=None,
        input_shape=None,
        classes=None,
        runner=None,
        device="cpu",
        random_state=None,
    ):
        self.module = module
        self.module_params = module_params
        self.loss = loss
        self.penalties = penalties
        self.correction = correction
        self.head = head
        self.head_every = head_every
        self.n_rounds = n_rounds
        self.clients_per_round = clients_per_round
        self.sampling = sampling
        self.local_epochs = local_epochs
        self.batch_size = batch_size
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.optimizer = optimizer
        self.weighting = weighting
        self.server_lr = server_lr
        self.server_momentum = server_momentum
        self.eps = eps
        self.delta = delta
        self.clip = clip
        self.privacy = privacy
        self.ledger = ledger
        self.cohort_size = cohort_size
        self.eval_set = eval_set
        self.target_accuracy = target_accuracy
        self.input_shape = input_shape
        self.classes = classes
        self.runner = runner
        self.device = device
        self.random_state = random_state
