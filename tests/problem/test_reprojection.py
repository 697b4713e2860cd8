"""Reprojection: Jacobians against automatic differentiation, costs of bundle adjustments against published ones."""

import bz2
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import jacfwd, vmap

import mslsq

N = 20
D = torch.float64


def jacobians_by_autodiff(cost: mslsq.CostFunction, camera: Any, point: Tensor, data: dict) -> list[Tensor]:
    def one(camera: Any, point: Tensor, data: dict) -> list[Tensor]:
        def moved(by_camera: Tensor, by_point: Tensor) -> Tensor:
            at = camera + by_camera if isinstance(camera, Tensor) else camera.retract(by_camera)
            return cost.residual(at, point + by_point, **data)

        size = 9 if isinstance(camera, Tensor) else 6
        return list(jacfwd(moved, argnums=(0, 1))(point.new_zeros(size), point.new_zeros(3)))

    return vmap(one)(camera, point, data)


def assert_jacobians_agree(cost: Any, camera: Any, point: Tensor, data: dict) -> None:
    found = vmap(lambda c, p, d: list(cost.jacobians(c, p, **d)))(camera, point, data)
    tolerance = 1e-10 if point.dtype == D else 2e-4
    for f, e in zip(found, jacobians_by_autodiff(cost, camera, point, data), strict=True):
        assert f.dtype == point.dtype
        torch.testing.assert_close(f, e, rtol=tolerance, atol=tolerance * float(e.abs().max()))


