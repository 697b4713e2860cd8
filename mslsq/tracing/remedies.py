"""What to write instead of what PyTorch cannot evaluate inside of a residual, told by what PyTorch says of it."""

import torch

OF_AUTOGRAD = (
    "does not require grad and does not have a grad_fn",
    "You are attempting to call Tensor.requires_grad_()",
)
"""In what PyTorch says of `torch.autograd.grad`, `.backward()` and `.requires_grad_()` inside a residual."""

OF_STATISTICS = ("running_mean", "batch_norm_backward", "would mutate a captured Tensor")
"""In what PyTorch says of batch normalization, and of other writes into tensors outside, under its transforms."""
OF_FORWARD_MODE = "You must implement the jvp function for custom autograd.Function"
"""What PyTorch says in forward mode of an `autograd.Function` that may have a derivative in reverse mode."""
OF_CUSTOM_FUNCTIONS = (
    "You must implement either the backward or vjp method",
    "it must override the setup_context staticmethod",
    "but it does not have vmap support",
    "returned an invalid gradient at index",
    "returned an incorrect number of gradients",
)
"""In what PyTorch says of an `autograd.Function` that lacks a rule, or whose `backward` returns something else."""
INSTEAD = "torch.func.grad(f)(x) of a function f (or torch.func.jacrev, jacfwd, vjp, jvp), which may be nested"
"""What takes their place."""


def is_of_autograd(error: BaseException) -> bool:
    """Is it such an error?"""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OF_AUTOGRAD)


OF_SPARSE = (
    "_sparse_",
    "sparse_csr",
    "Sparse CSR",
    "SparseCPU",
    "SparseCUDA",
    "SparseCsr",
    "sparse tensors",
    "sparse_mm",
)
"""In what PyTorch says of sparse tensors under its transforms."""


OF_DEVICES = "is not on the expected device", "Expected all tensors to be on the same device"
"""In what PyTorch says of an operation on tensors of two devices."""


def remedy(error: BaseException) -> str:
    """What to write instead; empty for errors of which nothing is known."""
    if isinstance(error, RuntimeError) and any(words in str(error) for words in OF_DEVICES):
        return (
            "The residual combines tensors of two devices. Those that it makes are on the default device "
            f"({torch.get_default_device()}): write device=p.device, or torch.zeros_like(p), of the variables p; "
            "what it reads belongs on the device of x0 and the data."
        )
    if isinstance(error, RuntimeError) and any(words in str(error) for words in OF_STATISTICS):
        return (
            "A residual must not write into tensors that exist outside of it. A batch normalization in training mode "
            "does, into its running statistics: call .eval() on the network before the solve, or make it with "
            "track_running_stats=False."
        )
    if isinstance(error, RuntimeError) and any(words in str(error) for words in OF_CUSTOM_FUNCTIONS):
        return (
            "A torch.autograd.Function inside a residual needs forward(*inputs) without ctx, setup_context(ctx, "
            "inputs, output), backward(ctx, *cotangents) with one result per input in its shape, and "
            "generate_vmap_rule = True (or a vmap of its own)."
        )
    if isinstance(error, RuntimeError) and any(words in str(error) for words in OF_SPARSE):
        return (
            "PyTorch's transforms do not know sparse tensors. Multiply by A.to_dense(), or by the entries: "
            "torch.zeros_like(y).index_add(0, rows, values * x[columns])."
        )
    if not is_of_autograd(error):
        return ""
    return (
        "torch.autograd.grad, .backward() and .requires_grad_() do not work inside a residual: it is evaluated without "
        f"gradients, and inside of vmap and of derivatives. Use {INSTEAD}: torch.func.grad(lambda t: u(p, t).sum())(t) "
        "is the derivative of u at the points t."
    )
