"""Cells of a comparison: the rows, and one method, eps and seed on one split.

- Rows to compare methods on: their clients, and which rows are for testing.
- How far clients differ from each other (Table 9 of the paper).
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray

from skfedcal import _numerics
from skfedcal._sklearn_compat import copy_to_fit
from skfedcal.clients import DirichletPartitioner, load_federation
from skfedcal.clients.arrays import INPUT_TYPES, distinct, join, read_array, to_logits
from skfedcal.clients.forms import parse_clients
from skfedcal.compose.folds import holdout_rows
from skfedcal.evaluation import federated_compare_scores
from skfedcal.evaluation.intervals import quantile
from skfedcal.exceptions import (
    CalibrationWarning,
    NotEnoughClientsError,
    SimulatedPrivacyWarning,
)
from skfedcal.experiments.measures import give_totals, score
from skfedcal.experiments.store import CellStore, code_version, key_of
from skfedcal.federation import ShardedClients
from skfedcal.federation.shard_rows import is_sharded
from skfedcal.methods import FedTempCalibrator, client_temperatures
from skfedcal.metrics import brier_score, classwise_calibration_error
from skfedcal.metrics.binning import bin_index, bin_sums
from skfedcal.privacy.accounting import load_pld

Array = NDArray[Any]

# The paper's setting for rows that nobody owns.
N_CLIENTS, BETA = 100, 0.1
# Most rows of shards that are measured on in one process.
MAX_TEST_ROWS = 200_000


@dataclass(frozen=True, slots=True)
class Split:
    """Logits, labels and clients of the rows to fit on and of the test rows.

    `test_clients` is None if the file names no clients.
    """

    logits: Array
    labels: Array
    clients: Array
    test_logits: Array
    test_labels: Array
    test_clients: Array | None = None

    @property
    def n_clients(self) -> int:
        """Clients that have rows."""
        return len(np.unique(self.clients))

    @property
    def n_rows(self) -> int:
        """Rows to fit on."""
        return len(self.labels)

    def fit(self, estimator: Any, n_classes: int, *, central: bool) -> Any:
        """Fit to the clients, or to all rows in one place."""
        owners = None if central else self.clients
        if not central:
            give_totals(estimator, self.labels, n_classes)
        return estimator.fit(self.logits, self.labels, client_ids=owners)

    def predict(self, fitted: Any) -> Array:
        """Probabilities of the test rows."""
        proba: Array = fitted.predict_proba(self.test_logits)
        return proba


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows, with labels as columns. `clients` and `test` are None if not given.

    Without clients the rows are assigned by a Dirichlet law, without a test a share of
    the rows (of each client) is kept for it; both anew with each seed.
    """

    logits: Array
    labels: Array
    clients: Array | None
    test: tuple[Array, Array] | None
    classes: Array
    test_clients: Array | None = None

    def partition(
        self, seed: int, n_clients: int | None, beta: float, test_size: float
    ) -> Split:
        """Split the rows as one seed does."""
        if self.clients is not None:
            found = self._with_clients(seed, n_clients, test_size)
        else:
            found = self._assigned_clients(seed, n_clients, beta, test_size)
        for labels, what in ((found.labels, "fit"), (found.test_labels, "test")):
            # A spread needs two rows.
            if len(labels) < 2:
                raise ValueError(
                    f"There are too few rows: {len(labels)} would be left for the "
                    f"{what}. Pass more rows, more clients or another test_size."
                )
        return found

    def _assigned_clients(
        self, seed: int, n_clients: int | None, beta: float, test_size: float
    ) -> Split:
        """Assign the rows to clients by a Dirichlet distribution."""
        rows, test = np.arange(len(self.labels)), self.test
        if test is None:
            rows = np.random.default_rng(seed).permutation(rows)
            cut = min(max(round(test_size * len(rows)), 1), len(rows) - 1)
            test = self.logits[rows[:cut]], self.labels[rows[:cut]]
            rows = rows[cut:]
        number = N_CLIENTS if n_clients is None else n_clients
        if number > len(rows):
            raise ValueError(
                f"{len(rows)} rows to calibrate on cannot be divided among {number} "
                f"clients. Ask for fewer clients, or pass more rows."
            )
        partitioner = DirichletPartitioner(number, beta, random_state=seed)
        labels = self.labels[rows]
        return Split(self.logits[rows], labels, partitioner.assign(labels), *test)

    def _with_clients(
        self, seed: int, n_clients: int | None, test_size: float
    ) -> Split:
        """Use the given clients, or a sample of them."""
        assert self.clients is not None
        names, clients = np.unique(self.clients, return_inverse=True)
        rows, test, owners = np.arange(len(clients)), self.test, self.test_clients
        if n_clients is not None:
            if n_clients > len(names):
                raise ValueError(
                    f"n_clients={n_clients}, but there are {len(names)} clients."
                )
            order = np.random.default_rng([seed, 1]).permutation(len(names))
            rows = np.flatnonzero(np.isin(clients, order[:n_clients]))
        if test is None:
            # All clients keep rows for the test, so that it is the same for any number.
            rng = np.random.default_rng(seed)
            held = holdout_rows(self.labels, clients, test_size, rng)
            test, owners = (self.logits[held], self.labels[held]), clients[held]
            rows = rows[~held[rows]]
        own = self.logits[rows], self.labels[rows], clients[rows]
        return Split(*own, *test, owners)

    def digest(self) -> str:
        """Fingerprint of all of it."""
        found = hashlib.sha256()
        parts = (self.logits, self.labels, self.clients, *(self.test or (None,)))
        for part in (*parts, self.test_clients):
            if part is not None:
                array = np.ascontiguousarray(part)
                found.update(f"{array.dtype}{array.shape}".encode())
                found.update(array.tobytes())
            found.update(b";")
        return found.hexdigest()


