"""The names of PyTorch that are private or experimental: each is touched here and nowhere else.

They change without notice. `tests/test_private.py` has a test for each, which says what a version of PyTorch broke.
What takes long to import is imported where it is called.
"""

import functools
import inspect
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx
from torch._C import _autograd, _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._functorch import eager_transforms
from torch._functorch import vmap as _vmap
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.fx import _lazy_graph_module
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode
from torch.nn.modules import module as _modules
from torch.overrides import _pop_mode_temporarily
from torch.utils import _pytree
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = [
    "DISPATCHING_FILES",
    "HOOKS",
    "MODULE_INTERNALS",
    "MODULE_TABLES",
    "DispatchMode",
    "FakeTensor",
    "LazyGraphModule",
    "WeakTensorKeyDictionary",
    "arguments_of",
    "batch_dimension",
    "below_autograd",
    "compiled_by_inductor",
    "derivatives_in_inference_mode",
    "derived_attributes",
    "disable_proxy_modes_tracing",
    "dispatch_modes",
    "dynamo_is_imported",
    "dynamo_may_look",
    "empty_maker",
    "enter_directly",
    "fast_entry",
    "forward_level_is_open",
    "forward_mode_again",
    "function_modes_are_active",
    "get_proxy_mode",
    "gradients",
    "hidden_from_dynamo",
    "hooks_of_all_modules",
    "is_batched",
    "is_batched_by_autograd",
    "is_differentiated",
    "is_differentiated_once_at_most",
    "is_functionalizing",
    "is_inside_of_ddp",
    "is_lazy_zero",
    "is_operator",
    "is_tracing_or_dispatching",
    "is_wrapped",
    "jacfwd",
    "jvp",
    "level_of",
    "load_forward_mode",
    "operator_name",
    "outside_of_transforms",
    "overload_name",
    "pytree",
    "rebatched",
    "returns_a_view",
    "script_constants",
    "spare_dynamo",
    "torch_func_leaves_inference_mode",
    "transforms_are_active",
    "unwrapped",
    "value_and_jacfwd",
    "version_of",
    "vjp",
    "vmapped",
    "with_autograd",
    "without_dispatch_modes",
    "without_modes",
    "without_saved_tensor_hooks",
    "writes",
    "written_arguments",
]

pytree = _pytree
"""`torch.utils._pytree`, for `mslsq.pytree` alone."""

MODULE_TABLES = ("_parameters", "_buffers", "_modules")
"""The attributes in which an `nn.Module` keeps its tensors and submodules."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""The attributes in which an `nn.Module` keeps what is called beside its `forward`."""

_GLOBAL_HOOKS = tuple(f"_global{name}" for name in HOOKS)

MODULE_INTERNALS = (*MODULE_TABLES, "training", "_non_persistent_buffers_set", "_is_full_backward_hook")
"""What an `nn.Module` keeps beside the user's attributes and the hooks, in torch 2.9 to 2.15."""

OPERATORS_IN_C = frozenset(f"torch._C._{name}" for name in ("linalg", "nn", "special", "fft"))
"""What operators of `torch.linalg`, `torch.nn.functional`, `torch.special` and `torch.fft` name as their module."""

DISPATCHING_FILES = tuple(
    os.path.join(*path)
    for path in (("torch", "_compile.py"), ("torch", "_dynamo", "eval_frame.py"), ("mslsq", "private.py"))
)
"""How the files end whose frames lie between an operation and the dispatch mode that sees it."""


def script_constants(module: torch.nn.Module) -> tuple[str, ...]:
    """The names of the attributes that a module of TorchScript was compiled with; none for other modules."""
    kept: Any = getattr(module, "_concrete_type", None)
    return () if kept is None else tuple(kept.get_attributes())


def derived_attributes(module: torch.nn.Module) -> tuple[str, ...]:
    """The names of the attributes that a module makes again by itself when its parameters have been replaced: a
    recurrent network compares the parameters with these references in each call."""
    return ("_flat_weight_refs",) if isinstance(module, torch.nn.RNNBase) else ()


