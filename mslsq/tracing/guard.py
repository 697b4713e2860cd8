"""What a residual must not do while it is traced, and the modes that notice it.

A trace records operations on one example. Python that looks at a tensor's *value* (a branch, `.item()`, NumPy) would be
recorded as whatever the example happened to give, silently wrong for every other block. The two modes here know which
tensors depend on the inputs, let values of all others through, and refuse the rest.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mslsq import pytree
from mslsq.private import DispatchMode, WeakTensorKeyDictionary, is_wrapped, operator_name, without_dispatch_modes

aten = torch.ops.aten


class DataDependentError(RuntimeError):
    """The value of a tensor is asked for where only its graph is known; `construct` is a key of `REMEDIES`."""

    def __init__(self, construct: str) -> None:
        super().__init__(construct)
        self.construct = construct


REMEDIES = {
    "value": (
        "Python asks for the value of a tensor that depends on the inputs",
        "keep it a tensor: torch.where(condition, a, b) for a choice, torch.stack / torch.cat to put numbers together",
    ),
    "branch": (
        "a Python branch (if, while, assert, and, or, not, max, min) on a tensor that depends on the inputs",
        "torch.where(condition, a, b); with a value made safe inside both branches where one could be infinite or NaN",
    ),
    "item": (
        "`.item()`, float(), int() or bool() of a tensor that depends on the inputs",
        "leave it a tensor of shape (); arithmetic with it is differentiable, and `x[i]` takes an integer tensor i",
    ),
    "math": (
        "a function of Python's math module, which takes numbers",
        "the function of that name in torch, which takes tensors",
    ),
    "format": (
        "a number that depends on the inputs, written into a string",
        "print(x), which takes the tensor as it is; the solver's callback and verbose=True show how a solve goes",
    ),
    "full": (
        "torch.full filled with what depends on the inputs",
        "value.expand(shape), or value * torch.ones(shape)",
    ),
    "tensor": (
        "torch.tensor([...]) made of tensors, which reads their values and cuts the derivative",
        "torch.stack([a, b]) for scalars, torch.cat([u, v]) for vectors",
    ),
    "numpy": (
        "a conversion to NumPy or to Python lists",
        "the same operation in torch: NumPy sees neither derivatives nor the batch",
    ),
    "mask get": (
        "indexing with a boolean mask that depends on the inputs: its result has no fixed shape",
        "torch.where(mask, x, 0.0), which keeps the shape; for a mask known beforehand, indices computed outside",
    ),
    "mask set": (
        "assignment of several values through a boolean mask that depends on the inputs",
        "x = torch.where(mask, new_values, x), with new_values of the shape of x",
    ),
    "shape": (
        "an operation whose result's shape depends on values (nonzero, one-argument where, unique, masked_select, ...)",
        "torch.where(condition, a, b), or compute the indices outside and pass them in",
    ),
    "random": (
        "random numbers: a residual must be a function of its inputs",
        "draw them outside and pass them in; put modules with dropout into eval()",
    ),
}

# Their result has the shape of an input, not its values.
SHAPE_ONLY = ("empty_like", "zeros_like", "ones_like", "full_like", "new_empty", "new_zeros", "new_ones", "new_full")
# Marked as random in PyTorch although they are not, at dropout 0 or outside of training.
NOT_RANDOM = ("attention", "rrelu_with_noise")


def is_integer(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.int64, torch.int32, torch.int16, torch.int8)


def is_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.bool, torch.uint8)


class DependenceMode(DispatchMode):
    """Follows which tensors depend on `inputs` and raises `DataDependentError` where a value of theirs is asked for.

    Values of all other tensors (`torch.arange(3)`, captured constants) are handed out, so that loops over them work.
    What runs under the user's `torch.no_grad()` is detached, since the grad mode itself leaves no mark in a graph.
    """

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self.dependent = WeakTensorKeyDictionary()
        self.grad_enabled = torch.is_grad_enabled()
        for leaf in inputs:
            self.dependent[leaf] = True

    def depends(self, arguments: Iterable[Any]) -> bool:
        return any(tensor in self.dependent for tensor in tensors_among(arguments))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = operator_name(func)
        dependent = self.depends((*args, *kwargs.values()))
        if func is aten._local_scalar_dense.default:
            if dependent:
                raise DataDependentError("value")
            with without_dispatch_modes():
                return func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags and not any(word in name for word in NOT_RANDOM):
            raise DataDependentError("random")
        if name in ("index", "index_put"):
            args, done = self.without_masks(name, args, kwargs)
            if done is not None:
                self.dependent[done] = True
                return done
        elif torch.Tag.dynamic_output_shape in func.tags:
            if dependent:
                raise DataDependentError("shape")
            with without_dispatch_modes():
                return func(*args, **kwargs)
        out = func(*args, **kwargs)
        if self.grad_enabled and not torch.is_grad_enabled():
            out = pytree.map_leaves(lambda leaf: aten.detach.default(leaf) if isinstance(leaf, Tensor) else leaf, out)
        if dependent and name not in SHAPE_ONLY:
            for tensor in tensors_among((out,)):
                self.dependent[tensor] = True
        return out

    def without_masks(self, name: str, args: Any, kwargs: Any) -> tuple[Any, Tensor | None]:
        """Constant masks become integer indices; one value through a mask becomes a `where`, which is returned."""
        x, indices, *rest = args
        if not any(is_mask(index) for index in indices):
            return args, None
        if not self.depends(indices):
            with without_dispatch_modes():
                indices = [
                    part for index in indices for part in (index.nonzero().unbind(-1) if is_mask(index) else (index,))
                ]
            return (x, indices, *rest), None
        accumulate = rest[1] if len(rest) > 1 else kwargs.get("accumulate", False)
        if name == "index_put" and len(indices) == 1 and rest[0].numel() == 1 and not accumulate:
            mask = aten.reshape.default(indices[0], [*indices[0].shape] + [1] * (x.ndim - indices[0].ndim))
            value = aten.reshape.default(aten.to.dtype(rest[0], x.dtype), [])
            return args, aten.where.self(aten.to.dtype(mask, torch.bool), value, x)
        raise DataDependentError("mask get" if name == "index" else "mask set")


def tensors_among(arguments: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among what an operator is given or returns; `pytree.leaves` of tensors, lists and numbers made up a
    fifth of a recording."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            yield argument
        elif type(argument) in (list, tuple):
            yield from tensors_among(argument)
        elif type(argument) not in PLAIN:
            yield from (leaf for leaf in pytree.leaves(argument) if isinstance(leaf, Tensor))


PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


def select(x: Tensor, index: Any) -> Tensor:
    """`x[index]` where 0-d integer tensors in `index` stay tensors, instead of being read with `.item()`."""
    entries = list(index) if isinstance(index, tuple) else [index]
    taken = sum(entry.ndim if is_mask(entry) else 1 for entry in entries if entry is not None and entry is not ...)
    axis = 0
    for place, entry in enumerate(entries):
        if entry is ...:
            axis += x.ndim - taken
        elif is_integer(entry) and entry.ndim == 0:
            # An index of shape (1,) keeps the axis, whatever other indices do to the order of axes afterwards.
            x = aten.index.Tensor(x, [None] * axis + [entry.reshape(1)])
            entries[place] = 0
            axis += 1
        elif entry is not None:
            axis += entry.ndim if is_mask(entry) else 1
    return x[tuple(entries)]


def assign(x: Tensor, index: Any, value: Any) -> None:
    """`x[index] = value` where 0-d integer tensors in `index` stay tensors, by the flat positions selected."""
    positions = select(torch.arange(x.numel(), device=x.device).reshape(x.shape), index)
    value = torch.as_tensor(value, dtype=x.dtype, device=x.device)
    value = value.expand(positions.shape) if value.ndim <= positions.ndim else value.reshape(positions.shape)
    x.copy_(x.reshape(-1).index_put((positions.reshape(-1),), value.reshape(-1)).reshape(x.shape))


def has_scalar_index(index: Any) -> bool:
    entries = index if isinstance(index, tuple) else (index,)
    return any(is_integer(entry) and entry.ndim == 0 for entry in entries)


class ValueMode(TorchFunctionMode):
    """Catches what never reaches the dispatcher: `.numpy()` would read unallocated memory, `.data` would not detach."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.__getitem__ and has_scalar_index(args[1]):
            return select(args[0], args[1])
        if func is Tensor.__setitem__ and has_scalar_index(args[1]):
            return assign(*args)
        if func == Tensor.data.__get__:  # pyright: ignore[reportAttributeAccessIssue]
            return args[0].detach()
        if func is Tensor.__format__ and args[0].ndim == 0 and is_wrapped(args[0]):
            raise DataDependentError("format")
        if func in LEAVES_TORCH and is_wrapped(args[0]):
            return self.leave_torch(func, args[0])
        return func(*args, **kwargs)

    def leave_torch(self, func: Any, x: Tensor) -> Any:
        """Lists of a tensor made inside the residual, where its values do not depend on the inputs; nothing else."""
        if func is not Tensor.tolist:
            raise DataDependentError("numpy")
        try:
            return [self.leave_torch(func, row) for row in x.unbind()] if x.ndim else x.item()
        except DataDependentError:
            raise DataDependentError("numpy") from None


LEAVES_TORCH = {
    Tensor.tolist,
    Tensor.numpy,
    Tensor.__array__,
    Tensor.data_ptr,
    Tensor.untyped_storage,
    Tensor.__dlpack__,
}