@pytest.mark.parametrize("dtype", [D, torch.float32])
@pytest.mark.parametrize("lens", ["plain", "centred", "distorted"])
def test_pinhole_jacobians_are_those_of_autodiff(lens: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    pose = mslsq.SE3.random(N, generator=generator, dtype=D)
    seen = torch.rand(N, 3, generator=generator, dtype=D) * 2 + torch.tensor([-1.0, -1.0, 1.5], dtype=D)
    point = pose.act(seen).to(dtype)
    data: dict[str, Tensor] = {
        "pixel": torch.randn(N, 2, generator=generator, dtype=D),
        "focal": torch.rand(N, 2, generator=generator, dtype=D) + 500,
    }
    if lens != "plain":
        data["principal_point"] = torch.rand(N, 2, generator=generator, dtype=D) + 300
        data["focal"] = data["focal"][:, 0]
    if lens == "distorted":
        data["distortion"] = 0.1 * torch.randn(N, 2, generator=generator, dtype=D)
    given: Any = {name: tensor.to(dtype) for name, tensor in data.items()}
    cost = mslsq.Reprojection(
        mslsq.Variable("pose", mslsq.SE3, N), mslsq.Variable("point", mslsq.Euclidean(3), N), **given
    )
    assert_jacobians_agree(cost, pose.to(dtype), point, given)


@pytest.mark.parametrize("dtype", [D, torch.float32])
@pytest.mark.parametrize("angle", [0.0, 1e-7, 1.0, torch.pi - 1e-4, 4.0])
def test_snavely_jacobians_are_those_of_autodiff(angle: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(6)
    axis = torch.randn(N, 3, generator=generator, dtype=D)
    rotation = mslsq.SO3.exp(angle * axis / torch.linalg.vector_norm(axis, dim=-1, keepdim=True))
    seen = torch.rand(N, 3, generator=generator, dtype=D) * 2 + torch.tensor([-1.0, -1.0, -3.5], dtype=D)
    translation = torch.randn(N, 3, generator=generator, dtype=D)
    point = rotation.inverse().act(seen - translation)
    lens = torch.randn(N, 3, generator=generator, dtype=D) * 0.1 + torch.tensor([500.0, 0.0, 0.0], dtype=D)
    vector = angle * axis / torch.linalg.vector_norm(axis, dim=-1, keepdim=True)
    camera = torch.cat([vector, translation, lens], -1).to(dtype)
    data: Any = {"pixel": torch.randn(N, 2, generator=generator, dtype=D).to(dtype)}
    cost = mslsq.SnavelyReprojection(
        mslsq.Variable("camera", mslsq.Euclidean(9), N), mslsq.Variable("point", mslsq.Euclidean(3), N), **data
    )
    assert_jacobians_agree(cost, camera, point.to(dtype), data)


def test_a_camera_looks_along_its_z_axis_x_right_y_down() -> None:
    # A camera at (0, 0, -2) that looks at the origin with the world's axes: a point to the right and below.
    pose = mslsq.SE3(torch.tensor([0.0, 0.0, -2.0, 0.0, 0.0, 0.0, 1.0], dtype=D))
    cost = mslsq.Reprojection(
        mslsq.Variable("pose", mslsq.SE3),
        mslsq.Variable("point", mslsq.Euclidean(3)),
        pixel=torch.zeros(1, 2),
        focal=100.0,
    )
    pixel = cost.residual(pose, torch.tensor([0.5, 0.25, 0.0], dtype=D), torch.zeros(2, dtype=D), 100.0)
    torch.testing.assert_close(pixel, torch.tensor([25.0, 12.5], dtype=D))


def test_a_pose_is_found_from_four_points_with_known_positions() -> None:
    generator = torch.Generator().manual_seed(7)
    truth = mslsq.SE3.exp(0.3 * torch.randn(6, generator=generator, dtype=D))
    corners = torch.tensor([[-1.0, -1, 4], [1, -1, 5], [1, 1, 4], [-1, 1, 6]], dtype=D)
    points = truth.act(corners)
    pixel = 500 * corners[:, :2] / corners[:, 2:] + 320
    pose = mslsq.Variable("pose", mslsq.SE3)
    point = mslsq.Variable("point", mslsq.Euclidean(3), 4)
    centre = mslsq.Shared(torch.full((2,), 320.0, dtype=D))
    problem = mslsq.Problem(
        mslsq.Reprojection(pose, point, pixel=pixel, focal=500.0, principal_point=centre), point.fixed()
    )
    start = {"pose": mslsq.SE3.identity(dtype=D), "point": points}
    solution = mslsq.solve(problem, start)
    torch.testing.assert_close(truth.local(solution.value["pose"]), torch.zeros(6, dtype=D), rtol=0, atol=1e-7)


def read_bal(path: Path) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(camera index, point index, pixels, cameras, points) of a BAL file."""
    text = bz2.decompress(path.read_bytes()).decode() if path.suffix == ".bz2" else path.read_text()
    numbers = torch.tensor([float(word) for word in text.split()], dtype=D)
    cameras, points, observations = (int(n) for n in numbers[:3])
    table, rest = numbers[3 : 3 + 4 * observations].reshape(-1, 4), numbers[3 + 4 * observations :]
    return (
        table[:, 0].long(),
        table[:, 1].long(),
        table[:, 2:],
        rest[: 9 * cameras].reshape(-1, 9),
        rest[9 * cameras :].reshape(points, 3),
    )


def bundle_adjustment(path: Path) -> tuple[mslsq.Problem, dict[str, Tensor]]:
    i, j, pixel, cameras, points = read_bal(path)
    camera = mslsq.Variable("camera", mslsq.Euclidean(9), len(cameras))
    point = mslsq.Variable("point", mslsq.Euclidean(3), len(points))
    problem = mslsq.Problem(mslsq.SnavelyReprojection(camera[i], point[j], pixel=pixel))
    return problem, {"camera": cameras, "point": points}


def test_the_start_of_a_large_bundle_adjustment_costs_what_is_published(shared_data: Path) -> None:
    i, j, pixel, cameras, points = read_bal(shared_data / "bal" / "problem-49-7776-pre.txt.bz2")
    cost: Any = mslsq.SnavelyReprojection(
        mslsq.Variable("camera", mslsq.Euclidean(9), len(cameras))[i],
        mslsq.Variable("point", mslsq.Euclidean(3), len(points))[j],
        pixel=pixel,
    )
    residual = vmap(cost.residual)(cameras[i], points[j], pixel)
    assert 0.5 * float((residual**2).sum()) == pytest.approx(850912.4607, abs=1e-4)  # given to four decimals
    assert_jacobians_agree(cost, cameras[i[:500]], points[j[:500]], {"pixel": pixel[:500]})


def test_a_toy_bundle_adjustment_converges_to_scipys_minimum(shared_data: Path) -> None:
    scipy_optimize = pytest.importorskip("scipy.optimize")
    problem, values = bundle_adjustment(shared_data / "bal" / "dubrovnik-3-7-pre.txt")
    solution = mslsq.solve(problem, values, solver=mslsq.LevenbergMarquardt(max_steps=200))
    i, j, pixel, cameras, _ = read_bal(shared_data / "bal" / "dubrovnik-3-7-pre.txt")

    def residual(x: Any) -> Any:
        cams, pts = x[: cameras.numel()].reshape(-1, 9)[i], x[cameras.numel() :].reshape(-1, 3)[j]
        turned = torch.linalg.matrix_exp(mslsq.SO3.hat(torch.as_tensor(cams[:, :3]))).numpy() @ pts[..., None]
        p = turned[..., 0] + cams[:, 3:6]
        p = -p[:, :2] / p[:, 2:]
        n = (p**2).sum(-1)
        r = cams[:, 6] * (1 + cams[:, 7] * n + cams[:, 8] * n**2)
        return (r[:, None] * p - pixel.numpy()).reshape(-1)

    start = torch.cat([values["camera"].reshape(-1), values["point"].reshape(-1)]).numpy()
    assert float(solution.history.cost[0]) == pytest.approx(0.5 * float((residual(start) ** 2).sum()), rel=1e-12)
    found = torch.cat([solution.value["camera"].reshape(-1), solution.value["point"].reshape(-1)]).numpy()
    assert float(solution.cost) == pytest.approx(0.5 * float((residual(found) ** 2).sum()), rel=1e-8)
    # 48 unknowns, 38 equations: a minimum of SciPy's started from ours cannot be better by more than its tolerance.
    peer = scipy_optimize.least_squares(residual, found, x_scale="jac", max_nfev=20)
    assert float(solution.cost) <= float(peer.cost) + 1e-3
