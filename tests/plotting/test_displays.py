"""Displays show what the histogram answers, and ask for matplotlib only to draw."""

import builtins
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.metrics import precision_recall_curve, roc_curve

from skfedcal import (
    FedPrecisionRecallDisplay,
    FedReliabilityDisplay,
    FedRocDisplay,
    PrivacyLedger,
    ScoreHistogram,
)
from skfedcal.privacy import DistributedDP, LocalDP

DISPLAYS = [FedPrecisionRecallDisplay, FedReliabilityDisplay, FedRocDisplay]
CURVES = [FedPrecisionRecallDisplay, FedRocDisplay]
simulation = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning"
)


def points(display):
    """Both coordinates of what a display draws."""
    if isinstance(display, FedRocDisplay):
        return display.fpr, display.tpr
    if isinstance(display, FedReliabilityDisplay):
        return display.prob_pred, display.prob_true
    return display.recall, display.precision


def interior(display):
    """Points where neither coordinate is near 0 or 1."""
    return (np.abs(np.array(points(display)) - 0.5) < 0.4).all(axis=0)


def label_of(display):
    drawn = getattr(display, "errorbar_", display.line_)
    return drawn.get_label()


def band_corners(display):
    return display.band_.get_paths()[0].vertices


def test_roc_values_are_those_of_the_histogram(hist):
    display = FedRocDisplay.from_histogram(hist)
    curve = hist.roc_curve()
    for name in ("fpr", "tpr", "thresholds"):
        np.testing.assert_array_equal(getattr(display, name), getattr(curve, name))
    assert display.roc_auc == hist.roc_auc()
    assert display.pos_label == 1


def test_precision_recall_values_are_those_of_the_histogram(hist):
    display = FedPrecisionRecallDisplay.from_histogram(hist)
    curve = hist.pr_curve()
    for name in ("precision", "recall", "thresholds"):
        np.testing.assert_array_equal(getattr(display, name), getattr(curve, name))
    assert display.average_precision == hist.average_precision()
    assert display.prevalence == pytest.approx(hist.counts_[1].sum() / 3000, abs=0.05)


def test_reliability_values_are_those_of_the_histogram(hist):
    display = FedReliabilityDisplay.from_histogram(hist, n_bins=7, ci=0.9)
    found = hist.reliability(7, strategy="quantile", ci=0.9)
    np.testing.assert_array_equal(display.prob_true, found.prob_true)
    np.testing.assert_array_equal(display.prob_pred, found.prob_pred)
    np.testing.assert_array_equal(display.counts, found.counts)
    np.testing.assert_array_equal(display.low, found.low)
    np.testing.assert_array_equal(display.high, found.high)
    wider = hist.reliability(7, strategy="quantile", ci=0.99)
    assert (wider.low < found.low).all() and (wider.high > found.high).all()


@pytest.mark.parametrize("cls", DISPLAYS)
def test_lines_show_the_values(cls, hist):
    display = cls.from_histogram(hist)
    x, y = points(display)
    np.testing.assert_array_equal(display.line_.get_xdata(), x)
    np.testing.assert_array_equal(display.line_.get_ydata(), y)
    assert display.line_ in display.ax_.lines
    assert display.figure_ is display.ax_.figure
    assert display.histogram_ is hist


@pytest.mark.parametrize("cls", DISPLAYS)
def test_bands_contain_the_curve_and_stay_in_range(cls, hist):
    display = cls.from_histogram(hist)
    value = points(display)[1]
    assert (display.low >= 0).all() and (display.high <= 1).all()
    assert (display.low <= value).all() and (value <= display.high).all()
    inside = interior(display)
    assert (display.high > display.low)[inside].all()


@pytest.mark.parametrize("cls", CURVES)
def test_the_drawn_band_is_that_of_the_display(cls, hist):
    display = cls.from_histogram(hist)
    drawn = band_corners(display)[:, 1]
    for bound in (display.low, display.high):
        assert np.isin(bound, drawn).all()


def test_error_bars_end_at_the_interval(hist):
    display = FedReliabilityDisplay.from_histogram(hist)
    (bars,) = display.errorbar_.lines[2]
    ends = np.array([segment[:, 1] for segment in bars.get_segments()])
    np.testing.assert_allclose(ends, np.stack([display.low, display.high], axis=1))


