"""Calibrators of every kind of map, fitted to a few clients."""

import numpy as np
import pytest
from sklearn.base import clone

from skfedcal import (
    FedBBQCalibrator,
    FedBinCalibrator,
    FedHistogramCalibrator,
    FedMLPCalibrator,
    FedTopBinCalibrator,
    make_federation,
)
from skfedcal.methods import registry

MAPS = {
    **{
        method.word if i == 0 else f"{method.word} {i}": method.load()(**case.params)
        for method in registry.methods("calibrator")
        for i, case in enumerate(method.cases)
        if "eps" not in case.params
    },
    # Other parameters of these have other maps.
    "bins of default size": FedBinCalibrator(),
    "bbq of default size": FedBBQCalibrator(),
    "top bins shared": FedTopBinCalibrator(keep_order=False),
    "bins logit": FedBinCalibrator(normalize="logit"),
    "bins none": FedBinCalibrator(n_bins=7, normalize="none"),
    "bins of log-odds": FedBinCalibrator(space="logit", n_bins=30, normalize="logit"),
    "bins weighed of log-odds": FedBinCalibrator(space="logit", weighting="all"),
    "bins weighed": FedBinCalibrator(weighting="all"),
    "bbq changed": FedBBQCalibrator(weighting="changed", n_levels=4),
    "bbq of probability": FedBBQCalibrator(space="prob"),
    "mlp": FedMLPCalibrator(hidden=(8,), epochs=1),
    "mlp added": FedMLPCalibrator(hidden=(8, 4), epochs=1, order_preserving=False),
    **{
        f"{method} {kind}": FedHistogramCalibrator(
            method=method, multiclass=kind, if_improves=False
        )
        for method in ("bins", "bbq", "bbq_quantile", "isotonic", "platt", "beta")
        for kind in ("ovr", "top")
    },
}


@pytest.fixture(scope="session")
def maps():
    return MAPS


@pytest.fixture(params=MAPS)
def name(request):
    """Each kind of map in turn."""
    return request.param


def _fit(name, n_classes, **params):
    fed = make_federation(
        20, 1500, n_classes, class_bias=0.5, alpha=0.5, n_test=600, random_state=0
    )
    return clone(MAPS[name]).set_params(**params).fit(fed.clients), fed.test_logits


@pytest.fixture(scope="session")
def fitted():
    """A calibrator by the name of its map, and rows; each is fitted once."""
    known = {}

    def fit(name, n_classes=3, **params):
        key = (name, n_classes, *sorted(params.items()))
        if key not in known:
            known[key] = _fit(name, n_classes, **params)
        cal, rows = known[key]
        return cal, rows.copy()

    return fit


@pytest.fixture
def hard():
    """Rows of logits with those that are hard among them."""

    def make(rows, dtype):
        out = np.array(rows, dtype=dtype)
        out[0, 1:] = -np.inf
        out[1] = 0
        out[2, 0] = 1e5
        out[3] *= 1e-9
        out[4] *= 1e4
        out[5, 0] = -1e7
        out[6, :2] = out[6].max() + 1
        return out

    return make
