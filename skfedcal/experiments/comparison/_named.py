"""Methods by name, and what `vary` changes in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, log2
from typing import Any

import numpy as np

from skfedcal import calibrators
from skfedcal._params import as_number
from skfedcal._sklearn_compat import copy_to_fit

# What is called by a name of its own without being a class of its own.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "FedBBQ-all": ("FedBBQCalibrator", {"weighting": "all"}),
}

# Methods of the paper's Tables 2 and 3 (FedCal is FedMLP), and ours.
DEFAULT = (
    "FedTemp",
    "FedBiasTemp",
    "FedBBQ",
    "FedBBQ-all",
    "FedOPVector",
    "FedVector",
    "FedMLP",
)

VARY = ("rounds", "beta", "eps", "bins", "clip", "clients")


def known_methods() -> dict[str, tuple[str, dict[str, Any]]]:
    """Class and parameters of every public calibrator, by its name in tables."""
    ending = "Calibrator"
    found: dict[str, tuple[str, dict[str, Any]]] = {
        name.removesuffix(ending): (name, {})
        for name in calibrators.__all__
        if name.startswith("Fed") and name.endswith(ending)
    }
    return {**found, **VARIANTS}


def named_methods(methods: Any) -> dict[str, Any]:
    """Return estimators by name from names, estimators or a dict of these."""
    if methods is None:
        methods = DEFAULT
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
    if hasattr(entry, "get_params") and hasattr(entry, "fit"):
        name = type(entry).__name__.removesuffix("Calibrator")
        return name, copy_to_fit(entry)
    known = known_methods()
    short = {_short(name): name for name in known}
    word = str(entry)
    name = short.get(_short(word), word) if isinstance(entry, str) else word
    if name not in known:
        raise ValueError(
            f"Unknown method {entry!r}; known are {sorted(short)}. Pass a dict of name "
            "and calibrator for others."
        )
    class_name, params = known[name]
    return name, getattr(calibrators, class_name)(**params)


def _short(name: str) -> str:
    """Name as on the command line: ``temp`` for FedTempCalibrator."""
    return name.lower().removesuffix("calibrator").removeprefix("fed")


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
        if name != "eps" and len(set(found[name])) < len(values):
            raise ValueError(f"vary[{name!r}]={values!r} has a value twice.")
    return found


def _value(name: str, value: Any) -> Any:
    """Value of `vary` as a plain number; budgets are read elsewhere."""
    word = f"vary[{name!r}]"
    if name in ("rounds", "bins", "clients"):
        return whole(word, value)
    if name == "eps" or (name == "clip" and isinstance(value, str) and value == "auto"):
        return value
    number = as_number(word, value)
    if not 0 < number < inf:
        raise ValueError(f"{word} has {value!r}; pass numbers above 0.")
    return number


def whole(name: str, value: Any) -> int:
    """Return a count as a plain number."""
    number = value.item() if isinstance(value, np.generic) else value
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ValueError(f"{name}={value!r} is not a whole number above 0.")
    return number


def changed(estimator: Any, name: str, value: Any) -> Any:
    """Return a copy with other bins or another clip; None if it has no such thing."""
    params = estimator.get_params(deep=False)
    if name == "clip":
        return copy_to_fit(estimator).set_params(clip=value)
    if "n_bins" in params:
        return copy_to_fit(estimator).set_params(n_bins=value)
    if "n_levels" in params:
        levels = log2(value) if value > 0 else 0.5
        if levels != int(levels) or levels < 1:
            raise ValueError(
                f"vary['bins'] has {value!r}; FedBBQ halves its bins, so pass powers "
                "of two, such as 128."
            )
        return copy_to_fit(estimator).set_params(n_levels=int(levels))
    return None
