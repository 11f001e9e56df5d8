"""Files of every release are read for ever, and are never written anew."""

import json
import re
import shutil
import warnings
from pathlib import Path

import frozen_cases as cases
import frozen_files
import frozen_release
import numpy as np
import pytest

import skfedcal as sf
from skfedcal.cli import main
from skfedcal.federation import Roster, SiteKey

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

FOLDERS = sorted(path for path in frozen_release.RELEASES.iterdir() if path.is_dir())
CASES = [(folder, name) for folder in FOLDERS for name in sorted(
    json.loads((folder / "expected.json").read_text())["sha256"])]  # fmt: skip


def expected(folder):
    return json.loads((folder / "expected.json").read_text(encoding="utf-8"))


def read_calibrator(path, found):
    calibrator = sf.load(path)
    assert type(calibrator).__name__ == found["class"]
    proba = calibrator.predict_proba(frozen_release.rows(found["n_classes"]))
    np.testing.assert_allclose(proba, found["proba"], rtol=1e-12, atol=1e-13)


def read_histogram(path, found):
    hist = sf.ScoreHistogram.from_json(path.read_text(encoding="utf-8"))
    answers = frozen_files.histogram_answers(hist)
    assert answers == pytest.approx(found, rel=1e-12, abs=1e-13)


def read_ledger(path, found):
    assert main(["ledger", str(path), "--summary", "-q"]) == 0
    if found is None:
        assert len(sf.PrivacyLedger(path)) > 0
        return
    ledger = sf.PrivacyLedger(path, head=found["head"], budget=(4.0, 1e-5))
    assert len(ledger) == found["records"]
    assert ledger.spent() == pytest.approx(found["spent"], rel=1e-9)
    modes = {record["mode"] for record in ledger.records()}
    assert modes == {"secure", "simulation", "exact", "raise"}


def read_monitor(path, found):
    monitor = sf.CalibrationMonitor.load(path)
    accuracy = float(monitor.estimate("accuracy"))
    assert accuracy == pytest.approx(found["accuracy"], rel=1e-12)


def read_result(path, found):
    roster = Roster.load(path.with_name("result-roster.json"))
    ledgers = {"berlin": path.with_name("result-ledger.jsonl")}
    result = sf.verify_result(path, roster=roster, ledgers=ledgers)
    assert str(result) == found["text"]
    assert result.calibrator.temperature_ == pytest.approx(found["temperature"])


def read_roster(path, found):
    roster = Roster.load(path)
    if found is not None:
        assert {name: key.hex() for name, key in roster.sites.items()} == found


def read_key(path, found):
    path.chmod(0o600)
    key = SiteKey.load(path)
    roster = Roster.load(path.with_name("roster.json"))
    assert roster.signed(key.name, b"text", key.sign(b"text"))


def read_comparison(path, found):
    comparison = sf.Comparison.from_json(path.read_text(encoding="utf-8"))
    assert comparison.to_csv() == found["csv"]


def read_checkpoint(path, found):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = frozen_files.checkpointed(path, resume=True).fit(cases.make_clients(3))
    assert run.temperature_ == pytest.approx(found["temperature"], rel=1e-12)


def read_federation(path, found):
    fed = sf.load_federation(path)
    assert fed.logits.shape == (30, 3) and len(np.unique(fed.client_ids)) == 4


READERS = {
    "calibrator-": read_calibrator,
    "checkpoint-": read_checkpoint,
    "comparison": read_comparison,
    "federation": read_federation,
    "histogram": read_histogram,
    "ledger": read_ledger,
    "monitor": read_monitor,
    "result-ledger": read_ledger,
    "result-roster": read_roster,
    "result.": read_result,
    "roster": read_roster,
    "site.key": read_key,
}


@pytest.mark.parametrize(
    ("folder", "name"), CASES, ids=[f"{f.name}-{n}" for f, n in CASES]
)
def test_a_file_of_a_release_is_read(folder, name, tmp_path):
    # Copies, which a reader may lock or go on with.
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    (reader,) = (read for start, read in READERS.items() if name.startswith(start))
    reader(copy / name, expected(folder)["read"].get(name))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_no_file_of_a_release_was_changed(folder):
    hashes = expected(folder)["sha256"]
    found = {p.name: frozen_release.digest(p) for p in folder.iterdir()}
    found.pop("expected.json")
    assert found == hashes
    assert sum(path.stat().st_size for path in folder.iterdir()) < 100_000


def test_this_release_has_its_folder():
    version = sf.__version__
    if re.fullmatch(r"[\d.]+", version):
        assert version in {folder.name for folder in FOLDERS}


def test_every_versioned_format_of_the_package_has_a_file():
    root = Path(sf.__file__).parent
    text = "\n".join(p.read_text(encoding="utf-8") for p in root.rglob("*.py"))
    written = set(re.findall(r'^_?FORMAT.*?= "(skfedcal-[a-z-]+)"', text, flags=re.M))
    assert len(written) >= 6
    # Written for readers outside, and never read back.
    written -= {"skfedcal-data-protection-summary", "skfedcal-checkpoint-"}
    found = set()
    for path in FOLDERS[-1].glob("*.json"):
        found.add(json.loads(path.read_text(encoding="utf-8")).get("format"))
    assert written <= found


def test_a_folder_is_written_once():
    with pytest.raises(FileExistsError):
        frozen_release.write_release()
