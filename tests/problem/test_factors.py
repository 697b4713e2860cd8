"""The factors: Jacobians against automatic differentiation, costs of pose graphs against published ones."""

import gzip
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.func import jacfwd, vmap

import mslsq
from mslsq.manifolds import space_of
from mslsq.manifolds.space import Space

GROUPS = [mslsq.SO2, mslsq.SE2, mslsq.SO3, mslsq.SE3]
WITHOUT_CLOSED_FORM = [mslsq.Sim2, mslsq.Sim3, mslsq.UnitVector]
PRODUCT = {"pose": mslsq.SE2, "bias": mslsq.Euclidean(2), "gravity": mslsq.UnitVector}
N = 12


def tangents(kind: Any, regime: str, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
    """Tangent vectors (N, tangent): anywhere, near zero, exactly zero in the first, or of rotation angle near pi."""
    delta = torch.randn(N, kind.tangent_dim, generator=generator, dtype=torch.float64)
    if regime == "near identity":
        delta = delta * torch.logspace(-12, -1, N, dtype=torch.float64)[:, None]
        delta = torch.cat([torch.zeros_like(delta[:1]), delta[1:]])
    if regime == "near pi":
        start, stop = {"SO2": (0, 1), "SE2": (2, 3), "SO3": (0, 3), "SE3": (3, 6)}[kind.__name__]
        angle = torch.pi - torch.logspace(-8, -1, N, dtype=torch.float64)
        unit = delta[:, start:stop] / torch.linalg.vector_norm(delta[:, start:stop], dim=-1, keepdim=True)
        delta = torch.cat([delta[:, :start], angle[:, None] * unit, delta[:, stop:]], -1)
    return delta.to(dtype)


def autodiff(cost: mslsq.CostFunction, spaces: list[Space], storages: tuple[Tensor, ...], data: dict) -> list[Tensor]:
    """Jacobians of the residual in the tangent of each variable, for all blocks, by jacfwd."""

    def one(storages: tuple[Tensor, ...], data: dict) -> list[Tensor]:
        def moved(*deltas: Tensor) -> Tensor:
            values = [s.wrap(s.retract(x, d)) for s, x, d in zip(spaces, storages, deltas, strict=True)]
            return cost.residual(*values, **data)

        zeros = [x.new_zeros(s.tangent_dim) for s, x in zip(spaces, storages, strict=True)]
        return list(jacfwd(moved, argnums=tuple(range(len(zeros))))(*zeros))

    return vmap(one)(storages, data)


def analytic(cost: Any, spaces: list[Space], storages: tuple[Tensor, ...], data: dict) -> list[Tensor]:
    def one(storages: tuple[Tensor, ...], data: dict) -> list[Tensor]:
        return list(cost.jacobians(*(s.wrap(x) for s, x in zip(spaces, storages, strict=True)), **data))

    return vmap(one)(storages, data)


def assert_jacobians_agree(cost: mslsq.CostFunction, spaces: list[Space], storages: Any, data: dict) -> None:
    found, expected = analytic(cost, spaces, storages, data), autodiff(cost, spaces, storages, data)
    # float32: second-order terms of logarithms near pi lose a few hundred units of the last place.
    tolerance = 1e-10 if storages[0].dtype == torch.float64 else 2e-4
    for f, e in zip(found, expected, strict=True):
        assert f.dtype == storages[0].dtype
        torch.testing.assert_close(f, e, rtol=tolerance, atol=tolerance * float(e.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("regime", ["anywhere", "near identity", "near pi"])
@pytest.mark.parametrize("group", GROUPS)
def test_jacobians_of_groups_are_those_of_autodiff(group: Any, regime: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    a, measured = (group.random(N, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    error = group.exp(tangents(group, regime, generator, dtype))
    space = space_of(group)
    x = mslsq.Variable("x", group, count=2 * N)
    first, second = torch.arange(N), torch.arange(N, 2 * N)

    between = mslsq.Between(x[first], x[second], measured=measured)
    assert_jacobians_agree(between, [space, space], (a.storage, (a @ measured @ error).storage), {"measured": measured})
    prior = mslsq.Prior(x[first], target=a)
    assert_jacobians_agree(prior, [space], ((a @ error).storage,), {"target": a})
    difference = mslsq.Difference(x[first], x[second])
    assert_jacobians_agree(difference, [space, space], (a.storage, (a @ error).storage), {})


@pytest.mark.parametrize("kind", [*WITHOUT_CLOSED_FORM, mslsq.Euclidean(3), PRODUCT], ids=str)
def test_prior_and_difference_are_right_on_any_manifold(kind: Any) -> None:
    generator = torch.Generator().manual_seed(2)
    space = space_of(kind)
    a, b = (space.random(N, generator=generator, dtype=torch.float64) for _ in range(2))
    x = mslsq.Variable("x", kind, count=2 * N)
    first, second = torch.arange(N), torch.arange(N, 2 * N)
    target = space.wrap(a)
    assert_jacobians_agree(mslsq.Prior(x[first], target=target), [space], (b,), {"target": target})
    measured = torch.randn(N, space.tangent_dim, generator=generator, dtype=torch.float64)
    difference = mslsq.Difference(x[first], x[second], measured=measured)
    assert_jacobians_agree(difference, [space, space], (a, b), {"measured": measured})


@pytest.mark.parametrize("group", [mslsq.Sim2, mslsq.Sim3])
def test_between_similarities_is_right_without_a_closed_form(group: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    a, b, measured = (group.random(N, generator=generator, dtype=torch.float64) for _ in range(3))
    x = mslsq.Variable("x", group, count=2 * N)
    between = mslsq.Between(x[torch.arange(N)], x[torch.arange(N, 2 * N)], measured=measured)
    assert_jacobians_agree(between, [space_of(group)] * 2, (a.storage, b.storage), {"measured": measured})


def test_between_is_zero_where_the_measurement_holds() -> None:
    generator = torch.Generator().manual_seed(4)
    a, b = (mslsq.SE3.random(5, generator=generator, dtype=torch.float64) for _ in range(2))
    pose = mslsq.Variable("pose", mslsq.SE3, count=10)
    problem = mslsq.Problem(mslsq.Between(pose[:5], pose[5:], measured=a.inverse() @ b))
    values = {"pose": torch.cat([a.storage, b.storage])}
    assert cost_at(problem, values) < 1e-28


def test_between_refuses_variables_that_have_no_inverse() -> None:
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=2)
    with pytest.raises(mslsq.ProblemError, match=r"use mslsq\.Difference"):
        mslsq.Between(x[[0]], x[[1]], measured=torch.zeros(1, 2))


def test_priors_and_differences_make_a_linear_problem_with_a_closed_form() -> None:
    # Levelling: heights h0 = 0 (prior, sigma 0.1), h1 - h0 = 1, h2 - h1 = 1, h2 - h0 = 2.3, all of sigma 1.
    h = mslsq.Variable("h", mslsq.Euclidean(1), count=3)
    measured = torch.tensor([[1.0], [1.0], [2.3]], dtype=torch.float64)
    problem = mslsq.Problem(
        mslsq.Prior(
            h[[0]], target=torch.zeros(1, 1, dtype=torch.float64), weight=mslsq.Scale(torch.tensor(10.0).double())
        ),
        mslsq.Difference(h[[0, 1, 0]], h[[1, 2, 2]], measured=measured),
    )
    solution = mslsq.solve(problem, {"h": torch.zeros(3, 1, dtype=torch.float64)})
    # The misclosure 0.3 is shared equally by the three observations.
    torch.testing.assert_close(
        solution.value["h"], torch.tensor([[0.0], [1.1], [2.2]], dtype=torch.float64), rtol=0, atol=1e-9
    )


class PoseGraph(NamedTuple):
    poses: Any
    first: Tensor
    second: Tensor
    measured: Any
    information: Tensor


def read_pose_graph(path: Path) -> PoseGraph:
    """A g2o file whose vertices are numbered in order."""
    poses, edges = [], []
    with gzip.open(path, "rt") as lines:
        for line in lines:
            tag, *fields = line.split()
            (poses if tag.startswith("VERTEX") else edges).append([float(field) for field in fields])
    vertices = torch.tensor(poses, dtype=torch.float64)
    table = torch.tensor(edges, dtype=torch.float64)
    assert vertices[:, 0].tolist() == list(range(len(vertices)))
    planar = vertices.shape[1] == 4

    def elements(rows: Tensor) -> Any:
        return mslsq.SE2.from_xyt(rows) if planar else mslsq.SE3(rows).normalized()

    size, storage = (3, 3) if planar else (6, 7)
    upper = torch.triu_indices(size, size)
    information = torch.zeros(len(table), size, size, dtype=torch.float64)
    information[:, upper[0], upper[1]] = table[:, 2 + storage :]
    information[:, upper[1], upper[0]] = table[:, 2 + storage :]
    return PoseGraph(
        elements(vertices[:, 1:]),
        table[:, 0].long(),
        table[:, 1].long(),
        elements(table[:, 2 : 2 + storage]),
        information,
    )


def pose_graph_problem(graph: PoseGraph) -> mslsq.Problem:
    pose = mslsq.Variable("pose", type(graph.poses), count=len(graph.poses))
    return mslsq.Problem(
        mslsq.Between(
            pose[graph.first],
            pose[graph.second],
            measured=graph.measured,
            weight=mslsq.SqrtInformation.from_information(graph.information),
        ),
        mslsq.Prior(pose[[0]], target=graph.poses[:1], weight=mslsq.Scale(torch.tensor(1e6, dtype=torch.float64))),
    )


def cost_at(problem: mslsq.Problem, values: dict) -> float:
    return float(mslsq.solve(problem, values, solver=mslsq.LevenbergMarquardt(max_steps=0)).cost)


def test_small_grid_reaches_the_published_minimum(shared_data: Path) -> None:
    graph = read_pose_graph(shared_data / "g2o" / "smallGrid3D.g2o.gz")
    problem = pose_graph_problem(graph)
    assert cost_at(problem, {"pose": graph.poses}) == pytest.approx(83894.33, abs=0.01)  # given to two decimals
    solution = mslsq.solve(problem, {"pose": graph.poses}, solver=mslsq.LevenbergMarquardt(max_steps=50))
    assert bool(solution.converged)
    # Half of SE-Sync's certified global optimum; ftol 1e-8 leaves the last of its digits open.
    assert float(solution.cost) == pytest.approx(517.9253324, rel=1e-8)


def test_closed_form_and_autodiff_take_the_same_steps(shared_data: Path) -> None:
    class PlainBetween(mslsq.CostFunction):
        def residual(self, a: mslsq.SE3, b: mslsq.SE3, measured: mslsq.SE3) -> Tensor:
            return (measured.inverse() @ (a.inverse() @ b)).log()

    graph = read_pose_graph(shared_data / "g2o" / "tinyGrid3D.g2o.gz")
    problem = pose_graph_problem(graph)
    pose = mslsq.Variable("pose", mslsq.SE3, count=len(graph.poses))
    weight = mslsq.SqrtInformation.from_information(graph.information)
    plain = mslsq.Problem(
        PlainBetween(pose[graph.first], pose[graph.second], measured=graph.measured, weight=weight),
        mslsq.Prior(pose[[0]], target=graph.poses[:1], weight=mslsq.Scale(torch.tensor(1e6, dtype=torch.float64))),
    )
    solver = mslsq.LevenbergMarquardt(max_steps=8)
    first, second = (mslsq.solve(p, {"pose": graph.poses}, solver=solver) for p in (problem, plain))
    torch.testing.assert_close(first.history.cost, second.history.cost, rtol=1e-9, atol=0, equal_nan=True)


def test_planar_graph_costs_what_its_edges_say(shared_data: Path) -> None:
    graph = read_pose_graph(shared_data / "g2o" / "intel.g2o.gz")
    edges = slice(0, 200)  # dense normal equations of all 1728 poses have no place in a quick test
    few = PoseGraph(
        graph.poses, graph.first[edges], graph.second[edges], graph.measured[edges], graph.information[edges]
    )
    used = int(torch.maximum(few.first, few.second).max()) + 1
    few = few._replace(poses=graph.poses[:used])
    # Independent: homogeneous matrices, SciPy's matrix logarithm.
    logm = pytest.importorskip("scipy.linalg").logm
    a, b, m = few.poses[few.first].matrix(), few.poses[few.second].matrix(), few.measured.matrix()
    expected = 0.0
    for first, second, measured, information in zip(a, b, m, few.information, strict=True):
        error = torch.as_tensor(logm((measured.inverse() @ first.inverse() @ second).numpy()).real)
        e = torch.stack([error[0, 2], error[1, 2], error[1, 0]])
        expected += 0.5 * float(e @ information @ e)
    # On these edges the start was integrated from odometry, so that most costs are near zero: compare absolutely too.
    assert cost_at(pose_graph_problem(few), {"pose": few.poses}) == pytest.approx(expected, rel=1e-9, abs=1e-9)
