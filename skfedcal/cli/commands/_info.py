"""``skfedcal info``."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

from skfedcal._table import text_pairs, text_table
from skfedcal._version import __version__
from skfedcal.cli._command import Command
from skfedcal.cli._input import (
    CALIBRATOR,
    FILE_FORMS,
    add_columns,
    check_file,
    check_input,
    load_calibrator,
    read_federation,
)
from skfedcal.cli._options import METHODS

if TYPE_CHECKING:
    from skfedcal.cli._command import Console

DESCRIPTION = f"""\
Print versions, extras and methods; with FILE, what that file holds.

{FILE_FORMS}  .json     {CALIBRATOR}
"""

EXAMPLES = """\
examples:
  skfedcal info
  skfedcal info model.npz --json
  skfedcal info cal.json
"""

# Packages of the base install, and what each extra adds.
BASE = ("numpy", "scipy", "scikit-learn", "joblib")
EXTRAS = {
    "torch": "torch",
    "flower": "flwr",
    "plot": "matplotlib",
    "onnx": "onnx",
    "accounting": "dp-accounting",
    "progress": "rich",
    "parquet": "pyarrow",
    "dask": "distributed",
    "ray": "ray",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``skfedcal info``."""
    parser.add_argument("file", metavar="FILE", nargs="?", help="a file or a folder")
    add_columns(parser)


def run(args: argparse.Namespace, console: Console) -> None:
    """Print."""
    if args.file is None:
        data = _installed()
        console.result(_installed_text(data), data)
        return
    if args.file.endswith(".json"):
        check_input(args.file, CALIBRATOR)
        data = _calibrator(args.file)
        console.result(text_pairs([(k, str(v)) for k, v in data.items()]), data)
        return
    check_file(args)
    federation = read_federation(args, console)
    data = {"file": args.file, "test": describe(federation), "val": None}
    if federation.val is not None:
        data["val"] = describe(federation.val)
    console.result(_file_text(data), data)


def _calibrator(path: str) -> dict[str, Any]:
    """Return what a saved calibrator says, as JSON values."""
    found = load_calibrator(path)
    return {
        "file": path,
        "calibrator": type(found).__name__,
        "classes": found.classes_.tolist(),
        "clients": found.n_clients_,
        "rounds": found.n_rounds_,
        "input unchanged": not found.improves_,
        "privacy": " ".join(str(found.privacy_).split()),
    }


def _installed() -> dict[str, Any]:
    from skfedcal._compiled import arithmetic
    from skfedcal.experiments.store import project_store

    return {
        "skfedcal": __version__,
        "python": platform.python_version(),
        "platform": sys.platform,
        "cores": os.cpu_count(),
        "arithmetic": arithmetic(),
        "packages": {name: _version(name) for name in BASE},
        "extras": {extra: _version(name) for extra, name in EXTRAS.items()},
        "methods": {name: method.estimator_name for name, method in METHODS.items()},
        "store": str(project_store()),
    }


def _arithmetic_text(name: str) -> str:
    if name != "numpy":
        return f"{name}, the compiled core"
    off = os.environ.get("SKFEDCAL_CORE") == "off"
    return f"numpy: the compiled core is {'switched off' if off else 'not installed'}"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _installed_text(data: dict[str, Any]) -> str:
    pairs = [
        ("skfedcal", data["skfedcal"]),
        ("python", f"{data['python']} on {data['platform']}, {data['cores']} cores"),
        ("arithmetic", _arithmetic_text(data["arithmetic"])),
        *((name, found or "missing") for name, found in data["packages"].items()),
        *(
            (
                f"extra {extra}",
                found or f'not installed: pip install "skfedcal[{extra}]"',
            )
            for extra, found in data["extras"].items()
        ),
        ("cells stored in", data["store"]),
    ]
    methods = text_table(
        ["method", "class"], list(map(list, data["methods"].items())), 2
    )
    return f"{text_pairs(pairs)}\n\n{methods}"


def describe(rows: Any) -> dict[str, Any]:
    """Return sizes of the rows of one split, and how far the clients differ."""
    import numpy as np

    from skfedcal import _numerics

    logits = rows.logits
    if logits.ndim == 1 or logits.shape[1] == 1:
        logits = _numerics.as_two_columns(logits)
    labels, n_classes = rows.labels, logits.shape[1]
    data: dict[str, Any] = {
        "rows": len(labels),
        "classes": n_classes,
        "accuracy": float((logits.argmax(axis=1) == labels).mean()),
        "class counts": np.bincount(labels, minlength=n_classes).tolist(),
        "clients": None,
    }
    if rows.client_ids is not None:
        sizes = [len(y) for _, y in rows.clients]
        kinds = [len(np.unique(y)) for _, y in rows.clients]
        data["clients"] = len(sizes)
        data["rows per client"] = {
            "min": min(sizes),
            "median": float(np.median(sizes)),
            "max": max(sizes),
        }
        data["classes per client"] = float(np.mean(kinds))
    return data


def _file_text(data: dict[str, Any]) -> str:
    parts = []
    for name, title in (("test", "main rows"), ("val", "val rows (to calibrate on)")):
        found = data[name]
        if found is not None:
            parts.append(f"{title}\n{text_pairs(_pairs(found))}")
    return "\n\n".join(parts)


def _pairs(found: dict[str, Any]) -> list[tuple[str, str]]:
    counts = found["class counts"]
    pairs = [
        ("rows", str(found["rows"])),
        ("classes", str(found["classes"])),
        ("rows per class", f"{min(counts)} to {max(counts)}"),
        ("accuracy", f"{100 * found['accuracy']:.2f} %"),
    ]
    if found["clients"] is None:
        return [*pairs, ("clients", "none in the file")]
    sizes = found["rows per client"]
    return [
        *pairs,
        ("clients", str(found["clients"])),
        (
            "rows per client",
            f"{sizes['min']} to {sizes['max']}, median {sizes['median']:g}",
        ),
        ("classes per client", f"{found['classes per client']:.1f} on average"),
    ]


INFO = Command(
    name="info",
    summary="print versions and methods, or what a file holds",
    description=DESCRIPTION,
    examples=EXAMPLES,
    add_options=add_options,
    run=run,
)
