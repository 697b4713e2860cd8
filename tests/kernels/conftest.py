"""Loading as in a new process, from a package and a cache that belong to the test."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mslsq.kernels.library as library
import mslsq.kernels.loading as loading
from mslsq.kernels.build import NAME, checksum, record


class Installation:
    """A package and a cache, both empty at first; libraries are taken from the one that this process uses."""

    def __init__(self, folder: Path):
        self.package, self.cache = folder / "package", folder / "cache"
        self.package.mkdir()
        (self.package / "loading.py").touch()

    def put(self, path: Path, content: bytes) -> Path:
        """A library with a record that fits."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_bytes(content)
        record(path).write_text(f"{checksum(path)}  {path.name}\n")
        return path

    def packaged(self, content: bytes) -> Path:
        return self.put(self.package / NAME, content)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Installation]:
    """Nothing packaged, an empty cache, nothing loaded."""
    found = Installation(tmp_path)
    monkeypatch.setattr(loading, "__file__", str(found.package / "loading.py"))
    monkeypatch.setenv("MSLSQ_CACHE_DIR", str(found.cache))
    monkeypatch.delenv("MSLSQ_TARGET", raising=False)
    known = library._outcome, library._missing
    for function in known:
        function.cache_clear()
    yield found
    for function in known:
        function.cache_clear()


@pytest.fixture(scope="session")
def compiled() -> bytes:
    """The library that this process uses."""
    path = Path(sys.modules["mslsq.kernels"].__file__ or "").with_name(NAME)
    if not path.exists():
        pytest.skip("the kernels were not compiled when the package was installed")
    return path.read_bytes()


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch, installed: Installation, compiled: bytes) -> list[Path]:
    """A compiler that takes no time: a copy of the library that this process uses. The list of what it made."""
    made: list[Path] = []
    best = loading._opened(installed.put(installed.package / "whole" / NAME, compiled), []).mslsq_target().decode()

    def build(path: Path, chosen: object) -> None:
        made.append(installed.put(path, compiled))

    monkeypatch.setattr(loading, "compiler", lambda: ["copy"])
    monkeypatch.setattr(loading, "best_target", lambda folder: best)
    monkeypatch.setattr(loading, "build", build)
    return made
