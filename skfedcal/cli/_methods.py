"""Calibration methods by the short names of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from skfedcal.cli._command import UsageError


@dataclass(frozen=True, slots=True)
class Method:
    """A calibrator and those of its parameters that have an option.

    Attributes
    ----------
    estimator : str
        Name of the class in `skfedcal`.
    options : tuple of str
        Parameters, spelled as in Python, that other methods do not have.
    facts : dict
        Fitted attribute or parameter to show, by its name for the reader.
    """

    estimator: str
    options: tuple[str, ...]
    facts: Mapping[str, str]

    def describe(self, calibrator: Any) -> dict[str, Any]:
        """Return the facts of a fitted calibrator."""
        return {name: getattr(calibrator, key) for name, key in self.facts.items()}


METHODS = {
    "auto": Method(
        "FedAutoCalibrator",
        ("class_prior",),
        {"choice": "choice_", "reason": "reason_"},
    ),
    "temp": Method("FedTempCalibrator", ("solver",), {"temperature": "temperature_"}),
    "acctemp": Method(
        "FedAccTempCalibrator",
        (),
        {"temperature": "temperature_", "queries": "n_queries_"},
    ),
    "biastemp": Method(
        "FedBiasTempCalibrator",
        ("residual", "class_prior"),
        {"temperature": "temperature_"},
    ),
    "vector": Method("FedVectorCalibrator", (), {"converged": "converged_"}),
    "matrix": Method("FedMatrixCalibrator", (), {"converged": "converged_"}),
    "opvector": Method("FedOPVectorCalibrator", (), {"converged": "converged_"}),
    "mlp": Method("FedMLPCalibrator", (), {"epochs per round": "epochs"}),
    "bbq": Method("FedBBQCalibrator", ("n_levels",), {"levels": "n_levels"}),
    "histogram": Method("FedHistogramCalibrator", (), {"curve": "method_"}),
    "bin": Method("FedBinCalibrator", ("n_bins",), {"bins per class": "n_bins"}),
    "topbin": Method("FedTopBinCalibrator", ("n_bins",), {"bins": "n_bins"}),
}


def method_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of ``args.method`` that were given.

    Options that belong to other methods are an error.
    """
    names = sorted({name for method in METHODS.values() for name in method.options})
    given = {name: getattr(args, name) for name in names}
    given = {name: value for name, value in given.items() if value is not None}
    for key in given:
        if key in METHODS[args.method].options:
            continue
        owners = [other for other, m in METHODS.items() if key in m.options]
        raise UsageError(
            f"--{key.replace('_', '-')} is an option of --method "
            f"{' or '.join(owners)}, not of {args.method}. Leave it out."
        )
    return given
