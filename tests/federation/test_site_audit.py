"""``skfedcal audit --site``: what a dishonest server learns from a site."""

import json
import math
import time
from types import SimpleNamespace

import numpy as np
import pytest

from skfedcal.cli import main
from skfedcal.federation import Site, SitePolicy, SiteRows
from skfedcal.federation import attacks as server
from skfedcal.federation.attacks import exhaustion, rows
from skfedcal.federation.attacks.charges import eps_lower_bound
from skfedcal.federation.attacks.copies import SiteCopies
from skfedcal.federation.roster import Roster, SiteKey
from skfedcal.privacy import PureEvent
from skfedcal.privacy.site_ledger import SiteLedger

SITE = """
client-id = "a"
data-path = "{folder}/rows.npz"
ledger = "{folder}/ledger.jsonl"
max-eps = 3.0
max-delta = 1e-5
methods = "{methods}"
noise = "{noise}"
"""


def write_site(folder, methods="scores.counts/1", noise="own"):
    """A site of 40 rows that has spent eps 0.5 of 3."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 40)
    logits = rng.normal(size=(40, 2)) + np.eye(2)[labels]
    np.savez(folder / "rows.npz", logits=logits, labels=labels)
    ledger = SiteLedger(folder / "ledger.jsonl", budget=(3.0, 1e-5))
    ledger.debit(PureEvent(0.5), label="before")
    path = folder / "site.toml"
    path.write_text(SITE.format(folder=folder, methods=methods, noise=noise))
    return path


def few_attacks(monkeypatch, *names):
    """Only attacks whose names begin so."""
    chosen = [a for a in server.all_attacks() if a.name.startswith(names)]
    monkeypatch.setattr(server, "all_attacks", lambda: chosen)


def audit(capsys, *words):
    code = main(["audit", *map(str, words)])
    return code, capsys.readouterr()


@pytest.mark.parametrize(
    "all_of_them", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_nothing_is_learnt_and_the_ledger_stays_as_it_is(
    tmp_path, capsys, monkeypatch, all_of_them
):
    if not all_of_them:  # one attack in three, of every kind
        chosen = server.all_attacks()[::3]
        monkeypatch.setattr(server, "all_attacks", lambda: chosen)
    path = write_site(tmp_path, "top_bins")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    code, printed = audit(capsys, "--site", path)
    assert code == 0, printed.out
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
    head, table, foot = printed.out.split("\n\n")
    assert "PASSED" in head and "a copy, with eps 2.5 left" in head
    assert "min-clients 3; methods top_bins; noise own" in head
    assert "fresh copy of the site and of its ledger" in " ".join(foot.split())
    columns = table.splitlines()[0]
    for name in ("attack", "tried", "outcome", "messages", "answered", "eps charged"):
        assert name in columns
    assert "LEARNT" not in table
    assert table.count("nothing learnt") == len(server.all_attacks())
    assert all(len(line) <= 132 for line in table.splitlines())


def test_the_same_for_a_machine(tmp_path, capsys, monkeypatch):
    few_attacks(monkeypatch, "an honest", "class list", "row count", "price")
    path = write_site(tmp_path, "top_bins", "shared")
    before = (tmp_path / "ledger.jsonl").read_bytes()
    code, printed = audit(capsys, "--site", path, "--json")
    found = json.loads(printed.out)
    assert code == 0 and found["passed"] is True and found["site"] == "a"
    names = [finding["attack"] for finding in found["findings"]]
    assert names == [attack.name for attack in server.all_attacks()]
    # What is answered is charged, and never more than is left.
    assert found["answered_plain"] and found["answered_masked"]
    assert all(0 <= finding["eps"] <= 2.5 for finding in found["findings"])
    honest = {f["attack"]: f for f in found["findings"]}
    for name in ("an honest request", "an honest request, masked"):
        assert honest[name]["answered"] and honest[name]["eps"] > 0.3
    assert (tmp_path / "ledger.jsonl").read_bytes() == before


def test_a_site_that_tells_is_caught(tmp_path, capsys, monkeypatch):
    """As sites once did: the type of an error that depends on rows is sent."""
    words = Site._words

    def telling(self, admitted):
        if any(self._own_rows(admitted.request).unfit.values()):
            raise KeyError("a label")
        return words(self, admitted)

    monkeypatch.setattr(Site, "_words", telling)
    few_attacks(monkeypatch, "an honest", "class list", "row count")
    path = write_site(tmp_path)
    before = (tmp_path / "ledger.jsonl").read_bytes()
    code, printed = audit(capsys, "--site", path, "--json")
    found = json.loads(printed.out)
    assert code == 1 and found["passed"] is False
    learnt = {f["attack"]: f["learnt"] for f in found["findings"] if f["learnt"]}
    assert "whether a label is unknown" in learnt["an honest request"]
    assert "attacks succeeded" in printed.err
    assert (tmp_path / "ledger.jsonl").read_bytes() == before


def test_text_of_a_failed_audit():
    from skfedcal.cli.commands._audit import findings_table

    finding = server.Finding("labels", "asked", "labels of 5 rows", 5.0, 20, 3, 0.01)
    other = server.Finding("rows", "asked", messages=7)
    table = findings_table([finding, other])
    assert "LEARNT: labels of 5 rows" in table and "bits)" in table
    assert "nothing learnt" in table and "no ledger" in table


@pytest.mark.parametrize(
    "words",
    [("--thorough",), ("--site", "x", "--method", "bin"), ("--site", "x", "--eps", 2)],
)
def test_options_that_do_not_go_together(words, capsys):
    code, printed = audit(capsys, *words)
    assert code == 2 and printed.out == ""


@pytest.mark.parametrize("n_sites", [1, 2])
def test_a_roster_that_was_not_joined_is_named(n_sites, tmp_path, capsys):
    path = write_site(tmp_path)
    keys = {name: SiteKey.generate(name) for name in "ab"[:n_sites]}
    keys["a"].save(tmp_path / "a.key")
    Roster({name: key.public for name, key in keys.items()}).save(tmp_path / "r.json")
    names = {"site-key": tmp_path / "a.key", "roster": tmp_path / "r.json"}
    lines = [f'{name} = "{value}"\n' for name, value in names.items()]
    path.write_text(path.read_text() + "".join(lines))
    code, printed = audit(capsys, "--site", path)
    assert code == 4 and printed.out == ""
    assert f"has {n_sites} site(s), and a masked sum needs 3. Join" in printed.err


def test_a_site_without_rows_or_budget_is_audited():
    rows = SiteRows(np.zeros((0, 2)), np.zeros(0, dtype=int), "logits")
    site = Site("a", rows, policy=SitePolicy(methods=("top_bins",), noise="own"))
    attacks = [a for a in server.all_attacks() if "honest" in a.name]
    found = server.audit_site(site, attacks=attacks)
    assert [f.learnt for f in found] == ["", ""] and found[0].answered
    assert all(math.isnan(f.eps) for f in found)


def test_an_attack_does_not_touch_the_site(monkeypatch):
    """It is asked nothing: neither rows, nor state, nor ledger change."""
    rng = np.random.default_rng(0)
    rows = SiteRows(rng.normal(size=(9, 2)), np.arange(9) % 2, "logits")
    ledger = SiteLedger(budget=(3.0, 1e-5))
    site = Site("a", rows, policy=SitePolicy(noise="own"), ledger=ledger)
    handle = Site.handle

    def watched(self, *message):
        assert self is not site
        return handle(self, *message)

    monkeypatch.setattr(Site, "handle", watched)
    found = server.audit_site(site, attacks=[server.RowCount(), server.Debits()])
    assert not any(f.learnt for f in found) and found[1].eps > 0
    assert not len(ledger) and site.state == {}


def test_eps_from_below_is_that_of_randomised_response():
    """10,000 bits of eps 1: the bound is below 1, and above 0.6."""
    rng = np.random.default_rng(0)
    p = math.e / (1 + math.e)
    first = (rng.random((10_000, 1)) < 1 - p).astype(int)
    second = (rng.random((10_000, 1)) < p).astype(int)
    assert 0.6 < eps_lower_bound(first, second, alpha=1e-6) <= 1.0
    assert eps_lower_bound(first, first[::-1], alpha=1e-6) <= 0.05


def test_rows_of_another_kind_are_named():
    with pytest.raises(TypeError, match="needs a site with rows"):
        SiteCopies(Site("a", lambda: None))


class Exhausted:
    """A site whose third request takes all time or memory."""

    def __init__(self, want):
        self.want, self.n_asked = want, 0

    def site(self):
        return self

    def handle(self, kind, message, arrays):
        self.n_asked += 1
        if self.n_asked == 3:
            if self.want == "memory":
                return {"error": str(len(bytearray(700 << 20)))}, {}
            while True:
                pass
        time.sleep(1.1)  # without work: counts for nothing
        return {}, {}


@pytest.mark.parametrize("want", ["time", "memory"])
def test_a_request_that_exhausts_a_site_is_found(monkeypatch, want):
    monkeypatch.setattr(exhaustion.Bombs, "seconds", 1)
    target = SimpleNamespace(plain=True, copies=Exhausted(want))
    assert exhaustion.Bombs()._handled(target, [("", {})] * 4) == 2


@pytest.mark.parametrize("secure", [False, True])
def test_every_question_of_a_search_is_answered(tmp_path, secure):
    """A refusal must be about the question: the same run twice would be refused."""
    target = server.Target.of(
        server.site_from_file(write_site(tmp_path, "top_bins")),
        n_samples=400,
        thorough=False,
    )
    attack = rows.LabelsOfRows(secure=secure)
    found = server.Finding(attack.name, attack.tried)
    attack.attack(target, found)
    assert not found.learnt
    assert found.answered >= attack.n_rows
