"""Kinds of scenes on which nothing was chosen, for the claim of `alignment_truth.py`.

Once a claim made on them has been looked at, they belong to the half "choose". The last two are for pairs without a
match alone: they hold a line or two, too little to be found by where there is a match.
"""

import numpy as np
import scipy.ndimage
from scipy.spatial import KDTree
from truth_flat import brushed, soft
from truth_lines import bent
from truth_scenes import grains

Raster = np.ndarray
Random = np.random.Generator


# ---- with flat areas


def icons(size: int, random: Random) -> Raster:
    """Signs of five shapes and three greys, scattered over a page."""
    y, x = np.mgrid[:size, :size]
    page = np.ones((size, size))
    for _ in range(int(size**2 * random.uniform(0.002, 0.004))):
        (u, v), reach = random.uniform(0, size, 2), random.uniform(3.0, 8.0)
        dx, dy = np.abs(x - u), np.abs(y - v)
        shape = int(random.integers(5))
        inside = (
            np.maximum(dx, dy) < reach,
            np.hypot(dx, dy) < reach,
            dx + dy < reach,
            (np.minimum(dx, dy) < reach / 3) & (np.maximum(dx, dy) < reach),
            (np.hypot(dx, dy) < reach) & (np.hypot(dx, dy) > reach / 2),
        )[shape]
        page[inside] = random.choice([0.0, 0.3, 0.6])
    return soft(page)


def transit(size: int, random: Random) -> Raster:
    """A plan of lines that run in eight directions, with a ring at every stop."""
    page = np.ones((size, size))
    for shade in random.uniform(0.0, 0.7, int(random.integers(4, 9))):
        at, way, stops = random.uniform(0, size, 2), int(random.integers(8)), []
        points = [at]
        for _ in range(int(random.integers(4, 9))):
            way += int(random.integers(-1, 2))
            angle = np.pi / 4 * way
            at = at + random.uniform(12, 40) * np.array([np.cos(angle), np.sin(angle)])
            points.append(at)
            stops.append(at)
        page = np.where(brushed(size, [np.array(points)], 3) > 0, shade, page)
        y, x = np.mgrid[:size, :size]
        for u, v in stops:
            away = np.hypot(x - u, y - v)
            page[away < 4] = 0.0
            page[away < 2.5] = 1.0
    return soft(page)


def chromosomes(size: int, random: Random) -> Raster:
    """Bent rods with bands across them, on an empty ground."""
    page = np.ones((size, size))
    y, x = np.mgrid[:size, :size]
    for _ in range(int(size**2 * random.uniform(0.0008, 0.0016))):
        rod = bent(
            random.uniform(0, size, 2), random.uniform(0, 2 * np.pi), int(random.integers(8, 24)), 1.0, 0.12, random
        )
        left, top = np.floor(rod.min(0)).astype(int) - 5
        right, bottom = np.ceil(rod.max(0)).astype(int) + 6
        part = slice(max(top, 0), max(bottom, 0)), slice(max(left, 0), max(right, 0))
        if 0 in page[part].shape:
            continue
        away, nearest = KDTree(rod).query(np.stack([x[part], y[part]], -1))
        bands = scipy.ndimage.gaussian_filter1d(random.standard_normal(len(rod)), 1.0) > 0
        page[part] = np.where(away < 3.5, np.where(bands[nearest], 0.1, 0.6), page[part])
    return soft(page)


def roofs(size: int, random: Random) -> Raster:
    """Houses from above, turned alike within a quarter, each with its shadow."""
    y, x = np.mgrid[:size, :size]
    town = np.full((size, size), 0.6)
    turn = random.uniform(0, np.pi) + 0.3 * grains(size, 40.0, random)
    for _ in range(int(size**2 * random.uniform(0.002, 0.004))):
        (u, v), (long, wide) = random.uniform(0, size, 2), random.uniform(3.0, 9.0, 2)
        angle = turn[min(int(v), size - 1), min(int(u), size - 1)]
        for shift, shade in ((3.0, 0.1), (0.0, random.uniform(0.3, 1.0))):
            along = (x - u - shift) * np.cos(angle) + (y - v - shift) * np.sin(angle)
            across = (y - v - shift) * np.cos(angle) - (x - u - shift) * np.sin(angle)
            town[(np.abs(along) < long) & (np.abs(across) < wide)] = shade
    return soft(town)


