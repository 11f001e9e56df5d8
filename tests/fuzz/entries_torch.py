"""Entry points that need torch; few cases, as each takes long."""

import numpy as np
from entries_estimators import call_form, check_proba, checked_fit, clean_rows
from fuzz_values import HOSTILE_ROWS, HOSTILE_SETTINGS

from skfedcal.compose import TorchLogits


def module():
    """A linear network."""
    import torch

    torch.manual_seed(0)
    return torch.nn.Linear(3, 3)


def torch_logits(case):
    """`TorchLogits` on hostile rows."""
    given = {}
    if case.chance(0.4):
        name = case.pick("param", ("classes", "input_shape", "device"))
        given[name] = case.pick("value", HOSTILE_SETTINGS)
    source = module()
    if case.chance(0.2):
        source = case.pick("module", HOSTILE_SETTINGS)
    rows, labels, _ = clean_rows()
    if case.chance(0.6):
        rows = case.pick("rows", HOSTILE_ROWS)(rows, case.rng)
    case.watch(rows)
    found = TorchLogits(source, **given).fit(rows, labels).transform(rows)
    np.asarray(found, dtype=float)


def trained(case):
    """`FedAvgClassifier` on hostile rows and settings."""
    from skfedcal.training import FedAvgClassifier

    given = {"module_params": {"hidden": (4,)}, "n_rounds": 1, "random_state": 0}
    if case.chance(0.6):
        name = case.pick("param", sorted(FedAvgClassifier._get_param_names()))
        value = case.pick("value", HOSTILE_SETTINGS)
        # A number of rounds or epochs that is huge is slow and not wrong.
        if not (isinstance(value, int) and value > 10):
            given[name] = value
    estimator = FedAvgClassifier(**given)
    args, kwargs, _ = call_form(case, *clean_rows())
    checked_fit(case, estimator, args, kwargs)
    rows = clean_rows()[0][:, : estimator.n_features_in_]
    if case.chance(0.3):
        rows = case.pick("predict", HOSTILE_ROWS)(rows, case.rng)
    check_proba(estimator.predict_proba(rows), len(estimator.classes_))


ENTRIES = [("TorchLogits", 1, torch_logits), ("FedAvgClassifier", 1, trained)]
