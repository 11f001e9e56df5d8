"""SVHN: MATLAB files, read as torchvision reads them."""

import numpy as np
import pytest
from scipy.io import savemat

from skfedcal.datasets import load_svhn

RNG = np.random.default_rng(2)


def write(folder, part, n_rows, **params):
    images = RNG.integers(256, size=(32, 32, 3, n_rows), dtype=np.uint8)
    labels = RNG.integers(1, 11, size=(n_rows, 1), dtype=np.uint8)
    labels[0] = 10
    folder.mkdir(exist_ok=True)
    savemat(folder / f"{part}_32x32.mat", {"X": images, "y": labels}, **params)
    return images, labels


@pytest.mark.parametrize("part", ["train", "test", "extra"])
@pytest.mark.parametrize("packed", [True, False])
def test_torchvision_agrees(vision, monkeypatch, tmp_path, part, packed):
    monkeypatch.setattr("torchvision.datasets.svhn.check_integrity", lambda *_: True)
    write(tmp_path, part, 6, do_compression=packed)
    theirs = vision.SVHN(str(tmp_path), split=part)
    ours = load_svhn(tmp_path, split=part)
    assert ours.data.dtype == np.uint8 and ours.data.flags.c_contiguous
    np.testing.assert_array_equal(ours.data, theirs.data.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(ours.target, theirs.labels)
    assert ours.target.dtype == np.int64 and ours.target[0] == 0


def test_all_is_train_and_then_test(tmp_path):
    (train, _), (test, labels) = write(tmp_path, "train", 4), write(tmp_path, "test", 3)
    X, y = load_svhn(tmp_path, split="all", return_X_y=True)
    np.testing.assert_array_equal(X[:4], train.transpose(3, 0, 1, 2))
    np.testing.assert_array_equal(X[4:], test.transpose(3, 0, 1, 2))
    np.testing.assert_array_equal(y[4:], labels[:, 0] % 10)


def test_one_image_and_a_folder(tmp_path):
    images, _ = write(tmp_path / "SVHN", "test", 1)
    X, y = load_svhn(tmp_path, split="test", return_X_y=True)
    np.testing.assert_array_equal(X, images.transpose(3, 0, 1, 2))
    assert y.tolist() == [0]


def test_cuts_are_named(tmp_path):
    write(tmp_path, "train", 2)
    path = tmp_path / "train_32x32.mat"
    whole = path.read_bytes()
    for length in [*range(0, 200, 7), len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"train_32x32\.mat: expected"):
            load_svhn(tmp_path)


ROWS = np.zeros((32, 32, 3, 2), np.uint8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"X": ROWS}, "expected the arrays X and y, found no y"),
        ({"X": ROWS, "y": [[1], [2], [3]]}, "2 images but .* 3 labels"),
        ({"X": ROWS, "y": [[1], [0]]}, "label 0, expected 1 to 10"),
        ({"X": ROWS, "y": [["a"], ["b"]]}, "complex or non-numeric values"),
        ({"X": ROWS.astype(float), "y": [[1], [2]]}, "found float64"),
        ({"X": ROWS[:, :, 0], "y": [[1], [2]]}, r"\(32, 32, 3, n\), found"),
    ],
)
def test_wrong_content_is_named(tmp_path, content, message):
    savemat(tmp_path / "train_32x32.mat", content)
    with pytest.raises(ValueError, match=message):
        load_svhn(tmp_path)


def test_newer_format_and_missing_file_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"SVHN: found no train_32x32\.mat"):
        load_svhn(tmp_path)
    head = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM"
    (tmp_path / "train_32x32.mat").write_bytes(head.ljust(512, b"\0"))
    with pytest.raises(ValueError, match="expected a MATLAB file of version 5"):
        load_svhn(tmp_path)
