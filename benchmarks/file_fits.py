"""Very many fits from a file: `python benchmarks/file_fits.py 10000000`, in constant memory, beside a loop over SciPy.

Decays of 16 points and 3 parameters in float32 (the computation too; SciPy's in float64), one thread per process. One
row in 10,000 has no data. `--processes 2` uses several, `--folder` says where the files go, and they are removed.
The loop over SciPy is a sample of 1,000 fits, half before and half after, of which the whole time is extrapolated.
Memory is VmHWM of Linux, the most that a process ever held, the libraries among it.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.optimize
import torch
from timing import print_machine, print_table

import mslsq
from mslsq.parallel import Progress

POINTS, SAMPLE, NO_DATA = 16, 1000, 10_000
T = np.linspace(0, 4, POINTS, dtype=np.float32)


def decay(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return p[0] * torch.exp(-p[1] * t) + p[2]


def make_data(path: Path, count: int) -> None:
    """A row per fit, a part at a time."""
    rows = np.lib.format.open_memmap(path, "w+", np.float32, (count, POINTS))
    random = np.random.default_rng(0)
    for start in range(0, count, 100_000):
        size = min(100_000, count - start)
        a, rate, offset = random.uniform((2, 1, 0), (3, 2, 1), (size, 3)).T[..., None]
        rows[start : start + size] = a * np.exp(-rate * T) + offset + 0.02 * random.standard_normal((size, POINTS))
    rows[::NO_DATA] = np.nan


def by_scipy(rows: np.ndarray) -> tuple[np.ndarray, float]:
    """Parameters, and seconds of processor time."""
    t, begin = T.astype(np.float64), time.process_time()

    def model(t, a, rate, offset):
        return a * np.exp(-rate * t) + offset

    found = [scipy.optimize.curve_fit(model, t, row, np.ones(3))[0] for row in rows]
    return np.array(found), time.process_time() - begin


def of_processes(what: str) -> dict[str, float]:
    """Of this process and its children: MiB of an entry of their status, or "cpu" in seconds."""
    children = Path("/proc/self/task").glob("*/children")
    found = {}
    for process in ["self", *(child for path in children for child in path.read_text().split())]:
        folder = Path("/proc") / process
        if what == "cpu":
            found[process] = sum(map(int, (folder / "stat").read_text().rpartition(")")[2].split()[11:13])) / 100
        else:
            lines = (folder / "status").read_text().splitlines()
            found[process] = next((int(line.split()[1]) / 1024 for line in lines if line.startswith(what)), 0.0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=4096)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="file-fits-", dir=given.folder))
    try:
        measure(given.count, given.processes, given.at_once, folder)
    finally:
        shutil.rmtree(folder)


def measure(count: int, processes: int, at_once: int, folder: Path) -> None:
    """The run, and its table."""
    make_data(folder / "y.npy", count)
    places = 1 + np.sort(np.random.default_rng(1).choice(count // NO_DATA or 1, SAMPLE)) * NO_DATA % (count - 1)
    sample = np.load(folder / "y.npy", mmap_mode="r")[places].astype(np.float64)
    expected, seconds = by_scipy(sample[: SAMPLE // 2])
    peaks: dict[int, float] = {}
    cpu: dict[str, float] = {}

    def look(progress: Progress) -> None:
        share = 100 * progress.done // progress.total
        if share % 10 == 0 and share not in peaks:
            peaks[share] = max(of_processes("VmHWM").values())
            cpu.update(of_processes("cpu"))
            held = max(of_processes("RssAnon").values())
            left = f"{progress.remaining or 0:.0f} s left"
            print(f"{share} %, {left}, peak {peaks[share]:.0f} MiB, {held:.0f} of its own", flush=True)

    Path("/proc/self/clear_refs").write_text("5")  # resets the peak, which is that of making the data
    before, begin = of_processes("cpu")["self"], time.perf_counter()
    fits = mslsq.fit_file(
        *(decay, torch.from_numpy(T), folder / "y.npy", torch.ones(3), folder / "fits"),
        n_jobs=processes,
        at_once=at_once,
        progress=look,
    )
    wall, ours = time.perf_counter() - begin, sum(cpu.values()) - before
    after, more = by_scipy(sample[SAMPLE // 2 :])
    expected, seconds = np.concatenate([expected, after]), seconds + more
    off = np.abs(fits.parameters[places] - expected) / fits.standard_errors[places]
    print(fits.message())
    print_machine(["torch", "numpy", "scipy", "joblib"])
    header = ["", "fits", "µs of processor time a fit", "in all, s", "peak of a process, MiB"]
    rows = [
        [f"fit_file, {processes} process(es)", f"{count:,}", 1e6 * ours / count, ours, max(peaks.values())],
        ["SciPy's curve_fit, extrapolated", f"{SAMPLE:,}", 1e6 * seconds / SAMPLE, seconds / SAMPLE * count, ""],
    ]
    print_table(f"{count:,} fits of {POINTS} points, {wall:.0f} s of wall time", header, rows)
    print(f"peak at 0, 10, ... 100 %, MiB: {', '.join(f'{peak:.0f}' for _, peak in sorted(peaks.items()))}")
    print(f"files: data {64 * count / 2**20:.0f} MiB, results {33 * count / 2**20:.0f} MiB")
    print(f"from SciPy's, in standard errors: median {np.median(off):.1e}, largest {off.max():.1e}")


if __name__ == "__main__":
    main()
