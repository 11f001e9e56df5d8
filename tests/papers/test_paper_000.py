"""Tables and figures of paper 000: rows that differ, and the orderings of the guide."""

import struct

import numpy as np
import pytest
from sklearn.datasets import load_digits

from skfedcal import make_federation
from skfedcal.papers import find_items, leaderboard, reproduce
from skfedcal.papers.fedavg_models import Model
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


class StoppedError(BaseException):
    """What Ctrl-C is: no Exception."""


def test_an_interrupted_item_continues_with_the_same_numbers(tmp_path):
    folder, kept = tmp_path / "data", tmp_path / "kept"
    folder.mkdir()
    fed = make_federation(20, 600, n_classes=4, n_test=400, random_state=0)
    np.savez(
        folder / "small.npz", val_logits=fed.logits, val_labels=fed.labels,
        val_client=fed.client_ids, logits=fed.test_logits, labels=fed.test_labels,
    )  # fmt: skip
    (folder / "damaged.npz").write_bytes(b"PK\x03\x04 is not all of it")
    (item,) = find_items("000", readings=["B.7"])
    lines = []

    def stop(text):
        lines.append(text)
        if len(lines) == 4:  # one of three comparisons is done, the next has begun
            raise StoppedError

    with pytest.raises(StoppedError):
        run_item(item, Setting("quick", folder, kept, progress=stop))
    assert lines[0].startswith("damaged.npz is left out: it cannot be read")
    before = {path.name: path.stat().st_mtime_ns for path in kept.iterdir()}
    assert before
    again = run_item(item, Setting("quick", folder, kept))
    after = {path.name: path.stat().st_mtime_ns for path in kept.iterdir()}
    assert before.items() < after.items()  # nothing was computed again
    whole = run_item(item, Setting("quick", folder))
    assert again.table.rows == whole.table.rows
    assert again.verdict == whole.verdict
    assert again.verdict.startswith("readings differ: yes, because: the choice changes")


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


@pytest.mark.slow
def test_the_leaderboard_has_a_row_for_each_budget_and_number_of_clients(logits):
    found = reproduce("leaderboard", table="1", size="quick", data=logits)
    assert found.agrees
    rows = {(row["K"], row["eps"]) for row in found.table.rows}
    assert rows == {(k, e) for k in (100, 1000) for e in ("-", "none", "1", "10")}
    (words,) = (note for note in found.notes if "private binning pays" in note)
    assert words.startswith("10 classes (made): private binning pays ")
    assert "with 100 clients, " in words
    assert words.endswith("with 1,000 clients, of budgets up to 10")


def board_row(method, eps, error, fall=0.0):
    names = {"classes": 10, "data": "a", "K": 100, "eps": eps, "method": method}
    return {**names, "cwECE": error, "acc change": fall}


@pytest.mark.parametrize(
    ("binned", "fall", "start"),
    [
        (0.010, 0.0, "from eps = 3"),
        (0.019, 0.0, "at no eps"),  # better by less than the margin
        (0.010, -0.02, "at no eps"),  # pays with accuracy
    ],
)
def test_binning_pays_where_it_beats_temperature_and_input(binned, fall, start):
    rows = [
        board_row("base", "-", 0.03),
        board_row("FedTemp", "none", 0.02),
        board_row("FedTemp", "3", 0.02),
        board_row("FedTemp", "1", 0.02),
        board_row("FedBBQ", "none", 0.001),
        board_row("FedBBQ", "3", binned, fall),
        board_row("FedBBQ-all", "3", 0.05),
        board_row("FedBBQ", "1", 0.03),
    ]
    (words,) = leaderboard.crossings(rows)
    assert words == (
        f"10 classes (a): private binning pays {start} with 100 clients, of budgets up "
        "to 3"
    )


def test_the_leaderboard_has_all_numbers_of_classes_and_clients():
    fed = make_federation(20, 2000, n_classes=100, n_test=500, random_state=0)
    test = fed.test_logits, fed.test_labels
    model = Model("many", fed.logits, fed.labels, fed.client_ids, *test)
    few = leaderboard._restricted(model, 62)
    assert (few.n_classes, few.labels.max(), few.test_labels.max()) == (62, 61, 61)
    kept = fed.labels < 62
    np.testing.assert_array_equal(few.logits, fed.logits[kept][:, :62])
    assert leaderboard._made(200).n_classes == 200
    same, more = (leaderboard._drawn(model, n) for n in (100, 1000))
    assert same.clients is None
    assert same.logits is model.logits
    # Rows are drawn from those to calibrate on; the test is not touched.
    assert len(more.labels) == 5000
    assert set(map(bytes, more.logits)) <= set(map(bytes, fed.logits))
    assert more.test_logits is model.test_logits
