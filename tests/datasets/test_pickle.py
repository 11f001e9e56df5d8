"""Pickles of arrays are read; pickles that do anything else are refused."""

import copyreg
import os
import pickle
import struct
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from skfedcal.datasets._cifar import read_pickle

BATCH = {
    "data": np.arange(12, dtype=np.uint8).reshape(2, 6),
    "labels": [3, 1],
    "filenames": ["a.png", "b.png"],
}


class Runs:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.fixture
def read(tmp_path):
    def read(content):
        path = tmp_path / "batch"
        path.write_bytes(content)
        return read_pickle(path)

    return read


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("as_bytes", [False, True])
def test_every_protocol_is_read(read, protocol, as_bytes):
    batch = {k.encode() if as_bytes else k: v for k, v in BATCH.items()}
    found = read(pickle.dumps(batch, protocol))
    assert list(found) == list(BATCH)
    np.testing.assert_array_equal(found["data"], BATCH["data"])
    assert found["data"].dtype == np.uint8 and found["data"].flags.writeable
    assert found["labels"] == [3, 1]


@given(
    array=hnp.arrays(
        st.sampled_from(["u1", "<i2", ">i4", "<u8", "<f4", ">f8", "b1"]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    protocol=st.integers(2, 5),
    by_column=st.booleans(),
)
def test_arrays_are_those_of_pickle(tmp_path_factory, array, protocol, by_column):
    array = np.asfortranarray(array) if by_column else array
    path = tmp_path_factory.mktemp("pickle") / "a"
    path.write_bytes(pickle.dumps({"a": array}, protocol))
    found = read_pickle(path)["a"]
    assert found.dtype == array.dtype.newbyteorder("=") and found.shape == array.shape
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<i2", ">i2"])
def test_orders_of_entries_and_bytes(read, protocol, order, dtype):
    array = np.arange(600, 606, dtype=dtype).reshape(2, 3).copy(order=order)
    found = read(pickle.dumps({"a": array}, protocol))["a"]
    assert found.tolist() == [[600, 601, 602], [603, 604, 605]]
    assert found.dtype.isnative


def hostile(target):
    """Pickles that would create `target`, and some that crash a careless reader."""
    command = f"touch {target}"
    return {
        "system": Runs(os.system, command),
        "popen": Runs(subprocess.Popen, ["touch", str(target)]),
        "eval": Runs(eval, f"open({str(target)!r}, 'w')"),
        "exec": Runs(exec, f"open({str(target)!r}, 'w')"),
        "open": Runs(open, str(target), "w"),
        "getattr": Runs(getattr, "text", "join"),
        "import": Runs(__import__, "antigravity"),
        "inside": {"data": [Runs(os.system, command)], "labels": [1]},
        "key": {Runs(os.system, command): 1},
        "save": Runs(np.save, str(target), 1),
        "memmap": Runs(np.memmap, str(target), "u1", "w+", 0, (1,)),
        "objects": {"data": np.array([Runs(os.system, command)], dtype=object)},
    }


@pytest.mark.parametrize("name", sorted(hostile("x")))
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_code_is_not_run(read, tmp_path, name, protocol):
    target = tmp_path / "proof"
    content = pickle.dumps(hostile(target)[name], protocol)
    with pytest.raises(ValueError, match=r"batch: expected a pickled dictionary"):
        read(content)
    assert not target.exists()


def test_the_same_pickles_do_run_with_pickle(tmp_path):
    # Otherwise the test above proves nothing.
    target = tmp_path / "proof"
    pickle.loads(pickle.dumps(hostile(target)["system"]))
    assert target.exists()


def test_the_name_that_is_asked_for_is_given(read):
    with pytest.raises(ValueError, match=r"asks for (posix|nt)\.system.* refused"):
        read(pickle.dumps(Runs(os.system, "true")))


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(S'touch proof'\ntR.",  # by hand, protocol 0
        b"(S'touch proof'\nios\nsystem\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"\x80\x02cnumpy\ndtype\n(U\x02O8K\x00K\x01tR}b.",
        b"\x80\x02cnumpy\nndarray\n)\x81}U\x05arrayK\x01sb.",
        b"\x80\x02cnumpy.core.multiarray\nscalar\n.",
        b"\x80\x02P1\n.",  # an object elsewhere
        b"\x80\x02(lp1\ng1\na.",  # a list that holds itself
        b"\x80\x02Nb.",
        b"\x80\x02\x82\x01.",  # an extension that nobody registered
        b"not a pickle",
        b"",
        b".",
        b"\x80\x05\x8e" + struct.pack("<Q", 2**62) + b"x.",
    ],
)
def test_programs_by_hand_are_refused(read, content):
    with pytest.raises(ValueError, match="batch"):
        read(content)


@pytest.mark.parametrize("content", [b"\x80\x02}r\x40\x42\x0f\0.", b"}p1000000\n."])
def test_places_to_remember_things_are_counted(read, content):
    # Places below the one that is named take memory; 16 GB of it in the worst case.
    with pytest.raises(ValueError, match="claims 1000000 memo entries"):
        read(content)


def test_a_registered_extension_is_refused_too(read):
    copyreg.add_extension("os", "system", 240)
    try:
        with pytest.raises(ValueError, match=r"asks for os\.system"):
            read(b"\x80\x02\x82\xf0(U\x04truetR.")
    finally:
        copyreg.remove_extension("os", "system", 240)


@pytest.mark.parametrize("protocol", [2, 5])
def test_an_array_that_claims_more_than_it_has(read, protocol):
    whole = pickle.dumps({"data": np.zeros((1, 77), np.uint8)}, protocol)
    for claim in (b"K\x4e", b"K\x4c"):
        with pytest.raises(ValueError, match=r"claims shape|cannot be read"):
            read(whole.replace(b"K\x4d\x86", claim + b"\x86"))


@pytest.mark.parametrize("dtype", [object, "U3", "M8[s]", [("a", "i4")], "c8"])
def test_arrays_of_other_things_are_refused(read, dtype):
    with pytest.raises(ValueError, match="batch: expected"):
        read(pickle.dumps({"data": np.zeros(2, dtype)}))


def test_every_cut_is_named(read):
    whole = pickle.dumps(BATCH, 2)
    for length in range(len(whole)):
        with pytest.raises(ValueError, match="batch: expected"):
            read(whole[:length])


@given(place=st.integers(0, 10**6), byte=st.integers(0, 255))
def test_a_wrong_byte_gives_a_value_error_or_a_dictionary(
    tmp_path_factory, place, byte
):
    content = bytearray(pickle.dumps(BATCH, 2))
    content[place % len(content)] = byte
    path = tmp_path_factory.mktemp("pickle") / "a"
    path.write_bytes(content)
    try:
        found, message = read_pickle(path), str(path)
    except ValueError as error:
        found, message = {}, str(error)
    assert isinstance(found, dict) and str(path) in message


def test_other_things_than_dictionaries_are_named(read):
    with pytest.raises(ValueError, match="expected a pickled dictionary, found list"):
        read(pickle.dumps([1]))
