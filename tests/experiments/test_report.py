"""The report: its words follow the numbers, and the page is one sound file."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import binomtest
from sklearn.calibration import calibration_curve

from skfedcal import FedTempCalibrator, compare, forecast
from skfedcal.experiments import Comparison
from skfedcal.experiments.comparison.result import COLUMNS
from skfedcal.experiments.forecasting import clients_needed, eps_needed
from skfedcal.experiments.report import html_report, verdict_of
from skfedcal.experiments.report._figures import (
    LEFT,
    SIDE,
    TOP,
    reliability_svg,
    wilson,
)
from skfedcal.experiments.report.page import WORDS, plan, script
from skfedcal.metrics import expected_calibration_error
from skfedcal.privacy import CentralDP

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
    """Tags that were left open or closed out of turn, elements with text, and ids."""

    def __init__(self, text):
        super().__init__()
        self.open, self.wrong, self.elements, self.texts = [], [], [], []
        self.feed(text)
        self.tags = [tag for tag, _, _ in self.elements]
        self.ids = [named["id"] for _, named, _ in self.elements if "id" in named]

    def handle_starttag(self, tag, attrs):
        entry = (tag, dict(attrs), [])
        self.elements.append(entry)
        if tag not in VOID:
            self.open.append(entry)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop()[0] != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        self.texts.append(data)
        for _, _, texts in self.open:
            texts.append(data)

    def all(self, tag, **wanted):
        """Attributes and text of elements."""
        return [
            (named, "".join(texts))
            for name, named, texts in self.elements
            if name == tag and wanted.items() <= named.items()
        ]

    def one(self, tag, **wanted):
        (found,) = self.all(tag, **wanted)
        return found

    @property
    def data(self):
        return json.loads(self.one("script", id="data")[1])

    @property
    def addresses(self):
        return [
            named[key]
            for _, named, _ in self.elements
            for key in ("src", "href")
            if key in named
        ]


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
    assert not {"img", "iframe", "object", "form"} & set(page.tags)
    assert "@import" not in text and "url(" not in text
    # The only address is the name of a markup language.
    assert set(re.findall(r"https?:[^\"']*", text)) == {"http://www.w3.org/2000/svg"}
    words = " ".join(page.texts)
    for sentence in verdict_of(found).sentences:
        assert sentence in words
    first = text.index(verdict_of(found).headline)
    assert first < text.index("<table") < text.index("<svg")


def test_the_policy_allows_the_own_script_and_style_only(found):
    page = Page(html_report(found))
    named, _ = page.one("meta", **{"http-equiv": "Content-Security-Policy"})
    policy = dict(part.split(" ", 1) for part in named["content"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == "'none'"
    assert policy["form-action"] == "'none'" and policy["img-src"] == "data:"
    code = [text for named, text in page.all("script") if "type" not in named]
    for key, (text,) in {
        "script-src": code,
        "style-src": [text for _, text in page.all("style")],
    }.items():
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy[key] == f"'sha256-{digest}'"
    # The policy forbids these, so that they would be faults.
    for _, named, _ in page.elements:
        assert not any(key == "style" or key.startswith("on") for key in named)
    assert code == [script()]
    for word in ("innerHTML", "eval(", "fetch(", "document.write", "localStorage"):
        assert word not in script()
    assert "</" not in script() and "<!--" not in script()


def test_controls_have_labels_and_the_change_is_announced(found):
    page = Page(html_report(found))
    data = page.data
    assert page.one("fieldset", id="choice")[0]["hidden"] is None  # until it works
    assert page.one("legend")[1] == "Compare with base"
    labels = {named["for"]: text for named, text in page.all("label")}
    controls = {named["id"]: named for named, _ in page.all("select")}
    assert set(labels) == set(controls) == {"choice-eps", "choice-method"}
    assert "disabled" not in controls["choice-eps"]
    status = page.one("p", id="choice-summary")
    assert status[0]["role"] == "status" and status[0]["aria-live"] == "polite"
    # Without a script, the shown row is the one that is selected.
    options = [i for i, (_, n, _) in enumerate(page.elements) if "selected" in n]
    chosen = [page.elements[i][1]["value"] for i in options]
    (view,) = [v for v in data["views"] if v["summary"] == status[1]]
    assert chosen == [str(view["eps"]), str(view["method"])]
    assert verdict_of(found).best[data["eps"][view["eps"]]].clear
    assert [t for _, t in page.all("td", **{"class": "after"})] == view["cells"]
    before = data["before"][view["before"]]
    assert [t for _, t in page.all("td", **{"class": "before"})] == before["cells"]
    # Ids that the script asks for.
    for name in re.findall(r'getElementById\("([^"]*)"', script()):
        assert name in page.ids
    assert {f"{a}-{b}" for a in ("before", "after") for b in ("figure", "name")} <= set(
        page.ids
    )


def test_every_row_can_be_chosen_and_has_the_numbers_of_the_table(found):
    data = Page(html_report(found)).data
    assert data["eps"] == ["none", "2"] and data["points"] == []
    assert data["methods"] == ["central", "FedTemp", "FedBin"]
    rows = {
        (cells[0], cells[1]): [
            re.sub(r" \(sd (.*)\)", r" ± \1", c.replace("*", " *")) for c in cells[2:]
        ]
        for cells in found.table._cells()
    }
    assert data["before"][0]["cells"] == rows.pop(("base", "-"))
    shown = {
        (
            data["methods"][view["method"]],
            "-" if view["eps"] is None else data["eps"][view["eps"]],
        ): view["cells"]
        for view in data["views"]
    }
    assert shown == rows


def curve_of(view):
    """Rows, mean confidence and accuracy by bin."""
    return np.array([one[1:4] for one in view["bins"]]).T


def test_embedded_bins_are_those_of_the_predictions(federation, found):
    data = Page(html_report(found)).data
    fitted = FedTempCalibrator().fit(federation.clients)
    logits, labels = federation.test_logits, federation.test_labels
    place = data["methods"].index("FedTemp")
    (view,) = [v for v in data["views"] if v["method"] == place and v["eps"] == 0]
    for proba, one in (
        (softmax(logits.astype(float), axis=1), data["before"][0]),
        (fitted.predict_proba(logits), view),
    ):
        confidence, hits = proba.max(axis=1), proba.argmax(axis=1) == labels
        share, mean = calibration_curve(hits, confidence, n_bins=15)
        n, own_mean, own_share = curve_of(one)
        np.testing.assert_allclose(own_mean, mean, atol=1e-5)
        np.testing.assert_allclose(own_share, share, atol=1e-5)
        assert n.sum() == len(labels)
        error = np.sum(n * np.abs(own_mean - own_share)) / n.sum()
        expected = expected_calibration_error(labels, proba, n_bins=15)
        assert error == pytest.approx(expected, abs=1e-5)
        assert f"ECE {100 * expected:.2f} %" in one["caption"]
        for _, rows, _, hit, low, high, cells in one["bins"]:
            wilson_ = binomtest(round(hit * rows), round(rows)).proportion_ci(
                method="wilson"
            )
            assert [low, high] == pytest.approx([*wilson_], abs=2e-5)
            assert cells[1] == f"{rows:,.0f}" and cells[3] == f"{100 * hit:.1f}\xa0%"


def test_only_numbers_of_the_comparison_are_embedded(found):
    """Nothing of the rows: all that is embedded follows from `to_json`."""
    again = Comparison.from_json(found.to_json())
    assert html_report(again) == html_report(found)


def test_bins_tell_their_numbers_without_a_script(found):
    page = Page(html_report(found))
    view = page.data["before"][0]
    titles = [text for _, text in page.all("title")]
    for one in view["bins"]:
        assert (
            "Confidence {}: {} rows, mean confidence {}, accuracy {}, 95 % interval "
            "{}".format(*one[6])
        ) in titles
    rows = [cell for one in view["bins"] for cell in one[6][1:]]
    table = html_report(found).split('id="before-bins"')[1].split("</table>")[0]
    assert re.findall("<td>(.*?)</td>", table) == rows
    # A diagram is a group of images, not one image with hidden parts.
    assert all(n["role"] == "group" for n, _ in page.all("svg"))


def test_the_table_has_every_cell(found):
    page = html_report(found)
    table = page[page.index("id=table") : page.index("</table>")]
    for cells in found.table._cells():
        assert cells[0] in table
        for cell in cells[2:]:
            assert cell.partition(" (sd ")[0] in table
    assert table.count("<tr") == 7


def test_every_column_is_explained_in_one_sentence(found):
    assert list(WORDS) == list(COLUMNS)
    page = Page(html_report(found))
    terms = [text for _, text in page.all("dt")]
    for name, text in WORDS.items():
        assert name in terms and text in page.texts
        assert text.endswith(".") and ". " not in text


NASTY = [
    '<script>alert("x")</script>',
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "]]>&lt;&#60;{0}{1}${x}",
    "__proto__",
    "constructor",
    "\"' onmouseover='alert(1)' x=\"",
    "a\u2028b\u2029c\x00d\x1be",
    "\u202egnp.exe\u2066",
    "half \ud800 letter",
    "x" * 5000,
    "",
]


@pytest.mark.parametrize("nasty", NASTY, ids=range(len(NASTY)))
def test_names_cannot_break_out_of_the_page(found, nasty):
    runs = [
        {**r, "method": nasty, "warnings": [nasty]} if r["method"] == "FedTemp" else r
        for r in found.runs
    ]
    settings = {**found.settings, "file": nasty, "command": nasty, nasty: nasty}
    text = html_report(replace(found, runs=runs, settings=settings, refused=(nasty,)))
    page, clean = Page(text), Page(html_report(found))
    assert page.wrong == [] and page.open == []
    assert page.tags.count("script") == 2 and "img" not in page.tags
    names = {key for _, named, _ in page.elements for key in named}
    assert names == {key for _, named, _ in clean.elements for key in named}
    shown = re.sub("[\ud800\x00\x1b\u202e\u2066]", "\ufffd", nasty)
    assert page.data["methods"][1] == shown
    assert shown in page.one("select", id="choice-method")[1]
    assert not set("\x00\x1b\u202e\u2066") & set(text)
    assert text.encode("utf-8").decode("utf-8") == text


def test_a_method_named_in_html_is_text_in_the_embedded_json(found):
    nasty = "</ScRiPt ><b>&amp;"
    runs = [
        {**r, "method": nasty} if r["method"] == "FedTemp" else r for r in found.runs
    ]
    text = html_report(replace(found, runs=runs))
    block = text.split('id="data">')[1].split("</script>")[0]
    assert not set("<>&") & set(block)
    assert json.loads(block)["methods"][1] == nasty


def test_the_page_stays_small():
    n = np.full(15, 1e5) + np.arange(15)
    bins = {"n": n, "confidence": n * 0.123456789, "hits": np.floor(n * 0.7654321)}
    bins = {name: values.tolist() for name, values in bins.items()}
    shared = {"reliability": bins, "noise": 1.0, "accountant": "gdp"}
    runs = [
        run(f"FedMethod{i}", eps, 0.1 * i, seed=seed, **shared)
        for seed in range(5)
        for eps in ("none", "4", "1", "0.1")
        for i in range(10)
    ]
    base = [run("base", "-", **shared), run("central", "-", 0.2, **shared)]
    few, many = (
        html_report(Comparison([*base, *runs], {**SETTINGS, "n_classes": k}))
        for k in (10, 1000)
    )
    assert len(Page(few).data["views"]) == 41
    assert len(few.encode()) < 250_000
    assert len(many.encode()) < 250_000  # nothing grows with the classes


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
    # What was varied can be chosen.
    assert page.data["points"] == ["bins = 4", "bins = 16", "bins = 64"]
    labels = {named["for"]: text for named, text in page.all("label")}
    assert labels["choice-point"] == "Setting"
    assert [view["point"] for view in page.data["views"]] == [None, 0, 1, 2]


def test_the_base_of_a_row_is_that_of_its_clients(given):
    logits, labels = (np.concatenate(part) for part in zip(*given[0], strict=True))
    found = compare(
        (logits, labels), methods=["temp"], eps=[None], seeds=1,
        vary={"clients": [10, 40]}, progress=False,
    )  # fmt: skip
    data = Page(html_report(found)).data
    assert [one["title"] for one in data["before"]] == [
        "Before: base (clients = 10)",
        "Before: base (clients = 40)",
    ]
    assert all(view["before"] == view["point"] for view in data["views"])


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


@pytest.mark.parametrize("unit", ["client", "example"])
@pytest.mark.parametrize("eps", [0.1, 1.0])
def test_planned_numbers_of_clients_are_those_of_the_forecast(eps, unit):
    model = CentralDP(eps, unit=unit)
    needed = clients_needed(2, 4, model)

    def at(n):
        return forecast(n, 2, n_classes=4, privacy=model, methods=["temp"], n_fits=1)

    # A temperature is asked for from this number of clients on.
    assert at(needed["temperature"]).calibrators["FedTemp"].asked
    if needed["temperature"] > 1:
        assert not at(needed["temperature"] - 1).calibrators["FedTemp"].asked
    assert at(needed["shape"]).signal >= 8
    assert needed["shape"] == 1 or at(needed["shape"] - 1).signal < 8
    for name in ("accuracy", "ece"):
        found = at(needed[name]).metrics[name]
        assert 0.09 < found.high - found.low < 0.103
    # The same from the other side.
    least = eps_needed(needed["temperature"], 2, 4, model)["temperature"]
    assert least <= eps
    assert eps_needed(needed["ece"] + 100, 2, 4, model)["ece"] <= eps
    assert eps_needed(2, 2, 4, model)["accuracy"] is None
    assert set(eps_needed(2, 2, 60, model)) == {"temperature", "shape"}


def test_the_page_plans_for_more_clients(found):
    page = Page(html_report(found))
    table = page.one("div", **{"aria-label": "Plan"})[1]
    needed = clients_needed(40, 4, CentralDP(2.0))
    assert "eps = 2" in table and f"{needed['temperature']} (reached)" in table
    assert needed["ece"] > 60 and "more clients" in table
    command = "skfedcal plan --clients 60 --rows 40 --classes 4 --eps 2"
    assert command in [text for _, text in page.all("pre")]


@pytest.mark.parametrize(
    ("changes", "settings", "words"),
    [
        ({"eps": "1e-9", "eps spent": 1e-9}, {}, "--eps 1<"),
        ({"eps": "1e90", "eps spent": 1e90}, {}, "--eps 1<"),
        ({"unit": "<b>"}, {}, "--eps 1<"),
        ({"unit": "example"}, {}, "--unit example"),
        ({"delta": 7.0}, {}, "--eps 2<"),
        ({"n_rows": 1}, {}, "--rows 1 "),
        ({}, {"n_classes": 60}, "private class biases"),
        ({}, {"n_classes": 1001}, None),
        ({"n_clients": 10**10}, {}, None),
    ],
)
def test_a_plan_for_odd_numbers(found, changes, settings, words):
    runs = [
        {**r, **{k: v for k, v in changes.items() if k in r or k == "eps"}}
        if r.get("eps spent") or "eps" not in changes
        else r
        for r in found.runs
    ]
    odd = replace(found, runs=runs, settings={**found.settings, **settings})
    text = plan(odd)
    assert "<b>" not in text
    if words is None:
        assert text == ""
    else:
        assert words in text
        assert ("ECE within" in text) == (odd.settings["n_classes"] <= 50)


CHECK_SCRIPT = """
const vm = require("node:vm"), fs = require("node:fs");
const [code, data] = JSON.parse(fs.readFileSync(0, "utf-8"));
vm.runInThisContext(code);
const shown = data.views.map((view) => {
  const most = Math.max(...view.bins.map((bin) => bin[1]));
  return view.bins.map((bin) => [binText(data.bin_text, bin[6]),
    shapes(bin, view.n_bins, most, data.frame)]);
});
const finds = data.views.map((view, i) => ["eps", "method", "point"].map((name) =>
  view[name] === null || findView(data.views, view, name) === i));
