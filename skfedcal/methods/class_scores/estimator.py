"""FedOneVsRestCalibrator: sigmoid and isotonic calibration as in scikit-learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from skfedcal._docs import documented
from skfedcal._sklearn_compat import StrOptions
from skfedcal.clients.arrays import check_given
from skfedcal.clients.forms import check_scores
from skfedcal.methods.base import BaseCalibrator
from skfedcal.methods.buckets import sigmoid
from skfedcal.methods.class_scores.rounds import (
    ScoreTable,
    SigmoidNewton,
    class_scores,
    n_scores_of,
)
from skfedcal.methods.graph import expit, interpolate

if TYPE_CHECKING:
    from skfedcal._typing import ArrayLike, InputType, Rows, Seed
    from skfedcal.contract import FederatedAlgorithm
    from skfedcal.federation.runner import FederatedRunner
    from skfedcal.methods.base import FitSetting
    from skfedcal.methods.graph import Value
    from skfedcal.privacy.ledger import PrivacyLedger
    from skfedcal.privacy.models import PrivacyModel


Array = NDArray[Any]

# Said in the report of an isotonic fit.
_TABLE_KNOWN = (
    "the server learns every distinct score of the clients' rows together, with its "
    "numbers of clients, rows and labels; which client has it stays hidden only in a "
    "masked sum over several clients"
)


@documented
class FedOneVsRestCalibrator(BaseCalibrator):
    """Sigmoid or isotonic calibration of each class against the rest, without noise.

    The same maps as those of :class:`sklearn.calibration.CalibratedClassifierCV`, from
    rows that stay with the clients: the result is that of one fit to the rows of all
    clients together. Scores are used as they are given: `decision_function` with
    ``input_type='logits'``, `predict_proba` with ``input_type='proba'``.

    Parameters
    ----------
    eps : None
        Has to be None, as `delta`: there is no version with noise. Use
        :class:`FedHistogramCalibrator` with ``method='platt'`` or ``'isotonic'``.
    method : {'sigmoid', 'isotonic'}, default='sigmoid'
        Platt's sigmoid of the score with his smoothed targets, or a monotone curve by
        least squares, straight between the scores. With more than two classes each has
        a curve for its score against the rest, and the probabilities are divided by
        their sum.
    delta : None
        Has to be None.
    clip : 'auto'
        Accepted for a uniform interface and not used.
    if_improves : bool, default=True
        Accepted for a uniform interface and not used.
    privacy : SecureAggregation, default=None
        Sums without noise; others are refused.
    ledger, classes, input_type, runner, random_state

    Attributes
    ----------
    slopes_, intercepts_ : ndarray of shape (n_scores,)
        A and B of ``1 / (1 + exp(A s + B))`` for each score s; empty for 'isotonic'.
        Two classes have one score, that of the second; more have one each.
    thresholds_, values_ : list of ndarray
        Scores at the corners of each isotonic curve, and its values there; empty for
        'sigmoid'.
    classes_
    improves_ : bool
        Always True.
    comparison_
    n_clients_, n_rounds_, privacy_, history_

    See Also
    --------
    FederatedCalibratedClassifier : Classifier and calibrator together.
    FedHistogramCalibrator : The same curves from counts in buckets, also with noise.
    FedTempCalibrator : Temperature scaling.

    Notes
    -----
    For 'sigmoid' clients first send counts of the magnitudes of their scores (264 for
    each class) and of their labels, then two moments, then, in five to ten rounds, six
    sums of the loss and its derivatives for each class.

    For 'isotonic' the server needs all distinct scores: it reads them from the sum of
    the clients' invertible Bloom lookup tables [2]_, in two rounds. It learns the table
    of all clients together, with the number of clients of each score; which client has
    it stays hidden only in a masked sum over several clients. `thresholds_` holds some
    of the scores. Where that is too much, use :class:`FedHistogramCalibrator`. A site
    refuses it if `methods` of its policy leaves ``class_scores.table/1`` out.

    Weights have to be between 1e-6 and 1e12, so that sums hold them.

    Scores are used in double precision. scikit-learn takes scores closer than 1e-15 for
    one, and so does this; for scores in single precision it uses 1e-6 instead.

    References
    ----------
    .. [1] Platt, "Probabilistic Outputs for Support Vector Machines and Comparisons to
       Regularized Likelihood Methods", 1999.
    .. [2] Goodrich and Mitzenmacher, "Invertible Bloom Lookup Tables", Allerton 2011.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.calibration import CalibratedClassifierCV
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> from sklearn.frozen import FrozenEstimator
    >>> from skfedcal import FedOneVsRestCalibrator
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> forest = RandomForestClassifier(20, random_state=0).fit(X[::2], y[::2])
    >>> X, y, ids = X[1::2], y[1::2], np.arange(284) % 20
    >>> cal = FedOneVsRestCalibrator(method="isotonic", input_type="proba")
    >>> proba = forest.predict_proba(X)
    >>> cal = cal.fit(proba, y, client_ids=ids)
    >>> there = CalibratedClassifierCV(FrozenEstimator(forest), method="isotonic")
    >>> apart = cal.predict_proba(proba) - there.fit(X, y).predict_proba(X)
    >>> bool(abs(apart).max() < 1e-12)
    True
    """

    _parameter_constraints = {
        **BaseCalibrator._parameter_constraints,
        "method": [StrOptions({"sigmoid", "isotonic"})],
    }
    del _parameter_constraints["hold_back"]
    _fitted_names = ("slopes_", "intercepts_", "thresholds_", "values_")
    _rows = "given"

    def __init__(
        self,
        eps: float | None = None,
        *,
        method: Literal["sigmoid", "isotonic"] = "sigmoid",
        delta: float | None = None,
        clip: float | Literal["auto"] = "auto",
        if_improves: bool = True,
        privacy: PrivacyModel | None = None,
        ledger: PrivacyLedger | None = None,
        classes: ArrayLike | None = None,
        input_type: InputType = "logits",
        runner: FederatedRunner | None = None,
        random_state: Seed = None,
    ) -> None:
        self.eps = eps
        self.method = method
        self.delta = delta
        self.clip = clip
        self.if_improves = if_improves
        self.privacy = privacy
        self.ledger = ledger
        self.classes = classes
        self.input_type = input_type
        self.runner = runner
        self.random_state = random_state

    def _make_algorithm(self, setting: FitSetting) -> FederatedAlgorithm[Any]:
        if self.method == "sigmoid":
            return SigmoidNewton(input_type=self.input_type)
        return ScoreTable(input_type=self.input_type, weighted=setting.weighted)

    def _check_model(self, model: PrivacyModel) -> None:
        if model.private:
            curve = "platt" if self.method == "sigmoid" else "isotonic"
            raise ValueError(
                f"FedOneVsRestCalibrator has no version with noise, but {model!r} asks "
                f"for it. Use FedHistogramCalibrator(method={curve!r}, privacy=...), "
                "which fits the curve to noisy counts."
            )

    def _check_weights(self, weights: Array) -> None:
        used = weights[weights > 0]
        if used.min() < 1e-6 or used.max() > 1e12 or used.sum() > 2.0**50:
            raise ValueError(
                f"sample_weight is between {used.min():.3g} and {used.max():.3g}, with "
                f"a sum of {used.sum():.3g}. Exact sums hold weights from 1e-6 to 1e12 "
                "with a sum of at most 1e15: scale it to about 1."
            )

    def _disclosed(self) -> tuple[str, ...]:
        return (_TABLE_KNOWN,) if self.method == "isotonic" else ()

    def _set_state(self, state: Any) -> None:
        self.slopes_, self.intercepts_ = np.zeros(0), np.zeros(0)
        self.thresholds_: list[Array] = []
        self.values_: list[Array] = []
        n_scores = n_scores_of(len(self.classes_))
        if self.method == "sigmoid":
            self.slopes_, self.intercepts_ = state.coefficients
            self._converged = state.converged
            return
        if not state.read:  # callbacks may ask before the table is read
            self._converged = False
            state_of = [(np.zeros(1), np.full((2, 1), 0.5))] * n_scores
        else:
            self._converged = True
            state_of = [
                (state.scores[own], state.weights[:, own])
                for own in (state.index == i for i in range(n_scores))
            ]
        for scores, weights in state_of:
            points, values = isotonic_curve(scores, weights)
            self.thresholds_.append(points)
            self.values_.append(values)

    def _after_fit(self, setting: FitSetting) -> None:
        if not self._converged and self.method == "isotonic":
            raise ValueError(
                f"The table of scores could not be read in {self.n_rounds_} rounds: "
                "too few, or cohorts that change from round to round. Leave n_rounds "
                "out, and use cohort='full'."
            )
        if not self._converged:
            self._warn_no_optimum(False, "")

    def _is_optimum(self, setting: FitSetting) -> bool:
        return True

    def _direct_proba(self, X: Rows) -> Array:
        return self._exact_proba(X)

    def _prediction_logits(self, X: Rows) -> Array:
        with np.errstate(divide="ignore"):
            logs: Array = np.log(self._exact_proba(X))
        return logs

    def _exact_proba(self, X: Rows) -> Array:
        check_is_fitted(self)
        rows = check_scores(self, X, reset=False)
        n_classes = len(self.classes_)
        check_given(rows, n_classes, input_type=self.input_type)
        proba = self._proba(class_scores(rows, self.input_type, n_classes))
        return self._in_order(proba).astype(rows.dtype, copy=False)

    def _proba(self, scores: Array) -> Array:
        """Probabilities with one column per class, in the order of the input."""
        if self.method == "sigmoid":
            with np.errstate(over="ignore", invalid="ignore"):
                odds = -(self.slopes_ * scores + self.intercepts_)
            proba = sigmoid(odds)
        else:
            proba = np.empty_like(scores)
            for i, points in enumerate(self.thresholds_):
                proba[:, i] = np.interp(scores[:, i], points, self.values_[i])
        if proba.shape[1] == 1:
            return np.hstack([1 - proba, proba])
        total = proba.sum(axis=1, keepdims=True)
        uniform = np.full_like(proba, 1 / proba.shape[1])
        return np.divide(proba, total, out=uniform, where=total > 0)

    def _proba_formula(self, scores: Value) -> Value:
        return _one_vs_rest(self, scores)

    def _check_restored(self) -> None:
        n_scores = n_scores_of(len(self.classes_))
        pairs = [self.slopes_, self.intercepts_]
        if self.method == "isotonic":
            pairs = [*self.thresholds_, *self.values_]
            if not len(self.thresholds_) == len(self.values_) == n_scores:
                raise ValueError("the numbers of curves and scores differ")
        elif [len(x) for x in pairs] != [n_scores] * 2:
            raise ValueError("slopes_ or intercepts_ has a wrong shape")
        for array in pairs:
            if array.dtype != np.float64 or not np.isfinite(array).all():
                raise ValueError("a curve has invalid values")
        for points, values in zip(self.thresholds_, self.values_, strict=True):
            if len(points) != len(values) or not len(points):
                raise ValueError("thresholds_ do not match values_")
            if (np.diff(points) <= 0).any() or not (
                (values >= 0) & (values <= 1)
            ).all():
                raise ValueError("a curve has invalid values")


def isotonic_curve(scores: Array, weights: Array) -> tuple[Array, Array]:
    """Corners of the monotone curve nearest to the frequencies of positives.

    By scikit-learn's own estimator, so that ties and ends are those of its fits.

    scores of shape (n,): Distinct scores.
    weights of shape (2, n): Of negatives and positives with each score.
    """
    from sklearn.isotonic import IsotonicRegression

    rows = weights.sum(axis=0)
    fitted = IsotonicRegression(out_of_bounds="clip")
    fitted.fit(scores, weights[1] / rows, sample_weight=rows)
    return fitted.X_thresholds_, np.clip(fitted.y_thresholds_, 0.0, 1.0)


def _one_vs_rest(calibrator: FedOneVsRestCalibrator, scores: Value) -> Value:
    """`predict_proba` as operations on scores in double precision."""
    n_classes = len(calibrator.classes_)
    own = _formula_scores(scores, calibrator.input_type, n_classes)
    if calibrator.method == "sigmoid":
        proba = expit(-(own * calibrator.slopes_ + calibrator.intercepts_))
    else:
        points = calibrator.thresholds_
        # Beyond the ends a curve is constant; an infinite score times a slope of 0 is
        # not a number.
        own = own.at_least([p[0] for p in points]).at_most([p[-1] for p in points])
        proba = interpolate(own, points, calibrator.values_)
    if n_classes == 2:
        return (1.0 - proba).beside(proba)
    total = proba.sum()
    empty = total.equals(0.0)
    return empty.choose(1 / n_classes, proba / empty.choose(1.0, total))


def _formula_scores(scores: Value, input_type: InputType, n_classes: int) -> Value:
    """`class_scores` as operations of a graph."""
    n_columns = scores.graph.n_columns
    if input_type == "log_proba":
        scores = scores.exp()
    if n_classes == 2:
        last = scores.columns([n_columns - 1])
        if n_columns == 1 or input_type != "logits":
            return last
        return last - scores.columns([0])
    if n_columns == n_classes:
        return scores
    if input_type == "proba":
        return (1.0 - scores.sum()).beside(scores)
    return (scores.max() * 0.0).beside(scores)
