"""Every item in its quick form, on data of scikit-learn."""

import re

import pytest

from skfedcal.papers.items import Setting, find_items, run_item

PAPERS = ("000", "001", "002", "003", "004")
ITEMS = [
    pytest.param(item, marks=pytest.mark.xdist_group(f"paper {paper}"), id=item.name)
    for paper in PAPERS
    for item in find_items(paper)
]
NUMBER = r"\d+\.\d+"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Items share networks and fits."""
    return tmp_path_factory.mktemp("store")


def is_shown(number, text):
    """Whether a number of the guide, maybe in %, is one of these when rounded."""
    digits = len(number.partition(".")[2])
    known = [float(found) for found in re.findall(NUMBER, text)]
    shares = {f"{value:.{digits}f}" for value in known}
    return number in shares | {f"{100 * value:.{digits}f}" for value in known}


def test_numbers_are_found_when_they_are_rounded():
    assert is_shown("0.128", "Acc-T 0.1278, other 0.5")
    assert is_shown("12.4", "Acc-T 0.1238")
    assert not is_shown("0.129", "Acc-T 0.1278, other 0.5")


@pytest.mark.slow
@pytest.mark.parametrize("item", ITEMS)
def test_the_guide_says_whether_the_ordering_agrees(item, store):
    if item.paper in ("000", "003", "004"):
        pytest.importorskip("torch")
    found = run_item(item, Setting("quick", store=store))
    assert bool(found.claims) == (item.agrees is not None)
    assert found.agrees == (item.agrees is not False), found.verdict
    # Every claim has the numbers that it compares, and so has the guide.
    assert all(re.search(r"\d", claim.because) for claim in found.claims)
    for number in re.findall(NUMBER, item.because.replace("0.5 to 3", "")):
        known = number == "0.1" or is_shown(number, found.verdict)
        assert known, f"{number}: {found.verdict}"
    assert found.to_text()
    assert bool(found.panels) == (item.kind == "figure")
    if item.paper != "000":  # no data set of the papers is here
        assert "paper" not in {row.get("kind") for row in found.table.rows}
