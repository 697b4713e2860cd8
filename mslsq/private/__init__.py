"""The names of PyTorch that are private or experimental: each is touched in this folder and nowhere else.

They change without notice. `tests/test_private.py` has a test for each, which says what a version of PyTorch broke.
What takes long to import is imported where it is called.
"""

from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode
from torch.utils.weak import WeakTensorKeyDictionary

from mslsq.private.compilers import (
    DISPATCHING_FILES,
    LazyGraphModule,
    compiled_by_inductor,
    dynamo_is_imported,
    dynamo_may_look,
    hidden_from_dynamo,
    spare_dynamo,
)
from mslsq.private.forward_mode import jacfwd, jvp, load_forward_mode, value_and_jacfwd, vmapped
from mslsq.private.levels import (
    batch_dimension,
    forward_level_is_open,
    forward_mode_again,
    is_batched,
    is_batched_by_autograd,
    is_differentiated,
    is_differentiated_once_at_most,
    is_functionalizing,
    is_wrapped,
    level_of,
    outside_of_transforms,
    rebatched,
    transforms_are_active,
    unwrapped,
)
from mslsq.private.modes import (
    DispatchMode,
    dispatch_modes,
    function_modes_are_active,
    is_tracing_or_dispatching,
    without_dispatch_modes,
    without_modes,
)
from mslsq.private.modules import (
    HOOKS,
    MODULE_INTERNALS,
    MODULE_TABLES,
    derived_attributes,
    hooks_of_all_modules,
    is_inside_of_ddp,
    script_constants,
)
from mslsq.private.operators import (
    OPERATORS_IN_C,
    arguments_of,
    enter_directly,
    fast_entry,
    is_operator,
    operator_name,
    overload_name,
    returns_a_view,
    writes,
    written_arguments,
)
from mslsq.private.reverse_mode import (
    below_autograd,
    derivatives_in_inference_mode,
    gradients,
    torch_func_leaves_inference_mode,
    vjp,
    with_autograd,
    without_saved_tensor_hooks,
)
from mslsq.private.tensors import empty_maker, is_lazy_zero, version_of
from mslsq.private.trees import children_of, pytree

__all__ = [
    "DISPATCHING_FILES",
    "HOOKS",
    "MODULE_INTERNALS",
    "MODULE_TABLES",
    "OPERATORS_IN_C",
    "DispatchMode",
    "FakeTensor",
    "LazyGraphModule",
    "WeakTensorKeyDictionary",
    "arguments_of",
    "batch_dimension",
    "below_autograd",
    "children_of",
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
