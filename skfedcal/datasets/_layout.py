"""What the readers share: where files are, how to get them, what comes back."""

from __future__ import annotations

import hashlib
import os
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch

from skfedcal._docs import SharedDocs
from skfedcal._files import as_path, write_whole
from skfedcal._params import check_choice
from skfedcal.clients.partitions import rows_by_client

loader_documented = SharedDocs(
    """
    split : {"train", "test", "all"}, default="train"
        Rows to return; "all" is "train" and then "test".
    return_X_y : bool, default=False
        Return ``(data, target)`` in place of a Bunch.
    as_clients : bool, default=False
        Return ``{name: (data, target)}``, which `fit` takes, in place of a Bunch.
    dtype : {"uint8", "float32"}, default="uint8"
        Pixels from 0 to 255 as in the file, or divided by 255.
    download : bool, default=False
        Fetch files that are missing, through torchvision; needs the extra ``vision``.
    """
)


TIMEOUT = 60.0  # seconds without an answer
CHUNK = 1 << 20


def import_torchvision() -> ModuleType:
    """Return ``torchvision.datasets``.

    Raises ImportError: If torchvision is not installed, or does not fit the torch that
        is. The latter comes as RuntimeError or OSError, according to the versions.
    """
    try:
        return import_module("torchvision.datasets")
    except (ImportError, RuntimeError, OSError) as error:
        found = {name: _version(name) for name in ("torch", "torchvision")}
        if None in found.values():
            missing = " and ".join(name for name, v in found.items() if v is None)
            reason = f"needs {missing}, not installed here. Run: "
            reason += 'pip install "skfedcal[vision]"'
        else:
            reason = (
                f"needs torchvision, but torchvision {found['torchvision']} does not "
                f"load with torch {found['torch']} ({error}). Install compatible "
                f"versions from one index: pip install --upgrade "
                "--force-reinstall torch torchvision"
            )
        raise ImportError(
            f"download=True {reason}. Files that are on disk already need neither."
        ) from error


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def fetch_with_torchvision(name: str, home: Path, **params: Any) -> None:
    """Let the data set `name` of torchvision download to `home` and check its sums."""
    dataset = getattr(import_torchvision(), name)
    home.mkdir(parents=True, exist_ok=True)
    try:
        dataset(str(home), download=True, **params)
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())  # torchvision's has several lines
        raise OSError(
            f"torchvision could not download {name} to {home}: {reason}. Check the "
            "network, or fetch the files elsewhere and put them there."
        ) from error


def fetch(url: str, path: Path, *, algorithm: str, checksum: str) -> None:
    """Download `url` to `path`; the file appears whole and with this checksum only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.new(algorithm, usedforsecurity=False)

    def copy(target: BinaryIO) -> None:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as source:
            while chunk := source.read(CHUNK):
                digest.update(chunk)
                target.write(chunk)
        if digest.hexdigest() != checksum:
            raise ValueError(
                f"{url}: expected a file with {algorithm} {checksum}, found "
                f"{digest.hexdigest()}. The download was cut short or the file "
                "changed; nothing was saved."
            )

    try:
        write_whole(path, copy)
    except OSError as error:
        raise OSError(
            f"Could not download {url} to {path}: {error}. Check the network, or fetch "
            "the file elsewhere and put it there."
        ) from error


def unzip(path: Path, folder: Path) -> None:
    """Unpack an archive; zipfile keeps members inside `folder`."""
    try:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
    except zipfile.BadZipFile as error:
        raise ValueError(
            f"{path}: expected a zip archive, found a damaged one: {error}. Delete it "
            "and fetch it again."
        ) from error


Array = NDArray[Any]
Home = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the files of a data set lie below `data_home`.

    title: Name of the data set, for messages.
    folders: Folders below `data_home` that are searched, in this order.
    advice: Where the files come from, for the message that they are missing.
    of_folders: Whether folders are looked for in place of files.
    """

    title: str
    folders: tuple[str, ...]
    advice: str
    of_folders: bool = False

    def find(self, home: Home, names: Sequence[str]) -> Path | None:
        """Return the first file (or folder) of these names that exists."""
        root = as_path(home, "data_home").expanduser()
        exists = Path.is_dir if self.of_folders else Path.is_file
        places = (root / folder / name for folder in self.folders for name in names)
        return next((place for place in places if exists(place)), None)

    def require(
        self,
        home: Home,
        wanted: Sequence[Sequence[str]],
        fetch: Callable[[Path], None] | None = None,
    ) -> list[Path]:
        """Return the path of each thing wanted; `fetch` is called if one is missing."""
        found = [self.find(home, names) for names in wanted]
        if fetch is not None and None in found:
            fetch(as_path(home, "data_home").expanduser())
            found = [self.find(home, names) for names in wanted]
        for names, path in zip(wanted, found, strict=True):
            if path is None:
                raise FileNotFoundError(self._missing(home, names))
        return [path for path in found if path is not None]

    def _missing(self, home: Home, names: Sequence[str]) -> str:
        root = as_path(home, "data_home").expanduser()
        if not root.is_dir():
            return (
                f"{self.title}: data_home={str(root)!r} is not a folder. {self.advice}"
            )
        places = ", ".join(str(root / folder) for folder in self.folders)
        return (
            f"{self.title}: found no {' or '.join(names)} in any of {places}. "
            f"{self.advice}"
        )


