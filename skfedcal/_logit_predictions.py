"""Predictions of a classifier from its logits."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import ClassifierMixin

from skfedcal import _numerics
from skfedcal._docs import SharedDocs

if TYPE_CHECKING:
    from skfedcal._typing import Array, FloatArray, Rows

_documented = SharedDocs(
    """
    X : array-like of shape (n_samples, n_features)
        Rows of the form given to `fit`.
    """
)


def like_input(result: Array, X: Any) -> Any:
    """Result as a torch tensor on the device of X, if X is a tensor; else as it is.

    Labels that are no numbers stay an array.
    """
    if not hasattr(X, "detach") or result.dtype.kind not in "biuf":
        return result
    import torch

    return torch.from_numpy(np.ascontiguousarray(result)).to(X.device)


@_documented
class LogitPredictions(ClassifierMixin):
    """All predictions from logits, which a subclass computes."""

    classes_: Array

    @abstractmethod
    def _prediction_logits(self, X: Rows) -> FloatArray:
        """Fresh array of logits with one column per entry of `classes_`."""

    def _direct_proba(self, X: Rows) -> FloatArray | None:
        """Probabilities, where a subclass has a shorter way than by its logits."""
        return None

    def decision_function(self, X: Rows) -> FloatArray:
        """Logits of the predictions.

        Parameters
        ----------
        X

        Returns
        -------
        logits : ndarray of shape (n_samples,) or (n_samples, n_classes)
            One column of log-odds when there are two classes.
        """
        logits = self._prediction_logits(X)
        if len(self.classes_) == 2:
            logits = logits[:, 1] - logits[:, 0]
        return like_input(logits, X)

    def predict_proba(self, X: Rows) -> FloatArray:
        """Probability of each class.

        Parameters
        ----------
        X

        Returns
        -------
        proba : ndarray of shape (n_samples, n_classes)
            One column per entry of `classes_`, in the dtype of X if that is a float.
        """
        proba = self._direct_proba(X)
        if proba is None:
            logits = self._prediction_logits(X)
            proba = _numerics.softmax(logits, out=logits)
        return like_input(proba, X)

    def predict_log_proba(self, X: Rows) -> FloatArray:
        """Logarithm of the probability of each class.

        Parameters
        ----------
        X

        Returns
        -------
        log_proba : ndarray of shape (n_samples, n_classes)
            One column per entry of `classes_`.
        """
        return like_input(_numerics.log_softmax(self._prediction_logits(X)), X)

    def predict(self, X: Rows) -> Array:
        """Most probable class of each row.

        Parameters
        ----------
        X

        Returns
        -------
        labels : ndarray of shape (n_samples,)
            Entries of `classes_`.
        """
        # Before `classes_` is read: an unfitted estimator must say so.
        logits = self._prediction_logits(X)
        return like_input(self.classes_[logits.argmax(axis=1)], X)
