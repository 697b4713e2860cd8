"""`least_squares`: a residual and a start, in SciPy's shape, for any pytree, batched by `in_dims`."""

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq import pytree
from mslsq.adjoint import Adjoint, solve_system
from mslsq.adjoint.compiling import outside_compiled_regions
from mslsq.adjoint.function import Made
from mslsq.front.batching import batch_size, mapped_dims, take, unbatched
from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.plan import PlanCache
from mslsq.losses import RobustLoss
from mslsq.manifolds import Manifold
from mslsq.problem.errors import DtypeError, ProblemError, ShapeError
from mslsq.problem.layout import check_dense
from mslsq.problem.leaf import LeafSpace, leaf_space
from mslsq.problem.system import Inputs, Slot, System, Term, Unknown
from mslsq.solvers import Solver
from mslsq.tracing.graph import TRANSFORM_LOCK
from mslsq.tracing.reading.changes import Changes
from mslsq.tracing.reading.inputs import Collected, collect, collect_values

_PLANS: "weakref.WeakKeyDictionary[Any, PlanCache]" = weakref.WeakKeyDictionary()
"""Plans by the code of the residual, so that a lambda written anew for every call is recognised."""
_CHANGES: "weakref.WeakKeyDictionary[PlanCache, Changes]" = weakref.WeakKeyDictionary()


@outside_compiled_regions
def least_squares(
    residual: Callable[..., Any],
    x0: Any,
    args: tuple[Any, ...] = (),
    *,
    jac: Callable[..., Any] | None = None,
    has_aux: bool = False,
    in_dims: Any = None,
    solver: Solver | None = None,
    loss: RobustLoss | None = None,
    bounds: Any = None,
    adjoint: Adjoint | None = None,
) -> Any:
    """Minimise ½Σρ(|residual(x, *args)|²) over x.

    Of a large residual (more than 300 unknowns) the sparsity is found from its graph and made use of: a few derivatives
    give the whole Jacobian, parts that nothing couples are solved as a batch, large ones by sparse Cholesky. The
    solver's `verbose=True` says what was found.

    Args:
        residual: `residual(x, *args)` returns a tensor or a pytree of tensors, real or complex (a complex entry
            counts |r|²). Written for one problem, without a batch axis. Tensors it holds in closures, modules or
            partials are inputs of the solve like `args`: batched by `vmap`, differentiated through.
        x0: the start; a tensor, a manifold element, or a pytree of them. Real floating point, of one dtype.
        args: further arguments, any pytrees; tensors in them are differentiable.
        jac: `jac(x, *args)`, the Jacobian of the residual: for a tensor x0 of shape (*residual, *x); for a pytree x0
            a pytree of such (of shape (*residual, tangent) for a manifold element, with respect to the tangent of
            `retract`).
        has_aux: the residual returns `(r, aux)`; the result is then `(solution, aux at the solution)`.
        in_dims: `torch.func.vmap`'s, over `(x0, *args)`: one independent solve per entry. What is not mapped is shared.
        solver: `LevenbergMarquardt()` by default.
        loss: a robust loss, applied to each entry of the residual (SciPy's meaning).
        bounds: not supported yet.
        adjoint: how derivatives pass through the solve, `Implicit()` by default.

    Returns:
        A `Solution` with `value` in the shape of `x0`. Only `value` and `cost` carry derivatives.

    Raises:
        ProblemError (a ValueError): something is wrong with the shapes, dtypes or arguments; the message says what.

    >>> t = torch.linspace(0, 1, 20, dtype=torch.float64)
    >>> y = 2.0 * torch.exp(-1.5 * t) + 0.3
    >>> def residual(p, t, y):
    ...     return p[0] * torch.exp(p[1] * t) + p[2] - y
    >>> solution = mslsq.least_squares(residual, torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64), args=(t, y))
    >>> solution.value
    tensor([ 2.0000, -1.5000,  0.3000], dtype=torch.float64)
    """
    solution, aux, _ = solved(residual, x0, args, jac, has_aux, in_dims, solver, loss, bounds, adjoint)
    return (solution, aux) if has_aux else solution


@dataclass(frozen=True, eq=False)
class Linearized:
    """The residual at a solution, differentiated as the solve has differentiated it."""

    _system: System
    _storages: Values
    _inputs: dict[str, Tensor]
    _batch: int
    _batched: frozenset[str]
    _made: Made

    def residual_and_jacobian(self) -> tuple[Float[Tensor, "batch rows"], Float[Tensor, "batch rows columns"]]:
        """Before any loss; both carry the derivatives of the solution and of the inputs."""
        plan = self._made.plan
        assert plan is not None  # the solve has been run
        (term,) = self._system.terms
        block = BlockTerm(term, self._system, self._batch, self._batched, *plan.sizes[0])
        block = block.going(plan.ways.get(0, block.way))
        with TRANSFORM_LOCK:
            residual, jacobian = block.linearizations(self._storages, block.prepare(self._inputs))
        return residual[0].movedim(-1, 0), jacobian[0].movedim(-1, 0)


