"""Where the compiled library comes from: the package, else the user's cache, else the compiler.

The library comes with the package, for all instruction sets. Where it is missing (an installation from source without
a compiler) or was made from other sources (an edited checkout), it is compiled for the one that this processor needs:
once, into the user's cache; where the cache cannot be used, in every new process, into a temporary folder that is gone
as soon as the library is loaded.

A file is loaded only where no other user could have put it, and where its checksum is the one recorded when it was
made: its code would run before it can be asked what it is.
"""

import ctypes
import logging
import platform
import sys
import tempfile
import warnings
from collections.abc import Collection
from contextlib import ExitStack, suppress
from pathlib import Path

from mslsq.kernels.build import (
    NAME,
    CompilerError,
    best_target,
    build,
    checksum,
    chosen_target,
    compiler,
    is_zig,
    named_target,
    record,
    sources_hash,
    targets,
)
from mslsq.kernels.places import cache_folder, make_private, objection

LOG = logging.getLogger("mslsq.kernels")


class KernelsMissingError(RuntimeError):
    """The compiled kernels are missing and could not be compiled."""


class KernelsNotKeptWarning(UserWarning):
    """The compiled kernels are compiled in every new process: there is no folder to keep them in."""


def load() -> tuple[ctypes.CDLL, str]:
    """The library, and the instruction set it is used with. KernelsMissingError, with all that was tried."""
    named = named_target()
    reasons: list[str] = []  # why what is there is not used
    # The owner of this file or of its folders runs code here anyway: another user who installed the package, or the
    # unknown owner of / in a sandbox. The library beside it is as good.
    here = Path(__file__).resolve()
    library = _opened(here.with_name(NAME), reasons, [path.stat().st_uid for path in (here, *here.parents)])
    if library:
        return library, _target(library)
    try:
        kept = cache_folder() / sources_hash() / f"{sys.platform}-{platform.machine()}"
    except OSError as error:
        return _compiled(None, named, reasons, str(error))
    for target in [named] if named else reversed(targets()):
        library = _opened(kept / target / NAME, reasons)
        if library and _target(library) == target:
            return library, target
    return _compiled(kept, named, reasons)


def _opened(path: Path, reasons: list[str], owners: Collection[int] = ()) -> ctypes.CDLL | None:
    """The library of a file; None where there is none that may be loaded, and why goes to `reasons`."""
    try:
        if not path.exists():
            return None
        reason = doubt(path, owners)
        if reason is None:
            library = ctypes.CDLL(str(path))
            library.mslsq_sources.restype = library.mslsq_target.restype = ctypes.c_char_p
            if library.mslsq_sources() == sources_hash().encode():
                return library
            reason = "it was made from other sources"
    except (OSError, AttributeError) as error:  # not readable, of another processor, without our functions
        reason = str(error)
    reasons.append(f"{path} is not used: {reason}")
    return None


def doubt(path: Path, owners: Collection[int] = ()) -> str | None:
    """Why the code in a file may not run; None where it may."""
    if not record(path).exists():
        return f"there is no record of its checksum beside it ({record(path).name})"
    if reason := objection(path.parent, (path, record(path)), owners):
        return reason
    if record(path).read_text().split()[:1] != [checksum(path)]:
        return "it is damaged: its checksum is not the recorded one"
    return None


def _target(library: ctypes.CDLL) -> str:
    """The instruction set: `$MSLSQ_TARGET` (baseline, avx2, avx512), else the best that the processor has."""
    return chosen_target(library.mslsq_target().decode())


def _compiled(kept: Path | None, named: str | None, reasons: list[str], unusable: str = "") -> tuple[ctypes.CDLL, str]:
    """Compile for one instruction set, load, and keep what was made in the folder `kept` where that can be."""
    try:
        compiler()
        with ExitStack() as until_loaded:
            try:
                place = make_private(kept) if kept else None
            except OSError as error:
                place, unusable = None, f"{kept} cannot be used ({error})"
            if place is None:
                temporary = tempfile.TemporaryDirectory(prefix="mslsq-", ignore_cleanup_errors=True)
                place = make_private(Path(until_loaded.enter_context(temporary)))
            # Loaded before it gets its name, so that of several processes at once each has its own, whichever is last.
            work = tempfile.TemporaryDirectory(prefix="new-", dir=place, ignore_cleanup_errors=True)
            folder = Path(until_loaded.enter_context(work))
            target = named or best_target(folder)
            _announce(target, kept, unusable, reasons)
            made = folder / target
            made.mkdir(mode=0o700)
            build(made / NAME, [target])
            library = _opened(made / NAME, reasons)
            if library is None:
                raise CompilerError(f"what was compiled cannot be loaded: {reasons[-1]}")
            _target(library)
            if kept and not unusable:
                _keep(made, kept / target, folder / "replaced")
            return library, target
    except (CompilerError, OSError) as error:
        tried = "".join(f"{reason}\n" for reason in [*reasons, unusable] if reason)
        where = ", or name a folder that you alone can write in the variable MSLSQ_CACHE_DIR" if unusable else ""
        raise KernelsMissingError(
            f"mslsq's compiled kernels for large sparse problems are missing, and {error}\n{tried}"
            f"Install a C++ compiler, or a wheel of mslsq that brings them{where}."
        ) from error


def _announce(target: str, kept: Path | None, unusable: str, reasons: list[str]) -> None:
    """Say what takes so long, before it begins. That there is no folder to keep it in is a warning."""
    begin = (
        f"mslsq's compiled kernels for large sparse problems are not there. They are compiled now for {target}, into "
    )
    tried = "".join(f"\n{reason}." for reason in reasons)
    # Zig compiles its C++ library first, into a cache of its own: 110 s of processor time on the measured machine
    time = "up to two minutes" if is_zig(compiler()) else "some ten seconds"
    if kept and not unusable:
        LOG.warning(
            f"{begin}{kept}: {time}, once. To avoid this, install mslsq where there is a C++ compiler (or a "
            f"wheel that brings them), or run `python -m mslsq.kernels` beforehand.{tried}"
        )
        return
    advice = (
        "To keep them, name a folder that you alone can write in the variable MSLSQ_CACHE_DIR, or install mslsq where "
        "there is a C++ compiler (or a wheel that brings them)."
    )
    text = f"{begin}a temporary folder: {time} in every new process, because {unusable}. {advice}{tried}"
    warnings.warn(text, KernelsNotKeptWarning, stacklevel=2)


def _keep(made: Path, final: Path, aside: Path) -> None:
    """Give a folder its final name, in place of one that another process made meanwhile, or that could not be used."""
    with suppress(OSError):  # the library is loaded: the next process compiles it again at worst
        if final.exists() or final.is_symlink():
            final.rename(aside)
        made.rename(final)
