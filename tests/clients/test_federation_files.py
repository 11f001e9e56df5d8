import io
import os
import zipfile

import numpy as np
import pytest

from skfedcal.clients import npz
from skfedcal.clients.federation_files import load_federation, save_federation

LOGITS = np.array([[2.0, 0.0, 1.0], [0.5, 1.5, 0.0], [0.0, 0.0, 3.0], [1.0, 0.0, 0.0]])
LABELS = np.array([0, 1, 2, 1])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.npz"


def write(path, **arrays):
    np.savez(path, **{"logits": LOGITS, "labels": LABELS, **arrays})
    return path


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def test_without_clients_all_rows_are_one_client(path):
    federation = load_federation(write(path))
    np.testing.assert_array_equal(federation.logits, LOGITS)
    np.testing.assert_array_equal(federation.labels, LABELS)
    assert federation.client_ids is federation.client_names is federation.val is None
    ((logits, labels),) = federation.clients
    assert np.shares_memory(logits, federation.logits) and len(labels) == 4


@pytest.mark.parametrize("name", ["client", "client_ids"])
def test_whole_number_clients_are_kept_and_listed_in_sorted_order(path, name):
    ids = np.array([2154, -3, 2154, 7], dtype=np.int16)
    federation = load_federation(write(path, **{name: ids}))
    np.testing.assert_array_equal(federation.client_ids, ids)
    assert federation.client_names is None
    assert [labels.tolist() for _, labels in federation.clients] == [[1], [1], [0, 2]]
    np.testing.assert_array_equal(federation.clients[2][0], LOGITS[[0, 2]])


def test_named_clients_come_in_the_order_of_names_also_when_empty(path):
    names = np.array(["north", "empty", "south"])
    federation = load_federation(
        write(path, client=np.array([2, 0, 2, 0], np.int8), client_names=names)
    )
    assert federation.client_names.tolist() == names.tolist()
    assert [labels.tolist() for _, labels in federation.clients] == [[1, 1], [], [0, 2]]
    by_name = load_federation(
        write(
            path,
            client=np.array(["south", "north", "south", "north"]),
            client_names=names,
        )
    )
    np.testing.assert_array_equal(by_name.client_ids, federation.client_ids)


@pytest.mark.parametrize("dtype", ["U", "S"])
def test_string_clients_become_numbers_and_names_shared_with_val(path, dtype):
    write(
        path,
        client=np.array(["b", "a", "b", "b"], dtype=dtype),
        val_logits=LOGITS[:2],
        val_labels=LABELS[:2],
        val_client=np.array(["c", "a"], dtype=dtype),
    )
    federation = load_federation(path)
    assert federation.client_names.tolist() == ["a", "b", "c"]
    assert federation.client_ids.tolist() == [1, 0, 1, 1]
    assert federation.val.client_ids.tolist() == [2, 0]
    assert [len(y) for _, y in federation.clients] == [1, 3, 0]
    assert load_federation(path, split="val").client_ids.tolist() == [2, 0]


def test_split_chooses_the_rows(path):
    write(path, val_logits=-LOGITS[:2], val_labels=LABELS[:2])
    both = load_federation(path)
    assert len(both.labels) == 4 and len(both.val.labels) == 2
    assert len(both.val.clients) == 1
    for split, expected in (("val", 2), ("auto", 2), ("test", 4)):
        federation = load_federation(path, split=split)
        assert len(federation.labels) == expected and federation.val is None
    write(path)
    assert len(load_federation(path, split="auto").labels) == 4
    with pytest.raises(ValueError, match=r"no array 'val_logits'; it has \['labels'"):
        load_federation(path, split="val")
    with pytest.raises(ValueError, match="split must be None, 'auto'"):
        load_federation(path, split="train")


@pytest.mark.parametrize(
    ("stored", "returned"),
    [("f2", "f4"), ("f4", "f4"), (">f4", "f4"), ("f8", "f8"), ("i4", "f8")],
)
def test_floats_keep_their_width_but_half(path, stored, returned):
    federation = load_federation(write(path, logits=LOGITS.astype(stored)))
    assert federation.logits.dtype == np.dtype(returned)
    np.testing.assert_array_equal(federation.logits, LOGITS.astype(stored))


