"""Entry points that draw, and scorers for searches."""

import functools

import numpy as np
from entries_estimators import call_form, clean_rows, fitted
from entries_functions import histogram
from fuzz_engine import Broken
from fuzz_values import HOSTILE_LABELS, HOSTILE_ROWS, HOSTILE_SETTINGS, HOSTILE_WEIGHTS

from skfedcal import CalibrationMonitor, metrics
from skfedcal.metrics import get_scorer, get_scorer_names
from skfedcal.privacy import CentralDP, audit_one_run


@functools.cache
def pyplot():
    """Matplotlib without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def curve(case):
    """FedRocDisplay, FedPrecisionRecallDisplay and FedReliabilityDisplay."""
    from skfedcal import plotting

    name = case.pick(
        "cls", ("FedRocDisplay", "FedPrecisionRecallDisplay", "FedReliabilityDisplay")
    )
    cls = getattr(plotting, name)
    given = {"ci": 0.95}
    if name == "FedReliabilityDisplay":
        given |= {"n_bins": 5, "strategy": "uniform"}
    if case.chance(0.5):
        given[case.pick("param", list(given))] = case.pick("value", HOSTILE_SETTINGS)
    try:
        if case.chance(0.4):
            hist = histogram(case.chance(0.5))
            if case.chance(0.5):
                hist = case.pick("hist", HOSTILE_SETTINGS)
            cls.from_histogram(hist, **given)
        else:
            args, kwargs, _ = call_form(case, *clean_rows(2))
            ci = given.pop("ci")
            cls.from_clients(*args, **kwargs, ci=ci, plot_kw=given)
    finally:
        pyplot().close("all")


def audited(case):
    """AuditDisplay of what an audit gave, and of anything else."""
    from skfedcal.plotting import AuditDisplay

    result = case.pick("result", {**HOSTILE_SETTINGS, "good": _result()})
    try:
        AuditDisplay.from_result(result)
    finally:
        pyplot().close("all")


def monitored(case):
    """CalibrationMonitorDisplay of a monitor, and of anything else."""
    from skfedcal.plotting import CalibrationMonitorDisplay

    monitor = _monitor()
    if case.chance(0.3):
        monitor = case.pick("monitor", HOSTILE_SETTINGS)
    given = {"metric": "gap", "accumulated": False}
    given[case.pick("param", list(given))] = case.pick("value", HOSTILE_SETTINGS)
    try:
        CalibrationMonitorDisplay.from_monitor(monitor, **given)
    finally:
        pyplot().close("all")


@functools.cache
def _monitor():
    logits, labels, ids = clean_rows()
    monitor = CalibrationMonitor(1.0, periods=3, random_state=0)
    return monitor.update(logits, labels, client_ids=ids)


@functools.cache
def _result():
    return audit_one_run(CentralDP(1.0), n_canaries=40, random_state=0)


def matrices(case):
    """plot_confusion_matrices on hostile labels."""
    from skfedcal.plotting import plot_confusion_matrices

    _, labels, _ = clean_rows()
    truth, found = labels, labels
    if case.chance(0.5):
        truth = case.pick("labels", HOSTILE_LABELS)(labels, case.rng)
    else:
        found = case.pick("found", HOSTILE_LABELS)(labels, case.rng)
    models = {"a": labels, "b": found}
    if case.chance(0.2):
        models = case.pick("models", HOSTILE_SETTINGS)
    given = {}
    if case.chance(0.3):
        given["normalize"] = case.pick("normalize", HOSTILE_SETTINGS)
    try:
        plot_confusion_matrices(truth, models, **given)
    finally:
        pyplot().close("all")


def maps(case):
    """plot_tsne on hostile rows."""
    from skfedcal.plotting import plot_tsne

    rows, labels, _ = clean_rows()
    if case.chance(0.6):
        rows = case.pick("rows", HOSTILE_ROWS)(rows, case.rng)
    else:
        labels = case.pick("labels", HOSTILE_LABELS)(labels, case.rng)
    models = {"a": rows}
    if case.chance(0.2):
        models = case.pick("models", HOSTILE_SETTINGS)
    given = {"max_rows": 12, "random_state": 0}
    if case.chance(0.3):
        name = case.pick("param", list(given))
        given[name] = case.pick("value", HOSTILE_SETTINGS)
    try:
        plot_tsne(models, labels, perplexity=3, max_iter=250, **given)
    finally:
        pyplot().close("all")


def scorer(case):
    """Scorers by name, and those of the module."""
    names = [name for name in get_scorer_names() if "calibration" in name]
    names += ["log_likelihood"]
    if case.chance(0.2):
        get_scorer(case.pick("name", HOSTILE_SETTINGS))
        return
    if case.chance(0.5):
        names = [name for name in metrics.__all__ if name.endswith("_scorer")]
        names.remove("get_scorer")
        found = getattr(metrics, case.pick("scorer", names))
    else:
        found = get_scorer(case.pick("name", names))
    rows, labels, _ = clean_rows(2)
    kind, given = case.rng.random(), {}
    if kind < 0.5:
        labels = case.pick("labels", HOSTILE_LABELS)(labels, case.rng)
    else:
        given["sample_weight"] = case.pick("weights", HOSTILE_WEIGHTS)(labels, case.rng)
    value = found(fitted_pair(), rows, labels, **given)
    if not np.isfinite(value) or value > 1e-9:
        raise Broken(f"score {value}")


@functools.cache
def fitted_pair():
    """A calibrator of two classes."""
    rows, labels, ids = clean_rows(2)
    return type(fitted("FedTempCalibrator"))().fit(rows, labels, client_ids=ids)


ENTRIES = [
    ("curves", 1, curve),
    ("AuditDisplay", 0.5, audited),
    ("CalibrationMonitorDisplay", 0.5, monitored),
    ("plot_confusion_matrices", 0.5, matrices),
    ("plot_tsne", 0.5, maps),
    ("scorers", 3, scorer),
]
