"""Any trained torch module as a step of a pipeline."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from skfedcal import FedTempCalibrator  # noqa: E402
from skfedcal.compose import TorchLogits  # noqa: E402
from skfedcal.training import FedAvgClassifier  # noqa: E402


class AnyWidth(nn.Module):
    """Takes rows of any length."""

    def forward(self, x):
        return torch.stack([x.sum(dim=-1), -x.mean(dim=-1), x[:, 0]], dim=-1)


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:500] / 16, y[:500]


@parametrize_with_checks([TorchLogits(AnyWidth())])
def test_common_check(estimator, check):
    check(estimator)


def test_equals_the_module(digits):
    X, _ = digits
    module = nn.Sequential(nn.Linear(64, 9), nn.BatchNorm1d(9), nn.Linear(9, 10))
    module.train()
    step = TorchLogits(module)
    found = step.fit_transform(X)
    assert module.training
    with torch.no_grad():
        expected = module.eval()(torch.from_numpy(X).float())
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found.dtype == np.float32
    assert list(step.get_feature_names_out())[:2] == ["logit_0", "logit_1"]


def test_pieces_make_no_difference(digits, monkeypatch):
    from skfedcal.training import modules

    X, _ = digits
    step = TorchLogits(nn.Linear(64, 10)).fit(X)
    whole = step.transform(X)
    monkeypatch.setattr(modules, "_PIECE", 64 * 7)
    np.testing.assert_allclose(step.transform(X), whole, atol=1e-6)


def test_images_and_flat_rows(digits):
    X, _ = digits
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10))
    images = X.reshape(-1, 1, 8, 8)
    np.testing.assert_array_equal(
        TorchLogits(module, input_shape=(1, 8, 8)).fit_transform(X),
        TorchLogits(module).fit_transform(images),
    )
    with pytest.raises(ValueError, match="has 63 numbers, a row of X has 64"):
        TorchLogits(module, input_shape=(1, 7, 9)).fit(X)


def test_tokens():
    rows = np.random.default_rng(0).integers(0, 5, size=(20, 3))
    module = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 3))
    expected = module(torch.from_numpy(rows)).detach()
    np.testing.assert_allclose(TorchLogits(module).fit_transform(rows), expected)
    np.testing.assert_allclose(
        TorchLogits(module).fit_transform(rows.astype(float)), expected
    )


def test_double_modules_stay_double(digits):
    X, _ = digits
    assert TorchLogits(nn.Linear(64, 10).double()).fit_transform(X).dtype == np.float64


@pytest.mark.parametrize("flat", [False, True])
def test_log_odds_become_two_columns(digits, flat):
    X, _ = digits
    module = nn.Linear(64, 1)
    step = TorchLogits(
        nn.Sequential(module, nn.Flatten(0)) if flat else module, classes=["no", "yes"]
    )
    odds = module(torch.from_numpy(X).float()).detach().numpy()[:, 0]
    found = step.fit_transform(X)
    np.testing.assert_allclose(found, np.stack([-odds / 2, odds / 2], axis=1))
    assert list(step.get_feature_names_out()) == ["logit_no", "logit_yes"]
    assert step.transform(X[:1]).shape == (1, 2)


def test_what_is_no_logits_is_refused(digits):
    X, _ = digits
    with pytest.raises(ValueError, match="one row of logits per row is needed"):
        TorchLogits(nn.Unflatten(1, (8, 8))).fit(X)
    with pytest.raises(ValueError, match="The module has 10 columns"):
        TorchLogits(nn.Linear(64, 10), classes=range(9)).fit(X)
    with pytest.raises(ValueError, match="'module' parameter"):
        TorchLogits("mlp").fit(X)
    with pytest.raises(NotFittedError):
        TorchLogits(nn.Linear(64, 10)).transform(X)


def test_pickle_and_clone(digits):
    X, _ = digits
    step = TorchLogits(nn.Linear(64, 10)).fit(X)
    for other in (pickle.loads(pickle.dumps(step)), clone(step).fit(X)):
        np.testing.assert_array_equal(other.transform(X), step.transform(X))


def test_a_federated_module_in_a_pipeline_with_a_calibrator(digits):
    X, y = digits
    ids = np.arange(len(y)) % 10
    clf = FedAvgClassifier("linear", n_rounds=5, lr=0.5, random_state=0)
    clf.fit(X, y, client_ids=ids)
    step = TorchLogits(clf.module_, classes=clf.classes_)
    pipe = make_pipeline(step, FedTempCalibrator())
    pipe.fit(X, y, fedtempcalibrator__client_ids=ids)
    direct = FedTempCalibrator().fit(clf.client_logits(X, y, client_ids=ids))
    assert pipe[-1].temperature_ == pytest.approx(direct.temperature_, rel=1e-4)
    np.testing.assert_array_equal(pipe.predict(X), clf.predict(X))


def test_a_class_and_axes_in_another_order_are_refused():
    X = np.zeros((4, 8, 8, 3), np.float32)
    net = nn.Sequential(nn.Conv2d(3, 10, 8), nn.Flatten())
    with pytest.raises(ValueError, match="would be scrambled"):
        TorchLogits(net, input_shape=(3, 8, 8)).fit(X)
    with pytest.raises(TypeError, match="not its class"):
        TorchLogits(nn.Linear).fit(X)
