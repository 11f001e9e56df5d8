"""Federated metrics in the manner of scikit-learn's functions.

- Make a function of clients from an answer of a histogram.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from skfedcal.evaluation.calibration import CalibrationErrors
from skfedcal.evaluation.classwise import ClasswiseResiduals
from skfedcal.evaluation.histogram import ScoreHistogram
from skfedcal.evaluation.inputs import check_choices
from skfedcal.evaluation.intervals import Estimate
from skfedcal.evaluation.thresholds import check_threshold

if TYPE_CHECKING:
    from skfedcal._typing import ArrayLike, ClientRows, FloatArray, PerRow, Seed
    from skfedcal.privacy.models import PrivacyModel

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
            source = Source(clients, y, client_ids, privacy, random_state, fit)
            return answer(source, **asked)

        heads = [_FIRST[name] for name in _HEADS]
        tail = [_FIRST["random_state"]]
        keywords = [p.replace(kind=_KEYWORD) for p in own]
        function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*heads, *keywords, *shared, *tail]
        )
        if function.__doc__:
            first, later = _shared_text((*skip, *names))
            doc = inspect.cleandoc(function.__doc__).replace("{shared}", later)
            function.__doc__ = doc.replace(_RULE, f"{_RULE}{first}\n", 1)
        return function

    return decorate


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
    ) -> None:
        self.data = (clients, y)
        self.given: dict[str, Any] = {
            "client_ids": client_ids,
            "privacy": privacy,
            "random_state": random_state,
        }
        self.fit = fit

    def histogram(self, **options: Any) -> ScoreHistogram:
        """Histogram of the clients."""
        settings = {**self.given, **self.fit, **options}
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
        if asked or self.fit.get("kind", "binary") != "binary":
            return self.histogram(), threshold
        threshold = check_threshold(threshold)
        left_out = (*buckets, "kind")
        settings = {**self.given, **self.fit}
        rest = {k: v for k, v in settings.items() if k not in left_out}
        return ScoreHistogram._fit_at(threshold, *self.data, **rest), 0.5


@from_clients("kind")
def federated_roc_auc_score(
    source: Source,
    *,
    multi_class: Literal["raise", "ovr"] = "raise",
    average: Literal["macro"] | None = "macro",
    n_others: int | None = None,
    ci: float = 0.95,
) -> Estimate | list[Estimate]:
    """Area under the ROC curve.

    Parameters
    ----------
    multi_class : {'raise', 'ovr'}, default='raise'
        'ovr': each of several classes against the rest.
    average : {'macro'} or None, default='macro'
        With 'ovr': mean over classes, or one estimate per class.
    n_others : int, default=None
        With 'ovr': classes besides its own that a row is counted for, those with the
        largest scores; unreported negatives are taken to be in the lowest bucket. None
        is all of them without noise, and 1 with noise, whose scale grows with
        ``n_others + 1``.
    ci : float, default=0.95
        Level of the confidence interval.
    {shared}

    Returns
    -------
    Estimate or list of Estimate

    Examples
    --------
    >>> from skfedcal import federated_roc_auc_score
    >>> clients = [([0.1, 0.4, 0.8], [0, 1, 1]), ([0.2, 0.3], [0, 1])]
    >>> print(federated_roc_auc_score(clients, input_type="proba"))
    1.0
    """
    for name, word in (("multi_class", multi_class), ("average", average)):
        if not isinstance(word, str | None):
            raise TypeError(f"{name} must be a string or None, got {word!r}.")
    if multi_class == "raise":
        for name, value, default in (
            ("average", average, "macro"),
            ("n_others", n_others, None),
        ):
            if value is not default and not (
                isinstance(value, str) and value == default
            ):
                raise ValueError(
                    f"{name}={value!r} is for multi_class='ovr'; leave it out."
                )
        return source.histogram().roc_auc(ci=ci)
    from skfedcal.evaluation.classwise import fit_one_vs_rest

    if multi_class != "ovr":
        raise ValueError(f"multi_class={multi_class!r}: pass 'raise' or 'ovr'.")
    if average not in ("macro", None):
        raise ValueError(f"average={average!r}: pass 'macro' or None.")
    found = fit_one_vs_rest(source.data, {**source.given, **source.fit}, n_others)
    return found.macro_auc(ci) if average == "macro" else found.per_class(ci)


@from_clients()
def federated_accuracy_score(
    source: Source, *, threshold: float = 0.5, ci: float = 0.95
) -> Estimate:
    """Fraction of the rows that are predicted correctly.

    Parameters
    ----------
    threshold : float, default=0.5
        Probability from which on a row is predicted positive; not with ``kind='top'``,
        where the most probable class is predicted.
    ci : float, default=0.95
        Level of the confidence interval.
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
    if kind != "top":
        hist, here = source.at(threshold)
        return hist.accuracy(here, ci=ci)
    if threshold != 0.5:
        raise ValueError(
            f"threshold={threshold!r}: with kind='top' the most probable class is "
            "predicted. Leave threshold out."
        )
    # Only how many are right is asked: two buckets leave the least noise in that.
    default = all(source.fit.get(k, "auto") == "auto" for k in ("height", "levels"))
    hist = source.histogram(height=1) if default else source.histogram()
    return hist.accuracy(0.0, ci=ci)


