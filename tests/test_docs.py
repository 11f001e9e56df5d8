"""The pages of the documentation say what the code does."""

import doctest
import importlib
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = [DOCS / "index.rst", *sorted(DOCS.glob("guide/*.rst"))]
ROOMS = (
    "",
    ".compose",
    ".data",
    ".datasets",
    ".evaluation",
    ".exceptions",
    ".experiments",
    ".federation",
    ".metrics",
    ".plotting",
    ".privacy",
    ".training",
)

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="no docs in this copy")


# One worker for all pages: they share no state, but import costs more than they do.
@pytest.mark.xdist_group("docs")
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
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
