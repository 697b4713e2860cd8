"""check_jacobian finds what is wrong, where it is, and does not cry wolf."""

import pytest
import torch
from torch import Tensor

import mslsq
from mslsq.diagnostics.ridders import central_differences

D = torch.float64


class Distance(mslsq.CostFunction):
    """Distance of two points, with its Jacobians; `wrong` makes one entry wrong in one block."""

    def residual(self, a: Tensor, b: Tensor, wrong: Tensor) -> Tensor:
        return torch.linalg.vector_norm(a - b).reshape(1)

    def jacobians(self, a: Tensor, b: Tensor, wrong: Tensor) -> tuple[Tensor, Tensor]:
        unit = ((a - b) / torch.linalg.vector_norm(a - b)).reshape(1, 2)
        return unit, -unit + wrong * torch.tensor([[0.0, 1e-3]], dtype=a.dtype)


def distances(wrong_block: int | None = None, count: int = 10) -> mslsq.CostFunction:
    point = mslsq.Variable("point", mslsq.Euclidean(2), 2 * count)
    wrong = torch.zeros(count, dtype=D)
    if wrong_block is not None:
        wrong[wrong_block] = 1.0
    return Distance(point[torch.arange(count)], point[torch.arange(count, 2 * count)], wrong=wrong)


def test_right_jacobians_pass() -> None:
    check = mslsq.check_jacobian(distances())
    assert check
    assert check.worst_error < 1e-7
    assert "agrees" in str(check)


def test_a_wrong_entry_is_named_with_its_place_and_values() -> None:
    points = torch.randn(20, 2, generator=torch.Generator().manual_seed(1), dtype=D)
    check = mslsq.check_jacobian(distances(wrong_block=7), {"point": points})
    assert not check.ok
    assert (check.source, check.variable, check.block, check.row, check.column) == ("jacobians", "point", 7, 0, 1)
    assert check.given - check.expected == pytest.approx(1e-3, rel=1e-6)
    assert "block 7" in str(check)


def test_only_the_blocks_asked_for_are_checked() -> None:
    assert mslsq.check_jacobian(distances(wrong_block=7), blocks=[0, 1])
    assert not mslsq.check_jacobian(distances(wrong_block=7), blocks=[7])


def test_a_perturbation_on_the_wrong_side_is_found() -> None:
    class LeftPrior(mslsq.Prior):
        def jacobians(self, x: mslsq.SO3, target: mslsq.SO3) -> tuple[Tensor]:
            return (mslsq.SO3.left_jacobian_inverse(target.local(x)),)

    target = mslsq.SO3.random(3, generator=torch.Generator().manual_seed(2), dtype=D)
    rotation = mslsq.Variable("rotation", mslsq.SO3, 3)
    assert mslsq.check_jacobian(mslsq.Prior(rotation, target=target))
    assert not mslsq.check_jacobian(LeftPrior(rotation, target=target))


def test_a_detached_residual_fails_under_autodiff() -> None:
    check = mslsq.check_jacobian(lambda x: x * x.detach(), torch.tensor([2.0, 3.0], dtype=D))
    assert not check.ok
    assert check.source == "autodiff"
    assert check.given == pytest.approx(0.5 * check.expected)


def test_a_plain_residual_of_a_pytree_with_its_jacobian() -> None:
    def residual(x: dict, t: Tensor) -> Tensor:
        return x["scale"] * torch.sin(t * x["rate"][0]) - 1.0

    def jac(x: dict, t: Tensor) -> dict:
        return {
            "rate": (x["scale"] * torch.cos(t * x["rate"][0]) * t)[:, None],
            "scale": torch.sin(t * x["rate"][0]),
        }

    t = torch.linspace(0, 2, 9, dtype=D)
    x = {"rate": torch.tensor([1.3], dtype=D), "scale": torch.tensor(0.7, dtype=D)}
    assert mslsq.check_jacobian(residual, x, (t,), jac=jac)
    wrong = mslsq.check_jacobian(residual, x, (t,), jac=lambda x, t: {**jac(x, t), "scale": torch.cos(t)})
    assert (wrong.ok, wrong.source, wrong.variable) == (False, "jac", "x[1]")


