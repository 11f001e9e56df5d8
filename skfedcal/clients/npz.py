"""Read untrusted .npz files."""

import math
import zipfile

import numpy as np

from skfedcal._files import as_path

__all__ = [
    "read_npz",
]


def read_npz(path, wanted, max_bytes):
    """Read the wanted arrays after checking the sizes that they claim.

    Result arrays: Those of `wanted` that the file has.
    Result found: Names of all arrays of the file.
    """
    with open(as_path(path), "rb") as stream:
        if not zipfile.is_zipfile(stream):
            raise ValueError(f"{path} is not an .npz file (a zip archive of arrays).")
        try:
            with zipfile.ZipFile(stream) as archive:
                found = {
                    name.removesuffix(".npy")
                    for name in archive.namelist()
                    if name.endswith(".npy")
                }
                members = sorted(found & wanted)
                _check_headers(archive, members, path, max_bytes)
                arrays = {name: _read_member(archive, name) for name in members}
        except _RefusedError as error:
            raise ValueError(str(error)) from None
        except MemoryError:
            raise
        # zipfile, zlib, tokenize and numpy raise a dozen kinds on damaged bytes.
        except Exception as error:
            raise ValueError(f"{path} is damaged or not readable: {error}") from error
    return arrays, found


class _RefusedError(Exception):
    """A readable archive that breaks a rule of the format."""


def _check_headers(archive, members, path, max_bytes):
    """Refuse large arrays, pickled objects and headers that claim a wrong size."""
    sizes = {name: archive.getinfo(f"{name}.npy").file_size for name in members}
    total = sum(sizes.values())
    if total > max_bytes:
        raise _RefusedError(
            f"{path}: the arrays take {total} bytes in memory, above "
            f"max_bytes={max_bytes}. Pass a larger `max_bytes` if you trust the file."
        )
    for name in members:
        shape, dtype, offset = _read_header(archive, name)
        if dtype.hasobject:
            raise _RefusedError(
                f"{path}: array {name!r} holds pickled Python objects, which are "
                "refused because loading them can run code. Save it as numbers or "
                "strings."
            )
        # numpy allocates what a header claims; math.prod does not overflow.
        if offset + math.prod(shape) * dtype.itemsize != sizes[name]:
            raise _RefusedError(
                f"{path}: the header of array {name!r} claims shape {shape}, but the "
                f"file holds {sizes[name] - offset} bytes for it."
            )


def _read_header(archive, name):
    with archive.open(f"{name}.npy") as stream:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
        return shape, dtype, stream.tell()


def _read_member(archive, name):
    with archive.open(f"{name}.npy") as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)
