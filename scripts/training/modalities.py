"""Two modalities of one scene, as a stream of small pairs: what learned features are trained on.

A scene is a picture out of a wheel under two tone curves, which may go up and down and vary over the map, or regions
that are drawn, each with two values that have nothing to do with each other (Hoffmann et al., "SynthMorph: learning
contrast-invariant registration without acquired images", 2022). Then each map gets its own lamp, blur, noise and holes,
and the moving one is turned, scaled and shifted. All pictures are of the half "choose" of
`benchmarks/metric_pairs.py`, and no two bands of a picture are ever paired. A batch is a function of (seed, number).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from mslsq.alignment.learned.pairs import bundled, mirrored
from mslsq.alignment.pyramid import blur, build

PICTURES = ("astronaut", "rocket.jpg", "brick", "elevation", "ihc.png", "motorcycle_left.png", "text.png",
            "clock_motion.png")  # fmt: skip

REFERENCE, MOVING, SCENE = 64, 84, 136
"""Sides in pixels; however the moving map is turned, it holds most of the reference."""

SMALLEST = 60
"""Pictures are seen on every level of their pyramid down to this side."""

Random = np.random.Generator
Image = Float[Tensor, "height width"]
Images = Float[Tensor, "batch height width"]


@dataclass(frozen=True)
class ModalityBatch:
    """Maps, what of them is known, and `to_moving`: (A, b) of x ↦ A x + b, reference to moving pixel, both from the
    middle."""

    reference: Images
    reference_mask: Bool[Tensor, "batch height width"]
    moving: Images
    moving_mask: Bool[Tensor, "batch height width"]
    to_moving: tuple[Float[Tensor, "batch 2 2"], Float[Tensor, "batch 2"]]


def modality_batch(count: int, seed: int, number: int) -> ModalityBatch:
    """Batch `number` of the stream of this seed."""
    random = np.random.default_rng((seed, number))
    ones, others = (torch.stack(images) for images in zip(*(scene(random) for _ in range(count)), strict=True))
    angle = drawn(random.uniform(-np.pi, np.pi, count))
    scale = drawn(np.exp(random.uniform(-0.2, 0.2, count)))
    shift = drawn(random.uniform(-3, 3, (count, 2)))
    cos, sin = scale * angle.cos(), scale * angle.sin()
    to_scene = torch.stack([cos, -sin, sin, cos], -1).unflatten(-1, (2, 2))
    reference = seen(ones, middle_grid(REFERENCE).expand(count, -1, -1, -1))
    at = torch.einsum("nij,hwj->nhwi", to_scene, middle_grid(MOVING)) + shift[:, None, None]
    reference, moving = (taken(images, random) for images in (reference, seen(others, at)))
    masks = [known(images.shape, random) for images in (reference, moving)]
    c, s = cos / scale.square(), sin / scale.square()
    inverse = torch.stack([c, s, -s, c], -1).unflatten(-1, (2, 2))
    to_moving = inverse, -(inverse @ shift[..., None])[..., 0]
    return ModalityBatch(reference, masks[0], moving, masks[1], to_moving)


def drawn(values: np.ndarray) -> Tensor:
    """Random numbers in single precision."""
    return torch.from_numpy(np.asarray(values)).float()


def middle_grid(side: int) -> Float[Tensor, "side side 2"]:
    """Pixels (x, y), from the middle."""
    at = torch.arange(side, dtype=torch.float32) - (side - 1) / 2
    return torch.stack(torch.meshgrid(at, at, indexing="xy"), -1)


def seen(images: Images, at: Float[Tensor, "batch h w 2"]) -> Float[Tensor, "batch h w"]:
    """Values at points from the middle, by cubic convolution."""
    scaled = at * 2 / (images.shape[-1] - 1)
    found = functional.grid_sample(images[:, None], scaled, "bicubic", "border", align_corners=True)
    return found[:, 0]


# ---- scenes


def scene(random: Random) -> tuple[Image, Image]:
    """One scene as two modalities show it."""
    return of_a_picture(random) if random.random() < 0.65 else of_regions(random)


def of_a_picture(random: Random) -> tuple[Image, Image]:
    """A picture, as it is or under a curve, and under another."""
    values = window(random)
    one = values if random.random() < 0.4 else under_curve(values, random)
    other = under_curve(values, random)
    if random.random() < 0.4:
        share = torch.sigmoid(3 * slow_fields(1, SCENE, random.uniform(15, 40), random)[0])
        other = share * other + (1 - share) * under_curve(values, random)
    if random.random() < 0.2:
        which = regions(random)
        one, other = (
            image / image.std().clamp(min=1e-3) + random.uniform(0.3, 1) * of_each(which, random)
            for image in (one, other)
        )
    return one, other


def of_regions(random: Random) -> tuple[Image, Image]:
    """Regions with two values each, and a texture."""
    which, texture, strength = regions(random), window(random), random.uniform(0, 0.5)
    both = [of_each(which, random) + strength * under_curve(texture, random) for _ in range(2)]
    return tuple(blur(image, random.uniform(0.6, 1.5), "mirror") for image in both)  # type: ignore[return-value]


def window(random: Random) -> Image:
    """A square out of some level of some picture, in [0, 1]; mirrored at its border."""
    levels = pyramids()
    image = levels[random.integers(len(levels))]
    rows, columns = (mirrored(np.arange(SCENE) + random.integers(0, side) - SCENE // 2, side) for side in image.shape)
    square = image[torch.from_numpy(rows)[:, None], torch.from_numpy(columns)]
    square = square.T if random.random() < 0.5 else square
    return (square - square.min()) / (square.max() - square.min() + 1e-6)


@lru_cache(maxsize=1)
def pyramids() -> list[Image]:
    """Every level of every picture, grey."""
    found = []
    for name in PICTURES:
        grey = torch.from_numpy(np.ascontiguousarray(bundled(name).mean(-1)))[None]
        levels = build(grey, torch.ones(grey.shape[1:], dtype=torch.bool), 4, prefilter=0.0)
        found += [level.raster[0].float() for level in levels if min(level.size) >= SMALLEST]
    return found


def under_curve(values: Image, random: Random) -> Image:
    """A power, or a few sines of the values, up or down; standardised."""
    if random.random() < 0.2:
        out = values ** float(np.exp(random.uniform(-1.2, 1.2)))
    else:
        out = torch.zeros_like(values)
        for turns in (0.5, 1.0, 1.5):
            angle = 1.5 * np.pi * (turns * values + random.random())
            out = out + float(random.standard_normal() / turns**0.5) * angle.sin()
    out = -out if random.random() < 0.5 else out
    return (out - out.mean()) / (out.std() + 1e-3)


def slow_fields(count: int, side: int, width: float, random: Random) -> Images:
    """Smooth random fields of unit variance at their knots, which are about `width` pixels apart."""
    knots = max(3, int(side / width) + 2)
    coarse = drawn(random.standard_normal((count, 1, knots, knots)))
    return functional.interpolate(coarse, size=(side, side), mode="bicubic", align_corners=True)[:, 0]


def regions(random: Random) -> Int[Tensor, "height width"]:
    """Cells around points with wavy borders, patches of random fields, or discs and bars on each other."""
    y, x = np.mgrid[:SCENE, :SCENE]
    sort = random.integers(3)
    if sort == 0:
        points = random.uniform(0, SCENE, (random.integers(6, 60), 2))
        wavy = [axis + 6 * slow_fields(1, SCENE, 20, random)[0].numpy() for axis in (x, y)]
        distance = sum((axis[..., None] - points[:, i]) ** 2 for i, axis in enumerate(wavy))
        return torch.from_numpy(np.argmin(distance, -1))
    if sort == 1:
        return slow_fields(int(random.integers(3, 9)), SCENE, random.uniform(4, 20), random).argmax(0)
    which = np.zeros((SCENE, SCENE), dtype=np.int64)
    for number in range(1, int(random.integers(20, 120))):
        (u, v), angle = random.uniform(0, SCENE, 2), random.uniform(0, np.pi)
        radius, flat = random.uniform(2, 30) * random.uniform(0.3, 1), random.uniform(0.08, 1)
        along = (x - u) * np.cos(angle) + (y - v) * np.sin(angle)
        across = ((y - v) * np.cos(angle) - (x - u) * np.sin(angle)) / flat
        bar = random.random() < 0.5
        which[np.maximum(abs(along), abs(across)) < radius if bar else along**2 + across**2 < radius**2] = number
    return torch.from_numpy(which)


def of_each(which: Int[Tensor, "height width"], random: Random) -> Image:
    """A random value for every region."""
    return drawn(random.standard_normal(int(which.max()) + 1))[which]


# ---- what a camera makes of a scene


def taken(images: Images, random: Random) -> Images:
    """Each with its own light, blur and noise, and the prefilter of an alignment on top; standardised first."""
    count, side = len(images), images.shape[-1]
    images = (images - images.mean((1, 2), keepdim=True)) / (images.std((1, 2), keepdim=True) + 1e-3)
    lit = drawn(random.random(count) < 0.4)[:, None, None]
    gain, bias = (strength * lit * slow_fields(count, side, 25, random) for strength in (0.5, 0.7))
    images = (images + 2) * gain.exp() + bias
    images = images / images.std((1, 2), keepdim=True).clamp(min=1e-3)
    soft = torch.from_numpy(random.random(count) < 0.25)[:, None, None]
    images = torch.where(soft, blur(images, random.uniform(0.5, 1.3), "mirror"), images)
    noise = drawn(np.exp(random.uniform(np.log(0.01), np.log(0.5), count)))[:, None, None]
    return blur(images + noise * drawn(random.standard_normal(images.shape)), 1.0, "mirror")


def known(shape: torch.Size, random: Random) -> Bool[Tensor, "batch height width"]:
    """All of it, or every fifth time all but some patches."""
    fields = slow_fields(shape[0], shape[-1], random.uniform(8, 20), random)
    return (fields < random.uniform(0.5, 2.0)) | torch.from_numpy(random.random(shape[0]) < 0.8)[:, None, None]
