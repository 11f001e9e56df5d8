"""Logits of rows that the classifier was not trained on.

Each fold fits another clone, so that a private calibrator warns that it spends its
budget more than once.
"""

import numpy as np
from sklearn.base import clone

from skfedcal.compose._classifier_logits import classes_of, fit_rows, predict_rows

__all__ = [
    "out_of_fold_logits",
]


def out_of_fold_logits(estimator, X, y, params, splits, classes):
    """Logits of each row from a clone that was fitted without its fold."""
    splits = list(splits)
    _check_partition(splits, len(y))
    logits = None
    for number, (train, test) in enumerate(splits):
        fitted = fit_rows(clone(estimator), X, y, params, train)
        unseen = np.setdiff1d(classes, classes_of(fitted))
        if unseen.size:
            raise ValueError(
                f"The classifier of fold {number} has seen no row of class "
                f"{unseen.tolist()[0]!r}: all its rows are in that fold. Pass a cv "
                "that spreads each class over two folds or more, or leave it out."
            )
        part = predict_rows(fitted, X, test, train)
        if logits is None:
            logits = np.empty((len(y), len(classes)), dtype=part.dtype)
        logits[test] = part
    return logits


def _check_partition(splits, n_rows):
    if not splits:
        raise ValueError("cv has no folds; pass a number of folds or a splitter.")
    tests = np.concatenate([np.arange(n_rows)[test] for _, test in splits])
    if len(tests) != n_rows or len(np.unique(tests)) != n_rows:
        raise ValueError(
            "cv must put every row into exactly one test fold, as KFold, "
            "StratifiedKFold and GroupKFold do."
        )
