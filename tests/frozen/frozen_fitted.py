"""Fitted results of everything public that learns or measures, as plain numbers."""

import numbers
import warnings
from functools import cache

import frozen_cases as cases
import numpy as np
from sklearn.naive_bayes import GaussianNB

import skfedcal as sf
from skfedcal.training import FedAvgClassifier

CALIBRATORS = {
    name.removeprefix("Fed").removesuffix("Calibrator"): name
    for name in sf.__all__
    if name.startswith("Fed") and name.endswith("Calibrator")
}
# Three bins: an edge at 1/2 is one of a bucket too, and last bits then decide on which
# side it is, which changes `discretisation` between processors.
FUNCTIONS = {
    "accuracy": (sf.federated_accuracy_score, {}),
    "brier": (sf.federated_brier_score_loss, {}),
    "curve": (sf.federated_calibration_curve, {"n_bins": 3}),
    "error": (sf.federated_calibration_error, {"kind": "binary", "n_bins": 3}),
    "squared error": (sf.federated_calibration_error, {"kind": "l2", "n_bins": 3}),
    "f1": (sf.federated_f1_score, {}),
    "log loss": (sf.federated_log_loss, {}),
    "precision": (sf.federated_precision_score, {}),
    "recall": (sf.federated_recall_score, {}),
    "auc": (sf.federated_roc_auc_score, {}),
}
MODELS = {"exact": None, "eps=3": 3.0}
# Torch computes in float32, whose last bits are 6e-8, over a few dozen steps.
FLOAT32 = ("fedavg",)


def _plain(value):
    """Numbers in lists; None for what is no number."""
    if isinstance(value, sf.Estimate):
        names = ("low", "high", "se_sampling", "se_privacy", "discretisation")
        value = [float(value), *(getattr(value, name) for name in names)]
    if isinstance(value, bool | np.bool_):
        return int(value)
    if isinstance(value, numbers.Real):
        value = float(value)
        return value if np.isfinite(value) else str(value)
    if isinstance(value, tuple | list):
        found = [_plain(entry) for entry in value]
        return None if any(entry is None for entry in found) else found
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return [_plain(entry) for entry in value.tolist()] if value.size <= 80 else None
    return None


def _attributes(estimator):
    """Fitted attributes that are numbers."""
    found = {}
    for name, value in sorted(vars(estimator).items()):
        if name.endswith("_") and not name.startswith("_"):
            plain = _plain(value)
            if plain is not None:
                found[name] = plain
    return found


def _calibrators():
    rows, _ = cases.make_rows(4, 3, 999)
    for short, name in CALIBRATORS.items():
        params = {"hidden": (4,), "epochs": 1} if short == "MLP" else {}
        for model, eps in MODELS.items():
            if short == "OneVsRest" and eps is not None:
                continue  # it has no version with noise
            # Under noise six clients rarely improve on nothing: take the fit as it is.
            params["if_improves"] = eps is None
            # Two rounds of training are as good as all.
            runner = sf.FederatedRunner(n_rounds=2 if short == "MLP" else None)
            fitted = getattr(sf, name)(
                eps, classes=[0, 1, 2], random_state=7, runner=runner, **params
            ).fit(cases.make_clients(3))
            yield (
                f"{short} / {model}",
                {
                    **_attributes(fitted),
                    "predict_proba": _plain(fitted.predict_proba(rows)),
                },
            )


def _evaluation():
    clients, rows = cases.make_clients(2), {"population": "rows"}
    for model, eps in MODELS.items():
        privacy = None if eps is None else sf.CentralDP(eps, 1e-5)
        common = {
            "classes": [0, 1],
            "privacy": privacy,
            "random_state": 7,
            "height": 5,
        }
        for name, (function, params) in FUNCTIONS.items():
            yield (
                f"{name} / {model}",
                {"value": _plain(function(clients, **common, **params, **rows))},
            )
        three = cases.make_clients(3)
        common["classes"] = [0, 1, 2]
        ovr = cases.sparse_areas(three, **common)
        yield f"auc, ovr / {model}", {"value": _plain(ovr)}
        top = sf.federated_calibration_error(three, n_bins=3, **common, **rows)
        yield f"error, top / {model}", {"value": _plain(top)}
        del common["height"]
        residuals = sf.ClasswiseResiduals.fit(three, **common)
        yield f"residuals / {model}", _attributes(residuals)


def _learners():
    clients = cases.make_clients(3)
    rows, _ = cases.make_rows(4, 3, 999)
    for model, eps in MODELS.items():
        head = sf.FedGaussianHead(eps, max_norm=4.0, classes=[0, 1, 2], random_state=7)
        head.fit(clients)
        yield (
            f"gaussian head / {model}",
            {**_attributes(head), "predict_proba": _plain(head.predict_proba(rows))},
        )
        linear = FedAvgClassifier(
            module_params={"hidden": ()},
            n_rounds=2,
            eps=eps,
            clip=1.0 if eps else "auto",
            classes=[0, 1, 2],
            random_state=7,
        )
        linear.fit(clients)
        yield (
            f"fedavg / {model}",
            {"predict_proba": _plain(linear.predict_proba(rows).astype(float))},
        )
    yield (
        "client temperatures",
        {"value": _plain(sf.client_temperatures(clients, classes=[0, 1, 2]))},
    )
    X = np.concatenate([rows for rows, _ in clients.values()])
    y = np.concatenate([labels for _, labels in clients.values()])
    ids = np.repeat(np.arange(len(cases.SIZES)), cases.SIZES)
    composed = sf.FederatedCalibratedClassifier(
        GaussianNB(), sf.FedTempCalibrator(), cv=3, random_state=7
    ).fit(X, y, client_ids=ids)
    yield (
        "calibrated classifier",
        {"predict_proba": _plain(composed.predict_proba(rows))},
    )


def _numbers_of(part):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dict(part())


@cache
def numbers_found():
    """All results: ``{case: {name: number or nested lists}}``."""
    parts = (_calibrators, _evaluation, _learners)
    return {name: found for part in parts for name, found in _numbers_of(part).items()}