# ---- without


def tracks(size: int, random: Random) -> Raster:
    """A bubble chamber: spirals of charged particles, and the grain of the film."""
    strokes = []
    for _ in range(int(random.integers(12, 30))):
        at, heading, turn = random.uniform(0, size, 2), random.uniform(0, 2 * np.pi), random.uniform(-0.1, 0.1)
        steps = np.arange(int(random.integers(10, 60)))
        headings = heading + turn * steps * (1 + 0.03 * steps)
        strokes.append(at + 3 * np.cumsum(np.stack([np.cos(headings), np.sin(headings)], 1), 0))
    lines = scipy.ndimage.gaussian_filter(brushed(size, strokes, 1), 0.8)
    return lines * (0.6 + 0.4 * random.random((size, size))) + 0.1 * grains(size, 0.8, random)


def lichen(size: int, random: Random) -> Raster:
    """A labyrinth as reactions that spread leave it (Turing, 1952), broken up by patches."""
    field, width = random.standard_normal((size, size)), random.uniform(1.6, 2.6)
    patches = 0.25 * grains(size, 12.0, random)
    for _ in range(8):
        near, far = (scipy.ndimage.gaussian_filter(field, s, mode="wrap") for s in (width, 1.6 * width))
        field = np.tanh(12 * (near - far) + patches)
    return scipy.ndimage.gaussian_filter(field, 0.8)


def honeycomb(size: int, random: Random) -> Raster:
    """Cells of a comb, one like the other, of which some are filled."""
    pitch, side = random.uniform(10.0, 15.0), size + 40
    rows, columns = np.mgrid[: int(side / pitch * 1.2) + 2, : int(side / pitch) + 2]
    at = np.stack([columns + 0.5 * (rows % 2), rows * np.sqrt(0.75)], -1).reshape(-1, 2) * pitch - random.uniform(
        0, 20, 2
    )
    at += 0.04 * pitch * random.standard_normal(at.shape)
    y, x = np.mgrid[:size, :size]
    away, nearest = map(np.asarray, KDTree(at).query(np.stack([x, y], -1), k=2))
    wall = np.exp(-(((away[..., 1] - away[..., 0]) / 2.0) ** 2))
    full = random.random(len(at)) < random.uniform(0.1, 0.5)
    return wall + 0.4 * full[nearest[..., 0]] + 0.1 * grains(size, 1.5, random)


def voices(size: int, random: Random) -> Raster:
    """A spectrogram: harmonics that rise and fall with the time, and noise."""
    y = np.arange(size)[:, None]
    image = 0.3 * np.abs(grains(size, 1.0, random))
    start = 0
    while start < size:
        long = int(random.integers(15, 50))
        time = np.arange(size)
        pitch = random.uniform(7.0, 14.0) * (
            1 + 0.15 * scipy.ndimage.gaussian_filter1d(random.standard_normal(size), 6.0) * 4
        )
        envelope = np.exp(-(((time - start - long / 2) / (long / 2.5)) ** 2))
        loud = np.exp(-y / random.uniform(20, 80)) * (
            0.5 + 0.5 * np.sin(y / random.uniform(8, 20) + random.uniform(0, 6))
        )
        image += 2 * envelope[None, :] * loud * np.exp(-((((y / pitch[None, :] + 0.5) % 1.0 - 0.5) * pitch / 1.5) ** 2))
        start += long
    return image


