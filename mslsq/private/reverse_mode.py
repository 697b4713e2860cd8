"""Derivatives in reverse mode, and what autograd follows."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._C import _autograd  # pyright: ignore[reportAttributeAccessIssue]
from torch._functorch import eager_transforms
from torch.utils import _pytree


def without_saved_tensor_hooks() -> AbstractContextManager[None]:
    """Set aside what the caller does with tensors saved for backward (`torch.utils.checkpoint`, `save_on_cpu`):
    `torch.func.vjp` raises where such hooks are set. What is saved in here is kept as it is."""
    if _autograd._saved_tensors_hooks_get_disabled_error_message() is not None:  # a transform has none
        return _AS_IT_IS
    return _AS_IT_IS if _autograd._top_saved_tensors_default_hooks(True) is None else _without_hooks()


_AS_IT_IS = nullcontext()


@contextmanager
def _without_hooks() -> Iterator[None]:
    suspended = []
    while (hooks := _autograd._top_saved_tensors_default_hooks(True)) is not None:
        _autograd._pop_saved_tensors_default_hooks()
        suspended.append(hooks)
    try:
        yield
    finally:
        for pack, unpack in reversed(suspended):
            _autograd._push_saved_tensors_default_hooks(pack, unpack)


def vjp(function: Callable[..., Any], *primals: Tensor) -> tuple[Any, Callable[..., tuple[Tensor, ...]]]:
    """`torch.func.vjp` of tensors: the value, and the function that pulls cotangents (and `create_graph`) back.

    That of PyTorch looks up `torch._dynamo.compiled_autograd`, which imports Dynamo, to switch it off where it is on.
    Here it is switched off where Dynamo has been imported. All else is the same, with the same levels and wrappers.
    """
    transforms = eager_transforms
    without_hooks = torch.autograd.graph.disable_saved_tensors_hooks(
        "A function that torch.func.vjp differentiates cannot use saved tensor hooks (torch.utils.checkpoint, "
        "torch.autograd.graph.save_on_cpu): leave them out inside of it."
    )
    nesting = transforms.grad_increment_nesting
    with derivatives_in_inference_mode(), without_hooks, nesting() as level, torch.enable_grad():
        inner = transforms._create_differentiable(transforms._wrap_all_tensors(primals, level), level)
        outputs = function(*inner)
        value = transforms._undo_create_differentiable(outputs, level)
    outputs, structure = _pytree.tree_flatten(outputs)

    def pull(cotangents: Any, create_graph: bool | None = None) -> tuple[Tensor, ...]:
        leaves, found = _pytree.tree_flatten(cotangents)
        if found != structure:
            raise TypeError(f"The cotangents are {found}; expected the structure of the value, {structure}.")
        pairs = [pair for pair in zip(outputs, leaves, strict=True) if pair[0].requires_grad]
        if not pairs:
            return tuple(torch.zeros_like(x) for x in inner)
        with derivatives_in_inference_mode(), _without_compiled_autograd():
            found = gradients(
                [output for output, _ in pairs],
                inner,
                [cotangent for _, cotangent in pairs],
                retain_graph=True,
                create_graph=torch.is_grad_enabled() if create_graph is None else create_graph,
            )
        return tuple(torch.zeros_like(x) if g is None else g for x, g in zip(inner, found, strict=True))

    return value, pull


_without_inference_mode = getattr(eager_transforms, "_disable_inference_mode", None)
"""How torch 2.13 leaves inference mode for what it differentiates."""


def torch_func_leaves_inference_mode() -> bool:
    """Does `torch.func` differentiate in inference mode? In torch 2.9 its derivatives are zero there."""
    return _without_inference_mode is not None


@contextmanager
def derivatives_in_inference_mode() -> Iterator[None]:
    """A context in which what inference mode keeps from being differentiated is differentiated; gradients stay off."""
    if _without_inference_mode is not None:
        with _without_inference_mode():
            yield
    elif torch.is_inference_mode_enabled():
        with torch.inference_mode(False), torch.no_grad():
            yield
    else:
        yield


def below_autograd() -> Any:
    """A context in which operators are called without the derivatives that are registered for them."""
    return torch._C._AutoDispatchBelowAutograd()


@contextmanager
def with_autograd() -> Iterator[None]:
    """A context in which tensors that require grad are followed, also inside of an operator, which PyTorch calls with
    its autograd switched off, and in inference mode."""
    keys = torch._C.DispatchKey
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        for key in (keys.AutogradFunctionality, keys.ADInplaceOrView, keys.AutogradCPU, keys.AutogradCUDA):
            stack.enter_context(torch._C._SetExcludeDispatchKeyGuard(key, False))
        stack.enter_context(torch.enable_grad())
        yield


def gradients(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    retain_graph: bool = False,
    create_graph: bool = False,
) -> tuple[Tensor | None, ...]:
    """`torch.autograd.grad` with `allow_unused=True`, without what it looks at before it begins (are these symbols, a
    batch of cotangents, of other shapes?): 30 µs, as long as the backward pass of eight operations, and the first time
    the 0.15 s of importing sympy.

    Anomaly mode is off in here: a residual that is NaN in one problem of a batch, or whose second derivative is, ends
    with a status, and who looks for a NaN of their own would be stopped at it.
    """
    if torch.is_anomaly_enabled():
        with torch.autograd.set_detect_anomaly(False):
            return gradients(outputs, inputs, cotangents, retain_graph, create_graph)
    if _run_backward is None:
        return torch.autograd.grad(
            outputs, inputs, cotangents, retain_graph=retain_graph, create_graph=create_graph, allow_unused=True
        )
    roots = tuple(outputs), tuple(cotangents)
    return _run_backward(*roots, retain_graph, create_graph, tuple(inputs), True, accumulate_grad=False)


_run_backward = getattr(getattr(torch.autograd.Variable, "_execution_engine", None), "run_backward", None)


def _without_compiled_autograd() -> Any:
    compiled_autograd = getattr(sys.modules.get("torch._dynamo"), "compiled_autograd", None)
    return nullcontext() if compiled_autograd is None else compiled_autograd._disable()
