"""Files of every kind that the package writes, and what must be read from them."""

import json
import os
import shutil
import warnings
from pathlib import Path
from unittest import mock

import frozen_adapt as adapt
import frozen_cases as cases
import frozen_fitted
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import skfedcal as sf
from skfedcal.federation import InProcess, Roster, SiteKey
from skfedcal.privacy import GaussianEvent, PureEvent

FILES = Path(__file__).parent / "files"
CLASSES = {2: [0, 1], 3: ["cat", "dog", "owl"]}
SITES = ("hospital-a", "hospital-b", "hospital-c")
SITE_TOML = """\
client-id = "hospital-a"
data-path = "federation.npz"
site-key = "site.key"
roster = "roster.json"
ledger = "site-ledger.jsonl"
max-eps = 3.0
max-delta = 1e-5
min-clients = 3
methods = "TemperaturePosterior,ClassScoreCounts"
classes = [0, 1, 2]
noise = "central"
"""
# Of formats that are no longer written; they stay.
OLD_FILES = ("checkpoint-2-finished.npz", "checkpoint-2-interrupted.npz")
BUDGET = (3.0, 1e-5)


def test_rows(n_classes):
    return cases.make_rows(5, n_classes, 999)[0]


def _named(clients, n_classes):
    names = np.array(CLASSES[n_classes])
    return {key: (rows, names[labels]) for key, (rows, labels) in clients.items()}


def calibrators():
    """Fitted calibrators by the name of their file."""
    for short, name in frozen_fitted.CALIBRATORS.items():
        params = {
            "MLP": {"hidden": (4,), "epochs": 1},
            "Histogram": {"height": 5},
            "BBQ": {"n_levels": 5},
        }.get(short, {})
        for eps in (None, 3.0):
            if eps is not None and short not in ("Temp", "Histogram", "TopBin", "BBQ"):
                continue  # what noise adds to a file is the same for all
            n_classes = 2 if short == "Histogram" and eps else 3
            fitted = getattr(sf, name)(
                eps,
                classes=CLASSES[n_classes],
                random_state=7,
                if_improves=eps is None,
                runner=sf.FederatedRunner(n_rounds=2 if short == "MLP" else None),
                **params,
            ).fit(_named(cases.make_clients(n_classes), n_classes))
            yield f"calibrator-{short}{'-eps' if eps else ''}.json", n_classes, fitted


def histograms():
    """Histograms by the name of their file."""
    common = {"random_state": 7, "height": 4}
    two, three = cases.make_clients(2), cases.make_clients(3)
    central = sf.CentralDP(3.0, 1e-5)
    yield "histogram.json", sf.ScoreHistogram.fit(two, classes=[0, 1], **common)
    yield (
        "histogram-eps.json",
        sf.ScoreHistogram.fit(two, classes=[0, 1], privacy=central, **common),
    )
    yield (
        "histogram-top.json",
        sf.ScoreHistogram.fit(three, classes=[0, 1, 2], kind="top", **common),
    )


def histogram_answers(hist):
    names = ["accuracy", "brier", "ece"]
    if hist.kind == "binary":
        names += ["roc_auc", "log_loss", "average_precision"]
    return {name: float(getattr(hist, name)()) for name in names}


def checkpointed(path, resume=False):
    """Calibrator whose run is kept in a file."""
    runner = sf.FederatedRunner(n_rounds=3, checkpoint=path, resume=resume)
    return sf.FedTempCalibrator(
        solver="grid", classes=[0, 1, 2], runner=runner, random_state=7
    )


def compared(store=None):
    rows, labels = cases.make_rows(40, 3, 998)
    return sf.compare(
        cases.make_clients(3),
        (rows, labels),
        methods=["FedTemp", "FedBin"],
        eps=(None, 3.0),
        seeds=1,
        classes=[0, 1, 2],
        store=store,
    )


