"""Compiles the C++ of `source/` into one shared library with plain C names: no headers of Python or PyTorch.

Run by `setup.py` when the package is installed, for all instruction sets, and by `loading.py` for one of them where
that had no compiler, or the sources have changed since. Beside a library lies a record of its checksum, so that a
damaged or exchanged file is found before any of its code runs. Imports nothing but the standard library, so that
`setup.py` can run it before the package exists.
"""

import ctypes
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCE = Path(__file__).parent / "source"
DISPATCH = SOURCE / "dispatch.cpp"
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
ARM_TARGETS = {"neon": ()}  # which every 64-bit ARM processor has
OTHERS = {"baseline": ()}
ZIG_TARGETS = {
    "baseline": ["-march=x86_64"],
    "avx2": ["-march=x86_64_v3"],
    "avx512": ["-march=x86_64_v4", "-mprefer-vector-width=512"],
}


class CompilerError(RuntimeError):
    """There is no C++ compiler, or it could not compile the kernels."""


def targets() -> dict[str, tuple[str, ...]]:
    """The instruction sets to compile for, each with the compiler's options."""
    machine = platform.machine().lower()
    return X86_TARGETS if machine in ("x86_64", "amd64") else ARM_TARGETS if machine in ("arm64", "aarch64") else OTHERS


def named_target() -> str | None:
    """`$MSLSQ_TARGET`, if it is set. ValueError where there is no such instruction set."""
    named = os.environ.get("MSLSQ_TARGET")
    if named and named not in targets():
        raise ValueError(f"MSLSQ_TARGET={named}: the kernels are compiled for {', '.join(targets())}.")
    return named or None


def chosen_target(best: str) -> str:
    """`$MSLSQ_TARGET`, else the best instruction set of the processor. ValueError where the processor lacks it."""
    named, order = named_target(), list(targets())
    if named and order.index(named) > order.index(best):
        raise ValueError(f"MSLSQ_TARGET={named}: the best that this processor has is {best}.")
    return named or best


