"""`compare`: methods, budgets and seeds as cells that are run once each.

- Methods by name, and what `vary` changes in them.
- Settings of a comparison, and the cells that they make.
- Progress of a comparison, on stderr.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import product
from math import inf, log2
from multiprocessing import resource_tracker
from numbers import Integral, Real
from typing import Any, Literal

import joblib
import numpy as np
from numpy.typing import ArrayLike

from skfedcal import privacy
from skfedcal._params import as_number
from skfedcal._sklearn_compat import copy_to_fit
from skfedcal._version import __version__
from skfedcal.exceptions import CalibrationWarning, PrivacyWarning
from skfedcal.experiments.comparison.cells import (
    BASE,
    BETA,
    CENTRAL,
    N_CLIENTS,
    Cell,
    Rows,
    ShardedShares,
    read_rows,
    run_cell,
)
from skfedcal.experiments.comparison.result import (
    LARGEST,
    NO_VALUE,
    Comparison,
    check_result,
)
from skfedcal.experiments.presets import Preset
from skfedcal.experiments.store import CellStore
from skfedcal.federation import FederatedRunner
from skfedcal.methods.registry import configurations, short_name
from skfedcal.privacy.accounting import INSTALL, load_pld

VARY = (
    "rounds",
    "beta",
    "eps",
    "bins",
    "clip",
    "clients",
    "solver",
    "weighting",
    "privacy",
)

# What ``vary["privacy"]`` may name: the model of private fits.
PRIVACY = {
    "central": ("CentralDP", {}),
    "zcdp": ("CentralDP", {"accountant": "zcdp"}),
    "distributed": ("DistributedDP", {}),
    "local": ("LocalDP", {}),
}


def named_methods(methods: Any) -> dict[str, Any]:
    """Return estimators by name from names, estimators or a dict of these."""
    if methods is None:
        methods = [name for name, (m, _) in configurations().items() if m.compared]
    if isinstance(methods, str):
        methods = [methods]
    if isinstance(methods, Mapping):
        found = {str(name): _estimator(entry)[1] for name, entry in methods.items()}
    elif not isinstance(methods, Iterable) or getattr(methods, "ndim", 1) == 0:
        raise TypeError(f"methods={methods!r}: pass a list of names or calibrators.")
    else:
        pairs = [_estimator(entry) for entry in methods]
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError(
                "methods has a name twice. Pass a dict of name and method."
            )
    if not found:
        raise ValueError("methods is empty; pass at least one.")
    for name in ("base", "central"):
        if name in found:
            raise ValueError(f"{name!r} is a row of every table; use another name.")
    return found


def _estimator(entry: Any) -> tuple[str, Any]:
    if isinstance(entry, Preset):
        return entry.label, entry
    if hasattr(entry, "get_params") and hasattr(entry, "fit"):
        name = type(entry).__name__.removesuffix("Calibrator")
        return name, copy_to_fit(entry)
    known = configurations()
    short = {short_name(name): name for name in known}
    word = str(entry)
    name = short.get(short_name(word), word) if isinstance(entry, str) else word
    if name not in known:
        raise ValueError(
            f"Unknown method {entry!r}; known are {sorted(short)}. Pass a dict of name "
            "and calibrator for others."
        )
    method, params = known[name]
    return name, method.load()(**params)


def check_vary(vary: Any) -> dict[str, list[Any]]:
    """Return lists of values by name."""
    if vary is None:
        return {}
    if not isinstance(vary, Mapping):
        raise TypeError(f"vary must be a dict such as {{'rounds': [1, 3]}}: {vary!r}.")
    found: dict[str, list[Any]] = {}
    for name, values in vary.items():
        if name not in VARY:
            raise ValueError(f"vary={name!r} is not known; pass one of {VARY}.")
        values = values.tolist() if isinstance(values, np.ndarray) else values
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ValueError(f"vary[{name!r}] must be a list of values, got {values!r}")
        found[name] = [_value(name, value) for value in values]
        if name != "eps" and len(set(map(str, found[name]))) < len(values):
            raise ValueError(f"vary[{name!r}]={values!r} has a value twice.")
    return found


def _value(name: str, value: Any) -> Any:
    """Value of `vary` as a plain number; budgets are read elsewhere."""
    word = f"vary[{name!r}]"
    if name in ("rounds", "bins", "clients"):
        return as_count(word, value)
    if name == "eps" or (name == "clip" and isinstance(value, str) and value == "auto"):
        return value
    if name in ("solver", "weighting") and isinstance(value, str | None):
        return value
    if name == "privacy" and isinstance(value, str) and value in PRIVACY:
        return value
    if name in ("solver", "weighting", "privacy"):
        known = f"one of {list(PRIVACY)}" if name == "privacy" else "names"
        raise ValueError(f"{word} has {value!r}; pass {known}.")
    if name == "clip" and isinstance(value, list | tuple) and len(value) == 2:
        return _value(name, value[0]), _value(name, value[1])
    number = as_number(word, value)
    if not 0 < number < inf:
        raise ValueError(f"{word} has {value!r}; pass numbers above 0.")
    return number


def as_count(name: str, value: Any) -> int:
    """Return a count as a plain number."""
    number = value.item() if isinstance(value, np.generic) else value
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ValueError(f"{name}={value!r} is not a whole number above 0.")
    return number


def changed(estimator: Any, name: str, value: Any) -> Any:
    """Return a copy with another value of a parameter; None if it has no such thing.

    name: "bins", "clip", "solver", "weighting" or "privacy".
    """
    params = (
        estimator.get_params()
        if isinstance(estimator, Preset)
        else estimator.get_params(deep=False)
    )
    if name == "privacy":
        # The budget is set later.
        kind, given = PRIVACY[value]
        return _set(estimator, privacy=getattr(privacy, kind)(1.0, **given))
    if name in ("clip", "solver", "weighting"):
        pair = name == "clip" and isinstance(value, tuple)
        if name not in params or (pair and "clip_per_class" not in params):
            return None
        return _set(estimator, **{name: value})
    if "n_bins" in params:
        return _set(estimator, n_bins=value)
    if "n_levels" in params:
        levels = log2(value) if value > 0 else 0.5
        if levels != int(levels) or levels < 1:
            raise ValueError(
                f"vary['bins'] has {value!r}; FedBBQ halves its bins, so pass powers "
                "of two, such as 128."
            )
        return _set(estimator, n_levels=int(levels))
    return None


def _set(estimator: Any, **params: Any) -> Any:
    if isinstance(estimator, Preset):
        return estimator.with_params(**params)
    return copy_to_fit(estimator).set_params(**params)


# What decides how rows are assigned, and therefore what the base and the oracle are.
OF_SPLIT = ("beta", "clients")

# Column of what is varied, where its name is that of something measured.
COLUMN = {"rounds": "n_rounds"}


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a comparison, and the cells that they make."""

    rows: Rows | ShardedShares
    methods: Mapping[str, Any]
    oracle: Any
    eps: Sequence[float | None]
    seeds: Sequence[int]
    vary: Mapping[str, Sequence[Any]]
    sizes: Mapping[str, Any]
    delta: float | None
    class_prior: Any
    runner: FederatedRunner
    n_bins: int
    seeded: bool = True

    def check(self) -> None:
        """Refuse settings that no cell could have."""
        if not 0 < self.sizes["test_size"] < 1:
            raise ValueError(f"test_size={self.sizes['test_size']} is not in (0, 1).")
        if not 0 < self.sizes["beta"] < inf:
            raise ValueError(f"beta={self.sizes['beta']} is not a number above 0.")
        if self.delta is not None and not 0 < self.delta < 1:
            raise ValueError(f"delta={self.delta} is not in (0, 1).")
        as_count("n_bins", self.n_bins)
        if not isinstance(self.runner, FederatedRunner):
            raise TypeError(
                f"runner must be a FederatedRunner or None, got {self.runner!r}."
            )
        if "beta" in self.vary and self.rows.clients is not None:
            raise ValueError(
                "vary='beta' assigns rows to clients, but these have clients already. "
                "Pass (logits, labels) without client_ids."
            )
        for point in self.points(OF_SPLIT):
            split = self.rows.partition(**self._split(point, self.seeds[0]))
            if len(split.test_labels) < 2 or not split.n_rows:
                raise ValueError(
                    f"{split.n_rows} rows to fit and {len(split.test_labels)} to "
                    "test are too few; pass more, or another test_size."
                )

    def points(self, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Return combinations of the varied values, eps left out."""
        chosen = {
            name: values
            for name, values in self.vary.items()
            if name != "eps" and (names is None or name in names)
        }
        return [
            dict(zip(chosen, values, strict=True))
            for values in product(*chosen.values())
        ]

    def cells(self) -> Iterator[Cell]:
        """All cells: base and oracle first, then by budget, method and seed."""
        for method, estimator in ((BASE, None), (CENTRAL, self._configured_oracle())):
            for point in self.points(OF_SPLIT):
                for seed in self.seeds:
                    yield self._cell(method, estimator, NO_VALUE, point, seed)
        budgets = self.vary.get("eps", self.eps)
        for eps, (name, method) in product(budgets, self.methods.items()):
            seen = set()
            for point in self.points():
                estimator, shown = self._at(method, point)
                mark = tuple(shown.values())
                if mark in seen:  # `vary` changes nothing for this method
                    continue
                seen.add(mark)
                for seed in self.seeds:
                    yield self._cell(
                        name,
                        self._configured(estimator, eps, seed, point),
                        budget_text(eps),
                        point,
                        seed,
                        shown,
                    )

    def _at(self, method: Any, point: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the method with parameters of a point, and what it has of them."""
        shown = {name: _shown(value) for name, value in point.items()}
        for name in ("bins", "clip", "solver", "weighting", "privacy"):
            if name in point:
                other = changed(method, name, point[name])
                if other is None:
                    shown[name] = NO_VALUE
                else:
                    method = other
        return method, shown

    def _configured_oracle(self) -> Any:
        oracle = self.oracle
        oracle = oracle.build() if isinstance(oracle, Preset) else copy_to_fit(oracle)
        return oracle.set_params(
            eps=None, runner=None, classes=range(len(self.rows.classes)), random_state=0
        )

    def _configured(
        self, estimator: Any, eps: float | None, seed: int, point: Mapping[str, Any]
    ) -> Any:
        n_rounds = point.get("rounds", self.runner.n_rounds)
        params: dict[str, Any] = {
            "classes": list(range(len(self.rows.classes))),
            "random_state": seed if self.seeded else None,
        }
        if isinstance(estimator, Preset):
            # Number and size of cohorts may differ from the paper, their kind not.
            params["runner"] = estimator.runner(n_rounds, self.runner.cohort_size)
            if eps is not None and "privacy" in estimator.params:
                params |= self._budget(estimator.params["privacy"], eps)
            elif "privacy" in estimator.params:
                params["privacy"] = None
            return estimator.build(eps, self.delta, **params)
        params["runner"] = replace(self.runner, n_rounds=n_rounds)
        params |= self._budget(estimator.get_params(deep=False).get("privacy"), eps)
        if self.class_prior is not None and "class_prior" in estimator.get_params():
            params["class_prior"] = self.class_prior
        return copy_to_fit(estimator).set_params(**params)

    def _budget(self, model: Any, eps: float | None) -> dict[str, Any]:
        """Parameters of the budget: of the estimator, or of its own privacy model."""
        given: dict[str, Any] = {"eps": eps}
        if self.delta is not None and eps is not None:
            given["delta"] = self.delta
        if not hasattr(model, "eps"):
            return given
        if eps is None:
            return {"eps": None, "privacy": None}
        known = {k: v for k, v in given.items() if hasattr(model, k)}
        return {"eps": None, "delta": None, "privacy": replace(model, **known)}

    def _cell(
        self,
        method: str,
        estimator: Any,
        eps: str,
        point: Mapping[str, Any],
        seed: int,
        shown: Mapping[str, Any] | None = None,
    ) -> Cell:
        varied = [name for name in self.vary if name != "eps"]
        shown = point if shown is None else shown
        labels = {
            "method": method,
            "eps": eps,
            **{COLUMN.get(n, n): shown.get(n, NO_VALUE) for n in varied},
            "seed": int(seed),
        }
        return Cell(
            method, estimator, labels, self._split(point, seed), int(self.n_bins)
        )

    def _split(self, point: Mapping[str, Any], seed: int) -> dict[str, Any]:
        return {
            "seed": int(seed),
            "n_clients": point.get("clients", self.sizes["n_clients"]),
            "beta": point.get("beta", self.sizes["beta"]),
            "test_size": self.sizes["test_size"],
        }

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of what is varied."""
        return tuple(COLUMN.get(name, name) for name in self.vary if name != "eps")

    def settings(self) -> dict[str, Any]:
        """What a reader needs to run it again."""
        dealt = self.rows.clients is None
        return {
            "version": __version__,
            "methods": list(self.methods),
            "eps": list(self.vary.get("eps", self.eps)),
            "seeds": list(self.seeds),
            "vary": dict(self.vary),
            "delta": self.delta,
            "n_classes": len(self.rows.classes),
            "clients dealt": dealt,
            "n_clients": self.sizes["n_clients"] or (N_CLIENTS if dealt else None),
            "beta": self.sizes["beta"] if dealt else None,
            "test given": self.rows.test is not None,
            "test_size": None
            if self.rows.test is not None
            else self.sizes["test_size"],
            "class_prior": None if self.class_prior is None else str(self.class_prior),
            "runner": repr(self.runner),
            "oracle": self.oracle.label
            if isinstance(self.oracle, Preset)
            else type(self.oracle).__name__.removesuffix("Calibrator"),
            "n_bins": int(self.n_bins),
        }


def _shown(value: Any) -> Any:
    """Value of `vary` as a key of a row: a number or a text."""
    if isinstance(value, tuple):
        return "/".join(f"{part:g}" for part in value)
    return "none" if value is None else value


def budget_text(eps: float | None) -> str:
    """Budget as a key of a row: short, but two budgets never look the same."""
    if eps is None:
        return "none"
    short = f"{eps:g}"
    return short if float(short) == eps else repr(float(eps))


def read_budgets(eps: Any) -> list[float | None]:
    """Return budgets, None for no noise."""
    if isinstance(eps, Real) or eps is None:
        eps = [eps]
    if not isinstance(eps, Iterable) or getattr(eps, "ndim", 1) == 0:
        raise TypeError(f"eps={eps!r}: pass a list of numbers above 0, or None.")
    found: list[float | None] = []
    for value in eps:
        number = None if value is None else as_number("eps", value)
        # What is above hides nothing, and has no square.
        if number is not None and not 0 < number <= LARGEST:
            raise ValueError(
                f"eps has {value!r}; pass finite numbers above 0, or None for no noise."
            )
        found.append(number)
    if not found or len(set(found)) < len(found):
        raise ValueError(f"eps={eps!r} must have entries, each once.")
    return found


def read_seeds(seeds: Any) -> list[int]:
    """Return a list of seeds; None is one run, with rows assigned by seed 0."""
    if seeds is None:
        return [0]
    listed = isinstance(seeds, Iterable) and getattr(seeds, "ndim", 1) > 0
    if isinstance(seeds, bool) or not (isinstance(seeds, Integral) or listed):
        raise TypeError(f"seeds must be a number or a list, got {seeds!r}.")
    found = list(range(seeds)) if isinstance(seeds, Integral) else list(seeds)
    whole = all(isinstance(s, Integral) and 0 <= int(s) < 2**32 for s in found)
    if not found or not whole or len(set(found)) < len(found):
        raise ValueError(
            f"seeds={seeds!r}: pass a number above 0, or a list of whole numbers from "
            "0, each once."
        )
    return [int(seed) for seed in found]


# Where nobody sees a bar move, a line now and then.
SECONDS_BETWEEN_LINES = 5.0
BAR = 24

# Cells after which the time that is left can be told.
SURE_CELLS = 5


class Progress:
    """Count finished cells; on a terminal as a bar, else as a line now and then.

    total: Cells in all.
    show: Callable: receives the number of finished cells and of all cells.
    """

    def __init__(self, total: int, show: bool | Callable[[int, int], object]) -> None:
        self.total, self.done, self._kept = total, 0, 0
        self._tell = show if callable(show) else None
        self._shown = show is True
        self._started = self._last = time.monotonic()
        self._open = False

    def start(self, n_kept: int) -> None:
        """Say how many cells were found on disk."""
        self.done = self._kept = n_kept
        if self._shown and n_kept:
            _write(f"[{n_kept} of {self.total} cells were finished before]\n")
        self._report(force=True)

    def step(self) -> None:
        """One more cell is done."""
        self.done += 1
        self._report(force=self.done == self.total)

    def close(self) -> None:
        """End the line of the bar."""
        if self._open:
            _write("\n")
            self._open = False

    def _report(self, force: bool) -> None:
        if self._tell is not None:
            self._tell(self.done, self.total)
        if not self._shown:
            return
        now = time.monotonic()
        filled = BAR * self.done // max(self.total, 1)
        bar = f"[{'#' * filled}{'.' * (BAR - filled)}]"
        text = f"{bar} {self.done}/{self.total} cells{self._left(now)}"
        if _is_terminal():
            _write(f"\r{text:<60}")
            self._open = True
        elif force or now - self._last >= SECONDS_BETWEEN_LINES:
            _write(f"{text}\n")
            self._last = now

    def _left(self, now: float) -> str:
        fresh = self.done - self._kept
        # The first cells wait for the processes to start.
        if fresh < SURE_CELLS or self.done == self.total:
            return ""
        seconds = round((now - self._started) / fresh * (self.total - self.done))
        return f", {seconds // 60}:{seconds % 60:02d} left"


def _is_terminal() -> bool:
    with suppress(AttributeError, ValueError):
        return sys.stderr.isatty()
    return False


def _write(text: str) -> None:
    # A reader that has gone away must not end a long run.
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text)
        sys.stderr.flush()


def compare(
    clients: Any,
    test: tuple[ArrayLike, ArrayLike] | None = None,
    *,
    methods: Any = None,
    eps: Sequence[float | None] = (None, 3.0, 1.0, 0.5),
    seeds: int | Sequence[int] | None = 3,
    vary: Mapping[str, Sequence[Any]] | None = None,
    client_ids: ArrayLike | None = None,
    classes: ArrayLike | None = None,
    input_type: str = "logits",
    n_clients: int | None = None,
    beta: float = BETA,
    test_size: float = 0.5,
    delta: float | None = None,
    class_prior: Any = None,
    runner: FederatedRunner | None = None,
    oracle: Any = "FedBiasTemp",
    n_bins: int = 15,
    store: str | os.PathLike[str] | None = None,
    n_jobs: int | Literal["auto"] | None = None,
    progress: bool | Callable[[int, int], object] = True,
) -> Comparison:
    r"""Compare calibration methods, with and without privacy, on the same clients.

    Every method is fitted by the same runner and pays by the same accounting, and is
    measured on the same test rows. Noise is seeded: a comparison is a simulation on
    rows that are at hand, and its own results are not private.

    Parameters
    ----------
    clients : list or dict of (logits, labels) pairs, tuple, path or ShardedClients
        Rows to calibrate on, of each client. A tuple ``(logits, labels)`` holds the
        rows of all; without `client_ids` they are assigned to `n_clients` clients with
        label skew `beta`. A str or path is a file or a folder for `load_federation`;
        what that returns is taken too. Of `ShardedClients`, or a folder of shards,
        whole shards are kept for the test (at most 200,000 rows) where none is given.
    test : tuple (logits, labels), default=None
        Rows to measure on. None keeps the share `test_size` of the rows (of each
        client) for it, another one with each seed.
    methods : list of str, calibrator or Preset, dict of name to these, default=None
        Names such as "FedTemp" or "temp", or calibrators, whose `eps`, `delta` (or
        those of their `privacy`), `classes`, `runner` and `random_state` are set here.
        A preset, such as those of `printed`, keeps its kind of cohort and accountant.
        None is what the registry marks as `compared`, with its variants; ``skfedcal
        compare --help`` lists them.
    eps : sequence of float or None, default=(None, 3.0, 1.0, 0.5)
        Budgets of a client; None adds no noise.
    seeds : int, sequence of int or None, default=3
        Seeds of noise, cohorts and the assignment of rows; a number is
        ``range(seeds)``. None is one run with noise from the operating system.
    vary : dict of str to list, default=None
        Values to run everything with, by name: "rounds" (of the runner), "beta" (label
        skew) and "clients" (number of them) of assigned rows, "bins" (per class, or
        those that FedBBQ starts from), "clip" (numbers, or pairs for positive and
        negative counts), "solver", "weighting", "privacy" (the model: "central",
        "zcdp", "distributed", "local"), or "eps". Each is a column of the table; that
        of the rounds asked for is "n_rounds".
    client_ids : array-like of shape (n_rows,), default=None
        Client of each row, where `clients` is a tuple.
    classes : array-like of shape (n_classes,), default=None
        Label of each column. None: columns are 0, 1, ..., or the sorted labels.
    input_type : {"logits", "log_proba", "proba"}, default="logits"
        What the rows are.
    n_clients : int, default=None
        Number of clients to assign rows to (None is 100), or to sample from those that
        are given (None is all).
    beta : float, default=0.1
        Parameter of the Dirichlet law of label skew; small is much skew.
    test_size : float, default=0.5
        Share of rows for testing where no test rows are given.
    delta : float, default=None
        Of all private fits; None is ``min(1e-5, 1 / (10 n_clients))``.
    class_prior : str or array-like, default=None
        Public class frequencies, for methods that have this parameter.
    runner : FederatedRunner, default=None
        Schedule of all fits. None asks all clients in each round and leaves the number
        of rounds to the method. Presets take `n_rounds` and `cohort_size` from it, if
        given.
    oracle : str or calibrator, default="FedBiasTemp"
        What is fitted centrally, to all rows in one place without noise.
    n_bins : int, default=15
        Bins of cwECE, ECE and reliability diagrams.
    store : str or path-like, default=None
        Folder for finished cells. A run with the same data and settings
        takes from there what is done; one that was killed goes on.
    n_jobs : int or 'auto', default=None
        Processes, as in joblib; None is one. 'auto' is one per core, and one where
        others would take longer to start than they save. The result is the same.
    progress : bool or callable, default=True
        Whether to show a bar on stderr; a callable receives the number of finished
        cells and of all cells.

    Returns
    -------
    Comparison
        A row per method and eps (and entry of `vary`), with means and deviations over
        seeds.

    See Also
    --------
    Comparison : What is returned, as text, Markdown, CSV, JSON, LaTeX and HTML.

    Notes
    -----
    "gap closed" is :math:`(b - m) / (b - o)` for the cwECE :math:`b` of the base,
    :math:`o` of the central oracle and :math:`m` of the method on the same test rows.
    There is none where the oracle gains less than two deviations of the floor.

    References
    ----------
    .. [1] "Private Federated Multiclass Post-hoc Calibration", Tables 2, 3, 5, 9 to 11.

    Examples
    --------
    >>> from skfedcal import compare, make_federation
    >>> fed = make_federation(n_clients=50, n_samples=3000, n_test=2000, random_state=0)
    >>> result = compare(
    ...     fed.clients, (fed.test_logits, fed.test_labels), methods=["temp", "bbq"],
    ...     eps=[None, 1], seeds=1, progress=False,
    ... )
    >>> [(row["method"], row["eps"]) for row in result.rows]
    [('base', '-'), ('central', '-'), ('FedTemp', 'none'), ('FedBBQ', 'none'),
     ('FedTemp', '1'), ('FedBBQ', '1')]
    >>> result.rows[2]["NLL"] < result.rows[0]["NLL"]
    True
    """
    rows = read_rows(
        clients, test, client_ids=client_ids, classes=classes, input_type=input_type
    )
    plan = Plan(
        rows,
        named_methods(methods),
        next(iter(named_methods([oracle]).values())),
        read_budgets(eps),
        read_seeds(seeds),
        _vary(vary),
        {
            "n_clients": None
            if n_clients is None
            else as_count("n_clients", n_clients),
            "beta": as_number("beta", beta),
            "test_size": as_number("test_size", test_size),
        },
        None if delta is None else as_number("delta", delta),
        class_prior,
        FederatedRunner() if runner is None else runner,
        n_bins,
        seeds is not None,
    )
    plan.check()
    kept = CellStore(store)
    cells = list(plan.cells())
    _warn_without_pld(cells)
    results = _run(cells, rows, kept, n_jobs, progress)
    return _collect(plan, cells, results)


def _warn_without_pld(cells: Sequence[Cell]) -> None:
    """Say once which methods get more noise than needed.

    A fit says it too, but its warnings are part of the result, and noise that was
    calibrated before in the same process is not calibrated again.
    """
    names = dict.fromkeys(cell.method for cell in cells if cell.credits_sampling)
    if names and load_pld() is None:  # whose import takes a quarter of a second
        warnings.warn(
            f"dp-accounting is not installed: the noise of {', '.join(names)} is "
            "that of full participation, without credit for Poisson cohorts. "
            f"{INSTALL} lowers it.",
            PrivacyWarning,
            stacklevel=3,
        )


def _vary(given: Any) -> dict[str, list[Any]]:
    vary = check_vary(given)
    return {**vary, "eps": read_budgets(vary["eps"])} if "eps" in vary else vary


def _run(
    cells: Sequence[Cell],
    rows: Rows | ShardedShares,
    store: CellStore,
    n_jobs: int | Literal["auto"] | None,
    progress: bool | Callable[[int, int], object],
) -> list[dict[str, Any]]:
    """Results of all cells, from the store or by running them."""
    if isinstance(n_jobs, str) and n_jobs != "auto":
        raise ValueError(f"n_jobs={n_jobs!r}: pass a whole number, None or 'auto'.")
    if isinstance(rows, ShardedShares) and n_jobs not in (None, 1, "auto"):
        raise ValueError(
            f"n_jobs={n_jobs}: cells over shards run one after the other, and the "
            "executor of ShardedClients works for each. Leave n_jobs out."
        )
    # Without a store, what cannot be hashed is taken too, such as a ledger in memory.
    digest = "" if store.folder is None else rows.digest()
    keys = [cell.key(digest) if digest else "" for cell in cells]
    results = [_load_finished(store, key) for key in keys]
    todo = [i for i, result in enumerate(results) if result is None]
    if n_jobs == "auto":
        n_jobs = _n_processes(len(todo), rows)
    bar = Progress(len(cells), progress)
    bar.start(len(cells) - len(todo))
    jobs = (joblib.delayed(run_cell)(cells[i], keys[i], rows, store) for i in todo)
    try:
        with joblib.Parallel(n_jobs=n_jobs, return_as="generator") as pool:
            with _interrupts_held(n_processes=pool.n_jobs):
                work = pool(jobs)
            for i, result in zip(todo, work, strict=True):
                results[i] = result
                bar.step()
    except BaseException:
        # The pool has killed its workers, maybe while they wrote.
        store.remove_drafts(keys[i] for i in todo)
        raise
    finally:
        bar.close()
    return [result for result in results if result is not None]


# A cell takes about 2 microseconds per entry of the logits, and not less than those of
# small data; a worker takes 2 seconds to start, most of it for imports.
_LEAST_ENTRIES, _START_ENTRIES = 20_000, 1_000_000


def _n_processes(n_cells: int, rows: Rows | ShardedShares) -> int:
    """One process per core if that saves more than the start of workers takes."""
    if isinstance(rows, ShardedShares):
        return 1
    n_cores = joblib.cpu_count()
    work = n_cells * max(rows.logits.size, _LEAST_ENTRIES)
    return n_cores if work * (1 - 1 / n_cores) > _START_ENTRIES else 1


@contextmanager
def _interrupts_held(n_processes: int | None) -> Iterator[None]:
    """Hold Ctrl-C back; workers that are started meanwhile do not receive it.

    A terminal sends it to them too, and they would print a traceback wherever they are;
    it is enough that this process stops them.
    """
    if n_processes in (None, 1) or sys.platform == "win32":  # it has no signal masks
        yield
        return
    # Started within, it would take the mask off.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _load_finished(store: CellStore, key: str) -> dict[str, Any] | None:
    """Return a finished cell; one that is damaged is run again."""
    found = store.load(key)
    if found is None:
        return None
    try:
        check_result(found)
    except ValueError:
        return None
    return found


def _collect(
    plan: Plan, cells: Sequence[Cell], results: Sequence[dict[str, Any]]
) -> Comparison:
    runs, failed = [], {}
    for cell, result in zip(cells, results, strict=True):
        if "error" in result:
            failed[f"{cell.method} (eps {cell.labels['eps']})"] = result["error"]
        else:
            runs.append({**cell.labels, **result})
    refused = tuple(f"{name}: {text}" for name, text in failed.items())
    if not any(run["method"] in plan.methods for run in runs):
        raise ValueError(f"No method could be fitted. {refused[-1]}")
    for text in refused:
        warnings.warn(f"Left out: {text}", CalibrationWarning, stacklevel=3)
    return Comparison(runs, plan.settings(), plan.columns, refused)
