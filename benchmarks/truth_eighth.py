"""Kinds of pairs of which both scenes have one form in common, or several: no match, whatever lies on what.

Written on 2026-11-28 when the rule about what is beside forms (`mslsq.alignment.remainder`) had been fixed: for the
claim.
"""

import numpy as np
import scipy.ndimage
from truth_forms import around_the_middle, soft
from truth_fourth import turned
from truth_scenes import Pair, grains, photographs

Raster = np.ndarray
Random = np.random.Generator


def meals(size: int, random: Random) -> Pair:
    """Two plates with a double rim, and other things to eat on them."""
    radius, well = size * random.uniform(0.36, 0.46), random.uniform(0.65, 0.8)

    def meal() -> Raster:
        middle = around_the_middle(size, random)
        away = np.hypot(*turned(size, middle, 0.0)) / radius
        image = np.where(away < 1, 0.9, 0.4 + 0.08 * grains(size, 3.0, random))
        image = np.where(np.abs(away - 0.97) < 0.03, 0.65, np.where(np.abs(away - well) < 0.02, 0.75, image))
        for _ in range(int(random.integers(3, 14))):
            where, angle = 0.7 * well * radius * np.sqrt(random.random()), random.uniform(0, 2 * np.pi)
            at = middle + where * np.array([np.cos(angle), np.sin(angle)])
            along, across = turned(size, at, random.uniform(0, np.pi))
            piece = np.hypot(along / random.uniform(4, 14), across / random.uniform(3, 8)) < 1
            image = np.where(piece, random.uniform(0.1, 0.7) + 0.06 * grains(size, 1.2, random), image)
        return soft(image, random)

    return meal(), meal()


def tunnels(size: int, random: Random) -> Pair:
    """Two views into one pipe: rings that narrow towards the middle, and stains on the wall."""
    rings = size * np.array([0.46, 0.32, 0.22, 0.15]) * random.uniform(0.9, 1.0)

    def tunnel() -> Raster:
        middle = around_the_middle(size, random, 0.03)
        away = np.hypot(*turned(size, middle, 0.0))
        image = np.clip(away / (0.5 * size), 0, 1) * (0.7 + 0.15 * grains(size, 4.0, random))
        for ring in rings:
            image[np.abs(away - ring) < 1.5] *= 0.4
        return soft(np.where(away < rings[-1] * 0.8, 0.0, image), random)

    return tunnel(), tunnel()


def screens(size: int, random: Random) -> Pair:
    """Two screens of one make, with a dark edge and a foot, that show other windows."""
    high, wide = size * random.uniform(0.26, 0.34), size * random.uniform(0.36, 0.44)
    edge, foot = size * random.uniform(0.03, 0.05), size * random.uniform(0.06, 0.12)

    def screen() -> Raster:
        along, across = turned(size, around_the_middle(size, random, 0.03) - (0, 0.06 * size), 0.0)
        beyond = np.maximum(np.abs(along) - wide, np.abs(across) - high)
        image = np.full((size, size), 0.7) + 0.03 * grains(size, 8.0, random)
        image[(np.abs(along) < foot) & (across > 0) & (across < high + 0.16 * size)] = 0.2
        image[beyond < edge] = 0.1
        shown = np.full((size, size), random.uniform(0.3, 0.6))
        for _ in range(int(random.integers(2, 7))):
            (u, v), (w, h) = random.uniform(-0.8, 0.8, 2) * (wide, high), random.uniform(0.1, 0.3, 2) * size
            window = (np.abs(along - u) < w) & (np.abs(across - v) < h)
            text = np.asarray(scipy.ndimage.zoom(random.random((size // 2, size // 2)) < 0.3, 2, order=0))[:size, :size]
            shown = np.where(window, np.where(text, 0.2, random.uniform(0.7, 1.0)), shown)
        return soft(np.where(beyond < 0, shown, image), random)

    return screen(), screen()


def labels(size: int, random: Random) -> Pair:
    """Two bottles of one shape with other labels."""
    belly, neck = size * random.uniform(0.2, 0.28), size * random.uniform(0.06, 0.09)
    shoulder, top = size * random.uniform(0.25, 0.35), 0.06 * size
    pictures = photographs(size, random)

    def bottle(picture: Raster) -> Raster:
        along, _ = turned(size, around_the_middle(size, random, 0.03), 0.0)
        down = np.mgrid[:size, :size][0] - random.uniform(0, 0.03) * size
        half = neck + (belly - neck) / (1 + np.exp(-(down - shoulder) / (0.03 * size)))
        inside = (np.abs(along) < half) & (down > top)
        glass = 0.15 + 0.3 * np.exp(-(((along + 0.6 * half) / (0.1 * half)) ** 2))
        image = np.where(inside, glass, 0.8 + 0.05 * grains(size, 6.0, random))
        paper = (np.abs(along) < 0.95 * half) & (down > 0.5 * size) & (down < 0.85 * size)
        return soft(np.where(paper, 0.3 + 0.7 * picture, image), random)

    return bottle(pictures[0]), bottle(pictures[1])


def medals(size: int, random: Random) -> Pair:
    """Two medals: a star of five to eight points and a round shield, each with a relief of its own."""
    points, outer = int(random.integers(5, 9)), size * random.uniform(0.38, 0.46)
    inner, shield = outer * random.uniform(0.6, 0.75), outer * random.uniform(0.4, 0.5)

    def medal() -> Raster:
        along, across = turned(size, around_the_middle(size, random), 0.0)
        away, angle = np.hypot(along, across), np.arctan2(across, along)
        rim = inner + (outer - inner) * np.abs(np.abs((angle * points / (2 * np.pi)) % 1 - 0.5) * 2)
        relief = scipy.ndimage.gaussian_filter((grains(size, 4.0, random) > 0.2).astype(np.float64), 0.8)
        shade = 0.6 + 0.9 * np.gradient(scipy.ndimage.gaussian_filter(relief, 0.8))[1]
        image = np.where(away < rim, 0.75 + 0.04 * grains(size, 1.5, random), 0.2 + 0.04 * grains(size, 6.0, random))
        image = np.where(away < shield, shade, image)
        image[np.abs(away - shield) < 1.2] = 0.3
        return soft(image, random)

    return medal(), medal()
