"""Reliability diagrams show what the rows say."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.calibration import calibration_curve
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression

from skfedcal import FedTempCalibrator, FedVectorCalibrator
from skfedcal.metrics import calibration_error, expected_calibration_error
from skfedcal.plotting import (
    ReliabilityDisplay,
    before_and_after,
    plot_reliability,
    plot_reliability_grid,
)


@pytest.fixture(scope="module")
def rows():
    """Probabilities of 4 classes that are too sure, and labels."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(1500, 4)) * 1.5
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    weights = np.exp(1.6 * logits)
    return weights / weights.sum(axis=1, keepdims=True), labels


def top(proba, labels):
    return proba.max(axis=1), proba.argmax(axis=1) == labels


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
@pytest.mark.parametrize("target", ["top", 2])
def test_points_are_those_of_scikit_learn(rows, target, strategy):
    proba, labels = rows
    scores, happened = proba[:, 2], labels == 2
    if target == "top":
        scores, happened = top(proba, labels)
    display = ReliabilityDisplay.from_predictions(
        labels, proba, target=target, n_bins=6, strategy=strategy
    )
    true, pred = calibration_curve(happened, scores, n_bins=6, strategy=strategy)
    # Quantiles are those of rows here and interpolated there: a row may differ.
    tolerance = 1e-12 if strategy == "uniform" else 0.01
    np.testing.assert_allclose(display.prob_true, true, atol=tolerance)
    np.testing.assert_allclose(display.prob_pred, pred, atol=tolerance)
    assert display.counts.sum() == 1500
    np.testing.assert_array_equal(display.line_.get_xdata(), display.prob_pred)
    np.testing.assert_array_equal(display.line_.get_ydata(), display.prob_true)


@pytest.mark.parametrize("ci", [0.8, 0.95])
def test_intervals_are_exact_and_drawn(rows, ci):
    proba, labels = rows
    display = ReliabilityDisplay.from_predictions(labels, proba, n_bins=5, ci=ci)
    hits = np.rint(display.prob_true * display.counts).astype(int)
    for i, (k, n) in enumerate(zip(hits, display.counts.astype(int), strict=True)):
        expected = binomtest(k, n).proportion_ci(ci, method="exact")
        np.testing.assert_allclose((display.low[i], display.high[i]), expected)
    drawn = display.band_.get_paths()[0].vertices[:, 1]
    for bound in (display.low, display.high):
        assert np.isin(bound, drawn).all()


def test_frequencies_of_zero_and_one_have_intervals():
    scores = np.repeat([0.1, 0.9], 20)
    display = ReliabilityDisplay.from_predictions(
        np.repeat([0, 1], 20), scores, target=1, n_bins=2
    )
    expected = binomtest(0, 20).proportion_ci(0.95, method="exact")
    assert (display.low[0], display.high[0]) == pytest.approx(tuple(expected))
    assert (display.low[1], display.high[1]) == pytest.approx((1 - expected.high, 1))


def test_the_legend_has_the_error_of_the_metrics(rows):
    proba, labels = rows
    display = ReliabilityDisplay.from_predictions(labels, proba, name="model")
    error = 100 * expected_calibration_error(labels, proba)
    assert display.line_.get_label() == f"model (ECE {error:.1f} %)"
    display = ReliabilityDisplay.from_predictions(labels, proba, target=1)
    error = 100 * calibration_error(labels == 1, proba[:, 1])
    assert display.line_.get_label() == f"error {error:.1f} %"


def test_automatic_bins(rows):
    proba, labels = rows
    found = ReliabilityDisplay.from_predictions(labels, proba)
    assert len(found.counts) == 15 and np.ptp(found.counts) <= 1  # of equal depth
    found = ReliabilityDisplay.from_predictions(labels, proba, target=0)
    width = np.minimum((proba[:, 0] * 10).astype(int), 9)
    np.testing.assert_array_equal(found.counts, np.bincount(width))
    found = ReliabilityDisplay.from_predictions(
        labels[:90], proba[:90], labels=range(4)
    )
    assert len(found.counts) == 2


