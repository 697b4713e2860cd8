"""A file of records that grows by whole lines: what a run has done is still there when it is killed.

Lines are JSON, the first of them what the run is of. Each begins with the CRC-32 of the rest of it, so that a line that
was cut off, or changed, is seen and dropped. One run at a time may write.
"""

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mslsq.replacing import NotWrittenError

FORMAT = 1
BEGINNING = b'{"crc":"'
"""Of every line: by it a journal whose first line was cut off is told from a file of something else."""
IN_USE = (errno.EACCES, errno.EAGAIN)


class JournalError(ValueError):
    """A journal is of another run than the one that wants to go on with it, or another process is writing to it."""


class Journal:
    """Open for appending; its records are those that are whole.

    Args:
        path: of the file; made where it is missing.
        identity: what the run is of, as JSON has it. A journal of something else is refused.
        resume: False: what is there is forgotten.
    """

    def __init__(self, path: str | Path, identity: Mapping[str, Any], resume: bool = True) -> None:
        """Raises JournalError for the journal of another run, or one that is in use, and NotWrittenError."""
        self.path, self._file = Path(path), -1
        self.dropped = 0
        """Lines that were not whole."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
        except OSError as error:
            raise _not_written(self.path, error) from error
        try:
            self._lock()
            self.records = self._read(json.loads(json.dumps(dict(identity))), resume)
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # Windows
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in IN_USE:
                raise JournalError(f"{self.path}: another run is writing to it. Wait for it, or end it.") from None
            # a file system without locks

    def _read(self, identity: dict[str, Any], resume: bool) -> list[dict[str, Any]]:
        """The records; what is behind the last whole line is cut off, or a line that is not whole would be joined with
        the next."""
        content = self.path.read_bytes()
        lines = content.split(b"\n")
        whole = [_decoded(line) for line in lines[:-1]]
        if not any(whole) and not BEGINNING.startswith(content[: len(BEGINNING)]):
            raise self._not_ours()
        lines, whole = (lines, whole) if resume else ([b""], [])
        self.dropped = sum(record is None for record in whole) + bool(lines[-1])
        while whole and whole[-1] is None:
            whole.pop()
        os.ftruncate(self._file, sum(len(line) + 1 for line in lines[: len(whole)]))
        os.lseek(self._file, 0, os.SEEK_END)
        if not whole:
            self.append({"format": FORMAT, "run": identity})
            return []
        if whole[0] is None:
            raise JournalError(f"{self.path}: its first line, which says what run this is, is damaged. Start again.")
        self._refuse_another(whole[0], identity)
        return [record for record in whole[1:] if record is not None]

    def _refuse_another(self, head: dict[str, Any], identity: dict[str, Any]) -> None:
        found = head.get("run")
        if head.get("format") != FORMAT or not isinstance(found, dict):
            raise self._not_ours()
        for name in {**found, **identity}:
            if found.get(name) != identity.get(name):
                where, there, here = _difference(name, found.get(name), identity.get(name))
                raise JournalError(
                    f"{self.path}: the run there has {where} = {_short(there)}, not "
                    f"{_short(here)}; their results would not fit together. Choose another place, or "
                    "start again without what is there."
                )

    def _not_ours(self) -> JournalError:
        return JournalError(f"{self.path}: this is no journal that mslsq has written. Choose another file.")

    def append(self, record: Mapping[str, Any]) -> None:
        """One record more, on the disk when this returns.

        Raises:
            NotWrittenError: it does not fit on the disk, say. What was there before is still there.
        """
        line = encoded(record)
        end = os.lseek(self._file, 0, os.SEEK_END)
        try:
            written = os.write(self._file, line)
            if written < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, end)
            raise _not_written(self.path, error) from error

    def close(self) -> None:
        """Others may write to it from here on."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __del__(self) -> None:
        """Of a run that was never begun."""
        self.close()


def encoded(record: Mapping[str, Any]) -> bytes:
    """A record as a line."""
    body = json.dumps(record, allow_nan=False, separators=(",", ":")).encode()[1:]
    return b'{"crc":"%08x",' % zlib.crc32(body) + body + b"\n"


def _decoded(line: bytes) -> dict[str, Any] | None:
    """The record of a line; None where it is not whole."""
    head, comma, body = line.partition(b",")
    if not comma or head != b'{"crc":"%08x"' % zlib.crc32(body):
        return None
    return json.loads(b"{" + body)


def _difference(name: str, there: Any, here: Any) -> tuple[str, Any, Any]:
    """The first entry in which two records differ, by its path: of two that are long, what they begin with may be the
    same."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in {**there, **here}:
            if there.get(key) != here.get(key):
                return _difference(f"{name}.{key}", there.get(key), here.get(key))
    return name, there, here


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _not_written(path: Path, error: OSError) -> NotWrittenError:
    return NotWrittenError(error.errno or errno.EIO, f"cannot be written: {error.strerror or error}", str(path))
