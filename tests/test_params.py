"""Checks of single parameters: what is refused, and that the message says why."""

import math

import numpy as np
import pytest

from skfedcal._params import check_choice, check_integer, check_number


@pytest.mark.parametrize("value", ["c", 1.5, ["a"], np.array(["a"]), None])
def test_a_choice_lists_what_is_allowed(value):
    with pytest.raises(ValueError, match="x must be one of 'a', 'b'; got"):
        check_choice("x", value, ("a", "b"))


def test_choices_that_are_listed_are_returned():
    assert check_choice("x", "a", {"a": 1}) == "a"
    assert check_choice("x", None, ("a", None)) is None


@pytest.mark.parametrize("closed", ["both", "left", "right", "neither"])
def test_a_number_is_inside_of_its_interval(closed):
    assert check_number("x", np.float32(0.5), 0, 1, closed) == 0.5
    for value, inside in (
        (0, closed in ("both", "left")),
        (1, closed in ("both", "right")),
    ):
        if inside:
            assert check_number("x", value, 0, 1, closed) == value
        else:
            with pytest.raises(
                ValueError, match=rf"x={value} is out of range; pass 0 <"
            ):
                check_number("x", value, 0, 1, closed)
    for value in (-1, 2, math.nan, -math.inf):
        with pytest.raises(ValueError, match=r"out of range; pass 0 <=? x <=? 1\."):
            check_number("x", value, 0, 1, closed)


@pytest.mark.parametrize("error", [TypeError, ValueError])
@pytest.mark.parametrize("value", ["1", None, [1], np.ones(2)])
def test_what_is_no_number_is_both_errors(error, value):
    with pytest.raises(error, match="pass one number"):
        check_number("x", value, 0)
    with pytest.raises(error, match="is not an integer; pass an integer >= 1"):
        check_integer("x", value, 1)


def test_an_integer_is_inside_of_its_range():
    assert (
        check_integer("x", np.array(3), 1, 3) == check_integer("x", np.int8(3), 1) == 3
    )
    for value in (True, 2.0):
        with pytest.raises(TypeError, match="is not an integer"):
            check_integer("x", value, 1)
    for value in (0, 4):
        with pytest.raises(
            ValueError, match="out of range; pass an integer from 1 to 3"
        ):
            check_integer("x", value, 1, 3)
