"""Modules: where an `nn.Module` keeps what, and what is called around it."""

from typing import Any

import torch
from torch.nn.modules import module as _modules

MODULE_TABLES = ("_parameters", "_buffers", "_modules")
"""The attributes in which an `nn.Module` keeps its tensors and submodules."""


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""The attributes in which an `nn.Module` keeps what is called beside its `forward`."""


_GLOBAL_HOOKS = tuple(f"_global{name}" for name in HOOKS)


MODULE_INTERNALS = (*MODULE_TABLES, "training", "_non_persistent_buffers_set", "_is_full_backward_hook")
"""What an `nn.Module` keeps beside the user's attributes and the hooks, in torch 2.9 to 2.15."""


def script_constants(module: torch.nn.Module) -> tuple[str, ...]:
    """The names of the attributes that a module of TorchScript was compiled with; none for other modules."""
    kept: Any = getattr(module, "_concrete_type", None)
    return () if kept is None else tuple(kept.get_attributes())


def derived_attributes(module: torch.nn.Module) -> tuple[str, ...]:
    """The names of the attributes that a module makes again by itself when its parameters have been replaced: a
    recurrent network compares the parameters with these references in each call."""
    return ("_flat_weight_refs",) if isinstance(module, torch.nn.RNNBase) else ()


def hooks_of_all_modules() -> bool:
    """Has anybody registered a hook for every `nn.Module`, as profilers do?"""
    return any(map(vars(_modules).get, _GLOBAL_HOOKS))


def is_inside_of_ddp() -> bool:
    """Is the forward pass of a `DistributedDataParallel` running? Asked only where `torch.distributed` is in use."""
    from torch.nn.parallel.distributed import DistributedDataParallel

    return DistributedDataParallel._get_active_ddp_module() is not None