@dataclass(frozen=True, slots=True)
class ShardedSplit:
    """Shards to fit on; logits and labels for the test."""

    shards: ShardedClients
    data: Any
    test_logits: Array
    test_labels: Array
    test_clients: Array | None = None

    @property
    def n_clients(self) -> int:
        """Clients to fit on."""
        return int(self.data.n_clients)

    @property
    def n_rows(self) -> int:
        """Rows to fit on."""
        return int(self.data.n_rows)

    def fit(self, estimator: Any, n_classes: int, *, central: bool) -> Any:
        """Fit on the workers; the sums of all clients are those of one place."""
        return estimator.fit(self.shards)

    def predict(self, fitted: Any) -> Array:
        """Probabilities of the test rows."""
        logits = self.test_logits
        if fitted.n_features_in_ == 1:
            logits = logits[:, 1:] - logits[:, :1]
        proba: Array = fitted.predict_proba(logits)
        return proba


@dataclass(frozen=True, slots=True)
class ShardedShares:
    """Shards to compare methods on, with labels as columns.

    Without test rows, a share of the shards is kept for the test, others with each
    seed; their clients are not asked. `read` keeps what was read for a seed.
    """

    shards: ShardedClients
    test: tuple[Array, Array] | None
    classes: Array
    read: dict[int, ShardedSplit]

    @property
    def clients(self) -> bool:
        """Rows have clients."""
        return True

    def partition(
        self, seed: int, n_clients: int | None, beta: float, test_size: float
    ) -> ShardedSplit:
        """Split the shards as one seed does."""
        if n_clients is not None:
            raise ValueError(
                f"n_clients={n_clients}: clients in shards are not sampled. Leave it "
                "out, or pass ShardedClients.subset of fewer shards."
            )
        if seed not in self.read:
            self.read.clear()
            self.read[seed] = self._split(seed, test_size)
        return self.read[seed]

    def _split(self, seed: int, test_size: float) -> ShardedSplit:
        shards, n_shards = self.shards, self.shards.n_shards
        test: tuple[Array, ...] | None = self.test
        if test is None:
            if n_shards < 2:
                raise ValueError(
                    "One shard cannot be kept for the test and fitted on; pass test, "
                    "or more shards."
                )
            order = np.random.default_rng(seed).permutation(n_shards).tolist()
            sizes = shards.read(None, "logits")[0].shard_rows
            n_test = min(max(round(test_size * n_shards), 1), n_shards - 1)
            within = np.cumsum([sizes[i] for i in order[:n_test]]) <= MAX_TEST_ROWS
            held = order[: max(1, int(within.sum()))]
            data = shards.subset(sorted(held)).read(None, "logits")[0]
            test = data.workers.rows()
            shards = shards.subset(sorted(set(order) - set(held)))
        return ShardedSplit(shards, shards.read(None, "logits")[0], *test)

    def digest(self) -> str:
        """Fingerprint of all of it."""
        found = hashlib.sha256()
        for text in self.shards.read(None, "logits")[0].workers.digests():
            found.update(text.encode())
        for part in self.test or ():
            found.update(np.ascontiguousarray(part).tobytes())
        return found.hexdigest()


