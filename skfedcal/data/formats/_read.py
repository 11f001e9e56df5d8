"""One reader for all kinds of files: named arrays, as an .npz file has them."""

from pathlib import Path

import numpy as np

from skfedcal.data._npz import read_npz
from skfedcal.data.formats._roles import CLIENT_NAMES, SCORE_NAMES, missing
from skfedcal.data.formats._table import CLASS_NAMES, read_csv, read_parquet

__all__ = ["read_arrays"]

# What the arrays of an .npy set are called at the end of their file names.
NPY_NAMES = (*SCORE_NAMES, "labels", *CLIENT_NAMES, "client_names")
ENDINGS = (".npz", ".npy", ".csv", ".tsv", ".parquet")


def read_arrays(path, max_bytes, names):
    """Read a file or a folder.

    Parameters
    ----------
    path : Path
        An .npz, .npy, .csv, .tsv or .parquet file, or a folder.
    max_bytes : int
        Refuse more.
    names : dict
        Names by role, where they are not the usual ones.

    Returns
    -------
    arrays : dict of str to ndarray
        Those that a federation has, with ``val_`` in front of those to calibrate on.
    found : set of str
        Names of all arrays or columns.
    """
    if path.is_dir():
        return _read_folder(path, max_bytes, names)
    arrays, found = _read_file(path, max_bytes, names)
    arrays.pop(CLASS_NAMES, None)
    return arrays, found


def _read_file(path, max_bytes, names):
    ending = path.suffix.lower()
    if ending in (".csv", ".tsv", ".parquet", ".npy"):
        size = path.stat().st_size
        if size > max_bytes:
            raise ValueError(
                f"{path} has {size} bytes, above max_bytes={max_bytes}. Pass a larger "
                "`max_bytes` if you trust the file."
            )
    if ending in (".csv", ".tsv"):
        return read_csv(path, names)
    if ending == ".parquet":
        return read_parquet(path, names)
    if ending == ".npy":
        return _read_npy_set(path, names)
    wanted = {*SCORE_NAMES, "labels", *CLIENT_NAMES, *names.values()}
    wanted |= {f"val_{name}" for name in wanted} | {"client_names"}
    arrays, found = read_npz(path, wanted, max_bytes)
    return _renamed(arrays, found, path, names), found


def _renamed(arrays, found, path, names):
    """Give arrays that the caller names their usual names."""
    for role, name in names.items():
        if name not in arrays:
            raise missing(path, "array", name, found)
        for start in ("", "val_"):
            if role in ("logits", "proba"):
                for other in SCORE_NAMES:
                    if other != name:
                        arrays.pop(start + other, None)
            if start + name in arrays:
                arrays[start + role] = arrays.pop(start + name)
    return arrays


def _read_npy_set(path, names):
    """Read ``NAME_logits.npy`` and the files beside it that end in other names."""
    if names:
        raise ValueError("columns is for tables and .npz files; rename the .npy files.")
    stem = path.stem
    own = next((n for n in SCORE_NAMES if stem == n or stem.endswith(f"_{n}")), None)
    if own is None:
        raise ValueError(
            f"{path}: an .npy file of scores has a name that ends in logits or proba, "
            "such as model_logits.npy, and its labels are beside it, as "
            "model_labels.npy."
        )
    start = stem.removesuffix(own)
    arrays = {own: _load_npy(path)}
    for name in ("labels", *CLIENT_NAMES, "client_names"):
        beside = path.with_name(f"{start}{name}.npy")
        if beside.is_file():
            arrays[name] = _load_npy(beside)
    for name in NPY_NAMES:
        beside = path.with_name(f"{start}val_{name}.npy")
        if beside.is_file() and name != "client_names":
            arrays[f"val_{name}"] = _load_npy(beside)
    return arrays, {f"{start}{name}.npy" for name in arrays}


def _load_npy(path):
    # A map is as long as the file: a header that claims more is refused.
    try:
        # A shape that overflows is refused as too long for the file.
        with np.errstate(over="ignore"):
            return np.array(np.load(path, mmap_mode="r", allow_pickle=False))
    except MemoryError:
        raise
    # tokenize, struct and numpy raise a dozen kinds on damaged bytes.
    except Exception as error:
        raise ValueError(f"{path} is damaged or not readable: {error}") from error


def _read_folder(path, max_bytes, names):
    """One client per file, named as the file; or an .npy set."""
    if (path / "logits.npy").is_file():
        return _read_npy_set(path / "logits.npy", names)
    files = _client_files(path)
    if len(files) < 2:
        held = f"one file that can be read ({files[0][1].name})" if files else "no file"
        raise ValueError(
            f"{path} is a folder with {held}. Expected one file per client, as "
            f"{', '.join(ENDINGS)}, or pass a file."
        )
    parts, found = [], set()
    for _, file in files:
        arrays, listed = _read_file(file, max_bytes, names)
        max_bytes -= sum(array.nbytes for array in arrays.values())
        owner = next((n for n in CLIENT_NAMES if n in arrays), None)
        if owner is not None:
            raise ValueError(
                f"{file} has {owner!r}, but in a folder each file is one client. Pass "
                "the file itself, or leave the clients out of it."
            )
        parts.append(arrays)
        found |= listed
    owners = [name for name, _ in files]
    _check_classes(parts, owners, path)
    return _stacked(parts, owners, path), found


def _check_classes(parts, owners, path):
    """Refuse tables whose columns are other classes, or come in another order."""
    first, *rest = [part.pop(CLASS_NAMES, np.array([])).tolist() for part in parts]
    for owner, classes in zip(owners[1:], rest, strict=True):
        if classes != first:
            raise ValueError(
                f"{path}: the score columns of client {owner!r} are "
                f"{classes[:10] or 'numbered'}, those of {owners[0]!r} are "
                f"{first[:10] or 'numbered'}. All need the same classes in the same "
                "order."
            )


def _client_files(path):
    """Name of the client and file, sorted by name."""
    files = []
    for file in sorted(path.iterdir()):
        if file.name.startswith(".") or not file.is_file():
            continue
        name, ending = file.stem, file.suffix.lower()
        if ending == ".npy":
            own = next((n for n in SCORE_NAMES if name.endswith(f"_{n}")), None)
            if own is None or name.endswith(f"_val_{own}"):
                continue
            name = name.removesuffix(f"_{own}")
        if ending in ENDINGS:
            files.append((name, Path(file)))
    names = [name for name, _ in files]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{path} has two files for client {twice!r}.")
    return files


def _stacked(parts, names, path):
    """Rows of all clients, client after client."""
    arrays = {"client_names": np.array(names)}
    for start in ("", "val_"):
        keys = {
            k for part in parts for k in part if k.startswith("val_") == (start != "")
        }
        keys -= {"client_names"}
        if not keys:
            continue
        having = [part for part in parts if keys & set(part)]
        for key in keys:
            lacking = [n for n, p in zip(names, parts, strict=True) if key not in p]
            if (lacking and not start) or any(key not in part for part in having):
                raise ValueError(
                    f"{path}: client {lacking[0]!r} has no {key!r}, others have."
                )
            try:
                arrays[key] = np.concatenate([part[key] for part in having])
            except (ValueError, TypeError) as error:
                raise ValueError(
                    f"{path}: {key} of the clients cannot be concatenated: {error}"
                ) from error
        any_key = min(keys)
        sizes = [len(part[any_key]) if any_key in part else 0 for part in parts]
        arrays[f"{start}client"] = np.repeat(np.arange(len(parts)), sizes)
    return arrays
