"""One path for every method: plan, pay, collect, release, report.

`collect` is the only function that brings a mechanism, a ledger and a runner together.
Calibrators, evaluation, training and heads call it.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from skfedcal._files import file_lock
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import (
    Arrays,
    FederatedAlgorithm,
    bound_norm,
    first_spec,
    round_shares,
    values_per_round,
)
from skfedcal.exceptions import (
    CheckpointError,
    CheckpointWarning,
    NotEnoughClientsError,
    PrivacyWarning,
)
from skfedcal.federation import checkpoint
from skfedcal.federation.backends import Backend, DrawingBackend, engine_of
from skfedcal.federation.endpoint import PartialSum, Request, answer_words
from skfedcal.federation.history import RoundHistory, RoundRecord
from skfedcal.federation.runner import (
    DEFAULT_RUNNER,
    Draw,
    FederatedRunner,
    Schedule,
    min_guaranteed_clients,
)
from skfedcal.privacy.entropy import Entropy, OSEntropy, Stream
from skfedcal.privacy.events import PrivacyReport
from skfedcal.privacy.mechanisms import ExactSum, SumMechanism
from skfedcal.privacy.models import PrivacyModel, ReleasePlan, SecureAggregation

if TYPE_CHECKING:
    from skfedcal.federation.remote import RemoteDataset
    from skfedcal.privacy.codec import Codec
    from skfedcal.privacy.ledger import PrivacyLedger
    from skfedcal.privacy.randomizers import Randomizer

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
    split: Literal["split", "joint", "each"] = "split",
    assumptions: tuple[str, ...] = (),
    clone_number: int = 0,
    on_start: Callable[[int], None] | None = None,
    on_round: OnRound | None = None,
    run: Run | None = None,
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
    run : Run, default=None
        Progress of a run that an earlier call began with the same algorithm, privacy
        model and ledger, and stopped by `on_round`: its debit is not repeated, and its
        next round follows on the rows that clients have now. None begins a run, or
        resumes that of the runner's checkpoint.

    Returns
    -------
    Collected
        State, history and report.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal import CentralDP, FederatedDataset, make_federation
    >>> from skfedcal.methods.temperature.posterior import TemperaturePosterior
    >>> from skfedcal.federation import collect
    >>> fed = make_federation(n_clients=20, n_samples=500, random_state=0)
    >>> offsets = np.searchsorted(fed.client_ids, np.arange(21))
    >>> clients = FederatedDataset(fed.logits, fed.labels, offsets, range(20), 10)
    >>> found = collect(TemperaturePosterior(), clients, privacy=CentralDP(eps=1.0))
    >>> len(found.history), found.report.eps
    (5, 1.0)
    """
    model = SecureAggregation() if privacy is None else privacy
    runner = DEFAULT_RUNNER if runner is None else runner
    entropy = OSEntropy() if entropy is None else entropy
    _check_arguments(algorithm, clients, model, runner, ledger, entropy, label, split)
    if not isinstance(clients, FederatedDataset):
        clients.check_model(model)
    _refuse_clone(runner, clone_number)
    schedule = runner.schedule(algorithm, clients.n_clients)
    if algorithm.n_rounds != schedule.n_rounds:
        algorithm = replace(algorithm, n_rounds=schedule.n_rounds)  # type: ignore[type-var]
    plan = plan_releases(algorithm, clients, model.unit, schedule)
    mechanism = model.mechanism(
        plan,
        entropy=entropy.child(Stream.NOISE),
        ledger=ledger,
        split=split,
        label=label,
    )
    if model.private:
        _warn_about_use(plan.n_units, ledger, clone_number)
    if on_start is not None:
        on_start(schedule.n_rounds)
    state, history = run_rounds(
        runner,
        algorithm,
        clients,
        mechanism,
        entropy,
        schedule,
        on_round=on_round,
        run=run,
    )
    report = mechanism.report()
    n_protected = _n_protected(report, clients.n_clients, history)
    if assumptions or n_protected != report.n_clients:
        report = replace(
            report,
            assumptions=(*report.assumptions, *assumptions),
            n_clients=n_protected,
        )
    return Collected(state, history, report, clients.n_clients)