@pytest.mark.parametrize("cls", DISPLAYS)
def test_a_higher_level_has_a_wider_band(cls, hist):
    narrow, wide = (cls.from_histogram(hist, ci=ci) for ci in (0.5, 0.99))
    inside = interior(wide)
    ratio = (wide.high - wide.low)[inside] / (narrow.high - narrow.low)[inside]
    # 2.58 standard errors against 0.67, but for chords of other lengths.
    np.testing.assert_allclose(np.median(ratio), 3.82, rtol=0.1)


@pytest.mark.parametrize("cls", CURVES)
def test_noise_widens_the_band(cls, clients, noisy):
    # Where single rows are protected, intervals are for rows as the population.
    exact = ScoreHistogram.fit(clients, input_type="proba", population="rows")
    widths = []
    for hist in (exact, noisy):
        display = cls.from_histogram(hist)
        widths.append((display.high - display.low)[interior(display)].mean())
    assert widths[1] > 1.02 * widths[0]


def test_roc_equals_scikit_learn_at_the_edges(clients, exact):
    scores, labels = (np.concatenate(part) for part in zip(*clients, strict=True))
    display = FedRocDisplay.from_histogram(exact)
    for i in (100, 500, 700):
        # Edges of buckets are no scores: the point is that of the next score above.
        edge = display.thresholds[i]
        fpr, tpr, cuts = roc_curve(labels, scores, drop_intermediate=False)
        j = np.flatnonzero(cuts >= edge)[-1]
        assert display.fpr[i] == pytest.approx(fpr[j])
        assert display.tpr[i] == pytest.approx(tpr[j])


def test_noisy_curves_are_shown_in_order(noisy):
    assert (np.diff(noisy.counts_.cumsum(axis=1)) < 0).any()
    roc = FedRocDisplay.from_histogram(noisy)
    assert (np.diff(roc.fpr) >= 0).all() and (np.diff(roc.tpr) >= 0).all()
    recall = FedPrecisionRecallDisplay.from_histogram(noisy).recall
    assert (np.diff(recall) <= 0).all()


@simulation
def test_bins_of_noise_alone_are_not_drawn():
    rng = np.random.default_rng(0)
    scores = rng.uniform(0.4, 0.6, 2000)
    labels = rng.integers(0, 2, 2000)
    display = FedReliabilityDisplay.from_clients(
        scores,
        labels,
        client_ids=np.arange(2000),
        privacy=DistributedDP(0.5),
        input_type="proba",
        random_state=0,
        plot_kw={"strategy": "uniform", "n_bins": 10},
    )
    # Two bins hold all rows; each of eight others is shown by chance with a
    # probability below .003, and with this seed none is.
    assert len(display.prob_pred) == 2
    np.testing.assert_allclose(display.prob_pred, [0.45, 0.55], atol=0.03)


@pytest.mark.parametrize("cls", DISPLAYS)
@simulation
def test_from_clients_equals_from_histogram(cls, clients, noisy):
    given = cls.from_clients(
        clients,
        privacy=DistributedDP(1.0, unit="example"),
        input_type="proba",
        random_state=0,
        ci=0.8,
        name="model",
        plot_kw={"color": "C3"},
    )
    expected = cls.from_histogram(noisy, ci=0.8, name="model", color="C3")
    np.testing.assert_array_equal(points(given), points(expected))
    np.testing.assert_array_equal(given.low, expected.low)
    np.testing.assert_array_equal(given.high, expected.high)
    assert label_of(given) == label_of(expected)
    assert given.line_.get_color() == "C3"
    assert isinstance(given.histogram_, ScoreHistogram)


