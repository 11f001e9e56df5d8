"""One shard on a worker: read it, check it, keep it in memory, sum its clients.

Everything here runs where the rows are; what is returned is small and says nothing of
single clients. The driver is in `shards`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from skfedcal.clients.arrays import check_finite, check_given, read_array
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.clients.federation_files import check_length, check_logits, log_proba
from skfedcal.clients.file_formats import (
    CLASS_NAMES,
    CLIENT_NAMES,
    ENDINGS,
    SCORE_NAMES,
    read_arrays,
)
from skfedcal.clients.forms import make_dataset, resolve_classes
from skfedcal.clients.npz import read_npz
from skfedcal.clients.row_ids import RowIds
from skfedcal.federation.endpoint import PartialSum, Request, timed_respond
from skfedcal.privacy.entropy import KeyedEntropy

if TYPE_CHECKING:
    from skfedcal.federation.runner import Draw

Array = NDArray[Any]
# Scores, labels and client of each row; None is one client.
ShardRows = tuple[Any, Any, Any]
Loader = Callable[[Any], ShardRows]
Split = Literal["auto", "val", "test"]

_MAX_BYTES = 8 * 2**30


def is_sharded(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a pattern, or a folder of files with several clients each."""
    folder = Path(path)
    if not folder.is_dir():
        return not folder.exists() and any(c in os.fspath(path) for c in "*?[")
    first = next(iter(shard_files(folder)), None)
    if first is None or Path(first).suffix.lower() == ".npy":
        return False
    try:
        arrays, _ = read_arrays(Path(first), _MAX_BYTES, {})
    except (ValueError, OSError, ImportError):
        return False  # other readers say what is wrong with it
    names = {name.removeprefix("val_") for name in arrays}
    return not names.isdisjoint(CLIENT_NAMES)


def shard_files(folder: Path) -> list[str]:
    """Files of a folder that can be shards, sorted."""
    return sorted(
        str(file)
        for file in folder.iterdir()
        if file.suffix.lower() in ENDINGS and not file.name.startswith(".")
    )


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """Loader of files as `load_federation` reads them; probabilities become logits."""

    columns: Mapping[str, str]
    split: Split

    def __call__(self, path: Any) -> ShardRows:
        path = Path(path)
        if path.is_dir():
            raise ValueError("is a folder, not a file")
        arrays, found = read_arrays(path, _MAX_BYTES, dict(self.columns))
        if CLASS_NAMES in arrays:
            raise ValueError(
                f"{path} names its classes; number the score columns of shards from 0, "
                "as in logit_0, so that all have them in the same order."
            )
        has_val = any(name.startswith("val_") for name in arrays)
        val = self.split == "val" or (self.split == "auto" and has_val)
        start = "val_" if val else ""
        scores = next((start + n for n in SCORE_NAMES if start + n in arrays), None)
        if scores is None or f"{start}labels" not in arrays:
            raise ValueError(
                f"{path} needs the arrays '{start}logits' (or '{start}proba') and "
                f"'{start}labels'; it has {sorted(found)}."
            )
        read = check_logits if scores.endswith("logits") else log_proba
        logits, labels = read(arrays[scores], scores, path), arrays[f"{start}labels"]
        check_length(labels, f"{start}labels", logits, path)
        owner = next((start + n for n in CLIENT_NAMES if start + n in arrays), None)
        if owner is None:
            return logits, labels, None
        check_length(arrays[owner], owner, logits, path)
        return logits, labels, _named(arrays, owner, path)

    def ids(self, path: Any) -> Array | None:
        """Client of each row, without the rest of an npz file."""
        path = Path(path)
        if path.suffix.lower() != ".npz" or "client" in self.columns:
            return _arrays(self(path))[2]
        starts = {"auto": ["val_", ""], "val": ["val_"], "test": [""]}[self.split]
        names = [start + name for start in starts for name in CLIENT_NAMES]
        arrays, _ = read_npz(path, {*names, "client_names"}, _MAX_BYTES)
        owner = next((name for name in names if name in arrays), None)
        return None if owner is None else _ids(_named(arrays, owner, path))