def _n_protected(report: PrivacyReport, n_clients: int, history: RoundHistory) -> int:
    """Units of the report without clients that are in no sum; of rows, their share."""
    if not history or not all(record.faults for record in history):
        return report.n_clients
    gone = set.intersection(*(set(record.faults) for record in history))
    return round(report.n_clients * (1 - len(gone) / max(n_clients, 1)))


def collect_nothing(
    clients: FederatedDataset | RemoteDataset,
    *,
    privacy: PrivacyModel,
    runner: FederatedRunner,
    clone_number: int = 0,
) -> Collected:
    """Result of a run that asks no client: nothing is released and nothing is paid.

    Arguments are those of `collect`, and are refused for the same reasons.
    """
    if not isinstance(clients, FederatedDataset):
        clients.check_model(privacy)
    _refuse_clone(runner, clone_number)
    n_units = clients.n_rows if privacy.unit == "example" else clients.n_clients
    _warn_about_use(n_units, None, 0)
    report = PrivacyReport(
        eps=0.0,
        mu=0.0,
        unit=privacy.unit,
        trust="no client was asked",
        secure=True,
        n_clients=n_units,
    )
    return Collected(None, RoundHistory(), report, clients.n_clients)


def _refuse_clone(runner: FederatedRunner, clone_number: int) -> None:
    if clone_number and runner.checkpoint is not None:
        raise ValueError(
            "A runner with a checkpoint cannot be used in a search or a "
            "cross-validation, nor by any other clone of an estimator: every fold "
            "would resume the run of the first one. Leave checkpoint out, or fit an "
            "estimator that is not a clone."
        )


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
    if not isinstance(split, str) or split not in ("split", "joint", "each"):
        raise ValueError(f"split must be 'split', 'joint' or 'each', got {split!r}.")


