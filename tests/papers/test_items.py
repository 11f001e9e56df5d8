"""Items of papers: found by number, shown in all forms, drawn."""

import csv
import io
import json
from math import nan

import pytest

from skfedcal.experiments import ResultTable
from skfedcal.papers import PaperItem, PaperResult, find_items, reproduce
from skfedcal.papers.items import PAPERS, Claim, Panel, Setting, below, best, run_item


def result(**given):
    runs = [
        {"method": m, "beta": b, "seed": s, "error": e + 0.01 * s, "size": 1.0}
        for m, b, e in (("a", 0.1, 0.5), ("a", 0.3, 0.4), ("b", 0.1, 0.2))
        for s in (0, 1)
    ]
    values = {"error": ".1%", "size": ".2f"}
    table = ResultTable("Errors", ["method", "beta"], values, runs)
    return PaperResult(table, **given)


def test_items_have_numbers_once_and_words():
    items = find_items()
    names = [item.name for item in items]
    assert len(set(names)) == len(names)
    for item in items:
        assert item.paper in PAPERS
        assert item.title[-1] != "."
        assert item.shows.endswith(".")
        # What the guide says about an ordering that was not found.
        assert (item.agrees is False) == bool(item.because)


def test_items_are_found_by_number_and_part():
    assert {item.paper for item in find_items("000")} == {"000"}
    (item,) = find_items("000", tables=["8"])
    assert (item.kind, item.number) == ("table", "8")
    assert item.command == "skfedcal reproduce 000 --table 8"
    for item in find_items():
        for part in item.parts:
            words = {f"{item.kind}s": [f"{item.number}{part}"]}
            assert find_items(item.paper, **words) == [item]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"paper": "7"}, "paper='7' is not known; pass one of"),
        (
            {"paper": "000", "tables": ["77"]},
            "table '77' is not known. The tables of 000",
        ),
        ({"paper": "000", "tables": "8"}, "tables='8': pass a list"),
        (
            {"figures": ["77"]},
            r"figures of all papers are: 000 1 \(a to c\), 000 2 \(a to c\)",
        ),
        (
            {"paper": "000", "figures": ["2z"]},
            r"figure '2z' is not known.*: 1 \(a to c\), 2 \(a to c\), ",
        ),
        ({"paper": "000", "figures": ["2d"]}, "figure '2d' is not known"),
        ({"paper": "000", "figures": ["11a"]}, "figure '11a' is not known"),
        ({"paper": "000", "figures": ["2A"]}, "figure '2A' is not known"),
        ({"paper": "000", "figures": ["2ab"]}, "figure '2ab' is not known"),
        ({"paper": "000", "tables": ["2a"]}, "table '2a' is not known"),
        (
            {"paper": "leaderboard", "figures": ["1"]},
            "leaderboard are: none",
        ),
    ],
)
def test_unknown_items_are_named(words, message):
    with pytest.raises((ValueError, TypeError), match=message):
        find_items(**words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({}, "one table or of one figure"),
        ({"table": "8", "figure": "2"}, "one table or of one figure"),
        ({"table": "8", "size": "tiny"}, "size must be 'quick', 'usual' or 'full'"),
        ({"table": "8", "data": "/nowhere"}, "no folder"),
    ],
)
def test_reproduce_refuses_what_is_no_item(words, message):
    with pytest.raises((ValueError, OSError), match=message):
        reproduce("000", **words)


def test_claims_compare_numbers():
    assert below("x", ("a", 1.0), ("b", 2.0)).holds
    assert not below("x", ("a", 2.0), ("b", 2.0)).holds
    assert below("x", ("a", 2.0), ("b", 2.0), slack=0.1).holds
    values = {"a": 1.0, "b": 0.5, "c": nan}
    assert best("x", "b", values).holds
    highest = best("x", "a", values, highest=True)
    assert (highest.holds, highest.because) == (True, "a 1, b 0.5")
    claim = best("a is best", "a", values)
    assert not claim.holds
    assert claim.because == "a 1, b 0.5"


def test_the_verdict_says_why_not():
    good, bad = Claim("a", True, "1, 2"), Claim("b is best", False, "b 3, a 2")
    assert result().verdict == ""
    assert result(claims=[good]).verdict == "ordering agrees: yes, because: a (1, 2)"
    reading = result(claims=[good], name="000 reading B.7")
    assert reading.verdict == "readings differ: yes, because: a (1, 2)"
    both = result(claims=[good, bad])
    assert not both.agrees
    assert both.verdict == "ordering agrees: no, because not: b is best (b 3, a 2)"


def test_a_result_is_shown_in_the_layout_of_the_paper():
    found = result(
        columns="beta", value="error", notes=["small"], claims=[Claim("a", True, "")]
    )
    text = found.to_text()
    assert text.splitlines()[1].split() == ["method", "0.1", "%", "0.3", "%"]
    assert "note: small" in text
    assert text.endswith("ordering agrees: yes, because: a ()")
    assert "| method | 0.1 % | 0.3 % |" in found.to_markdown()
    assert found.to_latex().startswith("% Errors\n% note: small")
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [float(row["error"]) for row in rows] == pytest.approx([0.505, 0.405, 0.205])
    record = json.loads(found.to_json())
    assert record["settings"]["claims"] == [["a", True, ""]]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_panels_are_drawn(tmp_path, ending):
    pytest.importorskip("matplotlib")
    panels = [
        Panel("(a)", "beta", "error", "method"),
        Panel("(b)", "method", "error", "beta", kind="bar"),
        Panel("(c)", "size", "error", "method", kind="scatter"),
        Panel("(d)", "beta", "error", where={"method": "a"}, log=True),
    ]
    path = tmp_path / f"figure.{ending}"
    result(panels=panels).draw(path)
    start = path.read_bytes()[:200]
    assert start.startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    assert path.stat().st_size > 10_000


def test_only_figures_are_drawn(tmp_path):
    with pytest.raises(ValueError, match="is a table: nothing to draw"):
        result().draw(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"ends in \.png"):
        result(panels=[Panel("", "beta", "error")]).draw(tmp_path / "a.txt")


def test_parts_are_stored(tmp_path):
    calls = []

    def run(setting):
        setting.cached({"what": 1}, lambda: calls.append(1) or [1.5])
        return result()

    item = PaperItem("000", "table", "99", "t", "S.", run)
    setting = Setting("quick", store=tmp_path)
    assert run_item(item, setting).name == "000 table 99"
    run_item(item, setting)
    assert len(calls) == 1
    assert setting.pick(1, 2, 3) == 1
