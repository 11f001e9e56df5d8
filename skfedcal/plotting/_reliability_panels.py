"""Reliability diagrams of several models, and of all classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skfedcal import _numerics
from skfedcal._params import as_number
from skfedcal.clients.arrays import distinct, to_logits
from skfedcal.clients.forms import check_scores
from skfedcal.metrics import classwise_calibration_error
from skfedcal.metrics.validation import check_vector
from skfedcal.plotting._display import line_style, pyplot
from skfedcal.plotting._reliability_display import (
    ReliabilityDisplay,
    bottom_of,
    check_classifier,
)

Array = NDArray[Any]

# Inches of one diagram, alone and in a grid.
_PANEL, _CELL = (3.9, 4.4), (2.5, 2.4)


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
    y_true : array-like of shape (n_samples,)
        True labels.
    predictions : dict of str to array-like of shape (n_samples, n_classes)
        Probabilities by name of the model, in the order of the pictures.
    labels : array-like of shape (n_classes,), default=None
        All labels, one per column. Needed when `y_true` misses some.
    axes : sequence of matplotlib Axes, default=None
        Where to draw, one for each model; None makes a new figure.
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
    y_true : array-like of shape (n_samples,)
        True labels.
    predictions : dict of str to array-like of shape (n_samples, n_classes)
        Probabilities by name of the model, in the order of the legend.
    labels : array-like of shape (n_classes,), default=None
        All labels, one per column. Needed when `y_true` misses some.
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


def _row_of_axes(axes: Any, models: Mapping[str, Any]) -> list[Any]:
    _check_models(models)
    if axes is None:
        width, height = _PANEL
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
            f"predictions={models!r}: pass at least one model, as a dict of name and "
            "probabilities."
        )


def check_count(name: str, value: Any) -> int:
    """Return a whole number above 0."""
    number = as_number(name, value)
    if not 1 <= number < 2**31 or number != int(number):
        raise ValueError(f"{name}={value!r} is not a whole number above 0.")
    return int(number)


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label
