"""Checks of a comparison that was read from a file: every value exists and is valid."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from skfedcal.experiments.comparison._clients import DIFFERENCES
from skfedcal.federation._plain import once

# Squares of numbers up to this are numbers too.
LARGEST = 1e100

NUMBERS = (
    "accuracy", "balanced", "cwECE", "floor", "floor_sd", "ECE", "NLL", "Brier",
    "acc change", "NLL gain", "NLL gain error", "confidence",
)  # fmt: skip
COUNTS = ("n_clients", "n_rows", "n_test")
COSTS = ("rounds", "bytes", "client seconds", "eps spent", "delta", "noise")
BINS = ("n", "confidence", "hits")
VARIED = ("beta", "n_rounds", "bins", "clip", "clients")


def parse(text: Any) -> Any:
    """Parsed JSON; ValueError for duplicate names and invalid numbers."""
    if not isinstance(text, str | bytes):
        raise TypeError(f"Pass the text of a file, not a {type(text).__name__}.")
    try:
        found = json.loads(text, object_pairs_hook=once, parse_float=_finite)
        # Half of a letter can be written in JSON, and nowhere else.
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"This is not JSON: {error}") from None
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{text[:20]} is not a number")
    return value


def check_comparison(
    runs: Sequence[Any], settings: Mapping[str, Any], varied: Any, refused: Any
) -> None:
    """Raise ValueError that names what is missing or invalid."""
    _need(all(isinstance(text, str) for text in refused), "refused")
    _need(set(varied) <= set(VARIED), "varied")
    _check_settings(settings)
    for run in runs:
        _need(isinstance(run, Mapping), "runs")
        check_result(run)
        _need(isinstance(run.get("method"), str), "method")
        _need(_is_eps(run.get("eps")), "eps")
        _need(_is_count(run.get("seed"), 0), "seed")
        for name in varied:
            value = run.get(name)
            _need(isinstance(value, str) or _is_number(value), name)
    methods = [run["method"] for run in runs]
    _need("base" in methods and set(methods) - {"base", "central"}, "runs")
    for run in runs:
        known = run["method"] in ("base", "central")
        _need((run["eps"] == "-") == known, "eps")


def check_result(result: Mapping[str, Any]) -> None:
    """Raise ValueError unless these are the measurements of one cell."""
    for name in NUMBERS:
        _need(_is_number(result.get(name)), name)
    _need(0 <= result["accuracy"] <= 1, "accuracy")
    for name in COUNTS:
        _need(_is_count(result.get(name), 1), name)
    for name in COSTS:
        value = result.get(name)
        _need(value is None or (_is_number(value) and value >= 0), name)
    _need(isinstance(result.get("used"), bool), "used")
    if result.get("eps spent") is not None:
        _need(result.get("delta") is not None, "delta")
        _need(result.get("noise") is not None, "noise")
        _need(isinstance(result.get("simulated"), bool), "simulated")
        for name in ("unit", "accountant"):
            _need(isinstance(result.get(name), str), name)
    _need(_is_texts(result.get("warnings", [])), "warnings")
    _check_bins(result.get("reliability"))
    if "clients differ" in result:
        found = result["clients differ"]
        same = isinstance(found, Mapping) and set(found) == set(DIFFERENCES)
        _need(same and all(map(_is_number, found.values())), "clients differ")


def _check_bins(bins: Any) -> None:
    """Counts by bin, of which each row is in one."""
    _need(isinstance(bins, Mapping), "reliability")
    parts = [bins.get(name) for name in BINS]
    _need(all(isinstance(part, list) and part for part in parts), "reliability")
    _need(len({len(part) for part in parts}) == 1, "reliability")
    for values in zip(*parts, strict=True):
        _need(all(map(_is_number, values)), "reliability")
        n, confidence, hits = values
        _need(n == 0 or n >= 1, "reliability")
        _need(0 <= hits <= n and 0 <= confidence <= n * (1 + 1e-6), "reliability")


def _check_settings(settings: Mapping[str, Any]) -> None:
    for name in ("version", "oracle"):
        _need(isinstance(settings.get(name), str), name)
    for name in ("clients dealt", "test given"):
        _need(isinstance(settings.get(name), bool), name)
    _need(_is_texts(settings.get("methods")), "methods")
    _need(isinstance(settings.get("seeds"), list), "seeds")
    _need(_is_count(settings.get("n_classes"), 2), "n_classes")
    vary = settings.get("vary", {})
    _need("vary" in settings and isinstance(vary, Mapping), "vary")
    _need(not settings["clients dealt"] or _is_number(settings.get("beta")), "beta")
    betas = vary.get("beta", [])
    _need(isinstance(betas, list) and all(map(_is_number, betas)), "vary")


def _need(holds: object, name: str) -> None:
    if not holds:
        raise ValueError(f"{name!r} is missing or has an invalid value")


def _is_number(value: Any) -> bool:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return known and abs(value) <= LARGEST  # false for nan


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and _is_number(value) and value >= least


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_eps(value: Any) -> bool:
    if value in ("-", "none"):
        return True
    try:
        return isinstance(value, str) and 0 < float(value) <= LARGEST
    except ValueError:
        return False
