"""Arrays of many fits in .npy files: read a piece at a time, written a piece at a time, never whole in memory.

A map of a file is made for a piece and dropped after it: pages that were touched would count as memory of the process
until then.
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mslsq.problem.errors import ProblemError, ShapeError
from mslsq.replacing import NotWrittenError

RESULTS = ("parameters", "standard_errors", "cost", "status", "num_steps")


class Rows(NamedTuple):
    """A .npy file with a row per fit."""

    what: str
    """The argument that it was given as, for messages."""
    path: str
    shape: tuple[int, ...]
    dtype: str

    def read(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        """The rows from start to stop, in memory of their own."""
        mapped = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return torch.from_numpy(np.array(mapped[start:stop]).astype(mapped.dtype.newbyteorder("="))).to(dtype)

    def picked(self, places: list[int], dtype: torch.dtype) -> Tensor:
        """Single rows."""
        return torch.cat([self.read(place, place + 1, dtype) for place in places])

    @property
    def identity(self) -> dict[str, Any]:
        """What a run that goes on compares."""
        about = Path(self.path).stat()
        return {"path": self.path, "shape": list(self.shape), "dtype": self.dtype, "size": about.st_size,
                "mtime_ns": about.st_mtime_ns}  # fmt: skip


def rows_of(what: str, given: Any, count: int | None = None) -> Rows:
    """A file of rows, looked at without reading it.

    Raises:
        ProblemError: it is no .npy of floating-point numbers with a row per fit.
    """
    path = Path(given).expanduser().resolve()
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ProblemError(f"fit_file: {what}={str(given)!r} cannot be read as a .npy file: {error}") from error
    if not isinstance(mapped, np.ndarray):
        raise ProblemError(f"fit_file: {what}={str(given)!r} is an archive; save its array with numpy.save.")
    if mapped.dtype.kind != "f" or mapped.dtype.itemsize not in (4, 8):
        raise ProblemError(f"fit_file: {what} must be of float32 or float64, {path.name} is of {mapped.dtype}.")
    if mapped.ndim < 2 or not mapped.shape[0]:
        raise ShapeError(f"fit_file: {what} must have shape (fits, points), {path.name} has {mapped.shape}.")
    if mapped.flags.f_contiguous and not mapped.flags.c_contiguous:
        raise ProblemError(
            f"fit_file: {path.name} lies column by column, so that reading a few fits reads all of it; save "
            "numpy.ascontiguousarray of it."
        )
    if count is not None and mapped.shape[0] != count:
        raise ShapeError(f"fit_file: {what} has {mapped.shape[0]} rows, y has {count}.")
    return Rows(what, str(path), mapped.shape, mapped.dtype.name)


class Results(NamedTuple):
    """The files of a run."""

    folder: str
    count: int
    parameters: int
    dtype: str

    def made(self) -> bool:
        """Are all files there, of these shapes and types?"""
        return all(self._is_made(name) for name in RESULTS)

    def make(self) -> None:
        """Files of zeros: status 0 says that a fit has not been made.

        Raises:
            NotWrittenError: there is no room for them.
        """
        for name in RESULTS:
            path, (shape, kind) = self._path(name), self._kind(name)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                np.lib.format.open_memmap(path, "w+", kind, shape)
                _reserve(path)
            except OSError as error:
                raise NotWrittenError(error.errno or 0, f"cannot be written: {error.strerror}", str(path)) from error

    def write(self, start: int, arrays: dict[str, np.ndarray]) -> None:
        """Rows from start on, on the disk when this returns."""
        for name, rows in arrays.items():
            mapped = np.lib.format.open_memmap(self._path(name), "r+")
            mapped[start : start + len(rows)] = rows
            mapped.flush()

    def opened(self, name: str) -> np.ndarray:
        """All rows, for reading, mapped."""
        return np.load(self._path(name), mmap_mode="r")

    def nothing(self, count: int) -> dict[str, np.ndarray]:
        """Rows of fits that could not be made."""
        shapes = {name: ((count, *self._kind(name)[0][1:]), self._kind(name)[1]) for name in RESULTS}
        return {name: np.full(shape, np.nan if kind.kind == "f" else 0, kind) for name, (shape, kind) in shapes.items()}

    def _path(self, name: str) -> Path:
        return Path(self.folder) / f"{name}.npy"

    def _kind(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        if name in ("parameters", "standard_errors"):
            return (self.count, self.parameters), np.dtype(self.dtype)
        kinds = {"cost": self.dtype, "status": "int8", "num_steps": "int32"}
        return (self.count,), np.dtype(kinds[name])

    def _is_made(self, name: str) -> bool:
        try:
            found = self.opened(name)
        except (OSError, ValueError, EOFError):
            return False
        return (found.shape, found.dtype) == self._kind(name)


def _reserve(path: Path) -> None:
    """Room on the disk: a mapped file that has none ends the process that writes to it, without a word."""
    if hasattr(os, "posix_fallocate"):
        with open(path, "r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, path.stat().st_size)
