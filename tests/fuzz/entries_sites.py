"""Entry points of who runs sites: configurations, engines, data sets, commands."""

import functools
import io
import json
import os
import pickle
import struct
import tempfile
from pathlib import Path

import numpy as np
from entries_estimators import clean_rows
from entries_files import WORDS, _damage, check_command, mutated, write_npz
from entries_privacy import _edited, ledger_text
from fuzz_engine import Broken
from fuzz_values import HOSTILE_SETTINGS

import skfedcal
from skfedcal import FederatedDataset, FederatedRunner, PrivacyLedger, verify_result
from skfedcal._json import parse
from skfedcal.compose import SiteResult, fit_sites
from skfedcal.datasets import (
    load_cifar100,
    load_emnist,
    load_shakespeare,
    load_svhn,
    load_tiny_imagenet,
)
from skfedcal.federation import (
    Aggregators,
    InProcessTransport,
    Joblib,
    MessageBackend,
    Operator,
    RemoteClients,
    Roster,
    Site,
    SiteKey,
    SitePolicy,
    SiteRows,
    TreeBackend,
    collect,
    find_faulty_sites,
)
from skfedcal.federation.site import site_from_config
from skfedcal.methods import client_temperatures
from skfedcal.methods.temperature.posterior import TemperaturePosterior


def config(case):
    """The configuration of a site, as its TOML file has it."""
    data = case.path("site.npz")
    write_npz(case, data)
    entries = {"client-id": '"a"', "data-path": f'"{data}"', "min-clients": "1"}
    name = case.pick(
        "entry",
        ("client-id", "data-path", "min-clients", "allow-plain", "noise", "unit",
         "min-noise", "ledger", "max-eps", "max-delta", "roster", "site-key",
         "partition-id", "max-values", "nothing"),
    )  # fmt: skip
    value = case.pick(
        "toml",
        ("1", "-1", "0", "nan", "inf", "true", '""', '"x"', '"central"', "[]", "{}",
         "1e308", "9" * 30, "2020-01-01", "[1, 'a']", "'''", '"\\u0000"', "", "0.5"),
    )  # fmt: skip
    entries[name] = value
    text = "".join(f"{key} = {entry}\n" for key, entry in entries.items())
    path = case.path("site.toml")
    Path(path).write_bytes(text.encode())
    given = {"site-config": path}
    if case.chance(0.2):
        given[case.pick("key", list(entries))] = case.pick("value", HOSTILE_SETTINGS)
    home = os.getcwd()
    os.chdir(case.folder)
    try:
        site_from_config(given)
    finally:
        os.chdir(home)


def _sites(case):
    logits, labels, _ = clean_rows(2)
    policy = SitePolicy(allow_plain=True, min_clients=1)
    return {n: Site(n, SiteRows(logits[i::3], labels[i::3]), policy=policy)
            for i, n in enumerate("abc")}  # fmt: skip


def engine(case):
    """Engines with a hostile argument, and a fit on them."""
    logits, labels, ids = clean_rows(2)
    order = np.argsort(ids, kind="stable")
    clients = FederatedDataset(
        logits[order], labels[order], np.array([0, 8, 16, 24]), [0, 1, 2], n_classes=2
    )
    odd = case.pick("value", HOSTILE_SETTINGS)
    transport = InProcessTransport(_sites(case))
    made = case.pick(
        "engine",
        {
            "tree": lambda: TreeBackend.over(clients, odd),
            "children": lambda: TreeBackend(odd),
            "groups": lambda: Aggregators(transport, odd),
            "transport": lambda: Aggregators(odd, [["a", "b", "c"]]),
            "message": lambda: MessageBackend(odd),
            "secure": lambda: MessageBackend(transport, secure=odd),
            "sites": lambda: InProcessTransport(odd),
            "reply": lambda: InProcessTransport(
                _sites(case), on_reply=lambda kind, name, reply: odd
            ),
            "jobs": lambda: Joblib(clients, n_jobs=odd),
            "faulty": lambda: find_faulty_sites(odd),
            "few": lambda: find_faulty_sites(transport, min_clients=odd),
        },
    )
    if case.notes[-1] == "engine=jobs" and isinstance(odd, int) and odd > 4:
        odd = 2
    backend = made()
    if isinstance(backend, dict):  # faults by name of the site
        return
    if isinstance(backend, TreeBackend | Joblib):
        runner = FederatedRunner(backend=backend)
        estimator = skfedcal.FedTempCalibrator(runner=runner)
        estimator.fit(logits, labels, client_ids=ids)
        return
    clients = skfedcal.federation.RemoteClients(backend)
    skfedcal.FedTempCalibrator(classes=[0, 1]).fit(clients)


