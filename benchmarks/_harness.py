"""Helpers of all benchmark scripts: CPU time, the unit U, tables and JSON.

U is one pass of ``scipy.special.log_softmax(Z, axis=1)`` over an array of the same
shape and dtype in the same process, so that numbers travel between machines. Run a
script from the top level: ``python -m benchmarks.bench_metrics``.
"""

import os

# One thread, set before numpy is loaded: process time adds up over threads.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import argparse  # noqa: E402
import json  # noqa: E402
import platform  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Mapping, Sequence  # noqa: E402
from importlib import import_module  # noqa: E402
from importlib.metadata import PackageNotFoundError, version  # noqa: E402
from pathlib import Path  # noqa: E402
from types import ModuleType  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from scipy.special import log_softmax  # noqa: E402

RESULTS = Path(__file__).parent / "results"
BURST = 4
PACKAGES = ("skfedcal", "numpy", "scipy", "scikit-learn", "torch")


def cpu_best(
    calls: Mapping[str, Callable[[], object]], *, seconds: float = 1.0
) -> dict[str, float]:
    """Return the best CPU time of each call, taken in turn for `seconds` each.

    Calls take turns because the state of the memory allocator, which one call
    leaves to the next, changes times by up to a factor of two. A turn is a burst,
    so that the best time is one with the input in cache, as usual in a best-of.
    """
    best = dict.fromkeys(calls, float("inf"))
    end = time.perf_counter() + seconds * len(calls)
    turns = 0
    while turns < 2 or time.perf_counter() < end:
        for name, call in calls.items():
            for _ in range(BURST):
                start = time.process_time_ns()
                call()
                best[name] = min(best[name], (time.process_time_ns() - start) / 1e9)
        turns += 1
    return best


def unit(logits: np.ndarray) -> Callable[[], object]:
    """Return the call whose time is one U."""
    return lambda: log_softmax(logits, axis=1)


def make_logits(
    n_rows: int, n_classes: int, dtype: Any = np.float64, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return overconfident, biased logits and labels of a synthetic model."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(n_rows, n_classes)) + 0.5 * rng.normal(size=n_classes)
    bump = np.maximum(rng.normal(np.log(n_classes) + 2.0, 2.5, size=n_rows), 0)
    true[np.arange(n_rows), rng.integers(n_classes, size=n_rows)] += bump
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    shift = 0.6 * rng.normal(size=n_classes)
    logits = 1.8 * true + shift + 0.3 * rng.normal(size=true.shape)
    return logits.astype(dtype), labels


def optional(name: str) -> ModuleType | None:
    """Return a module, or None with a note when it is not installed."""
    try:
        return import_module(name)
    except ImportError as reason:
        print(f"skipped {name}: {reason}")
        return None


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows of equal keys, numbers with three digits."""
    if not rows:
        return
    text = [[_cell(row[key]) for key in rows[0]] for row in rows]
    table = [list(rows[0]), *text]
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    for line in table:
        print("  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)))


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def write_json(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with the machine and the versions that made them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"machine": machine(), "versions": versions(), "rows": list(rows)}
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"wrote {path}")


def machine() -> dict[str, object]:
    """Describe where the numbers come from."""
    return {
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
    }


def versions(extra: Sequence[str] = ()) -> dict[str, str]:
    """Return the installed versions of the packages that matter."""
    found = {}
    for name in (*PACKAGES, *extra):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def arguments(name: str, text: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every script has."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--out", type=Path, default=RESULTS / f"{name}.json")
    parser.add_argument(
        "--seconds", type=float, default=0.5, help="time per measured call"
    )
    return parser
