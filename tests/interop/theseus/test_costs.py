"""An objective of Theseus and the problem made of it have the same cost at every point, and the same minimum."""

import pytest
import torch

import mslsq
from mslsq.interop.theseus import from_theseus, from_theseus_layer

th = pytest.importorskip(
    "theseus", reason="Theseus is not installed: see scripts/install_theseus.sh", exc_type=ImportError
)
F64 = torch.float64


def number(value: float = 1.0):
    return torch.full((1, 1), value, dtype=F64)


def scale(value: float = 1.0):
    return th.ScaleCostWeight(number(value))


def costs_agree(objective, points: int = 3, seed: int = 0) -> mslsq.Problem:
    """At the point that its variables hold and at others, where variables are moved by tangent vectors."""
    problem = from_theseus(objective)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(points):
        objective.update()
        inputs = problem.inputs()
        ours = mslsq.evaluate(problem, *inputs).cost
        torch.testing.assert_close(ours, objective.error_metric()[0].detach(), rtol=1e-10, atol=1e-12)
        for variable in objective.optim_vars.values():
            step = 0.3 * torch.randn(1, variable.dof(), generator=generator, dtype=F64)
            variable.update(variable.retract(step).tensor.detach())
    return problem


def random(kind, name: str, seed: int):
    generator = torch.Generator().manual_seed(seed)
    tensor = kind.rand(1, generator=generator, dtype=F64).tensor
    return kind(tensor=tensor, name=name)


GROUPS = [th.SO2, th.SE2, th.SO3, th.SE3, th.Point2, th.Point3]


@pytest.mark.parametrize("kind", GROUPS, ids=lambda kind: kind.__name__)
def test_local_and_between_of_every_group_have_the_same_cost(kind):
    objective = th.Objective(dtype=F64)
    a, b = random(kind, "a", 1), random(kind, "b", 2)
    objective.add(th.Difference(a, random(kind, "target", 3), scale(0.7)))
    objective.add(th.Between(a, b, random(kind, "measured", 4), scale(1.3)))
    problem = costs_agree(objective)
    assert {type(cost) for cost in problem} <= {mslsq.Prior, mslsq.Between, mslsq.Difference}


@pytest.mark.parametrize("mode", ["dense", "loop_batch", "vmap"])
@pytest.mark.parametrize("kind", GROUPS, ids=lambda kind: kind.__name__)
def test_error_functions_on_every_group_have_the_same_cost_and_minimum(kind, mode):
    def error(optim_vars, aux_vars):
        a, b = optim_vars
        return aux_vars[0].local(a.inverse().compose(b))

    def first(optim_vars, aux_vars):
        return aux_vars[0].local(optim_vars[0])

    objective = th.Objective(dtype=F64)
    a, b = random(kind, "a", 1), random(kind, "b", 2)
    target, measured = random(kind, "target", 1), random(kind, "measured", 4)
    objective.add(th.AutoDiffCostFunction([a, b], error, a.dof(), scale(2.0), [measured], autograd_mode=mode))
    objective.add(th.AutoDiffCostFunction([a], first, a.dof(), scale(), [target], autograd_mode=mode))
    problem = costs_agree(objective)
    inputs = problem.inputs()
    solution = mslsq.solve(problem, *inputs)
    assert bool(solution.converged) and float(solution.cost) < 1e-20
    found = problem.tensors(solution.value)
    torch.testing.assert_close(found["a"], target.tensor, atol=1e-9, rtol=0)


def test_tangents_are_ordered_alike():
    xi = torch.tensor([[0.1, -0.2, 0.3, 0.4, 0.5, -0.6]], dtype=F64)
    torch.testing.assert_close(th.SE3.exp_map(xi).tensor, mslsq.SE3.exp(xi).matrix()[:, :3])
    torch.testing.assert_close(th.SE2.exp_map(xi[:, :3]).tensor, mslsq.SE2.exp(xi[:, :3]).storage)


def test_quaternions_of_theseus_have_the_real_part_first():
    xyz_wxyz = torch.tensor([[1.0, 2.0, 3.0, 0.5, -0.5, 0.5, 0.5]], dtype=F64)
    theirs = th.SE3.x_y_z_unit_quaternion_to_SE3(xyz_wxyz).tensor
    ours = mslsq.SE3(torch.cat([xyz_wxyz[:, :3], xyz_wxyz[:, 4:], xyz_wxyz[:, 3:4]], -1))
    torch.testing.assert_close(theirs, ours.matrix()[:, :3])


