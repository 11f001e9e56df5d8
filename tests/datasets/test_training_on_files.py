"""What the readers return is what FedAvgClassifier takes."""

import json
import pickle

import numpy as np
import pytest

from skfedcal.clients import DirichletPartitioner
from skfedcal.datasets import (
    load_cifar10,
    load_femnist,
    load_mnist,
    load_shakespeare,
    split_clients,
)

pytest.importorskip("torch")
RNG = np.random.default_rng(6)
N_ROWS = 24


@pytest.fixture
def mnist(tmp_path, write_idx):
    images = RNG.integers(256, size=(N_ROWS, 28, 28), dtype=np.uint8)
    write_idx(tmp_path / "train-images-idx3-ubyte", images)
    labels = (np.arange(N_ROWS) % 3).astype(np.uint8)
    write_idx(tmp_path / "train-labels-idx1-ubyte", labels)
    return load_mnist(tmp_path, return_X_y=True)


@pytest.fixture
def cifar(tmp_path):
    data = RNG.integers(256, size=(N_ROWS, 3072), dtype=np.uint8)
    batch = {"data": data, "labels": (np.arange(N_ROWS) % 3).tolist()}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch))
    return load_cifar10(tmp_path, split="test", dtype="float32", return_X_y=True)


def leaf(folder, rows):
    (folder / "train").mkdir()
    users = {f"u{k}": {"x": rows(), "y": y} for k, y in enumerate(([1, 2], [2, 1, 1]))}
    content = {"users": list(users), "num_samples": [2, 3], "user_data": users}
    for user in users.values():
        user["x"] = user["x"][: len(user["y"])]
    return content


def fit(module, clients, shape):
    from skfedcal.training import FedAvgClassifier

    model = FedAvgClassifier(module, n_rounds=1, lr=1e-3, random_state=0).fit(clients)
    rows = np.concatenate([X for X, _ in clients.values()])
    assert model.input_shape_ == shape
    assert model.predict_proba(rows).shape == (len(rows), len(model.classes_))


@pytest.mark.parametrize(
    ("name", "shape"), [("mnist", (28, 28)), ("cifar", (32, 32, 3))]
)
@pytest.mark.parametrize("module", ["mlp", "cnn"])
def test_images_at_partitioned_clients(request, name, shape, module):
    X, y = request.getfixturevalue(name)
    clients = DirichletPartitioner(3, alpha=1.0, random_state=0).split(X, y)
    train, calibration, test = split_clients(clients, random_state=0)
    assert sum(len(y) for part in (train, calibration, test) for _, y in part) == N_ROWS
    fit(module, dict(enumerate(train)), shape)


def test_channels_last_are_known_as_such(cifar):
    from skfedcal.training.modules import image_shape

    assert image_shape(cifar[0].shape[1:], 4) == ((3, 32, 32), True)


def test_writers(tmp_path):
    content = leaf(tmp_path, lambda: RNG.random((3, 784)).round(3).tolist())
    (tmp_path / "train" / "t.json").write_text(json.dumps(content))
    fit("cnn", load_femnist(tmp_path, as_clients=True), (28, 28))


def test_roles(tmp_path):
    content = leaf(tmp_path, lambda: ["To be, or" + " " * 71] * 3)
    for user in content["user_data"].values():
        user["y"] = ["nt"[label - 1] for label in user["y"]]
    (tmp_path / "train" / "t.json").write_text(json.dumps(content))
    fit("char_lstm", load_shakespeare(tmp_path, as_clients=True), (80,))
