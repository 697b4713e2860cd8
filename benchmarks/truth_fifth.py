"""Kinds of pairs of which both scenes have a form in common, and nothing else: no match, whatever lies on what.

Written on 2026-11-26, before the rule about forms (`mslsq.alignment.weighing`), for the claim of `metric="auto"`.
"""

import numpy as np
import scipy.ndimage
from truth_fourth import turned
from truth_scenes import Pair, grains, other_rasters

Raster = np.ndarray
Random = np.random.Generator


def coins(size: int, random: Random) -> Pair:
    """Two coins of one size: a rim, and a relief of each one's own, lit from one side."""
    radius = size * random.uniform(0.3, 0.42)

    def coin() -> Raster:
        away = np.hypot(*turned(size, size / 2 + random.uniform(-0.05 * size, 0.05 * size, 2), 0.0)) / radius
        relief = scipy.ndimage.gaussian_filter((grains(size, 5.0, random) > 0.3).astype(np.float64), 1.0)
        height = np.where(away < 0.88, 0.6 * relief, np.where(away < 1.0, 1.0, 0.0))
        light = np.gradient(scipy.ndimage.gaussian_filter(height, 1.0))[1]
        shade = np.where(away < 1.0, 0.5, 0.15) + 0.8 * light
        return scipy.ndimage.gaussian_filter(shade, 0.6) + 0.01 * random.standard_normal((size, size))

    return coin(), coin()


def gauges(size: int, random: Random) -> Pair:
    """Two instruments with one round dial: the same ring, other marks, other hands, and nothing on a pale face."""
    radius = size * random.uniform(0.32, 0.45)

    def gauge() -> Raster:
        along, across = turned(size, size / 2 + random.uniform(-0.04 * size, 0.04 * size, 2), random.uniform(0, 7))
        away, angle = np.hypot(along, across) / radius, np.arctan2(across, along)
        dial = np.where(away < 1.0, 0.9, 0.4)
        dial[np.abs(away - 0.97) < 0.04] = 0.1
        marks = int(random.integers(7, 30))
        on_mark = np.abs((angle * marks / (2 * np.pi)) % 1.0 - 0.5) < 0.06 * marks / 12
        dial[on_mark & (np.abs(away - 0.8) < random.uniform(0.05, 0.1)) & (np.abs(angle) < random.uniform(1.5, 3))] = (
            0.1
        )
        for _ in range(int(random.integers(1, 3))):
            hand = random.uniform(-np.pi, np.pi)
            forward, aside = along * np.cos(hand) + across * np.sin(hand), across * np.cos(hand) - along * np.sin(hand)
            dial[(forward > 0) & (forward < 0.7 * radius) & (np.abs(aside) < 1.5)] = random.uniform(0.0, 0.5)
        return scipy.ndimage.gaussian_filter(dial, 0.7) + 0.01 * random.standard_normal((size, size))

    return gauge(), gauge()


def dishes(size: int, random: Random) -> Pair:
    """Two dishes with other colonies, and the glass of both a double ring."""
    radius = size * random.uniform(0.34, 0.46)

    def dish() -> Raster:
        middle = size / 2 + random.uniform(-0.04 * size, 0.04 * size, 2)
        away = np.hypot(*turned(size, middle, 0.0)) / radius
        image = np.where(away < 1.0, 0.6, 0.2) + 0.3 * (np.abs(away - 1.0) < 0.02) + 0.2 * (np.abs(away - 0.93) < 0.015)
        for _ in range(int(random.integers(5, 40))):
            where, angle = radius * 0.85 * np.sqrt(random.random()), random.uniform(0, 2 * np.pi)
            at = middle + where * np.array([np.cos(angle), np.sin(angle)])
            spot = np.hypot(*turned(size, at, 0.0)) < random.uniform(1.5, 5.0)
            image[spot] = random.uniform(0.75, 1.0)
        return scipy.ndimage.gaussian_filter(image, 0.8) + 0.01 * random.standard_normal((size, size))

    return dish(), dish()


def portholes(size: int, random: Random) -> Pair:
    """Other pictures behind one oval window, with a frame that is brighter than they are."""
    along, across = turned(size, size / 2 + random.uniform(-4, 4, 2), random.uniform(0, np.pi))
    long, wide = size * random.uniform(0.38, 0.47), size * random.uniform(0.28, 0.38)
    away = np.hypot(along / long, across / wide)
    window = scipy.ndimage.gaussian_filter((away < 1.0).astype(np.float64), 0.8)
    one, other = other_rasters(size, random)
    return (one * window + 1.2 * (1 - window), other * window + 1.2 * (1 - window))
