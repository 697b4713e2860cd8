"""A residual, a start and arguments as a statement: one term of one block, its unknowns the leaves of the start."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mslsq import pytree
from mslsq.front.batching import Axes, element_like, taken_apart, tensor_of
from mslsq.front.bounds import (
    SIDES,
    Bound,
    StatedBounds,
    bounded,
    by_leaf,
    of_shape,
    pair_of,
    refuse_manifold,
    tensor_like,
)
from mslsq.front.callables import Callables, callables, numbered
from mslsq.front.leaves import Start
from mslsq.front.plans import kept_for_callable
from mslsq.front.stated_loss import StatedLoss, stated_loss
from mslsq.front.statement import Statement
from mslsq.front.trust import trust_of_callables
from mslsq.linearize.blocks import Values
from mslsq.losses import RobustLoss
from mslsq.problem import CostFunction, Problem
from mslsq.problem.errors import DtypeError, ProblemError, ShapeError, check_start
from mslsq.problem.layout import check_dense
from mslsq.problem.leaf import LeafSpace, leaf_space
from mslsq.problem.system import System, Unknown
from mslsq.validation import boolean, instance_of


@dataclass(frozen=True, eq=False)
class StatedResidual:
    """A call of `least_squares`, taken apart."""

    statement: Statement
    callables: Callables
    axes: Axes

    def aux(self, value: Any) -> Any:
        """The second output of the residual at a solution."""
        return self.callables.aux(value, self.axes)


def stated_residual(
    residual: Callable[..., Any],
    x0: Any,
    args: tuple[Any, ...],
    *,
    jac: Callable[..., Any] | None = None,
    has_aux: bool = False,
    in_dims: Any = None,
    loss: RobustLoss | None = None,
    bounds: Any = None,
    project_start: bool = False,
) -> StatedResidual:
    """What the user said, as a statement; arguments as for `mslsq.least_squares`.

    Raises:
        ProblemError: something is wrong with the shapes, dtypes or arguments; the message says what.
    """
    _check_options(residual, args, jac, loss)
    boolean("project_start", project_start, ProblemError)
    arguments = taken_apart(x0, *args)
    leaves, structure = arguments.leaves[0], arguments.structures[0]
    names = numbered("x0", len(leaves))
    _check_start(leaves, names)
    functions = callables(residual, jac, arguments, has_aux)
    _check_layouts(leaves, names, functions)
    axes = arguments.axes(in_dims)
    spaces = tuple(map(_space_of_one, leaves, names, axes.of[0]))
    losses = stated_loss(loss)
    _check_loss_parameters(losses)
    inputs = [*functions.leaves(axes), *losses.leaves]
    kept = kept_for_callable(residual)
    term = functions.term(spaces, kept, losses, axes.size is not None)
    unknowns = tuple(Unknown(name, space, 1) for name, space in zip(names, spaces, strict=True))
    unknowns, stated_bounds = _bounded(unknowns, bounds, x0, leaves, axes.size)

    def in_users_form(storages: Values) -> Any:
        return pytree.unflatten([s.leaf_of(x) for s, x in zip(spaces, storages, strict=True)], structure)

    def entries_in_users_form(entries: Values) -> Any:
        shaped = [x[..., 0, :].reshape((*x.shape[:-2], *s.tangent_shape)) for s, x in zip(spaces, entries, strict=True)]
        return pytree.unflatten(shaped, structure)

    statement = Statement(
        System(unknowns, (term,), (spaces, pytree.key_of(structure))),
        tuple(map(_start, spaces, leaves, axes.of[0])),
        (tuple(inputs),),
        axes.size,
        kept.plans,
        in_users_form,
        entries_in_users_form,
        StatedBounds(stated_bounds, project_start),
        None if losses.holder else trust_of_callables(functions),
    )
    return StatedResidual(statement, functions, axes)


def _bounded(
    unknowns: tuple[Unknown, ...], bounds: Any, x0: Any, leaves: list[Any], size: int | None
) -> tuple[tuple[Unknown, ...], dict[str, Bound]]:
    """The unknowns, told which are bounded, and their bounds."""
    if bounds is None:
        return unknowns, {}
    lower, upper = (by_leaf(side, x0, which) for side, which in zip(pair_of(bounds, "bounds", x0), SIDES, strict=True))

    def to_bound(number: int, given: Any, side: str) -> Bound | None:
        unknown = unknowns[number]
        what = f"The {side} bound of {unknown.name}"
        tensor = tensor_like(given, tensor_of(leaves[number]), what)
        if tensor is None:
            return None
        space = unknown.space
        assert isinstance(space, LeafSpace)
        refuse_manifold(space, what)
        return of_shape(tensor, space.shape, size, (1, space.storage_dim), what)

    return bounded(unknowns, list(zip(lower, upper, strict=True)), to_bound)


def _check_options(residual: Any, args: Any, jac: Any, loss: Any) -> None:
    if not isinstance(args, (tuple, list)):
        raise ProblemError(
            f"args must be a tuple of arguments, not {type(args).__name__}: write args=(t,) for a single one."
        )
    if loss is not None:
        instance_of("loss", loss, RobustLoss, "Write loss=mslsq.Huber(1.0), say.", ProblemError)
    if isinstance(residual, (Problem, CostFunction)):
        raise ProblemError(
            f"residual is a {type(residual).__name__}: solve it by mslsq.solve(problem, values), with the starts "
            "by the names of variables. least_squares takes a function residual(x, *args)."
        )
    if not callable(residual):
        raise ProblemError(f"residual must be callable, not {type(residual).__name__}.")
    if jac is not None and not callable(jac):
        raise ProblemError(f"jac must be a function jac(x, *args), not {jac!r}: without one derivatives are exact.")


def _space_of_one(leaf: Any, name: str, axis: int | None) -> LeafSpace:
    """The space of a leaf as one problem sees it."""
    return leaf_space(leaf if axis is None else element_like(leaf, tensor_of(leaf).select(axis, 0)), name)


def _start(space: LeafSpace, leaf: Any, axis: int | None) -> Start:
    if axis is None:
        return Start(space.name, space.unwrap(leaf), is_single=True)
    return Start(space.name, space.unwrap(element_like(leaf, tensor_of(leaf).movedim(axis, 0))), 0, is_single=True)


def _check_loss_parameters(loss: StatedLoss) -> None:
    """They are numbers, for all entries of the residual."""
    for leaf in loss.leaves:
        if leaf.is_per_block:
            raise ShapeError(f"loss: {leaf.own} must be a single number here, not of shape {leaf.shape}.")


def _check_layouts(leaves: list[Any], names: list[str], functions: Callables) -> None:
    """Before anything is taken from a tensor: sparse ones have no strides to batch by."""
    check_dense({name: leaf for name, leaf in zip(names, leaves, strict=True) if isinstance(leaf, Tensor)})
    check_dense({leaf.name: leaf.tensor for leaf in functions.places if leaf is not None})
    check_dense({leaf.name: leaf.tensor for part in functions.holders for leaf in part.leaves.values()})


def _check_start(leaves: list[Any], names: list[str]) -> None:
    """Real floating-point tensors or manifold elements, of one dtype and on one device, not empty."""
    if not leaves:
        raise ProblemError("x0 is empty: there is nothing to solve for.")
    tensors = []
    for leaf, name in zip(leaves, names, strict=True):
        tensor = tensor_of(leaf)
        if not isinstance(tensor, Tensor):
            raise ProblemError(
                f"{name} must be a tensor or a manifold element, not {type(leaf).__name__}: use torch.tensor(...)."
            )
        if tensor.is_complex():
            raise DtypeError(
                f"{name} is complex; solve for real variables: torch.view_as_real(x0), and build the complex one in "
                "the residual."
            )
        check_start(name, tensor)
        if tensor.numel() == 0:
            raise ShapeError(f"{name} has no entries, shape {tuple(tensor.shape)}.")
        tensors.append(tensor)
    for tensor, name in zip(tensors[1:], names[1:], strict=True):
        if tensor.dtype != tensors[0].dtype:
            raise DtypeError(
                f"{names[0]} is {tensors[0].dtype}, {name} is {tensor.dtype}; the parts of x0 must have one dtype."
            )
