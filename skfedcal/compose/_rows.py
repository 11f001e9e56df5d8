"""Labels, and classifiers on some of the rows."""

from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target

from skfedcal._sklearn_compat import check_method_params, safe_split
from skfedcal.compose._scores import logits_of

__all__ = ["check_target", "copy_feature_info", "fit_rows", "predict_rows"]

_SEVERAL_LABELS = ("multilabel", "multiclass-multioutput", "continuous-multioutput")


def check_target(y):
    """Labels as a 1-D array, one label per row."""
    if y is None:
        raise ValueError(
            "This estimator requires y to be passed, but the target y is None."
        )
    if type_of_target(y, input_name="y").startswith(_SEVERAL_LABELS):
        raise ValueError(
            "y is multilabel or multioutput; calibration needs one label per row. Fit "
            "one classifier per label."
        )
    y = column_or_1d(y, warn=True)
    check_classification_targets(y)
    return y


def fit_rows(estimator, X, y, params, rows=None):
    """Fit on `rows`; entries of `params` with one value per row follow."""
    params = check_method_params(X, params, rows)
    if rows is not None:
        X, y = safe_split(estimator, X, y, rows)
    return estimator.fit(X, y, **params)


def predict_rows(estimator, X, rows, train):
    """Logits of `rows`; a kernel matrix keeps the columns that were trained on."""
    return logits_of(estimator, safe_split(estimator, X, None, rows, train)[0])


def copy_feature_info(source, target):
    """Copy the number and names of features from `source` to `target`."""
    for name in ("n_features_in_", "feature_names_in_"):
        if hasattr(source, name):
            setattr(target, name, getattr(source, name))
        elif name in vars(target):
            delattr(target, name)
