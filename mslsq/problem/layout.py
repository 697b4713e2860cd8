"""Tensors of a solve are dense, and pairs of numbers lie together where PyTorch wants that: what to do about others."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mslsq.problem.errors import ProblemError


def check_dense(tensors: Mapping[str, Tensor], where: str = "") -> None:
    """Raises a ProblemError for the first tensor that is sparse, nested or of another layout without strides.

    The residual is batched by `vmap` and differentiated in forward mode, for which PyTorch's sparse tensors have no
    rules ("unsupported memory format option" is what they say).
    """
    for name, tensor in tensors.items():
        if tensor.is_nested:
            raise ProblemError(
                f"{where}{name} is a nested tensor; dense ones are expected: pad it (torch.nested.to_padded_tensor), "
                "and give the padding the weight zero."
            )
        if tensor.layout != torch.strided:
            dense = f"{name}.to_dense()" if name.isidentifier() else "its .to_dense()"
            raise ProblemError(
                f"{where}{name} is a tensor of layout {tensor.layout} and shape {tuple(tensor.shape)}; dense ones are "
                f"expected: pass {dense}. Where that is too large, pass its indices and values and sum with index_add; "
                "the sparsity of the Jacobian of a large residual is found by itself."
            )


APART = ("last dimension with stride 1", "stride divisible by 2", "storage_offset divisible by 2")
"""In what `torch.view_as_complex` says of a pair (real, imaginary) that is not adjacent in memory."""


def complex_view_hint(error: BaseException) -> str:
    """What to write where a residual fails because of the memory layout of a complex view; empty for other errors."""
    if not (isinstance(error, RuntimeError) and any(words in str(error) for words in APART)):
        return ""
    return (
        "torch.view_as_complex wants the real and the imaginary part side by side in memory, where einops.rearrange, "
        "transpose and slices leave them apart (.contiguous() does not help with dimensions of size 1). Write "
        "torch.complex(x[..., 0], x[..., 1]) instead of torch.view_as_complex(x)."
    )
