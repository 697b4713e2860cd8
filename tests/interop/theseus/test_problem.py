"""How the cost functions of an objective become costs with blocks, and its batch the batch here."""

import pytest
import torch

import mslsq
from mslsq.interop.theseus import TheseusError, from_theseus

th = pytest.importorskip(
    "theseus", reason="Theseus is not installed: see scripts/install_theseus.sh", exc_type=ImportError
)
F64 = torch.float64


def scale(value: float = 1.0):
    return th.ScaleCostWeight(torch.full((1, 1), value, dtype=F64))


def vector(name: str, *values: float):
    return th.Vector(tensor=torch.tensor([values], dtype=F64), name=name)


def curve(points: int = 20):
    """y = v exp(x), as Theseus' simple example has it."""
    objective = th.Objective(dtype=F64)
    x = th.Variable(torch.linspace(-1, 1, points, dtype=F64)[None], name="x")
    y = th.Variable(0.5 * x.tensor.exp() + 0.01 * torch.sin(17 * x.tensor), name="y")

    def error(optim_vars, aux_vars):
        x, y = aux_vars
        return y.tensor - optim_vars[0].tensor * torch.exp(x.tensor)

    objective.add(th.AutoDiffCostFunction([vector("v", 1.0)], error, points, scale(), aux_vars=[x, y]))
    return objective


def test_the_simple_example_has_its_closed_form_and_its_gradient():
    objective = curve()
    problem = from_theseus(objective)
    x, y = (objective.aux_vars[name].tensor.clone().requires_grad_() for name in ("x", "y"))
    inputs = problem.inputs({"x": x, "y": y})
    v = problem.tensors(mslsq.solve(problem, *inputs).value)["v"]
    expected = (y * x.exp()).sum() / (2 * x).exp().sum()
    torch.testing.assert_close(v[0, 0], expected)
    found, truth = (torch.autograd.grad(value, (x, y)) for value in (v.sum(), expected))
    torch.testing.assert_close(found, truth)


def test_the_batch_of_theseus_is_the_batch_here():
    problem = from_theseus(curve())
    x = torch.linspace(-1, 1, 20, dtype=F64) + torch.tensor([[0.0], [0.1], [0.2]], dtype=F64)
    inputs = problem.inputs({"x": x})
    solution = mslsq.solve(problem, *inputs, in_dims=inputs.in_dims)
    assert solution.cost.shape == (3,)
    y = problem.inputs().data[next(iter(problem)).name]["aux1"]
    expected = (y * x.exp()).sum(1) / (2 * x).exp().sum(1)
    torch.testing.assert_close(problem.tensors(solution.value)["v"][:, 0], expected)


def circle(poses: int = 30, group=None):
    """A ring of SE(3) or SE(2) poses with closures, a prior on the first, from a start that has drifted."""
    group = group or th.SE3
    generator = torch.Generator().manual_seed(0)
    dof = group().dof()
    objective = th.Objective(dtype=F64)
    step = torch.zeros(1, dof, dtype=F64)
    step[:, 0], step[:, -1] = 1.0, 2 * torch.pi / poses

    def noisy(element, size):
        return group(tensor=element.retract(size * torch.randn(1, dof, generator=generator, dtype=F64)).tensor)

    truth = [group(tensor=group.exp_map(0 * step).tensor)]
    for _ in range(poses - 1):
        truth.append(truth[-1].compose(group.exp_map(step)))
    pose = [group(tensor=noisy(element, 0.1).tensor, name=f"pose{i}") for i, element in enumerate(truth)]
    objective.add(th.Difference(pose[0], group(tensor=truth[0].tensor, name="origin"), scale(1e3), name="prior"))
    for i in range(poses):
        for j in (i + 1, i + 5):
            measured = noisy(truth[i].between(truth[j % poses]), 0.02)
            measured.name = f"measured{i}_{j}"
            objective.add(th.Between(pose[i], pose[j % poses], measured, scale(5.0), name=f"edge{i}_{j}"))
    return objective


