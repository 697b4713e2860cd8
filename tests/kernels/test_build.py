"""Which compiler is used: the one that is named, the system's, that of the package ziglang. And when none has to be."""

import importlib
from pathlib import Path

import pytest

from mslsq.kernels import build as building
from mslsq.kernels.build import (
    NAME,
    ZIG_TARGETS,
    CompilerError,
    build,
    checksum,
    compiler,
    is_zig,
    record,
    target_options,
    targets,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All programs of a system that has none."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    return folder


@pytest.fixture
def ziglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of that name, and its executable."""
    package = tmp_path / "site packages" / "ziglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('looked for, never imported')\n")
    monkeypatch.syspath_prepend(package.parent)
    importlib.invalidate_caches()
    return executable(package / "zig")


def executable(path: Path) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_systems_compiler_comes_before_that_of_a_package_and_a_named_one_before_both(folder, ziglang, monkeypatch):
    assert compiler() == [str(ziglang), "c++"]
    executable(folder / "clang++")
    assert compiler() == ["clang++"]
    executable(folder / "other")
    monkeypatch.setenv("CXX", "other --fast")
    assert compiler() == ["other", "--fast"]


def test_without_any_the_error_names_all_ways_to_get_one(folder):
    if importlib.util.find_spec("ziglang"):
        pytest.skip("ziglang is installed")
    with pytest.raises(CompilerError, match=r"clang\+\+ and the package ziglang.*apt install.*mslsq\[native\]"):
        compiler()


def test_a_package_without_its_executable_is_none(folder, ziglang):
    ziglang.unlink()
    with pytest.raises(CompilerError):
        compiler()


def test_zig_is_recognised_however_it_is_called_and_its_processors_are_spelled_as_it_wants():
    for command in (["/usr/lib/python3/ziglang/zig", "c++"], ["python", "-m", "ziglang", "c++"]):
        assert is_zig(command)
        if len(targets()) > 1:
            assert [target_options(command, name) for name in targets()] == list(ZIG_TARGETS.values())
    for command in (["g++"], ["ccache", "g++"], ["/home/zigmund/bin/clang++"]):
        assert not is_zig(command)
        assert target_options(command, "baseline") == []


def test_a_library_is_taken_over_where_nothing_it_is_made_of_has_changed(folder, tmp_path, monkeypatch):
    executable(folder / "g++")
    compiled = []

    def linked(work: Path, sources: object) -> None:
        compiled.append(work)
        (work / NAME).write_text(f"library {len(compiled)}")

    monkeypatch.setattr(building, "_compile_and_link", linked)
    first, second = tmp_path / "first" / NAME, tmp_path / "second" / NAME
    build(first)
    build(second, before=first)
    build(first, before=first)
    assert len(compiled) == 1
    assert second.read_text() == "library 1" and record(second).read_text().startswith(checksum(second))

    second.write_text("damaged")
    build(tmp_path / "third" / NAME, before=second)
    build(tmp_path / "fourth" / NAME, ["baseline"], before=first)  # which has more instruction sets
    monkeypatch.setattr(building, "FLAGS", (*building.FLAGS, "-O1"))
    build(tmp_path / "fifth" / NAME, before=first)
    build(tmp_path / "sixth" / NAME, before=tmp_path / "nothing" / NAME)
    assert len(compiled) == 5
