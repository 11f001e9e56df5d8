"""A checkpoint on a full or read-only disk, in two processes, edited, out of time."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from skfedcal import FederatedRunner, FedTempCalibrator, make_federation
from skfedcal.exceptions import CheckpointError
from skfedcal.federation import checkpoint, collecting
from skfedcal.privacy import PrivacyLedger

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CheckpointWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.PrivacyWarning"),
]
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")

ROOT = Path(__file__).parents[2]
N_ROUNDS = 4
CLIENTS = make_federation(15, 150, n_classes=3, random_state=0).clients


def ledger_of(folder):
    return PrivacyLedger(folder / "ledger.jsonl", budget=(1.0, 1e-5))


def fit(folder, **options):
    """Fit, or go on with, a private run whose noise nothing can repeat."""
    options = {"checkpoint": folder / "run.npz", "resume": True, **options}
    runner = FederatedRunner(n_rounds=N_ROUNDS, **options)
    return FedTempCalibrator(1.0, ledger=ledger_of(folder), runner=runner).fit(CLIENTS)


def header_of(path):
    with np.load(path) as file:
        return json.loads(str(file["header"]))


def visible(folder):
    return sorted(p.name for p in folder.iterdir())


def in_child(function, *, nobody=False):
    """Run `function` in a fork; 0 if it returned."""
    pid = os.fork()
    if not pid:
        try:
            if nobody and os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            function()
        except BaseException as error:
            os.write(2, f"child: {error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# ------------------------------------------------------------------------ a full disk


@pytest.mark.parametrize("n_saved", range(N_ROUNDS + 1))
def test_a_disk_that_is_full_at_any_save_leaves_the_last_one(
    tmp_path, monkeypatch, n_saved
):
    really_open, calls = open, []

    class Full:
        """A file on a disk with room for 1000 more bytes."""

        def __init__(self, stream):
            self.stream = stream

        def write(self, data):
            self.stream.write(data[:1000])
            raise OSError(errno.ENOSPC, "No space left on device")

        def __enter__(self):
            return self

        def __exit__(self, *args):
            self.stream.close()

    def open_draft(path, mode):
        stream = really_open(path, mode)
        if mode == "xb":
            calls.append(path)
            if len(calls) == n_saved + 1:
                return Full(stream)
        return stream

    shown = []
    with monkeypatch.context() as patch:
        patch.setattr("skfedcal._files.open", open_draft, raising=False)
        patch.setattr(
            FedTempCalibrator, "_set_state", lambda self, state: shown.append(state)
        )
        with pytest.raises(OSError, match=r"Cannot write the file.*run\.npz") as caught:
            fit(tmp_path)
    assert caught.value.errno == errno.ENOSPC
    # The first save comes before the debit, each other one before a round is shown.
    n_rounds = max(0, n_saved - 1)
    assert len(shown) == n_rounds
    assert len(ledger_of(tmp_path)) == (n_saved > 0)
    if n_saved:
        assert visible(tmp_path) == ["ledger.jsonl", "run.npz"]
        assert header_of(tmp_path / "run.npz")["round_index"] == n_rounds
    else:
        assert visible(tmp_path) == []
    assert fit(tmp_path).n_rounds_ == N_ROUNDS
    assert len(ledger_of(tmp_path)) == 1


@needs_fork
@pytest.mark.parametrize("room", [0, 1, 700, 2000, 4000])
def test_a_real_limit_on_file_size_leaves_a_run_that_goes_on(tmp_path, room):
    resource = pytest.importorskip("resource")

    def work():
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        with pytest.raises(OSError, match="Cannot write") as caught:
            fit(tmp_path)
        assert caught.value.errno == errno.EFBIG

    assert in_child(work) == 0
    assert not any(name.endswith((".tmp", ".lock")) for name in visible(tmp_path))
    if (tmp_path / "run.npz").exists():
        assert header_of(tmp_path / "run.npz")["round_index"] < N_ROUNDS
    fit(tmp_path)
    assert len(ledger_of(tmp_path)) == 1


# ------------------------------------------------------------------- a read-only disk


@pytest.fixture
def open_folder():
    """Return a folder that every user can reach, unlike that of pytest."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@needs_fork
def test_a_folder_that_may_only_be_read_is_noticed_before_the_debit(open_folder):
    open_folder.chmod(0o555)
    ledger = PrivacyLedger()

    def work():
        runner = FederatedRunner(checkpoint=open_folder / "run.npz")
        with pytest.raises(PermissionError, match=r"Cannot write the file.*run\.npz"):
            FedTempCalibrator(1.0, ledger=ledger, runner=runner).fit(CLIENTS)
        assert len(ledger) == 0

    assert in_child(work, nobody=True) == 0
    assert visible(open_folder) == []


@needs_fork
def test_a_finished_run_in_a_folder_that_may_only_be_read_asks_nobody(open_folder):
    fit(open_folder)
    before = (open_folder / "run.npz").read_bytes()
    open_folder.chmod(0o555)

    def work():
        with pytest.raises(PermissionError, match=r"Cannot write the file.*run\.npz"):
            fit(open_folder)

    assert in_child(work, nobody=True) == 0
    assert (open_folder / "run.npz").read_bytes() == before


