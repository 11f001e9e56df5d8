"""The engine over files of the guide on scaling."""

import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from joblib import parallel_config

from skfedcal import FedTempCalibrator
from skfedcal.federation import RemoteClients

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "scaling.rst"
SIZES = [3, 4, 2]

pytestmark = pytest.mark.skipif(not GUIDE.exists(), reason="no docs in this copy")


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The module of the guide, as it stands there."""
    text = GUIDE.read_text(encoding="utf-8")
    _, head, rest = text.partition("   # cluster.py")
    (tmp_path / "cluster.py").write_text(dedent(head + rest.partition("\n.. ")[0]))
    monkeypatch.syspath_prepend(tmp_path)
    import cluster

    yield cluster
    del sys.modules["cluster"]


def test_clients_in_files_give_the_bits_of_one_process(cluster, tmp_path):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(90, 3)), rng.integers(0, 3, 90)
    offsets = np.arange(10) * 10
    paths, first = [], 0
    for i, size in enumerate(SIZES):
        part = slice(offsets[first], offsets[first + size])
        ends = offsets[first : first + size + 1] - offsets[first]
        paths.append(str(tmp_path / f"{i}.npz"))
        np.savez(paths[-1], logits=logits[part], labels=labels[part], offsets=ends)
        first += size
    sites = RemoteClients(cluster.Cluster(paths, SIZES))
    with parallel_config(backend="threading", n_jobs=2):
        found = FedTempCalibrator(classes=range(3)).fit(sites)
    clients = [(logits[a : a + 10], labels[a : a + 10]) for a in offsets[:-1]]
    here = FedTempCalibrator(classes=range(3)).fit(clients)
    assert found.n_clients_ == 9
    assert found.temperature_ == here.temperature_
