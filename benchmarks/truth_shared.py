"""Other scenes with something in common that is of the camera, the file or the page, and of no place.

Written on 2026-11-28. Each is two scenes of the half "choose", and what both share lies at the same pixels of both
rasters.
"""

from collections.abc import Callable

import numpy as np
import scipy.fft
import scipy.ndimage
from truth_scenes import Pair, Random, Raster, fractal, grains, normalised, other_rasters, photographs, print_, slope


def two(size: int, random: Random) -> Pair:
    """Two rasters or photographs of other things, of 0 to 1 and with little noise."""
    pair = (other_rasters, photographs)[int(random.integers(2))](size, random)
    one, other = (normalised(image) + 0.01 * random.standard_normal(image.shape) for image in pair)
    height, width = (min(one.shape[axis], other.shape[axis]) for axis in (0, 1))
    return one[:height, :width], other[:height, :width]


def grid(like: Raster) -> tuple[Raster, Raster]:
    y, x = np.mgrid[: like.shape[0], : like.shape[1]].astype(np.float64)
    return y, x


def hot_pixels(size: int, random: Random) -> Pair:
    """Pixels of one sensor that always shine."""
    one, other = two(size, random)
    hot = random.random(one.shape) < random.uniform(0.0005, 0.01)
    shine = random.uniform(0.3, 1.0, one.shape)
    return np.where(hot, one + shine, one), np.where(hot, other + shine, other)


def dust(size: int, random: Random) -> Pair:
    """One lens: dark towards the corners, with blurred specks of dust."""
    one, other = two(size, random)
    (y, x), (height, width) = grid(one), one.shape
    dark = 1 - random.uniform(0.3, 0.7) * ((2 * y / height - 1) ** 2 + (2 * x / width - 1) ** 2) / 2
    for _ in range(int(random.integers(5, 40))):
        away = np.hypot(y - random.uniform(0, height), x - random.uniform(0, width))
        dark *= 1 - random.uniform(0.1, 0.4) / (1 + np.exp(2 * (away - random.uniform(1.5, 5))))
    return one * dark, other * dark


def columns(size: int, random: Random) -> Pair:
    """A line scanner: every column has a gain of its own."""
    one, other = two(size, random)
    stripes = 1 + random.uniform(0.03, 0.15) * random.standard_normal((1, one.shape[1]))
    return one * stripes, other * stripes


def pattern_noise(size: int, random: Random) -> Pair:
    """One sensor: an offset of every pixel, and of every row and column."""
    one, other = two(size, random)
    rows, across = (random.standard_normal(shape) for shape in ((len(one), 1), (1, one.shape[1])))
    offset = random.uniform(0.01, 0.06) * (random.standard_normal(one.shape) + 0.5 * rows + 0.5 * across)
    return one + offset, other + offset


