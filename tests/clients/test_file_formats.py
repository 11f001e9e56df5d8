"""Tables, .npy sets and folders give what an .npz file with the same rows gives."""

import sys

import numpy as np
import pytest

from skfedcal.clients import load_federation

LOGITS = np.array(
    [[2.0, 0.25, 1.0], [0.5, 1.5, 0.0], [0.0, -1.0, 3.0], [1.0, 0.0, 0.5]]
)
LABELS = np.array([0, 1, 2, 1])
OWNERS = np.array(["north", "south", "north", "west"])


@pytest.fixture
def expected(tmp_path):
    path = tmp_path / "expected.npz"
    np.savez(path, logits=LOGITS, labels=LABELS, client=OWNERS)
    return load_federation(path)


def same(found, expected):
    np.testing.assert_array_equal(found.logits, expected.logits)
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.client_ids, expected.client_ids)
    np.testing.assert_array_equal(found.client_names, expected.client_names)
    assert len(found.clients) == len(expected.clients)


def table(names=("client", "label", "logit_0", "logit_1", "logit_2"), mark=","):
    lines = [mark.join(names)]
    for owner, label, row in zip(OWNERS, LABELS, LOGITS, strict=True):
        lines.append(mark.join([str(owner), str(label), *map(str, row)]))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_csv_table_is_read(tmp_path, expected, mark):
    path = tmp_path / "model.csv"
    path.write_text(table(mark=mark))
    same(load_federation(path), expected)
    # A spreadsheet writes a mark of byte order first.
    path.write_bytes(b"\xef\xbb\xbf" + table(mark=mark).encode())
    same(load_federation(path), expected)


def test_columns_are_put_in_the_order_of_their_numbers(tmp_path, expected):
    path = tmp_path / "model.csv"
    lines = [line.split(",") for line in table().splitlines()]
    path.write_text(
        "\n".join(",".join(line[i] for i in (4, 0, 2, 1, 3)) for line in lines)
    )
    same(load_federation(path), expected)


def test_columns_can_be_named(tmp_path, expected):
    path = tmp_path / "model.csv"
    path.write_text(table(("hospital", "y", "z0", "z1", "z2")))
    names = {"client": "hospital", "labels": "y", "logits": "z"}
    same(load_federation(path, columns=names), expected)
    npz = tmp_path / "other.npz"
    np.savez(npz, z=LOGITS, y=LABELS, hospital=OWNERS, logits=LOGITS + 1)
    same(load_federation(npz, columns=names), expected)


def test_labels_can_be_names_of_columns(tmp_path):
    path = tmp_path / "model.csv"
    path.write_text("label,logit_cat,logit_dog\ndog,1,2\ncat,3,1\n")
    found = load_federation(path)
    assert found.labels.tolist() == [1, 0]
    assert found.logits.tolist() == [[1, 2], [3, 1]]


def test_one_column_is_log_odds_or_the_probability_of_class_one(tmp_path):
    path = tmp_path / "model.csv"
    path.write_text("label,logit\n1,0.5\n0,-2\n")
    assert load_federation(path).logits.tolist() == [0.5, -2.0]
    path.write_text("label,proba\n1,0.75\n0,0.5\n")
    found = load_federation(path).logits
    np.testing.assert_allclose(np.exp(found), [[0.25, 0.75], [0.5, 0.5]])


def test_a_split_column_makes_rows_to_calibrate_on(tmp_path):
    path = tmp_path / "model.csv"
    path.write_text("split,label,client,logit_0,logit_1\nval,1,7,0,2\ntest,0,8,3,1\n")
    found = load_federation(path)
    assert found.logits.tolist() == [[3, 1]] and found.client_ids.tolist() == [8]
    assert found.val.logits.tolist() == [[0, 2]] and found.val.labels.tolist() == [1]
    assert load_federation(path, split="auto").client_ids.tolist() == [7]


def test_parquet_is_read(tmp_path, expected):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    columns = {f"logit_{k}": LOGITS[:, k] for k in range(3)}
    columns |= {"label": LABELS, "client": list(OWNERS)}
    path = tmp_path / "model.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    same(load_federation(path), expected)
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(ValueError, match="is not a Parquet file"):
        load_federation(path)


def test_without_pyarrow_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "model.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(ImportError, match=r'pip install "skfedcal\[parquet\]"'):
        load_federation(path)


