"""A trained torch module as a pipeline step that outputs logits."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_is_fitted

from skfedcal import _numerics
from skfedcal._sklearn_compat import HasMethods, fit_context, undone_on_error
from skfedcal.clients.arrays import distinct, read_array
from skfedcal.clients.features import check_features
from skfedcal.compose._classifier_logits import LogitColumns
from skfedcal.training.modules import (
    check_input_shape,
    import_torch,
    module_logits,
    takes_tokens,
)

if TYPE_CHECKING:
    import torch

    from skfedcal._typing import ArrayLike, FloatArray


class TorchLogits(LogitColumns, BaseEstimator):
    """Turn rows into the logits of a trained torch module.

    Nothing is trained. Needs torch: ``pip install "skfedcal[torch]"``.

    Parameters
    ----------
    module : torch.nn.Module
        Maps rows to one logit per class, or to one column of log-odds. It is copied and
        used in evaluation mode.
    classes : array-like of shape (n_classes,), default=None
        Labels of the columns, in column order; None numbers them.
    input_shape : tuple of int, default=None
        Shape of one row for the module, where X holds flat rows: ``(1, 28, 28)``. None
        leaves rows as they are; X may have more than two axes.
    device : str, default='cpu'
        Where torch computes.

    Attributes
    ----------
    module_ : torch.nn.Module
        The copy in use.
    classes_ : ndarray of shape (n_classes,)
        Labels of the columns.
    n_features_in_ : int
        Length of the second axis of X.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if they have any.

    See Also
    --------
    skfedcal.LogitTransformer : The same for classifiers of scikit-learn.
    skfedcal.training.FedAvgClassifier : Trains a module on clients.

    Notes
    -----
    Rows are given to the module in the type of its parameters, or as int64 if it has an
    ``nn.Embedding``. Log-odds d become ``(-d/2, d/2)``.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.pipeline import make_pipeline
    >>> from skfedcal import FedTempCalibrator
    >>> from skfedcal.compose import TorchLogits
    >>> from skfedcal.training import FedAvgClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> net = FedAvgClassifier("linear", n_rounds=10, random_state=0).fit(X, y).module_
    >>> pipe = make_pipeline(TorchLogits(net), FedTempCalibrator())
    >>> pipe.fit(X, y, fedtempcalibrator__client_ids=np.arange(150) % 10)[-1].n_clients_
    10
    """

    _parameter_constraints = {
        "module": [HasMethods(["parameters", "eval"])],
        "classes": ["array-like", None],
        "input_shape": [tuple, list, None],
        "device": [str],
    }

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        classes: ArrayLike | None = None,
        input_shape: Sequence[int] | None = None,
        device: str = "cpu",
    ) -> None:
        self.module = module
        self.classes = classes
        self.input_shape = input_shape
        self.device = device

    @fit_context()
    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Copy the module and find its number of classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Rows.
        y : ignored
            Not used.

        Returns
        -------
        self : object
            Fitted transformer.
        """
        with undone_on_error(self):
            return self._fit(X)

    def _fit(self, X):
        torch = import_torch()
        if not isinstance(self.module, torch.nn.Module):
            raise TypeError(
                f"module={self.module!r} is not a torch.nn.Module; pass a trained "
                f"module, "
                "not its class."
            )
        rows = check_features(self, X, reset=True, allow_nd=True, dtype="numeric")
        try:
            self.module_ = deepcopy(self.module).to(self.device).eval()
        except RuntimeError as error:
            raise ValueError(f"device={self.device!r}: {error}") from error
        n_classes = self._logits(rows[:1]).shape[1]
        if self.classes is None:
            self.classes_ = np.arange(n_classes)
            return self
        self.classes_ = column_or_1d(read_array(self.classes, "`classes`"))
        if len(distinct(self.classes_, "`classes`")) != n_classes:
            raise ValueError(
                f"The module has {n_classes} columns; `classes` must hold as many "
                f"labels, each once; got {self.classes_.tolist()}."
            )
        return self

    def transform(self, X: ArrayLike) -> FloatArray:
        """Logits of the module.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Rows of the shape given to `fit`.

        Returns
        -------
        logits : ndarray of shape (n_samples, n_classes)
            One column per entry of `classes_`, in the type of the module.
        """
        check_is_fitted(self)
        rows = check_features(self, X, reset=False, allow_nd=True, dtype="numeric")
        return self._logits(rows)

    def _logits(self, rows):
        shape = rows.shape[1:] if self.input_shape is None else tuple(self.input_shape)
        check_input_shape(shape, rows.shape[1:])
        with np.errstate(over="ignore"):
            given = np.ascontiguousarray(
                rows.reshape(len(rows), *shape), dtype=_row_type(self.module_, rows)
            )
        if given.dtype.kind == "f" and not np.isfinite(given).all():
            raise ValueError(f"X has values too large for {given.dtype}; scale it.")
        rows = given
        try:
            logits = module_logits(self.module_, rows, self.device)
        except RuntimeError as error:
            raise ValueError(
                f"{type(self.module_).__name__} cannot read rows of shape "
                f"{rows.shape[1:]}: {error}"
            ) from error
        if logits.size == len(rows):
            return _numerics.as_two_columns(logits.reshape(-1, 1))
        if logits.ndim != 2:
            raise ValueError(
                f"{type(self.module_).__name__} gives an output of shape "
                f"{logits.shape} for {len(rows)} rows; one row of logits per row is "
                f"needed"
                "."
            )
        return logits

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = []
        return tags


def _row_type(module, rows):
    """Type of the parameters; that of the rows where there are none."""
    if takes_tokens(module):
        return np.int64
    torch = import_torch()
    for param in module.parameters():
        if param.dtype == torch.float64:
            return np.float64
        if param.dtype.is_floating_point:
            return np.float32
    return rows.dtype if rows.dtype.kind == "f" else np.float32
