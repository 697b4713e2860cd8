"""Pytrees: the one place that takes nested structures of tensors apart and puts them together.

Everything that `torch.func` maps over (manifold elements, solutions) is registered here.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from mslsq.private import pytree as _pytree

T = TypeVar("T")
Structure = _pytree.TreeSpec


def register(
    cls: type[T],
    flatten_fn: Callable[[T], tuple[list[Any], Any]],
    unflatten_fn: Callable[[Any, Any], T],
    leaf_names: Callable[[T], list[str]],
) -> None:
    """Make `cls` a pytree node.

    `flatten_fn(node)` returns (children, context), `unflatten_fn(children, context)` the node again. The latter must
    not validate: transforms put placeholders where tensors belong. `leaf_names(node)` names the children (export needs
    names).
    """

    def with_keys(node: T) -> tuple[list[tuple[Any, Any]], Any]:
        children, context = flatten_fn(node)
        keys = [_pytree.GetAttrKey(name) for name in leaf_names(node)]
        return list(zip(keys, children, strict=True)), context

    _pytree.register_pytree_node(
        cls,
        flatten_fn,
        unflatten_fn,
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        flatten_with_keys_fn=with_keys,
    )


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Structure]:
    """The leaves of `tree` in a fixed order, and the structure that puts them together again."""
    return _pytree.tree_flatten(tree, is_leaf=is_leaf)


def unflatten(leaves: list[Any] | tuple[Any, ...], structure: Structure) -> Any:
    """The tree of this structure with these leaves."""
    return _pytree.tree_unflatten(leaves, structure)


def leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """The leaves of `tree` alone."""
    return _pytree.tree_leaves(tree, is_leaf=is_leaf)


def map_leaves(
    function: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[[Any], bool] | None = None
) -> Any:
    """`function` of every leaf (and of the leaves at the same place of `rest`), in the shape of `tree`."""
    return _pytree.tree_map(function, tree, *rest, is_leaf=is_leaf)


def names(tree: Any) -> list[str]:
    """A readable path for every leaf, in the order of `flatten`: `['a'][0].storage`."""
    return [_pytree.keystr(path) for path, _ in _pytree.tree_flatten_with_path(tree)[0]]


def broadcast_prefix(prefix: Any, tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any] | None:
    """The leaves of `prefix` repeated to match `tree` (as `in_dims` does), or None where it does not fit."""
    structure = _pytree.tree_flatten(tree, is_leaf=is_leaf)[1]
    return _pytree._broadcast_to_and_flatten(prefix, structure)