def _from_shards(
    shards: ShardedClients, test: Any, client_ids: Any, classes: Any, input_type: str
) -> ShardedShares:
    shards.check_arguments(client_ids=client_ids, classes=classes)
    if input_type != "logits":
        raise ValueError(
            f"input_type={input_type!r}: methods are compared on logits in shards. "
            "Leave it out, or pass a loader that returns logits."
        )
    n_classes = len(shards.read(None, "logits")[1])
    known, pair = np.arange(n_classes), None
    if test is not None:
        pair = _test_pair(test, known, n_classes, _table)
    return ShardedShares(shards, pair, known, {})


def read_rows(
    clients: Any,
    test: Any,
    *,
    client_ids: Any = None,
    classes: Any = None,
    input_type: str = "logits",
) -> Rows | ShardedShares:
    """Convert the arguments of `compare` to one form."""
    if not isinstance(input_type, str) or input_type not in INPUT_TYPES:
        raise ValueError(f"input_type must be one of {INPUT_TYPES}, got {input_type!r}")
    if isinstance(clients, str | os.PathLike):
        sharded = is_sharded(clients)
        clients = ShardedClients(clients) if sharded else load_federation(clients)
    if isinstance(clients, ShardedClients):
        return _from_shards(clients, test, client_ids, classes, input_type)
    if hasattr(clients, "client_names"):
        given = {"client_ids": client_ids, "classes": classes}
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"A file has its own {name}; leave it out.")
        if input_type != "logits":
            raise ValueError(
                "input_type cannot be set for a file, whose arrays define it; leave it "
                "out."
            )
        return _from_file(clients, test)
    pooled = isinstance(clients, tuple) and len(clients) == 2
    if pooled and _ndim(clients[1]) == 1 and not _is_pair(clients[0]):
        raw = parse_clients(clients[0], clients[1], client_ids)
        owners = None if raw.row_ids is None else raw.row_ids.codes
    else:
        raw = parse_clients(clients, None, client_ids)
        owners = None
    truth = [_vector(part, "Labels") for part in raw.y]
    if not raw.from_arrays:
        sizes = [len(part) for part in truth]
        owners = np.repeat(np.arange(len(sizes)), sizes)
    as_table = partial(_table, input_type=input_type)
    tables = [as_table(part) for part in raw.X]
    for name, own, part in zip(raw.names, tables, truth, strict=True):
        if len(own) != len(part):
            raise ValueError(
                f"Client {name!r} has {len(own)} rows of logits but {len(part)} labels."
            )
    logits = join(tables, "Logits")
    known = _classes(truth, test, logits.shape[1], classes)
    labels = np.concatenate([_columns(part, known) for part in truth])
    _check_lengths(logits, labels, "clients")
    pair = None
    if test is not None:
        pair = _test_pair(test, known, logits.shape[1], as_table)
    return Rows(logits, labels, owners, pair, known)