def _named(arrays: Mapping[str, Array], owner: str, path: Path) -> Array:
    """Client of each row: a number, or its name where the file has names."""
    ids, names = arrays[owner], arrays.get("client_names")
    if ids.dtype.kind in "US":
        return ids.astype(str)
    if ids.dtype.kind not in "iu":
        raise ValueError(
            f"{path}: {owner} must be whole numbers or strings, got {ids.dtype}."
        )
    if names is None:
        return ids
    if len(ids) and not 0 <= ids.min() <= ids.max() < len(names):
        raise ValueError(
            f"{path}: {owner} ranges from {ids.min()} to {ids.max()}, but there are "
            f"{len(names)} client_names."
        )
    return names.astype(str)[ids]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the driver knows of a shard: numbers, and nothing of single clients.

    lowest, highest: First and last of the sorted ids of its clients; None where the
        shard is one client.
    digest: Hash of all of its rows.
    """

    n_clients: int
    n_rows: int
    n_columns: int
    lowest: Any
    highest: Any
    digest: str


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard: its source, place in the list of the user, and what was read of it.

    first: Position of its first client among all clients.
    """

    source: Any
    number: int
    first: int = 0
    facts: Facts | None = None


@dataclass(frozen=True, slots=True)
class ShardReading:
    """How workers read shards.

    key: Name of this reading; rows in memory are kept by it.
    cache_bytes: Memory of one worker process for rows.
    calibrator: Applied to the rows, if there is one.
    """

    key: str
    loader: Loader
    classes: tuple[Any, ...] | None
    input_type: str
    rows: str
    cache_bytes: int
    calibrator: Any = None

    def load(self, shard: Shard) -> tuple[FederatedDataset, Facts]:
        """Clients of a shard, from memory if they are there."""
        found = CACHE.get((self.key, shard.number))
        if found is None:
            found = self._read(shard)
            CACHE.keep((self.key, shard.number), found, self.cache_bytes)
        if shard.facts is not None and shard.facts != found[1]:
            raise ValueError(
                f"Shard {shard.source} has changed since it was first read; nothing "
                "that was planned for it holds. Make new ShardedClients."
            )
        return found

    def clients(self, shard: Shard) -> FederatedDataset:
        """Clients of a shard that was read before; a nameless one has its position."""
        rows, facts = self.load(shard)
        if facts.lowest is None:
            return replace(rows, names=range(shard.first, shard.first + 1))
        return rows

    def _read(self, shard: Shard) -> tuple[FederatedDataset, Facts]:
        try:
            scores, labels, ids = _arrays(self.loader(shard.source))
            digest = blake2b(digest_size=16)
            for part in (scores, labels, ids):
                if part is not None:
                    digest.update(f"{part.dtype}{part.shape}".encode())
                    digest.update(np.ascontiguousarray(part).data)
            rows = self._dataset(scores, labels, ids)
        except (ValueError, TypeError, OSError, ImportError) as error:
            # Kinds that take one text; the name of the shard must reach the driver.
            kinds = (FileNotFoundError, TypeError, ValueError)
            kind = next((k for k in kinds if isinstance(error, k)), ValueError)
            raise kind(f"Shard {shard.source}: {error}") from error
        lowest, highest = (
            (None, None) if ids is None else (rows.names[0], rows.names[-1])
        )
        facts = Facts(
            rows.n_clients,
            rows.n_rows,
            scores.shape[1],
            lowest,
            highest,
            digest.hexdigest(),
        )
        return replace(rows, names=_short(rows.names)), facts

    def _dataset(self, scores: Array, labels: Array, ids: Any) -> FederatedDataset:
        """Rows as an algorithm sees them; raises for rows that do not fit."""
        n_columns = scores.shape[1]
        classes: Any = self.classes
        if classes is None:
            classes = range(max(2, n_columns))
        if self.rows in ("features", "counts"):
            known = classes if self.rows == "features" else None
            return _feature_rows(scores, labels, ids, known)
        if self.calibrator is not None:
            scores = _calibrated(self.calibrator, scores, self.input_type)
        kind = "logits" if self.calibrator is not None else self.input_type
        given = self.rows == "given"
        out, known = make_dataset(
            _Reader(),
            scores,
            labels,
            ids,
            classes=classes,
            input_type=None if given else kind,
            private=True,  # no warnings about the values of single shards
        )
        if given:
            check_given(out.rows, len(known), input_type=kind)
        # Gathered once, and not in every round.
        dataset: FederatedDataset = out if out.order is None else out.compact()
        return dataset


