"""Kinds of files that hold logits, labels and clients, read into named arrays."""

import csv
from collections.abc import Mapping
from math import isnan
from pathlib import Path
from zipfile import is_zipfile

import numpy as np

from skfedcal.clients.npz import read_npz

# The first name present is used.
SCORE_NAMES = ("logits", "proba", "prob")
CLIENT_NAMES = ("client", "client_ids")

# What a caller may rename.
ROLES = ("logits", "proba", "labels", "client")


def check_roles(columns):
    """Return names by role; raises for unknown roles and for invalid names."""
    if columns is None:
        return {}
    if not isinstance(columns, Mapping):
        raise TypeError(
            f"columns must be a dict such as {{'labels': 'y'}}, got {columns!r}."
        )
    for role, name in columns.items():
        if role not in ROLES:
            raise ValueError(
                f"columns has the unknown role {role!r}; the roles are {ROLES}."
            )
        if not isinstance(name, str) or not name:
            raise ValueError(f"columns[{role!r}] must be a name, got {name!r}.")
    if "logits" in columns and "proba" in columns:
        raise ValueError("columns names both logits and proba; pass one of them.")
    return dict(columns)


def missing(path, what, name, found):
    """Error that lists the names that exist."""
    listed = sorted(map(str, found))
    shown = ", ".join(listed[:20]) + (", ..." if len(listed) > 20 else "")
    return ValueError(f"{path} has no {what} {name!r}; it has {shown or 'none'}.")


LABEL_COLUMNS = ("labels", "label")
CLIENT_COLUMNS = ("client", "client_ids", "client_id")
SPLIT_COLUMN = "split"

# Array of the names of classes, where columns have names instead of numbers.
CLASS_NAMES = "class_names"

# Whole numbers below it are exact as floats.
LARGEST_LABEL = 2**53

# Begin of the names of score columns, and whether these are probabilities.
SCORE_STARTS = {"logits": False, "logit": False, "proba": True, "prob": True}


def read_csv(path, names):
    """Read a text file with a header; ``;`` and tabs separate too."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as stream:
            first = stream.readline()
            mark = max(",;\t", key=first.count)
            stream.seek(0)
            lines = list(csv.reader(stream, delimiter=mark))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"{path} is not a CSV file in UTF-8: {error}. Save it as UTF-8."
        ) from error
    if len(lines) < 2:
        raise ValueError(f"{path} needs a line of column names and lines of rows.")
    header, rows = [name.strip() for name in lines[0]], lines[1:]
    for number, row in enumerate(rows, start=2):
        if row and len(row) != len(header):
            raise ValueError(
                f"{path}: line {number} has {len(row)} values, the header names "
                f"{len(header)} columns."
            )
    if len(set(header)) < len(header):
        raise ValueError(f"{path} names a column twice: {header}.")
    filled = [row for row in rows if row]
    if not filled:
        raise ValueError(f"{path} has column names but no rows.")
    columns = dict(zip(header, zip(*filled, strict=True), strict=True))
    return table_arrays(columns, path, names)


def import_pyarrow(path):
    """Return pyarrow with its module parquet, or say how to get it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            f'{path}: Parquet files need pyarrow. Run pip install "skfedcal[parquet]", '
            "or save the table as CSV."
        ) from error
    return pyarrow


def read_parquet(path, names):
    """Read a Parquet file; needs pyarrow."""
    arrow = import_pyarrow(path)
    try:
        table = arrow.parquet.read_table(path)
        columns = {name: _column(table[name]) for name in table.column_names}
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"{path} is not a Parquet file: {error}") from error
    return table_arrays(columns, path, names)


def _column(column):
    """Numbers as an array, anything else, and columns with gaps, as a list."""
    kind = str(column.type)
    if kind.startswith(("int", "uint", "float", "double")) and not column.null_count:
        return column.to_numpy()
    return column.to_pylist()


