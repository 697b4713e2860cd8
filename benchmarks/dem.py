"""`coregister` beside methods of xDEM, in one run: errors of shift and height, synthetic pairs and the demcompare pair.

    OMP_NUM_THREADS=1 python benchmarks/dem.py [pairs per family, terrain and noise: 3] [choose or claim] [families]

Families are names joined by commas, as plain,dome; all by default, and the demcompare pair before them.
Without xDEM (`pip install xdem`) `coregister` runs alone. Thresholds were chosen on the half "choose".
"""

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from dem_pairs import FAMILIES, PIXEL, DemPair, pairs, srtm_tile
from timing import print_machine, print_table

from mslsq.alignment.dem import coregister

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
Answer = tuple[np.ndarray, np.ndarray | None]
"""The shift in metres (east, north), and the corrected model on the reference's grid."""


def ours(pair: DemPair, bias: str) -> Answer:
    """`coregister` with this bias model."""
    found = coregister(pair.reference, pair.dem, pixel_size=pair.pixel, bias=bias)
    return found.shift[:2], found.apply(pair.dem)


def xdem_methods(pair: DemPair) -> dict[str, Callable[[], Answer]]:
    """xDEM's methods, and the pipelines that its documentation recommends for the bias of this pair."""
    try:
        from xdem import coreg
    except ImportError:
        return {}
    order = 2 if pair.family == "dome" else 1
    elevation = lambda: coreg.TerrainBias(  # noqa: E731
        terrain_attribute="elevation", fit_or_bin="fit", fit_func="norder_polynomial"
    )
    methods = {
        "Nuth-Kaab": lambda: coreg.NuthKaab(),
        "LZD": lambda: coreg.VerticalShift() + coreg.LZD(only_translation=True),
        "LZD rigid": lambda: coreg.VerticalShift() + coreg.LZD(),
        "DhMinimize": lambda: coreg.DhMinimize() + coreg.VerticalShift(),
    }
    if pair.family in ("tilt", "dome"):
        methods |= {
            "Nuth-Kaab + Deramp": lambda: coreg.NuthKaab() + coreg.Deramp(order),
            "Deramp + Nuth-Kaab + Deramp": lambda: coreg.Deramp(order) + coreg.NuthKaab() + coreg.Deramp(order),
            "Deramp + LZD + Deramp": lambda: (
                coreg.Deramp(order) + coreg.LZD(only_translation=True) + coreg.Deramp(order)
            ),
        }
    if pair.family == "elevation":
        methods |= {
            "Nuth-Kaab + elevation + Nuth-Kaab": lambda: coreg.NuthKaab() + elevation() + coreg.NuthKaab(),
            "LZD + elevation + LZD": lambda: (
                coreg.LZD(only_translation=True) + elevation() + coreg.LZD(only_translation=True)
            ),
        }
    return {name: lambda make=make: run_xdem(make(), pair) for name, make in methods.items()}


