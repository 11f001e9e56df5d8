"""Federated training of a torch module, as a scikit-learn classifier."""

from numbers import Integral, Real

from skfedcal._sklearn_compat import Interval, StrOptions
from skfedcal.federation._runner import FederatedRunner
from skfedcal.privacy._mixin import PrivacyMixin
from skfedcal.training import _settings
from skfedcal.training._correction import Scaffold
from skfedcal.training._gaussian_head import FedGaussianHead
from skfedcal.training._trainer import BaseTrainer

_POSITIVE = Interval(Real, 0, None, closed="neither")
_NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
_COUNT = Interval(Integral, 1, None, closed="left")


class FedAvgClassifier(BaseTrainer):
    """Train a torch module on clients by federated averaging.

    In a round clients start at the server's parameters, run stochastic gradient descent
    on their own rows and send the change; the server adds the mean. Needs torch:
    ``pip install "skfedcal[torch]"``.

    Parameters
    ----------
    module : str, torch.nn.Module or callable, default='mlp'
        Name of a model of `skfedcal.training`, sized from the data; a module, which is
        copied and goes on from its own parameters; or what returns a module. It maps
        rows to one logit per class, in the order of the sorted labels. Layers that keep
        statistics of batches (BatchNorm) are refused.
    module_params : dict, default=None
        Arguments of a name or a callable, such as ``{"hidden": (64,)}``.
    loss : str or loss, default='cross_entropy'
        'cross_entropy', 'focal', 'fedlc', 'margin', 'logit_adjusted', or an object.
    penalties : penalty or list of these, default=None
        Terms that are added to the loss.
    correction : Scaffold, default=None
        Correction of the drift between clients; not with privacy.
    head : FedGaussianHead, default=None
        Classifier on the features of the trained module, in place of its last layer.
        Its own `eps` pays for it, and it needs one under `eps`. A private head on a
        module that was trained without `eps` does not make the whole private.
    head_every : 'end' or int, default='end'
        When `head` is used: at the end; or also after so many rounds each, where the
        server trains the last layer of the module on features that are drawn from the
        class Gaussians of ``method='sample'`` (FL-FCR). That is refused under privacy,
        and the class statistics cost rounds of their own.
    n_rounds : int, default=50
        Rounds, unless `runner` says otherwise.
    clients_per_round : int or float, default=1.0
        Number or share of the clients that take part in a round.
    sampling : {'fixed', 'poisson'}, default='fixed'
        Whether exactly so many clients are drawn, or each by itself with that chance,
        which lowers the noise of privacy.
    local_epochs : int, default=1
        Passes over its rows that a client makes in a round.
    batch_size : int, default=32
        Rows of one step; None is all rows of a client.
    lr : float, default=0.05
        Step length of clients.
    momentum, weight_decay : float, default=0.0
        As in ``torch.optim.SGD``. Momentum starts anew in each round.
    weighting : {'auto', 'examples', 'uniform'}, default='auto'
        Whether a client counts as often as it has rows. 'auto' does without bound on
        what clients send, else all count alike.
    server_lr, server_momentum : float, default=1.0 and 0.0
        Step length and momentum with which the server adds the mean.
    eps : float, default=None
        Budget of differential privacy for a whole client and all rounds. None adds no
        noise.
    delta : float, default=None
        Chance that the bound of `eps` does not hold; None is ``min(1e-5, 1 / (10 K))``
        for K clients.
    clip : float or 'auto', default='auto'
        L2 bound on the change of all parameters that one client sends; a number also
        clips without `eps`. 'auto' is 1 under `eps`.
    privacy : CentralDP, DistributedDP or SecureAggregation, default=None
        Other settings of privacy, instead of `eps` and `delta`.
    ledger : PrivacyLedger, default=None
        Account that is debited before any client is asked.
    cohort_size : int or 'auto', default='auto'
        Clients that are simulated in one call of torch, with the same result. 'auto' is
        all of a round for modules of up to 50,000 parameters, else 1; and 1 under `eps`
        without `random_state`, where no digit of a client may depend on others.
    eval_set : tuple of (X, y), default=None
        Public rows on which each round is scored.
    target_accuracy : float, default=None
        End when the accuracy on `eval_set` is at least this. Privacy is paid for all
        rounds.
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
        them from the operating system. With `eps` a seed makes a simulation that can be
        repeated and guarantees nothing.

    Attributes
    ----------
    module_ : torch.nn.Module
        The trained module, in evaluation mode.
    head_ : FedGaussianHead
        The fitted `head`, if there is one; predictions are its own.
    classes_ : ndarray of shape (n_classes,)
        Sorted labels; the order of the columns of all outputs.
    history_ : list of RoundRecord
        What each round cost. Its `total` is empty: a model's worth of numbers each.
    scores_ : list of RoundScores
        Accuracy, log loss, calibration error, entropy and variation ratio on
        `eval_set`, for each round that was run here; without the final `head_`.
    n_clients_, n_rounds_ : int
        Clients seen and rounds run.
    privacy_ : PrivacyReport
        The guarantee of this fit; with a private `head` that of both together, whose
        own part is ``head_.privacy_``.
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
    client by client with ``cohort_size='auto'``; with a number, what it draws depends
    on the cohort.

    A client whose training does not end in finite numbers is left out of the round.
    SCAFFOLD and MOON let clients keep a vector from round to round; in a simulation it
    lives in this process for the time of the fit.

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