@pytest.mark.parametrize("start", ["", "model_"])
def test_an_npy_set_is_read(tmp_path, expected, start):
    for name, array in (("logits", LOGITS), ("labels", LABELS), ("client", OWNERS)):
        np.save(tmp_path / f"{start}{name}.npy", array)
    np.save(tmp_path / "unrelated.npy", np.ones(3))
    same(load_federation(tmp_path / f"{start}logits.npy"), expected)


def test_a_folder_with_one_npy_set_is_that_set(tmp_path, expected):
    for name, array in (("logits", LOGITS), ("labels", LABELS), ("client", OWNERS)):
        np.save(tmp_path / f"{name}.npy", array)
    same(load_federation(tmp_path), expected)


@pytest.mark.parametrize("kind", ["npz", "csv", "npy", "mixed"])
def test_a_folder_has_one_client_per_file(tmp_path, expected, kind):
    folder = tmp_path / "clients"
    folder.mkdir()
    (folder / ".hidden.npz").write_bytes(b"")
    (folder / "readme.txt").write_text("not data")
    for i, owner in enumerate(["north", "south", "west"]):
        mine = owner == OWNERS
        form = ("npz", "csv", "npy")[i] if kind == "mixed" else kind
        if form == "npz":
            np.savez(folder / f"{owner}.npz", logits=LOGITS[mine], labels=LABELS[mine])
        elif form == "npy":
            np.save(folder / f"{owner}_logits.npy", LOGITS[mine])
            np.save(folder / f"{owner}_labels.npy", LABELS[mine])
        else:
            rows = zip(LABELS[mine], LOGITS[mine], strict=True)
            lines = [f"{label},{','.join(map(str, row))}" for label, row in rows]
            head = "label,logit_0,logit_1,logit_2"
            (folder / f"{owner}.csv").write_text("\n".join([head, *lines]))
    found = load_federation(folder)
    assert found.client_names.tolist() == ["north", "south", "west"]
    for mine, theirs in zip(found.clients, expected.clients, strict=True):
        np.testing.assert_array_equal(mine[0], theirs[0])
        np.testing.assert_array_equal(mine[1], theirs[1])


def test_clients_of_a_folder_can_have_rows_to_calibrate_on(tmp_path):
    for name, val in (("a", True), ("b", False)):
        arrays = {"logits": LOGITS, "labels": LABELS}
        if val:
            arrays |= {"val_logits": LOGITS[:2], "val_labels": LABELS[:2]}
        np.savez(tmp_path / f"{name}.npz", **arrays)
    found = load_federation(tmp_path)
    assert [len(y) for _, y in found.clients] == [4, 4]
    assert [len(y) for _, y in found.val.clients] == [2, 0]


WRONG_TABLES = {
    "no scores": ("label,a,b\n0,1,2\n", "needs columns of scores"),
    "no labels": ("logit_0,logit_1\n1,2\n", "needs the names"),
    "text": ("label,logit_0,logit_1\n0,1,x\n", "row 1 of column 'logit_1' is 'x'"),
    "empty cell": ("label,logit_0,logit_1\n0,1,\n", "row 1 of column 'logit_1' is ''"),
    "short line": ("label,logit_0,logit_1\n0,1\n", "line 2 has 2 values"),
    "twice": ("label,logit_0,logit_0\n0,1,2\n", "names a column twice"),
    "gap": ("label,logit_0,logit_2\n0,1,2\n", r"have the numbers \[0, 2\]"),
    "no rows": ("label,logit_0,logit_1\n", "needs a line of column names"),
    "label": ("label,logit_0,logit_1\n0.5,1,2\n", "a label is the number of a class"),
    "label name": ("label,logit_a,logit_b\nc,1,2\n", "row 1 of column 'label' is 'c'"),
    "client": ("label,client,logit_0,logit_1\n0,,1,2\n", "'client' is empty"),
    "split": ("split,label,logit_0,logit_1\ntrain,0,1,2\n", "'val' .to calibrate on"),
    "blank": ("label,logit_0,logit_1\n\n\n", "column names but no rows"),
    "large": ("label,logit_0,logit_1\n1e300,1,2\n", "a label is the number of a"),
    "after a blank line": ("label,logit_0,logit_1\n\n0,1\n", "line 3 has 2 values"),
    "nan": ("label,logit_0,logit_1\n0,nan,2\n", "is 'nan', not a number"),
}


