"""Federated metrics in the manner of scikit-learn's functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from skfedcal._params import check_flag
from skfedcal.evaluation.answers import answers_documented
from skfedcal.evaluation.calibration import CalibrationCurve, CalibrationErrors
from skfedcal.evaluation.classwise import ClasswiseResiduals
from skfedcal.evaluation.histogram import ScoreHistogram
from skfedcal.evaluation.inputs import Clients, ReadClients, check_choices
from skfedcal.evaluation.intervals import Estimate, check_level
from skfedcal.evaluation.multiclass import Tables, fit_tables
from skfedcal.evaluation.planning import Plan
from skfedcal.evaluation.population import warn_one_row
from skfedcal.evaluation.thresholds import check_threshold
from skfedcal.privacy.models import check_model

if TYPE_CHECKING:
    from skfedcal._typing import ArrayLike, ClientRows, PerRow, Seed
    from skfedcal.evaluation.rounds import Part
    from skfedcal.privacy.models import PrivacyModel

Average = Literal["micro", "macro", "weighted"]
_AVERAGES = ("micro", "macro", "weighted", None)

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_HEADS = ("clients", "y", "client_ids", "privacy")
_SHARED = tuple(
    p
    for p in inspect.signature(ScoreHistogram.fit).parameters.values()
    if p.name not in (*_HEADS, "random_state")
)
_FIRST = inspect.signature(ScoreHistogram.fit).parameters


_RULE = "Parameters\n----------\n"


def _shared_text(skip: tuple[str, ...]) -> tuple[str, str]:
    """Texts of `ScoreHistogram.fit` on the first parameters and on the others."""
    doc = inspect.getdoc(ScoreHistogram.fit) or ""
    lines = doc.partition(_RULE)[2].partition("\nReturns\n")[0].splitlines()
    first: list[str] = []
    later: list[str] = []
    part = first
    for line in lines:
        if line and not line.startswith(" "):
            name = line.split(" : ")[0]
            part = first if name in _HEADS else [] if name in skip else later
        part.append(line)
    return "\n".join(first).strip(), "\n".join(later).strip()


Result = TypeVar("Result", covariant=True)


class FromClients(Protocol[Result]):
    """Function of clients; `options` are checked when it is called."""

    def __call__(
        self,
        clients: ClientRows,
        y: PerRow | None = None,
        *,
        client_ids: ArrayLike | None = None,
        privacy: PrivacyModel | None = None,
        random_state: Seed = None,
        **options: object,
    ) -> Result: ...


def from_clients(
    *skip: str,
) -> Callable[[Callable[..., Result]], FromClients[Result]]:
    """Turn an answer of a histogram into a function of clients.

    The function has the parameters of `ScoreHistogram.fit`, but those in `skip`, and
    the keywords of the answer; `{shared}` in its docstring becomes their text.
    """

    def decorate(answer: Callable[..., Result]) -> FromClients[Result]:
        own = list(inspect.signature(answer).parameters.values())[1:]
        names = {p.name for p in own}
        shared = [p for p in _SHARED if p.name not in (*skip, *names)]

        @wraps(answer)
        def function(
            clients: ClientRows,
            y: PerRow | None = None,
            *,
            client_ids: ArrayLike | None = None,
            privacy: PrivacyModel | None = None,
            random_state: Seed = None,
            **options: object,
        ) -> Result:
            known = {p.name for p in (*shared, *own)}
            unknown = sorted(set(options) - known)
            if unknown:
                raise TypeError(
                    f"{answer.__name__}() got an unexpected keyword argument "
                    f"{unknown[0]!r}"
                )
            asked = {k: v for k, v in options.items() if k in names}
            fit = {k: v for k, v in options.items() if k not in names}
            _confirm_one_row(privacy, fit)
            source = Source(
                clients, y, client_ids, privacy, random_state, fit, answer.__name__
            )
            return answer(source, **asked)

        heads = [_FIRST[name] for name in _HEADS]
        tail = [_FIRST["random_state"]]
        keywords = [p.replace(kind=_KEYWORD) for p in own]
        function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*heads, *keywords, *shared, *tail]
        )
        if function.__doc__:
            first, later = _shared_text((*skip, *names))
            doc = answers_documented.complete(function.__doc__).replace(
                "{shared}", later
            )
            function.__doc__ = doc.replace(_RULE, f"{_RULE}{first}\n", 1)
        return function

    return decorate


def _confirm_one_row(privacy: PrivacyModel | None, fit: dict[str, Any]) -> None:
    """Warn here, where the caller is known, if one row of each client is counted."""
    by_client = getattr(privacy, "private", False) and privacy.unit == "client"  # type: ignore[union-attr]
    planned = isinstance(fit.get("plan"), Plan)
    weighting = fit.get("weighting", "example")
    by_example = isinstance(weighting, str) and weighting == "example"
    if not by_client or planned or not by_example:
        return
    if fit.get("max_examples_per_client") is None:
        warn_one_row("example", stacklevel=4)
        fit["max_examples_per_client"] = 1


class Source:
    """Clients and settings of one call."""

    def __init__(
        self,
        clients: ClientRows,
        y: PerRow | None,
        client_ids: ArrayLike | None,
        privacy: PrivacyModel | None,
        random_state: Seed,
        fit: dict[str, Any],
        name: str,
    ) -> None:
        self.name = name
        self.data: tuple[Any, Any] = (clients, y)
        self.given: dict[str, Any] = {
            "client_ids": client_ids,
            "privacy": privacy,
            "random_state": random_state,
        }
        self.fit = fit

    @property
    def n_classes(self) -> int:
        """Number of classes; the clients are read once."""
        if not isinstance(self.data[0], ReadClients):
            privacy = self.given["privacy"]
            check_model(privacy)
            given = Clients(
                *self.data,
                self.given["client_ids"],
                self.fit.get("classes"),
                self.fit.get("input_type", "logits"),
                privacy is not None and privacy.private,
            )
            self.data = (given.read(), None)
        return len(self.data[0].classes)

    def tables(self, *parts: Part) -> Tables:
        """Tables of predictions and class scores."""
        return fit_tables(parts, self.data, {**self.given, **self.fit}, self.name)

    def histogram(self, **options: Any) -> ScoreHistogram:
        """Histogram of the clients; `plan` in `options` is that of the function."""
        settings = {**self.given, **options, **self.fit}
        return ScoreHistogram.fit(*self.data, **settings)

    def at(self, threshold: float) -> tuple[ScoreHistogram, float]:
        """Histogram for one threshold, and the threshold to ask it for.

        Unless buckets are requested, only the two sides of the threshold are counted:
        this is exact for tied scores, and has the least noise.
        """
        buckets = ("height", "levels", "space")
        given = {k: self.fit[k] for k in buckets if k in self.fit}
        asked = any(
            not isinstance(value, str) or value != _FIRST[k].default  # maybe an array
            for k, value in given.items()
        )
        asked = asked or self.fit.get("plan") is not None
        if asked or self.fit.get("kind", "binary") != "binary":
            return self.histogram(), threshold
        threshold = check_threshold(threshold)
        left_out = (*buckets, "kind", "plan")
        settings = {**self.given, **self.fit}
        rest = {k: v for k, v in settings.items() if k not in left_out}
        return ScoreHistogram._fit_at(threshold, *self.data, **rest), 0.5


@from_clients("kind")
def federated_roc_auc_score(
    source: Source,
    *,
    multi_class: Literal["raise", "ovr", "ovo"] = "raise",
    average: Average | None = "macro",
    n_others: int | None = None,
    ci: float = 0.95,
) -> Estimate | list[Estimate]:
    """Area under the ROC curve.

    Parameters
    ----------
    multi_class : {'raise', 'ovr', 'ovo'}, default='raise'
        For more than two classes: each against the rest, or the mean over all pairs of
        classes. As in scikit-learn, it must then be given, and two classes ignore it.
    average : {'micro', 'macro', 'weighted'} or None, default='macro'
        For more than two classes: mean over classes (or pairs), equal or weighted by
        their rows; 'micro' of all classes and rows together; or one estimate per class.
        'ovo' has 'macro' and 'weighted'.
    n_others : int, default=None
        With 'ovr': None counts a row for its own class and, under noise, for one other
        class that a hash deals to it; without noise for all. A number counts it for
        the other classes with the largest scores; unreported negatives are taken to be
        in the lowest bucket, which makes the area too large.
    ci
    {shared}

    Returns
    -------
    Estimate or list of Estimate

    Examples
    --------
    >>> from skfedcal import federated_roc_auc_score, make_federation
    >>> clients = [([0.1, 0.4, 0.8], [0, 1, 1]), ([0.2, 0.3], [0, 1])]
    >>> print(federated_roc_auc_score(clients, input_type="proba"))
    1.0
    >>> fed = make_federation(n_clients=20, n_samples=2000, random_state=0)
    >>> print(f"{federated_roc_auc_score(fed.clients, multi_class='ovo'):.2f}")
    0.95
    """
    for name, word in (("multi_class", multi_class), ("average", average)):
        if not isinstance(word, str | None):
            raise TypeError(f"{name} must be a string or None, got {word!r}.")
    if multi_class not in ("raise", "ovr", "ovo"):
        raise ValueError(f"multi_class={multi_class!r}: pass 'ovr' or 'ovo'.")
    _check_average(average, _AVERAGES if multi_class != "ovo" else _AVERAGES[1:3])
    if n_others is not None and multi_class != "ovr":
        raise ValueError(
            f"n_others={n_others!r} is for multi_class='ovr'; leave it out."
        )
    if source.n_classes == 2:
        return source.histogram().roc_auc(ci=ci)
    if multi_class == "raise":
        raise ValueError(
            f"There are {source.n_classes} classes: pass multi_class='ovr' (each "
            "against the rest) or multi_class='ovo' (pairs of classes)."
        )
    check_level(ci)
    if n_others is None:
        part: Part = "pairs" if multi_class == "ovo" else "scores"
        found = source.tables(part).scores(part)
        areas: Estimate | list[Estimate] = found.area(multi_class, average, ci)
        return areas
    from skfedcal.evaluation.classwise import fit_one_vs_rest

    if average not in ("macro", None):
        raise ValueError(
            f"average={average!r}: with n_others pass 'macro' or None, or leave "
            "n_others out."
        )
    sparse = fit_one_vs_rest(source.data, {**source.given, **source.fit}, n_others)
    return sparse.macro_auc(ci) if average == "macro" else sparse.per_class(ci)


def _check_average(average: object, allowed: tuple[str | None, ...]) -> None:
    """Raise ValueError for an average that a metric does not have."""
    if average not in allowed:
        words = ", ".join(repr(word) for word in allowed)
        raise ValueError(f"average={average!r}: pass one of {words}.")


@from_clients("kind")
def federated_average_precision_score(
    source: Source, *, average: Average | None = "macro", ci: float = 0.95
) -> Estimate | list[Estimate]:
    """Mean of precision over recall.

    Parameters
    ----------
    average : {'micro', 'macro', 'weighted'} or None, default='macro'
        For more than two classes, each against the rest: mean over classes, equal or
        weighted by their rows; 'micro' of all classes and rows together; or one
        estimate per class.
    ci
    {shared}

    Returns
    -------
    Estimate or list of Estimate

    Examples
    --------
    >>> from skfedcal import federated_average_precision_score
    >>> clients = [([0.1, 0.4, 0.8], [0, 1, 1]), ([0.2, 0.3], [0, 1])]
    >>> print(federated_average_precision_score(clients, input_type="proba"))
    1.0
    """
    _check_average(average, _AVERAGES)
    if source.n_classes == 2:
        return source.histogram(plan="average_precision").average_precision(ci=ci)
    check_level(ci)
    found = source.tables("scores").scores()
    out: Estimate | list[Estimate] = found.average_precision(average, ci)
    return out


@from_clients()
def federated_accuracy_score(
    source: Source, *, threshold: float = 0.5, ci: float = 0.95
) -> Estimate:
    """Fraction of the rows that are predicted correctly.

    Parameters
    ----------
    threshold : float, default=0.5
        Probability from which on a row is predicted positive; not with ``kind='top'``
        or more than two classes, where the most probable class is predicted.
    ci
    {shared}

    Returns
    -------
    Estimate

    Examples
    --------
    >>> from skfedcal import federated_accuracy_score
    >>> clients = [([0.1, 0.4, 0.8], [0, 1, 1]), ([0.2, 0.3], [0, 1])]
    >>> print(federated_accuracy_score(clients, input_type="proba"))
    0.6
    """
    kind = source.fit.get("kind", "binary")
    check_choices(kind=kind)
    if kind != "top" and source.n_classes == 2:
        hist, here = source.at(threshold)
        return hist.accuracy(here, ci=ci)
    if threshold != 0.5:
        raise ValueError(
            f"threshold={threshold!r}: with kind='top', or more than two classes, the "
            "most probable class is predicted. Leave threshold out."
        )
    # Only how many are right is asked: two buckets leave the least noise in that.
    given = [source.fit.get(k, "auto") for k in ("height", "levels")]
    default = all(isinstance(value, str) and value == "auto" for value in given)
    few = {"height": 1} if default else {}
    return source.histogram(kind="top", **few).accuracy(0.0, ci=ci)


@from_clients("kind")
def federated_balanced_accuracy_score(
    source: Source, *, adjusted: bool = False, ci: float = 0.95
) -> Estimate:
    """Mean recall of the classes, for the most probable class as prediction.

    Parameters
    ----------
    adjusted : bool, default=False
        Rescale it so that guessing has 0 and a perfect prediction 1.
    ci
    {shared}

    Returns
    -------
    Estimate

    Examples
    --------
    >>> from skfedcal import federated_balanced_accuracy_score
    >>> clients = [([0.1, 0.4, 0.8], [0, 1, 1]), ([0.2, 0.3], [0, 1])]
    >>> print(f"{federated_balanced_accuracy_score(clients, input_type='proba'):.2f}")
    0.67
    """
    check_level(ci)
    adjusted = check_flag("adjusted", adjusted)
    return source.tables("margins").predictions().balanced_accuracy(adjusted, ci)


@from_clients("kind")
def federated_confusion_matrix(
    source: Source,
    *,
    normalize: Literal["true", "pred", "all"] | None = None,
    ci: float = 0.95,
) -> list[list[Estimate]]:
    """Numbers of rows by label and most probable class.

    Parameters
    ----------
    normalize : {'true', 'pred', 'all'}, default=None
        Shares of the rows of a label, of a predicted class, or of all rows.
    ci
    {shared}

    Returns
    -------
    list of lists of Estimate
        One list per label, in the order of the columns; ``numpy.array`` of it is the
        matrix. Noisy numbers of rows are not clipped at 0, so that sums stay unbiased.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal import federated_confusion_matrix
    >>> clients = [([0.1, 0.4, 0.8], [0, 1, 1]), ([0.2, 0.3], [0, 1])]
    >>> np.array(federated_confusion_matrix(clients, input_type="proba"))
    array([[2., 0.],
           [2., 1.]])
    """
    if normalize is not None and (
        not isinstance(normalize, str) or normalize not in ("true", "pred", "all")
    ):
        raise ValueError(
            f"normalize={normalize!r}: pass 'true', 'pred', 'all' or None."
        )
    check_level(ci)
    return source.tables("confusion").predictions().matrix(normalize, ci)


def _predicted(
    source: Source, metric: str, threshold: float, average: str | None, ci: float
) -> Estimate | list[Estimate]:
    """Precision, recall or F1 of two or more classes."""
    _check_average(average, ("binary", *_AVERAGES))
    if average == "binary":
        if source.n_classes > 2:
            raise ValueError(
                f"There are {source.n_classes} classes, but average='binary'. Pass "
                "average='micro', 'macro', 'weighted' or None."
            )
        hist, here = source.at(threshold)
        found: Estimate = getattr(hist, metric)(here, ci=ci)
        return found
    if threshold != 0.5:
        raise ValueError(
            f"threshold={threshold!r}: with average={average!r} the most probable "
            "class is predicted. Leave threshold out."
        )
    check_level(ci)
    return source.tables("margins").predictions().score(metric, average, ci)


@from_clients("kind")
def federated_precision_score(
    source: Source,
    *,
    threshold: float = 0.5,
    average: Average | Literal["binary"] | None = "binary",
    ci: float = 0.95,
) -> Estimate | list[Estimate]:
    """Fraction of the predicted positives that are positive.

    Parameters
    ----------
    threshold, average, ci
    {shared}

    Returns
    -------
    Estimate or list of Estimate

    Examples
    --------
    >>> from skfedcal import federated_precision_score
    >>> clients = [([0.1, 0.6, 0.8], [0, 0, 1]), ([0.2, 0.3], [0, 1])]
    >>> print(federated_precision_score(clients, input_type="proba"))
    0.5
    """
    return _predicted(source, "precision", threshold, average, ci)


@from_clients("kind")
def federated_recall_score(
    source: Source,
    *,
    threshold: float = 0.5,
    average: Average | Literal["binary"] | None = "binary",
    ci: float = 0.95,
) -> Estimate | list[Estimate]:
    """Fraction of the positives that are predicted positive.

    Parameters
    ----------
    threshold, average, ci
    {shared}

    Returns
    -------
    Estimate or list of Estimate

    Examples
    --------
    >>> from skfedcal import federated_recall_score
    >>> clients = [([0.1, 0.4, 0.8], [0, 0, 1]), ([0.2, 0.3], [0, 1])]
    >>> print(federated_recall_score(clients, input_type="proba"))
    0.5
    """
    return _predicted(source, "recall", threshold, average, ci)


@from_clients("kind")
def federated_f1_score(
    source: Source,
    *,
    threshold: float = 0.5,
    average: Average | Literal["binary"] | None = "binary",
    ci: float = 0.95,
) -> Estimate | list[Estimate]:
    """Harmonic mean of precision and recall.

    Parameters
    ----------
    threshold, average, ci
    {shared}

    Returns
    -------
    Estimate or list of Estimate

    Examples
    --------
    >>> from skfedcal import federated_f1_score
    >>> clients = [([0.1, 0.6, 0.8], [0, 0, 1]), ([0.2, 0.3], [0, 1])]
    >>> print(federated_f1_score(clients, input_type="proba"))
    0.5
    """
    return _predicted(source, "f1", threshold, average, ci)


@from_clients("kind")
def federated_brier_score_loss(source: Source, *, ci: float = 0.95) -> Estimate:
    """Mean squared difference of score and outcome.

    With more than two classes it is summed over classes, so that it is from 0 to 2, as
    in scikit-learn.

    Parameters
    ----------
    ci
    {shared}

    Returns
    -------
    Estimate

    Examples
    --------
    >>> from skfedcal import federated_brier_score_loss
    >>> clients = [([0.0, 1.0], [0, 1]), ([1.0], [1])]
    >>> print(f"{federated_brier_score_loss(clients, input_type='proba'):.4f}")
    0.0000
    """
    if source.n_classes == 2:
        return source.histogram(plan="brier").brier(ci=ci)
    check_level(ci)
    return source.tables("scores").scores().brier(ci)


@from_clients("kind")
def federated_log_loss(source: Source, *, ci: float = 0.95) -> Estimate:
    """Mean negative log-likelihood of scores.

    Parameters
    ----------
    ci
    {shared}

    Returns
    -------
    Estimate

    Examples
    --------
    >>> from skfedcal import federated_log_loss
    >>> clients = [([0.5, 0.5], [0, 1]), ([0.5], [1])]
    >>> print(f"{federated_log_loss(clients, input_type='proba'):.2f}")
    0.69
    """
    if source.n_classes == 2:
        return source.histogram(plan="log_loss").log_loss(ci=ci)
    check_level(ci)
    return source.tables("scores").scores().log_loss(ci)


@from_clients("kind")
def federated_calibration_error(
    source: Source,
    *,
    kind: Literal["top", "binary", "l2", "classwise"] = "top",
    n_bins: int = 15,
    strategy: str = "uniform",
    debias: bool = True,
    ci: float = 0.95,
) -> Estimate:
    """Mean gap between predicted probability and frequency.

    Parameters
    ----------
    kind : {'top', 'binary', 'l2', 'classwise'}, default='top'
        Of the most probable class; of the positive of two classes; mean squared gap of
        the most probable class, unbiased; mean over all classes, by
        `ClasswiseResiduals`.
    n_bins : int, default=15
        Number of bins.
    strategy : {'uniform', 'quantile'}, default='uniform'
        Bins of equal width or of about equal depth; 'classwise' has the former.
    debias : bool, default=True
        Subtract the bias that sampling and noise add.
    ci
    {shared}

    Returns
    -------
    Estimate

    Examples
    --------
    >>> from skfedcal import federated_calibration_error, make_federation
    >>> fed = make_federation(n_clients=20, n_samples=2000, random_state=0)
    >>> print(f"{federated_calibration_error(fed.clients):.2f}")
    0.12
    """
    if not isinstance(kind, str) or kind not in ("top", "binary", "l2", "classwise"):
        raise ValueError(f"kind={kind!r}: pass 'top', 'binary', 'l2' or 'classwise'.")
    if kind == "classwise":
        return _classwise_error(source, n_bins, strategy, debias, ci)
    hist = source.histogram(kind="binary" if kind == "binary" else "top", plan="ece")
    answer = CalibrationErrors.l2_ece if kind == "l2" else CalibrationErrors.ece
    out: Estimate = answer(hist, n_bins, strategy=strategy, debias=debias, ci=ci)
    return out


def _classwise_error(
    source: Source, n_bins: int, strategy: str, debias: bool, ci: float
) -> Estimate:
    usable = inspect.signature(ClasswiseResiduals.fit).parameters
    extra = sorted(set(source.fit) - set(usable))
    if extra or strategy != "uniform":
        name = extra[0] if extra else "strategy"
        raise ValueError(f"{name} is not used with kind='classwise'; leave it out.")
    settings: dict[str, Any] = {**source.given, **source.fit, "n_bins": n_bins}
    clients, y = source.data
    found = ClasswiseResiduals.fit(clients, y, **settings)
    return found.cwece(debias=debias, ci=ci)


@from_clients()
def federated_calibration_curve(
    source: Source, *, n_bins: int = 5, strategy: str = "uniform"
) -> CalibrationCurve:
    """Frequency of positives against the mean score of bins.

    With more than two classes, of the most probable class: positive if it is correct.

    Parameters
    ----------
    n_bins : int, default=5
        Number of bins; a bin whose count may be noise alone is left out.
    strategy
    {shared}

    Returns
    -------
    curve : CalibrationCurve
        Unpacks into the frequency of positives, the mean score, and the standard error
        of the frequency, of sampling and privacy together, for each point; it also has
        their intervals, and privacy, population and estimand of the release.

    Examples
    --------
    >>> from skfedcal import federated_calibration_curve
    >>> clients = [([0.1, 0.1, 0.9], [0, 1, 1]), ([0.1, 0.1], [0, 0])]
    >>> curve = federated_calibration_curve(clients, n_bins=2, input_type="proba")
    >>> curve[0].tolist()
    [0.25, 1.0]
    """
    kind = {"kind": "top"} if source.n_classes > 2 else {}
    hist = source.histogram(plan="ece", **kind)
    return CalibrationCurve(hist.reliability(n_bins, strategy=strategy), hist)
