"""One run of the compiler beside the solve: a process of low priority with a time limit; it leaves nothing behind."""

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

TIME_LIMIT = 120.0
"""Seconds after which a compiler is ended: a program of 2,000 statements takes one."""
NICENESS = 10
LONGEST = 200
"""Characters of the compiler's own words that are repeated."""


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
        with open(workplace / "said", "wb") as said:
            self._process = subprocess.Popen(
                [*command, "program.cpp", "-o", str(self.library)],
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
        if self._process.poll() is not None:
            return True
        if self.seconds < TIME_LIMIT:
            return False
        self._end_process()
        return True

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.started

    @property
    def is_slow(self) -> bool:
        """Was it ended because of the time limit?"""
        return self._process.returncode == -signal.SIGKILL and self.seconds >= TIME_LIMIT

    @property
    def why(self) -> str:
        """Why a compiler that has ended made no library, in a clause; empty where it did."""
        code = self._process.returncode
        if code == 0:
            return "" if self.library.exists() else f"the compiler ({self._name}) ended without an output"
        if self.is_slow:
            return f"the compiler ({self._name}) was ended after {TIME_LIMIT:g} s without a result"
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

    def _end_process(self) -> None:
        if self._process.poll() is None:
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
