"""Second derivatives of residuals on Lie groups, from one forward pass through what is known of the first ones.

The derivative of a function f along the tangent vector eᵢ of a group element x is Eᵢf(x) = d/dt f(x exp(t eᵢ)); these
are the components of the gradient at every point. Then Eⱼ Eᵢ f, the derivative of that gradient field, differs from
the Hessian of f(x exp(δ)) at δ = 0 by an antisymmetric part only, as exp(δ) to second order is 1 + δ + δδ/2: the
Hessian is ½(EᵢEⱼ + EⱼEᵢ)f. So second derivatives need first derivatives of the Jacobians, and no second ones of the
residual. For a retraction that is not the exponential this does not hold.

For errors e = log(...) of group elements even those are known: J_r⁻¹(e) is a polynomial in ad(e).
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.manifolds import SE2, SE3, SO2, SO3, LieGroup, space_of_value
from mslsq.manifolds.components import cross
from mslsq.manifolds.lie_group import dot
from mslsq.manifolds.space import ManifoldSpace, Space
from mslsq.private import jacfwd, vjp
from mslsq.problem.errors import ProblemError
from mslsq.problem.system import residual_vector

Vector = Float[Tensor, "tangent"]
Matrix = Float[Tensor, "tangent tangent"]


def curvature_from_jacobians(cost: Any, cotangent: Any, variables: tuple[Any, ...], data: dict[str, Any]) -> Matrix:
    """The derivative of Jᵀ·cotangent along every direction of the joint tangent; `cost` has `jacobians`.

    Raises:
        ProblemError: the cost has no Jacobians, or a variable is not in a Lie group (nor Euclidean).
    """
    if cost.jacobians is None:
        raise ProblemError(
            f"Cost {cost.name!r}: curvature_from_jacobians differentiates jacobians(...), which it lacks."
        )
    spaces = [space_of_value(variable) for variable in variables]
    for space in spaces:
        if not space.retracts_by_exponential:
            raise ProblemError(
                f"Cost {cost.name!r}: curvature_from_jacobians holds where a step is a group's exponential, which is "
                f"not so for {space.name}: write curvature(...) in closed form, or leave it to autodiff (curvature = "
                "None)."
            )
    storages = [space.unwrap(variable) for space, variable in zip(spaces, variables, strict=True)]
    vector = residual_vector(cotangent)[0]

    def gradient(delta: Vector) -> Vector:
        pieces = delta.split([space.tangent_dim for space in spaces])
        moved = [s.wrap(s.retract(x, d)) for s, x, d in zip(spaces, storages, pieces, strict=True)]
        rows = [
            torch.stack((part.real, part.imag), 1).flatten(0, 1) if part.is_complex() else part
            for part in cost.jacobians(*moved, **data)
        ]
        return (torch.cat(rows, -1) * vector[:, None]).sum(0)

    return jacfwd(gradient)(storages[0].new_zeros(sum(space.tangent_dim for space in spaces)))


# ---- of e = log(x⁻¹ y)


def curvature_of_local(space: Space, start: Tensor, end: Tensor, cotangent: Vector) -> Matrix:
    """Σ cotangentᵢ ∇² of local(start, end)ᵢ, in the joint tangent of start and end, up to an antisymmetric part."""
    if space.is_euclidean:
        return end.new_zeros(2 * space.tangent_dim, 2 * space.tangent_dim)
    if isinstance(space, ManifoldSpace) and space.manifold in COADJOINT:
        group: Any = space.manifold
        error = space.local(start, end)
        by_start, by_end = -group.left_jacobian_inverse(error), group.right_jacobian_inverse(error)
        of_right, of_left = inverse_jacobian_derivatives(group, error, cotangent)
        jacobian = torch.cat((by_start, by_end), -1)
        return torch.cat((-of_left @ jacobian, of_right @ jacobian), -2)
    sizes = [space.tangent_dim, space.tangent_dim]

    def paired(delta: Vector) -> Tensor:
        a, b = delta.split(sizes)
        return (space.local(space.retract(start, a), space.retract(end, b)) * cotangent).sum()

    def gradient(delta: Vector) -> Vector:
        value, pull = vjp(paired, delta)
        return pull(torch.ones_like(value), create_graph=True)[0]

    return jacfwd(gradient)(start.new_zeros(2 * space.tangent_dim))


def inverse_jacobian_derivatives(group: type[LieGroup], error: Vector, cotangent: Vector) -> tuple[Matrix, Matrix]:
    """The derivatives of J_r⁻¹(e)ᵀw and of J_l⁻¹(e)ᵀw in e, for a constant w.

    J_r⁻¹ = ad/(1 − exp(−ad)) = 1 + ad/2 + (ad² − ...)/12, and J_l⁻¹ is the same at −ad: they differ by ad.
    """
    coadjoint = COADJOINT[group]
    of_right = jacfwd(lambda e: inverse_right_jacobian_transposed(group, e, cotangent))(error)
    return of_right, of_right - jacfwd(lambda e: coadjoint(e, cotangent))(error)


def inverse_right_jacobian_transposed(group: type[LieGroup], error: Vector, cotangent: Vector) -> Vector:
    """J_r⁻¹(e)ᵀ w without its matrix.

    With θ the angle of e, the eigenvalues of ad are 0 and ±iθ, those of SE(3) twice: a function of ad is a polynomial
    of degree two, for SE(3) four, that meets it there (to first order where they are double). The even part
    (z/2) coth(z/2) of z/(1 − exp(−z)) is 1 − q m(q) at z² = −q = −θ², with m = (1 − (θ/2) cot(θ/2))/θ²: hence
    1 + m ad², and 1 + (m − q m') ad² − m' ad⁴ for SE(3).
    """
    coadjoint = COADJOINT[group]
    once = coadjoint(error, cotangent)
    if group is SO2:
        return cotangent + 0.5 * once
    twice = coadjoint(error, once)
    angle = error[-1:] if group is SE2 else error[-3:]
    q = dot(angle, angle)
    m, slope = cotangent_series(q)
    if group is not SE3:
        return cotangent + 0.5 * once + m * twice
    four = coadjoint(error, coadjoint(error, twice))
    return cotangent + 0.5 * once + (m - q * slope) * twice - slope * four


def _coadjoint_so2(e: Vector, w: Vector) -> Vector:
    return 0.0 * (e * w)


def _coadjoint_so3(e: Vector, w: Vector) -> Vector:
    """ad(e)ᵀ w = −e × w."""
    return cross(w, e)


def _coadjoint_se2(e: Vector, w: Vector) -> Vector:
    """ad(ρ, φ) = [[φ J, −Jρ], [0, 0]] with J the quarter turn (x, y) ↦ (−y, x)."""
    turned = torch.stack((w[1], -w[0]))  # Jᵀ
    return torch.cat((e[2] * turned, -(e[:2] * turned).sum()[None]))


def _coadjoint_se3(e: Vector, w: Vector) -> Vector:
    """ad(ρ, φ) = [[φ×, ρ×], [0, φ×]]."""
    a, b = w[:3], w[3:]
    return torch.cat((cross(a, e[3:]), cross(a, e[:3]) + cross(b, e[3:])))


COADJOINT: dict[type, Callable[[Vector, Vector], Vector]] = {
    SO2: _coadjoint_so2,
    SO3: _coadjoint_so3,
    SE2: _coadjoint_se2,
    SE3: _coadjoint_se3,
}
"""By group: ad(e)ᵀ w, the matrix of [e, ·] transposed."""

SMALL = 0.25
"""Below that square of the angle the series in it, above it the closed form."""
BERNOULLI = (
    *(1 / 12, 1 / 720, 1 / 30240, 1 / 1209600, 1 / 47900160, 691 / 1307674368000, 1 / 74724249600),
    *(3617 / 10670622842880000, 43867 / 5109094217170944000),
)
"""|B₂ₖ| / (2k)!, k = 1, 2, ...: (1 − (θ/2) cot(θ/2))/θ² in powers of θ². The first omitted term is 3e-21 at 1/4."""


def cotangent_series(q: Tensor) -> tuple[Tensor, Tensor]:
    """m(q) = (1 − (θ/2) cot(θ/2))/θ² and dm/dq, for q = θ² below (2π)²."""
    small = q < SMALL
    inner, outer = q.clamp(max=SMALL), q.masked_fill(small, SMALL)  # whose derivative at SMALL is 1 in every torch
    series = inner * BERNOULLI[-1] + BERNOULLI[-2]
    slope = inner * ((len(BERNOULLI) - 1) * BERNOULLI[-1]) + (len(BERNOULLI) - 2) * BERNOULLI[-2]
    for k in range(len(BERNOULLI) - 3, -1, -1):
        series = series * inner + BERNOULLI[k]
        if k:
            slope = slope * inner + k * BERNOULLI[k]
    x = 0.5 * outer.sqrt()
    cotangent = x.cos() / x.sin()
    closed = (1 - x * cotangent) / outer
    # d(x cot x)/dq = (cot x − x/sin² x)/(8x), and 1/sin² = 1 + cot².
    change = (cotangent - x * (1 + cotangent * cotangent)) / (8 * x)
    return torch.where(small, series, closed), torch.where(small, slope, -(change + closed) / outer)
