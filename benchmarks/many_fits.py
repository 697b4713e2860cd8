"""Memory and time of very many curve fits: `python benchmarks/many_fits.py 100000`, each size in a process of its own.

Decays of 32 points and 3 parameters in float64, with one thread. Seconds are of processor time. Memory is that of the
process (Linux): what the call has added, and its peak above what was there before.
"""

import sys
import time
from pathlib import Path

import torch

import mslsq


def decay(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return p[0] * torch.exp(-p[1] * t) + p[2]


def in_mib(entry: str) -> float:
    """VmRSS, the memory held, or VmHWM, the most since the peak was reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(entry))


def main(count: int) -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    t = torch.linspace(0, 4, 32, dtype=torch.float64)
    p = torch.rand(count, 3, 1, generator=generator, dtype=torch.float64) + torch.tensor([[2.0], [1.0], [0.0]])
    y = p[:, 0] * torch.exp(-p[:, 1] * t) + p[:, 2]
    y += 0.02 * torch.randn(y.shape, generator=generator, dtype=torch.float64)
    start = torch.ones(3, dtype=torch.float64)
    mslsq.curve_fit(decay, t, y[:1000], start, in_dims=(None, 0, None))
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, began = in_mib("VmRSS"), time.process_time()
    fits = mslsq.curve_fit(decay, t, y, start, in_dims=(None, 0, None))
    seconds = time.process_time() - began
    data = y.numel() * y.element_size() / 2**20
    wrong = int((~fits.solution.converged).sum())
    figures = f"{data:.0f} | {in_mib('VmRSS') - before:.0f} | {in_mib('VmHWM') - before:.0f} | {seconds:.1f} | {wrong}"
    print(f"| {count:,} | {figures} |")


if __name__ == "__main__":
    main(int(sys.argv[1]))
