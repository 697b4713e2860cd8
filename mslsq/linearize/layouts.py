"""What the numbers of a Jacobian stand for: whole blocks here, the non-zero entries of one residual in `compressed`.

All that is computed from Jacobians, term by term, is a product that their layout takes. The other layout is a
`CompressedPlan`, with (1, entries, lanes) in place of (outer, rows, tangent, lanes).
"""

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

Jacobian = Float[Tensor, "outer rows tangent lanes"]
Rows = Float[Tensor, "outer rows lanes"]
Tangent = Float[Tensor, "outer tangent lanes"]


class Blocks:
    """A dense block for each lane."""

    def pulled(self, jacobian: Jacobian, u: Rows) -> Tangent:
        """Jᵀu of every lane."""
        return (u[:, :, None] * jacobian).sum(1)

    def pushed(self, jacobian: Jacobian, v: Tangent) -> Rows:
        """J v of every lane."""
        return (jacobian * v[:, None]).sum(2)

    def squared(self, jacobian: Jacobian) -> Float[Tensor, "outer tangent tangent lanes"]:
        """JᵀJ of every lane."""
        return einsum(jacobian, jacobian, "o rows a lanes, o rows b lanes -> o a b lanes")

    def hessian_times(self, hessian: Float[Tensor, "tangent tangent"], v: Float[Tensor, "tangent"]) -> Tensor:
        """H v of one lane."""
        return hessian @ v

    def spread(self, by_row: Rows) -> Float[Tensor, "outer rows 1 lanes"]:
        """A number of every row, for each of the row's entries."""
        return by_row[:, :, None]

    def along(self, residual: Rows, jacobian: Jacobian, pairs: int) -> Jacobian:
        """rᵀJ over the group that each row belongs to: two of the leading `pairs`, or itself; without any pairs all
        rows of the block."""
        products = residual[:, :, None] * jacobian
        if not pairs:
            return products.sum(1, keepdim=True)
        together = products[:, : 2 * pairs].unflatten(1, (pairs, 2)).sum(2)
        return torch.cat((together.repeat_interleave(2, 1), products[:, 2 * pairs :]), 1)


BLOCKS = Blocks()
