"""Which search FedAccTempCalibrator runs, over which temperatures; all of it public."""

import numpy as np

from skfedcal._params import as_number
from skfedcal.algorithms._gap_curve import CURVE_GRID
from skfedcal.algorithms._top_label import mean_confidence
from skfedcal.data._arrays import read_array
from skfedcal.data._scores import to_logits

# Searches that an objective has, the first of which 'auto' takes under noise, and what
# it takes without.
SEARCHES = {
    "accuracy": ("two_point", "bisect", "golden"),
    "nll": ("bisect", "golden"),
    "ece": ("golden",),
}
EXACT = {"accuracy": "newton", "nll": "newton", "ece": "grid"}

# Queries of 'auto', and the fewest that a search can do with. The paper's golden
# section has K = 5 steps, which are 6 queries.
_USUAL = {"bisect": 4, "golden": 6}
_FEWEST = {"two_point": 2, "bisect": 1, "golden": 2}
# Temperatures asked at once, by the least noise per unit that they are for.
_POINTS = ((0.03, 2), (0.003, 4), (0.0, 6))

# Public rows that are used.
_MAX_PUBLIC = 5000


def choose_search(params, private):
    """Search for an objective, as given or the best one.

    Parameters
    ----------
    params : FedAccTempCalibrator
        For its parameters.
    private : bool
        Whether there is noise.

    Returns
    -------
    search : {'two_point', 'bisect', 'golden', 'newton', 'grid'}
        The last two are exact.
    """
    allowed = SEARCHES[params.objective]
    if params.search == "auto" and private:
        return allowed[0]
    if params.search == "auto":
        if params.n_queries != "auto":
            raise ValueError(
                f"n_queries={params.n_queries!r} has no meaning for the exact search "
                "that search='auto' takes without noise; pass a search, or eps."
            )
        return EXACT[params.objective]
    if params.search not in allowed:
        raise ValueError(
            f"search={params.search!r} does not know objective={params.objective!r}; "
            f"pass one of {('auto', *allowed)}."
        )
    return params.search


def choose_queries(n_queries, search, noise):
    """Temperatures to ask, given the noise of one number per unit."""
    if n_queries == "auto":
        if search in _USUAL:
            return _USUAL[search]
        return next(n for least, n in _POINTS if noise >= least)
    if n_queries < _FEWEST[search]:
        raise ValueError(
            f"n_queries={n_queries} is too few for search={search!r}, which needs "
            f"{_FEWEST[search]} at least."
        )
    return int(n_queries)


def n_asked(total):
    """Temperatures of one round, from what it released."""
    if "parts" in total:
        return (len(total["parts"]) + 1) // 2
    return len(total["gaps"]) if "gaps" in total else 1


def doubt(cal, private):
    """What is to be said about a fitted temperature, or None."""
    low, high = (float(v) for v in cal._range())
    start, stop = cal.temperature_interval_
    if cal._bounded:
        return (
            f"No temperature inside temperature_range={(low, high)} is the optimum: "
            f"stopped at T = {cal.temperature_:.4g}. The range may be too narrow, or "
            "the rows all right, all wrong, or without information about the labels."
        )
    if not cal._converged:
        return (
            f"Not converged after {cal.n_rounds_} rounds: cohorts that change from "
            "round to round move the optimum. Use cohort='full'."
        )
    if private and cal._gain and (start < 1.02 * low or stop > 0.98 * high):
        return (
            f"The interval for T, {start:.3g} to {stop:.3g}, reaches the end of "
            f"temperature_range={(low, high)}; a wider range may give another T."
        )
    if cal._gain and (cal.temperature_ < start or cal.temperature_ > stop):
        return (
            f"search={cal.search_!r} ended at T = {cal.temperature_:.3g}, outside of "
            f"the interval that its answers give, {start:.3g} to {stop:.3g}: noise led "
            "it astray, or there were too few queries. search='two_point' weighs all "
            "answers."
        )
    return None


def less_noise(model):
    """Way to less noise at the same eps, for a message; '' where there is none."""
    from skfedcal.privacy._client_models import SourceDP

    other = "DistributedDP(eps, unit='example')"
    if isinstance(model, SourceDP):
        return f", and so would noise that is added once: {other}"
    if model.unit == "client":
        return f", and so would noise that hides single rows: {other}"
    return ""


def checked_range(temperature_range, prior_temperature):
    """Lowest and highest temperature; raises for what is no range around the prior."""
    pair = read_array(temperature_range, "temperature_range")
    good = pair.shape == (2,) and pair.dtype.kind in "iuf"
    if not good or not 0 < pair[0] < pair[1] < np.inf:
        raise ValueError(
            f"temperature_range={temperature_range!r} must be two finite numbers above "
            "0, the lower one first."
        )
    prior = as_number("prior_temperature", prior_temperature)
    if not pair[0] <= prior <= pair[1]:
        raise ValueError(
            f"prior_temperature={prior_temperature!r} is outside of "
            f"temperature_range={temperature_range!r}; widen the range."
        )
    return pair.astype(np.float64)


def public_curve(rows, n_classes, input_type):
    """Mean confidence of public rows at the temperatures of `CURVE_GRID`."""
    if rows is None:
        return ()
    try:
        rows = np.asarray(rows, dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"public_logits must hold numbers: {error}.") from None
    rows = rows.reshape(-1, 1) if rows.ndim == 1 else rows
    fits = rows.ndim == 2 and rows.shape[1] in (n_classes - 1, n_classes)
    if not fits or not len(rows) or not np.isfinite(rows.max(axis=1)).all():
        raise ValueError(
            f"public_logits of shape {rows.shape} must hold rows for {n_classes} "
            "classes, of the form given to fit, without NaN and +inf."
        )
    rows = rows[:: -(-len(rows) // _MAX_PUBLIC)]
    logits = to_logits(rows, n_classes, input_type=input_type)
    return tuple(float(v) for v in mean_confidence(logits, np.exp(CURVE_GRID)))
