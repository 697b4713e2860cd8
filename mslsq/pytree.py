"""Pytrees: the one place that takes nested structures of tensors apart and puts them together.

Everything that `torch.func` maps over (manifold elements, solutions) is registered here.
"""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from torch import Tensor

from mslsq.private import children_of
from mslsq.private import pytree as _pytree

T = TypeVar("T")
Structure = _pytree.TreeSpec

_OWN: dict[type, tuple[Callable[..., Any], Callable[..., Any], Callable[..., list[str]]]] = {}
"""The kinds of nodes that are registered here."""

_LEAF = _pytree.tree_flatten(0)[1]
"""The structure of a tree that is a leaf: an argument that is a tensor, most of the time."""


def register(
    cls: type[T],
    flatten_fn: Callable[[T], tuple[list[Any], Any]],
    unflatten_fn: Callable[[Any, Any], T],
    leaf_names: Callable[[T], list[str]],
) -> None:
    """Make `cls` a pytree node.

    `flatten_fn(node)` returns (children, context), `unflatten_fn(children, context)` the node again. The latter must
    not validate: transforms put placeholders where tensors belong. `leaf_names(node)` names the attributes that hold
    the children (export needs names).
    """
    _OWN[cls] = (flatten_fn, unflatten_fn, leaf_names)

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
    if type(tree) is Tensor:
        return [tree], _LEAF
    return _pytree.tree_flatten(tree, is_leaf=is_leaf)


def unflatten(leaves: list[Any] | tuple[Any, ...], structure: Structure) -> Any:
    """The tree of this structure with these leaves."""
    if structure is _LEAF and len(leaves) == 1:
        return leaves[0]
    return _pytree.tree_unflatten(leaves, structure)


def tree_of(structure: Structure) -> Any:
    """A tree of this structure with numbers as leaves: what `pickle` and `copy` keep of one, which `flatten` gives
    back. PyTorch makes a leaf of what it keeps itself in a way that it warns of."""
    return unflatten(list(range(structure.num_leaves)), structure)


def key_of(structure: Structure) -> Hashable:
    """Equal where structures are; a structure itself need not be hashable."""
    return None if structure is _LEAF else repr(structure)


def is_of_library(tree: Any) -> bool:
    """Are all nodes of a tree plain containers, or kinds of this package?"""
    pending = [flatten(tree)[1]]
    while pending:
        structure = pending.pop()
        kind: Any = structure.type
        if kind not in (None, dict, list, tuple) and not kind.__module__.startswith("mslsq."):
            return False
        pending += children_of(structure)
    return True


def leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """The leaves of `tree` alone."""
    if type(tree) is Tensor:
        return [tree]
    return _pytree.tree_leaves(tree, is_leaf=is_leaf)


def map_leaves(
    function: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[[Any], bool] | None = None
) -> Any:
    """`function` of every leaf (and of the leaves at the same place of `rest`), in the shape of `tree`."""
    return _pytree.tree_map(function, tree, *rest, is_leaf=is_leaf)


def names(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[str]:
    """A readable path for every leaf, in the order of `flatten`: `['a'][0].storage`."""
    return [_pytree.keystr(path) for path, _ in _pytree.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]]


def dotted_names(tree: Any, root: str) -> list[str]:
    """The path of every leaf as reports print it: `height`, `peak.height`, `rates[0]`; `root` is the name of the tree
    where a path begins with none: `p`, `p[0]`."""
    found = []
    for path, _ in _pytree.tree_flatten_with_path(tree)[0]:
        steps = [f"[{key.idx}]" if isinstance(key, _pytree.SequenceKey) else f".{_key_name(key)}" for key in path]
        joined = "".join(steps)
        found.append(joined[1:] if joined.startswith(".") else root + joined)
    return found


def _key_name(key: Any) -> Any:
    return key.name if isinstance(key, _pytree.GetAttrKey) else getattr(key, "key", key)


class Form:
    """Trees of one structure, taken apart and put together by an expression that is written out once.

    A walk over a structure of 20 tensors takes 60 µs, as long as 30 operations on small tensors; the expression takes
    two. Trees with nodes of other kinds than tuples, lists, dicts and what is registered here are walked over.
    """

    def __init__(self, example: Any):
        self._structure = flatten(example)[1]
        bound: dict[str, Any] = {}
        reads: list[str] = []
        tests: list[str] = []
        written = _written_out(example, "tree", reads, tests, bound)
        self.leaves: Callable[[Any], list[Any]] = leaves
        """The leaves of a tree of this structure."""
        self.tree: Callable[[list[Any]], Any] = self._walked
        """The tree with these leaves."""
        self.fits: Callable[[Any], bool] = lambda tree: False
        """Is a tree known at a glance to be of this structure, with leaves of the types of the example's? (False where
        only a walk can tell.)"""
        if written is not None:
            self.fits = eval(f"lambda tree: {' and '.join(tests)}", bound)
            self.leaves = eval(f"lambda tree: [{', '.join(reads)}]", bound)
            self.tree = eval(f"lambda leaf: {written}", bound)

    def _walked(self, own: list[Any]) -> Any:
        return unflatten(own, self._structure)


def _written_out(example: Any, path: str, reads: list[str], tests: list[str], bound: dict[str, Any]) -> str | None:
    """The expression that makes a tree like the example of a list `leaf`; None where a node is not written out.

    `reads` gets the expressions of its leaves in a tree at `path`, `tests` those that tell whether it is like the
    example, `bound` the names that they use.
    """

    def name_of(value: Any) -> str:
        name = f"bound_{len(bound)}"
        bound[name] = value
        return name

    kind = type(example)
    tests.append(f"type({path}) is {name_of(kind)}")
    if kind is dict:
        tests.append(f"list({path}) == {name_of(list(example))}")
        keys = [repr(key) if type(key) in (str, int) else name_of(key) for key in example]
        parts = [
            _written_out(part, f"{path}[{key}]", reads, tests, bound)
            for key, part in zip(keys, example.values(), strict=True)
        ]
        if any(part is None for part in parts):
            return None
        return f"{{{', '.join(f'{key}: {part}' for key, part in zip(keys, parts, strict=True))}}}"
    if kind in (tuple, list) or (isinstance(example, tuple) and hasattr(kind, "_fields")):
        tests.append(f"len({path}) == {len(example)}")
        parts = [_written_out(part, f"{path}[{place}]", reads, tests, bound) for place, part in enumerate(example)]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        inside = "".join(f"{part}, " for part in known)
        if kind is list:
            return f"[{inside}]"
        return f"({inside})" if kind is tuple else f"{name_of(kind)}({inside})"
    if kind in _OWN:
        flatten_fn, unflatten_fn, leaf_names = _OWN[kind]
        children, context = flatten_fn(example)
        parts = [
            _written_out(child, f"{path}.{name}", reads, tests, bound)
            for child, name in zip(children, leaf_names(example), strict=True)
        ]
        known = [part for part in parts if part is not None]
        if context is not None or len(known) < len(parts):
            return None
        return f"{name_of(unflatten_fn)}([{', '.join(known)}], None)"
    own, _ = flatten(example)
    if len(own) != 1 or own[0] is not example:
        return None
    reads.append(path)
    return f"leaf[{len(reads) - 1}]"


def broadcast_prefix(prefix: Any, tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any] | None:
    """The leaves of `prefix` repeated to match `tree` (as `in_dims` does), or None where it does not fit."""
    structure = _pytree.tree_flatten(tree, is_leaf=is_leaf)[1]
    return _pytree._broadcast_to_and_flatten(prefix, structure)
