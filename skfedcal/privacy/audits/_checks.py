"""Checks of what was heard at the door of single fits."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from math import isnan, log, sqrt
from typing import Any

import numpy as np

from skfedcal.privacy._report import PrivacyReport
from skfedcal.privacy.audits._errors import Claim
from skfedcal.privacy.audits._laws import is_additive, laplace_scale, log_repeats
from skfedcal.privacy.audits._noise import UNLIKELY
from skfedcal.privacy.audits._result import AuditCheck
from skfedcal.privacy.audits._tap import Tape

# Of sums of squares of floats.
_ROUNDING = 1e-9
# Of equations that are solved for mu.
_SOLVED = 1e-6
# What may differ between two fits with the same releases: names of debits, and time.
_PRIVATE = {"ledger_ids", "seconds", "client_seconds"}


def strength(tape: Tape, claim: Claim) -> float:
    """What the canary shows over all rounds: its `mu`, or its `eps`.

    From the integers that it sends and the noise that the mechanism says it adds.
    """
    total = 0.0
    for part in tape.rounds:
        for name in part.sent:
            gap = (part.sent[name] - part.swapped[name]).astype(float)
            sd = part.released.noise[name] / part.step(name)
            if claim.mu is not None:
                total += float(gap @ gap) / sd**2
            else:
                total += float(np.abs(gap).sum()) / laplace_scale(sd)
    return sqrt(total) if claim.mu is not None else total


def check_claim(report: PrivacyReport, model: Any) -> AuditCheck:
    """Whether what is reported is what was asked for, and adds up."""
    from skfedcal.privacy._accounting import gdp_epsilon

    delta = getattr(model, "delta", None)
    eps = report.eps
    if report.mu is not None:
        eps = max(eps, gdp_epsilon(report.mu, report.delta))
    passed = eps <= model.eps * (1 + _SOLVED)
    if delta is not None:
        passed = passed and report.delta <= delta * (1 + _SOLVED)
    limit = "" if delta is None else f", delta <= {delta:.3g}"
    return AuditCheck(
        "claim",
        passed,
        f"eps {eps:.4f}, delta {report.delta:.3g}",
        f"eps <= {model.eps:.4f}{limit}",
    )


def check_sensitivity(tapes: dict[str, Tape]) -> AuditCheck:
    """Whether every client, in every round, keeps its bound, in exact integers."""
    worst, where, kept = 0.0, "none", True
    for label, tape in tapes.items():
        for part in tape.rounds:
            for name, code in part.codec.blocks.items():
                if code.step is None or name not in part.longest:
                    continue
                # In integers: a float could round the excess away.
                kept = kept and part.longest[name] <= code.limit
                found = part.longest[name] / max(code.limit, 1)
                if code.spec.norm == "l2":
                    found = sqrt(found)
                if found > worst:
                    worst, where = found, f"{label}, {name}"
    return AuditCheck(
        "bound of a client", kept, f"{worst:.4f} of the bound ({where})", "<= 1"
    )


def check_strength(tapes: dict[str, Tape], claim: Claim) -> AuditCheck:
    """Whether what a canary shows is within the claim."""
    found = {
        label: strength(tape, claim)
        for label, tape in tapes.items()
        if all(is_additive(part) for part in tape.rounds)
    }
    kind = "eps" if claim.mu is None else "mu"
    label = max(found, key=found.__getitem__, default="no canary")
    worst = found.get(label, 0.0)
    return AuditCheck(
        "noise for the bound",
        worst <= claim.size * (1 + _ROUNDING),
        f"{kind} {worst:.4f} ({label})",
        f"{kind} <= {claim.size:.4f}",
    )


def check_lattice(tapes: list[Tape]) -> AuditCheck:
    """Whether only lattice points are released."""
    n_values = n_off = 0
    for tape in tapes:
        for part in tape.rounds:
            if not is_additive(part):
                continue
            for name, value in part.released.items():
                step = part.step(name)
                n_values += value.size
                n_off += int((np.rint(value / step) * step != value).sum())
    return AuditCheck(
        "lattice", n_off == 0, f"{n_off} of {n_values} values off the lattice", "0"
    )


def check_secret(first: Tape, second: Tape, secure: bool, claim: Claim) -> AuditCheck:
    """Whether two fits that say they are secure have different noise, in each block."""
    name = "secret noise"
    if not secure:
        return AuditCheck(name, True, "says it is simulated", "no claim")
    repeated, n_same, n_values = False, 0, 0
    for one, two in zip(first.rounds, second.rounds, strict=False):
        if not is_additive(one):
            return AuditCheck(name, True, "clients report: not looked at", "no claim")
        for block, value in one.released.items():
            same = int((value == two.released[block]).sum())
            sd = one.released.noise[block] / one.step(block)
            # With little noise on whole numbers two honest fits may be alike.
            chance = value.size * log_repeats(sd, claim)
            repeated |= same == value.size and chance < log(UNLIKELY)
            n_values, n_same = n_values + value.size, n_same + same
    return AuditCheck(
        name,
        not repeated,
        f"{n_same} of {n_values} values in a second fit",
        "no whole block",
    )


def differences(first: Any, second: Any, path: str = "") -> list[str]:
    """Names of parts in which two fitted objects differ."""
    if callable(getattr(first, "state_dict", None)):  # a torch module
        return _differences_of_modules(first, second, path)
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        same = np.shape(first) == np.shape(second) and _equal(first, second)
        return [] if same else [path]
    if type(first) is not type(second):
        return [path]
    if is_dataclass(first) and not isinstance(first, type):
        names = [f.name for f in fields(first)]
        first = {name: getattr(first, name) for name in names}
        second = {name: getattr(second, name, None) for name in names}
    if isinstance(first, dict):
        if first.keys() != second.keys():
            return [path]
        parts = [(str(key), value, second[key]) for key, value in first.items()]
    elif isinstance(first, (list, tuple)):
        if len(first) != len(second):
            return [path]
        parts = [
            (str(i), a, b) for i, (a, b) in enumerate(zip(first, second, strict=True))
        ]
    elif hasattr(first, "__dict__") and not callable(first):
        return differences(vars(first), vars(second), path)
    else:
        both_nan = isinstance(first, float) and isnan(first) and second != second
        return [] if both_nan or first is second or first == second else [path]
    return [
        found
        for key, a, b in parts
        if key not in _PRIVATE
        for found in differences(a, b, f"{path}.{key}" if path else key)
    ]


def _differences_of_modules(first: Any, second: Any, path: str) -> list[str]:
    if type(first) is not type(second):
        return [path]
    one, two = (
        {name: np.asarray(value.cpu()) for name, value in module.state_dict().items()}
        for module in (first, second)
    )
    return differences(one, two, path)


def _equal(first: Any, second: Any) -> bool:
    first, second = np.asarray(first), np.asarray(second)
    if first.dtype.kind in "fc":
        return bool(np.array_equal(first, second, equal_nan=True))
    return bool(np.array_equal(first, second))
