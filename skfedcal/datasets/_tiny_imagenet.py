"""Tiny ImageNet from its folder of JPEG files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal._params import check_choice
from skfedcal.datasets._layout import (
    Home,
    Layout,
    deliver,
    fetch,
    import_pillow,
    loader_documented,
    nonempty_lines,
    parts_of,
    scaled,
    unzip,
)

__all__ = [
    "load_tiny_imagenet",
]

SPLITS = ("train", "val", "all")
FOLDER = "tiny-imagenet-200"
URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
LAYOUT = Layout(
    "Tiny ImageNet",
    (FOLDER, ""),
    f"Unpack {URL} and pass the folder with wnids.txt, train and val, or download=True "
    "(237 MiB).",
)
ENDINGS = (".jpeg", ".jpg", ".png")


@loader_documented
def load_tiny_imagenet(
    data_home: Home,
    *,
    split: str = "train",
    dtype: str = "uint8",
    download: bool = False,
    return_X_y: bool = False,
) -> Any:
    r"""Read Tiny ImageNet from its folder of JPEG files; needs Pillow.

    Parameters
    ----------
    data_home : str or path-like
        Folder ``tiny-imagenet-200``, or one that contains it: ``wnids.txt``,
        ``train/<wnid>/images/*.JPEG``, ``val/images/*.JPEG``,
        ``val/val_annotations.txt`` and, for names of classes, ``words.txt``.
    split : {"train", "val", "all"}, default="train"
        Rows to return; "all" is "train" and then "val". The images in ``test`` have no
        labels.
    dtype : {"uint8", "float32"}, default="uint8"
        Pixels from 0 to 255 as in the file, or divided by 255. All of "train" take
        1.2 GB as "uint8" and four times that as "float32".
    download : bool, default=False
        Fetch and unpack the archive if the folder is missing.
    return_X_y

    Returns
    -------
    images : :class:`~sklearn.utils.Bunch`
        With these entries:

        data : ndarray of shape (n, 64, 64, 3)
            Colour images, channels last; the few grey ones are given three equal
            channels.
        target : ndarray of shape (n,)
            Labels from 0 to 199, int64: positions in `wnids`.
        target_names : list of str
            Name of each label: its words if ``words.txt`` is there, else its wnid.
        wnids : list of str
            WordNet number of each label, sorted.

    See Also
    --------
    load_cifar100 : Smaller images of 100 classes.

    Examples
    --------
    >>> import os, tempfile
    >>> from PIL import Image
    >>> from skfedcal.datasets import load_tiny_imagenet
    >>> with tempfile.TemporaryDirectory() as home:
    ...     folder = os.path.join(home, "train", "n01443537", "images")
    ...     os.makedirs(folder)
    ...     with open(os.path.join(home, "wnids.txt"), "w") as file:
    ...         _ = file.write("n01443537\n")
    ...     path = os.path.join(folder, "n01443537_0.JPEG")
    ...     Image.new("RGB", (64, 64), "orange").save(path)
    ...     images = load_tiny_imagenet(home)
    >>> images.data.shape, images.target, images.target_names
    ((1, 64, 64, 3), array([0]), ['n01443537'])
    """
    check_choice("split", split, SPLITS)
    pillow = import_pillow("load_tiny_imagenet")
    get = _fetch if download else None
    (listing,) = LAYOUT.require(data_home, [["wnids.txt"]], get)
    root = listing.parent
    wnids = sorted(line for _, line in nonempty_lines(listing))
    codes = {wnid: code for code, wnid in enumerate(wnids)}
    read: dict[str, Callable[..., list[tuple[Path, int]]]]
    read = {"train": _training_files, "val": _validation_files}
    files = [
        pair for part in parts_of(split, test="val") for pair in read[part](root, codes)
    ]
    X = _decode([path for path, _ in files], pillow)
    y = np.array([code for _, code in files], dtype=np.int64)
    return deliver(
        scaled(X, dtype), y, return_X_y, target_names=_words(root, wnids), wnids=wnids
    )


def _fetch(home: Path) -> None:
    archive = home / Path(URL).name
    if not archive.exists():
        fetch(URL, archive, algorithm="md5", checksum=MD5)
    unzip(archive, home)


def _training_files(root: Path, codes: dict[str, int]) -> list[tuple[Path, int]]:
    """Files of each class in the order of their names, as torchvision sorts them."""
    found = []
    for wnid, code in codes.items():
        folder = root / "train" / wnid
        # Some copies have no folder "images".
        folder = folder / "images" if (folder / "images").is_dir() else folder
        if not folder.is_dir():
            raise FileNotFoundError(
                f"Tiny ImageNet: expected the folder {folder} for a class of "
                f"{root / 'wnids.txt'}, found none. {LAYOUT.advice}"
            )
        names = (path for path in folder.iterdir() if path.suffix.lower() in ENDINGS)
        found += [(path, code) for path in sorted(names)]
    return found


def _validation_files(root: Path, codes: dict[str, int]) -> list[tuple[Path, int]]:
    """Files in the order of ``val_annotations.txt``: name, wnid, four corners."""
    listing = root / "val" / "val_annotations.txt"
    if not listing.exists():
        raise FileNotFoundError(
            f"Tiny ImageNet: expected {listing}, found none. {LAYOUT.advice}"
        )
    found = []
    for number, line in nonempty_lines(listing):
        name, wnid, *_ = (*line.split(), "", "")
        if wnid not in codes or Path(name).name != name:
            raise ValueError(
                f"{listing}, line {number}: expected a file name and a class of "
                f"wnids.txt, found {line[:80]!r}."
            )
        found.append((root / "val" / "images" / name, codes[wnid]))
    return found


def _decode(paths: Sequence[Path], pillow: Any) -> NDArray[Any]:
    """All images in one array."""
    images = np.empty((len(paths), 64, 64, 3), dtype=np.uint8)
    for i, path in enumerate(paths):
        try:
            with pillow.open(path) as image:
                if image.size != (64, 64):
                    raise ValueError(f"found {image.size[0]} x {image.size[1]} pixels")
                images[i] = np.asarray(image.convert("RGB"))
        except FileNotFoundError:
            raise
        # Pillow raises OSError, SyntaxError and others on damaged files.
        except Exception as error:
            raise ValueError(
                f"{path}: expected an image of 64 x 64 pixels: {error}."
            ) from error
    return images


def _words(root: Path, wnids: Sequence[str]) -> list[str]:
    path = root / "words.txt"
    if not path.exists():
        return list(wnids)
    pairs = (line.partition("\t") for _, line in nonempty_lines(path))
    words = {wnid: text for wnid, _, text in pairs if text}
    return [words.get(wnid, wnid) for wnid in wnids]
