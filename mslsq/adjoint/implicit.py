"""The implicit function theorem: chord steps on the full gradient, whose value is the solution itself."""

from dataclasses import dataclass
from typing import Literal

import torch

from mslsq.adjoint.adjoint import Adjoint, AdjointOptionError
from mslsq.adjoint.attachment import Attachment
from mslsq.adjoint.constraints import constrained_chord_steps, with_constraints
from mslsq.adjoint.factor import Factorization, PseudoInverse
from mslsq.adjoint.judging import judged
from mslsq.adjoint.outputs import Attached, Ended, Prepared
from mslsq.adjoint.pullback import attached_lazily
from mslsq.levels import constant
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import TermInputs
from mslsq.private import without_saved_tensor_hooks
from mslsq.tracing.graph import TRANSFORM_LOCK
from mslsq.validation import integer, one_of, plain_options


@dataclass(frozen=True)
class Implicit(Adjoint):
    """The implicit function theorem on the full gradient of the cost: exact, also where residuals are not zero.

    At a minimum F(x, d) = ∇ₓ ½Σρ = 0, so dx/dd = −H⁻¹ ∂F/∂d with the exact Hessian H = ∂F/∂x. All derivatives up to
    `order` come from `order` chord steps x ← x − H⁻¹F(x, d) with the one factor of H, in forward and in reverse mode
    (each step makes one more order exact). The value stays the solver's own, and so does the point: a step
    carries derivatives and moves nothing.

    Plain `backward()` needs less than a chord step: v = −H⁻¹g for the cotangent g, and the gradient of the
    directional derivative of the cost along v in the data; it is computed when backward comes (`pullback`). Like
    `order=1` it is as accurate as the minimum.

    A problem that tolerances have ended just short of its minimum is moved there by Newton steps with the exact Hessian
    before it is differentiated: its value is then that of the minimum. See `docs/guide/derivatives.md`.

    Cost: the exact Hessian once (block by block), one factorisation, and `order` gradients (for plain `backward()`
    alone: one directional derivative). Memory does not depend on the number of solver steps.

    It is wrong where the solver has not converged, or has converged to a point whose Hessian is not positive
    definite: there is no implicit function. Such a problem gets the derivative NaN (`failed="nan"`) or zero
    (`failed="zero"`), is False in `solution.differentiable`, and leaves parameters that it shares with other
    problems of the batch alone.

    Args:
        hessian: `"gauss_newton"` drops the second derivatives of the residuals from H. That is what Theseus and most
            others do; it is cheaper, and biased as soon as residuals are not zero at the solution: with `order=1` by
            the relative size of what is dropped, with each further chord step by one more power of it.
        order: the highest derivative that will be taken; a higher one raises.
        failed: what a derivative is where there is none.
        gauge: what to do where the problem leaves a gauge free (a pose graph without a fixed pose), so that H is
            singular: `"error"` treats it as failed, with a warning in words; `"minimum_norm"` takes the derivative
            of least norm.
    """

    hessian: Literal["exact", "gauss_newton"] = "exact"
    order: int = 2
    failed: Literal["nan", "zero"] = "nan"
    gauge: Literal["error", "minimum_norm"] = "error"

    def __post_init__(self) -> None:
        plain_options(self)
        integer("Implicit: order", self.order, 1, error=AdjointOptionError)
        for option, known in (
            ("hessian", ("exact", "gauss_newton")),
            ("failed", ("nan", "zero")),
            ("gauge", ("error", "minimum_norm")),
        ):
            one_of(f"Implicit: {option}", getattr(self, option), known, AdjointOptionError)

    @property
    def factorization(self) -> Factorization:
        """Of the Hessian that derivatives take."""
        return (PseudoInverse if self.gauge == "minimum_norm" else Factorization)(self.hessian)

    @property
    def highest_order(self) -> int | None:
        return self.order

    def prepare(self, ended: Ended) -> Prepared:
        return with_constraints(ended, judged(ended, self.factorization, moves=True), self.factorization)

    def attach(self, attachment: Attachment) -> Attached:
        # A solve that checkpointing runs again may be recorded by then, and would save other tensors than at first.
        with without_saved_tensor_hooks():
            lazily = attached_lazily(self, attachment)
            return self._attached_at_once(attachment) if lazily is None else lazily

    @property
    def fill(self) -> float:
        """What a derivative is where there is none."""
        return torch.nan if self.failed == "nan" else 0.0

    def _attached_at_once(self, attachment: Attachment) -> Attached:
        with TRANSFORM_LOCK:
            if not attachment.answer.constraints:
                return self.along_chords(attachment)
            start, given = attachment.solution(self.fill), attachment.guarded(self.fill)
            found = constrained_chord_steps(attachment, self.factorization, self.order, start, given)
        return attachment.with_value(found, self.fill)

    def along_chords(self, attachment: Attachment) -> Attached:
        """Values and cost whose derivatives are those of `order` chord steps."""
        found = self.chord_steps(attachment, attachment.solution(self.fill), attachment.prepared(self.fill))
        return attachment.with_value(found, self.fill)

    def chord_steps(self, attachment: Attachment, values: Values, inputs: TermInputs) -> Attached:
        """`order` steps x ← x − H⁻¹F(x, d) from the solution, differentiable, and the cost where they end."""
        linearizer, failed = attachment.linearizer, attachment.failed
        for _ in range(self.order):
            gradient = attachment.of_free(attachment.gradient(values, inputs))
            if not attachment.nothing_failed:
                # A problem without derivative must not move, whatever its gradient: not even by 0 · NaN.
                gradient = torch.where(failed[:, None], 0, gradient)
            step = -self.factorization.inverse(linearizer.linear_solver, attachment.answer.factor, gradient)
            # One that moved could hit a point at which the residual is another function (`torch.where(x == 0, ...)`).
            values = linearizer.retract(values, step - constant(step))
        return Attached(values, attachment.cost(values, inputs))
