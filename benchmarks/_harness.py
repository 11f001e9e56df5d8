"""Helpers of all benchmark scripts: CPU time, the unit U, tables and JSON.

U is one pass of ``scipy.special.log_softmax(Z, axis=1)`` over an array of the same
shape and dtype in the same process, so that numbers travel between machines. Run a
script from the top level: ``python -m benchmarks.bench_metrics``.
"""

import os

# One thread, whatever the shell says, set before numpy is loaded: process time adds
# up over threads, which not all libraries use alike.
for _name in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
    os.environ[f"{_name}_NUM_THREADS"] = "1"

import argparse  # noqa: E402
import compileall  # noqa: E402
import json  # noqa: E402
import platform  # noqa: E402
import statistics  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
import tracemalloc  # noqa: E402
from collections.abc import Callable, Mapping, Sequence  # noqa: E402
from functools import cache  # noqa: E402
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
# Longer calls are not repeated in a burst.
BURST_SECONDS = 0.05
OURS = "skfedcal"


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


def cpu_spread(
    calls: Mapping[str, Callable[[], object]], *, seconds: float = 0.3
) -> dict[str, tuple[float, float, int]]:
    """Return best and median CPU time of each call, taken in turn, and how many.

    A call that takes longer than `seconds` is measured three times, and once if it
    takes ten times as long.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    open_ = list(calls)
    while open_:
        for name in list(open_):
            short = times[name] and times[name][-1] < BURST_SECONDS
            for _ in range(BURST if short else 1):
                start = time.process_time_ns()
                calls[name]()
                times[name].append((time.process_time_ns() - start) / 1e9)
            spent = sum(times[name])
            if spent >= (seconds if len(times[name]) >= 3 else 10 * seconds):
                open_.remove(name)
    return {name: (min(t), statistics.median(t), len(t)) for name, t in times.items()}


def compare(
    question: str,
    case: str,
    calls: Mapping[str, Callable[[], object]],
    *,
    logits: np.ndarray | None = None,
    seconds: float = 0.3,
    extra: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Time `calls`, ours among them, and return one row for each.

    The unit is U of `logits`, or milliseconds without these. `extra` adds fields to
    the rows of a library. Each call takes turns with U alone: others would leave their
    data, and their code, in the caches. `ns` is nanoseconds per entry of `logits`, and
    `passes` the time over that of `compiled_pass`, which takes turns with U as well.
    """
    times: dict[str, tuple[float, float, int]] = {}
    ones = dict.fromkeys(calls, 1e-3)
    least = _pass_seconds(logits, seconds)
    for name, call in calls.items():
        todo = {} if logits is None else {"U": unit(logits)}
        found = cpu_spread({**todo, name: call}, seconds=seconds)
        times[name] = found[name]
        if logits is not None:
            ones[name] = found["U"][0]
    rows = []
    for name in calls:
        best, median, repeats = times[name]
        rows.append(
            record(
                question,
                case,
                name,
                best / ones[name],
                "ms" if logits is None else "U",
                # One time has no spread, which is not one of zero.
                spread=median / best - 1 if repeats > 1 else None,
                repeats=repeats,
                ratio=best / times[OURS][0] if OURS in times else None,
                ns=None if logits is None else 1e9 * best / logits.size,
                passes=None if least is None else best / least,
                **(extra or {}).get(name, {}),
            )
        )
    return rows


def record(
    question: str, case: str, library: str, value: float, unit: str, **fields: Any
) -> dict[str, Any]:
    """Return one row of the suite: what was measured, for whom, and how much it is."""
    row = {"question": question, "case": case, "library": library}
    # NaN is not JSON.
    number = None if np.isnan(value) else float(value)
    row |= {"value": number, "unit": unit, "repeats": None, "spread": None}
    # Log loss on fresh rows; that on the rows of the fit, above a tight optimum.
    row |= {"ratio": None, "quality": None, "excess": None, "note": ""}
    # Per entry; over a pass of the compiled softmax, or over the inner loop by itself.
    row |= {"ns": None, "passes": None, "limit": None}
    return {key: fields.get(key, old) for key, old in row.items()}