@pytest.mark.parametrize("margin", ["counts", "density", None])
def test_the_strip_has_all_rows(rows, margin):
    proba, labels = rows
    display = ReliabilityDisplay.from_predictions(labels, proba, margin=margin)
    strips = display.ax_.child_axes
    if margin is None:
        assert not strips and display.margin_ is None
        assert display.ax_.get_xlabel() == "Confidence"
        return
    (strip,) = strips
    assert display.ax_.get_xlabel() == "" and strip.get_xlabel() == "Confidence"
    if margin == "counts":
        height = np.histogram(proba.max(axis=1), 30, (0, 1))[0].max()
        tops = display.margin_.get_path().vertices[:, 1]
        assert tops.max() == height
    else:
        x, y = strip.lines[0].get_data()
        # Rows per bar, of which there are 30.
        assert np.trapezoid(y, x) * 30 == pytest.approx(1500, rel=0.01)


def test_curves_share_axes_and_differ_without_colour(rows):
    proba, labels = rows
    ax = plt.subplots()[1]
    shown = [
        ReliabilityDisplay.from_predictions(labels, proba**p / (proba**p).sum(
            axis=1, keepdims=True), ax=ax, name=str(p))
        for p in (1, 0.6, 0.3)
    ]  # fmt: skip
    lines = [display.line_ for display in shown]
    assert len({line.get_color() for line in lines}) == 3
    assert len({line.get_linestyle() for line in lines}) == 3
    assert len({line.get_marker() for line in lines}) == 3
    assert len(ax.figure.axes) == 2  # the curves, and one strip
    assert [display.ref_line_ is None for display in shown] == [False, True, True]
    assert len(ax.get_legend().texts) == 4


def test_a_logit_axis_shows_the_same_numbers(rows):
    proba, labels = rows
    flat = ReliabilityDisplay.from_predictions(labels, proba)
    display = ReliabilityDisplay.from_predictions(labels, proba, scale="logit")
    ax = display.ax_
    assert ax.get_xscale() == ax.get_yscale() == "logit"
    assert ax.get_xlim() == ax.get_ylim()
    np.testing.assert_array_equal(display.prob_true, flat.prob_true)
    low, high = ax.get_xlim()
    assert 0 < low < display.prob_pred.min() and display.prob_pred.max() < high < 1
    drawn = display.line_.get_ydata()
    inside = (display.prob_true > low) & (display.prob_true < high)
    np.testing.assert_array_equal(drawn[inside], display.prob_true[inside])
    display.figure_.canvas.draw()
    texts = [text.get_text() for text in ax.get_yticklabels()]
    assert "0.5" in texts and "0.9" in texts


def test_certain_scores_fit_on_a_logit_axis():
    labels = np.repeat([0, 1], 50)
    display = ReliabilityDisplay.from_predictions(
        labels, labels.astype(float), target=1, scale="logit"
    )
    display.figure_.canvas.draw()
    assert np.isfinite(display.line_.get_ydata()).all()


def test_an_estimator_is_drawn_by_its_probabilities(rows):
    proba, labels = rows
    names = np.array(["a", "b", "c", "d"])[labels]
    model = LogisticRegression().fit(np.log(proba), names)
    display = ReliabilityDisplay.from_estimator(
        model, np.log(proba), names, target="b", n_bins=5
    )
    again = ReliabilityDisplay.from_predictions(
        names, model.predict_proba(np.log(proba)), target="b", n_bins=5
    )
    np.testing.assert_array_equal(display.prob_true, again.prob_true)
    assert display.line_.get_label().startswith("LogisticRegression (error")
    assert display.ax_.get_ylabel() == "Frequency of b"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"target": 9}, r"target=9 is neither 'top' nor one of the classes \[0, 1, 2"),
        ({"margin": "bars"}, "margin"),
        ({"scale": "log"}, "scale"),
        ({"strategy": "kmeans"}, "strategy"),
        ({"n_bins": "many"}, "n_bins"),
        ({"ci": 2}, "confidence level .*got 2"),
    ],
)
def test_wrong_wishes_are_refused(rows, kwargs, message):
    with pytest.raises(ValueError, match=message):
        ReliabilityDisplay.from_predictions(rows[1], rows[0], **kwargs)


def test_before_is_the_input_and_after_the_prediction(federation):
    cal = FedTempCalibrator().fit(federation.clients)
    found = before_and_after(cal, federation.test_logits)
    logits = federation.test_logits
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(
        found["before"], weights / weights.sum(axis=1, keepdims=True)
    )
    np.testing.assert_array_equal(found["after"], cal.predict_proba(logits))


def test_before_has_columns_in_the_order_of_the_classes(draw):
    rows, numbers = draw(200, 3, 2.0)
    labels = np.array(["c", "a", "b"])[numbers]
    cal = FedVectorCalibrator(classes=["c", "a", "b"]).fit(rows, labels)
    before = before_and_after(cal, rows)["before"]
    expected = np.argsort(["c", "a", "b"])
    assert (before.argmax(axis=1) == np.argsort(expected)[rows.argmax(axis=1)]).all()


