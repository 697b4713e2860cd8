"""Tangents of warps in the coordinates of other maps."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.models import Frame, velocities


def change(of: Frame, to: Frame) -> Float[Tensor, "3 3"]:
    """Normalised coordinates of one frame to those of another."""
    x, y = ((of.centre - to.centre) / to.half).tolist()
    grow = of.half / to.half
    return of.centre.new_tensor([[grow, 0, x], [0, grow, y], [0, 0, 1]])


def adjoint(matrix: Float[np.ndarray, "3 3"], tangent: int) -> Float[np.ndarray, "tangent tangent"]:
    """Ad(X) on the first generators of `models`: X (Σ ξ_k G_k) X⁻¹ = Σ (Ad(X) ξ)_k G_k, up to a multiple of I."""
    turned = matrix @ _generators(tangent) @ np.linalg.inv(matrix)
    turned = turned - turned[:, 2:, 2:] * np.eye(3)
    a, b, c, d = turned[:, 0, 0], turned[:, 0, 1], turned[:, 1, 0], turned[:, 1, 1]
    parts = [turned[:, 0, 2], turned[:, 1, 2], (c - b) / 2, (a + d) / 2, (a - d) / 2, (b + c) / 2]
    return np.stack([*parts, turned[:, 2, 0], turned[:, 2, 1]])[:tangent]


def _generators(count: int) -> Float[np.ndarray, "count 3 3"]:
    """G_k: its columns are what it does to (1, 0, 0), (0, 1, 0) and (0, 0, 1), by differences of `velocities`."""
    corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64, device="cpu")
    at = velocities(corners, count).numpy()
    return np.stack([at[1] - at[0], at[2] - at[0], at[0]], -1).transpose(1, 0, 2)
