"""The poster on uncertainty and calibration by share C of clients and epochs E.

"Uncertainty Estimation and Calibration Measurement in Federated Learning for Image
Classification".

The poster trains a CNN on MNIST by plain federated averaging (K = 100 clients, batches
of 10, lr = 0.05) to an accuracy of 0.99. Its figures have no numbers in the text. Each
pair of C and E is stored when it is done: the same command continues.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from skfedcal.experiments.results import ResultTable
from skfedcal.papers.items import (
    PRINTED,
    Claim,
    Panel,
    PaperItem,
    PaperResult,
    Setting,
    below,
)
from skfedcal.papers.public_data import Task, find_task

MEASURES = ("entropy", "variation ratio", "ECE")


def grid(setting: Setting) -> tuple[ResultTable, Task]:
    """Run or read the grid of C and E."""
    import numpy as np

    from skfedcal.experiments import participation_grid

    whole = find_task(setting, "MNIST")
    task = whole.part(setting.pick(1400, 12_000, None)) if whole.given else whole
    setting.progress(f"{task.data}: {len(task.y)} rows")
    real = task.given and setting.size != "quick"
    network: dict[str, Any] = {"module": "cnn"}
    if setting.size == "quick":
        network = {"module": "mlp", "module_params": {"hidden": (64,)}}
    table = participation_grid(
        np.concatenate([task.X, task.test_X]),
        np.concatenate([task.y, task.test_y]),
        shares=setting.pick((0.1, 1.0), (0.1, 0.2, 0.5, 1.0), (0.1, 0.2, 0.5, 1.0)),
        epochs=setting.pick((1, 10), (1, 10, 20), (1, 10, 20)),
        target_accuracy=setting.pick(0.85, 0.97 if real else 0.95, 0.99),
        n_clients=setting.pick(20, 100, 100) if task.given else 20,
        test_size=len(task.test_y) / (len(task.y) + len(task.test_y)),
        seeds=range(setting.pick(1, 1 if real else 3, 3)),
        store=setting.store,
        n_rounds=setting.pick(40, 100, 1000),
        batch_size=10,
        lr=0.05,
        weighting="uniform",
        **network,
    )
    return table, task


def by_share_and_epochs(setting: Setting, what: str) -> PaperResult:
    """Rounds to the target, or uncertainty and calibration at the end."""
    table, task = grid(setting)
    values = {"rounds": table.values["rounds"], "accuracy": table.values["accuracy"]}
    if what != "rounds":
        values = {name: table.values[name] for name in ("accuracy", *MEASURES)}
    runs = [{**run, "kind": PRINTED} for run in table.runs]
    target = table.settings["target_accuracy"]
    found = ResultTable(
        f"{what} by share C of clients and local epochs E, {task.data}, "
        f"target accuracy {target:g}",
        ["kind", "C", "E"],
        values,
        runs,
        table.settings,
    )
    panels = [Panel(name, "C", name, "E") for name in values if what != "rounds"]
    notes = [
        f"{table.settings['n_clients']} clients; the poster has 100 of MNIST and 0.99",
        "plain federated averaging is what the library does by default: there is no "
        "other row",
    ]
    if not task.given:
        where = "without --data" if setting.data is None else f"{setting.data} lacks it"
        notes.append(f"{task.data} in the place of MNIST: {where}")
    return PaperResult(found, _claims(table, what), panels=panels, notes=notes)


def _claims(table: ResultTable, what: str) -> list[Claim]:
    rows = {(r["C"], r["E"]): r for r in table.rows}
    shares, epochs = (sorted({r[key] for r in table.rows}) for key in ("C", "E"))
    limit = float(table.settings["n_rounds"])

    def rounds(share: float, n_epochs: int) -> float:
        row = rows[share, n_epochs]
        return float(row["rounds"]) if row["reached"] > 0 else limit

    few, many = shares[0], shares[-1]
    one, last = epochs[0], epochs[-1]
    if what == "rounds":
        return [
            below(
                "more epochs need fewer rounds",
                (f"E = {last}", rounds(few, last)),
                (f"E = {one}", rounds(few, one)),
            ),
            below(
                "more clients need fewer rounds",
                (f"C = {many}", rounds(many, one)),
                (f"C = {few}", rounds(few, one)),
            ),
        ]
    return [
        below(
            "more epochs make a surer model",
            (f"entropy at E = {last}", rows[many, last]["entropy"]),
            (f"E = {one}", rows[many, one]["entropy"]),
        )
    ]


ITEMS: tuple[PaperItem, ...] = (
    PaperItem(
        "003",
        "table",
        "1",
        "rounds to the target accuracy by C and E",
        "More clients and more epochs need fewer rounds.",
        partial(by_share_and_epochs, what="rounds"),
    ),
    PaperItem(
        "003",
        "figure",
        "1",
        "entropy, variation ratio and ECE by C and E",
        "Uncertainty and calibration depend on C and E.",
        partial(by_share_and_epochs, what="uncertainty"),
    ),
)
