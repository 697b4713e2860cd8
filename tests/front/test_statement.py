"""A statement: the tensors of a call, each with what it is, whichever front door it came through."""

import numpy as np
import pytest
import torch

import mslsq
from mslsq.front.leaves import Argument, Data, Held, Index, LossParameter, Weight
from mslsq.front.plans import kept_for_callable
from mslsq.front.problem_statement import stated
from mslsq.front.residual_statement import stated_residual

F64 = torch.float64


class Shifted(mslsq.CostFunction):
    def residual(self, x, measured, net):
        return net(x) - measured


def shifted() -> mslsq.Problem:
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=3)
    cost = Shifted(
        x[torch.tensor([0, 2])],
        measured=torch.ones(2, 2, dtype=F64),
        net=torch.nn.Linear(2, 2, bias=False, dtype=F64),
        weight=mslsq.Diagonal(torch.ones(2, 2, dtype=F64)),
        loss=mslsq.Huber(1.0),
    )
    return mslsq.Problem(cost)


def test_every_tensor_of_a_cost_knows_what_it_is():
    statement = stated(shifted(), {"x": torch.zeros(3, 2, dtype=F64)}, None)
    (leaves,) = statement.leaves
    kinds = {leaf.name: type(leaf) for leaf in leaves}
    assert kinds["measured"] is Data
    assert kinds["net.weight"] is Held
    assert kinds["weight.value"] is Weight
    assert kinds["loss.scale"] is LossParameter
    assert Index in kinds.values()
    (term,) = statement.system.terms
    assert term.per_block == {"measured", "weight.value"}
    assert term.loss_inputs == {"scale": "loss.scale"}


class Gained(mslsq.CostFunction):
    def residual(self, x, gain, again, measured):
        return gain * again * x - measured


def test_one_parameter_in_several_places_of_a_cost_is_differentiated_through_all_of_them():
    measured = torch.tensor([[0.3, -2.0], [0.1, 0.4], [-0.2, 0.7], [5.0, 0.2]], dtype=F64)
    x = mslsq.Variable("x", mslsq.Euclidean(2))
    parameter = torch.nn.Parameter(torch.tensor(0.8, dtype=F64))

    def solved(p: torch.nn.Parameter) -> torch.Tensor:
        everywhere = {"gain": mslsq.Shared(p), "again": mslsq.Shared(p)}
        cost = Gained(x, **everywhere, measured=measured, weight=mslsq.Scale(p), loss=mslsq.Cauchy(p))
        names = {leaf.name for leaf in stated(mslsq.Problem(cost), {"x": torch.zeros(2, dtype=F64)}, None).leaves[0]}
        assert {"gain", "again", "weight.value", "loss.scale"} <= names
        return mslsq.solve(mslsq.Problem(cost), {"x": torch.zeros(2, dtype=F64)}).value["x"].sum()

    def at(value: float) -> float:
        return solved(torch.nn.Parameter(torch.tensor(value, dtype=F64))).item()

    (gradient,) = torch.autograd.grad(solved(parameter), [parameter])
    step = 1e-4
    torch.testing.assert_close(gradient.item(), (at(0.8 + step) - at(0.8 - step)) / (2 * step), rtol=1e-6, atol=1e-8)


def test_a_replacement_keeps_what_its_leaf_is_and_brings_its_axis():
    data = {"shifted": {"weight": torch.ones(2, 5, dtype=F64), "measured": torch.ones(2, 2, 5, dtype=F64)}}
    statement = stated(shifted(), {"x": torch.zeros(3, 2, dtype=F64)}, data, (None, -1))
    leaves = {leaf.name: leaf for leaf in statement.leaves[0]}
    assert isinstance(leaves["weight.value"], Weight) and not leaves["weight.value"].is_per_block
    assert leaves["measured"].is_per_block and leaves["measured"].shape == (2, 2)
    assert statement.size == 5
    assert statement.batched == (frozenset({"weight.value", "measured"}),)
    assert statement.inputs[0]["measured"].shape == (5, 2, 2)
    assert statement.values[0].shape == (5, 3, 2)