def _test_pair(
    test: Any, known: Array, n_columns: int, as_table: Callable[[Any], Array]
) -> tuple[Array, Array]:
    """Logits and labels of the test, checked."""
    if not _is_pair(test):
        raise ValueError(
            f"test must be a pair (logits, labels) or None, got {type(test).__name__}."
        )
    pair = as_table(test[0]), _columns(test[1], known)
    _check_lengths(*pair, "test")
    if pair[0].shape[1] != n_columns:
        raise ValueError(
            f"test has {pair[0].shape[1]} columns of logits, the clients have "
            f"{n_columns}."
        )
    return pair


def _from_file(bunch: Any, test: Any) -> Rows:
    """Rows of `load_federation`: those of ``val_*``, if any, are to calibrate on."""
    if test is not None:
        raise ValueError(
            "test cannot be given with a file: its val rows, or a share of its rows, "
            "are to calibrate on and the others for the test. Leave out test, or "
            "pass the clients of `load_federation(path).clients`."
        )
    fit = bunch if bunch.val is None else bunch.val
    logits = _table(fit.logits)
    pair = None if bunch.val is None else (_table(bunch.logits), bunch.labels)
    _check_lengths(logits, fit.labels, "file")
    columns = np.arange(logits.shape[1])
    owners = None if bunch.val is None else bunch.client_ids
    return Rows(logits, fit.labels, fit.client_ids, pair, columns, owners)


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and _ndim(value[1]) > 0


def _ndim(value: Any) -> int:
    """Dimensions of what may be no array; lists of several lengths have two."""
    try:
        return int(np.ndim(value))
    except (ValueError, TypeError, RuntimeError):
        return 2


def _vector(values: Any, what: str) -> Array:
    array = read_array(values, what)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"{what} have shape {array.shape}; pass one for each row.")
    return array


def _table(scores: Any, input_type: str = "logits") -> Array:
    """Logits as floats, one column a class."""
    table = read_array(scores, "Logits")
    empty = table.ndim == 2 and not table.shape[1]
    if table.dtype.kind not in "fiu" or table.ndim not in (1, 2) or empty:
        raise ValueError(
            f"Logits must be numbers of shape (n, n_classes) or (n,), got "
            f"{table.dtype} of shape {table.shape}."
        )
    if table.dtype not in (np.float32, np.float64):
        table = table.astype(np.float64)
    if input_type != "logits" and len(table):
        table = table.reshape(len(table), -1)
        table = np.asarray(
            to_logits(table, max(2, table.shape[1]), input_type=input_type)
        )
    elif table.ndim == 1 or table.shape[1] == 1:
        table = _numerics.as_two_columns(table)
    if len(table) and not np.isfinite(table.max(axis=1)).all():
        raise ValueError("Logits have NaN, +inf or a row of nothing but -inf.")
    return table


def _classes(parts: Sequence[Any], test: Any, n_columns: int, classes: Any) -> Array:
    """Label of each column."""
    if classes is not None:
        known = read_array(classes, "classes")
        if known.shape != (n_columns,):
            raise ValueError(
                f"classes has {known.size} entries, logits have {n_columns} columns."
            )
        if len(distinct(known, "classes")) < len(known):
            raise ValueError(f"classes={known.tolist()} has a label twice.")
        return known
    arrays = [part for part in parts if len(part)]
    if _is_pair(test):
        arrays.append(_vector(test[1], "Labels of test"))
    if not arrays:
        raise ValueError("There are no labels: every client is empty.")
    found: Array = distinct(join(arrays, "Labels"), "Labels")
    plain = found.dtype.kind in "iub" and (found.size == 0 or found[0] >= 0)
    if plain and (not found.size or found[-1] < n_columns):
        return np.arange(n_columns)
    if len(found) != n_columns:
        raise ValueError(
            f"There are {len(found)} labels ({found[:5].tolist()}...) but {n_columns} "
            "columns of logits. Pass `classes`, one label per column."
        )
    return found