def sources_hash() -> str:
    """What the library says it was made of: sixteen digits that change with any of the sources."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in sorted(SOURCE.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def record(library: Path) -> Path:
    """The file beside a library that says its checksum, as `sha256sum --check` reads it."""
    return library.with_name(library.name + ".sha256")


def checksum(library: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    return hashlib.sha256(library.read_bytes()).hexdigest()


def compiler() -> list[str]:
    """The command of the C++ compiler: `$CXX`, else the first of c++, g++, clang++ that is installed, else the one of
    the package ziglang (the extra `mslsq[native]`)."""
    named = os.environ.get("CXX", "").strip()
    # "ccache g++" is a command with an argument, "/opt/my tools/g++" is one path
    candidates = [[named], shlex.split(named)] if named else [["c++"], ["g++"], ["clang++"]]
    for command in candidates:
        if shutil.which(command[0]):
            return command
    if not named and (command := _packaged_compiler()):
        return command
    raise CompilerError(
        f"no C++ compiler: looked for {named or 'c++, g++, clang++ and the package ziglang'}. Install one (Debian: apt "
        "install g++; macOS: xcode-select --install; anywhere: pip install 'mslsq[native]'), or name it in the "
        "variable CXX."
    )


def _packaged_compiler() -> list[str]:
    """Clang as the package ziglang brings it: the executable itself, as `python -m ziglang c++` runs it."""
    found = importlib.util.find_spec("ziglang")
    for folder in (found and found.submodule_search_locations) or ():
        if zig := shutil.which("zig", path=folder):
            return [zig, "c++"]
    return []


def is_zig(command: Sequence[str]) -> bool:
    """Is this the Clang of ziglang, as a path, or as `python -m ziglang c++`?"""
    return any(Path(word).stem in ("zig", "ziglang") for word in command[:3])


def target_options(command: Sequence[str], target: str) -> list[str]:
    """The options of a compiler for an instruction set.

    Zig spells processors with underscores, and compiles for the present one where none is named. Its Clang splits
    vectors of 64 bytes in two for x86-64-v4 unless told not to: a program of 2,000 statements takes 3.5 ms so, 1.5 ms
    whole (GCC: 1.7).
    """
    if is_zig(command) and len(targets()) > 1:
        return ZIG_TARGETS[target]
    return list(targets()[target])


def build(library: Path, chosen: Sequence[str] | None = None, before: Path | None = None) -> None:
    """Compile and link for the chosen instruction sets (default: all), and record the checksum of what was made.

    The library appears whole or not at all. A whole one that stands at `before`, of the same sources and compiler, is
    copied instead. CompilerError with the compiler's words.
    """
    library.parent.mkdir(parents=True, exist_ok=True)
    origin = _origin(chosen or list(targets()))
    if before and _is_whole(before, origin):
        if before != library:
            shutil.copy2(before, library)
            shutil.copy2(record(before), record(library))
        return
    with tempfile.TemporaryDirectory(dir=library.parent) as name:
        folder = Path(name)
        # All sources for one target, then the next: the linker keeps the first copy that it meets of an inline
        # function, and the code for any processor must not be given one with AVX-512 instructions.
        made = [(source, target) for target in chosen or targets() for source in _kernels()]
        _compile_and_link(folder, [*made, (DISPATCH, next(iter(targets())))])
        linked = folder / NAME
        linked.chmod(0o755)  # whatever the umask: a library that others may write is not loaded
        record(linked).write_text(f"{checksum(linked)}  {library.name}\n{origin}\n")
        record(linked).chmod(0o644)
        os.replace(linked, library)
        os.replace(record(linked), record(library))


def _origin(chosen: Sequence[str]) -> str:
    """What a library is made of and by, as a line of a record (a comment to `sha256sum`)."""
    command = compiler()
    done = subprocess.run([*command, "--version"], capture_output=True, text=True)
    version = done.stdout.partition("\n")[0].strip()
    return f"# sources {sources_hash()} for {', '.join(chosen)} by {shlex.join(command)} ({version})"


def _is_whole(library: Path, origin: str) -> bool:
    """Is this the library that was made of these sources, as its record says?"""
    try:
        said = record(library).read_text().splitlines()
        return said == [f"{checksum(library)}  {library.name}", origin]
    except OSError:
        return False


def best_target(folder: Path) -> str:
    """The best instruction set of this processor, by the rule that the library itself follows: its dispatch is compiled
    alone (0.2 s), in a folder within this one, and asked. CompilerError, or OSError where it cannot be loaded."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        _compile_and_link(Path(work), [(DISPATCH, next(iter(targets())))])
        asked = ctypes.CDLL(str(Path(work) / NAME)).mslsq_target
        asked.restype = ctypes.c_char_p
        return asked().decode()


def _kernels() -> list[Path]:
    return sorted(path for path in SOURCE.glob("*.cpp") if path != DISPATCH)


def _compile_and_link(folder: Path, sources: Sequence[tuple[Path, str]]) -> None:
    """Make `folder / NAME` of some sources, each compiled for a target, all of them at once."""
    command = compiler()
    jobs = [_compilation(command, folder, source, target) for source, target in sources]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_run, (arguments for arguments, _ in jobs)))
    _run([*command, "-shared", "-o", str(folder / NAME), *(str(made) for _, made in jobs)])


def _compilation(command: list[str], folder: Path, source: Path, target: str) -> tuple[list[str], Path]:
    """The command that compiles one source for one target, and the file it makes."""
    made = folder / f"{source.stem}_{target}.o"
    options = [*FLAGS, *target_options(command, target), f"-DMSLSQ_TARGET={target}"]
    if source == DISPATCH:  # it names the best of all targets, also in a library that has one: is it the right one?
        options += [*(f"-DMSLSQ_HAS_{name}" for name in targets()), f'-DMSLSQ_SOURCES="{sources_hash()}"']
    return [*command, *options, "-c", str(source), "-o", str(made)], made


def _run(arguments: list[str]) -> None:
    # the compiler's own temporary files go where its output goes: /tmp may be full, or another user's
    environment = os.environ | {"TMPDIR": str(Path(arguments[arguments.index("-o") + 1]).parent)}
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise CompilerError(f"the kernels could not be compiled:\n$ {shlex.join(arguments)}\n{done.stderr.strip()}")
