"""Homographies between images, as Theseus' example estimates them (`homography_estimation.py`: one mean square
difference of the warped image per pair, a prior at the identity, a convolution before), on synthetic images: the
example downloads photographs, masks what is outside, and warps with kornia. Smooth random images of 60 × 80, each pair
related by a small random homography.
"""

import theseus as th
import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEIGHT, WIDTH, BATCH = 60, 80, 4


def grid(homography: Tensor) -> Tensor:
    """Where the pixels of the first image lie in the second, in normalised coordinates, (batch, rows, columns, 2)."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, HEIGHT), torch.linspace(-1, 1, WIDTH), indexing="ij")
    points = torch.stack([x, y, torch.ones_like(x)], -1)
    moved = torch.einsum("bij,hwj->bhwi", homography, points)
    return moved[..., :2] / moved[..., 2:]


def warped(h8: Tensor, image: Tensor) -> Tensor:
    homography = torch.cat([h8, h8.new_ones(len(h8), 1)], 1).reshape(-1, 3, 3)
    return F.grid_sample(image, grid(homography), mode="bilinear", padding_mode="border", align_corners=True)


def homography_error_fn(optim_vars, aux_vars):
    h8, (first, second) = optim_vars[0].tensor, aux_vars
    return ((warped(h8, second.tensor) - first.tensor) ** 2).mean(dim=(1, 2, 3))[:, None]


def images(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pairs of images (batch, 3, rows, columns)."""
    coarse = torch.rand(BATCH, 3, 6, 8, generator=generator)
    second = F.interpolate(coarse, (HEIGHT, WIDTH), mode="bicubic", align_corners=True)
    identity = torch.tensor([1.0, 0, 0, 0, 1.0, 0, 0, 0])
    truth = identity + 0.03 * torch.randn(BATCH, 8, generator=generator)
    return warped(truth, second), second


def main() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))
    objective = th.Objective()
    start = torch.eye(3).reshape(1, 9)[:, :-1].repeat(BATCH, 1)
    zeros = torch.zeros(BATCH, 3, HEIGHT, WIDTH)
    h8 = th.Vector(tensor=start, name="H8_1_2")
    features = [th.Variable(tensor=zeros, name=name) for name in ("feat1", "feat2")]
    objective.add(th.AutoDiffCostFunction([h8], homography_error_fn, 1, aux_vars=features, autograd_mode="vmap"))
    target = th.Vector(tensor=start[:1].clone(), name="identity")
    objective.add(th.Difference(h8, target, th.ScaleCostWeight(0.1), name="reg_homography"))
    layer = th.TheseusLayer(th.LevenbergMarquardt(objective, max_iterations=50, step_size=0.1))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        first, second = images(generator)
        inputs = {"H8_1_2": start, "feat1": network(first), "feat2": network(second)}
        values, _ = layer.forward(inputs, {"backward_mode": "implicit"})
        loss = ((warped(values["H8_1_2"], second) - first) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
