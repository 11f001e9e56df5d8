"""Pictures of experiments and of clients show the numbers they are given."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from skfedcal import (
    FedBinCalibrator,
    FedTempCalibrator,
    client_temperatures,
    make_federation,
)
from skfedcal.experiments import ResultTable
from skfedcal.plotting import (
    ClientTemperaturesDisplay,
    CostDisplay,
    LabelSkewDisplay,
    SweepDisplay,
)
from skfedcal.plotting.display import COLOURS, line_style

ROWS = [
    {"method": "a", "eps": "1", "cwECE": 0.2, "seed": 0},
    {"method": "a", "eps": "1", "cwECE": 0.4, "seed": 1},
    {"method": "a", "eps": "0.5", "cwECE": 0.6, "seed": 0},
    {"method": "a", "eps": "none", "cwECE": 0.1, "seed": 0},
    {"method": "b", "eps": "1", "cwECE": None, "seed": 0},
    {"method": "b", "eps": "0.5", "cwECE": 0.3, "seed": 0},
    {"method": "base", "eps": "-", "cwECE": 0.5, "seed": 0},
]


def drawn(line):
    """Points of a line, without the gap."""
    points = np.array(line.get_data())
    return points[:, np.isfinite(points).all(axis=0)]


def columns(rows):
    return {name: [row[name] for row in rows] for name in rows[0]}


FORMS = {
    "list": ROWS,
    "columns": columns(ROWS),
    "frame": pd.DataFrame(ROWS),
    "table": ResultTable("t", ["method", "eps"], {"cwECE": ".2f"}, ROWS),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_sweep_has_means_by_setting(form):
    display = SweepDisplay.from_table(FORMS[form])
    x, y = drawn(display.lines_["a"])
    np.testing.assert_allclose(y, [0.6, 0.3, 0.1])
    np.testing.assert_allclose(x[:2], [0.5, 1])
    assert x[2] > 1  # without noise: at the right end, with a tick of its own
    ticks = {t.get_text(): t.get_position()[0] for t in display.ax_.get_xticklabels()}
    assert ticks["no noise"] == x[2] and ticks["0.5"] == 0.5
    np.testing.assert_allclose(drawn(display.lines_["b"]), [[0.5], [0.3]])
    np.testing.assert_allclose(display.lines["a"].spread[1], np.std([0.2, 0.4], ddof=1))
    assert display.references == {"base": 0.5}
    assert display.ref_lines_["base"].get_ydata()[0] == 0.5
    assert display.ax_.get_xscale() == "log" and display.ax_.get_ylim()[0] == 0


def test_the_band_is_one_deviation():
    display = SweepDisplay.from_table(FORMS["table"])
    vertices = display.bands_["a"].get_paths()[0].vertices
    at = vertices[np.isclose(vertices[:, 0], 1.0), 1]
    half = np.std([0.2, 0.4], ddof=1)
    assert (at.min(), at.max()) == pytest.approx((0.3 - half, 0.3 + half))


def test_a_sweep_over_rounds_from_arrays():
    runs = np.array([[0.3, 0.2, 0.1], [0.5, 0.2, 0.3]])
    display = SweepDisplay.from_arrays(
        [4, 1, 2], {"a": runs, "b": [1.0, 2.0, 3.0]}, x_name="rounds", y_name="NLL",
        references={"none": 1.5},
    )  # fmt: skip
    np.testing.assert_allclose(drawn(display.lines_["a"]), [[1, 2, 4], [0.2, 0.2, 0.4]])
    np.testing.assert_allclose(drawn(display.lines_["b"]), [[1, 2, 4], [2, 3, 1]])
    assert list(display.bands_) == ["a"]
    ax = display.ax_
    assert ax.get_xscale() == "linear"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("rounds", "NLL")
    texts = [text.get_text() for text in ax.get_legend().texts]
    assert texts == ["a", "b", "none"]


def test_wrong_tables_are_refused():
    with pytest.raises(ValueError, match="no column 'ECE'; it has method, eps, cwECE"):
        SweepDisplay.from_table(ROWS, y="ECE")
    with pytest.raises(ValueError, match="no rows"):
        SweepDisplay.from_table([])
    with pytest.raises(TypeError, match="table is a int; pass a ResultTable"):
        SweepDisplay.from_table(3)
    with pytest.raises(ValueError, match="different lengths"):
        SweepDisplay.from_table({"method": ["a"], "eps": [1, 2], "cwECE": [0.1]})
    with pytest.raises(ValueError, match="a has 2 scores for 3 settings"):
        SweepDisplay.from_arrays([1, 2, 3], {"a": [0.1, 0.2]})
    with pytest.raises(ValueError, match="no rows"):
        SweepDisplay.from_table({"method": [], "eps": [], "cwECE": []})
    with pytest.raises(ValueError, match="a cell 'auto', which is not a number"):
        SweepDisplay.from_table([{"method": "a", "bins": "auto", "cwECE": 1}], x="bins")
    with pytest.raises(ValueError, match=r"spread of a has shape \(1,\); expected one"):
        SweepDisplay.from_arrays([1, 2], {"a": [0.1, 0.2]}, spread={"a": [0.1]})
    with pytest.raises(ValueError, match="No row has both 'eps' and 'cwECE'"):
        SweepDisplay.from_table([ROWS[-1]])


def test_lines_differ_without_colour():
    styles = [line_style(i) for i in range(24)]
    marks = {(s["linestyle"], s["marker"]) for s in styles}
    assert len(marks) == 24
    assert len(set(COLOURS)) == len(COLOURS)


def machado(colours, matrix):
    """Colours as seen with a deficiency (Machado et al. 2009), in linear light."""
    rgb = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in colours])
    light = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return light @ np.array(matrix).T


@pytest.mark.parametrize(
    "matrix",
    [
        np.eye(3),
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
         [-0.003882, -0.048116, 1.051998]],
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
         [-0.011820, 0.042940, 0.968881]],
    ],
    ids=["full", "protan", "deutan"],
)  # fmt: skip
def test_colours_are_told_apart_with_any_vision(matrix):
    seen = machado(COLOURS, matrix)
    gaps = np.abs(seen[:, None] - seen[None]).max(axis=2)
    assert gaps[np.triu_indices(len(seen), 1)].min() > 0.08


def test_costs_are_those_of_the_rounds(clients):
    fitted = {
        "bins": FedBinCalibrator().fit(clients),
        "temperature": FedTempCalibrator().fit(clients),
    }
    display = CostDisplay.from_estimators(fitted)
    for name, cal in fitted.items():
        up = sum(record.bytes_up for record in cal.history_)
        assert display.costs[name]["up"] == up
    names = [text.get_text() for text in display.ax_.get_yticklabels()]
    totals = {name: sum(parts.values()) for name, parts in display.costs.items()}
    assert names == sorted(totals, key=totals.get)
    widths = [bar.get_width() for bar in display.bars_["up"]]
    assert widths == [display.costs[name]["up"] for name in names]
    assert display.bars_["up"][0].get_hatch() != display.bars_["down"][0].get_hatch()
    assert display.ax_.get_xscale() == "log"


def test_costs_of_a_table():
    rows = [
        {"method": "a", "bytes": 1500, "down": 10},
        {"method": "a", "bytes": 2500, "down": 30},
        {"method": "b", "bytes": 20, "down": 5},
        {"method": "base", "bytes": None, "down": None},
    ]
    display = CostDisplay.from_table(rows, columns={"up": "bytes", "down": "down"})
    assert display.costs == {"a": {"up": 2000, "down": 20}, "b": {"up": 20, "down": 5}}
    texts = [text.get_text() for text in display.ax_.texts]
    assert set(texts) == {"2 kB", "20 B", "5 B"}
    plain = CostDisplay.from_table(rows, columns="bytes").plot(log=False, sort=False)
    assert [t.get_text() for t in plain.ax_.get_yticklabels()] == ["a", "b"]
    with pytest.raises(ValueError, match="No method has a number of bytes"):
        CostDisplay.from_table(rows[-1:], columns="bytes")
    with pytest.raises(ValueError, match="x has no history_"):
        CostDisplay.from_estimators({"x": FedTempCalibrator()})


def test_temperatures_are_those_of_the_clients():
    fed = make_federation(30, 900, 3, temperature=2.0, alpha=0.3, random_state=0)
    clients = [*fed.clients, (np.array([[9.0, 0.0, 0.0]] * 4), np.zeros(4, dtype=int))]
    display = ClientTemperaturesDisplay.from_clients(clients)
    expected = client_temperatures(clients)
    np.testing.assert_array_equal(display.temperatures, expected)
    pooled = FedTempCalibrator().fit(clients).temperature_
    assert display.pooled_line_.get_ydata()[0] == pytest.approx(pooled)
    assert display.mean_line_.get_ydata()[0] == pytest.approx(np.nanmean(expected))
    # All rows of the last client are right: no temperature is low enough.
    assert len(display.bounded_.get_offsets()) >= 1
    shown = np.concatenate(
        [display.points_.get_offsets()[:, 1], display.bounded_.get_offsets()[:, 1]]
    )
    assert sorted(shown) == sorted(expected[np.isfinite(expected)])
    heights = display.points_.get_offsets()[:, 1]
    assert (np.diff(heights) >= 0).all()


def test_a_long_legend_hides_no_point():
    runs = {f"method {i}": [0.1 * i, 0.2, 0.3] for i in range(6)}
    display = SweepDisplay.from_arrays([1, 2, 3], runs)
    figure, ax = display.figure_, display.ax_
    figure.canvas.draw()
    legend = ax.get_legend().get_window_extent()
    assert legend.x0 >= ax.get_window_extent().x1
    assert legend.x1 <= figure.bbox.x1 and legend.y0 >= 0
    # Axes that are given keep all to themselves.
    given = SweepDisplay.from_arrays([1, 2, 3], runs, ax=plt.subplots()[1])
    given.figure_.canvas.draw()
    legend = given.ax_.get_legend().get_window_extent()
    assert legend.x1 <= given.ax_.get_window_extent().x1


def test_labels_are_counted_whatever_the_scores_are():
    clients = [([[0.2, 0.8], [0.5, 0.5]], [0, 1])]
    display = LabelSkewDisplay.from_clients(clients, input_type="proba")
    assert display.counts.tolist() == [[1, 1]]


def test_label_shares_by_hand():
    clients = [
        (np.zeros((4, 2)), np.array([0, 0, 0, 1])),
        (np.zeros((2, 2)), np.array([1, 1])),
        (np.zeros((2, 2)), np.array([0, 0])),
    ]
    display = LabelSkewDisplay.from_clients(clients)
    np.testing.assert_array_equal(display.counts, [[3, 1], [0, 2], [2, 0]])
    # Main label first, then its share: clients 2, 0 and then 1.
    assert display.order_.tolist() == [2, 0, 1]
    np.testing.assert_allclose(
        display.image_.get_array(), [[1, 0], [0.75, 0.25], [0, 1]]
    )
    assert [bar.get_width() for bar in display.bars_] == [2, 4, 2]
    # All have 5/8 of label 0: distances 1/8, 5/8 and 3/8.
    assert display.skew == pytest.approx(3 / 8)
    assert display.image_.get_clim() == (0, 1)
    assert LabelSkewDisplay.from_clients(clients, ax=plt.subplots()[1], sizes=False)


def test_label_columns_are_those_of_the_classes():
    rows, labels = np.zeros((6, 3)), np.array(list("cabccc"))
    display = LabelSkewDisplay.from_clients(
        rows, labels, client_ids=[0, 0, 0, 1, 1, 1], classes=["c", "a", "b"]
    )
    assert [str(c) for c in display.classes] == ["a", "b", "c"]
    np.testing.assert_array_equal(display.counts, [[1, 1, 1], [0, 0, 3]])
