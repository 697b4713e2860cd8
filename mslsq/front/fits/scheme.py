"""Which parameters of a fit are free: others are held at a value, or tied to the rest by a function."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mslsq import pytree
from mslsq.front.batching import sent, shape_of_one
from mslsq.levels import python_numbers
from mslsq.problem.errors import DtypeError, ProblemError, ShapeError, unknown_name
from mslsq.validation import made_a_tensor

Tie = Callable[[Any], Tensor]


@dataclass(frozen=True, eq=False)
class Leaf:
    """How the entries of one leaf of the parameters come about."""

    shape: tuple[int, ...]
    free: list[int]
    """The places of those that are free."""
    held: list[int]

    @property
    def order(self) -> list[int]:
        """Where each entry is among (those that are free, those that are held)."""
        places = {place: number for number, place in enumerate([*self.free, *self.held])}
        return [places[place] for place in range(len(places))]


@dataclass(frozen=True, eq=False)
class Scheme:
    """From free and held entries to the parameters that the model takes."""

    leaves: tuple[Leaf, ...]
    build: Callable[[list[Any]], Any]
    """The parameters without those that are tied, from their leaves. (A structure would be another one in every call
    to the key of the residual's plan.)"""
    keys: tuple[Any, ...]
    """Of the parameters, where they are a dict and some are tied: their order."""
    ties: Mapping[Any, Tie]

    def __getstate__(self) -> Any:
        return {**self.__dict__, "build": self.build(list(range(len(self.leaves))))}

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state, build=pytree.Form(state["build"]).tree)

    def complete(self, free: Any, held: tuple[Tensor, ...]) -> Any:
        """The parameters of one fit."""
        of_free, of_held = iter(pytree.leaves(free)), iter(held)
        leaves = []
        for leaf in self.leaves:
            if not leaf.held:
                leaves.append(next(of_free))
            elif not leaf.free:
                leaves.append(next(of_held).reshape(leaf.shape))
            else:
                both = torch.cat([next(of_free), next(of_held)])
                leaves.append(both[leaf.order].reshape(leaf.shape))
        tree = self.build(leaves)
        if not self.ties:
            return tree
        for key, tie in self.ties.items():
            value = tie(dict(tree))
            if not isinstance(value, Tensor):
                raise ProblemError(f"tied[{key!r}] must return a tensor, not {type(value).__name__}.")
            tree = {**tree, key: value}
        return {key: tree[key] for key in self.keys}

    def notes(self, tree: Any) -> list[str]:
        """Per entry of the parameters "fixed", "tied" or nothing; `tree` are those of one fit."""
        fixed = [["fixed" if place in leaf.held else "" for place in range(len(leaf.order))] for leaf in self.leaves]
        if not self.ties:
            return [note for notes in fixed for note in notes]
        by_key = {**self.build(fixed)}
        notes = []
        for key in self.keys:
            if key in self.ties:
                notes += ["tied"] * tree[key].numel()
            else:
                notes += pytree.leaves(by_key[key])
        return notes


class Divided(NamedTuple):
    """A start divided into what is free and what is held."""

    scheme: Scheme | None
    """None where all is free, and the start is what it was."""
    free: Any
    free_dims: Any
    held: tuple[Tensor, ...]
    held_dims: tuple[int | None, ...]


def without_ties(p0: Any, tied: Mapping[Any, Tie] | None, fixed: Any) -> Any:
    """The start of what is not tied: tied parameters need none. Fixed ones that it lacks are added.

    Raises:
        ProblemError: parameters are tied, and have no names; or one is tied and fixed.
    """
    if tied is not None and not isinstance(tied, Mapping):
        raise ProblemError(f"tied must be a dict of functions by name, not {type(tied).__name__}.")
    if not isinstance(p0, Mapping):
        if tied:
            raise ProblemError("tied: parameters are tied by name, so p0 must be a dict.")
        return p0
    for key, tie in (tied or {}).items():
        if not callable(tie):
            raise ProblemError(f"tied[{key!r}] must be a function of the other parameters, not {type(tie).__name__}.")
        if isinstance(fixed, Mapping) and key in fixed:
            raise ProblemError(f"Parameter {key!r} is both fixed and tied.")
    new = {key: value for key, value in fixed.items() if key not in p0} if isinstance(fixed, Mapping) else {}
    for key, value in new.items():
        if isinstance(value, bool) or not isinstance(value, (int, float, Tensor)):
            raise unknown_name("parameter in fixed", key, map(str, p0))
    return {key: value for key, value in {**p0, **new}.items() if key not in (tied or {})} if new or tied else p0


