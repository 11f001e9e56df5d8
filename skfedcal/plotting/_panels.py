"""Several models side by side: reliability, confusion matrices and t-SNE maps."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skfedcal import _numerics
from skfedcal._params import as_number
from skfedcal._typing import Seed
from skfedcal.clients.arrays import distinct, join, read_array, to_logits
from skfedcal.clients.forms import check_scores
from skfedcal.metrics import classwise_calibration_error
from skfedcal.metrics.validation import check_vector
from skfedcal.plotting._reliability_display import (
    ReliabilityDisplay,
    bottom_of,
    check_classifier,
)
from skfedcal.plotting.display import (
    COLOURS,
    MARKS,
    Array,
    documented,
    line_style,
    pyplot,
)

# Inches of one diagram, alone and in a grid, and of another picture.
_PANEL, _CELL, _SQUARE = (3.9, 4.4), (2.5, 2.4), (4.2, 4.0)
# Squares of distances are taken, in float32.
_LARGEST = 1e15


def before_and_after(calibrator: Any, X: Any) -> dict[str, Array]:
    """Return the probabilities of scores as they are, and calibrated.

    Parameters
    ----------
    calibrator : calibrator
        Fitted.
    X : array-like of shape (n_samples, n_columns)
        Scores of the form given to `fit`.

    Returns
    -------
    predictions : dict of str to ndarray of shape (n_samples, n_classes)
        'before' and 'after', with columns in the order of `classes_`: for
        `plot_reliability` and `plot_reliability_grid`.

    Examples
    --------
    >>> from skfedcal import FedTempCalibrator
    >>> from skfedcal.plotting import before_and_after
    >>> logits, labels = [[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]], [0, 1, 1]
    >>> cal = FedTempCalibrator().fit(logits, labels)
    >>> {k: v[0].round(2).tolist() for k, v in before_and_after(cal, logits).items()}
    {'before': [0.88, 0.12], 'after': [0.67, 0.33]}
    """
    check_classifier(calibrator)
    if not hasattr(calibrator, "input_type"):
        raise TypeError(
            f"{calibrator!r} is not a calibrator; pass a fitted calibrator."
        )
    after = calibrator.predict_proba(X)
    scores = check_scores(calibrator, X, reset=False)
    logits = to_logits(
        scores, len(calibrator.classes_), input_type=calibrator.input_type
    )
    before = _numerics.softmax(logits)[:, calibrator._class_map.order]
    return {"before": before, "after": after}


@documented
def plot_reliability(
    y_true: ArrayLike,
    predictions: Mapping[str, ArrayLike],
    *,
    labels: ArrayLike | None = None,
    axes: Any = None,
    **kwargs: Any,
) -> Any:
    """Draw the reliability diagram of each model, such as before and after.

    All rows and labels are in this process: for public test rows and simulations.

    Parameters
    ----------
    y_true
    predictions : dict of str to array-like of shape (n_samples, n_classes)
        Probabilities by name of the model, in the order of the pictures.
    labels, axes
    **kwargs : dict
        Further keywords of :meth:`skfedcal.ReliabilityDisplay.from_predictions`.

    Returns
    -------
    matplotlib Figure

    Examples
    --------
    >>> from skfedcal import FedTempCalibrator, make_federation
    >>> from skfedcal.plotting import before_and_after, plot_reliability
    >>> fed = make_federation(n_clients=50, random_state=0)
    >>> cal = FedTempCalibrator().fit(fed.clients)
    >>> figure = plot_reliability(
    ...     fed.test_labels, before_and_after(cal, fed.test_logits)
    ... )
    >>> [ax.get_title() for ax in figure.axes][:2]
    ['before', 'after']
    """
    axes = _row_of_axes(axes, predictions)
    for i, (ax, (name, proba)) in enumerate(
        zip(axes, predictions.items(), strict=True)
    ):
        style = {**line_style(i), **kwargs}
        ReliabilityDisplay.from_predictions(
            y_true, proba, labels=labels, ax=ax, **style
        )
        ax.set_title(name)
        if i:
            ax.set_ylabel("")
    return axes[0].figure


@documented
def plot_reliability_grid(
    y_true: ArrayLike,
    predictions: Mapping[str, ArrayLike],
    *,
    labels: ArrayLike | None = None,
    classes: ArrayLike | None = None,
    max_classes: int = 12,
    n_columns: int = 4,
    margin: str | None = None,
    **kwargs: Any,
) -> Any:
    """Draw a reliability diagram for each class, with a curve for each model.

    All rows and labels are in this process: for public test rows and simulations.

    Parameters
    ----------
    y_true
    predictions : dict of str to array-like of shape (n_samples, n_classes)
        Probabilities by name of the model, in the order of the legend.
    labels
    classes : sequence of labels, default=None
        The classes to draw. None draws all, or, where there are more than
        `max_classes`, those with the largest error under the first model.
    max_classes : int, default=12
        Diagrams where `classes` is None.
    n_columns : int, default=4
        Diagrams in a row.
    margin : {'counts', 'density'} or None, default=None
        Strip with the scores below each diagram.
    **kwargs : dict
        Further keywords of :meth:`skfedcal.ReliabilityDisplay.from_predictions`, as
        ``scale='logit'``.

    Returns
    -------
    matplotlib Figure

    Examples
    --------
    >>> from skfedcal import FedVectorCalibrator, make_federation
    >>> from skfedcal.plotting import before_and_after, plot_reliability_grid
    >>> fed = make_federation(n_clients=50, n_classes=3, random_state=0)
    >>> cal = FedVectorCalibrator().fit(fed.clients)
    >>> figure = plot_reliability_grid(
    ...     fed.test_labels, before_and_after(cal, fed.test_logits)
    ... )
    >>> [ax.get_title() for ax in figure.axes]
    ['class 0', 'class 1', 'class 2']
    """
    _check_models(predictions)
    max_classes = check_count("max_classes", max_classes)
    n_columns = check_count("n_columns", n_columns)
    given = check_vector(y_true if labels is None else labels, "labels")
    known = distinct(given, "labels")
    chosen, title = list(known), None
    if classes is not None:
        chosen = check_vector(classes, "classes").tolist()
    if classes is None and len(known) > max_classes:
        first = next(iter(predictions.values()))
        chosen = list(known[_worst(y_true, first, labels, max_classes)])
        title = f"{max_classes} of {len(known)} classes, those with the largest error"
    if not chosen:
        raise ValueError(
            "A grid of 0 classes cannot be drawn; pass at least one class."
        )
    figure, axes = _grid(len(chosen), n_columns, margin is not None)
    for ax, target in zip(axes, chosen, strict=True):
        for name, proba in predictions.items():
            ReliabilityDisplay.from_predictions(
                y_true,
                proba,
                target=_plain(target),
                labels=labels,
                name=name,
                ax=ax,
                margin=margin,
                **kwargs,
            )
        ax.set(title=f"class {target}", ylabel="")
        bottom_of(ax).set_xlabel("")
        # The name of each model is said once; what differs is its error here.
        ax.legend(*_short_legend(ax), fontsize=7, loc="upper left", framealpha=0.9)
    figure.supxlabel("Predicted probability of the class", fontsize=10)
    figure.supylabel("Frequency of the class", fontsize=10)
    if title is not None:
        figure.suptitle(title, fontsize=10)
    return figure


def _worst(
    y_true: ArrayLike, proba: ArrayLike, labels: ArrayLike | None, size: int
) -> Array:
    """Columns of the classes with the largest error, in order."""
    errors = classwise_calibration_error(y_true, proba, average=None, labels=labels)
    return np.sort(np.argsort(errors, kind="stable")[::-1][:size])


def _short_legend(ax: Any) -> tuple[list[Any], list[str]]:
    """Curves only, without the diagonal."""
    pairs = [
        (line, line.get_label()) for line in ax.lines if line.get_gid() == "skfedcal"
    ]
    return [line for line, _ in pairs], [label for _, label in pairs]


def _grid(size: int, n_columns: int, with_margin: bool) -> tuple[Any, list[Any]]:
    n_columns = min(n_columns, size)
    n_rows = -(-size // n_columns)
    width, height = _CELL
    height += 0.7 * with_margin
    figure = pyplot().figure(
        figsize=(width * n_columns + 0.3, height * n_rows + 0.3), layout="constrained"
    )
    axes = [figure.add_subplot(n_rows, n_columns, i + 1) for i in range(size)]
    return figure, axes


def _row_of_axes(
    axes: Any, models: Mapping[str, Any], size: tuple[float, float] = _PANEL
) -> list[Any]:
    """Axes that are given, or a row of new ones."""
    _check_models(models)
    if axes is None:
        width, height = size
        figure = pyplot().figure(
            figsize=(width * len(models), height), layout="constrained"
        )
        return list(np.atleast_1d(figure.subplots(1, len(models))))
    found = list(np.ravel(np.asarray(axes, dtype=object)))
    if len(found) != len(models):
        raise ValueError(f"axes has {len(found)} entries for {len(models)} models.")
    if not all(hasattr(ax, "figure") for ax in found):
        raise TypeError(f"axes={axes!r}: pass matplotlib Axes, or None.")
    return found


def _check_models(models: Any) -> None:
    if not isinstance(models, Mapping) or not models:
        raise ValueError(
            f"Pass at least one model, as a dict of name and array, not {models!r}."
        )


def check_count(name: str, value: Any) -> int:
    """Return a whole number above 0."""
    number = as_number(name, value)
    if not 1 <= number < 2**31 or number != int(number):
        raise ValueError(f"{name}={value!r} is not a whole number above 0.")
    return int(number)


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label


@documented
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
    y_true
    predictions : dict of str to array-like of shape (n_samples,)
        Predicted labels by name of the model, in the order of the pictures.
    normalize : {'true', 'pred', 'all'} or None, default='true'
        What the entries are shares of: rows, columns, all; None shows counts.
    axes
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
    axes = _row_of_axes(axes, predictions, _SQUARE)
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


@documented
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
    axes
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
    axes = _row_of_axes(axes, features, _SQUARE)
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
