"""What a Warp kernel takes: arrays with one entry per lane, arrays that all lanes share, numbers, and its outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mslsq.interop.warp.library import WarpError, library
from mslsq.validation import suggestion


@dataclass(frozen=True)
class ArrayArgument:
    """An argument `wp.array(dtype=..., ndim=...)`."""

    name: str
    dtype: Any
    """Warp's: a number, vector, matrix, quaternion or transform."""
    ndim: int

    @property
    def torch_dtype(self) -> torch.dtype:
        return library().dtype_to_torch(getattr(self.dtype, "_wp_scalar_type_", self.dtype))

    @property
    def element(self) -> tuple[int, ...]:
        """The shape of one entry of the array: () for a number, (3,) for `wp.vec3`."""
        return tuple(getattr(self.dtype, "_shape_", ()))

    def array(self, tensor: Tensor) -> Any:
        """The memory of a contiguous tensor, as Warp takes it."""
        return library().from_torch(tensor, dtype=self.dtype, requires_grad=False)

    def look_at(self, kernel: str, tensor: Tensor) -> None:
        """
        Raises:
            WarpError: the tensor is not what the kernel reads.
        """
        if tensor.dtype != self.torch_dtype:
            raise WarpError(
                f"{kernel}: {self.name!r} is an array of {self.torch_dtype}, and a tensor of {tensor.dtype} was given. "
                f"Solve in {self.torch_dtype}, or write the kernel for {tensor.dtype}; nothing is rounded silently."
            )
        wrong = tensor.ndim != self.ndim + len(self.element) or tuple(tensor.shape[self.ndim :]) != self.element
        if wrong:
            axes = ["lanes", *["n"] * (self.ndim - 1), *map(str, self.element)]
            raise WarpError(
                f"{kernel}: {self.name!r} has the axes ({', '.join(axes)}), and a tensor of shape "
                f"{tuple(tensor.shape)} was given (its first axis are the lanes, but for shared ones). A plain call is "
                "of one lane, whose axis is added: for more, call torch.func.vmap(operator)."
            )


@dataclass(frozen=True)
class Signature:
    """The arguments of a kernel."""

    kernel: Any
    arguments: tuple[str, ...]
    """All of them, in the kernel's order."""
    arrays: Mapping[str, ArrayArgument]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Any]
    """What the kernel takes besides arrays."""

    @property
    def name(self) -> str:
        return str(self.kernel.key)


def _numbers(warp: Any) -> list[Any]:
    """The kinds of numbers that PyTorch has too."""
    signed = [warp.int8, warp.int16, warp.int32, warp.int64, warp.uint8, warp.bool]
    return [warp.float16, warp.float32, warp.float64, *signed]


def read(kernel: Any, outputs: Sequence[str] | None, constants: Mapping[str, Any]) -> Signature:
    """The arguments of a kernel, sorted.

    Raises:
        WarpError: it is no kernel, has arguments of a kind that a residual cannot have, or a name is unknown.
    """
    warp = library()
    if not isinstance(kernel, warp.Kernel):
        raise WarpError(f"A function decorated with @warp.kernel is expected, not {kernel!r}.")
    if kernel.is_generic:
        raise WarpError(
            f"{kernel.key} is generic (an argument is typing.Any): pass an overload with its types, "
            "warp.overload(kernel, [...])."
        )
    types = {argument.label: argument.type for argument in kernel.adj.args}
    arrays = {}
    for name, kind in types.items():
        if warp.types.is_array(kind):
            arrays[name] = ArrayArgument(name, kind.dtype, kind.ndim)
            if getattr(kind.dtype, "_wp_scalar_type_", kind.dtype) not in _numbers(warp):
                raise WarpError(
                    f"{kernel.key}: {name!r} is an array of structs; pass their fields as arrays of their own."
                )
        elif name not in constants:
            raise WarpError(
                f"{kernel.key}: {name!r} is no array. Numbers are the same in every call: constants={{{name!r}: ...}}."
            )
    for name in constants:
        if name not in types or name in arrays:
            numbers = ", ".join(one for one in types if one not in arrays) or "none"
            raise WarpError(f"{kernel.key}: there is no number {name!r}; it has {numbers}.")
    if not arrays:
        raise WarpError(f"{kernel.key} has no arrays: it needs inputs, and outputs to write.")
    results = tuple(outputs) if outputs is not None else (list(arrays)[-1],)
    for name in results:
        if name not in arrays:
            raise WarpError(f"{kernel.key}: there is no array {name!r}.{suggestion(name, arrays)}")
        if not arrays[name].torch_dtype.is_floating_point:
            raise WarpError(
                f"{kernel.key}: the output {name!r} is {arrays[name].torch_dtype}; residuals have derivatives."
            )
    inputs = tuple(name for name in arrays if name not in results)
    if not inputs:
        raise WarpError(f"{kernel.key} has no inputs: all of its arrays are outputs.")
    return Signature(kernel, tuple(types), arrays, inputs, results, dict(constants))
