"""Files that are whole or not there: written beside their place and renamed."""

import errno
import os
import re
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["NotWrittenError", "remove_unfinished", "replaced", "replacing", "same_name", "write_text"]

UNFINISHED = re.compile(r"\..*\.part-\w{8}(\.\w+)?")
"""Names of files that are being written. A process that is killed leaves them."""


class NotWrittenError(OSError):
    """A file that could not be written: the disk is full, say, or the folder may not be written to. It names the file;
    what was there before under this name is still there, whole."""


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path`; after the block it is renamed to `path`, after an exception it is removed.

    Raises:
        NotWrittenError: an OSError in the block that is about this file or, as that of a full disk, about none.
    """
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.stem[:40]}.part-", suffix=path.suffix, dir=path.parent)
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