def parts_of(split: str, *, test: str = "test") -> tuple[str, ...]:
    """Name the parts that a split is made of, in order."""
    return ("train", test) if split == "all" else (split,)


def scaled(images: Array, dtype: str) -> Array:
    """Images as they are ("uint8"), or from 0 to 1 ("float32")."""
    if check_choice("dtype", dtype, ("uint8", "float32")) == "uint8":
        return images
    return np.divide(images, 255, dtype=np.float32)


def check_labels(
    labels: Any, n_classes: int, path: Path | str, first: int = 0
) -> Array:
    """Return labels as int64 after a look at their kind and range."""
    try:
        labels = np.asarray(labels)
    except ValueError:  # lists of several lengths
        labels = np.empty((0, 0), dtype=object)
    if labels.ndim != 1 or (labels.size and labels.dtype.kind not in "iu"):
        raise ValueError(
            f"{path}: expected a row of whole numbers as labels, found {labels.dtype} "
            f"of shape {labels.shape}."
        )
    labels = labels.astype(np.int64)
    wrong = np.flatnonzero((labels < first) | (labels >= n_classes))
    if wrong.size:
        raise ValueError(
            f"{path}: row {wrong[0]} has the label {labels[wrong[0]]}, expected "
            f"{first} to {n_classes - 1}. The file is damaged or of another data set."
        )
    return labels


def check_lengths(n_rows: int, n_labels: int, images: Path, labels: Path) -> None:
    """Refuse files that do not belong together."""
    if n_rows != n_labels:
        raise ValueError(
            f"{images} holds {n_rows} images but {labels} holds {n_labels} labels."
        )


def deliver(X: Array, y: Array, return_X_y: bool, **entries: Any) -> Any:
    """Rows as a pair or as a Bunch."""
    return (X, y) if return_X_y else Bunch(data=X, target=y, **entries)


def deliver_clients(
    X: Array,
    y: Array,
    client_ids: Array,
    client_names: Sequence[str],
    *,
    return_X_y: bool,
    as_clients: bool,
    **entries: Any,
) -> Any:
    """Rows with natural clients as a pair, a Bunch or clients by name."""
    if return_X_y and as_clients:
        raise ValueError(
            "return_X_y=True and as_clients=True exclude each other; pass one of them."
        )
    if return_X_y:
        return X, y
    pairs = rows_by_client(client_ids, len(client_names), X, y)
    if as_clients:
        return dict(zip(client_names, pairs, strict=True))
    return Bunch(
        data=X,
        target=y,
        clients=pairs,
        client_ids=client_ids,
        client_names=np.array(list(client_names), dtype=np.str_),
        **entries,
    )


def nonempty_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers, from 1 on."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected text, found other bytes: {error}") from None
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield number, line.strip()


def import_pillow(caller: str) -> ModuleType:
    """Import ``PIL.Image``; the error names the pip command."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            f"{caller} needs Pillow, which is not installed. Run: "
            'pip install "skfedcal[vision]", or pip install pillow.'
        ) from error
    return Image