@from_clients("kind")
def federated_precision_score(
    source: Source, *, threshold: float = 0.5, ci: float = 0.95
) -> Estimate:
    """Fraction of the predicted positives that are positive.

    Parameters
    ----------
    threshold : float, default=0.5
        Probability from which on a row is predicted positive.
    ci : float, default=0.95
        Level of the confidence interval.
    {shared}

    Returns
    -------
    Estimate

    Examples
    --------
    >>> from skfedcal import federated_precision_score
    >>> clients = [([0.1, 0.6, 0.8], [0, 0, 1]), ([0.2, 0.3], [0, 1])]
    >>> print(federated_precision_score(clients, input_type="proba"))
    0.5
    """
    hist, here = source.at(threshold)
    return hist.precision(here, ci=ci)


@from_clients("kind")
def federated_recall_score(
    source: Source, *, threshold: float = 0.5, ci: float = 0.95
) -> Estimate:
    """Fraction of the positives that are predicted positive.

    Parameters
    ----------
    threshold : float, default=0.5
        Probability from which on a row is predicted positive.
    ci : float, default=0.95
        Level of the confidence interval.
    {shared}

    Returns
    -------
    Estimate

    Examples
    --------
    >>> from skfedcal import federated_recall_score
    >>> clients = [([0.1, 0.4, 0.8], [0, 0, 1]), ([0.2, 0.3], [0, 1])]
    >>> print(federated_recall_score(clients, input_type="proba"))
    0.5
    """
    hist, here = source.at(threshold)
    return hist.recall(here, ci=ci)


@from_clients("kind")
def federated_f1_score(
    source: Source, *, threshold: float = 0.5, ci: float = 0.95
) -> Estimate:
    """Harmonic mean of precision and recall.

    Parameters
    ----------
    threshold : float, default=0.5
        Probability from which on a row is predicted positive.
    ci : float, default=0.95
        Level of the confidence interval.
    {shared}

    Returns
    -------
    Estimate

    Examples
    --------
    >>> from skfedcal import federated_f1_score
    >>> clients = [([0.1, 0.6, 0.8], [0, 0, 1]), ([0.2, 0.3], [0, 1])]
    >>> print(federated_f1_score(clients, input_type="proba"))
    0.5
    """
    hist, here = source.at(threshold)
    return hist.f1(here, ci=ci)


@from_clients("kind")
def federated_brier_score_loss(source: Source, *, ci: float = 0.95) -> Estimate:
    """Mean squared difference of score and outcome.

    Parameters
    ----------
    ci : float, default=0.95
        Level of the confidence interval.
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
    return source.histogram().brier(ci=ci)


@from_clients("kind")
def federated_log_loss(source: Source, *, ci: float = 0.95) -> Estimate:
    """Mean negative log-likelihood of binary scores.

    Parameters
    ----------
    ci : float, default=0.95
        Level of the confidence interval.
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
    return source.histogram().log_loss(ci=ci)


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
    ci : float, default=0.95
        Level of the confidence interval.
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
    hist = source.histogram(kind="binary" if kind == "binary" else "top")
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
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Frequency of positives against the mean score of bins.

    Parameters
    ----------
    n_bins : int, default=5
        Number of bins; a bin whose count may be noise alone is left out.
    strategy : {'uniform', 'quantile'}, default='uniform'
        Bins of equal width, or of about equal depth.
    {shared}

    Returns
    -------
    prob_true : ndarray of shape (n_points,)
        Frequency of positives.
    prob_pred : ndarray of shape (n_points,)
        Mean score.
    error : ndarray of shape (n_points,)
        Standard error of `prob_true`, of sampling and privacy together.

    Examples
    --------
    >>> from skfedcal import federated_calibration_curve
    >>> clients = [([0.1, 0.1, 0.9], [0, 1, 1]), ([0.1, 0.1], [0, 0])]
    >>> curve = federated_calibration_curve(clients, n_bins=2, input_type="proba")
    >>> curve[0].tolist()
    [0.25, 1.0]
    """
    points = source.histogram().reliability(n_bins, strategy=strategy)
    return points.prob_true, points.prob_pred, points.se
