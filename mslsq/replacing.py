"""Files that are whole or not there: written beside their place and renamed."""

import contextlib
import errno
import os
import platform
import re
import sys
import tempfile
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

__all__ = ["NotWrittenError", "remove_unfinished", "replaced", "replacing", "same_name", "write_text"]

UNFINISHED = re.compile(r"\..*\.part-(?:(?P<machine>[0-9a-f]{8})-(?P<process>\d+)-)?\w{8}(\.\w+)?")
"""Names of files that are being written: on which machine, and by which process. One that is killed leaves them."""


class NotWrittenError(OSError):
    """A file that could not be written: the disk is full, say, or the folder may not be written to. It names the file;
    what was there before under this name is still there, whole."""


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path`; after the block it is renamed to `path`, after an exception it is removed. What
    processes that were killed have left of `path` is removed first.

    Raises:
        NotWrittenError: an OSError in the block that is about this file or, as that of a full disk, about none.
    """
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        start = f"{_unfinished(path)}{_machine()}-{os.getpid()}-"
        handle, name = tempfile.mkstemp(prefix=start, suffix=path.suffix, dir=path.parent)
        temporary = Path(name)
        os.close(handle)
        yield temporary
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except OSError as error:
        about_another = temporary is not None and error.filename not in (None, str(temporary), temporary)
        if isinstance(error, NotWrittenError) or about_another:
            raise
        # a full disk's error has no file's name, numpy's and Pillow's not even a number
        reason = error.strerror or str(error) or type(error).__name__
        raise NotWrittenError(error.errno or errno.EIO, f"cannot be written: {reason}", str(path)) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _unfinished(path: Path) -> str:
    return f".{path.stem[:40]}.part-"


def _remove_abandoned(path: Path) -> None:
    """Files that processes of this machine have begun for `path`, and that are gone since."""
    start = _unfinished(path)
    with contextlib.suppress(OSError):  # of a folder that can be written to and not listed
        for name in os.listdir(path.parent):
            of = UNFINISHED.fullmatch(name) if name.startswith(start) and name.endswith(path.suffix) else None
            if of is not None and of["machine"] == _machine() and _is_gone(int(of["process"])):
                path.with_name(name).unlink(missing_ok=True)


@cache
def _machine() -> str:
    """Where numbers of processes mean the same: on Linux a container has its own."""
    try:
        processes = os.readlink("/proc/self/ns/pid")
    except OSError:
        processes = ""
    return f"{zlib.crc32(f'{platform.node()} {processes}'.encode()):08x}"


def _is_gone(process: int) -> bool:
    if sys.platform == "win32":  # there os.kill ends a process
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:  # it runs for another user
        return False
    return False


def replaced(inputs: Iterable[str | Path], outputs: Iterable[str | Path]) -> Path | None:
    """The first input that an output would replace: the same file by whatever name, through links, or by one that
    differs in nothing but capitals or in how é is written, as some file systems have it."""
    taken = {_one_name(path) for path in outputs}
    return next((path for path in map(Path, inputs) if _one_name(path) in taken), None)


def _one_name(path: str | Path) -> str:
    return same_name(str(Path(path).expanduser().resolve()))


def same_name(name: str) -> str:
    """What file systems without capitals, or with other ways to write é, take for one name."""
    return unicodedata.normalize("NFC", name).casefold()


def remove_unfinished(folder: str | Path) -> None:
    """Remove what killed processes have left in a folder, at any depth. Nothing else may be writing there."""
    for path in Path(folder).rglob(".*"):
        if UNFINISHED.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """A whole text file, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
