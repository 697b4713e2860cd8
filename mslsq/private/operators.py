"""Operators of the dispatcher: their names, schemas and entries."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from mslsq.private.modes import is_tracing_or_dispatching

OPERATORS_IN_C = frozenset(f"torch._C._{name}" for name in ("linalg", "nn", "special", "fft"))
"""What operators of `torch.linalg`, `torch.nn.functional`, `torch.special` and `torch.fft` name as their module."""


def tensors_of_operator(function: Any) -> tuple[str, tuple[str, ...]] | None:
    """Of an operator of `torch.library.custom_op` or `torch.ops` its name, and those of the tensors that it has to be
    given; None of anything else."""
    definition = getattr(function, "_opoverload", function)
    if isinstance(definition, torch._ops.OpOverloadPacket):
        definition = getattr(definition, definition.overloads()[0])
    if not is_operator(definition):
        return None
    given = [one for one in definition._schema.arguments if not one.has_default_value()]
    return definition._schema.name, tuple(one.name for one in given if str(one.type) == "Tensor")


def is_operator(target: Any) -> bool:
    """Is the target of a node an operator of the dispatcher, with a schema?"""
    return isinstance(target, torch._ops.OpOverload)


def operator_name(operator: Any) -> str:
    """The name without its overload, and without `aten::`."""
    return operator._schema.name.removeprefix("aten::")


def overload_name(operator: Any) -> str:
    """The name of the overload: "Tensor" of `aten.add.Tensor`."""
    return operator._overloadname


def arguments_of(operator: Any) -> list[Any]:
    """The arguments that the schema declares, each with `name` and `type`."""
    return operator._schema.arguments


def has_parts(operator: Any) -> bool:
    """Is there anything that `operator.decompose` would call: is the operator made of others for autograd?"""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return key in operator.py_kernels or torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key)


def returns_a_view(operator: Any) -> bool:
    """Does the schema say that a result shares memory with an argument?"""
    return any(result.alias_info is not None for result in operator._schema.returns)


def writes(operator: Any) -> bool:
    """Does the operator write into an argument?"""
    return is_operator(operator) and operator._schema.is_mutable


def written_arguments(operator: Any, arguments: Iterable[Any]) -> list[Any]:
    """Those of the positional arguments that an operator writes into."""
    pairs = zip(arguments, operator._schema.arguments, strict=False)
    return [given for given, declared in pairs if declared.alias_info and declared.alias_info.is_write]


def fast_entry(operator: Any) -> Callable[..., Any]:
    """The function that an operator calls in the end, without the checks of its Python wrapper."""
    if operator in _FUNCTIONS:
        return _FUNCTIONS[operator]
    return operator._op if is_operator(operator) else operator


def enter_directly(operator: Any, function: Callable[..., Any]) -> None:
    """Have `fast_entry` call the function that an operator was made of, where nothing writes down what runs: the way
    through the dispatcher, which takes lists of tensors apart, takes as long as a kernel for a small graph."""

    def direct(*arguments: Any) -> Any:
        return operator._op(*arguments) if is_tracing_or_dispatching() else function(*arguments)

    _FUNCTIONS[operator] = direct


_FUNCTIONS: dict[Any, Callable[..., Any]] = {}


SAMPLER_HAS_DERIVATIVES = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)
"""Can the kernels of `grid_sample` be differentiated under `torch.func` where a graph is kept? In PyTorch 2.9 their
backward pass meets an undefined tensor there. (2.10 to 2.12 were not tried.)"""