# Operators


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


# Tensors


def version_of(tensor: Tensor) -> int:
    """How often a tensor has been written to. Inference tensors do not count it."""
    return 0 if tensor.is_inference() else tensor._version


def empty_maker(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Callable[[], Tensor]:
    """What makes a tensor on the CPU whose numbers are to be written: by Inductor's own entry, in half of the time."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    fast = getattr(guards, "_empty_strided_cpu", None)
    if fast is None:
        return functools.partial(torch.empty_strided, shape, strides, dtype=dtype)
    return functools.partial(fast, shape, strides, dtype)


def is_lazy_zero(tensor: Tensor) -> bool:
    """Is it one of PyTorch's tensors of zeros that have no memory?"""
    return tensor._is_zerotensor()


# Modes


LazyGraphModule: type[fx.GraphModule] = getattr(_lazy_graph_module, "_LazyGraphModule", fx.GraphModule)
"""A graph whose Python code is written when it is first called. Most recorded graphs are never called: a third of the
time of recording went there, three times for each."""


class DispatchMode(TorchDispatchMode):
    """A `TorchDispatchMode` that does not import Dynamo when it is first used, as those of PyTorch do."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        spare_dynamo(cls.__torch_dispatch__)


@contextmanager
def without_modes() -> Iterator[None]:
    """No mode of any kind is active: tensors are real, and nothing is written down."""
    with ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        for _ in range(torch._C._len_torch_function_stack()):
            stack.enter_context(_pop_mode_temporarily())
        yield


def dispatch_modes() -> list[Any]:
    """The dispatch modes that are active, the innermost last."""
    return _get_current_dispatch_mode_stack()


def without_dispatch_modes() -> Any:
    """A context in which no dispatch mode is active."""
    return _disable_current_modes()


def is_tracing_or_dispatching() -> bool:
    """Is a `torch.jit` trace or a dispatch mode (`make_fx`, fake tensors) active?"""
    return torch._C._get_tracing_state() is not None or bool(torch._C._len_torch_dispatch_stack())


def function_modes_are_active() -> bool:
    """Does a mode of PyTorch, such as `torch.set_default_device`, see the functions that are called?"""
    return bool(torch._C._len_torch_function_stack())


def hooks_of_all_modules() -> bool:
    """Has anybody registered a hook for every `nn.Module`, as profilers do?"""
    return any(map(vars(_modules).get, _GLOBAL_HOOKS))


# Levels of `torch.func`


def outside_of_transforms() -> Any:
    """A context in which no `torch.func` transform is running."""
    return temporarily_clear_interpreter_stack()


def transforms_are_active() -> bool:
    """Is a `torch.func` transform running?"""
    return bool(_functorch.get_interpreter_stack())


def is_differentiated_once_at_most() -> bool:
    """Can at most a first derivative be taken of what is computed now, in reverse mode?

    That is where gradients are off, but for one `vjp`, whose results are not differentiated again. Not where something
    writes down what is computed: that may be differentiated later.
    """
    if forward_level_is_open() or is_tracing_or_dispatching():
        return False
    levels = [level for level in _functorch.get_interpreter_stack() or () if level.key() != _OF_VMAP]
    if not levels:
        return not torch.is_grad_enabled()
    is_derivative = len(levels) == 1 and levels[0].key() == _functorch.TransformType.Grad
    return is_derivative and not _functorch.CGradInterpreterPtr(levels[0]).prevGradMode()


_OF_VMAP = _functorch.TransformType.Vmap


def is_functionalizing() -> bool:
    """Is the innermost `torch.func` transform `functionalize`? It cannot look through a `torch.autograd.Function`."""
    stack = _functorch.get_interpreter_stack()
    return bool(stack) and stack[-1].key() == _functorch.TransformType.Functionalize


def is_wrapped(tensor: Tensor) -> bool:
    """Is this a tensor inside a `torch.func` transform?"""
    return _functorch.is_functorch_wrapped_tensor(tensor)


def is_differentiated(tensor: Tensor) -> bool:
    """Is the outermost wrapper that of a derivative (`grad`, `jvp`, `jacfwd`)?"""
    return _functorch.is_gradtrackingtensor(tensor)


def is_batched(tensor: Tensor) -> bool:
    """Is the outermost wrapper that of `vmap`?"""
    return _functorch.is_batchedtensor(tensor)


def is_batched_by_autograd(tensor: Tensor) -> bool:
    """Is it one of the cotangents of `torch.autograd.grad(..., is_grads_batched=True)`?"""
    return _functorch.is_legacy_batchedtensor(tensor)


def unwrapped(tensor: Tensor) -> Tensor:
    """The tensor without its outermost wrapper."""
    return _functorch.get_unwrapped(tensor)


def level_of(tensor: Tensor) -> int:
    """The level of the outermost wrapper."""
    return _functorch.maybe_get_level(tensor)


def batch_dimension(tensor: Tensor) -> int:
    """The axis along which the outermost wrapper, one of `vmap`, maps."""
    return _functorch.maybe_get_bdim(tensor)


def rebatched(inner: Tensor, like: Tensor) -> Tensor:
    """`inner` in a wrapper of `vmap` like the outermost one of `like`."""
    return _functorch._add_batch_dim(inner, batch_dimension(like), level_of(like))


def forward_level_is_open() -> bool:
    """Is a level of `torch.autograd.forward_ad` open?"""
    return forward_ad._current_level >= 0


def forward_mode_again() -> Any:
    """A context with forward mode on, as it is not inside the `jvp` of an `autograd.Function`."""
    return forward_ad._set_fwd_grad_enabled(True)


@contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Set aside what the caller does with tensors saved for backward (`torch.utils.checkpoint`, `save_on_cpu`):
    `torch.func.vjp` raises where such hooks are set. What is saved in here is kept as it is."""
    suspended = []
    if _autograd._saved_tensors_hooks_get_disabled_error_message() is None:  # a transform has none
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
    the 0.15 s of importing sympy."""
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


# Modules around modules


def is_inside_of_ddp() -> bool:
    """Is the forward pass of a `DistributedDataParallel` running? Asked only where `torch.distributed` is in use."""
    from torch.nn.parallel.distributed import DistributedDataParallel

    return DistributedDataParallel._get_active_ddp_module() is not None


# Compilers


def dynamo_is_imported() -> bool:
    """Has Dynamo been imported? Until then nothing is being compiled."""
    return "torch._dynamo" in sys.modules


def dynamo_may_look() -> bool:
    """Does Dynamo look at the frames that Python enters now? Outside of what is compiled it does not."""
    if not dynamo_is_imported():
        return False
    of_frames: Any = getattr(torch._C, "_dynamo", None)
    callback = getattr(of_frames.eval_frame, "get_eval_frame_callback", None)
    return callback is None or callback() is not None


def hidden_from_dynamo(function: Any, reason: str) -> None:
    """Mark a function as `torch.compiler.disable` does, without importing Dynamo, which takes two seconds."""
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = reason


def load_forward_mode() -> None:
    """Import what PyTorch's first derivative in forward mode imports, where warnings are errors: it calls
    `torch.jit.script`, which warns that it is deprecated, and a derivative would fail by that. Elsewhere nothing
    happens: the import takes 0.2 s, and most solves do without it (`jvp`)."""
    if _OF_FORWARD_MODE not in sys.modules and any(action == "error" for action, *_ in warnings.filters):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _load_decompositions()


def jvp(function: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """`torch.func.jvp` of a pure function, which imports nothing where it need not."""
    return _forward_derivative(lambda: torch.func.jvp(function, primals, tangents))


def jacfwd(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """`torch.func.jacfwd` of a pure function of one vector, which imports nothing where it need not."""
    return lambda at: value_and_jacfwd(function, at)[1]


def value_and_jacfwd(function: Callable[[Tensor], Tensor], at: Tensor) -> tuple[Tensor, Tensor]:
    """The value of a pure function of one vector, and its Jacobian (*value, columns) as of `jacfwd`.

    The levels and wrappers are those of PyTorch, which takes apart and puts together pytrees at every one of them: 0.17
    of 0.28 ms for one column.
    """
    return _forward_derivative(lambda: _jacfwd(function, at))


def _jacfwd(function: Callable[[Tensor], Tensor], at: Tensor) -> tuple[Tensor, Tensor]:
    transforms = eager_transforms

    def push(tangent: Tensor) -> tuple[Tensor, Tensor]:
        outermost = transforms.JVP_NESTING == 0
        dual_level = forward_ad.dual_level() if outermost else nullcontext()
        with transforms.jvp_increment_nesting() as level, forward_mode_again(), dual_level:
            value, slope = forward_ad.unpack_dual(function(forward_ad.make_dual(at, tangent)))
            slope = torch.zeros_like(value) if slope is None else slope
            return _functorch._unwrap_for_grad(value, level), _functorch._unwrap_for_grad(slope, level)

    value, columns = vmapped(push, (torch.eye(len(at), dtype=at.dtype, device=at.device),), (0,))
    return value[0], columns.movedim(0, -1)


def vmapped(function: Callable[..., Any], tensors: Sequence[Tensor], dims: Sequence[int | None]) -> Any:
    """`torch.func.vmap` of a function of tensors, mapped along these dimensions, that returns a tensor or a tuple of
    tensors; the mapped axis of the results is the first.

    That of PyTorch takes 40 microseconds to look at pytrees and at the name of the function: as much as the residual of
    a small problem.
    """
    size = next((tensor.shape[dim] for tensor, dim in zip(tensors, dims, strict=True) if dim is not None), 0)
    if not size or is_tracing_or_dispatching():
        return torch.func.vmap(function, in_dims=tuple(dims))(*tensors)
    _load_batching_formulas()
    level = _functorch._vmap_increment_nesting(size, "error")
    try:
        inner = [
            tensor if dim is None else _functorch._add_batch_dim(tensor, dim % tensor.ndim, level)
            for tensor, dim in zip(tensors, dims, strict=True)
        ]
        output = function(*inner)
        if isinstance(output, tuple):
            return tuple([_functorch._remove_batch_dim(part, level, size, 0) for part in output])
        return _functorch._remove_batch_dim(output, level, size, 0)
    finally:
        _functorch._vmap_decrement_nesting()


_load_batching_formulas = getattr(_vmap, "lazy_load_decompositions", lambda: None)


def _forward_derivative(differentiate: Callable[[], Any]) -> Any:
    """What a pure function computes in forward mode, without PyTorch's formulas for operators that have none of their
    own (`trace`, `logsigmoid`, backward passes of normalizations): its first derivative in forward mode compiles them,
    which takes 0.2 s. An operator that needs one raises; then they are loaded, and the function is called again.
    """
    if _OF_FORWARD_MODE in sys.modules or _forward_mode.does_without:
        return differentiate()
    _forward_mode.does_without = True
    try:
        return differentiate()
    except NotImplementedError:
        _forward_mode.does_without = False
        _load_decompositions()
    finally:
        _forward_mode.does_without = False
    return differentiate()


class _ForwardMode(threading.local):
    does_without = False


_forward_mode = _ForwardMode()
_load_decompositions = getattr(forward_ad, "_maybe_load_decompositions", lambda: None)


def _load_decompositions_where_needed() -> None:
    if not _forward_mode.does_without:
        _load_decompositions()


if hasattr(forward_ad, "_maybe_load_decompositions"):  # elsewhere `forward_derivative` spares nothing
    forward_ad._maybe_load_decompositions = _load_decompositions_where_needed

_OF_FORWARD_MODE = "torch._decomp.decompositions_for_jvp"


def spare_dynamo(function: Any, without: Callable[..., Any] | None = None) -> None:
    """Let a function marked with `torch._disable_dynamo` run without importing Dynamo, which takes a second.

    The first call of such a function imports Dynamo to wrap what is marked, and keeps the result as an attribute of
    it. As long as Dynamo has not been imported there is nothing to switch off: a substitute in that place calls what is
    marked as it is. Once Dynamo is there, the substitute removes itself, and PyTorch does what it does otherwise.
    Nothing happens where a version of PyTorch marks functions in another way. `without` is asked first, for a result
    that needs nothing to be imported; None where it has none.
    """
    marking = _marking_behind(function)
    if marking is None:
        return
    marked: Any = inspect.getclosurevars(marking).nonlocals.get("fn")
    if marked is None or _KEPT in vars(marked):
        return

    def substitute(*args: Any, **kwargs: Any) -> Any:
        result = None if without is None else without(*args, **kwargs)
        if result is not None:
            return result
        if not hasattr(sys.modules.get("torch._dynamo"), "disable"):  # not there, or still being imported
            return marked(*args, **kwargs)
        vars(marked).pop(_KEPT, None)
        return marking(*args, **kwargs)

    hidden_from_dynamo(substitute, "marked with torch._disable_dynamo")
    vars(marked)[_KEPT] = substitute


def _marking_behind(function: Any) -> Any:
    """The function that `torch._disable_dynamo` returned, behind other decorators; None where there is none."""
    while function is not None and getattr(function, "__code__", None) is not _MARKING:
        function = getattr(function, "__wrapped__", None)
    return function


_KEPT = "__dynamo_disable"
_MARKING = getattr(getattr(torch, "_disable_dynamo", lambda function: function)(lambda: None), "__code__", None)
"""The code of every function that `torch._disable_dynamo` returns."""


_NO_CONTEXT = nullcontext()


# A sum or product of a tensor and something without a tangent: forward mode finds the shape of the zeros that stand for
# the missing tangent by these functions. Dynamo would be imported by the first `3 * x`, and sympy, which takes 0.15 s.
def _shape_without_sympy(a: Any, b: Any, /, *, alpha: Any = 1) -> Tensor | None:
    """The sum, product or quotient on the meta device of two plain tensors, at least one of them real or complex; None
    of others. Tensors are contiguous, or a tangent is being computed: forward mode asks for nothing but shape and
    dtype. Where sympy is there already this is as right, and takes a tenth of the time: a fifth of a small problem's
    derivative."""
    if not isinstance(alpha, (int, float)) or torch._C._get_tracing_state() is not None:
        return None
    for x in (a, b):
        if type(x) is not Tensor or x.device.type != "meta" or x.dtype == torch.bool:
            return None
        if x.requires_grad or is_wrapped(x) or not (x.is_contiguous() or forward_level_is_open()):
            return None
    if not any(x.is_floating_point() or x.is_complex() for x in (a, b)):
        return None
    has_modes = is_tracing_or_dispatching() or torch._ops._len_torch_dispatch_stack_pre_dispatch()
    with _disable_current_modes() if has_modes else _NO_CONTEXT:
        shape = a.shape if a.shape == b.shape else torch.broadcast_tensors(a, b)[0].shape
        dtype = a.dtype if a.dtype == b.dtype else torch.result_type(a, b)
        return torch.empty(shape, dtype=dtype, device="meta")


for _of_shapes in ("add", "sub", "mul", "true_divide"):
    spare_dynamo(getattr(getattr(torch, "_refs", None), _of_shapes, None), _shape_without_sympy)


def compiled_by_inductor(graph: fx.GraphModule, tensors: Iterable[Tensor]) -> Callable[..., Any]:
    """The graph compiled, or taken from Inductor's cache on disk, which only looks at graphs inside a tracing context:
    a second process compiles the step of sphere2500 in 3 seconds instead of 25."""
    from torch import _inductor  # takes seconds to import
    from torch._guards import TracingContext, tracing
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)
    with tracing(TracingContext(mode)):
        compiled: Any = _inductor.compile(graph, [mode.from_tensor(tensor) for tensor in tensors])
    return compiled
