"""Federated vector scaling."""

import numpy as np

from skfedcal import algorithms
from skfedcal._params import as_number
from skfedcal.calibrators._scaling import ScalingCalibrator


class FedVectorCalibrator(ScalingCalibrator):
    r"""Scale and shift the logit of each class, learned from sums over clients.

    Parameters
    ----------
    eps : float, default=None
        Budget of differential privacy for a whole client. None adds no noise.
    solver : {'auto', 'average'}, default='auto'
        'auto': the exact optimum of the pooled log loss with a ridge, from summed
        slopes and curvature; under `eps` five rounds of federated averaging with
        gradient steps. 'average': the mean of the clients' own fits, Algorithm 2 of the
        paper; clients with few classes overfit, and accuracy falls.
    l2 : float or 'auto', default='auto'
        Strength of the ridge of 'auto' without `eps`; 'auto' is 0.1, which matters
        only for classes with a handful of rows.
    local_solver : {'lbfgs', 'gd'}, default='lbfgs'
        How a client trains where `solver` is 'average': to its own optimum by L-BFGS,
        or by gradient steps on its mean loss.
    local_iter : int, default=50
        Steps of a client in each round.
    learning_rate : float, default=0.01
        Rate of gradient steps.
    delta : float, default=None
        Chance that the bound of `eps` does not hold; None is ``min(1e-5, 1 / (10 K))``
        for K clients.
    clip : float or 'auto', default='auto'
        Bound on the L2 norm of the change of parameters that one client sends. A
        number also clips without `eps` where `solver` is 'average'. 'auto' is 0.5
        under `eps`.
    if_improves : bool, default=True
        Under `eps`, leave the input unchanged where what was released is no more than
        the noise explains.
    privacy : CentralDP or SecureAggregation, default=None
        Other settings of privacy, instead of `eps` and `delta`.
    ledger : PrivacyLedger, default=None
        Account that is debited before any client is asked.
    classes : array-like of shape (n_classes,), default=None
        Labels of the logit columns, in column order. None takes column names that are
        the labels, else the sorted labels of y.
    input_type : {'logits', 'log_proba', 'proba'}, default='logits'
        What the columns of X hold; never guessed.
    runner : FederatedRunner, default=None
        Rounds, cohorts, engine and checkpoint.
    random_state : int, RandomState instance or None, default=None
        None draws noise and cohorts from the operating system. A seed makes a
        simulation that can be repeated and guarantees nothing.

    Attributes
    ----------
    scale_, bias_ : ndarray of shape (n_classes,)
        The map ``scale_ * z + bias_``, in the order of the columns of X.
    l2_ : ndarray of shape (n_groups,)
        Strength of the ridge in use, of both vectors;
        0 where clients were averaged.
    temperature_ : float
        The federated temperature that the fit started from and is drawn to; 1 where
        clients were averaged.
    converged_ : bool
        Whether the optimum was found, around a temperature inside [0.01, 100].
    improves_ : bool
        Whether the map should be used; False only under `eps`.
    classes_ : ndarray of shape (n_classes,)
        Sorted labels; the order of the columns of `predict_proba`.
    n_clients_, n_rounds_ : int
        Clients seen and rounds run.
    privacy_ : PrivacyReport
        The guarantee of this fit.
    history_ : list of RoundRecord
        What each round cost and what the server saw.

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

    def __init__(
        self,
        eps=None,
        *,
        solver="auto",
        l2="auto",
        local_solver="lbfgs",
        local_iter=50,
        learning_rate=0.01,
        delta=None,
        clip="auto",
        if_improves=True,
        privacy=None,
        ledger=None,
        classes=None,
        input_type="logits",
        runner=None,
        random_state=None,
    ):
        self.eps = eps
        self.solver = solver
        self.l2 = l2
        self.local_solver = local_solver
        self.local_iter = local_iter
        self.learning_rate = learning_rate
        self.delta = delta
        self.clip = clip
        self.if_improves = if_improves
        self.privacy = privacy
        self.ledger = ledger
        self.classes = classes
        self.input_type = input_type
        self.runner = runner
        self.random_state = random_state

    def _family(self):
        return algorithms.VectorMap()

    def _strengths(self):
        from skfedcal.algorithms._families import WEAK

        return (WEAK if self.l2 == "auto" else as_number("l2", self.l2),) * 2

    def _name_params(self, params, beta):
        scale, self.bias_ = np.split(params.copy(), 2)
        self.scale_ = scale * beta

    def _params(self):
        return np.concatenate([self.scale_, self.bias_])

    def _shapes(self, n_classes):
        return {"scale_": (n_classes,), "bias_": (n_classes,)}
