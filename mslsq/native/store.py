"""How text in C++ becomes a loaded library: from the folder of programs, else from the compiler, which works beside.

    build = request(text, wait=False)        # at the start of a solve: the same object for the same text
    library = build.library()                # None as long as there is none; the solve then runs without

Nothing is started before the first request, and nothing is ever raised: `Build.why` says why there will be no library.
One compiler works at a time, others wait for their turn. It is looked after where a library is asked for, and ended
when Python ends. A fork forgets its parent's compiler and starts its own where it needs one.
"""

import ctypes
import hashlib
import math
import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from multiprocessing.util import Finalize

from mslsq.kernels.build import CompilerError, compiler
from mslsq.native.background import Compilation
from mslsq.native.folder import Folder, size_limit
from mslsq.native.processor import identity, model, options, target

PAUSE = 0.003
"""Seconds between two looks at a compiler that is waited for."""

EXPECTED = CompilerError, OSError, ValueError
"""What fails where there is no compiler, no disk or no such instruction set: a solve then goes on without."""

ENDING = "Python is ending"


class Build:
    """What becomes of one text."""

    def __init__(self, store: "Store", source: str, digest: str):
        self.why = ""
        """Why there is no library and will be none in this process, in a clause; empty otherwise."""
        self._store, self._source, self.digest = store, source, digest
        self._library: ctypes.CDLL | None = None
        self._settled = self._is_waited_for = False
        self._said = "waits for the compiler, which works on another program; until then recorded graphs run"

    def library(self) -> ctypes.CDLL | None:
        """The library; None while it is not there yet, or if there will be none. Looks after the compiler, but never
        waits for it."""
        if not self._settled:
            self._store.look()
        return self._library

    def sentence(self, what: str = "the residual") -> str:
        """What has become of it, for `verbose`; `what` the program computes."""
        return f"The native program of {what} {self._said}."

    def _settle(self, library: ctypes.CDLL | None, said: str, why: str = "") -> None:
        self._library, self._said, self.why, self._source, self._settled = library, said, why, "", True

    def _fail(self, why: str) -> None:
        self._settle(None, f"is not used: {why}", why)


