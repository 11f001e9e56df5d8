"""Entry points of training: losses, recipes, networks and experiments; need torch."""

import dataclasses
import inspect

import numpy as np
from entries_estimators import clean_rows, harmed
from fuzz_engine import Broken
from fuzz_values import HOSTILE_SETTINGS

TERMS = ("Contrastive", "DCA", "FedLC", "Focal", "LogitAdjusted", "MDCA", "MMCE", "MMD",
         "Margin", "NonUniform", "Proximal")  # fmt: skip
NETWORKS = ("MLP", "SmallCNN", "FCRCNN", "ResNet18", "CharLSTM")
RECIPES = ("ccvr", "fedlc", "fedprox", "fl_fcr", "moon", "nucfl")

# A network of more than this is slow and not wrong.
WIDE = 64


def term(case):
    """Losses and penalties with a hostile field."""
    from skfedcal import training

    cls = getattr(training, case.pick("cls", TERMS))
    names = [field.name for field in dataclasses.fields(cls)]
    made = cls(**{case.pick("field", names): case.pick("value", HOSTILE_SETTINGS)})
    for name in names:
        value = getattr(made, name)
        if isinstance(value, float) and not 0 <= value < np.inf:
            raise Broken(f"{name}={value}")


def recipe(case):
    """Recipes with hostile arguments, read by `fit` at the latest."""
    from skfedcal import training

    make = getattr(training, case.pick("recipe", RECIPES))
    names = [
        p.name
        for p in inspect.signature(make).parameters.values()
        if p.kind is not p.VAR_KEYWORD
    ]
    value = case.pick("value", HOSTILE_SETTINGS)
    given = {"module_params": {"hidden": (4,)}, "n_rounds": 1, "random_state": 0}
    if not (isinstance(value, int) and value > WIDE):
        given[case.pick("param", names)] = value
    rows, labels, ids = clean_rows()
    rows, labels, ids, _ = harmed(case, rows, labels, ids)
    make(**given).fit(rows, labels, client_ids=ids)


def network(case):
    """Networks by name, through `FedAvgClassifier`, with a hostile argument."""
    from skfedcal import training

    name = case.pick("cls", NETWORKS)
    cls = getattr(training, name)
    names = [*inspect.signature(cls).parameters][2:] or ["hidden"]
    value = case.pick("value", HOSTILE_SETTINGS)
    if isinstance(value, (int, np.integer)) and value > WIDE:
        value = 3
    shape = {"MLP": (3,), "CharLSTM": (4,)}.get(name, (8, 8, 1))
    word = {"MLP": "mlp", "SmallCNN": "cnn", "FCRCNN": "fcr_cnn",
            "ResNet18": "resnet18", "CharLSTM": "char_lstm"}[name]  # fmt: skip
    given = {case.pick("param", names): value}
    if name == "ResNet18":
        given = {"width": 32, **given}
    rows = np.zeros((6, *shape))
    clf = training.FedAvgClassifier(
        word, module_params=given, n_rounds=1, batch_size=3, random_state=0
    )
    clf.fit(rows, np.arange(6) % 2, client_ids=np.arange(6) // 3)


def experiment(case):
    """The tables of the papers, on few rows."""
    from skfedcal import experiments

    name = case.pick("table", ("skew_table", "participation_grid", "train_time_table"))
    given = {"n_clients": 2, "test_size": 0.25, "seeds": [0]}
    if name == "participation_grid":
        given |= {"shares": [1.0], "epochs": [1], "target_accuracy": 0.5}
    else:
        given |= {"alphas": [None], "methods": ["FedAvg"]}
    function = getattr(experiments, name)
    known = inspect.signature(function).parameters
    given = {key: value for key, value in given.items() if key in known}
    rows, labels, _ = clean_rows()
    if case.chance(0.5):
        rows, labels, _, _ = harmed(case, *clean_rows())
    if case.chance(0.7):
        value = case.pick("value", HOSTILE_SETTINGS)
        if not (isinstance(value, (int, np.integer)) and value > WIDE):
            given[case.pick("param", list(given))] = value
    short = {"n_rounds": 1, "local_epochs": 1, "module_params": {"hidden": (4,)}}
    if name == "participation_grid":
        short = {"n_rounds": 1, "module_params": {"hidden": (4,)}}
    table = function(rows, labels, **given, **short)
    str(table), table.to_markdown(), table.to_json()


def results(case):
    """ResultTable by hand."""
    from skfedcal.experiments import ResultTable

    given = {"title": "t", "keys": ["a"], "values": {"b": ".2f"},
             "runs": [{"a": 1, "b": 0.5, "seed": 0}], "settings": {}}  # fmt: skip
    given[case.pick("field", list(given))] = case.pick("value", HOSTILE_SETTINGS)
    str(ResultTable(**given))


def papers(case):
    """find_items and reproduce, of the quickest table."""
    from skfedcal.papers import find_items, reproduce

    value = case.pick("value", HOSTILE_SETTINGS)
    if case.chance(0.5):
        given = {"paper": "000", "tables": ["8"]}
        given[case.pick("param", ("paper", "tables", "figures", "readings"))] = value
        find_items(**given)
    else:
        given = {"paper": "000", "table": "8", "size": "quick"}
        given[case.pick("param", ("paper", "table", "figure", "size", "data"))] = value
        reproduce(**given).to_text()


ENTRIES = [
    ("losses and penalties", 2, term),
    ("recipes", 1, recipe),
    ("networks", 0.5, network),
    ("experiments", 0.3, experiment),
    ("ResultTable", 0.5, results),
    ("papers", 0.3, papers),
]
