"""A file that cannot be written is named, and what was there stays."""

import errno
import signal
import subprocess
import sys

import pytest

from mslsq.replacing import NotWrittenError, remove_unfinished, replacing, write_text


@pytest.mark.parametrize(
    "given", [OSError(errno.ENOSPC, "No space left on device"), OSError("8 requested and 0 written")]
)
def test_an_error_without_a_name_gets_the_name_of_the_file(tmp_path, given):
    """As a full disk raises it, and as NumPy does."""
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with (
        pytest.raises(NotWrittenError, match=r"cannot be written: (No space|8 req).*a\.txt") as caught,
        replacing(path),
    ):
        raise given
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_an_error_about_another_file_keeps_its_own_name(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere") as caught, replacing(tmp_path / "a.txt"):
        (tmp_path / "nowhere").read_text()
    assert not isinstance(caught.value, NotWrittenError)


@pytest.mark.skipif(sys.platform == "win32", reason="no kill -9 there")
def test_what_a_killed_process_leaves_is_removed_and_nothing_else(tmp_path):
    inner = tmp_path / "deep" / "er"
    code = (
        "import os, signal\nfrom mslsq.replacing import replacing\n"
        f"with replacing({str(inner / 'overlay.png')!r}) as path:\n"
        "    path.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    kept = [tmp_path / ".hidden-abcdefgh.png", tmp_path / "overlay.png", tmp_path / ".part-file"]
    for path in kept:
        path.write_text("a user's")
    assert len(list(inner.iterdir())) == 1
    remove_unfinished(tmp_path)
    assert list(inner.iterdir()) == [] and all(path.exists() for path in kept)
    remove_unfinished(tmp_path / "nowhere")


@pytest.mark.skipif(sys.platform == "win32", reason="no kill -9 there")
def test_the_next_writer_removes_what_a_killed_one_has_left_and_nothing_of_others(tmp_path):
    path = tmp_path / "mosaic.tif"
    code = (
        "import os, signal\nfrom mslsq.replacing import replacing\n"
        f"with replacing({str(path)!r}) as path:\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    with replacing(path) as running:
        assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
        begun = {one.name for one in tmp_path.iterdir()}
        assert len(begun) == 2 and running.name in begun
        (left,) = begun - {running.name}
        kept = [left.replace(".part-", ".part-0"), left.replace("mosaic", "other"), ".mosaic.part-abcdefgh.tif"]
        machine = left.split(".part-")[1][:8]
        kept.append(left.replace(machine, "0" * 8 if machine != "0" * 8 else "1" * 8))  # of another machine
        for name in kept:
            (tmp_path / name).write_text("another's")
        write_text(path, "whole")
        assert {one.name for one in tmp_path.iterdir()} == {"mosaic.tif", running.name, *kept}


def test_a_folder_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWrittenError, match=r"file/a\.txt"):
        write_text(tmp_path / "file" / "a.txt", "")


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of file sizes there")
def test_a_file_that_grows_too_large_is_named(tmp_path):
    """The limit of the process stands for a full disk: the same failing write(2)."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(NotWrittenError, match=r"a\.txt"):
            write_text(tmp_path / "a.txt", "x" * (2 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())