def table_arrays(columns, path, names):
    """Turn columns into the arrays of an .npz file; `names` renames them by role."""
    score_names, is_proba, words = _score_columns(columns, path, names)
    key = "proba" if is_proba else "logits"
    scores = np.column_stack([_numbers(columns[n], n, path) for n in score_names])
    arrays = {key: scores if len(score_names) > 1 else scores[:, 0]}
    label_name = _find(columns, names.get("labels"), LABEL_COLUMNS, path)
    if label_name is not None:
        arrays["labels"] = _labels(columns[label_name], label_name, words, path)
    client_name = _find(columns, names.get("client"), CLIENT_COLUMNS, path)
    if client_name is not None:
        arrays["client"] = _clients(columns[client_name], client_name, path)
    if SPLIT_COLUMN in columns:
        arrays = _by_split(arrays, columns[SPLIT_COLUMN], path)
    if words is not None:
        arrays[CLASS_NAMES] = np.array(words)
    return arrays, set(columns)


def _find(columns, given, usual, path):
    """Name of a column, or None."""
    if given is not None:
        if given not in columns:
            raise missing(path, "column", given, columns)
        return given
    return next((name for name in usual if name in columns), None)


def _score_columns(columns, path, names):
    """Names of the score columns in class order, and the names of the classes."""
    # A short beginning, such as "l", must not take in the label.
    taken = {*(names.get(r) for r in ("labels", "client")), SPLIT_COLUMN}
    for role, usual in (("labels", LABEL_COLUMNS), ("client", CLIENT_COLUMNS)):
        if role not in names:
            taken |= {*usual} & {*columns}
    for role in ("logits", "proba"):
        if role in names:
            listed = [name.strip() for name in names[role].split(",")]
            if len(listed) > 1 and names[role] not in columns:
                _check_listed(listed, columns, taken, path)
                return listed, role == "proba", listed
            found = [n for n in columns if n.startswith(names[role]) and n not in taken]
            if not found:
                raise missing(path, "column that begins with", names[role], columns)
            return _in_order(found, names[role], role == "proba", path)
    for start, is_proba in SCORE_STARTS.items():
        found = [n for n in columns if n == start or _numbered(n, start)]
        if found:
            return _in_order(found, start, is_proba, path)
    raise ValueError(
        f"{path} needs columns of scores, such as logit_0, logit_1 or proba_0, "
        f"proba_1; it has {', '.join(list(columns)[:20])}. Rename them, or pass "
        "columns (--columns) with what their names begin with, such as logits=score_, "
        "or with all of them in the order of the classes, such as logits=cat,dog."
    )


def _check_listed(listed, columns, taken, path):
    """Refuse score columns that are absent, given twice, or something else."""
    for name in listed:
        if name not in columns:
            raise missing(path, "column", name, columns)
        if name in taken:
            raise ValueError(
                f"{path}: column {name!r} is given as a score, but it is the label, "
                "the client or the split. Name those columns too, such as labels=y."
            )
    if len(set(listed)) < len(listed):
        raise ValueError(f"{path}: score columns are given twice: {listed}.")


def _numbered(name, start):
    rest = name.removeprefix(start)
    return rest != name and (rest[:1] in "_.- " or rest.isdigit()) and rest != ""


def _in_order(found, start, is_proba, path):
    words = [name.removeprefix(start).strip("_.- ") for name in found]
    # Longer numbers are no classes, and other letters for digits are names.
    digits = (word.isascii() and word.isdigit() and len(word) < 10 for word in words)
    if len(found) > 1 and all(digits):
        numbers = sorted(
            (int(word), name) for word, name in zip(words, found, strict=True)
        )
        if [number for number, _ in numbers] != list(range(len(found))):
            raise ValueError(
                f"{path}: columns {start}* have the numbers "
                f"{[n for n, _ in numbers][:10]}; classes are 0 to {len(found) - 1}."
            )
        return [name for _, name in numbers], is_proba, None
    return found, is_proba, words if len(found) > 1 else None


