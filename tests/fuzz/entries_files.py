"""Entry points that read files: JSON, .npz, data sets, and the command line."""

import contextlib
import functools
import io
import json
import os
import pickle
import struct
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from entries_estimators import CALIBRATORS, check_proba, clean_rows, fitted
from entries_functions import histogram
from fuzz_engine import Broken
from fuzz_values import HARMLESS_ROWS, HOSTILE_LABELS, HOSTILE_ROWS, HOSTILE_SETTINGS

from skfedcal import (
    CalibrationMonitor,
    PrivacyLedger,
    ScoreHistogram,
    load,
    load_federation,
    save_federation,
)
from skfedcal._json import parse
from skfedcal.cli import main
from skfedcal.datasets import load_adult, load_cifar10, load_femnist, load_mnist
from skfedcal.federation import Roster, SiteKey, SiteRows
from skfedcal.federation.checkpoint import fingerprint

# Written as text: json.dumps would refuse some of them.
HOSTILE_JSON = (
    "null", "true", "false", "0", "-1", "1", "1e999", "-1e999", "NaN", "Infinity",
    "1e308", "5e-324", "1" + "0" * 400, "0.5", '"text"', '""', '"\\u0000"',
    '"\\ud800"', "[]", "{}", "[[]]", "[NaN]", "[null]", '["a"]', '{"a": 1}',
    '{"float": "nan"}', '{"float": "x"}',
    '{"array": [1], "dtype": "<f8", "shape": [1]}',
    '{"array": [], "dtype": "object", "shape": [-1]}',
    '{"array": ["x"], "dtype": "<M8[s]", "shape": [1]}',
    '{"array": [1], "dtype": "<f8", "shape": [1000000000000]}',
    '{"object": "CentralDP", "params": {}}', '{"calibrator": {}}',
    "[" * 300 + "]" * 300,
)  # fmt: skip


