"""Settings of a runner that cannot be, and what they make sure of."""

from __future__ import annotations

import os
from math import ceil, inf
from numbers import Integral
from typing import TYPE_CHECKING

from skfedcal._params import check_flag
from skfedcal.exceptions import SecureAggregationError
from skfedcal.federation._cohorts import Schedule
from skfedcal.federation._mask_plan import LARGEST_COHORT, SMALLEST_COHORT

if TYPE_CHECKING:
    from skfedcal.federation._runner import FederatedRunner


def check_settings(runner: FederatedRunner, n_clients: int) -> None:
    """Refuse settings that cannot be for so many clients.

    Raises
    ------
    ValueError
        Naming the setting.
    """
    if not isinstance(runner.cohort, str):
        raise TypeError(f"FederatedRunner(cohort={runner.cohort!r}): pass a word.")
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


def check_masked_sums(runner: FederatedRunner, schedule: Schedule) -> None:
    """Refuse masked sums that cannot be, before anything is paid.

    Raises
    ------
    SecureAggregationError
        If a sum is of too few clients, or of too many. A Poisson sample is known too
        late.
    """
    if schedule.cohort == "poisson":
        return
    least = sure_answers(runner, schedule)
    if not SMALLEST_COHORT <= least <= schedule.size <= LARGEST_COHORT:
        raise SecureAggregationError(
            f"FederatedRunner(secure=True) has sums of {least} to {schedule.size} "
            f"clients; a masked sum of fewer than {SMALLEST_COHORT} hides nobody, and "
            f"{LARGEST_COHORT} are the most. Pass another cohort_size."
        )


def sure_answers(runner: FederatedRunner, schedule: Schedule) -> int:
    """Clients of the smallest sum if all answer; a Poisson sample may be empty."""
    if schedule.cohort == "poisson":
        return 0
    if schedule.cohort == "full":
        # Cohorts are summed one by one, and each sum is opened.
        n_sums = ceil(schedule.n_clients / schedule.size)
        return schedule.n_clients - (n_sums - 1) * schedule.size
    return smallest_cohort(runner, schedule.n_clients)


def smallest_cohort(runner: FederatedRunner, n_clients: int) -> int:
    """Clients that every round is sure to have, if all answer."""
    whole = runner.cohort in ("full", "poisson")  # a sample has no sure size
    if whole or not isinstance(runner.cohort_size, Integral):
        return n_clients
    size = min(max(int(runner.cohort_size), 1), n_clients)
    if runner.cohort == "permuted":
        return n_clients - (ceil(n_clients / size) - 1) * size
    return size
