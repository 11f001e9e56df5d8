"""Methods by budget, number of clients and number of classes, on files of logits.

``skfedcal reproduce leaderboard --data DIR -o leaderboard.md`` writes the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from skfedcal.experiments.results import ResultTable
from skfedcal.papers.items import OURS, Claim, Panel, PaperItem, PaperResult, Setting
from skfedcal.papers.paper_000 import VALUES, Run, compared

# Differences of cwECE below this are chance.
MARGIN = 1e-4
NAMES = ("FedTemp", "FedBBQ", "FedBBQ-all", "FedOPVector", "FedCal")


def leaderboard(setting: Setting) -> PaperResult:
    """Methods x eps x clients, for each file."""
    from skfedcal.papers.fedavg_models import find_models

    numbers = setting.pick((100, 1000), (100, 1000, 10_000), (100, 1000, 10_000))
    budgets = setting.pick((None, 1.0, 10.0), *[(None, 10.0, 3.0, 1.0, 0.5)] * 2)
    names = setting.pick(NAMES[:2], NAMES, NAMES)
    runs: list[Run] = []
    for model in find_models(setting):
        free = replace(model, clients=None)
        # A client needs a row.
        fitting = [n for n in numbers if n <= len(model.labels)]
        found = compared(
            setting, free, [OURS], names=names, eps=budgets, with_auto=True,
            vary={"clients": fitting}, n_seeds=setting.pick(1, 3, 5),
        )  # fmt: skip
        for run in found:
            base = {"data": model.name, "classes": model.n_classes}
            base |= {"K": run["clients"], "eps": run["eps"], "seed": run["seed"]}
            runs.append(
                {**base, "method": run["method"], **{k: run[k] for k in VALUES}}
            )
    runs.sort(key=lambda run: (run["classes"], run["data"], run["K"]))
    keys = ["classes", "data", "K", "eps", "method"]
    table = ResultTable("Leaderboard: cwECE", keys, VALUES, runs)
    notes = [
        "rows are assigned anew to K clients with label skew beta = 0.1",
        *_break_even(table.rows),
    ]
    where = {"data": runs[0]["data"], "K": runs[0]["K"]}
    panel = Panel("cwECE by eps", "eps", "cwECE", "method", where, kind="bar")
    claims = [_auto_is_never_far(table.rows)]
    return PaperResult(table, claims, "method", "cwECE", [panel], notes)


def _break_even(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Where private binning begins to pay: the least eps at which it beats FedTemp."""
    lines = []
    for data, n_clients in dict.fromkeys((r["data"], r["K"]) for r in rows):
        errors = {
            (r["method"], r["eps"]): r["cwECE"]
            for r in rows
            if (r["data"], r["K"]) == (data, n_clients)
        }
        budgets = sorted({float(eps) for _, eps in errors if eps not in ("-", "none")})
        paying = [
            eps
            for eps in budgets
            if min(errors.get((f"FedBBQ{w}", f"{eps:g}"), 1.0) for w in ("", "-all"))
            < min(errors["FedTemp", f"{eps:g}"], errors["base", "-"]) - MARGIN
        ]
        start = f"eps = {paying[0]:g}" if paying else f"no eps up to {budgets[-1]:g}"
        lines.append(f"private binning begins to pay: {data}, K = {n_clients}: {start}")
    return lines


def _auto_is_never_far(rows: Sequence[dict[str, Any]]) -> Claim:
    """FedAuto is nowhere worse than the base."""
    base = {(r["data"], r["K"]): r["cwECE"] for r in rows if r["method"] == "base"}
    worst = max(
        (r["cwECE"] - base[r["data"], r["K"]], r["data"], r["K"], r["eps"])
        for r in rows
        if r["method"] == "FedAuto"
    )
    text = "FedAuto is nowhere worse than the input"
    # By chance, cwECE of a finite test set moves a little.
    return Claim(
        text, worst[0] < 1e-3, f"largest change {worst[0]:+.4f} at {worst[1:]}"
    )


ITEMS: tuple[PaperItem, ...] = (
    PaperItem(
        "leaderboard",
        "table",
        "1",
        "methods by eps, clients and classes",
        "Which method to take for a budget and a number of clients, and the eps from "
        "which private binning pays; FedAuto is nowhere worse than the input.",
        leaderboard,
    ),
)
