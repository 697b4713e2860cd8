"""The blocks of cost functions as sets: some of them taken, those of two joined; a problem that grows."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mslsq.private import MODULE_INTERNALS, MODULE_TABLES
from mslsq.problem.constraints import Constraint
from mslsq.problem.cost import CostFunction
from mslsq.problem.data import WEIGHT, own_tensors
from mslsq.problem.errors import DeviceError, ProblemError
from mslsq.problem.variable import Blocks, Fixed, Variable

Part = CostFunction | Constraint | Fixed
BLOCKS = ("references", "num_blocks")
"""The attributes of a cost function that differ between sets of its blocks."""


def taken(cost: CostFunction, chosen: Tensor, references: Sequence[Blocks]) -> CostFunction:
    """The same cost function with some of its blocks.

    Args:
        chosen: (blocks,) bool.
        references: what those refer to.

    Raises:
        ProblemError: blocks have parameters of their own.
    """
    tensors, pieces = own_tensors(cost), {}
    for name in _by_block(cost):
        if isinstance(tensors[name], nn.Parameter):
            raise ProblemError(
                f"Cost {cost.name!r}: the parameter {name!r} has one entry per block, which would no longer be a "
                "parameter if some were taken out. Let all blocks share it, or make a module of it."
            )
        pieces[name] = tensors[name][chosen.to(tensors[name].device)]
    return _with(cost, pieces, references, int(chosen.sum()))


def joined(cost: CostFunction, more: CostFunction, variables: Mapping[str, Variable]) -> CostFunction:
    """A cost function with the blocks of two, those of `cost` first.

    Args:
        variables: by name, those that the blocks refer to from now on.

    Raises:
        ProblemError: something that all blocks share is not the same for both.
    """
    _check_alike(cost, more)
    own, other = own_tensors(cost), own_tensors(more)
    split, split_more = _by_block(cost), _by_block(more)
    tensors = {}
    for name, tensor in own.items():
        if name not in split and name not in split_more:
            if _are_same(tensor, other[name]):
                continue
            if not _may_be_by_block(cost, name):
                raise _differs(cost, f"{name!r}, which all blocks share,")
        if isinstance(tensor, nn.Parameter):
            raise _differs(cost, f"the parameter {name!r}", "Parameters that blocks have one by one cannot grow")
        pair = (tensor, cost.num_blocks, name in split), (other[name], more.num_blocks, name in split_more)
        like = _like_blocks(cost, *(x for x, _, _ in pair))
        if any(x.device != like.device for x, _, _ in pair if x.ndim > 0):
            raise DeviceError(
                f"Problem.extended: {cost.name}.{name} is on {tensor.device}, that of the new blocks on "
                f"{other[name].device}. Move one of them first: problem.to({str(like.device)!r}), say."
            )
        tensors[name] = torch.cat(
            [x if is_split else x.to(like).expand(count, *x.shape) for x, count, is_split in pair]
        )
    references = [
        Blocks(variables[a.variable.name], _index(a, cost.num_blocks, b, more.num_blocks))
        for a, b in zip(cost.references, more.references, strict=True)
    ]
    return _with(cost, tensors, references, cost.num_blocks + more.num_blocks)


def on(cost: CostFunction, variables: Mapping[str, Variable]) -> CostFunction:
    """The same blocks of other variables of these names."""
    references = [Blocks(variables[one.variable.name], one.index) for one in cost.references]
    return _with(cost, {}, references, cost.num_blocks)


def extended_parts(own: Sequence[Part], more: Sequence[Part]) -> list[Part]:
    """The parts of a problem and more of them: costs of one name as one, of the larger variables.

    Raises:
        ProblemError: two costs of one name, or two variables, do not fit together.
    """
    variables = _larger_variables([*own, *more])
    parts: dict[Any, Part] = {}
    for part in [*own, *more]:
        if isinstance(part, Fixed):
            parts[id(part)] = Fixed(variables[part.variable.name], part.index, part.components)
            continue
        cost = _cost_of(part)
        known = parts.get(cost.name)
        if known is None:
            parts[cost.name] = _like(part, on(cost, variables))
            continue
        assert not isinstance(known, Fixed)
        if (isinstance(known, Constraint) or isinstance(part, Constraint)) and type(known) is not type(part):
            raise ProblemError(
                f"{cost.name!r} is a cost in one place and a constraint in another: give one of them another name."
            )
        parts[cost.name] = _like(known, joined(_cost_of(known), cost, variables))
    return list(parts.values())


def _larger_variables(parts: Sequence[Part]) -> dict[str, Variable]:
    """By name, of the variables that parts refer to those with the most blocks."""
    variables: dict[str, Variable] = {}
    for part in parts:
        for variable in [part.variable] if isinstance(part, Fixed) else [x.variable for x in _cost_of(part).references]:
            known = variables.setdefault(variable.name, variable)
            if known is variable:
                continue
            if known.space != variable.space or (known.count is None) != (variable.count is None):
                raise ProblemError(
                    f"Two different variables are called {variable.name!r}: {known!r} and {variable!r}. Give them "
                    "different names."
                )
            for side in ("lower", "upper"):
                if (getattr(known, side) is None) != (getattr(variable, side) is None):
                    raise ProblemError(
                        f"Variable {variable.name!r} has {side} bounds in one place and none in the other: give the "
                        f"larger one {side}= too."
                    )
            if variable.num_blocks > known.num_blocks:
                variables[variable.name] = variable
    return variables


def _cost_of(part: CostFunction | Constraint) -> CostFunction:
    return part.cost if isinstance(part, Constraint) else part


def _like(part: CostFunction | Constraint, cost: CostFunction) -> Part:
    return type(part)(cost) if isinstance(part, Constraint) else cost


def _by_block(cost: CostFunction) -> list[str]:
    """The tensors of a cost that have one entry per block, by their names in `state_dict`."""
    names = [leaf.name for leaf in cost.data_leaves if leaf.per_block]
    if cost.weight is not None and cost.weight.value.ndim > cost.weight.block_rank:
        names.append(WEIGHT)
    if cost.loss is not None:
        names += [f"loss.{name}" for name, tensor in own_tensors(cost.loss).items() if tensor.ndim > 0]
    return names


def _may_be_by_block(cost: CostFunction, name: str) -> bool:
    """Can this tensor, which all blocks share, become one for each?"""
    return name == WEIGHT or (name.startswith("loss.") and cost.get_parameter_or_buffer(name).ndim == 0)


def _like_blocks(cost: CostFunction, *pair: Tensor) -> Tensor:
    """A tensor of the dtype and on the device of what becomes one entry per block: plain numbers, which have none of
    their own, take those of the data."""
    data = [cost.get_parameter_or_buffer(leaf.name) for leaf in cost.data_leaves]
    own = [x for x in pair if x.ndim > 0]
    known = own or [x for x in data if x.ndim > 0 and x.is_floating_point()]
    return known[0] if known else pair[0]


def _are_same(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and bool(torch.equal(a, b)))


def _index(a: Blocks, count: int, b: Blocks, more: int) -> Tensor | int:
    """One index for the blocks of both."""
    if isinstance(a.index, int) and isinstance(b.index, int) and a.index == b.index:
        return a.index
    pieces = [
        torch.full((blocks,), one.index, device="cpu") if isinstance(one.index, int) else one.index
        for one, blocks in ((a, count), (b, more))
    ]
    return torch.cat([piece.to(pieces[0].device) for piece in pieces])


def _with(
    cost: CostFunction, tensors: Mapping[str, Tensor], references: Sequence[Blocks], num_blocks: int
) -> CostFunction:
    """A copy of a cost function that shares everything but these tensors, by their names in `state_dict`."""
    result = _shallow(cost)
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        owner: nn.Module = result
        for step in path:
            inner = _shallow(owner.get_submodule(step))
            owner.add_module(step, inner)
            owner = inner
        owner.register_buffer(last, tensor)
    result.references, result.num_blocks = tuple(references), num_blocks
    return result


def _shallow(module: Any) -> Any:
    """A module of its own around the same tensors and submodules."""
    result = object.__new__(type(module))
    result.__dict__.update(module.__dict__)
    for table in MODULE_TABLES:
        result.__dict__[table] = copy.copy(module.__dict__[table])
    return result


def _check_alike(cost: CostFunction, more: CostFunction) -> None:
    """Are these blocks of one cost function, but for tensors?"""
    for what, a, b in (
        ("its class", type(cost), type(more)),
        ("the class of its weight", type(cost.weight), type(more.weight)),
        ("the class of its loss", type(cost.loss), type(more.loss)),
        ("the names of its data", set(cost.arguments), set(more.arguments)),
        ("its variables", *([one.variable.name for one in each.references] for each in (cost, more))),
        ("its tensors", set(own_tensors(cost)), set(own_tensors(more))),
    ):
        if a != b:
            raise _differs(cost, what)
    shared = ({leaf.name for leaf in each.data_leaves if not leaf.per_block} for each in (cost, more))
    if len({frozenset(names) for names in shared}) > 1:
        raise _differs(cost, "which of its data are mslsq.Shared")
    for keyword, argument in cost.arguments.items():
        other = more.arguments[keyword]
        if argument.structure != other.structure or not _equal(argument.static, other.static):
            raise _differs(cost, f"{keyword!r}, which all blocks share,")
    known = (*MODULE_INTERNALS, *BLOCKS, "arguments")
    for name in {*vars(cost), *vars(more)} - {*known}:
        if not _equal(vars(cost).get(name), vars(more).get(name)):
            raise _differs(cost, f"its attribute {name!r}")
    if cost.loss is not None:
        for name in {*vars(cost.loss)} - {*MODULE_INTERNALS}:
            if not _equal(vars(cost.loss)[name], vars(more.loss).get(name)):
                raise _differs(cost, f"{name!r} of its loss")


def _equal(a: Any, b: Any) -> bool:
    """Are these the same? What cannot be compared is not."""
    if a is b:
        return True
    try:
        return type(a) is type(b) and bool(a == b)
    except (RuntimeError, TypeError, ValueError):
        return False


def _differs(cost: CostFunction, what: str, why: str = "Blocks of one name are blocks of one cost") -> ProblemError:
    return ProblemError(
        f"Problem.extended: cost {cost.name!r} exists, and {what} is not the same there. {why}: give the new ones "
        f"a name of their own, name={cost.name + '_2'!r}."
    )
