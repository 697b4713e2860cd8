"""What `data` replaces: the tensors of a cost function for one call, each by one of its shape."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mslsq import pytree
from mslsq.front.batching import is_whole, tensor_of
from mslsq.front.leaves import Index, Leaf, Weight
from mslsq.manifolds import Manifold
from mslsq.problem import CostFunction, Shared
from mslsq.problem.errors import ProblemError, ShapeError, unknown_name
from mslsq.problem.layout import check_dense
from mslsq.validation import made_a_tensor


def replaced_leaves(
    cost: CostFunction, own: Mapping[str, Leaf], data: Mapping[str, Any], axes: Mapping[str, Any]
) -> tuple[Leaf, ...]:
    """The leaves of a cost, those that `data[cost]` names replaced; `axes` are batch axes in the form of `data`.

    Raises:
        ProblemError: a name that the cost does not know, another type or another shape.
    """
    given = {name: _unshared(value) for name, value in data.items()}
    check_dense({name: x for name, x in given.items() if isinstance(x, Tensor)}, f"data[{cost.name!r}]: ")
    leaves = dict(own)
    for name, value in data.items():
        found = _named(cost, own, name, value)
        for (leaf, new, kind), axis in zip(found, pytree.leaves(axes[name]), strict=True):
            leaves[leaf.name] = leaf.replaced(_tensor(cost, name, _unshared(new), kind), axis)
            _check_shape(cost, leaf, leaves[leaf.name])
    return tuple(leaves.values())


def _named(cost: CostFunction, own: Mapping[str, Leaf], name: str, value: Any) -> list[tuple[Leaf, Any, type]]:
    """(a leaf of the cost, what is to replace it, of which type the cost's own is) for one entry of `data[cost]`."""
    argument = cost.arguments.get(name)
    if argument is not None and argument.leaves:
        given = pytree.leaves(value, is_leaf=is_whole)
        if len(given) != len(argument.leaves):
            raise ShapeError(
                f"data[{cost.name!r}][{name!r}] has {len(given)} tensors, the cost's own has {len(argument.leaves)}."
            )
        elements = cost.data_arguments({leaf.name: leaf.tensor for leaf in own.values()})[name]
        kinds = map(type, pytree.leaves(elements, is_leaf=is_whole))
        return [(own[leaf.name], part, kind) for leaf, part, kind in zip(argument.leaves, given, kinds, strict=True)]
    if name == "weight" and cost.weight is not None:
        return [(leaf, value, Tensor) for leaf in own.values() if isinstance(leaf, Weight)]
    if name in own and not isinstance(own[name], Index):
        return [(own[name], value, Tensor)]
    hidden = (Index, Weight)
    known = [
        *cost.arguments,
        *(n for n, leaf in own.items() if n not in cost.arguments and not isinstance(leaf, hidden)),
    ]
    raise unknown_name(
        f"tensor of cost {cost.name!r}", name, [*known, *(["weight"] if cost.weight is not None else [])]
    )


def _unshared(value: Any) -> Any:
    return value.value if isinstance(value, Shared) else value


def _tensor(cost: CostFunction, name: str, given: Any, kind: type) -> Tensor:
    tensor = tensor_of(given)
    if not isinstance(tensor, Tensor):
        raise ProblemError(
            f"data[{cost.name!r}][{name!r}] must be a tensor or a manifold element, not {type(given).__name__}."
            f"{made_a_tensor(given)}"
        )
    if isinstance(given, Manifold) and not isinstance(given, kind):
        raise ProblemError(
            f"data[{cost.name!r}][{name!r}] is of {type(given).__name__}, the cost's own of {kind.__name__}."
        )
    return tensor


def _check_shape(cost: CostFunction, leaf: Leaf, new: Leaf) -> None:
    """A replacement has the shape of what it replaces; weights and loss parameters may become shared or per block."""
    allowed = leaf.shapes(cost.num_blocks)
    if new.shape not in allowed:
        expected = " or ".join(map(str, sorted(allowed, key=len)))
        raise ShapeError(
            f"data for {cost.name!r}: {leaf.name!r} has shape {new.shape}; expected {expected}. A batch is declared by "
            "in_dims."
        )
