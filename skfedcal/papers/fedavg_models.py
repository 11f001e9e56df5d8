"""Networks of paper 000, trained by FedAvg, and the logits that its items calibrate.

Without ``--data`` the images are scikit-learn's digits, shifted and with noise. A
folder holds files of logits, which are taken as they are, or data sets in the layouts
in which they are published; then the network of the paper is trained on them. Logits
are stored.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skfedcal.papers.items import Setting

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]

N_CLIENTS = 100


@dataclass(frozen=True, slots=True)
class Recipe:
    """Data set and network of the paper, with its settings of training (A.3.1).

    name: Row of Tables 2 and 3.
    loader: Function of `skfedcal.datasets`.
    module, module_params: The network.
    lr, epochs, server_lr: Rate of a client, passes over all rows, rate of the server.
    leaf: Whether the file says which client owns a row; else labels are skewed.
    """

    name: str
    loader: str
    module: str
    lr: float
    epochs: int
    module_params: Mapping[str, Any] = field(default_factory=dict)
    server_lr: float = 1.0
    leaf: bool = False


# LEAF's CNN has 2048 hidden units. Its LSTM has 2 layers, the paper says 3.
_CNN = {"hidden": 2048}
RECIPES = (
    Recipe("CIFAR10 (2)", "load_cifar10", "cnn", 0.01, 300, _CNN),
    Recipe("CIFAR10 (18)", "load_cifar10", "resnet18", 0.01, 100),
    Recipe("CIFAR100 (2)", "load_cifar100", "cnn", 0.01, 500, _CNN),
    Recipe("CIFAR100 (18)", "load_cifar100", "resnet18", 0.01, 100),
    Recipe("SVHN (18)", "load_svhn", "resnet18", 0.001, 10),
    Recipe("Tinyimnet (18)", "load_tiny_imagenet", "resnet18", 0.001, 30),
    Recipe("FEMNIST (2)", "load_femnist", "cnn", 0.01, 30, _CNN, leaf=True),
    Recipe("MNIST (2)", "load_mnist", "cnn", 0.001, 10, _CNN),
    Recipe(
        "Shakespeare (3)", "load_shakespeare", "char_lstm", 0.01, 10,
        {"layers": 3}, 0.524, leaf=True,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Model:
    """Logits of a network: rows to calibrate on, and rows for the test.

    name: What it is; a row of the paper's tables if `given`.
    clients: Owner of each row to calibrate on; None assigns them anew with each seed.
    given: Whether data set and network are those of the paper.
    """

    name: str
    logits: Array
    labels: Array
    clients: Array | None
    test_logits: Array
    test_labels: Array
    given: bool = False

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(self.logits.shape[1])

    @property
    def test(self) -> tuple[Array, Array]:
        """Rows for the test."""
        return self.test_logits, self.test_labels

    def assigned(self, beta: float | None, seed: int) -> Array:
        """Clients of the rows under label skew `beta`; None is IID."""
        from skfedcal.clients import DirichletPartitioner, IIDPartitioner

        partitioner = (
            IIDPartitioner(N_CLIENTS, random_state=seed)
            if beta is None
            else DirichletPartitioner(N_CLIENTS, beta, min_size=0, random_state=seed)
        )
        ids: Array = partitioner.assign(self.labels)
        return ids


def find_models(
    setting: Setting, *words: str, beta: float | None = 0.1, seed: int = 0
) -> list[Model]:
    """Return the models of a setting.

    words: Beginnings of names in the paper, such as "CIFAR100"; without any of these
        among the data, or without words, all models.
    beta: Label skew of the clients that train, and of those that calibrate.
    """
    if setting.data is None:
        return [digits_model(setting, beta, seed)]
    found = []
    for path in sorted(setting.data.glob("*.npz")):
        model = read_logits(path)
        if model is None:
            setting.progress(
                f"{path.name} is left out: it cannot be read, or has no finite logits "
                "of three classes or more with labels"
            )
        else:
            found.append(model)
    homes = homes_of(setting.data)
    if not found:
        recipes = [r for r in RECIPES if not words or r.name.startswith(words)]
        for recipe in recipes:
            rows = read_images(recipe, homes)
            if rows is not None:
                found.append(trained(setting, recipe, *rows, beta=beta, seed=seed))
    if not found:
        raise ValueError(
            f"{setting.data} has no files of logits (.npz with logits and labels of "
            "three classes or more), and none of the data sets "
            f"{', '.join(dict.fromkeys(r.name.split()[0] for r in RECIPES))}."
        )
    chosen = [
        m for m in found if m.name.upper().startswith(tuple(map(str.upper, words)))
    ]
    return chosen if words and chosen else found


def homes_of(data: Path | None) -> list[Path]:
    """Folders in which data sets are looked for."""
    if data is None:
        return []
    return [data, *sorted(path for path in data.iterdir() if path.is_dir())]


def read_logits(path: Path) -> Model | None:
    """Model of a file of logits; None if it holds something else or two classes."""
    import numpy as np

    from skfedcal.clients import load_federation

    try:
        bunch = load_federation(path)
    except (ValueError, OSError, KeyError):
        return None
    fit = bunch if bunch.val is None else bunch.val
    logits, labels, ids = fit.logits, fit.labels, fit.client_ids
    if np.ndim(logits) != 2 or logits.shape[1] < 3:
        return None
    if bunch.val is not None:
        test = bunch.logits, bunch.labels
    else:
        held = np.random.default_rng(0).permutation(len(labels)) < len(labels) // 2
        test = logits[held], labels[held]
        logits, labels = logits[~held], labels[~held]
        ids = None if ids is None else ids[~held]
    return Model(path.stem, logits, labels, ids, *test)


def read_images(
    recipe: Recipe, homes: list[Path]
) -> tuple[Array, Array, Array | None] | None:
    """Rows, labels and clients of a data set, all its parts; None if it is absent."""
    import numpy as np

    from skfedcal import datasets

    load: Callable[..., Any] = getattr(datasets, recipe.loader)
    for home in homes:
        try:
            if recipe.leaf:
                found = load(home, split="all", min_samples=100)
                return found.data, found.target, found.client_ids
            splits = "val" if recipe.loader == "load_tiny_imagenet" else "test"
            parts = [load(home, split=s, dtype="float32") for s in ("train", splits)]
        except (FileNotFoundError, ValueError):
            continue
        rows = np.concatenate([part.data for part in parts])
        return rows, np.concatenate([part.target for part in parts]), None
    return None


def trained(
    setting: Setting,
    recipe: Recipe,
    X: Array,
    y: Array,
    ids: Array | None,
    *,
    beta: float | None,
    seed: int,
) -> Model:
    """Train the paper's network on 80 % of each client's rows; logits of the rest."""
    import numpy as np

    share = 0.1 if ids is None else 60 / len(np.unique(ids))
    n_rounds = round(recipe.epochs / min(share, 1.0))
    limits = setting.pick((3000, 12), (20_000, 200), (len(y), n_rounds))
    if limits[0] < len(y):
        kept = np.sort(np.random.default_rng(seed).permutation(len(y))[: limits[0]])
        X, y = X[kept], y[kept]
        ids = None if ids is None else np.unique(ids[kept], return_inverse=True)[1]
    params = {
        "module": recipe.module,
        "module_params": dict(recipe.module_params) or None,
        "lr": recipe.lr,
        "server_lr": recipe.server_lr,
        "n_rounds": min(limits[1], n_rounds),
        "batch_size": 64,
        "clients_per_round": 10 if ids is None else min(60, len(np.unique(ids))),
    }
    if setting.size != "full":
        # Few rounds need longer ones.
        params |= {"lr": 0.1 if recipe.lr == 0.01 else 0.05, "local_epochs": 2}
        if recipe.module == "cnn":
            params["module_params"] = {"hidden": 64, "channels": (8, 16)}
    classes = np.unique(y)
    return _train(setting, recipe.name, (X, y, ids), classes, params, beta, seed, True)


def digits_model(
    setting: Setting, beta: float | None = 0.1, seed: int = 0, **params: Any
) -> Model:
    """Train a CNN on scikit-learn's digits, shifted, scaled and with noise."""
    import numpy as np
    from sklearn.datasets import load_digits

    n_rows = setting.pick(3000, 6000, 12_000)
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8) / 16
    rng = np.random.default_rng(0)
    # Images to calibrate on and to test with come from other originals than those to
    # train on: the network is too sure of itself, as those of the paper are.
    order = rng.permutation(len(labels))
    own, other = order[: len(order) // 4], order[len(order) // 4 :]
    rows = np.concatenate([rng.choice(own, n_rows), rng.choice(other, 2 * n_rows)])
    moves = rng.integers(-1, 2, size=(len(rows), 2))
    moved = [
        np.roll(images[row], tuple(move), axis=(0, 1))
        for row, move in zip(rows, moves, strict=True)
    ]
    X = np.stack(moved) * rng.uniform(0.6, 1.2, (len(rows), 1, 1))
    X = (X + rng.normal(scale=0.15, size=X.shape)).astype(np.float32)
    settings = {
        "module": "cnn",
        "module_params": {"hidden": 32, "channels": (8, 16)},
        "lr": 0.1,
        "n_rounds": setting.pick(80, 100, 150),
        "local_epochs": setting.pick(10, 5, 5),
        "batch_size": 16,
        "clients_per_round": 10,
        **params,
    }
    data = X, labels[rows], None
    classes = np.arange(10)
    return _train(setting, "digits (CNN)", data, classes, settings, beta, seed, False)


def _train(
    setting: Setting,
    name: str,
    data: tuple[Array, Array, Array | None],
    classes: Array,
    params: Mapping[str, Any],
    beta: float | None,
    seed: int,
    given: bool,
) -> Model:
    """Logits of a network at clients, from the store if they are there."""
    import numpy as np

    def work() -> dict[str, Array]:
        setting.progress(f"training a network on {name}, beta = {beta or 'IID'}")
        return _logits(data, classes, params, beta, seed, thirds=not given)

    settings = {"name": name, "data": data, "params": dict(params), "beta": beta}
    arrays = _stored(setting, {**settings, "seed": seed}, work)
    known = {k: np.asarray(v) for k, v in arrays.items()}
    return Model(
        name,
        known["logits"],
        known["labels"],
        known["clients"],
        known["test_logits"],
        known["test_labels"],
        given,
    )


def _logits(
    data: tuple[Array, Array, Array | None],
    classes: Array,
    params: Mapping[str, Any],
    beta: float | None,
    seed: int,
    *,
    thirds: bool,
) -> dict[str, Array]:
    import warnings

    import numpy as np

    from skfedcal.clients import DirichletPartitioner, IIDPartitioner
    from skfedcal.training import FedAvgClassifier

    X, y, ids = data
    y = np.searchsorted(classes, y)
    if ids is None:
        partitioner = (
            IIDPartitioner(N_CLIENTS, random_state=seed)
            if beta is None
            else DirichletPartitioner(N_CLIENTS, beta, random_state=seed)
        )
        ids = partitioner.assign(y)
    part = _parts(len(y), ids, seed, thirds)
    clf = FedAvgClassifier(classes=range(len(classes)), random_state=seed, **params)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clf.fit(X[part == 0], y[part == 0], client_ids=ids[part == 0])
    return {
        "logits": clf.predict_logits(X[part == 1]),
        "labels": y[part == 1],
        "clients": ids[part == 1],
        "test_logits": clf.predict_logits(X[part == 2]),
        "test_labels": y[part == 2],
    }


def _parts(n_rows: int, ids: Array, seed: int, thirds: bool) -> Array:
    """Use of each row: 0 train, 1 calibrate, 2 test."""
    import numpy as np

    if thirds:  # made rows are in the order of their use
        return np.arange(n_rows) * 3 // n_rows
    # Of each client 80 %, 10 % and 10 %.
    order = np.lexsort((np.random.default_rng(seed).random(n_rows), ids))
    sizes = np.bincount(ids)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    place = (np.arange(n_rows) - first + 0.5) / np.repeat(sizes, sizes)
    use = np.empty(n_rows, dtype=int)
    use[order] = np.digitize(place, [0.8, 0.9])
    return use


def _stored(
    setting: Setting, settings: Mapping[str, Any], work: Callable[[], dict[str, Array]]
) -> dict[str, Array]:
    """Arrays that `work` gives; from the store if they were computed before."""
    import joblib
    import numpy as np

    from skfedcal._files import write_whole
    from skfedcal.experiments.store import code_version, key_of

    if setting.store is None:
        return work()
    key = key_of({"version": code_version(), "settings": joblib.hash(settings)})
    path = setting.store / f"{key}.npz"
    try:
        with np.load(path, allow_pickle=False) as found:
            return dict(found)
    except (OSError, ValueError, KeyError):
        pass
    arrays = work()
    setting.store.mkdir(parents=True, exist_ok=True)
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # type: ignore[arg-type]
    write_whole(path, lambda file: file.write(stream.getvalue()))
    return arrays
