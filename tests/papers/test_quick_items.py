"""Every item of papers 001 to 004 in its quick form, on data of scikit-learn."""

import pytest

from skfedcal.papers.items import Setting, find_items, run_item

PAPERS = ("001", "002", "003", "004")
ITEMS = [
    pytest.param(item, marks=pytest.mark.xdist_group(f"paper {paper}"), id=item.name)
    for paper in PAPERS
    for item in find_items(paper)
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@pytest.mark.slow
@pytest.mark.parametrize("item", ITEMS)
def test_the_guide_says_whether_the_ordering_agrees(item, store):
    if item.paper in ("003", "004"):
        pytest.importorskip("torch")
    found = run_item(item, Setting("quick", store=store))
    assert bool(found.claims) == (item.agrees is not None)
    assert found.agrees == (item.agrees is not False), found.verdict
    assert found.to_text()
    assert bool(found.panels) == (item.kind == "figure")
    kinds = {row.get("kind") for row in found.table.rows}
    assert "paper" not in kinds  # no data set of the papers is here
