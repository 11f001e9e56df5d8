"""Tables of experiments: what they hold, what they compare, how they are shown."""

import json
from math import isnan

import numpy as np
import pytest
from sklearn.datasets import load_digits

torch = pytest.importorskip("torch")

from skfedcal import FedTempCalibrator  # noqa: E402
from skfedcal.experiments import (  # noqa: E402
    ResultTable,
    participation_grid,
    skew_table,
    train_time_table,
)
from skfedcal.experiments.measures import (  # noqa: E402
    read_rows,
    score,
    split_rows,
)
from skfedcal.experiments.paper_tables import with_defaults  # noqa: E402
from skfedcal.training import FedAvgClassifier, fedprox  # noqa: E402

SMALL = {"module": "linear", "n_rounds": 2, "lr": 0.3}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:600] / 16, y[:600]


# Tables


@pytest.fixture
def table():
    runs = [
        {"alpha": alpha, "method": method, "seed": seed, "a": a, "b": b}
        for alpha, method, seed, a, b in (
            (0.1, "x", 0, 0.5, 1.0),
            (0.1, "x", 1, 0.7, None),
            (0.1, "y", 0, 0.25, float("nan")),
            (0.5, "x", 0, 0.9, 4.0),
        )
    ]
    values = {"a": ".1%", "b": ".2f"}
    return ResultTable(
        "title", ("alpha", "method"), values, runs, {"lr": np.float64(1)}
    )


def test_rows_are_means_and_deviations_over_seeds(table):
    first, second, third = table.rows
    assert (first["alpha"], first["method"], first["n_runs"]) == (0.1, "x", 2)
    assert first["a"] == pytest.approx(0.6)
    assert first["sd_a"] == pytest.approx(np.std([0.5, 0.7], ddof=1))
    # A value that there is not is left out, not counted as zero.
    assert first["b"] == 1.0
    assert isnan(first["sd_b"]) and isnan(second["b"]) and isnan(third["sd_a"])


def test_text_and_markdown_show_the_same_cells(table):
    lines = table.to_text().splitlines()
    assert lines[:2] == ["title", "alpha  method             a %     b"]
    assert lines[3] == "0.1    x       60.0 (sd 14.1)  1.00"
    assert lines[4] == "0.1    y                 25.0     -"
    assert str(table) == table.to_text()
    marked = table.to_markdown().splitlines()
    assert marked[0] == "| alpha | method | a % | b |"
    assert marked[1] == "| --- | --- | --: | --: |"
    assert marked[2] == "| 0.1 | x | 60.0 (sd 14.1) | 1.00 |"


def test_json_holds_every_run(table):
    found = json.loads(table.to_json())
    assert found["keys"] == ["alpha", "method"] and found["settings"] == {"lr": 1.0}
    assert [run["b"] for run in found["runs"]] == [1.0, None, None, 4.0]
    assert [run["a"] for run in found["runs"]] == [0.5, 0.7, 0.25, 0.9]


def test_a_pivot_has_a_column_for_each_entry(table):
    wide = table.pivot("alpha", "a")
    assert wide.keys == ["method"]
    assert list(wide.values) == ["alpha=0.1", "alpha=0.5"]
    x, y = wide.rows
    assert x["alpha=0.1"] == pytest.approx(0.6) and x["alpha=0.5"] == 0.9
    assert y["alpha=0.1"] == 0.25 and isnan(y["alpha=0.5"])


# Rows and clients


def test_every_row_has_one_place_and_every_client_keeps_some_back(digits):
    X, y = digits
    X = np.c_[X, np.arange(len(y))]
    split = split_rows(
        X, y, n_clients=6, alpha=0.3, test_size=0.25, calibration_size=0.2, seed=1
    )
    parts = (split.train[0], split.calibration[0], split.test[0])
    used = np.concatenate([part[:, -1] for part in parts])
    np.testing.assert_array_equal(np.sort(used), np.arange(600))
    assert len(split.test[1]) == 150
    np.testing.assert_array_equal(y[split.train[0][:, -1].astype(int)], split.train[1])
    sizes = [
        np.bincount(part[2], minlength=6) for part in (split.train, split.calibration)
    ]
    # Right within one row.
    assert (np.abs(sizes[1] - 0.2 * (sizes[0] + sizes[1])) <= 1).all()


def test_digits_are_the_default_and_both_arrays_are_needed(digits):
    X, _ = read_rows(None, None)
    assert X.shape == (1797, 64) and X.max() == 1.0
    with pytest.raises(ValueError, match="both X and y"):
        read_rows(digits[0], None)
    with pytest.raises(ValueError, match=r"\(600, 64\) and y shape \(5,\)"):
        read_rows(digits[0], digits[1][:5])


def test_the_default_size_is_for_no_other_module():
    defaults = {"module_params": {"hidden": (64,)}, "lr": 0.1}
    assert with_defaults({"lr": 1}, defaults)["module_params"] == {"hidden": (64,)}
    assert with_defaults({"module": "linear"}, defaults) == {
        "module": "linear",
        "lr": 0.1,
    }


