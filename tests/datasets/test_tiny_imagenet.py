"""Tiny ImageNet: folders of JPEG files."""

import hashlib
import sys
import zipfile

import numpy as np
import pytest

from skfedcal.datasets import _tiny_imagenet, load_tiny_imagenet

Image = pytest.importorskip("PIL.Image")

# Not sorted, as in the original.
WNIDS = ["n02124075", "n01443537", "n04067472"]
RNG = np.random.default_rng(3)


def save(path, mode="RGB", size=(64, 64)):
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0], 3) if mode == "RGB" else size[::-1]
    Image.fromarray(RNG.integers(256, size=shape, dtype=np.uint8)).save(path, "JPEG")
    return path


def write(root):
    root.mkdir(parents=True, exist_ok=True)
    (root / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (root / "words.txt").write_text(
        "n00001740\tentity\nn01443537\tgoldfish, Carassius auratus\n"
        "n02124075\tEgyptian cat\n"
    )
    for wnid in WNIDS:
        # Ten and more: names are sorted as text.
        for number in range(11):
            save(root / "train" / wnid / "images" / f"{wnid}_{number}.JPEG")
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("a\t0\t0\t62\t62\n")
    lines = []
    for number, wnid in enumerate([WNIDS[2], WNIDS[0], WNIDS[0], WNIDS[1]]):
        save(
            root / "val" / "images" / f"val_{number}.JPEG",
            "L" if number == 1 else "RGB",
        )
        lines.append(f"val_{number}.JPEG\t{wnid}\t0\t32\t44\t62\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    return root


@pytest.fixture
def root(tmp_path):
    return write(tmp_path / "tiny-imagenet-200")


def test_torchvision_agrees(vision, root):
    theirs = vision.ImageFolder(str(root / "train"))
    ours = load_tiny_imagenet(root)
    assert ours.wnids == theirs.classes == sorted(WNIDS)
    assert ours.target.tolist() == theirs.targets
    images = [np.asarray(image) for image, _ in theirs]
    np.testing.assert_array_equal(ours.data, images)
    assert ours.data.dtype == np.uint8 and ours.target.dtype == np.int64


def test_names_are_words_where_there_are_words(root):
    names = ["goldfish, Carassius auratus", "Egyptian cat", "n04067472"]
    assert load_tiny_imagenet(root, split="val").target_names == names
    (root / "words.txt").unlink()
    assert load_tiny_imagenet(root, split="val").target_names == sorted(WNIDS)


def test_validation_images_follow_their_list(root):
    X, y = load_tiny_imagenet(root.parent, split="val", return_X_y=True)
    assert y.tolist() == [2, 1, 1, 0]
    for number, image in enumerate(X):
        with Image.open(root / "val" / "images" / f"val_{number}.JPEG") as stored:
            np.testing.assert_array_equal(image, np.asarray(stored.convert("RGB")))
    assert (X[1, ..., 0] == X[1, ..., 2]).all()  # the grey one


def test_all_is_train_and_then_val(root):
    X, y = load_tiny_imagenet(root, split="all", return_X_y=True, dtype="float32")
    assert X.shape == (37, 64, 64, 3) and X.dtype == np.float32 and X.max() <= 1
    assert y.tolist() == [0] * 11 + [1] * 11 + [2] * 11 + [2, 1, 1, 0]


def test_damage_is_named(root):
    path = root / "train" / WNIDS[0] / "images" / f"{WNIDS[0]}_3.JPEG"
    whole = path.read_bytes()
    for length in (0, 10, len(whole) // 2):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=f"{path.name}: expected an image"):
            load_tiny_imagenet(root)
    save(path, size=(64, 60))
    with pytest.raises(ValueError, match="64 x 64 pixels: found 64 x 60"):
        load_tiny_imagenet(root)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("val_0.JPEG\tn00000000\t0", "line 1: expected a file name and a class"),
        ("val_0.JPEG", "line 1: expected a file name and a class"),
        (f"../../secret.JPEG\t{WNIDS[0]}\t0", "line 1: expected a file name"),
    ],
)
def test_wrong_lists_are_named(root, line, message):
    (root / "val" / "val_annotations.txt").write_text(line + "\n")
    with pytest.raises(ValueError, match=message):
        load_tiny_imagenet(root, split="val")


def test_missing_things_are_named(root, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"no wnids\.txt .*tiny-imagenet-200\.zip"
    ):
        load_tiny_imagenet(root / "val")
    (root / "val" / "images" / "val_1.JPEG").unlink()
    with pytest.raises(FileNotFoundError, match=r"val_1\.JPEG"):
        load_tiny_imagenet(root, split="val")
    (root / "val" / "val_annotations.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"val_annotations\.txt, found none"):
        load_tiny_imagenet(root, split="val")
    (root / "wnids.txt").write_text("n00000000\n")
    with pytest.raises(FileNotFoundError, match=r"expected the folder .*n00000000"):
        load_tiny_imagenet(root)
    with pytest.raises(ValueError, match="split must be one of"):
        load_tiny_imagenet(root, split="test")


def test_pillow_is_asked_for(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r'pip install "skfedcal\[vision\]"'):
        load_tiny_imagenet(root)


def test_download_unpacks_the_archive(root, tmp_path, monkeypatch):
    archive = tmp_path / "source" / "tiny-imagenet-200.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as stream:
        for path in root.rglob("*"):
            stream.write(path, path.relative_to(tmp_path))
    monkeypatch.setattr(_tiny_imagenet, "URL", archive.as_uri())
    home = tmp_path / "new"
    with pytest.raises(ValueError, match="expected a file with md5 90528d7c"):
        load_tiny_imagenet(home, download=True)
    assert list(home.iterdir()) == []
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    monkeypatch.setattr(_tiny_imagenet, "MD5", md5)
    found = load_tiny_imagenet(home, download=True)
    np.testing.assert_array_equal(found.data, load_tiny_imagenet(root).data)


def test_a_damaged_archive_is_named(tmp_path, monkeypatch):
    (tmp_path / "tiny-imagenet-200.zip").write_bytes(b"PK nothing")
    with pytest.raises(ValueError, match=r"expected a zip archive.* Delete it"):
        load_tiny_imagenet(tmp_path, download=True)
