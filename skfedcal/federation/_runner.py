"""Drive the rounds of a federated algorithm on any engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, nan
from typing import TYPE_CHECKING, Any, Literal

from skfedcal._files import held
from skfedcal._params import FrozenParams
from skfedcal.algorithms._base import (
    Arrays,
    FederatedAlgorithm,
    bound_norm,
    round_shares,
    values_per_round,
)
from skfedcal.data._dataset import FederatedDataset
from skfedcal.exceptions import CheckpointError, NotEnoughClientsError
from skfedcal.federation import _checkpoint
from skfedcal.federation._backends import Backend
from skfedcal.federation._cohorts import Cohort, Positions, Schedule
from skfedcal.federation._endpoint import PartialSum, Request
from skfedcal.federation._engines import engine_of
from skfedcal.federation._history import RoundHistory
from skfedcal.federation._run import RoundRecord, Run
from skfedcal.federation._settings import (
    check_masked_sums,
    check_settings,
    sure_answers,
)
from skfedcal.federation._words import request_words
from skfedcal.privacy._codec import Codec
from skfedcal.privacy._entropy import Entropy, Stream
from skfedcal.privacy._mechanisms import SumMechanism
from skfedcal.privacy._models import ReleasePlan

if TYPE_CHECKING:
    from skfedcal.federation._messages import Transport
    from skfedcal.federation._remote import RemoteDataset


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
        schedule = self.schedule(algorithm, len(clients))
        return ReleasePlan(
            n_units=clients.n_rows if unit == "example" else len(clients),
            n_releases=schedule.n_rounds,
            n_participations=schedule.n_participations,
            sampling_rate=schedule.sampling_rate,
            n_values=values_per_round(algorithm, clients.n_classes),
            shares=round_shares(algorithm),
            norm=bound_norm(algorithm, clients.n_classes),
            n_clients=len(clients),
        )

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
        if self.checkpoint is None:
            return self._run(
                algorithm, clients, mechanism, entropy, n_classes, on_round
            )
        try:
            with held(self.checkpoint):
                return self._run(
                    algorithm, clients, mechanism, entropy, n_classes, on_round
                )
        except BlockingIOError as error:
            raise CheckpointError(
                f"{self.checkpoint} is in use by another process."
            ) from error

    def _run(
        self,
        algorithm: FederatedAlgorithm[Any],
        clients: FederatedDataset | RemoteDataset | Backend,
        mechanism: SumMechanism,
        entropy: Entropy,
        n_classes: int | None,
        on_round: Callable[[Any, RoundRecord], bool] | None,
    ) -> tuple[Any, RoundHistory]:
        backend = engine_of(self, clients)
        if n_classes is None:
            n_classes = getattr(clients, "n_classes", None)
            if n_classes is None:
                raise ValueError("Pass n_classes: an engine does not know it.")
        schedule = self.schedule(algorithm, len(backend.ids()))
        state = algorithm.init(n_classes)
        # What cannot be released, or summed, is refused before it is paid.
        codec = mechanism.codec(algorithm.spec(algorithm.broadcast(state)))
        n_rows = getattr(clients, "n_rows", 0) if mechanism.unit == "example" else 0
        asking = partial(self._request, algorithm, mechanism, schedule, n_rows)
        request_words(asking(algorithm.broadcast(state), codec, 0), masked=self.secure)
        if self.checkpoint is not None and mechanism.randomizer(codec, 0) is not None:
            # Clients that are asked again draw again: the server has then seen two
            # answers, and one is paid.
            raise ValueError(
                "A checkpoint cannot be used where clients draw the noise "
                "(mode='faithful'): a round that is taken up again would be answered "
                "twice. Leave checkpoint out."
            )
        digest = ""
        if self.checkpoint is not None:
            digest = _checkpoint.fingerprint(
                algorithm=repr(algorithm),
                schedule=repr(schedule),
                mechanism=mechanism.describe(),
                entropy="secure" if entropy.secure else repr(entropy),
                n_classes=n_classes,
                names=[repr(name) for name in backend.ids()],
            )
        key = int.from_bytes(entropy.child(Stream.COHORT_KEY).uint64(2).tobytes())
        run = Run.start(self.checkpoint, self.resume, digest, key, state)
        try:
            mechanism.open(
                run.run_id,
                rounds_done=run.n_done,
                n_participations=schedule.n_participations,
                sampling_rate=schedule.sampling_rate,
                n_per_round=sure_answers(self, schedule),
            )
        except Exception:
            run.forget()
            raise
        for index in range(run.n_done, schedule.n_rounds):
            if run.finished:
                break
            cohorts = schedule.cohorts(index, entropy.child(Stream.COHORTS), run.key)
            state, record = self._round(
                index, run, algorithm, backend, mechanism, schedule, cohorts, asking
            )
            # Kept before anybody is shown it: a release that was seen is never redrawn.
            run.keep(state, record, algorithm.done(state))
            if on_round is not None and on_round(state, record):
                break
        return run.state, RoundHistory(run.records)

    def _request(
        self,
        algorithm: FederatedAlgorithm[Any],
        mechanism: SumMechanism,
        schedule: Schedule,
        n_rows: int,
        broadcast: Arrays,
        codec: Codec,
        index: int,
    ) -> Request:
        return Request(
            algorithm,
            broadcast,
            codec,
            mechanism.unit,
            mechanism.randomizer(codec, index),
            _child(mechanism.site_entropy, index),
            mechanism.n_min,
            round_index=index,
            n_clients=schedule.n_clients,
            n_units=n_rows,
            claim=mechanism.event,
            max_colluders=mechanism.max_colluders,
            simulated=mechanism.report().seeded,
        )

    def _round(
        self,
        index: int,
        run: Run,
        algorithm: FederatedAlgorithm[Any],
        backend: Backend,
        mechanism: SumMechanism,
        schedule: Schedule,
        cohorts: list[Positions],
        asking: Callable[[Arrays, Codec, int], Request],
    ) -> tuple[Any, RoundRecord]:
        """Ask, sum, release and update once."""
        started = time.perf_counter()
        state = run.state
        broadcast = algorithm.broadcast(state)
        codec = mechanism.codec(algorithm.spec(broadcast), index)
        request = replace(asking(broadcast, codec, index), run=run.run_id)
        answer = PartialSum(codec.zeros(), 0, 0)
        for cohort in cohorts:
            part = backend.total(request, cohort)
            request.check_clients(part.n_clients)
            answer = answer + part
        self._check_answers(answer.n_clients, index)
        total = mechanism.release(answer.total, codec, index, answer.n_clients)
        n_units = schedule.divisor or max(answer.n_clients, 1)
        if mechanism.unit == "example":
            n_units = max(answer.n_units, 1)
        secret = schedule.cohort == "poisson"
        report = mechanism.report()
        # Time tells the size of a secret sample, and of a client.
        timed = not secret and not (report.private and report.secure)
        record = RoundRecord(
            index,
            schedule.size if secret else answer.n_clients,
            len(cohorts),
            request_words(request, masked=self.secure).n_bytes,
            request.n_bytes,
            time.perf_counter() - started if timed else nan,
            answer.client_seconds if timed else nan,
            dict(total),
            dict(answer.faults),
        )
        return algorithm.update(state, total, n_units), record

    def _check_answers(self, n_clients: int, index: int) -> None:
        if n_clients < self.min_clients and self.cohort != "poisson":
            raise NotEnoughClientsError(
                f"{n_clients} clients answered in round {index}, min_clients is "
                f"{self.min_clients}. Nothing of this round was released."
            )


def _child(entropy: Entropy | None, index: int) -> Entropy | None:
    return None if entropy is None else entropy.child(index)