def collecting(case):
    """`collect` with a hostile argument."""
    logits, labels, ids = clean_rows(2)
    order = np.argsort(ids, kind="stable")
    clients = FederatedDataset(
        logits[order], labels[order], np.array([0, 8, 16, 24]), [0, 1, 2], n_classes=2
    )
    given = {"algorithm": TemperaturePosterior(), "clients": clients}
    name = case.pick(
        "argument",
        ("algorithm", "clients", "privacy", "runner", "ledger", "entropy", "label",
         "split"),
    )  # fmt: skip
    given[name] = case.pick("value", HOSTILE_SETTINGS)
    found = collect(**{"privacy": skfedcal.CentralDP(1.0), **given})
    # The report of exact sums has no releases.
    released = np.isfinite(found.report.eps)
    if released and len(found.history) != found.report.n_rounds:
        raise Broken(f"{len(found.history)} rounds of {found.report.n_rounds}")


def temperatures(case):
    """`client_temperatures`."""
    from entries_estimators import call_form

    args, kwargs, _ = call_form(case, *clean_rows())
    if case.chance(0.3):
        name = case.pick("param", ("classes", "input_type"))
        kwargs[name] = case.pick("value", HOSTILE_SETTINGS)
    found = client_temperatures(*args, **kwargs)
    values = np.array(list(found.values()) if isinstance(found, dict) else found)
    if not (values > 0).all():
        raise Broken(f"temperatures {values}")


def more_datasets(case):
    """Readers of further data sets, on damaged files."""
    name = case.pick("reader", ("cifar100", "emnist", "svhn", "shakespeare", "tiny"))
    folder = Path(case.path(name))
    folder.mkdir(exist_ok=True)
    if name == "cifar100":
        rows = {b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [4, 99],
                b"coarse_labels": [0, 13]}  # fmt: skip
        _damage(case, folder / "train", pickle.dumps(rows))
        return load_cifar100(folder)
    if name == "emnist":
        images = struct.pack(">4I", 2051, 2, 28, 28) + bytes(2 * 784)
        labels = struct.pack(">2I", 2049, 2) + bytes([7, 3])
        start = "emnist-balanced-train"
        _damage(case, folder / f"{start}-images-idx3-ubyte", images)
        _damage(case, folder / f"{start}-labels-idx1-ubyte", labels)
        return load_emnist(folder)
    if name == "svhn":
        from scipy.io import savemat

        content = io.BytesIO()
        images = np.zeros((32, 32, 3, 2), np.uint8)
        savemat(content, {"X": images, "y": np.array([[1], [10]], np.uint8)})
        _damage(case, folder / "train_32x32.mat", content.getvalue())
        return load_svhn(folder)
    if name == "shakespeare":
        text = (
            '{"users": ["u"], "num_samples": [1], "user_data": {"u": {"x": ["'
            + "a" * 80 + '"], "y": ["b"]}}}'
        )  # fmt: skip
        (folder / "train").mkdir(exist_ok=True)
        (folder / "train" / "a.json").write_bytes(mutated(case, text))
        return load_shakespeare(folder)
    return _tiny(case, folder)


