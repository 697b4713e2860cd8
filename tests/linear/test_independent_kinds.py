"""Which kinds of variables can be eliminated: those of which no two blocks meet."""

import numpy as np
import pytest

from mslsq.linear.block_structure import analyze
from mslsq.linear.independent_kinds import EliminationError, blocks_of, independent_kinds, kinds_to_eliminate

# Two cameras that meet each other, two points and one line that meet the cameras alone; another camera is held fixed.
STRUCTURE = analyze(np.array([6, 6, 3, 3, 4]), np.array([1, 2, 3, 4, 4]), np.array([0, 0, 1, 0, 1]))
KINDS = {"camera": np.array([0, -1, 1]), "line": np.array([4]), "point": np.array([2, 3])}


def chosen(asked=None, **options):
    return kinds_to_eliminate(asked, STRUCTURE, KINDS, solver="Solver", instead="do without", **options)


def test_kinds_that_never_meet_go_together_unless_only_some_are_wanted():
    assert set(independent_kinds(STRUCTURE, KINDS)) == {"point", "line"}
    assert independent_kinds(STRUCTURE, KINDS, at_most=1) == ("point",)  # six columns, the line has four
    assert chosen(at_most=1) == ("point",)


def test_names_are_taken_as_they_are_given():
    assert chosen("line") == ("line",)
    assert chosen(("line", "point")) == ("line", "point")
    assert blocks_of(STRUCTURE, KINDS, ("line", "camera")).tolist() == [True, True, False, False, True]


@pytest.mark.parametrize(
    "asked, words",
    [
        ("points", r"Solver\(eliminate='points'\): no variable of that name.*Did you mean 'point'"),
        ("camera", r"Solver\(eliminate='camera'\): camera\[0\] and camera\[2\].*or do without\."),
        (("point", "camera"), r"camera\[0\] and camera\[2\]"),
    ],
)
def test_errors_say_who_cannot_do_what_and_what_to_do(asked, words):
    with pytest.raises(EliminationError, match=words):
        chosen(asked)


def test_where_nothing_can_be_eliminated_it_says_so():
    with pytest.raises(EliminationError, match=r"none of 'camera' can be.*Do without\."):
        kinds_to_eliminate(None, STRUCTURE, {"camera": np.arange(5)}, solver="Solver", instead="do without")


def test_where_no_two_blocks_meet_everything_can_be_eliminated():
    structure, kinds = (
        analyze(np.array([3, 3]), np.zeros(0), np.zeros(0)),
        {"camera": -np.ones(4, int), "point": np.arange(2)},
    )
    options = {"solver": "Solver", "instead": "do without"}
    assert kinds_to_eliminate(None, structure, kinds, **options) == ("point",)
    with pytest.raises(EliminationError, match="nothing would be left"):
        kinds_to_eliminate(None, structure, kinds, at_most=1, **options)
