"""Kinds of pairs without a match that look like each other: two things of one make, pitch, sort or layout.

Written on 2026-11-29, before any rule was run on them, and looked at since: they belong to "choose". Those of `ALIKE`
have nothing in common but what they are made of; those of `LAYOUTS` (`truth_tenth.py`) have a form in common, or a part
of the picture.
"""

from collections.abc import Callable

import numpy as np
import scipy.ndimage
import scipy.signal
from scipy.spatial import KDTree
from truth_forms import soft
from truth_fourth import turned
from truth_scenes import Pair, grains, other_rasters, photographs

Raster = np.ndarray
Random = np.random.Generator


def walls(size: int, random: Random) -> Pair:
    """Two brick walls of one bond, pitch and mortar; every brick has a shade of its own, and stains lie over them."""
    high, wide, joint = int(random.integers(7, 12)), int(random.integers(16, 28)), random.uniform(0.6, 1.2)
    contrast = random.uniform(0.05, 0.25)

    def wall() -> Raster:
        v, u = np.mgrid[:size, :size] + random.uniform(0, 100, (2, 1, 1))
        row = (v // high).astype(int)
        u = u + 0.5 * wide * (row % 2)
        column = (u // wide).astype(int)
        shades = 0.5 + contrast * random.standard_normal((row.max() + 1, column.max() + 1))
        edge = np.minimum.reduce([v % high, high - v % high, u % wide, wide - u % wide])
        image = np.where(edge < joint, 0.85, shades[row, column]) + 0.1 * contrast * grains(size, 1.2, random)
        return soft(image + 0.5 * contrast * grains(size, 14.0, random), random)

    return wall(), wall()


def crops(size: int, random: Random) -> Pair:
    """Two fields of one spacing and one direction of rows, with plants of all sizes, gaps and weeds."""
    pitch, turn, apart = random.uniform(6.0, 11.0), random.uniform(0, np.pi), random.uniform(3.0, 6.0)

    def field() -> Raster:
        along, across = turned(size, random.uniform(0, size, 2), turn)
        lines = np.arange(-2 * size, 2 * size, pitch)
        plants = np.array([(u + random.uniform(-0.3, 0.3) * apart, v + random.normal(0, 0.06 * pitch))
                           for v in lines for u in np.arange(-2 * size, 2 * size, apart)
                           if random.random() < 0.85])  # fmt: skip
        weeds = random.uniform(-2 * size, 2 * size, (int(0.001 * 16 * size**2), 2))
        at = np.concatenate([plants, weeds])
        width = random.uniform(0.12, 0.28, len(at)) * pitch
        away, which = KDTree(at).query(np.stack([along, across], -1), k=2)
        green = np.exp(-((away / width[which]) ** 2) / 2).sum(-1)
        return soft(0.35 + 0.4 * green + 0.05 * grains(size, 5.0, random), random)

    return field(), field()


def seas(size: int, random: Random) -> Pair:
    """Two instants of one sea: long waves of one wind, ripples on them, and foam where they break."""
    frequency = np.stack(np.meshgrid(np.fft.fftfreq(size), np.fft.fftfreq(size)), -1)
    wind, length = random.uniform(0, 2 * np.pi), random.uniform(12.0, 30.0)
    speed = np.linalg.norm(frequency, axis=-1)
    speed[0, 0] = np.inf
    towards = np.maximum(frequency @ (np.cos(wind), np.sin(wind)) / speed, 0) ** 4
    spectrum = np.exp(-0.625 / (speed * length) ** 2) * speed**-2.0 * towards
    spectrum[0, 0] = 0

    def sea() -> Raster:
        waves = np.fft.ifft2(np.fft.fft2(random.standard_normal((size, size))) * spectrum).real
        waves /= waves.std()
        down, right = np.gradient(waves)
        steep = np.cos(wind) * right + np.sin(wind) * down
        foam = waves > random.uniform(1.4, 2.2)
        return soft(0.3 + 0.12 * steep / steep.std() + 0.5 * foam + 0.03 * grains(size, 0.8, random), random)

    return sea(), sea()


def textiles(size: int, random: Random) -> Pair:
    """Two pieces of one print, cut anywhere, each woven, creased and dyed unevenly: the motif repeats."""
    period = int(random.integers(18, 36))
    motif = scipy.ndimage.gaussian_filter(random.standard_normal((period, period)), period / 12, mode="wrap")
    levels = np.digitize(motif, np.quantile(motif, [0.5, 0.8])) / 2
    print_ = np.tile(levels, (size // period + 2, size // period + 2))

    def piece() -> Raster:
        v, u = random.integers(0, period, 2)
        y, x = np.mgrid[:size, :size]
        weave = 0.06 * np.sin(2 * np.pi * x / 2.6) * np.sin(2 * np.pi * y / 2.6)
        bend = [random.uniform(0.5, 2.0) * grains(size, 20.0, random) for _ in "xy"]
        image = scipy.ndimage.map_coordinates(
            print_[v : v + size, u : u + size], [y + bend[0], x + bend[1]], order=1, mode="reflect"
        )
        return soft(0.2 + 0.6 * image * (1 + 0.15 * grains(size, 12.0, random)) + weave, random)

    return piece(), piece()


def fingers(size: int, random: Random) -> Pair:
    """Prints of two fingers: ridges of one spacing that flow around a loop or a whorl, fork and end."""
    pitch = random.uniform(6.0, 8.5)

    def finger() -> Raster:
        at = size / 2 + random.uniform(-0.1, 0.1, 2) * size
        x, y = turned(size, at, random.uniform(-0.3, 0.3))
        x, y = x + 3 * grains(size, 12.0, random), y + 3 * grains(size, 12.0, random)
        delta, whorl = random.uniform(0.35, 0.6, 2) * size, random.random() < 0.4
        angle = 0.5 * (np.arctan2(y, x) * (2 if whorl else 1) - np.arctan2(y - delta[1], x - delta[0])) + np.pi / 2
        ridges, frequency = random.standard_normal((size, size)), 2 * np.pi / pitch
        ways = np.arange(12) * np.pi / 12
        v, u = np.mgrid[-9:10, -9:10]
        kernels = [np.exp(-(u**2 + v**2) / 18) * np.cos(frequency * (u * np.cos(w) + v * np.sin(w))) for w in ways]
        nearest = np.round((angle + np.pi / 2) / (np.pi / 12)).astype(int) % 12
        for _ in range(5):
            answers = np.stack([scipy.signal.fftconvolve(ridges, k - k.mean(), mode="same") for k in kernels])
            ridges = np.tanh(0.6 * np.take_along_axis(answers, nearest[None], 0)[0] / answers.std())
        inside = np.hypot((np.mgrid[:size, :size][1] - at[0]) / 0.42, (np.mgrid[:size, :size][0] - at[1]) / 0.5) < size
        return soft(np.where(inside, 0.5 - 0.4 * ridges * (1 + 0.2 * grains(size, 6.0, random)), 0.95), random, 0.03)

    return finger(), finger()


def boards(size: int, random: Random) -> Pair:
    """Two circuit boards of parts out of one box: chips with legs, resistors, vias, and lines in eight directions."""
    pitch = random.uniform(3.0, 4.5)

    def board() -> Raster:
        image = 0.3 + 0.02 * grains(size, 3.0, random)
        y, x = np.mgrid[:size, :size]
        for _ in range(int(random.integers(12, 30))):
            at, way = random.uniform(0, size, 2), int(random.integers(8))
            for _ in range(int(random.integers(2, 5))):
                long, angle = random.uniform(8, 40), np.pi / 4 * way
                along, across = turned(size, at, angle)
                image[(along > 0) & (along < long) & (np.abs(across) < 0.9)] = 0.5
                at, way = at + long * np.array([np.cos(angle), np.sin(angle)]), way + int(random.integers(-1, 2))
            image[np.hypot(x - at[0], y - at[1]) < 2.2] = 0.85
        for _ in range(int(random.integers(5, 12))):
            along, across = turned(size, random.uniform(0, size, 2), np.pi / 2 * int(random.integers(2)))
            legs, wide = int(random.choice([4, 7, 8])), random.choice([2.5, 3.5]) * pitch
            long = 0.5 * legs * pitch
            image[(np.abs(along) < long) & (np.abs(np.abs(across) - wide) < 2) & ((along + long) % pitch < 1.6)] = 0.9
            image[(np.abs(along) < long) & (np.abs(across) < wide - 1)] = 0.08
            image[np.hypot(along - long + 3, across) < 1.2] = 0.4
        return soft(image, random)

    return board(), board()


def overcast(size: int, random: Random) -> Pair:
    """Two pictures of clouds from a satellite: cells that are open or closed, streets of one wind, warped."""
    pitch, wind, drawn = random.uniform(8.0, 16.0), random.uniform(0, np.pi), random.uniform(1.0, 2.0)

    def cloud() -> Raster:
        along, across = turned(size, np.array([size / 2, size / 2]), wind)
        warp = [5 * grains(size, 9.0, random) for _ in "xy"]
        at = random.uniform(-size, size, (int((2 * size / pitch) ** 2), 2))
        where = np.stack([(along + warp[0]) / drawn, across + warp[1]], -1)
        away = np.asarray(KDTree(at).query(where, k=2)[0])
        cells = np.clip(1.2 * (away[..., 1] - away[..., 0]) / pitch, 0, 1)
        thick = 0.5 + 0.3 * grains(size, 15.0, random)
        return soft(0.1 + 0.8 * np.clip(cells * thick + 0.05 * grains(size, 1.5, random), 0, 1), random)

    return cloud(), cloud()


def targets(size: int, random: Random) -> Pair:
    """Two boards for calibration with squares or discs of one pitch, before other rooms, each lit unevenly."""
    pitch, discs = random.uniform(9.0, 16.0), random.random() < 0.4
    rows, columns = (int(n) for n in random.integers(4, 7, 2))
    rooms = other_rasters(size, random) if random.random() < 0.5 else photographs(size, random)

    def board(room: Raster) -> Raster:
        high, wide = room.shape
        u, v = turned(size, size / 2 + random.uniform(-0.12, 0.12, 2) * size, random.uniform(-0.1, 0.1))
        u, v = u[:high, :wide] + columns * pitch / 2, v[:high, :wide] + rows * pitch / 2
        inside = (u > -pitch / 2) & (u < (columns + 0.5) * pitch) & (v > -pitch / 2) & (v < (rows + 0.5) * pitch)
        on = (u > 0) & (u < columns * pitch) & (v > 0) & (v < rows * pitch)
        dark = np.hypot(u % pitch - pitch / 2, v % pitch - pitch / 2) < 0.3 * pitch
        dark = dark if discs else ((u // pitch + v // pitch) % 2 == 0)
        light = 1 + 0.1 * grains(size, 25.0, random)[:high, :wide]
        return soft(np.where(inside, np.where(on & dark, 0.05, 0.9) * light, room), random)

    return board(rooms[0]), board(rooms[1])


def logos(size: int, random: Random) -> Pair:
    """One logo, at other places of two pictures: a twentieth to a sixth of each."""
    reach = size * random.uniform(0.12, 0.22)
    ink = scipy.ndimage.gaussian_filter(random.standard_normal((3, size, size)), (0, 5, 5))
    fields = other_rasters(size, random) if random.random() < 0.5 else photographs(size, random)

    def marked(image: Raster) -> Raster:
        high, wide = image.shape
        u, v = (random.uniform(reach, side - reach) for side in (wide, high))
        along, across = turned(size, np.array([u, v]), 0.0)
        away = np.hypot(along, across) / reach
        rows, columns = (np.clip(part + size / 2, 0, size - 1).astype(int) for part in (across, along))
        drawn = np.where(away > 0.85, 0.1, np.where(ink[0][rows, columns] > 0, 0.95, 0.2))
        return soft(np.where(away < 1, drawn, image_at(image, size))[:high, :wide], random)

    return marked(fields[0]), marked(fields[1])


def image_at(image: Raster, size: int) -> Raster:
    """A picture, its last rows and columns again up to a square of that side."""
    return np.pad(image, [(0, size - side) for side in image.shape], mode="edge")


ALIKE: dict[str, Callable[[int, Random], Pair]] = {
    "walls": walls,
    "crops": crops,
    "seas": seas,
    "textiles": textiles,
    "fingers": fingers,
    "boards": boards,
    "overcast": overcast,
    "targets": targets,
    "logos": logos,
}