def test_a_diagonal_weight_and_an_own_weight_count():
    class Full(th.CostWeight):
        def __init__(self, matrix, name=None):
            super().__init__(name=name)
            self.matrix = matrix
            self.register_aux_vars(["matrix"])

        def weight_error(self, error):
            return (self.matrix.tensor @ error[..., None])[..., 0]

        def weight_jacobians_and_error(self, jacobians, error):
            return [self.matrix.tensor @ jacobian for jacobian in jacobians], self.weight_error(error)

        def is_zero(self):
            return torch.zeros(len(self.matrix.tensor), dtype=torch.bool)

        def _copy_impl(self, new_name=None):
            return Full(self.matrix.copy(), name=new_name)

    objective = th.Objective(dtype=F64)
    a = random(th.SE2, "a", 1)
    diagonal = th.DiagonalCostWeight(th.Variable(torch.tensor([[1.0, 2.0, 3.0]], dtype=F64), name="diagonal"))
    full = Full(th.Variable(torch.randn(1, 3, 3, dtype=F64), name="matrix"))
    objective.add(th.Difference(a, random(th.SE2, "t0", 2), diagonal))
    objective.add(th.Difference(a, random(th.SE2, "t1", 3), full))
    problem = costs_agree(objective)
    assert isinstance(next(iter(problem)).weight, mslsq.Diagonal)


LOSSES = [th.HuberLoss, th.WelschLoss, th.HingeLoss]


