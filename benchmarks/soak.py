"""Private fits one after the other: memory, open files and files on disk must not grow.

python -m benchmarks.soak --fits 10000

Fits take turns: a temperature, bins, a histogram, a temperature with a checkpoint; all
pay from a ledger on disk, and every hundred fits begin a new one. Samples are taken
when a ledger is done, and lines fitted to those of the second half. Linux only.
"""

import ctypes
import gc
import os
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np

from benchmarks._harness import arguments, print_table, write_json
from skfedcal import (
    CentralDP,
    FedBinCalibrator,
    FederatedRunner,
    FedTempCalibrator,
    PrivacyLedger,
    ScoreHistogram,
    make_federation,
)

FITS_PER_LEDGER = 100
# A leak of one small object per fit is one block, or some hundred bytes.
MAX_GROWTH = {"RSS MB": 1e-4, "heap MB": 1e-4, "blocks": 0.5}


def one_fit(i, clients, ledger, folder):
    """Make the fit number `i`."""
    kind = i % 4
    if kind == 0:
        FedTempCalibrator(0.1, ledger=ledger).fit(clients)
    elif kind == 1:
        FedBinCalibrator(0.1, ledger=ledger, n_bins=5).fit(clients)
    elif kind == 2:
        ScoreHistogram.fit(
            clients, kind="top", privacy=CentralDP(0.1), ledger=ledger, height=6
        )
    else:
        runner = FederatedRunner(checkpoint=folder / "run.npz")
        FedTempCalibrator(0.1, ledger=ledger, runner=runner).fit(clients)
        (folder / "run.npz").unlink()


class _MallInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


def heap_bytes():
    """Bytes in use by malloc; RSS does not show a leak into freed memory."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2  # glibc 2.33 or newer
    mallinfo2.restype = _MallInfo
    info = mallinfo2()
    return info.uordblks + info.hblkhd


def sample(n_fits, folder, started):
    """What must not grow."""
    gc.collect()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return {
        "fits": n_fits,
        "RSS MB": round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 2),
        "heap MB": round(heap_bytes() / 1e6, 4),
        "blocks": sys.getallocatedblocks(),
        "open files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "files on disk": len(list(Path(folder).iterdir())),
        "seconds": round(time.perf_counter() - started, 1),
    }


def soak(n_fits, clients):
    """Return the samples of `n_fits` fits."""
    started, rows = time.perf_counter(), []
    for start in range(0, n_fits, FITS_PER_LEDGER):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            ledger = PrivacyLedger(folder / "ledger.jsonl", budget=(100.0, 1e-3))
            for i in range(start, min(start + FITS_PER_LEDGER, n_fits)):
                one_fit(i, clients, ledger, folder)
            ledger.verify()
            del ledger
            rows.append(sample(i + 1, folder, started))
    return rows


def slope(rows, key):
    """Growth per fit over the second half of the samples."""
    late = rows[len(rows) // 2 :]
    return float(np.polyfit([r["fits"] for r in late], [r[key] for r in late], 1)[0])


def main():
    """Print and write the samples; exit 1 if something grows."""
    parser = arguments("soak", __doc__)
    parser.add_argument("--fits", type=int, default=10_000)
    args = parser.parse_args()
    # Seen, not ignored: Python keeps the text of each warning that it has shown.
    warnings.simplefilter("default")
    warnings.showwarning = lambda *args, **kwargs: None
    clients = make_federation(20, 400, n_classes=3, random_state=0).clients
    rows = soak(args.fits, clients)
    print_table(rows[:: max(1, len(rows) // 10)] + rows[-1:])
    growth = {f"{key} per fit": slope(rows, key) for key in MAX_GROWTH}
    for key in ("open files", "threads"):
        growth[key] = rows[-1][key] - rows[0][key]
    print_table([growth])
    write_json(args.out, [*rows, growth])
    leaks = any(growth[f"{key} per fit"] > most for key, most in MAX_GROWTH.items())
    sys.exit(bool(leaks or growth["open files"] or growth["threads"]))


if __name__ == "__main__":
    main()
