"""The engine: methods, budgets and seeds as cells that are run once each."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any

import joblib
from numpy.typing import ArrayLike

from skfedcal._params import as_number
from skfedcal.exceptions import CalibrationWarning
from skfedcal.experiments._store import CellStore
from skfedcal.experiments.comparison._cells import Cell, run_cell
from skfedcal.experiments.comparison._check import check_result
from skfedcal.experiments.comparison._named import check_vary, named_methods, whole
from skfedcal.experiments.comparison._plan import Plan, read_budgets, read_seeds
from skfedcal.experiments.comparison._progress import Progress
from skfedcal.experiments.comparison._result import Comparison
from skfedcal.experiments.comparison._rows import BETA, Rows, read_rows
from skfedcal.federation import FederatedRunner


def compare(
    clients: Any,
    test: tuple[ArrayLike, ArrayLike] | None = None,
    *,
    methods: Any = None,
    eps: Sequence[float | None] = (None, 3.0, 1.0, 0.5),
    seeds: int | Sequence[int] = 3,
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
    n_jobs: int | None = None,
    progress: bool | Callable[[int, int], object] = True,
) -> Comparison:
    r"""Compare calibration methods, with and without privacy, on the same clients.

    Every method is fitted by the same runner and pays by the same accounting, and is
    measured on the same test rows. All noise is seeded: a comparison is a simulation on
    rows that are at hand, and its own results are not private.

    Parameters
    ----------
    clients : list or dict of (logits, labels) pairs, tuple, str or path-like
        Rows to calibrate on, of each client. A tuple ``(logits, labels)`` holds the
        rows of all; without `client_ids` they are dealt to `n_clients` clients with
        label skew `beta`. A str or path is a file or a folder for `load_federation`;
        what that returns is taken too.
    test : tuple (logits, labels), default=None
        Rows to measure on. None keeps the share `test_size` of the rows (of each
        client) for it, another one with each seed.
    methods : list of str or calibrator, dict of name to these, default=None
        Names such as "FedTemp" or "temp", or calibrators, whose `eps`, `delta`,
        `classes`, `runner` and `random_state` are set here. None is FedTemp,
        FedBiasTemp, FedBBQ (without weights, and "FedBBQ-all"), FedOPVector, FedVector
        and FedMLP (FedCal).
    eps : sequence of float or None, default=(None, 3.0, 1.0, 0.5)
        Budgets of a client; None adds no noise.
    seeds : int or sequence of int, default=3
        Seeds of noise, cohorts and of what is dealt out; a number is ``range(seeds)``.
    vary : dict of str to list, default=None
        Values to run everything with, by name: "rounds" (of the runner), "beta" (label
        skew) and "clients" (number of them) of what is dealt out, "bins" (per class, or
        those that FedBBQ starts from), "clip", or "eps". Each is a column of the table;
        that of the rounds asked for is "n_rounds".
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
        of rounds to the method. ``FederatedRunner(n_rounds=12, cohort="independent",
        cohort_size=10)`` is the paper's.
    oracle : str or calibrator, default="FedBiasTemp"
        What is fitted centrally, to all rows in one place without noise.
    n_bins : int, default=15
        Bins of cwECE, ECE and reliability diagrams.
    store : str or path-like, default=None
        Folder for finished cells. A run with the same data and settings
        takes from there what is done; one that was killed goes on.
    n_jobs : int, default=None
        Processes, as in joblib; None is one.
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
            "n_clients": None if n_clients is None else whole("n_clients", n_clients),
            "beta": as_number("beta", beta),
            "test_size": as_number("test_size", test_size),
        },
        None if delta is None else as_number("delta", delta),
        class_prior,
        FederatedRunner() if runner is None else runner,
        n_bins,
    )
    plan.check()
    kept = CellStore(store)
    cells = list(plan.cells())
    results = _run(cells, rows, kept, n_jobs, progress)
    return _collect(plan, cells, results)


def _vary(given: Any) -> dict[str, list[Any]]:
    vary = check_vary(given)
    return {**vary, "eps": read_budgets(vary["eps"])} if "eps" in vary else vary


def _run(
    cells: Sequence[Cell],
    rows: Rows,
    store: CellStore,
    n_jobs: int | None,
    progress: bool | Callable[[int, int], object],
) -> list[dict[str, Any]]:
    """Results of all cells, from the store or by running them."""
    digest = rows.digest()
    keys = [cell.key(digest) for cell in cells]
    results = [_load_finished(store, key) for key in keys]
    todo = [i for i, result in enumerate(results) if result is None]
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
    finally:
        bar.close()
    return [result for result in results if result is not None]


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
