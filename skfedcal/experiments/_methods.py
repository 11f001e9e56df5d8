"""Classifiers and calibrators that the tables compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from skfedcal.calibrators import (
    FedBBQCalibrator,
    FedBiasTempCalibrator,
    FedTempCalibrator,
)
from skfedcal.training import (
    MMCE,
    MMD,
    FedAvgClassifier,
    FedGaussianHead,
    fedlc,
    fedprox,
    fl_fcr,
    moon,
    nucfl,
)

Method = Callable[..., Any]


def train_time_methods() -> dict[str, Method]:
    """Methods of Table 4 of the paper, and the loss that does best among local ones."""
    return {
        "FedAvg": FedAvgClassifier,
        "MMCE": partial(FedAvgClassifier, penalties=MMCE()),
        "focal": partial(FedAvgClassifier, loss="focal"),
        "MMD": partial(FedAvgClassifier, penalties=MMD()),
        "NUCFL": nucfl,
        "logit-adjusted": partial(FedAvgClassifier, loss="logit_adjusted"),
    }


def skew_methods() -> dict[str, Method]:
    """Methods of Tables II to IV of the paper, and averaging with a Gaussian head."""
    return {
        "FedAvg": FedAvgClassifier,
        "FedProx": fedprox,
        "MOON": moon,
        "FedLC": fedlc,
        "FL-FCR, loss only": partial(FedAvgClassifier, loss="margin"),
        "FL-FCR, uniform prior": partial(fl_fcr, prior="uniform"),
        "FL-FCR": fl_fcr,
        "FedAvg + LDA head": partial(FedAvgClassifier, head=FedGaussianHead()),
    }


def post_hoc_calibrators() -> dict[str, Any]:
    """Calibrators of Table 4, and the one that takes class bias away."""
    return {
        "none": None,
        "FedTemp": FedTempCalibrator(),
        "FedBBQ": FedBBQCalibrator(),
        "FedBiasTemp": FedBiasTempCalibrator(),
    }


def with_defaults(
    params: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return parameters of classifiers; the default size of an MLP is for no other."""
    merged = {**defaults, **params}
    if "module" in params and "module_params" not in params:
        merged.pop("module_params", None)
    return merged


def chosen(
    methods: Mapping[str, Any] | list[str] | None, known: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return methods that are given, named or, with None, all that are known."""
    if methods is None:
        return known
    if isinstance(methods, Mapping):
        return methods
    if not isinstance(methods, list | tuple):
        raise TypeError(f"{methods!r} names no methods; pass a list or a dict.")
    unknown = [n for n in methods if not isinstance(n, str) or n not in known]
    if unknown:
        raise ValueError(
            f"Unknown name(s) {unknown}; known are {list(known)}. Pass a dict of name "
            "and object for others."
        )
    return {name: known[name] for name in methods}
