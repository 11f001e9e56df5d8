"""Files that earlier versions wrote are read, and mean the same.

Where a format has a version, a reader may refuse one that is no longer written, by a
message that names it; one that is still written must be read.
"""

import json
import shutil
import warnings
from pathlib import Path

import frozen_adapt as adapt
import frozen_cases as cases
import frozen_files
import numpy as np
import pytest

import skfedcal as sf
from skfedcal.cli import main
from skfedcal.exceptions import CheckpointError
from skfedcal.federation import Roster, SiteKey, SiteRows

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

FILES = Path(__file__).parent / "files"
EXPECTED = json.loads((FILES / "expected.json").read_text(encoding="utf-8"))
CALIBRATORS = sorted(n for n in EXPECTED if n.startswith("calibrator-"))
CHECKPOINTS = sorted(path.name for path in FILES.glob("checkpoint-*.npz"))
HISTOGRAMS = sorted(n for n in EXPECTED if n.startswith("histogram"))


@pytest.fixture
def files(tmp_path):
    """Copies, which a reader may lock or go on with."""
    for path in FILES.iterdir():
        if path.is_file():
            shutil.copyfile(path, tmp_path / path.name)
    (tmp_path / "site.key").chmod(0o600)
    return tmp_path


def version(text):
    content = json.loads(text)
    return content["format"], content["format_version"]


def read_or_refused(read, old, new):
    """What `read` gives; None if an old version is refused by its name."""
    try:
        return read()
    except ValueError as error:
        if version(old) == version(new):
            raise
        refused = str(error)
    assert "version" in refused and str(version(old)[1]) in refused
    return None


