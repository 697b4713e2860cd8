"""Rasters beyond memory: `align_files` and `write_mosaic` on terrain of known truth, beside `align` in memory.

    OMP_NUM_THREADS=1 python benchmarks/big_rasters.py FOLDER [sizes: 4096,20000] [seeds: 12]
    OMP_NUM_THREADS=1 python benchmarks/big_rasters.py --elevation FOLDER [sizes: 2000,12000]   # coregister_files

Rasters are made in FOLDER by windows (20,000²: 1 GB, some minutes) and kept. Every contestant runs in a process of its
own, whose peak of resident memory is the figure.
"""

import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import print_machine, print_table

from mslsq.alignment import FilesAlignment, Georeference, align, align_files, coregister_files, write_mosaic
from mslsq.alignment.big.files import rasterio_here, small_cache
from mslsq.alignment.big.terrain import Scan, Terrain, write_scan
from mslsq.alignment.measures import corner_error

MODEL = "sim2"
WHOLE = 4096
"""The largest side that `align` is given in memory."""


def truth(size: int, seed: int = 0) -> np.ndarray:
    """Turned by 2°, 1 % larger, moved by 15 % and 10 % of the side; other seeds vary all of that."""
    random = np.random.default_rng(seed)
    degrees, scale, along, down = 2.0, 1.01, -0.15 * size + 0.37, 0.1 * size - 0.21
    if seed:
        degrees, scale = random.uniform(-4, 4), random.uniform(0.97, 1.03)
        along, down = random.uniform(-0.2, 0.2, 2) * size
    c, s = scale * np.cos(np.deg2rad(degrees)), scale * np.sin(np.deg2rad(degrees))
    middle = (size - 1) / 2
    about = np.array([[1, 0, middle], [0, 1, middle], [0, 0, 1]])
    turn = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    return np.array([[1, 0, along], [0, 1, down], [0, 0, 1]]) @ about @ turn @ np.linalg.inv(about)


def scans(folder: Path, size: int, seed: int = 0, noise: float = 5.0, overviews: bool = False) -> list[Path]:
    """The reference as uint16 and the map as int16, with gain 0.8, a bias, and noise of 5 m on a spread of 300 m."""
    paths = [folder / f"{name}{size}-{seed}-{noise:g}.tif" for name in ("a", "b")]
    if not all(path.exists() for path in paths):
        terrain = Terrain(seed + 1, longest=size / 3)
        plain = Scan(np.eye(3), 1.0, -1000.0, noise, "uint16", 0, 2 * seed + 1)
        moved = Scan(truth(size, seed), 0.8, -1500.0, noise, "int16", -32768, 2 * seed + 2)
        write_scan(paths[0], terrain, plain, (size, size))
        write_scan(paths[1], terrain, moved, (size, size))
    if not overviews:
        return paths
    copies = [path.with_stem(path.stem + "-overviews") for path in paths]
    for path, copy in zip(paths, copies, strict=True):
        if not copy.exists():
            shutil.copyfile(path, copy)
            with small_cache(), rasterio_here().open(copy, "r+") as dataset:
                dataset.build_overviews([2, 4, 8, 16, 32], rasterio_here().enums.Resampling.average)
    return copies


def one(what: str, folder: Path, size: int, memory: str) -> dict[str, Any]:
    """One contestant, in this process."""
    paths = scans(folder, size, overviews=what.endswith("overviews"))
    begin, wall = time.process_time(), time.perf_counter()
    if what == "in memory":
        maps = []
        for path in paths:
            with small_cache(), rasterio_here().open(path) as dataset:
                maps.append(torch.from_numpy(dataset.read(1).astype(np.float64)))
        result, words = align(maps, model=MODEL), "all pixels"
    else:
        result = align_files(paths, model=MODEL, memory=memory)
        words = result.tile_levels[-1].words
    found = {
        "error": corner_error(result.transforms[1], torch.from_numpy(truth(size)), size, size),
        "sigma": float(result.corner_sigma[1]),
        "gain": float(result.gain[1]),
        "used": words,
        "cpu": time.process_time() - begin,
        "wall": time.perf_counter() - wall,
    }
    if isinstance(result, FilesAlignment) and what.startswith("mosaic"):
        before = time.process_time()
        written = write_mosaic(result, folder / f"mosaic{size}.tif", blend=what.split()[1])
        found |= {"cpu": time.process_time() - before, "used": f"{written.canvas.width} x {written.canvas.height}"}
        for path in (written.mosaic, written.coverage):
            path.unlink()
    return found | {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9}