def ripples(size: int, random: Random) -> Raster:
    """Sand: ripples of like width that fork and end."""
    frequency = np.stack(np.meshgrid(np.fft.fftfreq(size), np.fft.fftfreq(size)), -1)
    angle, length = random.uniform(0, np.pi), random.uniform(8.0, 13.0)
    middle = np.array([np.cos(angle), np.sin(angle)]) / length
    lobe = np.exp(-(np.linalg.norm(frequency - middle, axis=-1) ** 2) / (2 * 0.02**2))
    field = np.fft.ifft2(np.fft.fft2(random.standard_normal((size, size))) * lobe).real
    return np.maximum(field / field.std(), -0.5) + 0.15 * grains(size, 1.0, random)


def rubble(size: int, random: Random) -> Raster:
    """Stones with plane faces, each lit by its slope."""
    points = random.uniform(-10, size + 10, (int(size**2 * random.uniform(0.003, 0.008)), 2))
    y, x = np.mgrid[:size, :size]
    nearest = KDTree(points).query(np.stack([x, y], -1))[1]
    light, slopes = random.uniform(0.2, 1.0, len(points)), 0.03 * random.standard_normal((len(points), 2))
    off = np.stack([x, y], -1) - points[nearest]
    faces = light[nearest] + (slopes[nearest] * off).sum(-1)
    return scipy.ndimage.gaussian_filter(faces, 0.8) + 0.05 * grains(size, 1.0, random)


def foam(size: int, random: Random) -> Raster:
    """Bubbles of all sizes: bright rims that lie over each other, under a slow change of the light."""
    y, x = np.mgrid[:size, :size]
    image = np.zeros((size, size))
    for _ in range(int(size**2 * random.uniform(0.002, 0.005))):
        (u, v), radius = random.uniform(-5, size + 5, 2), min(3.0 * (1 + random.pareto(1.8)), 30.0)
        away = np.hypot(x - u, y - v)
        image = np.where(away < radius, 0.5 * image, image) + np.exp(-((away - radius) ** 2) / 2)
    return image * np.exp(0.3 * grains(size, 30.0, random))


def fur(size: int, random: Random) -> Raster:
    """Noise drawn out along a field of directions (line integral convolution; Cabral and Leedom, 1993)."""
    noise = random.standard_normal((size, size))
    angle = np.pi * grains(size, 25.0, random)
    y, x = np.mgrid[:size, :size].astype(np.float64)
    total = noise.copy()
    for way in (-1, 1):
        v, u = y.copy(), x.copy()
        for _ in range(6):
            here = scipy.ndimage.map_coordinates(angle, [v, u], order=1, mode="nearest")
            v, u = v + way * np.sin(here), u + way * np.cos(here)
            total += scipy.ndimage.map_coordinates(noise, [v, u], order=1, mode="nearest")
    return scipy.ndimage.gaussian_filter(total, 0.8)


# ---- for pairs without a match alone


def islands(size: int, random: Random) -> Raster:
    """The coast of one or two islands: land and water, nothing else."""
    y, x = np.mgrid[:size, :size]
    land = np.zeros((size, size), dtype=bool)
    for _ in range(int(random.integers(1, 3))):
        (u, v), radius = random.uniform(0.2 * size, 0.8 * size, 2), size * random.uniform(0.15, 0.45)
        around, away = np.arctan2(y - v, x - u), np.hypot(x - u, y - v)
        orders = np.arange(1, 9)
        waves = random.standard_normal((2, 8)) * 0.25 / orders
        coast = sum(a * np.cos(n * around) + b * np.sin(n * around) for n, a, b in zip(orders, *waves, strict=True))
        land |= away < radius * np.exp(coast)
    return soft(land)


def hairs(size: int, random: Random) -> Raster:
    """A few strands on a light ground, all bent gently and to one side."""
    strokes, turn, heading = [], random.uniform(-0.06, 0.06), random.uniform(0, 2 * np.pi)
    for _ in range(int(random.integers(3, 8))):
        headings = heading + 0.3 * random.standard_normal() + turn * np.arange(60) * random.uniform(0.5, 1.5)
        start = random.uniform(0, size, 2)
        strokes.append(start + 4 * np.cumsum(np.stack([np.cos(headings), np.sin(headings)], 1), 0))
    return soft(1 - 0.7 * brushed(size, strokes, 1))