def solved(
    residual: Callable[..., Any],
    x0: Any,
    args: tuple[Any, ...],
    jac: Callable[..., Any] | None,
    has_aux: bool,
    in_dims: Any,
    solver: Solver | None,
    loss: RobustLoss | None,
    bounds: Any,
    adjoint: Adjoint | None,
) -> tuple[Any, Any, Linearized]:
    """`least_squares` with its arguments: the solution, the second output of the residual, and the residual there."""
    if bounds is not None:
        raise NotImplementedError(
            "least_squares does not support bounds yet. Substitute the variable instead: x = lower + (upper - "
            "lower) * torch.sigmoid(z)."
        )
    if not isinstance(args, (tuple, list)):
        raise ProblemError(
            f"args must be a tuple of arguments, not {type(args).__name__}: write args=(t,) for a single one."
        )
    if loss is not None and not isinstance(loss, RobustLoss):
        raise ProblemError(f"loss must be a robust loss such as mslsq.Huber(1.0), not {loss!r}.")
    args = tuple(args)
    statement = _Statement(residual, jac, x0, args, has_aux, loss)
    dims = mapped_dims(in_dims, (x0, *args), is_leaf=is_element)
    size = batch_size(dims, [*statement.leaves, *statement.arg_leaves])
    x_dims, arg_dims = dims[: len(statement.leaves)], dims[len(statement.leaves) :]
    single = [_without(leaf, dim) for leaf, dim in zip(statement.leaves, x_dims, strict=True)]
    spaces = tuple(leaf_space(leaf, name) for leaf, name in zip(single, statement.names, strict=True))
    inputs, batched = statement.inputs(arg_dims)
    cache = plans_of(residual)
    system = statement.system(spaces, changes_of(cache))
    values = tuple(
        take(
            space.unwrap(leaf) if dim is None else space.unwrap(_batch_first(leaf, dim)),
            None if dim is None else 0,
            size,
        )[:, None]
        for leaf, dim, space in zip(statement.leaves, x_dims, spaces, strict=True)
    )
    made = Made()
    solution = solve_system(
        system,
        values,
        (inputs,),
        batch=size or 1,
        batched=(batched,),
        solver=solver,
        adjoint=adjoint,
        cache=cache,
        made=made,
    )
    storages = solution.value
    value = [space.wrap(x[:, 0]) for space, x in zip(spaces, solution.value, strict=True)]
    solution = unbatched(solution, pytree.unflatten(value, statement.structure), size)
    linearized = Linearized(system, storages, inputs, size or 1, batched, made)
    aux = statement.aux(solution.value, arg_dims, size) if has_aux else None
    return solution, aux, linearized


def is_element(value: Any) -> bool:
    """Leaves of x0 and args: manifold elements are taken whole."""
    return isinstance(value, Manifold)


