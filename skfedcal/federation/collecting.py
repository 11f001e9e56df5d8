"""One path for every method: plan, pay, collect, release, report.

`collect` is the only function that brings a mechanism, a ledger and a runner together.
Calibrators, evaluation, training and heads call it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import nan
from typing import TYPE_CHECKING, Any, Literal

from skfedcal._files import file_lock
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import (
    Arrays,
    FederatedAlgorithm,
    bound_norm,
    round_shares,
    values_per_round,
)
from skfedcal.exceptions import CheckpointError, NotEnoughClientsError, PrivacyWarning
from skfedcal.federation import checkpoint
from skfedcal.federation.backends import Backend, engine_of
from skfedcal.federation.endpoint import PartialSum, Request
from skfedcal.federation.run import RoundHistory, RoundRecord, Run
from skfedcal.federation.runner import FederatedRunner, Schedule, min_guaranteed_clients
from skfedcal.federation.words import request_words
from skfedcal.privacy.codec import Codec
from skfedcal.privacy.entropy import Entropy, OSEntropy, Stream
from skfedcal.privacy.mechanisms import SumMechanism
from skfedcal.privacy.models import PrivacyModel, ReleasePlan, SecureAggregation

if TYPE_CHECKING:
    from skfedcal.federation.remote import RemoteDataset
    from skfedcal.privacy.events import PrivacyReport
    from skfedcal.privacy.ledger import PrivacyLedger

OnRound = Callable[[Any, RoundRecord], bool]


@dataclass(frozen=True, slots=True)
class Collected:
    """Result of `collect`.

    Attributes
    ----------
    state : object
        State of the server after the last round.
    history : RoundHistory
        One record for each round, with the sums that were released.
    report : PrivacyReport
        The guarantee, and the debits that paid for it.
    n_clients : int
        Clients that could be asked.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal import FederatedDataset
    >>> from skfedcal.methods.temperature.rounds import TemperatureGrid
    >>> from skfedcal.federation import collect
    >>> rows, labels = np.eye(6, 2), np.zeros(6, dtype=int)
    >>> clients = FederatedDataset(rows, labels, np.arange(7), range(6), n_classes=2)
    >>> found = collect(TemperatureGrid(), clients)
    >>> found.n_clients, found.report.private
    (6, False)
    """

    state: Any
    history: RoundHistory
    report: PrivacyReport
    n_clients: int


def collect(
    algorithm: FederatedAlgorithm[Any],
    clients: FederatedDataset | RemoteDataset,
    *,
    privacy: PrivacyModel | None = None,
    runner: FederatedRunner | None = None,
    ledger: PrivacyLedger | None = None,
    entropy: Entropy | None = None,
    label: str = "collect",
    split: Literal["split", "joint"] = "split",
    assumptions: tuple[str, ...] = (),
    clone_number: int = 0,
    on_start: Callable[[int], None] | None = None,
    on_round: OnRound | None = None,
) -> Collected:
    """Run an algorithm on clients: plan, pay, collect, release, report.

    1. Plan. The runner fixes rounds and cohorts; the privacy model calibrates the noise
       of all rounds and builds the mechanism.
    2. Pay. What cannot be encoded or released is refused; then the ledger is debited
       for all rounds, before any client is asked.
    3. Collect. In each round clients compute, clip and encode their own rows, and the
       engine adds up the integers.
    4. Release. The mechanism adds the noise, unless clients did, and the server updates
       its state from the released sum and nothing else.
    5. Report. The guarantee and its assumptions.

    Parameters
    ----------
    algorithm : FederatedAlgorithm
        What clients compute and what the server does with the sum.
    clients : FederatedDataset or RemoteDataset
        Clients in this process, or sites that keep their rows.
    privacy : PrivacyModel, default=None
        None is `SecureAggregation`: exact sums without noise.
    runner : FederatedRunner, default=None
        Rounds, cohorts, engine and checkpoint.
    ledger : PrivacyLedger, default=None
        Account that is debited; None keeps an account for this run only.
    entropy : Entropy, default=None
        Source of noise and cohorts; None is the operating system.
    label : str, default='collect'
        Name of the debit in the ledger.
    split : {'split', 'joint'}, default='split'
        Whether noise is divided over blocks so that its total variance is least, or is
        the same for every number.
    assumptions : tuple of str, default=()
        Further assumptions of the guarantee, for the report.
    clone_number : int, default=0
        Number of the `sklearn.base.clone` of the estimator; 0 if it is not a clone.
        Searches and cross-validation fit one for each candidate and fold: clones are
        refused a checkpoint, which all would share, and the second one is warned that
        no ledger adds up what they spend.
    on_start : callable, default=None
        Called with the number of rounds before anything is paid.
    on_round : callable, default=None
        Called with state and record after each round; True ends the run, and nothing
        is refunded.

    Returns
    -------
    Collected
        State, history and report.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal import CentralDP, FederatedDataset, make_federation
    >>> from skfedcal.methods.temperature.rounds import TemperaturePosterior
    >>> from skfedcal.federation import collect
    >>> fed = make_federation(n_clients=20, n_samples=500, random_state=0)
    >>> offsets = np.searchsorted(fed.client_ids, np.arange(21))
    >>> clients = FederatedDataset(fed.logits, fed.labels, offsets, range(20), 10)
    >>> found = collect(TemperaturePosterior(), clients, privacy=CentralDP(eps=1.0))
    >>> len(found.history), found.report.eps
    (5, 1.0)
    """
    model = SecureAggregation() if privacy is None else privacy
    runner = FederatedRunner() if runner is None else runner
    entropy = OSEntropy() if entropy is None else entropy
    _check_arguments(algorithm, clients, model, runner, ledger, entropy, label, split)
    if not isinstance(clients, FederatedDataset):
        clients.check_model(model)
    if clone_number and runner.checkpoint is not None:
        raise ValueError(
            "A runner with a checkpoint cannot be used in a search or a "
            "cross-validation, nor by any other clone of an estimator: every fold "
            "would resume the run of the first one. Leave checkpoint out, or fit an "
            "estimator that is not a clone."
        )
    schedule = runner.schedule(algorithm, len(clients))
    if algorithm.n_rounds != schedule.n_rounds:
        algorithm = replace(algorithm, n_rounds=schedule.n_rounds)  # type: ignore[type-var]
    plan = plan_releases(algorithm, clients, model.unit, schedule)
    if model.private:
        _warn_about_use(plan.n_units, ledger, clone_number)
    mechanism = model.mechanism(
        plan,
        entropy=entropy.child(Stream.NOISE),
        ledger=ledger,
        split=split,
        label=label,
    )
    if on_start is not None:
        on_start(schedule.n_rounds)
    state, history = run_rounds(
        runner, algorithm, clients, mechanism, entropy, schedule, on_round=on_round
    )
    report = mechanism.report()
    report = replace(report, assumptions=(*report.assumptions, *assumptions))
    return Collected(state, history, report, len(clients))


def _check_arguments(
    algorithm: Any,
    clients: Any,
    model: Any,
    runner: Any,
    ledger: Any,
    entropy: Any,
    label: Any,
    split: Any,
) -> None:
    """Check the types of all arguments before anything else."""
    for name, value, member, wanted in (
        ("algorithm", algorithm, "query", "a FederatedAlgorithm"),
        ("clients", clients, "n_classes", "a FederatedDataset or remote clients"),
        ("privacy", model, "mechanism", "a privacy model such as CentralDP(eps=1)"),
        ("entropy", entropy, "child", "an entropy source, or None"),
    ):
        if isinstance(value, type) or not hasattr(value, member):
            raise TypeError(f"{name} is of type {type(value).__name__}; pass {wanted}.")
    if not isinstance(runner, FederatedRunner):
        raise TypeError(
            f"runner is of type {type(runner).__name__}; pass a FederatedRunner."
        )
    if ledger is not None and not hasattr(ledger, "debit"):
        raise TypeError(
            f"ledger is of type {type(ledger).__name__}; pass a PrivacyLedger, or None."
        )
    if not isinstance(label, str):
        raise TypeError(f"label must be a string, got {label!r}.")
    if not isinstance(split, str) or split not in ("split", "joint"):
        raise ValueError(f"split must be 'split' or 'joint', got {split!r}.")
    model.validate()


def plan_releases(
    algorithm: FederatedAlgorithm[Any],
    clients: FederatedDataset | RemoteDataset,
    unit: Literal["client", "example"],
    schedule: Schedule,
) -> ReleasePlan:
    """What a run will release, as far as it is public."""
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


def run_rounds(
    runner: FederatedRunner,
    algorithm: FederatedAlgorithm[Any],
    clients: FederatedDataset | RemoteDataset | Backend,
    mechanism: SumMechanism,
    entropy: Entropy,
    schedule: Schedule | None = None,
    *,
    n_classes: int | None = None,
    on_round: OnRound | None = None,
) -> tuple[Any, RoundHistory]:
    """Pay, then collect and release round by round; return state and history."""
    engine = engine_of(runner, clients)
    if n_classes is None:
        n_classes = getattr(clients, "n_classes", None)
        if n_classes is None:
            raise ValueError(
                "Pass n_classes: an engine does not know the number of classes."
            )
    if schedule is None:
        schedule = runner.schedule(algorithm, len(engine.ids()))
    n_rows = getattr(clients, "n_rows", 0) if mechanism.unit == "example" else 0
    rounds = _Rounds(
        runner, algorithm, engine, mechanism, entropy, schedule, n_classes, n_rows
    )
    if runner.checkpoint is None:
        return rounds.run(on_round)
    try:
        with file_lock(runner.checkpoint):
            return rounds.run(on_round)
    except BlockingIOError as error:
        raise CheckpointError(
            f"{runner.checkpoint} is in use by another process."
        ) from error


@dataclass(frozen=True)
class _Rounds:
    """Rounds of one run, all of whose parts are known."""

    runner: FederatedRunner
    algorithm: FederatedAlgorithm[Any]
    engine: Backend
    mechanism: SumMechanism
    entropy: Entropy
    schedule: Schedule
    n_classes: int
    n_rows: int

    def run(self, on_round: OnRound | None) -> tuple[Any, RoundHistory]:
        algorithm, schedule, entropy = self.algorithm, self.schedule, self.entropy
        state = algorithm.init(self.n_classes)
        self._check_first_round(algorithm.broadcast(state))
        key = int.from_bytes(entropy.child(Stream.COHORT_KEY).uint64(2).tobytes())
        path, resume = self.runner.checkpoint, self.runner.resume
        run = Run.start(path, resume, self._fingerprint(), key, state)
        self._pay(run)
        for index in range(run.n_done, schedule.n_rounds):
            if run.finished:
                break
            state, record = self._round(index, run)
            # Saved before it is shown: a release that was seen is never drawn again.
            run.keep(state, record, algorithm.done(state))
            if on_round is not None and on_round(state, record):
                break
        return run.state, RoundHistory(run.records)

    def _check_first_round(self, broadcast: Arrays) -> None:
        """Refuse what cannot be released, or summed, before it is paid."""
        codec = self.mechanism.codec(self.algorithm.spec(broadcast))
        request = self._request(broadcast, codec, 0)
        request_words(request, masked=self.runner.secure)
        if self.runner.checkpoint is not None and request.randomizer is not None:
            # Clients that are asked again draw again: the server has then seen two
            # answers, and one is paid.
            raise ValueError(
                "A checkpoint cannot be used where clients draw the noise "
                "(mode='faithful'): clients would answer a resumed round twice. "
                "Leave checkpoint out."
            )

    def _fingerprint(self) -> str:
        """Digest of what makes two runs the same run; only a checkpoint needs it."""
        if self.runner.checkpoint is None:
            return ""
        return checkpoint.fingerprint(
            algorithm=repr(self.algorithm),
            schedule=repr(self.schedule),
            mechanism=self.mechanism.describe(),
            entropy="secure" if self.entropy.secure else repr(self.entropy),
            n_classes=self.n_classes,
            names=[repr(name) for name in self.engine.ids()],
        )

    def _pay(self, run: Run) -> None:
        """Debit the ledger for all rounds, before any client is asked."""
        try:
            self.mechanism.open(
                run.run_id,
                rounds_done=run.n_done,
                n_participations=self.schedule.n_participations,
                sampling_rate=self.schedule.sampling_rate,
                n_per_round=min_guaranteed_clients(self.runner, self.schedule),
            )
        except Exception:
            run.forget()
            raise

    def _request(
        self, broadcast: Arrays, codec: Codec, index: int, run_id: str = ""
    ) -> Request:
        mechanism, site_entropy = self.mechanism, self.mechanism.site_entropy
        return Request(
            self.algorithm,
            broadcast,
            codec,
            mechanism.unit,
            mechanism.randomizer(codec, index),
            None if site_entropy is None else site_entropy.child(index),
            mechanism.n_min,
            round_index=index,
            n_clients=self.schedule.n_clients,
            n_units=self.n_rows,
            claim=mechanism.event,
            max_colluders=mechanism.max_colluders,
            run=run_id,
            simulated=self._promise.seeded,
        )

    def _round(self, index: int, run: Run) -> tuple[Any, RoundRecord]:
        """Ask, sum, release and update once."""
        started = time.perf_counter()
        algorithm, mechanism, schedule = self.algorithm, self.mechanism, self.schedule
        broadcast = algorithm.broadcast(run.state)
        codec = mechanism.codec(algorithm.spec(broadcast), index)
        request = self._request(broadcast, codec, index, run.run_id)
        source = self.entropy.child(Stream.COHORTS)
        cohorts = schedule.cohorts(index, source, run.key)
        answer = PartialSum(codec.zeros(), 0, 0)
        for cohort in cohorts:
            part = self.engine.total(request, cohort)
            request.check_clients(part.n_clients)
            answer = answer + part
        self._check_answers(answer.n_clients, index)
        total = mechanism.release(answer.total, codec, index, answer.n_clients)
        n_units = schedule.divisor or max(answer.n_clients, 1)
        if mechanism.unit == "example":
            n_units = max(answer.n_units, 1)
        secret = schedule.cohort == "poisson"
        # Time tells the size of a secret sample, and of a client.
        release = self._promise.private and self._promise.secure
        timed = not secret and not release
        record = RoundRecord(
            index,
            schedule.size if secret else answer.n_clients,
            len(cohorts),
            request_words(request, masked=self.runner.secure).n_bytes,
            request.n_bytes,
            time.perf_counter() - started if timed else nan,
            answer.client_seconds if timed else nan,
            dict(total),
            dict(answer.faults),
        )
        return algorithm.update(run.state, total, n_units), record

    @cached_property
    def _promise(self) -> PrivacyReport:
        """The guarantee, and whether it is simulated."""
        return self.mechanism.report()

    def _check_answers(self, n_clients: int, index: int) -> None:
        least = self.runner.min_clients
        if n_clients < least and self.runner.cohort != "poisson":
            raise NotEnoughClientsError(
                f"{n_clients} clients answered in round {index}, min_clients is "
                f"{least}. Nothing of this round was released."
            )


def _warn_about_use(
    n_units: int, ledger: PrivacyLedger | None, clone_number: int
) -> None:
    if n_units < 2:
        warnings.warn(
            "eps is set but there is only one client: all of its data are one unit "
            "of privacy, so the result would be only noise. Pass client_ids or a "
            "list of clients.",
            PrivacyWarning,
            stacklevel=5,
        )
    if ledger is None and clone_number > 1:
        warnings.warn(
            "Each candidate and fold of a search on private data spends eps again, "
            f"and no ledger adds it up (this is clone number {clone_number} of an "
            "estimator). Pass ledger=PrivacyLedger(...) to count it, or search on "
            "public data.",
            PrivacyWarning,
            stacklevel=5,
        )
