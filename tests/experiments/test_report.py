"""The report: its words follow the numbers, and the page is one sound file."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from scipy.stats import binomtest

from skfedcal import compare
from skfedcal.experiments import Comparison
from skfedcal.experiments.report import html_report, verdict_of
from skfedcal.experiments.report.page import LEFT, SIDE, TOP, reliability_svg, wilson

VOID = {"meta", "link", "br"}

SETTINGS = {
    "version": "1.2",
    "methods": ["x"],
    "eps": [None, 1.0],
    "seeds": [0, 1, 2],
    "vary": {},
    "n_classes": 3,
    "clients dealt": False,
    "beta": None,
    "test given": True,
    "oracle": "FedBiasTemp",
}


class Page(HTMLParser):
    """Tags that were left open or closed out of turn, addresses, and the text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.wrong, self.addresses, self.texts = [], [], [], []
        self.ids, self.tags = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        named = dict(attrs)
        self.addresses += [named[k] for k in ("src", "href") if k in named]
        if "id" in named:
            self.ids.append(named["id"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        self.texts.append(data)


def run(method, eps, gain=0.0, error=0.01, cwece=0.05, change=0.0, **more):
    private = eps not in ("-", "none")
    record = {
        "method": method,
        "eps": eps,
        "seed": 0,
        "cwECE": cwece,
        "floor": 0.01,
        "floor_sd": 0.001,
        "ECE": 0.1,
        "NLL": 1.0 - gain,
        "Brier": 0.5,
        "accuracy": 0.8,
        "confidence": 0.9,
        "acc change": change,
        "NLL gain": gain,
        "NLL gain error": error,
        "used": True,
        "n_clients": 100,
        "n_rows": 1000,
        "n_test": 2000,
        "reliability": {"n": [4.0, 6.0], "confidence": [1.0, 5.0], "hits": [2.0, 3.0]},
        **more,
    }
    if private:
        spent = {"eps spent": float(eps), "delta": 1e-5, "unit": "client"}
        record |= {**spent, "simulated": True}
    return record


def verdict(*runs, **settings):
    rows = [run("base", "-"), run("central", "-", 0.2, cwece=0.02), *runs]
    return verdict_of(Comparison(rows, {**SETTINGS, **settings}))


@pytest.mark.parametrize(
    ("runs", "headline", "tone"),
    [
        (
            [run("a", "none", 0.2), run("a", "1", 0.19)],
            "costs little of the gain",
            "good",
        ),
        (
            [run("a", "none", 0.2), run("a", "1", 0.12)],
            "costs a part of the gain",
            "good",
        ),
        (
            [run("a", "none", 0.2), run("a", "1", 0.04)],
            "costs most of the gain",
            "good",
        ),
        (
            [run("a", "none", 0.2), run("a", "1", 0.019)],
            "but not under the pri",
            "mixed",
        ),
        ([run("a", "none", 0.2)], "Calibration helps.", "good"),
        ([run("a", "1", 0.2)], "with privacy down to eps = 1", "good"),
        ([run("a", "none", 0.01)], "does not clearly help", "none"),
        (
            [run("a", "none", 0.2), run("a", "3", 0.19), run("a", "1", 0.0)],
            r"privacy \(eps = 3\) costs little",
            "mixed",
        ),
        # A gain in log loss at a loss of accuracy does not count.
        ([run("a", "none", 0.2, change=-0.02)], "does not clearly help", "none"),
    ],
)
def test_the_headline_follows_the_gains(runs, headline, tone):
    found = verdict(*runs)
    assert re.search(headline, found.headline) and found.tone == tone
    assert found.sentences[0] == found.headline


def test_a_gain_must_be_larger_than_the_spread_of_the_noise():
    alike = [run("a", "1", gain, seed=i) for i, gain in enumerate((0.2, 0.21))]
    assert verdict(*alike).best["1"].clear
    # Mean .2, deviation .28: the one release that is made may as well do harm.
    apart = [run("a", "1", gain, seed=i) for i, gain in enumerate((0.0, 0.4))]
    assert not verdict(*apart).best["1"].clear


def test_a_calibrated_model_is_told_so():
    rows = [run("base", "-", cwece=0.0119), run("a", "none", 0.0)]
    assert "calibrated already" in verdict_of(Comparison(rows, SETTINGS)).headline
    rows = [run("base", "-", cwece=0.0121), run("a", "none", 0.0)]
    assert "calibrated already" not in verdict_of(Comparison(rows, SETTINGS)).headline


def test_the_best_is_the_largest_gain_without_a_drop_in_accuracy():
    found = verdict(
        run("a", "none", 0.1),
        run("b", "none", 0.3, change=-0.02),
        run("c", "none", 0.2),
    )
    assert found.best["none"].name == "c"
    text = " ".join(found.sentences)
    assert "Without noise, c is best: log loss 1.000 to 0.800" in text
    assert "80.0 %" in text and "over-confident by 10.0 points" in text


@pytest.mark.parametrize(
    ("confidence", "words"),
    [
        (0.9, "over-confident by 10.0"),
        (0.7, "under-confident by 10.0"),
        (0.81, "within"),
    ],
)
def test_the_state_of_the_model(confidence, words):
    # Two standard errors of a share of .8 among 2000 rows are 1.8 points.
    rows = [run("base", "-", confidence=confidence), run("a", "none")]
    assert words in verdict_of(Comparison(rows, SETTINGS)).sentences[1]


def test_warnings_follow_the_numbers():
    assert verdict(run("a", "none", 0.2)).warnings == []
    cases = {
        "Few clients (24)": verdict(run("a", "none", 0.2, n_clients=24)),
        "Floor reached": verdict(run("a", "none", 0.2, cwece=0.0119)),
        "more than 1 % (marked *) for b": verdict(run("b", "none", change=-0.011)),
        "at eps 1: a 1 of 1": verdict(run("a", "1", used=False)),
        "assigned to clients at random": verdict(
            run("a", "none"), **{"clients dealt": True}
        ),
        "Fewer than three seeds": verdict(run("a", "none"), seeds=[0, 1]),
    }
    for words, found in cases.items():
        (text,) = found.warnings
        assert words in text


def test_the_page_is_one_sound_file(found):
    text = html_report(found)
    page = Page(text)
    assert page.wrong == [] and page.open == []
    assert page.addresses == ["data:,", "#table", "#privacy"]
    assert len(set(page.ids)) == len(page.ids) and "table" in page.ids
    # No script, and nothing from elsewhere.
    assert not {"script", "img", "iframe"} & set(page.tags)
    assert "http" not in re.sub(r"<[^>]*>", "", text)
    assert "@import" not in text and "url(" not in text
    words = " ".join(page.texts)
    for sentence in verdict_of(found).sentences:
        assert sentence in words
    first = text.index(verdict_of(found).headline)
    assert first < text.index("<table") < text.index("<svg")


def test_the_table_has_every_cell(found):
    page = html_report(found)
    for cells in found.table._cells():
        assert cells[0] in page
        for cell in cells[2:]:
            assert cell.partition(" (sd ")[0] in page
    assert page.count("<tr") == 7 + 2 + 2 + len(re.findall("<tr", _settings(page)))


def _settings(page):
    return page[page.index("All settings") :]


def test_names_cannot_break_out_of_the_page(found):
    nasty = '<script>alert("x")</script>'
    runs = [
        {**r, "method": nasty} if r["method"] == "FedTemp" else r for r in found.runs
    ]
    settings = {**found.settings, "file": nasty, "command": nasty}
    text = html_report(replace(found, runs=runs, settings=settings, refused=(nasty,)))
    assert "<script" not in text
    page = Page(text)
    assert page.wrong == [] and page.open == []


def test_what_eps_means_is_worked_out(found):
    text = html_report(found)
    # Odds grow by e^2; from one half to e^2 / (1 + e^2).
    assert "7.39-fold" in text and "88 %" in text
    large = [r | {"eps spent": 1000.0} if r.get("eps spent") else r for r in found.runs]
    assert "without bound" in html_report(replace(found, runs=large))
    exact = replace(found, runs=[r for r in found.runs if r["eps"] in ("-", "none")])
    assert "No noise was added" in html_report(exact)


def test_a_varied_comparison_has_curves(given):
    found = compare(
        *given, methods=["bin"], eps=[None], seeds=1, vary={"bins": [4, 16, 64]},
        progress=False,
    )  # fmt: skip
    text = html_report(found)
    page = Page(text)
    assert page.wrong == [] and page.open == []
    (points,) = re.findall(r'<polyline class="curve" points="([^"]*)"', text)
    heights = [float(pair.split(",")[1]) for pair in points.split()]
    errors = [row["cwECE"] for row in found.rows if row["method"] == "FedBin"]
    # High errors are high in the picture, where y grows downwards.
    assert np.argsort(heights).tolist() == np.argsort(-np.array(errors)).tolist()
    assert "FedBin (bins = " in verdict_of(found).sentences[2]


def test_a_diagram_puts_points_where_they_belong():
    bins = {
        "n": [4.0, 0.0, 6.0],
        "confidence": [1.0, 0.0, 5.4],
        "hits": [2.0, 0.0, 3.0],
    }
    svg = reliability_svg(bins, "a <b>")
    points = re.findall(r'<circle class="point" cx="([\d.]+)" cy="([\d.]+)"', svg)
    expected = [(0.25, 0.5), (0.9, 0.5)]
    assert len(points) == 2
    for (x, y), (confidence, share) in zip(points, expected, strict=True):
        assert float(x) == pytest.approx(LEFT + SIDE * confidence, abs=0.01)
        assert float(y) == pytest.approx(TOP + SIDE * (1 - share), abs=0.01)
    counts = re.findall(r'<rect class="count"[^>]*height="([\d.]+)"', svg)
    assert float(counts[0]) / float(counts[1]) == pytest.approx(4 / 6, abs=0.01)
    assert "a &lt;b&gt;" in svg and "Mean confidence 64.0 %" in svg


@pytest.mark.parametrize(("hits", "n"), [(0, 5), (3, 10), (50, 50), (700, 1000)])
def test_intervals_are_those_of_wilson(hits, n):
    low, high = wilson(hits / n, n, z=1.959963984540054)
    expected = binomtest(hits, n).proportion_ci(method="wilson")
    assert low == pytest.approx(expected.low, abs=1e-12)
    assert high == pytest.approx(expected.high, abs=1e-12)


def test_to_html_replaces_a_file_as_a_whole(found, tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    found.to_html(path)
    assert path.read_text(encoding="utf-8") == html_report(found)
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OSError, match="Cannot write the file"):
        found.to_html(tmp_path / "none" / "report.html")
