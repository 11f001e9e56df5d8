"""Confusion matrices and t-SNE maps side by side."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from skfedcal.plotting import plot_confusion_matrices, plot_tsne


def matrix(ax):
    return np.asarray(ax.images[0].get_array())


def test_confusion_matrices_are_those_of_sklearn():
    rng = np.random.default_rng(0)
    truth = rng.choice(list("abc"), 60)
    models = {name: rng.choice(list("abcd"), 60) for name in ("before", "after")}
    figure = plot_confusion_matrices(truth, models)
    for ax, (name, found) in zip(figure.axes, models.items(), strict=True):
        labels = list("abcd")
        # No row is of class d: its shares are shown as zero.
        expected = confusion_matrix(truth, found, labels=labels, normalize="true")
        np.testing.assert_allclose(matrix(ax), expected)
        right = 100 * np.mean(truth == found)
        assert ax.get_title() == f"{name}: accuracy {right:.1f} %"


def test_counts_on_given_axes():
    _, axes = plt.subplots(1, 2)
    figure = plot_confusion_matrices(
        [0, 1, 1], {"x": [0, 1, 0], "y": [1, 1, 1]}, normalize=None, axes=axes
    )
    assert figure is axes[0].figure
    np.testing.assert_array_equal(matrix(axes[0]), [[1, 0], [1, 1]])
    np.testing.assert_array_equal(matrix(axes[1]), [[0, 1], [0, 2]])
    with pytest.raises(ValueError, match="axes has 2 entries for 1 models"):
        plot_confusion_matrices([0, 1], {"x": [0, 1]}, axes=axes)
    with pytest.raises(ValueError, match="at least one model"):
        plot_confusion_matrices([0, 1], {})


def test_a_map_shows_each_row_in_the_colour_of_its_class():
    rng = np.random.default_rng(0)
    labels = np.repeat(["u", "v", "w"], 20)
    apart = 50.0 * np.eye(3)[np.repeat(np.arange(3), 20)] + rng.normal(size=(60, 3))
    models = {"mixed": rng.normal(size=(60, 3)), "apart": apart}
    figure = plot_tsne(models, labels, random_state=0, perplexity=8)
    assert [ax.get_title() for ax in figure.axes] == ["mixed", "apart"]
    ratios = []
    for ax in figure.axes:
        groups = [points.get_offsets() for points in ax.collections]
        assert [len(points) for points in groups] == [20, 20, 20]
        within = np.mean([np.std(points, axis=0).mean() for points in groups])
        between = np.std([np.mean(points, axis=0) for points in groups], axis=0).mean()
        ratios.append(between / within)
    assert ratios[1] > 3 * ratios[0]
    again = plot_tsne(models, labels, random_state=0, perplexity=8)
    np.testing.assert_array_equal(
        figure.axes[1].collections[0].get_offsets(),
        again.axes[1].collections[0].get_offsets(),
    )


def test_few_of_many_rows_are_drawn():
    rows = np.random.default_rng(0).normal(size=(80, 2))
    figure = plot_tsne(
        {"model": rows}, np.arange(80) % 2, max_rows=30, random_state=1, perplexity=5
    )
    (ax,) = figure.axes
    assert sum(len(points.get_offsets()) for points in ax.collections) == 30


@pytest.mark.parametrize("scale", [1e-60, 1e-30, 1.0])
def test_tsne_of_rows_of_any_scale(scale):
    # In single precision tiny rows are all one, and scikit-learn's tree crashes.
    rows = np.random.default_rng(0).normal(size=(12, 3))
    figure = plot_tsne(
        {"a": rows * scale}, rows[:, 0] > 0, random_state=0, perplexity=3, max_iter=250
    )
    places = np.concatenate([c.get_offsets() for c in figure.axes[0].collections])
    assert places.shape == (12, 2) and np.isfinite(places).all()
    assert np.ptp(places, axis=0).min() > 0


def test_tsne_needs_a_column():
    with pytest.raises(ValueError, match=r"have shape \(5, 0\)"):
        plot_tsne({"a": np.empty((5, 0))}, np.arange(5))
