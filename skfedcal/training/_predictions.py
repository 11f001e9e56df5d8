"""Predictions of classifiers that have logits."""

from collections.abc import Mapping
from contextlib import suppress

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.utils.validation import check_is_fitted

from skfedcal._logit_predictions import LogitPredictions
from skfedcal.clients.features import check_features, read_features
from skfedcal.training.modules import (
    as_input,
    module_features,
    module_logits,
    takes_tokens,
)


class LogitsClassifierMixin(LogitPredictions):
    """All predictions from `predict_logits`, which a subclass has."""

    def _prediction_logits(self, X):
        return self.predict_logits(X)


class FittedNetworkMixin(
    LogitsClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
):
    """Logits, features and logits of clients from `module_` (and `head_`)."""

    def predict_logits(self, X):
        """Logits with one column per class, for a calibrator.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Rows of the shape given to `fit`.

        Returns
        -------
        logits : ndarray of shape (n_samples, n_classes)
            Columns in the order of `classes_`. Computed in float64 if X is of that
            type and the module can, else in float32.
        """
        check_is_fitted(self)
        return self._logits(self._check_rows(X))

    def transform(self, X):
        """Features that the last layer of the module is given.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Rows of the shape given to `fit`.

        Returns
        -------
        features : ndarray of shape (n_samples, n_features_out)
            In float64 if X is of that type and the module can, else in float32.
        """
        check_is_fitted(self)
        return self._features(self._check_rows(X))

    def client_logits(self, X, y=None, *, client_ids=None):
        """Logits and labels of clients, as input for `fit` of a calibrator.

        Parameters
        ----------
        X : list of (rows, labels) pairs, list of arrays, or array-like
            Clients in any form that `fit` takes; of rows that the module was not
            trained on.
        y : array-like of shape (n_samples,), or list of these, default=None
            Labels; omitted when `X` is a list of pairs.
        client_ids : array-like of shape (n_samples,), default=None
            Client that owns each row; with a list of clients, one name per client.

        Returns
        -------
        clients : list of (logits, labels), or dict of these
            By name where clients have names. Pass ``classes=clf.classes_`` to the
            calibrator if some classes have no rows here.
        """
        check_is_fitted(self)
        reader = _Reader()
        found = read_features(
            reader,
            X,
            y,
            client_ids,
            classes=self.classes_,
            allow_nd=True,
            dtype="numeric",
        ).dataset
        self._check_shape(found.rows)
        logits = self._logits(found.rows)
        logits = logits if found.order is None else logits[found.order]
        labels = self.classes_[found.labels]
        cuts = found.offsets[1:-1]
        pairs = zip(np.split(logits, cuts), np.split(labels, cuts), strict=True)
        if isinstance(X, Mapping) or client_ids is not None:
            return dict(zip(found.names, pairs, strict=True))
        return list(pairs)

    def _logits(self, rows):
        """Logits of rows that are checked."""
        head = getattr(self, "head_", None)
        if head is not None:
            return head.predict_logits(self._features(rows))
        return self._run(module_logits, rows)

    def _features(self, rows):
        return self._run(module_features, rows)

    def _run(self, function, rows):
        module, device = self.module_, str(self.device)
        if rows.dtype == np.float64 and not takes_tokens(module):
            # Results of one row and of many then agree to the last digits.
            doubled = np.ascontiguousarray(self._shaped(rows))
            # A module that makes float32 tensors of its own cannot compute in float64.
            with suppress(RuntimeError):
                return function(_doubled(module), doubled, device)
        return function(module, as_input(self._shaped(rows), module), device)

    def _check_rows(self, X):
        rows = check_features(self, X, reset=False, allow_nd=True, dtype="numeric")
        self._check_shape(rows)
        return rows

    def _check_shape(self, rows):
        if rows.shape[1:] != self._row_shape:
            raise ValueError(
                f"X has rows of shape {rows.shape[1:]}, but {type(self).__name__} was "
                f"trained on rows of shape {self._row_shape}."
            )

    def _shaped(self, rows):
        """Rows in the shape that the module takes."""
        return rows.reshape(len(rows), *self.input_shape_)


class _Reader(BaseEstimator):
    """Object on which scikit-learn's validation sets its attributes."""


def _doubled(module):
    from copy import deepcopy

    return deepcopy(module).double()
