"""`resume=FOLDER`: a run goes on where an earlier one was killed, if its options and inputs are still the same.

`manifest.json` in a run's folder says what the run is of: options, versions, and per input file its size, time and
SHA-256. While it runs, the results of its scenes lie in `.progress/`, each whole or not there; when it has ended, the
manifest lists every file that it wrote with its size and SHA-256, and its exit code. A run whose files are all as
listed is whole, and is not done again.
"""

import hashlib
import json
import pickle
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from rich.markup import escape
from sweeping import SWEEP, console
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

import mslsq
from mslsq.alignment import Alignment
from mslsq.replacing import replacing, write_text

MANIFEST, PROGRESS = "manifest.json", ".progress"
NO_MATTER = ("resume", "quiet", "n_jobs")
"""Options that may differ from the first run's."""

ROOM = "mslsq.alignment."
"""A result is made of the dataclasses and enumerations of this package: nothing else that a file of `.progress/` names
is ever made, and nothing is run."""


class ResumeError(ValueError):
    """The folder holds no run, or another one than is asked for."""


def with_recorded(arguments: list[str]) -> list[str]:
    """The command line; what `resume=FOLDER` leaves out is taken from that of the run, or the sweep, in the folder.

    Raises:
        ResumeError: the folder holds neither.
    """
    named = [argument for argument in arguments if argument.startswith("resume=")]
    text = named[-1].partition("=")[2].strip("'\"") if named else ""
    if text in ("", "null"):
        return list(arguments)
    folder = Path(text)
    manifests = [folder / name for name in (SWEEP, MANIFEST) if (folder / name).exists()]
    begun = (folder / ".hydra").is_dir() or (folder / "multirun.yaml").exists()
    if not manifests and not begun:
        raise ResumeError(f"resume={text}: there is no run in this folder. Name the folder that a run has written to.")
    if not manifests:
        if len(arguments) > 1:
            return list(arguments)
        raise ResumeError(f"resume={text}: that run ended before it noted its options. Give them beside resume.")
    given = {_name(argument) for argument in arguments}
    noted = [argument for argument in _read(manifests[0]).get("arguments", []) if _name(argument) not in given]
    together = [*noted, *arguments]
    # argparse, which Hydra uses, takes no positional arguments on both sides of a flag.
    return sorted(together, key=lambda argument: _name(argument) != "--multirun")


def _name(argument: str) -> str:
    """Of the option that an argument is for; flags of Hydra are their own."""
    return {"-m": "--multirun"}.get(argument, argument.lstrip("+~").partition("=")[0])


def given() -> list[str]:
    """The command line of this run."""
    return list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []


