"""What a recorded graph bakes in of a tensor, and of the settings of PyTorch."""

from collections.abc import Hashable

import torch
from torch import Tensor


def tensor_key(tensor: Tensor) -> Hashable:
    """What a graph bakes in of a tensor."""
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.is_conj()


def global_key() -> Hashable:
    """The global settings that a graph bakes in."""
    return torch.get_default_dtype(), torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
