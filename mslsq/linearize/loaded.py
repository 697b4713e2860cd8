"""Refuses a residual that writes its variables into a tensor from outside where no derivative passes through: users of
modules of `torch.nn` load parameters so."""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mslsq import pytree
from mslsq.private import (
    DispatchMode,
    WeakTensorKeyDictionary,
    is_operator,
    operator_name,
    writes,
    written_arguments,
)
from mslsq.problem.errors import ProblemError


class LoadedParameterError(ProblemError):
    """A residual writes into a tensor from outside, a parameter of a module perhaps, without a derivative."""


class Loads(DispatchMode):
    """A context in which a residual is evaluated; enter `assignments` as well.

    Plain writes in place are no loads: autograd knows of them. Nor is a log, which the residual does not read again.

    Args:
        variables: what the residual is given.
        outside: what it is given besides, or reads from where it is defined. Parameters of modules are always outside.
        term: the name of the cost.
    """

    supports_higher_order_operators = True

    def __init__(self, variables: Sequence[Tensor], outside: Iterable[Tensor], term: str) -> None:
        super().__init__()
        self.assignments = _Assignments(self)
        self._term = term
        self._dependent = WeakTensorKeyDictionary()
        """What is made of the variables, with a derivative or without one."""
        for variable in variables:
            self._dependent[variable] = True
        self._outside = WeakTensorKeyDictionary()
        """What shares its memory with a tensor from outside; True where autograd does not know that."""
        for tensor in outside:
            self._outside[tensor] = False
        self._loaded: set[int] = set()
        """Addresses of tensors from outside that variables were written into unseen by autograd."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [leaf for leaf in pytree.leaves((args, kwargs or {})) if isinstance(leaf, Tensor)]
        depends = any(leaf in self._dependent for leaf in given)
        outside = [leaf for leaf in given if self._is_outside(leaf)]
        if outside:
            self._follow_writes(func, args, outside, depends)
        output = func(*args, **(kwargs or {}))
        for leaf in pytree.leaves(output) if depends or outside else ():
            if isinstance(leaf, Tensor) and depends:
                self._dependent[leaf] = True
            elif isinstance(leaf, Tensor) and _address(leaf) == _address(outside[0]):
                is_detached = is_operator(func) and operator_name(func) == "detach"
                self._outside[leaf] = is_detached or self._outside.get(outside[0], False)
        return output

    def _follow_writes(self, func: Any, args: Any, outside: Sequence[Tensor], depends: bool) -> None:
        """Raises `LoadedParameterError` where the operator reads what variables were written into unseen."""
        written = written_arguments(func, args) if writes(func) else []
        read = [leaf for leaf in outside if not any(leaf is target for target in written)]
        if self._loaded and any(_address(leaf) in self._loaded for leaf in read):
            raise self._refusal()
        if depends:
            targets = [target for target in written if isinstance(target, Tensor) and self._is_outside(target)]
            unseen = [x for x in targets if self._outside.get(x, False) or not torch.is_grad_enabled()]
            self._loaded |= {_address(target) for target in unseen}

    def check_assigned(self, target: Tensor, value: Any) -> None:
        """Raises `LoadedParameterError` where `target.data = value` puts what is made of the variables into a
        tensor, or anything into one from outside: under PyTorch's transforms that ends the process (torch 2.13)."""
        depends = isinstance(value, Tensor) and value in self._dependent
        if self._is_outside(target) or (depends and target not in self._dependent):
            raise self._refusal()

    def _refusal(self) -> LoadedParameterError:
        return LoadedParameterError(
            f"Cost {self._term!r}: the residual writes into a tensor from outside, a parameter of a module perhaps "
            "(.data = ..., copy_ under no_grad, load_state_dict, vector_to_parameters). No derivative passes through "
            "that. Call the module with them instead: torch.func.functional_call(net, {'weight': w, 'bias': b}, (t,)), "
            "with dict(net.named_parameters()) as the start; mslsq.optim.LevenbergMarquardt trains a module as it is."
        )

    def _is_outside(self, tensor: Tensor) -> bool:
        return isinstance(tensor, torch.nn.Parameter) or tensor in self._outside


class _Assignments(TorchFunctionMode):
    """Sees `x.data = value`, which is no operator."""

    def __init__(self, loads: Loads) -> None:
        super().__init__()
        self.loads = loads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == Tensor.data.__set__:  # pyright: ignore[reportAttributeAccessIssue]
            self.loads.check_assigned(*args)
        return func(*args, **(kwargs or {}))


def _address(tensor: Tensor) -> int:
    """Where the memory of a tensor begins; of one without memory (a sparse one) a number of its own."""
    with contextlib.suppress(RuntimeError, NotImplementedError):
        return tensor.untyped_storage().data_ptr()
    return -id(tensor)