@pytest.mark.parametrize("of_rows", [False, True], ids=["of_blocks", "of_rows"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_robust_losses_have_the_same_cost(loss, of_rows):
    objective = th.Objective(dtype=F64)
    p = th.Vector(tensor=torch.tensor([[1.0, -0.5, 2.0]], dtype=F64), name="p")
    radius = th.Variable(number(-0.3), name="log_radius")
    for seed in range(4):
        target = th.Vector(tensor=torch.randn(1, 3, dtype=F64), name=f"target{seed}")
        cost = th.Difference(p, target, scale(1.5))
        objective.add(th.RobustCostFunction(cost, loss, radius, flatten_dims=of_rows, name=f"robust{seed}"))
    problem = costs_agree(objective)
    assert len(list(problem)) == 1 and next(iter(problem)).num_blocks == 4


def test_graduated_losses_have_the_same_cost():
    objective = th.Objective(dtype=F64)
    p = th.Vector(tensor=torch.tensor([[1.0, -0.5, 2.0]], dtype=F64), name="p")
    radius, mu = th.Variable(number(-0.3), name="log_radius"), th.Variable(number(3.0), name="mu")
    cost = th.Difference(p, th.Vector(tensor=torch.zeros(1, 3, dtype=F64), name="target"), scale())
    objective.add(th.GNCRobustCostFunction(cost, th.GemanMcClureLoss, radius, mu))
    costs_agree(objective)


def test_a_robust_loss_of_the_users_is_carried_over():
    class Square(th.RobustLoss):
        @staticmethod
        def _evaluate_impl(x, radius):
            return x * x / radius

        @staticmethod
        def _linearize_impl(x, radius):
            return 2 * x / radius

    objective = th.Objective(dtype=F64)
    p = th.Vector(tensor=torch.tensor([[1.0, -0.5]], dtype=F64), name="p")
    cost = th.Difference(p, th.Vector(tensor=torch.zeros(1, 2, dtype=F64), name="target"), scale())
    objective.add(th.RobustCostFunction(cost, Square, th.Variable(number(0.4), name="log_radius")))
    costs_agree(objective)


def test_reprojection_has_the_same_cost():
    objective = th.Objective(dtype=F64)
    camera = th.SE3(tensor=th.SE3.exp_map(0.1 * torch.randn(1, 6, dtype=F64)).tensor, name="camera")
    for seed in range(3):
        torch.manual_seed(seed)
        place = torch.tensor([[0.1, 0.2, 5.0]], dtype=F64) + torch.randn(1, 3, dtype=F64)
        point = th.Point3(tensor=place, name=f"p{seed}")
        seen = th.Point2(tensor=torch.randn(1, 2, dtype=F64), name=f"seen{seed}")
        constants = {
            name: th.Vector(tensor=number(value), name=f"{name}{seed}")
            for name, value in (("focal_length", 500.0), ("calib_k1", 0.01), ("calib_k2", 1e-3))
        }
        objective.add(th.eb.Reprojection(camera, point, seen, **constants, weight=scale(), name=f"r{seed}"))
    problem = costs_agree(objective)
    assert next(iter(problem)).num_blocks == 3


def trajectory(kind):
    """Poses and velocities of a motion."""
    poses = [random(kind, f"pose{i}", i) for i in range(4)]
    dof = poses[0].dof()
    velocities = [th.Vector(tensor=torch.randn(1, dof, dtype=F64), name=f"vel{i}") for i in range(4)]
    return poses, velocities


@pytest.mark.parametrize("kind", [th.Point2, th.SE2, th.SE3], ids=lambda kind: kind.__name__)
def test_motion_models_have_the_same_cost(kind):
    poses, velocities = trajectory(kind)
    dof = poses[0].dof()
    dt = th.Variable(number(0.3), name="dt")
    q = th.Variable(torch.eye(dof, dtype=F64)[None] * 1.7, name="Qc_inv")
    objective = th.Objective(dtype=F64)
    for i in range(3):
        both = (poses[i], velocities[i], poses[i + 1], velocities[i + 1], dt)
        objective.add(th.eb.GPMotionModel(*both, th.eb.GPCostWeight(q, dt), name=f"gp{i}"))
        objective.add(th.eb.DoubleIntegrator(*both, scale(0.5), name=f"double{i}"))
    problem = costs_agree(objective)
    assert sorted(cost.num_blocks for cost in problem) == [3, 3]


@pytest.mark.parametrize("kind", [th.Point2, th.SE2], ids=lambda kind: kind.__name__)
def test_collision_has_the_same_cost(kind):
    objective = th.Objective(dtype=F64)
    origin = th.Point2(tensor=torch.full((1, 2), -2.0, dtype=F64), name="origin")
    field = th.Variable(torch.randn(1, 12, 12, dtype=F64), name="field")
    cell, eps = th.Variable(number(0.4), name="cell"), th.Variable(number(0.8), name="eps")
    for i in range(5):
        pose = random(kind, f"pose{i}", i)
        objective.add(th.eb.Collision2D(pose, origin, field, cell, eps, scale(), name=f"collision{i}"))
    problem = costs_agree(objective, points=4)
    assert next(iter(problem)).num_blocks == 5


def test_other_costs_of_theseus_have_the_same_cost():
    objective = th.Objective(dtype=F64)
    f1, f2, p1, p2 = (random(th.SE2, name, seed) for seed, name in enumerate(("f1", "f2", "p1", "p2")))
    objective.add(th.eb.MovingFrameBetween(f1, f2, p1, p2, random(th.SE2, "measured", 9), scale()))
    velocity = th.Vector(tensor=torch.randn(1, 3, dtype=F64), name="velocity")
    objective.add(th.eb.Nonholonomic(p1, velocity, scale()))
    limits = [torch.full((1, 3), limit, dtype=F64) for limit in (-0.5, 0.5, 0.1)]
    objective.add(th.eb.HingeCost(velocity, *limits, scale()))
    costs_agree(objective)


def test_derivatives_in_the_weight_of_a_motion_do_not_read_memory_that_was_not_written():
    points, speeds = ([th.Point2(name=f"{n}{i}", dtype=F64) for i in range(2)] for n in "pv")
    dt = th.Variable(torch.full((1, 1), 0.3, dtype=F64), name="dt")
    objective = th.Objective(dtype=F64)
    weight = th.eb.GPCostWeight(torch.eye(2, dtype=F64)[None], dt)
    objective.add(th.eb.GPMotionModel(points[0], speeds[0], points[1], speeds[1], dt, weight))
    for i, point in enumerate(points):
        target = th.Point2(tensor=torch.tensor([[1.0 + i, -2.0 * i]], dtype=F64), name=f"t{i}")
        objective.add(th.eb.Local(point, target, scale()))
    objective.add(th.eb.Local(speeds[0], th.Point2(tensor=torch.ones(1, 2, dtype=F64), name="s"), scale()))
    layer = from_theseus_layer(th.TheseusLayer(th.GaussNewton(objective)))
    time = torch.full((1, 1), 0.3, dtype=F64)
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills what is not written with NaN
    try:
        values, _ = layer.forward({"dt": time.requires_grad_()}, {"backward_mode": "implicit"})
        found = torch.autograd.grad(values["p1"].sum(), time)[0]
    finally:
        torch.use_deterministic_algorithms(False)
    with torch.no_grad():
        ends = [layer.forward({"dt": time + h})[0]["p1"].sum() for h in (1e-5, -1e-5)]
    torch.testing.assert_close(found[0, 0], (ends[0] - ends[1]) / 2e-5, rtol=1e-5, atol=1e-8)
