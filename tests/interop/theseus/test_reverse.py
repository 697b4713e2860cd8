"""A cost function of this library in an objective of Theseus: the same cost, right Jacobians, the same minimum."""

import pytest
import torch

import mslsq
from mslsq.interop.theseus import TheseusError, as_theseus_cost, from_theseus

th = pytest.importorskip(
    "theseus", reason="Theseus is not installed: see scripts/install_theseus.sh", exc_type=ImportError
)
F64 = torch.float64


def graph(group, loss=None):
    """A ring of six poses with noisy steps, held at the first."""
    generator = torch.Generator().manual_seed(0)
    pose = mslsq.Variable("pose", group, count=6)
    i = torch.arange(6)
    step = torch.zeros(6, group.tangent_dim, dtype=F64)
    step[:, 0], step[:, -1] = 1.0, torch.pi / 3
    step = step + 0.05 * torch.randn(step.shape, generator=generator, dtype=F64)
    sqrt = torch.eye(group.tangent_dim, dtype=F64) + 0.1
    edges = mslsq.Between(
        pose[i], pose[(i + 1) % 6], measured=group.exp(step), weight=mslsq.SqrtInformation(sqrt), loss=loss
    )
    prior = mslsq.Prior(
        pose[[0]], target=group.identity(1, dtype=F64), weight=mslsq.Scale(torch.tensor(10.0, dtype=F64))
    )
    start = [group.identity(dtype=F64)]
    for k in range(5):
        start.append(start[-1] @ group.exp(step[k]))
    return mslsq.Problem(edges, prior), {"pose": group(torch.stack([element.storage for element in start]))}


def carried(problem, start):
    """The objective of Theseus with all blocks, its variables at the start."""
    objective, variables = th.Objective(dtype=F64), {}
    for cost in problem:
        for block in range(cost.num_blocks):
            objective.add(as_theseus_cost(cost, block, variables))
    for k in range(6):
        element = start["pose"][k]
        is_matrix = isinstance(element, (mslsq.SO3, mslsq.SE3))
        variables[f"pose_{k}"].update((element.matrix()[:3] if is_matrix else element.storage)[None])
    objective.update()
    return objective


@pytest.mark.parametrize("group", [mslsq.SE2, mslsq.SE3], ids=lambda group: group.__name__)
@pytest.mark.parametrize("loss", [None, mslsq.Huber(0.1), mslsq.Welsch(0.3), mslsq.GemanMcClure(0.3)], ids=str)
def test_the_cost_there_is_the_cost_here_and_so_it_is_after_the_way_back(group, loss):
    problem, start = graph(group, loss)
    objective = carried(problem, start)
    expected = mslsq.evaluate(problem, start).cost
    torch.testing.assert_close(objective.error_metric()[0], expected)
    back = from_theseus(objective)
    assert sorted(cost.num_blocks for cost in back) == [1, 6]
    torch.testing.assert_close(mslsq.evaluate(back, *back.inputs()).cost, expected)


@pytest.mark.parametrize("group", [mslsq.SO2, mslsq.SE2, mslsq.SE3], ids=lambda group: group.__name__)
def test_jacobians_are_those_of_theseus_own_between(group):
    problem, start = graph(group)
    theirs = getattr(th, group.__name__)
    objective = carried(problem, start)
    ours = objective.cost_functions["between_2"]
    measured = problem["between"].data_arguments({"measured": problem["between"].measured})["measured"][2]
    matrix = measured.matrix()[:3] if group is mslsq.SE3 else measured.storage
    own = th.Between(*ours.optim_vars, theirs(tensor=matrix[None], name="m"), ours.weight)
    found, expected = ours.weighted_jacobians_error(), own.weighted_jacobians_error()
    torch.testing.assert_close(found[1], expected[1])
    torch.testing.assert_close(found[0], expected[0], atol=1e-7, rtol=0)


def test_theseus_finds_the_minimum_of_this_library_vectorized_too():
    problem, start = graph(mslsq.SE2)
    expected = mslsq.solve(problem, start).cost
    for vectorize in (False, True):
        objective = carried(problem, start)
        optimizer = th.GaussNewton(objective, max_iterations=20, linear_solver_cls=th.CholeskyDenseSolver)
        with torch.no_grad():
            th.TheseusLayer(optimizer, vectorize=vectorize).forward()
        torch.testing.assert_close(objective.error_metric()[0], expected.detach())


def test_theseus_does_not_merge_costs_of_other_code():
    class Scaled(mslsq.CostFunction):
        def residual(self, v, factor):
            return v * factor - 6.0

    objective, variables = th.Objective(dtype=torch.float32), {}
    for factor in (2.0, 3.0):
        v = mslsq.Variable(f"v{factor:g}", mslsq.Euclidean(1))
        objective.add(as_theseus_cost(Scaled(v, factor=factor, name=f"scaled{factor:g}"), 0, variables))
    optimizer = th.GaussNewton(objective, linear_solver_cls=th.CholeskyDenseSolver)
    values, _ = th.TheseusLayer(optimizer, vectorize=True).forward()
    assert {name: float(value) for name, value in values.items()} == pytest.approx({"v2": 3.0, "v3": 2.0})


def test_data_are_replaced_by_name():
    v = mslsq.Variable("v", mslsq.Euclidean(2))
    prior = mslsq.Prior(v, target=mslsq.Shared(torch.zeros(2, dtype=F64)))
    objective = th.Objective(dtype=F64)
    objective.add(as_theseus_cost(prior))
    layer = th.TheseusLayer(th.GaussNewton(objective, linear_solver_cls=th.CholeskyDenseSolver))
    target = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=F64)
    values, _ = layer.forward({"prior_target": target, "v": torch.zeros(2, 2, dtype=F64)})
    torch.testing.assert_close(values["v"], target)


def test_what_theseus_does_not_have_is_refused_by_name():
    with pytest.raises(TheseusError, match="Cauchy has no counterpart"):
        as_theseus_cost(graph(mslsq.SE2, mslsq.Cauchy(1.0))[0]["between"])
    s = mslsq.Variable("s", mslsq.Sim3)
    with pytest.raises(TheseusError, match="'s' is on Sim3"):
        as_theseus_cost(mslsq.Prior(s, target=mslsq.Sim3.identity(1, dtype=F64)))
    with pytest.raises(TheseusError, match="blocks 0 to 5; block 6"):
        as_theseus_cost(graph(mslsq.SE2)[0]["between"], 6)
    with pytest.raises(TheseusError, match=r"takes an mslsq\.CostFunction"):
        as_theseus_cost(graph(mslsq.SE2)[0])
