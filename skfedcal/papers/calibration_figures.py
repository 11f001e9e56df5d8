"""Figures of "Private Federated Multiclass Post-hoc Calibration"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from skfedcal.experiments.results import ResultTable
from skfedcal.papers.items import (
    AMPLIFIED,
    OURS,
    PRINTED,
    Claim,
    Panel,
    PaperItem,
    PaperResult,
    Setting,
    below,
    best,
)
from skfedcal.papers.paper_000 import VALUES, Run, compared, with_base

if TYPE_CHECKING:
    from skfedcal.papers.fedavg_models import Model

ALL = ("FedBBQ", "FedBBQ-all", "FedBBQ-changed", "FedCal", "FedOPVector", "FedTemp")
FEW = ("FedBBQ", "FedBBQ-all", "FedTemp")
OURS_SHOWN = ("FedBBQ", "FedTemp")
BETAS = (0.1, 0.3, 0.5, 0.8)
# A row or two of a small test set decide less than this.
_ROWS = 0.001
KEYS = ("part", "data", "kind", "method", "T", "eps", "beta", "option")


def _rows(runs: Sequence[Run], part: str, **columns: str) -> list[Run]:
    """Runs with all keys of a figure; `columns` rename those of `compare`."""
    found = []
    for run in runs:
        row = {"part": part, **{key: run.get(key, "-") for key in KEYS[1:]}}
        row |= {new: run[old] for new, old in columns.items() if old in run}
        if row["eps"] not in ("-", "none"):
            row["eps"] = float(row["eps"])
        values = {name: run.get(name) for name in VALUES}
        found.append({**row, **values, "seed": run["seed"]})
    return found


def _result(
    title: str,
    runs: Sequence[Run],
    claims: Sequence[Claim],
    panels: Sequence[Panel],
    *notes: str,
) -> PaperResult:
    """Result of a figure: keys that never differ are left out."""
    keys = [k for k in KEYS if k == "part" or len({str(run[k]) for run in runs}) > 1]
    if "method" not in keys:
        keys.append("method")
    table = ResultTable(title, keys, VALUES, runs)
    fitting = [
        Panel(p.title, p.x, p.y, p.line,
              {k: v for k, v in p.where.items() if k in keys}, p.kind, p.log)
        for p in panels
    ]  # fmt: skip
    return PaperResult(table, claims, "method", "cwECE", fitting, notes)


def _mean(runs: Sequence[Run], value: str = "cwECE", **where: Any) -> float:
    """Mean of a value over runs that have these entries."""
    found = [r[value] for r in runs if all(r[k] == v for k, v in where.items())]
    return sum(found) / len(found)


def _by_method(
    runs: Sequence[Run], names: Sequence[str], value: str = "cwECE", **where: Any
) -> dict[str, float]:
    return {n: _mean(runs, value, method=n, **where) for n in names}


def _rounds(setting: Setting) -> tuple[int, ...]:
    return setting.pick((1, 12, 30), (1, 3, 6, 12, 30), (1, 3, 6, 12, 30, 60))


def _cohorts(sampling: str = "independent") -> Any:
    from skfedcal.federation import FederatedRunner

    return FederatedRunner(None, sampling, 10)  # type: ignore[arg-type]


def _models(setting: Setting, *words: str) -> list[Model]:
    from skfedcal.papers.fedavg_models import find_models

    return find_models(setting, *words)


def _varied_rounds(setting: Setting, model: Model, names: Sequence[str]) -> list[Run]:
    """Runs by number of rounds, as printed and ours with the same cohorts."""
    words: dict[str, Any] = {
        "n_seeds": setting.pick(3, 3, 5),
        "vary": {"rounds": _rounds(setting)},
        "runner": _cohorts(),
    }
    runs = compared(setting, model, [PRINTED], names=names, **words)
    runs += [
        run
        for run in compared(setting, model, [OURS], names=OURS_SHOWN, **words)
        if run["kind"]
    ]
    return with_base(runs, ["n_rounds"])


# Figure 1


def naive_calibration(setting: Setting) -> PaperResult:
    """Figure 1: local fits overfit; accuracy falls with skew."""
    model = _models(setting, "CIFAR10")[0]
    runs: list[Run] = []
    betas: tuple[float | None, ...] = setting.pick((0.1, 0.5), BETAS, BETAS)
    for seed in range(setting.pick(1, 3, 5)):
        for beta in betas:
            ids = model.assigned(beta, seed)
            words: dict[str, Any] = {"clients": ids, "vary": {"rounds": [1]}}
            found = compared(setting, model, [PRINTED], names=["FedBin"], **words)
            runs += _marked(found, "a", beta, seed)
            for where, moved in _local_changes(setting, model, ids):
                row: Run = dict.fromkeys(KEYS, "-") | {"part": "b", "method": where}
                row |= {"beta": beta, "kind": PRINTED, "data": model.name}
                values = dict.fromkeys(VALUES) | {"acc change": moved}
                runs.append({**row, **values, "seed": seed})
            scaling = ("FedTemp", "FedOPVector", "FedVector", "FedMatrix")
            found = compared(setting, model, [PRINTED], names=scaling, **words)
            runs += _marked(found, "c", beta, seed)
    low = {"part": "c", "beta": betas[0]}
    change = partial(_mean, runs, "acc change")
    claims = [
        Claim(
            "local fits gain on their own rows and lose on those of all",
            change(part="b", method="own rows")
            > 0
            > change(part="b", method="all rows"),
            f"own {change(part='b', method='own rows'):+.3f}, all "
            f"{change(part='b', method='all rows'):+.3f}",
        ),
        *(
            below(
                f"{name} loses accuracy under skew",
                (name, change(method=name, **low)),
                ("FedTemp", change(method="FedTemp", **low)),
            )
            for name in ("FedVector", "FedMatrix")
        ),
        Claim(
            "FedOPVector keeps the accuracy",
            abs(change(method="FedOPVector", **low)) < 1e-3,
            f"{change(method='FedOPVector', **low):+.4f}",
        ),
    ]
    panels = [
        Panel("(a) FedBin, cwECE", "beta", "cwECE", "method", {"part": "a"}),
        Panel("(a) FedBin, accuracy", "beta", "accuracy", "method", {"part": "a"}),
        Panel("(b) after local binning", "beta", "acc change", "method", {"part": "b"}),
        Panel("(c) after scaling", "beta", "acc change", "method", {"part": "c"}),
    ]
    note = f"{model.name}, one round of 10 of 100 clients"
    return _result("Figure 1: naive federated calibration", runs, claims, panels, note)


def _marked(
    found: Sequence[Run], part: str, beta: float | None, seed: int
) -> list[Run]:
    rows = _rows(with_base(found, ["n_rounds"]), part, T="n_rounds")
    return [{**row, "beta": beta, "seed": seed} for row in rows]


def _local_changes(setting: Setting, model: Model, ids: Any) -> list[tuple[str, float]]:
    """Mean change of accuracy when each client bins its own rows alone."""
    import numpy as np

    from skfedcal import FedBinCalibrator

    test, truth = model.test
    before = np.mean(test.argmax(axis=1) == truth)
    own, other = [], []
    for client in np.unique(ids)[: setting.pick(30, 100, 100)]:
        rows = ids == client
        logits, labels = model.logits[rows], model.labels[rows]
        cal = FedBinCalibrator(classes=range(model.n_classes), random_state=0)
        cal.fit(logits, labels)
        right = logits.argmax(axis=1) == labels
        own.append(np.mean(cal.predict(logits) == labels) - np.mean(right))
        other.append(np.mean(cal.predict(test) == truth) - before)
    return [("own rows", float(np.mean(own))), ("all rows", float(np.mean(other)))]


# Figures 2, 5, 6 and 7


def by_rounds_and_skew(setting: Setting, title: str, *words: str) -> PaperResult:
    """Figures 2, 5 and 6: by rounds and by skew, without noise."""
    model = _models(setting, *words)[0]
    runs = _rows(_varied_rounds(setting, model, ALL), "a, b", T="n_rounds")
    # Skew of the rows to calibrate on; the network is one for all.
    free = replace(model, clients=None)
    betas = setting.pick((0.1, 0.8), BETAS, BETAS)
    n_seeds = setting.pick(1, 3, 5)
    skewed = compared(
        setting, free, [PRINTED], names=ALL, vary={"beta": betas}, n_seeds=n_seeds
    )
    runs += _rows(with_base(skewed, ["beta"]), "c")
    where = {"part": "a, b", "kind": PRINTED}
    last = _rounds(setting)[-1]
    end = _by_method(runs, ALL, T=last, **where)
    start = _by_method(runs, ("FedBBQ", "FedBBQ-all"), "acc change", T=1, **where)
    bins = {n: e for n, e in end.items() if n.startswith("FedBBQ")}
    least = min(bins, key=lambda n: bins[n])
    scaling = {n: e for n, e in end.items() if n not in bins}
    claims = [
        best(f"binning is best after {last} rounds", least,
             {least: bins[least], **scaling}),
        below("in one round the weights lose no more accuracy, to 0.001",
              ("FedBBQ", start["FedBBQ"]), ("FedBBQ-all", start["FedBBQ-all"]),
              slack=_ROWS),
    ]  # fmt: skip
    panels = [
        Panel("(a) cwECE by rounds", "T", "cwECE", "method", where, log=True),
        Panel("(b) accuracy by rounds", "T", "accuracy", "method", where, log=True),
        Panel("(c) cwECE by skew", "beta", "cwECE", "method", {"part": "c"}),
        Panel("ours: cwECE by rounds", "T", "cwECE", "method",
              {"part": "a, b", "kind": OURS}, log=True),
    ]  # fmt: skip
    note = f"{model.name}; (c) assigns rows anew and keeps the network"
    return _result(title, runs, claims, panels, note)


def on_leaf(setting: Setting) -> PaperResult:
    """Figure 7: by rounds, with natural clients."""
    runs: list[Run] = []
    panels = []
    for model in _models(setting, "FEMNIST", "Shakespeare"):
        runs += _rows(_varied_rounds(setting, model, FEW), model.name, T="n_rounds")
        where = {"part": model.name, "kind": PRINTED}
        for value in ("cwECE", "accuracy"):
            title = f"{model.name}: {value}"
            panels.append(Panel(title, "T", value, "method", where, log=True))
    part, last = runs[0]["part"], _rounds(setting)[-1]
    end = _by_method(runs, FEW, part=part, kind=PRINTED, T=last)
    claim = below(
        "binning outperforms scaling over many rounds",
        ("FedBBQ-all", end["FedBBQ-all"]),
        ("FedTemp", end["FedTemp"]),
    )
    note = "FEMNIST and Shakespeare of LEAF need --data"
    return _result("Figure 7: by rounds, LEAF", runs, [claim], panels, note)


# Figures 3, 8 and 9


def _varied_budget(setting: Setting, model: Model, names: Sequence[str]) -> list[Run]:
    # Few rows per client need a large eps until binning gains.
    eps = setting.pick((1.0, 100.0), *[(0.5, 1.0, 3.0, 10.0, 100.0)] * 2)
    n_seeds = setting.pick(1, 3, 5)
    kinds = (PRINTED, AMPLIFIED)
    runs = compared(setting, model, kinds, names=names, eps=eps, n_seeds=n_seeds)
    own = compared(setting, model, [OURS], names=OURS_SHOWN, eps=eps, n_seeds=n_seeds)
    return with_base(runs + [run for run in own if run["kind"]], ["eps"])


def _rounds_and_budget(setting: Setting, model: Model) -> list[Run]:
    words: dict[str, Any] = {
        "eps": (1.0, 3.0),
        "n_seeds": setting.pick(1, 3, 5),
        "vary": {"rounds": setting.pick((1, 12), (1, 6, 12, 30), (1, 6, 12, 30, 60))},
    }
    runs = compared(setting, model, [AMPLIFIED], names=FEW, **words)
    own = compared(
        setting, model, [OURS], names=["FedTemp"], runner=_cohorts("poisson"), **words
    )
    runs = with_base(runs + [r for r in own if r["kind"]], ["n_rounds", "eps"])
    named = [{**run, "option": f"{run['method']} eps {run['eps']}"} for run in runs]
    return _rows(named, "rounds", T="n_rounds", option="option")


def _budget_claims(runs: Sequence[Run]) -> list[Claim]:
    where = {"part": "budget", "kind": AMPLIFIED}
    errors = _by_method(runs, ALL, eps=1.0, **where)
    falls = _by_method(runs, ALL, "acc change", eps=1.0, **where)
    kept = {n: e for n, e in errors.items() if falls[n] > -0.01}
    base = _mean(runs, method="Base", eps=1.0, **where)
    most = max(float(run["eps"]) for run in runs if run["eps"] != "-")
    wide = _by_method(runs, ("FedBBQ", "FedBBQ-all"), eps=most, **where)
    return [
        best("with amplification FedTemp is best at eps = 1, to 1 %", "FedTemp", kept,
             slack=0.01 * errors["FedTemp"]),
        below("FedCal is worse than the base at eps = 1", ("Base", base),
              ("FedCal", errors["FedCal"])),
        below("binning gains from a larger eps", (f"eps {most:g}", wide["FedBBQ"]),
              ("eps 1", errors["FedBBQ"])),
        below("weights keep the accuracy of binning under noise",
              ("FedBBQ", falls["FedBBQ"]), ("FedBBQ-all", falls["FedBBQ-all"])),
    ]  # fmt: skip


def _budget_panels() -> list[Panel]:
    return [
        Panel(f"{value}, {kind}", "eps", value, "method",
              {"part": "budget", "kind": kind}, log=True)
        for kind in (PRINTED, AMPLIFIED)
        for value in ("cwECE", "accuracy")
    ]  # fmt: skip


def by_budget(setting: Setting) -> PaperResult:
    """Figure 3: by eps, and by rounds and eps."""
    model = _models(setting, "CIFAR10")[0]
    other = _models(setting, "CIFAR100")[0]
    runs = _rows(_varied_budget(setting, model, ALL), "budget")
    claims = _budget_claims(runs)
    runs += _rounds_and_budget(setting, other)
    panels = [
        *_budget_panels(),
        Panel("(c) rounds and eps, amplified", "T", "cwECE", "option",
              {"part": "rounds", "kind": AMPLIFIED}, log=True),
    ]  # fmt: skip
    title = "Figure 3: by privacy budget"
    return _result(title, runs, claims, panels, f"{model.name}; (c) {other.name}")


def by_budget_and_clips(setting: Setting) -> PaperResult:
    """Figure 8: by eps, and FedBBQ by its two clips."""
    model = _models(setting, "CIFAR100")[0]
    runs = _rows(_varied_budget(setting, model, ALL), "budget")
    claims = _budget_claims(runs)
    positive = setting.pick((2, 50), (1, 5, 10, 50), (1, 5, 10, 50))
    negative = setting.pick((50,), (10, 50, 200), (10, 50, 200))
    pairs = [(a, b) for a in positive for b in negative]
    clipped = compared(
        setting, model, [AMPLIFIED], names=["FedBBQ-all"], eps=[3.0],
        vary={"clip": pairs}, n_seeds=setting.pick(2, 3, 5),
    )  # fmt: skip
    rows = _rows([run for run in clipped if run["kind"]], "clips", option="clip")
    for row in rows:
        row["option"] = f"C+ = {row['option'].split('/')[0]}"
    runs += rows
    least, most = (_mean(rows, option=f"C+ = {c}") for c in (positive[0], positive[-1]))
    claims.append(
        below("a small clip of positive counts is better",
              (f"C+ = {positive[0]}", least), (f"C+ = {positive[-1]}", most))
    )  # fmt: skip
    panels = [
        *_budget_panels(),
        Panel("(c) FedBBQ-all, eps = 3, by clips", "cwECE", "accuracy", "option",
              {"part": "clips"}, kind="scatter"),
    ]  # fmt: skip
    title = "Figure 8: by privacy budget, and by clips"
    return _result(title, runs, claims, panels, model.name)


def by_rounds_and_budget(setting: Setting) -> PaperResult:
    """Figure 9: by rounds and eps."""
    runs: list[Run] = []
    panels = []
    for model in _models(setting, "CIFAR10", "CIFAR100", "FEMNIST")[:3]:
        found = _rounds_and_budget(setting, model)
        runs += [{**run, "part": model.name} for run in found]
        where = {"part": model.name, "kind": AMPLIFIED}
        for value in ("cwECE", "accuracy"):
            panel = Panel(
                f"{model.name}: {value}", "T", value, "option", where, log=True
            )
            panels.append(panel)
    where = {"part": runs[0]["part"], "kind": AMPLIFIED}
    rounds = sorted({run["T"] for run in runs if run["T"] != "-"})
    spread = {}
    for name in FEW:
        values = [_mean(runs, method=name, T=t, eps=e, **where)
                  for t in rounds for e in (1.0, 3.0)]  # fmt: skip
        spread[name] = max(values) - min(values)
    falls = _by_method(runs, FEW, "acc change", eps=1.0, **where)
    claims = [
        below("FedTemp varies less than binning with rounds and eps",
              ("FedTemp", spread["FedTemp"]), ("FedBBQ", spread["FedBBQ"])),
        below("weights keep accuracy at eps = 1", ("FedBBQ", falls["FedBBQ"]),
              ("FedBBQ-all", falls["FedBBQ-all"])),
    ]  # fmt: skip
    return _result("Figure 9: by rounds and privacy budget", runs, claims, panels)


# Figures 4, 10 and 11


def by_bins(setting: Setting) -> PaperResult:
    """Figure 4: FedBBQ by its number of bins, 2^M."""
    model = _models(setting, "CIFAR100")[0]
    names, n_seeds = ("FedBBQ", "FedBBQ-all"), setting.pick(2, 3, 5)
    many = setting.pick((4, 7, 10), (2, 4, 6, 7, 8, 10), tuple(range(2, 11)))
    rounds = setting.pick((1, 12), (1, 6, 12, 30), (1, 6, 12, 30))
    runs: list[Run] = []
    for part, eps, levels, counts in (
        ("a", None, many, (1,)),
        ("b", None, (4, 7, 10), rounds),
        ("c", 3.0, (4, 7, 10), rounds),
    ):
        found = compared(
            setting, model, [PRINTED if eps is None else AMPLIFIED], names=names,
            eps=[eps], n_seeds=n_seeds,
            vary={"bins": [2**m for m in levels], "rounds": counts},
        )  # fmt: skip
        rows = _rows([r for r in found if r["kind"]], part, T="n_rounds", option="bins")
        for row in rows:
            row["option"] = row["option"].bit_length() - 1
        runs += rows
    spread = {}
    for name in names:
        values = [
            _mean(runs, "accuracy", part="a", method=name, option=m) for m in many
        ]
        spread[name] = max(values) - min(values)
    claims = [
        below("in one round the accuracy of weighted bins varies less with M",
              ("FedBBQ-all", spread["FedBBQ-all"]), ("FedBBQ", spread["FedBBQ"])),
    ]  # fmt: skip
    panels = [
        Panel("(a) T = 1: cwECE by M", "option", "cwECE", "method", {"part": "a"}),
        Panel("(a) T = 1: accuracy", "option", "accuracy", "method", {"part": "a"}),
        Panel("(b) by rounds: accuracy, weighted", "T", "accuracy", "option",
              {"part": "b", "method": "FedBBQ-all"}, log=True),
        Panel("(c) eps = 3: accuracy, weighted", "T", "accuracy", "option",
              {"part": "c", "method": "FedBBQ-all"}, log=True),
    ]  # fmt: skip
    note = f"{model.name}; option is M, cohorts have 10 clients"
    return _result("Figure 4: FedBBQ by bins 2^M", runs, claims, panels, note)


def both_errors(setting: Setting) -> PaperResult:
    """Figure 10: cwECE and ECE, by rounds and by eps."""
    model = _models(setting, "CIFAR10")[0]
    runs = _rows(_varied_rounds(setting, model, ALL), "rounds", T="n_rounds")
    runs += _rows(_varied_budget(setting, model, ALL), "budget")
    where = {"part": "rounds", "kind": PRINTED, "T": _rounds(setting)[-1]}
    gaps = {}
    for value in ("cwECE", "ECE"):
        found = _by_method(
            runs, ("FedBBQ", "FedTemp", "FedCal", "FedOPVector"), value, **where
        )
        scaling = [found[n] for n in ("FedTemp", "FedCal", "FedOPVector")]
        gaps[value] = (sum(scaling) / 3 - found["FedBBQ"]) / found["FedBBQ"]
    noisy = {"part": "budget", "kind": AMPLIFIED, "eps": 1.0}
    claims = [
        Claim("binning is ahead of scaling in cwECE after many rounds",
              gaps["cwECE"] > 0, f"{gaps['cwECE']:.2f} of its error"),
        below("under noise FedTemp has the lower ECE too",
              ("FedTemp", _mean(runs, "ECE", method="FedTemp", **noisy)),
              ("FedBBQ", _mean(runs, "ECE", method="FedBBQ", **noisy))),
    ]  # fmt: skip
    panels = [
        Panel(f"{value} by {'rounds' if x == 'T' else 'eps'}", x, value, "method",
              {"part": part, "kind": kind}, log=True)
        for part, x, kind in (("rounds", "T", PRINTED), ("budget", "eps", AMPLIFIED))
        for value in ("cwECE", "ECE")
    ]  # fmt: skip
    title = "Figure 10: classwise and top-label error"
    return _result(title, runs, claims, panels, model.name)


def clipped_temperatures(setting: Setting) -> PaperResult:
    """Figure 11: FedTemp without noise, by clip and rounds."""
    model = _models(setting, "CIFAR10")[0]
    clips = setting.pick(("auto", 0.1, 0.5), *[("auto", 0.1, 0.25, 0.5, 1.0)] * 2)
    rounds = setting.pick((1, 10, 30), (1, 5, 10, 20, 30, 60), (1, 5, 10, 20, 30, 60))
    found = compared(
        setting, model, [PRINTED], names=["FedTemp"], n_seeds=setting.pick(3, 5, 10),
        vary={"clip": clips, "rounds": rounds},
    )  # fmt: skip
    runs = _rows([r for r in found if r["kind"]], "T", T="n_rounds", option="clip")
    for run in runs:
        run["option"] = "none" if run["option"] == "auto" else f"{run['option']:g}"
    first = {o: _mean(runs, T=1, option=o) for o in ("none", "0.1")}
    later = {o: _mean(runs, T=10, option=o) for o in ("none", "0.5")}
    claims = [
        below("clipping is worse in one round", ("none", first["none"]),
              ("C = 0.1", first["0.1"])),
        below("clipping helps after 10 rounds", ("C = 0.5", later["0.5"]),
              ("none", later["none"])),
    ]  # fmt: skip
    panels = [Panel("cwECE by rounds", "T", "cwECE", "option", log=True)]
    title = "Figure 11: FedTemp by clip"
    return _result(title, runs, claims, panels, f"{model.name}; option is the clip C")


def _figure(number: str, title: str, shows: str, run: Any, **more: Any) -> PaperItem:
    return PaperItem("000", "figure", number, title, shows, run, **more)


def _three(number: str, *words: str) -> Any:
    title = f"Figure {number}: by rounds and by label skew"
    return lambda setting: by_rounds_and_skew(setting, title, *words)


_BY_ROUNDS = (
    "FedTemp is good after few rounds, binning is best after many, and its weights "
    "prevent the loss of accuracy in few rounds."
)
ITEMS: tuple[PaperItem, ...] = (
    _figure("1", "naive federated calibration", "Local fits gain accuracy on their own "
            "rows and lose it on those of all; vector and matrix scaling lose it too.",
            naive_calibration, parts="abc"),
    _figure("2", "by rounds and by label skew (CIFAR10)", _BY_ROUNDS,
            _three("2", "CIFAR10"), parts="abc"),
    _figure("3", "by privacy budget", "FedTemp is most resilient to noise, FedCal is "
            "worse than the base.", by_budget, parts="abc"),
    _figure("4", "FedBBQ by number of bins", "Weights make the result depend less on "
            "the number of bins.", by_bins, parts="abc"),
    _figure("5", "by rounds and by label skew (CIFAR100)", _BY_ROUNDS,
            _three("5", "CIFAR100"), parts="abc"),
    _figure("6", "by rounds and by label skew (MNIST)", _BY_ROUNDS,
            _three("6", "MNIST"), parts="abc"),
    _figure("7", "by rounds on LEAF", "Binning outperforms scaling over many rounds on "
            "FEMNIST.", on_leaf, parts="ab"),
    _figure("8", "by privacy budget and clips (CIFAR100)", "FedTemp is best at small "
            "eps, binning at large; the clip of positive counts should be small.",
            by_budget_and_clips, parts="abc"),
    _figure("9", "by rounds and privacy budget", "FedTemp depends little on rounds and "
            "eps, binning much.", by_rounds_and_budget, parts="abc"),
    _figure("10", "classwise and top-label error", "ECE hides the difference between "
            "binning and scaling that cwECE shows.", both_errors, parts="abcd"),
    _figure("11", "FedTemp by clip", "Clipped temperatures are better after some "
            "rounds and worse after one.", clipped_temperatures),
)  # fmt: skip