@pytest.mark.parametrize(
    ("cls", "wrong", "message"),
    [
        (FedRocDisplay, {"ci": 95}, "ci must be .* got 95"),
        (FedReliabilityDisplay, {"plot_kw": {"n_bins": 0}}, "n_bins=0"),
        (FedReliabilityDisplay, {"plot_kw": {"strategy": "x"}}, "strategy='x'"),
        (FedPrecisionRecallDisplay, {"ci": 0}, "ci must be .* got 0"),
    ],
)
def test_nothing_is_paid_for_what_cannot_be_drawn(cls, wrong, message, clients):
    ledger = PrivacyLedger()
    with pytest.raises(ValueError, match=message):
        cls.from_clients(clients, privacy=DistributedDP(1.0), ledger=ledger, **wrong)
    assert len(ledger) == 0


def test_labels_have_the_area_and_its_interval(exact):
    auc, ap = exact.roc_auc(), exact.average_precision()
    label = FedRocDisplay.from_histogram(exact, name="model").line_.get_label()
    assert label == f"model (AUC = {auc:.3f} [{auc.low:.3f}, {auc.high:.3f}])"
    label = FedPrecisionRecallDisplay.from_histogram(exact).line_.get_label()
    assert label == f"AP = {ap:.3f} [{ap.low:.3f}, {ap.high:.3f}]"


def test_axes_name_what_they_show(exact):
    ax = FedRocDisplay.from_histogram(exact, plot_chance_level=True).ax_
    assert ax.get_xlabel() == "False Positive Rate (Positive label: 1)"
    assert ax.get_ylabel() == "True Positive Rate (Positive label: 1)"
    assert ax.get_legend().get_texts()[1].get_text() == "Chance level (AUC = 0.5)"
    ax = FedPrecisionRecallDisplay.from_histogram(exact, plot_chance_level=True).ax_
    assert ax.get_xlabel() == "Recall (Positive label: 1)"
    assert "Chance level (AP = 0.4" in ax.get_legend().get_texts()[1].get_text()
    ax = FedReliabilityDisplay.from_histogram(exact, name="model").ax_
    assert ax.get_ylabel() == "Fraction of positives (Positive class: 1)"
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["Perfectly calibrated", "model"]


@pytest.mark.parametrize("cls", DISPLAYS)
def test_axes_are_used_or_made(cls, exact, noisy):
    _, ax = plt.subplots()
    first = cls.from_histogram(exact, ax=ax, name="exact")
    second = cls.from_histogram(noisy, ax=ax, name="noisy")
    assert first.ax_ is ax and second.ax_ is ax
    assert len({first.line_.get_color(), second.line_.get_color()}) == 2
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert len(texts) == len(set(texts)) == (3 if cls is FedReliabilityDisplay else 2)
    assert first.plot(name="again").ax_ is not ax
    assert "again" in label_of(first)
    assert first.plot(ax) is first


@pytest.mark.parametrize("cls", CURVES)
def test_styles_go_to_line_and_band(cls, exact):
    display = cls.from_histogram(
        exact, color="red", linestyle=":", label="mine", band_kw={"alpha": 0.5}
    )
    assert display.line_.get_color() == "red"
    assert display.line_.get_linestyle() == ":"
    assert display.line_.get_label() == "mine"
    assert display.band_.get_alpha() == 0.5
    assert display.chance_level_ is None


def test_reliability_takes_styles_and_no_diagonal(exact):
    display = FedReliabilityDisplay.from_histogram(
        exact, ref_line=False, marker="o", band_kw={"ecolor": "green"}
    )
    assert display.ref_line_ is None
    assert display.line_.get_marker() == "o"
    assert display.ax_.get_legend() is None


@pytest.mark.parametrize("cls", DISPLAYS)
def test_figures_can_be_saved(cls, hist, tmp_path):
    path = tmp_path / "figure.png"
    cls.from_histogram(hist).figure_.savefig(path)
    assert path.stat().st_size > 1000


@pytest.mark.parametrize("cls", CURVES)
@simulation
def test_local_reports_have_bands_too(cls, draw_scores):
    scores, labels = draw_scores(4000)
    display = cls.from_clients(
        scores,
        labels,
        client_ids=np.arange(4000),
        privacy=LocalDP(4.0),
        input_type="proba",
        random_state=0,
    )
    assert np.isfinite(display.low).all() and np.isfinite(display.high).all()
    assert (display.low <= display.high).all()


