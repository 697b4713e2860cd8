"""One run of the compiler beside the solve: a process of low priority with time limits; it leaves nothing behind."""

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mslsq.native.folder import NAME

PROCESSOR_LIMIT = 120
"""Seconds of the processor after which a compiler is ended: a program of 2,000 statements takes one."""
WALL_LIMIT = 1800.0
"""Seconds of the clock after which one that hangs is ended: at a load of 15 a good one took more than 120."""
LIMITED = 'ulimit -S -t "$0"; ulimit -H -t "$(($0 + 5))"; ulimit -c 0; exec "$@"'
"""Ends this process, and each of the children that do the work (`cc1plus`, `as`, `ld`), at the limit; the kernel does
it, also when Python has been killed. Where a limit is set already that is lower, it stays."""
NICENESS = 10
LONGEST = 200
"""Characters of the compiler's own words that are repeated."""


def _limited() -> list[str]:
    """What stands before a command that is to have the limit."""
    return ["/bin/sh", "-c", LIMITED, str(PROCESSOR_LIMIT)] if os.name == "posix" else []


class Compilation:
    """A compiler that has been started in a folder of its own. OSError where that cannot be done.

    Args:
        command: the compiler, and what it is told but for the names of files.
        source: text in C++.
        workplace: an empty folder, which `close` removes.
        niced: whether it gives way to other processes, as long as nothing waits for it.
    """

    def __init__(self, command: Sequence[str], source: str, workplace: Path, niced: bool):
        self.command, self.workplace, self.library = command, workplace, workplace / NAME
        (workplace / "program.cpp").write_text(source, encoding="utf-8")
        # The compiler's temporary files and Zig's cache go where its output goes, and away with it.
        own = {"TMPDIR": workplace, "ZIG_GLOBAL_CACHE_DIR": workplace / "zig", "ZIG_LOCAL_CACHE_DIR": workplace / "zig"}
        self.started = time.monotonic()
        self._limit = ""  # the one that it has come to, in words
        with open(workplace / "said", "wb") as said:
            self._process = subprocess.Popen(
                [*_limited(), *command, "program.cpp", "-o", str(self.library)],
                cwd=workplace,
                env=os.environ | {name: str(folder) for name, folder in own.items()} | {"LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                process_group=0,  # with its own children, and out of reach of a Ctrl-C that is meant for Python
            )
        if niced:
            with suppress(OSError, AttributeError):  # ended already; Windows
                os.setpriority(os.PRIO_PGRP, self._process.pid, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)

    def finished(self) -> bool:
        """Has the compiler ended? One that has run for too long is ended."""
        if self._has_ended():
            return True
        if self.seconds < WALL_LIMIT:
            return False
        self._end_process()
        self._limit = f"{WALL_LIMIT:g} s"
        return True

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.started

    @property
    def is_slow(self) -> bool:
        """Was it ended because of a time limit?"""
        return bool(self._limit)

    @property
    def why(self) -> str:
        """Why a compiler that has ended made no library, in a clause; empty where it did."""
        code = self._process.returncode
        if code == 0:
            return "" if self.library.exists() else f"the compiler ({self._name}) ended without an output"
        if self.is_slow:
            return f"the compiler ({self._name}) was ended after {self._limit} without a result"
        if code < 0:
            return f"the compiler ({self._name}) was ended by signal {-code}: was there enough memory?"
        return f"the compiler ({self._name}) failed with exit code {code}: {self._words() or 'it said nothing'}"

    def close(self) -> None:
        """End the compiler and its children, and remove the folder."""
        self._end_process()
        shutil.rmtree(self.workplace, ignore_errors=True)

    def forget(self) -> None:
        """This process is a fork of the one that started the compiler: it is that one's."""
        self._process.returncode = 0  # so that nothing waits for it

    def _has_ended(self) -> bool:
        """As `poll`, which does not tell how long it and its children had the processor."""
        if self._process.returncode is None:
            try:
                process, status, used = os.wait4(self._process.pid, os.WNOHANG)
            except (ChildProcessError, AttributeError):  # waited for already, SIGCHLD ignored; Windows
                self._process.poll()
            else:
                if process:
                    self._process.returncode = os.waitstatus_to_exitcode(status)
                    # nine tenths: kernels count ticks for the limit, and time for what is told here
                    if self._process.returncode and used.ru_utime + used.ru_stime >= 0.9 * PROCESSOR_LIMIT:
                        self._limit = f"{PROCESSOR_LIMIT} s of the processor"
        return self._process.returncode is not None

    def _end_process(self) -> None:
        if not self._has_ended():
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _words(self) -> str:
        """The first error among what the compiler said, else the end of it."""
        lines = (self.workplace / "said").read_text(encoding="utf-8", errors="replace").split("\n")
        said = [" ".join(line.split()) for line in lines if line.strip()]
        errors = [line for line in said if "error" in line.lower()]
        return (errors[:1] or said[-1:] or [""])[0][:LONGEST]

    @property
    def _name(self) -> str:
        return shlex.join(self.command[:1])
