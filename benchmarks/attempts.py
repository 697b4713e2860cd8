"""Work in processes that may die: a ledger on disk of what is done and of what ended a process, to be left out."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class TooSlow(Exception):
    """A piece of work took longer than it may."""


class Ledger:
    """What is done, what is under way, and what must be left out. One worker at a time writes it."""

    def __init__(self, path: str):
        self.path, self._now = Path(path), Path(path + ".now")
        fresh = {"done": [], "fatal": {}, "finished": False, "begun": time.time()}
        known = json.loads(self.path.read_text()) if self.path.exists() else fresh
        self.done: set[str] = set(known["done"])
        self.fatal: dict[str, list[str]] = known["fatal"]
        self.finished: bool = known["finished"]
        self.begun: float = known["begun"]

    def start(self, work: str, part: str) -> None:
        """Say what is about to be tried: it is to blame if nothing more is heard."""
        self._now.write_text(json.dumps([work, part]))

    def finish(self, work: str) -> None:
        self.done.add(work)
        self.save()

    def blame(self) -> tuple[str, str]:
        """What ended the last process; it is not tried again."""
        work, part = json.loads(self._now.read_text())
        self.fatal.setdefault(work, []).append(part)
        self.save()
        return work, part

    def save(self) -> None:
        content = {"done": sorted(self.done), "fatal": self.fatal, "finished": self.finished, "begun": self.begun}
        self.path.write_text(json.dumps(content))


def drive(path: str, log: str) -> list[tuple[str, str]]:
    """Run this program again with `--worker` until its ledger says that it is finished; what ended a process."""
    Path(path).unlink(missing_ok=True)
    Ledger(path).save()
    crashes = []
    with open(log, "w") as errors:
        while not Ledger(path).finished:
            command = [sys.executable, *sys.argv, "--worker", "--ledger", path]
            code = subprocess.run(command, check=False, stderr=errors).returncode
            if code < 0:  # a signal; an exception would come again and again
                crashes.append(Ledger(path).blame())
                print(f"signal {-code} in {' / '.join(crashes[-1])}", flush=True)
            elif code > 0:
                raise SystemExit(f"the worker failed: see {log}")
    return crashes


def alarmed() -> None:
    """`signal.alarm(seconds)` raises `TooSlow` from here on."""

    def too_slow(*_: Any) -> None:
        raise TooSlow

    signal.signal(signal.SIGALRM, too_slow)