def peak_share(call: Callable[[], object], given: np.ndarray) -> float:
    """Return the peak of what a second call allocates as a share of its input."""
    call()
    return traced_peak(call) / given.nbytes


def traced_peak(call: Callable[[], object]) -> int:
    """Return the peak in bytes of what a call allocates."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def unit(logits: np.ndarray) -> Callable[[], object]:
    """Return the call whose time is one U."""
    return lambda: log_softmax(logits, axis=1)


def compiled_pass(logits: np.ndarray) -> Callable[[], object] | None:
    """Return one pass of the compiled softmax, to memory that is there; or None.

    The least that a compiled loop with an exponential per entry takes, unlike U without
    the memory allocator.
    """
    from skfedcal import _compiled

    out = np.empty_like(logits, order="C")
    if not _compiled.softmax(logits, out):
        return None
    return lambda: _compiled.softmax(logits, out)


def _pass_seconds(logits: np.ndarray | None, seconds: float) -> float | None:
    call = None if logits is None else compiled_pass(logits)
    if call is None or logits is None:
        return None
    return cpu_spread({"U": unit(logits), "pass": call}, seconds=seconds)["pass"][0]


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


def process_seconds(words: Sequence[str], folder: str | None = None) -> float:
    """CPU seconds of Python with these arguments, in a process of its own.

    Modules of ours are found in this checkout, and are compiled to bytecode before, as
    pip does where it installs.
    """
    root = _compiled_root()
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    before = os.times()
    subprocess.run(
        [sys.executable, "-W", "ignore", *words],
        check=True,
        capture_output=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
    )
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


@cache
def _compiled_root() -> str:
    root = Path(__file__).resolve().parent.parent
    compileall.compile_dir(root / "skfedcal", quiet=1)
    return str(root)


@cache
def optional(name: str) -> ModuleType | None:
    """Return a module, or None with a note when it cannot be had."""
    try:
        return import_module(name)
    except Exception as reason:  # a broken library fails in any way it likes
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
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def write_json(
    path: Path, rows: Sequence[Mapping[str, Any]], peers: Sequence[str] = ()
) -> None:
    """Write rows, one per line, with the machine and the versions that made them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"machine": machine(), "versions": versions(peers)}
    lines = ",\n".join(json.dumps(row) for row in rows)
    text = json.dumps(head, indent=1).removesuffix("\n}")
    path.write_text(f'{text},\n "rows": [\n{lines}\n ]\n}}\n')
    print(f"wrote {path}")


def machine() -> dict[str, object]:
    """Describe where the numbers come from."""
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cpus": os.cpu_count(),
        # Others on the machine do not count as processor time, but share the caches.
        "load": round(os.getloadavg()[1], 1) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        **_arithmetic(),
    }


def _arithmetic() -> dict[str, str]:
    """Say whether our loops are compiled, and for which instructions."""
    from skfedcal import _compiled

    return {
        "arithmetic": _compiled.arithmetic(),
        "instructions": next(iter(_compiled.levels()), ""),
    }


def _processor() -> str:
    """Return the model of the processor where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    found = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return found[0] if found else platform.machine()


def versions(extra: Sequence[str] = ()) -> dict[str, str]:
    """Return the installed versions of the packages that matter."""
    found = {}
    for name in (*PACKAGES, *extra):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    if found[OURS] == "absent":  # run from a copy that is not installed
        found[OURS] = import_module(OURS).__version__
    return found


def arguments(name: str, text: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every script has."""
    parser = argparse.ArgumentParser(description=text, formatter_class=_Help)
    parser.add_argument(
        "--out", type=Path, default=RESULTS / f"{name}.json", help="file to write"
    )
    parser.add_argument(
        "--seconds", type=_positive, default=0.5, help="time per measured call"
    )
    return parser


def _positive(text: str) -> float:
    """Return a number above zero; argparse tells what is none."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above zero")
    return number


class _Help(
    argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter
):
    """Lines as they are written, and defaults."""
