"""Input larger than memory, and many fits in one process."""

import gc
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import skfedcal
from skfedcal import (
    CentralDP,
    FedBinCalibrator,
    FederatedRunner,
    FedTempCalibrator,
    ScoreHistogram,
    make_federation,
)
from skfedcal.methods.score_curves import rounds
from skfedcal.privacy import PrivacyLedger

# The tree that the child must import, so that both use the same arithmetic.
PACKAGES = Path(skfedcal.__file__).parents[1]
N_CLIENTS, N_ROWS, N_CLASSES = 40_000, 10, 40
on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="limits and /proc are those of Linux"
)


def fits(X, y, ids):
    """One number that depends on all rows, by method."""
    options = {"client_ids": ids}
    temp = FedTempCalibrator(1.0, classes=range(N_CLASSES), random_state=0)
    exact = ScoreHistogram.fit(X, y, kind="top", **options)
    noisy = ScoreHistogram.fit(
        X, y, kind="top", privacy=CentralDP(1.0), random_state=0, **options
    )
    return {
        "temperature": temp.fit(X, y, **options).temperature_,
        "exact": float(exact.accuracy(0.5)),
        "noisy": float(noisy.accuracy(0.5)),
    }


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    """Files of 64 MB of float32 logits, labels and client ids."""
    folder = tmp_path_factory.mktemp("mapped")
    rng = np.random.default_rng(0)
    n = N_CLIENTS * N_ROWS
    logits = rng.standard_normal((n, N_CLASSES), dtype=np.float32)
    np.save(folder / "X.npy", logits)
    np.save(folder / "y.npy", (2 * logits[:, 0] > logits[:, 1]).astype(np.int64))
    np.save(folder / "ids.npy", np.arange(n) // N_ROWS)
    return folder


CHILD = """
import json, resource, sys, warnings
import numpy as np
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[2])
import test_load_at_sites as t
files = (f"{sys.argv[1]}/{name}.npy" for name in ("X", "y", "ids"))
X, y, ids = (np.load(file, mmap_mode="r") for file in files)
few = slice(0, 1000)
t.fits(X[few], y[few], ids[few])  # tables and late imports are no part of a fit
with open("/proc/self/status") as file:
    data = next(int(l.split()[1]) for l in file if l.startswith("VmData")) * 1024
limit = data + int(float(sys.argv[3]) * X.nbytes)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    np.ones_like(X)
    raise AssertionError("the limit does not hold")
except MemoryError:
    pass
try:
    print(json.dumps(t.fits(X, y, ids)))
except MemoryError as error:
    print(json.dumps({"MemoryError": str(error)}))
"""


def in_limited_process(folder, share):
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, folder, Path(__file__).parent, str(share)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PACKAGES), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@on_linux
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
def test_logits_on_disk_that_do_not_fit_into_memory_give_the_same_bits(arrays):
    expected = fits(*(np.load(arrays / f"{name}.npy") for name in ("X", "y", "ids")))
    assert in_limited_process(arrays, 0.6) == expected


@on_linux
@pytest.mark.slow
def test_too_little_memory_is_called_so(arrays):
    found = in_limited_process(arrays, 0.05)
    assert "Unable to allocate" in found["MemoryError"]


@pytest.mark.parametrize("cells", [1, 7, 300])
def test_scores_by_blocks_are_those_of_all_rows_at_once(monkeypatch, cells):
    clients = make_federation(20, 300, n_classes=5, random_state=0).clients
    expected = ScoreHistogram.fit(clients, kind="top").to_json()
    monkeypatch.setattr(rounds, "BLOCK_CELLS", cells)
    assert ScoreHistogram.fit(clients, kind="top").to_json() == expected


# -------------------------------------------------------------------------- many fits


def private_fits(n_fits, clients, folder):
    for i in range(n_fits):
        ledger = PrivacyLedger(folder / f"{i}.jsonl", budget=(1.0, 1e-5))
        if i % 2:
            FedBinCalibrator(1.0, n_bins=3, ledger=ledger).fit(clients)
        else:
            runner = FederatedRunner(n_rounds=2, checkpoint=folder / "run.npz")
            FedTempCalibrator(1.0, runner=runner, ledger=ledger).fit(clients)
            (folder / "run.npz").unlink()
        Path(ledger.path).unlink()


def live_bytes():
    """Size of what skfedcal allocated; numpy keeps freed buffers of its own."""
    gc.collect()
    ours = tracemalloc.Filter(True, str(Path(skfedcal.__file__).parent / "*"))
    snapshot = tracemalloc.take_snapshot().filter_traces([ours])
    return sum(trace.size for trace in snapshot.traces)


@on_linux
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.PrivacyWarning")
def test_many_private_fits_leak_neither_memory_nor_files(tmp_path):
    clients = make_federation(10, 100, n_classes=3, random_state=0).clients
    private_fits(20, clients, tmp_path)  # tables, caches, late imports
    files = sorted(os.listdir("/proc/self/fd"))
    tracemalloc.start()
    try:
        private_fits(10, clients, tmp_path)
        before = live_bytes()
        private_fits(200, clients, tmp_path)
        grown = live_bytes() - before
    finally:
        tracemalloc.stop()
    # One object that stays has 40 bytes or more: 200 of them would be 8,000.
    assert grown < 8_000
    assert sorted(os.listdir("/proc/self/fd")) == files
    assert not any(tmp_path.iterdir())