def _interrupted(path):
    """Write the checkpoint of a run that stopped after its first round."""
    total = InProcess.total

    def once(self, request, cohort):
        if request.round_index:
            raise KeyboardInterrupt
        return total(self, request, cohort)

    with mock.patch.object(InProcess, "total", once):
        try:
            checkpointed(path).fit(cases.make_clients(3))
        except KeyboardInterrupt:
            return
    raise AssertionError("the run was not interrupted")


def write_all():
    """Write all files but those of the wire, and what is to be read from them."""
    for path in FILES.glob("*"):
        if path.is_dir():
            shutil.rmtree(path)
        elif not path.name.startswith("skfedcal-wire") and path.name not in OLD_FILES:
            path.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = _write_results() | _write_accounts()
    text = json.dumps(expected, indent=1, sort_keys=True)
    (FILES / "expected.json").write_text(text + "\n", encoding="utf-8")
    size = sum(p.stat().st_size for p in FILES.rglob("*") if p.is_file())
    print(f"files: {len(list(FILES.rglob('*')))}, {size} bytes")  # noqa: T201


def _write_results():
    expected = {}
    for name, n_classes, fitted in calibrators():
        fitted.save(FILES / name)
        expected[name] = {
            "n_classes": n_classes,
            "class": type(fitted).__name__,
            "classes": np.asarray(fitted.classes_).tolist(),
            "eps": str(fitted.privacy_.eps),
            "proba": fitted.predict_proba(test_rows(n_classes)).tolist(),
        }
    for name, hist in histograms():
        (FILES / name).write_text(hist.to_json(), encoding="utf-8")
        expected[name] = histogram_answers(hist)
    _interrupted(FILES / "checkpoint-interrupted.npz")
    whole = checkpointed(FILES / "checkpoint-finished.npz").fit(cases.make_clients(3))
    expected["checkpoint"] = {"temperature": whole.temperature_}
    comparison = compared(FILES / "comparison-store")
    (FILES / "comparison.json").write_text(comparison.to_json(), encoding="utf-8")
    expected["comparison.json"] = {"csv": comparison.to_csv()}
    return expected


def _write_accounts():
    rows, labels = cases.make_rows(30, 3, 997)
    sf.save_federation(
        FILES / "federation.npz", rows, labels, client_ids=np.arange(30) % 4
    )
    ledger = sf.PrivacyLedger(FILES / "ledger.jsonl", budget=(8.0, 1e-5))
    ledger.debit(GaussianEvent(0.4), label="first", mode="secure")
    ledger.debit(GaussianEvent(0.2), label="second", mode="secure")
    mixed = sf.PrivacyLedger(FILES / "ledger-mixed.jsonl", budget=(8.0, 1e-5))
    mixed.debit(PureEvent(0.5), label="pure", mode="secure")
    mixed.debit(GaussianEvent(0.4), label="gaussian", population="b", mode="secure")
    site = adapt.site_ledger(FILES / "site-ledger.jsonl", BUDGET)
    site.debit(GaussianEvent(0.3), label="answered", mode="secure")
    # Keys that everybody knows, for tests only.
    keys = {
        name: SiteKey(name, Ed25519PrivateKey.from_private_bytes(bytes([i] * 32)))
        for i, name in enumerate(SITES)
    }
    keys[SITES[0]].save(FILES / "site.key")
    os.chmod(FILES / "site.key", 0o644)
    Roster({name: key.public for name, key in keys.items()}).save(FILES / "roster.json")
    (FILES / "site.toml").write_text(SITE_TOML, encoding="utf-8")
    for path in FILES.rglob("*.lock"):
        path.unlink()
    return {
        "ledger.jsonl": {"spent": ledger.spent(), "head": ledger.head},
        "ledger-mixed.jsonl": {"head": mixed.head},
        "site-ledger.jsonl": {"spent": site.spent(), "head": site.head},
        "roster.json": {n: key.public.hex() for n, key in keys.items()},
    }
