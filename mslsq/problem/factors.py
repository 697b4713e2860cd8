"""The factors of estimation: a prior, a difference, a relative pose, with Jacobians in closed form.

All residuals are tangent vectors, and all Jacobians are with respect to the tangent of `retract`. With J_l, J_r the
left and right Jacobians of the exponential and e = log(x⁻¹ y), moving y by δ gives log(exp(e) exp(δ)) ≈ e + J_r⁻¹(e) δ,
and moving x by δ gives log(exp(−δ) exp(e)) ≈ e − J_l⁻¹(e) δ (Solà, Deray, Atchuthan, "A micro Lie theory for state
estimation in robotics", 2018).
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.manifolds import LieGroup, space_of_value
from mslsq.manifolds.components import matmul
from mslsq.manifolds.space import ProductSpace, Space
from mslsq.private import jacfwd
from mslsq.problem.cost import CostFunction
from mslsq.problem.curvature import COADJOINT, curvature_of_local, inverse_jacobian_derivatives
from mslsq.problem.errors import ProblemError


class Prior(CostFunction):
    """A variable is known to be near `target`: the residual is the tangent vector `target.local(x)`.

    Of a Euclidean variable it is x − target.

    Args:
        x: a variable on any manifold, or `variable[index]`.
        target: an element, or a tensor where the variable is Euclidean, one per block or `Shared`; a dict for a
            product.
        weight: 1/sigma, for instance `mslsq.Scale(1e6)` to hold a gauge.

    The Jacobian is J_r⁻¹ of the residual for SO2, SE2, SO3, SE3, the identity for Euclidean variables, blockwise so for
    products, and comes from automatic differentiation on other manifolds.

    >>> Prior(pose[[0]], target=mslsq.SE3.identity(1), weight=mslsq.Scale(1e6))
    """

    def residual(self, x: Any, target: Any) -> Float[Tensor, "tangent"]:
        space = space_of_value(target)
        return space.local(space.unwrap(target), space.unwrap(x))

    def jacobians(self, x: Any, target: Any) -> tuple[Float[Tensor, "tangent tangent"]]:
        space = space_of_value(target)
        return (space.jacobian_at_end(space.unwrap(target), space.unwrap(x)),)

    def broadcasts(self) -> bool:
        return _closed_for_all(self)

    def curvature(self, cotangent: Tensor, x: Any, target: Any) -> Float[Tensor, "tangent tangent"]:
        space = space_of_value(target)
        n = space.tangent_dim
        return _curvature_of_local(space, space.unwrap(target), space.unwrap(x), cotangent)[n:, n:]


class Difference(CostFunction):
    """The step from one variable to another is measured: the residual is `a.local(b) − measured`.

    Of Euclidean variables it is b − a − measured.

    Args:
        a, b: two variables of one kind, or `variable[index]`.
        measured: tangent vectors (tangent,), one per block or `Shared`; None means that a and b should be equal.

    Jacobians are in closed form where those of `Prior` are. For relative poses measured as elements use `Between`.

    >>> Difference(height[i], height[j], measured=levelled, weight=mslsq.Diagonal(1 / sigma))
    """

    def residual(self, a: Any, b: Any, measured: Float[Tensor, "tangent"] | None = None) -> Float[Tensor, "tangent"]:
        space = space_of_value(a)
        step = space.local(space.unwrap(a), space.unwrap(b))
        return step if measured is None else step - measured

    def jacobians(
        self, a: Any, b: Any, measured: Float[Tensor, "tangent"] | None = None
    ) -> tuple[Float[Tensor, "tangent tangent"], Float[Tensor, "tangent tangent"]]:
        space = space_of_value(a)
        start, end = space.unwrap(a), space.unwrap(b)
        return space.jacobian_at_start(start, end), space.jacobian_at_end(start, end)

    def broadcasts(self) -> bool:
        return _closed_for_all(self)

    def curvature(
        self, cotangent: Tensor, a: Any, b: Any, measured: Float[Tensor, "tangent"] | None = None
    ) -> Float[Tensor, "both both"]:
        space = space_of_value(a)
        return _curvature_of_local(space, space.unwrap(a), space.unwrap(b), cotangent)


class Between(CostFunction):
    """The pose of b as seen from a is measured: the residual is log(measured⁻¹ a⁻¹ b), a tangent vector.

    Args:
        a, b: variables of one Lie group, or `variable[index]`.
        measured: elements of that group, one per block or `Shared`. Their rotations are normalised first: quaternions
            from files or from a network have norm one only nearly.
        weight: for instance `mslsq.SqrtInformation.from_information(...)`, in the tangent's order (translation,
            rotation).

    With e the residual the Jacobians are −J_r⁻¹(e) Ad(b⁻¹ a) and J_r⁻¹(e), in closed form for SO2, SE2, SO3, SE3
    and from automatic differentiation for Sim2, Sim3.

    >>> Between(pose[i], pose[j], measured=T_ij, loss=mslsq.Huber(1.0))
    """

    def __init__(self, a: Any, b: Any, *others: Any, measured: Any, **options: Any):
        super().__init__(a, b, *others, measured=measured, **options)
        for reference in self.references:
            kind = reference.variable.manifold
            if not (isinstance(kind, type) and issubclass(kind, LieGroup)):
                raise ProblemError(
                    f"Cost {self.name!r}: Between compares elements of a Lie group (SE2, SE3, SO3, ...), "
                    f"but {reference!r} is on {reference.variable.space.name}. For these use mslsq.Difference."
                )

    def residual(self, a: Any, b: Any, measured: Any) -> Float[Tensor, "tangent"]:
        return measured.normalized().between(a.between(b)).log()

    def jacobians(
        self, a: Any, b: Any, measured: Any
    ) -> tuple[Float[Tensor, "tangent tangent"], Float[Tensor, "tangent tangent"]]:
        return self.residual_and_jacobians(a, b, measured)[1]

    def residual_and_jacobians(
        self, a: Any, b: Any, measured: Any
    ) -> tuple[Float[Tensor, "tangent"], tuple[Float[Tensor, "tangent tangent"], Float[Tensor, "tangent tangent"]]]:
        group = type(measured)
        measured = measured.normalized()
        seen = a.between(b)
        error = measured.between(seen).log()
        space = space_of_value(measured)
        if not space.has_closed_form:
            zero = a.storage.new_zeros(space.tangent_dim)
            moved_start = jacfwd(lambda d: measured.between(a.retract(d).between(b)).log())(zero)
            return error, (moved_start, space.jacobian_at_end(measured.storage, seen.storage))
        at_end = group.right_jacobian_inverse(error)
        # J_l⁻¹(e) Ad(measured⁻¹), with exp(e) = measured⁻¹ a⁻¹ b and J_l(e) = Ad(exp e) J_r(e)
        return error, (-matmul(at_end, seen.inverse().adjoint()), at_end)

    def broadcasts(self) -> bool:
        return _closed_for_all(self)

    def curvature(self, cotangent: Tensor, a: Any, b: Any, measured: Any) -> Float[Tensor, "both both"]:
        """Both Jacobians depend on a and b through e alone: the derivative of Jᵀw in e, times J."""
        group = type(measured)
        if group not in COADJOINT:
            return self.curvature_from_jacobians(cotangent, a, b, measured=measured)
        error = self.residual(a, b, measured)
        jacobian = torch.cat(self.jacobians(a, b, measured), -1)
        of_right, of_left = inverse_jacobian_derivatives(group, error, cotangent)
        turned = measured.normalized().inverse().adjoint().mT
        return torch.cat((-(turned @ (of_left @ jacobian)), of_right @ jacobian), -2)


def _closed_for_all(cost: CostFunction) -> bool:
    """Are the Jacobians of this cost those in closed form, which are written for any leading axes?"""
    return all(reference.variable.space.has_closed_form for reference in cost.references)


def _curvature_of_local(space: Space, start: Tensor, end: Tensor, cotangent: Tensor) -> Float[Tensor, "both both"]:
    """Σ cotangentᵢ ∇² local(start, end)ᵢ in the joint tangent of start and end; the parts of a product do not mix."""
    if not isinstance(space, ProductSpace):
        return curvature_of_local(space, start, end, cotangent)
    storage, tangent = ([getattr(part, size) for _, part in space.parts] for size in ("storage_dim", "tangent_dim"))
    pieces = zip(space.parts, start.split(storage, -1), end.split(storage, -1), cotangent.split(tangent), strict=True)
    n, before = space.tangent_dim, 0
    total = end.new_zeros(2 * n, 2 * n)
    for (_, part), x, y, w in pieces:
        matrix, size = _curvature_of_local(part, x, y, w), part.tangent_dim
        after = n - before - size
        # Into the places of this part in the start's half of the joint tangent, and in the end's.
        rows = torch.nn.functional.pad(matrix.unflatten(0, (2, size)).unflatten(-1, (2, size)), (before, after))
        rows = torch.nn.functional.pad(rows.movedim(1, -1), (before, after)).movedim(-1, 1)
        total = total + rows.flatten(2).flatten(0, 1)
        before += size
    return total
