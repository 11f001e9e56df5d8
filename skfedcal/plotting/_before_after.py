"""Confusion matrices and t-SNE maps of several models side by side."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skfedcal._typing import Seed
from skfedcal.clients.arrays import distinct, join, read_array
from skfedcal.metrics.validation import check_vector
from skfedcal.plotting._display import COLOURS, MARKS, pyplot

Array = NDArray[Any]

# Inches of one picture.
_WIDTH, _HEIGHT = 4.2, 4.0
# Squares of distances are taken, in float32.
_LARGEST = 1e15


def plot_confusion_matrices(
    y_true: ArrayLike,
    predictions: Mapping[str, ArrayLike],
    *,
    normalize: str | None = "true",
    axes: Any = None,
    **kwargs: Any,
) -> Any:
    """Draw the confusion matrix of each model, such as before and after calibration.

    All rows and labels are in this process: for public test rows and simulations.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels.
    predictions : dict of str to array-like of shape (n_samples,)
        Predicted labels by name of the model, in the order of the pictures.
    normalize : {'true', 'pred', 'all'} or None, default='true'
        What the entries are shares of: rows, columns, all; None shows counts.
    axes : sequence of matplotlib Axes, default=None
        Where to draw, one for each model; None makes a new figure.
    **kwargs : dict
        Further keywords of
        :meth:`sklearn.metrics.ConfusionMatrixDisplay.from_predictions`.

    Returns
    -------
    matplotlib Figure

    Examples
    --------
    >>> from skfedcal.plotting import plot_confusion_matrices
    >>> figure = plot_confusion_matrices(
    ...     [0, 1, 1, 0], {"before": [0, 0, 1, 1], "after": [0, 1, 1, 1]}
    ... )
    >>> [ax.get_title() for ax in figure.axes]
    ['before: accuracy 50.0 %', 'after: accuracy 75.0 %']
    """
    from sklearn.metrics import ConfusionMatrixDisplay

    truth = check_vector(y_true, "y_true")
    axes = _axes(axes, predictions)
    found_labels = {
        name: check_vector(found, f"Predictions of {name!r}")
        for name, found in predictions.items()
    }
    for name, found in found_labels.items():
        if len(found) != len(truth):
            raise ValueError(
                f"{name!r} has {len(found)} predictions for {len(truth)} labels."
            )
    labels = distinct(join([truth, *found_labels.values()], "Labels"), "Labels")
    # More classes than this leave no room for numbers.
    shown = {
        "labels": labels,
        "include_values": len(labels) <= 12,
        "cmap": "Blues",
        "colorbar": False,
        "values_format": "d" if normalize is None else ".2f",
        "text_kw": {"fontsize": 7},
    }
    for ax, (name, found) in zip(axes, found_labels.items(), strict=True):
        ConfusionMatrixDisplay.from_predictions(
            truth, found, ax=ax, normalize=normalize, **{**shown, **kwargs}
        )
        ax.set_title(f"{name}: accuracy {100 * np.mean(truth == found):.1f} %")
    return axes[0].figure


def plot_tsne(
    features: Mapping[str, ArrayLike],
    labels: ArrayLike,
    *,
    max_rows: int = 1000,
    random_state: Seed = None,
    axes: Any = None,
    **kwargs: Any,
) -> Any:
    """Draw a t-SNE map of each model's features, coloured by class.

    Each map is made on its own: places in one say nothing about places in another, and
    nor do distances between far clusters. All rows and labels are in this process: for
    public test rows and simulations.

    Parameters
    ----------
    features : dict of str to array-like of shape (n_samples, n_features)
        Features or logits by name of the model, such as `transform` or
        `predict_logits` of a classifier, for the same rows.
    labels : array-like of shape (n_samples,)
        Labels of the rows.
    max_rows : int, default=1000
        Rows that are drawn, at random if there are more.
    random_state : int, RandomState instance or None, default=None
        Source of rows and of t-SNE.
    axes : sequence of matplotlib Axes, default=None
        Where to draw, one for each model; None makes a new figure.
    **kwargs : dict
        Further parameters of :class:`sklearn.manifold.TSNE`.

    Returns
    -------
    matplotlib Figure

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal.plotting import plot_tsne
    >>> rows = np.random.default_rng(0).normal(size=(40, 3))
    >>> figure = plot_tsne({"before": rows, "after": rows}, rows[:, 0] > 0,
    ...                    perplexity=5, random_state=0)
    >>> [ax.get_title() for ax in figure.axes]
    ['before', 'after']
    """
    from sklearn.manifold import TSNE
    from sklearn.utils import check_random_state

    rng = check_random_state(random_state)
    names, codes = distinct(
        check_vector(labels, "labels"), "labels", return_inverse=True
    )
    if not isinstance(max_rows, Integral) or max_rows < 1:
        raise ValueError(f"max_rows={max_rows!r}: pass a whole number of at least 1.")
    drawn = np.sort(rng.permutation(len(codes))[:max_rows])
    seed = int(rng.randint(2**31 - 1))
    axes = _axes(axes, features)
    for ax, (name, rows) in zip(axes, features.items(), strict=True):
        table = read_array(rows, f"Features of {name!r}", np.float64)
        if table.ndim != 2 or len(table) != len(codes) or not table.shape[1]:
            raise ValueError(
                f"Features of {name!r} have shape {table.shape}; pass a matrix with "
                f"one row for each of {len(codes)} labels."
            )
        if not (np.abs(table) < _LARGEST).all():
            raise ValueError(
                f"Features of {name!r} are not finite, or above {_LARGEST:g}."
            )
        chosen = table[drawn]
        # scikit-learn's tree of points that are all one, or become so in single
        # precision, does not end; the map is the same for rows of any scale.
        span = np.ptp(chosen, axis=0).max()
        if not span > 1e-9 * np.abs(chosen).max(initial=1e-90):
            raise ValueError(f"Features of {name!r} are the same in all rows.")
        chosen = (chosen - chosen.mean(axis=0)) / span
        places = TSNE(**{"init": "pca", "random_state": seed, **kwargs}).fit_transform(
            chosen
        )
        _scatter(ax, places, codes[drawn], names)
        ax.set_title(name)
    axes[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
    return axes[0].figure


def _scatter(ax: Any, places: Array, codes: Array, names: Array) -> None:
    """Points in one colour and mark per class; pairs of both are all different."""
    for code, name in enumerate(names):
        own = places[codes == code]
        mark = MARKS[(code + code // len(COLOURS)) % len(MARKS)]
        colour = COLOURS[code % len(COLOURS)]
        style = {"s": 12, "color": colour, "marker": mark, "linewidths": 0}
        ax.scatter(own[:, 0], own[:, 1], label=str(name), **style)
    ax.set(xticks=[], yticks=[])


def _axes(axes: Any, models: Mapping[str, Any]) -> Any:
    """Axes that are given, or a row of new ones."""
    if not isinstance(models, Mapping) or not models:
        raise ValueError("Pass at least one model: a dict of name and array.")
    if axes is None:
        size = (_WIDTH * len(models), _HEIGHT)
        figure = pyplot().figure(figsize=size, layout="constrained")
        return list(np.atleast_1d(figure.subplots(1, len(models))))
    found = list(np.ravel(np.asarray(axes, dtype=object)))
    if len(found) != len(models):
        raise ValueError(f"axes has {len(found)} entries for {len(models)} models.")
    return found
