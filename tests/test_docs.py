"""The pages of the documentation say what the code does."""

import contextlib
import doctest
import importlib
import importlib.util
import io
import re
import shlex
from pathlib import Path

import pytest

from skfedcal.cli._main import build_parser
from skfedcal.methods.registry import BUILT_IN

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
