"""FederatedRunner: drive the rounds of an algorithm on any engine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, inf
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from skfedcal._params import FrozenParams, check_flag
from skfedcal.contract import FederatedAlgorithm
from skfedcal.exceptions import SecureAggregationError
from skfedcal.federation.mask_plan import LARGEST_COHORT, SMALLEST_COHORT
from skfedcal.privacy.entropy import (
    Entropy,
    KeyedEntropy,
    SeededEntropy,
    Stream,
    words_at,
    words_by_rank,
)

if TYPE_CHECKING:
    from skfedcal.clients.dataset import FederatedDataset
    from skfedcal.federation.backends import Backend
    from skfedcal.federation.history import RoundHistory, RoundRecord
    from skfedcal.federation.messages import Transport
    from skfedcal.federation.remote import RemoteDataset
    from skfedcal.privacy.mechanisms import SumMechanism
    from skfedcal.privacy.models import ReleasePlan

Cohort = Literal["full", "permuted", "independent", "poisson"]
Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Cohorts of all rounds.

    cohort ('full', 'permuted', 'independent', 'poisson'): How clients are chosen.
    n_clients, size, n_rounds: Clients, clients per cohort, rounds.
    """

    cohort: Cohort
    n_clients: int
    size: int
    n_rounds: int

    @property
    def sampling_rate(self) -> float:
        """Probability that a client is in a round, where the accountant may use it."""
        return self.size / self.n_clients if self.cohort == "poisson" else 1.0

    @property
    def n_participations(self) -> int:
        """Most rounds that one client can be part of."""
        if self.cohort == "permuted":
            return ceil(self.n_rounds / ceil(self.n_clients / self.size))
        return self.n_rounds

    @property
    def divisor(self) -> int | None:
        """Public number of clients per round; None: the size of the cohort."""
        return {"full": self.n_clients, "poisson": self.size}.get(self.cohort)

    def draw_key(self, entropy: Entropy) -> int:
        """Seed of the permutations of a run; 0 if cohorts are not permuted."""
        if self.cohort != "permuted":
            return 0
        return int.from_bytes(entropy.child(Stream.COHORT_KEY).uint64(2).tobytes())

    def draws(self, round_index: int, entropy: Entropy, key: int) -> list[Draw]:
        """Cohorts of one round; several are added up before the release.

        `key` is that of `draw_key`: a resumed run continues with its permutations.
        """
        n_clients = self.n_clients
        if self.cohort == "full":
            return [
                Draw(start, min(start + self.size, n_clients))
                for start in range(0, n_clients, self.size)
            ]
        if self.cohort == "permuted":
            per_pass = ceil(n_clients / self.size)
            epoch, place = divmod(round_index, per_pass)
            start = place * self.size
            ranks = (start, min(start + self.size, n_clients) - 1)
            return [Draw.ranked(SeededEntropy(key, epoch), n_clients, ranks)]
        source = entropy.child(Stream.COHORTS, round_index)
        if not isinstance(source, SeededEntropy):
            source = KeyedEntropy.draw(source)
        if self.cohort == "independent":
            return [Draw.ranked(source, n_clients, (0, self.size - 1))]
        # Rounded down to a multiple of 2^-64, from the exact value of the float: a
        # client is never sampled more often than the accountant was told.
        high = int(Fraction(self.sampling_rate) * 2**64) - 1
        return [Draw(0, n_clients, source, high=high)]

    def cohorts(self, round_index: int, entropy: Entropy, key: int) -> list[Positions]:
        """Positions of the clients of each cohort of one round."""
        draws = self.draws(round_index, entropy, key)
        return [draw.positions(0, self.n_clients) for draw in draws]


@dataclass(frozen=True, slots=True)
class Draw:
    """Rule of one cohort, by which whoever holds some of the clients finds its members.

    Every client has a word of a stream: that at its position. Members are the clients
    at positions from `start` to `stop` whose word is from `low` to `high`.

    words: The stream; None takes all clients of these positions.
    skipped: Words of the stream before that of position 0.
    """

    start: int
    stop: int
    words: SeededEntropy | KeyedEntropy | None = None
    low: int = 0
    high: int = 2**64 - 1
    skipped: int = 0

    @classmethod
    def ranked(
        cls,
        words: SeededEntropy | KeyedEntropy,
        n_clients: int,
        ranks: tuple[int, int],
    ) -> Draw:
        """Clients whose words have ranks from the first to the second, both included.

        That is a part of a random order: the order of the words.
        """
        skipped, low, high = words_by_rank(words, n_clients, ranks)
        return cls(0, n_clients, words, low, high, skipped)

    def positions(self, start: int, stop: int) -> Positions:
        """Members among the clients at positions from `start` to `stop`, sorted."""
        first, last = max(start, self.start), min(stop, self.stop)
        here = np.arange(first, max(first, last))
        if self.words is None or not len(here) or self.high < self.low:
            return here if self.words is None else here[:0]
        words = words_at(self.words, self.skipped + first, len(here))
        return here[(words >= np.uint64(self.low)) & (words <= np.uint64(self.high))]