def test_binary_forms(path):
    labels = np.array([1, 0, 1])
    odds = load_federation(write(path, logits=np.array([0.3, -1, 2]), labels=labels))
    assert odds.logits.shape == (3,) and odds.labels.tolist() == [1, 0, 1]
    np.savez(path, prob=np.array([0.25, 1.0, 0.5], np.float32), labels=labels == 1)
    federation = load_federation(path)
    assert federation.logits.dtype == np.float32
    np.testing.assert_allclose(
        federation.logits, [np.log([0.75, 0.25]), [-12, 0], np.log([0.5, 0.5])]
    )
    assert federation.labels.tolist() == [1, 0, 1]


def test_probabilities_become_logarithms_by_name_never_by_value(path):
    proba = np.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    np.savez(path, proba=proba, labels=[0, 2])
    # A zero is "below the resolution", not impossible.
    found = np.exp(load_federation(path).logits)
    np.testing.assert_allclose(found, np.where(proba == 0, np.exp(-12), proba))
    np.savez(path, logits=proba, labels=[0, 2])
    np.testing.assert_array_equal(load_federation(path).logits, proba)
    for bad in ([[0.5, 0.6, 0.0]], [[-0.5, 1.0, 0.5]], [[np.nan, 0.5, 0.5]], [1.5]):
        np.savez(path, proba=np.array(bad), labels=[0])
        with pytest.raises(ValueError, match="row 0 of proba is not a probability"):
            load_federation(path)


def test_other_arrays_are_not_read(path):
    write(path, hsf=np.zeros(9), notes=np.array([{"a": 1}], dtype=object))
    assert len(load_federation(path).labels) == 4


def test_minus_infinity_is_a_probability_of_zero(path):
    logits = LOGITS.copy()
    logits[0, 1] = -np.inf
    assert np.isneginf(load_federation(write(path, logits=logits)).logits[0, 1])


def bad_row(value):
    logits = LOGITS.copy()
    logits[2] = value
    return logits


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"logits": bad_row([0, np.nan, 0])}, r"row 2 of logits has NaN.*1 such rows"),
        ({"logits": bad_row([0, np.inf, 0])}, "row 2 of logits has NaN, .inf"),
        ({"logits": bad_row(-np.inf)}, "row 2 of logits has NaN"),
        ({"logits": LOGITS[None]}, r"logits must be numbers .* shape \(1, 4, 3\)"),
        ({"logits": LOGITS[:0], "labels": LABELS[:0]}, "logits must be numbers"),
        ({"logits": LOGITS.astype(str)}, "logits must be numbers of shape"),
        ({"labels": LABELS[:3]}, r"labels has shape \(3,\), but there are 4 rows"),
        ({"labels": LABELS[:, None]}, r"labels has shape \(4, 1\)"),
        ({"labels": [0, 1, 3, 0]}, "labels range from 0 to 3, .* allow 0 to 2"),
        ({"labels": [0, -1, 2, 0]}, "labels range from -1 to 2"),
        ({"labels": [0, 0.5, 2, 0]}, "labels must be whole numbers.*float64"),
        ({"labels": list("abca")}, "labels must be whole numbers"),
        ({"client": [0, 1]}, r"client has shape \(2,\), but there are 4 rows"),
        ({"client": [0.0, 1, 1, 1]}, "client must be whole numbers or strings"),
        (
            {"client": [0, 1, 2, 0], "client_names": ["a", "b"]},
            "client ranges from 0 to 2, but there are 2 client_names",
        ),
        ({"client": [0, -1, 1, 0], "client_names": ["a", "b"]}, "ranges from -1"),
        ({"client": list("abca"), "client_names": ["a", "b"]}, "'c' is not in client"),
        ({"client": [0] * 4, "client_names": ["a", "a"]}, "has repeated names"),
        ({"client": [0] * 4, "client_names": [["a"]]}, r"shape \(1, 1\), not \(k,\)"),
        ({"client": list("aaaa"), "client_names": np.zeros(0, "U1")}, r"not \(k,\)"),
        ({"val_logits": LOGITS}, "no array 'val_labels'"),
        ({"val_labels": LABELS}, "no array 'val_logits'"),
        ({"val_logits": LOGITS, "val_labels": LABELS[:2]}, "val_labels has shape"),
        ({"val_logits": LOGITS[:, :2], "val_labels": [0] * 4}, "must be the same"),
    ],
)
def test_wrong_contents_are_named(path, arrays, message):
    with pytest.raises(ValueError, match=message) as caught:
        load_federation(write(path, **arrays))
    assert str(path) in str(caught.value)


def test_missing_arrays_are_named_with_those_found(path):
    np.savez(path, X=LOGITS, y=LABELS)
    with pytest.raises(ValueError, match=r"'logits' \(or 'proba'\).*\['X', 'y'\]"):
        load_federation(path)


