"""The command as a process, and the frame around all subcommands."""

import os
import re
import signal
import subprocess
import sys
import warnings

import pytest

import skfedcal
from skfedcal.cli import _main
from skfedcal.cli._command import Command
from skfedcal.cli.commands import COMMANDS
from skfedcal.exceptions import (
    BudgetExceededError,
    CheckpointError,
    LedgerCorruptedError,
    NotEnoughClientsError,
    PrivacyWarning,
)

SKFEDCAL = [sys.executable, "-m", "skfedcal"]


# Without a buffer argparse meets a closed pipe by itself, and keeps quiet about it.
BUFFERED = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}


@pytest.fixture
def command(monkeypatch):
    """Make ``skfedcal try`` call a function."""

    def install(function):
        fake = Command("try", "a test", "", "", lambda parser: None, function)
        build = _main.build_parser
        monkeypatch.setattr(_main, "build_parser", lambda: build([fake]))

    return install


def test_version(run):
    assert run("--version") == (0, f"skfedcal {skfedcal.__version__}\n", [])


def test_no_command_shows_the_help_and_fails(run):
    code, out, lines = run()
    assert (code, out) == (2, "")
    assert lines[0].startswith("usage: skfedcal")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_of_each_command_has_an_example(run, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, lines = run(command.name, "--help")
    assert (code, lines) == (0, [])
    assert f"  skfedcal {command.name}" in out.split("examples:")[1]
    assert max(map(len, out.splitlines())) <= 88


def test_the_main_help_lists_every_command(run):
    _, out, _ = run("--help")
    assert all(re.search(rf"^ +{c.name}( |$)", out, re.M) for c in COMMANDS)


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from skfedcal.cli import main; main(['fit', '--help']);"
        "heavy = {'numpy', 'scipy', 'sklearn', 'joblib'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fitt"], "invalid choice: 'fitt'"),
        (["demo", "--sead", "1"], "--sead"),
        (["demo", "-q", "-v"], "not allowed with"),
        (["demo", "--seed", "-1"], "'-1' is not a whole number from 0"),
        (["demo", "--seed", "9" * 5000], "is not a whole number from 0"),
        (["demo", "--see", "1"], "--see"),
        (["fit"], "required: FILE, -o/--output"),
        (["predict", "cal.json"], "required: FILE, -o/--output"),
    ],
)
def test_a_wrong_command_line_is_one_line(fails, words, message):
    error = fails(*words)
    assert message in error
    assert "--help`" in error


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("two\n  lines"), "two lines"),
        (TypeError("type"), "type"),
        (ValueError(), "ValueError"),
        (FileNotFoundError(2, "No such file", "x.npz"), "x.npz: No such file"),
        (OSError(28, "No space left"), "No space left"),
        (ImportError('pip install "skfedcal[plot]"'), 'pip install "skfedcal[plot]"'),
        (MemoryError(), "not enough memory."),
        (OverflowError("too large"), "too large"),
        (BudgetExceededError("spent"), "spent"),
        (LedgerCorruptedError("edited"), "edited"),
        (CheckpointError("other fit"), "other fit"),
        (NotEnoughClientsError("too few"), "too few"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_are_one_line(command, fails, error, line):
    def body(args, console):
        raise error

    command(body)
    assert fails("try") == line


def test_verbose_adds_the_traceback(command, run):
    def body(args, console):
        raise ValueError("bad")

    command(body)
    code, _, lines = run("try", "-v")
    assert code == 4
    assert lines[0].startswith("Traceback")
    assert lines[-1] == "skfedcal: error: bad"


def test_a_defect_keeps_its_traceback(command, run):
    def body(args, console):
        raise KeyError("x")

    command(body)
    with pytest.raises(KeyError):
        run("try")


def test_warnings_are_one_clean_line_and_shown_once(command, run):
    def body(args, console):
        for _ in range(2):
            warnings.warn("two\nlines", PrivacyWarning, stacklevel=1)
            warnings.warn("two\nlines", PrivacyWarning, stacklevel=1)
        console.result("text", {})

    command(body)
    expected = (0, "text\n", ["skfedcal: warning: two lines"])
    assert run("try", "-q") == expected
    # Each run warns anew, and Python's own handler is back afterwards.
    assert run("try", "-q") == expected
    with pytest.warns(PrivacyWarning):
        warnings.warn("again", PrivacyWarning, stacklevel=1)


def test_warnings_turned_into_errors_are_one_line(command, fails):
    def body(args, console):
        warnings.simplefilter("error")
        warnings.warn("careful", PrivacyWarning, stacklevel=1)

    command(body)
    assert fails("try") == "careful"


def test_interrupt(command, run):
    def body(args, console):
        raise KeyboardInterrupt

    command(body)
    assert run("try") == (130, "", ["skfedcal: interrupted"])


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_interrupt_of_a_running_demo():
    demo = subprocess.Popen(
        [*SKFEDCAL, "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that run in the background inherit a shell's deaf ear for interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    first = demo.stderr.readline()
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=60)
    # An interrupt inside exec(), which imports use, makes Python end by the signal
    # itself after main has returned; a shell reports 130 for both.
    assert demo.returncode in (130, -signal.SIGINT)
    assert (first[0], out) == ("[", "")
    assert err.splitlines()[-1] == "skfedcal: interrupted"


@pytest.mark.skipif(os.name != "posix", reason="pipes")
def test_a_closed_pipe_is_quiet():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*SKFEDCAL, "--help"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        env=BUFFERED,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_under_stdout_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*SKFEDCAL, "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=BUFFERED,
        )
    assert done.returncode == 4
    assert done.stderr == "skfedcal: error: No space left on device\n"


@pytest.mark.skipif(os.name != "posix", reason="pipes")
def test_a_closed_stderr_does_not_end_a_fit(federation_file, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    output = tmp_path / "cal.json"
    done = subprocess.run(
        [*SKFEDCAL, "fit", federation_file, "-o", output],
        stdout=subprocess.PIPE,
        stderr=writer,
        env=BUFFERED,
    )
    os.close(writer)
    assert done.returncode == 0
    assert output.exists()


def test_errors_of_a_process_have_no_traceback(tmp_path):
    path = tmp_path / "none.npz"
    done = subprocess.run(
        [*SKFEDCAL, "fit", path, "-o", tmp_path / "cal.json"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == (
        f"skfedcal: error: {path}: no such file. Expected logits and labels: an .npz, "
        ".npy, .csv or .parquet file, or a folder with one file per client.\n"
    )


def test_the_first_progress_line_of_the_demo_precedes_slow_imports():
    without = (
        "import sys; sys.modules.update(sklearn=None, scipy=None)\n"
        "from skfedcal.cli import main; sys.exit(main(['demo']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", without], capture_output=True, text=True
    )
    first, *_, last = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (4, "")
    assert first.endswith("loading scikit-learn and its digits")
    assert last.startswith("skfedcal: error: ")


def test_the_demo_as_a_process_prints_its_table():
    done = subprocess.run([*SKFEDCAL, "demo"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("Calibration by method and privacy\nmethod ")
