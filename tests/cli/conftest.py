import json
import os

import numpy as np
import pytest

from skfedcal.cli import main
from skfedcal.clients import make_federation, save_federation


@pytest.fixture
def federation_file(tmp_path):
    """40 clients to calibrate on and 500 rows to test on."""
    fed = make_federation(
        n_clients=40,
        n_samples=1200,
        n_classes=4,
        n_test=500,
        temperature=2.0,
        random_state=0,
    )
    sizes = [len(labels) for _, labels in fed.clients]
    path = tmp_path / "model.npz"
    save_federation(
        path,
        fed.test_logits,
        fed.test_labels,
        val_logits=np.concatenate([logits for logits, _ in fed.clients]),
        val_labels=np.concatenate([labels for _, labels in fed.clients]),
        val_client_ids=np.repeat(np.arange(40), sizes),
    )
    return path


@pytest.fixture(autouse=True)
def own_folder(tmp_path_factory, monkeypatch):
    """Commands that write without being told where do it in a folder of the test."""
    paths = os.environ.get("PYTHONPATH")
    if paths:  # of processes that tests start
        places = map(os.path.abspath, paths.split(os.pathsep))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def run(capsys):
    """Run a command in this process: exit code, stdout, lines of stderr."""

    def call(*words):
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err.splitlines()

    return call


@pytest.fixture
def run_json(run):
    def call(*words):
        code, out, _ = run(*words, "--json")
        assert code == 0
        return json.loads(out)

    return call


@pytest.fixture
def fails(run):
    """Run a command that must fail; return its one line of error."""

    def call(*words):
        code, out, lines = run(*words)
        errors = [line for line in lines if line.startswith("skfedcal: error: ")]
        assert (out, len(errors)) == ("", 1)
        assert code in (2, 4, 5)  # test_exit_codes.py has which
        # Nothing but progress and warnings beside it: no traceback, no usage.
        rest = [line for line in lines if line not in errors]
        assert all(line.startswith(("[", "skfedcal: warning: ")) for line in rest)
        return errors[0].removeprefix("skfedcal: error: ")

    return call
