"""Entry points that read tables, .npy sets and folders of clients."""

import contextlib
import functools
import io
import shutil
from pathlib import Path

import numpy as np
from entries_estimators import clean_rows
from entries_files import ODD_MEMBERS
from fuzz_engine import Broken
from fuzz_values import HOSTILE_LABELS, HOSTILE_ROWS, HOSTILE_SETTINGS

from skfedcal import load_federation
from skfedcal.export import json_schema

CELLS = (
    "", " ", "nan", "inf", "-inf", "1e999", "-1", "0.5", "x", "1_0", "٣", "²", "\x00",
    "1" + "0" * 400, "true", "None", "1,0", '"', '"a\nb"', "é", "9" * 20, "0x1",
    "1e308", "-0", "+1", "1.0", "a" * 200_000,
)  # fmt: skip
HEADS = ("", "logit_0", "logit_9", "logit_x", "logits", "proba_0", "label", "split",
         "client", "logit_²", "logit_٣", "logit_-1", "logit_00", "x", "\x00",
         "logit_" + "9" * 5000)  # fmt: skip
COLUMNS = {
    **HOSTILE_SETTINGS,
    "labels": {"labels": "label"},
    "absent": {"labels": "y"},
    "same": {"labels": "client", "client": "client"},
    "scores as labels": {"labels": "logit_0"},
    "all": {"logits": "l"},
    "proba": {"proba": "logit_"},
    "both": {"logits": "logit_", "proba": "logit_"},
    "number": {"labels": 1},
    "unhashable": {"labels": ["label"]},
    "number role": {1: "label"},
}


@functools.cache
def _lines():
    logits, labels, ids = clean_rows()
    head = ["logit_0", "logit_1", "logit_2", "label", "client", "split"]
    rows = [
        [*map(repr, row.tolist()), str(y), f"c{i}", ("val", "test")[k % 2]]
        for k, (row, y, i) in enumerate(zip(logits, labels, ids, strict=True))
    ]
    return [head, *rows]


def csv_text(case):
    """A table of text with something wrong."""
    lines = [list(line) for line in _lines()]
    mark = case.pick("mark", (",", ";", "\t", "|"))
    if case.chance(0.5):
        cut = case.pick("columns", (slice(3), slice(4), slice(5), slice(1, 6)))
        lines = [line[cut] for line in lines]
    for _ in range(int(case.rng.integers(0, 3))):
        i, j = int(case.rng.integers(len(lines))), int(case.rng.integers(6))
        kind = case.pick(
            "edit", ("cell", "cell", "head", "drop", "row", "empty", "all")
        )
        if kind == "cell" and lines[i]:
            lines[i][j % len(lines[i])] = case.pick("text", CELLS)
        elif kind == "head" and lines[0]:
            lines[0][j % len(lines[0])] = case.pick("head", HEADS)
        elif kind == "drop" and lines[i]:
            lines[i].pop()
        elif kind == "row":
            lines[i] = []
        elif kind == "all":
            cell = case.pick("text", CELLS)
            lines[1:] = [[cell] * len(line) for line in lines[1:]]
        elif kind == "empty":
            lines = lines[:1]
            break
    data = "\n".join(mark.join(line) for line in lines).encode("utf-8", "replace")
    form = case.pick("bytes", ("plain", "plain", "plain", "bom", "utf-16", "cut", "cr"))
    if form == "bom":
        data = b"\xef\xbb\xbf" + data
    elif form == "utf-16":
        data = data.decode().encode("utf-16")
    elif form == "cut":
        data = data[: int(case.rng.integers(len(data) + 1))]
    elif form == "cr":
        data = data.replace(b"\n", b"\r")
    return data


