"""Tables and figures of paper 000: rows that differ, and the orderings of the guide."""

import struct
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from skfedcal import make_federation
from skfedcal.papers import find_items, reproduce
from skfedcal.papers.items import AMPLIFIED, OURS, PRINTED, Setting, run_item

METHODS = ("FedBBQ", "FedBBQ-all", "FedCal", "FedOPVector", "FedTemp")


@pytest.fixture(scope="module")
def logits(tmp_path_factory):
    """Folder with a file of logits whose temperature is far from 1."""
    folder = tmp_path_factory.mktemp("logits")
    fed = make_federation(100, 3000, n_test=3000, temperature=2.5, random_state=0)
    np.savez(
        folder / "made.npz", val_logits=fed.logits, val_labels=fed.labels,
        val_client=fed.client_ids, logits=fed.test_logits, labels=fed.test_labels,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


def test_table_3_has_rows_that_differ_and_the_orderings(logits, store):
    found = reproduce("000", table="3", size="quick", data=logits, store=store)
    rows = {(row["kind"], row["method"]): row["cwECE"] for row in found.table.rows}
    for kind in (PRINTED, AMPLIFIED):
        values = [rows[kind, name] for name in ("Base", *METHODS)]
        assert len(set(values)) == len(values)
    assert found.agrees, found.verdict
    best = min(METHODS, key=lambda name: rows[AMPLIFIED, name])
    assert best == "FedTemp"
    assert rows[OURS, "FedTemp"] < rows[PRINTED, "FedTemp"]
    assert rows[AMPLIFIED, "FedTemp"] < rows[PRINTED, "FedTemp"]
    assert "FedBBQ as printed on made" in found.to_text()
    gains = [n for n in METHODS if rows[PRINTED, n] < rows[PRINTED, "Base"]]
    better = ", ".join(f"{name} on made" for name in gains) or "no method"
    assert found.notes[-1].endswith(f"without amplification: {better}")
    assert "with amplification FedTemp is best" in found.verdict


def test_an_interrupted_table_continues(logits, store):
    before = sorted(path.name for path in store.iterdir())
    found = reproduce("000", table="3", size="quick", data=logits, store=store)
    assert sorted(path.name for path in store.iterdir()) == before
    assert found.agrees, found.verdict


@pytest.mark.parametrize("number", ["5", "9", "10", "11"])
def test_quick_tables(logits, number):
    found = reproduce("000", table=number, size="quick", data=logits)
    assert found.agrees
    kinds = {row["kind"] for row in found.table.rows}
    assert kinds == {"paper", PRINTED}


def test_a_folder_without_data_is_named(tmp_path):
    with pytest.raises(ValueError, match="has no files of logits"):
        reproduce("000", table="2", data=tmp_path)


def write_idx(path, array):
    """File of MNIST's layout, written without the reader of the library."""
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(head + array.astype(np.uint8).tobytes())


@pytest.fixture
def mnist(tmp_path):
    """Folder with files in the layout of MNIST: enlarged digits of scikit-learn."""
    images, labels = load_digits(return_X_y=True)
    images = np.kron(images.reshape(-1, 8, 8) * 15, np.ones((3, 3)))
    images = np.pad(images, ((0, 0), (2, 2), (2, 2)))
    for name, where in (("train", slice(0, 1500)), ("t10k", slice(1500, None))):
        write_idx(tmp_path / f"{name}-images-idx3-ubyte", images[where])
        write_idx(tmp_path / f"{name}-labels-idx1-ubyte", labels[where])
    return tmp_path


def test_real_layouts_give_the_setting_of_the_paper(mnist):
    pytest.importorskip("torch")
    found = reproduce("000", table="6", size="quick", data=mnist)
    (row,) = (row for row in found.table.rows if row["kind"] == "--data")
    assert (row["data"], row["rows"], row["clients"]) == ("MNIST", 1797, 100)
    found = reproduce("000", table="3", size="quick", data=mnist)
    rows = {(row["kind"], row["method"]): row["cwECE"] for row in found.table.rows}
    assert {row["data"] for row in found.table.rows} == {"MNIST (2)"}
    # The paper's own number stands beside those of the same data set.
    assert rows["paper", "FedTemp"] == pytest.approx(0.00746)
    assert rows[PRINTED, "FedTemp"] != rows[AMPLIFIED, "FedTemp"]


# Every item in its quick form on the default data; the network is trained once.
ITEMS = find_items("000")


@pytest.mark.slow
@pytest.mark.xdist_group("paper 000")
@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_the_guide_says_whether_the_ordering_agrees(item, store):
    pytest.importorskip("torch")
    found = run_item(item, Setting("quick", store=Path(store)))
    assert bool(found.claims) == (item.agrees is not None)
    assert found.agrees == (item.agrees is not False), found.verdict
    assert found.to_text()
    assert bool(found.panels) == (item.kind == "figure")


@pytest.mark.slow
def test_the_leaderboard_has_a_row_for_each_budget_and_number_of_clients(logits):
    found = reproduce("leaderboard", table="1", size="quick", data=logits)
    assert found.agrees
    rows = {(row["K"], row["eps"]) for row in found.table.rows}
    assert rows == {(k, e) for k in (100, 1000) for e in ("-", "none", "1", "10")}
    assert sum("private binning begins to pay" in note for note in found.notes) == 2
