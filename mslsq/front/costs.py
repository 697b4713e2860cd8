"""A cost function as a term of the system: its functions around explicit tensors, and those tensors as leaves."""

from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from mslsq.front.batching import sent
from mslsq.front.leaves import Data, Held, Holder, Index, Leaf, Weight, loss_inputs
from mslsq.front.plans import kept_for
from mslsq.front.replacements import replaced_leaves
from mslsq.front.stated_loss import StatedLoss, stated_loss
from mslsq.levels import modes_of_a_residual
from mslsq.private import disable_proxy_modes_tracing, version_of
from mslsq.problem import CostFunction, Problem
from mslsq.problem.cost import is_of_library
from mslsq.problem.data import WEIGHT
from mslsq.problem.errors import ShapeError
from mslsq.problem.layout import check_dense
from mslsq.problem.system import Family, Slot, Term
from mslsq.problem.variable import Blocks
from mslsq.tracing.reading.changes import Changes, named
from mslsq.tracing.reading.inputs import Collected, collect_module
from mslsq.tracing.reading.kept import check_kept
from mslsq.tracing.reading.reads import reads_of
from mslsq.tracing.reading.values import Identity, is_compared, tensor_value, value_of

BOOKKEEPING = ("references", "arguments", "num_blocks")
"""The attributes of a cost function that tell its blocks."""


def stated_cost(
    problem: Problem, changes: Changes, cost: CostFunction, data: Mapping[str, Any], axes: Mapping[str, Any]
) -> tuple[Term, tuple[Leaf, ...]]:
    """One cost function as the engine sees it, and the tensors that it depends on.

    Args:
        data: what replaces some of its tensors, as in `data[cost]` of `mslsq.solve`.
        axes: the batch axes of those, in the form of `data`.
    """
    collected = collect_module(cost)
    check_dense(collected.tensors, f"Cost {cost.name!r}: ")
    loss = stated_loss(cost.loss, f"the loss of {cost.name}")
    module = Holder(cost.name, collected, _leaves(cost, collected, loss))
    leaves = replaced_leaves(cost, module.leaves, data, axes)
    (own_key, reason), (loss_key, loss_reason) = module.keyed(changes), loss.keyed(changes)
    like = leaves[0].tensor if leaves else None
    indices = tuple([_told_apart(reference.index) for reference in cost.references])
    term = Term(
        name=cost.name,
        slots=tuple(_slot(problem, reference, like) for reference in cost.references),
        num_blocks=cost.num_blocks,
        kind=problem.kinds[cost.name],
        num_rows=problem.num_rows[cost.name],
        loss=loss.loss,
        loss_inputs=loss_inputs(leaves),
        per_block=frozenset(leaf.name for leaf in leaves if leaf.is_per_block),
        key=(own_key, loss_key, indices),
        chunk=cost.chunk,
        is_of_library=is_of_library(cost),
        eager="; ".join(filter(None, (reason, loss_reason))),
        family=Family(
            cache(lambda: (_family(cost, collected), loss_key)),
            kept_for(type(cost)).families,
            frozenset(leaf.name for leaf in leaves if isinstance(leaf, Index)),
        ),
        check_kept=lambda leaves: check_kept((collected,), leaves),
        **_functions(cost, module),
    )
    return term, leaves


def _family(cost: CostFunction, collected: Collected) -> Hashable:
    """What its derivatives depend on besides the tensors of a block: its code and state, but not how many blocks there
    are and which. That is left out in the places where the library itself keeps it, unless the code names these."""
    if is_of_library(cost) and not _attributes(cost) and not _attributes(cost.weight):
        # Without the walk, which takes a twentieth of a pose that is added to a graph.
        return type(cost), type(cost.weight), _told_arguments(cost)
    names = {name for code in collected.codes for name in reads_of(code).attributes}
    if not names.isdisjoint(BOOKKEEPING):
        return collected.codes, collected.scalars
    state, _ = named(collected, dict.fromkeys(BOOKKEEPING))
    return collected.codes, state, _told_arguments(cost)


def _told_arguments(cost: CostFunction) -> Hashable:
    """What its derivatives depend on of the data of a cost, but for tensors."""
    return tuple(
        (keyword, argument.leaves, repr(argument.structure), value_of(argument.static, type(argument.static)))
        for keyword, argument in cost.arguments.items()
    )


