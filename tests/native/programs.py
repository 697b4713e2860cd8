"""Programs that take no time to compile, what became of them, and processes."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from mslsq.native.store import Build


def program(answer: int = 42) -> str:
    """A program that takes no time to compile."""
    return f'extern "C" __attribute__((visibility("default"))) int answer() {{ return {answer}; }}\n'


def settled(build: Build, seconds: float = 120.0) -> Build:
    """The build, looked after until it is settled."""
    end = time.monotonic() + seconds
    while not build.library() and not build.why:
        assert time.monotonic() < end, build.sentence()
        time.sleep(0.002)
    return build


def answer(build: Build) -> int:
    library = build.library()
    assert library is not None, build.sentence()
    return library.answer()


def is_running(process: int) -> bool:
    """Is there such a process, and not as a zombie?"""
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, ProcessLookupError):
        return False


def wait_for_text(path: Path) -> str:
    """The content of a file, as soon as it has one."""
    end = time.monotonic() + 120
    while not path.read_text().endswith("\n"):
        assert time.monotonic() < end
        time.sleep(0.002)
    return path.read_text()


def forked(work: Callable[[], int]) -> int:
    """The number of a child that does this, and whose exit code is the result."""
    if child := os.fork():
        return child
    code = 99
    try:
        code = work()
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """The exit code of a child; it is killed after two minutes."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
