"""Places of paper 000 that can be read in two ways, and what the choice changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from skfedcal.experiments.results import ResultTable
from skfedcal.papers.items import (
    AMPLIFIED,
    PRINTED,
    Claim,
    PaperItem,
    PaperResult,
    Setting,
    below,
)
from skfedcal.papers.paper_000 import (
    SKEW_NAMES,
    VALUES,
    Run,
    classes_of_a_client,
    compared,
)
from skfedcal.papers.public_data import readings_differ


def _models(setting: Setting) -> Any:
    from skfedcal.papers.fedavg_models import find_models

    return find_models(setting)


def _effect(
    title: str, runs: list[Run], *notes: str, first_is_best: bool = False
) -> PaperResult:
    """Result of a reading; the claim is that the choice changes something.

    first_is_best: Claim that the first reading of the first method is the better one.
    """
    table = ResultTable(title, ["data", "reading", "method"], VALUES, runs)
    claims = [readings_differ(table)]
    if first_is_best:
        start = table.rows[0]
        (first, value), (other, limit), *_ = (
            (row["reading"], row["cwECE"])
            for row in table.rows
            if (row["data"], row["method"]) == (start["data"], start["method"])
        )
        claims.append(below(f"{first} is better", (first, value), (other, limit)))
    return PaperResult(table, claims, notes=notes)


def division_of_noise(setting: Setting) -> PaperResult:
    """B.7: one sigma for two clips, by each clip, or of least variance."""
    runs: list[Run] = []
    for model in _models(setting):
        for reading, noise in (
            ("C of each histogram", "each"),
            ("C of both together", "joint"),
            ("least total variance", "split"),
        ):
            found = compared(
                setting, model, [AMPLIFIED], names=["FedBBQ", "FedBBQ-all"], eps=[1.0],
                n_seeds=setting.pick(2, 5, 5), changes={"noise": noise},
            )  # fmt: skip
            runs += [{**r, "reading": f"{reading} (noise={noise!r})"}
                     for r in found if r["kind"]]  # fmt: skip
    return _effect(
        "B.7 with two clips: division of the noise",
        runs,
        "at eps = 1 in one round, C = [10, 50], 10 classes: sd 181 and 905, 652 and "
        "652, or 324 and 690",
    )


def size_of_noise(setting: Setting) -> PaperResult:
    """B.2: noise of variance C sigma^2 or (C sigma)^2."""
    from math import sqrt

    from skfedcal.privacy import calibrate_noise

    runs: list[Run] = []
    for clip in (0.25, 0.5, 1.0, 10.0):
        noise = calibrate_noise(1.0, 1e-5, n_rounds=12, accountant="zcdp")
        z = noise.noise_multiplier
        for reading, deviation in (
            ("(C sigma)^2", clip * z),
            ("C sigma^2", sqrt(clip) * z),
        ):
            row = {"C": clip, "reading": reading, "seed": 0}
            runs.append({**row, "sd": deviation, "needed": clip * z})
    table = ResultTable(
        "B.2: variance of the noise of an update, eps = 1, 12 rounds",
        ["C", "reading"],
        {"sd": ".3f", "needed": ".3f"},
        runs,
    )
    small = [r for r in table.rows if r["reading"] == "C sigma^2" and r["C"] > 1]
    claim = Claim(
        "C sigma^2 is too little noise for C > 1",
        all(row["sd"] < row["needed"] for row in small),
        "; ".join(
            f"C = {row['C']:g}: sd {row['sd']:.3g}, needed {row['needed']:.3g}"
            for row in small
        ),
    )
    note = "sigma as in Definition B.5; the library adds (C sigma)^2, B.5's own form"
    return PaperResult(table, [claim], notes=[note, f"size {setting.size}"])


def noise_of_weights(setting: Setting) -> PaperResult:
    """B.5: weights by the noise of all rounds, or of one."""
    import warnings
    from math import sqrt

    import numpy as np

    from skfedcal.experiments import printed
    from skfedcal.experiments.comparison.cells import measure

    runs: list[Run] = []
    for model in _models(setting):
        logits, labels = model.test
        base = np.exp(logits - logits.max(axis=1, keepdims=True)).astype(np.float64)
        base /= base.sum(axis=1, keepdims=True)
        for seed in range(setting.pick(2, 5, 5)):
            ids = model.assigned(0.1, seed) if model.clients is None else model.clients
            preset = printed(amplified=True)["FedBBQ-all"]
            cal: Any = preset.build(
                10.0, classes=range(model.n_classes), random_state=seed
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                cal.fit(model.logits, model.labels, client_ids=ids)
            weights = cal.class_weights_
            for reading, factor in (
                ("sigma of all rounds", 1.0),
                ("sigma of one round", sqrt(preset.n_rounds)),
            ):
                cal.class_weights_ = np.clip(factor * weights, 0.0, 1.0)
                proba = cal.predict_proba(logits)
                scores = measure(labels, proba, base, seed=seed, n_bins=15)
                row = {"data": model.name, "reading": reading, "method": "FedBBQ-all"}
                runs.append({**row, "seed": seed, **{k: scores[k] for k in VALUES}})
    title = "B.5: noise in the weights, eps = 10"
    return _effect(title, runs, first_is_best=True)


def local_steps(setting: Setting) -> PaperResult:
    """A.6: at most 50 steps of which solver."""
    runs: list[Run] = []
    for model in _models(setting):
        for solver in ("gd", "lbfgs"):
            found = compared(
                setting, model, [PRINTED], names=["FedOPVector"],
                n_seeds=setting.pick(2, 5, 5), changes={"local_solver": solver},
            )  # fmt: skip
            runs += [{**r, "reading": f"50 steps, local_solver={solver!r}"}
                     for r in found if r["kind"]]  # fmt: skip
    return _effect(
        "A.6: local training of FedOPVector",
        runs,
        "converged local fits of clients with one class are extreme",
        first_is_best=True,
    )


def server_rate(setting: Setting) -> PaperResult:
    """B.2: server learning rate of the calibrators."""
    runs: list[Run] = []
    for model in _models(setting):
        for rate in (1.0, 0.5):
            found = compared(
                setting, model, [AMPLIFIED], names=["FedTemp", "FedOPVector"],
                eps=[1.0], n_seeds=setting.pick(2, 5, 5),
                changes={"server_learning_rate": rate},
            )  # fmt: skip
            runs += [{**r, "reading": f"server_learning_rate={rate}"}
                     for r in found if r["kind"]]  # fmt: skip
    return _effect("B.2: server learning rate, eps = 1, amplified", runs)


def counted_rows(setting: Setting) -> PaperResult:
    """Table 8: classes of all rows, or of the rows to calibrate on."""
    result = classes_of_a_client(setting)
    found = {(row["rows"], row["beta"]): row["classes"] for row in result.table.rows}
    gaps = {
        rows: sum(abs(found[rows, name] - found["paper, MNIST", name])
                  for name in SKEW_NAMES) / len(SKEW_NAMES)
        for rows in ("calibration rows", "all rows")
    }  # fmt: skip
    claim = below(
        "the paper's numbers for MNIST are nearer to those of calibration rows",
        ("mean distance of calibration rows", gaps["calibration rows"]),
        ("of all rows", gaps["all rows"]),
        form=".2f",
    )
    return replace(result, claims=[claim])


def _reading(number: str, title: str, shows: str, run: Any) -> PaperItem:
    return PaperItem("000", "reading", number, title, shows, run)


# Numbers are cwECE of a quick run on digits, where that of the base is 2.78 %.
ITEMS: tuple[PaperItem, ...] = (
    _reading("A.6", "local training by gradient steps or L-BFGS", "The paper says at "
             "most 50 iterations of a convex solver. FedOPVector has 2.35 % with "
             "gradient steps and 3.61 % with L-BFGS, which is worse than the base; "
             "`local_solver`.", local_steps),
    _reading("B.2-rate", "server learning rate of calibrators", "The paper gives no "
             "rate for calibrators; 1 is assumed. At eps = 1 FedOPVector has 2.75 % "
             "with 1 and 2.32 % with 0.5; `server_learning_rate`.", server_rate),
    _reading("B.2-variance", "variance C sigma^2 or (C sigma)^2", "The paper prints "
             "N(0, C sigma^2), which is too little noise for C > 1 and too much for "
             "C < 1; there is no switch for what does not protect.", size_of_noise),
    _reading("B.5", "sigma per round or in total", "The paper does not say which sigma "
             "weights the bins. At eps = 10 FedBBQ-all has 3.44 % with that of all "
             "rounds, which is used, and 5.72 % with that of one.", noise_of_weights),
    _reading("B.7", "noise of two histograms with two clips", "The paper prints one "
             "C; with two the noise can follow each clip or their sum. At eps = 1 "
             "FedBBQ-all has 3.67 % and 4.19 %; `noise`.", division_of_noise),
    _reading("T8", "which rows Table 8 counts", "The numbers (4.05 for MNIST at beta = "
             "0.1) are nearer to those of the rows to calibrate on, a tenth of all "
             "(3.60), than to those of all rows (5.14).", counted_rows),
)  # fmt: skip