def _numbers(values, name, path):
    if isinstance(values, np.ndarray):
        found = values.astype(np.float64)
        if not np.isnan(found).any():
            return found
    try:
        found = np.array([_number(value) for value in values], dtype=np.float64)
    except (TypeError, ValueError):
        for line, value in enumerate(values, start=2):
            try:
                _number(value)
            except (TypeError, ValueError):
                comma = " Write decimals with a point." if "," in str(value) else ""
                raise ValueError(
                    f"{path}: row {line - 1} of column {name!r} is {value!r}, not a "
                    f"number.{comma}"
                ) from None
        raise
    return found


def _number(value):
    found = float(value)
    if isnan(found):
        raise ValueError
    return found


def _labels(values, name, words, path):
    """Columns of the true classes: numbers, or names of score columns."""
    if isinstance(values, np.ndarray):
        if values.dtype.kind in "iu" and _below(values, LARGEST_LABEL):
            return values.astype(np.int64)
        values = values.tolist()
    try:
        numbers = [_number(value) for value in values]
        if all(abs(n) < LARGEST_LABEL and n == int(n) for n in numbers):
            return np.array(numbers, dtype=np.int64)
    except (TypeError, ValueError):
        pass
    places = {word: i for i, word in enumerate(words or ())}
    for row, value in enumerate(values, start=1):
        if str(value) not in places:
            known = f" or one of {list(places)[:10]}" if places else ""
            raise ValueError(
                f"{path}: row {row} of column {name!r} is {value!r}; a label is the "
                f"number of a class, from 0{known}."
            )
    return np.array([places[str(value)] for value in values], dtype=np.int64)


def _clients(values, name, path):
    """Whole numbers if all are, else text."""
    if isinstance(values, np.ndarray):
        if values.dtype.kind in "iu" and _below(values, LARGEST_LABEL):
            return values.astype(np.int64)
        values = values.tolist()
    for row, value in enumerate(values, start=1):
        if value is None or str(value).strip() == "":
            raise ValueError(f"{path}: row {row} of column {name!r} is empty.")
    texts = [str(value).strip() for value in values]
    if all(
        t.isascii() and t.removeprefix("-").isdigit() and len(t) < 18 for t in texts
    ):
        return np.array([int(t) for t in texts], dtype=np.int64)
    return np.array(texts)


def _below(values, limit):
    """Whether the size of all whole numbers is below a limit."""
    return not len(values) or -limit < int(values.min()) <= int(values.max()) < limit


def _by_split(arrays, values, path):
    """Give rows of the split ``val`` the names of those to calibrate on."""
    words = np.array([str(value).strip().lower() for value in values])
    unknown = sorted(set(words) - {"val", "test"})
    if unknown:
        raise ValueError(
            f"{path}: column {SPLIT_COLUMN!r} has {unknown[:5]}; a row is 'val' (to "
            "calibrate on) or 'test'."
        )
    val = words == "val"
    if not val.any() or val.all():
        return arrays
    main = {name: array[~val] for name, array in arrays.items()}
    return main | {f"val_{name}": array[val] for name, array in arrays.items()}


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
    return _read_file(path, max_bytes, names)


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
    if ending not in ENDINGS and not is_zipfile(path):
        known = ", ".join(ENDINGS)
        raise ValueError(
            f"{path}: the ending {ending!r} is not known. Expected {known}."
        )
    wanted = {*SCORE_NAMES, "labels", *CLIENT_NAMES, *names.values()}
    wanted |= {f"val_{name}" for name in wanted} | {"client_names", CLASS_NAMES}
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
    classes = _common_classes(parts, owners, path)
    arrays = _stacked(parts, owners, path)
    if classes:
        arrays[CLASS_NAMES] = np.array(classes)
    return arrays, found


def _common_classes(parts, owners, path):
    """Names of the classes; refuses other ones, or another order, of some client."""
    first, *rest = [part.pop(CLASS_NAMES, np.array([])).tolist() for part in parts]
    for owner, classes in zip(owners[1:], rest, strict=True):
        if classes != first:
            raise ValueError(
                f"{path}: the score columns of client {owner!r} are "
                f"{classes[:10] or 'numbered'}, those of {owners[0]!r} are "
                f"{first[:10] or 'numbered'}. All need the same classes in the same "
                "order."
            )
    return first


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
