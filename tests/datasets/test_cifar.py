"""CIFAR: files as Python 2 wrote them, read as torchvision reads them."""

import pickle
import struct

import numpy as np
import pytest

from skfedcal.datasets import load_cifar10, load_cifar100

RNG = np.random.default_rng(1)
NAMES10 = [f"class {i}" for i in range(10)]
NAMES = {
    "fine": [f"fine {i}" for i in range(100)],
    "coarse": list("abcdefghijklmnopqrst"),
}


def short(text):
    return b"U" + bytes([len(text)]) + text.encode()


def python2(value):
    """What Python 2.7 and numpy 1 write with protocol 2, without memo."""
    if isinstance(value, dict):
        items = b"".join(short(k) + python2(v) for k, v in value.items())
        return b"}(" + items + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(python2, value)) + b"e"
    if isinstance(value, str):
        return short(value)
    if isinstance(value, int):
        return b"K" + bytes([value])
    raw = value.tobytes()
    sides = b"".join(b"J" + struct.pack("<i", side) for side in value.shape)
    return (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01" + sides + b"\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        b"T" + struct.pack("<i", len(raw)) + raw + b"tb"
    )


def write(path, content, protocol=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    if protocol is None:
        path.write_bytes(b"\x80\x02" + python2(content) + b".")
    else:
        path.write_bytes(pickle.dumps(content, protocol))


def batch(n_rows, **labels):
    entries = {
        name: RNG.integers(top, size=n_rows).tolist() for name, top in labels.items()
    }
    data = RNG.integers(256, size=(n_rows, 3072), dtype=np.uint8)
    return {"batch_label": "one of several", "data": data, **entries}


def write_cifar10(folder, protocol=None):
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for size, name in enumerate(names, 2):
        write(folder / name, batch(size, labels=10), protocol)
    meta = {"label_names": NAMES10, "num_vis": 7}
    write(folder / "batches.meta", meta, protocol)


def write_cifar100(folder, protocol=None):
    for size, name in ((5, "train"), (3, "test")):
        rows = batch(size, fine_labels=100, coarse_labels=20)
        write(folder / name, rows, protocol)
    meta = {f"{kind}_label_names": names for kind, names in NAMES.items()}
    write(folder / "meta", meta, protocol)


@pytest.fixture
def trusting(vision, monkeypatch):
    """torchvision's classes without their checksums."""
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    return vision


@pytest.mark.parametrize("protocol", [None, 2, 4, 5])
@pytest.mark.parametrize("split", ["train", "test"])
def test_torchvision_agrees(trusting, tmp_path, protocol, split):
    write_cifar10(tmp_path / "cifar-10-batches-py", protocol)
    write_cifar100(tmp_path / "cifar-100-python", protocol)
    for dataset, load in (
        (trusting.CIFAR10, load_cifar10),
        (trusting.CIFAR100, load_cifar100),
    ):
        theirs = dataset(str(tmp_path), train=split == "train")
        ours = load(tmp_path, split=split)
        assert ours.data.dtype == np.uint8 and ours.data.flags.c_contiguous
        assert ours.target.dtype == np.int64
        np.testing.assert_array_equal(ours.data, theirs.data)
        np.testing.assert_array_equal(ours.target, theirs.targets)
        assert ours.target_names == theirs.classes


def test_pixels_are_where_the_format_has_them(tmp_path):
    rows = batch(2, labels=10)
    write(tmp_path / "test_batch", rows)
    X, _ = load_cifar10(tmp_path, split="test", return_X_y=True)
    for image, y, x, channel in ((0, 0, 0, 0), (1, 31, 31, 2), (1, 3, 17, 1)):
        stored = rows["data"][image, channel * 1024 + y * 32 + x]
        assert X[image, y, x, channel] == stored


def test_all_is_train_and_then_test(tmp_path):
    write_cifar10(tmp_path)
    parts = [
        load_cifar10(tmp_path, split=s, return_X_y=True) for s in ("train", "test")
    ]
    found = load_cifar10(tmp_path, split="all", return_X_y=True)
    for ours, train, test in zip(found, *parts, strict=True):
        np.testing.assert_array_equal(ours, np.concatenate([train, test]))
    assert [len(y) for _, y in parts] == [2 + 3 + 4 + 5 + 6, 7]


def test_coarse_labels(tmp_path):
    rows = batch(4, fine_labels=100, coarse_labels=20)
    write(tmp_path / "train", rows)
    assert (
        load_cifar100(tmp_path, labels="coarse").target.tolist()
        == rows["coarse_labels"]
    )
    assert load_cifar100(tmp_path).target_names is None
    write_cifar100(tmp_path)
    assert load_cifar100(tmp_path, labels="coarse").target_names == NAMES["coarse"]


def test_a_folder_of_the_name_of_a_file_is_no_file(tmp_path):
    (tmp_path / "train").mkdir()
    with pytest.raises(FileNotFoundError, match="CIFAR-100: found no train"):
        load_cifar100(tmp_path)


def test_one_missing_batch_is_named(tmp_path):
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_3").unlink()
    with pytest.raises(FileNotFoundError, match="found no data_batch_3 in any of"):
        load_cifar10(tmp_path)


DATA = np.zeros((2, 3072), np.uint8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": DATA}, r"expected an entry 'labels', found \['data'\]"),
        ({"labels": [1]}, "expected an entry 'data'"),
        ({"data": DATA[:, :9], "labels": [1, 2]}, r"shape \(n, 3072\).* \(2, 9\)"),
        ({"data": DATA.astype("f4"), "labels": [1, 2]}, "found float32"),
        ({"data": [1, 2], "labels": [1, 2]}, "found list"),
        ({"data": DATA, "labels": [1]}, "2 images but .* 1 labels"),
        ({"data": DATA, "labels": [1, 10]}, "row 1 has the label 10"),
        ({"data": DATA, "labels": ["a", "b"]}, "whole numbers as labels"),
        ({"data": DATA, "labels": [[1], [1, 2]]}, "whole numbers as labels"),
        ({"data": DATA, "labels": [1.0, 2.0]}, "whole numbers as labels"),
    ],
)
def test_wrong_content_is_named(tmp_path, content, message):
    write(tmp_path / "test_batch", content, 2)
    with pytest.raises(ValueError, match=message) as caught:
        load_cifar10(tmp_path, split="test")
    assert str(tmp_path / "test_batch") in str(caught.value)


def test_wrong_choices_are_named(tmp_path):
    with pytest.raises(ValueError, match="labels must be one of"):
        load_cifar100(tmp_path, labels="rough")
