"""Accepted forms of input, and errors that say what to do."""

import numpy as np
import pandas as pd
import pytest

from skfedcal.metrics import (
    brier_score,
    calibration_error,
    calibration_floor,
    classwise_calibration_error,
    expected_calibration_error,
    negative_log_likelihood,
    predictive_entropy,
    variation_ratio,
)

SCORES = [
    brier_score,
    classwise_calibration_error,
    expected_calibration_error,
    negative_log_likelihood,
]
ERRORS = [classwise_calibration_error, expected_calibration_error]
Y = [0, 1, 2]
PROBA = np.array([[0.8, 0.1, 0.1], [0.2, 0.6, 0.2], [0.1, 0.2, 0.7]])

every_score = pytest.mark.parametrize("score", SCORES)
every_error = pytest.mark.parametrize("metric", [*ERRORS, calibration_error])


@every_score
@pytest.mark.parametrize(
    "y",
    [
        np.array(Y, dtype=np.uint8),
        np.array(Y, dtype=np.int32),
        np.array(Y, dtype=float),
        np.array(Y)[:, None],
        ["ant", "bee", "cat"],
        np.array(["ant", "bee", "cat"], dtype=object),
        [-5, 2, 10**12],
        pd.Series(Y, index=[7, 8, 9]),
    ],
    ids=["uint8", "int32", "float", "column", "str", "object", "far", "series"],
)
def test_kind_of_labels_changes_nothing(score, y):
    assert score(y, PROBA) == score(Y, PROBA)


@every_score
@pytest.mark.parametrize(
    "proba",
    [
        PROBA.tolist(),
        pd.DataFrame(PROBA),
        np.asfortranarray(PROBA),
        np.repeat(PROBA, 2, axis=1)[:, ::2],
    ],
    ids=["list", "frame", "fortran", "strided"],
)
def test_form_of_probabilities_changes_nothing(score, proba):
    assert score(Y, proba) == pytest.approx(score(Y, PROBA), abs=1e-15)


@every_score
def test_labels_name_the_columns_in_sorted_order(score):
    by_name = score(["c", "a"], PROBA[[2, 0]], labels=["c", "a", "b"])
    assert by_name == score([2, 0], PROBA[[2, 0]], labels=[0, 1, 2])
    apart = score([30, 10], PROBA[[2, 0]], labels=[10, 20, 30])
    assert by_name == apart


@every_score
def test_inputs_are_left_as_they_were(score):
    y, proba, weight = np.array(Y), PROBA.copy(), np.ones(3)
    for array in (y, proba, weight):
        array.flags.writeable = False
    score(y, proba, sample_weight=weight)


def test_bool_labels_and_two_columns():
    proba = np.array([[0.9, 0.1], [0.2, 0.8]])
    expected = expected_calibration_error([0, 1], proba)
    assert expected_calibration_error([False, True], proba) == expected


def test_positive_label_chooses_the_column():
    y, p = ["no", "yes", "yes"], np.array([0.2, 0.6, 0.9])
    both = np.column_stack([1 - p, p])
    assert calibration_error(y, p) == calibration_error(y, p, pos_label="yes")
    for pos_label, column in (("no", 0), ("yes", 1)):
        one = calibration_error(y, both[:, column], pos_label=pos_label)
        assert calibration_error(y, both, pos_label=pos_label) == one


def test_one_observed_label():
    assert calibration_error([0, 0], [0.0, 0.0]) == 0.0
    assert calibration_error([-1, -1], [0.0, 0.0]) == 0.0
    assert calibration_error(["a", "a"], [0.0, 0.0], pos_label="b") == 0.0
    with pytest.raises(ValueError, match="Pass `pos_label`"):
        calibration_error(["a", "a"], [0.0, 0.0])


@every_score
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({(1, 2): np.nan}, "row 1, column 2 is nan"),
        ({(1, 2): np.inf}, "row 1, column 2 is inf"),
        ({(2, 0): -0.1, (2, 1): 0.4}, "row 2, column 0 is -0.1"),
        ({(1, 1): 0.7}, "row 1 sums to 1.1"),
    ],
)
def test_rows_must_be_distributions(score, change, message):
    for dtype in (np.float32, np.float64):
        proba = PROBA.astype(dtype)
        for place, value in change.items():
            proba[place] = value
        with pytest.raises(ValueError, match=message):
            score(Y, proba)


