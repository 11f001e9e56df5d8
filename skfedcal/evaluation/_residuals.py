"""ClasswiseResiduals: calibration errors of every class at a price that K ignores."""

from __future__ import annotations

from math import nan, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skfedcal._params import check_flag
from skfedcal.algorithms._class_residuals import ClassResiduals
from skfedcal.evaluation._absolute import KNOWN, sum_interval, unfold
from skfedcal.evaluation._answers import check_bins, undefined
from skfedcal.evaluation._collect import Statistic
from skfedcal.evaluation._estimate import Estimate, with_guarantee
from skfedcal.evaluation._inputs import Clients
from skfedcal.evaluation._intervals import quantile

if TYPE_CHECKING:
    from skfedcal.federation._run import RoundRecord
    from skfedcal.federation._runner import FederatedRunner
    from skfedcal.privacy._ledger import PrivacyLedger
    from skfedcal.privacy._models import PrivacyModel
    from skfedcal.privacy._report import PrivacyReport

Array = NDArray[Any]


class ClasswiseResiduals:
    """Sums of outcome minus probability per class and bin.

    Made by `fit`. A row adds ``y_k - p_k`` to the bin of ``p_k`` of every class: L1
    norm at most 2, however many classes there are, where counts of positives and
    negatives would have the number of classes.

    Parameters
    ----------
    residuals : ndarray of shape (n_classes, n_bins)
        Sums, noise included.
    n_examples : float
        Number of rows.
    variance : float
        Of the noise in each sum.
    squares : ndarray of shape (n_classes, n_bins) or None
        Sums of squared residuals, which exact sums give and noise does not pay for.
    classes : ndarray of shape (n_classes,)
        Label of each row of `residuals`.
    n_clients : int
        Clients that were asked.
    privacy : PrivacyReport
        What the release guarantees.
    history : list of RoundRecord
        Rounds of the run.

    Attributes
    ----------
    residuals_ : ndarray of shape (n_classes, n_bins)
        Sums, noise included.
    classes_ : ndarray of shape (n_classes,)
        Label of each row.
    n_examples_ : float
        Number of rows.
    n_clients_ : int
        Clients that were asked.
    privacy_ : PrivacyReport
        What the release guarantees.
    history_ : list of RoundRecord
        Rounds of the run.

    Examples
    --------
    >>> from skfedcal import ClasswiseResiduals, make_federation
    >>> fed = make_federation(n_clients=20, n_samples=2000, random_state=0)
    >>> residuals = ClasswiseResiduals.fit(fed.clients)
    >>> print(f"{residuals.cwece(debias=False):.3f}")
    0.029
    """

    def __init__(
        self,
        residuals: Array,
        n_examples: float,
        variance: float,
        squares: Array | None,
        classes: Array,
        n_clients: int,
        privacy: PrivacyReport,
        history: list[RoundRecord],
    ) -> None:
        self.residuals_ = residuals
        self.n_examples_ = n_examples
        self.noise_variance_ = variance
        self.squares_ = squares
        self.classes_ = classes
        self.n_clients_ = n_clients
        self.privacy_ = privacy
        self.history_ = history

    @classmethod
    def fit(
        cls,
        clients: Any,
        y: Any = None,
        *,
        client_ids: Any = None,
        privacy: PrivacyModel | None = None,
        n_bins: int = 15,
        max_examples_per_client: int | None = None,
        classes: Any = None,
        input_type: str = "logits",
        ledger: PrivacyLedger | None = None,
        runner: FederatedRunner | None = None,
        random_state: Any = None,
    ) -> ClasswiseResiduals:
        """Collect the residuals of all clients.

        Parameters
        ----------
        clients : list of (scores, labels) pairs, list of arrays, or array-like
            In the forms that ``fit`` of a calibrator takes; one column per class.
        y : array-like of shape (n_samples,), or list of these, default=None
            Labels; omitted when `clients` is a list of pairs.
        client_ids : array-like of shape (n_samples,), default=None
            Client that owns each row; with a list of clients, one name per client.
        privacy : privacy model, default=None
            What the release shall guarantee; None is `SecureAggregation`: exact sums.
        n_bins : int, default=15
            Equal-width bins of [0, 1].
        max_examples_per_client : int, default=None
            Rows of a client that count. None is all; under a guarantee for whole
            clients it is 1.
        classes : array-like of shape (n_classes,), default=None
            Labels in the order of the columns; None takes them from `y`.
        input_type : {'logits', 'log_proba', 'proba'}, default='logits'
            What scores are; never guessed.
        ledger : PrivacyLedger, default=None
            Account that pays before noise is drawn.
        runner : FederatedRunner, default=None
            Engine and cohorts.
        random_state : int, RandomState instance or None, default=None
            None takes noise from the operating system; a seed makes it a simulation.

        Returns
        -------
        ClasswiseResiduals
        """
        statistic = Statistic(privacy, ledger, runner, random_state, cls.__name__)
        if statistic.local:
            raise ValueError(
                "ClasswiseResiduals are real numbers, which LocalDP cannot randomise; "
                "use DistributedDP, CentralDP or SourceDP, or "
                "ScoreHistogram.fit(kind='top') for the top label."
            )
        check_bins(n_bins)
        given = Clients(clients, y, client_ids, classes, input_type, statistic.private)
        data, labels = given.several()
        statistic.assumptions = given.assumptions
        limit = statistic.limit(max_examples_per_client)
        # Rows of its own for each unit; clients may have none.
        one_each = statistic.private and statistic.model.unit == "example"
        algorithm = ClassResiduals(
            n_bins=int(n_bins),
            max_examples=limit,
            private=statistic.private,
            count_rows=not one_each,
            input_type=input_type,  # type: ignore[arg-type]
            salt=0 if limit is None else statistic.salt(),
        )
        found = statistic.run(algorithm, data)
        state = found.state
        return cls(
            state.residuals,
            state.n_rows,
            state.variance,
            None if statistic.private else state.squares,
            labels,
            found.n_clients,
            found.report,
            found.history,
        )

    @with_guarantee
    def cwece(self, *, debias: bool = True, ci: float = 0.95) -> Estimate:
        """Classwise calibration error: mean over classes of the mean gap over bins.

        Parameters
        ----------
        debias : bool, default=True
            Take off what noise (and sampling, for exact sums) alone adds to absolute
            values.
        ci : float, default=0.95
            Level of the confidence interval.

        Returns
        -------
        Estimate
            Under noise `se_sampling` is an upper bound: what it needs is not released.
        """
        return self._mean(np.arange(len(self.residuals_)), debias, ci)

    @with_guarantee
    def per_class(self, *, debias: bool = True, ci: float = 0.95) -> list[Estimate]:
        """Mean gap over bins of each class, in the order of `classes_`.

        Parameters
        ----------
        debias : bool, default=True
            Take off what noise (and sampling, for exact sums) alone adds to absolute
            values.
        ci : float, default=0.95
            Level of the confidence intervals.

        Returns
        -------
        list of Estimate
        """
        rows = range(len(self.residuals_))
        return [self._mean(np.array([k]), debias, ci) for k in rows]

    def _mean(self, rows: Array, debias: bool, ci: float) -> Estimate:
        n = self.n_examples_
        if n <= 0:
            undefined("Calibration error", "there are no rows", "nan")
            return Estimate(nan, nan, nan, se_sampling=nan, se_privacy=nan)
        sizes = np.abs(self.residuals_[rows]).ravel()
        sampling = self._sampling(rows)
        sigmas = np.sqrt(sampling + self.noise_variance_)
        found = sizes
        if check_flag("debias", debias):
            released = sampling if self.squares_ is not None else 0.0
            found = unfold(sizes, np.sqrt(released + self.noise_variance_))
        # A row adds to every class: its sum over classes is at most twice its largest
        # part, as probabilities add up to 1.
        shared = min(4.0, len(rows))
        z, known = quantile(ci), sizes > KNOWN * sigmas
        joint = shared * sampling[known].sum() + self.noise_variance_ * known.sum()
        low, high = sum_interval(sizes, sigmas * sqrt(shared), float(joint), z)
        scale = 1 / (n * len(rows))
        value = min(float(found.sum()) * scale, 1.0)
        return Estimate(
            value,
            min(low * scale, value),
            min(max(high * scale, value), 1.0),
            se_sampling=sqrt(shared * float(sampling.sum())) * scale,
            se_privacy=sqrt(self.noise_variance_ * sizes.size) * scale,
        )

    def _sampling(self, rows: Array) -> Array:
        """Variance of each sum because other rows could have been drawn.

        Without released squares an upper bound on all together, in equal parts:
        outcomes of one class have a variance of 1/4, of K classes of 1 - 1/K.
        """
        if self.squares_ is not None:
            out: Array = self.squares_[rows].ravel()
            return out
        most = 0.25 if len(rows) == 1 else 1 - 1 / len(rows)
        cells = len(rows) * self.residuals_.shape[1]
        return np.full(cells, self.n_examples_ * most / cells)
