"""Plain `backward()` through an answer: one system with the Hessian's factor, and one recorded product.

The first derivative of a minimum needs no chord step: with v = −H⁻¹g for the cotangent g of the solution (in the
tangent), the gradient in the data d is

    gᵀ dx*/dd = vᵀ ∂F/∂d = ∂/∂d [D_v cost(x*, d)],

the gradient of one directional derivative of the cost. So nothing is computed before backward comes, and then nothing
but that: 0.8 ms for 1024 fits, where two chord steps and their backward take 2.9. A
derivative of that gradient (`create_graph=True`) takes the chord steps after all, from the same recorded graphs.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mslsq import pytree
from mslsq.adjoint.along import gradient_along
from mslsq.adjoint.around_programs import graph_around, may_be_around, pullback_name
from mslsq.adjoint.ends import PullDraft, pull_of
from mslsq.adjoint.factor import Factorization
from mslsq.adjoint.failures import can_be_spared, sparing_failed
from mslsq.adjoint.limit import limited_gradient
from mslsq.adjoint.minimum import Point
from mslsq.adjoint.outputs import Attached
from mslsq.levels import backward_may_come
from mslsq.linearize.blocks import Values
from mslsq.linearize.second_order import MixedProgram, gradients_by_input, pulled_through_retraction
from mslsq.private import gradients, is_batched_by_autograd, transforms_are_active, vjp, without_saved_tensor_hooks
from mslsq.problem.system import Inputs
from mslsq.solvers.second_order import mixed_programs

if TYPE_CHECKING:
    from mslsq.adjoint.attachment import Attachment
    from mslsq.adjoint.implicit import Implicit


def attached_lazily(adjoint: "Implicit", attachment: "Attachment") -> Attached | None:
    """Values and cost whose derivative waits for `backward`; None where it must be attached at once.

    That is under a transform or constraints, where everything failed, where the start is data (fixed blocks) or bounds
    are, and where nothing is native or recorded: a function of the user's that is only called in the backward pass may
    have changed by then.
    """
    if attachment.answer.constraints or transforms_are_active():
        return None
    if not attachment.nothing_failed and not can_be_spared(attachment):
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
    way = _fused_way(adjoint, attachment) or _native_way(adjoint, attachment) or _graphs(adjoint, attachment, wanted)
    if way is None:
        return None
    if not attachment.nothing_failed:
        way = sparing_failed(way, attachment, adjoint.fill)
    return pulled_back(adjoint, attachment, way)


def pulled_back(adjoint: "Implicit", attachment: "Attachment", way: "Way", order: int | None = None) -> Attached:
    """Values and cost whose derivative waits for `backward`.

    Args:
        order: where the inputs have not passed through a limit on the number of backward passes (`limit`): that limit.
    """
    *values, cost = Pullback.apply(adjoint, attachment, way, order, *_tensors(attachment.inputs))
    return Attached(tuple(values), cost)


def _tensors(inputs: tuple[Inputs, ...]) -> list[Tensor]:
    """In the order of `pytree.leaves`."""
    return [tensor for given in inputs for tensor in given.values()]


def _by_name(tensors: Sequence[Tensor], like: tuple[Inputs, ...]) -> tuple[dict[str, Tensor], ...]:
    rest = iter(tensors)
    return tuple([{name: next(rest) for name in given} for given in like])


class Pullback(torch.autograd.Function):
    """Values and cost of an answer, as a function of all inputs; reverse mode, on plain tensors."""

    @staticmethod
    def forward(
        ctx: Any, adjoint: "Implicit", attachment: "Attachment", way: "Way", order: int | None, *flat: Tensor
    ) -> Any:
        ctx.adjoint, ctx.attachment, ctx.way, ctx.order = adjoint, attachment, way, order
        ctx.save_for_backward(*flat)
        ctx.set_materialize_grads(False)
        # Copies: who writes into the solution must not change what the derivative is taken at.
        return (*[x.clone() for x in attachment.answer.values], attachment.answer.cost.clone())

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        attachment, of_cost = ctx.attachment, cotangents[-1]
        flat = ctx.saved_tensors  # once: hooks (checkpointing, save_on_cpu) make them each time
        inputs, values = _by_name(flat, attachment.inputs), attachment.answer.values
        batched = any(g is not None and is_batched_by_autograd(g) for g in cotangents)
        if of_cost is not None or batched or torch.is_grad_enabled() or transforms_are_active():
            wanted = ctx.needs_input_grad[4:]
            with without_saved_tensor_hooks():
                found = _through_chord_steps(ctx.adjoint, attachment, inputs, wanted, cotangents)
            if ctx.order is not None:
                found = [limited_gradient(g, tensor, 0, ctx.order) for g, tensor in zip(found, flat, strict=True)]
            return None, None, None, None, *found
        of_values = zip(values, cotangents, strict=False)
        towards = tuple([torch.zeros_like(x) if g is None else g for x, g in of_values])
        found = iter(ctx.way(values, inputs, towards))
        return None, None, None, None, *[next(found) if tensor.requires_grad else None for tensor in flat]


Way = Callable[[Values, tuple[Inputs, ...], Values], Sequence[Tensor]]
"""The pullback that a backward pass takes, as what will not have changed when it comes: from values, inputs and
cotangents of the values to the wanted inputs."""


def by_moves(
    adjoint: "Implicit",
    attachment: "Attachment",
    through_retraction: Callable[[Values, Values], Tensor],
    to_inputs: Callable[[Values, tuple[Inputs, ...], Tensor], Sequence[Tensor]],
) -> Way:
    """The cotangent of the values as one in the tangent, and its move v = −H⁻¹g, which `to_inputs` takes to the
    inputs."""
    linear, factor = attachment.linearizer.linear_solver, attachment.answer.factor

    def found(values: Values, inputs: tuple[Inputs, ...], towards: Values) -> Sequence[Tensor]:
        gradient = attachment.of_free(through_retraction(values, towards))
        return to_inputs(values, inputs, -adjoint.factorization.inverse(linear, factor, gradient))

    return found


def _fused_way(adjoint: "Implicit", attachment: "Attachment") -> Way | None:
    """One native program that solves for the move and takes it to the inputs, of small dense problems whose solve was
    one."""
    call, answer, plan = attachment.call, attachment.answer, attachment.call.made.plan
    if plan is None or attachment.bounds or call.task.outer is not None:
        return None
    if type(adjoint.factorization) is not Factorization:
        return None  # its factors are of another form
    wanted = wanted_of(attachment.inputs)
    detached = tuple({name: tensor.detach() for name, tensor in given.items()} for given in attachment.inputs)
    matrix = answer.factor  # of the shape of the last linearization's, which is not kept
    # Programs are compared where the cost is finite.
    cost = answer.cost if attachment.nothing_failed else torch.where(attachment.failed, torch.nan, answer.cost)
    program = pull_of(call.task, plan, Point(answer.values, (), matrix, cost), detached, wanted)
    return None if program is None else way_by(program, attachment, wanted)


def wanted_of(inputs: tuple[Inputs, ...]) -> dict[int, tuple[str, ...]]:
    """By term the names of the inputs that a derivative is to be taken of."""
    wanted = {}
    for number, given in enumerate(inputs):
        names = tuple([name for name, tensor in given.items() if tensor.requires_grad])
        if names:
            wanted[number] = names
    return wanted


def way_by(program: PullDraft, attachment: "Attachment", wanted: dict[int, tuple[str, ...]]) -> Way:
    """That by one native program."""
    factor = attachment.answer.factor

    def found(values: Values, inputs: tuple[Inputs, ...], towards: Values) -> list[Tensor]:
        gradient = attachment.of_free(pulled_through_retraction(attachment.linearizer, values, towards))
        pulled = program.pulled(values, inputs, factor, gradient)
        return [pulled[number, name] for number, names in wanted.items() for name in names]

    return found


def _graphs(adjoint: "Implicit", attachment: "Attachment", wanted: tuple[bool, ...]) -> Way | None:
    """The recorded pullbacks: of the retraction to tangents, and of the gradient to the wanted inputs."""
    linearizer, values = attachment.linearizer, attachment.answer.values
    columns = values[0].new_zeros(len(values[0]), linearizer.structure.num_columns)

    def through_retraction(values: Values, towards: Values) -> Tensor:
        return vjp(lambda delta: linearizer.retract(values, delta), torch.zeros_like(columns))[1](towards)[0]

    def to_inputs(values: Values, inputs: tuple[Inputs, ...], move: Tensor) -> tuple[Tensor, ...]:
        return gradient_along(linearizer, values, inputs, move, wanted)

    first = attachment.recorded(THROUGH_RETRACTION, through_retraction, values, values)
    second = attachment.recorded(name_to_inputs(wanted), to_inputs, values, attachment.inputs, columns)
    if first is None or second is None:
        return None
    return by_moves(adjoint, attachment, first, second)


THROUGH_RETRACTION = "pullback through the retraction"


def name_to_inputs(wanted: Sequence[bool]) -> str:
    """Of the graph of the pullback to the inputs of these places among all of them."""
    return f"pullback to inputs {', '.join(str(number) for number, flag in enumerate(wanted) if flag)}"


def _native_way(adjoint: "Implicit", attachment: "Attachment") -> Way | None:
    """The pullback to the inputs as native code, where there is some for every term that has a wanted input; all of it
    by one graph around that where there is one."""
    call, linearizer, values = attachment.call, attachment.linearizer, attachment.answer.values
    plan = call.made.plan
    assert plan is not None  # the solve has just been run
    wanted = wanted_of(attachment.inputs)
    if not wanted.keys() <= plan.seconds.keys():
        return None
    detached = tuple({name: tensor.detach() for name, tensor in given.items()} for given in attachment.inputs)
    programs = mixed_programs(plan, call.task.solver, linearizer.blocks, values, detached, wanted)
    return None if programs is None else way_by_mixed(adjoint, attachment, programs)


def way_by_mixed(adjoint: "Implicit", attachment: "Attachment", programs: Mapping[int, MixedProgram]) -> Way:
    """That by the mixed derivatives of every term that has a wanted input."""
    linearizer = attachment.linearizer

    def to_inputs(values: Values, inputs: tuple[Inputs, ...], move: Tensor) -> list[Tensor]:
        found: list[Tensor] = []
        for number, program in programs.items():
            assembly, given = linearizer.assemblies[number], inputs[number]
            block = assembly.block
            prepared, taken = block.prepare(given), assembly.taken_vector(move)
            by_input = gradients_by_input(block, program.of_lanes(block, block.gather(values), prepared, taken), given)
            found += [by_input[name] for name in given if name in by_input]
        return found

    way = by_moves(adjoint, attachment, partial(pulled_through_retraction, linearizer), to_inputs)
    return _graph_around(adjoint, attachment, programs, to_inputs) or way


def _graph_around(
    adjoint: "Implicit",
    attachment: "Attachment",
    programs: Mapping[int, MixedProgram],
    to_inputs: Callable[[Values, tuple[Inputs, ...], Tensor], Sequence[Tensor]],
) -> Way | None:
    """1,000 poses: 0.7 ms instead of 1.3."""
    linearizer, answer, plan = attachment.linearizer, attachment.answer, attachment.call.made.plan
    if plan is None or attachment.bounds or not may_be_around(plan, linearizer):
        return None

    def pulled(values: Values, inputs: tuple[Inputs, ...], factor: Tensor, towards: Values) -> Sequence[Tensor]:
        gradient = pulled_through_retraction(linearizer, values, towards)
        return to_inputs(values, inputs, -adjoint.factorization.inverse(linearizer.linear_solver, factor, gradient))

    inputs = tuple({name: tensor.detach() for name, tensor in given.items()} for given in attachment.inputs)
    example = answer.values, inputs, answer.factor, answer.values
    graph = graph_around(plan, attachment.call.task.solver, pullback_name(programs), pulled, *example)
    if graph is None:
        return None
    return lambda values, inputs, towards: graph(values, inputs, answer.factor, towards)


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
        if attachment.nothing_failed:
            given = attachment.linearizer.prepare(own)
            values, cost, _ = adjoint.chord_steps(attachment, attachment.answer.values, given)
        else:
            values, cost, _ = adjoint.along_chords(attachment.with_inputs(own))
        sources = [tensor for tensor, flag in zip(pytree.leaves(own), wanted, strict=True) if flag]
        reached = [(out, g) for out, g in zip((*values, cost), cotangents, strict=True) if g is not None]
        outputs = [out for out, _ in reached if out.requires_grad]
        given = [g for out, g in reached if out.requires_grad]
        found = iter(gradients(outputs, sources, given, create_graph, create_graph))
    return [next(found) if flag else None for flag in wanted]
