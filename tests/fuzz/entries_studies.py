"""Entry points that draw studies: reliability, skew, costs, sweeps and ledgers."""

import functools

import numpy as np
from entries_compare import compared
from entries_display import pyplot
from entries_estimators import call_form, clean_rows, fitted
from fuzz_values import HOSTILE_LABELS, HOSTILE_ROWS, HOSTILE_SETTINGS

from skfedcal import FedTempCalibrator, PrivacyLedger
from skfedcal.privacy import GaussianEvent


def _proba():
    logits, labels, _ = clean_rows()
    rows = np.exp(logits)
    return rows / rows.sum(axis=1, keepdims=True), labels


def _spoilt(case):
    """Probabilities and labels, one of them hostile in most cases."""
    rows, labels = _proba()
    kind = case.rng.random()
    if kind < 0.4:
        rows = case.pick("rows", HOSTILE_ROWS)(rows, case.rng)
    elif kind < 0.7:
        labels = case.pick("labels", HOSTILE_LABELS)(labels, case.rng)
    return rows, labels


def _setting(case, names, share=0.5):
    """A hostile setting, of few values that are large."""
    if not case.chance(share):
        return {}
    value = case.pick("value", HOSTILE_SETTINGS)
    if isinstance(value, (int, np.integer)) and value > 100:
        value = 3
    return {case.pick("param", names): value}


def reliability(case):
    """ReliabilityDisplay, plot_reliability, plot_reliability_grid, before_and_after."""
    from skfedcal import plotting

    rows, labels = _spoilt(case)
    name = case.pick("call", ("display", "estimator", "plot", "grid", "after"))
    common = ("target", "labels", "n_bins", "strategy", "ci", "margin", "scale")
    try:
        if name == "display":
            given = _setting(case, (*common, "ref_line", "band"))
            plotting.ReliabilityDisplay.from_predictions(labels, rows, **given)
        elif name in ("estimator", "after"):
            source = fitted("FedTempCalibrator")
            if case.chance(0.2):
                odd = {**HOSTILE_SETTINGS, "not fitted": FedTempCalibrator()}
                source = case.pick("estimator", odd)
            if name == "after":
                plotting.before_and_after(source, rows)
            else:
                plotting.ReliabilityDisplay.from_estimator(source, rows, labels)
        else:
            models = {"a": _proba()[0], "b": rows}
            if case.chance(0.2):
                models = case.pick("models", HOSTILE_SETTINGS)
            if name == "plot":
                given = _setting(case, (*common, "axes"))
                plotting.plot_reliability(labels, models, **given)
            else:
                names = (*common[1:], "classes", "max_classes", "n_columns")
                given = _setting(case, names)
                plotting.plot_reliability_grid(labels, models, **given)
    finally:
        pyplot().close("all")


def of_clients(case):
    """LabelSkewDisplay and ClientTemperaturesDisplay."""
    from skfedcal import plotting

    cls = getattr(
        plotting, case.pick("cls", ("LabelSkewDisplay", "ClientTemperaturesDisplay"))
    )
    args, kwargs, _ = call_form(case, *clean_rows())
    names = ["classes"]
    names += ["sizes"] if "Skew" in cls.__name__ else ["input_type"]
    try:
        cls.from_clients(*args, **kwargs, **_setting(case, names, 0.3))
    finally:
        pyplot().close("all")


ROWS = [
    {"method": "a", "eps": "none", "cwECE": 0.1, "bytes": 10},
    {"method": "a", "eps": "1", "cwECE": 0.2, "bytes": 20},
    {"method": "base", "eps": "-", "cwECE": 0.3, "bytes": None},
]


def _table(case):
    """A table of results, perhaps with a hostile cell."""
    rows = [dict(row) for row in ROWS]
    kind = case.pick("table", ("cell", "cell", "column", "comparison", "odd", "dict"))
    name = case.pick("column", list(ROWS[0]))
    if kind == "cell":
        rows[int(case.rng.integers(3))][name] = case.pick("cell", HOSTILE_SETTINGS)
    elif kind == "column":
        for row in rows:
            del row[name]
    elif kind == "comparison":
        return compared()
    elif kind == "odd":
        return case.pick("odd", HOSTILE_SETTINGS)
    elif kind == "dict":
        columns = {key: [row[key] for row in rows] for key in ROWS[0]}
        columns[name] = case.pick("entries", HOSTILE_SETTINGS)
        return columns
    return rows


def of_tables(case):
    """SweepDisplay and CostDisplay."""
    from skfedcal.plotting import CostDisplay, SweepDisplay

    call = case.pick("call", ("sweep", "arrays", "cost", "estimators"))
    try:
        if call == "sweep":
            given = _setting(case, ("x", "y", "by", "log_x"), 0.3)
            SweepDisplay.from_table(_table(case), **given)
        elif call == "cost":
            given = _setting(case, ("columns", "by", "log", "sort"), 0.3)
            CostDisplay.from_table(_table(case), **given)
        elif call == "estimators":
            models = {"a": fitted("FedTempCalibrator")}
            odd = case.pick("odd", HOSTILE_SETTINGS)
            CostDisplay.from_estimators(
                {**models, "b": odd} if case.chance(0.5) else odd
            )
        else:
            given = {"x": [1.0, None, 3.0], "y": {"a": [0.1, 0.2, 0.3]}}
            given |= _setting(
                case, ("x", "y", "spread", "references", "x_name", "log_x")
            )
            if case.chance(0.4):
                given["y"] = {"a": case.pick("scores", HOSTILE_SETTINGS)}
            SweepDisplay.from_arrays(**given)
    finally:
        pyplot().close("all")


@functools.cache
def _ledger():
    ledger = PrivacyLedger(budget=(3.0, 1e-4))
    ledger.debit(GaussianEvent(0.1), label="a")
    return ledger


def of_ledgers(case):
    """LedgerDisplay."""
    from skfedcal.plotting import LedgerDisplay

    ledger = _ledger()
    if case.chance(0.3):
        odd = {**HOSTILE_SETTINGS, "no debits": PrivacyLedger(budget=(1.0, 1e-5)),
               "no budget": PrivacyLedger()}  # fmt: skip
        ledger = case.pick("ledger", odd)
    try:
        given = _setting(case, ("delta", "population", "x", "names"), 0.7)
        LedgerDisplay.from_ledger(ledger, **given)
    finally:
        pyplot().close("all")


ENTRIES = [
    ("plot_reliability", 1, reliability),
    ("plot_ of clients", 0.5, of_clients),
    ("plot_ of tables", 1, of_tables),
    ("plot_ of ledgers", 0.5, of_ledgers),
]