def _tiny(case, folder):
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(stream, "JPEG")
    images = folder / "train" / "n01443537" / "images"
    images.mkdir(parents=True, exist_ok=True)
    _damage(case, folder / "wnids.txt", b"n01443537\n")
    _damage(case, folder / "words.txt", b"n01443537\tgoldfish\n")
    _damage(case, images / "n01443537_0.JPEG", stream.getvalue())
    return load_tiny_imagenet(folder)


def office(case):
    """The commands `ledger`, `audit` and `flower`."""
    name = case.pick("command", ("ledger", "ledger", "audit", "flower"))
    out = case.path("out.file")
    Path(out).unlink(missing_ok=True)
    if name == "ledger":
        path = case.path("command.jsonl")
        Path(path).write_bytes(_edited(case, ledger_text(PrivacyLedger)))
        argv = ["ledger", path]
        options = ("--head", "--delta", "--nothing")
    elif name == "audit":
        # Few runs are refused at once; those that are enough take a second.
        argv = ["audit", "--method", case.pick("method", ("temp", "x", "bin"))]
        argv += ["--runs", case.pick("runs", ("0", "1", "19", "-1", "x", "20"))]
        options = ("--eps", "--delta", "--alpha", "--unit", "--seed")
    else:
        argv = ["flower", case.pick("verb", ("keys", "init", "x", ""))]
        argv += [case.pick("site", ("a", "", "a/b", "..", "é", "a b", "\x00"))]
        options = ("--dir", "--join", "--nothing")
    if case.chance(0.6):
        argv += [case.pick("option", options), case.pick("word", WORDS)]
    work = Path(case.path("office"))
    work.mkdir(exist_ok=True)
    check_command(argv, out, case, work)


def _signed(content):
    """Text of a result with this content, signed."""
    key, roster = _operator()
    path = Path(tempfile.mkdtemp()) / "result.json"
    SiteResult(content, None, Operator(key, roster)).save(path)
    return path.read_text()


@functools.cache
def _operator():
    key = SiteKey.generate("operator")
    return key, Roster({}, key.public)


@functools.cache
def _content():
    logits, labels, _ = clean_rows(2)
    policy = SitePolicy(allow_plain=True, min_clients=1)
    sites = {n: Site(n, SiteRows(logits[i::3], labels[i::3]), policy=policy)
             for i, n in enumerate("abc")}  # fmt: skip
    remote = RemoteClients(InProcessTransport(sites))
    found = fit_sites(skfedcal.FedTempCalibrator(classes=[0, 1]), remote)
    return json.dumps(found.content)


def results(case):
    """`fit_sites` and `verify_result`, of files that others or the operator changed."""
    odd = case.pick("value", HOSTILE_SETTINGS)
    remote = RemoteClients(InProcessTransport(_sites(case)))
    calibrator = skfedcal.FedTempCalibrator(classes=[0, 1])
    path = Path(case.path("result.json"))

    def written(text):
        path.write_bytes(text)
        return verify_result(path)

    def by_operator():
        try:
            content = parse(mutated(case, _content()), "content")
        except ValueError:
            content = {}
        return written(_signed(content).encode())

    case.pick(
        "what",
        {
            "sites": lambda: fit_sites(calibrator, odd),
            "calibrator": lambda: fit_sites(odd, remote),
            "share": lambda: fit_sites(calibrator, remote, share=odd),
            "metric": lambda: fit_sites(calibrator, remote, metric=odd),
            "part": lambda: remote.part(odd),
            "stranger": lambda: written(mutated(case, _signed(json.loads(_content())))),
            "operator": by_operator,
        },
    )()


ENTRIES = [
    ("results of sites", 3, results),
    ("site configuration", 2, config),
    ("engines", 2, engine),
    ("collect", 2, collecting),
    ("client_temperatures", 2, temperatures),
    ("more data sets", 2, more_datasets),
    ("commands of an office", 2, office),
]