def run_xdem(method: object, pair: DemPair) -> Answer:
    """Fitted and applied; NaN where it raises."""
    from rasterio.crs import CRS
    from rasterio.transform import from_origin

    transform = from_origin(5e5, 5e6, pair.pixel, pair.pixel)
    georeference = {"transform": transform, "crs": CRS.from_epsg(32633)}
    try:
        method.fit(pair.reference, pair.dem, random_state=1, **georeference)  # pyright: ignore[reportAttributeAccessIssue]
        moved, at = method.apply(pair.dem, resample=True, **georeference)  # pyright: ignore[reportAttributeAccessIssue]
    except Exception as error:
        print(f"  {pair.name}: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)
        return np.full(2, np.nan), None
    steps = getattr(method, "pipeline", [method])
    rows, columns = pair.dem.shape
    # A rigid step turns about a centre: what it does to the middle of the raster is its shift.
    middle = np.array([5e5 + columns / 2 * pair.pixel, 5e6 - rows / 2 * pair.pixel, 1000.0, 1.0])
    point = middle.copy()
    for step in steps:
        if step.is_affine:
            matrix, centre = (
                step.to_matrix(),
                np.append(np.array(step.meta["outputs"]["affine"].get("centroid", (0, 0, 0))), 0),
            )
            point = matrix @ (point - centre) + centre
    same = np.allclose(at[:6], transform[:6]) and moved.shape == pair.reference.shape
    return (point - middle)[:2], np.asarray(np.ma.filled(moved, np.nan)) if same else None


def errors_of(pair: DemPair, answer: Answer, where: np.ndarray) -> tuple[float, float]:
    """Pixels, and metres: the mean height error over these pixels."""
    shift, moved = answer
    horizontal = float(np.hypot(*(shift - pair.shift[:2]))) / pair.pixel
    return horizontal, float("nan") if moved is None else abs(float(np.nanmean((moved - pair.truth)[where])))


def compared(pair: DemPair, answers: Sequence[Answer]) -> np.ndarray:
    """Stable pixels that have a value after every method: means over different pixels differ by the pixels' noise."""
    where = pair.stable & np.isfinite(pair.reference)
    for _, moved in answers:
        if moved is not None and np.isfinite(moved).any():
            where &= np.isfinite(moved)
    return where


def synthetic(half: str, count: int, families: Sequence[str]) -> None:
    """A table of medians over the terrains, noises and seeds of a family.

    "best possible" is the mean of the reference's own noise: what least squares on these pixels is off by, whose
    shift is right.
    """
    tile = srtm_tile(DATA)
    rows, beaten = [], []
    for family in families:
        found: dict[str, list[tuple[float, float, float]]] = {}
        for pair in pairs(half, count, tile, (family,)):
            methods = {
                "coregister": lambda pair=pair: ours(pair, pair.bias),
                "coregister auto": lambda pair=pair: ours(pair, "auto"),
                **xdem_methods(pair),
            }
            answers: dict[str, tuple[Answer, float]] = {}
            for name, method in methods.items():
                start = time.process_time()
                answer = method()
                answers[name] = answer, time.process_time() - start
            where = compared(pair, [answer for answer, _ in answers.values()])
            for name, (answer, seconds) in answers.items():
                found.setdefault(name, []).append((*errors_of(pair, answer, where), seconds))
            found.setdefault("best possible", []).append(
                (float("nan"), abs(float((pair.reference - pair.truth)[where].mean())), float("nan"))
            )
        of_family = {name: np.array(values) for name, values in found.items()}
        for name, values in of_family.items():
            rows.append([family, *row_of(name, values)])
        own = of_family["coregister"]
        rest = {name: values for name, values in of_family.items() if not name.startswith(("coregister", "best"))}
        for name, values in rest.items():
            ends = np.isfinite(values[:, 1])
            if not ends.all():
                rows.append([family, *row_of(f"coregister, where {name} ends", own[ends])])
            better = np.nanmean(own[:, :2] <= values[:, :2], 0)
            beaten.append([family, name, f"{better[0]:.0%}", f"{better[1]:.0%}"])
        print_table(
            f"{family}: errors (half {half})",
            ["family", "method", "pairs", "px median", "px 90 %", "m median", "m 90 %", "cpu s"],
            [row for row in rows if row[0] == family],
        )
    print_table(
        "Share of pairs on which coregister's error is the smaller",
        ["family", "beside", "horizontal", "vertical"], beaten,
    )  # fmt: skip


def row_of(name: str, values: np.ndarray) -> list[object]:
    """Medians and 90 % quantiles of (pixels, metres, seconds) of every pair."""
    middle, high = np.nanmedian(values, 0), np.nanquantile(values, 0.9, 0)
    numbers = [f"{one[k]:.4f}" for k in (0, 1) for one in (middle, high)]
    return [name, int(np.isfinite(values[:, 1]).sum()), *numbers, f"{middle[2]:.2f}"]


def demcompare() -> None:
    """The real tile and its blurred copy: moved[y, x] = blur(reference)[y + 5, x + 3]."""
    import tifffile

    folder = DATA / "maps" / "demcompare_srtm"
    if not folder.exists():
        print("demcompare pair: not there")
        return
    reference, dem = (
        tifffile.imread(folder / name).astype(float) for name in ("srtm_ref.tif", "srtm_blurred_and_shifted.tif")
    )
    pad = np.full(reference.shape, np.nan)
    pad[: dem.shape[0], : dem.shape[1]] = dem
    rows = []
    for size, (top, left) in {1000: (0, 0), 300: (350, 350)}.items():
        window = (slice(top, top + size), slice(left, left + size))
        fixed, moving = reference[window], pad[window]
        pair = DemPair(
            f"demcompare {size}", "plain", fixed, moving, np.array([3 * PIXEL, -5 * PIXEL, 0.0]), "offset", fixed,
            np.ones(fixed.shape, dtype=bool),
        )  # fmt: skip
        for name, method in {"coregister": lambda pair=pair: ours(pair, "offset"), **xdem_methods(pair)}.items():
            start = time.process_time()
            answer = method()
            seconds = time.process_time() - start
            horizontal, vertical = errors_of(pair, answer, np.isfinite(fixed))
            rows.append([f"{size}²", name, f"{horizontal:.5f}", f"{vertical:.4f}", f"{seconds:.1f}"])
    print_table("demcompare SRTM, blurred and shifted by (3, 5) pixels", ["size", "method", "px", "m", "cpu s"], rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    print_machine(["torch", "numpy", "xdem"])
    count, half, families = (*sys.argv[1:], *("3", "claim", "")[len(sys.argv) - 1 :])
    if not families:
        demcompare()
    synthetic(half, int(count), families.split(",") if families else FAMILIES)
