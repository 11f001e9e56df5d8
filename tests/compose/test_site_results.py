"""Fits over sites with evidence: held-back rows, gain, signed result, attacks on it."""

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from skfedcal import (
    CentralDP,
    DistributedDP,
    FedAutoCalibrator,
    FederatedRunner,
    FedHistogramCalibrator,
    FedTempCalibrator,
    LocalDP,
    fit_sites,
    make_federation,
    verify_result,
)
from skfedcal.cli import main
from skfedcal.compose import site_results
from skfedcal.exceptions import NotEnoughClientsError, ResultError
from skfedcal.federation import (
    InProcessTransport,
    Operator,
    Reading,
    RemoteClients,
    Roster,
    Site,
    SiteKey,
    SitePolicy,
    SiteRows,
)
from skfedcal.methods.own_rows import held_back_mark
from skfedcal.privacy import compose_epsilon
from skfedcal.privacy.events import event_from_dict
from skfedcal.privacy.site_ledger import SiteLedger

NAMES = ("berlin", "lyon", "oslo", "turin")
MASKED = FederatedRunner(secure=True)
BY_ROW = CentralDP(1.0, unit="example")

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.FaultyClientWarning"),
]


@pytest.fixture(scope="module")
def clients():
    fed = make_federation(
        4, 4000, 3, alpha=None, temperature=3.0, dtype=np.float64, random_state=0
    )
    return dict(zip(NAMES, fed.clients, strict=True))


class Consortium:
    """Four sites with ledgers, and an operator who signs."""

    def __init__(self, folder, clients, **options):
        self.folder = folder
        self.key = SiteKey.generate("operator")
        keys = {name: SiteKey.generate(name) for name in clients}
        publics = {name: key.public for name, key in keys.items()}
        self.roster = Roster(publics, self.key.public)
        self.roster.save(folder / "roster.json")
        for name in clients:
            (folder / f"{name}.jsonl").touch()
        policy = SitePolicy(**{"classes": ("0", "1", "2"), **options})
        self.sites = {
            name: Site(
                name,
                SiteRows(*rows),
                policy=policy,
                site_key=keys[name],
                roster=self.roster,
                ledger=SiteLedger(
                    folder / f"{name}.jsonl", budget=(9.0, 1e-4), require_secure=False
                ),
            )
            for name, rows in clients.items()
        }
        self.transport = InProcessTransport(self.sites)
        self.transport.preflight = True

    def remote(self, **options):
        operator = Operator(self.key, self.roster)
        return RemoteClients(
            self.transport, **{"n_rows": 4000, "operator": operator, **options}
        )

    def fit(self, privacy=BY_ROW, make=FedTempCalibrator, **options):
        calibrator = make(
            privacy=privacy, classes=[0, 1, 2], runner=MASKED, random_state=0
        )
        return fit_sites(calibrator, self.remote(), **options)

    def saved(self, **options):
        path = self.folder / "result.json"
        result = self.fit(**options)
        result.save(path)
        return result, path

    def ledgers(self, *names):
        return {name: self.folder / f"{name}.jsonl" for name in names or self.sites}


@pytest.fixture
def consortium(tmp_path, clients):
    return Consortium(tmp_path, clients)


