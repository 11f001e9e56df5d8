"""Methods by budget, number of clients and number of classes, on files of logits.

``skfedcal reproduce leaderboard --data DIR -o leaderboard.md`` writes the page. That
of the docs is written from docs/reference/leaderboard.json by docs/_ext/paper_items.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from skfedcal.experiments.results import ResultTable
from skfedcal.papers.items import OURS, Claim, Panel, PaperItem, PaperResult, Setting
from skfedcal.papers.paper_000 import STAR, VALUES, Run, compared

if TYPE_CHECKING:
    from skfedcal.papers.fedavg_models import Model

# Classes of the papers' data sets: CIFAR10, FEMNIST, CIFAR100, Tiny ImageNet.
CLASSES = (10, 62, 100, 200)
# Rows of a client on average, at least; where a file has fewer, they are drawn again.
ROWS_OF_A_CLIENT = 5
# Share of the base's cwECE below which a difference is taken for chance.
MARGIN = 0.05
BINNING = ("FedBBQ", "FedBBQ-all")
NAMES = ("FedTemp", *BINNING, "FedOPVector", "FedCal")
# Methods of many rounds, whose fits take up to minutes from here on.
SLOW = ("FedOPVector", "FedCal")
MANY_CLIENTS, MANY_CLASSES = 1000, 200


def leaderboard(setting: Setting) -> PaperResult:
    """Methods x eps x clients, for each number of classes."""
    numbers = setting.pick((100, 1000), (100, 1000, 10_000), (100, 1000, 10_000))
    budgets = setting.pick(
        (None, 1.0, 10.0), (None, 10.0, 3.0, 1.0), (None, 10.0, 3.0, 1.0, 0.5)
    )
    names = setting.pick(NAMES[:2], NAMES, NAMES)
    runs: list[Run] = []
    for model in _models(setting):
        for n_clients in numbers:
            many = n_clients >= MANY_CLIENTS or model.n_classes >= MANY_CLASSES
            left_out = SLOW if many else ()
            found = compared(
                setting, _drawn(model, n_clients), [OURS], eps=budgets, with_auto=True,
                names=[name for name in names if name not in left_out],
                vary={"clients": [n_clients]},
                n_seeds=setting.pick(1, 1 if n_clients >= 10_000 else 2, 5),
            )  # fmt: skip
            for run in found:
                base = {"data": model.name, "classes": model.n_classes}
                base |= {"K": n_clients, "eps": run["eps"], "seed": run["seed"]}
                base |= {"method": run["method"]}
                runs.append({**base, **{k: run[k] for k in VALUES}})
    runs.sort(key=lambda run: (run["classes"], run["data"], run["K"]))
    keys = ["classes", "data", "K", "eps", "method"]
    table = ResultTable("Leaderboard: cwECE", keys, VALUES, runs)
    notes = [
        "rows are assigned anew to K clients with label skew beta = 0.1; where there "
        f"are fewer than {ROWS_OF_A_CLIENT} K, they are drawn with replacement from "
        "those to calibrate on. The rows for the test are others",
        *crossings(table.rows),
    ]
    where = {"data": runs[0]["data"], "K": runs[0]["K"]}
    panel = Panel("cwECE by eps", "eps", "cwECE", "method", where, kind="bar")
    claims = [auto_is_never_far(table.rows)]
    return PaperResult(table, claims, "method", "cwECE", [panel], notes)


def _models(setting: Setting) -> Iterator[Model]:
    """Models of the data, and stand-ins for numbers of classes that no file has."""
    from skfedcal.papers.fedavg_models import find_models

    models = find_models(setting)
    yield from models
    if setting.size == "quick":
        return
    for n_classes in CLASSES:
        if any(model.n_classes == n_classes for model in models):
            continue
        larger = [model for model in models if model.n_classes > n_classes]
        yield _restricted(larger[0], n_classes) if larger else _made(n_classes)


def _restricted(model: Model, n_classes: int) -> Model:
    """The first classes of a model, and their rows."""
    import numpy as np

    fit, test = (np.less(y, n_classes) for y in (model.labels, model.test_labels))
    return replace(
        model,
        name=f"{model.name}, first {n_classes} classes",
        logits=model.logits[fit, :n_classes],
        labels=model.labels[fit],
        clients=None,
        test_logits=model.test_logits[test, :n_classes],
        test_labels=model.test_labels[test],
    )


def _made(n_classes: int) -> Model:
    """Made-up rows with a wrong temperature and wrong class frequencies."""
    from skfedcal.clients import make_federation
    from skfedcal.papers.fedavg_models import Model

    fed = make_federation(
        n_samples=5000, n_test=5000, n_classes=n_classes, class_bias=0.5, random_state=0
    )
    name = "made-up rows"
    test = fed.test_logits, fed.test_labels
    return Model(name, fed.logits, fed.labels, None, *test)


def _drawn(model: Model, n_clients: int) -> Model:
    """Rows without owners, as many as the clients need."""
    import numpy as np

    wanted = ROWS_OF_A_CLIENT * n_clients
    if wanted <= len(model.labels):
        return replace(model, clients=None)
    rows = np.random.default_rng(0).integers(0, len(model.labels), wanted)
    logits, labels = model.logits[rows], model.labels[rows]
    return replace(model, logits=logits, labels=labels, clients=None)


def paying_budgets(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Budgets, ascending, at which binning beats FedTemp and the input.

    rows: Those of one data set and one number of clients. A method that loses more than
    a point of accuracy does not count.
    """
    errors = {
        (r["method"], r["eps"]): r["cwECE"] for r in rows if r["acc change"] >= STAR
    }
    base = errors["base", "-"]
    budgets = {r["eps"] for r in rows} - {"-", "none"}
    found = []
    for eps in sorted(budgets, key=float):
        binned = min(errors.get((name, eps), 1.0) for name in BINNING)
        other = min(errors.get(("FedTemp", eps), 1.0), base)
        if binned < other - MARGIN * base:
            found.append(float(eps))
    return found


def crossings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where private binning begins to pay, in words: a sentence for each data set."""
    lines = []
    for n_classes, data in dict.fromkeys((r["classes"], r["data"]) for r in rows):
        own = [r for r in rows if r["data"] == data and r["classes"] == n_classes]
        largest = max(float(r["eps"]) for r in own if r["eps"] not in ("-", "none"))
        parts = []
        for n_clients in dict.fromkeys(r["K"] for r in own):
            paying = paying_budgets([r for r in own if r["K"] == n_clients])
            start = f"from eps = {paying[0]:g}" if paying else "at no eps"
            parts.append(f"{start} with {n_clients:,} clients")
        lines.append(
            f"{n_classes} classes ({data}): private binning pays "
            f"{', '.join(parts)}, of budgets up to {largest:g}"
        )
    return lines


def auto_is_never_far(rows: Sequence[Mapping[str, Any]]) -> Claim:
    """FedAuto is nowhere worse than the base."""
    base = {(r["data"], r["K"]): r["cwECE"] for r in rows if r["method"] == "base"}
    worst = max(
        (r["cwECE"] - base[r["data"], r["K"]], r["data"], r["K"], r["eps"])
        for r in rows
        if r["method"] == "FedAuto"
    )
    text = "FedAuto is nowhere worse than the input"
    change, data, n_clients, eps = worst
    shown = f"largest change {change:+.1e} on {data}, K = {n_clients:,}, eps {eps}"
    # By chance, cwECE of a finite test set moves a little.
    return Claim(text, change < 1e-3, shown)


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
