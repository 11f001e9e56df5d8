"""The idx format."""

import gzip
import importlib
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from skfedcal.datasets._mnist import read_idx

KINDS = ("u1", "i1", "i2", "i4", "f4", "f8")


def arrays(max_dims):
    shapes = hnp.array_shapes(min_dims=1, max_dims=max_dims, min_side=0, max_side=5)
    dtypes = st.sampled_from(KINDS).map(np.dtype)
    return st.tuples(dtypes, shapes).flatmap(lambda pair: hnp.arrays(*pair))


@given(array=arrays(5), packed=st.booleans())
def test_arrays_come_back_bit_for_bit(write_idx, array, packed):
    with tempfile.TemporaryDirectory() as folder:
        name = "array.gz" if packed else "array"
        found = read_idx(write_idx(Path(folder, name), array))
    assert found.dtype == array.dtype and found.dtype.isnative
    assert found.shape == array.shape and found.flags.writeable
    assert found.tobytes() == array.tobytes()


@given(array=arrays(3).filter(lambda array: array.size))
def test_torchvision_reads_the_same(vision, write_idx, array):
    theirs = importlib.import_module("torchvision.datasets.mnist")
    with tempfile.TemporaryDirectory() as folder:
        path = write_idx(Path(folder, "array"), array)
        expected = theirs.read_sn3_pascalvincent_tensor(str(path)).numpy()
        found = read_idx(path)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


def test_bytes_worked_by_hand(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(bytes.fromhex("00000b02 00000001 00000002 0102 fffe"))
    np.testing.assert_array_equal(read_idx(path), [[258, -2]])


@pytest.mark.parametrize("name", ["short", "short.gz"])
def test_every_cut_is_named(write_idx, tmp_path, name):
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    whole = write_idx(tmp_path / "whole", array).read_bytes()
    path = tmp_path / name
    for length in range(len(whole)):
        content = whole[:length]
        path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        with pytest.raises(ValueError, match=rf"{name}: expected .* found"):
            read_idx(path)


def test_every_cut_of_the_compressed_file_is_named(write_idx, tmp_path):
    array = np.arange(6, dtype=np.int16)
    whole = write_idx(tmp_path / "whole.gz", array).read_bytes()
    path = tmp_path / "cut.gz"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"cut\.gz: expected"):
            read_idx(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found b''"),
        (b"<!DOCTYPE html>", "expected an idx file .* found b'<!DO'"),
        (bytes([0, 0, 10, 1]), "a type code of .* found"),
        (bytes([0, 0, 8, 0, 1]), "length of 0 axes"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 1, 5, 6]), "expected 1 bytes .* found more"),
        # A claim of 2**96 bytes must not be believed.
        (bytes([0, 0, 8, 3]) + b"\xff" * 12 + b"abc", r"expected \d{29} bytes .* 3\."),
    ],
)
def test_other_files_are_named(tmp_path, content, message):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


def test_text_with_the_name_of_an_archive(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(b"404 not found")
    with pytest.raises(ValueError, match=r"a\.gz: expected a gzip file"):
        read_idx(path)
