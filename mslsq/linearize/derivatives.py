"""How the residual of a block is differentiated: by which mode of autodiff, as it is written or rewritten.

PyTorch's rules are not right for every operator in every nesting of transforms, so a way is found, and checked, when
a plan is made (`ways`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.linearize.compressed.plan import CompressedPlan
from mslsq.linearize.layouts import BLOCKS, Blocks
from mslsq.private import value_and_jacfwd, vjp, vmapped

Mode = Literal["forward", "reverse", "row by row"]
"""`vmap` of one forward derivative per column, of one backward pass per row, or a loop of those without `vmap`."""


@dataclass(frozen=True)
class Way:
    """How one term is differentiated."""

    residual: Callable[..., Any] | None = None
    """The residual as a rewritten graph; None for the user's own."""
    jacobian: Mode | None = None
    """None for the cheaper one: reverse mode costs a pass per row, forward mode one per column (7.7 against 48 ms on
    bundle adjustment: 2 rows, 12 columns)."""
    hessian: Mode = "forward"
    """Of the derivative of the gradient."""
    lane_by_lane: bool = False
    """Loop over blocks and problems instead of `vmap`: slow, for operators whose batching rules are wrong; no slower
    for a single one."""
    sparsity: CompressedPlan | None = None
    """The entries of the Jacobian that are not zero, where use is made of that..."""
    linearization: Callable[..., tuple[Tensor, Tensor]] | None = None
    """... and residual and entries as a function of storages and inputs, recorded."""

    @property
    def layout(self) -> Blocks | CompressedPlan:
        """What the numbers of a Jacobian stand for."""
        return self.sparsity or BLOCKS

    @property
    def is_of_any_count(self) -> bool:
        """Is it as good for more blocks of the same cost? What was rewritten holds tensors of one call."""
        return self.residual is None and not self.lane_by_lane


ORDINARY = Way()


def value_and_jacobian(
    function: Callable[[Tensor], Tensor], at: Float[Tensor, "columns"], mode: Mode
) -> tuple[Float[Tensor, "rows"], Float[Tensor, "rows columns"]]:
    """A function of one vector and its Jacobian."""
    if mode != "forward":
        value, pull = vjp(function, at)
        identity = torch.eye(len(value), dtype=value.dtype, device=value.device)
        if mode == "row by row":
            return value, torch.stack([pull(row)[0] for row in identity])
        return value, vmapped(lambda row: pull(row)[0], (identity,), (0,)).to(value.dtype)
    value, jacobian = value_and_jacfwd(function, at)
    # In torch 2.13 a float32 tensor of shape () times a Python number has a tangent of float64.
    return value, jacobian.to(value.dtype)
