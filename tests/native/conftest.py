"""A store as in a new process, with a cache that belongs to the test, and compilers that misbehave."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mslsq.kernels.build import CompilerError, compiler, is_zig
from mslsq.native.store import Store


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of programs; not there yet."""
    monkeypatch.setenv("MSLSQ_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("MSLSQ_CACHE_MIB", "MSLSQ_TARGET", "MSLSQ_NATIVE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache" / "programs"


@pytest.fixture
def new_store(cache: Path) -> Iterator[Callable[[], Store]]:
    """Makes stores, each as that of a new process."""
    made: list[Store] = []

    def new() -> Store:
        made.append(Store())
        return made[-1]

    yield new
    for store in made:
        store.close()


@pytest.fixture
def store(new_store: Callable[[], Store]) -> Store:
    return new_store()


@pytest.fixture
def compiling_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Names a shell script as the compiler; the numbers of its processes go to the file that is returned."""

    try:
        only_zig = is_zig(compiler())  # then a script around it is told what Zig is told
    except CompilerError:
        only_zig = False

    def named(script: str) -> Path:
        path, calls = tmp_path / ("zig" if only_zig else "fake c++"), tmp_path / "calls"
        path.write_text(f'#!/bin/sh\ncalls="{calls}"\necho "$$" >> "$calls"\nfor output; do :; done\n{script}\n')
        path.chmod(0o755)
        calls.touch()
        monkeypatch.setenv("CXX", str(path))
        return calls

    return named
