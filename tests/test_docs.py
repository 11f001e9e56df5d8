"""The pages of the documentation say what the code does."""

import contextlib
import doctest
import importlib
import importlib.util
import io
import json
import re
import runpy
import shlex
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from skfedcal.cli._main import build_parser
from skfedcal.methods.registry import BUILT_IN
from skfedcal.papers import find_items

DOCS = Path(__file__).resolve().parent.parent / "docs"
README = DOCS.parent / "README.md"
GUIDE = sorted(DOCS.glob("guide/*.rst"))
RECORDS = sorted([*DOCS.glob("reference/*.rst"), *DOCS.glob("research/*.rst")])
PAGES = [DOCS / "index.rst", *GUIDE, *RECORDS]
# Whole commands stand on these; others speak of commands in part.
WITH_COMMANDS = [
    README,
    DOCS / "index.rst",
    *DOCS.glob("guide/[ps]*.rst"),
    *DOCS.glob("guide/howto_*.rst"),
    *DOCS.glob("guide/operations.rst"),
    *RECORDS,
]
ROOMS = (
    "",
    ".compose",
    ".data",
    ".datasets",
    ".evaluation",
    ".exceptions",
    ".experiments",
    ".export",
    ".federation",
    ".metrics",
    ".papers",
    ".plotting",
    ".privacy",
    ".training",
)

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="no docs in this copy")


def test_the_guide_stays_short():
    """A reader in a hurry; research records and reference pages are not counted."""
    words = sum(len(page.read_text(encoding="utf-8").split()) for page in GUIDE)
    assert words <= 25_000


# One worker for all pages: they share no state, but import costs more than they do.
@pytest.mark.xdist_group("docs")
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_snippets_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testfile(
        str(page), module_relative=False, optionflags=flags, encoding="utf-8"
    )
    assert result.failed == 0


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_is_in_the_reference(room):
    module = importlib.import_module(f"skfedcal{room}")
    listed = {
        line.strip(" *-`")
        for line in (DOCS / "api.rst").read_text(encoding="utf-8").splitlines()
    }
    missing = set(module.__all__) - listed - {"__version__"}
    assert not missing


@pytest.mark.parametrize(
    "page", [README, DOCS / "guide" / "methods.rst"], ids=lambda p: p.name
)
def test_tables_name_every_registered_calibrator(page):
    text = page.read_text(encoding="utf-8")
    names = [m.estimator_name for m in BUILT_IN if m.kind == "calibrator"]
    assert not [name for name in names if name not in text]


def commands(start):
    """Return commands that begin so, in a block or between backticks."""
    found = set()
    for page in WITH_COMMANDS:
        # A command between backticks may go on in the next line.
        text = re.sub(r"\n +(?! )", " ", page.read_text(encoding="utf-8"))
        found |= set(re.findall(rf"``({start} [^`]+ [^`]+)``", text))
        text = page.read_text(encoding="utf-8")
        found |= set(re.findall(rf"^(?: +\$ )?({start} [^#\n]+)", text, re.MULTILINE))
    return sorted(found)


@pytest.mark.parametrize("command", commands("skfedcal"))
def test_command_of_a_page_is_understood(command):
    _, *words = shlex.split(command)
    assert build_parser().parse_args(words)


@pytest.mark.parametrize("command", commands("python -m"))
def test_benchmark_of_a_page_exists(command):
    _, _, module, *words = shlex.split(command)
    source = DOCS.parent / (module.replace(".", "/") + ".py")
    text = source.read_text(encoding="utf-8")
    for word in words:
        assert not word.startswith("-") or f'"{word}"' in text


def without_numbers(text):
    """Numbers of a private fit and names of ledgers differ from run to run."""
    return re.sub(r"\b[0-9a-f]{12}\b|\d+(\.\d+)?", "#", text).split()


def test_the_readme_prints_what_it_says():
    text = README.read_text(encoding="utf-8")
    ((code, printed),) = re.findall(
        r"```python\n(.*?)```\n\n```\n(.*?)```", text, re.DOTALL
    )
    found = io.StringIO()
    with contextlib.redirect_stdout(found):
        exec(code, {})
    assert without_numbers(found.getvalue()) == without_numbers(printed)


def run_example(name, monkeypatch):
    """Run an example of the gallery without a screen, and return its variables."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return runpy.run_path(str(DOCS.parent / "examples" / f"plot_{name}.py"))


def test_the_pipeline_tutorial_ranks_calibrators_as_its_text_does(monkeypatch):
    table = run_example("digits_pipeline", monkeypatch)["table"]
    (_, _, before), temperature, binning = table.values()
    assert max(temperature[2], binning[2]) < before / 3
    assert binning[0] < temperature[0]
    assert temperature[2] < binning[2]


def test_the_eps_tutorial_closes_the_gap_that_its_text_says(monkeypatch):
    found = run_example("eps", monkeypatch)
    closed, error = found["closed"].mean(axis=2), found["error"]
    assert (closed[1:, 1:] > 0.99).all()
    assert abs(closed[0, 0]) < 1e-6
    rms = np.sqrt((error[:, -1] ** 2).mean(axis=1))
    assert (rms < 0.03).all()


def test_the_hospital_tutorial_finds_nine_in_ten(monkeypatch):
    found = run_example("hospital_evaluation", monkeypatch)
    assert found["recall"].low >= 0.9
    pooled = roc_auc_score(found["fed"].labels, found["scores"])
    assert found["auc"].low < pooled < found["auc"].high


def load_script(name):
    """Module of a file in docs/."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_broken_links_are_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here">1</a> <a href="b.html#gone">2</a> <a href="c.html">3</a>'
        ' <a href="https://example.org/x">4</a> <img src="d.png">'
    )
    (tmp_path / "b.html").write_text('<p id="here"></p><a href="#here">5</a>')
    broken = load_script("check_links").broken(tmp_path)
    assert [link for _, link in broken] == ["b.html#gone", "c.html", "d.png"]


