"""Tables with one row per row of logits: CSV, and Parquet if pyarrow is there."""

import csv
from math import isnan

import numpy as np

from skfedcal.data.formats._roles import missing

LABEL_NAMES = ("labels", "label")
CLIENT_NAMES = ("client", "client_ids", "client_id")
SPLIT_NAME = "split"

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
        raise ValueError(f"{path} is not a CSV file: {error}") from error
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


def read_parquet(path, names):
    """Read a Parquet file; needs pyarrow."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise ImportError(
            f'{path}: Parquet files need pyarrow. Run pip install "skfedcal[parquet]", '
            "or save the table as CSV."
        ) from error
    try:
        table = parquet.read_table(path)
        columns = {name: table[name].to_pylist() for name in table.column_names}
    except (ArrowException, OSError, ValueError) as error:
        raise ValueError(f"{path} is not a Parquet file: {error}") from error
    return table_arrays(columns, path, names)


def table_arrays(columns, path, names):
    """Turn columns into the arrays of an .npz file; `names` renames them by role."""
    score_names, is_proba, words = _score_columns(columns, path, names)
    key = "proba" if is_proba else "logits"
    scores = np.column_stack([_numbers(columns[n], n, path) for n in score_names])
    arrays = {key: scores if len(score_names) > 1 else scores[:, 0]}
    label_name = _find(columns, names.get("labels"), LABEL_NAMES, path)
    if label_name is not None:
        arrays["labels"] = _labels(columns[label_name], label_name, words, path)
    client_name = _find(columns, names.get("client"), CLIENT_NAMES, path)
    if client_name is not None:
        arrays["client"] = _clients(columns[client_name], client_name, path)
    if SPLIT_NAME in columns:
        arrays = _by_split(arrays, columns[SPLIT_NAME], path)
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
    taken = {*(names.get(r) for r in ("labels", "client")), SPLIT_NAME}
    for role, usual in (("labels", LABEL_NAMES), ("client", CLIENT_NAMES)):
        if role not in names:
            taken |= {*usual} & {*columns}
    for role in ("logits", "proba"):
        if role in names:
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
        f"proba_1; it has {', '.join(list(columns)[:20])}."
    )


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
    try:
        found = np.array([_number(value) for value in values], dtype=np.float64)
    except (TypeError, ValueError):
        for line, value in enumerate(values, start=2):
            try:
                _number(value)
            except (TypeError, ValueError):
                raise ValueError(
                    f"{path}: row {line - 1} of column {name!r} is {value!r}, not a "
                    "number."
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
    for row, value in enumerate(values, start=1):
        if value is None or str(value).strip() == "":
            raise ValueError(f"{path}: row {row} of column {name!r} is empty.")
    texts = [str(value).strip() for value in values]
    if all(
        t.isascii() and t.removeprefix("-").isdigit() and len(t) < 18 for t in texts
    ):
        return np.array([int(t) for t in texts], dtype=np.int64)
    return np.array(texts)


def _by_split(arrays, values, path):
    """Give rows of the split ``val`` the names of those to calibrate on."""
    words = np.array([str(value).strip().lower() for value in values])
    unknown = sorted(set(words) - {"val", "test"})
    if unknown:
        raise ValueError(
            f"{path}: column {SPLIT_NAME!r} has {unknown[:5]}; a row is 'val' (to "
            "calibrate on) or 'test'."
        )
    val = words == "val"
    if not val.any() or val.all():
        return arrays
    main = {name: array[~val] for name, array in arrays.items()}
    return main | {f"val_{name}": array[val] for name, array in arrays.items()}
