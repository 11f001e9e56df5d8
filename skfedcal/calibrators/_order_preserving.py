"""Federated order-preserving vector scaling."""

import numpy as np

from skfedcal import algorithms
from skfedcal._params import as_number
from skfedcal.algorithms._canonical import canonical
from skfedcal.calibrators._scaling import ScalingCalibrator


class FedOPVectorCalibrator(ScalingCalibrator):
    r"""Stretch the gaps between sorted logits by class, and keep their order.

    Parameters
    ----------
    eps : float, default=None
        Budget of differential privacy for a whole client. None adds no noise.
    solver : {'auto', 'average'}, default='auto'
        'auto': the exact optimum of the pooled log loss with a ridge, from summed
        slopes and curvature; under `eps` five rounds of federated averaging with
        gradient steps. 'average': the mean of the clients' own fits, Algorithm 2 of the
        paper; clients with few classes overfit, and the log loss grows.
    l2 : float or 'auto', default='auto'
        Strength of the ridge of 'auto' without `eps`; 'auto' is 1.
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
    slope_, offset_ : ndarray of shape (n_classes,)
        The vectors v and u of the map, in the order of the columns of X.
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
        return algorithms.OrderPreservingMap()

    def _strengths(self):
        return (1.0 if self.l2 == "auto" else as_number("l2", self.l2),) * 2

    def _name_params(self, params, beta):
        self.slope_, self.offset_ = np.split(params.copy(), 2)

    def _params(self):
        return np.concatenate([self.slope_, self.offset_])

    def _shapes(self, n_classes):
        return {"slope_": (n_classes,), "offset_": (n_classes,)}

    def _map(self, logits):
        rows = canonical(logits, 1.0 / self.temperature_, ranked=True)
        values = self._family().descent(self._params(), rows)
        ordered = np.take_along_axis(logits.T, rows.ranks, axis=0)
        if rows.masked is not None:
            masked = np.take_along_axis(rows.masked, rows.ranks, axis=0)
            values[masked] = ordered[masked] / self.temperature_
        out = np.empty_like(logits)
        np.put_along_axis(out.T, rows.ranks, in_order(values, ordered), axis=0)
        return out


def in_order(values, ordered):
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
