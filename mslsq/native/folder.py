"""The folder in which compiled programs are kept: of the user, checked before anything of it is loaded, and limited.

Each program has a folder of its own below it, named by its key, with the library and the record of its checksum; it
appears by one rename, whole. Where the user's folder cannot be used a temporary one takes its place, until the process
ends.
"""

import ctypes
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from mslsq.kernels.build import checksum, record
from mslsq.kernels.loading import doubt
from mslsq.kernels.places import cache_folder, make_private

NAME = "program.so"
UNFINISHED = "new-"
"""How the names of folders begin in which a compiler works."""
SIGN = "sign-"
"""How those begin that say something and hold nothing."""
NOTE, WORDS = "note-", "words"
"""How those begin that hold a few words, and the file of these."""
ABANDONED = 3600.0
"""Seconds after which such a folder is what an ended process has left."""

LIMIT_VARIABLE, LIMIT = "MSLSQ_CACHE_MIB", 256.0
KEPT_AFTER_TRIMMING = 0.75
ROOM = 2**20
"""Bytes that must be free where a program is compiled; its library takes 30 to 200 KB."""


class Folder:
    """Where programs are, and why elsewhere than in the user's folder (`unusable`, a clause; empty if not)."""

    def __init__(self) -> None:
        self.unusable = ""
        self._temporary: Path | None = None
        self._kept: Path | None = None
        self._free = -1.0  # bytes that can be added before the folder is looked through again: at once, at first
        try:
            self._kept = cache_folder() / "programs"
        except OSError as error:
            self.unusable = str(error)

    def find(self, key: str) -> ctypes.CDLL | None:
        """The program of this key, loaded; None where there is none that may be loaded."""
        for folder in filter(None, (self._temporary, self._kept)):
            path = folder / key / NAME
            try:
                if path.exists() and doubt(path) is None:
                    library = ctypes.CDLL(str(path))
                    with suppress(OSError):  # read-only: then nothing is deleted there either
                        os.utime(path.parent)  # the least recently used are deleted first
                    return library
            except OSError:  # deleted or exchanged meanwhile, or no library of this system: compiled again
                continue
        return None

    def holds(self, key: str) -> bool:
        """Is there a program of this key? Whether it may be loaded is not looked at."""
        return any((folder / key / NAME).exists() for folder in (self._temporary, self._kept) if folder)

    def has_sign(self, sign: str) -> bool:
        """Was this sign left, by a process before?"""
        path = self._sign(sign)
        try:
            if path is None or not path.is_dir():
                return False
            os.utime(path)
        except OSError:  # read-only, or gone
            return path is not None and path.is_dir()
        return True

    def leave_sign(self, sign: str) -> None:
        """Leave a sign among the programs, an empty folder: with them it is deleted when it is not used."""
        path = self._sign(sign)
        if path is not None and not self.unusable:
            with suppress(OSError):
                path.mkdir(mode=0o700, exist_ok=True)

    def remove_sign(self, sign: str) -> None:
        """Take it away again."""
        path = self._sign(sign)
        if path is not None:
            with suppress(OSError):
                path.rmdir()

    def _sign(self, sign: str) -> Path | None:
        return None if self._kept is None else self._kept / f"{SIGN}{sign}"

    def note(self, key: str) -> str | None:
        """The words that were left under a key; None where there are none."""
        path = None if self._kept is None else self._kept / f"{NOTE}{key}"
        try:
            words = None if path is None else (path / WORDS).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
        with suppress(OSError):  # read-only
            if path is not None:
                os.utime(path)
        return words

    def leave_note(self, key: str, words: str) -> None:
        """Leave words under a key for processes to come, whole or not at all; deleted as programs are."""
        if self._kept is None or self.unusable or (self._kept / f"{NOTE}{key}" / WORDS).exists():
            return
        with suppress(OSError):
            aside = self._workplace(self._kept)
            try:
                made = aside / "note"
                made.mkdir(mode=0o700)
                (made / WORDS).write_text(words, encoding="utf-8")
                made.rename(self._kept / f"{NOTE}{key}")  # fails where another process was faster
            finally:
                shutil.rmtree(aside, ignore_errors=True)

    def remove_note(self, key: str) -> None:
        """Take it away again, out of sight first, so that it is never there without its words."""
        if self._kept is None:
            return
        with suppress(OSError):
            aside = self._workplace(self._kept)
            with suppress(OSError):
                (self._kept / f"{NOTE}{key}").rename(aside / "deleted")
            shutil.rmtree(aside, ignore_errors=True)

    def make_workplace(self) -> Path:
        """A new folder for a compiler, beside the programs. OSError where there is no place at all."""
        if self._kept and not self.unusable:
            try:
                return self._workplace(make_private(self._kept, ROOM))
            except OSError as error:
                self.unusable = f"{self._kept} cannot be used ({error})"
        if self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="mslsq-"))
        return self._workplace(make_private(self._temporary, ROOM))

    def keep(self, library: Path, key: str) -> None:
        """Give a library of a workplace its name among the programs. OSError where that fails: the next process
        compiles it again at worst."""
        made, folder = library.parent / "kept", library.parent.parent
        made.mkdir(mode=0o700)
        library.chmod(0o700)  # whatever the umask: a library that others may write is not loaded
        record(made / NAME).write_text(f"{checksum(library)}  {NAME}\n")
        record(made / NAME).chmod(0o600)
        size = library.stat().st_size
        library.rename(made / NAME)
        final = folder / key
        if final.is_symlink() or final.exists():
            if (final / NAME).exists() and doubt(final / NAME) is None:
                return  # another process was faster
            final.rename(library.parent / "replaced")
        made.rename(final)
        self._free -= size
        if self._free < 0:
            self._trim(folder)

    def remove_temporary(self) -> None:
        """Remove the temporary folder, if there is one."""
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def forget_temporary(self) -> None:
        """It is another process's, which removes it."""
        self._temporary = None

    @staticmethod
    def _workplace(folder: Path) -> Path:
        return Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder))

    def _trim(self, folder: Path) -> None:
        """Delete the programs that have not been used for longest, down to three quarters of the limit."""
        limit, now = size_limit()[0] * 2**20, time.time()
        found: list[tuple[float, int, Path]] = []
        for path in folder.iterdir():
            with suppress(OSError):  # another process deletes, too
                used = path.stat().st_mtime
                if path.name.startswith(UNFINISHED):
                    if now - used > ABANDONED:
                        shutil.rmtree(path, ignore_errors=True)
                    continue
                found.append((used, sum(file.stat().st_size for file in path.iterdir()), path))
        total = sum(size for _, size, _ in found)
        goal = limit if total <= limit else KEPT_AFTER_TRIMMING * limit
        for _, size, path in sorted(found):
            if total <= goal:
                break
            with suppress(OSError):  # out of sight first, so that none is seen in part
                aside = self._workplace(folder)
                path.rename(aside / "deleted")
                shutil.rmtree(aside, ignore_errors=True)
            total -= size
        self._free = limit - total


def size_limit() -> tuple[float, str]:
    """The size in MiB that the folder may have, and what is wrong with the variable that says so ("" if nothing)."""
    named = os.environ.get(LIMIT_VARIABLE, "").strip()
    try:
        value = float(named or LIMIT)
    except ValueError:
        value = -1.0
    if value >= 0:
        return value, ""
    return LIMIT, f"{LIMIT_VARIABLE}={named!r} is not a size in MiB: {LIMIT:g} holds"
