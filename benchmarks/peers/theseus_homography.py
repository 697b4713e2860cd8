"""Theseus' `homography_estimation.py`, unchanged, on photographs that are not there: synthetic ones in the folder into
which it would download a tar archive. Shapes of even colour on clouds of many sizes: they have edges and slopes.

The program takes events of a GPU to time itself by: where there is none they are empty. Its own batch is 64 to 128:
here it is 4, of 14,400 differences a pair.
"""

import importlib
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

HEIGHT, WIDTH, COUNT, BATCH = 240, 320, 45, 4


class NoEvent:
    """An event of a GPU that is not there."""

    def __init__(self, **options: Any): ...
    def record(self) -> None: ...
    def elapsed_time(self, other: "NoEvent") -> float:
        return 0.0


def photograph(generator: torch.Generator) -> Tensor:
    """Colours (rows, columns, 3) in 0..1."""
    image = torch.full((1, 3, HEIGHT, WIDTH), 0.5)
    for cells in (3, 6, 12, 24):
        clouds = torch.randn(1, 3, cells, cells, generator=generator) / cells**0.5
        image = image + 0.2 * F.interpolate(clouds, (HEIGHT, WIDTH), mode="bicubic", align_corners=True)
    y, x = torch.meshgrid(torch.linspace(0, 1, HEIGHT), torch.linspace(0, 1, WIDTH), indexing="ij")
    for _ in range(8):
        centre_x, centre_y, wide, high = torch.rand(4, generator=generator).tolist()
        colour = torch.rand(3, generator=generator)[None, :, None, None]
        inside = ((x - centre_x).abs() < 0.05 + 0.15 * wide) & ((y - centre_y).abs() < 0.05 + 0.15 * high)
        image = torch.where(inside, colour, image)
    return image[0].clamp(0, 1).permute(1, 2, 0)


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    folder = Path.cwd() / "data" / "revisitop1m.1"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(COUNT):
        colours = (255 * photograph(generator)).to(torch.uint8).numpy()
        Image.fromarray(colours).save(folder / f"{number:03d}.jpg", quality=95)
    if not torch.cuda.is_available():
        torch.cuda.Event = NoEvent  # type: ignore[misc, assignment]
        torch.cuda.synchronize = torch.cuda.reset_peak_memory_stats = lambda *_: None
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 -- what the program's augmentation draws from
    example: Any = importlib.import_module("examples.homography_estimation")  # of the checkout, on the path
    example.write_gif_batch = lambda *_: None  # it draws with a program that may not be there
    example.run(batch_size=BATCH, num_epochs=9)


if __name__ == "__main__":
    sys.exit(main())
