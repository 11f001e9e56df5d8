"""MNIST and its kin: the readers agree with torchvision's on the same files."""

import numpy as np
import pytest

from skfedcal.datasets import load_emnist, load_mnist

RNG = np.random.default_rng(0)
FOLDERS = {"mnist": "MNIST", "fashion": "FashionMNIST", "kuzushiji": "KMNIST"}
VARIANTS = ["balanced", "byclass", "bymerge", "digits", "letters", "mnist"]


def draw(n_rows, n_classes=10, first=0):
    labels = RNG.integers(first, n_classes, n_rows, dtype=np.uint8)
    return RNG.integers(256, size=(n_rows, 28, 28), dtype=np.uint8), labels


@pytest.fixture
def write(write_idx):
    """Write images and labels under a prefix; return the arrays."""

    def write(folder, prefix, images, labels, end=""):
        write_idx(folder / f"{prefix}-images-idx3-ubyte{end}", images)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte{end}", labels)
        return images, labels

    return write


@pytest.mark.parametrize("variant", FOLDERS)
def test_torchvision_agrees(vision, write, tmp_path, variant):
    raw = tmp_path / FOLDERS[variant] / "raw"
    for prefix, n_rows in (("train", 7), ("t10k", 4)):
        write(raw, prefix, *draw(n_rows))
    dataset = getattr(vision, FOLDERS[variant])
    for split in ("train", "test"):
        theirs = dataset(str(tmp_path), train=split == "train")
        ours = load_mnist(tmp_path, split=split, variant=variant)
        assert ours.data.dtype == np.uint8 and ours.target.dtype == np.int64
        np.testing.assert_array_equal(ours.data, theirs.data.numpy())
        np.testing.assert_array_equal(ours.target, theirs.targets.numpy())
        names = [name.split(" - ")[0] for name in theirs.classes]
        assert ours.target_names == names


@pytest.mark.parametrize("variant", VARIANTS)
def test_torchvision_agrees_on_emnist(vision, write, tmp_path, variant):
    names = vision.EMNIST.classes_split_dict[variant]
    first = int(variant == "letters")
    for part in ("train", "test"):
        prefix = f"emnist-{variant}-{part}"
        write(tmp_path / "EMNIST" / "raw", prefix, *draw(9, len(names), first))
        theirs = vision.EMNIST(str(tmp_path), split=variant, train=part == "train")
        ours = load_emnist(tmp_path, split=part, variant=variant, upright=False)
        np.testing.assert_array_equal(ours.data, theirs.data.numpy())
        np.testing.assert_array_equal(ours.target, theirs.targets.numpy())
        assert ours.target_names == theirs.classes


def test_emnist_is_turned_upright(write, tmp_path):
    images, labels = write(tmp_path, "emnist-digits-train", *draw(5))
    X, y = load_emnist(tmp_path, variant="digits", return_X_y=True)
    for found, stored in zip(X, images, strict=True):
        np.testing.assert_array_equal(found, stored.T)
    np.testing.assert_array_equal(y, labels)
    assert X.flags.c_contiguous


@pytest.mark.parametrize("folder", ["", "raw", "MNIST/raw", "MNIST"])
@pytest.mark.parametrize("end", ["", ".gz"])
def test_places_and_compression_make_no_difference(write, tmp_path, folder, end):
    images, labels = write(tmp_path / folder, "t10k", *draw(3), end=end)
    X, y = load_mnist(str(tmp_path), split="test", return_X_y=True)
    np.testing.assert_array_equal(X, images)
    np.testing.assert_array_equal(y, labels)


def test_names_with_a_dot_are_read(write_idx, tmp_path):
    images, labels = draw(3)
    write_idx(tmp_path / "train-images.idx3-ubyte", images)
    write_idx(tmp_path / "train-labels.idx1-ubyte", labels)
    np.testing.assert_array_equal(load_mnist(tmp_path).data, images)


def test_all_is_train_and_then_test(write, tmp_path):
    train, test = (write(tmp_path, p, *draw(n)) for p, n in (("train", 4), ("t10k", 2)))
    X, y = load_mnist(tmp_path, split="all", return_X_y=True)
    np.testing.assert_array_equal(X, np.concatenate([train[0], test[0]]))
    np.testing.assert_array_equal(y, np.concatenate([train[1], test[1]]))


def test_float_pixels_are_from_0_to_1(write, tmp_path):
    images, _ = write(tmp_path, "train", *draw(4))
    X = load_mnist(tmp_path, dtype="float32").data
    assert X.dtype == np.float32
    np.testing.assert_array_equal(X, images.astype(np.float32) / np.float32(255))


def test_missing_files_are_named(write_idx, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is not a folder.*download=True"):
        load_mnist(tmp_path / "nowhere")
    write_idx(tmp_path / "train-images-idx3-ubyte", draw(1)[0])
    with pytest.raises(FileNotFoundError, match="no train-labels-idx1-ubyte or") as err:
        load_mnist(tmp_path)
    assert str(tmp_path / "MNIST" / "raw") in str(err.value)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (draw(3)[0], draw(2)[1], "holds 3 images but .* holds 2 labels"),
        (draw(2)[0], np.array([1, 10], np.uint8), "row 1 has the label 10.* 0 to 9"),
        (draw(2)[1], draw(2)[1], r"expected bytes on 3 axes.* shape \(2,\)"),
        (draw(2)[0], np.zeros(2, np.int32), "expected bytes on 1 axes, found int32"),
    ],
)
def test_files_that_do_not_fit_are_named(write, tmp_path, images, labels, message):
    write(tmp_path, "train", images, labels)
    with pytest.raises(ValueError, match=message):
        load_mnist(tmp_path)


def test_letters_start_at_1(write, tmp_path):
    write(tmp_path, "emnist-letters-train", *draw(1, 1))
    with pytest.raises(ValueError, match="label 0, expected 1 to 26"):
        load_emnist(tmp_path, variant="letters")


def test_parts_of_two_shapes_are_refused(write, tmp_path):
    images, labels = draw(2)
    write(tmp_path, "train", images, labels)
    write(tmp_path, "t10k", images[:, :20], labels)
    with pytest.raises(ValueError, match="images of one shape, found"):
        load_mnist(tmp_path, split="all")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda home: load_mnist(home, split="val"), "split must be one of"),
        (lambda home: load_mnist(home, variant="qmnist"), "variant must be one of"),
        (lambda home: load_emnist(home, variant="all"), "variant must be one of"),
    ],
)
def test_wrong_choices_are_named(tmp_path, call, message):
    with pytest.raises(ValueError, match=message):
        call(tmp_path)


def test_wrong_dtype_is_named(write, tmp_path):
    write(tmp_path, "train", *draw(1))
    with pytest.raises(ValueError, match=r"dtype must be one of .* got 'float16'"):
        load_mnist(tmp_path, dtype="float16")
