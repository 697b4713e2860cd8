"""Modules of PyTorch whose output is a function of their input, their tensors and the numbers they hold, all of which a
walk compares or makes inputs of the solve."""

import functools

from torch import nn

from mslsq.private import HOOKS
from mslsq.tracing.reading.origins import USERS, is_own, origin_of

CONTAINERS = frozenset((nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict, nn.Sequential))
LAYERS = frozenset(
    getattr(nn, name)
    for name in (
        *("Bilinear", "Conv1d", "Conv2d", "Conv3d", "Flatten", "Identity", "Linear", "Unflatten"),
        *("CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid"),
        *("LogSoftmax", "Mish", "PReLU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softmax", "Softmin", "Softplus"),
        *("Softshrink", "Softsign", "Tanh", "Tanhshrink", "Threshold"),
        *("GroupNorm", "LayerNorm", "RMSNorm", "CosineSimilarity", "PairwiseDistance"),
        *("AvgPool1d", "AvgPool2d", "AvgPool3d", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d"),
    )
)
ONLY_IN_EVALUATION = frozenset((nn.Dropout, nn.AlphaDropout, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d))
"""In training they draw random numbers, or write what they read."""


def is_known(value: nn.Module) -> bool:
    """Is a call of this module code of the user's, of this library's, or a layer of these, and nothing else?

    A class of the user's may be derived from a layer, and use what it does.
    """
    if any(getattr(value, name) for name in HOOKS):
        return False
    for kind in type(value).__mro__:
        if kind is nn.Module or kind in LAYERS or kind in CONTAINERS:
            return True
        if kind in ONLY_IN_EVALUATION:
            return not value.training
        if not is_own(kind.__module__ or "") and origin_of(kind.__module__ or "") != USERS:
            return False
    return False


@functools.lru_cache(maxsize=1024)
def called(kind: type[nn.Module]) -> tuple[tuple[type, str], ...]:
    """What of PyTorch's runs when a module of this type is called: classes, and names in them."""
    layers = LAYERS | CONTAINERS | ONLY_IN_EVALUATION
    forward = [(owner, "forward") for owner in kind.__mro__ if owner in layers and "forward" in vars(owner)]
    return (*forward, (nn.Module, "__call__"))