class Bent:
    """A terrain as a model sees it that is tilted by 12 and 6 m from border to border, stretched by 1 %, and whose
    upper left quarter was lowered since by up to 20 m, with a border that tapers off over a fifth of the side,
    which a bias may follow (`results/dem.md`)."""

    def __init__(self, terrain: Terrain, size: int) -> None:
        self.terrain, self.size = terrain, size

    def at(self, points: torch.Tensor) -> torch.Tensor:
        """The heights at some places."""
        x, y = (points / (self.size - 1) - 0.5).unbind(-1)
        lowered = 20 / ((1 + torch.exp(20 * x)) * (1 + torch.exp(20 * y)))
        return 1.01 * self.terrain.at(points) - 12 * x - 6 * y - lowered


METRES = 30.0
MOVED = np.array([101.1, 174.3, 7.5])
"""Metres east, north and up."""
KINDS = {"plain": "offset", "bent": "plane+scale"}
"""Pairs of elevation models, and the bias model for each."""


def models(folder: Path, size: int, kind: str) -> list[Path]:
    """A reference and a model that was moved, pixels of 30 m, 2 m of noise on both, and a hole."""
    paths = [folder / f"reference{size}.tif", folder / f"{kind}{size}.tif"]
    terrain, header = (
        Terrain(11, longest=400.0),
        Georeference.from_geotransform((4e5, METRES, 0, 52e5, 0, -METRES), "EPSG:32632"),
    )
    options = {"size": (size, size), "georeference": header}
    matrix = np.eye(3)
    matrix[:2, 2] = -MOVED[0] / METRES, MOVED[1] / METRES
    if not paths[0].exists():
        write_scan(paths[0], terrain, Scan(np.eye(3), noise=2.0, nodata=-9999, seed=1), **options)
    if not paths[1].exists():
        seen: Any = terrain if kind == "plain" else Bent(terrain, size)
        how = Scan(matrix, bias=float(MOVED[2]), noise=2.0, nodata=-9999, seed=2)
        write_scan(paths[1], seen, how, **options, holes=lambda row, column: (row, column) == (2, 1))
    return paths