@pytest.mark.parametrize("group", ["SE2", "SE3"])
def test_a_pose_graph_is_one_cost_and_has_theseus_minimum(group):
    objective = circle(group=getattr(th, group))
    problem = from_theseus(objective)
    assert [cost.num_blocks for cost in problem] == [1, 60]
    assert problem.blocks["Between"][:2] == ("edge0_1", "edge0_5")
    inputs = problem.inputs()
    solution = mslsq.solve(problem, *inputs)
    layer = th.TheseusLayer(th.GaussNewton(objective, max_iterations=30, linear_solver_cls=th.CholeskyDenseSolver))
    with torch.no_grad():
        found, _ = layer.forward()
        theirs = objective.error_metric()
    assert float(solution.cost) <= float(theirs) * (1 + 1e-9)
    ours = problem.tensors(solution.value)
    for name, tensor in found.items():
        torch.testing.assert_close(ours[name], tensor, atol=1e-5, rtol=0)


def closure(factor):
    def error(optim_vars, aux_vars):
        return optim_vars[0].tensor - factor * aux_vars[0].tensor

    return error


def test_functions_of_equal_closures_are_merged_and_others_are_not():
    objective = th.Objective(dtype=F64)
    for number, factor in enumerate((1.0, 1.0, 2.0, 1.0)):
        data = th.Variable(torch.full((1, 2), float(number), dtype=F64), name=f"data{number}")
        v = vector(f"v{number}", 0.0, 0.0)
        objective.add(th.AutoDiffCostFunction([v], closure(factor), 2, scale(), aux_vars=[data]))
    problem = from_theseus(objective)
    assert sorted(cost.num_blocks for cost in problem) == [1, 3]
    found = problem.tensors(mslsq.solve(problem, *problem.inputs()).value)
    assert {name: float(tensor[0, 0]) for name, tensor in found.items()} == pytest.approx(
        {"v0": 0.0, "v1": 1.0, "v2": 4.0, "v3": 3.0}
    )


@pytest.mark.parametrize("mode", ["dense", "loop_batch"])
def test_the_in_place_residual_of_issue_650_has_its_linear_solution(mode):
    """Theseus' `vmap` mode refuses it; all pairs of four maps of five cells, linear in the maps."""
    maps, cells = 4, 5
    pairs = [(i, j) for i in range(maps) for j in range(maps) if i != j]
    generator = torch.Generator().manual_seed(0)
    ratios = torch.rand(1, len(pairs), cells, generator=generator, dtype=F64) + 0.5
    prior = torch.rand(1, cells, generator=generator, dtype=F64)

    def error(optim_vars, aux_vars):
        x, (ratios, prior) = optim_vars[0].tensor, aux_vars
        error = torch.zeros(len(x), (len(pairs) + 1) * cells, dtype=x.dtype)
        for number, (i, j) in enumerate(pairs):
            step = ratios.tensor[:, number] * x[:, i * cells : (i + 1) * cells] - x[:, j * cells : (j + 1) * cells]
            error[:, number * cells : (number + 1) * cells] = step
        error[:, len(pairs) * cells :] = x[:, :cells] - prior.tensor
        return error

    objective = th.Objective(dtype=F64)
    x = th.Vector(tensor=torch.ones(1, maps * cells, dtype=F64), name="x")
    data = [th.Variable(ratios, name="ratios"), th.Variable(prior, name="prior")]
    rows = (len(pairs) + 1) * cells
    objective.add(th.AutoDiffCostFunction([x], error, rows, scale(), aux_vars=data, autograd_mode=mode))
    problem = from_theseus(objective)
    with pytest.warns(UserWarning, match="writes into tensors in place"):
        solution = mslsq.solve(problem, *problem.inputs())

    def of(value):
        return error([th.Vector(tensor=value[None])], data)[0]

    zero = torch.zeros(maps * cells, dtype=F64)
    jacobian = torch.autograd.functional.jacobian(of, zero)
    expected = torch.linalg.lstsq(jacobian, -of(zero)[:, None]).solution[:, 0]
    torch.testing.assert_close(problem.tensors(solution.value)["x"][0], expected)


