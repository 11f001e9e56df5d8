"""Data for all tests, and the registered estimators."""

import os
import sys
from pathlib import Path

# Before scipy is imported, or scikit-learn skips its array API check.
os.environ.setdefault("SCIPY_ARRAY_API", "1")

import numpy as np
import pytest
from hypothesis import settings
from scipy.optimize import brentq
from sklearn.datasets import make_classification
from threadpoolctl import threadpool_limits

from skfedcal import (
    FederatedCalibratedClassifier,
    FedGaussianHead,
    LogitTransformer,
    make_federation,
)
from skfedcal.methods import registry

# The method of the gallery, registered as any other package would: every test that runs
# over the registry runs on it as well.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import uniform_mixture  # noqa: F401

# The same examples on every run: a red run means a change; "deep" looks further.
settings.register_profile("repo", max_examples=30, deadline=None, derandomize=True)
settings.register_profile("deep", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repo"))

# A worker takes up to 1 GB once torch is loaded.
MOST_WORKERS = 8


def pytest_configure(config):
    # xdist registers it, unless it is switched off.
    text = "xdist_group(name): run in the same worker"
    config.addinivalue_line("markers", text)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads its options
def pytest_cmdline_main(config):
    """Run folders on all cores and single files in one process, unless -n is given.

    Workers take seconds to start, and show neither prompts nor prints.
    """
    option = config.option
    if not hasattr(option, "numprocesses") or "PYTEST_XDIST_WORKER" in os.environ:
        return  # -p no:xdist, or a worker
    folders = all(os.path.isdir(argument) for argument in config.args)
    interactive = option.usepdb or option.trace or option.capture == "no"
    if folders and not interactive and option.numprocesses is None and not option.tx:
        option.numprocesses = min(n_cores(), MOST_WORKERS)
    if option.numprocesses and option.dist == "no":
        option.dist = "loadgroup"


# Quick tests of every package: ``pytest -m smoke``, less than a minute on two cores.
SMOKE = (
    "cli/test_evaluate_info.py",
    "cli/test_fit_predict.py",
    "clients/test_dataset.py",
    "clients/test_forms.py",
    "clients/test_partitions.py",
    "clients/test_validate.py",
    "compose/test_calibrated_classifier.py",
    "compose/test_folds.py",
    "evaluation/test_exact.py",
    "evaluation/test_intervals.py",
    "evaluation/test_private_evaluation.py",
    "experiments/test_presets.py",
    "federation/test_backends.py",
    "federation/test_collect.py",
    "federation/test_masking.py",
    "federation/test_runner.py",
    "federation/test_site.py",
    "federation/test_wire.py",
    "federation/test_words.py",
    "frozen/test_api.py",
    "frozen/test_files.py",
    "frozen/test_released.py",
    "frozen/test_wire_formats.py",
    "methods/bins/test_bins_estimator.py",
    "methods/temperature/test_temperature_estimator.py",
    "methods/test_persistence.py",
    "methods/test_private_fits.py",
    "metrics/test_binning.py",
    "metrics/test_errors_by_hand.py",
    "privacy/test_codec.py",
    "privacy/test_mechanisms.py",
    "privacy/test_models.py",
    "privacy/test_shares.py",
    "test_public_api.py",
)
TESTS = Path(__file__).parent


def is_smoke(path):
    """Whether ``-m smoke`` runs the tests of this file."""
    return path.is_relative_to(TESTS) and path.relative_to(TESTS).as_posix() in SMOKE


def pytest_ignore_collect(collection_path, config):
    """Do not even import what ``-m smoke`` leaves out."""
    smoke = config.option.markexpr == "smoke" and collection_path.suffix == ".py"
    return True if smoke and not is_smoke(collection_path) else None


def pytest_collection_modifyitems(items):
    for item in items:
        if is_smoke(item.path) and item.get_closest_marker("slow") is None:
            item.add_marker("smoke")


def n_cores():
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


CALIBRATORS = [method.load() for method in registry.methods("calibrator")]
ESTIMATORS = [
    *CALIBRATORS,
    FederatedCalibratedClassifier,
    FedGaussianHead,
    LogitTransformer,
]


@pytest.fixture(scope="session", autouse=True)
def one_blas_thread():
    # On small arrays threads of BLAS only wait for each other: five times as slow.
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture(scope="session")
def public_estimators():
    return ESTIMATORS


@pytest.fixture(params=CALIBRATORS, ids=lambda cls: cls.__name__)
def calibrator_class(request):
    """Each calibrator in turn."""
    return request.param


@pytest.fixture(
    params=[m.load() for m in registry.methods("calibrator") if m.has_noise],
    ids=lambda cls: cls.__name__,
)
def noisy_class(request):
    """Each calibrator that has a version with noise, in turn."""
    return request.param


@pytest.fixture(scope="session")
def federation():
    """Logits of 3 classes, 1.8 times too large, at 12 clients with label skew."""
    return make_federation(
        12, 600, 3, noise=0.0, alpha=1.0, n_test=200, dtype=np.float64, random_state=0
    )


@pytest.fixture(scope="session")
def clients(federation):
    """The same as a list of (logits, labels) pairs."""
    return federation.clients


@pytest.fixture(scope="session")
def features():
    """Features, labels of 3 classes and client ids of 480 rows at 12 clients."""
    X, y = make_classification(
        480, 8, n_informative=5, n_classes=3, flip_y=0.2, random_state=0
    )
    return X, y, np.arange(480) % 12


def _draw(n, c, temperature=1.0, seed=0, spread=1.5, dtype=np.float64):
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(n, c)) * spread
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    return (true * temperature).astype(dtype), labels


def _optimum(rows, labels, low=1e-4, high=1e4):
    """Root of the slope of the log loss in log(1 / T), or the nearer bound."""
    gaps = rows.astype(np.float64)
    gaps = gaps - gaps.max(axis=1, keepdims=True)
    own = gaps[np.arange(len(labels)), labels]

    def slope(u):
        weights = np.exp(np.exp(u) * gaps)
        return float(((weights * gaps).sum(axis=1) / weights.sum(axis=1) - own).sum())

    first, last = -np.log(high), -np.log(low)
    if slope(first) >= 0:
        return high
    if slope(last) <= 0:
        return low
    return float(np.exp(-brentq(slope, first, last, xtol=1e-14, rtol=1e-14)))


@pytest.fixture
def draw():
    return _draw


@pytest.fixture
def optimum():
    return _optimum
