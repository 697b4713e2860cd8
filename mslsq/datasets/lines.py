"""Text files by their lines, compressed or not, and complaints that begin with ``file:line:``."""

import bz2
import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from mslsq.datasets.nist import MalformedFileError
from mslsq.replacing import replacing

OPENERS = {".gz": gzip.open, ".bz2": bz2.open}


def read_lines(path: Path) -> list[str]:
    """The lines of a text file; ``.gz`` and ``.bz2`` are decompressed.

    Raises:
        OSError: there is no such file.
        MalformedFileError: the file is not text, or its compression is damaged.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file. Paths are relative to {Path.cwd()}.")
    if path.is_dir():
        raise IsADirectoryError(f"{path}: this is a folder, not a file; give one of its files.")
    opener = OPENERS.get(path.suffix.lower())
    try:
        content = path.read_bytes() if opener is None else opener(path, "rb").read()
    except (EOFError, OSError, zlib.error) as error:
        raise MalformedFileError(f"{path}:1: damaged, cannot be decompressed as {path.suffix} ({error})") from error
    try:
        return content.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        byte, line = content[error.start], content[: error.start].count(b"\n") + 1
        raise MalformedFileError(f"{path}:{line}: expected plain ASCII text, found byte {byte:#x}") from None


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    """A text file, compressed by its suffix, whole or not at all."""
    content = ("\n".join(lines) + "\n").encode("ascii")
    opener = OPENERS.get(path.suffix.lower(), open)
    with replacing(path) as temporary, opener(temporary, "wb") as stream:
        stream.write(content)
    return path


def malformed(path: Path, line: int, expected: str, found: str = "") -> NoReturn:
    """Complain about one line, counted from 1."""
    raise MalformedFileError(f"{path}:{line}: expected {expected}" + (f", found {_short(found)!r}" if found else ""))


def numbers(path: Path, line: int, words: Sequence[str], count: int, expected: str) -> list[float]:
    """The words of one line as so many finite numbers."""
    try:
        values = [float(word) for word in words]
    except ValueError:
        values = []
    # a sum is finite only if every term is, but for overflow: one look instead of thirty
    if len(values) != count or (values and not np.isfinite(sum(values)) and not np.isfinite(values).all()):
        malformed(path, line, f"{expected} ({count} finite numbers)", " ".join(words) or "nothing")
    return values


def integers(path: Path, line: int, words: Sequence[str], expected: str) -> list[int]:
    """The words of one line as whole numbers, zero or more, that an int64 holds."""
    if not "".join(words).isdecimal():  # words are never empty: one look instead of one for each
        malformed(path, line, f"{expected} (whole numbers, zero or more)", " ".join(words) or "nothing")
    if max(map(len, words)) > 18 and any(len(word) > 19 or int(word) >= 2**63 for word in words):
        malformed(path, line, f"{expected} (whole numbers below 2**63)", " ".join(words))
    return [int(word) for word in words]


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