class _Reader(BaseEstimator):
    """Object on which scikit-learn's validation sets its attributes."""


def _arrays(rows: ShardRows) -> tuple[Array, Array, Array | None]:
    scores, labels, ids = rows
    scores, labels = read_array(scores, "scores"), read_array(labels, "labels")
    if scores.ndim == 1:
        scores = scores[:, None]
    if scores.ndim != 2 or labels.shape != scores.shape[:1] or not len(labels):
        raise ValueError(
            f"scores of shape {scores.shape} and labels of shape {labels.shape}; a "
            "shard has one row of scores and one label per example, and at least one"
        )
    if ids is not None:
        ids = _ids(read_array(ids, "client_ids"))
        if ids.shape != labels.shape:
            raise ValueError(
                f"client_ids of shape {ids.shape}; pass one for each of {len(labels)} "
                "rows"
            )
    return scores, labels, ids


def _short(names: Sequence[Hashable]) -> Sequence[Hashable]:
    """Neighbouring numbers as a range: a list would take as much memory as the rows."""
    first, last = names[0], names[-1]
    if isinstance(first, int) and isinstance(last, int):
        whole = range(first, last + 1)
        return whole if len(whole) == len(names) else names
    return names


def _ids(ids: Array) -> Array:
    """Ids of clients in one of two types, so that those of all shards compare."""
    if ids.dtype.kind in "iu" and not (ids > np.int64(2**63 - 1)).any():
        return ids.astype(np.int64, copy=False)
    texts = ids.dtype.kind == "O" and all(isinstance(name, str) for name in ids)
    if ids.dtype.kind in "US" or texts:
        return ids.astype(str)
    raise ValueError(
        f"client_ids of type {ids.dtype}; pass strings, or whole numbers below 2**63"
    )


def _feature_rows(
    rows: Array, labels: Array, ids: Array | None, classes: Any
) -> FederatedDataset:
    """Clients of features; without classes, clients that are only counted."""
    if rows.dtype not in (np.float32, np.float64):
        rows = rows.astype(np.float64)
    codes, n_classes = np.zeros(len(rows), dtype=np.int16), 2
    if classes is not None:
        if not np.isfinite(rows).all():
            raise ValueError("features contain NaN or infinity")
        known = resolve_classes(labels, list(classes), n_columns=len(classes))
        codes, n_classes = known.columns(labels), len(known)
    if ids is None:
        return FederatedDataset(
            rows, codes, np.array([0, len(rows)]), range(1), n_classes
        )
    names, sizes, order = RowIds.read(ids).grouped()
    ends = np.concatenate([[0], np.cumsum(sizes)])
    if order is not None:
        rows, codes = rows[order], codes[order]
    return FederatedDataset(rows, codes, ends, names, n_classes)


def _calibrated(calibrator: Any, scores: Array, input_type: str) -> Array:
    """Logarithms of calibrated probabilities, columns in the order of the shard."""
    if calibrator.input_type != input_type:
        raise ValueError(
            f"the calibrator was fitted on {calibrator.input_type!r}, but rows are "
            f"read as {input_type!r}"
        )
    check_finite(scores)
    found = calibrator.predict_log_proba(scores)
    return np.asarray(found[:, np.argsort(calibrator._class_map.order)])