def _columns(labels: Any, classes: Array) -> Array:
    """Column of each label."""
    labels = _vector(labels, "Labels")
    order = np.argsort(classes, kind="stable")
    try:
        place = np.searchsorted(classes, labels, sorter=order)
        codes: Array = order[np.minimum(place, len(classes) - 1)]
        unknown = np.asarray(classes[codes] != labels, dtype=bool)
    except TypeError as error:
        raise TypeError(
            f"Labels and the classes {classes[:10].tolist()} cannot be compared: "
            f"{error}"
        ) from error
    if unknown.any():
        raise ValueError(
            f"Label {labels[np.argmax(unknown)]!r} is not one of the classes "
            f"{classes[:10].tolist()}."
        )
    return codes


def _check_lengths(logits: Array, labels: Array, what: str) -> None:
    if len(logits) != len(labels):
        raise ValueError(
            f"{what}: there are {len(logits)} rows of logits but {len(labels)} labels."
        )
    if len(logits) < 2:
        raise ValueError(f"{what}: {len(logits)} rows are too few.")


# Columns and how they are shown.
DIFFERENCES = {
    "classes": ".1f",
    "var cwECE": ".3g",
    "var T": ".3g",
    "mean |T - T_k|": ".3g",
}


def client_differences(split: Split, n_classes: int, n_bins: int) -> dict[str, Any]:
    """Spread over clients of what each would fit to its own rows alone.

    `classes` is the mean number of classes of a client, `var T` the variance of the
    temperatures T_k that clients would fit, `var cwECE` that of the errors with them on
    their own rows, and T the temperature of all rows together.
    """
    columns = np.arange(n_classes)
    own = client_temperatures(
        split.logits, split.labels, client_ids=split.clients, classes=columns
    )
    whole = FedTempCalibrator(classes=columns).fit(split.logits, split.labels)
    errors, kinds = [], []
    for client, temperature in zip(np.unique(split.clients), own, strict=True):
        rows = split.clients == client
        labels = split.labels[rows]
        proba = _numerics.softmax(split.logits[rows].astype(np.float64) / temperature)
        error = classwise_calibration_error(
            labels, proba, labels=columns, n_bins=n_bins
        )
        errors.append(float(error))
        kinds.append(len(np.unique(labels)))
    values = (
        np.mean(kinds),
        np.var(errors),
        np.var(own),
        np.mean(np.abs(own - whole.temperature_)),
    )
    return {name: float(v) for name, v in zip(DIFFERENCES, values, strict=True)}


BASE, CENTRAL = "base", "central"

# What data or settings can make a method refuse; the other cells go on.
REFUSALS = (ValueError, ArithmeticError, NotEnoughClientsError)

# Smaller probabilities that are not 0 count as this, as in `metrics.log_loss`.
_LEAST = float(np.finfo(np.float64).eps)

# Warnings that the result says in columns: whether it is simulated, and was used.
SAID = (SimulatedPrivacyWarning, CalibrationWarning)


@dataclass(frozen=True, slots=True)
class Cell:
    """What is fitted: the estimator is None for the rows as they are.

    `labels` are the keys of the row in the table, `split` says how rows are assigned.
    """

    method: str
    estimator: Any
    labels: Mapping[str, Any]
    split: Mapping[str, Any]
    n_bins: int

    def key(self, digest: str) -> str:
        """Name of the cell in a store."""
        params = None
        if self.estimator is not None:
            kind = type(self.estimator)
            # Two classes of one name are two methods.
            name = f"{kind.__module__}.{kind.__qualname__}"
            params = (name, self.estimator.get_params())
        settings = {
            "version": code_version(),
            "data": digest,
            "central": self.method == CENTRAL,
            "estimator": joblib.hash(params),
            "split": dict(self.split),
            "n_bins": self.n_bins,
        }
        if self.credits_sampling:
            # The noise is another one when dp-accounting is installed later.
            settings["pld"] = load_pld() is not None
        return key_of(settings)

    @property
    def credits_sampling(self) -> bool:
        """Whether dp-accounting lowers the noise of this cell."""
        if self.estimator is None or self.method == CENTRAL:
            return False
        params = self.estimator.get_params(deep=False)
        model, runner = params.get("privacy"), params.get("runner")
        if model is None:
            tight = params.get("eps") is not None
        else:
            tight = getattr(model, "accountant", None) == "auto"
        return tight and getattr(runner, "cohort", None) == "poisson"


