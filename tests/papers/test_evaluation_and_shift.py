"""Items of papers 001 and 002: their parts by hand, orderings, real layouts."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics

from skfedcal import ScoreHistogram
from skfedcal.papers import paper_001, paper_002
from skfedcal.papers.items import OURS, PRINTED, Setting, find_items, run_item
from skfedcal.privacy import DistributedDP, LocalDP

QUICK = Setting("quick")


def test_every_reading_is_on_the_page_of_ambiguities():
    page = Path(__file__).parents[2] / "docs" / "research" / "ambiguities.rst"
    if not page.exists():
        pytest.skip("the documentation is not here")
    text = page.read_text()
    readings = [item for item in find_items() if item.kind == "reading"]
    assert {item.paper for item in readings} >= {"001", "002", "004"}
    assert [item.name for item in readings if item.command not in text] == []


def quick(paper, kind, number):
    (item,) = find_items(paper, **{f"{kind}s": [number]})
    return item, run_item(item, QUICK)


def drawn(n=4000):
    rng = np.random.default_rng(0)
    scores = rng.beta(2, 4, n)
    return scores, (rng.random(n) < scores).astype(int)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", [DistributedDP(500.0), LocalDP(30.0, oracle="oue")])
def test_prefix_sums_of_a_hierarchy_add_up_to_its_leaves(model):
    scores, labels = drawn()
    hist = ScoreHistogram.fit(
        scores, labels, client_ids=np.arange(len(labels)), privacy=model, height=4,
        levels=range(1, 5) if isinstance(model, DistributedDP) else "auto",
        space="prob", input_type="proba", classes=[0, 1], random_state=0,
    )  # fmt: skip
    counts = paper_001.printed_counts(hist)
    exact = np.stack(
        [np.bincount((scores[labels == k] * 16).astype(int), minlength=16)
         for k in (0, 1)]
    )  # fmt: skip
    # With nearly no noise; under LocalDP a quarter of the clients is on each level: a
    # leaf is a difference of up to eight counts of 1000 clients, scaled by 4.
    bound = 0.5 if isinstance(model, DistributedDP) else 6 * 4 * np.sqrt(8 * 250)
    assert np.abs(counts - exact).max() < bound


def test_rates_of_exact_leaves_are_those_of_scikit_learn():
    scores, labels = drawn()
    hist = paper_001.histogram(scores, labels, "Federated", 6, 0, PRINTED)
    for threshold in (0.125, 0.5):  # edges of leaves
        found = paper_001.rates(hist.counts_, threshold)
        for name in paper_001.METRICS:
            truth = getattr(metrics, f"{name}_score")(labels, scores >= threshold)
            assert found[name] == pytest.approx(truth, abs=1e-12)


def test_figure_4_has_the_lines_and_orderings_of_the_paper():
    item, result = quick("001", "figure", "4")
    assert result.agrees == item.agrees, result.verdict
    lines = {row["line"] for row in result.table.rows}
    assert {"worst case", "uniform", "quantile", "1 / 2B", "1 / 3B^2"} < lines
    assert len(result.panels) == 3


def test_scores_of_kaggle_and_of_files_are_read(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = (X[:, 0] + rng.normal(size=300) > 0).astype(int)
    folder = tmp_path / paper_001.KAGGLE["Sep"][0]
    folder.mkdir()
    lines = ["id,f1,f2,f3,claim"]
    for i, (row, label) in enumerate(zip(X, y, strict=True)):
        cells = [f"{v:.4f}" for v in row]
        cells[1] = "" if i % 7 == 0 else cells[1]  # the data of Sep have gaps
        lines.append(",".join([str(i), *cells, str(label)]))
    (folder / "train.csv").write_text("\n".join(lines) + "\n")
    logits = np.column_stack([np.zeros(300), X[:, 0]])
    np.savez(tmp_path / "two.npz", logits=logits, labels=y)
    np.savez(tmp_path / "ten.npz", logits=rng.normal(size=(9, 10)), labels=y[:9])
    found = paper_001.find_scores(Setting("quick", tmp_path))
    assert [data.data for data in found] == ["two", "Sep"]
    assert metrics.roc_auc_score(found[0].labels, found[0].scores) > 0.6
    item = find_items("001", tables=["2"])[0]
    rows = run_item(item, Setting("quick", tmp_path)).table.rows
    assert [row["kind"] for row in rows] == ["here", "here", "paper"]
    with pytest.raises(FileNotFoundError, match="has no scores of two classes"):
        paper_001.find_scores(Setting("quick", folder))


def test_table_4_of_shifts_has_the_layout_of_the_paper():
    item, result = quick("002", "table", "4")
    assert result.agrees == item.agrees, result.verdict
    wide = result.layout
    assert list(wide.values) == ["Base", "NLL-T", "Acc-T", "ECE-T"]
    rows = {(r["perturbation"], r["kind"]): r for r in wide.rows}
    assert len(rows) == 2 * 16
    assert [r["perturbation"] for r in wide.rows][-1] == "Unperturbed"
    for name in ("Frost", "Snow"):
        # What the paper's range leaves of the error is found by ours.
        assert rows[name, OURS]["Acc-T"] < rows[name, PRINTED]["Acc-T"] < 0.3
        assert rows[name, PRINTED]["Base"] == rows[name, OURS]["Base"]


def test_conditions_of_a_file_of_logits(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 900)
    logits = 4 * np.eye(3)[labels] + 3 * rng.normal(size=(900, 3))
    names = np.array(["clean", "fog_2", "jpeg_5"])
    file = {"logits": logits, "labels": labels, "client": np.repeat([0, 1, 2], 300)}
    np.savez(tmp_path / "shift_cifar10_net.npz", **file, client_names=names)
    np.savez(tmp_path / "other.npz", **file, client_names=np.array(["a", "b", "c"]))
    setting = Setting("quick", tmp_path)
    found = paper_002.find_conditions(setting)
    kinds = [(c.data, c.name, c.severity) for c in found]
    assert kinds == [
        ("CIFAR-10", "Unperturbed", 0),
        ("CIFAR-10", "Fog", 2),
        ("CIFAR-10", "Jpeg Compression", 5),
    ]
    item = find_items("002", tables=["3"])[0]
    rows = run_item(item, setting).table.rows
    assert [r["kind"] for r in rows].count("paper") == 2
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FileNotFoundError, match="has no conditions"):
        paper_002.find_conditions(Setting("quick", empty))


def test_cifar10_and_its_corrupted_images_are_read(tmp_path):
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    home = tmp_path / "cifar-10-batches-py"
    home.mkdir()

    def batch(n):
        labels = rng.integers(0, 10, n)
        images = rng.integers(0, 60, size=(n, 3072))
        images[:, :100] += 15 * labels[:, None]
        return {"data": images.astype(np.uint8), "labels": labels.tolist()}

    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (home / name).write_bytes(pickle.dumps(batch(20)))
    corrupted = tmp_path / "CIFAR-10-C"
    corrupted.mkdir()
    images = rng.integers(0, 256, size=(50, 32, 32, 3), dtype=np.uint8)
    np.save(corrupted / "fog.npy", images)
    np.save(corrupted / "labels.npy", np.tile(np.arange(10), 5))
    found = paper_002.find_conditions(Setting("quick", tmp_path))
    assert len(found) == 31
    fog = next(c for c in found if (c.kind, c.severity) == ("fog", 5))
    own = np.concatenate([fog.labels, fog.test_labels])
    assert sorted(own.tolist()) == list(range(10))
    assert all(c.data == "CIFAR-10" for c in found)


def test_binning_as_printed_without_noise_is_the_accuracy_of_bins():
    condition = paper_002._digits(3)[0]
    data = (condition.logits, condition.labels, np.zeros(len(condition.labels)))
    rng = np.random.default_rng(0)
    found = paper_002.printed_bins(condition, data, 1e3, 1, rng)
    assert found < paper_002.base_error(condition) + 0.02