def test_models_side_by_side(rows):
    proba, labels = rows
    even = np.full_like(proba, 0.25)
    figure = plot_reliability(labels, {"x": proba, "y": 0.5 * (proba + even)})
    first, second = figure.axes[:2]
    assert (first.get_title(), second.get_title()) == ("x", "y")
    lines = [
        next(line for line in ax.lines if line.get_gid() == "skfedcal")
        for ax in (first, second)
    ]
    assert lines[0].get_linestyle() != lines[1].get_linestyle()
    single = ReliabilityDisplay.from_predictions(labels, proba)
    np.testing.assert_array_equal(lines[0].get_ydata(), single.prob_true)
    with pytest.raises(ValueError, match="axes has 1 entries for 2 models"):
        plot_reliability(labels, {"x": proba, "y": proba}, axes=[first])
    with pytest.raises(ValueError, match="at least one model"):
        plot_reliability(labels, {})


def test_a_grid_has_one_diagram_for_each_class(rows):
    proba, labels = rows
    figure = plot_reliability_grid(labels, {"x": proba, "y": proba[:, ::-1]})
    assert [ax.get_title() for ax in figure.axes] == [f"class {i}" for i in range(4)]
    for i, ax in enumerate(figure.axes):
        own = ReliabilityDisplay.from_predictions(labels, proba, target=i)
        curves = [line for line in ax.lines if line.get_gid() == "skfedcal"]
        np.testing.assert_array_equal(curves[0].get_ydata(), own.prob_true)
        assert [text.get_text()[0] for text in ax.get_legend().texts] == ["x", "y"]
    figure = plot_reliability_grid(labels, {"x": proba}, classes=[3, 1])
    assert [ax.get_title() for ax in figure.axes] == ["class 3", "class 1"]


def test_a_grid_with_strips_says_its_labels_once(rows):
    proba, labels = rows
    figure = plot_reliability_grid(labels, {"x": proba}, margin="counts")
    strips = [ax.child_axes[0] for ax in figure.axes]
    assert [strip.get_xlabel() for strip in strips] == [""] * 4
    assert figure.get_supxlabel() == "Predicted probability of the class"
    with pytest.raises(ValueError, match="0 classes cannot be drawn"):
        plot_reliability_grid(labels, {"x": proba}, classes=[])
    with pytest.raises(ValueError, match="n_columns=0 is not a whole number"):
        plot_reliability_grid(labels, {"x": proba}, n_columns=0)


def _inside(figure):
    """Whether all axes with their labels are on the figure."""
    figure.canvas.draw()
    renderer, page = figure.canvas.get_renderer(), figure.bbox
    axes = [child for ax in figure.axes for child in (ax, *ax.child_axes)]
    boxes = [ax.get_tightbbox(renderer) for ax in axes]
    return all(
        box.x0 >= page.x0 - 1 and box.y0 >= page.y0 - 1 and box.y1 <= page.y1 + 1
        for box in boxes
    )


@pytest.mark.parametrize("layout", [None, "constrained"])
@pytest.mark.parametrize("n_axes", [1, 2])
def test_the_strip_is_on_the_figure_of_given_axes(rows, layout, n_axes):
    proba, labels = rows
    figure, axes = plt.subplots(1, n_axes, layout=layout)
    for ax in np.ravel(axes):
        for name in ("a", "b"):
            display = ReliabilityDisplay.from_predictions(
                labels, proba, name=name, ax=ax
            )
            assert display.ax_ is ax
        assert not ax.get_xlabel()
    assert _inside(figure)
    assert _inside(ReliabilityDisplay.from_predictions(labels, proba).figure_)


def test_an_unfitted_estimator_says_so():
    with pytest.raises(NotFittedError):
        ReliabilityDisplay.from_estimator(FedTempCalibrator(), [[0.0, 1.0]], [1])


def test_of_many_classes_the_worst_are_drawn(rows):
    proba, labels = rows
    errors = [calibration_error(labels == i, proba[:, i]) for i in range(4)]
    figure = plot_reliability_grid(labels, {"x": proba}, max_classes=2)
    worst = sorted(np.argsort(errors)[-2:])
    assert [ax.get_title() for ax in figure.axes] == [f"class {i}" for i in worst]
    assert "2 of 4 classes" in figure.get_suptitle()
