"""Options are refused with the name of the option, what it must be, what was given, and the nearest name."""

import functools
import math
import re

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

import mslsq
from mslsq.errors import ProblemError, SolverOptionError
from mslsq.validation import boolean, instance_of, integer, number, one_of, suggestion

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


@pytest.mark.parametrize("given", [True, False, 0, 1, np.bool_(True), torch.tensor(False)])
def test_truth_values_are_taken(given):
    boolean("x", given)


def test_text_is_no_truth_value():
    for given, hint in (("false", "write False."), ("on", "write True."), ("maybe", ""), (None, ""), (2, "")):
        with pytest.raises(ValueError, match=re.escape(f"must be True or False, not {given!r}.") + f".*{hint}"):
            boolean("x", given)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ftol": "1e-8"}, "not '1e-8'. It is text: write 1e-08 (in YAML 1.0e-8, with a point)."),
        ({"ftol": "0.1"}, "not '0.1'. It is text: write 0.1."),
        ({"max_steps": "1e2"}, "not '1e2'. It is text: write 100."),
        ({"max_steps": 5.0}, "not 5.0. Write 5."),
        ({"max_steps": {"ftol": 1}}, "Options of a dictionary are given as **options."),
        ({"early_stop": "false"}, "early_stop must be True or False, not 'false'. It is text: write False."),
        ({"verbose": "no"}, "verbose must be True or False, not 'no'. It is text: write False."),
        ({"initial_damping": "1e-3"}, "initial_damping must be a finite number, not '1e-3'."),
        ({"callback": "print"}, "callback must be a function of a StepInfo, not 'print'."),
    ],
)
def test_options_of_a_configuration_are_refused_with_what_to_write(options, said):
    with pytest.raises(SolverOptionError, match=re.escape(said)):
        mslsq.LevenbergMarquardt(**options)


def test_numbers_of_numpy_torch_and_configurations_are_taken():
    read = OmegaConf.create("max_steps: 5\nftol: 1e-8\nverbose: off")
    given = {"max_steps": np.int64(5), "ftol": torch.tensor(1e-8, dtype=torch.float64), "verbose": np.bool_(False)}
    solver = mslsq.LevenbergMarquardt(max_steps=5, ftol=1e-8)
    for options in (read, given):
        same = mslsq.LevenbergMarquardt(**options)  # pyright: ignore
        assert same == solver and same.key == solver.key
        assert [type(x) for x in vars(same).values()] == [type(x) for x in vars(solver).values()]
    points = mslsq.Variable("x", mslsq.Euclidean(np.int64(2)), np.int64(3))  # pyright: ignore
    assert type(points.count) is type(points.manifold.dim) is int
    names = OmegaConf.create(["point"])
    assert mslsq.linear.Schur(eliminate=names) == mslsq.linear.Schur(eliminate=("point",))  # pyright: ignore
    bounds = OmegaConf.create([[0.0, 0.0], [2.0, 0.5]])
    found = mslsq.least_squares(
        lambda x, y: x - y, torch.ones(2) / 4, (torch.ones(3, 2),), bounds=bounds, in_dims=OmegaConf.create([None, 0])
    )
    torch.testing.assert_close(found.value, torch.tensor([[1.0, 0.5]]).expand(3, 2))


def test_other_options_of_a_configuration_are_refused_by_name():
    t, start = torch.linspace(1, 2, 5), torch.ones(1)
    with pytest.raises(ProblemError, match="absolute_sigma must be True or False, not 'false'"):
        mslsq.curve_fit(lambda p, t: p * t, t, t, start, absolute_sigma="false")  # pyright: ignore
    with pytest.raises(ProblemError, match="project_start must be True or False, not 'false'"):
        mslsq.least_squares(lambda p: p - 1, start, bounds=(0, 2), project_start="false")  # pyright: ignore
    with pytest.raises(ProblemError, match="lower bound of x0 must be a number, an array or None, not the text '0'"):
        mslsq.least_squares(lambda p: p - 1, start, bounds=("0", 2))
    with pytest.raises(ProblemError, match=r"Scale: expected a tensor or numbers, not '1.0'"):
        mslsq.Scale("1.0")  # pyright: ignore
    with pytest.raises(ProblemError, match=r"hydra.utils.instantiate"):
        mslsq.least_squares(lambda p: p - 1, start, loss={"_target_": "mslsq.Huber"})  # pyright: ignore
    with pytest.raises(ProblemError, match=r"functools.partial that makes one: call it"):
        mslsq.least_squares(lambda p: p - 1, start, loss=functools.partial(mslsq.Huber, 2.0))  # pyright: ignore
