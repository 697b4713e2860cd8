"""Where the compiled library comes from: the package, the cache, the compiler; and what is never loaded."""

import ctypes
import errno
import logging
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mslsq
import mslsq.kernels.library as library
import mslsq.kernels.loading as loading
import mslsq.kernels.places as places
from mslsq.kernels import KernelsMissingError, KernelsMissingWarning, KernelsNotKeptWarning
from mslsq.kernels.build import NAME, CompilerError, record, sources_hash, targets


def libraries(folder: Path) -> list[Path]:
    return sorted(folder.rglob(NAME))


@pytest.fixture
def homeless(monkeypatch):
    """A container's user: no HOME, no entry in the list of users."""
    import pwd

    def unknown(number):
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME", "MSLSQ_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_the_packaged_library_needs_no_home(installed, compiled, homeless):
    installed.packaged(compiled)
    assert library.available()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives folders away")
def test_the_packaged_library_may_be_below_a_folder_of_another_user_as_the_package_is(installed, compiled, monkeypatch):
    """Sandboxes: / belongs to a user that is not known inside. In the cache no such library is loaded."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    os.chown(installed.package.parent, 12345, -1)
    kept = installed.cache / sources_hash() / f"{sys.platform}-{loading.platform.machine()}"
    installed.put(kept / next(iter(targets())) / NAME, compiled)
    with pytest.raises(KernelsMissingError, match="belongs to another user"):
        library.target()
    library._outcome.cache_clear()
    installed.packaged(compiled)
    assert library.target()


def test_without_a_library_and_a_compiler_the_error_says_what_to_do(installed, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.warns(KernelsMissingWarning, match="ten times"):
        assert not library.available()
    for _ in range(2):
        with pytest.raises(KernelsMissingError, match=r"no-such-compiler[\s\S]*Install"):
            library.target()


def test_a_compiler_that_failed_is_not_asked_again(installed, monkeypatch):
    asked = []
    monkeypatch.setattr(loading, "compiler", lambda: asked.append(1))
    monkeypatch.setattr(loading, "best_target", lambda folder: (_ for _ in ()).throw(CompilerError("broken")))
    for _ in range(3):
        with pytest.raises(KernelsMissingError, match="broken"):
            library.target()
    assert asked == [1]


def test_compiling_is_announced_and_done_once(installed, copying, caplog):
    for _ in range(2):
        with caplog.at_level(logging.WARNING, "mslsq"):
            assert library.available()
        library._outcome.cache_clear()
        library._missing.cache_clear()
    assert len(copying) == len(libraries(installed.cache)) == 1
    (said,) = caplog.messages
    for words in (library.target(), str(installed.cache), "ten seconds", "python -m mslsq.kernels"):
        assert words in said
    assert installed.cache.stat().st_mode & 0o777 == 0o700


def no_home(monkeypatch, installed):
    monkeypatch.delenv("MSLSQ_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))


def home_is_no_folder(monkeypatch, installed):
    monkeypatch.delenv("MSLSQ_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/dev/null")


def others_may_write(monkeypatch, installed):
    installed.cache.mkdir()
    installed.cache.chmod(0o777)


def no_execution(monkeypatch, installed):
    if not hasattr(os, "ST_NOEXEC"):
        pytest.skip("this system does not say how a file system is mounted")
    real = os.statvfs

    def statvfs(path):
        flags = os.ST_NOEXEC if Path(path).is_relative_to(installed.cache) else 0
        return os.statvfs_result((*real(path)[:8], flags, 255))

    monkeypatch.setattr(os, "statvfs", statvfs)


def full(monkeypatch, installed):
    real = places.tempfile.TemporaryFile

    def temporary(dir):
        if Path(dir).is_relative_to(installed.cache):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(dir=dir)

    monkeypatch.setattr(places.tempfile, "TemporaryFile", temporary)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (no_home, "no home folder"),
        (home_is_no_folder, "Not a directory"),
        (others_may_write, "others may write"),
        (no_execution, "noexec"),
        (full, "No space left"),
    ],
)
def test_where_nothing_can_be_kept_one_warning_says_why_and_all_works(
    spoil, reason, installed, copying, monkeypatch, tmp_path
):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(places.tempfile, "tempdir", str(tmp_path / "temporary"))
    spoil(monkeypatch, installed)
    with pytest.warns(KernelsNotKeptWarning, match=rf"(?s){reason}.*MSLSQ_CACHE_DIR") as said:
        assert library.available()
    assert len(said) == 1
    assert copying[0].is_relative_to(tmp_path / "temporary")
    assert not list((tmp_path / "temporary").iterdir()) and not libraries(installed.cache)  # loaded, and gone


def test_a_library_of_other_sources_is_not_used(installed, compiled, monkeypatch):
    """An edited checkout: the packaged library is older than the sources."""
    installed.packaged(compiled)
    assert library._library()[0].mslsq_sources().decode() == sources_hash()
    library._outcome.cache_clear()
    monkeypatch.setattr(loading, "sources_hash", lambda: "other")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(KernelsMissingError, match="other sources"):
        library.target()


def test_what_is_no_library_is_not_used(installed, monkeypatch):
    installed.packaged(b"not a library")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(KernelsMissingError, match=f"{NAME} is not used"):
        library.target()


def test_a_damaged_library_in_the_cache_is_replaced(installed, copying):
    assert library.available()
    (kept,) = libraries(installed.cache)
    kept.write_bytes(b"damaged")
    library._outcome.cache_clear()
    library.target()
    library._outcome.cache_clear()
    library.target()
    assert len(copying) == 2 and libraries(installed.cache) == [kept]


@pytest.fixture
def planted(tmp_path, cxx) -> tuple[bytes, Path]:
    """A library that writes a file as soon as it is loaded, and the file."""
    trace, source, made = tmp_path / "it ran", tmp_path / "planted.cpp", tmp_path / "planted.so"
    source.write_text(
        "#include <cstdio>\n"
        f'__attribute__((constructor)) static void run() {{ std::fclose(std::fopen("{trace}", "w")); }}\n'
    )
    subprocess.run([*cxx, "-shared", "-fPIC", "-o", made, source], check=True)
    return made.read_bytes(), trace


def test_the_planted_library_of_these_tests_runs_when_it_is_loaded(planted, installed):
    content, trace = planted
    ctypes.CDLL(str(installed.packaged(content)))
    assert trace.exists()


def test_a_library_is_not_run_where_others_may_write(planted, installed, monkeypatch):
    content, trace = planted
    monkeypatch.setenv("CXX", "no-such-compiler")
    kept = installed.cache / sources_hash() / f"{sys.platform}-{loading.platform.machine()}"
    for path in (installed.packaged(content), *(installed.put(kept / name / NAME, content) for name in targets())):
        path.parent.chmod(0o777)
    with pytest.raises(KernelsMissingError, match="others may write") as raised:
        library.target()
    assert str(raised.value).count("chmod go-w") == 1 + len(targets()) and not trace.exists()


def test_a_library_that_is_not_the_recorded_one_is_not_run(planted, installed, compiled, monkeypatch):
    content, trace = planted
    monkeypatch.setenv("CXX", "no-such-compiler")
    path = installed.packaged(compiled)
    path.write_bytes(content)
    with pytest.raises(KernelsMissingError, match="checksum"):
        library.target()
    library._outcome.cache_clear()
    record(path).unlink()
    with pytest.raises(KernelsMissingError, match="no record"):
        library.target()
    assert not trace.exists()


def test_an_instruction_set_that_the_processor_lacks_is_refused(installed, copying, monkeypatch):
    known = list(targets())
    best = known.index(loading.best_target(Path()))
    for number, name in enumerate(known):
        monkeypatch.setenv("MSLSQ_TARGET", name)
        library._outcome.cache_clear()
        if number <= best:
            assert library.target() == name
        else:
            with pytest.raises(ValueError, match=f"{name}.*the best that this processor has"):
                library.target()


START = "import mslsq.kernels; assert mslsq.kernels.available(); print(mslsq.kernels.target())"


@pytest.mark.slow
def test_four_processes_that_start_at_once_all_compile_and_one_library_is_kept(tmp_path, unoptimised):
    """In a path with spaces, without a packaged library: the package is a copy without it."""
    environment = without_library(tmp_path) | {"CXX": unoptimised, "MSLSQ_CACHE_DIR": str(tmp_path / "my cache")}
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda _: python(tmp_path, environment, "-c", START), range(4)))
    assert [done.returncode for done in outcomes] == [0] * 4, outcomes
    assert all("compiled now" in done.stderr for done in outcomes)
    (kept,) = libraries(tmp_path / "my cache")
    assert sorted(path.name for path in kept.parents[1].iterdir()) == [kept.parent.name]
    again = python(tmp_path, environment, "-c", START)
    assert again.stdout.split() == [kept.parent.name] and not again.stderr


@pytest.mark.slow
def test_the_command_compiles_what_is_missing(tmp_path, unoptimised):
    environment = without_library(tmp_path) | {"CXX": unoptimised, "MSLSQ_CACHE_DIR": str(tmp_path / "cache")}
    for words in ("compiled now", str(tmp_path / "cache")):
        done = python(tmp_path, environment, "-m", "mslsq.kernels")
        assert done.returncode == 0 and words in done.stdout
    done = python(tmp_path, environment | {"MSLSQ_CACHE_DIR": "x", "CXX": "x"}, "-m", "mslsq.kernels")
    assert done.returncode == 1 and "Install a C++ compiler" in done.stderr


@pytest.fixture
def unoptimised(tmp_path, cxx) -> str:
    """A compiler that takes a third of the time."""
    script = tmp_path / "quick c++"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(cxx)} "$@" -O0\n')
    script.chmod(0o755)
    return str(script)


def python(folder: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """A new process, started in a folder that has no package of its own."""
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)


def without_library(folder: Path) -> dict[str, str]:
    """The environment of a process that imports a copy of the package which brings no library."""
    ignored = shutil.ignore_patterns("__pycache__", f"{NAME}*")
    shutil.copytree(Path(mslsq.__file__).parent, folder / "site packages" / "mslsq", ignore=ignored)
    return os.environ | {"PYTHONPATH": str(folder / "site packages")}
