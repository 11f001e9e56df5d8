"""What a notebook shows: estimators, settings, rounds, guarantees and progress."""

import copy
import json
import pickle
import re

import numpy as np
import pandas as pd
import pytest

from skfedcal import (
    CentralDP,
    DistributedDP,
    Estimate,
    FedBinCalibrator,
    FederatedRunner,
    FedTempCalibrator,
    LocalDP,
    PrivacyLedger,
    ScoreHistogram,
    SecureAggregation,
    SourceDP,
    load,
)
from skfedcal.federation import RoundHistory

COLUMNS = ["round", "n_clients", "n_cohorts", "bytes_up", "bytes_down", "seconds",
           "client_seconds", "n_faults"]  # fmt: skip


@pytest.fixture(scope="module")
def fitted(federation):
    runner = FederatedRunner(n_rounds=3, cohort="independent", cohort_size=4)
    cal = FedBinCalibrator(runner=runner, random_state=0)
    return cal.fit(federation.clients)


def test_every_estimator_has_an_html_form(public_estimators):
    for cls in public_estimators:
        if cls.__name__ in ("FederatedCalibratedClassifier", "LogitTransformer"):
            continue  # made of estimators that have one
        html = cls()._repr_html_()
        assert cls.__name__ in html and "Not fitted" in html
        # The site of scikit-learn has no page for it.
        assert "https://scikit-learn.org" not in html


def test_the_html_form_shows_settings_and_results(federation):
    cal = FedTempCalibrator(privacy=CentralDP(2.0), runner=FederatedRunner(n_rounds=2))
    html = cal._repr_html_()
    assert "CentralDP(eps=2.0)" in html and "FederatedRunner(n_rounds=2)" in html
    html = FedTempCalibrator().fit(federation.clients)._repr_html_()
    assert "Fitted" in html and "Not fitted" not in html


@pytest.mark.parametrize(
    ("shown", "made"),
    [
        ("CentralDP(eps=1.0)", CentralDP(1.0)),
        ("CentralDP(eps=1, unit='example')", CentralDP(1, unit="example")),
        ("DistributedDP(eps=2.0)", DistributedDP(2.0)),
        ("LocalDP(eps=2.0)", LocalDP(2.0)),
        ("SourceDP(eps=0.2)", SourceDP(0.2)),
        ("SecureAggregation()", SecureAggregation()),
        ("FederatedRunner()", FederatedRunner()),
        ("FederatedRunner(cohort='poisson', cohort_size=5)",
         FederatedRunner(cohort="poisson", cohort_size=5)),
    ],
)  # fmt: skip
def test_settings_show_what_was_set(shown, made):
    assert repr(made) == shown
    names = {cls.__name__: cls for cls in (type(made),)}
    assert eval(shown, names) == made


def test_an_estimator_shows_its_settings_in_a_line():
    cal = FedTempCalibrator(privacy=CentralDP(1.0), runner=FederatedRunner(n_rounds=3))
    text = re.sub(r"\s+", " ", repr(cal))
    assert text == (
        "FedTempCalibrator(privacy=CentralDP(eps=1.0), "
        "runner=FederatedRunner(n_rounds=3))"
    )


def test_rounds_are_a_list_of_records(fitted):
    history = fitted.history_
    assert isinstance(history, list) and len(history) == 3
    assert [record.round for record in history] == [0, 1, 2]
    assert history[0].total["positive"].shape == (3, 15)
    assert isinstance(history[1:], RoundHistory) and len(history[1:]) == 2
    assert history == list(history)


def test_rounds_make_a_data_frame(fitted):
    frame = pd.DataFrame(fitted.history_.to_dict())
    assert list(frame.columns) == COLUMNS and len(frame) == 3
    assert frame["n_clients"].tolist() == [4, 4, 4]
    assert all(kind.kind in "if" for kind in frame.dtypes)
    assert frame["bytes_up"].sum() == sum(r.bytes_up for r in fitted.history_)
    assert RoundHistory().to_dict() == {name: [] for name in COLUMNS}
    # A plain list of records is read as well, with what was released.
    direct = pd.DataFrame(fitted.history_)
    assert direct["n_clients"].tolist() == [4, 4, 4] and "total" in direct
    assert json.loads(json.dumps(fitted.history_.to_dict()))["round"] == [0, 1, 2]


def test_rounds_show_themselves_as_a_table(fitted):
    lines = repr(fitted.history_).splitlines()
    assert lines[0].split() == COLUMNS and len(lines) == 5
    assert lines[2].split()[:3] == ["0", "4", "1"]
    html = fitted.history_._repr_html_()
    assert html.count("<tr>") == 4
    assert re.findall("<th>(.*?)</th>", html) == COLUMNS
    assert re.findall("<td>(.*?)</td>", html)[:3] == ["0", "4", "1"]
    assert repr(RoundHistory()) == "RoundHistory([])"


def test_what_was_not_measured_is_a_dash(fitted):
    from dataclasses import replace

    record = replace(fitted.history_[0], seconds=np.nan, client_seconds=np.nan)
    cells = repr(RoundHistory([record])).splitlines()[-1].split()
    assert cells[5:7] == ["-", "-"]


def test_rounds_survive_copies(fitted):
    for again in (copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):
        assert isinstance(again.history_, RoundHistory)
        a, b = again.history_.to_dict(), fitted.history_.to_dict()
        assert a == b
        assert again.history_ == fitted.history_


def test_rounds_are_equal_if_all_of_them_is(fitted):
    from dataclasses import replace

    first = fitted.history_[0]
    untimed = replace(first, seconds=float("nan"))
    assert untimed == replace(first, seconds=float("nan")) != first
    total = {name: values + 1 for name, values in first.total.items()}
    assert first != replace(first, total=total) and first != replace(first, total={})
    assert first != replace(first, faults={"a": "late"}) and first != "record"


def test_other_rounds_are_tables_too(fitted, tmp_path):
    scores = np.linspace(0.01, 0.99, 40)
    hist = ScoreHistogram.fit(
        scores, np.arange(40) % 2, client_ids=np.arange(40) % 4, input_type="proba"
    )
    assert hist.history_.to_dict()["n_clients"] == [4, 4]
    fitted.save(tmp_path / "cal.json")
    assert load(tmp_path / "cal.json").history_.to_dict()["round"] == []


def test_guarantees_and_estimates_are_told_in_words(federation):
    ledger = PrivacyLedger(budget=(4.0, 1e-5))
    with pytest.warns(UserWarning, match="simulation"):
        cal = FedTempCalibrator(eps=3.0, ledger=ledger, random_state=0).fit(
            federation.clients
        )
    text = repr(cal.privacy_)
    assert "SIMULATED" in text and "eps=3" in text and "protects one client" in text
    assert "of 4 spent at delta=1e-05" in repr(ledger)
    assert repr(Estimate(0.81, 0.79, 0.83)).startswith("Estimate(0.81, low=0.79")
