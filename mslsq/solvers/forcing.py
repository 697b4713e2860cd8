"""How accurately the linear system of a step is solved, where the linear solver iterates: forcing terms.

Far from the solution an exact step is wasted work; near it only accurate ones converge fast.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

LARGEST = 0.1
"""The first relative residual, and the largest: above it steps of pose graphs lose more than their iterations save."""

SMALLEST = 1e-6
"""Below that the rounding of conjugate gradients decides."""


def first_accuracy(cost: Float[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    """The relative residual of the first step."""
    return torch.full_like(cost, LARGEST)


def next_accuracy(
    accuracy: Float[Tensor, "batch"],
    before: Float[Tensor, "batch"],
    after: Float[Tensor, "batch"],
    accepted: Bool[Tensor, "batch"],
) -> Float[Tensor, "batch"]:
    """Choice 2 of S. C. Eisenstat & H. F. Walker, "Choosing the forcing terms in an inexact Newton method" (1996), with
    their safeguard: η ← 0.9 (‖g₊‖² / ‖g‖²), not below 0.9 η² where that exceeds 0.1; a rejected step leaves η.

    Args:
        before, after: ‖g‖² at the last two points, in a norm that does not depend on the units of the unknowns.
    """
    wanted = 0.9 * after / torch.where(before > 0, before, 1)
    careful = 0.9 * accuracy**2
    wanted = torch.where(careful > 0.1, torch.maximum(wanted, careful), wanted)
    wanted = torch.nan_to_num(wanted, nan=LARGEST).clamp(SMALLEST, LARGEST)
    return torch.where(accepted, wanted, accuracy)
