"""Direct loss minimisation: the gradient of a loss from two slightly perturbed solutions."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mslsq import pytree
from mslsq.adjoint.adjoint import FAILED, Adjoint, AdjointOptionError, DerivativeOrderError
from mslsq.adjoint.attachment import Attachment
from mslsq.adjoint.factor import Factorization
from mslsq.adjoint.judging import judged
from mslsq.adjoint.outputs import Attached, Ended, Prepared
from mslsq.levels import constant
from mslsq.private import transforms_are_active, vjp
from mslsq.tracing.graph import TRANSFORM_LOCK
from mslsq.validation import number, one_of, plain_options

CHORD_STEPS = 10
"""Each gains a factor of about ε: ten are beyond rounding for any sensible ε."""


@dataclass(frozen=True)
class DirectLossMinimization(Adjoint):
    """The gradient as a difference of two perturbed minima (McAllester, Hazan, Keshet, 2010; Song et al., 2016; in
    Theseus as DLM).

    For a loss whose gradient in the solution is v, let x± minimise cost ± ε vᵀx. Then dL/dd = (∂cost(x₊, d)/∂d −
    ∂cost(x₋, d)/∂d) / 2ε + O(ε²): only first derivatives of the cost in the data are needed, whatever their number.
    The minima are found from the solution by chord steps with the exact Hessian's factor.

    Reverse mode, first order: forward mode, a second backward pass and `torch.func` transforms raise. The error is
    O(ε²) from above and rounding/ε from below; v is normalised, so that ε is a length in the tangent space of the
    variables. A problem that has not converged has NaN derivatives, or zero ones (`failed="zero"`).
    """

    epsilon: float = 1e-4
    failed: Literal["nan", "zero"] = "nan"

    def __post_init__(self) -> None:
        plain_options(self)
        number("DirectLossMinimization: epsilon", self.epsilon, above=0, error=AdjointOptionError)
        one_of("DirectLossMinimization: failed", self.failed, FAILED, AdjointOptionError)

    @property
    def highest_order(self) -> int | None:
        return 1

    def prepare(self, ended: Ended) -> Prepared:
        if ended.bounds:
            raise AdjointOptionError(
                "DirectLossMinimization perturbs a minimum without bounds, and has no derivative where there are some. "
                "Use Implicit()."
            )
        return judged(ended, Factorization("exact"), moves=True)

    def attach(self, attachment: Attachment) -> Attached:
        if transforms_are_active():
            raise DerivativeOrderError(
                "DirectLossMinimization gives first derivatives by backward() alone. Use Implicit() or Unrolled() "
                "under torch.func."
            )
        inputs = attachment.guarded(torch.nan if self.failed == "nan" else 0.0)
        values = _DirectLoss.apply(attachment, self.epsilon, *pytree.leaves(inputs))
        with TRANSFORM_LOCK:
            # The cost at a minimum has the partial derivative for its total one.
            cost = attachment.linearizer.cost(attachment.answer.values, attachment.linearizer.prepare(inputs))
        cost = torch.where(attachment.failed, 0, cost)
        return Attached(values, attachment.answer.cost + (cost - constant(cost)))


class _DirectLoss(torch.autograd.Function):
    """The solution's values, as a function of all inputs."""

    @staticmethod
    def forward(ctx: Any, attachment: Attachment, epsilon: float, *flat: Tensor) -> tuple[Tensor, ...]:
        ctx.attachment, ctx.epsilon = attachment, epsilon
        ctx.save_for_backward(*flat)
        return tuple(x.clone() for x in attachment.answer.values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        attachment, linearizer = ctx.attachment, ctx.attachment.linearizer
        factor, failed, star = attachment.answer.factor, attachment.failed, attachment.answer.values
        flat = [
            tensor.detach().requires_grad_(needed)
            for tensor, needed in zip(ctx.saved_tensors, ctx.needs_input_grad[2:], strict=True)
        ]
        with torch.enable_grad():
            inputs = linearizer.prepare(pytree.unflatten(flat, pytree.flatten(attachment.inputs)[1]))
        plain = pytree.map_leaves(torch.Tensor.detach, inputs)
        zero = star[0].new_zeros(len(star[0]), linearizer.structure.num_columns)
        pull = vjp(lambda delta: linearizer.retract(star, delta), zero)[1]
        (direction,) = pull(tuple(cotangents))
        direction = torch.where(failed[:, None], 0, direction)
        length = torch.linalg.vector_norm(direction, dim=1, keepdim=True).clamp(min=torch.finfo(direction.dtype).tiny)
        with TRANSFORM_LOCK:
            ends = []
            for sign in (1.0, -1.0):
                x, pull_towards = star, sign * ctx.epsilon * direction / length
                for _ in range(CHORD_STEPS):
                    residue = torch.where(failed[:, None], 0, linearizer.gradient(x, plain) + pull_towards)
                    x = linearizer.retract(x, -linearizer.linear_solver.solve_factored(factor, residue))
                ends.append(tuple(end.detach() for end in x))
            with torch.enable_grad():
                gap = linearizer.cost(ends[0], inputs) - linearizer.cost(ends[1], inputs)
                weight = (length[:, 0] / (2 * ctx.epsilon)).detach()
                total = torch.where(failed, 0, gap * weight).sum()
        wanted = [tensor for tensor in flat if tensor.requires_grad]
        found = iter(torch.autograd.grad(total, wanted, allow_unused=True))
        return None, None, *(next(found) if tensor.requires_grad else None for tensor in flat)
