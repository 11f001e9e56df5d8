"""Who takes part in the rounds of a run, on which engine, with which checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

from skfedcal._params import FrozenParams
from skfedcal.algorithms._base import FederatedAlgorithm
from skfedcal.federation._cohorts import Cohort, Schedule
from skfedcal.federation._settings import check_masked_sums, check_settings

if TYPE_CHECKING:
    from skfedcal.data._dataset import FederatedDataset
    from skfedcal.federation._backends import Backend
    from skfedcal.federation._history import RoundHistory
    from skfedcal.federation._messages import Transport
    from skfedcal.federation._remote import RemoteDataset
    from skfedcal.federation._run import RoundRecord
    from skfedcal.privacy._entropy import Entropy
    from skfedcal.privacy._mechanisms import SumMechanism
    from skfedcal.privacy._models import ReleasePlan


@dataclass(frozen=True, repr=False)
class FederatedRunner(FrozenParams):
    """Run rounds over clients: who takes part, on which engine, with which safety net.

    Parameters
    ----------
    n_rounds : int, default=None
        Releases; None leaves it to the method. Privacy is paid for all of them, also
        when the method or a callback stops earlier.
    cohort : {'full', 'permuted', 'independent', 'poisson'}, default='full'
        Who takes part in a round. 'full': everyone (asked in cohorts of `cohort_size`
        if that is given, added up, and released once). 'permuted': the next
        `cohort_size` clients of a random order; a method of one round then goes
        through all of them once. 'independent': `cohort_size` clients
        drawn anew. 'poisson': each client with chance ``cohort_size / n_clients``,
        the one form of sampling that lowers the noise.
    cohort_size : int, default=None
        Clients per cohort; None is all.
    backend : {'threads', 'loky'}, Backend or Transport, default=None
        Engine. None asks all clients in one vectorised call, or by threads if `n_jobs`
        is given.
    n_jobs : int, default=None
        Threads or processes.
    min_clients : int, default=1
        A round that fewer clients answer is an error.
    checkpoint : str or path-like, default=None
        File that is written after each release.
    resume : bool, default=False
        Go on from `checkpoint` if the file exists. Nothing is paid twice, and a seeded
        run ends as if it had not been interrupted. Without `resume` an existing file
        is an error. Rows are not compared: rounds that are left use those at hand, and
        a finished run is returned as it was. Never resume from an old copy of the file,
        nor twice at the same time: rounds would be released again for one payment.
    secure : bool, default=False
        Clients mask what they send, and only sums of 3 clients or more can be read.
        The result is the same to the last bit. Needs ``pip install
        "skfedcal[flower]"``.

    Examples
    --------
    >>> from skfedcal import FedTempCalibrator, FederatedRunner, make_federation
    >>> fed = make_federation(n_clients=20, n_samples=2000, random_state=0)
    >>> runner = FederatedRunner(cohort="full", cohort_size=5, n_jobs=2)
    >>> FedTempCalibrator(runner=runner).fit(fed.clients).history_[0].n_cohorts
    4
    """

    n_rounds: int | None = None
    cohort: Cohort = "full"
    cohort_size: int | None = None
    backend: Literal["threads", "loky"] | Backend | Transport | None = None
    n_jobs: int | None = None
    min_clients: int = 1
    checkpoint: Any = None
    resume: bool = False
    secure: bool = False

    def schedule(self, algorithm: FederatedAlgorithm[Any], n_clients: int) -> Schedule:
        """Rounds and cohorts of a run, as far as they are public."""
        check_settings(self, n_clients)
        n_rounds = algorithm.n_rounds if self.n_rounds is None else self.n_rounds
        size = n_clients if self.cohort_size is None else self.cohort_size
        if self.cohort == "permuted" and self.n_rounds is None and n_rounds == 1:
            n_rounds = ceil(n_clients / size)  # one pass over everybody
        schedule = Schedule(self.cohort, n_clients, size, n_rounds)
        if self.secure:
            check_masked_sums(self, schedule)
        return schedule

    def release_plan(
        self,
        algorithm: FederatedAlgorithm[Any],
        clients: FederatedDataset | RemoteDataset,
        unit: Literal["client", "example"],
    ) -> ReleasePlan:
        """What a run will release, as far as it is public."""
        from skfedcal.federation._collect import plan_releases

        schedule = self.schedule(algorithm, len(clients))
        return plan_releases(algorithm, clients, unit, schedule)

    def run(
        self,
        algorithm: FederatedAlgorithm[Any],
        clients: FederatedDataset | RemoteDataset | Backend,
        mechanism: SumMechanism,
        entropy: Entropy,
        *,
        n_classes: int | None = None,
        on_round: Callable[[Any, RoundRecord], bool] | None = None,
    ) -> tuple[Any, RoundHistory]:
        """Return the final state and one record per round.

        `collect` builds the mechanism as well; this is for one that is built already.

        Parameters
        ----------
        algorithm : FederatedAlgorithm
            The method.
        clients : FederatedDataset, RemoteDataset or Backend
            Clients in this process, or an engine that reaches them.
        mechanism : SumMechanism
            Pays and adds noise.
        entropy : Entropy
            Source of the cohorts.
        n_classes : int, default=None
            Number of classes; None takes it from the data set.
        on_round : callable, default=None
            Called after each round; True stops the run and refunds nothing.
        """
        from skfedcal.federation._collect import run_rounds

        return run_rounds(
            self,
            algorithm,
            clients,
            mechanism,
            entropy,
            n_classes=n_classes,
            on_round=on_round,
        )
