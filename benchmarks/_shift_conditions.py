"""Conditions of bench_shift: logits of a network under a shift, in two halves.

Sources get rows of one half, drawn with replacement; calibration errors are of the
other half. Digits are copies of few images: both halves may have some of one image, so
that they are samples of one population, or each has its own images, of which 450 differ
from 450 others more than noise does.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy import ndimage
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from skfedcal import FedAccTempCalibrator
from skfedcal.datasets import CORRUPTIONS, corrupt

FILE = "shift_cifar10_resnet20.npz"
# Copies make 5000 rows for the sources and as many to test on.
N_TRAIN, TRAIN_COPIES, COPIES = 900, 6, 11
# Mild kinds, whose logits are rescaled to these optimal temperatures.
FAIR_KINDS = (
    "gaussian_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "brightness",
    "contrast",
    "elastic_transform",
)
FAIR_SEVERITY = 2
FAIR_TEMPERATURES = tuple(np.geomspace(0.65, 2.8, 7).round(2))


@dataclass(frozen=True)
class Condition:
    """Rows of the sources' half, rows to test on, and the T of the sources' half."""

    name: str
    logits: np.ndarray
    labels: np.ndarray
    test_logits: np.ndarray
    test_labels: np.ndarray
    temperature: float = np.nan

    def sample(self, rng, n_sources, n_samples):
        """Rows and sources of one trial."""
        rows = rng.integers(len(self.labels), size=n_sources * n_samples)
        sources = np.repeat(np.arange(n_sources), n_samples)
        return self.logits[rows], self.labels[rows], sources

    def rescaled(self, temperature):
        """The same, with logits that have another optimal temperature."""
        factor = temperature / self.temperature
        return replace(
            self,
            name=f"{self.name} T={temperature}",
            logits=self.logits * factor,
            test_logits=self.test_logits * factor,
            temperature=float(temperature),
        )


def halves(name, logits, labels, n_images=None):
    """Condition from rows in any order; row i is a copy of image i modulo `n_images`.

    With None, halves are of rows, whatever they are copies of.
    """
    order = np.random.default_rng(1).permutation(len(labels))
    mine, other = order[::2], order[1::2]
    if n_images is not None:
        first = np.random.default_rng(2).permutation(n_images) % 2 == 0
        is_mine = first[order % n_images]
        mine, other = order[is_mine], order[~is_mine]
    exact = FedAccTempCalibrator(
        classes=range(logits.shape[1]), temperature_range=(0.01, 1000.0)
    ).fit(logits[mine], labels[mine])
    return Condition(
        name,
        logits[mine],
        labels[mine],
        logits[other],
        labels[other],
        exact.temperature_,
    )


def cifar10_conditions(folder):
    """Read the 17 conditions of a published ResNet-20; none without the file."""
    path = folder / FILE
    if not path.exists():
        print(f"skipped: {path} is not there")
        return []
    with np.load(path) as file:
        logits, labels = file["logits"].astype(np.float64), file["labels"].astype(int)
        of, names = file["client"], file["client_names"]
    return [
        halves(str(name), logits[of == i], labels[of == i])
        for i, name in enumerate(names)
    ]


def digits_conditions(severity=5, *, by_image=False):
    """Digits under 15 corruptions and without, and a small network."""
    network, images, labels = digits_network()
    n_images = len(labels) // COPIES if by_image else None
    rows = {"clean": images}
    for kind in CORRUPTIONS:
        spoilt = corrupt(images, kind, severity, random_state=0)
        rows[f"{kind}_{severity}"] = spoilt
    return [halves(name, network(x), labels, n_images) for name, x in rows.items()]


def fair_conditions(*, by_image=False):
    """Digits under mild corruptions, with optimal temperatures from .65 to 2.8."""
    network, images, labels = digits_network()
    n_images = len(labels) // COPIES if by_image else None
    found = []
    for kind in FAIR_KINDS:
        spoilt = corrupt(images, kind, FAIR_SEVERITY, random_state=0)
        condition = halves(f"{kind}_{FAIR_SEVERITY}", network(spoilt), labels, n_images)
        found += [condition.rescaled(float(t)) for t in FAIR_TEMPERATURES]
    return found


def digits_network():
    """Logits of images as a function, uint8 images it has not seen, their labels."""
    data, rng = load_digits(), np.random.default_rng(0)
    order = rng.permutation(len(data.target))
    train, rest = order[:N_TRAIN], order[N_TRAIN:]
    images = moved(data.images[train] * (255 / 16), TRAIN_COPIES, rng)
    network = MLPClassifier((128, 64), max_iter=30, random_state=0)
    network.fit(images.reshape(-1, 64) / 255, np.tile(data.target[train], TRAIN_COPIES))
    images = moved(data.images[rest] * (255 / 16), COPIES, rng)
    return (
        lambda x: mlp_logits(network, x),
        images.round().clip(0, 255).astype(np.uint8),
        np.tile(data.target[rest], COPIES),
    )


def moved(images, copies, rng):
    """Several copies of each image, each moved, turned and scaled a little."""
    center, out = np.array([3.5, 3.5]), []
    for image in np.tile(images, (copies, 1, 1)):
        angle, scale = rng.normal(0, 0.08), 1 + rng.normal(0, 0.04)
        turn = np.array(
            [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        )
        shift = center - scale * turn @ center + rng.normal(0, 0.25, 2)
        out.append(ndimage.affine_transform(image, scale * turn, shift, order=1))
    return np.array(out)


def mlp_logits(network, images):
    """What scikit-learn's network has before its softmax."""
    hidden = images.reshape(-1, 64) / 255
    layers = list(zip(network.coefs_, network.intercepts_, strict=True))
    for weights, bias in layers[:-1]:
        hidden = np.maximum(hidden @ weights + bias, 0)
    return hidden @ layers[-1][0] + layers[-1][1]