class Resumable:
    """One run in its folder, begun or taken up again."""

    def __init__(
        self, folder: Path, config: dict[str, Any], inputs: Sequence[Path], arguments: Sequence[str] = ()
    ) -> None:
        """Raises ResumeError where `config["resume"]` is set and the run in the folder is of other options, inputs or
        versions. A run that is not resumed forgets what was there."""
        self.folder, self.progress, resume = folder, folder / PROGRESS, config.get("resume")
        if resume is not None and Path(resume).resolve() not in (folder.resolve(), folder.resolve().parent):
            raise ResumeError(f"resume={resume} is not {folder}, where this run writes: leave hydra.run.dir out.")
        plain = json.loads(json.dumps({name: value for name, value in config.items() if name not in NO_MATTER}))
        found = _read(folder / MANIFEST)
        resumed = resume is not None and bool(found)
        self.content: dict[str, Any] = {
            "mslsq": mslsq.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "arguments": list(arguments),
            "options": plain,
            "inputs": [_input(path, found.get("inputs", ()) if resumed else ()) for path in dict.fromkeys(inputs)],
            "outputs": None,
            "code": None,
        }
        if resumed:
            self._refuse_changes(found)
            self.content |= {name: found.get(name) for name in ("outputs", "code", "arguments")}
        else:
            shutil.rmtree(self.progress, ignore_errors=True)
            self._write()

    def _refuse_changes(self, found: dict[str, Any]) -> None:
        where = f"resume={self.folder}"
        for name in ("mslsq", "torch", "python"):
            if found.get(name) != self.content[name]:
                raise ResumeError(
                    f"{where}: that run was made with {name} {found.get(name)}, and this is {self.content[name]}; its "
                    "parts would not fit together. Start a new run."
                )
        before, now = _flat(found.get("options", {})), _flat(self.content["options"])
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                raise ResumeError(
                    f"{where}: that run has {name}={before.get(name)!r}, not {now.get(name)!r}. Give the same options, "
                    "or none beside resume, or start a new run."
                )
        earlier = {record["path"]: record for record in found.get("inputs", ())}
        for record in self.content["inputs"]:
            if record["path"] not in earlier:
                raise ResumeError(f"{where}: {record['path']} is no input of that run. Start a new run.")
            if record["sha256"] != earlier[record["path"]]["sha256"]:
                raise ResumeError(f"{where}: {record['path']} has changed since that run began. Start a new run.")
        if len(earlier) != len(self.content["inputs"]):
            missing = set(earlier) - {record["path"] for record in self.content["inputs"]}
            raise ResumeError(f"{where}: {sorted(missing)[0]} was an input of that run. Start a new run.")

    @property
    def is_whole(self) -> bool:
        """Has the run ended, and is every file that it wrote as it was?"""
        outputs = self.content["outputs"]
        return outputs is not None and all(_same(self.folder / record["name"], record) for record in outputs)

    @property
    def code(self) -> int:
        """The exit code of a run that is whole."""
        return int(self.content["code"])

    def kept(self, number: int) -> Alignment | None:
        """The result of a scene that an earlier run has solved; None where there is none, or no whole one."""
        path = self.progress / f"scene-{number}.pt"
        if not path.exists():
            return None
        try:
            with safe_globals(list(_data_classes(get_unsafe_globals_in_checkpoint(path)))):
                result = torch.load(path, weights_only=True)
        except (ImportError, OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError):
            return None  # solved again
        return result if isinstance(result, Alignment) else None

    def keep(self, number: int, result: Alignment) -> None:
        """A scene is solved."""
        with replacing(self.progress / f"scene-{number}.pt") as temporary:
            torch.save(result, temporary)

    def finish(self, written: Sequence[Path], code: int) -> None:
        """The run has ended, and these are its files."""
        self.content |= {"outputs": [_output(path, self.folder) for path in written], "code": code}
        self._write()
        shutil.rmtree(self.progress, ignore_errors=True)

    def _write(self) -> None:
        write_text(self.folder / MANIFEST, json.dumps(self.content, indent=2) + "\n")


def said_whole(run: Resumable) -> bool:
    """Is there nothing left to do? Then that is said."""
    if run.is_whole:
        console.print(f"{escape(str(run.folder))}: this run is whole already, and nothing is done again.")
    return run.is_whole


def resumable(
    work: Callable[[dict[str, Any], Path], tuple[list[Path], int]], inputs: Callable[[dict[str, Any]], list[Path]]
) -> Callable[[dict[str, Any], Path], int]:
    """A task of one solve, of which a killed run leaves no parts: `resume` does it again where it is not whole."""

    def whole(config: dict[str, Any], folder: Path) -> int:
        run = Resumable(folder, config, inputs(config), given())
        if said_whole(run):
            return run.code
        written, code = work(config, folder)
        run.finish(written, code)
        console.print(f"{len(written)} files written to {escape(str(folder))}")
        for path in written:
            console.print(f"  {path.name}")
        return code

    return whole


def _data_classes(names: Sequence[str]) -> Iterator[type]:
    """Those of the named things that a result may be made of."""
    for name in names:
        module, _, what = name.rpartition(".")
        found = getattr(import_module(module), what, None) if module.startswith(ROOM) else None
        if isinstance(found, type) and (is_dataclass(found) or issubclass(found, Enum)):
            yield found


def _flat(options: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Options of sections by their full names."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def _read(path: Path) -> dict[str, Any]:
    """A manifest; nothing where there is none, or no whole one."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _digest(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _input(path: Path, earlier: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a file is. One of the same size and time as before is not read again."""
    name = str(path.resolve())
    if not path.is_file():
        return {"path": name, "size": None, "mtime_ns": None, "sha256": None}
    about = path.stat()
    record = {"path": name, "size": about.st_size, "mtime_ns": about.st_mtime_ns}
    for other in earlier:
        if record.items() <= other.items():
            return other
    return record | {"sha256": _digest(path)}


def _output(path: Path, folder: Path) -> dict[str, Any]:
    return {"name": str(path.relative_to(folder)), "size": path.stat().st_size, "sha256": _digest(path)}


def _same(path: Path, record: dict[str, Any]) -> bool:
    return path.is_file() and path.stat().st_size == record["size"] and _digest(path) == record["sha256"]