@pytest.mark.parametrize("case", WRONG_TABLES)
def test_wrong_tables(tmp_path, case):
    text, message = WRONG_TABLES[case]
    path = tmp_path / "model.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_federation(path)


def test_an_unknown_column_says_which_there_are(tmp_path):
    path = tmp_path / "model.csv"
    path.write_text(table())
    with pytest.raises(
        ValueError, match="has no column 'y'; it has client, label, logi"
    ):
        load_federation(path, columns={"labels": "y"})
    with pytest.raises(ValueError, match="begins with 'z'"):
        load_federation(path, columns={"logits": "z"})
    with pytest.raises(ValueError, match="columns has the unknown role 'target'"):
        load_federation(path, columns={"target": "label"})
    with pytest.raises(TypeError, match="columns must be a dict"):
        load_federation(path, columns="label")


def test_wrong_npy_files(tmp_path):
    path = tmp_path / "scores.npy"
    np.save(path, LOGITS)
    with pytest.raises(ValueError, match="ends in logits or proba"):
        load_federation(path)
    path = tmp_path / "logits.npy"
    np.save(path, LOGITS)
    with pytest.raises(ValueError, match="'labels'; it has"):
        load_federation(path)
    np.save(tmp_path / "labels.npy", np.array([{}] * 4), allow_pickle=True)
    with pytest.raises(ValueError, match="is damaged or not readable"):
        load_federation(path)
    # A header that claims more than the file holds allocates nothing.
    path.write_bytes(path.read_bytes()[:140])
    with pytest.raises(ValueError, match="is damaged or not readable"):
        load_federation(path)


def test_wrong_folders(tmp_path):
    with pytest.raises(ValueError, match="is a folder with no file"):
        load_federation(tmp_path)
    np.savez(tmp_path / "a.npz", logits=LOGITS, labels=LABELS)
    with pytest.raises(ValueError, match=r"is a folder with one file .* \(a.npz\)"):
        load_federation(tmp_path)
    np.savez(tmp_path / "b.npz", logits=LOGITS[:, :2], labels=[0, 1, 0, 1])
    with pytest.raises(
        ValueError, match="logits of the clients cannot be concatenated"
    ):
        load_federation(tmp_path)
    np.savez(tmp_path / "b.npz", logits=LOGITS, labels=LABELS, client=OWNERS)
    with pytest.raises(ValueError, match="each file is one client"):
        load_federation(tmp_path)
    np.savez(tmp_path / "b.npz", logits=LOGITS)
    with pytest.raises(ValueError, match="client 'b' has no 'labels'"):
        load_federation(tmp_path)


def test_clients_of_a_folder_have_the_same_classes_in_the_same_order(tmp_path):
    header, rows = "label,logit_cat,logit_dog\n", "cat,2,0\ndog,0,1\n"
    (tmp_path / "a.csv").write_text(header + rows)
    (tmp_path / "b.csv").write_text(header + rows)
    assert load_federation(tmp_path).labels.tolist() == [0, 1, 0, 1]
    # The same rows with columns in another order would be stacked wrongly.
    (tmp_path / "b.csv").write_text("label,logit_dog,logit_cat\ncat,0,2\ndog,1,0\n")
    with pytest.raises(ValueError, match=r"client 'b' are \['dog', 'cat'\], those of"):
        load_federation(tmp_path)
    (tmp_path / "b.csv").write_text("label,logit_0,logit_1\n0,2,0\n1,0,1\n")
    with pytest.raises(ValueError, match="client 'b' are numbered"):
        load_federation(tmp_path)


def test_a_short_beginning_leaves_the_other_columns_alone(tmp_path):
    path = tmp_path / "model.csv"
    path.write_text("label,l0,l1,lodge,split\n0,2,0,x,test\n1,0,1,y,val\n")
    found = load_federation(path, columns={"logits": "l", "client": "lodge"})
    assert found.logits.tolist() == [[2.0, 0.0]]
    assert found.client_names.tolist() == ["x", "y"]


def test_large_tables_are_refused(tmp_path):
    path = tmp_path / "model.csv"
    path.write_text(table())
    with pytest.raises(ValueError, match="above max_bytes=10"):
        load_federation(path, max_bytes=10)
