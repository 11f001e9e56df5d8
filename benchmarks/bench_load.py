"""Fits of a million clients: processor time, and memory next to the size of the input.

python -m benchmarks.bench_load

Each case runs in a process of its own. `peak` is what the fit needs beyond the arrays
that it is given, as a multiple of their size. The mapped cases read the arrays from
disk under a limit on memory (RLIMIT_DATA) that is smaller than the logits. Linux only.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

from benchmarks._harness import arguments, print_table, write_json
from skfedcal import (
    CentralDP,
    DistributedDP,
    FedBBQCalibrator,
    FedTempCalibrator,
    ScoreHistogram,
)

N_CLASSES = 10
ROWS_PER_BLOCK = 100_000


def histogram(X, y, **options):
    return ScoreHistogram.fit(X, y, kind="top", **options)


def calibrator(cls, *args):
    return lambda X, y, **options: cls(*args, classes=range(N_CLASSES)).fit(
        X, y, **options
    )


def private(model):
    return lambda X, y, **options: histogram(X, y, privacy=model, **options)


FITS = {
    "FedTemp": calibrator(FedTempCalibrator),
    "FedTemp, eps=1": calibrator(FedTempCalibrator, 1.0),
    "FedBBQ": calibrator(FedBBQCalibrator),
    "FedBBQ, eps=1": calibrator(FedBBQCalibrator, 1.0),
    "ScoreHistogram": histogram,
    "ScoreHistogram, eps=1": private(CentralDP(1.0)),
    "ScoreHistogram, shares": private(DistributedDP(1.0)),
}
FORMS = ("arrays", "shuffled", "list", "mapped")


def write_input(folder, n_clients, n_rows):
    """Write logits, labels and client ids as .npy files, a block at a time."""
    rng = np.random.default_rng(0)
    n = n_clients * n_rows
    files = {
        "logits": np.lib.format.open_memmap(
            folder / "logits.npy", "w+", np.float32, (n, N_CLASSES)
        ),
        "labels": np.lib.format.open_memmap(
            folder / "labels.npy", "w+", np.int64, (n,)
        ),
        "ids": np.lib.format.open_memmap(folder / "ids.npy", "w+", np.int64, (n,)),
    }
    for start in range(0, n, ROWS_PER_BLOCK):
        rows = slice(start, min(start + ROWS_PER_BLOCK, n))
        logits = 2 * rng.normal(size=(rows.stop - start, N_CLASSES))
        files["logits"][rows] = 1.5 * logits
        noisy = logits + rng.gumbel(size=logits.shape)
        files["labels"][rows] = noisy.argmax(axis=1)
        files["ids"][rows] = np.arange(start, rows.stop) // n_rows
    for file in files.values():
        file.flush()


def status(key):
    """One line of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return 1024 * int(line.split()[1])
    raise LookupError(f"/proc/self/status has no {key}.")


def read_input(folder, form):
    mode = "r" if form == "mapped" else None
    names = ("logits", "labels", "ids")
    X, y, ids = (np.load(folder / f"{name}.npy", mmap_mode=mode) for name in names)
    if form == "list":
        starts = np.flatnonzero(np.diff(ids)) + 1
        return (np.split(X, starts), np.split(y, starts)), {}, X.nbytes + y.nbytes
    if form == "shuffled":
        ids = np.random.default_rng(1).permutation(ids)
    return (X, y), {"client_ids": ids}, X.nbytes + y.nbytes + ids.nbytes


def run_case(folder, name, form, limit):
    """Fit once and print time and memory as JSON."""
    warnings.simplefilter("ignore")
    args, options, n_bytes = read_input(folder, form)
    small = {"client_ids": np.arange(2000) // 10} if options else {}
    if form != "list":
        # Tables of the noise and modules that are imported late are no part of a fit.
        FITS[name](args[0][:2000], args[1][:2000], **small)
    if limit:
        room = status("VmData") + int(limit)
        resource.setrlimit(resource.RLIMIT_DATA, (room, room))
    Path("/proc/self/clear_refs").write_text("5")  # starts VmHWM anew
    before, started = status("VmRSS"), time.process_time()
    try:
        FITS[name](*args, **options)
        outcome = "fitted"
    except MemoryError as error:
        outcome = f"MemoryError: {error}"
    # Pages of a mapped file are counted as resident and cost nothing: they may go.
    extra = status("VmHWM") - before - (n_bytes if form == "mapped" else 0)
    print(
        json.dumps(
            {
                "case": name,
                "form": form,
                "outcome": outcome,
                "CPU s": round(time.process_time() - started, 1),
                "input MB": round(n_bytes / 1e6),
                "limit MB": round(limit / 1e6) if limit else "-",
                "peak MB": round(max(extra, 0) / 1e6),
                "peak / input": round(max(extra, 0) / n_bytes, 2),
                "process MB": round(status("VmHWM") / 1e6),
            }
        )
    )


def in_child(folder, name, form, limit=0):
    words = [sys.executable, "-m", "benchmarks.bench_load", "--case", name]
    words += ["--form", form, "--folder", str(folder), "--limit", str(limit)]
    ended = subprocess.run(words, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"{name}, {form}: {ended.stderr}")
    return json.loads(ended.stdout)


def main():
    """Print and write the table."""
    parser = arguments("load", __doc__)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=10, help="rows per client")
    parser.add_argument("--folder", type=Path, help="where to keep the input")
    parser.add_argument("--case", choices=FITS)
    parser.add_argument("--form", choices=FORMS, default="arrays")
    parser.add_argument("--limit", type=float, default=0)
    args = parser.parse_args()
    if args.case:
        run_case(args.folder, args.case, args.form, args.limit)
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        write_input(Path(folder), args.clients, args.rows)
        n_bytes = 4 * N_CLASSES * args.clients * args.rows
        todo = [(name, "arrays", 0) for name in FITS]
        todo += [("FedTemp, eps=1", form, 0) for form in ("shuffled", "list")]
        todo += [(name, "mapped", 0.9 * n_bytes) for name in FITS]
        todo += [("FedTemp, eps=1", "mapped", 0.02 * n_bytes)]
        rows = []
        for case in todo:
            rows.append(in_child(folder, *case))
            print(rows[-1], flush=True)
    print_table(rows)
    write_json(args.out, rows)


if __name__ == "__main__":
    main()