def test_a_missing_file_is_a_file_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.npz"):
        load_federation(tmp_path / "absent.npz")


def test_files_that_are_no_archive_are_refused(path):
    path.write_bytes(npy(LOGITS))
    with pytest.raises(ValueError, match=r"is not an \.npz file"):
        load_federation(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"is not an \.npz file"):
        load_federation(path)


def test_pickled_arrays_are_refused_and_not_run(path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was run",))

    labels = np.array([Bomb()] * 4, dtype=object)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("logits.npy", npy(LOGITS))
        archive.writestr("labels.npy", npy(labels))
    with pytest.raises(ValueError, match="'labels' holds pickled Python objects"):
        load_federation(path)


def test_large_arrays_are_refused_before_they_are_unpacked(path, monkeypatch):
    np.savez_compressed(path, logits=np.zeros((100_000, 10)), labels=np.zeros(100_000))
    assert path.stat().st_size < 20_000

    def unpack(*args):
        pytest.fail("an array was read")

    monkeypatch.setattr(npz, "_read_member", unpack)
    with pytest.raises(ValueError, match=r"take 88.* above max_bytes=1000000"):
        load_federation(path, max_bytes=1_000_000)


def test_a_header_that_claims_more_than_the_file_holds_is_refused(path):
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**15, 10)}
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, header)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("logits.npy", stream.getvalue() + b"0" * 80)
        archive.writestr("labels.npy", npy(LABELS))
    with pytest.raises(ValueError, match=r"'logits' claims shape .* holds 80 bytes"):
        load_federation(path)


def test_damaged_files_give_a_value_error_that_names_the_file(path):
    save_federation(path, LOGITS, LABELS, client_ids=list("abab"))
    raw = path.read_bytes()
    rng = np.random.default_rng(0)
    messages = []
    for _ in range(300):
        damaged = bytearray(raw)
        for place in rng.integers(len(raw), size=3):
            damaged[place] = rng.integers(256)
        path.write_bytes(damaged[: rng.integers(1, len(raw) + 1)])
        try:
            load_federation(path)
        except ValueError as error:
            messages.append(str(error))
    assert len(messages) > 250 and all(str(path) in text for text in messages)


@pytest.mark.parametrize("compress", [True, False])
def test_what_is_saved_is_loaded(path, compress):
    save_federation(
        path,
        LOGITS.astype(np.float32),
        LABELS,
        client_ids=[1, 0, 1, 1],
        client_names=["a", "b", "c"],
        val_logits=LOGITS[:2],
        val_labels=[0, 0],
        val_client_ids=[2, 2],
        compress=compress,
    )
    federation = load_federation(path)
    assert federation.logits.dtype == np.float32
    np.testing.assert_array_equal(federation.logits, LOGITS)
    assert federation.client_ids.tolist() == [1, 0, 1, 1]
    assert federation.client_names.tolist() == ["a", "b", "c"]
    assert federation.val.client_ids.tolist() == [2, 2]
    assert [len(y) for _, y in federation.val.clients] == [0, 0, 2]


def test_strings_held_as_objects_are_saved_as_strings(path):
    save_federation(path, LOGITS, LABELS, client_ids=np.array(list("baab"), object))
    assert load_federation(path).client_names.tolist() == ["a", "b"]
    with pytest.raises(TypeError, match="client must hold numbers or strings only"):
        save_federation(path, LOGITS, LABELS, client_ids=np.array([1, "a", None, 2]))


def test_what_could_not_be_loaded_is_not_saved(path):
    save_federation(path, LOGITS, LABELS)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="labels range from 0 to 5"):
        save_federation(path, LOGITS, [0, 1, 2, 5])
    with pytest.raises(ValueError, match="must be the same"):
        save_federation(
            path, LOGITS, LABELS, val_logits=LOGITS[:, :2], val_labels=[0] * 4
        )
    assert path.read_bytes() == before


def test_a_failed_write_leaves_the_old_file_and_no_draft(path, monkeypatch):
    save_federation(path, LOGITS, LABELS)
    before = path.read_bytes()

    def full_disk(stream, **arrays):
        stream.write(b"half a file")
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save_federation(path, -LOGITS, LABELS)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_save_replaces_the_target_of_a_link(path, tmp_path):
    save_federation(path, LOGITS, LABELS)
    link = tmp_path / "link.npz"
    link.symlink_to(path)
    save_federation(link, -LOGITS, LABELS)
    assert link.is_symlink()
    np.testing.assert_array_equal(load_federation(path).logits, -LOGITS)
