"""Items of papers 003 and 004: real layouts, stand-ins, orderings."""

import pickle

import numpy as np
import pytest

pytest.importorskip("torch")

from skfedcal.papers import paper_004
from skfedcal.papers.items import OURS, PRINTED, Setting, find_items, run_item
from skfedcal.papers.public_data import find_task, read_task

QUICK = Setting("quick")


def idx_bytes(array):
    sides = b"".join(side.to_bytes(4, "big") for side in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sides + array.astype(np.uint8).tobytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """MNIST, CIFAR-10 and Adult in their own layouts, a folder each."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    mnist = root / "mnist"
    mnist.mkdir()
    for name, n in (("train", 120), ("t10k", 30)):
        labels = np.arange(n) % 3
        images = rng.integers(0, 100, size=(n, 28, 28))
        images[np.arange(n), 5 * labels] = 255
        (mnist / f"{name}-images-idx3-ubyte").write_bytes(idx_bytes(images))
        (mnist / f"{name}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
    cifar = root / "cifar-10-batches-py"
    cifar.mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        rows = rng.integers(0, 256, size=(10, 3072), dtype=np.uint8)
        batch = {"data": rows, "labels": list(range(10))}
        (cifar / name).write_bytes(pickle.dumps(batch))
    adult = root / "adult"
    adult.mkdir()
    line = (
        "{}, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, "
        "Not-in-family, White, Male, {}, 0, 40, United-States, {}"
    )
    for name, n, end in (("adult.data", 40, ""), ("adult.test", 10, ".")):
        rows = [
            line.format(20 + i, 100 * i, (">50K" if i % 2 else "<=50K") + end)
            for i in range(n)
        ]
        first = ["|1x3 Cross validator"] if end else []
        (adult / name).write_text("\n".join([*first, *rows]) + "\n")
    return root


def test_data_sets_are_read_from_their_layouts(folder):
    shapes = {"MNIST": (28, 28), "CIFAR-10": (32, 32, 3), "Adult": (108,)}
    sizes = {"MNIST": (120, 30), "CIFAR-10": (50, 10), "Adult": (40, 10)}
    for name, shape in shapes.items():
        task = find_task(Setting("quick", folder), name)
        assert (task.data, task.given) == (name, True)
        assert task.X.shape[1:] == task.test_X.shape[1:] == shape
        assert (len(task.y), len(task.test_y)) == sizes[name]
    # Columns of Adult are standardised by the rows for training.
    np.testing.assert_allclose(task.X.std(axis=0).max(), 1.0, rtol=1e-5)
    assert read_task(folder / "mnist", "Adult") is None


def test_stand_ins_are_named():
    for name in paper_004.DATA:
        task = find_task(QUICK, name)
        assert not task.given
        assert task.data in ("digits", "breast cancer")
        few = task.part(40)
        assert (len(few.y), len(few.test_y)) == (40, 10)


def test_recipes_are_those_of_the_paper():
    full = Setting("full")
    tasks = {name: find_task(QUICK, name) for name in paper_004.DATA}
    found = {n: paper_004.recipe(t, n, full) for n, t in tasks.items()}
    assert found["MNIST"]["momentum"] == 0.9
    assert found["MNIST"]["lr"] == 0.001
    assert "optimizer" not in found["MNIST"]
    assert (found["CIFAR-10"]["module"], found["CIFAR-10"]["lr"]) == ("fcr_cnn", 0.0003)
    assert found["CIFAR-10"]["n_rounds"] == 15
    assert found["Adult"]["optimizer"] == found["CIFAR-10"]["optimizer"] == "adam"
    assert all(given["local_epochs"] == 3 for given in found.values())


def test_table_3_has_the_paper_beside_real_files(folder, tmp_path):
    (item,) = find_items("004", tables=["3"])
    setting = Setting("quick", folder, tmp_path)
    result = run_item(item, setting)
    kinds = {row["kind"] for row in result.table.rows}
    assert kinds == {"paper", PRINTED, OURS}
    paper = {r["method"]: r for r in result.layout.rows if r["kind"] == "paper"}
    assert paper["FL-FCR"]["0.05"] == pytest.approx(0.6534)
    n_files = len(list(tmp_path.iterdir()))
    assert run_item(item, setting).table.rows == result.table.rows
    assert len(list(tmp_path.iterdir())) == n_files  # nothing was run again


def test_figures_of_clients_and_networks():
    for kind, number in (("figures", "2"), ("tables", "1")):
        (item,) = find_items("004", **{kind: [number]})
        result = run_item(item, QUICK)
        assert result.agrees == (item.agrees is not False)
    assert {row["parameters"] for row in result.table.rows} >= {7281802}
