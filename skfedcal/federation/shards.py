"""Clients in shards: more rows than one machine holds, summed where they are.

A shard is a file with the rows of some clients. Workers read shards, answer requests
for the clients in them, and return integer sums: nothing per client passes through the
driver. Sums are exact, so that shards may be added in any order, and a lost task may be
run again: the result has the bits of one process. Workers run `shard_rows`.
"""

from __future__ import annotations

import glob
import os
import secrets
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import pairwise
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator

from skfedcal._params import check_choice, check_integer
from skfedcal.clients.arrays import INPUT_TYPES, read_array
from skfedcal.clients.file_formats import ENDINGS, check_roles
from skfedcal.clients.forms import ClassMap
from skfedcal.federation.backends import (
    Positions,
    ShardExecutor,
    as_executor,
    count_workers,
)
from skfedcal.federation.endpoint import PartialSum, Request
from skfedcal.federation.reading import Part
from skfedcal.federation.remote import RemoteClients
from skfedcal.federation.shard_rows import (
    CACHE,
    Array,
    Facts,
    Loader,
    Shard,
    ShardFiles,
    ShardReading,
    Split,
    find_shared_client,
    inspect_shards,
    rows_of_shards,
    shard_files,
    sum_shards,
)
from skfedcal.privacy.entropy import KeyedEntropy, OSEntropy

if TYPE_CHECKING:
    from skfedcal._typing import ArrayLike
    from skfedcal.federation.runner import Draw, FederatedRunner

# Tasks of a round for each worker: enough that a slow one does not hold up the others.
_TASKS_PER_WORKER = 4
# Ids that one worker compares, to find a client that is in two shards.
_IDS_AT_ONCE = 5_000_000