def test_rounding_to_four_decimals_is_accepted():
    proba = np.full((3, 3), 0.3333)
    assert predictive_entropy(proba).shape == (3,)


@pytest.mark.parametrize(
    "function", [predictive_entropy, variation_ratio, calibration_floor]
)
def test_functions_without_labels_check_rows(function):
    with pytest.raises(ValueError, match="row 0 sums to 2"):
        function(np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"row 1 is 1.5"):
        function([0.5, 1.5])


@every_score
@pytest.mark.parametrize(
    ("y", "kwargs", "error", "message"),
    [
        ([0, 1], {}, ValueError, "inconsistent numbers of samples"),
        ([0, 1, 1], {}, ValueError, r"3 columns but y_true has 2 classes \(\[0, 1\]\)"),
        (Y, {"labels": [0, 1]}, ValueError, "`labels` names 2 classes"),
        (Y, {"labels": [1, 2, 3]}, ValueError, r"does not name: \[0\]"),
        ([0, 1, 50], {"labels": [0, 1, 9]}, ValueError, r"does not name: \[50\]"),
        (["a", "b", "c"], {"labels": Y}, TypeError, "both as numbers or both as str"),
        ([0, "a", None], {}, TypeError, "mix types that have no order"),
        ([0, 1, np.nan], {}, ValueError, "row 2 is nan"),
        (np.eye(3), {}, ValueError, "one-hot"),
        (Y, {"sample_weight": [1, 2]}, ValueError, "has 2 values but y_prob has 3"),
        (Y, {"sample_weight": [1, -2, 1]}, ValueError, "row 1 has -2"),
        (Y, {"sample_weight": [0, 0, 0]}, ValueError, "0 for every row"),
        (Y, {"sample_weight": [1, np.nan, 1]}, ValueError, "row 1 is nan"),
    ],
)
def test_labels_and_weights_are_checked(score, y, kwargs, error, message):
    with pytest.raises(error, match=message):
        score(y, PROBA, **kwargs)


def test_object_labels_without_order_are_named():
    y = np.array([0, "a", "b"], dtype=object)
    with pytest.raises(TypeError, match="int, str"):
        expected_calibration_error(y, PROBA)


@every_error
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_bins": 0}, ValueError, "n_bins=0 is out of range; pass an integer from 1"),
        ({"n_bins": 2.5}, TypeError, "n_bins=2.5 is not an integer"),
        ({"n_bins": True}, TypeError, "n_bins=True is not an integer"),
        ({"norm": "l3"}, ValueError, "norm must be one of 'l1', 'l2', 'max'"),
        ({"strategy": "equal"}, ValueError, "strategy must be one of"),
        ({"squared": True}, ValueError, "squared=True needs norm='l2'"),
        ({"debias": True, "norm": "max"}, ValueError, "debias=True needs norm='l2'"),
    ],
)
def test_options_are_checked(metric, options, error, message):
    with pytest.raises(error, match=message):
        metric([0, 1], [0.2, 0.8], **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"average": "micro"}, ValueError, "average must be one of"),
        (
            {"threshold": 1.5},
            ValueError,
            "threshold=1.5 is out of range; pass 0 <= thr",
        ),
        ({"threshold": "a"}, TypeError, "threshold='a' is of type str"),
    ],
)
def test_classwise_options_are_checked(options, error, message):
    with pytest.raises(error, match=message):
        classwise_calibration_error(Y, PROBA, **options)


def test_binary_error_refuses_more_classes():
    with pytest.raises(ValueError, match="3 classes"):
        calibration_error(Y, [0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="3 columns"):
        calibration_error([0, 1, 1], PROBA)
    with pytest.raises(ValueError, match="pos_label=7 is not a label"):
        calibration_error([0, 1], [0.1, 0.2], pos_label=7)


def test_other_parameters_are_checked():
    with pytest.raises(ValueError, match="base must be positive"):
        predictive_entropy(PROBA, base=1)
    with pytest.raises(ValueError, match="min_prob=-1 is out of range"):
        negative_log_likelihood(Y, PROBA, min_prob=-1)
    with pytest.raises(ValueError, match="scale_by_half must be one of"):
        brier_score(Y, PROBA, scale_by_half="no")