def listed(section):
    """Fields of one table of the reference."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "published.rst"
    part = page.read_text(encoding="utf-8").split(f"**{section}**", 1)[1]
    cells = re.findall(r"^   \* - (.+)$", part.split("\n**", 1)[0], flags=re.M)
    return {name for cell in cells for name in re.findall(r"``([^`]+)``", cell)}


@pytest.mark.parametrize("privacy", [None, BY_ROW])
def test_a_fit_leaves_out_the_rows_by_which_it_is_judged(consortium, clients, privacy):
    result = consortium.fit(privacy)
    fit_model = None if privacy is None else replace(privacy, eps=0.8)
    kept = {
        name: (z[~held_back_mark(len(z), name)], y[~held_back_mark(len(z), name)])
        for name, (z, y) in clients.items()
    }
    n_kept = sum(len(y) for _, y in kept.values())
    assert 0.15 < 1 - n_kept / 4000 < 0.25
    alone = FedTempCalibrator(privacy=fit_model, classes=[0, 1, 2], random_state=0)
    # The number of rows is public, and is not that of the rows kept by chance.
    if privacy is None:
        assert result.calibrator.temperature_ == alone.fit(kept).temperature_
    loss = []
    for name, (z, y) in clients.items():
        held = held_back_mark(len(z), name)
        for scores in (z[held], result.calibrator.predict_log_proba(z[held])):
            p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
            loss.append(-p[np.arange(held.sum()), y[held]])
    before, after = (np.concatenate(loss[i::2]) for i in (0, 1))
    gain = result.gain
    if privacy is None:
        assert gain["before"] == pytest.approx(before.mean(), rel=1e-9)
        assert gain["after"] == pytest.approx(after.mean(), rel=1e-9)
    else:
        most = gain["cut"]
        assert most == 4.0
        cut = np.minimum(after, most).mean() - np.minimum(before, most).mean()
        error = gain["difference"]["value"] - cut
        assert 0 < gain["difference"]["se_privacy"] < 0.05
        assert abs(error) < 6 * gain["difference"]["se_privacy"]
    assert gain["difference"]["high"] < 0
    assert "log loss" in str(result)


def test_one_changed_value_of_a_row_changes_no_choice_of_rows(clients):
    z, y = clients["oslo"]
    reading = Reading((0, 1, 2), part="held")
    own = reading.read(SiteRows(z, y), "oslo")
    spoilt = z.copy()
    spoilt[np.flatnonzero(held_back_mark(len(z), "oslo"))[3]] = np.nan
    spoilt[np.flatnonzero(~held_back_mark(len(z), "oslo"))[3]] = np.nan
    found = reading.read(SiteRows(spoilt, y), "oslo")
    assert found.n_rows == own.n_rows
    assert found.clients.n_rows == own.clients.n_rows - 1
    kept = np.delete(own.clients.rows, 3, axis=0)
    assert np.array_equal(found.clients.rows, kept)


def test_the_result_is_signed_chained_and_in_the_ledgers(consortium, capsys):
    result, path = consortium.saved()
    found = verify_result(path, roster=consortium.roster, ledgers=consortium.ledgers())
    assert found.gain == result.gain
    assert found.calibrator.temperature_ == result.calibrator.temperature_
    arguments = [
        "verify",
        str(path),
        "--roster",
        str(consortium.folder / "roster.json"),
    ]
    for name, ledger in consortium.ledgers("berlin", "oslo").items():
        arguments += ["--ledger", f"{name}={ledger}"]
    arguments += ["--ledger", str(consortium.ledgers()["lyon"])]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "log loss" in printed and "95 % interval" in printed
    assert "valid: signature, chain, statements, ledger berlin.jsonl" in printed
    assert "one example among 3200 at 4 sites, eps=0.98" in printed
    for ledger in consortium.ledgers().values():
        debits = [json.loads(line) for line in ledger.read_text().splitlines()]
        assert [d["details"]["rows"] for d in debits] == ["fit", "held"]


def test_exact_answers_are_in_the_ledgers_too(consortium):
    result, path = consortium.saved(privacy=None)
    assert result.content["privacy"]["eps"] is None
    verify_result(path, roster=consortium.roster, ledgers=consortium.ledgers())
    for name, site in consortium.sites.items():
        records = site.ledger.records()
        assert [r["mode"] for r in records] == ["exact", "exact"]
        assert [r["details"]["noise"] for r in records] == ["none", "none"]
        assert site.ledger.spent() == 0.0
        assert main(["ledger", str(consortium.ledgers(name)[name])]) == 0
    # Without its record, a ledger is one of another run.
    assert listed("result file") == set(result.content)
    (consortium.folder / "oslo.jsonl").write_text("")
    with pytest.raises(ResultError, match="has no record of the run 'fit'"):
        verify_result(path, ledgers=consortium.ledgers("oslo"))


def without_turin(kind, name, reply):
    return None if name == "turin" and kind != "check" else reply


def test_a_site_that_was_left_out_is_not_counted(consortium):
    consortium.transport._on_reply = without_turin
    result, path = consortium.saved()
    assert list(result.left_out) == ["turin"]
    assert "one example among 2400 at 3 sites" in str(result)
    assert result.calibrator.privacy_.n_clients == 2400
    for run in result.content["runs"]:
        for record in run["rounds"]:
            assert record["answered"] == ["berlin", "lyon", "oslo"]
            assert "did not answer" in record["left_out"]["turin"]
    rest = consortium.ledgers("berlin", "turin")
    verify_result(path, roster=consortium.roster, ledgers=rest)


def test_a_site_that_was_left_out_is_not_one_of_those_protected(tmp_path, clients):
    consortium = Consortium(tmp_path, clients)
    consortium.transport._on_reply = without_turin
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = consortium.fit(CentralDP(4.0), share=0)
    assert "protects one site among 3, eps=4" in str(result)
    assert "protects one client of 3" in repr(result.calibrator.privacy_)


def changed(path, change):
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def other_temperature(found):
    fitted = found["content"]["calibrator"]["fitted"]
    fitted["temperature_"] = fitted["temperature_"] * 1.5


def smaller_loss(found):
    found["content"]["gain"]["after"] -= 0.1


def no_fault(found):
    found["content"]["left_out"] = {}


def fault_of_a_round(found):
    found["content"]["runs"][0]["rounds"][1]["left_out"] = {"oslo": "was asleep"}


def less_eps(found):
    found["content"]["privacy"]["eps"] = 0.1


def no_signature(found):
    found["signature"] = None


def bad_signature(found):
    last = f"{int(found['signature'][-2:], 16) ^ 1:02x}"
    found["signature"] = found["signature"][:-2] + last


@pytest.mark.parametrize(
    "change",
    [other_temperature, smaller_loss, no_fault, fault_of_a_round, less_eps,
     no_signature, bad_signature],
)  # fmt: skip
def test_a_changed_file_is_found(consortium, change, capsys):
    consortium.transport._on_reply = without_turin
    _, path = consortium.saved()
    verify_result(path)
    changed(path, change)
    assert main(["verify", str(path)]) == 6
    error = capsys.readouterr().err.strip()
    assert error.startswith("skfedcal: error:") and "\n" not in error


def signed_again(consortium, path, change, key=None):
    """A forger who changes the content, and signs it."""
    found = verify_result(path)
    change({"content": found.content})
    operator = Operator(consortium.key, consortium.roster)
    if key is not None:
        operator = Operator(key, Roster(consortium.roster.sites, key.public))
    replace(found, operator=operator).save(path)


def test_the_key_of_another_operator_is_found(consortium):
    _, path = consortium.saved()
    signed_again(consortium, path, smaller_loss, SiteKey.generate("operator"))
    verify_result(path)  # without a roster any key will do
    arguments = ["verify", str(path), "--roster"]
    assert main([*arguments, str(consortium.folder / "roster.json")]) == 6
    with pytest.raises(ResultError, match="not the operator of the roster"):
        verify_result(path, roster=consortium.roster)
    stranger = replace(consortium.roster, sites={"graz": b"x" * 32})
    consortium.fit().save(path)
    with pytest.raises(ResultError, match="not in the roster"):
        verify_result(path, roster=stranger)


def test_the_operator_cannot_change_rounds_or_costs_unnoticed(consortium, capsys):
    _, path = consortium.saved()
    signed_again(consortium, path, fault_of_a_round)
    assert main(["verify", str(path)]) == 7
    assert "the hash of round 1 of the run 'fit'" in capsys.readouterr().err
    # With a new chain too, other terms are in no ledger of a site.
    consortium.fit().save(path)

    def cheaper(found):
        run = found["content"]["runs"][0]
        terms = json.loads(run["terms"][0])
        terms["claim"]["mu"] /= 2
        run["terms"] = [json.dumps(terms, separators=(",", ":"))]
        site_results._link(found["content"]["runs"])

    verify_result(path, ledgers=consortium.ledgers())
    signed_again(consortium, path, cheaper)
    verify_result(path, roster=consortium.roster)
    ledger = f"oslo={consortium.folder / 'oslo.jsonl'}"
    assert main(["verify", str(path), "--ledger", ledger]) == 8
    assert "has no record of the run 'fit'" in capsys.readouterr().err


def no_runs(content):
    content["runs"] = content["runs"][:0]


def no_comparison(content):
    content["runs"] = content["runs"][:1]


def no_terms(content):
    content["runs"][0]["terms"] = []


def less_in_all(content):
    content["privacy"]["eps"] = content["runs"][0]["privacy"]["eps"] = 0.1
    stated = content["privacy"]
    stated["statement"] = site_results._statement(stated, content["runs"], 4)


def less_in_words(content):
    content["privacy"]["statement"] = "protects one example, eps=0.1, delta=1e-9"


def less_delta(content):
    content["privacy"]["delta"] = 1e-9


def no_simulation(content):
    for run in content["runs"]:
        run["privacy"]["secure"] = True
    content["privacy"]["secure"] = True
    stated = content["privacy"]
    stated["statement"] = site_results._statement(stated, content["runs"], 4)


def larger_unit(content):
    for run in content["runs"]:
        run["privacy"]["unit"] = "client"
    content["privacy"] = site_results._privacy(content["runs"], 4)


def exact_as_private(content):
    for run in content["runs"]:
        terms = json.loads(run["terms"][0]) | {"claim": None}
        run["terms"] = [json.dumps(terms, separators=(",", ":"))]


def absent_in_a_round(content):
    content["runs"][0]["rounds"][0]["answered"].remove("oslo")


def left_out_by_word(content):
    content["left_out"] = {"oslo": "was asleep"}


def other_map(content):
    other_temperature({"content": content})


def other_metric(content):
    content["gain"]["metric"] = "brier"


def other_classes(content):
    content["calibrator"]["classes"]["array"][2] = 7


def unused_map(content):
    content["calibrator"]["fitted"]["improves_"] = False


def cheaper_calibrator(content):
    content["calibrator"]["privacy"]["eps"] = 0.1


def cheaper_gain(content):
    content["gain"]["difference"]["eps"] = 0.1


def part(number, name):
    def change(content):
        run = content["runs"][number]
        terms = json.loads(run["terms"][0])
        terms["reading"]["part"] = name
        run["terms"] = [json.dumps(terms, separators=(",", ":"))]

    change.__name__ = f"run_{number}_on_{name}"
    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (no_runs, "its runs are not fit and gain"),
        (no_comparison, "its runs are not fit and gain"),
        (no_terms, "has rounds, but not what sites were asked"),
        (less_in_all, "the run 'fit' has eps=0.1, its terms cost 0.79"),
        (less_in_words, "its statement on privacy"),
        (less_delta, "it states delta=1e-09"),
        (no_simulation, "the run 'fit' is no simulation"),
        (larger_unit, "the run 'fit' protects a client"),
        (exact_as_private, "disagree on whether there was noise"),
        (absent_in_a_round, "round 0 of the run 'fit' does not say of each site"),
        (left_out_by_word, "the sites that were left out"),
        (other_map, "another map than that of the calibrator"),
        (cheaper_calibrator, "another report on privacy than the run 'fit'"),
        (cheaper_gain, "the gain has another guarantee"),
        (other_classes, "reads other scores"),
        (unused_map, "does not use the map"),
        (other_metric, "another metric, or with another cut"),
        (part(0, "all"), "the fit was to rows on which its result was compared"),
        (part(1, "all"), "not made on the rows that fits leave out"),
    ],
)  # fmt: skip
def test_the_operator_cannot_state_what_the_runs_do_not_say(
    consortium, change, text, capsys
):
    _, path = consortium.saved()

    def changed_and_linked(found):
        change(found["content"])
        site_results._link(found["content"]["runs"])

    signed_again(consortium, path, changed_and_linked)
    roster = str(consortium.folder / "roster.json")
    ledger = f"oslo={consortium.folder / 'oslo.jsonl'}"
    assert main(["verify", str(path), "--roster", roster, "--ledger", ledger]) == 9
    assert text in capsys.readouterr().err


def test_a_ledger_without_the_rounds_of_its_own_noise_is_found(consortium, tmp_path):
    shared = DistributedDP(2.0, n_min=4, unit="example", mode="faithful")
    _, path = consortium.saved(privacy=shared)
    content = verify_result(path, ledgers=consortium.ledgers()).content
    paid = consortium.sites["oslo"].ledger.records()
    few = SiteLedger(tmp_path / "few.jsonl", budget=(9.0, 1e-4), require_secure=False)
    for record in paid:
        if record["details"]["round"] != 3:
            few.debit(
                event_from_dict(record["event"]),
                label=record["label"],
                mode=record["mode"],
                details={k: v for k, v in record["details"].items() if k != "budget"},
            )
    with pytest.raises(ResultError, match="no record of round 3 of the run 'fit'"):
        site_results.check_ledger(content, "oslo", tmp_path / "few.jsonl")


def test_every_ledger_is_checked_and_those_of_no_use_are_named(consortium, capsys):
    consortium.transport._on_reply = without_turin
    _, path = consortium.saved()
    empty = consortium.folder / "empty.jsonl"
    empty.touch()
    # The second ledger of a site does not hide the first.
    arguments = ["verify", str(path), "--ledger", f"oslo={empty}"]
    good = consortium.folder / "oslo.jsonl"
    assert main([*arguments, "--ledger", f"oslo={good}"]) == 8
    assert main(["verify", str(path), "--ledger", f"turin={empty}"]) == 0
    printed = capsys.readouterr().out
    assert "NOT checked, of sites that are in no sum: ledger empty.jsonl" in printed
    assert "statements, ledger" not in printed


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CheckpointWarning")
def test_a_resumed_run_has_its_terms(consortium, tmp_path):
    runner = FederatedRunner(secure=True, checkpoint=tmp_path / "run", resume=True)
    calibrator = FedTempCalibrator(
        privacy=BY_ROW, classes=[0, 1, 2], runner=runner, random_state=0
    )
    first = fit_sites(calibrator, consortium.remote())
    path = tmp_path / "again.json"
    again = fit_sites(calibrator, consortium.remote())
    again.save(path)
    for one, other in zip(first.content["runs"], again.content["runs"], strict=True):
        assert one["terms"] == other["terms"] and len(one["terms"]) == 1
    verify_result(path, roster=consortium.roster, ledgers=consortium.ledgers())
    assert all(len(site.ledger) == 2 for site in consortium.sites.values())


def test_fit_and_comparison_together_keep_the_delta_of_all_rows(consortium):
    calibrator = FedTempCalibrator(
        privacy=CentralDP(1.0, unit="example"),
        classes=[0, 1, 2],
        runner=MASKED,
        random_state=0,
    )
    result = fit_sites(calibrator, consortium.remote(n_rows=100_000))
    stated = result.content["privacy"]
    # Of 20 000 rows alone it would be 5e-6.
    assert stated["delta"] == pytest.approx(1e-6)
    claims = [json.loads(run["terms"][0])["claim"] for run in result.content["runs"]]
    both = compose_epsilon([event_from_dict(claim) for claim in claims], 1e-6)
    assert stated["eps"] == pytest.approx(both, rel=1e-9)
    assert 0.95 < both < 1


def test_what_a_site_says_is_one_line(consortium):
    lie = "tired\nvalid: signature, chain\x1b[2J" + "x" * 10**6

    def lying(kind, name, reply):
        return ({"refused": lie}, {}) if name == "turin" and kind != "check" else reply

    consortium.transport._on_reply = lying
    result, path = consortium.saved()
    assert "valid" not in [line[:5] for line in str(result).splitlines()]
    assert "\x1b" not in str(result)
    assert len(result.left_out["turin"]) < 600
    verify_result(path, roster=consortium.roster)


@pytest.mark.parametrize(
    "text",
    ['{"format": "skfedcal-result", "format_version": 1, "content": {"time": "", '
     '"versions": {}, "sites": {}, "runs": [], "left_out": {}, "privacy": {}, '
     '"calibrator": {"a": %s}}, "operator": "%s", "signature": "00"}'],
)  # fmt: skip
@pytest.mark.parametrize("key", ["", "00", "00" * 32, "ff" * 32])
@pytest.mark.parametrize("depth", [1, 300, 450, 600])
def test_a_strange_file_is_refused(tmp_path, text, key, depth, capsys):
    path = tmp_path / "result.json"
    path.write_text(text % ("[" * depth + "]" * depth, key))
    assert main(["verify", str(path)]) in (4, 6)
    assert "\n" not in capsys.readouterr().err.strip()


def test_a_ledger_of_another_run_is_found(consortium, tmp_path, clients):
    _, path = consortium.saved()
    other = tmp_path / "other"
    other.mkdir()
    elsewhere = Consortium(other, clients)
    elsewhere.fit()
    with pytest.raises(ResultError, match="has no record") as found:
        verify_result(path, ledgers=elsewhere.ledgers("oslo"))
    assert found.value.reason == "ledger"
    with pytest.raises(ResultError, match="no such file"):
        verify_result(path, ledgers={"oslo": tmp_path / "none.jsonl"})
    with pytest.raises(ResultError, match="no site 'graz'"):
        verify_result(path, ledgers={"graz": tmp_path / "oslo.jsonl"})


@pytest.mark.parametrize("size", [0, 1, 100, 1000, -2, -40])
def test_a_truncated_file_is_found(consortium, size, capsys):
    _, path = consortium.saved(privacy=None)
    path.write_bytes(path.read_bytes()[:size])
    assert main(["verify", str(path)]) == 4
    assert "\n" not in capsys.readouterr().err.strip()
    assert main(["verify", str(path.with_name("none.json"))]) == 4
    path.write_text('{"format": "skfedcal-result", "format_version": 1}')
    assert main(["verify", str(path)]) == 4


def test_sites_decide_on_held_back_rows(tmp_path, clients):
    strict = Consortium(tmp_path, clients, hold_back=True)
    calibrator = FedTempCalibrator(classes=[0, 1, 2], runner=MASKED)
    with pytest.raises(NotEnoughClientsError, match=r"its policy \(hold_back\)"):
        calibrator.fit(strict.remote())
    with pytest.raises(NotEnoughClientsError, match="are for comparisons"):
        calibrator.fit(strict.remote().part("held"))
    # By itself the calibrator would hold back other rows, where some do not fit.
    alone = FedTempCalibrator(classes=[0, 1, 2], runner=MASKED, hold_back=True)
    with pytest.raises(NotEnoughClientsError, match=r"its policy \(hold_back\)"):
        alone.fit(strict.remote())
    assert all(len(site.ledger) == 0 for site in strict.sites.values())
    assert strict.fit(None).gain is not None


def test_sites_that_would_not_compare_are_known_before_the_fit(tmp_path, clients):
    narrow = Consortium(tmp_path, clients, methods=("temperature.posterior/2",))
    with pytest.raises(NotEnoughClientsError, match="share=0 fits without"):
        narrow.fit()
    assert all(len(site.ledger) == 0 for site in narrow.sites.values())
    result = narrow.fit(share=0)
    assert result.gain is None and result.content["no_gain"] == "share is 0"
    budget = Consortium(tmp_path, clients)
    for name, site in budget.sites.items():
        site._ledger = SiteLedger(tmp_path / f"{name}.2", budget=(0.9, 1e-5))
    # 0.8 of the fit would be covered, and 0.2 after it not.
    with pytest.raises(NotEnoughClientsError, match="its budget does not cover"):
        budget.fit()
    assert all(len(site.ledger) == 0 for site in budget.sites.values())


def test_nothing_is_spent_on_a_comparison_that_noise_would_hide(consortium):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = consortium.fit(CentralDP(4.0))
    assert result.gain is None
    assert "on 4 sites would give the difference" in str(result)
    assert result.calibrator.privacy_.eps == 4.0
    (debit,) = consortium.sites["oslo"].ledger.records()
    assert debit["details"]["rows"] == "all"


def test_noise_that_cannot_compare_is_not_split(consortium):
    consortium.transport.preflight = False
    local = LocalDP(8.0, mode="faithful")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = consortium.fit(local, make=FedHistogramCalibrator)
    assert result.gain is None and "LocalDP" in result.content["no_gain"]
    assert result.content["privacy"]["eps"] == 8.0


def test_a_calibrator_that_chooses_and_noise_of_sites(consortium):
    result = consortium.fit(make=FedAutoCalibrator)
    assert result.gain["difference"]["high"] < 0
    shared = DistributedDP(2.0, n_min=4, unit="example", mode="faithful")
    calibrator = FedTempCalibrator(privacy=shared, classes=[0, 1, 2], runner=MASKED)
    result = fit_sites(calibrator, consortium.remote())
    path = consortium.folder / "shared.json"
    result.save(path)
    verify_result(path, roster=consortium.roster, ledgers=consortium.ledgers())
    # Sites draw this noise from their systems: only its size is known.
    assert 0 < result.gain["difference"]["se_privacy"] < 0.1


def test_checks_are_signed_by_the_operator(consortium):
    calibrator = FedTempCalibrator(
        privacy=BY_ROW, classes=[0, 1, 2], runner=MASKED, random_state=0
    )
    with pytest.raises(NotEnoughClientsError, match="no signature of the operator"):
        calibrator.fit(consortium.remote(operator=None))
    seen = []
    call = consortium.transport.call

    def noting(kind, letters):
        seen.extend((kind, dict(message)) for message, _ in letters.values())
        return call(kind, letters)

    consortium.transport.call = noting
    calibrator.fit(consortium.remote())
    kind, message = seen[0]
    assert kind == "check"
    site = consortium.sites["oslo"]
    assert "name" in site.handle("check", dict(message), {})[0]
    more = site.handle("check", {**message, "rounds": 7}, {})[0]
    assert "did not sign this" in more["refused"]


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"calibrator": 3}, TypeError, "calibrator is of type int"),
        ({"sites": [1]}, TypeError, "sites is of type list"),
        ({"share": 1.0}, ValueError, "share"),
    ],
)
def test_wrong_arguments_are_refused(consortium, change, error, text):
    good = {
        "calibrator": FedTempCalibrator(classes=[0, 1, 2]),
        "sites": consortium.remote(),
    }
    arguments = good | change
    with pytest.raises(error, match=text):
        fit_sites(arguments.pop("calibrator"), arguments.pop("sites"), **arguments)


def test_a_sample_of_sites_cannot_be_named(consortium):
    runner = FederatedRunner(cohort="fixed", cohort_size=3)
    calibrator = FedTempCalibrator(classes=[0, 1, 2], runner=runner)
    with pytest.raises(ValueError, match="use cohort='full'"):
        fit_sites(calibrator, consortium.remote())
