"""The reader of MATLAB files, beside scipy's."""

import struct

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from skfedcal.datasets._svhn import read_matlab

KINDS = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    shapes = [(1, 1), (3, 4), (2, 3, 4), (0, 5), (32, 32, 3, 2)]
    return {
        f"{kind}_{i}": rng.integers(0, 100, shape).astype(kind)
        for kind in KINDS
        for i, shape in enumerate(shapes)
    }


@pytest.mark.parametrize("packed", [False, True])
def test_equals_scipy(arrays, packed, tmp_path):
    path = tmp_path / "a.mat"
    # What is not asked for may be of any kind.
    others = {"text": "abc", "cell": {"a": 1}, "complex": np.array([1j])}
    savemat(path, {**arrays, **others}, do_compression=packed)
    expected = loadmat(path)
    found = read_matlab(path, arrays)
    assert found.keys() == arrays.keys()
    for name, array in found.items():
        assert array.dtype == arrays[name].dtype
        np.testing.assert_array_equal(array, expected[name])
    for name in others:
        with pytest.raises(ValueError, match="complex or non-numeric values"):
            read_matlab(path, [name])


@pytest.mark.parametrize("order", ["<", ">"])
def test_other_byte_orders_and_narrow_numbers(order, tmp_path):
    # MATLAB stores doubles that are small whole numbers as bytes.
    body = struct.pack(f"{order}IIII", 6, 8, 6, 0)
    body += struct.pack(f"{order}IIii", 5, 8, 1, 3)
    body += struct.pack(f"{order}I", 1 << 16 | 1) + b"x\0\0\0"
    body += struct.pack(f"{order}I", 3 << 16 | 2) + bytes([7, 8, 9, 0])
    mark = struct.pack(f"{order}H", 0x0100) + (b"IM" if order == "<" else b"MI")
    tag = struct.pack(f"{order}II", 14, len(body))
    path = tmp_path / "a.mat"
    path.write_bytes(b"MATLAB".ljust(124) + mark + tag + body)
    (array,) = read_matlab(path, ["x"]).values()
    assert array.dtype == np.float64
    np.testing.assert_array_equal(array, loadmat(path)["x"])


@pytest.mark.parametrize("packed", [False, True])
def test_damaged_bytes_give_values_or_a_clear_error(packed, tmp_path):
    path = tmp_path / "a.mat"
    content = {"X": np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "y": np.eye(3)}
    savemat(path, content, do_compression=packed)
    raw, rng, errors = path.read_bytes(), np.random.default_rng(0), 0
    for _ in range(3000):
        damaged = bytearray(raw)
        for _ in range(int(rng.integers(1, 4))):
            damaged[int(rng.integers(116, len(raw)))] = int(rng.integers(256))
        path.write_bytes(damaged[: int(rng.integers(100, len(raw) + 50))])
        try:
            read_matlab(path, ["X", "y"])
        except ValueError:
            errors += 1
    assert errors > 1000


def test_a_packed_part_is_not_unpacked_beyond_its_size(tmp_path):
    import zlib

    # A bomb: a thousand zeros for each byte, behind a tag that says eight bytes.
    packed = zlib.compress(struct.pack("<II", 14, 8) + bytes(10**7))
    path = tmp_path / "a.mat"
    mark = struct.pack("<H", 0x0100) + b"IM"
    tag = struct.pack("<II", 15, len(packed))
    path.write_bytes(b"MATLAB".ljust(124) + mark + tag + packed)
    with pytest.raises(ValueError, match="middle of a number"):
        read_matlab(path, ["X"])
