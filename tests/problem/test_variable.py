"""Variables and references to their blocks: an index that is not valid names variable, entry and range."""

# Wrong arguments on purpose.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import pytest
import torch

import mslsq
from mslsq.problem import ProblemError
from mslsq.problem.errors import IndexRangeError

X = mslsq.Variable("x", mslsq.SE2, count=5)


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ([0, 2, 2], [0, 2, 2]),
        (torch.tensor([4, 0], dtype=torch.int32), [4, 0]),
        (torch.tensor([1], dtype=torch.uint8), [1]),
        ([-1, -5], [4, 0]),
        (slice(1, None, 2), [1, 3]),
        (torch.tensor([True, False, False, True, False]), [0, 3]),
        (range(3), [0, 1, 2]),
    ],
)
def test_references_hold_non_negative_indices(index, expected):
    reference = X[index]
    assert reference.index.tolist() == expected
    assert reference.index.dtype == torch.int64
    assert reference.count == len(expected)


@pytest.mark.parametrize("index", [3, -2, torch.tensor(3)])
def test_one_index_means_one_block_for_all(index):
    assert X[index].index == 3
    assert X[index].count is None


def test_a_reference_does_not_follow_the_index_tensor():
    index = torch.tensor([0, 1])
    reference = X[index]
    index[0] = 4
    assert reference.index.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ([0, 7, 1], ["'x'", "5 blocks", "entry 1", "7"]),
        ([-6], ["'x'", "entry 0", "-6"]),
        (5, ["'x'", "0 to 4", "5"]),
        ([0.0, 1.0], ["'x'", "integers", "float"]),
        (True, ["'x'", "integers", "bool"]),
        ([[0, 1]], ["'x'", "(1, 2)"]),
        (torch.tensor([True, False]), ["'x'", "mask", "5", "2"]),
    ],
)
def test_an_index_that_makes_no_sense_is_an_error(index, words):
    with pytest.raises(IndexRangeError) as caught:
        X[index]
    for word in words:
        assert word in str(caught.value)


def test_a_single_block_takes_no_index():
    with pytest.raises(ProblemError, match="pass the variable itself"):
        mslsq.Variable("y", mslsq.SE3)[0]


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_is_a_word(name):
    with pytest.raises(ProblemError, match="name"):
        mslsq.Variable(name, mslsq.SE3)


@pytest.mark.parametrize("count", [0, -1, 2.0, True])
def test_a_count_is_a_positive_integer(count):
    with pytest.raises(ProblemError, match=r"'x'.*count"):
        mslsq.Variable("x", mslsq.SE3, count=count)


@pytest.mark.parametrize("manifold", [3, "SE3", mslsq.Euclidean, None, {}])
def test_a_manifold_is_a_class_a_dimension_or_a_dict_of_them(manifold):
    with pytest.raises(ValueError, match=r"manifold|Euclidean"):
        mslsq.Variable("x", manifold)


def test_fixed_blocks():
    assert X.fixed([0, -1]).index.tolist() == [0, 4]
    assert X.fixed(2).index.tolist() == [2]
    assert X.fixed().index.tolist() == [0, 1, 2, 3, 4]
    assert mslsq.Variable("y", mslsq.SE2).fixed().index.tolist() == [0]
    with pytest.raises(IndexRangeError, match="'x'"):
        X.fixed([9])
