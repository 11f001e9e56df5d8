"""download=True: through torchvision, here from a server that stands for the world."""

import gzip
import hashlib
import io
import pickle
import subprocess
import sys
import tarfile
import zipfile

import numpy as np
import pytest
from scipy.io import savemat

from skfedcal.datasets import (
    _layout,
    load_cifar10,
    load_cifar100,
    load_emnist,
    load_mnist,
    load_svhn,
)
from skfedcal.datasets._layout import fetch, import_torchvision

RNG = np.random.default_rng(5)
IMAGES = RNG.integers(256, size=(4, 28, 28), dtype=np.uint8)
LABELS = np.array([1, 2, 9, 3], np.uint8)


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def test_mnist(vision, server, write_idx, tmp_path, monkeypatch):
    source = tmp_path / "source"
    resources = []
    for prefix in ("train", "t10k"):
        for kind, array in (("images-idx3", IMAGES), ("labels-idx1", LABELS)):
            path = write_idx(source / f"{prefix}-{kind}-ubyte.gz", array)
            resources.append((path.name, md5(path)))
    monkeypatch.setattr(vision.MNIST, "mirrors", [f"{server}source/"])
    monkeypatch.setattr(vision.MNIST, "resources", resources)
    home = tmp_path / "new" / "home"
    X, y = load_mnist(home, split="all", download=True, return_X_y=True)
    np.testing.assert_array_equal(X, np.concatenate([IMAGES, IMAGES]))
    np.testing.assert_array_equal(y, np.concatenate([LABELS, LABELS]))
    # What is there is not fetched again, and needs no torchvision.
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    load_mnist(home, download=True)


def test_emnist(vision, server, write_idx, tmp_path, monkeypatch):
    archive = tmp_path / "gzip.zip"
    with zipfile.ZipFile(archive, "w") as stream:
        for part in ("train", "test"):
            for kind, array in (("images-idx3", IMAGES), ("labels-idx1", LABELS)):
                name = f"emnist-digits-{part}-{kind}-ubyte.gz"
                stream.write(write_idx(tmp_path / name, array), f"gzip/{name}")
    monkeypatch.setattr(vision.EMNIST, "url", server + archive.name)
    monkeypatch.setattr(vision.EMNIST, "md5", md5(archive))
    emnist = load_emnist(tmp_path / "new", variant="digits", download=True)
    np.testing.assert_array_equal(emnist.data, IMAGES.transpose(0, 2, 1))


def write_tar(path, folder, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            raw = pickle.dumps(content, 2)
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))
    return {
        name: hashlib.md5(pickle.dumps(content, 2)).hexdigest()
        for name, content in files.items()
    }


@pytest.mark.parametrize("classes", [10, 100])
def test_cifar(vision, server, tmp_path, monkeypatch, classes):
    dataset = vision.CIFAR10 if classes == 10 else vision.CIFAR100
    data = RNG.integers(256, size=(2, 3072), dtype=np.uint8)
    rows = {"data": data, "labels": [3, 4]}
    if classes == 100:
        rows = {"data": data, "fine_labels": [3, 4], "coarse_labels": [1, 2]}
    names = [name for name, _ in dataset.train_list + dataset.test_list]
    files = dict.fromkeys(names, rows)
    files[dataset.meta["filename"]] = {dataset.meta["key"]: ["a"] * classes}
    archive = tmp_path / dataset.filename
    sums = write_tar(archive, dataset.base_folder, files)
    monkeypatch.setattr(dataset, "url", server + archive.name)
    monkeypatch.setattr(dataset, "tgz_md5", md5(archive))
    for listed in ("train_list", "test_list"):
        pairs = [[name, sums[name]] for name, _ in getattr(dataset, listed)]
        monkeypatch.setattr(dataset, listed, pairs)
    meta = dataset.meta | {"md5": sums[dataset.meta["filename"]]}
    monkeypatch.setattr(dataset, "meta", meta)
    load = load_cifar10 if classes == 10 else load_cifar100
    cifar = load(tmp_path / "new", split="test", download=True)
    expected = data.reshape(2, 3, 32, 32).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(cifar.data, expected)
    assert cifar.target.tolist() == [3, 4] and cifar.target_names == ["a"] * classes


def test_svhn(vision, server, tmp_path, monkeypatch):
    path = tmp_path / "test_32x32.mat"
    savemat(path, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": [[10], [1]]})
    entry = [server + path.name, path.name, md5(path)]
    monkeypatch.setattr(vision.SVHN, "split_list", {"test": entry})
    svhn = load_svhn(tmp_path / "new", split="test", download=True)
    assert svhn.target.tolist() == [0, 1]


def test_a_failed_download_says_so(vision, server, tmp_path, monkeypatch):
    monkeypatch.setattr(vision.MNIST, "mirrors", [f"{server}nowhere/"])
    with pytest.raises(OSError, match=r"could not download MNIST to .*new: .*404"):
        load_mnist(tmp_path / "new", download=True)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("operator torchvision::nms does not exist"),
        OSError("libtorch.so: undefined symbol"),
        ImportError("cannot import name 'ops'"),
    ],
)
def test_a_pair_that_does_not_fit_is_named(tmp_path, monkeypatch, error):
    def fail(name):
        raise error

    versions = {"torch": "2.13.0+cpu", "torchvision": "0.29.2"}
    monkeypatch.setattr(_layout, "import_module", fail)
    monkeypatch.setattr(_layout.metadata, "version", versions.__getitem__)
    message = (
        r"torchvision 0\.29\.2 does not load with torch 2\.13\.0\+cpu \(.*one index"
    )
    with pytest.raises(ImportError, match=message) as caught:
        load_mnist(tmp_path, download=True)
    assert str(error) in str(caught.value) and caught.value.__cause__ is error


@pytest.mark.parametrize("missing", ["torchvision", "torch", "torch and torchvision"])
def test_missing_torchvision_names_the_extra(monkeypatch, missing):
    def version(name):
        if name in missing.split(" and "):
            raise _layout.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(_layout.metadata, "version", version)
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    message = rf'needs {missing}, not installed.*pip install "skfedcal\[vision\]"'
    with pytest.raises(ImportError, match=message):
        import_torchvision()


def test_nothing_is_imported_for_files_on_disk(write_idx, tmp_path, monkeypatch):
    monkeypatch.setattr(_layout, "import_module", None)
    write_idx(tmp_path / "train-images-idx3-ubyte", IMAGES)
    write_idx(tmp_path / "train-labels-idx1-ubyte", LABELS)
    np.testing.assert_array_equal(load_mnist(tmp_path, download=True).data, IMAGES)


@pytest.mark.parametrize("module", ["_mnist", "_cifar", "_svhn", "_adult", "_leaf"])
def test_readers_need_the_base_install_only(module):
    code = (
        "import sys, doctest, importlib\n"
        "extras = {'torch', 'torchvision', 'PIL', 'pandas', 'matplotlib'}\n"
        "class Absent:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.split('.')[0] in extras:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        f"module = importlib.import_module('skfedcal.datasets.{module}')\n"
        "result = doctest.testmod(module)\n"
        "assert result.attempted and not result.failed"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_older_file_survives_a_wrong_download(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(gzip.compress(b"new"))
    target.write_bytes(b"old")
    with pytest.raises(ValueError, match="expected a file with sha256 0000, found"):
        fetch(source.as_uri(), target, algorithm="sha256", checksum="0000")
    assert target.read_bytes() == b"old"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    fetch(source.as_uri(), target, algorithm="sha256", checksum=digest)
    assert target.read_bytes() == source.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]
