"""Compiles the C++ of `source/` into one shared library with plain C names: no headers of Python or PyTorch.

Run by `setup.py` when the package is installed, and by `library.py` where that had no compiler, or the sources have
changed since. Imports nothing but the standard library, so that `setup.py` can run it before the package exists.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCE = Path(__file__).parent / "source"
NAME = "libmslsq.dylib" if platform.system() == "Darwin" else "libmslsq.so"

FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
)
FLAGS += ("-Wall", "-Wno-psabi", "-Wno-unknown-pragmas")

# Compiled one beside the other; the best that the processor has is chosen when the library is loaded.
X86_TARGETS = {"baseline": (), "avx2": ("-march=x86-64-v3",), "avx512": ("-march=x86-64-v4",)}


class CompilerError(RuntimeError):
    """There is no C++ compiler, or it could not compile the kernels."""


def targets() -> dict[str, tuple[str, ...]]:
    """The instruction sets to compile for, each with the compiler's options."""
    return X86_TARGETS if platform.machine() in ("x86_64", "AMD64") else {"baseline": ()}


def sources_hash() -> str:
    """What the library says it was made of: sixteen digits that change with any of the sources."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in sorted(SOURCE.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def compiler() -> str:
    """The C++ compiler: `$CXX`, else the first of c++, g++, clang++ that is installed."""
    named = os.environ.get("CXX")
    for name in (named,) if named else ("c++", "g++", "clang++"):
        if shutil.which(name):
            return name
    raise CompilerError(
        f"no C++ compiler: looked for {named or 'c++, g++ and clang++'}. Install one (Debian: apt install g++; macOS: "
        "xcode-select --install), or name it in the variable CXX."
    )


def build(library: Path) -> None:
    """Compile and link; the file appears whole or not at all. CompilerError with the compiler's words."""
    chosen, command = targets(), compiler()
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        jobs = [_compilation(command, Path(folder), source, target) for source in _kernels() for target in chosen]
        defined = [f"-DMSLSQ_HAS_{target}" for target in chosen]
        defined.append(f'-DMSLSQ_SOURCES="{sources_hash()}"')
        jobs.append(_compilation(command, Path(folder), SOURCE / "dispatch.cpp", "baseline", defined))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, (arguments for arguments, _ in jobs)))
        linked = Path(folder) / NAME
        _run([command, "-shared", "-o", str(linked), *(str(made) for _, made in jobs)])
        os.replace(linked, library)


def _kernels() -> list[Path]:
    return sorted(path for path in SOURCE.glob("*.cpp") if path.name != "dispatch.cpp")


def _compilation(
    command: str, folder: Path, source: Path, target: str, defined: Sequence[str] = ()
) -> tuple[list[str], Path]:
    """The command that compiles one source for one target, and the file it makes."""
    made = folder / f"{source.stem}_{target}.o"
    options = [*FLAGS, *targets()[target], f"-DMSLSQ_TARGET={target}", *defined]
    return [command, *options, "-c", str(source), "-o", str(made)], made


def _run(arguments: list[str]) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode:
        raise CompilerError(f"the kernels could not be compiled:\n$ {' '.join(arguments)}\n{done.stderr.strip()}")
