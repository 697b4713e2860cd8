"""Looking through the levels of `torch.func`: does anybody differentiate these tensors?"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch._C import _functorch


def anybody_differentiates(tensors: Iterable[Tensor]) -> bool:
    """Is one of the tensors tracked by backward, by `grad`/`vjp`/`jacrev` or by `jvp`/`jacfwd`, at any level?

    `requires_grad` alone does not tell: it is False for a `vmap` inside `grad`.
    """
    return any(_is_tracked(tensor) for tensor in tensors)


def _is_tracked(tensor: Tensor) -> bool:
    while _functorch.is_functorch_wrapped_tensor(tensor):
        if _functorch.is_gradtrackingtensor(tensor):
            return True
        tensor = _functorch.get_unwrapped(tensor)
    return tensor.requires_grad and torch.is_grad_enabled()