@pytest.mark.parametrize("name", ["one_round", "paper_items"])
def test_made_parts_of_pages_are_current(name):
    """``python docs/_ext/NAME.py`` writes the file anew."""
    module = load_script(f"_ext/{name}")
    assert module.render() == module.TARGET.read_text(encoding="utf-8")


def test_quick_items_are_below_a_minute_as_the_guide_says():
    """``python -m benchmarks.paper_items`` measures; nothing is timed here."""
    seconds = json.loads((DOCS / "guide" / "papers_times.json").read_text())
    network = seconds.pop("000 network")
    items = {item.name for item in find_items()}
    assert set(seconds) == items
    # On the data of scikit-learn the items of this paper train the network first.
    trained = {name: network * name.startswith(("000", "lead")) for name in items}
    assert max(seconds[name] + trained[name] for name in items) < 60
    page = (DOCS / "guide" / "papers.rst").read_text()
    assert f"takes {network:.0f} s" in page


@pytest.fixture(scope="module")
def board():
    """Rows of the leaderboard, by data set and number of clients."""
    rows = json.loads((DOCS / "reference" / "leaderboard.json").read_text())
    groups = {}
    for row in rows:
        groups.setdefault((row["classes"], row["data"], row["K"]), []).append(row)
    return groups


def test_the_leaderboard_is_written_from_its_numbers():
    module = load_script("_ext/paper_items")
    assert module.render_leaderboard() == module.PAGE.read_text(encoding="utf-8")


def test_the_leaderboard_is_complete(board):
    assert {classes for classes, _, _ in board} == {10, 62, 100, 200}
    fast = {"FedTemp", "FedBBQ", "FedBBQ-all", "FedAuto"}
    for (classes, data, n_clients), rows in board.items():
        small = n_clients < 1000 and classes < 200
        names = fast | ({"FedOPVector", "FedCal"} if small else set())
        found = {(row["method"], row["eps"]) for row in rows}
        assert len(found) == len(rows)
        budgets = ("none", "10", "3", "1")
        assert found == {(n, e) for n in names for e in budgets} | {("base", "-")}
        assert {k for c, d, k in board if (c, d) == (classes, data)} == {
            100, 1000, 10_000,
        }  # fmt: skip
        assert all(0 < row["cwECE"] < 0.2 and row["n_runs"] >= 1 for row in rows)


def test_what_the_leaderboard_says_about_binning_follows_from_its_numbers(board):
    """Computed here once more, from the rule that the page states."""
    page = (DOCS / "reference" / "leaderboard.rst").read_text().replace("\\", "")
    n_sentences = 0
    for classes, data in dict.fromkeys((c, d) for c, d, _ in board):
        words = []
        for n_clients in (100, 1000, 10_000):
            rows = board[classes, data, n_clients]
            base = next(row["cwECE"] for row in rows if row["method"] == "base")
            paying = []
            for eps in (1, 3, 10):
                own = {
                    row["method"]: row["cwECE"]
                    for row in rows
                    if row["eps"] == str(eps) and row["acc change"] >= -0.01
                }
                bins = [own[n] for n in ("FedBBQ", "FedBBQ-all") if n in own]
                others = [base, own["FedTemp"]]
                if bins and min(bins) < min(others) - 0.05 * base:
                    paying.append(eps)
            start = f"from eps = {paying[0]}" if paying else "at no eps"
            words.append(f"{start} with {n_clients:,} clients")
        sentence = f"- {classes} classes ({data}): private binning pays "
        assert sentence + ", ".join(words) + ", of budgets up to 10.\n" in page
        n_sentences += 1
    assert page.count("private binning pays") == n_sentences


def test_what_the_leaderboard_says_about_methods_follows_from_its_numbers(board):
    page = (DOCS / "reference" / "leaderboard.rst").read_text()
    for eps, start in (("none", "Without noise"), ("1", "At eps = 1")):
        best = []
        for rows in board.values():
            own = [
                (row["cwECE"], row["method"])
                for row in rows
                if row["eps"] in (eps, "-") and row["acc change"] >= -0.01
            ]
            best.append(min(own)[1])
        line = next(x for x in page.splitlines() if x.startswith(f"- {start},"))
        shown = dict(re.findall(r"([A-Za-z-]+) (\d+)", line.partition("settings:")[2]))
        assert shown == {name: str(best.count(name)) for name in set(best)}
    worse = max(
        row["cwECE"] - base["cwECE"]
        for rows in board.values()
        for base in rows
        if base["method"] == "base"
        for row in rows
        if row["method"] == "FedAuto"
    )
    nowhere = "- FedAuto is nowhere worse than the input: largest change"
    assert (worse < 1e-3) == (nowhere in page)