def parquet_bytes(case):
    """A Parquet table with a hostile column, or damaged bytes."""
    import pyarrow as pa
    from pyarrow import parquet

    head, *rows = _lines()
    table = {
        name: [float(v) if name.startswith("logit") else v for v in values]
        for name, values in zip(head, zip(*rows, strict=True), strict=True)
    }
    table["label"] = list(map(int, table["label"]))
    if case.chance(0.7):
        name = case.pick("column", [*table, "logit_3"])
        value = case.pick("value", HOSTILE_LABELS)(clean_rows()[1], case.rng)
        if case.chance(0.3):
            value = [case.pick("entry", HOSTILE_SETTINGS)] * len(rows)
        table[name] = value
    stream = io.BytesIO()
    try:
        parquet.write_table(pa.table(table), stream)
    except Exception:
        stream = io.BytesIO(b"PAR1")
    data = bytearray(stream.getvalue())
    if case.chance(0.3):
        for _ in range(int(case.rng.integers(1, 6))):
            data[int(case.rng.integers(len(data)))] = int(case.rng.integers(256))
        data = data[: int(case.rng.integers(len(data)))] if case.chance(0.3) else data
    return bytes(data)


def npy_bytes(case, value, choices):
    """An .npy file of a hostile array, or something that is none."""
    if case.chance(0.2):
        return case.pick("member", ODD_MEMBERS)()
    stream = io.BytesIO()
    if case.chance(0.5):
        with contextlib.suppress(Exception):
            value = np.asarray(case.pick("array", choices)(value, case.rng))
    try:
        np.save(stream, value, allow_pickle=True)
    except Exception:
        return b"not an array"
    return stream.getvalue()


def _write_npy_set(case, folder):
    folder.mkdir()
    logits, labels, ids = clean_rows()
    start = case.pick("start", ("", "m_", "val_"))
    parts = {"logits": (logits, HOSTILE_ROWS), "labels": (labels, HOSTILE_LABELS),
             "client": (ids, HOSTILE_LABELS), "val_logits": (logits, HOSTILE_ROWS),
             "val_labels": (labels, HOSTILE_LABELS)}  # fmt: skip
    for name, (value, choices) in parts.items():
        if name in ("logits", "labels") or case.chance(0.3):
            path = folder / f"{start}{name}.npy"
            path.write_bytes(npy_bytes(case, value, choices))
    return str(folder / f"{start}logits.npy")


def write_table(case, start):
    """Write one kind of file or a folder, with something wrong; its path."""
    kind = case.pick("file", ("csv", "tsv", "parquet", "npy", "folder"))
    folder = Path(f"{start}-folder")
    shutil.rmtree(folder, ignore_errors=True)
    if kind == "npy":
        return _write_npy_set(case, folder)
    if kind != "folder":
        path = Path(f"{start}.{kind}")
        make = parquet_bytes if kind == "parquet" else csv_text
        path.write_bytes(make(case))
        return str(path)
    folder.mkdir()
    plain = "\n".join(",".join(line[:4]) for line in _lines())
    for i in range(case.pick("files", (0, 1, 2, 3))):
        ending = case.pick("ending", ("csv", "csv", "tsv", "npz", "npy", "txt"))
        spoilt = csv_text(case) if case.chance(0.4) else plain.encode()
        (folder / f"site{i}.{ending}").write_bytes(spoilt)
    return str(folder)


def read_table(case):
    """`load_federation` of tables, .npy sets and folders."""
    path = write_table(case, case.path("table"))
    given = {}
    if case.chance(0.25):
        given["columns"] = case.pick("columns", COLUMNS)
    if case.chance(0.15):
        given["max_bytes"] = case.pick("max_bytes", HOSTILE_SETTINGS)
    if case.chance(0.15):
        given["split"] = case.pick("split", ("auto", "val", "test"))
    found = load_federation(path, **given)
    for part in (found, found.val):
        if part is None:
            continue
        if len(part.labels) != len(part.logits) or not len(part.labels):
            raise Broken("labels and logits differ in length")
        if sum(len(y) for _, y in part.clients) != len(part.labels):
            raise Broken("rows of clients are not all rows")
        if np.isnan(part.logits).any():
            raise Broken("logits that are none")


def schema(case):
    """`json_schema` of a kind that is none; one schema does not change another."""
    json_schema().clear()
    if not json_schema()["$defs"]:
        raise Broken("a schema was changed by its reader")
    json_schema(case.pick("kind", HOSTILE_SETTINGS))


ENTRIES = [("load_federation of tables", 8, read_table), ("json_schema", 0.3, schema)]