class _Statement:
    """A call of `least_squares` taken apart: leaves of x0, tensors of args, tensors inside the callables."""

    def __init__(self, residual: Any, jac: Any, x0: Any, args: tuple[Any, ...], has_aux: bool, loss: RobustLoss | None):
        if not callable(residual):
            raise ProblemError(f"residual must be callable, not {type(residual).__name__}.")
        self.has_aux, self.loss, self.args = has_aux, loss, args
        self.leaves, self.structure = pytree.flatten(x0, is_leaf=is_element)
        self.names = [f"x0[{number}]" for number in range(len(self.leaves))] if len(self.leaves) != 1 else ["x0"]
        _check_start(self.leaves, self.names)
        self.arg_leaves, self.arg_structure = pytree.flatten(args, is_leaf=is_element)
        self.residual, self.jac = collect(residual), None if jac is None else collect(jac)
        # Modules and other objects among the arguments hold tensors too; numbers and arrays are part of the key.
        self.others = collect_values(tuple(leaf for leaf in self.arg_leaves if not _is_tensor(leaf)))
        self.original: Any = residual
        self._check_layouts()

    def _check_layouts(self) -> None:
        """Before anything is taken from a tensor: sparse ones have no strides to batch by."""
        tensors = {name: leaf for name, leaf in zip(self.names, self.leaves, strict=True) if isinstance(leaf, Tensor)}
        for place, leaf in zip(self._arg_places(), self.arg_leaves, strict=True):
            if isinstance(leaf, Tensor):
                tensors[place] = leaf
        tensors |= {f"the residual's {name}": tensor for name, tensor in self.residual.tensors.items()}
        tensors |= {} if self.jac is None else {f"jac's {name}": tensor for name, tensor in self.jac.tensors.items()}
        tensors |= {f"args: {name}": tensor for name, tensor in self.others.tensors.items()}
        check_dense(tensors)

    def _arg_places(self) -> list[str]:
        """`args[0]` and so on; of an argument that is a pytree, `args[0], leaf 1`."""
        counts = [len(pytree.leaves(arg, is_leaf=is_element)) for arg in self.args]
        return [
            f"args[{number}]" if count == 1 else f"args[{number}], leaf {leaf},"
            for number, count in enumerate(counts)
            for leaf in range(count)
        ]

    def inputs(self, arg_dims: list[int | None]) -> tuple[dict[str, Tensor], frozenset[str]]:
        """All tensors the residual depends on, by name, those mapped with the batch axis first, and which are
        mapped."""
        inputs: dict[str, Tensor] = {}
        batched = set()
        for number, (leaf, dim) in enumerate(zip(self.arg_leaves, arg_dims, strict=True)):
            tensor = leaf.storage if isinstance(leaf, Manifold) else leaf
            if not isinstance(tensor, Tensor):
                continue
            name = f"args {number}"
            inputs[name] = tensor if dim is None else tensor.movedim(dim, 0)
            if dim is not None:
                batched.add(name)
        inputs.update({f"residual {name}": tensor for name, tensor in self.residual.tensors.items()})
        if self.jac is not None:
            inputs.update({f"jac {name}": tensor for name, tensor in self.jac.tensors.items()})
        inputs.update({f"args {name}": tensor for name, tensor in self.others.tensors.items()})
        inputs.update(self.loss_inputs())
        return inputs, frozenset(batched)

    def loss_inputs(self) -> dict[str, Tensor]:
        if self.loss is None:
            return {}
        tensors = {**dict(self.loss.named_parameters()), **dict(self.loss.named_buffers())}
        for name, tensor in tensors.items():
            if tensor.ndim:
                raise ShapeError(f"loss: {name} must be a single number here, not of shape {tuple(tensor.shape)}.")
        return {f"loss.{name}": tensor for name, tensor in tensors.items()}

    def system(self, spaces: tuple[LeafSpace, ...], changes: Changes) -> System:
        unknowns = tuple(Unknown(space.name, space, 1) for space in spaces)
        kinds = tuple(type(leaf) for leaf in self.arg_leaves)
        names = self.loss_inputs()
        keys, eager = self.keys(changes)
        term = Term(
            name=getattr(self.original, "__name__", type(self.original).__name__),
            slots=tuple(Slot(number, 0) for number in range(len(spaces))),
            num_blocks=1,
            residual=self._residual,
            jacobians=None if self.jac is None else self._jacobians(spaces),
            loss=self.loss,
            loss_inputs={name.removeprefix("loss."): name for name in names},
            elementwise_loss=True,
            key=(keys, kinds, repr(self.arg_structure), self.has_aux),
            eager=eager,
        )
        return System(unknowns, (term,), (spaces, repr(self.structure)))

    def keys(self, changes: Changes) -> tuple[tuple[Hashable, ...], str]:
        """(what the callables and the other arguments hold, why no graph may be kept)."""
        parts: dict[str, Collected | None] = {"residual": self.residual, "jac": self.jac, "args": self.others}
        found = {name: changes.keyed(name, part) for name, part in parts.items() if part is not None}
        reasons = [f"args: {reason}" if name == "args" else reason for name, (_, reason) in found.items() if reason]
        return tuple((name, key) for name, (key, _) in found.items()), "; ".join(reasons)

    def _call(self, collected: Any, prefix: str, values: tuple[Any, ...], inputs: Inputs) -> Any:
        function = collected.rebuild({name: inputs[f"{prefix} {name}"] for name in collected.tensors})
        others = iter(self.others.rebuild({name: inputs[f"args {name}"] for name in self.others.tensors}))
        leaves = []
        for number, leaf in enumerate(self.arg_leaves):
            tensor = inputs.get(f"args {number}")
            if tensor is None:
                leaves.append(next(others))
            else:
                leaves.append(type(leaf)._wrap(tensor) if isinstance(leaf, Manifold) else tensor)
        return function(pytree.unflatten(list(values), self.structure), *pytree.unflatten(leaves, self.arg_structure))

    def _residual(self, values: tuple[Any, ...], inputs: Inputs) -> Any:
        output = self._call(self.residual, "residual", values, inputs)
        if not self.has_aux:
            return output
        if not (isinstance(output, tuple) and len(output) == 2):
            raise ProblemError("has_aux=True: the residual must return a pair (residual, aux).")
        return output[0]

    def _jacobians(self, spaces: tuple[LeafSpace, ...]) -> Callable[..., tuple[Tensor, ...]]:
        def jacobians(values: tuple[Any, ...], inputs: Inputs) -> tuple[Tensor, ...]:
            parts = pytree.leaves(self._call(self.jac, "jac", values, inputs))
            if len(parts) != len(spaces) or not all(map(_ends_with_tangent, parts, spaces)):
                shapes = ", ".join(str(tuple(part.shape)) for part in parts)
                expected = ", ".join(f"(*residual, {', '.join(map(str, space.tangent_shape))})" for space in spaces)
                raise ShapeError(f"jac returned {shapes}; expected one Jacobian per leaf of x0, that is {expected}.")
            return tuple(part.reshape(-1, space.tangent_dim) for part, space in zip(parts, spaces, strict=True))

        return jacobians

    def aux(self, value: Any, arg_dims: list[int | None], size: int | None) -> Any:
        """The second output of the residual at the solution."""
        mapped = [number for number, dim in enumerate(arg_dims) if dim is not None]

        def of_one(value: Any, given: list[Any]) -> Any:
            leaves = list(self.arg_leaves)
            for number, leaf in zip(mapped, given, strict=True):
                leaves[number] = leaf
            return self.original(value, *pytree.unflatten(leaves, self.arg_structure))[1]

        if size is None:
            return of_one(value, [])
        dims = [arg_dims[number] for number in mapped]
        return torch.func.vmap(of_one, in_dims=(0, dims))(value, [self.arg_leaves[number] for number in mapped])


