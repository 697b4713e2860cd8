"""Kinds of pairs of which both scenes have one form in common, or several: no match, whatever lies on what.

Written on 2026-11-28 for the claim about what is beside forms (`mslsq.alignment.remainder`), and looked at before its
thresholds were fixed: they belong to "choose".
"""

import numpy as np
import scipy.ndimage
from truth_forms import around_the_middle, soft
from truth_fourth import turned
from truth_scenes import Pair, grains, other_rasters, photographs

Raster = np.ndarray
Random = np.random.Generator


# ---- with one form in common


def moons(size: int, random: Random) -> Pair:
    """Two moons of one size, lit from one side, with craters of each one's own."""
    radius, light = size * random.uniform(0.3, 0.44), random.uniform(0, 2 * np.pi)

    def moon() -> Raster:
        middle = around_the_middle(size, random)
        away = np.hypot(*turned(size, middle, 0.0)) / radius
        height = 0.3 * grains(size, 4.0, random)
        for _ in range(int(random.integers(10, 40))):
            crater = np.hypot(*turned(size, random.uniform(0, size, 2), 0.0)) / random.uniform(2.0, 10.0)
            height += np.where(crater < 1, crater**2 - 1, 0.4 * np.exp(-(((crater - 1) / 0.3) ** 2)))
        down, right = np.gradient(scipy.ndimage.gaussian_filter(height, 0.8))
        shade = 0.6 + 0.5 * (np.cos(light) * right + np.sin(light) * down)
        return soft(np.where(away < 1, shade * np.sqrt(np.clip(1 - 0.8 * away**2, 0, 1)), 0.0), random)

    return moon(), moon()


def fans(size: int, random: Random) -> Pair:
    """Ultrasound: a sector, and in it speckle and dark vessels."""
    half, top = random.uniform(0.5, 0.75), size * random.uniform(0.02, 0.08)
    near, far = size * random.uniform(0.08, 0.18), size * random.uniform(0.8, 0.9)

    def fan() -> Raster:
        y, x = np.mgrid[:size, :size]
        down, right = y - top, x - size / 2
        away, angle = np.hypot(down, right), np.arctan2(right, down)
        tissue = 0.5 + 0.25 * grains(size, 10.0, random)
        for _ in range(int(random.integers(1, 6))):
            along, across = turned(size, random.uniform(0.2, 0.8, 2) * size, random.uniform(0, np.pi))
            tissue[np.hypot(along / random.uniform(4, 16), across / random.uniform(3, 8)) < 1] = 0.1
        speckle = np.abs(grains(size, (0.8, 1.6), random)) / 0.8
        return soft(np.where((np.abs(angle) < half) & (away > near) & (away < far), tissue * speckle, 0.0), random)

    return fan(), fan()


def signs(size: int, random: Random) -> Pair:
    """Two traffic signs, triangles with a red border, with other pictures on them."""
    reach, border = size * random.uniform(0.34, 0.42), random.uniform(0.1, 0.18)

    def sign() -> Raster:
        middle = around_the_middle(size, random)
        sides = [turned(size, middle, np.pi / 2 + 2 * np.pi * k / 3)[0] / reach for k in range(3)]
        beyond = 2 * np.maximum.reduce(sides)
        image = 0.5 + 0.08 * grains(size, 6.0, random)
        image = np.where(beyond < 1, np.where(beyond < 1 - 2 * border, 0.95, 0.35), image)
        blob = scipy.ndimage.gaussian_filter(random.standard_normal((size, size)), size / 25, mode="wrap")
        image[(blob > 0.7 * blob.std()) & (beyond < 0.8 - 2 * border)] = 0.05
        return soft(image, random)

    return sign(), sign()


# ---- with several


