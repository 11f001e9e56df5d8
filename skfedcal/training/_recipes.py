"""Methods of the papers as configured classifiers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from skfedcal.training._classifier import FedAvgClassifier
from skfedcal.training._gaussian_head import FedGaussianHead
from skfedcal.training._losses import (
    DCA,
    Contrastive,
    FedLC,
    Margin,
    NonUniform,
    Proximal,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from skfedcal.training._objective import Penalty

__all__ = [
    "ccvr",
    "fedlc",
    "fedprox",
    "fl_fcr",
    "moon",
    "nucfl",
]


def fedprox(mu: float = 0.01, **params: Any) -> FedAvgClassifier:
    """FedProx: a quadratic penalty on the distance from the server's parameters.

    Parameters
    ----------
    mu : float, default=0.01
        Strength; the paper tunes it from 0.001 to 1.
    **params : dict
        Further parameters of `FedAvgClassifier`.

    Returns
    -------
    FedAvgClassifier

    References
    ----------
    .. [1] Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.

    Examples
    --------
    >>> from skfedcal.training import fedprox
    >>> fedprox(0.1, n_rounds=20).penalties
    Proximal(mu=0.1)
    """
    return FedAvgClassifier(penalties=Proximal(mu), **params)


def moon(mu: float = 1.0, tau: float = 0.5, **params: Any) -> FedAvgClassifier:
    """MOON: features near the server's and away from the client's last ones.

    The paper compares features behind a projection head of two layers; here these are
    the features of the module, whatever it is.

    Parameters
    ----------
    mu : float, default=1.0
        Strength; the paper tunes it in {0.1, 1, 5, 10}.
    tau : float, default=0.5
        Temperature.
    **params : dict
        Further parameters of `FedAvgClassifier`. The paper uses ``local_epochs=10``,
        ``batch_size=64``, ``lr=0.01``, ``momentum=0.9`` and ``weight_decay=1e-5``.

    Returns
    -------
    FedAvgClassifier

    References
    ----------
    .. [1] Li et al., "Model-Contrastive Federated Learning", CVPR 2021.

    Examples
    --------
    >>> from skfedcal.training import moon
    >>> moon(mu=5.0).penalties
    Contrastive(mu=5.0, tau=0.5)
    """
    return FedAvgClassifier(penalties=Contrastive(mu, tau), **params)


def fedlc(tau: float = 1.0, **params: Any) -> FedAvgClassifier:
    """FedLC: logits lowered for classes that are rare at the client.

    The paper's denominator lacks the own class and has no lower bound; here it is in,
    and classes that a client does not hold are left out of its softmax.

    Parameters
    ----------
    tau : float, default=1.0
        Strength.
    **params : dict
        Further parameters of `FedAvgClassifier`.

    Returns
    -------
    FedAvgClassifier

    References
    ----------
    .. [1] Zhang et al., "Federated Learning with Label Distribution Skew via Logits
       Calibration", ICML 2022.

    Examples
    --------
    >>> from skfedcal.training import fedlc
    >>> fedlc(tau=0.5).loss
    FedLC(tau=0.5)
    """
    return FedAvgClassifier(loss=FedLC(tau), **params)


def nucfl(
    penalty: Penalty | None = None, *, literal: bool = False, **params: Any
) -> FedAvgClassifier:
    """NUCFL: a calibration penalty weighted by the similarity to the server's update.

    The similarity is the cosine of the two changes, with negative values as zero unless
    `literal`, and zero in the first round, which has no change before it.

    Parameters
    ----------
    penalty : penalty, default=None
        Calibration penalty with its weight; None is ``DCA()``.
    literal : bool, default=False
        Use negative similarities as they are, as the paper prints it.
    **params : dict
        Further parameters of `FedAvgClassifier`.

    Returns
    -------
    FedAvgClassifier

    References
    ----------
    .. [1] Chu et al., "Unlocking the Potential of Model Calibration in Federated
       Learning", 2024 (arXiv 2409.04901).

    Examples
    --------
    >>> from skfedcal.training import MDCA, nucfl
    >>> nucfl(MDCA(weight=2.0)).penalties
    NonUniform(penalty=MDCA(weight=2.0), literal=False)
    """
    chosen = DCA() if penalty is None else penalty
    return FedAvgClassifier(penalties=NonUniform(chosen, literal), **params)


def ccvr(n_virtual: int = 1000, **params: Any) -> FedAvgClassifier:
    """CCVR: federated averaging, then a head from virtual features.

    Class means and covariances are exact ones over all clients, of features under the
    averaged model. Virtual features are as frequent as the classes are. The head is a
    softmax regression on them with a weak ridge, in place of some epochs of descent.

    Parameters
    ----------
    n_virtual : int, default=1000
        Virtual features per class, on average.
    **params : dict
        Further parameters of `FedAvgClassifier`.

    Returns
    -------
    FedAvgClassifier

    References
    ----------
    .. [1] Luo et al., "No Fear of Heterogeneity: Classifier Calibration for Federated
       Learning with Non-IID Data", NeurIPS 2021.

    Examples
    --------
    >>> from skfedcal.training import ccvr
    >>> ccvr().head.method
    'sample'
    """
    head = FedGaussianHead(method="sample", n_virtual=n_virtual)
    return FedAvgClassifier(head=head, **params)


def fl_fcr(
    scale: float = 1.0,
    *,
    counts: Literal["local", "global"] = "local",
    prior: str | ArrayLike = "empirical",
    n_virtual: int = 1000,
    every: int | Literal["end"] = 1,
    **params: Any,
) -> FedAvgClassifier:
    """FL-FCR: a margin loss, and the last layer retrained on virtual features.

    Where Algorithm 1 of the paper cannot be followed as printed: features are those of
    the averaged model, not of each client's own, whose statistics do not add up; models
    are averaged, not added; clients are drawn in every round; retraining on features
    changes the last layer only; the margin is on the own class, Eq. 13 with its two
    meanings of c separated. Statistics (Eq. 3-6) are exact sums. After the last round
    the head is trained to convergence; the layer of the last retraining is in
    `module_`.

    Parameters
    ----------
    scale : float, default=1.0
        Factor H of the margin; the paper gives no value. In our measurements the margin
        has no significant effect: the gain is due to the head.
    counts : {'local', 'global'}, default='local'
        Class counts of the margin. The paper prints global ones, which are a constant
        margin where classes are equally frequent.
    prior : {'empirical', 'uniform'} or array-like of shape (n_classes,), \
            default='empirical'
        How frequent classes are among virtual features. The paper draws all alike,
        'uniform', which costs accuracy and calibration where classes are not.
    n_virtual : int, default=1000
        Virtual features per class, on average.
    every : int or 'end', default=1
        Rounds between retrainings; 'end' has one after the last round.
    **params : dict
        Further parameters of `FedAvgClassifier`. The paper uses 10 rounds,
        ``local_epochs=3`` and ``momentum=0.9``.

    Returns
    -------
    FedAvgClassifier

    References
    ----------
    .. [1] "Federated Learning with Feature Calibration and Client Re-sampling"
       (FL-FCR), Algorithm 1, Eq. 3-6 and 11-13.

    Examples
    --------
    >>> from skfedcal.training import fl_fcr
    >>> clf = fl_fcr(prior="uniform", n_rounds=10)
    >>> clf.loss, clf.head_every
    (Margin(scale=1.0, counts='local', max_margin=None, logit_scale=1.0), 1)
    """
    head = FedGaussianHead(method="sample", prior=prior, n_virtual=n_virtual)
    return FedAvgClassifier(
        loss=Margin(scale, counts), head=head, head_every=every, **params
    )