def _attributes(module: nn.Module | None) -> set[str]:
    """What a cost of the library or its weight holds besides what all of them do. The loss has a key of its own."""
    if module is None:
        return set()
    if not type(module).__module__.startswith("mslsq.problem."):
        return {"code"}
    return vars(module).keys() - _OF_MODULES - {"name", "weight", "loss", *BOOKKEEPING}


_OF_MODULES = vars(nn.Module()).keys()


def _leaves(cost: CostFunction, collected: Collected, loss: StatedLoss) -> dict[str, Leaf]:
    """The tensors of a cost by their names in `state_dict`. One tensor in two places has a leaf for each of them."""
    stated: list[Leaf] = [
        Data(leaf.name, getattr(cost, leaf.name), per_block=leaf.per_block) for leaf in cost.data_leaves
    ]
    weight = cost.weight
    if weight is not None:
        stated.append(Weight(WEIGHT, weight.value, block_rank=weight.block_rank))
    for leaf in stated:
        if leaf.is_per_block and (not leaf.shape or leaf.shape[0] != cost.num_blocks):
            raise ShapeError(
                f"Cost {cost.name!r}: {leaf.name!r} has shape {leaf.shape}, but one entry for each of "
                f"{cost.num_blocks} blocks is expected. Another number of blocks takes a new cost."
            )
    leaves = {leaf.name: leaf for leaf in [*stated, *loss.leaves]}
    indices = {id(reference.index) for reference in cost.references}
    for name, tensor in collected.tensors.items():
        if name not in leaves:
            leaves[name] = (Index if id(tensor) in indices else Held)(name, tensor)
    return leaves


def _functions(cost: CostFunction, module: Holder) -> dict[str, Any]:
    """Residual, Jacobians and weight of one block, as functions of explicit tensors."""

    def method(name: str) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            *first, values, inputs = args
            with modes_of_a_residual():
                return module.applied(
                    inputs, lambda cost: getattr(cost, name)(*first, *values, **cost.data_arguments(inputs))
                )

        return called

    functions: dict[str, Any] = {"residual": method("residual")}
    if cost.jacobians is not None:
        weight_broadcasts = cost.weight is None or cost.weight.broadcasts
        jacobians = method("jacobians")
        functions["jacobians"] = lambda values, inputs: tuple(jacobians(values, inputs))
        functions["broadcasts"] = cost.broadcasts is not None and weight_broadcasts and cost.broadcasts()
        if cost.residual_and_jacobians is not None:
            functions["residual_and_jacobians"] = method("residual_and_jacobians")
    if cost.curvature is not None:
        functions["curvature"] = method("curvature")
    if cost.weight is not None:
        kind = type(cost.weight)
        functions["whiten"] = lambda vector, inputs: kind.whiten(vector, inputs[WEIGHT])
        functions["whiten_jacobian"] = lambda matrix, inputs: kind.whiten_jacobian(matrix, inputs[WEIGHT])
    return functions


def _slot(problem: Problem, reference: Blocks, like: Tensor | None) -> Slot:
    number = list(problem.variables).index(reference.variable.name)
    with disable_proxy_modes_tracing():  # indices are structure, also where a solve is recorded
        return Slot(number, _index(reference, like))


def _index(reference: Blocks, like: Tensor | None) -> int | Tensor:
    """An index as a plan may keep it: nothing is written into it later on where its key is what it holds."""
    index = reference.index
    if isinstance(index, Tensor) and len(index) == 1:
        return _only_entry(reference, index)  # inside of a recorded step it could not be read
    if isinstance(index, Tensor) and is_compared(index):
        index = index.clone()
    return sent(index, like.device) if isinstance(index, Tensor) and like is not None else index


def _only_entry(reference: Blocks, index: Tensor) -> int:
    """The entry of an index that has one; read from its device again only if it was written to."""
    if index.is_cpu or index.is_inference():
        return int(index)
    known, version = _ONLY.get(reference), version_of(index)
    if known is None or known[0] != version:
        known = _ONLY[reference] = version, int(index)
    return known[1]


_ONLY: WeakKeyDictionary[Blocks, tuple[int, int]] = WeakKeyDictionary()
"""How often an index had been written to when its only entry was read, and that entry."""


def _told_apart(index: int | Tensor) -> Hashable:
    """What a plan depends on of an index: what it holds, where that can be compared in every call, so that it serves
    all problems of the same structure; else the very tensor, and how often it was written to."""
    if isinstance(index, int):
        return index
    if is_compared(index):
        return tuple(index.shape), index.dtype, tensor_value(index)
    return Identity(index), version_of(index)