def records(size: int, random: Random) -> Pair:
    """Two records: a black disc, a round label with letters, and a hole."""
    outer = size * random.uniform(0.4, 0.47)
    label = outer * random.uniform(0.3, 0.45)

    def record() -> Raster:
        along, across = turned(size, around_the_middle(size, random, 0.02), random.uniform(0, 7))
        away, angle = np.hypot(along, across), np.arctan2(across, along)
        gleam = 0.12 * np.exp(-(np.sin(angle - random.uniform(0, 7)) ** 2) * random.uniform(5, 20))
        grooves = 0.1 + gleam + 0.03 * np.sin(away * random.uniform(1.2, 2.0))
        printed = np.asarray(scipy.ndimage.zoom(random.random((size // 4, size // 6)) < 0.35, (4, 6), order=0))
        letters = printed[:size, :size]
        letters = np.pad(letters, [(0, size - side) for side in letters.shape])
        paper = np.where(letters, random.uniform(0.1, 0.4), random.uniform(0.6, 0.9))
        image = np.where(away < outer, np.where(away < label, paper, grooves), 0.75 + 0.04 * grains(size, 5.0, random))
        image[away < 0.03 * size] = 0.95
        return soft(image, random)

    return record(), record()


def wheels(size: int, random: Random) -> Pair:
    """Two wheels of one size, tyre, rim and hub, with other spokes, before other grounds."""
    outer = size * random.uniform(0.38, 0.45)
    rim, hub = 0.75 * outer, outer * random.uniform(0.15, 0.25)

    def wheel(count: int) -> Raster:
        along, across = turned(size, around_the_middle(size, random), random.uniform(0, 7))
        away, angle = np.hypot(along, across), np.arctan2(across, along)
        wide = random.uniform(0.15, 0.5)
        spoke = np.cos(count * angle + random.uniform(0, 0.03) * away) > 1 - 2 * wide
        image = np.where(spoke, random.uniform(0.6, 0.9), 0.2)
        image = np.where(away < hub, 0.7, np.where(away < rim, image, 0.08))
        image[np.abs(away - rim) < 2.0] = 0.85
        image = np.where(away < outer, image, 0.5 + 0.12 * grains(size, 5.0, random))
        return soft(image, random)

    one, other = random.choice(np.arange(3, 14), 2, replace=False)
    return wheel(int(one)), wheel(int(other))


def stamps(size: int, random: Random) -> Pair:
    """Two stamps: the same perforated edge and border, other pictures."""
    high, wide = size * random.uniform(0.36, 0.44), size * random.uniform(0.3, 0.4)
    teeth, margin = int(random.integers(9, 16)), size * random.uniform(0.05, 0.08)
    pictures = photographs(size, random)

    def stamp(picture: Raster) -> Raster:
        along, across = turned(size, around_the_middle(size, random), 0.0)
        beyond = np.maximum(np.abs(along) - wide, np.abs(across) - high)
        pitch = 2 * wide / teeth
        gap = [np.abs((way / pitch) % 1 - 0.5) * pitch for way in (along, across)]
        hole = np.minimum(
            np.hypot(gap[0], np.abs(across) - high - 0.02 * size), np.hypot(gap[1], np.abs(along) - wide - 0.02 * size)
        )
        image = np.where((beyond < 0.02 * size) & (hole > 0.3 * pitch), 0.95, 0.15)
        inner = beyond + margin
        image = np.where(inner < 0, np.where(inner > -1.5, 0.1, 0.1 + 0.8 * picture), image)
        return soft(image, random)

    return stamp(pictures[0]), stamp(pictures[1])


def scopes(size: int, random: Random) -> Pair:
    """Other scenes in one telescope's round field, with a cross of hairs."""
    at, radius = around_the_middle(size, random), size * random.uniform(0.38, 0.46)
    along, across = turned(size, at, random.uniform(0, np.pi / 2))
    away = np.hypot(along, across)
    hair = (np.minimum(np.abs(along), np.abs(across)) < 0.8) & (away > size * random.uniform(0.0, 0.1))
    field = scipy.ndimage.gaussian_filter(((away < radius) & ~hair).astype(np.float64), 0.7)
    one, other = other_rasters(size, random)
    return one * field + 0.01 * random.standard_normal(one.shape), other * field


def clocks(size: int, random: Random) -> Pair:
    """Two clocks of one maker: rim, twelve marks and hub alike, other hands, other pictures on the face."""
    radius, long = size * random.uniform(0.36, 0.45), random.uniform(0.08, 0.15)

    def clock() -> Raster:
        along, across = turned(size, around_the_middle(size, random), 0.0)
        away, angle = np.hypot(along, across) / radius, np.arctan2(across, along)
        face = 0.85 + 0.06 * grains(size, 4.0, random)
        image = np.where(away < 1, face, 0.3 + 0.05 * grains(size, 8.0, random))
        image[np.abs(away - 1) < 0.05] = 0.1
        turn = np.abs((angle * 12 / (2 * np.pi)) % 1.0 - 0.5)
        image[(turn > 0.45) & (np.abs(away - 0.82) < long)] = 0.1
        for reach in (0.45, 0.7):
            hand = random.uniform(-np.pi, np.pi)
            forward, aside = along * np.cos(hand) + across * np.sin(hand), across * np.cos(hand) - along * np.sin(hand)
            image[(forward > -0.1 * radius) & (forward < reach * radius) & (np.abs(aside) < 1.8)] = 0.05
        image[away < 0.08] = 0.05
        return soft(image, random)

    return clock(), clock()
