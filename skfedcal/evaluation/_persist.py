"""Histograms as JSON, exact to the last bit, and the sum of two of them."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from skfedcal._version import __version__
from skfedcal.algorithms._score_counts import LAW_KINDS
from skfedcal.evaluation._grid import ScoreGrid
from skfedcal.evaluation._inputs import check_choices
from skfedcal.evaluation._levels import is_depth, merged_noise
from skfedcal.evaluation._noise import LevelLaw, NoiseModel
from skfedcal.federation._plain import once
from skfedcal.privacy._report import PrivacyReport

if TYPE_CHECKING:
    from skfedcal.evaluation._histogram import ScoreHistogram

_FORMAT = "skfedcal-histogram"
_VERSION = 1

# From here on discrete Laplace noise has no variance in double precision.
_NO_NOISE = 600.0

# Below the root of the largest float: answers have squares of counts.
_LARGEST = 1e100


def to_json(hist: ScoreHistogram) -> str:
    """Write all fields of a histogram but its history."""
    content = {
        "format": _FORMAT,
        "format_version": _VERSION,
        "skfedcal": __version__,
        "height": hist.grid.height,
        "space": hist.grid.space,
        "kind": hist.kind,
        "classes": hist.classes,
        "weighting": hist.weighting,
        "n_clients": hist.n_clients_,
        "levels": hist.noise_.to_list(),
        "totals": [total.tolist() for total in hist.totals],
        "privacy": {
            name: "inf" if value == float("inf") else value
            for name, value in asdict(hist.privacy_).items()
        },
    }
    return json.dumps(content, allow_nan=False)


def from_json(text: str) -> dict[str, Any]:
    """Read the arguments of a histogram; raises ValueError for any other text."""
    try:
        content = json.loads(text, object_pairs_hook=once)
        if content["format"] != _FORMAT or content["format_version"] != _VERSION:
            raise ValueError(
                f"format {content['format']!r}, version {content['format_version']!r}"
            )
        return _arguments(content)
    except (
        KeyError, TypeError, ValueError, AttributeError, RecursionError,
        ArithmeticError,
    ) as error:  # fmt: skip
        raise ValueError(f"Not a histogram of skfedcal: {error!r}.") from error


def merged(first: ScoreHistogram, second: ScoreHistogram) -> dict[str, Any]:
    """Arguments of the histogram of the clients of both; ValueError if unlike."""
    if not isinstance(second, type(first)):
        raise TypeError(
            f"merge() got a {type(second).__name__}; pass another ScoreHistogram."
        )
    for name in ("grid", "kind", "classes", "weighting"):
        mine, theirs = getattr(first, name), getattr(second, name)
        if mine != theirs:
            raise ValueError(
                f"Histograms with {name} {mine!r} and {theirs!r} cannot be merged; "
                f"fit both with the same {name}."
            )
    return {
        "noise": merged_noise(first.noise_, second.noise_),
        "totals": [a + b for a, b in zip(first.totals, second.totals, strict=True)],
        "grid": first.grid,
        "kind": first.kind,
        "classes": first.classes,
        "weighting": first.weighting,
        "n_clients": first.n_clients_ + second.n_clients_,
        "privacy": _merged_report(first.privacy_, second.privacy_),
        "history": (*first.history_, *second.history_),
    }


def _merged_report(first: PrivacyReport, second: PrivacyReport) -> PrivacyReport:
    for name in ("unit", "adjacency", "trust"):
        mine, theirs = getattr(first, name), getattr(second, name)
        if mine != theirs:
            raise ValueError(
                f"The guarantees differ in {name} ({mine!r} and {theirs!r}), so that "
                "nothing holds for both; keep the histograms apart."
            )
    worst = first if first.eps >= second.eps else second
    text = "merged histograms have no client in common"
    notes = dict.fromkeys((*first.assumptions, *second.assumptions, text))
    return replace(
        worst,
        delta=max(first.delta, second.delta),
        n_clients=first.n_clients + second.n_clients,
        secure=first.secure and second.secure,
        seeded=first.seeded or second.seeded,
        assumptions=tuple(notes),
        ledger_ids=(*first.ledger_ids, *second.ledger_ids),
    )


def _arguments(content: dict[str, Any]) -> dict[str, Any]:
    noise = NoiseModel(tuple(_law(law) for law in content["levels"]))
    check_choices(
        space=content["space"], kind=content["kind"], weighting=content["weighting"]
    )
    if len({law.kind if not law.local else "local" for law in noise.levels}) > 1:
        raise ValueError("levels have different kinds of noise")
    if not isinstance(content["classes"], list) or len(content["classes"]) != 2:
        raise ValueError("classes are not two labels")
    for label in content["classes"]:
        number = isinstance(label, (int, float)) and isfinite(label)
        if not number and not isinstance(label, str):
            raise ValueError(f"class {label!r}")
    if not _whole(content["n_clients"]):
        raise ValueError(f"n_clients={content['n_clients']!r}")
    totals = [np.array(total, dtype=np.float64) for total in content["totals"]]
    shapes = [(2, 2**law.bits) for law in noise.levels]
    if [total.shape for total in totals] != shapes:
        raise ValueError("counts do not have the shape of their levels")
    if not noise.levels or noise.bits[-1] != content["height"]:
        raise ValueError("levels do not end with the height")
    if not all((np.abs(total) < _LARGEST).all() for total in totals):
        raise ValueError("counts are not finite")
    report = _report(content["privacy"])
    # Noise of a huge eps is none; that of any other is told apart.
    if noise.exact and report.eps < _NO_NOISE:
        raise ValueError(f"exact counts with eps={report.eps:g}")
    return {
        "totals": totals,
        "noise": noise,
        "grid": ScoreGrid(content["height"], content["space"]),
        "kind": content["kind"],
        "classes": content["classes"],
        "weighting": content["weighting"],
        "n_clients": content["n_clients"],
        "privacy": report,
    }


def _law(values: dict[str, Any]) -> LevelLaw:
    """Law of one level; refuses what no release can have."""
    law = LevelLaw(**values)
    numbers = (law.variance, law.p, law.q)
    if not all(type(v) in (int, float) and 0 <= v < _LARGEST for v in numbers):
        raise ValueError(f"variance, p or q of {values}")
    if law.kind not in LAW_KINDS or not is_depth(law.bits):
        raise ValueError(f"kind or bits of {values}")
    if not _whole(law.n_reports) or not _whole(law.domain):
        raise ValueError(f"n_reports or domain of {values}")
    if law.kind == "additive" and not law.variance > 0:
        raise ValueError(f"noise without variance: {values}")
    if law.local and not (
        law.q < law.p <= 1 and law.domain == 2 * 2**law.bits and law.n_reports
    ):
        raise ValueError(f"p, q or domain of {values}")
    return law


def _whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _report(values: dict[str, Any]) -> PrivacyReport:
    known = {field.name for field in fields(PrivacyReport)}
    if not set(values) <= known:
        raise ValueError(f"unknown fields {sorted(set(values) - known)} of the report")
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
    }
    if plain.get("eps") == "inf":
        plain["eps"] = float("inf")
    report = PrivacyReport(**plain)
    numbers = (report.eps, report.delta, report.noise_multiplier)
    if not all(type(v) in (int, float) and float(v) >= 0 for v in numbers):
        raise ValueError("eps, delta or noise_multiplier of the report")
    kinds = {"clip": dict, "assumptions": tuple, "ledger_ids": tuple}
    if not all(isinstance(getattr(report, k), kind) for k, kind in kinds.items()):
        raise ValueError(f"{', '.join(kinds)} of the report")
    sizes = [v for v in (report.mu, *report.clip.values()) if v is not None]
    if not all(type(v) in (int, float) and 0 <= v < _LARGEST for v in sizes):
        raise ValueError("mu or clip of the report")
    for text in (*report.assumptions, *report.ledger_ids):
        if not isinstance(text, str):
            raise ValueError("assumptions or ledger_ids of the report")
    for name in ("unit", "adjacency", "trust", "accountant"):
        if not isinstance(getattr(report, name), str):
            raise ValueError(f"{name} of the report")
    if not _whole(report.n_rounds) or not _whole(report.n_clients):
        raise ValueError("n_rounds or n_clients of the report")
    if not report.private and "eps" not in values:
        raise ValueError("the report has no eps")
    if any(type(v) is not bool for v in (report.secure, report.seeded)):
        raise ValueError("secure or seeded of the report")
    return report