def places(value, path=()):
    """All places in parsed JSON."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value[:4]):
            yield from places(inner, (*path, i))


def mutated(case, text):
    """Valid JSON with one to three places changed, or bytes flipped."""
    if case.chance(0.15):
        data = bytearray(text.encode())
        for _ in range(int(case.rng.integers(1, 5))):
            data[int(case.rng.integers(len(data)))] = int(case.rng.integers(256))
        cut = int(case.rng.integers(len(data))) if case.chance(0.5) else len(data)
        case.notes.append("bytes")
        return bytes(data[:cut])
    content = json.loads(text)
    if case.chance(0.05) and content:
        key = next(iter(content))
        case.notes.append(f"{key} twice")
        case.twice = True
        return f'{{"{key}": 1, {text.strip()[1:]}'.encode()
    marks = {}
    for i in range(int(case.rng.integers(1, 4))):
        found = list(places(content))
        if len(found) < 2:
            break
        place = found[int(case.rng.integers(1, len(found)))]
        parent = content
        try:
            for step in place[:-1]:
                parent = parent[step]
            change = case.pick("change", ("replace", "drop", "add", "twice"))
            case.notes.append(".".join(map(str, place)))
            if change == "drop":
                del parent[place[-1]]
            elif change == "add" and isinstance(parent, dict):
                parent["unknown"] = 1
            elif change == "twice" and isinstance(parent, list):
                parent.append(parent[place[-1]])
            else:
                mark = f"@{i}@"
                marks[mark] = case.pick("json", HOSTILE_JSON)
                parent[place[-1]] = mark
        except (LookupError, TypeError):
            continue
    text = json.dumps(content)
    for mark, value in marks.items():
        text = text.replace(f'"{mark}"', value)
    return text.encode()


def check_once(case):
    """Raise where a file with a name given twice was read."""
    if case.twice:
        raise Broken("a file that gives a name twice was read")


@functools.cache
def saved(name):
    """Text of a saved calibrator."""
    path = f"/tmp/fuzz-{os.getpid()}-{name}.json"
    try:
        fitted(name).save(path)
        return Path(path).read_text()
    finally:
        Path(path).unlink(missing_ok=True)


def load_calibrator(case):
    """`skfedcal.load`: refuse, or give a calibrator that predicts."""
    path = case.path("cal.json")
    text = saved(case.pick("name", CALIBRATORS))
    Path(path).write_bytes(mutated(case, text))
    estimator = load(path)
    check_once(case)
    repr(estimator), repr(estimator.privacy_)
    rows = np.zeros((3, estimator.n_features_in_))
    check_proba(estimator.predict_proba(rows), len(estimator.classes_), 3)


def load_histogram(case):
    """`ScoreHistogram.from_json`: refuse, or give one that answers."""
    text = mutated(case, histogram(case.chance(0.7)).to_json())
    hist = ScoreHistogram.from_json(text.decode("utf-8", "replace"))
    check_once(case)
    repr(hist)
    hist.to_json()
    for answer in ("roc_auc", "ece", "brier", "accuracy"):
        getattr(hist, answer)()
    hist.merge(hist)


def load_monitor(case):
    """`CalibrationMonitor.load`: refuse, or give one that answers."""
    path = case.path("monitor.json")
    text = mutated(case, _monitor(case.chance(0.5)))
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        content = parse(text, "text")
        # With the right hash what is inside is read.
        body = {k: v for k, v in content.items() if k != "content"}
        content["content"] = fingerprint(content=body)
        text = json.dumps(content).encode()
    Path(path).write_bytes(text)
    monitor = CalibrationMonitor.load(path)
    check_once(case)
    repr(monitor)
    if monitor.n_periods_:
        monitor.summary()


@functools.cache
def _monitor(private):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "monitor.json"
        monitor = CalibrationMonitor(
            1.0 if private else None, periods=3, random_state=0, path=path
        )
        for _ in range(2):
            logits, labels, ids = clean_rows(2)
            monitor.update(logits, labels, client_ids=ids)
        return path.read_text()


def _entry_of_zip(name, array):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(array), allow_pickle=True)
    return f"{name}.npy", stream.getvalue()


def _lying_header(shape, dtype="<f8"):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": dtype, "fortran_order": False, "shape": shape}
    )
    return stream.getvalue() + bytes(64)


ODD_MEMBERS = {
    "bomb": lambda: bytes(30_000_000),
    "huge shape": lambda: _lying_header((2**40, 2**20)),
    "negative shape": lambda: _lying_header((-1, 3)),
    "no header": lambda: b"\x93NUMPY",
    "version 9": lambda: b"\x93NUMPY\x09\x00" + bytes(80),
    "code": lambda: b"\x93NUMPY\x01\x00\x40\x00" + b"__import__('os')" + bytes(48),
    "empty": lambda: b"",
    "text": lambda: b"not an array",
    "pickle": lambda: _entry_of_zip("x", np.array([{}, None], dtype=object))[1],
    "zero size": lambda: _lying_header((0, 2**50)),
}


def write_npz(case, path):
    """Write an .npz file with something wrong."""
    logits, labels, ids = clean_rows()
    arrays = {"logits": logits, "labels": labels, "client": ids}
    members = dict(_entry_of_zip(name, array) for name, array in arrays.items())
    kind = case.pick("kind", ("array", "member", "missing", "extra", "bytes", "plain"))
    if kind == "array":
        name = case.pick("array", [*arrays, "val_logits", "val_labels", "proba"])
        rows = name in ("logits", "val_logits", "proba")
        choices = HOSTILE_ROWS if rows else HOSTILE_LABELS
        with contextlib.suppress(Exception):
            value = case.pick("value", choices)(logits if rows else labels, case.rng)
            members |= dict([_entry_of_zip(name, value)])
    elif kind == "member":
        name = case.pick("array", list(arrays))
        members[f"{name}.npy"] = case.pick("member", ODD_MEMBERS)()
    elif kind == "missing":
        members.pop(f"{case.pick('array', list(arrays))}.npy")
    elif kind == "extra":
        members |= {"unknown.npy": b"x", "../up.npy": b"y", "readme.txt": b"z"}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    if kind == "bytes":
        data = bytearray(Path(path).read_bytes())
        for _ in range(int(case.rng.integers(0, 6))):
            data[int(case.rng.integers(len(data)))] = int(case.rng.integers(256))
        cut = int(case.rng.integers(len(data))) if case.chance(0.4) else len(data)
        Path(path).write_bytes(bytes(data[:cut]))


def read_npz(case):
    """`load_federation` and `SiteRows.load`."""
    path = case.path("data.npz")
    write_npz(case, path)
    if case.chance(0.2):
        SiteRows.load(path)
        return
    given = {}
    if case.chance(0.3):
        given[case.pick("param", ("split", "max_bytes"))] = case.pick(
            "value", HOSTILE_SETTINGS
        )
    found = load_federation(path, **given)
    if len(found.labels) != len(found.logits):
        raise Broken("labels and logits differ in length")


def write_federation(case):
    """`save_federation`: a readable file, or an error and no file."""
    logits, labels, ids = clean_rows()
    given = {"logits": logits, "labels": labels, "client_ids": ids}
    name = case.pick("name", [*given, "client_names", "val_logits", "compress"])
    choices = HOSTILE_ROWS if "logits" in name else HOSTILE_LABELS
    given[name] = case.pick("value", choices)(
        logits if "logits" in name else labels, case.rng
    )
    path = case.path("written.npz")
    Path(path).unlink(missing_ok=True)
    before = sorted(os.listdir(case.folder))
    case.watch(*given.values())
    try:
        save_federation(path, **given)
    except Exception:
        if sorted(os.listdir(case.folder)) != before:
            raise Broken("half-written file after an error") from None
        raise
    load_federation(path)


def read_dataset(case):
    """Readers of data sets, on damaged files."""
    name = case.pick("reader", ("mnist", "cifar", "femnist", "adult"))
    folder = Path(case.path(name))
    folder.mkdir(exist_ok=True)
    if name == "mnist":
        images = struct.pack(">4I", 2051, 2, 28, 28) + bytes(2 * 784)
        labels = struct.pack(">2I", 2049, 2) + bytes([7, 3])
        _damage(case, folder / "train-images-idx3-ubyte", images)
        _damage(case, folder / "train-labels-idx1-ubyte", labels)
        return load_mnist(folder)
    if name == "cifar":
        batch = {"data": np.zeros((2, 3072), dtype=np.uint8), "labels": [3, 1]}
        for i in range(1, 6):
            _damage(case, folder / f"data_batch_{i}", pickle.dumps(batch))
        return load_cifar10(folder)
    if name == "femnist":
        user = {"x": [[0.5] * 784], "y": [3]}
        text = json.dumps(
            {"users": ["u"], "num_samples": [1], "user_data": {"u": user}}
        )
        (folder / "train").mkdir(exist_ok=True)
        (folder / "train" / "a.json").write_bytes(mutated(case, text))
        return load_femnist(folder)
    line = (
        "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, "
        "Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K\n"
    )
    _damage(case, folder / "adult.data", line.encode() * 3)
    return load_adult(folder)


def _damage(case, path, content):
    data = bytearray(content)
    if case.chance(0.6):
        for _ in range(int(case.rng.integers(1, 4))):
            # The head decides how the rest is read.
            end = min(len(data), 64 if case.chance(0.7) else len(data))
            data[int(case.rng.integers(end))] = int(case.rng.integers(256))
    if case.chance(0.2):
        data = data[: int(case.rng.integers(len(data)))]
    path.write_bytes(bytes(data))


def read_identity(case):
    """Rosters and keys of sites."""
    key = SiteKey.generate("a")
    path = case.path("identity.json")
    if case.chance(0.5):
        operator = SiteKey.generate("b").public if case.chance(0.5) else None
        Roster({"a": key.public}, operator).save(path)
        reader = Roster.load
    else:
        Path(path).unlink(missing_ok=True)
        key.save(path)
        reader = SiteKey.load
    text = Path(path).read_text()
    try:
        content = mutated(case, text)
    except json.JSONDecodeError:
        content = text[: int(case.rng.integers(len(text)))].encode()
    Path(path).write_bytes(content)
    reader(path)
    check_once(case)


WORDS = (
    "", "-1", "0", "nan", "inf", "1e999", "1e-400", "x", "1", "0.5", "--eps", "-",
    "9" * 50, "\x00", "é", "none", "auto", "temp", "bbq", "1,2", "1e308", "/", ".",
)  # fmt: skip
OPTIONS = {
    "fit": ("--method", "--eps", "--delta", "--seed", "--n-bins", "--n-levels",
            "--split", "--class-prior", "--solver", "--residual", "--budget",
            "--ledger", "-o", "--nothing"),
    "predict": ("--split", "-o", "--nothing", "--input-type"),
    "demo": ("--eps", "--seed", "--clients", "--alpha", "--nothing"),
}  # fmt: skip


def command(case):
    """The command line: code 0, or 2 with one line and no file."""
    name = case.pick("command", ("fit", "predict", "predict", "fit", "demo", "bad"))
    data, cal, out = (case.path(n) for n in ("in.npz", "in.json", "out.file"))
    Path(out).unlink(missing_ok=True)
    write_npz(case, data)
    argv = ["fit", data, "-o", out]
    if name == "predict":
        text = saved(case.pick("cal", CALIBRATORS))
        spoilt = mutated(case, text) if case.chance(0.6) else text.encode()
        Path(cal).write_bytes(spoilt)
        argv = ["predict", cal, data, "-o", out]
    elif name == "demo":
        # A word that is refused: the demo itself takes seconds.
        argv = ["demo", "--nothing"]
    elif name == "bad":
        argv = [case.pick("word", WORDS)]
    if name in OPTIONS and case.chance(0.7):
        option = case.pick("option", OPTIONS[name])
        argv += [option, *(case.pick("word", WORDS),) * (1 + (option == "--budget"))]
    if name == "fit" and case.chance(0.3):
        argv += ["--eps", "1"]
    if any(word in ("/", ".") for word in argv[-1:]) and "--ledger" in argv:
        argv = argv[:-2]
    check_command(argv, out, case, case.folder)


def check_command(argv, out, case, folder):
    """Run a command in a folder; it succeeds, or fails with one line and no file."""
    stderr, home = io.StringIO(), os.getcwd()
    os.chdir(folder)
    try:
        stdout = contextlib.redirect_stdout(io.StringIO())
        with stdout, contextlib.redirect_stderr(stderr):
            code = main(argv)
    finally:
        os.chdir(home)
    text = stderr.getvalue()
    errors = [line for line in text.splitlines() if "error:" in line]
    if "Traceback" in text:
        raise Broken("a traceback on the command line")
    if code not in (0, 2, 4, 5):
        raise Broken(f"exit code {code}")
    if code and len(errors) != 1 and "usage" not in text:
        raise Broken(f"{len(errors)} lines of error: {text[-200:]!r}")
    if code and os.path.exists(out):
        raise Broken("a file in spite of an error")
    if any(name.endswith(".tmp") for name in os.listdir(case.folder)):
        raise Broken("a draft was left behind")
    if code:
        case.outcome = f"exit code {code}"


READERS = (
    load, load_federation, SiteRows.load, Roster.load, SiteKey.load, PrivacyLedger,
    load_adult, load_cifar10, load_femnist, load_mnist,
)  # fmt: skip


def read_path(case):
    """Readers on arguments that are not file paths."""
    reader = case.pick("reader", {reader.__qualname__: reader for reader in READERS})
    odd = {"folder": case.folder, "absent": case.path("absent"), "root": "/",
           "zero byte": case.path("a\0b"), "too long": case.path("x" * 300),
           "bytes": os.fsencode(case.folder)}  # fmt: skip
    path = case.pick("path", {**HOSTILE_SETTINGS, **odd})
    # A word is a name in the folder where the process runs.
    if not isinstance(path, str) or os.path.isabs(path):
        reader(path)


def harmless_file(case):
    """The same rows in another memory layout give the same file content."""
    logits, labels, ids = clean_rows()
    rows = case.pick("rows", HARMLESS_ROWS)(logits, case.rng)
    path = case.path("harmless.npz")
    save_federation(path, rows, labels, client_ids=ids)
    found = load_federation(path)
    if sorted(found.labels.tolist()) != sorted(labels.tolist()):
        raise Broken("other labels in the file")


ENTRIES = [
    ("load", 15, load_calibrator),
    ("ScoreHistogram.from_json", 10, load_histogram),
    ("CalibrationMonitor.load", 8, load_monitor),
    ("load_federation", 10, read_npz),
    ("save_federation", 3, write_federation),
    ("save_federation harmless", 1, harmless_file),
    ("data sets", 3, read_dataset),
    ("identity files", 2, read_identity),
    ("paths", 2, read_path),
    ("command line", 6, command),
]
