"""Data sets of the papers on training, in the layouts in which they are published.

Rows for training and for the test come from the folder of ``--data``, or from a folder
in it. Without one they are data that come with scikit-learn: digits in the place of
images, the diagnosis of breast cancer in the place of Adult.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skfedcal.experiments.results import ResultTable
from skfedcal.papers.items import Claim, Setting

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# Rows of CIFAR-10-C of one severity, and its name of a corruption where it differs.
_ROWS_OF_A_SEVERITY = 10_000


@dataclass(frozen=True)
class Task:
    """Rows and labels for training and for the test.

    data: Name of the data set that these are.
    given: Whether they are those of the paper.
    """

    data: str
    given: bool
    X: Array
    y: Array
    test_X: Array
    test_y: Array

    def part(self, n_rows: int | None) -> Task:
        """Return at most so many rows for training, and a quarter for the test."""
        import numpy as np

        if n_rows is None:
            return self
        rng = np.random.default_rng(0)
        first = rng.permutation(len(self.y))[:n_rows]
        other = rng.permutation(len(self.test_y))[: max(n_rows // 4, 1)]
        return Task(
            self.data,
            self.given,
            self.X[first],
            self.y[first],
            self.test_X[other],
            self.test_y[other],
        )


def find_task(setting: Setting, name: str) -> Task:
    """Read MNIST, CIFAR-10 or Adult; without the files, their stand-in."""
    found = read_task(setting.data, name)
    return _stand_in(name) if found is None else found


def read_task(folder: Path | None, name: str) -> Task | None:
    """Read a data set from a folder or from one in it; None if it is not there."""
    if folder is None:
        return None
    for home in (folder, *sorted(p for p in folder.iterdir() if p.is_dir())):
        try:
            parts = [_read(home, name, split) for split in ("train", "test")]
        except FileNotFoundError:
            continue
        (X, y), (test_X, test_y) = parts
        if name == "Adult":
            X, test_X = _standardised(X, test_X)
        return Task(name, True, X, y, test_X, test_y)
    return None


def _read(home: Path, name: str, split: str) -> tuple[Any, Any]:
    from skfedcal import datasets

    if name == "MNIST":
        return datasets.load_mnist(home, split=split, dtype="float32", return_X_y=True)
    if name == "CIFAR-10":
        return datasets.load_cifar10(
            home, split=split, dtype="float32", return_X_y=True
        )
    return datasets.load_adult(home, split=split, return_X_y=True)


def _standardised(X: Any, test_X: Any) -> tuple[Array, Array]:
    """Columns of mean 0 and deviation 1 in the rows for training."""
    import numpy as np

    center, scale = X.mean(axis=0), X.std(axis=0)
    scale[scale == 0] = 1.0
    scaled = [((rows - center) / scale).astype(np.float32) for rows in (X, test_X)]
    return scaled[0], scaled[1]


def _stand_in(name: str) -> Task:
    import numpy as np
    from sklearn.datasets import load_breast_cancer, load_digits

    if name == "Adult":
        X, y = load_breast_cancer(return_X_y=True)
    else:
        X, y = load_digits(return_X_y=True)
        X = (X / 16).astype(np.float32).reshape(-1, 8, 8)
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[len(y) // 5 :], order[: len(y) // 5]
    if name == "Adult":
        rows, others = _standardised(X[train], X[test])
        return Task("breast cancer", False, rows, y[train], others, y[test])
    return Task("digits", False, X[train], y[train], X[test], y[test])


def corrupted_cifar10(
    folder: Path, kind: str, severity: int
) -> tuple[Array, Array] | None:
    """Images and labels of CIFAR-10-C; None if it is not there."""
    import numpy as np

    for home in (folder, folder / "CIFAR-10-C"):
        path, labels = home / f"{kind}.npy", home / "labels.npy"
        if path.is_file() and labels.is_file():
            images = np.load(path, mmap_mode="r", allow_pickle=False)
            size = min(_ROWS_OF_A_SEVERITY, len(images) // 5)
            where = slice((severity - 1) * size, severity * size)
            rows = images[where] / np.float32(255)
            return rows, np.load(labels, allow_pickle=False)[where].astype(int)
    return None


def readings_differ(table: ResultTable) -> Claim:
    """Claim of a reading: the choice changes the first value of some row.

    The row where it changes most is named, with its least and its largest value, and
    their deviations over seeds.
    """
    value, names = next(iter(table.values)), [k for k in table.keys if k != "reading"]
    found: dict[str, dict[str, float]] = {}
    spread: dict[tuple[str, str], str] = {}
    for row in table.rows:
        name, sd = " ".join(str(row[k]) for k in names), row[f"sd_{value}"]
        found.setdefault(name, {})[row["reading"]] = row[value]
        spread[name, row["reading"]] = "" if isnan(sd) else f" (sd {sd:.4f})"

    def ends(name: str) -> tuple[str, str]:
        order = sorted(found[name], key=lambda reading: found[name][reading])
        return order[0], order[-1]

    def gap(name: str) -> float:
        low, high = ends(name)
        return found[name][high] - found[name][low]

    name = max(found, key=gap)
    shown = [f"{r} {found[name][r]:.4f}{spread[name, r]}" for r in ends(name)]
    text = f"the choice changes {value} of {name}"
    return Claim(text, gap(name) > 0, ", ".join(shown))