def test_every_calibrator_has_a_file():
    found = {EXPECTED[name]["class"] for name in CALIBRATORS}
    names = [n for n in sf.__all__ if n.startswith("Fed") and n.endswith("Calibrator")]
    assert found == set(names)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_a_calibrator_predicts_as_it_did(name, tmp_path):
    expected = EXPECTED[name]
    fresh = tmp_path / "fresh.json"
    sf.FedTempCalibrator().fit(cases.make_clients(3)).save(fresh)
    old, new = (FILES / name).read_text(), fresh.read_text()
    found = read_or_refused(lambda: sf.load(FILES / name), old, new)
    if found is None:
        return
    assert type(found).__name__ == expected["class"]
    assert np.asarray(found.classes_).tolist() == expected["classes"]
    assert str(found.privacy_.eps) == expected["eps"]
    rows = frozen_files.test_rows(expected["n_classes"])
    proba = found.predict_proba(rows)
    np.testing.assert_allclose(proba, expected["proba"], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_a_histogram_answers_as_it_did(name):
    old = (FILES / name).read_text()
    new = dict(frozen_files.histograms())[name].to_json()
    found = read_or_refused(lambda: sf.ScoreHistogram.from_json(old), old, new)
    if found is None:
        return
    answers = frozen_files.histogram_answers(found)
    assert answers == pytest.approx(EXPECTED[name], rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_is_taken_up_or_refused_by_its_version(name, files):
    calibrator = frozen_files.checkpointed(files / name, resume=True)
    try:
        calibrator.fit(cases.make_clients(3))
    except CheckpointError as error:
        assert name in frozen_files.OLD_FILES  # those of the present are taken up
        refused = str(error)
    else:
        expected = EXPECTED["checkpoint"]["temperature"]
        assert calibrator.temperature_ == pytest.approx(expected, rel=1e-12)
        assert len(calibrator.history_) == 3
        return
    # "Belongs to another fit" would be wrong: it is the same fit.
    assert "version" in refused and name in refused


def test_a_checkpoint_of_another_fit_is_refused(files):
    calibrator = frozen_files.checkpointed(files / "checkpoint-finished.npz", True)
    with pytest.raises(CheckpointError):
        calibrator.set_params(random_state=8).fit(cases.make_clients(2))


def test_a_federation_has_the_same_rows():
    found = sf.load_federation(FILES / "federation.npz")
    rows, labels = cases.make_rows(30, 3, 997)
    assert found.logits.tolist() == rows.tolist()
    assert found.labels.tolist() == labels.tolist()
    assert found.client_ids.tolist() == [i % 4 for i in range(30)]
    site = SiteRows.load(FILES / "federation.npz")
    assert len(site) == 30 and site.kind == "logits"


def _fields(event):
    assert event["kind"] == "gaussian"
    return {name: value for name, value in event.items() if name != "kind"}


@pytest.mark.parametrize("name", ["ledger.jsonl", "ledger-mixed.jsonl"])
def test_a_ledger_is_never_lost(name, files):
    head, budget = EXPECTED[name]["head"], (8.0, 1e-5)
    ledger = sf.PrivacyLedger(files / name, budget=budget, head=head)
    assert ledger.verify() == len(ledger) == 2
    written = [json.loads(line) for line in (FILES / name).read_text().splitlines()]
    labels = [entry["label"] for entry in written if "label" in entry]
    assert [record["label"] for record in ledger.records()] == labels
    if name == "ledger.jsonl":
        # The record is the exact composition; filters for adaptive lists charge a bit
        # more for Gaussian events, and lists of pure ones may be charged more.
        from skfedcal.privacy import GaussianEvent, compose_epsilon

        events = [GaussianEvent(**_fields(r["event"])) for r in ledger.records()]
        exact = compose_epsilon(events, budget[1])
        assert exact == pytest.approx(EXPECTED[name]["spent"], rel=1e-9)
        assert exact < ledger.spent() < 1.02 * exact
    assert 0 < ledger.spent() < 8


def test_a_ledger_of_a_site_goes_on(files):
    from skfedcal.privacy import GaussianEvent

    ledger = adapt.site_ledger(files / "site-ledger.jsonl", frozen_files.BUDGET)
    spent = ledger.spent()
    assert spent == pytest.approx(EXPECTED["site-ledger.jsonl"]["spent"], rel=1e-9)
    assert ledger.head == EXPECTED["site-ledger.jsonl"]["head"]
    ledger.debit(GaussianEvent(0.1), label="next", mode="secure")
    assert ledger.spent() > spent and len(ledger) == 2


def test_keys_and_roster_are_the_same(files):
    public = EXPECTED["roster.json"]
    roster = Roster.load(files / "roster.json")
    assert {name: key.hex() for name, key in roster.sites.items()} == public
    key = SiteKey.load(files / "site.key")
    assert key.public.hex() == public[key.name]
    assert roster.signed(key.name, b"message", key.sign(b"message"))


def test_a_site_is_built_from_its_file(files, monkeypatch):
    monkeypatch.chdir(files)
    # Its policy names classes, as policies did until 0.1.
    with pytest.warns(FutureWarning, match="temperature.posterior/2"):
        site = adapt.site_from_toml(files / "site.toml")
    assert site.name == "hospital-a"
    assert site.policy.min_clients == 3 and site.policy.noise == "central"


def test_a_comparison_is_read_and_reported(tmp_path):
    old = (FILES / "comparison.json").read_text(encoding="utf-8")
    new = sf.Comparison([], {}).to_json()
    found = read_or_refused(lambda: sf.Comparison.from_json(old), old, new)
    if found is None:
        return
    assert found.to_csv() == EXPECTED["comparison.json"]["csv"]
    page = tmp_path / "page.html"
    assert main(["report", str(FILES / "comparison.json"), "-o", str(page), "-q"]) == 0
    assert "FedTemp" in page.read_text(encoding="utf-8")


def test_a_store_of_another_version_does_no_harm(tmp_path):
    # Cells are keyed by the version of the code: they are used or computed anew, and
    # tell the same.
    store = tmp_path / "store"
    shutil.copytree(FILES / "comparison-store", store)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = json.loads(frozen_files.compared(store).to_json())
    old = json.loads((FILES / "comparison.json").read_text(encoding="utf-8"))
    assert len(found["runs"]) == len(old["runs"])
    for mine, theirs in zip(found["runs"], old["runs"], strict=True):
        for key, value in theirs.items():
            if isinstance(value, float) and "seconds" not in key:
                assert mine[key] == pytest.approx(value, rel=1e-9, abs=1e-12), key


def test_fixtures_are_small():
    assert sum(p.stat().st_size for p in FILES.rglob("*") if p.is_file()) < 300_000