def one_coregistered(folder: Path, size: int, kind: str, memory: str) -> dict[str, Any]:
    """A pair of elevation models, in this process."""
    passes: dict[str, float] = {}
    begin, wall = time.process_time(), time.perf_counter()

    def progress(words: str, done: int, total: int) -> None:
        passes[words] = time.process_time() - begin
        if done == total:
            print(words, f"{passes[words]:.0f} s", file=sys.stderr, flush=True)

    found = coregister_files(*models(folder, size, kind), bias=KINDS[kind], memory=memory, progress=progress)
    return {
        "error": (found.shift - MOVED).tolist(),
        "sigma": np.sqrt(np.diag(found.covariance)).tolist(),
        "changed": found.changed_share,
        "passes": len(passes),
        "used": found.message(),
        "cpu": time.process_time() - begin,
        "wall": time.perf_counter() - wall,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


def elevation_table(folder: Path, sizes: list[int]) -> None:
    """Elevation models by size, each pair in a process of its own."""
    rows = []
    for size in sizes:
        for kind in KINDS:
            models(folder, size, kind)
            command = [sys.executable, __file__, "--coregistered", str(folder), str(size), kind, "4GB"]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            if done.returncode:
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            print(found, file=sys.stderr, flush=True)
            off = [f"{error:+.3f} ± {sigma:.3f}" for error, sigma in zip(found["error"], found["sigma"], strict=True)]
            row = [f"{size:,}²", kind, *off, f"{found['changed']:.1%}", found["passes"]]
            rows.append([*row, found["cpu"], found["wall"], found["peak"]])
    header = ("size", "pair", "east", "north", "up, m", "changed", "passes", "cpu s", "wall s", "peak GB")
    print_table("Elevation models: errors", header, rows)


def sizes_table(folder: Path, sizes: list[int]) -> None:
    """Contestants by size."""
    rows = []
    for size in sizes:
        scans(folder, size)
        contestants = [("files", "4GB"), ("files, with overviews", "4GB"), ("files", "1.6GB")]
        contestants += [("in memory", "")] * (size <= WHOLE)
        contestants += [(f"mosaic {blend}", "4GB") for blend in ("mean", "median", "feather")]
        for what, memory in contestants:
            command = [sys.executable, __file__, "--one", what, str(folder), str(size), memory]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                print(done.stderr[-2000:], file=sys.stderr)
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            numbers = [found[key] for key in ("error", "sigma")] if not what.startswith("mosaic") else ["", ""]
            rows.append([f"{size:,}²", what, memory, found["peak"], found["cpu"], *numbers, found["used"]])
            print(rows[-1], file=sys.stderr, flush=True)
    header = ("size", "contestant", "limit", "peak GB", "cpu s", "error px", "± px", "used")
    print_table("By size", header, [[_small(cell) for cell in row] for row in rows])


def _small(cell: Any) -> Any:
    return f"{cell:.4f}" if isinstance(cell, float) and abs(cell) < 0.1 else cell


def errors_table(folder: Path, seeds: int) -> None:
    """Are the standard errors honest? Squared error over stated variance, from some tiles and from all pixels."""
    rows = []
    for noise in (5.0, 60.0):
        found: dict[str, list[tuple[float, float]]] = {}
        for seed in range(1, seeds + 1):
            size, paths = 2048, scans(folder, 2048, seed, noise)
            maps = []
            for path in paths:
                with small_cache(), rasterio_here().open(path) as dataset:
                    maps.append(torch.from_numpy(dataset.read(1).astype(np.float64)))
            contestants = {
                "files, 10 tiles": align_files(paths, model=MODEL, tiles=10, georeference=False),
                "files, 32 tiles": align_files(paths, model=MODEL, tiles=32, georeference=False),
                "in memory": align(maps, model=MODEL),
            }
            for name, result in contestants.items():
                off = _corner_rms(result.transforms[1], torch.from_numpy(truth(size, seed)), size)
                found.setdefault(name, []).append((off, float(result.corner_sigma[1])))
            for path in paths:
                path.unlink()
        for name, pairs in found.items():
            off, sigma = np.array(pairs).T
            rows.append([noise, name, len(off), np.nanmedian(off), np.nanmedian(sigma), np.nanmean((off / sigma) ** 2)])
    header = ("noise m", "contestant", "pairs", "error px", "± px", "mean (error / ±)²")
    print_table("Standard errors, 2048²", header, [[_small(cell) for cell in row] for row in rows])


def _corner_rms(found: torch.Tensor, right: torch.Tensor, size: int) -> float:
    """What `corner_sigma` is the standard error of: the root mean square over the corners."""
    at = torch.tensor([[0, 0, 1], [size - 1, 0, 1], [size - 1, size - 1, 1], [0, size - 1, 1]], dtype=torch.float64)
    return float(((at @ (found - right).T)[:, :2].square().sum(1)).mean().sqrt())


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        what, folder, size, memory = sys.argv[2:6]
        print(json.dumps(one(what, Path(folder), int(size), memory)))
        return
    if sys.argv[1:2] == ["--coregistered"]:
        folder, size, kind, memory = sys.argv[2:6]
        print(json.dumps(one_coregistered(Path(folder), int(size), kind, memory)))
        return
    elevation = sys.argv[1:2] == ["--elevation"]
    arguments = sys.argv[1 + elevation :]
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    print_machine(["torch", "rasterio"])
    default = "2000,12000" if elevation else "4096,20000"
    sizes = [int(size) for size in (arguments[1] if len(arguments) > 1 else default).split(",")]
    if elevation:
        elevation_table(folder, sizes)
        return
    sizes_table(folder, sizes)
    errors_table(folder, int(arguments[2]) if len(arguments) > 2 else 12)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