def check_settings(runner: FederatedRunner, n_clients: int) -> None:
    """Check the settings of a runner for this number of clients.

    Raises ValueError: Naming the setting.
    """
    if n_clients > 0 and _is_plain(runner):
        return
    if not isinstance(runner.cohort, str):
        raise TypeError(
            f"FederatedRunner(cohort={runner.cohort!r}): cohort must be a string."
        )
    for name, low, high in (
        ("n_rounds", 1, inf),
        ("cohort_size", 1, n_clients),
        ("min_clients", 1, smallest_cohort(runner, n_clients)),
    ):
        value = getattr(runner, name)
        if value is None and name != "min_clients":
            continue
        if not isinstance(value, Integral) or not low <= int(value) <= high:
            raise ValueError(
                f"FederatedRunner({name}={value!r}): pass a whole number from {low} to "
                f"{high} (there are {n_clients} clients)."
            )
    for name, allowed in (
        ("cohort", ("full", "permuted", "independent", "poisson")),
        ("backend", ("threads", "loky")),
    ):
        value = getattr(runner, name)
        if isinstance(value, str) and value not in allowed:
            raise ValueError(
                f"FederatedRunner({name}={value!r}): pass one of {allowed}."
            )
    if not isinstance(runner.n_jobs, Integral | None) or runner.n_jobs == 0:
        raise ValueError(
            f"FederatedRunner(n_jobs={runner.n_jobs!r}): pass a whole number, or None."
        )
    backend = runner.backend
    if not isinstance(backend, str | None) and not hasattr(backend, "ids"):
        raise TypeError(
            f"FederatedRunner(backend={backend!r}): pass 'threads', 'loky', a backend "
            "or a transport."
        )
    if not isinstance(runner.checkpoint, str | os.PathLike | None):
        raise TypeError(
            f"FederatedRunner(checkpoint={runner.checkpoint!r}): pass a path."
        )
    check_flag("resume", runner.resume)
    check_flag("secure", runner.secure)
    if runner.cohort in ("independent", "poisson") and runner.cohort_size is None:
        raise ValueError(
            f"FederatedRunner(cohort={runner.cohort!r}) draws a part of the clients: "
            "pass cohort_size, or cohort='full' for all of them."
        )
    if runner.secure and isinstance(runner.backend, str) and runner.backend == "loky":
        raise ValueError(
            "FederatedRunner(secure=True, backend='loky'): masked rounds run in one "
            "process; pass backend='threads' or None."
        )
    if runner.resume and runner.checkpoint is None:
        raise ValueError("FederatedRunner(resume=True) needs a checkpoint path.")


def _is_plain(runner: FederatedRunner) -> bool:
    """Whether all settings are the defaults, which suit any number of clients."""
    if runner is DEFAULT_RUNNER:
        return True
    # A subclass may have more fields.
    values, defaults = vars(runner), vars(DEFAULT_RUNNER)
    return values.keys() == defaults.keys() and all(
        value is defaults[name] for name, value in values.items()
    )


def check_masked_sums(runner: FederatedRunner, schedule: Schedule) -> None:
    """Check the sizes of masked sums before anything is debited.

    Raises SecureAggregationError: If a sum has too few clients, or too many. The size
        of a Poisson sample is not known beforehand.
    """
    if schedule.cohort == "poisson":
        return
    least = min_guaranteed_clients(runner, schedule)
    sizes = least if least == schedule.size else f"{least} to {schedule.size}"
    if not SMALLEST_COHORT <= least <= schedule.size <= LARGEST_COHORT:
        raise SecureAggregationError(
            f"FederatedRunner(secure=True) has sums of {sizes} clients; a masked sum "
            f"needs {SMALLEST_COHORT} to {LARGEST_COHORT} clients. Pass another "
            "cohort_size."
        )


def min_guaranteed_clients(runner: FederatedRunner, schedule: Schedule) -> int:
    """Clients of the smallest sum if all answer; a Poisson sample may be empty."""
    if schedule.cohort == "poisson":
        return 0
    if schedule.cohort == "full":
        # Cohorts are summed one by one, and each sum is opened.
        n_sums = ceil(schedule.n_clients / schedule.size)
        return schedule.n_clients - (n_sums - 1) * schedule.size
    return smallest_cohort(runner, schedule.n_clients)


def smallest_cohort(runner: FederatedRunner, n_clients: int) -> int:
    """Clients that every round is guaranteed to have, if all answer."""
    whole = runner.cohort in ("full", "poisson")  # a sample has no sure size
    if whole or not isinstance(runner.cohort_size, Integral):
        return n_clients
    size = min(max(int(runner.cohort_size), 1), n_clients)
    if runner.cohort == "permuted":
        return n_clients - (ceil(n_clients / size) - 1) * size
    return size


@dataclass(frozen=True, repr=False)
class FederatedRunner(FrozenParams):
    """Run federated rounds: cohorts, engine, checkpoint and secure aggregation.

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
        drawn in each round. 'poisson': each client with probability
        ``cohort_size / n_clients``,
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
        Resume from `checkpoint` if the file exists. Nothing is paid twice, and a seeded
        run ends as if it had not been interrupted. Without `resume` an existing file is
        an error. Rows are not compared: rounds that are left use those at hand, and a
        finished run is returned as it was. Never resume from an old copy of the file,
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
            n_rounds = ceil(n_clients / size)  # one pass over all clients
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
        from skfedcal.federation.collecting import plan_releases

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
        from skfedcal.federation.collecting import run_rounds

        return run_rounds(
            self,
            algorithm,
            clients,
            mechanism,
            entropy,
            n_classes=n_classes,
            on_round=on_round,
        )


# Frozen, so that fits may share it.
DEFAULT_RUNNER = FederatedRunner()