def test_a_tensor_in_a_closure_is_an_input_with_a_gradient():
    factor = torch.tensor(3.0, dtype=F64, requires_grad=True)
    objective = th.Objective(dtype=F64)
    data = th.Variable(torch.ones(1, 2, dtype=F64), name="data")
    objective.add(th.AutoDiffCostFunction([vector("v", 0.0, 0.0)], closure(factor), 2, scale(), aux_vars=[data]))
    problem = from_theseus(objective)
    v = problem.tensors(mslsq.solve(problem, *problem.inputs()).value)["v"]
    torch.testing.assert_close(torch.autograd.grad(v.sum(), factor)[0], torch.tensor(2.0, dtype=F64))


def test_a_network_in_a_cost_function_of_the_users_has_gradients():
    class Learned(th.CostFunction):
        def __init__(self, v, network, cost_weight, name=None):
            super().__init__(cost_weight, name=name)
            self.v, self.network = v, network
            self.register_optim_vars(["v"])

        def error(self):
            return self.v.tensor - self.network(torch.ones(1, 2, dtype=F64))

        def jacobians(self):
            return [torch.eye(2, dtype=F64).expand(len(self.v.tensor), 2, 2)], self.error()

        def dim(self):
            return 2

        def _copy_impl(self, new_name=None):
            return Learned(self.v.copy(), self.network, self.weight.copy(), name=new_name)

    torch.manual_seed(0)
    network = torch.nn.Linear(2, 2, dtype=F64)
    objective = th.Objective(dtype=F64)
    objective.add(Learned(vector("v", 0.0, 0.0), network, scale()))
    problem = from_theseus(objective)
    v = problem.tensors(mslsq.solve(problem, *problem.inputs()).value)["v"]
    torch.testing.assert_close(torch.autograd.grad(v.sum(), network.bias)[0], torch.ones(2, dtype=F64))


def test_what_has_no_counterpart_is_refused_by_name():
    objective = th.Objective(dtype=F64, error_metric_fn=lambda e: e.abs().sum(1))
    objective.add(th.Difference(vector("v", 0.0), vector("t", 1.0), scale()))
    with pytest.raises(TheseusError, match="error_metric_fn"):
        from_theseus(objective)
    with pytest.raises(TheseusError, match=r"takes a theseus\.Objective, not int"):
        from_theseus(3)
    problem = from_theseus(curve())
    with pytest.raises(TheseusError, match=r"no variable 'z'; it has .*v, x, y"):
        problem.inputs({"z": torch.zeros(1, 1, dtype=F64)})
    with pytest.raises(TheseusError, match=r"'v' was given a tensor of shape \(1, 2\)"):
        problem.inputs({"v": torch.zeros(1, 2, dtype=F64)})
    with pytest.raises(TheseusError, match="batch sizes do not agree"):
        problem.inputs({"x": torch.zeros(2, 20, dtype=F64), "y": torch.zeros(3, 20, dtype=F64)})


def test_what_theseus_does_elsewhere_is_as_it_was_after_a_residual_and_after_an_error():
    import torchlie.functional
    from theseus.geometry.lie_group_check import _LieGroupCheckContext

    from mslsq.interop.theseus.evaluation import differentiable

    before = dict(vars(torchlie.functional.SE3)), _LieGroupCheckContext.get_context()
    with pytest.raises(ZeroDivisionError), differentiable(), differentiable():
        assert vars(torchlie.functional.SE3)["exp"] is not before[0]["exp"]
        assert not _LieGroupCheckContext.get_context()[0]
        _ = 1 / 0
    assert (dict(vars(torchlie.functional.SE3)), _LieGroupCheckContext.get_context()) == before