const missing = findView(data.views, {eps: 1, method: 0, point: null}, "method");
const moves = ["ArrowLeft", "ArrowRight", "Home", "End", "Tab", "toString"].map(
  (key) => nextBin(key, 0, 3));
console.log(JSON.stringify({shown, finds, missing, moves}));
"""


@pytest.mark.skipif(
    shutil.which("node") is None,
    reason="the script of the report runs in node or a browser (tests/browser)",
)
def test_the_script_draws_what_the_page_shows(found):
    data = Page(html_report(found)).data
    done = subprocess.run(
        ["node", "-e", CHECK_SCRIPT], input=json.dumps([script(), data]),
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    out = json.loads(done.stdout)
    assert all(all(row) for row in out["finds"])
    assert data["views"][out["missing"]]["method"] == 0
    assert out["moves"] == [0, 1, 0, 2, None, None]
    runs = {}
    for one in found.runs:
        runs.setdefault((one["method"], one["eps"]), one)
    for view, bins in zip(data["views"], out["shown"], strict=True):
        eps = "-" if view["eps"] is None else data["eps"][view["eps"]]
        one = runs[data["methods"][view["method"]], eps]
        svg = reliability_svg(one["reliability"], "x")
        drawn = Page(svg)
        assert [t for _, t in drawn.all("title")] == [text for text, _ in bins]
        ours = [
            (tag, named)
            for tag, named, _ in drawn.elements
            if named.get("class") in ("hit", "gap", "band", "point", "count")
        ]
        theirs = [(tag, named) for _, shapes in bins for tag, named in shapes]
        assert [tag for tag, _ in ours] == [tag for tag, _ in theirs]
        for (_, mine), (_, other) in zip(ours, theirs, strict=True):
            assert mine.keys() == other.keys() and mine.pop("class") == other["class"]
            for key, value in mine.items():
                assert float(value) == pytest.approx(float(other[key]), abs=0.0101)


def test_the_browser_checks_name_what_the_page_has(found):
    """tests/browser runs elsewhere; its selectors are checked here."""
    path = Path(__file__).parents[1] / "browser" / "check_report.cjs"
    page = Page(html_report(found))
    text = path.read_text(encoding="utf-8")
    for name in re.findall(r'"#([a-z-]+)"', text):
        assert name in page.ids
    classes = {c for _, n, _ in page.elements for c in n.get("class", "").split()}
    for name in re.findall(r'querySelector\("\.([a-z]+)', text):
        assert name in classes
