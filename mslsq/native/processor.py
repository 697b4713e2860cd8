"""The processor that programs are compiled for: its instruction set, its model, and the compiler's command."""

import functools
import os
import platform
import shutil
import sys
from collections.abc import Sequence

import torch

from mslsq.kernels.build import FLAGS as KERNELS_FLAGS
from mslsq.kernels.build import chosen_target, is_zig, target_options, targets

VECTOR_BYTES = {"baseline": 16, "avx2": 32, "avx512": 64, "neon": 16}
"""The width of a register of each instruction set."""

OTHER_THAN_KERNELS = ("-O", "-W", "-ffp-contract")
FLAGS = (*(flag for flag in KERNELS_FLAGS if not flag.startswith(OTHER_THAN_KERNELS)), "-O2", "-w", "-shared")
FLAGS += ("-ffp-contract=off", "-fwrapv")
"""Those of the kernels, but no product is fused with a sum where the source does not say so: √(a² − b²) with a = b must
not become the root of a negative number that PyTorch never sees. GCC and Clang then agree to the bit. -O3 takes 1.6
times as long to compile straight-line code, which runs no faster. Integers wrap around, as PyTorch's do."""


def target() -> str:
    """The instruction set to compile programs for: `$MSLSQ_TARGET`, else the best that this processor has.

    PyTorch is asked, which chooses its own code so: the library of the kernels may not be there.

    Raises:
        ValueError: MSLSQ_TARGET is unknown, or more than the processor has.
    """
    found = torch.backends.cpu.get_cpu_capability().partition("_")[0].lower()
    return chosen_target(found if found in targets() else next(iter(targets())))


def options(command: Sequence[str], target: str) -> list[str]:
    """What the compiler is told, but for the names of files."""
    # Zig would first compile a C and a C++ library of its own (70 s); programs need nothing of them but mathematical
    # functions, which the process has. Without what only debuggers read a library has 26 KB instead of 149.
    linking = ["-nostdlib", "-s"] if is_zig(command) and sys.platform == "linux" else []
    return [*FLAGS, *target_options(command, target), *linking]


def identity(command: Sequence[str]) -> str:
    """What changes when another version of the compiler is installed: the files of its command, their size and time.

    Its own `--version` would cost a process (5 ms) where a program is only loaded, and might not come back.
    """
    found = []
    for path in filter(None, map(shutil.which, command)):
        state = os.stat(path)
        found.append(f"{os.path.realpath(path)} {state.st_size} {state.st_mtime_ns}")
    return "\n".join([*command, *found])


@functools.cache
def model() -> str:
    """The processor's model, as the system names it; only its architecture where that cannot be learned quickly."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            text = lines.read(4096).split("\n\n")[0]  # of the first core
    except OSError:
        text = ""
    named = ("model name", "cpu family", "model", "stepping", "cpu implementer", "cpu part", "cpu variant")
    fields = [line.partition(":") for line in text.splitlines()]
    values = [value.strip() for name, _, value in fields if name.strip().lower() in named]
    return " ".join([platform.machine(), *values])