def test_manifold_elements_and_complex_residuals_pass() -> None:
    pose = mslsq.SE3.random(generator=torch.Generator().manual_seed(3), dtype=D)
    target = mslsq.SE3.random(generator=torch.Generator().manual_seed(4), dtype=D)
    assert mslsq.check_jacobian(lambda x: target.local(x), pose)
    assert mslsq.check_jacobian(lambda x: torch.complex(x[0] ** 3, x[0] * x[1]), torch.tensor([2.0, 0.3], dtype=D))


def test_variables_of_any_size_are_resolved() -> None:
    x = torch.tensor([1e-9, 1e7, 1.0], dtype=D)
    assert mslsq.check_jacobian(lambda x: torch.exp(x * torch.tensor([1e9, 1e-7, 1.0], dtype=D)), x)


def test_float32_is_checked_at_its_own_precision() -> None:
    x = torch.tensor([0.5, 1.5])
    assert mslsq.check_jacobian(lambda x: torch.exp(x) * x.flip(0), x)
    wrong = mslsq.check_jacobian(torch.exp, x, jac=lambda x: 1.1 * torch.diag(torch.exp(x)))
    assert not wrong


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [D, torch.float32])
@pytest.mark.parametrize("seed", range(4))
def test_rounding_is_not_taken_for_an_error(seed: int, dtype: torch.dtype) -> None:
    # At a residual of zero the terms it is the difference of are of size one, and so is their rounding.
    poses = mslsq.SE3.random(3, generator=torch.Generator().manual_seed(seed), dtype=D).to(dtype)
    pose, i = mslsq.Variable("pose", mslsq.SE3, 3), torch.arange(2)
    between = mslsq.Between(pose[i], pose[i + 1], measured=poses[i].inverse() @ poses[i + 1])
    check = mslsq.check_jacobian(between, {"pose": poses})
    assert check, str(check)


def test_small_coefficients_of_large_effect_are_resolved() -> None:
    camera = torch.tensor([0.1, 0.2, -0.1, 0.3, 0.1, -2.0, 1500.0, 1e-12, -1e-13], dtype=D)
    cost = mslsq.SnavelyReprojection(
        mslsq.Variable("camera", mslsq.Euclidean(9)),
        mslsq.Variable("point", mslsq.Euclidean(3)),
        pixel=torch.tensor([[200.0, -400.0]], dtype=D),
    )
    check = mslsq.check_jacobian(cost, {"camera": camera, "point": torch.tensor([0.2, -0.6, 0.1], dtype=D)})
    assert check, str(check)
    assert check.worst_error < 1e-7


def test_a_residual_that_is_not_finite_does_not_pass() -> None:
    assert not mslsq.check_jacobian(lambda x: torch.log(-x.abs()), torch.ones(1, dtype=D))


def test_jacobians_of_a_wrong_shape_are_an_error() -> None:
    with pytest.raises(mslsq.ProblemError, match=r"expected one \(rows, tangent\) per variable, \(2, 2\)"):
        mslsq.check_jacobian(lambda x: x**2, torch.ones(2, dtype=D), jac=lambda x: torch.ones(1, 2, dtype=D))


def test_differences_know_their_own_error() -> None:
    at = torch.tensor([0.3, 2.0], dtype=D)
    value, error = central_differences(lambda x: torch.sin(30 * x), at, torch.full((2,), 0.05, dtype=D))
    exact = torch.diag(30 * torch.cos(30 * at))
    assert bool(((value - exact).abs() <= error + 1e-13).all())
    assert float(error.max()) < 1e-7


class AtOnce(mslsq.CostFunction):
    """Right for one block, and wrong for many: the rows of all blocks are added up."""

    def residual(self, x, target):
        return x * x - target

    def jacobians(self, x, target):
        slope = 2 * x if x.ndim == 1 else (2 * x).sum(0, keepdim=True).expand(len(x), -1)
        return (torch.diag_embed(slope),)

    def broadcasts(self):
        return True


class Together(mslsq.CostFunction):
    """What a solve uses is wrong, though `jacobians` is right."""

    def residual(self, x, target):
        return x * x - target

    def jacobians(self, x, target):
        return (torch.diag(2 * x),)

    def residual_and_jacobians(self, x, target):
        return self.residual(x, target), (torch.diag(3 * x),)


@pytest.mark.parametrize("kind", [AtOnce, Together])
def test_what_a_solve_uses_is_what_is_checked(kind):
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=4)
    check = mslsq.check_jacobian(kind(x, target=torch.ones(4, 2, dtype=torch.float64)))
    assert not check.ok and check.source == "jacobians"