def plans_of(function: Callable[..., Any]) -> PlanCache:
    """The plans for a callable: kept with its code, or with itself where it has none, as long as that lives."""
    inner = getattr(function, "__func__", function)
    owner = getattr(inner, "__code__", inner)
    try:
        return _PLANS.setdefault(owner, PlanCache())
    except TypeError:  # neither hashable nor weakly referable: nothing to keep plans with
        return PlanCache()


def changes_of(cache: PlanCache) -> Changes:
    """The memory of the states in which the callable was called whose plans these are."""
    known = _CHANGES.get(cache)
    return _CHANGES.setdefault(cache, Changes()) if known is None else known


def _check_start(leaves: list[Any], names: list[str]) -> None:
    """Real floating-point tensors or manifold elements, of one dtype and on one device, not empty."""
    if not leaves:
        raise ProblemError("x0 is empty: there is nothing to solve for.")
    tensors = []
    for leaf, name in zip(leaves, names, strict=True):
        tensor = leaf.storage if isinstance(leaf, Manifold) else leaf
        if not isinstance(tensor, Tensor):
            raise ProblemError(
                f"{name} must be a tensor or a manifold element, not {type(leaf).__name__}: use torch.tensor(...)."
            )
        if tensor.is_complex():
            raise DtypeError(
                f"{name} is complex; solve for real variables: torch.view_as_real(x0), and build the complex one in "
                "the residual."
            )
        if not tensor.is_floating_point():
            raise DtypeError(f"{name} must be real floating point, not {tensor.dtype}: use x0.to(torch.float64).")
        if tensor.numel() == 0:
            raise ShapeError(f"{name} has no entries, shape {tuple(tensor.shape)}.")
        tensors.append(tensor)
    for tensor, name in zip(tensors[1:], names[1:], strict=True):
        if tensor.dtype != tensors[0].dtype:
            raise DtypeError(
                f"{names[0]} is {tensors[0].dtype}, {name} is {tensor.dtype}; the parts of x0 must have one dtype."
            )


def _batch_first(leaf: Any, dim: int) -> Any:
    if isinstance(leaf, Manifold):
        return type(leaf)._wrap(leaf.storage.movedim(dim, 0))
    return leaf.movedim(dim, 0)


def _without(leaf: Any, dim: int | None) -> Any:
    """A leaf as one problem sees it."""
    if dim is None:
        return leaf
    return type(leaf)._wrap(leaf.storage.select(dim, 0)) if isinstance(leaf, Manifold) else leaf.select(dim, 0)


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, (Tensor, Manifold))


def _ends_with_tangent(part: Tensor, space: LeafSpace) -> bool:
    """Does a Jacobian end with the axes of x? One that is transposed has the right number of entries, too."""
    shape = tuple(part.shape)
    return any(shape[len(shape) - len(end) :] == end for end in (space.tangent_shape, (space.tangent_dim,)))