def test_displays_need_no_matplotlib_before_they_draw():
    code = (
        "import sys, skfedcal, skfedcal.plotting\n"
        "from skfedcal import FedRocDisplay, FedReliabilityDisplay\n"
        "from skfedcal import FedPrecisionRecallDisplay\n"
        "print('matplotlib' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("cls", DISPLAYS)
def test_without_matplotlib_the_error_names_the_extra(cls, clients, exact, monkeypatch):
    real = builtins.__import__

    def absent(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ImportError, match=r'pip install "skfedcal\[plot\]"'):
        cls.from_histogram(exact)
    ledger = PrivacyLedger()
    with pytest.raises(ImportError, match=r'pip install "skfedcal\[plot\]"'):
        cls.from_clients(clients, privacy=DistributedDP(1.0), ledger=ledger)
    assert len(ledger) == 0


def _covered(cls, draw_scores, privacy, n_rows, n_repeats):
    """Part of repeats in which bands hold the true curve, at four places."""
    scores, labels = draw_scores(2_000_000, seed=99)
    if cls is FedRocDisplay:
        x, y, _ = roc_curve(labels, scores)
    else:
        y, x, _ = (part[::-1] for part in precision_recall_curve(labels, scores))
    places = np.array([0.2, 0.4, 0.6, 0.8])
    truth = np.interp(places, x, y)
    hits = np.zeros(4)
    for seed in range(n_repeats):
        scores, labels = draw_scores(n_rows, seed)
        display = cls.from_clients(
            scores,
            labels,
            client_ids=np.arange(n_rows),
            privacy=privacy,
            input_type="proba",
            random_state=seed,
        )
        order = np.argsort(points(display)[0], kind="stable")
        low, high = (
            np.interp(places, points(display)[0][order], bound[order])
            for bound in (display.low, display.high)
        )
        hits += (low <= truth) & (truth <= high)
    return hits / n_repeats


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "privacy"),
    [(FedRocDisplay, DistributedDP(1.0)), (FedPrecisionRecallDisplay, None)],
)
@simulation
def test_bands_hold_the_true_curve(cls, privacy, draw_scores, monkeypatch):
    monkeypatch.setattr(cls, "plot", lambda self, *_, **__: self)  # most of the time
    # 122 or fewer of 150 have a chance of 2e-8 at a true coverage of .94, which leaves
    # a hundredth for the first order of the delta method; 8 places are looked at.
    assert (_covered(cls, draw_scores, privacy, 4000, 150) > 122 / 150).all()


@pytest.mark.parametrize("margin", ["counts", "density"])
def test_the_strip_of_a_reliability_display_has_the_released_counts(hist, margin):
    display = FedReliabilityDisplay.from_histogram(hist, margin=margin)
    (strip,) = display.ax_.child_axes
    assert strip.get_xlabel().startswith("Mean predicted probability")
    display.figure_.canvas.draw()
    below = strip.get_tightbbox(display.figure_.canvas.get_renderer())
    assert below.y0 >= 0  # on the page, with its label
    if margin == "counts":
        rows = hist.counts_.sum(axis=0)
        bars = np.histogram(hist.grid.centres, np.linspace(0, 1, 31), weights=rows)[0]
        top = display.margin_.get_path().vertices[:, 1].max()
        assert top == pytest.approx(bars.max())
    else:
        x, y = strip.lines[0].get_data()
        # There are 3000 rows; noise makes a few more of them.
        assert np.trapezoid(y, x) * 30 == pytest.approx(3000, rel=0.1)


def test_a_strip_needs_a_histogram(hist):
    made = FedReliabilityDisplay.from_histogram(hist)
    bare = FedReliabilityDisplay(
        prob_true=made.prob_true, prob_pred=made.prob_pred, low=made.low, high=made.high
    )
    with pytest.raises(ValueError, match="margin='counts' shows the counts of a hist"):
        bare.plot(margin="counts")


def test_reliability_curves_on_one_axes_have_different_marks(hist):
    first = FedReliabilityDisplay.from_histogram(hist, name="a")
    second = FedReliabilityDisplay.from_histogram(hist, name="b", ax=first.ax_)
    assert first.line_.get_marker() != second.line_.get_marker()
    assert first.line_.get_linestyle() != second.line_.get_linestyle()