def test_scores_of_a_small_case_by_hand():
    labels = np.array(["a", "a", "a", "b"])
    proba = np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.3, 0.7]])
    found = score(labels, proba, np.array(["a", "b"]), seed=0)
    assert found["accuracy"] == 0.75
    assert found["balanced"] == pytest.approx((2 / 3 + 1) / 2)
    assert found["NLL"] == pytest.approx(-np.log([0.9, 0.8, 0.4, 0.7]).mean())
    # One row to a bin of 15.
    assert found["ECE"] == pytest.approx(np.mean([0.1, 0.2, 0.6, 0.3]))
    assert found["cwECE"] == pytest.approx(np.mean([0.1, 0.2, 0.6, 0.3]))
    assert found["floor"] > 0


# Experiments


def test_each_calibrator_sees_the_rows_that_were_kept_back(digits):
    X, y = digits
    table = train_time_table(
        X,
        y,
        alphas=[0.2, None],
        methods=["FedAvg", "focal"],
        calibrators={"none": None, "T": FedTempCalibrator()},
        n_clients=5,
        seeds=[3],
        **SMALL,
    )
    assert [(run["alpha"], run["method"], run["calibrator"]) for run in table.runs] == [
        (alpha, method, calibrator)
        for alpha in (0.2, "IID")
        for method in ("FedAvg", "focal")
        for calibrator in ("none", "T")
    ]
    # The same by hand.
    split = split_rows(
        X, y, n_clients=5, alpha=0.2, test_size=0.3, calibration_size=0.2, seed=3
    )
    clf = FedAvgClassifier(clients_per_round=0.25, local_epochs=5, random_state=3)
    clf.set_params(**SMALL).fit(*split.train[:2], client_ids=split.train[2])
    held = clf.client_logits(*split.calibration[:2], client_ids=split.calibration[2])
    proba = (
        FedTempCalibrator().fit(held).predict_proba(clf.predict_logits(split.test[0]))
    )
    expected = score(split.test[1], proba, np.arange(10), 3)
    assert {name: table.runs[1][name] for name in expected} == pytest.approx(expected)
    # A temperature moves no prediction.
    assert table.runs[0]["accuracy"] == table.runs[1]["accuracy"]


def test_methods_are_compared_on_the_same_clients(digits):
    X, y = digits
    methods = {
        "FedAvg": FedAvgClassifier,
        "no strength": lambda **params: fedprox(0.0, **params),
        "other": lambda **params: fedprox(50.0, **params),
    }
    table = skew_table(
        X, y, alphas=[0.1], methods=methods, n_clients=4, seeds=[0, 1], **SMALL
    )
    first, second, third = (
        [run["NLL"] for run in table.runs if run["method"] == name] for name in methods
    )
    assert first == pytest.approx(second, rel=1e-5)
    assert abs(first[0] - third[0]) > 1e-3 and first[0] != first[1]
    assert table.settings["n_clients"] == 4 and table.settings["n_rounds"] == 2
    with pytest.raises(ValueError, match=r"Unknown name\(s\) \['FedSGD'\]; known are"):
        skew_table(X, y, methods=["FedSGD"])


def test_the_grid_counts_rounds_to_the_target(digits):
    X, y = digits
    grid = participation_grid(
        X,
        y,
        shares=[0.5, 1.0],
        epochs=[1, 3],
        target_accuracy=0.8,
        n_clients=4,
        seeds=[0],
        module="linear",
        n_rounds=40,
    )
    rows = {(row["C"], row["E"]): row for row in grid.rows}
    assert list(rows) == [(0.5, 1), (0.5, 3), (1.0, 1), (1.0, 3)]
    for (share, n_epochs), row in rows.items():
        assert row["reached"] == 1 and row["accuracy"] >= 0.8
        assert row["passes"] == row["rounds"] * share * 4 * n_epochs
    assert rows[1.0, 3]["rounds"] < rows[1.0, 1]["rounds"]
    missed = participation_grid(
        X, y, shares=[1.0], epochs=[1], target_accuracy=1.0, seeds=[0], **SMALL
    )
    (row,) = missed.rows
    assert row["reached"] == 0 and isnan(row["rounds"]) and row["passes"] == 2 * 50


# What is kept


def test_a_table_with_a_store_fits_once(digits, tmp_path, monkeypatch):
    fits = []
    real = FedAvgClassifier.fit
    monkeypatch.setattr(
        FedAvgClassifier,
        "fit",
        lambda self, *a, **k: fits.append(1) or real(self, *a, **k),
    )
    words = {"seeds": [0], "store": tmp_path, "n_clients": 5, **SMALL}
    tables = [
        lambda: skew_table(*digits, alphas=[0.3], methods=["FedAvg"], **words),
        lambda: train_time_table(
            *digits, alphas=[0.3], methods=["FedAvg"], calibrators=["none", "FedTemp"],
            **words,
        ),
        # Never reached: the number of rounds is one that there is not.
        lambda: participation_grid(
            *digits, shares=[1.0], epochs=[1], target_accuracy=1.0, **words
        ),
    ]  # fmt: skip
    for make in tables:
        fits.clear()
        first = make()
        assert len(fits) == 1
        assert make().to_json() == first.to_json()
        assert len(fits) == 1
    other = skew_table(
        *digits, alphas=[0.3], methods=["FedAvg"], **{**words, "lr": 0.1}
    )
    assert len(fits) == 2 and other.rows
    with pytest.raises(ValueError, match="store needs methods that can be pickled"):
        skew_table(*digits, methods={"own": lambda **_: None}, **words)