def run_cell(
    cell: Cell, key: str, rows: Rows | ShardedShares, store: CellStore
) -> dict[str, Any]:
    """Fit, measure and store; a method that refuses gives its message."""
    # Processes would print warnings with places in files; they are part of the result.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = _result(cell, rows)
        except REFUSALS as error:
            return {"error": f"{type(error).__name__}: {error}"}
    result["warnings"] = sorted(
        {str(w.message) for w in caught if not issubclass(w.category, SAID)}
    )
    store.save(key, result)
    return result


def _result(cell: Cell, rows: Rows | ShardedShares) -> dict[str, Any]:
    split = rows.partition(**cell.split)
    base = _numerics.softmax(split.test_logits.astype(np.float64))
    proba, fitted = base, None
    if cell.estimator is not None:
        central = cell.method == CENTRAL
        fitted = split.fit(
            copy_to_fit(cell.estimator), len(rows.classes), central=central
        )
        proba = split.predict(fitted)
    seed, n_bins = cell.split["seed"], cell.n_bins
    result = {
        **measure(
            split.test_labels,
            proba,
            base,
            seed=seed,
            n_bins=n_bins,
            owners=split.test_clients,
        ),
        # The oracle has no clients that could pay.
        **cost(None if cell.method == CENTRAL else fitted),
        "n_clients": split.n_clients,
        "n_rows": split.n_rows,
        "n_test": len(split.test_labels),
    }
    # How far clients differ needs what each would fit: not through a driver.
    if cell.method == BASE and isinstance(split, Split):
        n_classes = len(rows.classes)
        result["clients differ"] = client_differences(split, n_classes, n_bins)
    return result


def measure(
    labels: Array,
    proba: Array,
    base: Array,
    *,
    seed: int,
    n_bins: int,
    owners: Array | None = None,
) -> dict[str, Any]:
    """Scores of probabilities, and what they gain over those of the base.

    The error of the gain is for other clients like the `owners` of the rows.
    """
    proba = np.asarray(proba, dtype=np.float64)
    classes = np.arange(proba.shape[1])
    found = score(labels, proba, classes, seed, n_bins=n_bins)
    after, before = (np.where(p > 0, np.maximum(p, _LEAST), 0.0) for p in (proba, base))
    gain = federated_compare_scores(
        after, before, labels, client_ids=owners, metric="log_loss", classes=classes,
        input_type="proba",
    )  # fmt: skip
    hits = proba.argmax(axis=1) == labels
    confidence = proba.max(axis=1)
    bins = bin_sums(confidence, hits, bin_index(confidence, n_bins), n_bins)
    return {
        **found,
        "Brier": float(brier_score(labels, proba, labels=classes)),
        "acc change": float(hits.mean() - (base.argmax(axis=1) == labels).mean()),
        "NLL gain": float(gain),
        # A standard error, larger where there are few clients (Student's law).
        "NLL gain error": (gain.high - gain.low) / (2 * quantile(0.95)),
        "confidence": float(confidence.mean()),
        "reliability": {
            "n": bins.weight.tolist(),
            "confidence": bins.proba.tolist(),
            "hits": bins.labels.tolist(),
        },
    }


def cost(fitted: Any) -> dict[str, Any]:
    """Cost of a fit; empty where nothing was fitted."""
    if fitted is None:
        return {"used": True}
    report, history = fitted.privacy_, fitted.history_
    seconds = sum(record.client_seconds for record in history)
    found: dict[str, Any] = {
        "used": bool(getattr(fitted, "_map_is_used", fitted.improves_)),
        "rounds": int(fitted.n_rounds_),
        "bytes": sum(record.bytes_up + record.bytes_down for record in history),
        "client seconds": float(seconds) if isfinite(seconds) else None,
    }
    if report.private:
        found |= {
            "eps spent": float(report.eps),
            "delta": float(report.delta),
            "unit": report.unit,
            "simulated": not report.secure,
            "noise": float(report.noise_multiplier),
            "accountant": report.accountant,
        }
    return found
