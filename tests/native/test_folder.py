"""The folder of programs: private, checked before anything is loaded, limited; a temporary one where it cannot be."""

import errno
import os
import tempfile
import time
from pathlib import Path

import pytest

import mslsq.kernels.places as places
from mslsq.native.folder import ABANDONED, NAME, UNFINISHED, Folder, size_limit
from tests.native.programs import answer, program

FIRST = "0" * 32


def kept(place: Folder, key: str, content: bytes) -> Path:
    """Keeps a file as a compiler would have left it; where."""
    workplace = place.make_workplace()
    (workplace / NAME).write_bytes(content)
    place.keep(workplace / NAME, key)
    workplace.rmdir()
    return workplace.parent / key / NAME


def test_folder_and_programs_are_the_users_alone_whatever_the_umask(cache):
    before = os.umask(0)
    try:
        path = kept(Folder(), FIRST, b"")
    finally:
        os.umask(before)
    assert path.parents[1] == cache
    for one in (path.parents[2], cache, path.parent, path, path.with_name(f"{NAME}.sha256")):
        assert one.stat().st_mode & 0o077 == 0


def rewritten(path: Path, content: bytes) -> None:
    """As another file of that name: this process has loaded the old one, and would end in a bus error at its exit."""
    mode = path.stat().st_mode
    path.unlink()
    path.write_bytes(content)
    path.chmod(mode)


def spoiled_by_truncation(path: Path) -> None:
    rewritten(path, path.read_bytes()[:1000])


def spoiled_by_exchange(path: Path) -> None:
    rewritten(path, path.read_bytes()[:-8] + b"exchange")


def spoiled_by_mode(path: Path) -> None:
    path.chmod(0o777)


def spoiled_without_record(path: Path) -> None:
    path.with_name(f"{NAME}.sha256").unlink()


def spoiled_by_emptiness(path: Path) -> None:
    for file in path.parent.iterdir():
        file.unlink()


@pytest.mark.parametrize(
    "spoil",
    [spoiled_by_truncation, spoiled_by_exchange, spoiled_by_mode, spoiled_without_record, spoiled_by_emptiness],
)
def test_what_is_not_the_file_that_was_compiled_is_not_loaded_but_compiled_again(spoil, new_store, cache, cxx):
    assert answer(new_store().request(program(), wait=True)) == 42
    (path,) = cache.rglob(NAME)
    spoil(path)
    again = new_store().request(program(), wait=True)
    assert answer(again) == 42 and "was compiled in" in again.sentence()
    assert "compiled before" in new_store().request(program(), wait=False).sentence()
    assert [one.name for one in cache.iterdir()] == [path.parent.name]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_a_program_of_another_user_is_not_loaded(new_store, cache, cxx):
    new_store().request(program(), wait=True)
    (path,) = cache.rglob(NAME)
    os.chown(path, 12345, -1)
    assert "was compiled in" in new_store().request(program(), wait=True).sentence()


def no_home(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.delenv("MSLSQ_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))


def read_only(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    def refuse(dir: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    real = places.tempfile.TemporaryFile
    monkeypatch.setattr(
        places.tempfile, "TemporaryFile", lambda dir: (refuse if Path(dir).is_relative_to(cache) else real)(dir=dir)
    )


def others_may_write(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)


def no_execution(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    if not hasattr(os, "ST_NOEXEC"):
        pytest.skip("this system does not say how a file system is mounted")
    real = os.statvfs

    def statvfs(path: Path) -> os.statvfs_result:
        flags = os.ST_NOEXEC if Path(path).is_relative_to(cache) else 0
        return os.statvfs_result((*real(path)[:8], flags, 255))

    monkeypatch.setattr(os, "statvfs", statvfs)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    folder = tmp_path / "temporary"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (no_home, "no home folder"),
        (read_only, "Read-only file system"),
        (others_may_write, "others may write"),
        (no_execution, "noexec"),
    ],
)
def test_where_the_folder_cannot_be_used_a_temporary_one_is_until_the_process_ends(
    spoil, reason, new_store, cache, temporary, monkeypatch, cxx
):
    spoil(monkeypatch, cache)
    store = new_store()
    build = store.request(program(), wait=True)
    assert answer(build) == 42 and reason in build.sentence() and "MSLSQ_CACHE_DIR" in build.sentence()
    assert len(list(temporary.rglob(NAME))) == 1 and not list(cache.rglob(NAME))
    store.close()
    assert not list(temporary.iterdir())


def test_programs_of_a_folder_that_cannot_be_written_are_used(new_store, cache, temporary, monkeypatch, cxx):
    """The image of a container, made with its programs."""
    new_store().request(program(), wait=True)
    read_only(monkeypatch, cache)
    assert "compiled before" in new_store().request(program(), wait=False).sentence()
    assert not list(temporary.iterdir())


def test_where_there_is_no_place_at_all_the_clause_says_so(new_store, cache, temporary, monkeypatch):
    def full(dir: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(places.tempfile, "TemporaryFile", full)
    monkeypatch.setenv("CXX", "true")
    build = new_store().request(program(), wait=True)
    assert build.library() is None and "No space left on device" in build.why


def test_a_fork_leaves_the_temporary_folder_to_its_parent(temporary, monkeypatch, cache):
    no_home(monkeypatch, cache)
    place = Folder()
    kept(place, FIRST, b"")
    place.forget_temporary()
    place.remove_temporary()
    assert len(list(temporary.rglob(NAME))) == 1


def test_the_programs_that_were_not_used_for_longest_are_deleted(cache, monkeypatch):
    monkeypatch.setenv("MSLSQ_CACHE_MIB", "1")
    place, content = Folder(), bytes(100_000)
    for number in range(10):
        path = kept(place, f"{number:032}", content)
        os.utime(path.parent, (number, number))
    os.utime(cache / f"{0:032}")  # used again
    for number in (10, 11):  # the first is one too many: a quarter of the limit is made free
        kept(place, f"{number:032}", content)
    assert sorted(int(one.name) for one in cache.iterdir()) == [0, 5, 6, 7, 8, 9, 10, 11]


def test_use_counts_from_the_last_loading(new_store, cache, cxx):
    new_store().request(program(), wait=True)
    (folder,) = cache.iterdir()
    os.utime(folder, (1, 1))
    new_store().request(program(), wait=False)
    assert time.time() - folder.stat().st_mtime < 60


def test_what_an_ended_process_left_is_removed_and_what_a_compiler_uses_is_not(cache):
    cache.mkdir(parents=True, mode=0o700)
    for name, age in (("old", ABANDONED + 60), ("young", 0)):
        path = cache / f"{UNFINISHED}{name}"
        path.mkdir()
        os.utime(path, (time.time() - age, time.time() - age))
    kept(Folder(), FIRST, b"")
    assert sorted(path.name for path in cache.iterdir()) == [FIRST, f"{UNFINISHED}young"]


@pytest.mark.parametrize("named", ["much", "-1", "nan"])
def test_a_size_that_is_none_is_said_and_the_default_holds(named, monkeypatch):
    monkeypatch.setenv("MSLSQ_CACHE_MIB", named)
    size, complaint = size_limit()
    assert size == 256 and f"MSLSQ_CACHE_MIB='{named}'" in complaint
    monkeypatch.setenv("MSLSQ_CACHE_MIB", "0.5")
    assert size_limit() == (0.5, "")