def divided(p0: Any, dims: Any, fixed: Any, tied: Mapping[Any, Tie] | None, keys: tuple[Any, ...]) -> Divided:
    """The start, whose numbers are tensors, divided.

    Args:
        p0: without what is tied.
        dims: the tree of its batch axes.
        fixed: of a dict a dict: a number or tensor is the value held, `True` holds the start's, a tensor of bool the
            start's where it is True. Of anything else a tensor of bool or a tree of them.
        tied: functions by name.
        keys: the order of the names.

    Raises:
        ProblemError: a name, shape or kind does not fit, or nothing is left free.
    """
    if fixed is None and not tied:
        return Divided(None, p0, dims, (), ())
    leaves = pytree.leaves(p0)
    leaf_dims = pytree.leaves(dims) if dims is not None else [None] * len(leaves)
    marks = _marks(p0, fixed, "fixed")
    parts, free, free_dims, held, held_dims = [], [], [], [], []
    for leaf, dim, mark in zip(leaves, leaf_dims, marks, strict=True):
        shape = shape_of_one(leaf.shape, dim)
        part = _part(shape, mark)
        flat = leaf.reshape(-1) if dim is None else leaf.movedim(dim, 0).reshape(leaf.shape[dim], -1)
        parts.append(part)
        if not part.held:
            free, free_dims = [*free, leaf], [*free_dims, dim]
        elif part.free:
            free, free_dims = [*free, flat[..., part.free]], [*free_dims, None if dim is None else 0]
        if part.held and mark.value is None:
            held, held_dims = [*held, flat[..., part.held]], [*held_dims, None if dim is None else 0]
        elif part.held:
            value = sent(torch.as_tensor(mark.value, dtype=leaf.dtype, device="cpu"), leaf.device)
            held, held_dims = [*held, _broadcast(value, shape, mark.where).reshape(-1)], [*held_dims, None]
    if not free:
        raise ProblemError("All parameters are fixed or tied: there is nothing to fit.")
    scheme = Scheme(tuple(parts), pytree.Form(p0).tree, keys, dict(tied or {}))
    return Divided(scheme, free, free_dims, tuple(held), tuple(held_dims))


class _Mark(NamedTuple):
    """What `fixed` says of one leaf."""

    where: str
    is_held: Tensor | bool
    value: Any
    """None for that of the start."""


def _marks(p0: Any, fixed: Any, where: str) -> list[_Mark]:
    """Per leaf of the start."""
    if isinstance(fixed, Mapping):
        if not isinstance(p0, Mapping):
            raise ProblemError(f"{where} is a dict, but the start there is {type(p0).__name__}.")
        unknown = [key for key in fixed if key not in p0]
        if unknown:
            raise unknown_name(f"parameter in {where}", unknown[0], map(str, p0))
        return [mark for key, part in p0.items() for mark in _marks(part, fixed.get(key, False), f"{where}[{key!r}]")]
    given = pytree.broadcast_prefix(False if fixed is None else fixed, p0)
    if given is None:
        hint = made_a_tensor(fixed) if isinstance(p0, Tensor) else ""
        raise ProblemError(f"{where} does not fit the start: {type(fixed).__name__} for {type(p0).__name__}.{hint}")
    return [_mark(entry, where) for entry in given]


def _mark(entry: Any, where: str) -> _Mark:
    if isinstance(entry, bool) or (isinstance(entry, Tensor) and entry.dtype == torch.bool):
        return _Mark(where, entry, None)
    if isinstance(entry, (int, float)) or (isinstance(entry, Tensor) and not entry.is_complex()):
        return _Mark(where, True, entry)
    raise DtypeError(f"{where} must be a real number, a tensor, True, or a tensor of bool, not {entry!r}.")


def _part(shape: tuple[int, ...], mark: _Mark) -> Leaf:
    mask = python_numbers(_broadcast(torch.as_tensor(mark.is_held, device="cpu"), shape, mark.where).reshape(-1))
    return Leaf(shape, [i for i, held in enumerate(mask) if not held], [i for i, held in enumerate(mask) if held])


def _broadcast(tensor: Tensor, shape: tuple[int, ...], where: str) -> Tensor:
    try:
        return tensor.expand(shape)
    except RuntimeError as error:
        raise ShapeError(f"{where} has shape {tuple(tensor.shape)}; the parameter of one fit has {shape}.") from error