def plan_releases(
    algorithm: FederatedAlgorithm[Any],
    clients: FederatedDataset | RemoteDataset,
    unit: Literal["client", "example"],
    schedule: Schedule,
) -> ReleasePlan:
    """What a run will release, as far as it is public."""
    n_participations, rate = schedule.n_participations, schedule.sampling_rate
    spec = first_spec(algorithm, clients.n_classes)
    return ReleasePlan(
        n_units=clients.n_rows if unit == "example" else clients.n_clients,
        n_releases=schedule.n_rounds,
        n_participations=n_participations,
        sampling_rate=rate,
        n_values=values_per_round(algorithm, clients.n_classes, spec),
        shares=round_shares(algorithm),
        norm=bound_norm(algorithm, clients.n_classes, spec),
        n_clients=clients.n_clients,
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
    run: Run | None = None,
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
    # Times tell the size of a client, or of a Poisson sample: they are recorded without
    # noise and in simulations only.
    timed = schedule.cohort != "poisson"
    if timed and not isinstance(mechanism, ExactSum):
        report = mechanism.report()
        timed = not (report.eps < inf and report.secure)
    rounds = _Rounds(
        runner,
        algorithm,
        engine,
        mechanism,
        entropy,
        schedule,
        n_classes,
        n_rows,
        timed,
    )
    if runner.checkpoint is None or run is not None:
        return rounds.run(on_round, run)
    try:
        with file_lock(runner.checkpoint):
            return rounds.run(on_round)
    except BlockingIOError as error:
        raise CheckpointError(
            f"{runner.checkpoint} is in use by another process."
        ) from error


@dataclass(slots=True)
class Run:
    """Progress of one run, mirrored on disk if a checkpoint path is given.

    `asked` and `drawn` are for a round that fails: whether clients may have been asked,
    and whether its noise may have been drawn.
    """

    path: Path | None
    digest: str
    run_id: str
    key: int
    state: Any
    records: list[RoundRecord]
    finished: bool = False
    asked: bool = False
    drawn: bool = False

    @classmethod
    def start(cls, runner: FederatedRunner, digest: str, key: int, state: Any) -> Run:
        """Begin a run, or resume the one that the checkpoint holds."""
        path = None if runner.checkpoint is None else Path(runner.checkpoint)
        if path is not None and path.exists():
            if not runner.resume:
                raise CheckpointError(
                    f"{path} exists. Pass FederatedRunner(resume=True) to resume it, "
                    "or delete it to start again."
                )
            saved = checkpoint.load(path, digest)
            restored = checkpoint.restore_state(state, saved.state)
            records = [RoundRecord(**record) for record in saved.records]
            if saved.finished:
                warnings.warn(
                    f"{path} holds a finished run: its result is returned, and the "
                    "clients were not asked. Delete the file to fit again.",
                    CheckpointWarning,
                    stacklevel=2,
                )
            return cls(
                path, digest, saved.run_id, saved.key, restored, records, saved.finished
            )
        run = cls(path, digest, os.urandom(16).hex(), key, state, [])
        run.save()
        return run

    def keep(self, state: Any, record: RoundRecord, finished: bool) -> None:
        """Add a round, on disk too."""
        self.state, self.finished = state, finished
        self.records.append(record)
        self.save()

    def forget(self) -> None:
        """Remove the file of a run that was refused before it began."""
        if self.path is not None and not self.records:
            self.path.unlink(missing_ok=True)

    def save(self) -> None:
        if self.path is None:
            return
        saved = checkpoint.Checkpoint(
            self.run_id,
            self.key,
            len(self.records),
            self.finished,
            checkpoint.state_fields(self.state),
            [
                {name: getattr(r, name) for name in RoundRecord.__dataclass_fields__}
                for r in self.records
            ],
        )
        checkpoint.save(self.path, self.digest, saved)


@dataclass(frozen=True)
class _Rounds:
    """Loop over the rounds of one run: request, sum, release, update, record."""

    runner: FederatedRunner
    algorithm: FederatedAlgorithm[Any]
    engine: Backend
    mechanism: SumMechanism
    entropy: Entropy
    schedule: Schedule
    n_classes: int
    n_rows: int
    timed: bool
    # Of the last round: codec and size of answers, cohorts, and members of a cohort.
    last: dict[str, Any] = field(default_factory=dict)

    def run(
        self, on_round: OnRound | None, run: Run | None = None
    ) -> tuple[Any, RoundHistory]:
        algorithm, schedule = self.algorithm, self.schedule
        state = algorithm.init(self.n_classes)
        self._check_first_round(algorithm.broadcast(state))
        if run is None:
            key = schedule.draw_key(self.entropy)
            run = Run.start(self.runner, self._fingerprint(), key, state)
        if not run.finished and len(run.records) < schedule.n_rounds:
            self._check_sites(run)
        self._pay(run)
        self._note_earlier(run)
        for index in range(len(run.records), schedule.n_rounds):
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
        codec, randomizer = self._encoding(broadcast, 0)
        self._n_bytes(codec, randomizer)
        if self.runner.checkpoint is not None and randomizer is not None:
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
            algorithm=self.algorithm,
            schedule=self.schedule,
            mechanism=self.mechanism.describe(),
            entropy="secure" if self.entropy.secure else repr(self.entropy),
            n_classes=self.n_classes,
            names=self._names(),
        )

    def _names(self) -> list[str]:
        """What tells these clients from others."""
        if isinstance(self.engine, DrawingBackend):
            return self.engine.digests()
        return [repr(name) for name in self.engine.ids()]

    def _check_sites(self, run: Run) -> None:
        """Ask sites far away whether they would answer, before anything is paid."""
        check = getattr(self.engine, "check_sites", None)
        if check is None:
            return
        broadcast = self.algorithm.broadcast(run.state)
        index = len(run.records)
        request = self._request(broadcast, index, run.run_id)
        request = replace(request, claim=self.mechanism.planned_event())
        try:
            check(request, self.schedule.n_rounds - index, self.runner.min_clients)
        except Exception:
            run.forget()
            raise

    def _note_earlier(self, run: Run) -> None:
        """Note what clients were asked before a run was resumed, for its evidence."""
        note = getattr(self.engine, "note", None)
        if note is not None and run.records:
            first = self.algorithm.broadcast(self.algorithm.init(self.n_classes))
            note(self._request(first, 0, run.run_id))

    def _pay(self, run: Run) -> None:
        """Debit the ledger for all rounds, before any client is asked."""
        try:
            self.mechanism.open(
                run.run_id,
                rounds_done=len(run.records),
                n_participations=self.schedule.n_participations,
                sampling_rate=self.schedule.sampling_rate,
                n_per_round=min_guaranteed_clients(self.runner, self.schedule),
            )
        except Exception:
            run.forget()
            raise

    def _encoding(
        self, broadcast: Arrays, index: int
    ) -> tuple[Codec, Randomizer | None]:
        """How clients clip and encode their answers, and what they do to these."""
        mechanism, spec = self.mechanism, self.algorithm.spec(broadcast)
        if isinstance(mechanism, ExactSum):  # that of the round before, as a rule
            before = self.last.get("codec")
            if before is None or before[0] != spec:
                self.last["codec"] = before = spec, mechanism.codec(spec)
            return before[1], None
        codec = mechanism.codec(spec, index)
        return codec, mechanism.randomizer(codec, index)

    def _request(self, broadcast: Arrays, index: int, run_id: str = "") -> Request:
        """What clients are asked."""
        mechanism = self.mechanism
        codec, randomizer = self._encoding(broadcast, index)
        # Only simulated clients that draw noise need words of a seed.
        source = None if randomizer is None else mechanism.site_entropy
        return Request(
            self.algorithm,
            broadcast,
            codec,
            mechanism.unit,
            randomizer,
            None if source is None else source.child(index),
            mechanism.n_min,
            index,
            self.schedule.n_clients,
            self.n_rows,
            claim=mechanism.event,
            run=run_id,
            max_colluders=mechanism.max_colluders,
            simulated=mechanism.seeded,
            n_rounds=self.schedule.n_rounds,
        )

    def _n_bytes(self, codec: Codec, randomizer: Randomizer | None) -> int:
        """Size of an answer; raises if no word can hold the sums."""
        before = self.last.get("words")
        if before is not None and before[0] is codec:
            return int(before[1])
        n_bytes = answer_words(
            codec,
            randomizer,
            self.mechanism.unit,
            n_clients=self.schedule.n_clients,
            masked=self.runner.secure,
        ).n_bytes
        if randomizer is None:
            self.last["words"] = codec, n_bytes
        return n_bytes

    def _round(self, index: int, run: Run) -> tuple[Any, RoundRecord]:
        """Ask, sum, release and update once."""
        started = time.perf_counter()
        algorithm, mechanism, schedule = self.algorithm, self.mechanism, self.schedule
        request = self._request(algorithm.broadcast(run.state), index, run.run_id)
        bytes_up = self._n_bytes(request.codec, request.randomizer)
        bytes_down = request.n_bytes
        cohorts = self._draws(index, run.key)
        run.asked = True
        answer = self._ask(request, cohorts)
        client_seconds = answer.client_seconds if self.timed else nan
        self._check_answers(answer.n_clients, index)
        n_units = answer.n_units
        if mechanism.unit == "client":
            n_units = schedule.divisor or answer.n_clients
        run.drawn = True
        total = mechanism.release(answer.total, request.codec, index, answer.n_clients)
        state = algorithm.update(run.state, total, max(n_units, 1))
        record = RoundRecord(
            index,
            schedule.size if schedule.cohort == "poisson" else answer.n_clients,
            len(cohorts),
            bytes_up,
            bytes_down,
            time.perf_counter() - started if self.timed else nan,
            client_seconds,
            dict(total),
            dict(answer.faults),
        )
        return state, record

    def _ask(self, request: Request, cohorts: list[Draw]) -> PartialSum:
        """Sum over the cohorts of a round; each has enough clients, or none counts."""
        answer = None
        for cohort in cohorts:
            part = self._total(request, cohort)
            request.check_clients(part.n_clients)
            answer = part if answer is None else answer + part
        assert answer is not None  # a schedule has a cohort in every round
        return answer

    def _total(self, request: Request, cohort: Draw) -> PartialSum:
        """Sum over one cohort; workers that hold shards find its members themselves."""
        # Not isinstance: that of a protocol takes longer than a small sum.
        drawn = getattr(self.engine, "total_drawn", None)
        if drawn is not None:
            part: PartialSum = drawn(request, cohort)
            return part
        before = self.last.get("positions")
        if before is None or before[0] is not cohort:
            positions = cohort.positions(0, self.schedule.n_clients)
            positions.flags.writeable = False  # an engine must not change later rounds
            self.last["positions"] = before = cohort, positions
        return self.engine.total(request, before[1])

    def _draws(self, index: int, key: int) -> list[Draw]:
        """Cohorts of a round; the same ones in all rounds where everyone is asked."""
        draws: list[Draw] | None = self.last.get("draws")
        if draws is None or self.schedule.cohort != "full":
            draws = self.schedule.draws(index, self.entropy, key)
            self.last["draws"] = draws
        return draws

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
