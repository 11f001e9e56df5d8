"""Progress of one run: its state and history, in memory and on disk."""

from __future__ import annotations

import secrets
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from skfedcal.algorithms._base import Array
from skfedcal.exceptions import CheckpointError, CheckpointWarning
from skfedcal.federation import _checkpoint


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """What one round cost and what the server saw in it.

    Attributes
    ----------
    round : int
        Number of the round, from 0.
    n_clients, n_cohorts : int
        Clients that answered, and cohorts they were asked in. With Poisson sampling
        the expected number of clients: the true one tells who may have taken part.
    bytes_up, bytes_down : int
        Size of one client's answer and of what it was sent.
    seconds : float
        Time of the round; NaN in a private run that is no simulation, and where it
        could tell the size of a Poisson sample.
    client_seconds : float
        Mean time that a client computed; NaN then too, and where it is not measured,
        as on an engine of real sites.
    total : dict of str to ndarray
        Released sums.
    faults : dict of str to str
        Why clients were left out, by name.

    Examples
    --------
    >>> from skfedcal import FedTempCalibrator, make_federation
    >>> fed = make_federation(n_clients=50, n_samples=1000, random_state=0)
    >>> record = FedTempCalibrator(eps=1.0, random_state=0).fit(fed.clients).history_[0]
    >>> record.round, record.n_clients, record.bytes_up, sorted(record.total)
    (0, 50, 16, ['slopes'])
    """

    round: int
    n_clients: int
    n_cohorts: int
    bytes_up: int
    bytes_down: int
    seconds: float
    client_seconds: float
    total: dict[str, Array] = field(repr=False)
    faults: dict[str, str] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        """Tell whether all is the same; times that were not taken are."""
        if not isinstance(other, RoundRecord):
            return NotImplemented
        mine, its = self._numbers(), other._numbers()
        return (
            self.faults == other.faults
            and mine.keys() == its.keys()
            and all(np.array_equal(mine[key], its[key], equal_nan=True) for key in mine)
        )

    # Of a record, with its arrays, no key can be made.
    __hash__ = None  # type: ignore[assignment]

    def _numbers(self) -> dict[str, Any]:
        plain = ("round", "n_clients", "n_cohorts", "bytes_up", "bytes_down", "seconds",
                 "client_seconds")  # fmt: skip
        blocks = {f"total {name}": values for name, values in self.total.items()}
        return {name: getattr(self, name) for name in plain} | blocks


@dataclass(slots=True)
class Run:
    """Progress of one run, mirrored on disk if a checkpoint path is given."""

    path: Path | None
    digest: str
    run_id: str
    key: int
    state: Any
    records: list[RoundRecord]
    finished: bool = False

    @classmethod
    def start(
        cls, checkpoint: Any, resume: bool, digest: str, key: int, state: Any
    ) -> Run:
        path = None if checkpoint is None else Path(checkpoint)
        if path is not None and path.exists():
            if not resume:
                raise CheckpointError(
                    f"{path} exists. Pass FederatedRunner(resume=True) to go on with "
                    "it, or delete it to start anew."
                )
            saved = _checkpoint.load(path, digest)
            restored = _checkpoint.restore_state(state, saved.state)
            records = [RoundRecord(**record) for record in saved.records]
            if saved.finished:
                warnings.warn(
                    f"{path} holds a finished run: its result is returned, and the "
                    "clients were not asked. Delete the file to fit anew.",
                    CheckpointWarning,
                    stacklevel=2,
                )
            return cls(
                path, digest, saved.run_id, saved.key, restored, records, saved.finished
            )
        run = cls(path, digest, secrets.token_hex(16), key, state, [])
        run.save()
        return run

    @property
    def n_done(self) -> int:
        return len(self.records)

    def keep(self, state: Any, record: RoundRecord, finished: bool) -> None:
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
        saved = _checkpoint.Checkpoint(
            self.run_id,
            self.key,
            self.n_done,
            self.finished,
            _checkpoint.state_fields(self.state),
            [
                {name: getattr(r, name) for name in RoundRecord.__dataclass_fields__}
                for r in self.records
            ],
        )
        _checkpoint.save(self.path, self.digest, saved)
