"""Text files by their lines, compressed or not, and complaints that begin with ``file:line:``."""

import bz2
import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from mslsq.datasets.nist import MalformedFileError
from mslsq.replacing import replacing

OPENERS = {".gz": gzip.open, ".bz2": bz2.open}
BEGINNINGS = {b"\x1f\x8b": ".gz", b"BZh": ".bz2"}
"""What compressed files begin with."""
PIECE = 1 << 20
"""Bytes that are decompressed at once."""
ALWAYS_READ = 1 << 28
"""Bytes, 256 MiB, that any compressed file may become."""
LARGEST_RATIO, USUAL_RATIO = 100, "3 to 20 times"
"""A larger file may grow this many times. Pose graphs and BAL's problems become 3 to 7 times as large, a graph
of edges that are all the same but for their numbers 18 times (gzip) to 60 times (bzip2); gzip allows 1,030, bzip2 some
million: a file made to fill the memory."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""What some editors write before the text."""


def read_lines(path: Path) -> list[str]:
    """The lines of a text file; ``.gz`` and ``.bz2`` are decompressed.

    Raises:
        OSError: there is no such file.
        MalformedFileError: the file is not text, its compression is damaged, or it becomes more than 100 times as large
            when decompressed (and more than 256 MiB).
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file. Paths are relative to {Path.cwd()}.")
    if path.is_dir():
        raise IsADirectoryError(f"{path}: this is a folder, not a file; give one of its files.")
    content = _decompressed(path) if path.suffix.lower() in OPENERS else path.read_bytes()
    content = content.removeprefix(BYTE_ORDER_MARK)
    try:
        return content.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        byte, line = content[error.start], content[: error.start].count(b"\n") + 1
        packed = [suffix for beginning, suffix in BEGINNINGS.items() if content.startswith(beginning)]
        hint = f": compressed, so its name must end in {packed[0]}" if packed else ""
        raise MalformedFileError(f"{path}:{line}: expected plain ASCII text, found byte {byte:#x}{hint}") from None


def _decompressed(path: Path) -> bytes:
    """The content of a compressed file, no more of it in memory than its size allows for."""
    size = path.stat().st_size
    limit = max(ALWAYS_READ, LARGEST_RATIO * size)
    content = bytearray()
    with open(path, "rb") as file:
        try:
            with OPENERS[path.suffix.lower()](file, "rb") as stream:
                while piece := stream.read(PIECE):
                    content += piece
                    if len(content) > limit:
                        break
        except (EOFError, OSError, zlib.error) as error:
            raise MalformedFileError(f"{path}:1: damaged, cannot be decompressed as {path.suffix} ({error})") from error
    if len(content) > limit:
        raise MalformedFileError(
            f"{path}: its {size} bytes become more than {limit} when they are decompressed, {len(content) // size} "
            f"times as many; text of numbers becomes {USUAL_RATIO} as large. If it is what you want, decompress it "
            "first: plain files are read whatever their size."
        )
    return bytes(content)


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
    """The words of one line as that many finite numbers."""
    try:
        values = [float(word) for word in words]
    except ValueError:
        values = []
    # a sum is finite only if every term is, but for overflow, and 1_0 is a number in Python alone: one look for thirty
    if len(values) != count or not math.isfinite(sum(values)) or "_" in "".join(words):
        wrong = [word for word in words if not _is_finite(word)]
        if wrong:
            malformed(path, line, f"{expected} ({count} finite numbers)", wrong[0])
        if len(words) != count:
            malformed(path, line, f"{expected} ({count} finite numbers, not {len(words)})", " ".join(words))
    return values


def _is_finite(word: str) -> bool:
    try:
        return "_" not in word and math.isfinite(float(word))
    except ValueError:
        return False


def integers(path: Path, line: int, words: Sequence[str], expected: str) -> list[int]:
    """The words of one line as whole numbers, zero or more, that an int64 holds."""
    if not "".join(words).isdecimal():  # words are never empty: one look instead of one for each
        malformed(path, line, f"{expected} (whole numbers, zero or more)", " ".join(words) or "nothing")
    if max(map(len, words)) > 18 and any(len(word) > 19 or int(word) >= 2**63 for word in words):
        malformed(path, line, f"{expected} (whole numbers below 2**63)", " ".join(words))
    return [int(word) for word in words]


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
