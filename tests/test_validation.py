"""Options are refused with the name of the option, what it must be, what was given, and the nearest name."""

import math
import re

import numpy as np
import pytest

from mslsq.validation import instance_of, integer, number, one_of, suggestion

METHODS = ("schur", "cholesky", None)


def test_the_nearest_name_is_suggested_and_nothing_far_off():
    assert suggestion("shur", METHODS) == " Did you mean 'schur'?"
    assert suggestion("shur", METHODS, "linear.") == " Did you mean 'linear.schur'?"
    assert suggestion("banana", METHODS) == suggestion(3, METHODS) == ""


@pytest.mark.parametrize("given", ["schur", None])
def test_one_of_the_known_passes(given):
    one_of("x", given, METHODS)


@pytest.mark.parametrize("given", ["shur", 3, np.zeros(2), ["schur"]])
def test_any_other_is_refused_with_what_is_known(given):
    said = re.escape(f"Solver: method must be one of 'schur', 'cholesky', None, not {given!r}.")
    with pytest.raises(KeyError, match=said):
        one_of("Solver: method", given, METHODS, KeyError)


@pytest.mark.parametrize(
    ("limits", "good", "bad", "said"),
    [
        ({}, (0, 7), (-1, True, 1.0, "1", None), "an integer, 0 or more"),
        ({"least": 1}, (1, 9), (0, False), "a positive integer"),
        ({"least": 2, "most": 4}, (2, 4), (1, 5), "an integer from 2 to 4"),
        ({"least": 1, "otherwise": "None"}, (1,), (0,), "None or a positive integer"),
    ],
)
def test_integers_stay_in_their_range(limits, good, bad, said):
    for given in good:
        integer("x", given, **limits)
    for given in bad:
        with pytest.raises(ValueError, match=re.escape(f"x must be {said}, not {given!r}.")):
            integer("x", given, **limits)


@pytest.mark.parametrize(
    ("limits", "good", "bad", "said"),
    [
        ({}, (-3, 0.5), (math.inf, -math.inf, math.nan, "1", True), "a finite number"),
        ({"above": 0}, (1, 1e-9, np.float32(1)), (0, -1, math.inf, math.nan), "a positive number"),
        ({"above": 0, "most": math.inf}, (1, math.inf), (0, math.nan), "a positive number"),
        ({"least": 0}, (0, 1e9), (-1e-9, math.inf), "a number, at least 0"),
        ({"least": 0, "most": 1}, (0, 1), (-0.1, 1.1, math.nan), "a number from 0 to 1"),
        ({"above": 0, "below": 1}, (0.5,), (0, 1), "a number between 0 and 1"),
        ({"least": 0, "below": 1}, (0, 0.9), (1, math.nan), "a number, at least 0 and less than 1"),
    ],
)
def test_numbers_stay_in_their_range(limits, good, bad, said):
    for given in good:
        number("x", given, **limits)
    for given in bad:
        with pytest.raises(ValueError, match=re.escape(f"x must be {said}, not {given!r}.")):
            number("x", given, **limits)


def test_a_class_in_place_of_its_object_is_told():
    instance_of("count", 3, int)
    said = "count must be a int object, not <class 'int'>. Did you mean int()?"
    with pytest.raises(TypeError, match=re.escape(said)):
        instance_of("count", int, int)
    said = "loss must be a list object, not 'huber'. Write [1], say."
    with pytest.raises(KeyError, match=re.escape(said)):
        instance_of("loss", "huber", list, "Write [1], say.", KeyError)