class _Cache:
    """Rows that a worker process keeps, up to a number of bytes.

    Rounds go through all shards in the same order: what is in memory stays there, and
    what no longer fits is read again. Rows of other readings make room.
    """

    def __init__(self) -> None:
        self._lock, self._n_bytes = threading.Lock(), 0
        self._kept: dict[tuple[str, int], tuple[FederatedDataset, Facts]] = {}

    def get(self, key: tuple[str, int]) -> tuple[FederatedDataset, Facts] | None:
        with self._lock:
            return self._kept.get(key)

    def keep(
        self, key: tuple[str, int], rows: tuple[FederatedDataset, Facts], limit: int
    ) -> None:
        """Keep rows if there is room, or would be without those of other readings."""
        size = _n_bytes(rows[0])
        with self._lock:
            if self._n_bytes + size > limit:
                self._drop([other for other in self._kept if other[0] != key[0]])
            if self._n_bytes + size <= limit and key not in self._kept:
                self._kept[key] = rows
                self._n_bytes += size

    def forget(self, start: str) -> None:
        """Drop the rows of readings whose key begins so."""
        with self._lock:
            self._drop([key for key in self._kept if key[0].startswith(start)])

    def _drop(self, keys: Sequence[tuple[str, int]]) -> None:
        for key in keys:
            self._n_bytes -= _n_bytes(self._kept.pop(key)[0])


def _n_bytes(rows: FederatedDataset) -> int:
    return rows.rows.nbytes + rows.labels.nbytes + rows.offsets.nbytes


CACHE = _Cache()


def inspect_shards(reading: ShardReading, shards: Sequence[Shard]) -> dict[int, Facts]:
    """Read and check shards; facts by number."""
    return {shard.number: reading.load(shard)[1] for shard in shards}


def sum_shards(
    reading: ShardReading, request: Request, cohort: Draw, shards: Sequence[Shard]
) -> PartialSum | None:
    """Sum of the members of a cohort in some shards; None if there are no members."""
    total: PartialSum | None = None
    for shard in shards:
        assert shard.facts is not None
        stop = shard.first + shard.facts.n_clients
        members = cohort.positions(shard.first, stop)
        if not len(members):
            continue
        clients = reading.clients(shard)
        own = request
        if isinstance(request.entropy, KeyedEntropy):
            own = replace(request, entropy=request.entropy.child(shard.number))
        part = timed_respond(own, clients.select(members - shard.first), members)
        total = part if total is None else total + part
    return total


def rows_of_shards(
    reading: ShardReading, shards: Sequence[Shard]
) -> dict[int, tuple[Array, Array, Array]]:
    """Rows, labels and sizes of clients by number, for what a driver measures on."""
    found = {shard.number: reading.load(shard)[0] for shard in shards}
    return {n: (rows.rows, rows.labels, rows.sizes) for n, rows in found.items()}


def find_shared_client(
    loader: Loader, shards: Sequence[Shard], n_buckets: int, bucket: int
) -> tuple[Any, int, int] | None:
    """Find a client of two shards among those whose hash falls into one bucket.

    Result: The client and the numbers of two of its shards; None if there is none.
    """
    ids, owners = [], []
    for shard in shards:
        if isinstance(loader, ShardFiles):
            found = loader.ids(shard.source)
        else:
            found = _arrays(loader(shard.source))[2]
        assert found is not None  # ranges of ids were compared before
        names = np.unique(found)
        names = names[_buckets(names, n_buckets) == bucket]
        ids.append(names)
        owners.append(np.full(len(names), shard.number))
    pooled, numbers = np.concatenate(ids), np.concatenate(owners)
    order = np.argsort(pooled, kind="stable")
    ordered = pooled[order]
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if not len(twice):
        return None
    first, second = numbers[order[twice[0]]], numbers[order[twice[0] + 1]]
    return ordered[twice[0]].item(), int(first), int(second)


def _buckets(names: Array, n_buckets: int) -> Array:
    """Bucket of each id; the same in every shard."""
    if names.dtype.kind in "iu":
        return names.astype(np.int64) % n_buckets
    letters = np.ascontiguousarray(names).view(np.uint32).reshape(len(names), -1)
    # Shorter texts end in zeros, which add nothing.
    factors = np.arange(1, letters.shape[1] + 1, dtype=np.uint64) * np.uint64(
        2654435761
    )
    return (letters @ factors % np.uint64(n_buckets)).astype(np.int64)