def signs(random: Random, count: int, height: int) -> Raster:
    """A line of signs out of one alphabet, 1 where there is ink."""
    alphabet = (
        np.asarray(scipy.ndimage.gaussian_filter(np.random.default_rng(7).random((36, 9, 6)), (0, 0.8, 0.8))) > 0.5
    )
    line = np.concatenate([np.pad(alphabet[k], ((0, 0), (1, 1))) for k in random.integers(0, 36, count)], axis=1)
    return np.kron(line, np.ones((max(1, height // 9),) * 2))


def watermarks(size: int, random: Random) -> Pair:
    """A word across both, half transparent; or again and again."""
    one, other = two(size, random)
    word, mark = signs(random, int(random.integers(4, 9)), int(random.choice([9, 18]))), np.zeros(one.shape)
    if random.integers(2):
        mark = np.tile(np.pad(word, 8), (size // 20, size // 20))[: one.shape[0], : one.shape[1]]
        mark = np.pad(mark, [(0, n - m) for n, m in zip(one.shape, mark.shape, strict=True)])
    else:
        word = word[:, : one.shape[1] - 8]
        y, x = (int(random.integers(0, n - m)) for n, m in zip(one.shape, word.shape, strict=True))
        mark[y : y + word.shape[0], x : x + word.shape[1]] = word
    mark = random.uniform(0.15, 0.6) * scipy.ndimage.gaussian_filter(scipy.ndimage.rotate(mark, 0), 0.5)
    return one * (1 - mark) + mark, other * (1 - mark) + mark


def timestamps(size: int, random: Random) -> Pair:
    """A camera's date and logo in two corners, burnt in; the last signs differ."""
    date, pair = random.integers(0, 1 << 30), []
    logo = np.kron(random.random((6, 10)) > 0.5, np.ones((2, 2)))
    for image in two(size, random):
        stamped, line = image.copy(), signs(np.random.default_rng(date), 12, 9)
        line[:, -16:] = signs(random, 2, 9)
        line = line[:, : image.shape[1] - 4]
        stamped[-12 : -12 + line.shape[0], 2 : 2 + line.shape[1]] = np.where(line > 0, 1.2, 0.0)
        stamped[3:15, -24:-4] = np.where(logo > 0, 1.0, 0.2)
        pair.append(stamped)
    return pair[0], pair[1]


def jpeg(size: int, random: Random) -> Pair:
    """Strongly compressed in blocks of 8 x 8, then sharpened, so that the edges of blocks are seen."""
    step, pair = random.uniform(0.1, 0.4), []
    weight = 1 + np.add.outer(np.arange(8), np.arange(8)) / 2
    for image in two(size, random):
        side = min(image.shape) // 8
        blocks = image[: 8 * side, : 8 * side].reshape(side, 8, side, 8).swapaxes(1, 2)
        cosines = np.asarray(scipy.fft.dctn(blocks, axes=(2, 3), norm="ortho"))
        cosines = step * weight * np.round(cosines / (step * weight))
        pressed = (
            np.asarray(scipy.fft.idctn(cosines, axes=(2, 3), norm="ortho")).swapaxes(1, 2).reshape(8 * side, 8 * side)
        )
        pair.append(pressed + 0.7 * (pressed - scipy.ndimage.gaussian_filter(pressed, 1.5)))
    return pair[0], pair[1]


def scan_lines(size: int, random: Random) -> Pair:
    """A screen: every second or third line is dark."""
    one, other = two(size, random)
    lines = np.where(np.arange(len(one)) % int(random.integers(2, 5)) == 0, random.uniform(0.3, 0.8), 1.0)[:, None]
    return one * lines, other * lines


def screen_door(size: int, random: Random) -> Pair:
    """Moire: both were taken through one fine grid, turned a little."""
    one, other = two(size, random)
    (y, x), angle, pitch = grid(one), random.uniform(0, np.pi / 2), random.uniform(2.2, 9.0)
    along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    door = 1 - random.uniform(0.2, 0.6) * (np.cos(2 * np.pi * along / pitch) * np.cos(2 * np.pi * across / pitch) > 0.3)
    return one * door, other * door


def borders(size: int, random: Random) -> Pair:
    """Black borders of one width, with rounded corners or a slanted edge."""
    one, other = two(size, random)
    (y, x), (height, width) = grid(one), one.shape
    top, left, bottom, right = random.integers(0, size // 6, 4)
    inside = (y >= top) & (y < height - bottom) & (x >= left) & (x < width - right)
    if random.integers(2):
        inside &= x + random.uniform(0.1, 0.4) * y > random.uniform(0.1, 0.3) * size
    return one * inside, other * inside


def ct_rings(size: int, random: Random) -> Pair:
    """Slices of other things by one scanner with bad channels: thin rings around the middle."""
    one, other = two(size, random)
    (y, x), (height, width) = grid(one), one.shape
    away = np.hypot(y - height / 2 + 0.5, x - width / 2 + 0.5)
    rings = random.uniform(0.02, 0.15) * np.interp(away, np.arange(size), random.standard_normal(size))
    return one + rings, other + rings


def seams(size: int, random: Random) -> Pair:
    """Mosaics of tiles, each with a gain and a bias of its own and a dark seam."""
    pair, pitch = list(two(size, random)), int(random.integers(12, 40))
    for k, image in enumerate(pair):
        y, x = (axis.astype(int) for axis in grid(image))
        gains = random.uniform(0.7, 1.3, (20, 20))
        seam = np.where((y % pitch == 0) | (x % pitch == 0), random.uniform(0.3, 0.9), 1.0)
        pair[k] = image * gains[y // pitch % 20, x // pitch % 20] * seam
    return pair[0], pair[1]


def reseau(size: int, random: Random) -> Pair:
    """Crosses of a glass plate, as photographs from the Moon have them, and the marks of the frame."""
    one, other = two(size, random)
    (y, x), pitch, arm = grid(one), int(random.integers(16, 45)), int(random.integers(2, 6))
    v, u = (y + 5) % pitch - pitch // 2, (x + 9) % pitch - pitch // 2
    cross = ((np.abs(u) < 1) & (np.abs(v) <= arm)) | ((np.abs(v) < 1) & (np.abs(u) <= arm))
    return np.where(cross, 0.0, one), np.where(cross, 0.0, other)


def scale_bars(size: int, random: Random) -> Pair:
    """Micrographs with one bar of data below: magnification, voltage, scale."""
    line, pair = signs(random, 10, 9), []
    for image in two(size, random):
        below = np.zeros((16, image.shape[1]))
        text = line[:, : image.shape[1] - 44]
        below[4 : 4 + text.shape[0], 2 : 2 + text.shape[1]] = text
        below[7:9, -40:-4] = 1.0
        pair.append(np.concatenate([image[:-16], below]))
    return pair[0], pair[1]


def gaps(size: int, random: Random) -> Pair:
    """A broken scanner: wedges of black lines, the same in both (Landsat 7 since 2003)."""
    one, other = two(size, random)
    (y, x), pitch, tilt = grid(one), random.uniform(9, 16), random.uniform(-0.3, 0.3)
    wide = np.abs(x / one.shape[1] - 0.5) * pitch * random.uniform(0.6, 1.2)
    black = (y + tilt * x) % pitch < wide
    return np.where(black, 0.0, one), np.where(black, 0.0, other)


def enlarged(size: int, random: Random) -> Pair:
    """Each pixel repeated 3 to 6 times either way, as previews are."""
    times = int(random.integers(3, 7))
    one, other = (np.kron(image[::times, ::times], np.ones((times, times))) for image in two(size, random))
    return one, other


def bayer(size: int, random: Random) -> Pair:
    """Raw frames of a camera with colour filters: every second pixel is of another colour."""
    pair = []
    for image in two(size, random):
        y, x = (axis.astype(int) for axis in grid(image))
        pair.append(image * np.array([[0.6, 1.0], [1.0, 0.4]])[y % 2, x % 2])
    return pair[0], pair[1]


def halftones(size: int, random: Random) -> Pair:
    """Two pictures of one newspaper: dots on one turned grid, large where it is dark."""
    one, other = two(size, random)
    (y, x), angle, pitch = grid(one), random.uniform(0.2, 1.3), random.uniform(3.0, 6.0)
    along, across = (x * np.cos(angle) + y * np.sin(angle)) / pitch, (y * np.cos(angle) - x * np.sin(angle)) / pitch
    dots = 0.5 + 0.25 * (np.cos(2 * np.pi * along) + np.cos(2 * np.pi * across))
    one, other = (1 / (1 + np.exp(-10 * (image - dots))) for image in (one, other))
    return one, other


def graticules(size: int, random: Random) -> Pair:
    """Maps of other places under one grid of thin lines."""
    one, other = two(size, random)
    (y, x), pitch = grid(one), int(random.integers(14, 50))
    lines = (np.minimum((y + 3) % pitch, (x + 7) % pitch) < 1) | (random.random() < 0.0)
    return np.where(lines, 0.1, one), np.where(lines, 0.1, other)


def axes(size: int, random: Random) -> Pair:
    """Two plots of one program: a frame, ticks and labels are where they always are, the curves are not."""
    labels, ticks = signs(random, 3, 9), random.integers(4, 8)
    pair = []
    for _ in range(2):
        page = np.ones((size, size))
        top, left, bottom, right = 8, 22, size - 16, size - 6
        page[top : bottom + 1, [left, right]] = page[[top, bottom], left : right + 1] = 0.0
        for k in range(int(ticks)):
            v, u = (int(low + (high - low) * k / ticks) for low, high in ((top, bottom), (left, right)))
            page[v, left - 3 : left] = page[bottom : bottom + 3, u] = 0.0
            page[v : v + 9, 0:18] = np.where(labels[:9, :18] > 0, 0.0, page[v : v + 9, 0:18])
        for _ in range(int(random.integers(1, 5))):
            curve = (top + bottom) / 2 + 0.3 * (bottom - top) * grains(size, random.uniform(3, 15), random)[0].clip(
                -1.4, 1.4
            )
            u = np.arange(left + 2, right - 1)
            for off in (0, 1):
                page[np.clip(curve[u].astype(int) + off, top + 1, bottom - 1), u] = random.uniform(0.0, 0.5)
        pair.append(scipy.ndimage.gaussian_filter(page, 0.5) + 0.01 * random.standard_normal(page.shape))
    return pair[0], pair[1]


def windows(size: int, random: Random) -> Pair:
    """Screenshots of one program: title, buttons and a scroll bar are the same, the document is not."""
    title, pair = signs(random, 8, 9), []
    buttons = np.kron(random.random((4, 24)) > 0.5, np.ones((3, 2)))
    for image in two(size, random):
        shot = image.copy()
        shot[:26] = 0.85
        line, row = title[:, : image.shape[1] - 30], buttons[:, : image.shape[1] - 6]
        shot[2 : 2 + line.shape[0], 4 : 4 + line.shape[1]] -= 0.8 * line
        shot[12:24, 3 : 3 + row.shape[1]] -= 0.4 * row
        shot[26:, -7:] = 0.7
        shot[40:60, -6:-1] = 0.3
        pair.append(shot)
    return pair[0], pair[1]


def skies(size: int, random: Random) -> Pair:
    """Clouds over one dark roofline, as a fixed camera sees them on two days."""
    roofs = np.repeat(random.uniform(0.75, 0.95, size // 8 + 1), 8)[:size] * size
    roofs = scipy.ndimage.gaussian_filter1d(roofs, 0.5)
    pair = []
    for _ in range(2):
        clouds = 0.7 + 0.15 * grains(size, 5.0, random) + 0.15 * grains(size, 15.0, random)
        shot = np.where(np.arange(size)[:, None] > roofs, 0.1, clouds)
        pair.append(scipy.ndimage.gaussian_filter(shot, 0.6) + 0.02 * random.standard_normal((size, size)))
    return pair[0], pair[1]


def pages_of_a_book(size: int, random: Random) -> Pair:
    """Two pages in one type with the same margins and lines."""
    one, other = print_(size, random), print_(size, random)
    edge = int(random.integers(6, 16))
    for page in (one, other):
        page[:edge] = page[-edge:] = page[:, :edge] = page[:, -edge:] = 1.0
    return one + 0.01 * random.standard_normal(one.shape), other + 0.01 * random.standard_normal(one.shape)


def chessboards(size: int, random: Random) -> Pair:
    """Two boards with other pieces, seen from above at the same place."""
    field, pair = size // 9, []
    y, x = np.mgrid[:size, :size]
    for _ in range(2):
        board = np.where((y // field + x // field) % 2 == 0, 0.8, 0.4)
        for _ in range(int(random.integers(8, 33))):
            v, u = (random.integers(0, 8, 2) + 0.5) * field
            away = np.hypot(y - v, x - u)
            board[away < random.uniform(0.2, 0.4) * field] = random.choice([0.05, 1.0])
        pair.append(scipy.ndimage.gaussian_filter(board, 0.6) + 0.01 * random.standard_normal(board.shape))
    return pair[0], pair[1]


def fundus(size: int, random: Random) -> Pair:
    """Other terrain in one round field with a notch, as cameras of eyes have it."""
    (y, x), middle = np.mgrid[:size, :size], (size - 1) / 2
    away = np.hypot(y - middle, x - middle)
    inside = (away < 0.47 * size) | ((np.abs(y - middle) < 4) & (x > middle) & (away < 0.5 * size))
    one, other = (
        np.where(inside, 0.3 + 0.7 * normalised(fractal(size, random) + 0.2 * slope(size, random)), 0.0) for _ in "ab"
    )
    return one + 0.01 * random.standard_normal(one.shape), other + 0.01 * random.standard_normal(one.shape)


SHARED: dict[str, Callable[[int, Random], Pair]] = {
    "hot pixels": hot_pixels,
    "dust": dust,
    "columns": columns,
    "pattern noise": pattern_noise,
    "watermarks": watermarks,
    "timestamps": timestamps,
    "jpeg": jpeg,
    "scan lines": scan_lines,
    "screen door": screen_door,
    "borders": borders,
    "ct rings": ct_rings,
    "seams": seams,
    "reseau": reseau,
    "scale bars": scale_bars,
    "gaps": gaps,
    "enlarged": enlarged,
    "bayer": bayer,
    "halftones": halftones,
    "graticules": graticules,
    "axes": axes,
    "screenshots": windows,
    "skies": skies,
    "pages of a book": pages_of_a_book,
    "chessboards": chessboards,
    "fundus": fundus,
}
