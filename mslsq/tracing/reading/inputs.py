"""Inputs: every tensor a residual touches, as explicit inputs.

A solve differentiates, batches and caches with respect to its inputs only; a tensor hidden in a closure, a module or an
attribute would be a constant there (`vmap` over it gives one solve for two parameter sets, silently). So
the callable is walked once at the front door: tensors come out by name, Python values become part of the cache key, and
`rebuild` makes a new callable around other tensors, leaving the user's objects as they are.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from mslsq.tracing.reading.exchange import UncollectedTensorError, is_kept, keeping, with_substitutes
from mslsq.tracing.reading.reachable import Walk
from mslsq.tracing.reading.substitution import Substitution

__all__ = ["Collected", "UncollectedTensorError", "collect", "collect_module", "collect_values"]


class Collected:
    """The tensors and Python values of a callable or module.

    Attributes:
        tensors: by readable name ("closure cell 'target'", "net.0.weight"), each tensor once, in a fixed order.
        held: those of `tensors` that a class or an imported module holds; `applied` alone exchanges them.
        scalars: hashable; every Python value and training flag reachable, and the identity of whatever else is
            reachable.
        codes: the code of every function reachable.
        key: hashable; `scalars` and `codes`: equal keys may share a trace, given equal tensor shapes, strides and
            dtypes.
        too_large: the place from which on there were too many objects to look into; empty where all were.
    """

    __slots__ = (
        "_bearing",
        "_parents",
        "_slots",
        "codes",
        "held",
        "key",
        "methods",
        "root",
        "scalars",
        "tensors",
        "too_large",
    )

    def __init__(self, root: Any, methods: tuple[str, ...]) -> None:
        walk = Walk(root, methods)
        self.tensors: dict[str, Tensor] = walk.tensors
        self.held: dict[str, Tensor] = walk.held
        self.scalars: tuple[Any, ...] = tuple(walk.scalars)
        self.codes = tuple(walk.codes)
        self.key: tuple[Any, ...] = (self.codes, self.scalars)
        self.root, self.methods = root, methods
        self.too_large = walk.too_large
        self._slots = walk.names
        self._parents = walk.parents
        self._bearing: set[int] | None = None

    def applied(self, tensors: Mapping[str, Tensor], use: Callable[[Any], Any]) -> Any:
        """`use(root)` of the callable or module around `tensors`, one for every name.

        What a class or an imported module holds stays where it is; functions of PyTorch that `use` calls are given
        its substitute.

        Raises:
            UncollectedTensorError: such a tensor is used where that cannot be done (an `autograd.Function`,
            TorchScript).
        """
        root = self.rebuild(tensors)
        return with_substitutes(lambda: use(root), self.held, tensors) if self.held else use(root)

    def rebuild(self, tensors: Mapping[str, Tensor]) -> Any:
        """The callable or module around `tensors` (by name; others stay its own); the original is not written to.

        Objects on the way to a tensor are copied shallowly, everything else is shared. Where there is no tensor at all
        the original itself comes back. Unknown names raise KeyError.
        """
        unknown = [name for name in tensors if name not in self.tensors]
        if unknown:
            raise KeyError(f"no tensor named {unknown[0]!r} was collected; there are: {', '.join(self.tensors)}")
        if not self.tensors:
            return self.root
        if self._bearing is None:
            self._bearing = self._ancestors()
        replaced = {slot: tensors[name] for slot, name in self._slots.items() if name in tensors}
        return Substitution(replaced, self._bearing)(self.root)

    def _ancestors(self) -> set[int]:
        """Ids of all objects from which a tensor can be reached."""
        bearing: set[int] = set()
        pending = list(self._slots)
        while pending:
            for parent in self._parents.get(pending.pop(), ()):
                if parent not in bearing:
                    bearing.add(parent)
                    pending.append(parent)
        return bearing


def collect(function: Callable[..., Any]) -> Collected:
    """Every tensor and Python value that `function` reaches by itself, beside its arguments.

    Walked are closure cells, default arguments, `functools.partial`, bound methods, attributes of objects,
    `nn.Module`s, lists, tuples, dicts, dataclasses and pytree nodes, nested in any way and with cycles. Of globals,
    classes and the user's Python modules, what the code names counts by value. Objects of libraries, files, generators
    and other objects that do not show their state count by identity.

    Raises:
        UncollectedTensorError: a global variable (of the function or of one it calls) is a tensor, or holds one, that
            requires grad or is being transformed by `torch.func`; so is one that a class, an imported module or a
            global network holds and that is being transformed. One that only requires grad is collected from there.
            Other such tensors count by identity, version and, up to 4096 entries on the CPU, content.

    Example:
        >>> target = torch.ones(3)
        >>> collected = collect(lambda x: x - target)
        >>> list(collected.tensors)
        ["closure cell 'target'"]
        >>> collected.rebuild({"closure cell 'target'": torch.zeros(3)})(torch.ones(3))
        tensor([1., 1., 1.])
    """
    return collected(function, ("__call__", "forward"))


def collect_values(values: tuple[Any, ...]) -> Collected:
    """`collect` for objects that are handed to a callable (modules, numbers, arrays): `rebuild(tensors)` returns
    the tuple again."""
    return collected(values, ("__call__", "forward"))


def collect_module(
    module: nn.Module,
    methods: tuple[str, ...] = (
        *("forward", "residual", "jacobians", "residual_and_jacobians", "curvature", "broadcasts"),
    ),
) -> Collected:
    """`collect` for a module of which `methods` are called: `rebuild(tensors)` returns a module around other tensors.

    Parameters and buffers are named as in `state_dict`; tensors in plain attributes are collected as well.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"collect_module takes an nn.Module, not a {type(module).__name__}; use collect for a callable")
    return collected(module, methods)


def collected(root: Any, methods: tuple[str, ...]) -> Collected:
    found = Collected(root, methods)
    for name, tensor in found.tensors.items():
        if is_kept(tensor):
            raise UncollectedTensorError(keeping(name), name, tensor)
    return found
