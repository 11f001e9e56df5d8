"""FedGaussianHead: a classifier from class statistics, in one round."""

from math import sqrt
from numbers import Integral, Real

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from skfedcal._docs import documented
from skfedcal._sklearn_compat import Interval, StrOptions, fit_context, undone_on_error
from skfedcal.clients.features import check_features
from skfedcal.clients.partitions import as_generator
from skfedcal.federation.collecting import collect
from skfedcal.federation.runner import FederatedRunner
from skfedcal.privacy.models import CLIP_RANGE, PrivacyMixin
from skfedcal.training import _gaussian
from skfedcal.training._predictions import LogitsClassifierMixin
from skfedcal.training._settings import read_rows
from skfedcal.training.class_statistics import ClassMoments, scaled_rows

# The longest one row can be: a count, features and products, each at most 1.
ROW_LENGTH = sqrt(3.0)


@documented
class FedGaussianHead(PrivacyMixin, LogitsClassifierMixin, BaseEstimator):
    r"""Gaussian classifier from class statistics of all clients, in one round.

    Clients send counts of rows and sums of features and of their products, by class.
    The result is that of pooled rows, to the last bit, however rows are spread over
    clients. Works on raw features, and on the features that `transform` of a network
    returns.

    .. warning::
        `eps` covers this classifier only. If the network that made the features was
        trained on the same clients without privacy, the two together are not private.

    Parameters
    ----------
    eps : float, default=None
        Privacy budget epsilon for a whole client (client-level differential privacy),
        spent in one release. None adds no noise.
    method : {'lda', 'qda', 'sample'}, default='lda'
        'lda': class Gaussians with one covariance, in closed form. 'qda': with a
        covariance each. 'sample': a softmax regression on features that are drawn from
        class Gaussians with a covariance each, as CCVR [1]_ and FL-FCR [2]_ do. Under
        `eps` only 'lda'.
    prior : {'empirical', 'uniform'} or array-like, default='empirical'
        Class frequencies: those of the clients' rows, equal ones (FL-FCR as printed),
        or given, one for each of `classes_`. Where classes are not equally frequent
        'uniform' raises the calibration error of 'lda' and 'sample'.
    shrinkage : float, default=0.01
        Share of the covariance that is replaced by a multiple of the unit matrix of the
        same trace.
    n_virtual : int, default=1000
        Rows per class, on average, that 'sample' draws.
    max_norm : float, default=None
        Public bound on the length of a row; longer rows are shortened to it, also in
        prediction. Needed under `eps`. None computes the largest feature of all clients
        in an additional first round.
    delta
    clip : float or 'auto', default='auto'
        Public L2 bound on the contribution of a client, in units of rows divided by
        `max_norm`. The rows of a client above it are down-weighted. 'auto' is 1 under
        `eps`, which every client with rows exceeds: all clients then have the same
        weight; with ``unit='example'`` it is sqrt(3), which no row exceeds. A number
        also clips without `eps`.
    privacy : CentralDP, DistributedDP or SecureAggregation, default=None
        Privacy model to use instead of `eps` and `delta`.
    ledger
    classes : array-like of shape (n_classes,), default=None
        All labels, also those without rows; None takes the labels of y.
    runner : FederatedRunner, default=None
        Cohorts, engine and checkpoint.
    random_state : int, RandomState instance or None, default=None
        Draws of 'sample'. None draws noise and cohorts from the operating system; a
        seed makes the fit reproducible, and a simulation without a privacy guarantee.

    Attributes
    ----------
    statistics_ : ClassStatistics
        The sums; under `eps` after regularisation against noise.
    coef_ : ndarray of shape (n_classes, n_features)
        Coefficients of the logits; not with 'qda'.
    intercept_ : ndarray of shape (n_classes,)
        Intercepts of the logits, -inf for a class without rows; not with 'qda'.
    prior_ : ndarray of shape (n_classes,)
        Prior in use.
    classes_ : ndarray of shape (n_classes,)
        Sorted labels.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Their names, if they have any.
    n_clients_, n_rounds_, privacy_, history_

    See Also
    --------
    FedTempCalibrator : For features far from Gaussian, where the head is overconfident.

    Notes
    -----
    With means :math:`\mu_c`, the covariance :math:`\Sigma` around them (over n rows,
    shrunk) and prior :math:`\pi`, the logit of 'lda' is

    .. math:: v^\top \Sigma^{-1} \mu_c - \tfrac12 \mu_c^\top \Sigma^{-1} \mu_c +
        \log \pi_c,

    as in :class:`sklearn.discriminant_analysis.LinearDiscriminantAnalysis` with
    ``solver='lsqr'``. Means and covariances of classes follow exactly from the sums of
    clients, which is Eq. 3-6 of [2]_ without its exception for single rows, and needs
    one feature map for all clients.

    Under `eps` a client sends the vector of its counts, sums of v / `max_norm` and
    sums of products over all classes, with products of different features times
    sqrt(2), so that its L2 norm is that of the matrices. Afterwards counts are at least
    one standard deviation of the noise, means lie within `max_norm`, and the scatter
    has no eigenvalue below the largest one of the noise. With d features and K clients
    the result is useful where d**1.5 is far below K times `eps`.

    References
    ----------
    .. [1] Luo et al., "No Fear of Heterogeneity: Classifier Calibration for Federated
       Learning with Non-IID Data", NeurIPS 2021.
    .. [2] "Federated Learning with Feature Calibration and Client Re-sampling"
       (FL-FCR), Algorithm 1 and Eq. 3-6.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_digits
    >>> from skfedcal import FedGaussianHead
    >>> X, y = load_digits(return_X_y=True)
    >>> head = FedGaussianHead().fit(X, y, client_ids=np.arange(len(y)) % 30)
    >>> head.n_clients_, round(head.score(X, y), 2)
    (30, 0.96)
    >>> bool((FedGaussianHead().fit(X, y).coef_ == head.coef_).all())
    True
    """

    _parameter_constraints = {
        **PrivacyMixin._privacy_constraints,
        "method": [StrOptions({"lda", "qda", "sample"})],
        "prior": [StrOptions({"empirical", "uniform"}), "array-like"],
        "shrinkage": [Interval(Real, 0, 1, closed="both")],
        "n_virtual": [Interval(Integral, 1, 10**6, closed="both")],
        "max_norm": [CLIP_RANGE, None],
        "classes": ["array-like", None],
        "runner": [FederatedRunner, None],
    }

    # Under metadata routing `client_ids` reaches `fit` without set_fit_request.
    __metadata_request__fit = {"client_ids": True}

    def __init__(
        self,
        eps=None,
        *,
        method="lda",
        prior="empirical",
        shrinkage=0.01,
        n_virtual=1000,
        max_norm=None,
        delta=None,
        clip="auto",
        privacy=None,
        ledger=None,
        classes=None,
        runner=None,
        random_state=None,
    ):
        self.eps = eps
        self.method = method
        self.prior = prior
        self.shrinkage = shrinkage
        self.n_virtual = n_virtual
        self.max_norm = max_norm
        self.delta = delta
        self.clip = clip
        self.privacy = privacy
        self.ledger = ledger
        self.classes = classes
        self.runner = runner
        self.random_state = random_state

    @fit_context()
    def fit(self, X, y=None, *, client_ids=None):
        """Collect the class statistics of all clients and build the classifier.

        Parameters
        ----------
        X : list of (features, labels) pairs, list of arrays, array-like, RemoteClients
            All of these are read: ``fit([(X1, y1), ...])``, ``fit({name: (X1, y1)})``,
            ``fit([X1, ...], [y1, ...])``, ``fit(X, y)`` (one client) and
            ``fit(X, y, client_ids=ids)``. `RemoteClients` are sites that keep their
            features.
        y, client_ids

        Returns
        -------
        self : object
            Fitted classifier.
        """
        with undone_on_error(self):
            model = self._privacy_model()
            read = read_rows(self, X, y, client_ids, model)
            self._collect(model, read)
            return self

    def _collect(self, model, read):
        """Collect class statistics of clients that are validated."""
        runner = self.runner if self.runner is not None else FederatedRunner()
        algorithm = self._make_algorithm(model, self.n_features_in_)
        self._check_runner(runner)
        self._given_prior(len(read.classes))  # refused before anything is paid
        found = collect(
            algorithm,
            read.dataset,
            privacy=model,
            runner=runner,
            ledger=self.ledger,
            entropy=self._entropy(model),
            label=type(self).__name__,
            assumptions=read.assumptions,
            clone_number=self._clone_number,
        )
        self.classes_ = read.classes
        self.statistics_ = _gaussian.statistics_of(found.state)
        self._set_map(self.statistics_, as_generator(self.random_state))
        self.history_, self.privacy_ = found.history, found.report
        self.n_clients_, self.n_rounds_ = found.n_clients, len(found.history)

    def _make_algorithm(self, model, n_features):
        if model.private and self.method != "lda":
            raise ValueError(
                f"method={self.method!r} needs a covariance for each class, which is "
                "too noisy under privacy, because it uses the rows of one class "
                "only. Use method='lda'."
            )
        clip = None if self.clip == "auto" else float(self.clip)
        if model.private and clip is None:
            clip = ROW_LENGTH if model.unit == "example" else 1.0
        if clip is not None and self.max_norm is None:
            raise ValueError(
                f"{'eps' if model.private else 'clip'} needs max_norm, a public bound "
                "on the length of a row (longer ones are shortened). Pass one that "
                "most rows satisfy, such as sqrt(n_features) for standardised "
                "features."
            )
        bound = None if self.max_norm is None else float(self.max_norm)
        return ClassMoments(
            int(n_features),
            pooled=self.method == "lda",
            max_norm=bound,
            clip=clip,
            n_rounds=2 if bound is None else 1,
        )

    def _check_runner(self, runner):
        partial = runner.cohort != "full" or runner.n_rounds is not None
        if self.max_norm is None and partial:
            raise ValueError(
                "Without max_norm all clients are asked for the size of their features "
                "first, and then for their sums. Pass max_norm to use "
                f"cohort={runner.cohort!r} and n_rounds={runner.n_rounds!r}."
            )

    def _set_map(self, stats, rng):
        """Classifier from statistics."""
        self.prior_, shrinkage = self._prior(stats), float(self.shrinkage)
        if self.method == "qda":
            found = _gaussian.quadratic_discriminant(stats, self.prior_, shrinkage)
            self._quadratic = found
            for name in {"coef_", "intercept_"} & vars(self).keys():
                delattr(self, name)  # of an earlier fit
        else:
            self.coef_, self.intercept_ = self._linear(stats, rng)

    def _linear(self, stats, rng):
        """Coefficients and intercepts of 'lda' and 'sample'."""
        prior, shrinkage = self._prior(stats), float(self.shrinkage)
        if self.method == "lda":
            return _gaussian.linear_discriminant(stats, prior, shrinkage)
        n_rows = int(self.n_virtual) * stats.n_classes
        return _gaussian.sampled_discriminant(stats, prior, shrinkage, n_rows, rng)

    def _prior(self, stats):
        given = self._given_prior(stats.n_classes)
        return stats.n / max(stats.n.sum(), 1e-300) if given is None else given

    def _given_prior(self, n_classes):
        """Prior that does not depend on the rows, if any."""
        return _gaussian.given_prior(self.prior, n_classes)

    def predict_logits(self, X):
        """Logits with one column per class, for a calibrator.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Features.

        Returns
        -------
        logits : ndarray of shape (n_samples, n_classes)
            In the dtype of X.
        """
        check_is_fitted(self)
        X = check_features(self, X, reset=False)
        rows = X.astype(np.float64)
        if self.max_norm is not None:
            rows = scaled_rows(rows, float(self.max_norm), True) * float(self.max_norm)
        if self.method == "qda":
            logits = self._quadratic.logits(rows)
        else:
            logits = rows @ self.coef_.T + self.intercept_
        return logits.astype(X.dtype)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        # Noise may drown everything.
        tags.classifier_tags.poor_score = self.eps is not None or bool(self.privacy)
        return tags