class Store:
    """The programs of a process."""

    def __init__(self) -> None:
        self._builds: dict[str, Build] = {}
        self._forget_process()
        self._broken = ""  # why no compiler will be started any more
        self._folder: Folder | None = None

    def request(self, source: str, *, wait: bool, patience: float = math.inf) -> Build:
        """The build of a text in C++, begun if it is new; at once, or with `wait` when it is settled, or after
        `patience` seconds."""
        deadline = time.monotonic() + patience
        digest = hashlib.sha256(source.encode()).hexdigest()
        with self._lock:
            build = self._builds.get(digest)
            if build is None:
                build = self._builds[digest] = Build(self, source, digest)
                build._is_waited_for = wait
                self._begin(build)
                self._advance()
        while wait and not build._settled and time.monotonic() < deadline:
            with self._lock:
                self._put_first(build)
                self._advance()
            if not build._settled:
                time.sleep(PAUSE)
        return build

    def is_kept(self, source: str) -> bool:
        """Is the program of a text known here, or in the folder, so that no compiler is needed?"""
        digest = hashlib.sha256(source.encode()).hexdigest()
        with self._lock:
            if digest in self._builds:
                return True
            try:
                return self._place.holds(self._key(digest)[1])
            except EXPECTED:
                return False

    def kept(self, digest: str) -> Build | None:
        """The build of the text with this hash, where its program is loaded here, or can be from the folder."""
        with self._lock:
            build = self._builds.get(digest)
            if build is None:
                build = Build(self, "", digest)
                with suppress(*EXPECTED):
                    if self._load(build, self._key(digest)[1]):
                        self._builds[digest] = build
            return build if build._library is not None else None

    def note(self, key: str) -> str | None:
        """The words that were left under a key beside the programs."""
        with self._lock:
            return self._place.note(key)

    def leave_note(self, key: str, words: str) -> None:
        """Leave them for processes to come, where the folder is kept."""
        with self._lock:
            self._place.leave_note(key, words)

    def remove_note(self, key: str) -> None:
        """Take them away again."""
        with self._lock:
            self._place.remove_note(key)

    def has_sign(self, sign: str) -> bool:
        """Was this sign left beside the programs?"""
        with self._lock:
            return self._place.has_sign(sign)

    def leave_sign(self, sign: str) -> None:
        """Leave it for processes to come, where the folder is kept."""
        with self._lock:
            self._place.leave_sign(sign)

    def remove_sign(self, sign: str) -> None:
        """Take it away again."""
        with self._lock:
            self._place.remove_sign(sign)

    def look(self) -> None:
        """Take what the compiler has finished, and start it on what is next."""
        with self._lock:
            self._advance()

    def close(self) -> None:
        """End the compiler, and remove what is not to be kept."""
        with self._lock:
            if self._running:
                self._running[1].close()
                self._running[0]._fail(ENDING)
                self._running = None
            self._broken = ENDING
            self._queue.clear()
            if self._folder:
                self._folder.remove_temporary()

    def forget(self) -> None:
        """In a fork: compiler and temporary folder belong to the parent. What was not settled begins again."""
        if self._running:
            self._running[1].forget()
        if self._folder:
            self._folder.forget_temporary()
        self._forget_process()
        self._queue.extend(build for build in self._builds.values() if not build._settled)

    def _forget_process(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[Build] = deque()
        self._running: tuple[Build, Compilation, str] | None = None
        self._at_exit: Finalize | None = None

    @property
    def _place(self) -> Folder:
        self._folder = self._folder or Folder()
        return self._folder

    def _begin(self, build: Build) -> None:
        """Load the program, or queue for the compiler."""
        try:
            if not self._load(build, self._key(build.digest)[1]):
                self._queue.append(build)
        except EXPECTED as error:
            build._fail(_words(error))

    def _advance(self) -> None:
        """Go on as far as that takes no time."""
        while True:
            if self._running:
                build, compilation, key = self._running
                if not compilation.finished():
                    return
                self._running = None
                try:
                    self._take(build, compilation, key)
                except EXPECTED as error:
                    build._fail(f"what the compiler made cannot be loaded: {_words(error)}")
                finally:
                    compilation.close()
            elif self._queue:
                build = self._queue.popleft()
                try:
                    self._start(build)
                except EXPECTED as error:
                    build._fail(_words(error))
            else:
                return

    def _put_first(self, build: Build) -> None:
        """What is waited for comes before what is not."""
        build._is_waited_for = True
        if self._running is None or self._running[0] is not build:
            with suppress(ValueError):
                self._queue.remove(build)
            self._queue.appendleft(build)

    def _key(self, digest: str) -> tuple[list[str], str]:
        """The compiler's command, and the name under which the program is kept: it says all that the library depends
        on. CompilerError without a compiler."""
        found = compiler()
        instructions = target()
        command = [*found, *options(found, instructions)]
        parts = (digest, *command, identity(found), instructions, model(), sys.platform)
        return command, hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]

    def _load(self, build: Build, key: str) -> bool:
        """Is the program there?"""
        start = time.perf_counter()
        library = self._place.find(key)
        if library is None:
            return False
        build._settle(library, f"was compiled before, and loaded in {1e3 * (time.perf_counter() - start):.1f} ms")
        return True

    def _start(self, build: Build) -> None:
        """Start the compiler; another process may have made the program while this one waited for its turn."""
        command, key = self._key(build.digest)
        if self._load(build, key):
            return
        if self._broken or self._folder is None:
            build._fail(self._broken)
            return
        self._at_exit = self._at_exit or Finalize(None, self.close, exitpriority=0)
        workplace = self._folder.make_workplace()
        self._running = build, Compilation(command, build._source, workplace, niced=not build._is_waited_for), key
        build._said = f"is being compiled ({command[0]}); until then recorded graphs run"

    def _take(self, build: Build, compilation: Compilation, key: str) -> None:
        """Load what a compiler has made, then keep it: of several processes at once each has its own."""
        if compilation.why:
            if compilation.is_slow:
                self._broken = compilation.why
            build._fail(compilation.why)
            return
        seconds = compilation.seconds
        library = ctypes.CDLL(str(compilation.library))
        build._settle(library, f"was compiled in {seconds:.1f} s{self._kept(compilation, key)}")

    def _kept(self, compilation: Compilation, key: str) -> str:
        """Keep a program, and say where."""
        folder, complaint = self._folder, size_limit()[1]
        if folder is None:
            return ""
        try:
            folder.keep(compilation.library, key)
        except OSError as error:
            return f", and could not be kept ({_words(error)})"
        if not folder.unusable:
            return f" and is kept in {compilation.workplace.parent}" + (complaint and f" ({complaint})")
        return (
            f" and is kept until Python ends, because {folder.unusable}; to keep it longer, name a folder that you "
            "alone can write in the variable MSLSQ_CACHE_DIR"
        )


def _words(error: Exception) -> str:
    """An error within a sentence."""
    return " ".join(str(error).split()).removesuffix(".")


STORE = Store()
request, is_kept, kept = STORE.request, STORE.is_kept, STORE.kept
"""The build of a text in this process: `Store.request`; `Store.is_kept`, `Store.kept`."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=STORE.forget)