# ---------------------------------------------------------------------- two processes


CHILD = """
import sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[2])
import test_checkpoint_fire as t
print("ready", flush=True)
sys.stdin.readline()
for i in range(int(sys.argv[3])):
    folder = Path(sys.argv[1]) / str(i)
    try:
        print(repr(float(t.fit(folder).temperature_)))
    except t.CheckpointError as error:
        assert "in use by another process" in str(error), error
        print("in use")
"""


def test_two_processes_with_one_checkpoint_never_run_it_twice(tmp_path):
    n_fits = 12
    for i in range(n_fits):
        (tmp_path / str(i)).mkdir()
    words = [sys.executable, "-c", CHILD, tmp_path, Path(__file__).parent, n_fits]
    children = [
        subprocess.Popen(
            list(map(str, words)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [child.communicate(timeout=60)[0].splitlines() for child in children]
    assert [child.returncode for child in children] == [0, 0]
    for i, pair in enumerate(zip(*answers, strict=True)):
        # One ran; the other was refused, or read the finished run.
        assert len({answer for answer in pair if answer != "in use"}) == 1
        assert len(ledger_of(tmp_path / str(i))) == 1


@needs_fork
def test_drafts_of_a_killed_run_are_removed_and_those_of_others_stay(tmp_path):
    def work():
        os.replace = lambda *args: os.kill(os.getpid(), 9)
        fit(tmp_path)

    assert in_child(work) == -9
    (draft,) = tmp_path.glob(".run.npz.*.tmp")
    others = [
        f".other.npz{draft.name.removeprefix('.run.npz')}",
        ".run.npz.txt.0123456789abcdef.tmp",
        ".run.npz.tmp",
    ]
    for name in others:
        (tmp_path / name).write_bytes(b"")
    fit(tmp_path)
    assert visible(tmp_path) == sorted([*others, "ledger.jsonl", "run.npz"])


# ----------------------------------------------------------------------------- edited


def edit(path, name, change):
    with np.load(path) as file:
        arrays = {key: file[key] for key in file.files}
    arrays[name] = change(arrays.get(name))
    np.savez(path, **arrays)


def in_header(**changes):
    return lambda text: np.asarray(json.dumps(json.loads(str(text)) | changes))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("state.log_beta", lambda a: a + 1e-12),
        ("state.log_beta", lambda a: a.astype(np.float32)),
        ("total.0.slopes", lambda a: -a),
        ("total.0.slopes", lambda a: a[None]),
        ("state.extra", lambda nothing: np.zeros(1)),
        ("header", in_header(finished=False)),
        ("header", in_header(run_id="0" * 32)),
        ("header", in_header(records=[])),
        ("header", in_header(content="0" * 64)),
    ],
)
def test_an_edited_value_is_noticed(tmp_path, name, change):
    fit(tmp_path)
    edit(tmp_path / "run.npz", name, change)
    with pytest.raises(CheckpointError, match="edited or damaged"):
        fit(tmp_path)
    assert len(ledger_of(tmp_path)) == 1


def test_the_same_values_in_another_archive_are_the_same_run(tmp_path):
    fitted = fit(tmp_path)
    edit(tmp_path / "run.npz", "header", lambda same: same)
    assert fit(tmp_path).temperature_ == fitted.temperature_


def test_a_state_of_another_version_is_refused(tmp_path):
    fit(tmp_path)
    path = tmp_path / "run.npz"
    digest = header_of(path)["fingerprint"]
    saved = checkpoint.load(path, digest)
    state = {k: v for k, v in saved.state.items() if k != "log_beta"}
    fields = {k: getattr(saved, k) for k in saved.__slots__}
    checkpoint.save(path, digest, checkpoint.Checkpoint(**{**fields, "state": state}))
    with pytest.raises(CheckpointError, match=r"\['log_beta'\].*another version"):
        fit(tmp_path)


# -------------------------------------------------------------------------- the clock


def test_a_clock_that_goes_back_changes_nothing(tmp_path, monkeypatch):
    now = [1e9]

    def clock():
        now[0] -= 3600
        return now[0]

    monkeypatch.setattr(time, "time", clock)
    monkeypatch.setattr(time, "perf_counter", clock)
    really_keep = collecting.Run.keep

    def stop_after_two(self, state, record, finished):
        really_keep(self, state, record, finished)
        if record.round == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(collecting.Run, "keep", stop_after_two)
        with pytest.raises(KeyboardInterrupt):
            fit(tmp_path)
    first = header_of(tmp_path / "run.npz")
    # The file itself comes from the future.
    os.utime(tmp_path / "run.npz", (4e9, 4e9))
    fitted = fit(tmp_path)
    assert [record.round for record in fitted.history_] == list(range(N_ROUNDS))
    assert header_of(tmp_path / "run.npz")["run_id"] == first["run_id"]
    assert len(ledger_of(tmp_path)) == 1
