"""Plain `backward()` through an answer: one system with the Hessian's factor, and one recorded product.

The first derivative of a minimum needs no chord step: with v = −H⁻¹g for the cotangent g of the solution (in the
tangent), the gradient in the data d is

    gᵀ dx*/dd = vᵀ ∂F/∂d = ∂/∂d [D_v cost(x*, d)],

the gradient of one directional derivative of the cost. So nothing is computed before backward comes, and then nothing
but that: 0.8 ms for 1024 fits, where two chord steps and their backward take 2.9. A
derivative of that gradient (`create_graph=True`) takes the chord steps after all, from the same recorded graphs.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from mslsq import pytree
from mslsq.adjoint.outputs import Attached
from mslsq.levels import backward_may_come
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer
from mslsq.linearize.second_order import gradients_by_input, pulled_through_retraction
from mslsq.private import gradients, is_batched_by_autograd, transforms_are_active, vjp, without_saved_tensor_hooks
from mslsq.problem.system import Inputs
from mslsq.solvers.second_order import mixed_programs

if TYPE_CHECKING:
    from mslsq.adjoint.attachment import Attachment
    from mslsq.adjoint.implicit import Implicit


def attached_lazily(adjoint: "Implicit", attachment: "Attachment") -> Attached | None:
    """Values and cost whose derivative waits for `backward`; None where it must be attached at once.

    That is under a transform or constraints, where something failed, where the start is data (fixed blocks) or bounds
    are, and where nothing is native or recorded: a function of the user's that is only called in the backward pass may
    have changed by then.
    """
    if attachment.answer.constraints or transforms_are_active() or not attachment.nothing_failed:
        return None
    if not attachment.is_kept:
        return None
    if adjoint.hessian == "gauss_newton" and adjoint.order > 1:
        return None  # further chord steps improve on its first derivative
    unknowns = attachment.call.task.system.unknowns
    if any(u.free is not None and backward_may_come(x) for u, x in zip(unknowns, attachment.start, strict=True)):
        return None
    if any(map(backward_may_come, attachment.bounds.values())):
        return None
    flat = pytree.leaves(attachment.inputs)
    wanted = tuple(tensor.requires_grad for tensor in flat)
    if not any(wanted):
        return None
    ways = _native_ways(attachment) or _graphs(attachment, wanted)
    if ways is None:
        return None
    *values, cost = Pullback.apply(adjoint, attachment, ways, *flat)
    return Attached(tuple(values), cost)


class Pullback(torch.autograd.Function):
    """Values and cost of an answer, as a function of all inputs; reverse mode, on plain tensors."""

    @staticmethod
    def forward(ctx: Any, adjoint: "Implicit", attachment: "Attachment", ways: "Ways", *flat: Tensor) -> Any:
        ctx.adjoint, ctx.attachment, ctx.ways = adjoint, attachment, ways
        ctx.save_for_backward(*flat)
        ctx.set_materialize_grads(False)
        # Copies: who writes into the solution must not change what the derivative is taken at.
        return (*[x.clone() for x in attachment.answer.values], attachment.answer.cost.clone())

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        *of_values, of_cost = cotangents
        flat = ctx.saved_tensors  # once: hooks (checkpointing, save_on_cpu) make them each time
        inputs = pytree.unflatten(flat, pytree.flatten(ctx.attachment.inputs)[1])
        batched = any(g is not None and is_batched_by_autograd(g) for g in cotangents)
        if of_cost is not None or batched or torch.is_grad_enabled() or transforms_are_active():
            wanted = ctx.needs_input_grad[3:]
            with without_saved_tensor_hooks():
                found = _through_chord_steps(ctx.adjoint, ctx.attachment, inputs, wanted, cotangents)
            return None, None, None, *found
        answer, linear = ctx.attachment.answer, ctx.attachment.linearizer.linear_solver
        towards = tuple(torch.zeros_like(x) if g is None else g for x, g in zip(answer.values, of_values, strict=True))
        gradient = ctx.attachment.of_free(ctx.ways.through_retraction(answer.values, towards))
        move = -ctx.adjoint.factorization.inverse(linear, answer.factor, gradient)
        found = iter(ctx.ways.to_inputs(answer.values, inputs, move))
        return None, None, None, *(next(found) if tensor.requires_grad else None for tensor in flat)


class Ways(NamedTuple):
    """The two pullbacks that a backward pass takes, as what will not have changed when it comes."""

    through_retraction: Callable[[Values, Values], Tensor]
    """From cotangents of the values to one in the tangent."""
    to_inputs: Callable[[Values, tuple[Inputs, ...], Tensor], Sequence[Tensor]]
    """From a tangent to the wanted inputs."""


def _graphs(attachment: "Attachment", wanted: tuple[bool, ...]) -> Ways | None:
    """The recorded pullbacks: of the retraction to tangents, and of the gradient to the wanted inputs."""
    linearizer, values = attachment.linearizer, attachment.answer.values
    columns = values[0].new_zeros(len(values[0]), linearizer.structure.num_columns)

    def through_retraction(values: Values, towards: Values) -> Tensor:
        return vjp(lambda delta: linearizer.retract(values, delta), torch.zeros_like(columns))[1](towards)[0]

    def to_inputs(values: Values, inputs: tuple[Inputs, ...], move: Tensor) -> tuple[Tensor, ...]:
        return _gradient_along(linearizer, values, inputs, move, wanted)

    numbers = ", ".join(str(number) for number, flag in enumerate(wanted) if flag)
    first = attachment.recorded("pullback through the retraction", through_retraction, values, values)
    second = attachment.recorded(f"pullback to inputs {numbers}", to_inputs, values, attachment.inputs, columns)
    return None if first is None or second is None else Ways(first, second)


def _native_ways(attachment: "Attachment") -> Ways | None:
    """The pullback to the inputs as native code, where there is some for every term that has a wanted input."""
    call, linearizer, values = attachment.call, attachment.linearizer, attachment.answer.values
    plan = call.made.plan
    assert plan is not None  # the solve has just been run
    wanted = {
        number: tuple(name for name, tensor in given.items() if tensor.requires_grad)
        for number, given in enumerate(attachment.inputs)
    }
    wanted = {number: names for number, names in wanted.items() if names}
    if not wanted.keys() <= plan.seconds.keys():
        return None
    detached = tuple({name: tensor.detach() for name, tensor in given.items()} for given in attachment.inputs)
    programs = mixed_programs(plan, call.task.solver, linearizer.blocks, values, detached, wanted)
    if programs is None:
        return None

    def to_inputs(values: Values, inputs: tuple[Inputs, ...], move: Tensor) -> list[Tensor]:
        found: list[Tensor] = []
        for number, program in programs.items():
            assembly, given = linearizer.assemblies[number], inputs[number]
            block = assembly.block
            prepared, taken = block.prepare(given), assembly.taken_vector(move)
            by_input = gradients_by_input(block, program.of_lanes(block, block.gather(values), prepared, taken), given)
            found += [by_input[name] for name in given if name in by_input]
        return found

    return Ways(partial(pulled_through_retraction, linearizer), to_inputs)


def _gradient_along(
    linearizer: Linearizer, values: Values, inputs: tuple[Inputs, ...], move: Tensor, wanted: tuple[bool, ...]
) -> tuple[Tensor, ...]:
    """∂/∂d [D_v cost(x, d)] for the wanted tensors among the inputs."""
    flat, structure = pytree.flatten(inputs)

    def slope(*moved: Tensor) -> Tensor:
        rest = iter(moved)
        tensors = [next(rest) if flag else tensor for flag, tensor in zip(wanted, flat, strict=True)]
        prepared = linearizer.prepare(pytree.unflatten(tensors, structure))
        try:
            return linearizer.slope(values, prepared, move)
        except NotImplementedError:  # an operation without a derivative in forward mode, such as grid_sample
            return (linearizer.gradient(values, prepared) * move).sum(-1)

    pull = vjp(slope, *[tensor for flag, tensor in zip(wanted, flat, strict=True) if flag])[1]
    # Not `grad` of the sum, whose graph would compute the slope itself.
    return pull(move.new_ones(len(move)))


def _through_chord_steps(
    adjoint: "Implicit",
    attachment: "Attachment",
    inputs: tuple[dict[str, Tensor], ...],
    wanted: tuple[bool, ...],
    cotangents: tuple[Tensor | None, ...],
) -> list[Tensor | None]:
    """The same gradients, as functions of inputs and cotangents that can be differentiated `order − 1` times."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Each tensor a node of its own: one that stands in two places has two gradients.
        own = pytree.map_leaves(lambda tensor: tensor.view_as(tensor), inputs)
        values, cost, _ = adjoint.chord_steps(attachment, attachment.answer.values, attachment.linearizer.prepare(own))
        sources = [tensor for tensor, flag in zip(pytree.leaves(own), wanted, strict=True) if flag]
        reached = [(out, g) for out, g in zip((*values, cost), cotangents, strict=True) if g is not None]
        outputs = [out for out, _ in reached if out.requires_grad]
        given = [g for out, g in reached if out.requires_grad]
        found = iter(gradients(outputs, sources, given, create_graph, create_graph))
    return [next(found) if flag else None for flag in wanted]
