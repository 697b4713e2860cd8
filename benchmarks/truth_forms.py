"""Kinds of pairs of which both scenes have several forms in common, and nothing else: no match, whatever lies on what.

Written on 2026-11-28, to choose the rule about what is beside such forms (`mslsq.alignment.remainder`).
"""

import numpy as np
import scipy.ndimage
from truth_fourth import turned
from truth_scenes import Pair, grains, other_rasters

Raster = np.ndarray
Random = np.random.Generator


def soft(image: Raster, random: Random, noise: float = 0.01) -> Raster:
    """As a camera sees it."""
    return scipy.ndimage.gaussian_filter(image, 0.7) + noise * random.standard_normal(image.shape)


def around_the_middle(size: int, random: Random, away: float = 0.04) -> Raster:
    """A point (x, y) near the middle, by a share of the side at most."""
    return size / 2 + random.uniform(-away * size, away * size, 2)


def irises(size: int, random: Random) -> Pair:
    """Two eyes of one size, near: the pupil, the rim of the iris, and in between fibres of each one's own."""
    outer, inner = size * random.uniform(0.36, 0.44), size * random.uniform(0.12, 0.2)

    def iris() -> Raster:
        along, across = turned(size, around_the_middle(size, random), 0.0)
        away, angle = np.hypot(along, across), np.arctan2(across, along)
        fibres = sum(
            random.standard_normal() * np.cos(n * angle + random.uniform(0, 7) + away * random.uniform(0, 0.2))
            for n in range(9, 40)
        )
        image = 0.45 + 0.025 * fibres + 0.05 * grains(size, 3.0, random)
        image = np.where(away < inner, 0.02, np.where(away < outer, image, 0.85 + 0.02 * grains(size, 6.0, random)))
        glint = around_the_middle(size, random, 0.2)
        image[np.hypot(*turned(size, glint, 0.0)) < random.uniform(2.0, 5.0)] = 1.0
        return soft(image, random)

    return iris(), iris()


def wells(size: int, random: Random) -> Pair:
    """Two plates of four to nine round wells, each with colonies of its own."""
    rows, columns = int(random.integers(2, 4)), int(random.integers(2, 4))
    radius, pitch = 0.4 * size / max(rows, columns), 0.92 * size / max(rows, columns)

    def plate() -> Raster:
        middle = around_the_middle(size, random)
        image = np.full((size, size), 0.3)
        for row in range(rows):
            for column in range(columns):
                at = middle + pitch * np.array([column - (columns - 1) / 2, row - (rows - 1) / 2])
                away = np.hypot(*turned(size, at, 0.0))
                image[away < radius] = 0.6
                image[np.abs(away - radius) < 1.0] = 0.9
                for _ in range(int(random.integers(2, 9))):
                    where, angle = 0.8 * radius * np.sqrt(random.random()), random.uniform(0, 2 * np.pi)
                    spot = np.hypot(*turned(size, at + where * np.array([np.cos(angle), np.sin(angle)]), 0.0))
                    image[spot < random.uniform(1.2, 3.5)] = random.uniform(0.7, 1.0)
        return soft(image, random)

    return plate(), plate()


def framed(size: int, random: Random) -> Pair:
    """Other pictures in one kind of frame: a wide moulding with a line along its middle."""
    high, wide = size * random.uniform(0.32, 0.4, 2)
    width = size * random.uniform(0.05, 0.09)
    pictures = other_rasters(size, random)

    def hung(picture: Raster) -> Raster:
        along, across = turned(size, around_the_middle(size, random), 0.0)
        beyond = np.maximum(np.abs(along) - wide, np.abs(across) - high)
        image = np.where(beyond < 0, 0.2 + 0.6 * picture, np.where(beyond < width, 0.1, 0.8))
        image[np.abs(beyond - width / 2) < 0.8] = 0.5
        return soft(image, random)

    return hung(pictures[0]), hung(pictures[1])


def cards(size: int, random: Random) -> Pair:
    """Two cards with round corners and a thin border, each with signs of its own."""
    high, wide = size * random.uniform(0.38, 0.44), size * random.uniform(0.26, 0.36)
    corner, within = size * random.uniform(0.05, 0.1), size * random.uniform(0.03, 0.06)

    def card() -> Raster:
        middle, turn = around_the_middle(size, random), random.uniform(-0.2, 0.2)
        along, across = turned(size, middle, turn)
        past = np.maximum(np.abs(along) - wide + corner, 0), np.maximum(np.abs(across) - high + corner, 0)
        inside = np.minimum(np.maximum(np.abs(along) - wide, np.abs(across) - high), 0)
        beyond = np.hypot(*past) - corner + np.where(np.hypot(*past) > 0, 0, inside + corner)
        image = np.where(beyond < 0, 0.95, 0.3)
        image[np.abs(beyond + within) < 0.8] = 0.2
        for _ in range(int(random.integers(3, 12))):
            u, v = random.uniform(-0.75, 0.75, 2) * (wide, high)
            reach, kind = random.uniform(0.03, 0.07) * size, int(random.integers(3))
            dx, dy = np.abs(along - u), np.abs(across - v)
            sign = (np.hypot(dx, dy), dx + dy, np.maximum(dx, dy))[kind] < reach
            image[sign] = random.uniform(0.0, 0.6)
        return soft(image, random)

    return card(), card()


def binoculars(size: int, random: Random) -> Pair:
    """Other scenes through one pair of glasses: two round fields that overlap."""
    radius, apart = size * random.uniform(0.27, 0.32), size * random.uniform(0.15, 0.2)
    at = around_the_middle(size, random, 0.03)
    away = np.minimum(*(np.hypot(*turned(size, at + np.array([side * apart, 0.0]), 0.0)) for side in (-1, 1)))
    field = scipy.ndimage.gaussian_filter((away < radius).astype(np.float64), 0.7)
    one, other = other_rasters(size, random)
    return one * field, other * field
