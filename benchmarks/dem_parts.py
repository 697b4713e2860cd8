"""What the demcompare pair can tell: the scatter of every contestant's answer over quarters of the raster.

    OMP_NUM_THREADS=1 python benchmarks/dem_parts.py

Errors of quarters are independent but for what reaches across their borders, so that half of their root mean square is
what the whole may be off by. Two contestants whose errors on the whole are both below that are not told apart. Without
xDEM (`pip install xdem`) `coregister` runs alone.
"""

import sys
import warnings
from itertools import product

import numpy as np
import torch
from dem import DATA, DemPair, compared, ours, xdem_methods
from dem_pairs import PIXEL
from timing import print_machine, print_table

LEFT_OUT = "DhMinimize", "LZD rigid"
"""Slow, and none of them the best of any row."""


def pair_of(reference: np.ndarray, dem: np.ndarray, top: int, left: int, size: int) -> DemPair:
    """A window of the tile, and what of the copy lies there in the file: moved by (3, 5) pixels."""
    window = (slice(top, top + size), slice(left, left + size))
    fixed, moving = reference[window], dem[window]
    shift = np.array([3 * PIXEL, -5 * PIXEL, 0.0])
    return DemPair(f"{size} at {top}, {left}", "plain", fixed, moving, shift, "offset", fixed, np.isfinite(fixed))


def errors(pair: DemPair) -> dict[str, np.ndarray]:
    """(pixels east, pixels north, metres) by contestant, with their signs."""
    methods = {"coregister": lambda: ours(pair, "offset"), **xdem_methods(pair)}
    answers = {name: method() for name, method in methods.items() if name not in LEFT_OUT}
    where = compared(pair, list(answers.values()))
    return {
        name: np.append((shift - pair.shift[:2]) / PIXEL, np.nanmean((moved - pair.truth)[where]))
        for name, (shift, moved) in answers.items()
        if moved is not None
    }


def main() -> None:
    """A row per size and contestant."""
    import tifffile

    folder = DATA / "maps" / "demcompare_srtm"
    if not folder.exists():
        sys.exit("demcompare pair: not there")
    reference, copy = (
        tifffile.imread(folder / name).astype(float) for name in ("srtm_ref.tif", "srtm_blurred_and_shifted.tif")
    )
    dem = np.full(reference.shape, np.nan)
    dem[: copy.shape[0], : copy.shape[1]] = copy
    rows = []
    for size, begin in ((1000, 0), (300, 350)):
        whole, half = errors(pair_of(reference, dem, begin, begin, size)), size // 2
        sides = begin, begin + half
        quarters = [errors(pair_of(reference, dem, top, left, half)) for top, left in product(sides, sides)]
        for name, error in whole.items():
            scattered = np.array([one[name] for one in quarters if name in one])
            horizontal = np.sqrt((scattered[:, :2] ** 2).sum(1).mean()) / 2
            vertical = scattered[:, 2].std(ddof=1) / 2
            row = [f"{size}²", name, f"{np.hypot(*error[:2]):.5f}", f"{horizontal:.5f}"]
            rows.append([*row, f"{abs(error[2]):.4f}", f"{vertical:.4f}"])
    print_table("demcompare by quarters", ["size", "method", "px", "by quarters", "m", "by quarters"], rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    print_machine(["torch", "numpy", "xdem"])
    main()