def test_one_name_in_residual_jacobian_and_arguments_is_three_inputs():
    """All three are called "scale" by who holds them."""

    class Holds(torch.nn.Module):
        def __init__(self, value: float):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(value, dtype=F64))

    class Residual(Holds):
        def forward(self, x, holds):
            return self.scale * holds.scale * x - 1

    class Jacobian(Holds):
        def forward(self, x, holds):
            return self.scale * holds.scale * torch.eye(2, dtype=F64)

    residual, jacobian, other = Residual(2.0), Jacobian(2.0), Holds(4.0)
    start = torch.zeros(2, dtype=F64)
    (leaves,) = stated_residual(residual, start, (other,), jac=jacobian).statement.leaves
    assert len({leaf.name for leaf in leaves}) == len(leaves) == 3
    assert all(isinstance(leaf, Held) for leaf in leaves)
    solution = mslsq.least_squares(residual, start, (other,), jac=jacobian)
    torch.testing.assert_close(solution.value, torch.full_like(start, 1 / 8))
    (of_residual, of_other) = torch.autograd.grad(solution.value.sum(), [residual.scale, other.scale])
    torch.testing.assert_close(of_residual, torch.tensor(-2 / 16, dtype=F64))  # x = 1 / (s t), dx/ds = −x / s
    torch.testing.assert_close(of_other, torch.tensor(-2 / 32, dtype=F64))


def test_arguments_are_named_by_their_place():
    args = (torch.ones(2), {"a": torch.ones(2), "b": torch.ones(2)})
    (leaves,) = stated_residual(lambda x, t, d: x - t - d["a"] - d["b"], torch.zeros(2), args).statement.leaves
    assert [leaf.name for leaf in leaves] == ["args[0]", "args[1], leaf 0,", "args[1], leaf 1,"]
    assert all(isinstance(leaf, Argument) for leaf in leaves)


def test_a_lambda_written_again_finds_what_was_kept_for_its_code():
    def make():
        return lambda x: x - 1

    assert kept_for_callable(make()) is kept_for_callable(make())


def test_for_what_cannot_be_referred_to_weakly_nothing_is_kept():
    assert kept_for_callable(abs) is kept_for_callable(abs)  # builtins can

    class Slots:
        __slots__ = ()
        __call__ = abs  # no code of the user's

    slots = Slots()
    assert kept_for_callable(slots) is not kept_for_callable(slots)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused_in_words(dtype):
    with pytest.raises(mslsq.errors.DtypeError, match=r"x0 is .*float32 or float64"):
        mslsq.least_squares(lambda x: x * x - 4, torch.ones(1, dtype=dtype))
    x = mslsq.Variable("x", mslsq.Euclidean(1))
    problem = mslsq.Problem(mslsq.Prior(x, target=torch.zeros(1, 1, dtype=dtype)))
    with pytest.raises(mslsq.errors.DtypeError, match=r"'x'.*float32 or float64"):
        mslsq.solve(problem, {"x": torch.ones(1, dtype=dtype)})


def test_a_problem_in_the_place_of_a_residual_is_told_where_it_belongs():
    x = mslsq.Variable("x", mslsq.Euclidean(1))
    prior = mslsq.Prior(x, target=torch.zeros(1, 1))
    for wrong in (prior, mslsq.Problem(prior)):
        with pytest.raises(mslsq.ProblemError, match=r"mslsq\.solve\(problem, values\)"):
            mslsq.least_squares(wrong, torch.ones(1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solver": "lm"}, r"solver=mslsq\.LevenbergMarquardt\(\)"),
        ({"adjoint": "implicit"}, r"an Adjoint object.*adjoint=mslsq\.Implicit\(\)"),
    ],
)
def test_an_option_by_a_string_is_told_what_to_write(options, message):
    with pytest.raises(TypeError, match=message):
        mslsq.least_squares(lambda x: x - 1, torch.ones(1), **options)


def test_a_jacobian_in_numpy_and_a_pair_without_has_aux_are_named():
    with pytest.raises(mslsq.ProblemError, match="must be tensors, not ndarray"):
        mslsq.least_squares(lambda x: x - 1, torch.ones(1), jac=lambda x: np.eye(1))
    with pytest.raises(mslsq.ProblemError, match="has_aux=True"):
        mslsq.least_squares(lambda x: (x - 1, "aux"), torch.ones(1))