class ShardedClients(RemoteClients):
    """Clients in shards, for more rows than one machine holds.

    `fit` of calibrators, functions of evaluation, `compare` and ``skfedcal fit`` take
    it in place of clients. Workers sum the clients of their shards and return the sums;
    cohorts are drawn on the workers. The result has the bits of a fit in one process to
    the same clients, in the order of shards and, within a shard, of their sorted ids.

    All rows of a client must be in one shard, because each shard bounds what a client
    contributes: a client in two shards is refused.

    Parameters
    ----------
    shards : str, path-like or sequence
        A folder of files, a pattern such as ``"data/part-*.npz"``, or a list of paths,
        which all workers can read. Files are as in `load_federation`: npz with arrays
        ``logits`` (or ``proba``), ``labels`` and ``client``, Parquet or CSV with such
        columns. A file without ``client`` is one client. With `loader`, a list of
        anything.
    executor : int, dask Client, 'ray' or ShardExecutor, default=None
        Who does the work: None is this process, a number is that of processes of this
        machine, 'ray' a running (or local) ray cluster, and anything else has a method
        ``map(function, tasks)``, such as the executors of `concurrent.futures`.
    loader : callable, default=None
        ``loader(shard)`` returns scores, labels and the client of each row (None: one
        client). Called on workers.
    columns : dict, default=None
        Other names of arrays or columns, as in `load_federation`.
    split : {'auto', 'val', 'test'}, default='test'
        Rows of a file that are used: those of ``val_*``, the others, or ('auto') those
        of ``val_*`` if there are any.
    cache_bytes : int, default=1 GiB
        Rows that one worker process keeps in memory between rounds.

    See Also
    --------
    RemoteClients : Sites that do not trust whoever runs the fit with their rows.

    Notes
    -----
    Whoever runs the cluster holds all rows: privacy protects clients against those who
    see the result. The secret key of a Poisson sample, and of noise that clients draw,
    is sent to the workers and never written.

    Examples
    --------
    >>> import os, tempfile
    >>> from skfedcal import FedTempCalibrator, make_federation
    >>> from skfedcal.clients import save_federation
    >>> from skfedcal.federation import ShardedClients
    >>> fed = make_federation(n_clients=40, n_samples=2000, random_state=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for i in range(4):
    ...         rows = fed.client_ids // 10 == i
    ...         save_federation(
    ...             os.path.join(folder, f"part-{i}.npz"), fed.logits[rows],
    ...             fed.labels[rows], client_ids=fed.client_ids[rows])
    ...     shards = ShardedClients(folder)
    ...     cal = FedTempCalibrator().fit(shards)
    >>> here = FedTempCalibrator().fit(fed.clients)
    >>> len(shards), cal.temperature_ == here.temperature_
    (40, True)
    """

    keeps_rows = False

    def __init__(
        self,
        shards: str | os.PathLike[str] | Sequence[object],
        *,
        executor: int | str | ShardExecutor | None = None,
        loader: Callable[[Any], tuple[ArrayLike, ArrayLike, ArrayLike | None]]
        | None = None,
        columns: Mapping[str, str] | None = None,
        split: Split = "test",
        cache_bytes: int = 1 << 30,
    ) -> None:
        check_choice("split", split, ("auto", "val", "test"))
        roles = check_roles(columns)
        if loader is not None and (roles or not callable(loader)):
            raise TypeError(
                "loader must be a function of a shard, without columns; got "
                f"loader={loader!r}, columns={columns!r}."
            )
        sources = _sources(shards, loader is not None)
        self._loader: Loader = loader or ShardFiles(roles, split)
        self._shards = [Shard(source, i) for i, source in enumerate(sources)]
        self._executor = as_executor(executor)
        self._cache_bytes = check_integer("cache_bytes", cache_bytes, 0)
        self._calibrator: Any = None
        self._read: dict[Any, ShardedDataset] = {}
        self._owners_checked = False
        self._own_key()

    def __len__(self) -> int:
        return self._any().n_clients

    def __repr__(self) -> str:
        return f"ShardedClients({len(self._shards)} shards)"

    @property
    def n_shards(self) -> int:
        """Number of shards."""
        return len(self._shards)

    @property
    def n_rows(self) -> int:
        """Rows of all clients."""
        return self._any().n_rows

    @property
    def transport(self) -> Any:
        """There is none: rows are on workers."""
        raise AttributeError("ShardedClients have an executor and no transport.")

    def check_arguments(self, **given: Any) -> None:
        """Raise for arguments that need rows in this process.

        Raises
        ------
        ValueError
            Naming the first argument that is not None.
        """
        for name, value in given.items():
            if value is not None:
                raise ValueError(
                    f"{name} cannot be passed with ShardedClients: shards hold rows, "
                    "labels and clients. Leave it out."
                )

    def part(self, part: Part) -> ShardedClients:
        """Refuse parts of rows, which are for sites.

        Parameters
        ----------
        part : {'all', 'fit', 'held'}
            Only 'all' is taken.

        Returns
        -------
        ShardedClients
        """
        if part != "all":
            raise ValueError(
                f"part={part!r}: shards have no parts of rows. Pass hold_back=True to "
                "the calibrator, or measure on other shards (subset)."
            )
        return self

    def calibrated(self, calibrator: BaseEstimator) -> ShardedClients:
        """Return the same clients with calibrated probabilities in place of scores.

        Parameters
        ----------
        calibrator : BaseCalibrator
            A fitted calibrator, which is applied on the workers.

        Returns
        -------
        ShardedClients
            For functions of evaluation.

        Examples
        --------
        >>> from skfedcal import FedTempCalibrator, federated_log_loss, make_federation
        >>> from skfedcal.federation import ShardedClients
        >>> fed = make_federation(n_clients=20, n_samples=900, random_state=0)
        >>> shards = ShardedClients(
        ...     range(20), loader=lambda i: (*fed.clients[i], None))
        >>> after = shards.calibrated(FedTempCalibrator().fit(shards))
        >>> bool(federated_log_loss(after) < federated_log_loss(shards))
        True
        """
        if not hasattr(calibrator, "predict_log_proba"):
            raise TypeError(
                f"calibrator is of type {type(calibrator).__name__}; pass a fitted "
                "calibrator."
            )
        out = self._copy(self._shards)
        out._calibrator = calibrator
        out._own_key()
        return out

    def subset(self, numbers: Iterable[int]) -> ShardedClients:
        """Return the clients of some shards, on the same workers.

        Parameters
        ----------
        numbers : iterable of int
            Positions of the shards.

        Returns
        -------
        ShardedClients

        Examples
        --------
        >>> from skfedcal.federation import ShardedClients
        >>> ShardedClients(["a.npz", "b.npz", "c.npz"]).subset([0, 2])
        ShardedClients(2 shards)
        """
        chosen = list(numbers)
        if not chosen or len(set(chosen)) < len(chosen):
            raise ValueError(f"numbers={chosen}: pass positions of shards, each once.")
        return self._copy([self._shards[i] for i in chosen])

    def _own_key(self) -> None:
        """Name by which workers keep the rows, as long as this object lives here."""
        self._key = secrets.token_hex(8)
        self._end = weakref.finalize(self, CACHE.forget, self._key)

    def _copy(self, shards: list[Shard]) -> ShardedClients:
        out = copy(self)
        out._shards, out._read = shards, {}
        return out

    def read(  # type: ignore[override]
        self, classes: Any, input_type: str, rows: str = "logits"
    ) -> tuple[ShardedDataset, ClassMap]:
        """Read all shards once, and check them.

        Parameters
        ----------
        classes : array-like or None
            Label of each column; None: labels are column numbers.
        input_type : {'logits', 'log_proba', 'proba'}
            What scores are.
        rows : {'logits', 'given', 'features'}, default='logits'
            What an algorithm sees: logits of all classes, scores as they are, or
            features.

        Returns
        -------
        clients : ShardedDataset
            Clients of all shards.
        classes : ClassMap
            Sorted labels and their columns.
        """
        check_choice("input_type", input_type, INPUT_TYPES)
        known = None if classes is None else read_array(classes, "`classes`")
        if known is not None and known.ndim != 1:
            raise ValueError(f"`classes` has shape {known.shape}; pass one row.")
        labels = None if known is None else tuple(known.tolist())
        if rows == "features" and labels is None:
            raise ValueError(
                "Pass `classes`: features in shards do not tell which labels there are."
            )
        key = (labels, input_type, rows)
        found = self._read.get(key)
        if found is None and labels == tuple(range(len(labels or ()))):
            found = self._read.get((None, input_type, rows))
        if found is None or (labels is not None and len(labels) != found.n_classes):
            found = self._read[key] = self._inspect(labels, input_type, rows)
        if known is None:
            known = np.arange(found.n_classes)
        order = np.argsort(known, kind="stable")
        return found, ClassMap(known[order], order)

    def _any(self) -> ShardedDataset:
        """Some reading of the shards, for what all of them share."""
        if not self._read:
            self._read[()] = self._inspect(None, "logits", "counts")
        return next(iter(self._read.values()))

    def _inspect(
        self, classes: tuple[Any, ...] | None, input_type: str, rows: str
    ) -> ShardedDataset:
        reading = ShardReading(
            f"{self._key}-{(classes, input_type, rows)}",
            self._loader,
            classes,
            input_type,
            rows,
            0 if rows == "counts" else self._cache_bytes,
            self._calibrator,
        )
        workers = Workers(self._executor, reading, self._shards)
        facts = workers.inspect()
        shards, first = [], 0
        for shard in self._shards:
            own = facts[shard.number]
            shards.append(replace(shard, first=first, facts=own))
            first += own.n_clients
        _check_columns(shards)
        if not self._owners_checked:
            self._check_owners(shards)
        self._owners_checked = True
        n_columns = facts[shards[0].number].n_columns
        n_classes = max(2, n_columns) if classes is None else len(classes)
        if self._calibrator is not None:
            n_columns = n_classes
        return ShardedDataset(
            replace(workers, shards=shards), n_classes, n_columns, reading
        )

    def _check_owners(self, shards: Sequence[Shard]) -> None:
        """Refuse a client whose rows are in two shards.

        Ranges of ids that do not overlap settle it; otherwise workers compare ids.
        """
        facts = [shard.facts for shard in shards if shard.facts is not None]
        kinds = {type(f.lowest).__name__ for f in facts}
        if len(kinds) > 1:
            raise ValueError(
                f"Shards name clients in different ways: {sorted(kinds)}. All need "
                "numbers, all need strings, or all are files of one client without "
                "'client'."
            )
        if facts[0].lowest is None:
            return
        ranges = sorted((f.lowest, f.highest) for f in facts)
        if all(a[1] < b[0] for a, b in pairwise(ranges)):
            return
        n_clients = sum(f.n_clients for f in facts)
        n_buckets = -(-n_clients // _IDS_AT_ONCE)
        plain = [replace(shard, facts=None) for shard in shards]
        function = partial(find_shared_client, self._loader, plain, n_buckets)
        for found in self._executor.map(function, range(n_buckets)):
            if found is not None:
                name, *owners = found
                a, b = (s.source for s in shards if s.number in owners)
                raise ValueError(
                    f"Client {name!r} has rows in the shards {a} and {b}. Each shard "
                    "bounds what a client contributes, so all rows of a client must "
                    "be in one shard: write the shards by client."
                )


def _sources(shards: Any, any_kind: bool) -> list[Any]:
    """Shards as a list; a folder or a pattern becomes its files, sorted."""
    if isinstance(shards, str | os.PathLike):
        path = Path(shards)
        if path.is_dir():
            found = shard_files(path)
        else:
            found = sorted(glob.glob(os.fspath(shards)))
        if not found:
            raise FileNotFoundError(
                f"{os.fspath(shards)}: no shards there. Pass a folder of "
                f"{', '.join(ENDINGS)} files, a pattern such as 'data/*.npz', or a "
                "list of paths."
            )
        return _each_once(found)
    listed = isinstance(shards, Sequence) or np.ndim(shards) == 1
    if not listed or isinstance(shards, bytes | bytearray):
        raise TypeError(
            f"shards is of type {type(shards).__name__}; pass a folder, a pattern or a "
            "list."
        )
    out = list(shards)
    if not out:
        raise ValueError("shards is empty; pass at least one.")
    _each_once(out)
    if any_kind:
        return out
    for shard in out:
        if not isinstance(shard, str | os.PathLike):
            raise TypeError(
                f"A shard is of type {type(shard).__name__}; pass paths, or a loader "
                "that reads shards of any kind."
            )
    return [os.fspath(shard) for shard in out]


def _each_once(shards: list[Any]) -> list[Any]:
    # Also of shards without names of clients: one twice would be two clients.
    if len(set(map(_mark, shards))) < len(shards):
        raise ValueError("shards has a shard twice; pass each once.")
    return shards


def _mark(shard: Any) -> Hashable:
    """What two entries for one shard share."""
    if isinstance(shard, str | os.PathLike):
        return os.path.realpath(shard)
    try:
        hash(shard)
    except TypeError:
        return id(shard)
    out: Hashable = shard
    return out


def _check_columns(shards: Sequence[Shard]) -> None:
    first = shards[0]
    for shard in shards:
        a, b = first.facts, shard.facts
        if a is not None and b is not None and a.n_columns != b.n_columns:
            raise ValueError(
                f"Shard {shard.source} has {b.n_columns} columns of scores, "
                f"{first.source} has {a.n_columns}. All shards need the same columns."
            )


@dataclass(frozen=True, slots=True)
class Workers:
    """Engine that sums shards on the workers of an executor."""

    executor: ShardExecutor
    reading: ShardReading
    shards: Sequence[Shard] = field(repr=False)

    def ids(self) -> Sequence[Hashable]:
        """Positions; names of clients stay in the shards."""
        return range(self._n_clients)

    @property
    def _n_clients(self) -> int:
        last = self.shards[-1]
        return last.first + (0 if last.facts is None else last.facts.n_clients)

    def digests(self) -> list[str]:
        """Fingerprints of the rows of all shards."""
        return [shard.facts.digest for shard in self.shards if shard.facts is not None]

    def inspect(self) -> dict[int, Facts]:
        """Read and check all shards."""
        parts = self.executor.map(partial(inspect_shards, self.reading), self._tasks())
        return {number: facts for part in parts for number, facts in part.items()}

    def rows(self) -> tuple[Array, Array, Array]:
        """Rows, labels (as columns) and clients of all shards, in this process."""
        parts = self.executor.map(partial(rows_of_shards, self.reading), self._tasks())
        found = {number: rows for part in parts for number, rows in part.items()}
        ordered = zip(*(found[s.number] for s in self.shards), strict=True)
        logits, labels, sizes = map(np.concatenate, ordered)
        return logits, labels, np.repeat(np.arange(len(sizes)), sizes)

    def total(self, request: Request, cohort: Positions) -> PartialSum:
        """Not used: workers find the members of a cohort themselves."""
        raise NotImplementedError("Call total_drawn.")

    def total_drawn(self, request: Request, cohort: Draw) -> PartialSum:
        """Sum of the sums of all workers."""
        if request.randomizer is not None and request.entropy is None:
            # Clients draw from a secret key of the round: a task that is run again
            # draws the same noise, and does not give away a second answer.
            request = replace(request, entropy=KeyedEntropy.draw(OSEntropy()))
        function = partial(sum_shards, self.reading, request, cohort)
        found = self.executor.map(function, self._tasks())
        parts = [part for part in found if part is not None]
        return reduce(add, parts, PartialSum(request.codec.zeros(), 0, 0))

    def _tasks(self) -> list[list[Shard]]:
        """Neighbouring shards, in a few groups for each worker."""
        n_tasks = _TASKS_PER_WORKER * count_workers(self.executor)
        n_shards = len(self.shards)
        ends = np.linspace(0, n_shards, min(n_tasks, n_shards) + 1).astype(int)
        return [list(self.shards[a:b]) for a, b in pairwise(ends)]


@dataclass(frozen=True, slots=True)
class ShardedDataset:
    """Shards that have been read: what a run needs to know of a data set."""

    workers: Workers
    n_classes: int
    n_columns: int
    reading: ShardReading

    # Rows of shards count once.
    @property
    def weights(self) -> None:
        """No row has a weight."""

    def __len__(self) -> int:
        return self.n_clients

    @property
    def n_clients(self) -> int:
        """Number of clients."""
        return len(self.names)

    @property
    def names(self) -> Sequence[Hashable]:
        """Positions of the clients."""
        return self.workers.ids()

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return sum(self.shard_rows)

    @property
    def shard_rows(self) -> list[int]:
        """Rows of each shard."""
        shards = self.workers.shards
        return [0 if s.facts is None else s.facts.n_rows for s in shards]

    def engine(self, runner: FederatedRunner) -> Workers:
        """Engine of a run."""
        for name, value in (("backend", runner.backend), ("n_jobs", runner.n_jobs)):
            if value is not None:
                raise ValueError(
                    f"FederatedRunner({name}={value!r}): shards are summed by their "
                    f"executor. Leave {name} out."
                )
        if runner.secure:
            raise ValueError(
                "FederatedRunner(secure=True): workers read the rows of their shards, "
                "so masks would hide nothing. Leave secure out."
            )
        return self.workers

    def check_model(self, model: Any) -> None:
        """Take every privacy model: shards are a simulation, or a trusted server."""
